"""The partitions of an AutoMQ cluster, from its bucket and a metadata log.

    cluster id ── namespace ── "<namespace>/<topic id>/<partition>" ── id of the META stream
    META stream ── LOG ── stream ids, and a slice of a stream for each segment
    slice ── payloads ── record batches

The write-ahead objects are read first, then the metadata log, then data objects. In any other order
records that are uploaded meanwhile would be missed.

Source: AutoMQ f1ce98ec ``ElasticLog``, ``ElasticLogManager``, ``StreamSliceManager``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TypeVar

import numpy as np

from lastwrite.errors import CorruptLog, InvalidConfig, LogError, NotALog, located
from lastwrite.kafka.automq import meta_stream
from lastwrite.kafka.automq.bucket_objects import BucketObjects, SecondLook, in_parallel
from lastwrite.kafka.automq.cluster_image import ClusterImage, read_cluster_image
from lastwrite.kafka.automq.meta_stream import LogMeta, PartitionMeta, SegmentMeta
from lastwrite.kafka.automq.metadata_records import PartitionKey
from lastwrite.kafka.automq.names import COPY_AGAIN, namespace_of
from lastwrite.kafka.automq.partition import AutomqPartition, AutomqSegment, StoredRun
from lastwrite.kafka.automq.payloads import payloads
from lastwrite.kafka.automq.streams import Gap, StreamContents, StreamRun, read_stream
from lastwrite.kafka.automq.wal_tail import WalTail, read_wal_tail
from lastwrite.kafka.cluster.metadata_log import state
from lastwrite.kafka.cluster.roots import read_meta_properties
from lastwrite.kafka.format.batch import decode_batch_header
from lastwrite.kafka.format.text import LeaderEpoch
from lastwrite.kafka.producers.history import decode_aborted
from lastwrite.model.columns import ByteArray
from lastwrite.model.log import AbortedTransaction, Problem, ProblemKind, TopicPartition
from lastwrite.storage.reading import TRIES

T = TypeVar("T")

_CONTROL = 1 << 5  # attribute bit of a batch with a transaction's marker

_REMEDY = f"nothing was changed; restore the object from the bucket's versions, or {COPY_AGAIN}"


class WalNeeded(LogError):
    """Write-ahead objects are needed: data objects have only a segment list with trimmed ranges."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AutomqOptions:
    """Where a cluster's bucket and metadata log are."""

    address: str  # address of the bucket, or of a folder with a copy of the bucket
    metadata: str  # folder of the metadata log, ``__cluster_metadata-0``
    reads_wal: bool = True
    cluster_id: str | None = None  # None means the id in the metadata log
    wal_address: str | None = None  # None means the bucket at ``address``


def open_source(options: AutomqOptions, lost: frozenset[str] = frozenset()) -> AutomqSource:
    """Read the write-ahead objects, then the metadata log.

    Args:
        lost: keys of objects that are known to be lost. They are reported as damage.

    Raises:
        InvalidConfig: the metadata log belongs to another cluster, or does not state its id.
        UnsupportedFormat: the cluster's version or a record's version is unknown.
        CorruptLog: the metadata log is damaged.
        ObjectVanished: the cluster deleted a write-ahead object meanwhile.
        RemoteFailed, LogError: the store does not answer; a file cannot be read.
    """
    folder = options.metadata
    before, image = state(folder), _read_image(folder)
    namespace = _namespace(options, image)
    wal = None
    if options.reads_wal:
        address = options.wal_address or options.address
        wal = read_wal_tail(address, namespace, image.nodes)
        if state(folder) != before:
            image = _read_image(folder)
    return AutomqSource(options, namespace, image, wal, lost)


def _read_image(folder: str) -> ClusterImage:
    """The cluster's state. Reads again if a controller deletes files of its log meanwhile."""
    for _ in range(TRIES - 1):
        try:
            return read_cluster_image(folder)
        except LogError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
    return read_cluster_image(folder)


