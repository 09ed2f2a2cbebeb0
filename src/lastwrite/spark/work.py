"""How units of work reach their workers: here one after the other; on Spark by ``spark.runner``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

from lastwrite.errors import LogError
from lastwrite.model.progress import Progress
from lastwrite.model.work import Begun, Failed
from lastwrite.spark.profile import StageProfile, TaskClock
from lastwrite.storage.objects.store import Requests

U = TypeVar("U")
R = TypeVar("R")


Task: TypeAlias = Callable[[Sequence[U]], Iterator[R | Failed[U]]]


def is_repeated() -> bool:
    """Whether this process works at a task of Spark that has failed before, with the worker that
    had it.
    """
    pyspark: Any = sys.modules.get("pyspark")
    task = pyspark.TaskContext.get() if pyspark is not None else None
    return task is not None and task.attemptNumber() > 0


class Runner(Protocol):
    """Runs a function over units, somewhere."""

    workers: int
    profile: dict[str, StageProfile]  # by stage, since the runner was made

    @property
    def is_alive(self) -> bool:
        """Whether it still takes work."""
        ...

    def asked(self) -> Requests:
        """What tasks in other processes have asked of buckets so far."""
        return sum((stage.requests for stage in [*self.profile.values()]), Requests())

    def run(
        self,
        name: str,
        work: Callable[[U], R],
        units: Sequence[U],
        weights: Sequence[int],
        progress: Progress,
    ) -> list[R | Failed[U]]:
        """The results, unit for unit. ``weights``: each unit's bytes, for progress and balance."""
        begun: Begun[list[R | Failed[U]]]
        begun = self.begin_tasks(name, each(work), units, weights, progress)
        return begun.result()

    def begin_tasks(
        self,
        name: str,
        task: Task[U, R],
        units: Sequence[U],
        weights: Sequence[int],
        progress: Progress,
    ) -> Begun[list[R | Failed[U]]]:
        """The same, for who has something else to do meanwhile; ``task`` is given all units of a
        task, where many together cost less than each alone.
        """
        ...

    def cancel(self) -> None:
        """End what runs, and begin nothing more; the threads that wait for it get an error."""
        ...


def guarded(work: Callable[[U], R], unit: U) -> R | Failed[U]:
    """The unit's result, or what it raised."""
    try:
        return work(unit)
    except (LogError, OSError, MemoryError) as error:
        return Failed(unit, error)


def each(work: Callable[[U], R]) -> Task[U, R]:
    """A task that does the work unit for unit."""

    def task(units: Sequence[U]) -> Iterator[R | Failed[U]]:
        for unit in units:
            yield guarded(work, unit)

    return task


class InlineRunner(Runner):
    """One unit after the other, in this process: for tests, and for commands too small for Spark."""

    workers = 1
    is_alive = True

    def __init__(self) -> None:
        self.profile: dict[str, StageProfile] = {}

    def asked(self) -> Requests:
        """All are in this process."""
        return Requests()

    def cancel(self) -> None:
        """The one thread there is asks by itself whether to stop: see ``Options.check``."""

    def begin_tasks(
        self,
        name: str,
        task: Task[U, R],
        units: Sequence[U],
        weights: Sequence[int],
        progress: Progress,
    ) -> Begun[list[R | Failed[U]]]:
        progress.stage(name, sum(weights))
        results = []
        clock = TaskClock()
        for result, weight in zip(task(units), weights, strict=True):
            results.append(result)
            progress.advance(weight)
        taken = clock.taken()
        self.profile.setdefault(name, StageProfile()).add(taken.seconds, 1, [taken])
        return Begun(lambda: results)
