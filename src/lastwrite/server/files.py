"""Read and send segments. The kernel sends files; bytes of objects pass a bounded block cache."""

from __future__ import annotations

import os
import resource
import select
import socket
import ssl
import threading
import time
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

import numpy as np

from lastwrite.errors import CommitConflict
from lastwrite.model.columns import ByteArray
from lastwrite.model.log import Segment
from lastwrite.storage import chunked
from lastwrite.storage.file_state import FileState, state_of
from lastwrite.storage.files import to_log_error
from lastwrite.storage.objects.address import is_address
from lastwrite.storage.reading import reader_of

_MOST_OPEN = 512  # maximum number of open segment files; fewer if the limit of open files is low
_NO_LIMIT = 1 << 30
_BLOCK_BYTES = 1 << 20
_AHEAD = 2  # number of blocks that are requested ahead of a sequential reader
_PIECE_BYTES = 256 << 10  # bytes that are sent at once through TLS or from an object
_ENDS_EARLY = "the segment was truncated after it was listed"
_PACE_BYTES = 1 << 20  # bytes that a client must read within each timeout of its socket


def open_files_limit() -> int:
    """The highest number of file descriptors that this process may open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _NO_LIMIT if soft == resource.RLIM_INFINITY else soft


def most_open_files() -> int:
    """The maximum number of segment files kept open."""
    return min(_MOST_OPEN, open_files_limit() // 8)


def reserved_descriptors() -> int:
    """The number of file descriptors reserved for segments and for work on partitions."""
    return most_open_files() + min(64, open_files_limit() // 8)


class _OpenFile:
    """An open file, closed when its last reference is deleted."""

    def __init__(self, segment: Segment) -> None:
        # opening checks that the file did not change after it was listed
        with reader_of(segment) as reader:
            self.handle = os.dup(reader.handle)
        self.state = FileState.of(os.fstat(self.handle))

    def is_replaced_alike(self, path: str) -> bool:
        """Whether another file now has the name ``path``, with equal size and modification time."""
        now, was = state_of(path), self.state
        return (
            now is not None
            and not now.is_same_file(was)
            and (now.size_bytes, now.mtime_ns) == (was.size_bytes, was.mtime_ns)
        )

    def __del__(self) -> None:
        with suppress(AttributeError, OSError):
            os.close(self.handle)


class Files:
    """Reads and sends bytes of segments, with open files and object blocks cached.

    A file is identified by path, size and modification time, an object by path and etag.
    ``cache_bytes`` is the memory for cached blocks of objects.
    """

    def __init__(self, cache_bytes: int) -> None:
        self._most_blocks = max(cache_bytes // _BLOCK_BYTES, 2 * _AHEAD + 2)
        self._most_open = most_open_files()
        self._lock = threading.Lock()
        self._opened: OrderedDict[tuple[str, int, int], _OpenFile] = OrderedDict()
        self._blocks: OrderedDict[tuple[str, str, int], Future[ByteArray]] = OrderedDict()
        self._threads = ThreadPoolExecutor(8, "blocks")

    def close(self) -> None:
        """Cancel pending requests to object stores, and close the open files."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._opened.clear()

    def read(self, segment: Segment, position: int, size: int) -> bytes:
        """Read up to ``size`` bytes of a segment.

        Raises:
            CommitConflict: the segment is gone or was replaced.
            RemoteFailed: the object store does not respond.
        """
        if not _is_object(segment):
            return os.pread(self._file(segment).handle, size, segment.position + position)
        position += segment.position
        parts, at, end = [], position, position + size
        while at < end:
            block = self._block(segment, at // _BLOCK_BYTES)
            inside = at % _BLOCK_BYTES
            part = block[inside : inside + end - at]
            if not len(part):
                break
            parts.append(part.tobytes())
            at += len(part)
        return b"".join(parts)

    def read_exact(self, segment: Segment, position: int, size: int) -> bytes:
        """Read exactly ``size`` bytes of a segment.

        Raises:
            CommitConflict: the segment is gone, was replaced, or has fewer bytes.
            RemoteFailed: the object store does not respond.
        """
        content = self.read(segment, position, size)
        if len(content) < size:
            raise CommitConflict(_ENDS_EARLY, path=segment.path)
        return content

    def send(self, to: socket.socket, segment: Segment, position: int, size: int) -> None:
        """Send bytes of a segment unchanged. The socket's timeout applies to each MiB.

        Raises:
            CommitConflict, RemoteFailed: the segment is gone or was replaced, or the store fails.
            OSError: the client is gone, or does not read in time.
        """
        if _is_object(segment) or isinstance(to, ssl.SSLSocket):
            while size > 0:
                piece = self.read_exact(segment, position, min(size, _PIECE_BYTES))
                to.sendall(piece)
                position, size = position + len(piece), size - len(piece)
            return
        opened = self._file(segment)
        position += segment.position
        while size > 0:
            until, left = time.monotonic() + (to.gettimeout() or 0.0), min(size, _PACE_BYTES)
            while left > 0:
                try:
                    sent = os.sendfile(to.fileno(), opened.handle, position, left)
                # wait here for the client, because os.sendfile ignores a socket's timeout
                except BlockingIOError:
                    _wait_to_send(to, until)
                    continue
                if not sent:
                    raise CommitConflict(_ENDS_EARLY, path=segment.path)
                position, size, left = position + sent, size - sent, left - sent

    # ------------------------------------------------------------------ files

    def _file(self, segment: Segment) -> _OpenFile:
        key = (segment.path, segment.growing or segment.file_bytes, segment.mtime_ns)
        if segment.growing:
            key = (segment.path, segment.growing, 0)
        with self._lock:
            found = self._opened.get(key)
            if found is not None and not found.is_replaced_alike(segment.path):
                self._opened.move_to_end(key)
                return found
        try:
            found = _OpenFile(segment)
        except OSError as error:
            raise to_log_error(error, segment.path, "open the segment") from error
        with self._lock:
            self._opened[key] = found
            self._opened.move_to_end(key)
            if len(self._opened) > self._most_open:
                self._opened.popitem(last=False)
        return found

    # ------------------------------------------------------------------ objects

    def _block(self, segment: Segment, number: int) -> ByteArray:
        """One block of an object, cached. A sequential read also requests the next two blocks."""
        wanted = [number]
        key = (segment.path, segment.etag, number)
        with self._lock:
            if key not in self._blocks or (segment.path, segment.etag, number - 1) in self._blocks:
                wanted += range(number + 1, number + 1 + _AHEAD)
            for each in wanted:
                self._ask(segment, each)
            content = self._blocks[key]
        try:
            return content.result()
        except BaseException:
            with self._lock:
                self._blocks.pop(key, None)
            raise

    def _ask(self, segment: Segment, number: int) -> None:
        begin = number * _BLOCK_BYTES
        key = (segment.path, segment.etag, number)
        if key in self._blocks:
            self._blocks.move_to_end(key)
            return
        if begin >= segment.file_bytes and number:
            return
        end = min(begin + _BLOCK_BYTES, segment.file_bytes)
        self._blocks[key] = self._threads.submit(_fetched, segment, begin, end)
        while len(self._blocks) > self._most_blocks:
            self._blocks.popitem(last=False)


def _wait_to_send(to: socket.socket, until: float) -> None:
    """Wait until the client's socket accepts more bytes.

    Raises:
        TimeoutError: the client reads nothing before time.monotonic is ``until``.
    """
    poll = select.poll()
    poll.register(to.fileno(), select.POLLOUT)
    if not poll.poll(max(until - time.monotonic(), 0.0) * 1000):
        raise TimeoutError("the client does not read the response")


def _is_object(segment: Segment) -> bool:
    if segment.opener is not None:
        return True
    return is_address(segment.path) or segment.path.endswith(chunked.MANIFEST)


def _fetched(segment: Segment, begin: int, end: int) -> ByteArray:
    content = np.empty(end - begin, dtype=np.uint8)
    with reader_of(segment) as reader:
        reader.read_into(content, begin)
    return content
