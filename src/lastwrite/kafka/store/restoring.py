"""Restores a partition of an archive to a stopped broker's log root, with its offsets.

    archive          0 ─── 600 ─── 1200 ─ 1366
    log root         0 ─── 600 ─── 1200 ─── 1366 (active, empty), 1366.snapshot,
                                            leader-epoch-checkpoint, partition.metadata

The partition is built in a folder beside the target and then renamed in one step. Before that, its
checkpoint entries are written to the root. The active segment is new and empty. Therefore a broker
that starts after a crash checks no restored segment, and loads its producers from the snapshot.

Source: Kafka 4.4 ``LogLoader``, ``LogManager.isStrayKraftReplica``; docs/formats/kafka-cleaning.md,
"Loading a log".
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from lastwrite.archive.partition_store import read_versioned_manifest
from lastwrite.engine.chunks import BatchWindow, BatchWindows
from lastwrite.errors import InvalidConfig, LogError, located
from lastwrite.kafka.cluster.internal_topics import GROUPS_TOPIC, commits_elsewhere
from lastwrite.kafka.format.batch import decode_batch, encode_batch
from lastwrite.kafka.format.chunk import KafkaFormat
from lastwrite.kafka.format.index import DEFAULT_INTERVAL_BYTES
from lastwrite.kafka.format.names import (
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LEADER_EPOCHS,
    LOG_STARTS,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    KafkaFileKind,
    Suffix,
    classify,
    segment_file_name,
)
from lastwrite.kafka.format.text import (
    LeaderEpoch,
    decode_partition_metadata,
    encode_leader_epochs,
    encode_partition_metadata,
    leader_epochs_from,
)
from lastwrite.kafka.format.transplant import Transplant
from lastwrite.kafka.producers.history import read_producers
from lastwrite.kafka.producers.last_batches import LastBatches
from lastwrite.kafka.producers.snapshot import decode_snapshot, encode_snapshot
from lastwrite.kafka.store import archived, index_files, lock
from lastwrite.kafka.store.archived import ArchivedLog
from lastwrite.kafka.store.checkpoints import read_offsets, write_offsets
from lastwrite.kafka.store.log_dir import read_partition
from lastwrite.kafka.store.publish import staging_path
from lastwrite.kafka.store.retention import make_empty_segment
from lastwrite.kafka.store.staging import StagedSegment
from lastwrite.model.columns import (
    IS_OLD,
    ROW_BASE_OFFSET,
    ROW_COLUMNS,
    ROW_MAX_TIMESTAMP,
    ROW_NEXT_OFFSET,
    ROW_POSITION,
    ROW_SIZE,
    BatchTable,
    ByteArray,
    Int64Array,
)
from lastwrite.model.log import PartitionLog, Segment, TopicPartition
from lastwrite.model.work import Limits, ScanRange, SegmentOutput
from lastwrite.storage import files
from lastwrite.storage.reading import reader_of

_FRAME = struct.Struct(">qi")  # base offset and remaining length of a batch in any format
Advance = Callable[[int], None]  # called with the number of bytes written


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The target of a restore: a partition in a log root."""

    root: str
    name: TopicPartition
    topic_id: str  # the topic's id in the cluster
    leader_epoch: int | None  # current leader epoch in the cluster; None if it is unknown

    @property
    def folder(self) -> str:
        return os.path.join(self.root, str(self.name))


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRestored:
    """The result of restoring a partition to a log root."""

    first_offset: int
    end_offset: int
    # False if the root already had the partition, or if the partition is empty
    is_written: bool = False
    segments: int = 0
    bytes: int = 0
    is_same_topic: bool = True


def restore(
    source: str,
    target: Target,
    *,
    until: int | None,
    drop_open: bool,
    limits: Limits,
    advance: Advance,
) -> PartitionRestored:
    """Write the partition of an archive at ``source`` to its target, which the caller has locked.

    Args:
        until: the first offset to leave out. None means that all is restored.
        drop_open: leave out the records of transactions that are open at the archive's end.

    Raises:
        LogError: the target has records or another topic id, or a transaction is open.
        CorruptLog, CommitConflict, RemoteFailed: the archive cannot be read. The target is
            unchanged.
    """
    seen = read_versioned_manifest(source).manifest
    contents, log = archived.contents_of(seen, source), archived.log_of(seen, source)
    end = log.end_offset if until is None else min(max(until, log.log_start), log.end_offset)
    found = PartitionRestored(
        first_offset=log.log_start,
        end_offset=end,
        is_same_topic=contents.topic_id == target.topic_id,
    )
    staging = staging_path(target.folder)
    files.remove_tree(staging)  # a killed run may have left the folder
    if end == 0 or _is_there(target, log, end):
        return found
    writing = _PartitionWriter(log, contents, target, end, limits)
    if not drop_open and until is None:
        reject_open(log, writing.open_from)
    try:
        writing.write(advance)
        _write_checkpoints(target, log, end)
        _put_in_place(target)
    except BaseException:
        with contextlib.suppress(LogError, OSError):  # the next run removes the folder
            files.remove_tree(staging)
        raise
    return replace(found, is_written=True, segments=writing.segments, bytes=writing.bytes)


