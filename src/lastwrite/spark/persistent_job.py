"""One Spark job for many stages: its tasks stay alive and fetch work from the driver.

Starting and ending a job takes Spark 40 ms, because its JVM code is hardly compiled by then, and a
round has three stages. If Lastwrite started Spark and all workers are on this machine, one job
therefore serves all stages, also of the next call. Driver and tasks exchange work in a folder
(``storage.task_queue``). A free task takes the next batch of units, the heaviest of a stage first.

If a worker dies, Spark starts its task again, and the new task repeats the unfinished batch. Tasks
end when the driver removes the folder, or after a minute without work. If more work arrives later,
a new job is started.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

from lastwrite.model.progress import Progress
from lastwrite.model.work import PendingResult
from lastwrite.spark.work import is_repeated
from lastwrite.storage.task_queue import TaskQueue, Tasks, is_any_running, is_shut

_IDLE_SECONDS = 60.0
_SECONDS_A_LOOK = 0.25  # seconds between two checks if no notification arrives
_SECONDS_TO_END = 0.002


class Job(Protocol):
    """A running Spark job."""

    @property
    def has_ended(self) -> bool: ...

    def result(self) -> Any:
        """Wait for the job to end.

        Raises:
            LogError: the job failed, or was cancelled.
        """
        ...

    def cancel(self) -> None: ...


class Owner(Protocol):
    """A runner whose stages the persistent job serves at the moment."""

    workers: int

    def begin_serving(self, serve: Callable[[int], None]) -> Job:
        """Start a Spark job with one task per worker; each calls ``serve`` with its number."""
        ...

    def take_over(self, job: Job, stage: str) -> None:
        """Report the job's errors as errors of this runner and of ``stage`` from now on."""
        ...


class PersistentJob:
    """The driver's side of the persistent job, which creates its folder in ``parent``."""

    def __init__(self, parent: Path | None = None) -> None:
        self._queue = TaskQueue(parent)
        self._stages = 0
        self._tasks = 0
        self._job: Job | None = None

    def begin(
        self,
        owner: Owner,
        stage: str,
        calls: Sequence[bytes],
        weights: Sequence[int],
        progress: Progress,
    ) -> PendingResult[list[tuple[float, Any]]]:
        """Pass pickled calls to the tasks, which execute them in this order.

        For each call, the result has the ``time.perf_counter`` of its end, and its return value.
        Waiting for the result raises a LogError if Spark failed or was stopped.
        """
        self._stages += 1
        names = [f"{self._stages:08d}-{n:04d}" for n in range(len(calls))]
        for name, call in zip(names, calls, strict=True):
            self._queue.submit(name, call)
        self._ensure_job(owner, stage)

        def result() -> list[tuple[float, Any]]:
            answers: dict[str, tuple[float, Any]] = {}
            while True:
                for name, weight in zip(names, weights, strict=True):
                    answer = None if name in answers else self._queue.answer(name)
                    if answer is not None:
                        answers[name] = pickle.loads(answer)
                        progress.advance(weight)
                if len(answers) == len(names):
                    return [answers[name] for name in names]
                self._ensure_job(owner, stage)
                self._queue.wait(_SECONDS_A_LOOK)

        return PendingResult(result, self._cancel)

    def _ensure_job(self, owner: Owner, stage: str) -> None:
        """Start a Spark job if no job is running.

        An earlier job may have failed, or ended for lack of work.
        """
        if self._job is not None:
            owner.take_over(self._job, stage)
            if self._job.has_ended:
                self._job.result()
                self._job = None
        if self._job is None:
            self._queue.open()
            folder = self._queue.folder
            self._job = owner.begin_serving(lambda number: serve(folder, number))
            self._tasks = owner.workers
            owner.take_over(self._job, stage)

    def _cancel(self) -> None:
        """Cancel the job's tasks immediately."""
        if self._job is not None:
            self._job.cancel()

    def end(self, patience_seconds: float = 0.0) -> None:
        """Let the tasks end, and wait at most ``patience_seconds`` for the end of the job."""
        self._queue.end(self._tasks)
        give_up = time.monotonic() + patience_seconds
        while self._job and not self._job.has_ended and time.monotonic() < give_up:
            time.sleep(_SECONDS_TO_END)


def serve(folder: str, number: int) -> None:
    """Run task ``number`` of the job: execute calls as long as there are any."""
    try:
        tasks = Tasks(folder, number)
    except FileNotFoundError:
        return
    with closing(tasks):
        for name in tasks.own(tasks.list_tasks() or []) if is_repeated() else []:
            _do(tasks, name)
        last = time.monotonic()
        while (names := tasks.list_tasks()) is not None and not is_shut(names):
            taken = tasks.take(names)
            if taken is not None:
                _do(tasks, taken)
            if taken is not None or is_any_running(names):
                last = time.monotonic()
            if time.monotonic() - last > _IDLE_SECONDS:
                tasks.shut()
            elif taken is None:
                tasks.wait(min(1.0, _IDLE_SECONDS))


def _do(tasks: Tasks, taken: str) -> None:
    answer = pickle.loads(tasks.read(taken))()
    done = (time.perf_counter(), answer)
    tasks.finish(taken, pickle.dumps(done, protocol=pickle.HIGHEST_PROTOCOL))
