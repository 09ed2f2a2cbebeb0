"""Tests of several calls in one program: the second call uses the first one's Spark, and the
program ends silently.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.test_spark import make_root

pytestmark = pytest.mark.spark

START = """
import gc, os, shutil, sys, time
import psutil
import lastwrite
from lastwrite.errors import LogError
from lastwrite.model.progress import NoProgress
from lastwrite.spark import session_pool
from lastwrite.spark.use import runner_for

def compact():
    shutil.rmtree("copy", ignore_errors=True)
    shutil.copytree("root", "copy")
    report = lastwrite.compact("copy", topic="t", master="local[1]")
    assert report.exit_status == 0 and report.profile["compact"]

def call():
    compact()
    return jvm()

def jvm():
    (found,) = [each for each in children() if "java" in each.name()]
    return found

def children():
    return psutil.Process().children(recursive=True)

def wait_for(condition):
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)
"""


def run(program: str, folder: Path) -> None:
    """Run the program without a class archive, which the JVM would write at its end.

    It must print nothing and leave nothing.
    """
    make_root(folder / "root")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SPARK_", "PYSPARK_"))}
    done = subprocess.run(
        [sys.executable, "-c", START + program],
        cwd=folder,
        env={**clean, "TMPDIR": str(folder), "XDG_CACHE_HOME": "/dev/null"},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.stderr == ""
    assert done.returncode == 0
    assert sorted(path.name for path in folder.iterdir()) == ["copy", "root"]


def test_second_call_uses_the_spark_of_the_first(tmp_path: Path) -> None:
    run(
        """
first = call()
from pyspark import SparkContext
assert SparkContext._gateway is SparkContext._active_spark_context is None
boot = session_pool._parked[1]._boot
assert set(os.listdir()) - {"copy", "root"} <= {each.name for each in (boot.folder, *boot._spill)}
assert lastwrite.verify("copy", before="root", master="local[1]").exit_status == 0
assert jvm() == call() == first
assert lastwrite.plan("root", topic="t", master="local[1]").exit_status == 0
assert jvm() == first

child = os.fork()
if child == 0:
    session_pool.end()
    sys.exit(session_pool.take("local[1]", {}) is not None)
assert os.waitpid(child, 0)[1] == 0
assert call() == first  # a fork leaves it alone

os.environ["ANOTHER"] = "environment"
second = call()
assert second != first and not first.is_running()
second.kill()
third = call()  # one that died is not taken
assert third != second
gc.collect()
session_pool.end()
wait_for(lambda: not children())
""",
        tmp_path,
    )


def test_idle_or_failed_session_ends(tmp_path: Path) -> None:
    run(
        """
session_pool.SECONDS_PARKED = 0.0
compact()
wait_for(lambda: not children())
assert session_pool._parked is None

session_pool.SECONDS_PARKED = 600.0
with runner_for(None, "local[1]", None, {}, NoProgress()) as (runner, _):
    try:
        runner.run("scan", lambda unit: os._exit(1), [1], [1], NoProgress())
    except LogError as error:
        assert "a worker process was killed or crashed" in error.problem
    else:
        raise AssertionError
assert session_pool._parked is None
wait_for(lambda: not children())

with runner_for(None, "local[1]", None, {}, NoProgress()) as (runner, _):
    context = runner.context
    assert context.parallelize([1]).count() == 1
    jvm().kill()
    try:
        context.parallelize([1]).count()
    except ConnectionError:
        pass
    else:
        raise AssertionError
assert session_pool._parked is None
wait_for(lambda: not children())
""",
        tmp_path,
    )


@pytest.mark.long
def test_threads_wait_for_the_session_only_if_they_need_spark(tmp_path: Path) -> None:
    run(
        """
import threading
from concurrent.futures import ThreadPoolExecutor

class Told(NoProgress):
    def __init__(self):
        self.notes = []
    def note(self, text):
        self.notes.append(text)

def plan(master, progress):
    report = lastwrite.plan("root", topic="t", master=master, progress=progress)
    return report.to_dict()["totals"]["records_after"], jvm()

shutil.copytree("root", "copy")
told = [Told() for _ in range(4)]
with ThreadPoolExecutor(4) as threads:
    masters = ["local[1]", "local[2]", "local[1]", "local[1]"]
    plans = list(threads.map(plan, masters, told))
assert len({records for records, _ in plans}) == 1
waited = [any("waiting for another call" in note for note in each.notes) for each in told]
assert any(waited) and not all(waited), told

entered, leave = threading.Event(), threading.Event()

def hold(is_daemon):
    with runner_for(None, "local[1]", None, {}, NoProgress(), is_daemon=is_daemon) as (runner, _):
        entered.set()
        assert leave.wait(120)
        return runner.run("scan", lambda unit: unit + 1, [1], [1], NoProgress())

with ThreadPoolExecutor(2) as threads:
    held = threads.submit(hold, False)
    assert entered.wait(120)
    assert lastwrite.inspect("root", topic="t").partitions[0].contents.records  # does not wait
    assert lastwrite.latest("root", "t")
    waits = threads.submit(plan, "local[1]", NoProgress())
    leave.set()
    assert held.result() == [2] and waits.result()[0] == plans[0][0]

    entered.clear()
    leave.clear()
    held = threads.submit(hold, True)
    assert entered.wait(120)
    try:
        plan("local[1]", NoProgress())
    except LogError as error:
        assert "clean runs in this process" in error.problem and "spark=" in error.remedy
    else:
        raise AssertionError
    leave.set()
    assert held.result() == [2]
assert plan("local[1]", NoProgress())[0] == plans[0][0]
""",
        tmp_path,
    )
