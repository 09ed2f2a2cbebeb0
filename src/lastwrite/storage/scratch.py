"""Scratch files of one run: entries and record states between stages.

The files are in a folder that all workers of the machine can read, and up to a limit in a memory
folder. Each attempt of a task has its own files, and only files of finished tasks are used.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import uuid
from collections.abc import Sequence
from io import FileIO
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np

from lastwrite.errors import LogError
from lastwrite.model.columns import ByteArray
from lastwrite.storage import deferred_unlink
from lastwrite.storage.run_folder import make_folder as make_folder
from lastwrite.storage.run_folder import memory_home as memory_home
from lastwrite.storage.run_folder import remove_folder as remove_folder
from lastwrite.storage.run_folder import unwritten

PAGE_BYTES = mmap.PAGESIZE
_BLOCKS = ".blocks"
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, since Linux 5.14

A = TypeVar("A", bound="np.ndarray[Any, Any]")


class ScratchShare(NamedTuple):
    """The scratch folders in which a task creates its own folders, and its limit of memory."""

    folder: str
    memory: str
    memory_bytes: int


class ScratchFolders:
    """The scratch folders of a run: one on disk, and with ``memory_bytes`` one in memory."""

    def __init__(self, parent: str | None = None, memory_bytes: int = 0) -> None:
        home = memory_home() if memory_bytes > 0 else None
        self._folder = make_folder(parent)
        self._memory = None if home is None else make_folder(str(home[0]))
        self.memory_bytes = 0 if home is None else min(memory_bytes, home[1] // 2)

    @classmethod
    def within(cls, share: ScratchShare) -> Self:
        """A task's scratch folders, inside the run's folders.

        They are deleted with the task or the run.
        """
        folders = cls(share.folder)
        if share.memory and share.memory_bytes > 0:
            folders._memory = make_folder(share.memory)
            folders.memory_bytes = share.memory_bytes
        return folders

    @property
    def folder(self) -> str:
        return str(self._folder)

    @property
    def memory(self) -> str:
        """The memory folder. Empty if there is none."""
        return str(self._memory or "")

    @property
    def share(self) -> ScratchShare:
        return ScratchShare(self.folder, self.memory, self.memory_bytes)

    def clear(self) -> None:
        """Delete the files of blocks in the scratch folders, and keep the folders.

        Files in memory are freed at once, because other files need the memory. Files on disk are
        freed in the background.
        """
        for file in self._folder.glob(f"*{_BLOCKS}"):
            handle = deferred_unlink.hold(str(file))
            file.unlink(missing_ok=True)
            deferred_unlink.release(handle)
        for file in [] if self._memory is None else self._memory.glob(f"*{_BLOCKS}"):
            file.unlink(missing_ok=True)

    def close(self) -> None:
        """Delete both folders."""
        remove_folder(self._folder)
        if self._memory is not None:
            remove_folder(self._memory)


class ScratchWriter:
    """Appends blocks to one file of a folder. The name is random, so attempts do not collide.

    After ``allow``, blocks are first written to a file in memory. When the allowed bytes are used
    up, or memory runs out, they are written to disk. A file is created with its first block.
    """

    def __init__(self, folder: str, label: str) -> None:
        self._label = label
        self._file = _ScratchFile(folder, label)
        self._in_memory: _ScratchFile | None = None
        self._allowed = 0

    def allow(self, memory_folder: str, size_bytes: int) -> None:
        """Write the next ``size_bytes`` bytes to a file in ``memory_folder``, if possible."""
        if size_bytes > 0:
            self._in_memory = self._in_memory or _ScratchFile(memory_folder, self._label)
            self._allowed += size_bytes

    def append(self, *parts: np.ndarray) -> tuple[str, int]:
        """Write the arrays one after another.

        Returns the file's path and the first byte's position.
        """
        memory = self._in_memory
        if memory is not None and memory.size + sum(part.nbytes for part in parts) <= self._allowed:
            try:
                return memory.path, memory.append(parts)
            except LogError:
                self._allowed = 0
        return self._file.path, self._file.append(parts)

    def close(self) -> None:
        for file in (self._file, self._in_memory):
            if file is not None:
                file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _ScratchFile:
    """A scratch file that is written sequentially."""

    def __init__(self, folder: str, label: str) -> None:
        self.path = os.path.join(folder, f"{label}-{uuid.uuid4().hex[:12]}{_BLOCKS}")
        self.size = 0
        self._file: FileIO | None = None

    def append(self, parts: Sequence[np.ndarray]) -> int:
        start = self.size
        try:
            if self._file is None:
                self._file = open(self.path, "xb", buffering=0)
            views = [memoryview(np.ascontiguousarray(part)).cast("B") for part in parts]
            while views:
                written = os.writev(self._file.fileno(), views)
                self.size += written
                while views and written >= len(views[0]):
                    written -= len(views.pop(0))
                if views:
                    views[0] = views[0][written:]
        except OSError as error:
            raise unwritten(error, self.path) from error
        return start

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class ScratchReader:
    """Reads ranges of one scratch file."""

    def __init__(self, path: str) -> None:
        self._handle = os.open(path, os.O_RDONLY)

    def read_into(self, target: np.ndarray, position: int) -> None:
        """Fill the contiguous array ``target`` with the bytes from ``position`` on."""
        view = memoryview(target).cast("B")
        while len(view):
            n = os.preadv(self._handle, [view], position)
            if n == 0:
                raise EOFError("a scratch file is shorter than its writer reported")
            view = view[n:]
            position += n

    def close(self) -> None:
        os.close(self._handle)


class ScratchMap:
    """A memory-mapped scratch file at ``address``, shared between processes.

    Pages are allocated when they are touched.
    """

    def __init__(self, path: str, writable: bool = False) -> None:
        handle = os.open(path, os.O_RDWR if writable else os.O_RDONLY)
        try:
            self._map = mmap.mmap(
                handle, 0, prot=mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
            )
        finally:
            os.close(handle)
        self.bytes: ByteArray = np.frombuffer(self._map, dtype=np.uint8)
        self.address = int(self.bytes.ctypes.data)

    def populate(self, position: int, size: int) -> None:
        """Allocate the pages of a range in one call, so that writing causes no page faults."""
        if sys.platform != "linux":
            return
        start = position - position % PAGE_BYTES
        with contextlib.suppress(OSError):  # an older Linux
            self._map.madvise(_POPULATE_WRITE, start, position + size - start)

    def release(self) -> None:
        """Release the mapped pages. Later accesses map them again, and no change is lost."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        del self.bytes
        self._map.close()


def read_states(path: str, position: int, records: int) -> ByteArray:
    """The state bytes of a piece, one for each record."""
    return filled(np.empty(records, dtype=np.uint8), path, position)


def filled(array: A, path: str, position: int) -> A:
    """Fill ``array`` from a scratch file. For an empty array no file is opened."""
    if array.size:
        reader = ScratchReader(path)
        try:
            reader.read_into(array, position)
        finally:
            reader.close()
    return array
