"""A partition's segments in a tier, completed by information from brokers' log roots.

The root with the partition provides its local segments, log start and leader epochs. Any root
provides the tier's metadata: which copies are finished, and which are being deleted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

import numpy as np

from lastwrite.errors import LogError
from lastwrite.kafka.cluster.remote_log_metadata import TOPIC, SegmentState, decode_segment_state
from lastwrite.kafka.format.batch import decode_batch, decode_batch_header
from lastwrite.kafka.format.batch_layout import BATCH_HEADER
from lastwrite.kafka.format.names import LEADER_EPOCHS, LOG_STARTS, PARTITION_METADATA
from lastwrite.kafka.format.text import decode_leader_epochs, decode_partition_metadata
from lastwrite.kafka.store import index_files, log_dir, tiered
from lastwrite.kafka.store.checkpoints import read_offsets
from lastwrite.kafka.store.partitions import find_partitions, root_of
from lastwrite.kafka.store.tiered import LocalPart, Tier
from lastwrite.model.log import PartitionLog, Segment
from lastwrite.storage.objects.address import is_address
from lastwrite.storage.reading import reader_of

# States of segment copies by (topic id, partition), then by segment id.
States = Mapping[tuple[str, int], Mapping[str, SegmentState]]


def local_folder(folder: str, roots: Sequence[str]) -> str | None:
    """The folder of the same partition in one of the log roots. None if no root has it."""
    for root in roots:
        local = os.path.join(root, str(tiered.name_of(folder)))
        if local == folder or not os.path.isdir(local) or tiered.is_tier(local):
            continue
        content = index_files.side_file(local, PARTITION_METADATA)
        if content is not None and str(decode_partition_metadata(content)) == tiered.topic_id_of(
            folder
        ):
            return local
    return None


def read(folder: str, roots: Sequence[str], metadata: str | None = None) -> Tier:
    """The partition in a tier, continued by the local segments in one of the roots.

    Args:
        metadata: another root, used only for the tier's metadata and not for segments.
    Raises:
        LogError: as ``tiered.read_tier`` and ``log_dir.read_partition``.
    """
    states = states_of(folder, roots if metadata is None else (*roots, metadata))
    local = local_folder(folder, roots)
    if local is None:
        return tiered.read_tier(folder, states=states)
    log = log_dir.read_partition(local)
    content = index_files.side_file(local, LEADER_EPOCHS)
    epochs = () if content is None else decode_leader_epochs(content)
    beside = LocalPart(
        log=log,
        log_start=read_offsets(root_of(local), LOG_STARTS).get(log.name, 0),
        epochs=tuple((each.epoch, each.start_offset) for each in epochs),
        snapshots=tuple(index_files.snapshots_of(local)),
    )
    return tiered.read_tier(folder, beside, states)


def states_of(folder: str, roots: Sequence[str]) -> Mapping[str, SegmentState]:
    """The states of a partition's copies in tiered storage, by segment id, from all roots.

    Roots may differ, because a replica may lag. The most advanced state is used, because states
    only advance.
    """
    key = tiered.topic_id_of(folder), tiered.name_of(folder).partition
    found: dict[str, SegmentState] = {}
    for root in roots:
        for id, told in states_in(root).get(key, {}).items():
            found[id] = max(found.get(id, told), told, key=lambda each: each.state)
    return found


def states_in(root: str) -> States:
    """The states of all copies in tiered storage, from ``__remote_log_metadata`` in a log root."""
    if is_address(root) or not os.path.isdir(root):
        return {}
    try:
        folders = find_partitions(root, TOPIC)
    except LogError:
        return {}
    logs = [log_dir.read_partition(folder) for folder in folders]
    seen = tuple((log.folder, log.log_start, log.end_offset) for log in logs)
    return _states(seen)


@lru_cache(maxsize=8)
def _states(seen: tuple[tuple[str, int, int], ...]) -> States:
    found: dict[tuple[str, int], dict[str, SegmentState]] = {}
    for folder, _, _ in seen:
        log: PartitionLog = log_dir.read_partition(folder)
        for value in (value for segment in log.segments for value in _values(segment)):
            state = decode_segment_state(value)
            if state is not None:
                states = found.setdefault((state.topic_id, state.partition), {})
                # Only a segment's first record has the end offset.
                before = states.get(state.segment_id, state)
                end = max(state.end_offset, before.end_offset)
                states[state.segment_id] = state._replace(end_offset=end)
    return found


def _values(segment: Segment) -> Iterator[bytes]:
    """Yield the values of a segment's records."""
    with reader_of(segment) as reader:
        at = 0
        while at + BATCH_HEADER.size <= segment.size_bytes:
            head = np.empty(BATCH_HEADER.size, dtype=np.uint8)
            reader.read_into(head, at)
            header = decode_batch_header(memoryview(head), 0)
            data = np.empty(header.size_bytes, dtype=np.uint8)
            reader.read_into(data, at)
            batch = decode_batch(memoryview(data), 0)
            for record in () if batch.attributes.control else batch.records:
                if record.value is not None:
                    yield bytes(record.value)
            at += header.size_bytes
