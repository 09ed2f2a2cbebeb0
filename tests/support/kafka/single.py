"""Operations of the store on a single partition, and the batches of a transaction."""

from __future__ import annotations

import os
from collections.abc import Sequence

from lastwrite.engine.rules.retention import Retention
from lastwrite.kafka.format.batch import ControlType, encode_batch
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.kafka.store.commit import CommitNotes, delete_replaced, record, swap
from lastwrite.kafka.store.outputs import NewSegment
from lastwrite.kafka.store.publish import PartitionCopy, publish_copies
from lastwrite.kafka.store.retention import retain_all
from lastwrite.model.log import PartitionLog
from lastwrite.storage.parallel_sync import run_steps_serially


def commit(
    log: PartitionLog,
    outputs: Sequence[NewSegment],
    first_dirty_offset: int,
    *,
    checkpoint_root: str,
) -> None:
    """Run ``swap``, ``record`` and ``delete_replaced`` for one partition."""
    run_steps_serially(swap(log, outputs, first_dirty_offset, CommitNotes()))
    record(checkpoint_root, {log.name: first_dirty_offset})
    run_steps_serially(delete_replaced(log.folder))


def retain(log: PartitionLog, retention: Retention, *, checkpoint_root: str) -> None:
    """Run ``retain_all`` for one partition.

    Raises:
        CommitConflict: A segment changed after ``log`` was read. Nothing was deleted.
        LogError: A file could not be changed. The log starts at its old or its new start, and the
            next
            run continues.
    """
    (error,) = retain_all([(log, retention)], checkpoint_root=checkpoint_root)
    if error is not None:
        raise error


def publish_copy(
    log: PartitionLog,
    outputs: Sequence[NewSegment],
    target_folder: str,
    first_dirty_offset: int | None,
    retention: Retention | None = None,
) -> None:
    """Write one copy of a partition. See ``PartitionCopy``.

    Raises:
        InvalidConfig: There already is a partition at the target.
        CommitConflict: The log changed after it was read. There is no copy.
        LogHeld: The target is locked.
        LogError: A file could not be read or written. There is no copy.
    """
    target_folder = os.path.abspath(target_folder)
    copy = PartitionCopy(log, outputs, target_folder, first_dirty_offset, retention)
    (error,) = publish_copies([copy], os.path.dirname(target_folder))
    if error is not None:
        raise error


def encode_control_record(
    offset: int, timestamp_ms: int, control_type: ControlType, coordinator_epoch: int = 0
) -> Record:
    """The record of a transaction marker. Encode its batch with ``control`` and
    ``transactional``.
    """
    key = (0).to_bytes(2, "big") + int(control_type).to_bytes(2, "big")
    return Record(
        offset,
        timestamp_ms,
        key,
        (0).to_bytes(2, "big") + coordinator_epoch.to_bytes(4, "big", signed=True),
    )


def data_batch(records: Sequence[Record], producer: int = -1) -> bytes:
    """A batch of ``producer``'s transaction. Producer -1 means without a transaction."""
    return encode_batch(
        records,
        leader_epoch=0,
        producer_id=producer,
        producer_epoch=0,
        base_sequence=0,
        transactional=producer >= 0,
    )


def marker_batch(producer: int, offset: int, timestamp_ms: int, kind: ControlType) -> bytes:
    """The marker batch that ends the producer's transaction."""
    return encode_batch(
        [encode_control_record(offset, timestamp_ms, kind)],
        leader_epoch=0,
        producer_id=producer,
        producer_epoch=0,
        transactional=True,
        control=True,
    )
