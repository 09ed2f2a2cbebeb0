"""Append new records to topics of an archive.

    tasks    each writes its records beside the partitions, as batches with offsets from 0
    commit   one partition at a time: the batches get their offsets and are written as segments,
             which the next manifest lists

A commit replaces the manifest of one partition, so a reader of the partition sees all records of an
append, or none. A commit is not atomic across partitions. Instead an append may have a name and a
number, which each manifest stores. If an append is repeated with the same name and number, it skips
the partitions that already have it. This requires that a record's partition depends on the record
alone: on its key, or on its value if it has no key.

Only topics that were created by an append can be appended to. A topic fetched from a cluster has
the cluster's offsets, and appended records would contradict them.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from lastwrite.archive.layout import partition_address
from lastwrite.archive.partition_store import WriteTransaction, partition_store_at
from lastwrite.encoding.compression import Codec
from lastwrite.engine.chunks import BatchWindows
from lastwrite.errors import CommitConflict, InvalidConfig, NotALog
from lastwrite.kafka.format.batch import encode_batch
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.kafka.format.chunk import KafkaFormat
from lastwrite.kafka.format.partitioner import partition_of
from lastwrite.kafka.format.text import topic_id_text
from lastwrite.kafka.rules.settings import KafkaTopicConfig
from lastwrite.kafka.store import archived
from lastwrite.kafka.store.archive_writer import KafkaArchiveWriter, LiveSource
from lastwrite.kafka.store.archived import SYSTEM, ArchivedLog
from lastwrite.kafka.store.partitions import find_partitions
from lastwrite.model.attempts import Attempts
from lastwrite.model.columns import BatchTable, ByteArray
from lastwrite.model.log import TopicPartition
from lastwrite.model.stores import StoreSettings
from lastwrite.model.work import Limits, ScanRange
from lastwrite.storage.objects import address
from lastwrite.storage.objects.store import Writer

BATCH_BYTES = 128 << 10  # largest size of a batch before compression
_RECORD_BYTES = 21  # largest size of a record without key, value and headers
_MOST_NAMES = 256  # largest number of append names in a manifest; the oldest are dropped
_LEADER_EPOCH = 0


@dataclass(frozen=True, slots=True)
class AppendedPart:
    """The object with the batches that one task has written for one partition."""

    name: TopicPartition
    key: str  # key of the object, relative to the partition's folder
    size_bytes: int
    etag: str
    modified_ms: int
    records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendJob:
    """The parameters of one append. They are pickled for all tasks.

    ``name`` identifies a series of appends. A repeated append of a series is skipped.
    ``new_partitions`` is the partition count of a topic that does not exist yet.
    """

    archive: str
    codec: Codec
    new_partitions: int
    stores: StoreSettings
    name: str = ""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    counts: dict[str, int] = field(default_factory=dict)  # known partition counts, by topic

    def partitions_of(self, topic: str) -> int:
        """The number of partitions of a topic. For a missing topic, the number to create.

        Raises:
            InvalidConfig: the topic was fetched from a cluster.
        """
        if topic not in self.counts:
            found = _partitions_of(self.archive, topic)
            for name, log in found.items():
                _reject_fetched(name, log, self.archive)
            numbers = [name.partition for name in found]
            self.counts[topic] = max(numbers, default=self.new_partitions - 1) + 1
        return self.counts[topic]

    def folder(self, name: TopicPartition) -> str:
        return partition_address(self.archive, SYSTEM, name.topic, name.partition)


def _partitions_of(archive: str, topic: str) -> dict[TopicPartition, ArchivedLog]:
    try:
        folders = find_partitions(archive, topic)
    except NotALog:
        return {}
    found = {}
    for folder in folders:
        current = partition_store_at(folder).read()
        if current is not None:
            found[archived.name_of(folder)] = archived.contents_of(current.manifest, folder)
    return found


def _reject_fetched(name: TopicPartition, log: ArchivedLog, path: str) -> None:
    if log.written is None:
        raise InvalidConfig(
            f"cannot append to {name}: the archive fetched it from a cluster, and has the "
            "cluster's offsets",
            path=path,
            remedy="nothing was appended; append to a topic of another name, or to another archive",
        )


# ---------------------------------------------------------------------- in a task


class Stager:
    """Writes the records of one task to objects, one object per partition.

    For each partition, memory contains one batch and the buffers of an open object.
    """

    def __init__(self, append: AppendJob) -> None:
        address.use(append.stores)
        self._append = append
        self._open: dict[TopicPartition, _StagedObject] = {}

    def add(
        self,
        topic: str,
        partition: int | None,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: tuple[tuple[bytes, bytes | None], ...] = (),
    ) -> None:
        """Add a record. If ``partition`` is None, it is chosen by key, or by value without a key.

        Raises:
            InvalidConfig: the topic has no such partition, or was fetched from a cluster.
        """
        count = self._append.partitions_of(topic)
        if partition is None:
            partition = partition_of((value or b"") if key is None else key, count)
        elif not 0 <= partition < count:
            raise InvalidConfig(
                f"topic {topic} has no partition {partition}; its last partition is {count - 1}",
                remedy="leave out the column partition, or set the option numPartitions for a new "
                "topic",
            )
        name = TopicPartition(topic, partition)
        staged = self._open.get(name)
        if staged is None:
            staged = self._open[name] = _StagedObject(self._append, name)
        staged.add(timestamp_ms, key, value, headers)

    def finish(self) -> list[AppendedPart]:
        return [each.finish() for _, each in sorted(self._open.items())]

    def abandon(self) -> None:
        for each in self._open.values():
            each.writer.abandon()


class _StagedObject:
    """An unfinished object to which one partition's batches are written."""

    def __init__(self, append: AppendJob, name: TopicPartition) -> None:
        self._name, self._codec = name, append.codec
        place = partition_store_at(append.folder(name))
        place.note_round(append.id)
        self._key = f"{WriteTransaction(append.id, None).prefix}{uuid.uuid4().hex}/part"
        self.writer: Writer = place.store.writer(place.key(self._key))
        self._records: list[Record] = []
        self._held_bytes = self._count = 0

    def add(
        self,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: tuple[tuple[bytes, bytes | None], ...],
    ) -> None:
        size = _RECORD_BYTES + len(key or b"") + len(value or b"")
        size += sum(len(name) + len(content or b"") + 10 for name, content in headers)
        if self._records and self._held_bytes + size > BATCH_BYTES:
            self._flush()
        self._records.append(Record(self._count, timestamp_ms, key, value, headers))
        self._count += 1
        self._held_bytes += size

    def _flush(self) -> None:
        batch = encode_batch(self._records, codec=self._codec, leader_epoch=_LEADER_EPOCH)
        self.writer.write(batch)
        self._records, self._held_bytes = [], 0

    def finish(self) -> AppendedPart:
        self._flush()
        found = self.writer.close()
        return AppendedPart(
            self._name,
            self._key,
            found.size_bytes,
            found.version.etag,
            found.modified_ms,
            self._count,
        )


