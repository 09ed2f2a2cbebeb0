"""Run units of work one after another in this process. ``spark.runner`` runs them on Spark."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

from lastwrite.errors import LogError
from lastwrite.model.progress import Progress
from lastwrite.model.work import FailedUnit, PendingResult
from lastwrite.spark.profile import StageProfile, TaskClock
from lastwrite.storage.objects.store import Requests

U = TypeVar("U")
R = TypeVar("R")


Task: TypeAlias = Callable[[Sequence[U]], Iterator[R | FailedUnit[U]]]


def is_repeated() -> bool:
    """Whether this process repeats a Spark task whose earlier attempt failed."""
    pyspark: Any = sys.modules.get("pyspark")
    task = pyspark.TaskContext.get() if pyspark is not None else None
    return task is not None and task.attemptNumber() > 0


class Runner(Protocol):
    """Runs a function over units of work."""

    workers: int
    profile: dict[str, StageProfile]  # profiles by stage, since the creation of the runner

    @property
    def is_alive(self) -> bool:
        """Whether the runner can start more work."""
        ...

    def sent_requests(self) -> Requests:
        """The counts of object-store requests that tasks in other processes have sent so far."""
        return sum((stage.requests for stage in [*self.profile.values()]), Requests())

    def run(
        self,
        name: str,
        work: Callable[[U], R],
        units: Sequence[U],
        weights: Sequence[int],
        progress: Progress,
    ) -> list[R | FailedUnit[U]]:
        """Run the units and return the results in their order.

        ``weights`` are the units' bytes, for progress and balance.
        """
        begun: PendingResult[list[R | FailedUnit[U]]]
        begun = self.begin_tasks(name, each(work), units, weights, progress)
        return begun.result()

    def begin_tasks(
        self,
        name: str,
        task: Task[U, R],
        units: Sequence[U],
        weights: Sequence[int],
        progress: Progress,
    ) -> PendingResult[list[R | FailedUnit[U]]]:
        """Start the units and return at once.

        ``task`` is called once with all units of a Spark task, which can be faster than one call
        per unit.
        """
        ...

    def cancel(self) -> None:
        """Cancel all work, and start no more. Waiting threads get an error."""
        ...


def guarded(work: Callable[[U], R], unit: U) -> R | FailedUnit[U]:
    """The result of a unit, or the error that it raised."""
    try:
        return work(unit)
    except (LogError, OSError, MemoryError) as error:
        return FailedUnit(unit, error)


def each(work: Callable[[U], R]) -> Task[U, R]:
    """A task that calls the function ``work`` for each unit."""

    def task(units: Sequence[U]) -> Iterator[R | FailedUnit[U]]:
        for unit in units:
            yield guarded(work, unit)

    return task


class InlineRunner(Runner):
    """Runs units of work in this process, one after another.

    Used by tests, and for small commands.
    """

    workers = 1
    is_alive = True

    def __init__(self) -> None:
        self.profile: dict[str, StageProfile] = {}

    def sent_requests(self) -> Requests:
        """Zero requests, because all tasks run in this process."""
        return Requests()

    def cancel(self) -> None:
        """Do nothing: the work runs in the calling thread, which checks ``Options.check``."""

    def begin_tasks(
        self,
        name: str,
        task: Task[U, R],
        units: Sequence[U],
        weights: Sequence[int],
        progress: Progress,
    ) -> PendingResult[list[R | FailedUnit[U]]]:
        progress.stage(name, sum(weights))
        results = []
        clock = TaskClock()
        for result, weight in zip(task(units), weights, strict=True):
            results.append(result)
            progress.advance(weight)
        taken = clock.measure()
        self.profile.setdefault(name, StageProfile()).add(taken.seconds, 1, [taken])
        return PendingResult(lambda: results)
