"""A folder where a driver and its tasks meet, on one machine and without the network:

    00000002-001.work    laid out by the driver
    00000002-001.1       the same, since task 1 has taken it
    00000002-001.done    what came of it
    closed               none takes more

A file is written under another name and then renamed, so it is there whole or not at all, and what
several tasks reach for is taken by one.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from lastwrite.errors import LogError
from lastwrite.storage.run_folder import make_folder, remove_folder

_CLOSED = "closed"


class Tasks:
    """The tasks' side; ``folder``: where they meet."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def look(self) -> list[str] | None:
        """What lies there, the first to be taken first; None: the driver has gone."""
        try:
            return sorted(os.listdir(self._folder))
        except FileNotFoundError:
            return None

    def take(self, names: list[str], number: int) -> str | None:
        """Take the first of ``names`` that is to be had; returns what it is called since."""
        for name in names:
            stem, _, state = name.rpartition(".")
            if state == "work":
                with contextlib.suppress(FileNotFoundError):  # another task was quicker
                    os.rename(self._folder / name, self._folder / f"{stem}.{number}")
                    return f"{stem}.{number}"
        return None

    def read(self, taken: str) -> bytes:
        return (self._folder / taken).read_bytes()

    def finish(self, taken: str, answer: bytes) -> None:
        """Hand over the answer, unless the driver has gone."""
        try:
            _write(self._folder / f"{taken.rpartition('.')[0]}.done", answer)
            os.unlink(self._folder / taken)
        except FileNotFoundError:
            if self._folder.exists():
                raise

    def close(self) -> None:
        """Let no task take more."""
        with contextlib.suppress(FileNotFoundError):
            _write(self._folder / _CLOSED, b"")


def is_closed(names: list[str]) -> bool:
    """Whether what ``look`` gave says that no task takes more."""
    return _CLOSED in names


def is_any_taken(names: list[str]) -> bool:
    """Whether a task is at work."""
    return any(name.rpartition(".")[2].isdigit() for name in names)


class Meeting:
    """The driver's side."""

    def __init__(self) -> None:
        self._parent = make_folder()
        self._folder = self._parent / "meeting"
        self._folder.mkdir()

    @property
    def folder(self) -> str:
        return str(self._folder)

    def open(self) -> None:
        """Let tasks take what is laid out.

        Raises:
            LogError: the folder has gone.
        """
        (self._folder / _CLOSED).unlink(missing_ok=True)
        if not self._folder.exists():
            raise LogError("the folder of this run has gone", path=self.folder)

    def lay_out(self, name: str, content: bytes) -> None:
        _write(self._folder / f"{name}.work", content)

    def answer(self, name: str) -> bytes | None:
        """What came of it; None: nothing yet."""
        done = self._folder / f"{name}.done"
        if not done.exists():
            return None
        answer = done.read_bytes()
        done.unlink()
        return answer

    def end(self) -> None:
        """Remove the folder, so that the tasks go."""
        # at once: a file that a task writes meanwhile would keep it
        with contextlib.suppress(OSError):
            self._folder.rename(self._parent / "over")
        remove_folder(self._parent)


def _write(path: Path, content: bytes) -> None:
    aside = path.with_name(f"{path.name}~")
    aside.write_bytes(content)
    os.rename(aside, path)
