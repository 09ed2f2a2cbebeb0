"""Names of files and folders in a Kafka log directory.

``00000000000000004711.log`` is the segment that begins at offset 4711; its side files have the same
number. A suffix shows the file's state: ``.cleaned`` is being written, ``.swap`` is complete and
about to replace other files, ``.deleted`` is about to be deleted. Lastwrite inserts an attempt
name, ``….log.<attempt>.cleaned``, so that two attempts at one segment never write to one file.
Kafka's loader reads only the digits in front and the suffix at the end, so it deletes these files
too.

Lastwrite also writes ``00000000000000004711.kept`` (scan_cache/format.py) and ``lastwrite.secret``.
Until such a file is complete, its name ends with ``.<attempt>.tmp``.

The folder ``a-b.c-3`` is partition 3 of topic ``a-b.c``. In tiered storage (KIP-405) the
folder is ``a-b.c-3-lC3CICZpQfG2AZG8odZnXA``, with the topic id. Names of segment files there also
have the segment id: ``00000000000000004711-CwoYPswdTs2OEaqyLhWSDA.log``. Aiven's plugin uses two
levels of folders, ``a-b.c-lC3CICZpQfG2AZG8odZnXA/3``, and three files per segment.

Source: Kafka 4.4 ``LogFileUtils``, ``UnifiedLog.parseTopicPartitionName``, ``Snapshots``,
``RemoteLogSegmentFileset`` of the storage module's tests;
docs/formats/kafka.md, "Names".
"""

from __future__ import annotations

import re
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from lastwrite.model.log import TopicPartition

OFFSET_DIGITS = 20

# Names of files in the log root.
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
LOCK = ".lock"
META_PROPERTIES = "meta.properties"
REMOTE_INDEX_CACHE = "remote-log-index-cache"

# Names of files in a partition's folder.
LEADER_EPOCHS = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"

METADATA_TOPIC = "__cluster_metadata"  # KRaft's metadata log: never compacted

_MAX_I64 = (1 << 63) - 1
_MAX_I32 = (1 << 31) - 1

# Number of names in a cache. A compaction classifies each file of a partition about thirty times.
_REMEMBERED = 1 << 14


class KafkaFileKind(StrEnum):
    """The kind of a file in a partition's folder. The first five values are file extensions."""

    LOG = ".log"
    INDEX = ".index"
    TIME_INDEX = ".timeindex"
    TRANSACTION_INDEX = ".txnindex"
    SNAPSHOT = ".snapshot"
    CHUNKED_INDEXES = ".indexes"  # Aiven's tiered storage: all indexes of a segment
    CHUNK_MANIFEST = ".rsm-manifest"  # Aiven's tiered storage: the segment's chunks
    LEADER_EPOCHS = LEADER_EPOCHS
    PARTITION_METADATA = PARTITION_METADATA
    METADATA_SNAPSHOT = ".checkpoint"  # exists only in KRaft's metadata log
    QUORUM_STATE = "quorum-state"  # exists only in KRaft's metadata log
    KEPT = ".kept"  # Lastwrite's cached scan of the segment; Kafka ignores it
    KEPT_SECRET = "lastwrite.secret"  # Lastwrite's secret of the fingerprints in .kept files
    FOREIGN = "foreign"


SEGMENT_KINDS = (
    KafkaFileKind.LOG,
    KafkaFileKind.INDEX,
    KafkaFileKind.TIME_INDEX,
    KafkaFileKind.TRANSACTION_INDEX,
)


class Suffix(StrEnum):
    """The state of a file: the end of its name."""

    LIVE = ""
    CLEANED = ".cleaned"
    SWAP = ".swap"
    DELETED = ".deleted"
    TEMPORARY = ".tmp"


class FileName(NamedTuple):
    """A file name in a partition's folder, decoded into its parts.

    ``offset`` is the number in the name, or None if the name has none. For a metadata snapshot it
    is the end offset. ``attempt`` is the name that Lastwrite inserts before ``.cleaned`` or
    ``.tmp``.
    """

    kind: KafkaFileKind
    suffix: Suffix = Suffix.LIVE
    offset: int | None = None
    attempt: str | None = None

    @property
    def is_foreign(self) -> bool:
        return self.kind is KafkaFileKind.FOREIGN


