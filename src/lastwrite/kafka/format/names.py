"""Names of files and folders in a Kafka log directory.

``00000000000000004711.log`` is the segment that begins at offset 4711; side files share its number.
 A suffix behind the whole name says what is being done with the file: ``.cleaned`` is being
 written, ``.swap`` is
finished and about to replace others, ``.deleted`` is on its way out.  Our own outputs carry a word
between, ``….log.<attempt>.cleaned``, so that two attempts at one segment never write to one file;
Kafka's loader looks at the digits in front and the suffix at the end and deletes them all the same.

``00000000000000004711.kept`` is ours too (scan_cache/format.py), and ``lastwrite.secret``; a
``….<attempt>.tmp`` of either is being written.

The folder ``a-b.c-3`` is partition 3 of topic ``a-b.c``. In a tier (KIP-405) it is
``a-b.c-3-lC3CICZpQfG2AZG8odZnXA``, with the topic's id, and in it each file of a segment has the
segment's own id: ``00000000000000004711-CwoYPswdTs2OEaqyLhWSDA.log``. Aiven's plugin makes two
folders of it, ``a-b.c-lC3CICZpQfG2AZG8odZnXA/3``, and three files of a segment.

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

# In the log root.
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
LOCK = ".lock"
META_PROPERTIES = "meta.properties"
REMOTE_INDEX_CACHE = "remote-log-index-cache"

# In a partition's folder.
LEADER_EPOCHS = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"

METADATA_TOPIC = "__cluster_metadata"  # KRaft's own log: never compacted

_MAX_I64 = (1 << 63) - 1
_MAX_I32 = (1 << 31) - 1

# A round asks some thirty times what each file of a partition is, within moments.
_REMEMBERED = 1 << 14


class FileKind(StrEnum):
    """What a file in a partition's folder is; of the first five, the value is the extension."""

    LOG = ".log"
    INDEX = ".index"
    TIME_INDEX = ".timeindex"
    TRANSACTION_INDEX = ".txnindex"
    SNAPSHOT = ".snapshot"
    CHUNKED_INDEXES = ".indexes"  # of a tier in chunks: all that stand beside a segment
    CHUNK_MANIFEST = ".rsm-manifest"  # likewise: how it was cut
    LEADER_EPOCHS = LEADER_EPOCHS
    PARTITION_METADATA = PARTITION_METADATA
    METADATA_SNAPSHOT = ".checkpoint"  # only KRaft's own log has them
    QUORUM_STATE = "quorum-state"  # likewise
    KEPT = ".kept"  # our own: what a scan of the segment found; Kafka passes it over
    KEPT_SECRET = "lastwrite.secret"  # our own: what the fingerprints in there were made under
    FOREIGN = "foreign"


SEGMENT_KINDS = (FileKind.LOG, FileKind.INDEX, FileKind.TIME_INDEX, FileKind.TRANSACTION_INDEX)


class Suffix(StrEnum):
    """What is being done with a file."""

    LIVE = ""
    CLEANED = ".cleaned"
    SWAP = ".swap"
    DELETED = ".deleted"
    TEMPORARY = ".tmp"


class FileName(NamedTuple):
    """A file name taken apart.

    ``offset`` is the number in the name, None where it has none; of a metadata snapshot its end
    offset. ``attempt`` is our own word before ``.cleaned``.
    """

    kind: FileKind
    suffix: Suffix = Suffix.LIVE
    offset: int | None = None
    attempt: str | None = None

    @property
    def is_foreign(self) -> bool:
        return self.kind is FileKind.FOREIGN


class FolderState(StrEnum):
    """What Kafka does with a partition's folder."""

    LIVE = "live"
    DELETED = "delete"
    FUTURE = "future"  # being filled from another disk
    STRAY = "stray"  # not assigned to this broker


class FolderName(NamedTuple):
    """A folder name taken apart.  A deleted or stray partition's topic may be cut short."""

    partition: TopicPartition
    state: FolderState = FolderState.LIVE


FOREIGN = FileName(FileKind.FOREIGN)

