"""Identify a single file of a log by its name, and check that it can be read."""

from __future__ import annotations

import os
from typing import NamedTuple

from lastwrite.errors import LogHeld, NotALog
from lastwrite.kafka.format import names
from lastwrite.kafka.format.names import FileName, KafkaFileKind
from lastwrite.kafka.store import links, lock, log_dir, partitions
from lastwrite.model.log import Segment, TopicPartition

_OFFSET_CHECKPOINTS = (
    names.CLEANER_OFFSETS,
    names.RECOVERY_POINTS,
    names.LOG_STARTS,
    names.HIGH_WATERMARKS,
)
_ROOT_FILES = (*_OFFSET_CHECKPOINTS, names.CLEAN_SHUTDOWN, names.META_PROPERTIES)


class SingleFile(NamedTuple):
    """A file. Its name determines its kind, and the folder's name determines its partition."""

    path: str
    name: FileName
    partition: TopicPartition | None
    root_file: str | None = None  # for a log root's file, its name without .tmp

    @property
    def is_offset_checkpoint(self) -> bool:
        return self.root_file in _OFFSET_CHECKPOINTS

    @property
    def base_offset(self) -> int:
        """The base offset in the file's name. 0 for a metadata snapshot, which has none."""
        return 0 if self.name.kind is KafkaFileKind.METADATA_SNAPSHOT else self.name.offset or 0

    @property
    def root(self) -> str:
        """The log root of the file, where a broker would have its lock."""
        folder = links.home_of(os.path.dirname(os.path.abspath(self.path)))
        return folder if self.partition is None else os.path.dirname(folder)


def identify(path: str) -> SingleFile:
    """Identify the file at ``path`` by its name and its folder's name.

    Raises:
        NotALog: no file of a log has such a name.
    """
    base = os.path.basename(path).removesuffix(".tmp")
    home = links.home_of(os.path.dirname(os.path.abspath(path)))
    over, above = os.path.basename(os.path.dirname(home)), os.path.basename(home)
    folder = names.decode_folder_name(above)
    found = SingleFile(
        path,
        names.classify(os.path.basename(path)),
        folder.partition if folder else None,
        base if base in _ROOT_FILES else None,
    )
    tier, file = (
        names.decode_tier_folder(over, above),
        names.decode_tier_file(os.path.basename(path)),
    )
    # In a folder with a number as its name, segments are in chunks.
    if file is not None and not above.isdigit():
        name = FileName(file.kind, offset=file.offset)
        found = SingleFile(path, name, tier.partition if tier else None)
    known = found.root_file is not None or not found.name.is_foreign
    if not known or found.name.kind in (
        KafkaFileKind.QUORUM_STATE,
        KafkaFileKind.KEPT,
        KafkaFileKind.KEPT_SECRET,
    ):
        raise NotALog(
            "the file name is not a name of a Kafka log's file",
            path=path,
            remedy="give a log root, a partition's folder, or a .log, .index, .timeindex, "
            f".txnindex, .snapshot, checkpoint or metadata file; {partitions.OTHERS}",
        )
    return found


def reject_beyond(file: SingleFile) -> None:
    """Check that no broker may be writing to a single file.

    Raises:
        LogHeld: the file belongs to the segment with the high watermark, or to a later segment.
    """
    if file.partition is not None and file.partition.topic == names.METADATA_TOPIC:
        reject_metadata(file.root)
    base = file.name.offset
    folder = os.path.dirname(os.path.abspath(file.path))
    if file.partition is None or base is None or lock.broker_of(file.root) is None:
        return
    log = log_dir.read_partition(folder)
    if base >= min((s.base_offset for s in log.segments[-1:]), default=0):
        raise LogHeld(
            "a broker has this file open and may be writing to it",
            path=file.path,
            remedy="give the partition's folder: then the partition is read up to its high "
            "watermark",
        )


def reject_metadata(root: str) -> None:
    """Check that no broker has the metadata log open.

    A metadata log cannot be read up to its high watermark, because no checkpoint contains it.

    Raises:
        LogHeld: a broker has the metadata log open.
    """
    broker = lock.broker_of(root)
    if broker is not None:
        raise broker


def segment_of(file: SingleFile) -> Segment:
    """A segment without a log, from a single ``.log`` file, whose name may have a suffix.

    Raises:
        NotALog: the file does not exist any more.
    """
    try:
        seen = os.stat(file.path)
    except OSError as error:
        raise NotALog(f"the file cannot be read: {error.strerror}", path=file.path) from error
    return Segment(
        base_offset=file.base_offset,
        path=file.path,
        size_bytes=seen.st_size,
        mtime_ns=seen.st_mtime_ns,
        largest_timestamp_ms=seen.st_mtime_ns // 1_000_000,
    )
