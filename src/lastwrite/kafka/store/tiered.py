"""A partition's segments in a broker's tier (KIP-405), in a folder or a bucket; read only.

    TIER/orders-0-lC3CICZpQfG2AZG8odZnXA/
         00000000000000000600-CwoYPswdTs2OEaqyLhWSDA.log             the segment, byte for byte
                                                    .index, .timeindex, .txnindex likewise
                                                    .snapshot                producers at its end
                                                    .leader_epoch_checkpoint epochs up to its end

This is the layout of Kafka's ``LocalTieredStorage``. Aiven's plugin has ``orders-lC3C…ZnXA/0/``,
and per segment ``….log`` in chunks, ``….indexes`` and ``….rsm-manifest`` (``storage.chunked``).

Partitions of other stores can be registered with ``locate``, and are then read like a tier.

The leader epochs of the segments decide which segments belong to the log, and up to which offset
(``rules.lineage``). ``LocalPart`` has more exact information from a broker's log root.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from lastwrite.archive.manifest import DataObject
from lastwrite.errors import CorruptLog, NotALog, UnsupportedFormat, located
from lastwrite.kafka.cluster.remote_log_metadata import FINISHED, SegmentState
from lastwrite.kafka.format.batch import decode_batch_header
from lastwrite.kafka.format.batch_layout import BATCH_HEADER
from lastwrite.kafka.format.index import OffsetIndex, decode_offset_index, decode_time_index
from lastwrite.kafka.format.names import (
    LEADER_EPOCHS,
    PARTITION_METADATA,
    KafkaFileKind,
    TierFolder,
    classify,
    decode_tier_file,
    decode_tier_folder,
)
from lastwrite.kafka.format.text import (
    LeaderEpoch,
    decode_leader_epochs,
    encode_leader_epochs,
    encode_partition_metadata,
)
from lastwrite.kafka.producers.history import decode_aborted, read_producers
from lastwrite.kafka.producers.snapshot import ProducerEntry, decode_snapshot
from lastwrite.kafka.recovery.walking import NO_END, walk_tail
from lastwrite.kafka.rules.lineage import Chain, Epochs, TieredSegment, chain, lineage_of
from lastwrite.kafka.store.archived import is_archived
from lastwrite.model.log import (
    AbortedTransaction,
    PartitionLog,
    Problem,
    ProblemKind,
    Segment,
    TopicPartition,
)
from lastwrite.reports.fetching import BucketEnd
from lastwrite.storage.chunked import IndexSlice, decode_manifest
from lastwrite.storage.objects.address import is_address, join, real_path, store_at
from lastwrite.storage.objects.store import ObjectInfo
from lastwrite.storage.reading import cipher_of, read_small, reader_of

_MANAGERS = (
    "kafka-tiered-storage"  # the folder that LocalTieredStorage creates in its storage folder
)
_MOST_KNOWN = 16
# the file that is written last for a segment, by LocalTieredStorage and by Aiven's plugin
_LAST = {KafkaFileKind.LEADER_EPOCHS, KafkaFileKind.CHUNK_MANIFEST}
_AT_ONCE = 16  # requests in parallel, because each mostly waits for the store
_REMEDY = (
    "restore the segments from the bucket's versions or from a copy of the tier; segments that "
    "the broker has deleted because of the topic's retention are not needed"
)


def is_tier(folder: str) -> bool:
    """Whether a folder contains a partition in tiered storage.

    A topic in a log root may have a similar name.
    """
    folder = folder.rstrip("/")
    if folder in _located:
        return True
    if _decoded(folder) is None or is_archived(folder):
        return False
    return is_address(folder) or _holds_tier_files(folder)


@lru_cache(maxsize=4096)
def _decoded(folder: str) -> TierFolder | None:
    above, name = os.path.split(folder.rstrip("/"))
    return decode_tier_folder(os.path.basename(above), name)


def _holds_tier_files(folder: str) -> bool:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if decode_tier_file(entry.name) is not None:
                    return True
                if classify(entry.name).kind is KafkaFileKind.LOG:
                    return False
    except OSError:
        pass
    return False


def name_of(folder: str) -> TopicPartition:
    """The name of the partition whose segments are in the folder."""
    if folder in _located:
        return _located[folder].name
    found = _decoded(folder)
    assert found is not None
    return found.partition


def root_of(folder: str) -> str:
    """The folder that contains the folders of topics and partitions."""
    if folder in _located:
        return _located[folder].root
    above, name = os.path.split(folder.rstrip("/"))
    return os.path.dirname(above) if name.isdigit() else above


def topic_id_of(folder: str) -> str:
    """The topic id, from the name of a partition's folder in tiered storage."""
    if folder in _located:
        return _located[folder].topic_id
    found = _decoded(folder)
    assert found is not None
    return found.topic_id


