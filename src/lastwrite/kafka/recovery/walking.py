"""Walk a segment from batch header to batch header to find its end.

Nothing is decompressed and no CRC is checked, because the scan does both later.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np

from lastwrite.errors import CorruptLog, LogError, TruncatedLog
from lastwrite.kafka.format.batch import decode_batch_header
from lastwrite.kafka.format.batch_layout import BATCH_HEADER
from lastwrite.kafka.format.index import OffsetIndex, decode_offset_index
from lastwrite.storage.files import to_log_error
from lastwrite.storage.reading import SegmentReader

NO_END = (1 << 63) - 1
_READ_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Walk:
    """The result of a walk from a position to the end of a segment."""

    end_offset: int  # offset after the last complete batch, or the base offset
    end: int  # position after the last complete batch
    largest_timestamp_ms: int  # largest timestamp of the batches walked; -1 if none
    error: LogError | None = None  # a torn tail or damage, if the walk ended there
    # whether the walk began at byte 0 and no batch has a producer
    is_bare: bool = False


class OpenFile:
    """A file that is opened at the first read and stays open.

    ``read_head`` caches the bytes that it reads, so that a walk from byte 0 need not read them
    again.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._handle = -1
        self._head = b""

    def read(self, count: int, at: int) -> bytes:
        """Read at most ``count`` bytes at position ``at``.

        Raises:
            OSError: the file cannot be opened or read.
        """
        if at + count <= len(self._head):
            return self._head[at : at + count]
        if self._handle < 0:
            self._handle = os.open(self._path, os.O_RDONLY)
        return os.pread(self._handle, count, at)

    def read_head(self, size_bytes: int, *, is_walked: bool) -> bytes:
        """Read the first batch header of a file of ``size_bytes``.

        Reads ahead if ``is_walked``, because the caller will walk the file from byte 0.

        Raises:
            OSError: as ``read``.
        """
        count = min(_READ_BYTES, size_bytes) if is_walked else BATCH_HEADER.size
        self._head = self.read(count, 0)
        return self._head[: BATCH_HEADER.size]

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)

    def __enter__(self) -> OpenFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def walk(
    path: str,
    size_bytes: int,
    base_offset: int,
    start: int = 0,
    below: int = NO_END,
    reader: SegmentReader | OpenFile | None = None,
) -> Walk:
    """Walk the batches from byte ``start`` to the end of the file.

    Stops early before a partial or damaged batch, and before a batch with a last offset of
    ``below`` or more. Pass ``reader`` if the segment is not a local file, or is already open.
    """
    end_offset, largest, at, is_bare = base_offset, -1, start, start == 0
    with _bytes_of(path, reader) as read:
        held, held_at = b"", start
        while at < size_bytes:
            if at + BATCH_HEADER.size > held_at + len(held):
                held, held_at = read(min(_READ_BYTES, size_bytes - at), at), at
            try:
                header = decode_batch_header(held, at - held_at)
                next_offset, batch_bytes = header.next_offset, header.size_bytes
                if next_offset > below:
                    break
                if next_offset <= end_offset:
                    raise CorruptLog(
                        f"the batch ends at offset {next_offset - 1}, not after the batch before "
                        "it",
                        at - held_at,
                    )
                if at + batch_bytes > size_bytes:
                    raise TruncatedLog(
                        f"the batch is truncated to {size_bytes - at} of {batch_bytes} bytes",
                        at - held_at,
                    )
            except LogError as error:
                return Walk(end_offset, at, largest, error.located(path, held_at), is_bare)
            largest = max(largest, header.max_timestamp_ms)
            is_bare = is_bare and header.producer_id < 0
            end_offset, at = next_offset, at + batch_bytes
    return Walk(end_offset, at, largest, is_bare=is_bare)


@contextmanager
def _bytes_of(
    path: str, reader: SegmentReader | OpenFile | None
) -> Iterator[Callable[[int, int], bytes]]:
    """A function that reads a number of bytes of the segment from a position on."""
    if isinstance(reader, OpenFile):
        try:
            yield reader.read
        except OSError as error:
            raise to_log_error(error, path, "read the segment") from error
        return
    if reader is not None:

        def read(count: int, at: int) -> bytes:
            target = np.empty(count, dtype=np.uint8)
            reader.read_into(target, at)
            return target.tobytes()

        yield read
        return
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise to_log_error(error, path, "read the segment") from error
    try:
        yield partial(os.pread, handle)
    finally:
        os.close(handle)


def walk_tail(
    path: str,
    size_bytes: int,
    index: OffsetIndex,
    below: int = NO_END,
    reader: SegmentReader | OpenFile | None = None,
) -> Walk:
    """Walk a segment from one of its last two index entries, or else from byte 0.

    An index entry is used only if it matches the batch at its position. ``below`` and ``reader``
    are passed to ``walk``.
    """
    last = int(np.searchsorted(index.offsets, below)) - 1 if len(index) else -1
    for row in range(last, max(-1, last - 2), -1):
        position, offset = int(index.positions[row]), int(index.offsets[row])
        if position >= size_bytes:
            continue
        found = walk(path, size_bytes, index.base_offset, position, below, reader)
        if found.end > position and _first_next_offset(path, position, reader) == offset + 1:
            return found
    return walk(path, size_bytes, index.base_offset, 0, below, reader)


def _first_next_offset(path: str, position: int, reader: SegmentReader | OpenFile | None) -> int:
    with _bytes_of(path, reader) as read:
        return decode_batch_header(read(BATCH_HEADER.size, position), 0).next_offset


def end_offset_of(log_path: str, index_path: str, base_offset: int) -> int:
    """The offset after a segment's last complete batch, or its base offset.

    If the index is missing or damaged, the result is the same, but the walk takes longer.
    """
    try:
        size_bytes = os.stat(log_path).st_size
    except OSError as error:
        raise to_log_error(error, log_path, "read the segment's attributes") from error
    try:
        with OpenFile(index_path) as file:
            data = file.read(os.stat(index_path).st_size, 0)
        index = decode_offset_index(data, base_offset)
    except (FileNotFoundError, CorruptLog):
        index = decode_offset_index(b"", base_offset)
    except OSError as error:
        raise to_log_error(error, index_path, "read the index") from error
    with OpenFile(log_path) as file:
        return walk_tail(log_path, size_bytes, index, reader=file).end_offset
