"""A run's own folder, which is deleted with the run.

The folder of a killed run is deleted by a later run once it is unused: the run's process is gone,
and no other process has locked the folder's lock file. The run's JVM locks the file, so the folder
stays while the JVM runs. A run in another container, whose process is not visible here, also locks
it.
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
_held: dict[Path, int] = {}  # open handles of the lock files, by the run folders of this process
_process = 0


def make_folder(parent: str | None = None) -> Path:
    """Create a run's folder below ``parent`` or the temporary folder. Deletes unused folders first.

    Raises:
        LogError: no folder can be created there.
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
            f"could not create a scratch folder: {error.strerror}",
            path=str(home),
            remedy="create the folder, or give another with TMPDIR or --conf "
            "spark.lastwrite.scratch=DIR",
        ) from error
    # without file locks, only the process id in the folder's name shows that it is used
    with suppress(OSError):
        handle = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        _held[folder] = handle
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return folder


def _remove_all(process: int) -> None:
    """Delete the run folders that remain when this process ends, for example after Ctrl-C."""
    if process == os.getpid():
        for folder in list(_held):
            remove_folder(folder)


def unwritten(error: OSError, path: str) -> LogError:
    """The error for a scratch file that could not be written."""
    return LogError(
        f"could not write a scratch file: {error.strerror}",
        path=path,
        remedy="the log is unchanged; free some space in this folder, or set TMPDIR to a folder "
        "with more space",
    )


def hold_of(folder: Path) -> int | None:
    """The handle of a run folder's lock file. A process that outlives this process inherits it."""
    return _held.get(folder)


def _is_in_use(folder: Path) -> bool:
    owner = folder.name.removeprefix(_PREFIX).split("-")[0]
    if not owner.isdigit() or _is_alive(int(owner)):
        return True
    try:
        handle = os.open(folder / _LOCK, os.O_RDWR)
    except FileNotFoundError:  # an earlier release created the folder, without a lock file
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
    """The folder of a file system in memory, and its free bytes. None if the system has none."""
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
    """Delete a run's folder. The space of large files is freed in the background."""
    held = [deferred_unlink.hold(str(file)) for file in folder.glob("*")]
    shutil.rmtree(folder, ignore_errors=True)
    for handle in held:
        deferred_unlink.release(handle)
    lock = _held.pop(folder, None)
    if lock is not None:
        os.close(lock)
