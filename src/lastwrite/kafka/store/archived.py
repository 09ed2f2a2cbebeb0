"""A Kafka partition in an archive: the contents of its manifest, and the log that they describe.

    ARCHIVE/kafka/orders/0/manifest.json
                           data/<round>-<attempt>/00000000000000000600.log
                                                  .index, .timeindex: not of small segments
                                                  .txnindex: if transactions were aborted
                           data/<round>-producers/00000000000000001366.snapshot

Segments have a broker's format, byte for byte, and are never appended to. Segments in a broker's
tier are referenced by their addresses, and never changed or removed. The manifest's ``log``::

    log_start, end_offset      as in a log directory; all below the end is replicated
    checkpoint                 the first dirty offset; null if no compaction was finished
    first_unstable             the first offset of a transaction that is open at the end, or null
    segments                   see ``StoredSegment``, oldest first
    aborted                    producer id, first offset, last offset, last stable offset: the
                               entries of all transaction indexes
    producers                  producer id, epoch, last offset, timestamp, first offset of its open
                               transaction; as of the log's end
    snapshot                   the object with the broker's producer snapshot, or null
    epochs                     leader epoch, first offset
    topic_id                   the topic id, or null
    known                      settings in the cluster's metadata: the topic's, the broker's dynamic
                               ones, the defaults of all brokers, and the broker's file if it was
                               requested; null if unknown
    brought_ms                 time of the last fetch from the cluster
    groups                     consumer group, committed offset, leader epoch before it or -1,
                               metadata; as of the last fetch. A log directory has only the groups
                               whose partition of ``__consumer_offsets`` it contains
    active_from                base offset of the active segment of an archive that follows a live
                               cluster. It consists of the stored segments from there on. The next
                               poll appends to it, and compaction skips it; null if there is none
    last_batch                 base offset, next offset, number of records and CRC-32 of the last
                               batch from a live cluster; null if there is none
    gaps                       first offset and end of records lost between two fetches, accepted
                               with ``--accept-gap``; oldest first
    written                    for a topic created by ``jobs.append``: the names of appends and the
                               last number of each; null if the topic was fetched from a cluster
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import lru_cache

import msgspec
from msgspec import structs

from lastwrite.archive.gaps import gap_at, gap_sentence
from lastwrite.archive.layout import manifests_at, partition_address, partitions_at
from lastwrite.archive.manifest import DataObject, Manifest
from lastwrite.archive.partition_store import MANIFEST, read_versioned_manifest
from lastwrite.encoding.json_structs import decode_struct
from lastwrite.errors import CorruptLog
from lastwrite.kafka.format.names import (
    LEADER_EPOCHS,
    PARTITION_METADATA,
    KafkaFileKind,
    decode_tier_folder,
    segment_file_name,
)
from lastwrite.kafka.format.text import (
    LeaderEpoch,
    encode_leader_epochs,
    encode_partition_metadata,
)
from lastwrite.kafka.rules import topic_settings
from lastwrite.kafka.store.last_batch import LastBatch
from lastwrite.model.log import (
    AbortedTransaction,
    KeptScan,
    PartitionLog,
    Problem,
    ProducerState,
    Segment,
    TopicPartition,
)
from lastwrite.storage.choice import Topics
from lastwrite.storage.layout import PartitionSnapshot
from lastwrite.storage.objects.address import is_address, join
from lastwrite.storage.reading import exists

SYSTEM = "kafka"
_AS_IT_IS = KeptScan("", 0, "")
_SIDES = (KafkaFileKind.INDEX, KafkaFileKind.TIME_INDEX, KafkaFileKind.TRANSACTION_INDEX)


class StoredScan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The object that caches the scan of a segment: its key, size and etag."""

    key: str  # the object's key, relative to the partition's folder
    bytes: int
    etag: str = ""

    @classmethod
    def of(cls, scan: KeptScan, folder: str) -> StoredScan:
        """The reference to a cached scan in the manifest of the partition at ``folder``."""
        key = scan.address.removeprefix(f"{folder}/")
        return cls(key=key, bytes=scan.size_bytes, etag=scan.etag)

    def at(self, folder: str) -> KeptScan:
        """The cached scan with its full address, below the partition's address ``folder``."""
        return KeptScan(f"{folder}/{self.key}", self.bytes, self.etag)


