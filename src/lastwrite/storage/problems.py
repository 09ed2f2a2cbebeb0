"""Helpers to read files that may be damaged: a bounded buffer, and errors as ``Problem`` values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np

from lastwrite.errors import (
    CorruptLog,
    LogError,
    OutOfMemoryBudget,
    RemoteFailed,
    UnsupportedFormat,
)
from lastwrite.model.columns import ByteArray
from lastwrite.model.log import Problem, ProblemKind
from lastwrite.storage.reading import SegmentReader

RowT = TypeVar("RowT")
CHUNK_BYTES = 4 << 20
BATCH_LIMIT_BYTES = 256 << 20  # maximum size of a batch, stored or decompressed
DAMAGE_REMEDY = "restore this file from a replica or a backup"


class Window:
    """A buffer that moves along a file.

    It has at most one chunk, or one larger batch, in memory.
    """

    def __init__(
        self, reader: SegmentReader, size_bytes: int, limit_bytes: int = BATCH_LIMIT_BYTES
    ) -> None:
        self._reader = reader
        self._size = size_bytes
        self._limit = limit_bytes
        self._buffer: ByteArray = np.empty(min(CHUNK_BYTES, size_bytes), dtype=np.uint8)
        self._begin = self._end = 0

    def at(self, position: int, least: int) -> ByteArray:
        """The bytes from ``position`` on: at least ``least`` bytes, or fewer at the file's end.

        Valid until the next call.

        Raises:
            OutOfMemoryBudget: ``least`` is above the limit.
        """
        stop = min(position + least, self._size)
        if position < self._begin or stop > self._end:
            if stop - position > len(self._buffer):
                if stop - position > self._limit:
                    raise OutOfMemoryBudget(
                        f"the batch has {stop - position} bytes, more than the limit of "
                        f"{self._limit} in memory",
                        position,
                    )
                self._buffer = np.empty(stop - position, dtype=np.uint8)
            self._begin, self._end = position, min(position + len(self._buffer), self._size)
            self._reader.read_into(self._buffer[: self._end - position], position)
        return self._buffer[position - self._begin : self._end - self._begin]


def problem_of(
    error: LogError, path: str, shift: int = 0, remedy: str | None = DAMAGE_REMEDY
) -> Problem:
    """The problem that describes ``error``. Adds ``shift`` bytes to its position.

    ``remedy`` is used for damage if the error has no remedy.

    Raises:
        RemoteFailed: ``error`` itself, because it does not concern the data.
    """
    if isinstance(error, RemoteFailed):
        raise error
    kind = ProblemKind.UNSUPPORTED if isinstance(error, UnsupportedFormat) else ProblemKind.DAMAGED
    at = None if error.at is None else error.at + shift
    said = error.remedy or (remedy if kind is ProblemKind.DAMAGED else None)
    return Problem(kind, error.problem, error.path or path, at, said)


def damaged(
    message: str, path: str, position: int | None = None, remedy: str | None = DAMAGE_REMEDY
) -> Problem:
    """A problem of kind DAMAGED: invalid bytes, or files that do not match each other."""
    return Problem(ProblemKind.DAMAGED, message, path, position, remedy)


def recovered(
    message: str, path: str, position: int | None = None, remedy: str | None = None
) -> Problem:
    """A problem of kind RECOVERED: traces of a crash, which are not damage."""
    return Problem(ProblemKind.RECOVERED, message, path, position, remedy)


def error_of(problems: Sequence[Problem]) -> LogError | None:
    """The error for the first damage; without damage, for the first problem.

    None without problems.
    """
    if not problems:
        return None
    damage = [problem for problem in problems if problem.kind is ProblemKind.DAMAGED]
    first = (damage or problems)[0]
    more = f" (and {len(problems) - 1} more problems)" if len(problems) > 1 else ""
    kind = CorruptLog if damage else UnsupportedFormat
    return kind(first.message + more, first.position, first.path, first.remedy)


def limited(rows: Iterator[RowT], limit: int | None, problems: Sequence[Problem]) -> Iterator[RowT]:
    """At most ``limit`` rows.

    At the end, raises the error for ``problems``, to which ``rows`` adds while it is read.
    """
    count = 0
    if limit is None or limit > 0:
        for row in rows:
            yield row
            count += 1
            if count == limit:
                break
    error = error_of(problems)
    if error is not None:
        raise error
