"""Readers of segments, in files or objects. They detect changes after the plan."""

from __future__ import annotations

import errno
import os
import re
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from types import TracebackType
from typing import NamedTuple

import numpy as np

from lastwrite.errors import (
    CommitConflict,
    LogError,
    OutOfMemoryBudget,
    is_of_archive,
    located,
)
from lastwrite.model.columns import ByteArray
from lastwrite.model.log import PartitionLog, Segment, SegmentOpener
from lastwrite.model.stores import StoreSettings
from lastwrite.model.work import Limits, ScanRange
from lastwrite.storage import chunked
from lastwrite.storage.encryption import SegmentCipher
from lastwrite.storage.files import to_log_error
from lastwrite.storage.missing import missing_error
from lastwrite.storage.objects.address import is_address, store_at, used

# In nanoseconds. A folder whose last change is more recent than this may change again with the same
# modification time.
SETTLED_NS = 50_000_000
RESTS_NS = 2_000_000_000

AGAIN = "nothing was changed; stop the program that writes to the log, then run the command again"

TRIES = 3  # maximum number of attempts to read while a broker replaces and deletes files
TRY_AGAIN = (
    "run the command again when the broker's cleaner is idle, read a copy of the log, or stop the "
    "broker"
)

_LEAST_BYTES = 64 << 10  # minimum bytes of a request, because a smaller request takes as long

# maximum bytes of an index or another side file, far above the usual size
SMALL_LIMIT_BYTES = 256 << 20

_STRETCH = re.compile(r"([0-9]+)\+([0-9]+)")


class SegmentReader:
    """Reads one segment file, by position, into the caller's buffer.

    ``size_bytes`` and ``mtime_ns`` are from the plan. ``growing`` and ``etag`` are as in
    ``Segment``.

    Raises:
        CommitConflict: the file vanished or changed after the plan.
    """

    def __init__(
        self, path: str, size_bytes: int, mtime_ns: int, growing: int = 0, etag: str = ""
    ) -> None:
        self._path = path
        self._identity = (size_bytes, mtime_ns, growing, etag)
        try:
            self._handle = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            raise missing_error(path, "the segment", AGAIN) from None
        try:
            self._check(os.fstat(self._handle))
        except BaseException:
            self.close()
            raise

    def _check(self, status: os.stat_result, inode: int | None = None) -> None:
        """Raise CommitConflict if the open file is not the file that was planned.

        ``inode`` is the inode of the file that is now at the path.
        """
        if not _is_unchanged(status, *self._identity) or inode not in (None, status.st_ino):
            raise CommitConflict(
                "another program changed the segment during the command",
                path=self._path,
                remedy=AGAIN,
            )

    def check_unchanged(self) -> None:
        """Raise CommitConflict if the open file is not the planned file, or not at its path."""
        seen = os.fstat(self._handle)
        try:
            named = os.stat(self._path)
        except FileNotFoundError:
            raise missing_error(self._path, "the segment", AGAIN) from None
        self._check(seen, named.st_ino)

    def read_into(self, target: ByteArray, position: int) -> None:
        """Fill ``target`` with the bytes from ``position`` on."""
        view = memoryview(target)
        while len(view):
            n = os.preadv(self._handle, [view], position)
            if n == 0:
                raise CommitConflict(
                    "another program shortened the segment during the command",
                    position,
                    self._path,
                    AGAIN,
                )
            view = view[n:]
            position += n

    @property
    def handle(self) -> int:
        """The open file's descriptor, which is closed with this reader."""
        return self._handle

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