class StoredSegment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A segment of an archived partition: its offsets and the objects that store it."""

    base_offset: int
    folder: str  # folder of the segment's objects, relative to the partition's folder
    bytes: int
    etag: str = ""
    index_bytes: int = 0
    time_index_bytes: int = 0
    transaction_index_bytes: int = 0  # 0 without a transaction index
    # whether there are an offset index and a time index
    is_indexed: bool = msgspec.field(default=True, name="indexed")
    largest_timestamp_ms: int
    first_batch_timestamp_ms: int | None = None
    mtime_ms: int
    records: int | None = None
    kept: StoredScan | None = None
    # full address of a segment in a broker's tier, which Lastwrite only reads; else empty
    address: str = ""
    in_chunks: tuple[DataObject, ...] = ()  # the segment's objects, if a tier stores it in chunks

    def key(self, kind: KafkaFileKind) -> str:
        """The key of the object of this kind; for a segment in a tier, its full address."""
        if self.address:
            return self.address.removesuffix(KafkaFileKind.LOG) + kind
        return f"{self.folder}{segment_file_name(self.base_offset, kind)}"

    def objects(self) -> Iterable[DataObject]:
        """The keys and sizes of all objects of the segment."""
        is_foreign = bool(self.address)
        if self.in_chunks:
            yield from self.in_chunks
        else:
            log = self.key(KafkaFileKind.LOG)
            yield DataObject(key=log, bytes=self.bytes, etag=self.etag, is_foreign=is_foreign)
        sizes = self.index_bytes, self.time_index_bytes, self.transaction_index_bytes
        for kind, size in zip(_SIDES, sizes, strict=True):
            if self.in_chunks:
                continue
            if size if kind is KafkaFileKind.TRANSACTION_INDEX else self.is_indexed:
                yield DataObject(key=self.key(kind), bytes=size, is_foreign=is_foreign)
        if self.kept is not None:
            yield DataObject(key=self.kept.key, bytes=self.kept.bytes, etag=self.kept.etag)


class ArchivedMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """A topic's settings in a cluster's metadata, as a manifest stores them."""

    topic: dict[str, str | None]
    broker: dict[str, str | None] = {}
    brokers: dict[str, str | None] = {}
    file: dict[str, str | None] = {}

    @classmethod
    def of(cls, metadata: topic_settings.TopicMetadata) -> ArchivedMetadata:
        """Convert settings from the form that the setting rules use."""
        return cls(
            topic=_texts(metadata.topic),
            broker=_texts(metadata.broker),
            brokers=_texts(metadata.brokers),
            file=_texts(metadata.file),
        )

    def to_topic_metadata(self) -> topic_settings.TopicMetadata:
        """Convert the settings to the form that the setting rules use."""
        return topic_settings.TopicMetadata(
            topic=self.topic, broker=self.broker, brokers=self.brokers, file=self.file
        )


def _texts(settings: Mapping[str, object]) -> dict[str, str | None]:
    return {name: None if value is None else str(value) for name, value in settings.items()}


class ArchivedLog(msgspec.Struct, frozen=True, kw_only=True):
    """The ``log`` of a manifest: the contents of an archived partition."""

    log_start: int
    end_offset: int
    checkpoint: int | None = None
    first_unstable: int | None = None
    segments: tuple[StoredSegment, ...] = ()
    aborted: tuple[tuple[int, int, int, int], ...] = ()
    producers: tuple[tuple[int, int, int, int, int], ...] = ()
    snapshot: str | None = None
    snapshot_bytes: int = 0
    epochs: tuple[tuple[int, int], ...] = ()
    topic_id: str | None = None
    known: ArchivedMetadata | None = None
    brought_ms: int = 0
    groups: tuple[tuple[str, int, int, str], ...] = ()
    active_from: int | None = None
    last_batch: LastBatch | None = None
    written: tuple[tuple[str, int], ...] | None = None
    gaps: tuple[tuple[int, int], ...] = ()

    def with_gap(self, end: int) -> ArchivedLog:
        """The log with its end moved to ``end``, and the offsets in between recorded as a gap.

        A transaction open at the old end counts as committed: its marker may be in the gap.
        """
        return structs.replace(
            self,
            end_offset=end,
            first_unstable=None,
            producers=(),
            snapshot=None,
            snapshot_bytes=0,
            last_batch=None,
            active_from=None,
            gaps=(*self.gaps, (self.end_offset, end)),
        )

    @property
    def is_blank(self) -> bool:
        """Whether the partition is empty because its contents were moved to another archive."""
        return not self.brought_ms and not self.segments

    def objects(self) -> tuple[DataObject, ...]:
        """The keys and sizes of all objects of the log."""
        found = [each for segment in self.segments for each in segment.objects()]
        if self.snapshot is not None:
            found.append(DataObject(key=self.snapshot, bytes=self.snapshot_bytes))
        return tuple(found)


def is_archived(folder: str) -> bool:
    """Whether the folder is a partition in an archive. The name of such a folder is a number."""
    if not folder.rstrip("/").rpartition("/")[2].isdigit():
        return False
    above, name = os.path.split(folder.rstrip("/"))
    if decode_tier_folder(os.path.basename(above), name) is None:
        return True
    # A tier's folder may have such a path, too. Only an archive's folder contains a manifest.
    return os.path.basename(os.path.dirname(above)) == SYSTEM and _has_manifest(folder)


@lru_cache(maxsize=1024)
def _has_manifest(folder: str) -> bool:
    return exists(join(folder, MANIFEST))


def name_of(folder: str) -> TopicPartition:
    """The topic and number of an archived partition, from its folder."""
    above, number = os.path.split(folder.rstrip("/"))
    return TopicPartition(os.path.basename(above), int(number))


def root_of(folder: str) -> str:
    """The archive's folder for Kafka's topics."""
    return os.path.dirname(os.path.dirname(folder.rstrip("/")))


def is_root(root: str, names: Iterable[TopicPartition]) -> bool:
    """Whether the partitions ``names`` in ``root`` are in an archive, which has no locks."""
    if is_address(root):
        return True
    return any(
        os.path.exists(os.path.join(root, name.topic, str(name.partition), MANIFEST))
        for name in names
    )


def find(path: str, topic: Topics = None) -> dict[TopicPartition, str]:
    """The Kafka partitions in the archive at ``path``, by name.

    If ``topic`` names topics without patterns and all exist, only these are returned.
    """
    names = {topic} if isinstance(topic, str) else set(topic or ())
    if names and not any(mark in name for name in names for mark in "*?["):
        folders = (partition_address(path, SYSTEM, name) for name in sorted(names))
        found = {
            name_of(each): each for folder in folders for each in partitions_at(folder, SYSTEM)
        }
        if {name.topic for name in found} == names:
            return found
    return {name_of(folder): folder for folder in partitions_at(path, SYSTEM)}


def address_in(archive: str, name: TopicPartition) -> str:
    """The address of a partition in ``archive``."""
    return partition_address(archive, SYSTEM, name.topic, name.partition)


def scan_root(path: str) -> list[PartitionSnapshot]:
    """The Kafka partitions in the archive at ``path``, for the daemon, with manifest versions.

    Costs one request per partition.
    """
    found = manifests_at(path, SYSTEM)
    return sorted(
        PartitionSnapshot(name_of(each), each, seen.version, True) for each, seen in found
    )


def contents_of(manifest: Manifest, folder: str) -> ArchivedLog:
    """Decode the contents of an archived Kafka partition from its manifest.

    Raises:
        CorruptLog: the manifest is not a Kafka partition's.
    """
    try:
        return decode_struct(manifest.log, ArchivedLog)
    except msgspec.MsgspecError as error:
        raise CorruptLog(
            f"the manifest is not that of a Kafka partition: {error}", 0, folder
        ) from error


def log_of(manifest: Manifest, folder: str) -> PartitionLog:
    """The log that a manifest describes. The paths of its segments are full addresses."""
    log = contents_of(manifest, folder)
    return PartitionLog(
        name=name_of(folder),
        folder=folder,
        segments=tuple(segment_of(each, folder) for each in log.segments),
        log_start=log.log_start,
        end_offset=log.end_offset,
        high_watermark=log.end_offset,
        checkpoint=log.checkpoint,
        producers=tuple(ProducerState(*each) for each in log.producers),
        aborted=tuple(AbortedTransaction(*each) for each in log.aborted),
        first_unstable_offset=log.first_unstable,
        is_closed=True,
        active_from=log.active_from,
        problems=gaps_of(log, folder),
        generation=manifest.generation,
        topic_id=log.topic_id,
    )


def gaps_of(log: ArchivedLog, path: str) -> tuple[Problem, ...]:
    """A problem of kind GAP for each gap that ends above the log's start."""
    return tuple(gap_at(path, describe_gap(*gap)) for gap in log.gaps if gap[1] > log.log_start)