def find(path: str) -> list[tuple[TopicPartition, str]]:
    """The partitions below ``path``, which is a tier, a folder in it, or one partition's folder.

    Raises:
        RemoteFailed: the store does not answer.
    """
    path = path.rstrip("/") if is_address(path) else os.path.abspath(path)
    place = real_path(path)
    located = [(each.name, at) for at, each in _located.items() if place in (at, each.root)]
    if located:
        return sorted(located)
    if is_tier(path):
        return [(name_of(path), path)] if is_address(path) else [(name_of(path), _real(path))]
    found = list(_below(path))
    return sorted(found or _below(join(path, _MANAGERS)))


def _below(path: str) -> Iterator[tuple[TopicPartition, str]]:
    is_topics = decode_tier_folder(os.path.basename(path), "0") is not None
    for name in _folders(path):
        folder = join(path, name)
        if is_tier(folder):
            yield name_of(folder), folder if is_address(folder) else _real(folder)
        elif not is_topics and decode_tier_folder(name, "0") is not None:
            yield from _below(folder)


def _real(path: str) -> str:
    return os.path.realpath(path)


def _folders(path: str) -> Sequence[str]:
    if is_address(path):
        store, prefix = store_at(path)
        return store.folders(f"{prefix}/" if prefix else "")
    try:
        with os.scandir(path) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir())
    except OSError:
        return ()


def is_root(root: str) -> bool:
    """Whether the folder contains a tier's partitions, which have no locks."""
    if is_located(root):
        return True
    return any(True for _ in _below(root))


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPart:
    """The part of a partition in tiered storage that is in a broker's log root."""

    log: PartitionLog
    log_start: int  # start of the whole log; ``log`` starts at its first local segment
    epochs: Epochs
    snapshots: tuple[tuple[int, str], ...]  # offset and path of each producer snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class TierSegment:
    """A complete segment in tiered storage: the objects of its files."""

    segment: Segment
    copied: TieredSegment
    index: OffsetIndex
    aborted: tuple[AbortedTransaction, ...]
    snapshot: str | None  # path of the producer snapshot at the segment's end
    files: Mapping[KafkaFileKind, ObjectInfo]

    def in_chunks(self) -> tuple[DataObject, ...]:
        """The objects of the segment if it is stored in chunks, otherwise empty."""
        stem = self.segment.path.removesuffix(KafkaFileKind.CHUNK_MANIFEST)
        if stem == self.segment.path:
            return ()
        return tuple(
            DataObject(
                key=f"{stem}{kind}",
                bytes=found.size_bytes,
                etag=found.version.etag,
                is_foreign=True,
            )
            for kind, found in self.files.items()
        )

    def size(self, kind: KafkaFileKind) -> int:
        """Size in bytes of the segment's file of this kind; 0 if there is no such file."""
        return self.files[kind].size_bytes if kind in self.files else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """A partition in tiered storage: its log, and the stored segments of the log."""

    log: PartitionLog
    lineage: Epochs
    topic_id: str
    segments: tuple[TierSegment, ...]  # the segments of ``log``, without local segments
    snapshots: tuple[tuple[int, str], ...]  # offset and path of each producer snapshot
    bucket_end: BucketEnd | None = None  # AutoMQ: the objects in which the log ends

    def named(self, segment: Segment) -> TierSegment | None:
        """The stored copy of ``segment``, which an archive can reference.

        None for a truncated segment.
        """
        for each in self.segments:
            if each.segment == segment:
                return None if segment.unused_bytes else each
        return None

    def side_file(self, name: str) -> bytes | None:
        """The content of the small file ``name``, as a log directory would have it."""
        if name == LEADER_EPOCHS and self.lineage:
            return encode_leader_epochs([LeaderEpoch(*each) for each in self.lineage])
        if name == PARTITION_METADATA:
            return encode_partition_metadata(self.topic_id)
        return None


