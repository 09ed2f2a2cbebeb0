"""A new file that is written from its begin to its end, and that nobody reads soon.

What a round writes would push out of the page cache what consumers read, and each cached page costs
a processor more than the disk needs for its bytes: up to a second and a half a GiB on a virtual
machine, whose host has to give the page first. So all but the first bytes of a large file go past
the page cache (``O_DIRECT``), from some of four buffers while another is filled::

    0             4 MiB                           n · 4096       end
    │ page cache    │ past it, 1 MiB after another   │ page cache │

Where the system or the file system knows no such way, and where a file is smaller, everything goes
through the page cache, and the disk is told to begin every 8 MiB and when the file is closed, so
that the sync of many files finds most of its work done.

Source: Linux man-pages open(2), ``O_DIRECT``. Figures: docs/decisions/where-the-time-goes.md.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import weakref
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait

from lastwrite.storage import files
from lastwrite.storage.ownership import Ownership

DIRECT_FROM_BYTES = 4 << 20  # of less the sync has to wait for the disk either way
BUFFER_BYTES = 1 << 20
_BUFFERS = 4  # about what is left of a chunk, so that the next is worked at while they are written
_WRITEBACK_BYTES = 8 << 20
_WRITEBACK_AT_END_BYTES = 256 << 10  # of a smaller file the sync does it
_ALIGNMENT = 4096  # of place and size: no disk wants more
_DIRECT = getattr(os, "O_DIRECT", 0)  # macOS has none
_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
_NO_DIRECT = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP}


class NewFile:
    """A file of ``files.create``, and where its next byte goes.

    ``is_read_soon``: all of it goes through the page cache. ``continues``: it was closed, and is
    written on at its end. Nothing is synced. The caller passes the fault points.

    Raises (every method):
        OSError: what the system refused, perhaps of bytes that were given before.
    """

    def __init__(
        self,
        path: str,
        like: Ownership | None,
        *,
        is_read_soon: bool = False,
        continues: bool = False,
    ) -> None:
        if continues:
            self._file = open(path, "r+b", buffering=0)
            self._size = self._file.seek(0, os.SEEK_END)
        else:
            self._file = files.create(path, like)
            self._size = 0
        self._begun = self._size  # up to here the disk was told to write
        self._may_be_direct = bool(_DIRECT) and not is_read_soon
        self._direct: _DirectWriter | None = None

    def append(self, data: memoryview) -> None:
        """Write at the end; ``data``, of bytes, are the caller's again when it returns."""
        self._size += len(data)
        if self._may_be_direct and self._direct is None and self._size > DIRECT_FROM_BYTES:
            data = self._begin_direct(data)
        if self._direct is not None:
            self._direct.append(data)
            return
        self._write(data)
        if self._size - self._begun >= _WRITEBACK_BYTES:
            self._start_writeback(self._size)

    def close(self) -> None:
        """Write what is left, and close the file."""
        try:
            if self._direct is not None:
                self._direct.close()
            elif self._size - self._begun >= _WRITEBACK_AT_END_BYTES:
                self._start_writeback(self._size)
        finally:
            self._file.close()

    def abandon(self) -> None:
        """Close the file, whatever has become of its bytes."""
        with contextlib.suppress(OSError):
            self.close()

    def _write(self, data: memoryview) -> None:
        while len(data):
            data = data[self._file.write(data) :]

    def _start_writeback(self, end: int) -> None:
        files.start_writeback(self._file.fileno(), self._begun, end - self._begun)
        self._begun = end

    def _begin_direct(self, data: memoryview) -> memoryview:
        """Go past the page cache from the next place on where one may; what of ``data`` lies behind
        it. Nothing is done where another file of this process has the buffers.
        """
        place = self._size - len(data)
        first = -place % _ALIGNMENT
        buffers = _take_buffers() if first <= len(data) else None
        if buffers is None:
            return data
        try:
            self._write(data[:first])
            self._start_writeback(place + first)
            _set_direct(self._file.fileno(), True)
            self._direct = _DirectWriter(self._file.fileno(), place + first, buffers)
        except OSError as error:
            _give_back(buffers)
            if error.errno not in _NO_DIRECT:
                raise
            self._may_be_direct = False
        return data[first:]