def describe_gap(first: int, end: int) -> str:
    """A sentence that describes the gap between two offsets."""
    return gap_sentence(f"offsets {first} to {end - 1}")


def segment_of(stored: StoredSegment, folder: str) -> Segment:
    """Convert a stored segment to the form that compaction and rules use."""
    return Segment(
        base_offset=stored.base_offset,
        path=stored.address or f"{folder}/{stored.key(KafkaFileKind.LOG)}",
        size_bytes=stored.bytes,
        mtime_ns=stored.mtime_ms * 1_000_000,
        largest_timestamp_ms=stored.largest_timestamp_ms,
        first_batch_timestamp_ms=stored.first_batch_timestamp_ms,
        index_bytes=stored.index_bytes,
        time_index_bytes=stored.time_index_bytes,
        etag=stored.etag or "-",
        is_indexed=stored.is_indexed and not stored.in_chunks,
        is_abort_indexed=not stored.in_chunks,
        kept=None if stored.kept is None else stored.kept.at(folder),
    )


def with_cached_scans(
    segments: Iterable[StoredSegment], folder: str, kept: Mapping[int, KeptScan | None]
) -> tuple[StoredSegment, ...]:
    """The stored segments, with references to the cached scans in ``kept``.

    ``kept`` maps a segment's base offset to its scan. If the value is None, the segment's earlier
    reference is removed. Segments that are not in ``kept`` stay unchanged.
    """
    return tuple(
        structs.replace(each, kept=found and StoredScan.of(found, folder))
        if (found := kept.get(each.base_offset, _AS_IT_IS)) is not _AS_IT_IS
        else each
        for each in segments
    )


def side_file(folder: str, name: str) -> bytes | None:
    """The content of the small file ``name``, as a log directory would have it. None if unknown.

    Raises:
        NotALog, CorruptLog, UnsupportedFormat, RemoteFailed: as ``read_versioned_manifest``.
    """
    log = contents_of(read_versioned_manifest(folder).manifest, folder)
    if name == LEADER_EPOCHS and log.epochs:
        return encode_leader_epochs([LeaderEpoch(*each) for each in log.epochs])
    if name == PARTITION_METADATA and log.topic_id is not None:
        return encode_partition_metadata(log.topic_id)
    return None


def snapshots_of(folder: str) -> list[tuple[int, str]]:
    """Offset and address of the producer snapshot at the log's end. Empty if there is none."""
    log = contents_of(read_versioned_manifest(folder).manifest, folder)
    return [] if log.snapshot is None else [(log.end_offset, f"{folder}/{log.snapshot}")]


def read_archived(folder: str) -> PartitionLog:
    """The log of a partition of an archive, from its manifest alone; costs one request.

    Raises:
        NotALog, CorruptLog, UnsupportedFormat, RemoteFailed: as ``read_versioned_manifest``.
    """
    return log_of(read_versioned_manifest(folder).manifest, folder)