class FolderState(StrEnum):
    """The state of a partition's folder: the suffix of its name."""

    LIVE = "live"
    DELETED = "delete"
    FUTURE = "future"  # a copy from another log directory, not yet complete
    STRAY = "stray"  # the partition is not assigned to this broker


class FolderName(NamedTuple):
    """A decoded folder name. The topic of a deleted or stray partition may be truncated."""

    partition: TopicPartition
    state: FolderState = FolderState.LIVE


FOREIGN = FileName(KafkaFileKind.FOREIGN)

_SEGMENT_FILE = re.compile(
    r"(?P<offset>[0-9]{20})(?P<kind>\.log|\.index|\.timeindex|\.txnindex|\.snapshot)"
    r"(?:(?:\.(?P<attempt>[0-9A-Za-z_-]+))?(?P<cleaned>\.cleaned)|(?P<other>\.swap|\.deleted))?"
)
_KEPT = re.compile(
    r"(?:(?P<offset>[0-9]{20})\.kept|lastwrite\.secret)"
    r"(?:\.(?P<attempt>[0-9A-Za-z_-]+)(?P<tmp>\.tmp))?"
)
_METADATA_SNAPSHOT = re.compile(
    r"(?P<offset>[0-9]{20})-[0-9]{10}\.checkpoint(?P<suffix>\.deleted|\.part)?"
)
_ID = r"[A-Za-z0-9_-]{21}[AQgw]"  # 16 bytes in URL-safe base 64
_TIER_FOLDER = re.compile(rf"(?P<partition>.+)-(?P<id>{_ID})")
_TIER_FILE = re.compile(
    rf"(?P<offset>[0-9]{{20}})-(?P<id>{_ID})"
    r"(?P<kind>\.log|\.index|\.timeindex|\.txnindex|\.snapshot|\.leader_epoch_checkpoint"
    r"|\.indexes|\.rsm-manifest)"
)
_FOLDER = re.compile(
    r"(?P<topic>[a-zA-Z0-9._-]{1,249})-(?P<partition>0|[1-9][0-9]{0,9})"
    r"(?:\.[0-9a-f]{32}-(?P<state>delete|future|stray))?"
)


class TierFolder(NamedTuple):
    """A decoded folder name in tiered storage: the partition and the topic id."""

    partition: TopicPartition
    topic_id: str


class TierFile(NamedTuple):
    """A decoded name of a segment's file in tiered storage.

    A producer snapshot or a leader epoch checkpoint has the state at the segment's end.
    """

    offset: int
    segment_id: str
    kind: KafkaFileKind


@lru_cache(maxsize=_REMEMBERED)
def segment_file_name(
    offset: int, kind: KafkaFileKind, suffix: Suffix = Suffix.LIVE, *, attempt: str | None = None
) -> str:
    """The name of a segment's file or of a snapshot: 20 digits, extension, suffix.

    ``attempt`` is only for ``.cleaned``: letters, digits, ``_`` and ``-``.

    Raises:
        ValueError: the offset is below 0 or above 2^63 - 1, or no file has this combination of
            extension, suffix and attempt.
    """
    if not 0 <= offset <= _MAX_I64:
        raise ValueError(f"offset {offset} is outside 0 to 2^63 - 1")
    name = f"{offset:020d}{kind}{'' if attempt is None else '.' + attempt}{suffix}"
    if classify(name) != FileName(kind, suffix, offset, attempt):
        raise ValueError(f"{name!r} is not the name of a segment's file")
    return name


