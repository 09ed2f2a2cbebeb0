"""Tests of waves that run as one stage each.

The driver plans the next wave meanwhile, and a thread commits the last one.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from threading import Event
from typing import Any
from unittest.mock import patch

import pytest

import lastwrite
from lastwrite.engine import commit, plan, round
from lastwrite.model.work import PendingResult
from lastwrite.reports.compaction import Status
from lastwrite.spark.inline import INLINE
from lastwrite.spark.work import InlineRunner
from tests.golden.commands import CORPUS
from tests.support.files import contents

PARTITIONS = 7


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The order of events, one letter for each. A wave has two partitions and runs in one stage."""
    told: list[str] = []
    begin = InlineRunner.begin_tasks

    def later(self: Any, name: str, *given: Any) -> PendingResult[Any]:
        if name != "compact":
            return begin(self, name, *given)
        told.append("begin")

        def result() -> Any:
            told.append("end")
            return begin(self, name, *given).result()

        return PendingResult(result, lambda: told.append("cancel"))

    def noting(name: str, work: Any) -> Any:
        def noted(*given: Any) -> Any:
            told.append(name)
            return work(*given)

        return noted

    monkeypatch.setattr(InlineRunner, "begin_tasks", later)
    monkeypatch.setattr(round, "_FEW_PARTITIONS", 2)
    monkeypatch.setattr(round, "plan_partition", noting("plan", plan.plan_partition))
    monkeypatch.setattr(round, "commit", noting("commit", commit.commit))
    monkeypatch.setattr(round, "fits_one_stage", lambda _, wave: bool(wave))
    return told


def make(root: Path) -> Path:
    for number in range(PARTITIONS):
        shutil.copytree(CORPUS / "kafka-4.4.0" / "stopped" / "client-none-0", root / f"t-{number}")
    return root


def compacted(root: Path) -> Any:
    return lastwrite.compact(
        str(root),
        config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"},
        now_ms=1_900_000_000_000,
        spark=INLINE,
    )


def test_driver_works_while_workers_do(tmp_path: Path, told: list[str]) -> None:
    root = make(tmp_path / "one")
    report = compacted(root)
    a_wave = ["plan", "plan", "end", "begin"]
    assert [each for each in told if each != "commit"] == [
        *(*a_wave[:2], "begin"),
        *(*a_wave, *a_wave),
        *("plan", "end", "begin", "end"),
    ]
    assert told.count("commit") == 4
    assert [each.partition for each in report.partitions] == list(range(PARTITIONS))
    assert {each.status for each in report.partitions} == {Status.CLEANED}
    other = make(tmp_path / "other")
    with patch.object(round, "fits_one_stage", lambda *_: False):
        compacted(other)
    assert contents(root) == contents(other)


def test_next_wave_is_planned_during_a_commit(
    tmp_path: Path, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    planned, waited = Event(), []
    noted_plan, noted_commit = round.plan_partition, round.commit

    def plan_one(*given: Any) -> Any:
        if told.count("plan") == 4:
            planned.set()
        return noted_plan(*given)

    def commit_one(*given: Any) -> Any:
        waited.append(planned.wait(30))
        return noted_commit(*given)

    monkeypatch.setattr(round, "plan_partition", plan_one)
    monkeypatch.setattr(round, "commit", commit_one)
    compacted(make(tmp_path / "root"))
    assert waited == [True] * 4


def test_interrupt_waits_for_the_running_commit(
    tmp_path: Path, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    noted_plan, noted_commit = round.plan_partition, round.commit

    def plan_one(*given: Any) -> Any:
        if told.count("plan") == 4:
            raise KeyboardInterrupt
        return noted_plan(*given)

    def commit_one(*given: Any) -> Any:
        time.sleep(0.3)
        reports = noted_commit(*given)
        told.append("committed")
        return reports

    monkeypatch.setattr(round, "plan_partition", plan_one)
    monkeypatch.setattr(round, "commit", commit_one)
    with pytest.raises(KeyboardInterrupt):
        compacted(make(tmp_path / "root"))
    assert told[-3:] == ["cancel", "commit", "committed"]


def test_failure_of_the_driver_cancels_the_workers_stage(
    tmp_path: Path, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(round, "commit", fail)
    with pytest.raises(KeyboardInterrupt):
        compacted(make(tmp_path / "root"))
    assert told[-3:] == ["end", "begin", "cancel"]
