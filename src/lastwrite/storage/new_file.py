"""Write a new file that is not read soon, from start to end.

Pages of the file would evict pages that consumers read from the page cache. Caching a page also
costs more processor time than the disk needs for its bytes: up to 1.5 s per GiB on a virtual
machine, whose host has to provide the page first. All but the first bytes of a large file therefore
bypass the page cache (``O_DIRECT``). One of four buffers is filled while others are written::

    0             4 MiB                           n · 4096       end
    │ page cache    │ direct, 1 MiB after another    │ page cache │

Smaller files, and all files on systems without ``O_DIRECT``, use the page cache. Their writeback is
started every 8 MiB and when the file is closed, so that a sync of many files has little left to do.

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

# smaller files use the page cache only; their sync waits for the disk anyway
DIRECT_FROM_BYTES = 4 << 20
BUFFER_BYTES = 1 << 20
# Four buffers contain about the output of one chunk, which is written while the next chunk is
# processed.
_BUFFERS = 4
_WRITEBACK_BYTES = 8 << 20
# least bytes for which writeback starts at the file's end; the sync writes a smaller remainder
_WRITEBACK_AT_END_BYTES = 256 << 10
_ALIGNMENT = 4096  # alignment in bytes of positions and sizes; sufficient for any disk
_DIRECT = getattr(os, "O_DIRECT", 0)  # macOS has none
_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
_NO_DIRECT = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP}


class NewFile:
    """A new file that is written from start to end.

    With ``is_read_soon``, all writes use the page cache. With ``continues``, the file exists and is
    appended to. Writes are not fault points (see ``storage.files``); the caller adds fault points.

    Raises (every method):
        OSError: a write failed, possibly a write of bytes from an earlier call.
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
        self._writeback_end = self._size  # position up to which writeback was started
        self._may_be_direct = bool(_DIRECT) and not is_read_soon
        self._direct: _DirectWriter | None = None

    def append(self, data: memoryview) -> None:
        """Write the bytes ``data`` at the end. The caller may reuse their memory afterwards."""
        self._size += len(data)
        if self._may_be_direct and self._direct is None and self._size > DIRECT_FROM_BYTES:
            data = self._begin_direct(data)
        if self._direct is not None:
            self._direct.append(data)
            return
        self._write(data)
        if self._size - self._writeback_end >= _WRITEBACK_BYTES:
            self._start_writeback(self._size)

    def close(self) -> None:
        """Write the buffered bytes, and close the file."""
        try:
            if self._direct is not None:
                self._direct.close()
            elif self._size - self._writeback_end >= _WRITEBACK_AT_END_BYTES:
                self._start_writeback(self._size)
        finally:
            self._file.close()

    def abandon(self) -> None:
        """Close the file after a failure, ignoring errors."""
        with contextlib.suppress(OSError):
            self.close()

    def _write(self, data: memoryview) -> None:
        while len(data):
            data = data[self._file.write(data) :]

    def _start_writeback(self, end: int) -> None:
        files.start_writeback(self._file.fileno(), self._writeback_end, end - self._writeback_end)
        self._writeback_end = end

    def _begin_direct(self, data: memoryview) -> memoryview:
        """Write up to the next aligned position, then switch to direct writes.

        Returns the unwritten data. The page cache is used as long as another file of this process
        uses the buffers.
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
    """Writes a file without the page cache, from byte ``place`` on, one buffer at a time."""

    def __init__(self, handle: int, place: int, buffers: list[mmap.mmap]) -> None:
        # A separate handle: the writing thread closes it after the last write, even if the caller
        # fails.
        self._handle = os.dup(handle)
        self._place = place  # file position of the buffer being filled
        self._filled = 0
        self._buffers = buffers  # the buffer being filled, then the buffers being written, in order
        self._pending: deque[Future[None]] = deque()  # pending writes of the buffers
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
                self._pending.append(
                    _thread().submit(_write_at, self._handle, full, BUFFER_BYTES, self._place)
                )
                self._place += BUFFER_BYTES
                self._filled = 0
                if len(self._pending) == len(self._buffers):
                    self._wait()

    def close(self) -> None:
        """Write the last, partial buffer through the page cache, and close the file."""
        try:
            while self._pending:
                self._wait()
            _set_direct(self._handle, False)
            _write_at(self._handle, self._buffers[0], self._filled, self._place)
        finally:
            self._end()

    def _wait(self) -> None:
        """Wait until the oldest pending write has ended."""
        wait([self._pending[0]])  # Ctrl-C interrupts only the wait
        self._pending.popleft().result()


def _set_direct(handle: int, on: bool) -> None:
    flags = fcntl.fcntl(handle, fcntl.F_GETFL)
    fcntl.fcntl(handle, fcntl.F_SETFL, flags | _DIRECT if on else flags & ~_DIRECT)


def _is_direct(handle: int) -> bool:
    return bool(fcntl.fcntl(handle, fcntl.F_GETFL) & _DIRECT)


def _write_at(handle: int, buffer: mmap.mmap, size: int, place: int) -> None:
    """Write the first ``size`` bytes of a buffer to the file.

    Uses the page cache if a direct write fails, for example after a short write that ended inside a
    block.
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


# One thread and buffers for one file are enough, because a task writes one large file at a time.
_spare: list[list[mmap.mmap]] | None = None
_pool: ThreadPoolExecutor | None = None


def _take_buffers() -> list[mmap.mmap] | None:
    global _spare
    if _spare is None:
        # a private mapping, so that a forked process does not write to the same buffers
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
    """In the background, close the handle and free the buffers after the pending writes."""
    _thread().submit(_end, handle, buffers)


def _end(handle: int, buffers: list[mmap.mmap]) -> None:
    os.close(handle)
    _give_back(buffers)


def _forget() -> None:
    """Reset this module's state in a forked child: the thread and the file belong to the parent."""
    global _spare, _pool
    _spare = _pool = None


os.register_at_fork(after_in_child=_forget)
