"""Reading of segment files, with proof that the file is still the one that was planned."""

from __future__ import annotations

import os
from types import TracebackType

from lastwrite.errors import CommitConflict
from lastwrite.model.columns import ByteArray

_AGAIN = "nothing was changed; stop whatever writes here and start again"


class SegmentReader:
    """One segment file, read by position into the caller's buffer.

    ``size_bytes`` and ``mtime_ns`` are what the plan saw.

    Raises:
        CommitConflict: the file vanished or changed since.
    """

    def __init__(self, path: str, size_bytes: int, mtime_ns: int) -> None:
        self._path = path
        self._identity = (size_bytes, mtime_ns)
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
        if (seen.st_size, seen.st_mtime_ns) != self._identity or named.st_ino != seen.st_ino:
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
