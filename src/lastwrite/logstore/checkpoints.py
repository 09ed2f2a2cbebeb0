"""The offset checkpoints of a log root: a small text file each, read whole and replaced whole."""

from __future__ import annotations

import functools
import os

from lastwrite.errors import LogError
from lastwrite.formats.kafka.names import CLEANER_OFFSETS, folder_name
from lastwrite.formats.kafka.text import decode_offset_checkpoint, encode_offset_checkpoint
from lastwrite.logstore import files
from lastwrite.model.log import TopicPartition

_REMEDY = "delete the file or mend it by hand: a broker would not start with it either"


def read_offsets(root: str, file: str) -> dict[TopicPartition, int]:
    """The entries of the checkpoint ``file`` in ``root``; none where there is no file.

    Raises:
        CorruptLog, UnsupportedFormat: the file is damaged, with its path and byte.
        LogError: it cannot be read.
    """
    path = os.path.join(root, file)
    try:
        seen = os.stat(path)
        # A root of many partitions is asked once for each of them.
        return dict(_read(path, seen.st_mtime_ns, seen.st_size, seen.st_ino))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise files.to_log_error(error, path, "read the checkpoint") from error


@functools.lru_cache(maxsize=8)
def _read(path: str, mtime_ns: int, size_bytes: int, inode: int) -> dict[TopicPartition, int]:
    with open(path, "rb") as file:
        content = file.read()
    try:
        return decode_offset_checkpoint(content)
    except LogError as error:
        raise type(error)(error.problem, error.at, path, _REMEDY) from error


def write_offset(root: str, file: str, name: TopicPartition, offset: int) -> None:
    """Set one partition's entry, atomically; the others stay.

    Of the cleaner's checkpoint, entries of partitions whose folders are gone are left out, as Kafka does.
    """
    offsets = read_offsets(root, file)
    if file == CLEANER_OFFSETS:
        offsets = {
            other: kept for other, kept in offsets.items() if os.path.isdir(os.path.join(root, folder_name(other)))
        }
    offsets[name] = offset
    path = os.path.join(root, file)
    files.write(path + ".tmp", encode_offset_checkpoint(offsets))
    files.rename(path + ".tmp", path)
    files.fsync_dir(root)