class ObjectReader(SegmentReader):
    """Reads one object, by position, into the caller's buffer.

    Sequential reads fetch ranges of ``ahead_bytes``, one in advance. Other reads fetch at least
    64 KiB. Each request includes the object's version, so no separate check is needed. Objects of
    an archive never change, but a copied archive has other etags. An object with the planned
    size is therefore read with its current etag, and the checksums of its batches are verified.

    With an empty ``etag`` the current object is read if it has ``size_bytes``. ``start`` is the
    position of a sequential read; negative means unknown. Bytes from ``end`` on are not read ahead.

    Raises:
        CommitConflict: the object is gone or was replaced.
    """

    def __init__(
        self,
        address: str,
        size_bytes: int,
        etag: str,
        *,
        start: int = -1,
        end: int | None = None,
        limits: Limits | None = None,
    ) -> None:
        limits = limits or Limits()
        self._path = address
        self._store, self._key = store_at(address, limits.stores)
        self._ahead_bytes = limits.ahead_bytes
        self._next = start  # end of the last read
        self._end = size_bytes if end is None else end
        # the requested ranges by position; the first one is being read
        self._ranges: deque[_Range] = deque()
        self._threads: ThreadPoolExecutor | None = None
        self._size_bytes, self._lock = size_bytes, threading.Lock()
        self._planned = self._etag = etag or self._etag_now()

    def _etag_now(self) -> str:
        found = self._store.head(self._key)
        if found is None:
            raise missing_error(self._path, "the segment", AGAIN)
        if found.size_bytes != self._size_bytes:
            raise CommitConflict(
                "another program changed the segment during the command",
                path=self._path,
                remedy=AGAIN,
            )
        return found.version.etag

    def _is_of_copy(self, asked: str) -> bool:
        """Whether only the etag has changed, because the archive was copied after the plan.

        If so, later requests use the current etag.
        """
        if asked != self._planned or not is_of_archive(self._path):
            return False
        with self._lock:
            if self._etag == self._planned:
                self._etag = self._etag_now()
            return self._etag != self._planned

    def check_unchanged(self) -> None:
        """Do nothing: each request was for the planned version of the object."""

    def read_into(self, target: ByteArray, position: int) -> None:
        """Fill ``target`` with the bytes from ``position`` on."""
        view = memoryview(target)
        is_in_order = position == self._next
        self._next = position + len(view)
        while len(view):
            part = self._range_with(position, len(view), is_in_order)
            got = part.content.result()[position - part.start :][: len(view)]
            view[: len(got)] = memoryview(got)
            view, position = view[len(got) :], position + len(got)

    def _range_with(self, position: int, needed: int, is_in_order: bool) -> _Range:
        while self._ranges and not self._ranges[0].start <= position < self._ranges[0].end:
            self._ranges.popleft().content.cancel()
        if not self._ranges:
            size = self._ahead_bytes if is_in_order else max(needed, _LEAST_BYTES)
            end = min(position + min(size, self._ahead_bytes), max(self._end, position + needed))
            self._ranges.append(self._request(position, end, is_in_order))
        start = self._ranges[-1].end
        if is_in_order and len(self._ranges) == 1 and start < self._end:
            self._ranges.append(
                self._request(start, min(start + self._ahead_bytes, self._end), True)
            )
        return self._ranges[0]

    def _request(self, start: int, end: int, is_in_order: bool) -> _Range:
        if is_in_order:
            self._threads = self._threads or ThreadPoolExecutor(2, "read-ahead")
            return _Range(start, end, self._threads.submit(self._fetch, start, end))
        content: Future[ByteArray] = Future()
        content.set_result(self._fetch(start, end))
        return _Range(start, end, content)

    def _fetch(self, start: int, end: int) -> ByteArray:
        content = np.empty(end - start, dtype=np.uint8)
        etag = self._etag
        try:
            self._store.read_into(self._key, content, start, etag)
        except CommitConflict:
            if not self._is_of_copy(etag):
                raise
            self._store.read_into(self._key, content, start, self._etag)
        return content

    def close(self) -> None:
        self._ranges.clear()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)