class LocatedPartition(NamedTuple):
    """A partition that is read like a tier, but whose folder exists only as a name.

    ``list`` returns its listing, which does not change until the partition is located again.
    """

    name: TopicPartition
    root: str  # address of the bucket, or the real path of the folder that is a copy of it
    topic_id: str
    list: Callable[[], Tier]


_located: dict[str, LocatedPartition] = {}  # by folder
_known: dict[str, Tier] = {}  # the last results of ``read_tier``, by folder


def locate(root: str, found: Mapping[str, LocatedPartition]) -> None:
    """Register the partitions of a bucket by folder. They replace earlier ones of the bucket."""
    for folder in [folder for folder, each in _located.items() if each.root == root]:
        del _located[folder]
    _located.update(found)


def is_located(root: str) -> bool:
    """Whether the root is a bucket whose partitions were registered by ``locate``."""
    return any(each.root == root for each in _located.values())


def cached_tier(folder: str) -> Tier:
    """A partition's last listing in tiered storage. Lists the partition if there is none."""
    return _known.get(folder) or read_tier(folder)


def read_tier(
    folder: str, beside: LocalPart | None = None, states: Mapping[str, SegmentState] | None = None
) -> Tier:
    """List the segments of a partition, and select the segments that belong to its log.

    Args:
        states: states of copies by segment id, as far as they are known.

    Raises:
        NotALog: there is no complete segment.
        CorruptLog, UnsupportedFormat: a file that is needed for the selection is damaged.
        RemoteFailed, LogError: the store does not answer; a file cannot be read.
    """
    if folder in _located:
        return _located[folder].list()
    states = states or {}
    removed = {id for id, each in states.items() if each.state > FINISHED}
    everything = {id: files for id, files in _files_of(folder).items() if id not in removed}
    there = {id: files for id, files in everything.items() if KafkaFileKind.LOG in files}
    with ThreadPoolExecutor(_AT_ONCE, "tier") as pool:
        found = list(pool.map(lambda files: _segment(folder, files), there.values()))
    if not found and beside is None:
        raise NotALog(
            "this folder of a broker's tier contains no complete segment",
            path=folder,
            remedy="check the path",
        )
    copies = [each.copied for each in found]
    lineage = beside.epochs if beside and beside.epochs else lineage_of(copies)
    log_start = lineage[0][1] if lineage else 0
    end = None
    if beside is not None:
        log_start = beside.log_start
        end = beside.log.segments[0].base_offset if beside.log.segments else beside.log.end_offset
        end = max(end, log_start)
    chained = chain(copies, lineage, log_start, end)
    # The log may start after a gap: retention removes the first segments without updating leader
    # epochs or checkpoints.
    begin = chained.gaps[0][1] if chained.gaps and chained.gaps[0][0] == log_start else log_start
    if beside is None or begin <= max((states[id].end_offset for id in removed), default=0):
        log_start = begin
    told = [states[id].state if id in states else None for id in there]
    chained = _resolve_copies(copies, told, lambda some: chain(some, lineage, log_start, end))
    tier = _tier(folder, found, chained, lineage, log_start, beside)
    if beside is None:
        lost = _lost_after_end(folder, tier, everything, states)
        tier = replace(tier, log=replace(tier.log, problems=(*tier.log.problems, *lost)))
    for other in list(_known)[:-_MOST_KNOWN]:
        _known.pop(other, None)
    _known[folder] = tier
    return tier


