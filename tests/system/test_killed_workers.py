"""Tests of processes that die during a round.

The task of a dead worker is repeated, and a dead JVM ends the round.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import lastwrite
from lastwrite.errors import LogError
from lastwrite.reports.compaction import Status
from lastwrite.spark import folder_exchange, shuffle_exchange
from lastwrite.spark.inline import INLINE
from lastwrite.spark.launcher.jvm import Jvm
from lastwrite.spark.session import _end_launched, _forget, spark_session
from tests.support.files import contents
from tests.support.sample import some
from tests.system.test_spark import NOW, make_root

pytestmark = pytest.mark.spark
# "none" is the default for logs as small as these.
EXCHANGES = {
    "folder": (
        folder_exchange,
        {"scan": "scan_to_folder", "elect": "elect_and_mark", "rewrite": "rewrite_staged"},
    ),
    "shuffle": (
        shuffle_exchange,
        {"scan": "_scan_rows", "elect": "_elect_parts", "rewrite": "_rewrite_scanned"},
    ),
    "none": (
        folder_exchange,
        {"compact": "_collect_one_stage"},
    ),
}
STAGES = ("scan", "elect", "rewrite")
CONFIG = {"cleanup.policy": "compact", "segment.bytes": 3000, "min.cleanable.dirty.ratio": 0}


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("SPARK_", "PYSPARK_"))]:
        monkeypatch.delenv(name)
    pyspark: Any = sys.modules.get("pyspark")
    if pyspark is not None and pyspark.SparkContext._active_spark_context is None:
        gateway = pyspark.SparkContext._gateway  # a JVM from another test has other folders
        _forget(None, gateway)
        _end_launched(gateway)


def asked(way: str) -> dict[str, str]:
    return {} if way == "none" else {"spark.lastwrite.exchange": way}


@pytest.fixture(scope="module", params=some(EXCHANGES, 2))
def session(request: pytest.FixtureRequest) -> Iterator[tuple[Any, str]]:
    with spark_session("local[2]", asked(request.param)) as session:
        yield session, request.param


def files(root: Path) -> dict[str, bytes]:
    return contents(root, but=(".lock",))


@pytest.fixture
def roots(tmp_path: Path) -> tuple[Path, Path]:
    """A log root, and a copy of it after an undisturbed round."""
    root, twin = make_root(tmp_path / "root"), tmp_path / "twin"
    shutil.copytree(root, twin)
    lastwrite.compact(str(twin), topic="t", config=CONFIG, now_ms=NOW, spark=INLINE)
    assert files(root) != files(twin)
    return root, twin


def kill_in(
    monkeypatch: pytest.MonkeyPatch,
    way: str,
    stage: str,
    told: Path,
    victim: Callable[[], int],
    times: int = 1,
) -> None:
    """Let a worker kill ``victim`` when a task has written its result but not reported it.

    ``told`` is a folder in which the workers count the kills, at most ``times``.
    """
    module, names = EXCHANGES[way]
    work = getattr(module, names[stage])
    told.mkdir()
    folder = str(told)

    def kill() -> None:
        for n in range(times):
            try:
                os.close(os.open(f"{folder}/{n}", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            os.kill(victim(), signal.SIGKILL)

    def one(*arguments: Any, **more: Any) -> Any:
        result = work(*arguments, **more)
        kill()
        return result

    def many(*arguments: Any) -> Iterator[Any]:
        for answer in list(work(*arguments)):
            kill()
            yield answer

    gives_one = (way, stage) == ("shuffle", "rewrite")
    monkeypatch.setattr(module, names[stage], one if gives_one else many)


def java_below(number: int) -> int:
    """The process id of the JVM. While it writes the class archive, its parent is a shell."""
    first = psutil.Process(number)
    return next(
        each.pid
        for each in (first, *first.children(recursive=True))
        if each.name().startswith("java")
    )


@pytest.mark.parametrize("parent", ["daemon", "fork server"])
def test_killed_parent_of_workers_is_replaced(
    roots: tuple[Path, Path], parent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both parents are replaced if they are needed again, and the round ends."""

    def victim() -> int:
        above = psutil.Process().parents()
        os.kill(os.getpid(), signal.SIGKILL) if len(above) < 2 else None
        return int(above[0].pid if parent == "daemon" else above[1].pid)

    root, twin = roots
    kill_in(monkeypatch, "none", "compact", tmp_path / "told", victim)
    report = lastwrite.compact(str(root), topic="t", config=CONFIG, now_ms=NOW, master="local[2]")
    assert [each.status for each in report.partitions] == [Status.CLEANED] * 3
    assert files(root) == files(twin)