# ---------------------------------------------------------------------- commit


def commit(
    append: AppendJob, parts: Sequence[AppendedPart], number: int = 0
) -> dict[TopicPartition, int]:
    """Commit the tasks' batches, in the order of ``parts``.

    A partition is skipped if the last append with this name has the same or a larger ``number``.
    Returns the number of appended records by partition, without skipped partitions.

    Raises:
        CommitConflict: other writers changed a partition during every attempt. Partitions that were
            committed stay. Repeating the append with the same name and number commits the others.
        InvalidConfig, RemoteFailed: committed partitions stay too, and the append can be repeated.
    """
    address.use(append.stores)
    by_name: dict[TopicPartition, list[AppendedPart]] = {}
    for part in parts:
        by_name.setdefault(part.name, []).append(part)
    for topic in sorted({name.topic for name in by_name}):
        _make_topic(append, topic)
    done = {name: _append_to(append, name, by_name[name], number) for name in sorted(by_name)}
    clear(append, by_name)
    return {name: count for name, count in done.items() if count}


def clear(append: AppendJob, names: Mapping[TopicPartition, object] | None = None) -> None:
    """Remove the tasks' uncommitted batches from the partitions ``names``.

    None means all partitions of the topics in ``append.counts``.
    """
    address.use(append.stores)
    if names is None:
        counts = append.counts.items()
        names = {TopicPartition(topic, n): None for topic, count in counts for n in range(count)}
    for name in names:
        partition_store_at(append.folder(name)).abandon(WriteTransaction(append.id, None))