_SEGMENT_FILE = re.compile(
    r"(?P<offset>[0-9]{20})(?P<kind>\.log|\.index|\.timeindex|\.txnindex|\.snapshot)"
    r"(?:(?:\.(?P<attempt>[0-9A-Za-z_-]+))?(?P<cleaned>\.cleaned)|(?P<other>\.swap|\.deleted))?"
)
_KEPT = re.compile(
    r"(?:(?P<offset>[0-9]{20})\.kept|lastwrite\.secret)(?:\.(?P<attempt>[0-9A-Za-z_-]+)(?P<tmp>\.tmp))?"
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
    """A folder of a tier: the partition, and the topic's id."""

    partition: TopicPartition
    topic_id: str


class TierFile(NamedTuple):
    """A file of a segment in a tier. Snapshot and epochs are those at the segment's end."""

    offset: int
    segment_id: str
    kind: FileKind


@lru_cache(maxsize=_REMEMBERED)
def segment_file_name(
    offset: int, kind: FileKind, suffix: Suffix = Suffix.LIVE, *, attempt: str | None = None
) -> str:
    """The name of a segment's file or of a snapshot: 20 digits, extension, suffix.

    ``attempt`` goes with ``.cleaned`` only: letters, digits, ``_`` and ``-``.

    Raises:
        ValueError: an offset below 0 or above 2^63 - 1, or parts that no file name has together.
    """
    if not 0 <= offset <= _MAX_I64:
        raise ValueError(f"offset {offset} is outside 0 to 2^63 - 1")
    name = f"{offset:020d}{kind}{'' if attempt is None else '.' + attempt}{suffix}"
    if classify(name) != FileName(kind, suffix, offset, attempt):
        raise ValueError(f"{name!r} is no name of a segment's file")
    return name


@lru_cache(maxsize=_REMEMBERED)
def classify(name: str) -> FileName:
    """Say what a file in a partition's folder is, by its name alone.

    Whatever Kafka would not have named so is foreign, also where Kafka's own parser would put up
    with it (``5.log``): it would not find the file again under the name that it makes of the
    number.
    """
    match = _SEGMENT_FILE.fullmatch(name)
    if match is not None:
        offset = int(match["offset"])
        kind = FileKind(match["kind"])
        suffix = Suffix(match["cleaned"] or match["other"] or "")
        if offset > _MAX_I64:
            return FOREIGN
        if kind is FileKind.SNAPSHOT and suffix not in (Suffix.LIVE, Suffix.DELETED):
            return FOREIGN
        return FileName(kind, suffix, offset, match["attempt"])
    for kind in (FileKind.LEADER_EPOCHS, FileKind.PARTITION_METADATA, FileKind.QUORUM_STATE):
        if name == kind.value:
            return FileName(kind)
        if name == kind.value + Suffix.TEMPORARY:
            return FileName(kind, Suffix.TEMPORARY)
    match = _METADATA_SNAPSHOT.fullmatch(name)
    if match is not None and int(match["offset"]) <= _MAX_I64:
        suffix = {None: Suffix.LIVE, ".deleted": Suffix.DELETED}.get(
            match["suffix"], Suffix.TEMPORARY
        )
        return FileName(FileKind.METADATA_SNAPSHOT, suffix, int(match["offset"]))
    match = _KEPT.fullmatch(name)
    if match is not None and int(match["offset"] or 0) <= _MAX_I64:
        suffix = Suffix.TEMPORARY if match["tmp"] else Suffix.LIVE
        if match["offset"] is None:
            return FileName(FileKind.KEPT_SECRET, suffix, attempt=match["attempt"])
        return FileName(FileKind.KEPT, suffix, int(match["offset"]), match["attempt"])
    return FOREIGN


def folder_name(partition: TopicPartition) -> str:
    """The name of a live partition's folder.

    Raises:
        ValueError: no topic can have that name, or the partition is out of range.
    """
    name = f"{partition.topic}-{partition.partition}"
    if decode_folder_name(name) != FolderName(partition):
        raise ValueError(f"{name!r} names no partition")
    return name


@lru_cache(maxsize=_REMEMBERED)
def decode_folder_name(name: str) -> FolderName | None:
    """Say which partition lies in a folder of a log root; None for a folder that holds none.

    The topic has 1 to 249 letters, digits, ``.``, ``_`` and ``-``; the partition is what follows
    the last ``-``.
    """
    match = _FOLDER.fullmatch(name)
    if match is None or match["topic"] in (".", "..") or int(match["partition"]) > _MAX_I32:
        return None
    return FolderName(
        TopicPartition(match["topic"], int(match["partition"])),
        FolderState(match["state"] or FolderState.LIVE),
    )


def live_partition(name: str) -> TopicPartition | None:
    """The partition whose folder has that name and that is nobody else's to deal with: it is not
    being deleted or moved, nor the cluster's metadata log.
    """
    found = decode_folder_name(name)
    if found is None or found.state is not FolderState.LIVE:
        return None
    return None if found.partition.topic == METADATA_TOPIC else found.partition


@lru_cache(maxsize=_REMEMBERED)
def decode_tier_folder(above: str, name: str) -> TierFolder | None:
    """The partition whose segments lie in a folder of a tier, by its name and that of the folder
    above; None: no such folder has these names.

    A folder of a log root, or of an archive, may be called so too, of a topic of such a name.
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
    """What a file in such a folder is; None: it is of no segment."""
    match = _TIER_FILE.fullmatch(name)
    if match is None or int(match["offset"]) > _MAX_I64:
        return None
    is_epochs = match["kind"] == ".leader_epoch_checkpoint"
    kind = FileKind.LEADER_EPOCHS if is_epochs else FileKind(match["kind"])
    return TierFile(int(match["offset"]), match["id"], kind)
