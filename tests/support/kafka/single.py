"""One partition at a time, of what the store does to many together; and a transaction's batches."""

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
    """``swap``, ``record`` and ``delete_replaced`` of a single partition."""
    run_steps_serially(swap(log, outputs, first_dirty_offset, CommitNotes()))
    record(checkpoint_root, {log.name: first_dirty_offset})
    run_steps_serially(delete_replaced(log.folder))


def retain(log: PartitionLog, retention: Retention, *, checkpoint_root: str) -> None:
    """``retain_all`` of a single partition.

    Raises:
        CommitConflict: a segment changed since ``log`` was read; nothing was taken.
        LogError: a file could not be changed. The log starts where it did or where it is to, and
            the next run goes on.
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
    """Make one copy; see ``PartitionCopy``.

    Raises:
        InvalidConfig: a partition lies at the target already.
        CommitConflict: the log changed since it was read; there is no copy.
        LogHeld: somebody works on the target.
        LogError: a file could not be written or read; there is no copy.
    """
    target_folder = os.path.abspath(target_folder)
    copy = PartitionCopy(log, outputs, target_folder, first_dirty_offset, retention)
    (error,) = publish_copies([copy], os.path.dirname(target_folder))
    if error is not None:
        raise error


def encode_control_record(
    offset: int, timestamp_ms: int, control_type: ControlType, coordinator_epoch: int = 0
) -> Record:
    """The record of a transaction marker; its batch is encoded with ``control`` and
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
    """Of the transaction of ``producer``; -1: of none."""
    return encode_batch(
        records,
        leader_epoch=0,
        producer_id=producer,
        producer_epoch=0,
        base_sequence=0,
        transactional=producer >= 0,
    )


def marker_batch(producer: int, offset: int, timestamp_ms: int, kind: ControlType) -> bytes:
    """The end of its transaction."""
    return encode_batch(
        [encode_control_record(offset, timestamp_ms, kind)],
        leader_epoch=0,
        producer_id=producer,
        producer_epoch=0,
        transactional=True,
        control=True,
    )
