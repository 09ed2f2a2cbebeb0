"""The partitions in a bucket of AutoMQ, read like a broker's tier (``tiered``); read only.

A bucket does not contain the names of its topics. The controllers' metadata log does, and the user
gives it with ``--metadata``. ``locate`` reads bucket and log. It registers each partition under a
folder that exists only as a name, ``BUCKET/_kafka_CLUSTER/orders-0``.

Segments are made of ranges of objects (``automq_reader``). The records that only write-ahead
objects contain are the log's last segment, which counts as active: a cluster deletes these objects
soon, and ``fetch`` reads them only with ``--include-active``.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from lastwrite.errors import InvalidConfig
from lastwrite.kafka.automq.bucket_objects import ObjectVanished, SecondLook
from lastwrite.kafka.automq.partition import AutomqPartition, AutomqSegment, StoredRun
from lastwrite.kafka.automq.source import AutomqOptions, AutomqSource, open_source
from lastwrite.kafka.cluster.roots import metadata_folder_at
from lastwrite.kafka.format.names import KafkaFileKind, segment_file_name
from lastwrite.kafka.producers.history import read_producers
from lastwrite.kafka.producers.snapshot import ProducerEntry, decode_snapshot
from lastwrite.kafka.store import automq_reader, tiered
from lastwrite.kafka.store.automq_reader import AutomqSegmentOpener, Bucket, measure
from lastwrite.kafka.store.tiered import LocatedPartition, Tier
from lastwrite.model.columns import ByteArray
from lastwrite.model.log import PartitionLog, Problem, Segment, TopicPartition
from lastwrite.reports.fetching import BucketEnd
from lastwrite.storage import files
from lastwrite.storage.objects.address import join, real_path
from lastwrite.storage.run_folder import make_folder

T = TypeVar("T")

_LOOKS = 4
_NO_METADATA = (
    "give the controllers' metadata log with --metadata PATH: it is the folder "
    "__cluster_metadata-0 in metadata.log.dir of a controller, or in log.dirs if that is not set. "
    "Stop the cluster, or copy in this order: the bucket's write-ahead objects (keys with /wal/), "
    "then that folder from the quorum's leader, then the other objects"
)


def locate(path: str, metadata: str | None) -> None:
    """Register the partitions of the bucket at ``path``, so that ``tiered`` finds them.

    Args:
        path: the bucket's address, or a folder that is a copy of it.
        metadata: path of the controllers' metadata log, or of a copy.

    Raises:
        InvalidConfig: there is no ``metadata``.
        NotALog, UnsupportedFormat, CorruptLog: there is no metadata log, or it cannot be read.
        RemoteFailed: the store does not answer.
    """
    root = real_path(path)
    if metadata is None:
        raise InvalidConfig(
            "the bucket does not contain the names of its topics", path=path, remedy=_NO_METADATA
        )
    folder = metadata_folder_at(metadata)
    tiered.locate(root, _AutomqBucket(root, folder).located())


class _AutomqBucket:
    """The bucket at ``root``, in the state that ``locate`` found.

    If an object has vanished since then, the metadata and the bucket are read again.
    """

    def __init__(self, root: str, metadata: str) -> None:
        self._options = AutomqOptions(address=root, metadata=metadata, reads_wal=True)
        self._root = root
        self._folder = str(make_folder())  # for producer snapshots
        self._lock = threading.RLock()
        self._tiers: dict[TopicPartition, Tier] = {}
        self._lost: frozenset[str] = frozenset()
        self._source: AutomqSource | None = None
        self._looked(lambda source: None)

    def located(self) -> dict[str, LocatedPartition]:
        """The partitions, by the names of their folders."""
        return self._looked(
            lambda source: {
                self._folder_of(source, name): LocatedPartition(
                    name, self._root, source.topic_id(name.topic), partial(self._list, name)
                )
                for name in source.partitions()
            }
        )

    def _folder_of(self, source: AutomqSource, name: TopicPartition) -> str:
        return join(self._root, source.namespace, str(name))

    def _list(self, name: TopicPartition) -> Tier:
        with self._lock:
            if automq_reader.take_vanished(self._root):
                self._source = None
            found = None if self._source is None else self._tiers.get(name)
            if found is None:
                found = self._looked(lambda source: self._tier(source, name))
                self._tiers[name] = found
            return found

    def _looked(self, action: Callable[[AutomqSource], T]) -> T:
        """The result of ``action`` on the bucket.

        If the cluster has changed meanwhile, the metadata and the bucket are read again, and
        ``action`` is repeated. An object is lost if it is missing and the newer metadata lists it.
        """
        missing: frozenset[str] = frozenset()
        looks = 0
        while True:
            try:
                if self._source is None:
                    self._tiers.clear()
                    self._source = open_source(self._options, self._lost)
                return action(self._source)
            except SecondLook as error:
                self._source = None
                keys = error.keys if isinstance(error, ObjectVanished) else frozenset()
                lost = keys & missing
                # the next attempt reports newly lost objects as damage, so this one is not counted
                looks += 0 if lost - self._lost else 1
                if looks == _LOOKS:
                    raise
                missing |= keys
                self._lost |= lost

    def _tier(self, source: AutomqSource, name: TopicPartition) -> Tier:
        folder = self._folder_of(source, name)
        found = source.resolve(name)
        bucket = Bucket(self._root, source.wal_path)
        segments: list[Segment] = []
        problems = [*found.problems]
        for stretch in _stretches(found.segments):
            measured, broken = measure(
                stretch.runs,
                partial(_fetch, source),
                source.run_path,
                reads_all=automq_reader.is_unusual(self._root),
            )
            problems += broken
            segments.append(_segment(stretch, folder, AutomqSegmentOpener(bucket, measured)))
        snapshots = self._written(found, name)

        def entries(offset: int) -> tuple[ProducerEntry, ...]:
            return decode_snapshot(contents[offset])

        contents = dict(found.producer_snapshots)
        producers, unstable = read_producers(
            segments,
            list(contents),
            entries,
            found.log_start,
            found.end_offset,
            found.end_offset,
        )
        log = PartitionLog(
            name=name,
            folder=folder,
            segments=tuple(segments),
            log_start=found.log_start,
            end_offset=found.end_offset,
            high_watermark=found.end_offset,
            checkpoint=found.cleaner_checkpoint,
            problems=tuple(_of_log(problem, folder, self._root) for problem in problems),
            producers=producers,
            aborted=found.aborted,
            first_unstable_offset=unstable,
            is_closed=not any(run.is_in_wal for each in found.segments for run in each.runs),
            topic_id=found.topic_id,
            snapshots=snapshots,
        )
        lineage = tuple((each.epoch, each.start_offset) for each in found.leader_epochs)
        return Tier(
            log=log,
            lineage=lineage,
            topic_id=found.topic_id,
            segments=(),
            snapshots=snapshots,
            bucket_end=BucketEnd(
                uploaded_end=found.end_offset if log.is_closed else segments[-1].base_offset,
                last_object=found.last_object,
                write_ahead_records=found.wal_records,
                write_ahead_end=found.wal_end,
                unknown_streams=source.unknown_streams(),
            ),
        )

    def _written(self, found: AutomqPartition, name: TopicPartition) -> tuple[tuple[int, str], ...]:
        """Write the producer snapshots, which are small, to files of this run."""
        written = []
        for offset, content in sorted(found.producer_snapshots):
            file = segment_file_name(offset, KafkaFileKind.SNAPSHOT)
            path = os.path.join(self._folder, f"{name}-{file}")
            files.write(path, content, is_synced=False)
            written.append((offset, path))
        return tuple(written)


def _of_log(problem: Problem, folder: str, root: str) -> Problem:
    """A problem of the log at ``folder``, from a problem of the bucket or of an object."""
    place = f"{problem.path}, byte {problem.position}" if problem.position else problem.path
    words = problem.message if problem.path == root else f"{place}: {problem.message}"
    return Problem(problem.kind, words, folder, None, problem.remedy)


def _fetch(source: AutomqSource, run: StoredRun, position: int, size_bytes: int) -> ByteArray:
    if run.is_in_wal:
        return source.fetch(run)
    return source.objects.fetch(run.key, position, size_bytes)


class _Stretch(NamedTuple):
    """Runs that become one segment, and the segment of AutoMQ in which they end."""

    base_offset: int
    runs: list[StoredRun]
    last: AutomqSegment
    is_active: bool


def _stretches(segments: Sequence[AutomqSegment]) -> list[_Stretch]:
    """The segments up to the first run in a write-ahead object, and one segment from there on."""
    found: list[_Stretch] = []
    for each in segments:
        is_active = bool(found) and found[-1].is_active
        if is_active:
            found[-1].runs.extend(each.runs)
            found[-1] = found[-1]._replace(last=each)
            continue
        count = next((n for n, run in enumerate(each.runs) if run.is_in_wal), None)
        if count != 0:
            found.append(_Stretch(each.base_offset, [*each.runs[:count]], each, False))
        if count is not None:
            base = each.runs[count].start_offset if count else each.base_offset
            found.append(_Stretch(base, [*each.runs[count:]], each, True))
    return found


def _segment(stretch: _Stretch, folder: str, opener: AutomqSegmentOpener) -> Segment:
    measured = opener.measured
    last, largest = stretch.last, stretch.last.largest_timestamp_ms
    identity = hashlib.blake2b(repr(measured).encode(), digest_size=8).hexdigest()
    return Segment(
        base_offset=stretch.base_offset,
        path=join(folder, segment_file_name(stretch.base_offset, KafkaFileKind.LOG)),
        size_bytes=sum(measured.sizes),
        mtime_ns=last.modified_ms * 1_000_000,
        largest_timestamp_ms=last.modified_ms if largest < 0 else largest,
        first_batch_timestamp_ms=last.first_batch_timestamp_ms,
        is_indexed=False,
        is_abort_indexed=False,
        etag=identity,
        opener=opener,
    )