def _resolve_copies(
    copies: Sequence[TieredSegment],
    told: Sequence[int | None],
    chained: Callable[[Sequence[TieredSegment]], Chain],
) -> Chain:
    """Select the copies of segments that make up the log.

    These are the finished copies. Copies of unknown state are added if they fill gaps or extend the
    log. If gaps remain, all complete copies are used, because the known states may be older than
    the tier.
    """
    finished = [n for n, state in enumerate(told) if state == FINISHED]
    ended = [n for n, state in enumerate(told) if state in (FINISHED, None)]
    chains = [
        found._replace(parts=tuple((places[n], end) for n, end in found.parts))
        for places in (finished, ended, list(range(len(copies))))
        for found in [chained([copies[n] for n in places])]
    ]
    reach = chains[1].parts[-1][1] if chains[1].parts else 0
    for each in chains[:2]:
        if not each.gaps and each.parts and each.parts[-1][1] >= reach:
            return each
    return chains[2]


def _tier(
    folder: str,
    found: Sequence[TierSegment],
    chained: Chain,
    lineage: Epochs,
    log_start: int,
    beside: LocalPart | None,
) -> Tier:
    problems = [
        Problem(
            ProblemKind.DAMAGED,
            f"offsets {first} to {end - 1} are in no segment of the tier",
            folder,
            remedy=_REMEDY,
        )
        for first, end in chained.gaps
    ]
    parts: list[TierSegment] = []
    for place, end in chained.parts:
        part = found[place]
        if end < part.copied.end_offset:
            part, problem = _cut(part, end)
            problems += [] if problem is None else [problem]
        parts.append(part)
    snapshots = {
        part.copied.end_offset: part.snapshot
        for part in parts
        if part.snapshot is not None and not part.segment.unused_bytes
    }
    log = _log_of(folder, parts, snapshots, log_start)
    if beside is not None and beside.log.segments:
        log = _continued(log, beside.log)
        snapshots |= dict(beside.snapshots)
    return Tier(
        log=replace(log, problems=(*problems, *log.problems)),
        lineage=lineage,
        topic_id=topic_id_of(folder),
        segments=tuple(parts),
        snapshots=tuple(sorted(snapshots.items())),
    )


def _log_of(
    folder: str, parts: Sequence[TierSegment], snapshots: Mapping[int, str], log_start: int
) -> PartitionLog:
    """The log that consists of these segments."""
    segments = tuple(part.segment for part in parts)
    end_offset = parts[-1].copied.end_offset if parts else log_start

    def entries(offset: int) -> tuple[ProducerEntry, ...]:
        return decode_snapshot(read_small(snapshots[offset]))

    producers, unstable = read_producers(
        segments, list(snapshots), entries, log_start, end_offset, end_offset
    )
    return PartitionLog(
        name=name_of(folder),
        folder=folder,
        segments=segments,
        log_start=log_start,
        end_offset=end_offset,
        high_watermark=end_offset,
        checkpoint=None,
        producers=producers,
        aborted=tuple(entry for part in parts for entry in part.aborted),
        first_unstable_offset=unstable,
        is_closed=True,
        topic_id=topic_id_of(folder),
    )


def _continued(log: PartitionLog, local: PartitionLog) -> PartitionLog:
    """The log in tiered storage, continued by a broker's local segments."""
    return replace(
        local,
        folder=log.folder,
        topic_id=log.topic_id,
        segments=(*log.segments, *local.segments),
        log_start=log.log_start,
        checkpoint=None,
        aborted=(*log.aborted, *local.aborted),
        open_as=None,
        cached=(),
    )


def _files_of(folder: str) -> dict[str, dict[KafkaFileKind, ObjectInfo]]:
    """The files of each segment that was copied completely, by segment id.

    An interrupted copy lacks the file that is written last: leader epochs or chunk manifest. If a
    segment has that file but no ``.log``, the ``.log`` was lost later.
    """
    store, prefix = store_at(folder)
    found: dict[str, dict[KafkaFileKind, ObjectInfo]] = {}
    for each in store.list(f"{prefix}/" if prefix else ""):
        above, _, name = each.key.rpartition("/")
        file = decode_tier_file(name) if above == prefix else None
        if file is not None:
            found.setdefault(f"{file.offset:020d}-{file.segment_id}", {})[file.kind] = each
    return {
        name.partition("-")[2]: files
        for name, files in sorted(found.items())
        if _LAST & files.keys()
    }


