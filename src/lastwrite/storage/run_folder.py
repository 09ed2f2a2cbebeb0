"""A folder of a run's own, which goes with the run.

What a killed run left behind goes with the next run that finds its process gone.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from lastwrite.logstore import freeing

_PREFIX = "lastwrite-scratch-"
_MEMORY_HOME = Path("/dev/shm")


def make_folder(parent: str | None = None) -> Path:
    """A new folder for a run, below ``parent`` or the system's temporary folder; sweeps dead runs' folders."""
    home = Path(parent or tempfile.gettempdir())
    for old in home.glob(f"{_PREFIX}*"):
        owner = old.name.removeprefix(_PREFIX).split("-")[0]
        if owner.isdigit() and not _is_alive(int(owner)):
            shutil.rmtree(old, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=home))


def memory_home() -> tuple[Path, int] | None:
    """Where files are memory, and how many bytes may still lie there; None: this system has no such place."""
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
    """Remove a run's folder with all that is in it; the room of large files comes back a moment later."""
    held = [freeing.hold(str(file)) for file in folder.glob("*")]
    shutil.rmtree(folder, ignore_errors=True)
    for handle in held:
        freeing.let_go(handle)
