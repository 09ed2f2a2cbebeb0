"""How units of work reach their workers: on Spark, or one after the other in this process.

Spark carries small pickled units to the workers and small results back; blocks travel by the exchange.
The RDD interface is all that this needs: no SQL, no pandas, three seconds less to start
(docs/decisions). A unit's error comes back as a value, so that one partition's trouble leaves the
others alone.
"""

from __future__ import annotations

import contextlib
import heapq
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

from lastwrite.errors import LogError
from lastwrite.model.progress import Progress
from lastwrite.pipeline.profile import StageProfile, TaskClock, TaskProfile

if TYPE_CHECKING:
    from pyspark import SparkContext

    from lastwrite.pipeline.session import Spark

_TASK_BYTES = 1 << 30

U = TypeVar("U")
R = TypeVar("R")


class Failed(Generic[U]):
    """A unit that raised: what a caller gets in place of its result."""

    def __init__(self, unit: U, error: Exception) -> None:
        self.unit = unit
        self.error = error


Task: TypeAlias = Callable[[Sequence[U]], Iterator[R | Failed[U]]]


class Runner(Protocol):
    """Runs a function over units, somewhere."""

    workers: int
    profile: dict[str, StageProfile]  # by stage, since the runner was made

    def run(
        self,
        name: str,
        work: Callable[[U], R],
        units: Sequence[U],
        weights: Sequence[int],
        progress: Progress,
    ) -> list[R | Failed[U]]:
        """The results, unit for unit. ``weights``: each unit's bytes, for progress and balance."""
        return self.run_tasks(name, each(work), units, weights, progress)

    def run_tasks(
        self,
        name: str,
        task: Task[U, R],
        units: Sequence[U],
        weights: Sequence[int],
        progress: Progress,
    ) -> list[R | Failed[U]]:
        """As ``run``; ``task`` is given all units of a task, where many together cost less than each alone."""
        ...


def spark_error(stage: str, error: Exception) -> LogError:
    """What Spark itself could not do, in a sentence: its own text is a page of stack traces."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    cause = next(
        (line for line in lines if "Error" in line or "Exception" in line),
        lines[0] if lines else "",
    )
    return LogError(
        f"Spark could not finish the stage {stage}: {type(error).__name__}: {cause[:300]}",
        remedy="nothing of this wave was swapped; run again, with more --memory if a worker was killed",
    )


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

    def __init__(self) -> None:
        self.profile: dict[str, StageProfile] = {}

    def run_tasks(
        self,
        name: str,
        task: Task[U, R],
        units: Sequence[U],
        weights: Sequence[int],
        progress: Progress,
    ) -> list[R | Failed[U]]:
        progress.stage(name, sum(weights))
        results = []
        clock = TaskClock()
        for result, weight in zip(task(units), weights, strict=True):
            results.append(result)
            progress.advance(weight)
        taken = clock.taken()
        self.profile.setdefault(name, StageProfile()).add(taken.seconds, 1, [taken])
        return results


class SparkRunner(Runner):
    """Each unit, or some small ones together, in a task of Spark; waits for Spark when the first stage comes."""

    def __init__(self, spark: Spark, workers: int) -> None:
        self.spark = spark
        self.workers = workers
        self.profile: dict[str, StageProfile] = {}

    @property
    def context(self) -> SparkContext:
        """Where jobs are given.

        Raises:
            EnvironmentUnfit: Spark does not start.
        """
        return self.spark.context

    def run_tasks(
        self,
        name: str,
        task: Task[U, R],
        units: Sequence[U],
        weights: Sequence[int],
        progress: Progress,
    ) -> list[R | Failed[U]]:
        progress.stage(name, sum(weights))
        if not units:
            return []
        context = self.context
        tasks = pack(weights, self.workers)
        batches = [[(i, units[i]) for i in places] for places in tasks]

        def run_batch(batch: list[tuple[int, U]]) -> tuple[list[tuple[int, Any]], TaskProfile]:
            clock = TaskClock()
            done = [
                (i, result)
                for (i, _), result in zip(batch, task([unit for _, unit in batch]), strict=True)
            ]
            return done, clock.taken()

        begin = time.perf_counter()
        group = f"lastwrite-{id(batches)}-{name}"
        context.setJobGroup(group, f"lastwrite: {name}", interruptOnCancel=True)
        done = threading.Event()
        task_bytes = [sum(weights[i] for i in places) for places in tasks]
        watcher = threading.Thread(
            target=self._watch, args=(group, task_bytes, progress, done), daemon=True
        )
        watcher.start()
        try:
            answers = context.parallelize(batches, len(batches)).map(run_batch).collect()
        except Exception as error:
            raise spark_error(name, error) from error
        finally:
            done.set()
            watcher.join()
        seconds = time.perf_counter() - begin
        self.profile.setdefault(name, StageProfile()).add(
            seconds, self.workers, [taken for _, taken in answers]
        )
        found = dict(answer for batch, _ in answers for answer in batch)
        return [found[i] for i in range(len(units))]

    @property
    def is_alive(self) -> bool:
        """Whether Spark still takes work."""
        try:
            return self.context._jsc is not None and not self.context._jsc.sc().isStopped()
        except Exception:  # no JVM to ask
            return False

    def cancel(self) -> None:
        """End whatever runs on the session; the threads that wait for it get an error."""
        with contextlib.suppress(Exception):  # a JVM that has gone runs nothing
            self.context.cancelAllJobs()

    def _watch(
        self, group: str, task_bytes: list[int], progress: Progress, done: threading.Event
    ) -> None:
        """Report finished tasks; Spark counts them, the largest are started first."""
        tracker = self.context.statusTracker()
        told = 0
        total = sum(task_bytes)
        while not done.wait(0.25):
            finished = 0
            for job in tracker.getJobIdsForGroup(group):
                info = tracker.getJobInfo(job)
                for stage in info.stageIds if info else ():
                    stage_info = tracker.getStageInfo(stage)
                    finished += stage_info.numCompletedTasks if stage_info else 0
            reached = min(sum(task_bytes[:finished]), total)
            if reached > told:
                progress.advance(reached - told)
                told = reached
        if total > told:
            progress.advance(total - told)


def pack(weights: Sequence[int], workers: int) -> list[list[int]]:
    """The units' places in tasks of like weight, the heaviest first: one a worker, more where tasks grow large.

    A task costs Spark as much as some 50 MB of work, so there are few; one of more than ``_TASK_BYTES`` would keep
    progress standing still.
    """
    tasks = min(len(weights), max(workers, -(-sum(weights) // _TASK_BYTES)))
    bins: list[tuple[int, int, list[int]]] = [(0, n, []) for n in range(tasks)]
    for i in sorted(range(len(weights)), key=lambda i: -weights[i]):
        size, n, units = heapq.heappop(bins)
        units.append(i)
        heapq.heappush(bins, (size + weights[i], n, units))
    return [units for _, _, units in sorted(bins, key=lambda entry: -entry[0])]
