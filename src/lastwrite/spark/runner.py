"""Run units of work on Spark.

Spark sends small pickled units to the workers and small results back; the exchange moves blocks of
entries. Only Spark's RDD interface is used, because without SQL and pandas the start is three
seconds faster (docs/decisions). A unit's error is returned as a value, so that a problem in one
partition does not affect the others.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeAlias, TypeVar, cast

from lastwrite.engine.partition import FinishedPartition, failed
from lastwrite.errors import CommitConflict, LogError
from lastwrite.model.progress import NoProgress, Progress
from lastwrite.model.work import FailedUnit, PendingResult
from lastwrite.spark.executors import Executors
from lastwrite.spark.persistent_job import Job, PersistentJob
from lastwrite.spark.profile import StageProfile, TaskClock, TaskProfile
from lastwrite.spark.session import local_workers
from lastwrite.spark.spark_errors import SAME_PATH, spark_error
from lastwrite.spark.work import R, Runner, Task, U
from lastwrite.spark.worker import settle
from lastwrite.storage.files import DELETED
from lastwrite.storage.machine import memory_kill_since, memory_kills

if TYPE_CHECKING:
    from pyspark import SparkContext

    from lastwrite.spark.session import SparkProvider

_TASK_BYTES = 1 << 30
_WHOLE_BYTES, _WHOLE_STANDING_BYTES = 40 << 20, 8 << 20
_SECONDS_TO_CANCEL = 5.0
_SECONDS_A_LOOK = 0.5
_STOPPED = "the log is unchanged; run the command again to continue"

T = TypeVar("T")
# results of a batch, and the profile of its task
_Answer: TypeAlias = tuple[list[Any], TaskProfile]
_Run: TypeAlias = Callable[[list[Any]], _Answer]


def explain_worker_errors(answer: T) -> T:
    """The result ``answer`` of a cluster's worker, with its error reworded for the user.

    The new error states that it happened on a worker, or that the worker cannot see a path of this
    machine. The error is in ``answer.error``; results without an error are unchanged.
    """
    error = getattr(answer, "error", None)
    if error is None or (seen := _explain_worker_error(error)) is error:
        return answer
    if isinstance(answer, FinishedPartition):
        return cast("T", replace(answer, error=seen, report=failed(answer.report, seen)))
    held: Any = answer
    held.error = seen
    return answer


def _explain_worker_error(error: Exception) -> Exception:
    path = None
    if isinstance(error, CommitConflict) and DELETED in error.problem:
        # for a file to be created, this error means that its folder is missing on the worker
        makes = error.problem.startswith(("could not create", "could not write"))
        path = os.path.dirname(error.path or "") if makes else error.path
    elif isinstance(error, FileNotFoundError):
        path = error.filename
    if path and os.path.exists(path):
        return LogError("the workers cannot access this path", path=path, remedy=SAME_PATH)
    if type(error) is LogError and error.problem.startswith("could not"):
        return LogError(f"a worker {error.problem}", error.at, error.path, error.remedy)
    return error


class _Stage(NamedTuple):
    """The batches of units that one stage runs, each with its size in bytes."""

    name: str
    run: _Run
    batches: list[Any]
    sizes: list[int]
    progress: Progress


class SparkRunner(Runner):
    """Runs units of work in Spark tasks: each alone, or several small ones together.

    Waits for Spark at the first stage.
    """

    def __init__(self, spark: SparkProvider, workers: int) -> None:
        self.spark = spark
        self.workers = workers
        # whether all workers are on this machine
        self.is_here = local_workers(spark.master) is not None
        self.profile: dict[str, StageProfile] = {}
        self.has_failed = False  # whether a job failed, so that its tasks may still run
        self._lock = threading.Lock()
        self._groups: set[str] = set()  # names of the job groups of running jobs
        self.is_cancelled = False

    @property
    def context(self) -> SparkContext:
        """The Spark context on which jobs run.

        Raises:
            EnvironmentUnfit: Spark does not start.
        """
        return self.spark.context

    def begin_tasks(
        self,
        name: str,
        task: Task[U, R],
        units: Sequence[U],
        weights: Sequence[int],
        progress: Progress,
    ) -> PendingResult[list[R | FailedUnit[U]]]:
        progress.stage(name, sum(weights))
        if not units:
            return PendingResult(list)  # without units, the result is an empty list
        tasks = pack(weights, self.workers)
        batches = [[units[i] for i in places] for places in tasks]
        sizes = [sum(weights[i] for i in places) for places in tasks]

        def made(answered: tuple[float, list[_Answer]]) -> list[R | FailedUnit[U]]:
            seconds, answers = answered
            profiles = [taken for _, taken in answers]
            self.profile.setdefault(name, StageProfile()).add(seconds, self.workers, profiles)
            found: dict[int, R | FailedUnit[U]] = {}
            for places, (results, _) in zip(tasks, answers, strict=True):
                found.update(zip(places, results, strict=True))
            results = [found[i] for i in range(len(units))]
            return results if self.is_here else list(map(explain_worker_errors, results))

        run: _Run = partial(_run_batch, task)
        assert (
            self.context is not None
        )  # ``_uses_persistent_job`` is only correct after the context exists
        stage = _Stage(name, run, batches, sizes, progress)
        pending = (
            self._begin_persistent(stage)
            if self._uses_persistent_job
            else self._begin_batches(stage)
        )
        return pending.then(made)

    def _begin_batches(self, stage: _Stage) -> PendingResult[tuple[float, list[_Answer]]]:
        """Start one task per batch. The result has the duration in seconds and the task results."""

        def act(context: SparkContext) -> list[_Answer]:
            rows = context.parallelize(stage.batches, len(stage.batches))
            found: list[Any] = rows.map(stage.run).collect()
            return found

        job = self._begin_job(stage.name, act, stage.progress, stage.sizes)
        return PendingResult(job.result, job.cancel).then(lambda answers: (job.seconds, answers))

    def _begin_persistent(self, stage: _Stage) -> PendingResult[tuple[float, list[_Answer]]]:
        """Start the batches in the persistent job's tasks.

        The result is as from ``_begin_batches``.
        """
        from pyspark import cloudpickle

        began = time.perf_counter()
        standing: PersistentJob = self.spark.start_job()
        pack_up: Callable[[Any], bytes] = cloudpickle.dumps
        calls = [pack_up(partial(stage.run, batch)) for batch in stage.batches]
        transaction = standing.begin(self, stage.name, calls, stage.sizes, stage.progress)

        def result() -> tuple[float, list[_Answer]]:
            answers = transaction.result()
            return max(ended for ended, _ in answers) - began, [answer for _, answer in answers]

        def cancel() -> None:
            transaction.cancel()
            self.spark.stop_job()

        return PendingResult(result, cancel)

    def begin_serving(self, serve: Callable[[int], None]) -> Job:
        numbers = list(range(self.workers))
        return self._begin_job(
            "serve",
            lambda context: context.parallelize(numbers, len(numbers)).map(serve).collect(),
            NoProgress(),
            is_watched=False,
        )

    def take_over(self, job: Job, stage: str) -> None:
        assert isinstance(job, _SparkJob)
        with self._lock:
            self._check_not_cancelled()
            job.runner, job.name = self, stage
            self._groups.add(job.group)

    def _check_not_cancelled(self) -> None:
        if self.is_cancelled:
            raise LogError("the work was stopped", remedy=_STOPPED)

    def run_job(
        self,
        name: str,
        act: Callable[[SparkContext], T],
        progress: Progress,
        task_bytes: Sequence[int] = (),
    ) -> T:
        """Call ``act``, which runs Spark jobs, and return its result.

        The jobs have the stage's name and a separate job group. ``task_bytes`` are the bytes of
        each task, for progress.

        Raises:
            LogError: Spark failed, or ``cancel`` was called.
            EnvironmentUnfit: Spark does not start, or a cluster starts no executor.
        """
        # the persistent job must end first, because its tasks occupy the workers
        self.spark.stop_job()
        return self._begin_job(name, act, progress, task_bytes).result()

    def _begin_job(
        self,
        name: str,
        act: Callable[[SparkContext], T],
        progress: Progress,
        task_bytes: Sequence[int] = (),
        *,
        is_watched: bool = True,
    ) -> _SparkJob[T]:
        """Start ``act``, which runs Spark jobs, in a new thread.

        The thread keeps the caller's job group, description and other properties unchanged. It also
        prevents an interrupt between a request to the JVM and its answer.
        """
        context = self.context
        group = f"lastwrite: {name} {secrets.token_hex(4)}"
        executors = Executors(self.spark, context, progress, lambda: self.cancel_groups([group]))
        with self._lock:
            self._check_not_cancelled()
            self._groups.add(group)
        job: _SparkJob[T] = _SparkJob(self, name, group, executors)
        try:
            properties = context._jsc.sc().getLocalProperties()
        except Exception as error:  # the JVM has ended; ``result`` raises this error
            job.outcome.set_exception(error)
            return job
        arguments = (context, properties, group, name, act, job.outcome)
        threading.Thread(
            target=_run_in_group, args=arguments, name="lastwrite-job", daemon=True
        ).start()
        if is_watched:
            watched = (context, group, task_bytes, progress, job.outcome, executors)
            job.watch = threading.Thread(target=self._watch, args=watched, daemon=True)
            job.watch.start()
        return job

    @property
    def _uses_persistent_job(self) -> bool:
        """Whether one persistent job serves all stages."""
        return self.spark.is_ours and self.is_here

    @property
    def one_stage_bytes(self) -> int:
        """The largest partition that one task should process; see ``Exchange.one_stage_bytes``."""
        return _WHOLE_STANDING_BYTES if self._uses_persistent_job else _WHOLE_BYTES

    @property
    def is_alive(self) -> bool:
        """Whether Spark can run more jobs."""
        try:
            return self.context._jsc is not None and not self.context._jsc.sc().isStopped()
        except Exception:  # the JVM has ended
            return False

    def cancel(self) -> None:
        """Cancel all work of this runner, and start no more. Waiting threads get an error."""
        with self._lock:
            self.is_cancelled = self.has_failed = True
            groups = list(self._groups)
        self.cancel_groups(groups)

    def forget(self, group: str) -> None:
        """Remove a job group whose job has ended, so that ``cancel`` does not cancel it."""
        with self._lock:
            self._groups.discard(group)

    def cancel_groups(
        self, groups: Sequence[str], wait_seconds: float = _SECONDS_TO_CANCEL
    ) -> None:
        """Cancel the jobs of ``groups`` in a new thread.

        This thread's connection to the JVM may be unusable, because an interrupt can come in the
        middle of an answer.
        """

        def work() -> None:
            # an error means that the JVM has ended, and runs no job
            with contextlib.suppress(Exception):
                for group in groups:
                    self.context.cancelJobGroup(group)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(wait_seconds)

    def _watch(
        self,
        context: SparkContext,
        group: str,
        task_bytes: Sequence[int],
        progress: Progress,
        outcome: Future[Any],
        executors: Executors,
    ) -> None:
        """Report the bytes of finished tasks, assuming that the largest tasks end first.

        The assumption is needed because Spark only counts tasks.
        """
        told = 0
        total = sum(task_bytes)
        while not wait([outcome], 0.25).done:
            with contextlib.suppress(Exception):  # ``_SparkJob.result`` raises the job's error
                executors.check()
                tracker = context.statusTracker()
                finished = 0
                for job in tracker.getJobIdsForGroup(group) if total else ():
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


class _SparkJob(Generic[T]):
    """A Spark job that runs in a thread."""

    def __init__(self, runner: SparkRunner, name: str, group: str, executors: Executors) -> None:
        self.runner, self.name, self.group = runner, name, group
        self._executors = executors
        self._kills = memory_kills()
        self._begin = time.perf_counter()
        self.seconds = 0.0  # duration of the job in seconds, set at its end
        self.watch: threading.Thread | None = None
        self.outcome: Future[T] = Future()
        self.outcome.add_done_callback(self._note_end)

    @property
    def has_ended(self) -> bool:
        return self.outcome.done()

    def _note_end(self, _: object) -> None:
        self.seconds = time.perf_counter() - self._begin

    def result(self) -> T:
        """Wait for the job's result. Errors as ``SparkRunner.run_job``."""
        runner = self.runner
        try:
            try:
                # Wait in short steps: a thread that waits does not react to a signal that another
                # thread gets.
                while not wait([self.outcome], _SECONDS_A_LOOK).done:
                    pass
            except BaseException:
                # if Lastwrite has started Spark, it kills Spark later, and need not cancel the job
                if not runner.spark.is_ours:
                    self.cancel()
                raise
            if self.watch is not None:
                self.watch.join(_SECONDS_TO_CANCEL)
            return self.outcome.result()
        except Exception as error:
            runner.has_failed = True
            if self._executors.error is not None:
                raise self._executors.error from error
            if runner.is_cancelled:
                raise LogError("the work was stopped", remedy=_STOPPED) from error
            raise spark_error(
                self.name, error, runner.spark.find_death(error), memory_kill_since(self._kills)
            ) from error
        finally:
            runner.forget(self.group)

    def cancel(self) -> None:
        """Cancel the job's tasks. If Lastwrite started Spark, does not wait: Spark may be dead."""
        runner = self.runner
        runner.has_failed = True
        seconds = 0.0 if runner.spark.is_ours else _SECONDS_TO_CANCEL
        runner.cancel_groups([self.group], seconds)
        wait([self.outcome], seconds)
        runner.forget(self.group)


