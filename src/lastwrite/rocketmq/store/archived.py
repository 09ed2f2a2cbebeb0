"""A RocketMQ queue in an archive: the contents of its manifest, and the log that it describes.

    ARCHIVE/rocketmq/orders/3/manifest.json
                              data/<round>-<attempt>/00000000000104857600
                                                     00000000000104857600.index

A data object has the records of one compaction log file, and its index object has their units. In a
store, zeros follow in both files. Queue offsets and all bytes of a record except its address are
unchanged. The archive assigns the addresses and file names, which rise from file to file. The
manifest's ``log`` has these fields::

    end_offset       the queue offset after the last fetched message, even if it was removed since
    checkpoint       the first dirty offset; null: no compaction has finished
    files            see ``StoredFile``, oldest first
    file_bytes       file size of the first fetched store; file addresses differ by at least this
    last_stored_ms   the largest store time of all fetched messages
    last_message     digest of the message before ``end_offset``; null: it was not in the log
    topic            the topic's settings from the store's ``topics.json``, or null
    source           the store of the last fetch
    gaps             first offset and end of each range lost between two fetches and accepted with
                     ``--accept-gap``; oldest first. Some messages of a gap may be present
    brought_ms       time of the last fetch
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from urllib.parse import unquote

import msgspec
from msgspec import structs

from lastwrite.archive.gaps import gap_at, gap_sentence
from lastwrite.archive.layout import (
    first_partition_at,
    manifests_at,
    partition_address,
    partitions_at,
)
from lastwrite.archive.manifest import DataObject, Manifest
from lastwrite.archive.partition_store import VersionedManifest, read_versioned_manifest
from lastwrite.encoding.json_structs import decode_struct
from lastwrite.errors import CorruptLog
from lastwrite.model.log import PartitionLog, Problem, Segment, TopicPartition
from lastwrite.rocketmq.format.names import file_name
from lastwrite.rocketmq.format.sides import TopicConfig
from lastwrite.rocketmq.format.units import BATCH_UNIT
from lastwrite.storage.layout import PartitionSnapshot
from lastwrite.storage.objects.address import is_address

SYSTEM = "rocketmq"
INDEX_SUFFIX = ".index"
_FILE = re.compile("(.*)/data/[0-9a-f]{32}-[^/]+/[^/]+$")


class StoredFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file of a compaction log in a queue's archive."""

    base_offset: int
    end_offset: int  # queue offset after the last record
    address: int  # address of the first byte, as in the records and the index
    folder: str  # folder of the file's objects, relative to the queue's folder
    bytes: int
    etag: str = ""
    index_bytes: int
    index_etag: str = ""
    largest_timestamp_ms: int
    first_timestamp_ms: int
    mtime_ms: int

    @property
    def key(self) -> str:
        """The key of the object with the records."""
        return f"{self.folder}{file_name(self.address)}"

    @property
    def records(self) -> int:
        return self.index_bytes // BATCH_UNIT.size

    def objects(self) -> Iterable[DataObject]:
        """The keys of the file's two objects: records and index."""
        yield DataObject(key=self.key, bytes=self.bytes, etag=self.etag)
        yield DataObject(key=self.key + INDEX_SUFFIX, bytes=self.index_bytes, etag=self.index_etag)