def first_offset_since(source: str, time_ms: int, limits: Limits) -> int:
    """The first offset in an archive's partition with a record of that time or later.

    Returns the partition's end if there is no such record.

    Raises:
        CorruptLog, CommitConflict, RemoteFailed: the archive cannot be read.
    """
    log = archived.read_archived(source)
    for n, segment in enumerate(log.segments):
        if segment.largest_timestamp_ms < time_ms:
            continue
        for chunk in chunks_of(log, n, segment, limits):
            for row in np.flatnonzero(chunk.table["max_timestamp"] >= time_ms).tolist():
                if chunk.table["flags"][row] & IS_OLD:
                    return int(chunk.table["base_offset"][row])
                with located(segment.path, chunk.shift):
                    batch = decode_batch(chunk.buffer, int(chunk.table["position"][row]))
                for record in batch.records:
                    if record.timestamp_ms >= time_ms:
                        return record.offset
    return log.end_offset


def batches_above(log: PartitionLog, most_bytes: int) -> Iterator[tuple[int, int]]:
    """The base offset and the size in bytes of each batch larger than ``most_bytes``.

    Only index intervals of more than ``most_bytes`` are read. A segment without an index is read
    from its start.
    """
    for segment in log.segments:
        if segment.size_bytes <= most_bytes:
            continue
        places = np.asarray(index_files.read_offset_index(segment)[1], dtype=np.int64)
        borders = np.unique([0, *places.tolist(), segment.size_bytes])
        wide = np.flatnonzero(np.diff(borders) > most_bytes)
        with reader_of(segment) as reader:
            for n in wide.tolist():
                at, end = int(borders[n]), int(borders[n + 1])
                while at + _FRAME.size <= end:
                    head = np.empty(_FRAME.size, dtype=np.uint8)
                    reader.read_into(head, at)
                    base_offset, length = _FRAME.unpack(head)
                    if length < 0:  # the later decoding of the batches reports the damage
                        break
                    if _FRAME.size + length > most_bytes:
                        yield base_offset, _FRAME.size + length
                    at += _FRAME.size + length


def chunks_of(
    log: PartitionLog,
    place: int,
    segment: Segment,
    limits: Limits,
    format: KafkaFormat | None = None,
) -> Iterator[BatchWindow]:
    """Yield a whole segment chunk by chunk, after verifying the checksums of all batches.

    ``format`` splits the segment. None means a new instance.
    """
    piece = ScanRange.of(
        segment,
        number=0,
        place=place,
        start=0,
        end=segment.size_bytes,
        end_offset=log.segment_end(place),
        keyed=False,
    )
    if segment.size_bytes:
        yield from BatchWindows(limits).of(format or KafkaFormat(limits.plain_bytes), piece)


def _is_there(target: Target, log: PartitionLog, end: int) -> bool:
    """Whether the target already contains exactly the partition that would be written.

    Raises:
        LogError: the target has other records, or another topic id.
    """
    folder = target.folder
    if os.path.islink(folder):
        raise InvalidConfig(
            "the partition's folder is a symbolic link",
            path=folder,
            remedy="move the link out of the log root, and run the command again; the folder "
            "that it leads to stays as it is",
        )
    if not os.path.isdir(folder):
        return False
    content = index_files.side_file(folder, PARTITION_METADATA)
    if content is not None:
        with located(os.path.join(folder, PARTITION_METADATA)):
            topic_id = decode_partition_metadata(content)
        if topic_id != target.topic_id:
            raise LogError(
                f"the folder belongs to topic id {topic_id}, but {target.name.topic} has topic id "
                f"{target.topic_id} in the cluster",
                path=folder,
                remedy="start the broker, which renames such a folder to a -stray folder; stop "
                "the broker, and run the command again",
            )
    bases = {
        int(name[:20]): os.path.getsize(os.path.join(folder, name))
        for name in os.listdir(folder)
        if classify(name)[:2] == (KafkaFileKind.LOG, Suffix.LIVE)
    }
    if not any(bases.values()) and max(bases, default=0) <= end:
        return len(bases) > 0 and log.log_start == min(bases) == end > 0
    there = read_partition(folder)
    if (there.log_start, there.end_offset) == (log.log_start, end):
        return True
    raise LogError(
        "the log root already has this partition with other records: it starts at offset "
        f"{there.log_start} and ends at offset {there.end_offset}",
        path=folder,
        remedy="nothing was changed; restore under another name with --as; or, if the partition's "
        "records are not needed, delete the topic, create it again, and run the command again",
    )


