"""How much of the machine is ours: memory, cores and room on disk, containers' limits included."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def memory_bytes() -> int:
    """The memory that this process and its children may use: the machine's, or its container's limit if lower."""
    import psutil

    limits = [int(psutil.virtual_memory().total)]
    for file in _limit_files("memory.max", "memory/memory.limit_in_bytes"):
        text = _read(file)
        if text.isdigit():
            limits.append(int(text))
    return min(limits)


def available_bytes() -> int:
    """The memory that nobody uses now, at most ``memory_bytes``."""
    import psutil

    return min(int(psutil.virtual_memory().available), memory_bytes())


def core_count() -> int:
    """The cores that this process may run on, at least one."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        cores = os.cpu_count() or 1
    for file in _limit_files("cpu.max"):
        quota, _, period = _read(file).partition(" ")
        if quota.isdigit() and period.isdigit() and int(period) > 0:
            cores = min(cores, -(-int(quota) // int(period)))
    return max(cores, 1)


def spill_folders() -> list[str]:
    """Where Spark puts what does not fit into memory."""
    told = os.environ.get("SPARK_LOCAL_DIRS")
    return [folder for folder in told.split(",") if folder] if told else [tempfile.gettempdir()]


def free_bytes(folder: str) -> int | None:
    """The room left for us on the file system of ``folder``; None where it does not exist."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def _limit_files(name: str, old_name: str | None = None) -> list[Path]:
    """Files with the limits of this process's control group and of all above it (cgroup v2, then v1)."""
    files = []
    for line in _read(Path("/proc/self/cgroup")).splitlines():
        if line.startswith("0::/"):
            group = _CGROUP / line[4:]
            while group.is_relative_to(_CGROUP):
                files.append(group / name)
                group = group.parent
    if old_name:
        files.append(_CGROUP / old_name)
    return files


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