@lru_cache(maxsize=_REMEMBERED)
def classify(name: str) -> FileName:
    """Classify a file in a partition's folder by its name alone.

    A name that Kafka would not produce, such as ``5.log``, is foreign, even if it is valid for
    Kafka's own parser. Kafka would open the file under the 20-digit name instead.
    """
    match = _SEGMENT_FILE.fullmatch(name)
    if match is not None:
        offset = int(match["offset"])
        kind = KafkaFileKind(match["kind"])
        suffix = Suffix(match["cleaned"] or match["other"] or "")
        if offset > _MAX_I64:
            return FOREIGN
        if kind is KafkaFileKind.SNAPSHOT and suffix not in (Suffix.LIVE, Suffix.DELETED):
            return FOREIGN
        return FileName(kind, suffix, offset, match["attempt"])
    for kind in (
        KafkaFileKind.LEADER_EPOCHS,
        KafkaFileKind.PARTITION_METADATA,
        KafkaFileKind.QUORUM_STATE,
    ):
        if name == kind.value:
            return FileName(kind)
        if name == kind.value + Suffix.TEMPORARY:
            return FileName(kind, Suffix.TEMPORARY)
    match = _METADATA_SNAPSHOT.fullmatch(name)
    if match is not None and int(match["offset"]) <= _MAX_I64:
        suffix = {None: Suffix.LIVE, ".deleted": Suffix.DELETED}.get(
            match["suffix"], Suffix.TEMPORARY
        )
        return FileName(KafkaFileKind.METADATA_SNAPSHOT, suffix, int(match["offset"]))
    match = _KEPT.fullmatch(name)
    if match is not None and int(match["offset"] or 0) <= _MAX_I64:
        suffix = Suffix.TEMPORARY if match["tmp"] else Suffix.LIVE
        if match["offset"] is None:
            return FileName(KafkaFileKind.KEPT_SECRET, suffix, attempt=match["attempt"])
        return FileName(KafkaFileKind.KEPT, suffix, int(match["offset"]), match["attempt"])
    return FOREIGN


def folder_name(partition: TopicPartition) -> str:
    """The name of a live partition's folder.

    Raises:
        ValueError: the topic name is invalid, or the partition is out of range.
    """
    name = f"{partition.topic}-{partition.partition}"
    if decode_folder_name(name) != FolderName(partition):
        raise ValueError(f"{name!r} is not the name of a partition's folder")
    return name


@lru_cache(maxsize=_REMEMBERED)
def decode_folder_name(name: str) -> FolderName | None:
    """Decode the name of a partition's folder. None for any other name.

    The topic has 1 to 249 letters, digits, ``.``, ``_`` and ``-``; the partition follows the last
    ``-``.
    """
    match = _FOLDER.fullmatch(name)
    if match is None or match["topic"] in (".", "..") or int(match["partition"]) > _MAX_I32:
        return None
    return FolderName(
        TopicPartition(match["topic"], int(match["partition"])),
        FolderState(match["state"] or FolderState.LIVE),
    )


def live_partition(name: str) -> TopicPartition | None:
    """The partition of a folder with that name, or None if Lastwrite must not change it.

    Lastwrite does not change a partition that is being deleted or moved, nor the cluster's metadata
    log.
    """
    found = decode_folder_name(name)
    if found is None or found.state is not FolderState.LIVE:
        return None
    return None if found.partition.topic == METADATA_TOPIC else found.partition


@lru_cache(maxsize=_REMEMBERED)
def decode_tier_folder(above: str, name: str) -> TierFolder | None:
    """Decode a folder of tiered storage from its name and ``above``, the name of its parent.

    Returns None if the names do not have this form. A folder of a log root or an archive may match
    too, if the name of its topic ends like a topic id.
    """
    if name.isdigit():
        topic = _TIER_FOLDER.fullmatch(above)
        found = None if topic is None else decode_folder_name(f"{topic['partition']}-{name}")
        return None if topic is None or found is None else TierFolder(found.partition, topic["id"])
    match = _TIER_FOLDER.fullmatch(name)
    found = None if match is None else decode_folder_name(match["partition"])
    if match is None or found is None or found.state is not FolderState.LIVE:
        return None
    return TierFolder(found.partition, match["id"])


def decode_tier_file(name: str) -> TierFile | None:
    """Decode the name of a segment's file in tiered storage. None for any other name."""
    match = _TIER_FILE.fullmatch(name)
    if match is None or int(match["offset"]) > _MAX_I64:
        return None
    is_epochs = match["kind"] == ".leader_epoch_checkpoint"
    kind = KafkaFileKind.LEADER_EPOCHS if is_epochs else KafkaFileKind(match["kind"])
    return TierFile(int(match["offset"]), match["id"], kind)
