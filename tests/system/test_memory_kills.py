"""Tests of processes that the kernel kills for lack of memory, in a control group.

The command reports an error with the limit, and the log is unchanged. The tests need root and a
memory controller of cgroup v1 or v2, which CI's containers may lack.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from lastwrite.demo.topic_writer import TopicWriter
from lastwrite.model.log import TopicPartition
from tests.system.test_killed_starts import mark as mark
from tests.system.test_killed_starts import started, wait_until_gone

pytestmark = pytest.mark.spark
LIMIT_MIB = 900
TRIES = 3
BALLAST = """
import os, sys, time
open(sys.argv[1] + "/cgroup.procs", "w").write("0")
held = os.memfd_create("ballast")
while os.path.exists("/proc/" + sys.argv[2]) and ") Z " not in open("/proc/" + sys.argv[2] + "/stat").read():
    try:
        os.write(held, bytes(4 << 20))
    except OSError:
        time.sleep(0.01)
"""


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group with the memory limit ``LIMIT_MIB``, which exceeds what our
    processes need.
    """
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        home, limit = {
            "memory": ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            "": ("/sys/fs/cgroup", "memory.max"),
        }.get(controllers, (None, ""))
        if home is None:
            continue
        made = Path(home + path) / f"lastwrite-test-{uuid.uuid4().hex[:8]}"
        with contextlib.suppress(OSError):
            made.mkdir()
            try:
                (made / limit).write_text(str(LIMIT_MIB << 20))
                with contextlib.suppress(OSError):
                    (made / "memory.swap.max").write_text("0")
                yield made
            finally:
                end = time.monotonic() + 120
                while (made / "cgroup.procs").read_text() and time.monotonic() < end:
                    time.sleep(0.2)
                made.rmdir()
            return
    pytest.skip("no control group can be made here")


def test_jvm_killed_for_memory_is_reported_with_the_limit(
    group: Path, tmp_path: Path, mark: str
) -> None:
    for n in range(TRIES):
        root = tmp_path / f"log-{n}"
        write(root)
        before = {file: file.stat().st_mtime_ns for file in root.rglob("*.log")}
        status, stderr = run_until_killed(group, root, tmp_path / "said", mark)
        wait_until_gone(mark, 60)
        if status == 0:  # all tasks had ended before the JVM was killed
            continue
        assert {file: file.stat().st_mtime_ns for file in root.rglob("*.log")} == before
        if status != -signal.SIGKILL:
            break
    else:
        pytest.skip(f"the kernel took the driver itself, or came too late, {TRIES} times")
    assert status == 1
    said = stderr.splitlines()[-1]
    met = f"for memory: it reached the limit of this control group, {LIMIT_MIB} MiB ("
    assert (
        f"the system killed Spark's JVM {met}" in said
        or f"the system killed a worker {met}" in said
    )
    assert "raise this limit, or use less memory: --memory SIZE, --master local[1] [" in said
    assert "Traceback" not in stderr
    assert not list(root.rglob("*.cleaned"))


def write(root: Path) -> None:
    with TopicWriter(
        str(root), TopicPartition("t", 0), segment_bytes=8 << 20, batch_bytes=16000
    ) as writer:
        for n in range(300_000):
            writer.append(b"key-%d" % (n % 100_000), b"%d " % n * 8, 1_700_000_000_000 + n)


def run_until_killed(group: Path, root: Path, told: Path, mark: str) -> tuple[int, str]:
    """The driver's exit status and output after the kernel killed it or one of its processes."""
    with told.open("w+") as file:
        run = subprocess.Popen(
            [
                "sh",
                "-c",
                f'echo $$ > {group}/cgroup.procs; exec "$@"',
                "sh",
                sys.executable,
                "-m",
                "lastwrite.cli",
                "compact",
                str(root),
                "--topic",
                "t",
                "--memory",
                "600m",
                "--config",
                "min.cleanable.dirty.ratio=0",
            ],
            stderr=file,
            stdin=subprocess.DEVNULL,
        )
        # A file in memory takes the remaining memory. It belongs to no process, so the kernel soon
        # has to kill one of ours.
        jvm = wait_for_jvm(mark)
        subprocess.run(
            [sys.executable, "-c", BALLAST, str(group), str(jvm)], timeout=60, check=False
        )
        status = run.wait(120)
        file.seek(0)
        return status, file.read()


def wait_for_jvm(mark: str) -> int:
    """The process id of the JVM, once it uses memory."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        for process in started(mark):
            with contextlib.suppress(psutil.Error):
                if process.name() == "java" and process.memory_info().rss > 60 << 20:
                    return process.pid
        time.sleep(0.02)
    raise AssertionError("no JVM came")
