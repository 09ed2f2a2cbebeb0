"""A folder where a driver and its tasks meet, on one machine and without the network:

    00000002-001.work    laid out by the driver
    00000002-001.1       the same, since task 1 has taken it
    00000002-001.done    what came of it
    closed               none takes more
    to-tasks, to-driver  pipes: a byte says that there is something new

A file is written under another name and then renamed, so it is there whole or not at all, and what
several tasks reach for is taken by one.
"""

from __future__ import annotations

import contextlib
import os
import select
import tempfile
from pathlib import Path

from lastwrite.errors import LogError
from lastwrite.storage.run_folder import make_folder, remove_folder, unwritten

_WORK, _CLOSED = ".work", "closed"
_TO_TASKS, _TO_DRIVER = "to-tasks", "to-driver"


class _Notifier:
    """A pipe that all sides hold open: who waits sleeps until somebody rings."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self._poll = select.poll()
        self._poll.register(self._handle, select.POLLIN)

    def ring(self) -> None:
        with contextlib.suppress(BlockingIOError):  # it is full: nobody will oversleep
            os.write(self._handle, b".")

    def wait(self, seconds: float) -> None:
        """Until it rings, ``seconds`` at most. One who waits is woken, sometimes for nothing."""
        if self._poll.poll(1000 * seconds):
            with contextlib.suppress(BlockingIOError):  # another was quicker
                os.read(self._handle, 1)

    def close(self) -> None:
        os.close(self._handle)


class Tasks:
    """The side of task ``number``; ``folder``: where they meet.

    Raises:
        FileNotFoundError: the driver has gone.
    """

    def __init__(self, folder: str, number: int) -> None:
        self._folder = Path(folder)
        self._number = number
        self._bell, self._drivers = (
            _Notifier(self._folder / _TO_TASKS),
            _Notifier(self._folder / _TO_DRIVER),
        )

    def look(self) -> list[str] | None:
        """What lies there, the first to be taken first; None: the driver has gone."""
        try:
            return sorted(os.listdir(self._folder))
        except FileNotFoundError:
            return None

    def own(self, names: list[str]) -> list[str]:
        """Those of ``names`` that this task, or one before it with its number, has taken."""
        return [name for name in names if name.endswith(f".{self._number}")]

    def take(self, names: list[str]) -> str | None:
        """Take the first of ``names`` that is to be had; returns what it is called since."""
        there = [name.removesuffix(_WORK) for name in names if name.endswith(_WORK)]
        for n, stem in enumerate(there, 1):
            taken = f"{stem}.{self._number}"
            with contextlib.suppress(FileNotFoundError):  # another task was quicker
                os.rename(self._folder / f"{stem}{_WORK}", self._folder / taken)
                if n < len(there):
                    # Who was called for these may have looked before they were there, and one who
                    # was called for what is taken now has heard their call.
                    self._bell.ring()
                return taken
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
        self._drivers.ring()

    def wait(self, seconds: float) -> None:
        """Until there may be something new, ``seconds`` at most."""
        self._bell.wait(seconds)

    def shut(self) -> None:
        """Let no task take more."""
        with contextlib.suppress(FileNotFoundError):
            _write(self._folder / _CLOSED, b"")

    def close(self) -> None:
        self._bell.close()
        self._drivers.close()


def is_shut(names: list[str]) -> bool:
    """Whether what ``look`` gave says that no task takes more."""
    return _CLOSED in names


def is_any_taken(names: list[str]) -> bool:
    """Whether a task is at work."""
    return any(name.rpartition(".")[2].isdigit() for name in names)


class TaskQueue:
    """The driver's side; the folder is made in ``parent``, or as a run's own."""

    def __init__(self, parent: Path | None = None) -> None:
        self._parent = make_folder() if parent is None else Path(tempfile.mkdtemp(dir=parent))
        self._folder = self._parent / "meeting"
        self._folder.mkdir()
        for name in (_TO_TASKS, _TO_DRIVER):
            os.mkfifo(self._folder / name)
        self._tasks, self._bell = (
            _Notifier(self._folder / _TO_TASKS),
            _Notifier(self._folder / _TO_DRIVER),
        )

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

    def submit(self, name: str, content: bytes) -> None:
        """Let a task take this.

        Raises:
            LogError: it cannot be written.
        """
        try:
            _write(self._folder / f"{name}{_WORK}", content)
        except OSError as error:
            raise unwritten(error, self.folder) from error
        self._tasks.ring()

    def answer(self, name: str) -> bytes | None:
        """What came of it; None: nothing yet."""
        done = self._folder / f"{name}.done"
        if not done.exists():
            return None
        answer = done.read_bytes()
        done.unlink()
        return answer

    def wait(self, seconds: float) -> None:
        """Until there may be an answer, ``seconds`` at most."""
        self._bell.wait(seconds)

    def end(self, tasks: int) -> None:
        """Remove the folder, so that the tasks go; there are so many."""
        # at once: a file that a task writes meanwhile would keep it
        with contextlib.suppress(OSError):
            self._folder.rename(self._parent / "over")
        for _ in range(tasks):
            self._tasks.ring()
        self._tasks.close()
        self._bell.close()
        remove_folder(self._parent)


def _write(path: Path, content: bytes) -> None:
    aside = path.with_name(f"{path.name}~")
    aside.write_bytes(content)
    os.rename(aside, path)
