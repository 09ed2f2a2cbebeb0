"""A folder of a run's own, which goes with the run.

What a killed run left behind goes with the next run that finds nobody in it: its process is gone,
and no other has its lock file open. A JVM of the run has, so what it still writes to stays; and so
has a run in another container, whose process this one does not see.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from lastwrite.errors import LogError
from lastwrite.storage import deferred_unlink

_PREFIX = "lastwrite-scratch-"
_LOCK = "in-use"
_MEMORY_HOME = Path("/dev/shm")
_held: dict[Path, int] = {}  # the lock files of this process' folders
_process = 0


def make_folder(parent: str | None = None) -> Path:
    """A new folder for a run, below ``parent`` or the system's temporary folder; sweeps dead runs'
    folders.

    Raises:
        LogError: nothing can be made there.
    """
    global _process
    if _process != os.getpid():
        _process = os.getpid()
        atexit.register(_remove_all, _process)
    home = Path(parent or tempfile.gettempdir())
    for old in home.glob(f"{_PREFIX}*"):
        if not _is_in_use(old):
            shutil.rmtree(old, ignore_errors=True)
    try:
        folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=home))
    except OSError as error:
        raise LogError(
            f"no scratch folder could be made: {error.strerror}",
            path=str(home),
            remedy="make the folder, or name another by TMPDIR or --conf spark.lastwrite.scratch=DIR",
        ) from error
    with suppress(OSError):  # a file system without locks: then the process' number alone tells
        handle = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        _held[folder] = handle
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return folder


def _remove_all(process: int) -> None:
    """At this process' end: an interrupt may have come before anybody could promise to remove a
    folder.
    """
    if process == os.getpid():
        for folder in list(_held):
            remove_folder(folder)


def unwritten(error: OSError, path: str) -> LogError:
    """A file of a run could not be written."""
    return LogError(
        f"could not write a scratch file: {error.strerror}",
        path=path,
        remedy="the log is unchanged; free some space there, or set TMPDIR to a roomier folder",
    )


def hold_of(folder: Path) -> int | None:
    """The open file that says that somebody is in ``folder``, to be handed on to a process that
    outlives this one.
    """
    return _held.get(folder)


def _is_in_use(folder: Path) -> bool:
    owner = folder.name.removeprefix(_PREFIX).split("-")[0]
    if not owner.isdigit() or _is_alive(int(owner)):
        return True
    try:
        handle = os.open(folder / _LOCK, os.O_RDWR)
    except FileNotFoundError:  # made by an earlier version
        return False
    except OSError:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(handle)
    return False


def memory_home() -> tuple[Path, int] | None:
    """Where files are memory, and how many bytes may still lie there; None: this system has no such
    place.
    """
    if sys.platform != "linux" or not os.access(_MEMORY_HOME, os.W_OK):
        return None
    seen = os.statvfs(_MEMORY_HOME)
    return _MEMORY_HOME, seen.f_bavail * seen.f_frsize


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def remove_folder(folder: Path) -> None:
    """Remove a run's folder with all that is in it; the room of large files comes back a moment
    later.
    """
    held = [deferred_unlink.hold(str(file)) for file in folder.glob("*")]
    shutil.rmtree(folder, ignore_errors=True)
    for handle in held:
        deferred_unlink.release(handle)
    lock = _held.pop(folder, None)
    if lock is not None:
        os.close(lock)