def _make_topic(append: AppendJob, topic: str) -> None:
    """Create the missing partitions of a topic.

    The last partition is created first, because its number determines the partition count.
    """
    there = _partitions_of(append.archive, topic)
    for name, log in there.items():
        _reject_fetched(name, log, append.archive)
    id = next((log.topic_id for log in there.values()), None) or topic_id_text(uuid.uuid4().bytes)
    for number in reversed(range(append.partitions_of(topic))):
        name = TopicPartition(topic, number)
        if name not in there:
            source = _source(append, name, ArchivedLog(log_start=0, end_offset=0, topic_id=id), 0)
            KafkaArchiveWriter(source, append.folder(name)).finish()


def _append_to(
    append: AppendJob, name: TopicPartition, parts: Sequence[AppendedPart], number: int
) -> int:
    # After a conflict with a compaction or another append, start from the new end.
    return Attempts().run(lambda: _append_once(append, name, parts, number))


def _append_once(
    append: AppendJob, name: TopicPartition, parts: Sequence[AppendedPart], number: int
) -> int:
    folder = append.folder(name)
    current = partition_store_at(folder).read()
    if current is None:
        raise CommitConflict(
            "another program removed the partition during the append",
            path=folder,
            remedy="run the command again",
        )
    log = archived.contents_of(current.manifest, folder)
    _reject_fetched(name, log, append.archive)
    if append.name and dict(log.written or ()).get(append.name, -1) >= number:
        return 0
    count = sum(part.records for part in parts)
    intake = KafkaArchiveWriter(_source(append, name, log, count, number), folder)
    try:
        if intake.first != log.end_offset:
            raise CommitConflict(
                "another program appended to the partition during the append",
                path=folder,
                remedy="run the command again",
            )
        base = intake.first
        for part in parts:
            for data, table in _batches(folder, part, base):
                intake.append(data, table)
            base += part.records
        intake.finish()
    except BaseException:
        intake.abandon()
        raise
    return count


def _source(
    append: AppendJob, name: TopicPartition, log: ArchivedLog, count: int, number: int = 0
) -> LiveSource:
    written = dict(log.written or ())
    if append.name and count:
        written.pop(append.name, None)
        written[append.name] = number
    return LiveSource(
        path=f"append {append.id} to {name}",
        log_start=log.log_start,
        end=log.end_offset + count,
        topic_id=log.topic_id,
        lineage=lambda epoch: (),
        metadata=None,
        groups=None,
        config=KafkaTopicConfig(),
        asked_ms=time.time_ns() // 1_000_000,
        written=tuple(written.items())[-_MOST_NAMES:],
    )


def _batches(folder: str, part: AppendedPart, base: int) -> Iterator[tuple[ByteArray, BatchTable]]:
    """Read and verify a task's batches. Yields them with their final offsets, from ``base`` on.

    The base offset is outside a batch's CRC, so it can be set without a new CRC.
    """
    limits = Limits()
    piece = ScanRange(
        number=0,
        segment=0,
        path=f"{folder}/{part.key}",
        start=0,
        end=part.size_bytes,
        size_bytes=part.size_bytes,
        mtime_ns=part.modified_ms * 1_000_000,
        lowest_offset=0,
        end_offset=part.records,
        keyed=False,
        etag=part.etag or "-",
    )
    for chunk in BatchWindows(limits).of(KafkaFormat(limits.plain_bytes), piece):
        table = chunk.table.copy()
        table["base_offset"] += base
        table["next_offset"] += base
        data = chunk.buffer
        places = table["origin"].astype(np.int64)[:, None] + np.arange(8)
        offsets = table["base_offset"].astype(">i8")
        data[places] = offsets.view(np.uint8).reshape(-1, 8)
        yield data, table