def _namespace(options: AutomqOptions, image: ClusterImage) -> str:
    folder = options.metadata
    beside = read_meta_properties(os.path.dirname(os.path.abspath(folder))).cluster
    stated = options.cluster_id or beside
    found = image.namespaces
    if stated is None and len(found) == 1:
        return found.pop()
    if stated is None:
        raise InvalidConfig(
            "the metadata log does not state the cluster's id",
            path=folder,
            remedy="copy meta.properties from the folder above __cluster_metadata-0, too",
        )
    if found and namespace_of(stated) not in found:
        raise InvalidConfig(
            f"the metadata log belongs to another cluster than {stated}",
            path=folder,
            remedy="give the metadata log of the cluster that owns the bucket with --metadata",
        )
    return namespace_of(stated)


class AutomqSource:
    """The partitions of a cluster in one state.

    The file ``wal_path`` has the write-ahead objects. The file is deleted when the process ends.
    """

    def __init__(
        self,
        options: AutomqOptions,
        namespace: str,
        image: ClusterImage,
        wal: WalTail | None,
        lost: frozenset[str] = frozenset(),
    ) -> None:
        self.options, self.namespace, self.image = options, namespace, image
        self.objects = BucketObjects(options.address, namespace, image, lost)
        self._wal = wal

    @property
    def wal_path(self) -> str:
        """The file with the write-ahead objects. Empty if they were not read."""
        return "" if self._wal is None else self._wal.path

    @property
    def problems(self) -> Sequence[Problem]:
        """The damage of write-ahead objects."""
        return [] if self._wal is None else self._wal.problems

    def partitions(self) -> list[TopicPartition]:
        """The partitions of all topics, with AutoMQ's and Kafka's own."""
        return sorted(
            TopicPartition(topic, number)
            for topic, id in self.image.topics.items()
            for number in self.image.partitions[id]
        )

    def topic_id(self, topic: str) -> str:
        """The id of a topic: 22 characters.

        Raises:
            NotALog: there is no such topic.
        """
        if topic not in self.image.topics:
            raise NotALog(
                f"the metadata log has no topic {topic!r}",
                path=self.options.metadata,
                remedy="check the name; a deleted topic cannot be read",
            )
        return self.image.topics[topic]

    def unknown_streams(self) -> int:
        """The number of streams in the objects read so far that the metadata log does not list."""
        seen = {
            int(each)
            for index in self.objects.read_indexes
            for each in np.unique(index.entries["stream_id"])
        }
        seen |= set(() if self._wal is None else self._wal.records)
        return len(seen - self.image.streams.keys())

    def resolve(self, name: TopicPartition) -> AutomqPartition:
        """The segments of a partition, and the bytes of objects that contain them.

        Damage of the log's data is in the result's ``problems``.

        Raises:
            NotALog: there is no such partition.
            CorruptLog: the partition's META stream is damaged.
            WalNeeded, SecondLook: the segment list names ranges that were trimmed since.
            ObjectVanished: an object does not exist.
            UnsupportedFormat: the format of an object or a value is unknown.
            RemoteFailed, LogError: the store does not answer.
        """
        topic_id = self.topic_id(name.topic)
        if name.partition not in self.image.partitions[topic_id]:
            raise NotALog(
                f"topic {name.topic!r} has no partition {name.partition}",
                path=self.options.metadata,
                remedy="check the number",
            )
        keys = [
            PartitionKey(self.namespace, each, name.partition) for each in (topic_id, name.topic)
        ]
        ids = [self.image.meta_streams[key] for key in keys if key in self.image.meta_streams]
        if not ids:  # no broker has opened the partition yet
            return AutomqPartition(
                name=name,
                topic_id=topic_id,
                log_start=0,
                end_offset=0,
                committed_end=0,
                segments=(),
            )
        if ids[0] not in self.image.streams:
            raise CorruptLog(
                f"the META stream {ids[0]} of {name} is not in the metadata log",
                path=self.options.metadata,
                remedy=_REMEDY,
            )
        return _Resolution(self, name, topic_id).resolve(ids[0])

    def contents(self, stream_id: int) -> StreamContents:
        """The contents of a stream.

        Raises:
            ObjectVanished, UnsupportedFormat, RemoteFailed, LogError: as ``resolve``.
        """
        return read_stream(stream_id, self.image, self.objects, self._wal)

    def fetch(self, run: StoredRun) -> ByteArray:
        """The bytes of a run, with all headers.

        Raises:
            ObjectVanished, TruncatedLog, RemoteFailed, LogError: the bytes cannot be read.
        """
        if run.key:
            return self.objects.fetch(run.key, run.position, run.size_bytes)
        with open(self.wal_path, "rb") as file:
            found: ByteArray = np.fromfile(file, np.uint8, run.size_bytes, offset=run.position)
        return found

    def wal_problems(self, stream_id: int) -> Iterator[Problem]:
        """The damage of write-ahead objects by which records of a stream may be lost."""
        if self._wal is not None:
            yield from self._wal.problems_of(stream_id)

    def run_path(self, run: StoredRun) -> str:
        """The path or address of the object that contains a run."""
        return self.objects.path_of(run.key) if run.key else self.wal_path