class ArchivedQueue(msgspec.Struct, frozen=True, kw_only=True):
    """The RocketMQ part of a queue's manifest; the module describes its fields."""

    end_offset: int = 0
    checkpoint: int | None = None
    files: tuple[StoredFile, ...] = ()
    file_bytes: int = 0
    last_stored_ms: int = -1
    last_message: str | None = None
    topic: TopicConfig | None = None
    source: str = ""
    brought_ms: int = 0
    gaps: tuple[tuple[int, int], ...] = ()

    def objects(self) -> tuple[DataObject, ...]:
        """All objects that the manifest references."""
        return tuple(each for file in self.files for each in file.objects())

    @property
    def log_start(self) -> int:
        """The queue offset of the first message."""
        return self.files[0].base_offset if self.files else self.end_offset

    @property
    def next_address(self) -> int:
        """The address for the next new file."""
        if not self.files or not self.file_bytes:
            return 0
        last = self.files[-1]
        return last.address + max(-(-last.bytes // self.file_bytes), 1) * self.file_bytes


def is_archived(folder: str) -> bool:
    """Whether a queue's folder is in an archive. A folder in a store is below ``compaction``."""
    return os.path.basename(root_of(folder)) == SYSTEM


def is_root(root: str) -> bool:
    """Whether ``root`` is the RocketMQ folder of an archive. Archives need no store lock."""
    if is_address(root):
        return True
    if os.path.basename(root.rstrip("/")) != SYSTEM:
        return False
    return first_partition_at(root, SYSTEM) is not None


def folder_of(root: str, name: TopicPartition) -> str:
    """The address of a queue's folder in an archive."""
    return partition_address(os.path.dirname(root), SYSTEM, name.topic, name.partition)


def name_of(folder: str) -> TopicPartition:
    """The queue whose folder in an archive is ``folder``."""
    above, number = os.path.split(folder.rstrip("/"))
    return TopicPartition(unquote(os.path.basename(above)), int(number))


def root_of(folder: str) -> str:
    """The folder with the RocketMQ topics of the archive."""
    return os.path.dirname(os.path.dirname(folder.rstrip("/")))


def queue_of_file(path: str) -> str | None:
    """The queue's folder for a file's address in an archive. Returns None for any other file."""
    found = _FILE.match(path)
    return None if found is None else found[1]


def find(path: str) -> dict[TopicPartition, str]:
    """The queues in the archive at ``path``, by name."""
    return {name_of(folder): folder for folder in partitions_at(path, SYSTEM)}


def contents_of(manifest: Manifest, folder: str) -> ArchivedQueue:
    """The RocketMQ part of a manifest.

    Raises:
        CorruptLog: the manifest does not describe a RocketMQ queue.
    """
    try:
        return decode_struct(manifest.log, ArchivedQueue)
    except msgspec.MsgspecError as error:
        raise CorruptLog(
            f"the manifest does not describe a RocketMQ queue: {error}", 0, folder
        ) from error


def read_contents(folder: str) -> ArchivedQueue:
    """Read the RocketMQ part of the manifest at ``folder``, with one request.

    Raises:
        NotALog, CorruptLog, UnsupportedFormat, RemoteFailed: as in
        ``partition_store.read_versioned_manifest``.
    """
    return contents_of(read_versioned_manifest(folder).manifest, folder)


def scan_root(path: str) -> list[PartitionSnapshot]:
    """The queues in the archive at ``path`` with their manifests' versions, for the daemon.

    Sends one request for each queue.
    """
    found = manifests_at(path, SYSTEM)
    return sorted(
        PartitionSnapshot(name_of(each), each, seen.version, True) for each, seen in found
    )


def log_of(manifest: Manifest, folder: str) -> PartitionLog:
    """The log that a manifest describes. The paths of the segments are complete addresses."""
    queue = contents_of(manifest, folder)
    return PartitionLog(
        name=name_of(folder),
        folder=folder,
        segments=tuple(segment_of(each, folder) for each in queue.files),
        log_start=queue.log_start,
        end_offset=queue.end_offset,
        high_watermark=queue.end_offset,
        checkpoint=queue.checkpoint,
        problems=gaps_of(queue, folder),
        is_closed=True,
        generation=manifest.generation,
    )


def gaps_of(queue: ArchivedQueue, folder: str) -> tuple[Problem, ...]:
    """A problem note for each gap that ends after the start of the log."""
    return tuple(
        gap_at(folder, describe_gap(*gap)) for gap in queue.gaps if gap[1] > queue.log_start
    )


def describe_gap(first: int, end: int) -> str:
    """A sentence that describes a gap."""
    return gap_sentence(f"messages of queue offsets {first} to {end - 1}")


def segment_of(stored: StoredFile, folder: str) -> Segment:
    """Convert a stored file to a segment for the compaction rules."""
    return Segment(
        base_offset=stored.base_offset,
        path=f"{folder}/{stored.key}",
        size_bytes=stored.bytes,
        mtime_ns=stored.mtime_ms * 1_000_000,
        largest_timestamp_ms=stored.largest_timestamp_ms,
        first_batch_timestamp_ms=stored.first_timestamp_ms,
        index_bytes=stored.index_bytes,
        etag=stored.etag or "-",
    )


def manifest_of(current: VersionedManifest | None, queue: ArchivedQueue, folder: str) -> Manifest:
    """A manifest for a queue with these contents.

    ``PartitionStore.commit`` sets the version fields.
    """
    log, objects = msgspec.Raw(msgspec.json.encode(queue)), queue.objects()
    if current is not None:
        return structs.replace(current.manifest, log=log, objects=objects)
    name = name_of(folder)
    return Manifest(
        system=SYSTEM, topic=name.topic, partition=name.partition, objects=objects, log=log
    )