def test_single_attempt_can_be_configured(
    roots: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, _ = roots
    before = files(root)
    kill_in(monkeypatch, "none", "compact", tmp_path / "told", lambda: os.getpid())
    with pytest.raises(LogError, match="a worker process was killed or crashed —"):
        lastwrite.compact(str(root), topic="t", config=CONFIG, now_ms=NOW, master="local[2,1]")
    assert files(root) == before


@pytest.mark.parametrize("way", some(["folder", "shuffle"], 1))
@pytest.mark.parametrize("stage", some(["compact", *STAGES], 2))
def test_killed_jvm_ends_the_round(
    roots: tuple[Path, Path], way: str, stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, twin = roots
    way = "none" if stage == "compact" else way
    before = files(root)
    (tmp_path / "t").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "t"))
    monkeypatch.setattr("tempfile.tempdir", None)
    number = tmp_path / "jvm"
    gateway = Jvm.gateway

    def note(jvm: Jvm) -> Any:
        number.write_text(str(jvm._process.pid))
        return gateway(jvm)

    monkeypatch.setattr(Jvm, "gateway", note)
    # Another test triggers the OOM killer, whose counter is for the whole machine.
    monkeypatch.setattr("lastwrite.spark.launcher.jvm.memory_kill_since", lambda _: None)
    monkeypatch.setattr("lastwrite.spark.runner.memory_kill_since", lambda _: None)
    with monkeypatch.context() as patch:
        kill_in(patch, way, stage, tmp_path / "told", lambda: java_below(int(number.read_text())))
        try:
            lastwrite.compact(
                str(root),
                topic="t",
                config=CONFIG,
                now_ms=NOW,
                master="local[2]",
                conf=asked(way),
            )
        except LogError as error:
            # the running tasks may end before the missing JVM is noticed
            later = "|".join(STAGES[STAGES.index(stage) :] if stage in STAGES else [stage])
            assert re.search(f"stage ({later}): Spark's JVM was killed by signal 9", str(error))
            assert "memory" not in str(error)
            assert files(root) == before
        else:
            assert stage in ("rewrite", "compact") and files(root) == files(twin)
    assert list((tmp_path / "t").iterdir()) == []
    lastwrite.compact(str(root), topic="t", config=CONFIG, now_ms=NOW, spark=INLINE)
    assert files(root) == files(twin)


# ---------------------------------------------------------------------- one session for all; the
# runs last in this module


@pytest.mark.parametrize("place", range(3))
def test_task_of_a_killed_worker_is_repeated(
    session: tuple[Any, str],
    roots: tuple[Path, Path],
    place: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spark, way = session
    root, twin = roots
    _, names = EXCHANGES[way]
    if place >= len(names):
        pytest.skip("it has one stage")
    stage = [*names][place]
    kill_in(monkeypatch, way, stage, tmp_path / "told", lambda: os.getpid())
    report = lastwrite.compact(str(root), topic="t", config=CONFIG, now_ms=NOW, spark=spark)
    assert [each.status for each in report.partitions] == [Status.CLEANED] * 3
    assert len(list((tmp_path / "told").iterdir())) == 1
    assert files(root) == files(twin)  # equal bytes, and no file of the first attempt


def test_task_that_kills_every_worker_ends_the_round(
    session: tuple[Any, str],
    roots: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spark, way = session
    root, _ = roots
    before = files(root)
    with monkeypatch.context() as patch:
        last = [*EXCHANGES[way][1]][-1]
        kill_in(patch, way, last, tmp_path / "told", lambda: os.getpid(), times=100)
        with pytest.raises(
            LogError, match="a worker process was killed or crashed, 4 times in a row"
        ) as raised:
            lastwrite.compact(str(root), topic="t", config=CONFIG, now_ms=NOW, spark=spark)
    assert "memory" not in str(raised.value)
    assert files(root) == before
    report = lastwrite.compact(
        str(root), topic="t", config=CONFIG, now_ms=NOW, spark=spark
    )  # the session is still usable
    assert [each.status for each in report.partitions] == [Status.CLEANED] * 3
