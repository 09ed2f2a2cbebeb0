"""The offset checkpoints of a log root: small text files, each read and replaced whole."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from types import MappingProxyType

from lastwrite.errors import CorruptLog, LogError, UnsupportedFormat
from lastwrite.kafka.format.names import (
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOG_STARTS,
    RECOVERY_POINTS,
)
from lastwrite.kafka.format.text import decode_offset_checkpoint, encode_offset_checkpoint
from lastwrite.kafka.store import lock
from lastwrite.model.log import TopicPartition
from lastwrite.storage import files
from lastwrite.storage.file_state import FileState

_BY_HAND = (
    "repair the file by hand: after the version and the number of entries, each line has a topic, "
    "a partition and an offset"
)
# A remedy must neither restore deleted records nor mark unreplicated records as replicated.
_REMEDIES = {
    CLEANER_OFFSETS: (
        f"{_BY_HAND}; or move the file out of the log root: the next round then compares each "
        "log from its start"
    ),
    HIGH_WATERMARKS: (
        f"{_BY_HAND}; or move the file out of the log root and start the broker, which writes a "
        "new one, before you compact"
    ),
    LOG_STARTS: (
        f"{_BY_HAND}; do not remove the file: without it, records deleted from the start of a "
        "log reappear"
    ),
}
_NONE: Mapping[TopicPartition, int] = MappingProxyType({})


def read_offsets(root: str, file: str) -> Mapping[TopicPartition, int]:
    """The entries of the checkpoint ``file`` in ``root``. Empty if there is no file.

    Raises:
        CorruptLog, UnsupportedFormat: the file is damaged. The error has its path and byte.
        LogError: the file cannot be read.
    """
    path = os.path.join(root, file)
    try:
        # Cached, because a root is read again for each of its many partitions.
        return _read_once(path, FileState.of(os.stat(path)))
    except FileNotFoundError:
        return _NONE
    except OSError as error:
        raise files.to_log_error(error, path, "read the checkpoint") from error


@functools.lru_cache(maxsize=8)
def _read_once(path: str, state: FileState) -> Mapping[TopicPartition, int]:
    return MappingProxyType(_read(path))


def _read(path: str) -> dict[TopicPartition, int]:
    try:
        with open(path, "rb") as file:
            content = file.read()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise files.to_log_error(error, path, "read the checkpoint") from error
    try:
        return decode_offset_checkpoint(content)
    except LogError as error:
        raise type(error)(
            error.problem, error.at, path, _REMEDIES.get(os.path.basename(path), _BY_HAND)
        ) from error


def recovery_point(root: str, name: TopicPartition) -> int:
    """The offset below which the broker has flushed the log. 0 if the file cannot be read."""
    try:
        return read_offsets(root, RECOVERY_POINTS).get(name, 0)
    except (CorruptLog, UnsupportedFormat):
        return 0


def write_offset(root: str, file: str, name: TopicPartition, offset: int | None) -> None:
    """Set or remove the checkpoint entry of a single partition atomically."""
    write_offsets(root, file, {name: offset})


def write_offsets(root: str, file: str, changes: Mapping[TopicPartition, int | None]) -> None:
    """Set the checkpoint entries of some partitions atomically. None removes an entry.

    The file is read and written whole, so pass many partitions in one call. In the cleaner's
    checkpoint, entries of partitions without a folder are dropped, as in Kafka.

    Raises:
        LogHeld: a broker has the root open.
        CorruptLog, UnsupportedFormat: the existing file is damaged.
        LogError: the file cannot be read or written.
    """
    with lock.root_turn(root):
        path = os.path.join(root, file)
        # Read without the cache: two versions within one tick of the clock may look alike.
        offsets = _read(path)
        if file == CLEANER_OFFSETS:
            there = _folders(root)
            offsets = {other: kept for other, kept in offsets.items() if str(other) in there}
        for name, offset in changes.items():
            if offset is None:
                offsets.pop(name, None)
            else:
                offsets[name] = offset
        like = files.owner_of(path, lock.siblings(root)).as_far_as_may()
        files.replace(path, encode_offset_checkpoint(offsets), like=like)
        _read_once.cache_clear()
        files.fsync_dir(root)


def _folders(root: str) -> set[str]:
    try:
        with os.scandir(root) as entries:
            return {entry.name for entry in entries if entry.is_dir()}
    except OSError as error:
        raise files.to_log_error(error, root, "list the log root") from error
