"""Reading of segment files, with proof that the file is still the one that was planned."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from lastwrite.errors import CommitConflict, LogError, OutOfMemoryBudget
from lastwrite.model.columns import ByteArray
from lastwrite.model.log import PartitionLog, Segment
from lastwrite.storage.files import to_log_error

# A folder that changed so shortly before the look may change again without its time telling.
SETTLED_NS = 50_000_000
RESTS_NS = 2_000_000_000

AGAIN = "nothing was changed; stop whatever writes here and run again"

TRIES = 3  # to read beside a broker, which exchanges files and deletes them
TRY_AGAIN = "run again when its cleaner rests; or read a copy, or stop the broker"

SMALL_LIMIT_BYTES = 256 << 20  # no side file of a log comes near

_AGAIN = "nothing was changed; stop whatever writes here and start again"


class SegmentReader:
    """One segment file, read by position into the caller's buffer.

    ``size_bytes`` and ``mtime_ns`` are what the plan saw; ``growing``: as
    ``Segment.growing``.

    Raises:
        CommitConflict: the file vanished or changed since.
    """

    def __init__(self, path: str, size_bytes: int, mtime_ns: int, growing: int = 0) -> None:
        self._path = path
        self._identity = (size_bytes, mtime_ns, growing)
        try:
            self._handle = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            raise CommitConflict(
                "the segment vanished while we worked", path=path, remedy=_AGAIN
            ) from None
        self.check_unchanged()

    def check_unchanged(self) -> None:
        """Compare the open file and the path with what was planned."""
        seen = os.fstat(self._handle)
        try:
            named = os.stat(self._path)
        except FileNotFoundError:
            raise CommitConflict(
                "the segment vanished while we worked", path=self._path, remedy=_AGAIN
            ) from None
        if not _is_as_seen(seen, *self._identity) or named.st_ino != seen.st_ino:
            raise CommitConflict(
                "the segment changed while we worked", path=self._path, remedy=_AGAIN
            )

    def read_into(self, target: ByteArray, position: int) -> None:
        """Fill ``target`` with the bytes from ``position`` on."""
        view = memoryview(target)
        while len(view):
            n = os.preadv(self._handle, [view], position)
            if n == 0:
                raise CommitConflict(
                    "the segment shrank while we worked", position, self._path, _AGAIN
                )
            view = view[n:]
            position += n

    def close(self) -> None:
        os.close(self._handle)

    def __enter__(self) -> SegmentReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def reader_of(segment: Segment) -> SegmentReader:
    """A reader of the segment's file.

    Raises:
        CommitConflict: the file vanished or changed since it was listed.
    """
    return SegmentReader(segment.path, segment.file_bytes, segment.mtime_ns, segment.growing)


def _is_as_seen(seen: os.stat_result, size_bytes: int, mtime_ns: int, growing: int) -> bool:
    if growing:
        return seen.st_ino == growing and seen.st_size >= size_bytes
    return (seen.st_size, seen.st_mtime_ns) == (size_bytes, mtime_ns)


def read_small(path: str) -> bytes:
    """The bytes of a side file.

    Raises:
        LogError: it cannot be read.
        OutOfMemoryBudget: it is far larger than any side file.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(SMALL_LIMIT_BYTES + 1)
    except FileNotFoundError as error:
        raise to_log_error(error, path, "read the file") from error
    except OSError as error:
        raise LogError(f"cannot be read: {error.strerror}", path=path) from error
    if len(data) > SMALL_LIMIT_BYTES:
        raise OutOfMemoryBudget(f"more than {SMALL_LIMIT_BYTES} bytes", path=path)
    return data


@contextmanager
def one_try(number: int, *, is_open: bool) -> Iterator[None]:
    """Read in this context: a conflict ends it, and is passed over where a broker has open what was
    read and ``number``, which counts from 1, is not the last try.

    Raises:
        CommitConflict: of a log that nobody has open, or of the last try.
    """
    try:
        yield
    except CommitConflict as error:
        if not is_open:
            raise
        if number == TRIES:
            raise CommitConflict(
                f"{error.problem}, {TRIES} times one after the other, by a broker that has it open",
                error.at,
                error.path,
                TRY_AGAIN,
            ) from error


def check_segments(log: PartitionLog) -> None:
    """Hold the segments against what was read of them.

    Raises:
        CommitConflict: one changed or vanished.
    """
    for segment in log.segments:
        try:
            seen = os.stat(segment.path)
        except FileNotFoundError:
            raise CommitConflict(
                "the segment vanished while we worked", path=segment.path, remedy=AGAIN
            ) from None
        except OSError as error:
            raise to_log_error(error, segment.path, "look at the segment") from error
        if not _is_as_seen(seen, segment.file_bytes, segment.mtime_ns, segment.growing):
            raise CommitConflict(
                "the segment changed while we worked", path=segment.path, remedy=AGAIN
            )