def _run_batch(task: Task[U, R], units: Sequence[U]) -> _Answer:
    """Run a batch of units on a worker."""
    clock = TaskClock()
    done = list(task(units))
    settle()
    return done, clock.measure()


def _run_in_group(
    context: SparkContext,
    properties: Any,
    group: str,
    name: str,
    act: Callable[[SparkContext], T],
    outcome: Future[T],
) -> None:
    """Call ``act`` with the caller's Spark properties, except job group and description."""
    try:
        scala = context._jsc.sc()
        # The properties are restored afterwards, because the JVM's thread may serve other calls
        # later.
        before = scala.getLocalProperties()
        scala.setLocalProperties(properties.clone())
        try:
            context.setJobGroup(group, f"lastwrite: {name}", interruptOnCancel=True)
            result = act(context)
        finally:
            with contextlib.suppress(Exception):
                scala.setLocalProperties(before)
    except BaseException as error:
        outcome.set_exception(error)
    else:
        outcome.set_result(result)


def pack(weights: Sequence[int], workers: int) -> list[list[int]]:
    """Divide the units into tasks of similar weight, the heaviest first.

    Returns the indexes of each task's units.

    There is one task per worker, or two or three if tasks are large, so that all workers end at
    about the same time. There are no more, because a task costs Spark as much as about 50 MB of
    work. Tasks have at most about ``_TASK_BYTES``, because progress is reported only after a task.
    """
    tasks = min(len(weights), workers * max(1, -(-sum(weights) // (workers * _TASK_BYTES))))
    bins: list[tuple[int, int, list[int]]] = [(0, n, []) for n in range(tasks)]
    for i in sorted(range(len(weights)), key=lambda i: -weights[i]):
        size, n, units = heapq.heappop(bins)
        units.append(i)
        heapq.heappush(bins, (size + weights[i], n, units))
    return [units for _, _, units in sorted(bins, key=lambda entry: -entry[0])]
