"""Read a segment from front to back in one process, past whatever is damaged, in bounded memory.

``compact`` stops at the first contradiction; a reader who wants to know what is left goes on where it can: a batch
that is damaged inside is passed by its length, a segment whose framing is lost is left for the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np

from lastwrite.errors import CorruptLog, LogError, OutOfMemoryBudget, UnsupportedFormat
from lastwrite.formats.kafka.batch import (
    LENGTH_END,
    SHORTEST_ENTRY_BYTES,
    BatchHeader,
    decode_batch_header,
)
from lastwrite.logstore.reading import SegmentReader
from lastwrite.model.columns import ByteArray
from lastwrite.model.log import Problem, ProblemKind, Segment

RowT = TypeVar("RowT")

CHUNK_BYTES = 4 << 20
BATCH_LIMIT_BYTES = 256 << 20  # of one batch, as it lies on disk and decompressed

TORN_REMEDY = "cut the file here, or let a broker do so: what follows was never acknowledged whole"
DAMAGE_REMEDY = "restore this file from a replica or a backup"

_FRAME_BYTES = 17  # offset, size, …, magic: the same in every format


class Window:
    """A view of a growing part of a file, never more than a chunk or one batch of it."""

    def __init__(
        self, reader: SegmentReader, size_bytes: int, limit_bytes: int = BATCH_LIMIT_BYTES
    ) -> None:
        self._reader = reader
        self._size = size_bytes
        self._limit = limit_bytes
        self._buffer: ByteArray = np.empty(min(CHUNK_BYTES, size_bytes), dtype=np.uint8)
        self._begin = self._end = 0

    def at(self, position: int, least: int) -> ByteArray:
        """The bytes from ``position`` on: ``least`` of them or more, fewer only at the file's end.

        Valid until the next call.

        Raises:
            OutOfMemoryBudget: ``least`` is above the limit.
        """
        stop = min(position + least, self._size)
        if position < self._begin or stop > self._end:
            if stop - position > len(self._buffer):
                if stop - position > self._limit:
                    raise OutOfMemoryBudget(
                        f"a batch of {stop - position} bytes is larger than the {self._limit} held at once",
                        position,
                    )
                self._buffer = np.empty(stop - position, dtype=np.uint8)
            self._begin, self._end = position, min(position + len(self._buffer), self._size)
            self._reader.read_into(self._buffer[: self._end - position], position)
        return self._buffer[position - self._begin : self._end - self._begin]


def problem_of(error: LogError, path: str, shift: int = 0) -> Problem:
    """An error as a value, its position moved by ``shift``."""
    kind = ProblemKind.UNSUPPORTED if isinstance(error, UnsupportedFormat) else ProblemKind.DAMAGED
    at = None if error.at is None else error.at + shift
    remedy = error.remedy or (DAMAGE_REMEDY if kind is ProblemKind.DAMAGED else None)
    return Problem(kind, error.problem, error.path or path, at, remedy)


def limited(rows: Iterator[RowT], limit: int | None, problems: Sequence[Problem]) -> Iterator[RowT]:
    """At most ``limit`` rows; at their end the first of the ``problems`` that were met meanwhile, raised."""
    count = 0
    if limit is None or limit > 0:
        for row in rows:
            yield row
            count += 1
            if count == limit:
                break
    if problems:
        damage = [problem for problem in problems if problem.kind is ProblemKind.DAMAGED]
        first = (damage or problems)[0]
        more = f" (and {len(problems) - 1} more problems)" if len(problems) > 1 else ""
        kind = CorruptLog if damage else UnsupportedFormat
        raise kind(first.message + more, first.position, first.path, first.remedy)


def torn_tail(path: str, position: int, left: int, wanted: int) -> Problem:
    """The problem of a file that ends inside a batch."""
    announced = f" of a batch of {wanted}" if wanted else ", too few for a batch"
    return Problem(
        ProblemKind.DAMAGED,
        f"torn tail: the file ends after {left} bytes{announced}",
        path,
        position,
        TORN_REMEDY,
    )


def whole_batches(
    segment: Segment,
    note: Callable[[Problem], None],
    start: int = 0,
    limit_bytes: int = BATCH_LIMIT_BYTES,
) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """The batches of ``segment`` from byte ``start`` on, each with its position and its bytes, not yet checked.

    A batch's bytes are valid until the next is asked for. Problems of framing and order go to ``note``. What an entry
    of magic 0 or 1 says of itself is its header here (see ``decode_batch_header``).
    """
    path, size = segment.path, segment.size_bytes
    position, floor = start, segment.base_offset
    with SegmentReader(path, segment.file_bytes, segment.mtime_ns) as reader:
        window = Window(reader, size, limit_bytes)
        while position < size:
            data = window.at(position, 61)
            if len(data) < _FRAME_BYTES:
                note(torn_tail(path, position, len(data), 0))
                return
            try:
                header = decode_batch_header(data, 0)
            except CorruptLog as error:
                if 0 < size - position < frame_bytes(data):
                    note(torn_tail(path, position, size - position, frame_bytes(data)))
                else:
                    note(problem_of(error, path, position))
                return
            if header.size_bytes > size - position:
                note(torn_tail(path, position, size - position, header.size_bytes))
                return
            if header.base_offset < floor:
                wrong = f"batch at offset {header.base_offset}, where {floor} or more should follow"
                note(problem_of(CorruptLog(wrong, position), path))
                return
            try:
                data = window.at(position, header.size_bytes)
            except OutOfMemoryBudget as too_large:
                note(problem_of(too_large, path))
            else:
                yield position, header, memoryview(data)[: header.size_bytes]
            floor = header.next_offset
            position += header.size_bytes


def frame_bytes(data: ByteArray) -> int:
    """The size of the entry at the begin of ``data``, of any magic, or 0 where it announces none."""
    length = int.from_bytes(data[8:12].tobytes(), "big", signed=True)
    return length + LENGTH_END if length >= SHORTEST_ENTRY_BYTES else 0
