"""Tests of a command killed at any moment of its start.

It leaves no process, and removes nothing of a running one.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
import uuid
from pathlib import Path

import psutil
import pytest

from lastwrite.demo.topic_writer import TopicWriter
from lastwrite.model.log import TopicPartition
from lastwrite.storage.run_folder import make_folder, remove_folder

pytestmark = pytest.mark.spark
NAME = "LASTWRITE_TEST_RUN"


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A value in the environment of all processes that the tests start, directly or indirectly."""
    for name in [name for name in os.environ if name.startswith(("SPARK_", "PYSPARK_"))]:
        monkeypatch.delenv(name)
    (tmp_path / "t").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "t"))
    mark = uuid.uuid4().hex
    monkeypatch.setenv(NAME, mark)
    return mark


def started(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if (
                process.environ().get(NAME) == mark
                and process.pid != os.getpid()
                and process.status() != "zombie"
            ):
                found.append(process)
        except psutil.Error:
            pass
    return found


def wait_until_gone(mark: str, seconds: float) -> None:
    end = time.monotonic() + seconds
    while left := started(mark):
        assert time.monotonic() < end, [" ".join(process.cmdline())[:200] for process in left]
        time.sleep(0.2)


def write_log(root: Path) -> Path:
    with TopicWriter(
        str(root), TopicPartition("t", 0), segment_bytes=8000, batch_bytes=600
    ) as writer:
        for n in range(2000):
            writer.append(b"key-%d" % (n % 20), b"value-%d" % n, 1_700_000_000_000 + n)
    return root


def command(root: Path) -> list[str]:
    return [
        sys.executable,
        "-m",
        "lastwrite.cli",
        "plan",
        str(root),
        "--topic",
        "t",
        "--config",
        "min.cleanable.dirty.ratio=0",
    ]


@pytest.mark.parametrize(
    "kills",
    [pytest.param(8, marks=pytest.mark.slow), pytest.param(50, marks=pytest.mark.long)],
    ids=str,
)
def test_killed_start_leaves_no_process(tmp_path: Path, mark: str, kills: int) -> None:
    root, rng = write_log(tmp_path / "log"), random.Random(kills)
    for _ in range(kills):
        run = subprocess.Popen(command(root), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(rng.uniform(0, 3) if kills > 10 else rng.uniform(0.2, 1.2))
        run.kill()
        run.wait()
    after = subprocess.run(command(root), capture_output=True, text=True, timeout=120, check=False)
    assert after.returncode == 0, after.stderr
    wait_until_gone(mark, 60)
    remove_folder(make_folder(str(tmp_path / "t")))
    assert list((tmp_path / "t").iterdir()) == []


def test_killed_first_run_leaves_the_class_archive_to_the_next(
    tmp_path: Path, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the JVM writes the class archive, it runs below a shell. Both end, and the file that
    marks an attempt is removed.
    """
    cache = tmp_path / "cache" / "lastwrite"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache.parent))
    run = subprocess.Popen(command(write_log(tmp_path / "log")), stderr=subprocess.DEVNULL)
    end = time.monotonic() + 120
    while not list(cache.glob("*.tried")):
        assert time.monotonic() < end
        time.sleep(0.01)
    time.sleep(0.3)
    run.kill()
    run.wait()
    wait_until_gone(mark, 60)
    assert list(cache.iterdir()) == []


def test_folder_of_another_process_is_kept(tmp_path: Path) -> None:
    """The process that created the folder has ended. Another process has its open file, so it is
    kept.
    """
    code = (
        "import os, subprocess, sys\n"
        "from lastwrite.storage.run_folder import hold_of, make_folder\n"
        "folder = make_folder(sys.argv[1])\n"
        "subprocess.Popen(['sleep', '60'], pass_fds=[hold_of(folder)], stdin=subprocess.DEVNULL, stdout=2)\n"
        "print(folder, flush=True)\n"
        "os._exit(0)"  # ends as if killed: an orderly exit would remove the folder
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    folder = Path(done.stdout.strip())
    remove_folder(make_folder(str(tmp_path)))
    assert folder.exists()
    (held,) = [process for process in psutil.process_iter() if holds(process, folder)]
    held.kill()
    end = time.monotonic() + 120
    while folder.exists():
        assert time.monotonic() < end
        remove_folder(make_folder(str(tmp_path)))


def holds(process: psutil.Process, folder: Path) -> bool:
    try:
        return any(Path(file.path).parent == folder for file in process.open_files())
    except psutil.Error:
        return False
