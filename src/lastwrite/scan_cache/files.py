"""Read and write the cache files beside a log, and the secret of their fingerprints.

``scan_cache.format`` defines the format.

Cache files are not synced. After a power failure, any part of a file may be missing, which the
checksums detect. Invalid files are ignored, and may be deleted at any time. A file is written under
a temporary name, with an identity that no segment has. It gets its segment's identity after the
swap has renamed or linked the segment.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import uuid
from collections.abc import Collection
from dataclasses import replace
from io import FileIO
from typing import Self

from lastwrite.encoding.checksum import crc32c
from lastwrite.errors import CorruptLog
from lastwrite.model.columns import ByteArray
from lastwrite.scan_cache import format as layout
from lastwrite.scan_cache.segment import (
    NO_FILE,
    CachedBlock,
    CachedSegment,
    SegmentIdentity,
    Stamp,
)
from lastwrite.storage import files, ownership

_LOG, _CACHE, _TEMPORARY = ".log", ".kept", ".tmp"
_SECRET = "lastwrite.secret"  # name of the file with the secret of the fingerprints
_OURS = re.compile(
    rf"(?:(?P<base>[0-9]{{20}})\{_CACHE}|{_SECRET})"
    rf"(?:\.[0-9A-Za-z_-]+(?P<temporary>\{_TEMPORARY}))?"
)
_MOST_TABLE_BYTES = 64 << 20


def identity_of(log_path: str) -> SegmentIdentity:
    """The current identity of a segment's files."""
    stem = log_path.removesuffix(_LOG)
    return SegmentIdentity(_stamp(log_path), _stamp(stem + ".index"), _stamp(stem + ".timeindex"))


def _stamp(path: str) -> Stamp:
    try:
        seen = os.stat(path)
    except OSError:
        return NO_FILE
    return seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_ino


def cache_path(log_path: str) -> str:
    return log_path.removesuffix(_LOG) + _CACHE


# ---------------------------------------------------------------------- the secret


def read_secret(folder: str, size: int) -> bytes | None:
    """The folder's secret. None if it is missing, incomplete, or readable by other users."""
    try:
        handle = os.open(os.path.join(folder, _SECRET), os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return None
    with os.fdopen(handle, "rb") as file:
        seen = os.fstat(file.fileno())
        if not stat.S_ISREG(seen.st_mode) or seen.st_mode & 0o077:
            return None
        return layout.decode_secret(file.read(size + 5), size)


def write_secret(folder: str, secret: bytes) -> None:
    """Write the secret, readable only by its owner.

    Raises:
        LogError: the secret cannot be written.
    """
    path = os.path.join(folder, _SECRET)
    staged = f"{path}.{uuid.uuid4().hex[:12]}{_TEMPORARY}"
    with _changing("write", staged):
        like = replace(ownership.of_new(folder), mode=0o600, attributes=(), is_required=False)
        with files.create(staged, like) as file:
            file.write(layout.encode_secret(secret))
    files.rename(staged, path)


# ---------------------------------------------------------------------- reading


def read_cached(
    log_path: str, identity: SegmentIdentity, secret_digest: bytes
) -> CachedSegment | None:
    """The cached scan of the segment. None if it is missing or invalid, or the segment changed."""
    path = cache_path(log_path)
    try:
        with open(path, "rb", buffering=0) as file:
            header = layout.decode_header(file.read(layout.HEADER.size), path)
            size = os.fstat(file.fileno()).st_size
            if (
                header.base_offset != int(os.path.basename(log_path)[:20])
                or layout.identity_of(header) != identity
            ):
                return None
            if (
                not layout.HEADER.size
                <= header.tables_at
                <= size
                <= header.tables_at + _MOST_TABLE_BYTES
            ):
                return None
            tables = _read_all(file.fileno(), header.tables_at, size - header.tables_at)
        found = layout.decode_segment(header, tables, path)
    except (OSError, CorruptLog):
        return None
    return found if found.secret_digest == secret_digest else None


def _read_all(handle: int, position: int, size: int) -> bytes:
    parts = []
    while size:
        part = os.pread(handle, size, position)
        if not part:
            raise CorruptLog(
                "another program shortened the cache file during the command", position
            )
        parts.append(part)
        position, size = position + len(part), size - len(part)
    return b"".join(parts)


# ---------------------------------------------------------------------- writing


class CacheWriter:
    """Writes a cache file under a temporary name, with an identity that no segment has.

    When used as a context manager, it removes an unfinished file.

    Raises:
        LogError: a file operation fails, here and in all methods.
    """

    def __init__(self, log_path: str) -> None:
        self.path = f"{cache_path(log_path)}.{uuid.uuid4().hex[:12]}{_TEMPORARY}"
        self._at = 0
        with _changing("create", self.path):
            like = ownership.of_new(os.path.dirname(log_path), [log_path]).as_far_as_may()
            self._file: FileIO | None = files.create(self.path, like)

    def append(self, block: ByteArray, entries: int) -> CachedBlock:
        """Write a block of ``entries`` entries: the bucket ends, then the entries."""
        position = max(self._at, layout.HEADER.size)
        position += -position % layout.ALIGNMENT
        self._write(memoryview(block), position)
        return CachedBlock(position, entries, int(crc32c(block, 0, len(block))))

    def finish(self, segment: CachedSegment) -> None:
        """Write the tables, then the header.

        ``segment`` has the identity ``NOBODY``, so that no segment matches the file yet.
        """
        at = max(self._at, layout.HEADER.size)
        tables = layout.encode_tables(segment.pieces)
        self._write(memoryview(tables), at)
        header = layout.header_of(segment, at, tables)
        self._write(memoryview(layout.encode_header(header)), 0)
        self._close()

    def _write(self, view: memoryview, position: int) -> None:
        with _changing("append", self.path):
            assert self._file is not None
            while len(view):
                written = os.pwrite(self._file.fileno(), view, position)
                view, position = view[written:], position + written
        self._at = max(self._at, position)

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._close()
            with contextlib.suppress(OSError):
                os.unlink(self.path)


def install(path: str, log_path: str, identity: SegmentIdentity) -> None:
    """Give a complete cache file the segment's identity and its final name.

    Raises:
        LogError: the file cannot be written or renamed.
    """
    with _changing("stamp", path), open(path, "r+b", buffering=0) as file:
        header = layout.decode_header(file.read(layout.HEADER.size), path)
        file.seek(0)
        file.write(layout.encode_header(layout.with_identity(header, identity)))
    if path != cache_path(log_path):
        files.rename(path, cache_path(log_path))


def sweep(folder: str, bases: Collection[int], *, is_all: bool = False) -> None:
    """Delete temporary files, and the cache files of some segments.

    ``bases`` has the base offsets of these segments.

    With ``is_all``, delete the cache files of all other segments instead.

    Raises:
        LogError: a file cannot be deleted.
    """
    for name in sorted(os.listdir(folder)):
        found = _OURS.fullmatch(name)
        if found is None:
            continue
        is_stale = found["base"] is not None and (int(found["base"]) in bases) is not is_all
        if found["temporary"] or is_stale:
            files.unlink(os.path.join(folder, name))


def _changing(operation: str, path: str) -> files.changing:
    """A context for changing a cache file; see ``files.changing``."""
    return files.changing(operation, path, f"{operation} a cache file")