def _lost_after_end(
    folder: str,
    tier: Tier,
    there: Mapping[str, Mapping[KafkaFileKind, ObjectInfo]],
    states: Mapping[str, SegmentState],
) -> Iterator[Problem]:
    """Yield a problem for each sign that the log continues after the tier's last segment.

    Such a sign is a segment of which only the ``.log`` is missing, or a copy without files that the
    metadata lists as finished. Retention is no explanation: it removes the oldest segments only.
    """
    end = tier.log.end_offset
    newest = tier.lineage[-1][0] if tier.lineage else -1
    for files in there.values():
        if KafkaFileKind.LOG in files:
            continue
        last = next(files[kind] for kind in files if kind in _LAST)
        path = join(folder, last.key.rpartition("/")[2])
        file = decode_tier_file(os.path.basename(path))
        assert file is not None
        if file.offset < end:
            continue
        if KafkaFileKind.LEADER_EPOCHS in files:
            with located(path):
                epochs = decode_leader_epochs(read_small(path))
            if epochs and epochs[-1].epoch < newest:
                continue  # copied by an old leader, so it is no evidence
        yield Problem(
            ProblemKind.DAMAGED,
            f"offsets from {end} on are in no segment of the tier: {os.path.basename(path)} "
            "is left of a segment whose .log is missing",
            folder,
            remedy=_REMEDY,
        )
    for id, each in states.items():
        if each.state == FINISHED and each.end_offset > end and id not in there:
            yield Problem(
                ProblemKind.DAMAGED,
                f"offsets {end} to {each.end_offset - 1} are in no segment of the tier: the "
                f"metadata lists the finished copy {id}, which has no file",
                folder,
                remedy=_REMEDY,
            )


def _segment(folder: str, files: Mapping[KafkaFileKind, ObjectInfo]) -> TierSegment:
    paths = {kind: join(folder, found.key.rpartition("/")[2]) for kind, found in files.items()}
    path, log = paths[KafkaFileKind.LOG], files[KafkaFileKind.LOG]
    file = decode_tier_file(os.path.basename(path))
    assert file is not None
    base = file.offset
    if KafkaFileKind.CHUNK_MANIFEST in files:
        return _segment_in_chunks(base, paths, files)

    def read(kind: KafkaFileKind) -> bytes:
        return read_small(paths[kind]) if kind in paths and files[kind].size_bytes else b""

    with located(paths[KafkaFileKind.LEADER_EPOCHS]):
        epochs = decode_leader_epochs(read(KafkaFileKind.LEADER_EPOCHS))
    with located(paths.get(KafkaFileKind.TRANSACTION_INDEX, path)):
        aborted = decode_aborted(read(KafkaFileKind.TRANSACTION_INDEX), base)
    try:
        index = decode_offset_index(read(KafkaFileKind.INDEX), base)
        times = decode_time_index(read(KafkaFileKind.TIME_INDEX), base)
        largest = int(times.timestamps_ms[-1]) if len(times) else -1
    except CorruptLog:  # the error is reported when the indexes are used
        index, largest = decode_offset_index(b"", base), -1
    segment = Segment(
        base_offset=base,
        path=path,
        size_bytes=log.size_bytes,
        mtime_ns=log.modified_ms * 1_000_000,
        largest_timestamp_ms=largest if largest >= 0 else log.modified_ms,
        index_bytes=_size(files, KafkaFileKind.INDEX),
        time_index_bytes=_size(files, KafkaFileKind.TIME_INDEX),
        etag=log.version.etag,
    )
    return _with_end(segment, index, epochs, aborted, paths.get(KafkaFileKind.SNAPSHOT), files)