def open_transactions(log: PartitionLog, end: int) -> dict[int, int]:
    """First offsets, by producer id, of the transactions that are open at offset ``end``."""
    producers = log.producers
    if end < log.end_offset:
        first = log.segments[0].base_offset if log.segments else end
        producers, _ = read_producers(log.segments, (), lambda offset: (), first, end, end)
    return {each.producer_id: each.open_from for each in producers if each.open_from >= 0}


def reject_open(log: PartitionLog, open_from: Mapping[int, int]) -> None:
    """Check that the log has no open transactions: after a restore, no producer would end them.

    Raises:
        LogError: a transaction is open.
    """
    for producer, first in open_from.items():
        raise LogError(
            f"a transaction of producer {producer} is open since offset {first}; after a restore "
            "no producer would end it, and read_committed consumers would wait at this offset "
            "forever",
            path=log.folder,
            remedy="nothing was changed; give --drop-open to restore without the records of open "
            "transactions, as if they were aborted",
        )


class _PartitionWriter:
    """Writes a restored partition to a temporary folder beside its target."""

    def __init__(
        self, log: PartitionLog, contents: ArchivedLog, target: Target, end: int, limits: Limits
    ) -> None:
        self._log, self._contents, self._target = log, contents, target
        self._end, self._limits = end, limits
        self._is_same = contents.topic_id == target.topic_id
        self.open_from = open_transactions(log, end)
        self._aborted = [each for each in log.aborted if each.last_offset < end]
        newest = max((epoch for epoch, _ in contents.epochs), default=0)
        is_later = target.leader_epoch is not None and newest > target.leader_epoch
        self._keeps_epochs = self._is_same and not is_later
        is_groups = contents.topic_id is not None and log.name.topic == GROUPS_TOPIC
        self._transplant = Transplant(
            end_offset=end,
            open_from=self.open_from,
            aborted=None if self._is_same else self._aborted,
            leader_epoch=None if self._keeps_epochs else 0,
            edit=None if self._is_same or not is_groups else commits_elsewhere,
        )
        self._last = LastBatches()
        self._staging = staging_path(target.folder)
        self._next_offset = 0  # end offset of the records so far
        self.segments = self.bytes = 0

    def write(self, advance: Advance) -> None:
        """Write the folder's files under their final names, and sync them."""
        target, end, path = self._target, self._end, partial(os.path.join, self._staging)
        if os.path.isdir(target.folder):
            like = files.owner_of(target.folder).as_far_as_may()
            files.make_folder(self._staging, like, is_synced=False)
        else:
            files.make_new_folder(self._staging)
        log = self._log
        if log.log_start < min((each.base_offset for each in log.segments), default=end):
            # An archive has no empty segments, but the log needs a segment at its start.
            make_empty_segment(self._staging, log.log_start)
        for n, segment in enumerate(log.segments):
            if segment.base_offset < end:
                self._segment(n, segment, advance)
        make_empty_segment(self._staging, end)
        self._write(path(segment_file_name(end, KafkaFileKind.SNAPSHOT)), self._snapshot())
        self._write(path(LEADER_EPOCHS), encode_leader_epochs(self._epochs()))
        self._write(path(PARTITION_METADATA), encode_partition_metadata(target.topic_id))
        files.fsync_dir(self._staging)

    def _write(self, path: str, content: bytes) -> None:
        like = files.owner_of(path, lock.siblings(self._target.root)).as_far_as_may()
        files.write(path, content, like=like)

    def _segment(self, place: int, segment: Segment, advance: Advance) -> None:
        base, until = segment.base_offset, self._log.segment_end(place)
        # New files get the owner of meta.properties.
        like = os.path.join(self._target.root, META_PROPERTIES)
        writer = StagedSegment(base, self._staging, DEFAULT_INTERVAL_BYTES, like)
        result = SegmentOutput(0, 0, 0)
        try:
            for chunk in chunks_of(self._log, place, segment, self._limits):
                data, table = _exact(segment, chunk)
                with located(segment.path):
                    made, rows, kept = self._transplant.of(data, table)
                writer.append(made, rows)
                if self._is_same:
                    self._last.add(made, rows[:, ROW_POSITION], kept)
                if len(rows):
                    self._next_offset = int(rows[-1, ROW_NEXT_OFFSET])
                self.bytes += len(made)
                advance(int(table["origin_size"].sum()))
            if until >= self._end and self._next_offset < self._end:
                writer.append(*self._shell())
            of_segment = [each for each in self._aborted if base <= each.last_offset < until]
            writer.finish(result, segment.mtime_ns, of_segment if self._is_same else ())
        except BaseException:
            writer.abandon()
            raise
        for staged in result.paths:
            kind = KafkaFileKind("." + os.path.basename(staged).split(".")[1])
            files.fsync_file(staged)
            files.rename(staged, os.path.join(self._staging, segment_file_name(base, kind)))
        self.segments += 1

    def _shell(self) -> tuple[ByteArray, Int64Array]:
        """The bytes of a batch without records at the log's last offset.

        It is needed if there is no record at this offset: without it, a consumer would wait before
        the log's end for ever.
        """
        epoch = max((each.epoch for each in self._epochs()), default=0)
        last = self._end - 1
        shell = encode_batch((), base_offset=last, last_offset=last, leader_epoch=epoch)
        row = np.zeros((1, ROW_COLUMNS), dtype=np.int64)
        row[0, [ROW_SIZE, ROW_NEXT_OFFSET, ROW_BASE_OFFSET]] = len(shell), self._end, last
        row[0, ROW_MAX_TIMESTAMP] = -1
        return np.frombuffer(shell, dtype=np.uint8), row

    def _snapshot(self) -> bytes:
        """The producer snapshot to write.

        Empty for another cluster, which assigns new producer ids.
        """
        if not self._is_same:
            return encode_snapshot(())
        if self._contents.snapshot is None or self.open_from or self._end < self._log.end_offset:
            return encode_snapshot(self._last.entries)
        path = f"{self._log.folder}/{self._contents.snapshot}"
        content = index_files.read_file(path)
        with located(path):
            decode_snapshot(content)
        return content

    def _epochs(self) -> tuple[LeaderEpoch, ...]:
        start = self._log.log_start
        if not self._keeps_epochs:
            return (LeaderEpoch(0, start),) if start < self._end else ()
        epochs = [LeaderEpoch(*each) for each in self._contents.epochs if each[1] < self._end]
        return leader_epochs_from(epochs, start)


