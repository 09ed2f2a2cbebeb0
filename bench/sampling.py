"""Peak memory and processor seconds of a tree of processes.

A Spark program has a driver, a JVM, a fork server and workers, so that one process shows little.
RSS counts a page once for each process that uses it. PSS divides it among them, so that the sum
counts it once. Forked workers share many pages, so PSS is the memory that the machine really needs.
Both sums are reported.

Linux only: everything is read from /proc.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_PROC = Path("/proc")


@dataclass(slots=True)
class Peak:
    """The highest sums of all samples in bytes, and each kind of process's PSS at the peak."""

    pss_bytes: int = 0
    rss_bytes: int = 0
    samples: int = 0
    by_process: dict[str, int] | None = None
    python_bytes: int = 0  # PSS of the largest process other than a JVM

    def to_dict(self) -> dict[str, object]:
        mib = {name: size >> 20 for name, size in (self.by_process or {}).items()}
        return {
            "peak_pss_mib": self.pss_bytes >> 20,
            "peak_rss_mib": self.rss_bytes >> 20,
            "largest_python_mib": self.python_bytes >> 20,
            "memory_samples": self.samples,
            "at_peak_pss_mib": mib,
        }


def tree(root: int) -> list[int]:
    """The process ids of ``root`` and all its current descendants."""
    children: dict[int, list[int]] = {}
    for entry in os.scandir(_PROC):
        if not entry.name.isdigit():
            continue
        fields = _stat(int(entry.name))
        if fields:
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, ahead = [], [root]
    while ahead:
        pid = ahead.pop()
        found.append(pid)
        ahead += children.get(pid, [])
    return found


def cpu_seconds(root: int) -> float:
    """User and system seconds of the tree so far, including its children that have ended."""
    return sum(cpu_seconds_of(root).values())


def cpu_seconds_of(root: int) -> dict[str, float]:
    """The processor seconds by kind of process: driver, jvm, worker, other.

    A process that has ended counts with its parent.
    """
    found: dict[str, float] = {}
    for pid in tree(root):
        kind = _kind(pid, root)
        found[kind] = found.get(kind, 0.0) + sum(int(field) for field in _stat(pid)[11:15]) / _TICK
    return found


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third on. Empty if the process has ended."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return []
    return text[text.rindex(")") + 2 :].split()


def own_bytes(pid: int) -> int:
    """A process's anonymous memory in bytes: without pages of files, which the system can reclaim.

    Reading it does not walk page tables.
    """
    return _field(pid, "status", "RssAnon:")


def _pss(pid: int) -> int:
    return _field(pid, "smaps_rollup", "Pss:")


def _field(pid: int, file: str, name: str) -> int:
    """A field of a process's file that is in kB, in bytes. 0 if the process has ended."""
    try:
        for line in (_PROC / str(pid) / file).read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) << 10
    except OSError:
        pass
    return 0


def _rss(pid: int) -> int:
    try:
        return int((_PROC / str(pid) / "statm").read_text().split()[1]) * _PAGE
    except (OSError, IndexError):
        return 0


def _kind(pid: int, root: int) -> str:
    """The kind of a process. ``root`` is the driver, or Kafka's JVM.

    The fork server has the driver's command line, and counts as a driver.
    """
    try:
        words = (_PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return "gone"
    if b"java" in words[0].rsplit(b"/", 1)[-1]:
        return "jvm"
    if pid == root:
        return "driver"
    return "worker" if b"python" in words[0] else "other"


class Sampler:
    """Samples the tree of ``root`` until it is closed: ``with Sampler(pid) as s: ...; s.peak``.

    A sample walks the page tables of the tree, which takes some milliseconds for a gigabyte. Timed
    runs are therefore not sampled. ``every_seconds`` is the pause between samples.
    """

    def __init__(self, root: int, every_seconds: float = 0.05) -> None:
        self._root = root
        self._every = every_seconds
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.peak = Peak()

    def _run(self) -> None:
        while not self._done.is_set():
            self._sample()
            self._done.wait(self._every)

    def _sample(self) -> None:
        rss = pss = 0
        kinds: dict[str, int] = {}
        for pid in tree(self._root):
            rss += _rss(pid)
            share = _pss(pid)
            pss += share
            kind = _kind(pid, self._root)
            kinds[kind] = kinds.get(kind, 0) + share
            if kind != "jvm":
                self.peak.python_bytes = max(self.peak.python_bytes, share)
        self.peak.samples += 1
        self.peak.rss_bytes = max(self.peak.rss_bytes, rss)
        if pss > self.peak.pss_bytes:
            self.peak.pss_bytes, self.peak.by_process = pss, kinds

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()


class Stopwatch:
    """Measures wall and processor seconds of a tree: ``with Stopwatch(pid) as w: ...``."""

    def __init__(self, root: int) -> None:
        self._root = root
        self.seconds = self.cpu_seconds = 0.0
        self.cpu_seconds_of: dict[str, float] = {}

    def __enter__(self) -> Stopwatch:
        self._cpu = cpu_seconds_of(self._root)
        self._begin = time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        self.seconds = time.perf_counter() - self._begin
        self.cpu_seconds_of = {
            kind: seconds - self._cpu.get(kind, 0.0)
            for kind, seconds in cpu_seconds_of(self._root).items()
        }
        self.cpu_seconds = sum(self.cpu_seconds_of.values())


def children_cpu_seconds() -> float:
    """User and system seconds of this process's children that have ended and were waited for."""
    used = os.times()
    return used.children_user + used.children_system


def machine() -> dict[str, object]:
    """The machine's processor, memory and system."""
    name = next(
        (
            line.split(":")[1].strip()
            for line in _lines("/proc/cpuinfo")
            if line.startswith("model name")
        ),
        "?",
    )
    memory = next(
        (
            int(line.split()[1]) >> 10
            for line in _lines("/proc/meminfo")
            if line.startswith("MemTotal")
        ),
        0,
    )
    return {
        "processor": name,
        "cores": len(os.sched_getaffinity(0)),
        "memory_mib": memory,
        "load_average": os.getloadavg()[0],
    }


def _lines(path: str) -> Iterator[str]:
    try:
        yield from Path(path).read_text().splitlines()
    except OSError:
        return


def touch_memory() -> None:
    """Write to half of the free memory once, so that a virtual machine's host assigns it.

    A host assigns memory page by page, on the first write. Without this call, 433 MB of segments
    cost 0.6 s of a processor instead of 0.15.
    """
    free = os.sysconf("SC_AVPHYS_PAGES")
    room = np.empty(free // 2 * _PAGE, dtype=np.uint8)
    room[::_PAGE] = 1