class _Resolution:
    """Resolves one partition: reads its META stream, and maps its slices to runs."""

    def __init__(self, source: AutomqSource, name: TopicPartition, topic_id: str) -> None:
        self._source, self._name, self._topic_id = source, name, topic_id
        self._contents: dict[int, StreamContents] = {}
        self._problems: list[Problem] = []

    def resolve(self, meta_stream_id: int) -> AutomqPartition:
        values = self._values(meta_stream_id)
        if meta_stream.LOG not in values:
            return self._empty()
        log: LogMeta = self._decode(values, meta_stream.LOG, meta_stream.decode_log_meta)
        meta = PartitionMeta()
        epochs: tuple[LeaderEpoch, ...] = ()
        snapshots: tuple[tuple[int, bytes], ...] = ()
        if meta_stream.PARTITION in values:
            meta = self._decode(values, meta_stream.PARTITION, meta_stream.decode_partition_meta)
        if meta_stream.LEADER_EPOCHS in values:
            epochs = self._decode(
                values, meta_stream.LEADER_EPOCHS, meta_stream.decode_stored_epochs
            )
        if meta_stream.PRODUCERS in values:
            snapshots = self._decode(
                values, meta_stream.PRODUCERS, meta_stream.decode_producer_snapshots
            )
        return self._partition(log, meta, epochs, snapshots)

    def _empty(self) -> AutomqPartition:
        return AutomqPartition(
            name=self._name,
            topic_id=self._topic_id,
            log_start=0,
            end_offset=0,
            committed_end=0,
            segments=(),
            problems=tuple(self._problems),
        )

    def _partition(
        self,
        log: LogMeta,
        meta: PartitionMeta,
        epochs: tuple[LeaderEpoch, ...],
        snapshots: tuple[tuple[int, bytes], ...],
    ) -> AutomqPartition:
        bases = [each.bo for each in log.segment_metas]
        # segments below the log's start are left out, because the log no longer has them
        listed = [
            each
            for each, after in zip_longest(log.segment_metas, bases[1:])
            if after is None or after > meta.s
        ]
        segments = tuple(self._segment(log, each, each is listed[-1]) for each in listed)
        log_start = max(meta.s, segments[0].base_offset) if segments else meta.s
        end_offset = max(segments[-1].end_offset, log_start) if segments else log_start
        in_wal = [run for each in segments for run in each.runs if run.is_in_wal]
        used = self._contents.values()
        return AutomqPartition(
            name=self._name,
            topic_id=self._topic_id,
            log_start=log_start,
            end_offset=end_offset,
            committed_end=self._committed_end(log, listed, log_start, end_offset),
            segments=segments,
            leader_epochs=epochs,
            producer_snapshots=snapshots,
            aborted=tuple(each for segment in listed for each in self._aborted(log, segment)),
            cleaner_checkpoint=meta.c,
            wal_records=sum(map(self._record_count, in_wal)),
            wal_end=max(
                (run.wal_offset for each in used for run in each.runs[-1:] if not run.key),
                default=None,
            ),
            last_object=max(
                (each.last_object for each in used if each.last_object is not None), default=None
            ),
            problems=tuple(dict.fromkeys(self._problems)),
        )

    def _segment(self, log: LogMeta, meta: SegmentMeta, is_last: bool) -> AutomqSegment:
        stream_id = _stream_of(log, "log", meta.s)
        runs: list[StoredRun] = []
        end_offset = meta.bo
        if stream_id >= 0 and meta.ls.s >= 0:
            contents = self._stream(stream_id)
            self._check_not_trimmed(contents, meta)
            end = contents.end_offset if meta.ls.e < 0 else meta.ls.e
            end_offset += max(0, end - meta.ls.s)
            runs = [_stored(stream_id, run, meta) for run in contents.within(meta.ls.s, end)]
            for gap in contents.gaps_within(meta.ls.s, end):
                self._report_gap(contents, gap, meta.bo - meta.ls.s)
            if contents.end_offset < end:
                gap = Gap(max(contents.end_offset, meta.ls.s), end, ())
                self._report_gap(contents, gap, meta.bo - meta.ls.s)
        return AutomqSegment(
            base_offset=meta.bo,
            end_offset=end_offset,
            stream_id=stream_id,
            runs=tuple(runs),
            is_cleaned=bool(meta.s),
            is_open=is_last,
            first_batch_timestamp_ms=meta.fbt if meta.fbt > 0 else None,
            largest_timestamp_ms=meta.tle.t,
            modified_ms=meta.lmt,
        )

    def _check_not_trimmed(self, contents: StreamContents, meta: SegmentMeta) -> None:
        if meta.ls.s >= contents.start_offset:
            return
        place = (
            f"{self._name}: the segment list names segment {meta.bo} from stream offset "
            f"{meta.ls.s} of stream {contents.stream_id} on, which was cleaned or deleted up to "
            f"{contents.start_offset}; a newer list "
        )
        if self._source.wal_path:
            raise SecondLook(f"{place}is not among the write-ahead objects", remedy=_REMEDY)
        raise WalNeeded(
            f"{place}is in the write-ahead objects, which were not read",
            remedy="nothing was read of this partition; read the write-ahead objects, too",
        )

    def _committed_end(
        self, log: LogMeta, listed: Sequence[SegmentMeta], log_start: int, end_offset: int
    ) -> int:
        """The end of the log in data objects."""
        found = log_start
        for meta in listed:
            stream_id = _stream_of(log, "log", meta.s)
            if stream_id >= 0 and meta.ls.s >= 0:
                contents = self._stream(stream_id)
                end = contents.committed_end
                end = end if meta.ls.e < 0 else min(end, meta.ls.e)
                if end > meta.ls.s:
                    found = max(found, meta.bo + end - meta.ls.s)
        return min(found, end_offset)

    def _aborted(self, log: LogMeta, meta: SegmentMeta) -> tuple[AbortedTransaction, ...]:
        """The entries of a segment's transaction index."""
        stream_id = _stream_of(log, "txn", meta.s)
        if stream_id < 0 or meta.txs.s < 0:
            return ()
        contents = self._stream(stream_id)
        end = contents.end_offset if meta.txs.e < 0 else meta.txs.e
        gaps = [*contents.gaps_within(meta.txs.s, end)]
        try:
            if gaps or contents.start_offset > meta.txs.s:
                raise CorruptLog("a part of it is in no object")
            runs = [_stored(stream_id, run, meta) for run in contents.within(meta.txs.s, end)]
            data = b"".join(bytes(part) for _, part in self._payloads(runs))
            return decode_aborted(data, meta.bo)
        except CorruptLog as error:
            self._report(
                f"the transaction index of segment {meta.bo} of {self._name} (stream {stream_id}) "
                f"cannot be read: {error.problem}; its transactions are read from the log",
                error.path or self._source.options.address,
                error.at,
            )
            return ()

    def _values(self, stream_id: int) -> dict[str, memoryview]:
        """The last value of each key in the META stream."""
        contents = self._stream(stream_id)
        for gap in contents.gaps:
            raise CorruptLog(
                f"{self._name}: {_gap_words(contents, gap)}, which is its META stream",
                path=self._source.options.address,
                remedy=_REMEDY,
            )
        meta = SegmentMeta(bo=0)
        runs = [_stored(stream_id, run, meta) for run in contents.within(0, contents.end_offset)]
        values: dict[str, memoryview] = {}
        for run, payload in self._payloads(runs):
            with located(self._source.run_path(run), run.position):
                key, value = meta_stream.decode_pair(payload)
            values[key] = value
        return values

    def _decode(
        self, values: Mapping[str, memoryview], key: str, decode: Callable[[memoryview], T]
    ) -> T:
        try:
            return decode(values[key])
        except LogError as error:
            raise type(error)(
                f"{self._name}: {error.problem}", error.at, self._source.options.address, _REMEDY
            ) from error

    def _payloads(self, runs: Sequence[StoredRun]) -> Iterator[tuple[StoredRun, ByteArray]]:
        for run, raw in zip(runs, in_parallel(self._source.fetch, runs), strict=True):
            try:
                for _, payload in payloads(raw, run):
                    yield run, payload
            except LogError as error:
                raise error.located(self._source.run_path(run)) from error

    def _record_count(self, run: StoredRun) -> int:
        """The number of records in a run, not counting transaction markers."""
        found = 0
        for _, payload in self._payloads([run]):
            at = 0
            while at < len(payload):
                try:
                    header = decode_batch_header(memoryview(payload), at)
                except LogError:  # the scan reports it
                    break
                found += 0 if header.attributes & _CONTROL else header.record_count
                at += header.size_bytes
        return found

    def _stream(self, stream_id: int) -> StreamContents:
        if stream_id not in self._contents:
            if stream_id not in self._source.image.streams:
                raise CorruptLog(
                    f"{self._name}: stream {stream_id} is not in the metadata log",
                    path=self._source.options.metadata,
                    remedy=_REMEDY,
                )
            contents = self._contents[stream_id] = self._source.contents(stream_id)
            for each in contents.doubled:
                self._report(
                    f"stream {stream_id} of {self._name} has the stream offsets "
                    f"{each.start_offset} to {each.end_offset - 1} in two live objects",
                    str(each.causes[0].path),
                )
            if contents.dropped_from is not None:
                self._report(
                    f"stream {stream_id} of {self._name} ends at stream offset "
                    f"{contents.end_offset}, and the write-ahead records from stream offset "
                    f"{contents.dropped_from} on do not continue it",
                    self._source.options.address,
                )
            self._problems += self._source.wal_problems(stream_id)
        return self._contents[stream_id]

    def _report_gap(self, contents: StreamContents, gap: Gap, shift: int) -> None:
        self._report(
            f"{_gap_words(contents, gap)}: offsets {gap.start_offset + shift} to "
            f"{gap.end_offset + shift - 1} of {self._name} are missing",
            next((each.path for each in gap.causes if each.path), self._source.options.address),
        )

    def _report(self, message: str, path: str, at: int | None = None) -> None:
        self._problems.append(Problem(ProblemKind.DAMAGED, message, path, at, _REMEDY))


def _gap_words(contents: StreamContents, gap: Gap) -> str:
    words = (
        f"stream {contents.stream_id} has the stream offsets {gap.start_offset} to "
        f"{gap.end_offset - 1} in no object that can be read"
    )
    reasons = [
        f"{each.path}: {each.problem}"
        if each.at is None
        else f"{each.path}, byte {each.at}: {each.problem}"
        for each in gap.causes
    ]
    return f"{words} ({'; '.join(reasons)})" if reasons else words


def _stream_of(log: LogMeta, name: str, suffix: str) -> int:
    """The id of a segment's stream. -1 if nothing was written to it yet."""
    return log.stream_map.get(f"{name}{suffix}", -1)


def _stored(stream_id: int, run: StreamRun, meta: SegmentMeta) -> StoredRun:
    shift = meta.bo - max(meta.ls.s, 0)
    return StoredRun(
        key=run.key,
        position=run.position,
        size_bytes=run.size_bytes,
        stream_id=stream_id,
        stream_offset=run.start_offset,
        stream_end=run.end_offset,
        first=run.first,
        stop=run.stop,
        start_offset=run.first + shift,
        end_offset=run.stop + shift,
        records=run.records,
        is_one_block=run.is_one_block,
    )
