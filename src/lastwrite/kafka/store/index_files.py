"""Paths and contents of the indexes and snapshots beside a segment."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol, TypeVar

from lastwrite.errors import LogError, located
from lastwrite.kafka.format.index import Int64s, decode_offset_index, decode_time_index
from lastwrite.kafka.format.names import KafkaFileKind, Suffix, classify, segment_file_name
from lastwrite.kafka.producers.history import decode_aborted
from lastwrite.kafka.store import archived, tiered
from lastwrite.kafka.store.partitions import scan
from lastwrite.model.log import AbortedTransaction
from lastwrite.storage.files import to_log_error
from lastwrite.storage.objects.address import is_address
from lastwrite.storage.reading import exists, read_small

IndexT = TypeVar("IndexT")

_READ_BYTES = 16 << 10


def read_file(path: str) -> bytes:
    if is_address(path) or "#" in path:
        return read_small(path)
    try:
        return _read_file(path)
    except OSError as error:
        raise to_log_error(error, path, "read the file") from error


def _read_file(path: str) -> bytes:
    """The bytes of a file. Uses fewer system calls than ``open``."""
    handle = os.open(path, os.O_RDONLY)
    try:
        parts = [os.read(handle, _READ_BYTES)]
        while len(parts[-1]) == _READ_BYTES:  # a short read occurs only at the end of a file
            parts.append(os.read(handle, _READ_BYTES))
    finally:
        os.close(handle)
    return b"".join(parts)


def segment_path(folder: str, base_offset: int) -> str:
    """The path of the segment with this base offset, in a folder without an unfinished swap."""
    return os.path.join(folder, segment_file_name(base_offset, KafkaFileKind.LOG))


def index_path(log_path: str) -> str:
    """The path of a segment's offset index. The segment's name may end in ``.swap``."""
    return _beside(log_path, KafkaFileKind.INDEX)


def time_index_path(log_path: str) -> str:
    """The path of a segment's time index. The segment's name may end in ``.swap``."""
    return _beside(log_path, KafkaFileKind.TIME_INDEX)


def transaction_index_path(log_path: str) -> str:
    """The path of a segment's transaction index.

    The name of the segment or of the index may end in ``.swap``.
    """
    path = _beside(log_path, KafkaFileKind.TRANSACTION_INDEX)
    swap = path + Suffix.SWAP
    return (
        swap if not is_address(path) and not os.path.exists(path) and os.path.exists(swap) else path
    )


def _beside(log_path: str, kind: KafkaFileKind) -> str:
    if log_path.endswith(KafkaFileKind.LOG):  # a tier's names match too, which contain an id
        return log_path.removesuffix(KafkaFileKind.LOG) + kind
    folder, name = os.path.split(log_path)
    return os.path.join(folder, name[:20] + kind + name[20:].removeprefix(KafkaFileKind.LOG))


class IndexedRange(Protocol):
    """A segment, or a piece of one, whose indexes can be read."""

    @property
    def path(self) -> str: ...
    @property
    def is_indexed(self) -> bool: ...


def read_offset_index(source: IndexedRange) -> tuple[Int64s, Int64s]:
    """The entries of a segment's offset index: absolute offsets and positions, row for row.

    Empty if the index is missing, or unusable after a crash.

    Raises:
        CorruptLog: the entries contradict each other.
    """
    index = _read_index(source, index_path(source.path), decode_offset_index)
    return index.offsets, index.positions


def read_time_index(source: IndexedRange) -> tuple[Int64s, Int64s]:
    """The entries of a segment's time index: timestamps in ms and absolute offsets, row for row.

    Empty if the index is missing, or unusable after a crash.

    Raises:
        CorruptLog: the entries contradict each other.
    """
    index = _read_index(source, time_index_path(source.path), decode_time_index)
    return index.timestamps_ms, index.offsets


def read_aborted_of(log_path: str) -> tuple[AbortedTransaction, ...]:
    """The entries of a segment's transaction index, by last offset. Empty if there is no file.

    Raises:
        CorruptLog: an entry has an unknown version, or the offsets of markers are below the segment
            or do not increase.
    """
    path = transaction_index_path(log_path)
    with located(path):
        return decode_aborted(_read_if_there(path), _base_of(log_path))


def snapshots_of(folder: str) -> list[tuple[int, str]]:
    """The offset and path of each producer snapshot, in the order of offsets."""
    if archived.is_archived(folder):
        return archived.snapshots_of(folder)
    if tiered.is_tier(folder):
        return list(tiered.cached_tier(folder).snapshots)
    return sorted(
        (int(entry.name[:20]), entry.path)
        for entry in scan(folder)
        if classify(entry.name)[:2] == (KafkaFileKind.SNAPSHOT, Suffix.LIVE)
    )


def side_file(folder: str, name: str) -> bytes | None:
    """The content of a partition's small file with that name. None if there is no such file.

    Raises:
        LogError: the file cannot be read.
    """
    if archived.is_archived(folder):
        return archived.side_file(folder, name)
    if tiered.is_tier(folder):
        return tiered.cached_tier(folder).side_file(name)
    path = os.path.join(folder, name)
    try:
        return _read_file(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise LogError(f"the file cannot be read: {error.strerror}", path=path) from error


def _read_index(source: IndexedRange, path: str, decode: Callable[[bytes, int], IndexT]) -> IndexT:
    with located(path):
        return decode(_read_if_there(path) if source.is_indexed else b"", _base_of(source.path))


def _base_of(log_path: str) -> int:
    return int(os.path.basename(log_path)[:20])


def _read_if_there(path: str) -> bytes:
    if is_address(path):
        return read_small(path) if exists(path) else b""
    try:
        return _read_file(path)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise to_log_error(error, path, "read the file") from error
