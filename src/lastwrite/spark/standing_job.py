"""One job of Spark for many stages: its tasks stay, and take what the driver lays out for them.

To begin a job and to end it costs Spark 40 ms, which its JVM spends in code that it has hardly
compiled yet, and a round has three stages. Where Spark is ours and all workers are on this machine,
one job serves them all. Driver and tasks meet in a folder (``storage.meeting``): whoever is free
takes the next batch of units, the heaviest of a stage first.

The tasks are Spark's: one whose worker dies is begun again, and does anew what its predecessor was
at. They end when the driver removes the folder, or when they have had nothing to do for a second;
if more comes after all, there is another job.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from lastwrite.model.progress import Progress
from lastwrite.spark.work import is_repeated
from lastwrite.storage.meeting import Meeting, Tasks, is_any_taken, is_closed

_IDLE_SECONDS = 1.0
_LEAST_SLEEP, _MOST_SLEEP = 0.0005, 0.02  # seconds between two looks
_SLEEPS = 50  # in a wait a sleep is one part of so many


class Job(Protocol):
    """A job that Spark is at."""

    name: str  # of the stage, for errors

    @property
    def has_ended(self) -> bool: ...

    def result(self) -> Any:
        """Waits for its end.

        Raises:
            LogError: it failed, or was cancelled.
        """
        ...

    def cancel(self) -> None: ...


class StandingJob:
    """The driver's side. ``begin`` gives Spark a job of as many tasks as there are workers, each of
    which calls what it is given with its number.
    """

    def __init__(self, begin: Callable[[Callable[[int], None]], Job]) -> None:
        self._begin = begin
        self._meeting = Meeting()
        self._stages = 0
        self._job: Job | None = None

    def lay_out(self, stage: str, calls: Sequence[bytes]) -> list[str]:
        """Let tasks make these pickled calls, the first ones first; returns what each is called."""
        self._stages += 1
        names = [f"{self._stages:08d}-{n:04d}" for n in range(len(calls))]
        for name, call in zip(names, calls, strict=True):
            self._meeting.lay_out(name, call)
        self._see_to_job(stage)
        return names

    def wait(
        self, stage: str, names: Sequence[str], weights: Sequence[int], progress: Progress
    ) -> list[tuple[float, Any]]:
        """Of each of these calls when it had ended (as ``time.perf_counter`` tells it) and what it
        gave.

        Raises:
            LogError: Spark could not do it, or was told to stop.
        """
        answers: dict[str, tuple[float, Any]] = {}
        sleeps = _sleeps()
        while True:
            for name, weight in zip(names, weights, strict=True):
                answer = None if name in answers else self._meeting.answer(name)
                if answer is not None:
                    answers[name] = pickle.loads(answer)
                    progress.advance(weight)
                    sleeps = _sleeps()
            if len(answers) == len(names):
                return [answers[name] for name in names]
            self._see_to_job(stage)
            time.sleep(next(sleeps))

    def _see_to_job(self, stage: str) -> None:
        """That there is one: the last may have ended since nobody came, or failed."""
        if self._job is not None and self._job.has_ended:
            self._job.result()
            self._job = None
        if self._job is None:
            self._meeting.open()
            folder = self._meeting.folder
            self._job = self._begin(lambda number: serve(folder, number))
        self._job.name = stage

    def cancel(self) -> None:
        """End the tasks where they stand."""
        if self._job is not None:
            self._job.cancel()

    def end(self) -> None:
        """Let the tasks end; nobody waits for that."""
        self._meeting.end()


def serve(folder: str, number: int) -> None:
    """Task ``number`` of the job: do what is laid out, as long as something is."""
    tasks = Tasks(folder)
    for name in tasks.look() or [] if is_repeated() else []:
        if name.endswith(f".{number}"):
            _do(tasks, name)
    sleeps, last = _sleeps(), time.monotonic()
    while (names := tasks.look()) is not None and not is_closed(names):
        taken = tasks.take(names, number)
        if taken is not None:
            _do(tasks, taken)
            sleeps = _sleeps()
        if taken is not None or is_any_taken(names):
            last = time.monotonic()
        if time.monotonic() - last > _IDLE_SECONDS:
            tasks.close()
        elif taken is None:
            time.sleep(next(sleeps))


def _do(tasks: Tasks, taken: str) -> None:
    answer = pickle.loads(tasks.read(taken))()
    done = (time.perf_counter(), answer)
    tasks.finish(taken, pickle.dumps(done, protocol=pickle.HIGHEST_PROTOCOL))


def _sleeps() -> Iterator[float]:
    """How long to sleep, look for look: the longer the wait, the longer."""
    begin = time.monotonic()
    while True:
        waited = time.monotonic() - begin
        yield min(_MOST_SLEEP, max(_LEAST_SLEEP, waited / _SLEEPS))
