"""The job whose tasks stay: threads in place of Spark's workers."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lastwrite.errors import LogError
from lastwrite.model.progress import NoProgress
from lastwrite.spark import standing_job
from lastwrite.spark.standing_job import StandingJob
from lastwrite.storage.meeting import Tasks

WORKERS = 2


class Threads:
    """A job of so many threads."""

    def __init__(self, serve: Callable[[int], None]) -> None:
        self.name = ""
        self._pool = ThreadPoolExecutor(WORKERS)
        self._done: list[Future[None]] = [self._pool.submit(serve, n) for n in range(WORKERS)]

    @property
    def has_ended(self) -> bool:
        return all(each.done() for each in self._done)

    def result(self) -> Any:
        for each in self._done:
            if each.exception() is not None:
                raise LogError(f"stage {self.name}: {each.exception()}")

    def cancel(self) -> None:
        """A thread goes on."""


class Begun:
    """Begins jobs, and keeps them."""

    def __init__(self) -> None:
        self.jobs: list[Threads] = []

    def __call__(self, serve: Callable[[int], None]) -> Threads:
        self.jobs.append(Threads(serve))
        return self.jobs[-1]


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def made(job: StandingJob, calls: list[Callable[[], Any]], stage: str = "scan") -> list[Any]:
    names = job.lay_out(stage, [pickle.dumps(call) for call in calls])
    answers = job.wait(stage, names, [1] * len(calls), NoProgress())
    return [answer for _, answer in answers]


def square(number: int) -> int:
    return number * number


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_one_job_serves_many_stages(scratch: Path) -> None:
    begin = Begun()
    job = StandingJob(begin)
    for stage in range(5):
        assert made(job, [partial(square, n) for n in range(stage, 9)]) == [
            n * n for n in range(stage, 9)
        ]
    assert len(begin.jobs) == 1 and not begin.jobs[0].has_ended
    job.end()
    until(lambda: begin.jobs[0].has_ended)
    begin.jobs[0].result()
    assert list(scratch.iterdir()) == []


def test_whoever_is_free_takes_the_next() -> None:
    job = StandingJob(Begun())
    first = threading.Event()
    standing_job_events[0] = first

    assert made(job, [wait_for_first, *[set_first] * 5]) == ["waited", *["set"] * 5]
    job.end()


standing_job_events: dict[int, threading.Event] = {}


def wait_for_first() -> str:
    assert standing_job_events[0].wait(30)
    return "waited"


def set_first() -> str:
    standing_job_events[0].set()
    return "set"


def test_tasks_end_when_nobody_comes_and_another_job_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(standing_job, "_IDLE_SECONDS", 0.05)
    begin = Begun()
    job = StandingJob(begin)
    assert made(job, [partial(square, 3)]) == [9]
    until(lambda: begin.jobs[0].has_ended)
    assert made(job, [partial(square, 4)] * 3) == [16] * 3
    assert len(begin.jobs) == 2
    job.end()


def test_none_ends_while_another_is_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standing_job, "_IDLE_SECONDS", 0.05)
    begin = Begun()
    job = StandingJob(begin)
    assert made(job, [partial(time.sleep, 0.5)]) == [None]
    assert not begin.jobs[0]._done[0].done() and not begin.jobs[0]._done[1].done()
    job.end()


def test_what_a_dead_task_was_at_is_done_anew(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark begins the task again, with its number."""
    died: list[int] = []

    def begin(serve: Callable[[int], None]) -> Threads:
        def serving(number: int) -> None:
            tasks = Tasks(str(next(scratch.glob("*/meeting"))))
            until(lambda: bool(tasks.look()))
            if not died and tasks.take(tasks.look() or [], number):  # and dies
                died.append(number)
            if died == [number]:
                monkeypatch.setattr(standing_job, "is_repeated", lambda: True)
            serve(number)

        return Threads(serving)

    job = StandingJob(begin)
    assert made(job, [partial(square, n) for n in range(6)]) == [0, 1, 4, 9, 16, 25]
    assert died
    job.end()


def test_a_job_that_fails_says_of_which_stage() -> None:
    def begin(serve: Callable[[int], None]) -> Threads:
        def fail(number: int) -> None:
            raise RuntimeError("no worker lives")

        return Threads(fail)

    job = StandingJob(begin)
    with pytest.raises(LogError, match="stage elect: no worker lives"):
        made(job, [partial(square, 1)], "elect")
    job.end()


def test_without_its_folder_nothing_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    job = StandingJob(Begun())
    names = job.lay_out("scan", [pickle.dumps(partial(time.sleep, 0.2))])
    job.end()
    with pytest.raises(LogError, match="has gone"):
        job.wait("scan", names, [1], NoProgress())