class ChunkedReader(SegmentReader):
    """Reads a segment that is stored in compressed or encrypted chunks, by position in the segment.

    Raises:
        CommitConflict: the segment is gone or was replaced.
        CorruptLog, UnsupportedFormat, OutOfMemoryBudget: the manifest is invalid.
        InvalidConfig, EnvironmentUnfit: the segment is encrypted and cannot be decrypted.
    """

    def __init__(self, path: str, size_bytes: int, limits: Limits | None = None) -> None:
        self._path = path
        try:
            manifest = chunked.decode_manifest(read_small(path), path)
        except LogError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise missing_error(path, "the segment", AGAIN) from error
            raise
        cipher = cipher_of(manifest, path, limits.stores if limits else None)
        with located(path):
            self._chunks = chunked.SegmentChunks(manifest, cipher)
        if self._chunks.size_bytes != size_bytes:
            raise CommitConflict(
                "another program changed the segment during the command", path=path, remedy=AGAIN
            )
        log, stored = path.removesuffix(chunked.MANIFEST) + chunked.LOG, self._chunks.stored_bytes
        if is_address(log):
            self._stored: SegmentReader = ObjectReader(log, stored, "", limits=limits)
        else:
            self._stored = SegmentReader(log, stored, 0, etag="-")
        self._decoded: dict[int, ByteArray] = {}  # the last two decoded chunks, by number

    def check_unchanged(self) -> None:
        """Do nothing: a segment with a manifest does not change."""

    def read_into(self, target: ByteArray, position: int) -> None:
        """Fill ``target`` with the bytes from ``position`` on."""
        done = 0
        while done < len(target):
            number = self._chunks.at(position + done)
            at = position + done - self._chunks.start(number)
            part = self._opened(number)[at : at + len(target) - done]
            target[done : done + len(part)] = part
            done += len(part)

    def _opened(self, number: int) -> ByteArray:
        if number not in self._decoded:
            begin, end = self._chunks.byte_range(number)
            stored = np.empty(end - begin, dtype=np.uint8)
            self._stored.read_into(stored, begin)
            with located(self._path):
                plain = self._chunks.opened(number, stored.tobytes())
            for other in list(self._decoded)[:-1]:
                del self._decoded[other]
            self._decoded[number] = np.frombuffer(plain, dtype=np.uint8)
        return self._decoded[number]

    def close(self) -> None:
        self._decoded.clear()
        self._stored.close()


class _Range(NamedTuple):
    start: int
    end: int
    content: Future[ByteArray]


def reader_of(segment: Segment) -> SegmentReader:
    """Open a reader of the segment's file or object.

    Raises:
        CommitConflict: the segment vanished or changed after it was listed.
    """
    if segment.opener is not None:
        return opened(segment.opener, -1, segment.size_bytes)
    if segment.path.endswith(chunked.MANIFEST):
        return ChunkedReader(segment.path, segment.file_bytes)
    if is_address(segment.path):
        return ObjectReader(segment.path, segment.file_bytes, segment.etag)
    return SegmentReader(segment.path, segment.file_bytes, *_identity(segment))


def reader_at(
    path: str,
    size_bytes: int,
    etag: str,
    *,
    start: int = -1,
    end: int | None = None,
    limits: Limits | None = None,
) -> SegmentReader:
    """Open a reader of an object of an archive, in a bucket or a folder.

    ``start`` is the position of a sequential read; negative means unknown. Bytes from ``end`` on
    are not read ahead.
    """
    if is_address(path):
        return ObjectReader(path, size_bytes, etag, start=start, end=end, limits=limits)
    return SegmentReader(path, size_bytes, 0, etag=etag or "-")


def reader_of_piece(piece: ScanRange, limits: Limits | None = None) -> SegmentReader:
    """A reader that reads a piece of a segment sequentially, in a worker with ``limits``."""
    if piece.opener is not None:
        return opened(piece.opener, piece.start, piece.end, limits)
    if piece.path.endswith(chunked.MANIFEST):
        return ChunkedReader(piece.path, piece.size_bytes, limits)
    if is_address(piece.path):
        return ObjectReader(
            piece.path,
            piece.size_bytes,
            piece.etag,
            start=piece.start,
            end=piece.end,
            limits=limits,
        )
    return SegmentReader(piece.path, piece.size_bytes, *_identity(piece))


def opened(
    opener: SegmentOpener, start: int, end: int, limits: Limits | None = None
) -> SegmentReader:
    """The reader that ``opener`` returns."""
    reader: SegmentReader = opener.open(start, end, limits)
    return reader


def _identity(of: Segment | ScanRange) -> tuple[int, int, str]:
    return of.mtime_ns, of.growing, of.etag


def exists(path: str) -> bool:
    """Whether a file or an object exists."""
    if not is_address(path):
        return os.path.exists(path)
    store, key = store_at(path)
    return store.head(key) is not None


