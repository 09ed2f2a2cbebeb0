"""A folder through which a driver and its tasks on one machine exchange work and results.

    00000002-001.work    published by the driver
    00000002-001.1       work that task 1 is processing
    00000002-001.done    the result
    closed               tasks take no more work
    to-tasks, to-driver  pipes: a byte means that something has changed

Files are written under another name and renamed, so each file is complete. A task claims work by a
rename, which succeeds for one task only.
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
    """A pipe that wakes waiting processes. Driver and tasks all keep it open."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self._poll = select.poll()
        self._poll.register(self._handle, select.POLLIN)

    def ring(self) -> None:
        # an error means that the pipe is full; the bytes in it wake all processes
        with contextlib.suppress(BlockingIOError):
            os.write(self._handle, b".")

    def wait(self, seconds: float) -> None:
        """Wait for a byte, at most ``seconds``. Spurious wake-ups are possible."""
        if self._poll.poll(1000 * seconds):
            # no error: another process has read the byte
            with contextlib.suppress(BlockingIOError):
                os.read(self._handle, 1)

    def close(self) -> None:
        os.close(self._handle)


class Tasks:
    """The side of task ``number`` in a queue.

    Claims work from the queue's ``folder``, and publishes results.

    Raises:
        FileNotFoundError: the driver is gone.
    """

    def __init__(self, folder: str, number: int) -> None:
        self._folder = Path(folder)
        self._number = number
        self._notifier, self._drivers = (
            _Notifier(self._folder / _TO_TASKS),
            _Notifier(self._folder / _TO_DRIVER),
        )

    def list_tasks(self) -> list[str] | None:
        """The names of the files in the folder, in the order of the work.

        None if the driver is gone.
        """
        try:
            return sorted(os.listdir(self._folder))
        except FileNotFoundError:
            return None

    def own(self, names: list[str]) -> list[str]:
        """The names of work claimed by this task, or by an earlier task with the same number."""
        return [name for name in names if name.endswith(f".{self._number}")]

    def take(self, names: list[str]) -> str | None:
        """Claim the first available work among ``names``, and return its new file name."""
        there = [name.removesuffix(_WORK) for name in names if name.endswith(_WORK)]
        for n, stem in enumerate(there, 1):
            taken = f"{stem}.{self._number}"
            with contextlib.suppress(FileNotFoundError):  # another task was faster
                os.rename(self._folder / f"{stem}{_WORK}", self._folder / taken)
                if n < len(there):
                    # Wake another task for the remaining work. Otherwise that task may sleep: it
                    # may have checked the folder too early, and this task may have read its byte.
                    self._notifier.ring()
                return taken
        return None

    def read(self, taken: str) -> bytes:
        return (self._folder / taken).read_bytes()

    def finish(self, taken: str, answer: bytes) -> None:
        """Publish the result of claimed work, unless the driver is gone."""
        try:
            _write(self._folder / f"{taken.rpartition('.')[0]}.done", answer)
            os.unlink(self._folder / taken)
        except FileNotFoundError:
            if self._folder.exists():
                raise
        self._drivers.ring()

    def wait(self, seconds: float) -> None:
        """Wait at most ``seconds`` until the folder may have changed."""
        self._notifier.wait(seconds)

    def shut(self) -> None:
        """Prevent all tasks from claiming more work."""
        with contextlib.suppress(FileNotFoundError):
            _write(self._folder / _CLOSED, b"")

    def close(self) -> None:
        self._notifier.close()
        self._drivers.close()


def is_shut(names: list[str]) -> bool:
    """Whether the queue is closed, by the result ``names`` of ``list_tasks``."""
    return _CLOSED in names


def is_any_running(names: list[str]) -> bool:
    """Whether a task is working."""
    return any(name.rpartition(".")[2].isdigit() for name in names)


class TaskQueue:
    """The driver's side: publishes work and receives results.

    Creates the folder, by default temporary.
    """

    def __init__(self, parent: Path | None = None) -> None:
        self._parent = make_folder() if parent is None else Path(tempfile.mkdtemp(dir=parent))
        self._folder = self._parent / "meeting"
        self._folder.mkdir()
        for name in (_TO_TASKS, _TO_DRIVER):
            os.mkfifo(self._folder / name)
        self._tasks, self._notifier = (
            _Notifier(self._folder / _TO_TASKS),
            _Notifier(self._folder / _TO_DRIVER),
        )

    @property
    def folder(self) -> str:
        return str(self._folder)

    def open(self) -> None:
        """Allow tasks to claim work.

        Raises:
            LogError: the folder was deleted.
        """
        (self._folder / _CLOSED).unlink(missing_ok=True)
        if not self._folder.exists():
            raise LogError("another program deleted this run's scratch folder", path=self.folder)

    def submit(self, name: str, content: bytes) -> None:
        """Publish work, which one of the tasks then claims.

        Raises:
            LogError: the work cannot be written.
        """
        try:
            _write(self._folder / f"{name}{_WORK}", content)
        except OSError as error:
            raise unwritten(error, self.folder) from error
        self._tasks.ring()

    def answer(self, name: str) -> bytes | None:
        """The result of the work ``name``. None if the work is not finished."""
        done = self._folder / f"{name}.done"
        if not done.exists():
            return None
        answer = done.read_bytes()
        done.unlink()
        return answer

    def wait(self, seconds: float) -> None:
        """Wait at most ``seconds`` until there may be a result."""
        self._notifier.wait(seconds)

    def end(self, tasks: int) -> None:
        """Delete the folder, and wake all ``tasks`` waiting tasks, which then exit."""
        # The folder is renamed before it is deleted: a file that a task writes at the same time
        # would make the deletion fail.
        with contextlib.suppress(OSError):
            self._folder.rename(self._parent / "over")
        for _ in range(tasks):
            self._tasks.ring()
        self._tasks.close()
        self._notifier.close()
        remove_folder(self._parent)


def _write(path: Path, content: bytes) -> None:
    aside = path.with_name(f"{path.name}~")
    aside.write_bytes(content)
    os.rename(aside, path)