def _exact(segment: Segment, chunk: BatchWindow) -> tuple[ByteArray, BatchTable]:
    """The stored bytes of a chunk, and its table with ``origin`` relative to these bytes."""
    table = chunk.table
    if not (table["flags"] & IS_OLD).any():
        return chunk.buffer, table
    table = table.copy()
    start = int(table["origin"][0])
    data = np.empty(int(table["origin"][-1] + table["origin_size"][-1]) - start, dtype=np.uint8)
    with reader_of(segment) as reader:
        reader.read_into(data, start + chunk.shift)
    table["origin"] -= start
    return data, table


def _write_checkpoints(target: Target, log: PartitionLog, end: int) -> None:
    """Write the checkpoint entries before the partition, so that a broker does not recover it."""
    first = log.segments[0].base_offset if log.segments else end
    wanted = {
        RECOVERY_POINTS: end,
        HIGH_WATERMARKS: end,
        LOG_STARTS: log.log_start if log.log_start > first else None,
        CLEANER_OFFSETS: None if log.checkpoint is None else min(log.checkpoint, end),
    }
    for file, offset in wanted.items():
        if read_offsets(target.root, file).get(target.name) != offset:
            write_offsets(target.root, file, {target.name: offset})


def _put_in_place(target: Target) -> None:
    staging = staging_path(target.folder)
    if os.path.isdir(target.folder):
        try:
            files.exchange(staging, target.folder)
        except LogError as error:
            remedy = (
                "it holds no record: move the folder out of the log root, and run the command again"
            )
            raise type(error)(error.problem, path=target.folder, remedy=remedy) from error
    else:
        files.rename(staging, target.folder)
    files.fsync_dir(target.root)
    files.remove_tree(staging)
