"""The memory, cores and disk space available to this process, with container limits."""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_PROC = Path("/proc")
# Added to oom_score_adj of the JVM and the workers, so that they are killed before the driver. The
# unit is a thousandth of the machine's memory: see choom(1).
MORE_LIKELY_TO_GO = 250
_JAVAS_ADDRESSES = 8 << 30
MORE_ADDRESSES = (
    "run `ulimit -v unlimited` first, because Java reserves more addresses than it uses; limit "
    "memory with --memory SIZE or a container"
)
MORE_SPACE = "free some space, or set TMPDIR and SPARK_LOCAL_DIRS to folders with more space"
LESS_MEMORY = (
    "nothing was swapped; raise this limit, or use less memory: --memory SIZE, --master local[1]"
)


def tight_address_limit() -> int | None:
    """The limit of this process's address space, if Java may need more.

    Java reserves far more addresses than it uses memory. None means that the limit is no problem.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return soft if 0 <= soft < _JAVAS_ADDRESSES else None


def memory_bytes() -> int:
    """The memory that this process and its children may use: the machine's or its container's."""
    return _lowest_limit()[0]


def _lowest_limit() -> tuple[int, Path | None]:
    """The lowest memory limit in bytes, and the file that sets it.

    The file is None if the machine's memory is the lowest limit.
    """
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits: list[tuple[int, Path | None]] = [(total, None)]
    for file in _limit_files("memory.max", "memory/memory.limit_in_bytes"):
        text = _read(file)
        if text.isdigit():
            limits.append((int(text), file))
    return min(limits, key=lambda limit: limit[0])


def memory_kills() -> dict[Path, int]:
    """The number of processes killed for lack of memory, by the file that counts them.

    Empty if the system does not count them.

    Source: Linux, Documentation/admin-guide/cgroup-v2.rst (``memory.events``), cgroup-v1/memory.rst
    (``memory.oom_control``), mm/oom_kill.c (``oom_kill`` in ``/proc/vmstat``, of the whole
    machine).
    """
    found = {}
    for file in (*_limit_files("memory.events", "memory/memory.oom_control"), _PROC / "vmstat"):
        for line in _read(file).splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill" and count.isdigit():
                found[file] = int(count)
    return found


def memory_kill_since(before: Mapping[Path, int]) -> str | None:
    """The memory limit that was exceeded, as text, if the kernel killed a process since ``before``.

    None if none was killed.
    """
    if all(count <= before.get(file, 0) for file, count in memory_kills().items()):
        return None
    limit, file = _lowest_limit()
    of = "the memory of this machine" if file is None else "the limit of this control group"
    return f"{of}, {limit >> 20} MiB" + ("" if file is None else f" ({file})")


def raise_oom_score() -> None:
    """Let the kernel kill this process and its children before the driver when memory runs out.

    The task of a killed worker is retried. If the JVM is killed, the driver can report the cause.
    If the driver is killed, nothing can be reported.
    """
    file = _PROC / "self/oom_score_adj"
    adjust = _read(file)
    if adjust.lstrip("-").isdigit():
        with suppress(OSError):
            file.write_text(str(min(1000, int(adjust) + MORE_LIKELY_TO_GO)))


def available_bytes() -> int:
    """The memory that is free now, in bytes, at most ``memory_bytes``."""
    import psutil

    return min(int(psutil.virtual_memory().available), memory_bytes())


def core_count() -> int:
    """The number of cores that this process may use, at least one."""
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
    """The folders where Spark spills data that does not fit into memory."""
    told = os.environ.get("SPARK_LOCAL_DIRS")
    return [folder for folder in told.split(",") if folder] if told else [tempfile.gettempdir()]


def mount_of(path: str) -> str:
    """The mount point of the file system that contains a path."""
    path = os.path.realpath(path)
    while not os.path.ismount(path):
        path = os.path.dirname(path)
    return path


def free_bytes(folder: str) -> int | None:
    """The free space on the file system of ``folder``. None if the folder does not exist."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def _limit_files(name: str, old_name: str | None = None) -> list[Path]:
    """The limit files of this process's control groups.

    A file has the name ``name`` in version 2 and ``old_name`` in version 1. In a container, the
    group may appear as the root, regardless of its path.
    """
    files = []
    controller, _, old_file = (old_name or "").partition("/")
    for line in _read(_PROC / "self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2) if line.count(":") >= 2 else ("", "-", "")
        if not controllers:
            home, file = _CGROUP, name
        elif controller and controller in controllers.split(","):
            home, file = _CGROUP / controller, old_file
        else:
            continue
        group = home / path.lstrip("/")
        while group.is_relative_to(home):
            files.append(group / file)
            group = group.parent
    if old_name and _CGROUP / old_name not in files:
        files.append(_CGROUP / old_name)
    return files


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