def _is_unchanged(
    status: os.stat_result, size_bytes: int, mtime_ns: int, growing: int, etag: str
) -> bool:
    # compare the size only: an object's name is never reused, and a copy has another modification
    # time
    if etag:
        return status.st_size == size_bytes
    if growing:
        return status.st_ino == growing and status.st_size >= size_bytes
    return (status.st_size, status.st_mtime_ns) == (size_bytes, mtime_ns)


def read_small(path: str) -> bytes:
    """The bytes of a side file or object. ``PATH#POSITION+SIZE`` selects a range of an index file.

    Raises:
        LogError: the file cannot be read.
        OutOfMemoryBudget: the file is far larger than any side file.
    """
    whole, _, place = path.rpartition("#")
    if whole.endswith(chunked.INDEXES) and (part := _STRETCH.fullmatch(place)):
        return _read_part(whole, int(part[1]), int(part[2]))
    try:
        if is_address(path):
            data = _read_object(path)
        else:
            with open(path, "rb") as file:
                data = file.read(SMALL_LIMIT_BYTES + 1)
    except FileNotFoundError as error:
        if is_of_archive(path):
            raise missing_error(path, "the object", AGAIN) from error
        raise to_log_error(error, path, "read the file") from error
    except OSError as error:
        raise LogError(f"the file cannot be read: {error.strerror}", path=path) from error
    if len(data) > SMALL_LIMIT_BYTES:
        raise OutOfMemoryBudget(
            f"the file has more than {SMALL_LIMIT_BYTES} bytes, the limit for such a file",
            path=path,
        )
    return data


def cipher_of(
    manifest: chunked.ChunkManifest, path: str, stores: StoreSettings | None = None
) -> SegmentCipher | None:
    """The cipher of the segment with this manifest at ``path``. None if it is not encrypted.

    ``stores`` are a worker's settings for object stores. None means this process's settings.

    Raises:
        InvalidConfig, CorruptLog, EnvironmentUnfit: the segment cannot be decrypted.
    """
    if manifest.encryption is None:
        return None
    with located(path):
        return SegmentCipher(manifest.encryption, stores or used())


def _read_part(indexes: str, position: int, size: int) -> bytes:
    path = indexes.removesuffix(chunked.INDEXES) + chunked.MANIFEST
    cipher = cipher_of(chunked.decode_manifest(read_small(path), path), path)
    part = read_small(indexes)[position : position + size]
    with located(indexes, position):
        return cipher.opened(part) if cipher and size else part


def _read_object(address: str) -> bytes:
    store, key = store_at(address)
    found = store.get(key)
    if found is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), address)
    return found[0]


@contextmanager
def one_try(number: int, *, is_open: bool) -> Iterator[None]:
    """A context for one attempt to read. Suppresses a conflict that a later attempt may resolve.

    ``is_open`` means that a broker has the log open. ``number`` counts from 1.

    Raises:
        CommitConflict: the log is not open in a broker, or this is the last attempt.
    """
    try:
        yield
    except CommitConflict as error:
        if not is_open:
            raise
        if number == TRIES:
            raise CommitConflict(
                f"{error.problem}, in {TRIES} attempts; a broker has the log open",
                error.at,
                error.path,
                TRY_AGAIN,
            ) from error


def check_segments(log: PartitionLog) -> None:
    """Check that the segments' files are unchanged since they were listed.

    Raises:
        CommitConflict: a file changed or vanished.
    """
    for segment in log.segments:
        is_object = is_address(segment.path) or segment.path.endswith(chunked.MANIFEST)
        is_object = is_object or segment.opener is not None
        # objects are skipped: they do not change, and each response was for the planned version
        if is_object:
            continue
        try:
            seen = os.stat(segment.path)
        except FileNotFoundError:
            raise missing_error(segment.path, "the segment", AGAIN) from None
        except OSError as error:
            raise to_log_error(error, segment.path, "read the state of the segment") from error
        if not _is_unchanged(seen, segment.file_bytes, *_identity(segment)):
            raise CommitConflict(
                "another program changed the segment during the command",
                path=segment.path,
                remedy=AGAIN,
            )
