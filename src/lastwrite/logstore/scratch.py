"""Scratch files of one run: entries and record states on their way between stages.

They live in one folder that every worker of the machine sees, are named by attempt, and only those that a
finished task named count. The folder goes with the run; what a killed run left behind goes with the next
run that finds its process gone.
"""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
import uuid
from io import FileIO
from pathlib import Path
from typing import Self

import numpy as np

from lastwrite.errors import LogError
from lastwrite.model.columns import ByteArray

_PREFIX = "lastwrite-scratch-"


def make_folder(parent: str | None = None) -> Path:
    """A new folder for a run, below ``parent`` or the system's temporary folder; sweeps dead runs' folders."""
    home = Path(parent or tempfile.gettempdir())
    for old in home.glob(f"{_PREFIX}*"):
        owner = old.name.removeprefix(_PREFIX).split("-")[0]
        if owner.isdigit() and not _is_alive(int(owner)):
            shutil.rmtree(old, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=home))


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def remove_folder(folder: Path) -> None:
    """Remove a run's folder with all that is in it."""
    shutil.rmtree(folder, ignore_errors=True)


class ScratchWriter:
    """Appends blocks to one file of a folder; the name is drawn, so that no attempt meets another's.

    The file is made when the first block comes.
    """

    def __init__(self, folder: str, label: str) -> None:
        self.path = os.path.join(folder, f"{label}-{uuid.uuid4().hex[:12]}")
        self._file: FileIO | None = None
        self._at = 0

    def append(self, *parts: np.ndarray) -> int:
        """Write the arrays one behind the other; returns the position of the first byte."""
        if self._file is None:
            self._file = open(self.path, "xb", buffering=0)
        start = self._at
        for part in parts:
            view = memoryview(np.ascontiguousarray(part)).cast("B")
            while len(view):
                try:
                    written = self._file.write(view)
                except OSError as error:
                    raise LogError(
                        f"could not write a scratch file: {error.strerror}",
                        path=self.path,
                        remedy="the log is unchanged; free some space there, or set TMPDIR to a roomier folder",
                    ) from error
                view = view[written:]
                self._at += written
        return start

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ScratchReader:
    """Reads stretches of one scratch file."""

    def __init__(self, path: str) -> None:
        self._handle = os.open(path, os.O_RDONLY)

    def read_into(self, target: np.ndarray, position: int) -> None:
        """Fill the contiguous array ``target`` with the bytes from ``position`` on."""
        view = memoryview(target).cast("B")
        while len(view):
            n = os.preadv(self._handle, [view], position)
            if n == 0:
                raise EOFError("a scratch file is shorter than its writer said")
            view = view[n:]
            position += n

    def close(self) -> None:
        os.close(self._handle)


class StateFile:
    """The state bytes of a piece's records, shared between processes while election marks them."""

    def __init__(self, path: str) -> None:
        self._handle = os.open(path, os.O_RDWR)
        self._map = mmap.mmap(self._handle, 0)
        self.states: ByteArray = np.frombuffer(self._map, dtype=np.uint8)

    def close(self) -> None:
        del self.states
        self._map.close()
        os.close(self._handle)


def read_states(path: str, position: int, records: int) -> ByteArray:
    """The state bytes of a piece."""
    states = np.empty(records, dtype=np.uint8)
    if records:
        reader = ScratchReader(path)
        try:
            reader.read_into(states, position)
        finally:
            reader.close()
    return states
