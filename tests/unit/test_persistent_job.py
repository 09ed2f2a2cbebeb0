"""Tests of the job whose tasks stay alive, with threads in place of Spark's workers."""

from __future__ import annotations

import pickle
import shutil
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
from lastwrite.spark import persistent_job
from lastwrite.spark.persistent_job import Job, PersistentJob
from lastwrite.storage.task_queue import TaskQueue, Tasks

WORKERS = 2


class Threads:
    """A job whose tasks run in this many threads."""

    def __init__(self, serve: Callable[[int], None]) -> None:
        self.stage = ""
        self._pool = ThreadPoolExecutor(WORKERS)
        self.tasks: list[Future[None]] = [self._pool.submit(serve, n) for n in range(WORKERS)]

    @property
    def has_ended(self) -> bool:
        return all(each.done() for each in self.tasks)

    def result(self) -> Any:
        for each in self.tasks:
            if each.exception() is not None:
                raise LogError(f"stage {self.stage}: {each.exception()}")

    def cancel(self) -> None:
        """A thread cannot be cancelled."""


class Threading:
    """Starts jobs and keeps them.

    A task calls ``around`` with its ``serve`` function and its number.
    """

    workers = WORKERS

    def __init__(
        self, around: Callable[[Callable[[int], None], int], None] = lambda serve, n: serve(n)
    ) -> None:
        self.jobs: list[Threads] = []
        self._around = around

    def begin_serving(self, serve: Callable[[int], None]) -> Job:
        self.jobs.append(Threads(partial(self._around, serve)))
        return self.jobs[-1]

    def take_over(self, job: Job, stage: str) -> None:
        assert isinstance(job, Threads)
        job.stage = stage


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def made(
    job: PersistentJob, owner: Threading, calls: list[Callable[[], Any]], stage: str = "scan"
) -> list[Any]:
    pickled = [pickle.dumps(call) for call in calls]
    begun = job.begin(owner, stage, pickled, [1] * len(calls), NoProgress())
    return [answer for _, answer in begun.result()]


def square(number: int) -> int:
    return number * number


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_one_job_serves_many_stages_and_owners(scratch: Path) -> None:
    owner, job = Threading(), PersistentJob()
    for stage in range(5):
        numbers = range(stage, 9)
        assert made(job, owner, [partial(square, n) for n in numbers]) == [n * n for n in numbers]
    assert len(owner.jobs) == 1 and not owner.jobs[0].has_ended
    second = Threading()
    assert made(job, second, [partial(square, 5)], "elect") == [25]
    assert not second.jobs and owner.jobs[0].stage == "elect"
    job.end()
    until(lambda: owner.jobs[0].has_ended)
    owner.jobs[0].result()
    assert list(scratch.iterdir()) == []


def test_job_deletes_only_its_own_files_of_a_shared_folder(tmp_path: Path) -> None:
    (tmp_path / "else").touch()
    owner, job = Threading(), PersistentJob(tmp_path)
    assert made(job, owner, [partial(square, 2)]) == [4]
    job.end()
    until(lambda: owner.jobs[0].has_ended)
    assert [each.name for each in tmp_path.iterdir()] == ["else"]


first = threading.Event()


def wait_for_first() -> str:
    assert first.wait(30)
    return "waited"


def set_first() -> str:
    first.set()
    return "set"


def test_free_task_takes_the_next_unit() -> None:
    job = PersistentJob()
    assert made(job, Threading(), [wait_for_first, *[set_first] * 5]) == ["waited", *["set"] * 5]
    job.end()


def test_idle_tasks_end_and_a_new_job_starts_on_demand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(persistent_job, "_IDLE_SECONDS", 0.05)
    owner, job = Threading(), PersistentJob()
    assert made(job, owner, [partial(square, 3)]) == [9]
    until(lambda: owner.jobs[0].has_ended)
    assert made(job, owner, [partial(square, 4)] * 3) == [16] * 3
    assert len(owner.jobs) == 2
    job.end()


def test_no_task_ends_while_another_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(persistent_job, "_IDLE_SECONDS", 0.1)
    owner, job = Threading(), PersistentJob()
    begun = job.begin(owner, "scan", [pickle.dumps(partial(time.sleep, 1))], [1], NoProgress())
    time.sleep(0.8)
    assert not any(each.done() for each in owner.jobs[0].tasks)
    assert begun.result()[0][1] is None
    job.end()


def test_unit_of_a_dead_task_is_repeated(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark starts the task again, with the same number."""
    died: list[int] = []

    def around(serve: Callable[[int], None], number: int) -> None:
        if number == 0:  # takes a unit, dies, and is started again
            tasks = Tasks(str(next(scratch.glob("*/meeting"))), number)
            until(lambda: tasks.take(tasks.list_tasks() or []) is not None)
            tasks.close()
            died.append(number)
            monkeypatch.setattr(persistent_job, "is_repeated", lambda: True)
        else:
            until(lambda: bool(died))
        serve(number)

    job = PersistentJob()
    numbers = range(6)
    assert made(job, Threading(around), [partial(square, n) for n in numbers]) == [
        n * n for n in numbers
    ]
    assert died
    job.end()


def test_failed_job_names_its_stage() -> None:
    def fail(serve: Callable[[int], None], number: int) -> None:
        raise RuntimeError("no worker lives")

    job = PersistentJob()
    with pytest.raises(LogError, match="stage elect: no worker lives"):
        made(job, Threading(fail), [partial(square, 1)], "elect")
    job.end()


def test_missing_scratch_folder_is_an_error(scratch: Path) -> None:
    owner, job = Threading(), PersistentJob()
    assert made(job, owner, [partial(square, 1)]) == [1]
    shutil.rmtree(next(scratch.glob("*/meeting")))
    until(lambda: owner.jobs[0].has_ended)
    with pytest.raises(LogError, match="could not write a scratch file"):
        made(job, owner, [partial(square, 1)])
    job.end()


def test_notification_to_the_wrong_task_is_forwarded() -> None:
    meeting = TaskQueue()
    one, two = Tasks(meeting.folder, 0), Tasks(meeting.folder, 1)
    meeting.submit("1", b"")
    two.wait(0)
    seen = two.list_tasks()  # lists the units before the second one exists
    meeting.submit("2", b"")
    one.wait(0)  # sees the second unit, and takes the first
    assert one.take(one.list_tasks() or []) == "1.0"
    assert seen is not None and two.take(seen) is None
    begin = time.monotonic()
    two.wait(30)
    assert time.monotonic() - begin < 10
    assert two.take(two.list_tasks() or []) == "2.1"
    one.close()
    two.close()
    meeting.end(0)