class _DirectWriter:
    """Writes a file's bytes from ``place`` on past the page cache, a buffer at a time."""

    def __init__(self, handle: int, place: int, buffers: list[mmap.mmap]) -> None:
        # The thread's own: it closes it behind the last write, however the caller ends.
        self._handle = os.dup(handle)
        self._place = place  # of the first byte of the buffer that is filled
        self._filled = 0
        self._buffers = buffers  # the one that is filled, then those that are written, in order
        self._going: deque[Future[None]] = deque()  # the writes of these
        self._end = weakref.finalize(self, _end_later, self._handle, buffers)
        self._end.atexit = False

    def append(self, data: memoryview) -> None:
        while len(data):
            taken = data[: BUFFER_BYTES - self._filled]
            self._buffers[0][self._filled : self._filled + len(taken)] = taken
            self._filled += len(taken)
            data = data[len(taken) :]
            if self._filled == BUFFER_BYTES:
                full = self._buffers.pop(0)
                self._buffers.append(full)
                self._going.append(
                    _thread().submit(_write_at, self._handle, full, BUFFER_BYTES, self._place)
                )
                self._place += BUFFER_BYTES
                self._filled = 0
                if len(self._going) == len(self._buffers):
                    self._wait()

    def close(self) -> None:
        """Write what is left, through the page cache."""
        try:
            while self._going:
                self._wait()
            _set_direct(self._handle, False)
            _write_at(self._handle, self._buffers[0], self._filled, self._place)
        finally:
            self._end()

    def _wait(self) -> None:
        """Until the next write has ended."""
        wait([self._going[0]])  # Ctrl-C may end it: then the write still goes on
        self._going.popleft().result()


def _set_direct(handle: int, on: bool) -> None:
    flags = fcntl.fcntl(handle, fcntl.F_GETFL)
    fcntl.fcntl(handle, fcntl.F_SETFL, flags | _DIRECT if on else flags & ~_DIRECT)


def _is_direct(handle: int) -> bool:
    return bool(fcntl.fcntl(handle, fcntl.F_GETFL) & _DIRECT)


def _write_at(handle: int, buffer: mmap.mmap, size: int, place: int) -> None:
    """Write the first ``size`` bytes of a buffer, through the page cache where the file system does
    it no other way, or has stopped amid a block.
    """
    with memoryview(buffer) as content:
        done = 0
        while done < size:
            try:
                done += os.pwrite(handle, content[done:size], place + done)
            except OSError as error:
                if error.errno not in _NO_DIRECT or not _is_direct(handle):
                    raise
                _set_direct(handle, False)


# Of this process: buffers for one file, since a task writes one large file at a time; and a thread.
_spare: list[list[mmap.mmap]] | None = None
_pool: ThreadPoolExecutor | None = None


def _take_buffers() -> list[mmap.mmap] | None:
    global _spare
    if _spare is None:
        # private: by the default a fork would write into its parent's
        _spare = [[mmap.mmap(-1, BUFFER_BYTES, flags=_PRIVATE) for _ in range(_BUFFERS)]]
    with contextlib.suppress(IndexError):
        return _spare.pop()
    return None


def _give_back(buffers: list[mmap.mmap]) -> None:
    if _spare is not None:
        _spare.append(buffers)


def _thread() -> ThreadPoolExecutor:
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(1, thread_name_prefix="lastwrite-writing")
    return _pool


def _end_later(handle: int, buffers: list[mmap.mmap]) -> None:
    """Close the handle and give the buffers back, behind the last write of theirs."""
    _thread().submit(_end, handle, buffers)


def _end(handle: int, buffers: list[mmap.mmap]) -> None:
    os.close(handle)
    _give_back(buffers)


def _forget() -> None:
    """In a fork no such thread runs, and a file that was being written is the parent's."""
    global _spare, _pool
    _spare = _pool = None


os.register_at_fork(after_in_child=_forget)
