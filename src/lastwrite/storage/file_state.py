"""The state of a file, to detect later that the file changed or was replaced.

A path may later name another file, a file system may reuse the inode of a deleted file, and
programs may set modification times. Change times cannot be set, so they are part of the state.
"""

from __future__ import annotations

import os
import zlib
from typing import NamedTuple

_END_BYTES = 16 << 10


class FileState(NamedTuple):
    """Attributes of a file that change with its content, or when another file replaces it."""

    device: int
    inode: int
    size_bytes: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileState:
        """The file state from the result of ``os.stat``."""
        return cls(
            status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
        )

    def is_same_file(self, other: FileState) -> bool:
        """Whether both states have the same device and inode.

        The states may still be of different files: the inode of a deleted file can be reused.
        """
        return (self.device, self.inode) == (other.device, other.inode)


def state_of(path: str) -> FileState | None:
    """The state of the file at ``path``. None if the file is not accessible."""
    try:
        return FileState.of(os.stat(path))
    except OSError:
        return None


def checksum_of_ends(
    path: str, position: int, size_bytes: int, state: FileState | None
) -> int | None:
    """CRC-32 of the first and the last 16 KiB of a byte range of the file with ``state``.

    None means that the path names another file, or that the file is too short or unreadable.
    """
    try:
        with open(path, "rb", buffering=0) as file:
            found = FileState.of(os.fstat(file.fileno()))
            if state is None or not found.is_same_file(state):
                return None
            checksum, wanted = 0, min(_END_BYTES, size_bytes)
            for at in (position, position + size_bytes - wanted):
                part = os.pread(file.fileno(), wanted, at)
                if len(part) < wanted:
                    return None
                checksum = zlib.crc32(part, checksum)
            return checksum
    except OSError:
        return None
