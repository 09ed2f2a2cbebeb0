"""Tests of our jobs in a caller's session.

The jobs have our names, and the caller's settings and jobs are unchanged.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lastwrite
from lastwrite.errors import InvalidConfig, LogError
from lastwrite.model.progress import NoProgress
from lastwrite.spark.runner import SparkRunner
from lastwrite.spark.session import GivenSpark, spark_session, start_ahead
from tests.system.test_spark import NOW, make_root

pytestmark = pytest.mark.spark
GROUP, DESCRIPTION = "spark.jobGroup.id", "spark.job.description"
OURS = (GROUP, DESCRIPTION, "spark.job.interruptOnCancel", "spark.scheduler.pool")


@pytest.fixture(
    scope="module", params=["folder", pytest.param("shuffle", marks=pytest.mark.long), None]
)
def session(request: pytest.FixtureRequest) -> Iterator[Any]:
    way = {"spark.lastwrite.exchange": request.param} if request.param else {}
    with spark_session("local[2]", way) as session:
        yield session


def properties(context: Any) -> list[str | None]:
    return [context.getLocalProperty(name) for name in OURS]


@pytest.mark.parametrize("was_set", [False, True])
def test_jobs_have_the_stage_name_and_the_callers_settings_stay(
    session: Any, was_set: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = session.sparkContext
    inside: dict[str, list[str | None]] = {}
    collect = type(context.parallelize([1])).collect

    def note(rdd: Any) -> Any:
        inside[context.getLocalProperty(DESCRIPTION)] = properties(context)
        return collect(rdd)

    monkeypatch.setattr(type(context.parallelize([1])), "collect", note)
    if was_set:
        context.setJobGroup("mine", "what I do", interruptOnCancel=False)
        context.setLocalProperty("spark.scheduler.pool", "night")
    before = properties(context)
    try:
        lastwrite.compact(str(make_root(tmp_path / "root")), topic="t", now_ms=NOW, spark=session)
        assert properties(context) == before
        assert before == (["mine", "what I do", "false", "night"] if was_set else [None] * 4)
    finally:
        for name in OURS:
            context.setLocalProperty(name, None)
    is_named = context.getConf().contains("spark.lastwrite.exchange")
    stages = ["scan", "elect", "rewrite"] if is_named else ["compact"]
    assert list(inside) == [f"lastwrite: {stage}" for stage in stages]
    for description, (group, _, interrupts, pool) in inside.items():
        assert group is not None and group.startswith(f"{description} ")
        # our jobs run in the caller's scheduler pool
        assert (interrupts, pool) == (
            "true",
            "night" if was_set else None,
        )
    assert len({group for group, *_ in inside.values()}) == len(stages)


def test_cancelling_our_jobs_keeps_the_callers(session: Any, tmp_path: Path) -> None:
    context = session.sparkContext
    theirs: list[Any] = []

    def work() -> None:
        try:
            theirs.extend(
                context.parallelize(range(1), 1).map(lambda x: time.sleep(6) or x).collect()
            )
        except Exception as error:
            theirs.append(error)

    caller = threading.Thread(target=work)
    caller.start()
    runner = SparkRunner(GivenSpark(session), 2)
    failed: list[Exception] = []

    def ours() -> None:
        try:
            runner.run("scan", lambda unit: time.sleep(30), [1], [1], NoProgress())
        except Exception as error:
            failed.append(error)

    waiting = threading.Thread(target=ours)
    waiting.start()
    time.sleep(3)
    began = time.monotonic()
    runner.cancel()
    waiting.join()
    assert time.monotonic() - began < 25  # less than the 30 s that the task would take
    caller.join()
    assert theirs == [0]
    assert isinstance(failed[0], LogError) and failed[0].problem == "the work was stopped"
    with pytest.raises(LogError, match="the work was stopped"):  # no further job starts
        runner.run("elect", lambda unit: unit, [1], [1], NoProgress())


def test_interrupt_ends_only_our_job(session: Any) -> None:
    """Ctrl-C in a program whose session lacks PySpark's signal handler raises an exception and
    cancels our job.
    """
    context = session.sparkContext
    runner = SparkRunner(GivenSpark(session), 2)
    threading.Timer(2, os.kill, [os.getpid(), signal.SIGINT]).start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        runner.run("scan", lambda unit: time.sleep(30), [1], [1], NoProgress())
    assert time.monotonic() - began < 25
    end = time.monotonic() + 120
    while context.statusTracker().getActiveJobsIds():
        assert time.monotonic() < end
        time.sleep(0.1)
    assert context.parallelize([1, 2], 2).sum() == 3


def test_jvm_launched_by_pyspark_for_us_ends_with_our_session() -> None:
    """The next JVM must start with the environment of its own time. Regression: a daemon came from
    another test's JVM.
    """
    program = (
        "from lastwrite.spark.session import spark_session\n"
        "from pyspark import SparkContext\n"
        "with spark_session('local[1]', {'spark.ui.showConsoleProgress': 'false'}):\n"
        "    gateway = SparkContext._gateway\n"
        "assert gateway.proc.poll() is not None and SparkContext._gateway is None\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


@pytest.mark.long
def test_spark_launcher_option_uses_pysparks_jvm(tmp_path: Path) -> None:
    """With ``spark.lastwrite.launcher=spark`` PySpark starts the JVM and its workers.

    This JVM is reused like ours, can coexist with a caller's session, and ends with the program.
    """
    root = make_root(tmp_path / "root")
    program = (
        "import os, sys, lastwrite\n"
        "from lastwrite.spark import session_pool\n"
        "def gateway():\n"
        "    report = lastwrite.compact(sys.argv[1], topic='t',"
        " config={'cleanup.policy': 'compact'},"
        " to=f'{sys.argv[1]}-{len(os.listdir(os.path.dirname(sys.argv[1])))}',"
        " master='local[1]', conf={'spark.lastwrite.launcher': 'spark'})\n"
        "    assert report.exit_status == 0 and session_pool._parked[1]._boot is None\n"
        "    return session_pool._parked[1]._gateway\n"
        "first = gateway()\n"
        "assert first.proc.poll() is None and gateway() is first\n"
        "from pyspark.sql import SparkSession\n"
        "mine = SparkSession.builder.master('local[1]').getOrCreate()\n"
        "assert mine.sparkContext._gateway is not first\n"
        "session_pool.end()\n"
        "assert first.proc.poll() is not None\n"
        "assert mine.sparkContext.parallelize([1, 2]).sum() == 3\n"
    )
    subprocess.run([sys.executable, "-c", program, str(root)], check=True, timeout=600)


def test_session_started_ahead_uses_our_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: an earlier command had started a session without using it, and the environment
    changed afterwards.
    """
    start_ahead("local[1]", {}, print)
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    with spark_session("local[1]", {}) as session:
        found = session.sparkContext.parallelize([1], 1).map(lambda _: sys.executable).collect()
    assert found == [sys.executable]


def test_unknown_launcher_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="spark.lastwrite.launcher is 'slow'"):
        lastwrite.compact(
            str(make_root(tmp_path / "root")), topic="t", conf={"spark.lastwrite.launcher": "slow"}
        )