def _segment_in_chunks(
    base: int, paths: Mapping[KafkaFileKind, str], files: Mapping[KafkaFileKind, ObjectInfo]
) -> TierSegment:
    path, found = paths[KafkaFileKind.CHUNK_MANIFEST], files[KafkaFileKind.CHUNK_MANIFEST]
    manifest = decode_manifest(read_small(path), path)
    at, beside = manifest.segment_indexes, paths[KafkaFileKind.CHUNKED_INDEXES]
    content, cipher = read_small(beside), cipher_of(manifest, path)

    def part(stretch: IndexSlice) -> bytes:
        stored = content[stretch.position : stretch.position + stretch.size]
        return cipher.opened(stored) if cipher and stretch.size else stored

    with located(beside):
        epochs = decode_leader_epochs(part(at.leader_epoch))
        aborted = decode_aborted(part(at.transaction) if at.transaction else b"", base)
        index = decode_offset_index(part(at.offset), base)
        times = decode_time_index(part(at.timestamp), base)
    largest = int(times.timestamps_ms[-1]) if len(times) else -1
    segment = Segment(
        base_offset=base,
        path=path,
        size_bytes=manifest.chunk_index.original_file_size,
        mtime_ns=found.modified_ms * 1_000_000,
        largest_timestamp_ms=largest if largest >= 0 else found.modified_ms,
        is_indexed=False,
        is_abort_indexed=False,
        etag=found.version.etag,
    )
    snapshot = f"{beside}#{at.producer_snapshot.position}+{at.producer_snapshot.size}"
    return _with_end(segment, index, epochs, aborted, snapshot, files)


def _with_end(
    segment: Segment,
    index: OffsetIndex,
    epochs: Sequence[LeaderEpoch],
    aborted: tuple[AbortedTransaction, ...],
    snapshot: str | None,
    files: Mapping[KafkaFileKind, ObjectInfo],
) -> TierSegment:
    """The segment, completed by its end offset, which is read from its last batches."""
    with reader_of(segment) as reader:
        tail = walk_tail(segment.path, segment.size_bytes, index, NO_END, reader)
        first = None
        if tail.end:
            head = np.empty(BATCH_HEADER.size, dtype=np.uint8)
            reader.read_into(head, 0)
            with suppress(CorruptLog, UnsupportedFormat):  # the scan reports the error
                first = decode_batch_header(memoryview(head), 0).max_timestamp_ms
    return TierSegment(
        segment=replace(segment, first_batch_timestamp_ms=first),
        copied=TieredSegment(
            segment.base_offset,
            tail.end_offset,
            tuple((each.epoch, each.start_offset) for each in epochs),
            segment.mtime_ms,
        ),
        index=index,
        aborted=aborted,
        snapshot=snapshot,
        files=files,
    )


def _size(files: Mapping[KafkaFileKind, ObjectInfo], kind: KafkaFileKind) -> int:
    return files[kind].size_bytes if kind in files else 0


def _cut(part: TierSegment, end: int) -> tuple[TierSegment, Problem | None]:
    """Truncate a segment at offset ``end``. The indexes of the result are not used."""
    segment = part.segment
    with reader_of(segment) as reader:
        tail = walk_tail(segment.path, segment.size_bytes, part.index, end, reader)
    problem = None
    if tail.end_offset != end:
        problem = Problem(
            ProblemKind.DAMAGED,
            f"no batch ends at offset {end - 1}, although the next segment begins after it",
            segment.path,
            tail.end,
            _REMEDY,
        )
    largest = tail.largest_timestamp_ms
    cut = replace(
        segment,
        size_bytes=tail.end,
        unused_bytes=segment.size_bytes - tail.end,
        is_indexed=False,
        is_abort_indexed=False,
        largest_timestamp_ms=largest if largest >= 0 else segment.largest_timestamp_ms,
    )
    aborted = tuple(entry for entry in part.aborted if entry.last_offset < end)
    copied = part.copied._replace(end_offset=end)
    return replace(part, segment=cut, aborted=aborted, copied=copied), problem
