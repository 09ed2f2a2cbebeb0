"""Run the cleaner's rounds, with one Spark session and one throttle for all workers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from lastwrite.engine.context import Context, Options
from lastwrite.engine.round import run_round
from lastwrite.engine.system import System
from lastwrite.errors import LogError
from lastwrite.model.progress import NoProgress, Progress
from lastwrite.model.work import Limits, Rates
from lastwrite.reports.compaction import CompactionReport, Status
from lastwrite.scan_cache.cache import RoundScanCache
from lastwrite.spark.memory import MemoryPlan
from lastwrite.spark.use import exchange_for, runner_for
from lastwrite.spark.work import InlineRunner, Runner
from lastwrite.spark.worker_check import check_workers
from lastwrite.storage.objects.address import sent_requests
from lastwrite.storage.objects.store import Requests
from lastwrite.storage.scratch import make_folder, remove_folder
from lastwrite.storage.throttle import Throttles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lastwrite.spark.inline import Inline

CANCEL_S = 3.0  # seconds that tasks have after a stop to end by themselves
# further seconds for the end of file swaps and publications that began before the stop
GIVE_UP_S = 30.0
DONE = (Status.CLEANED, Status.UNCHANGED)


def exit_status(statuses: Collection[Status], was_held: bool) -> int:
    """The exit status of a daemon with ``once``.

    1 failure, 3 damage, 4 locked by another process, else 0.
    """
    return 1 if Status.FAILED in statuses else 3 if Status.DAMAGED in statuses else 4 * was_held


def spark_has_died(error: Exception | None) -> LogError:
    """The error with which a daemon ends if its Spark session has died."""
    remedy = error.remedy if isinstance(error, LogError) else None
    problem = error.problem if isinstance(error, LogError) else str(error)
    return LogError(
        f"the Spark session ended: {problem}", remedy=remedy or "start the daemon again"
    )


class RoundRunner:
    """Runs rounds. The Spark session starts with the first round and ends with ``close``.

    ``run`` may be called from several threads, all other methods from one.
    """

    def __init__(
        self,
        system: System,
        spark: SparkSession | Inline | None,
        master: str,
        memory: str | int | None,
        conf: Mapping[str, str],
        progress: Progress,
        keep_scans: bool = False,
    ) -> None:
        self._system = system
        self._keep_scans = keep_scans
        self._session: Callable[
            [], contextlib.AbstractContextManager[tuple[Runner, MemoryPlan]]
        ] = lambda: runner_for(
            spark, master, memory, conf, progress, system=system.name, is_daemon=True
        )
        self._stack = contextlib.ExitStack()
        self._runner: Runner | None = None
        self._limits = Limits()
        self._scratch_bytes = 0
        self._progress = progress
        self._checked_roots: set[str] = (
            set()
        )  # roots that the workers of the cluster can read, as a check has shown
        self._rates = Rates()
        self._is_stopped = False
        self._scratch = make_folder()
        self._stack.callback(remove_folder, self._scratch)
        self._throttles = Throttles(str(self._scratch), self._rates, 1)

    def start(self, folders: Sequence[str] = ()) -> None:
        """Start the session if there is none.

        On a cluster, check the workers once: their environment, and whether they can read
        ``folders``, one partition of each root.

        Raises:
            EnvironmentUnfit: there is no Java, Spark does not start, or a check of workers failed.
        """
        if self._runner is None:
            self._runner, plan = self._stack.enter_context(self._session())
            self._limits = plan.limits()
            self._scratch_bytes = plan.scratch_bytes
        new = {self._system.root_of(each): each for each in reversed(folders)}
        for root in self._checked_roots & new.keys():
            del new[root]
        if new:
            check_workers(self._runner, [*new.values()], self._progress)
            self._checked_roots |= new.keys()

    def set_rates(self, rates: Rates) -> None:
        """Set the total rates of all workers. On a cluster, they apply from the next round on."""
        self._rates = rates
        self._throttles.set_rates(rates)

    def run(
        self, folders: Sequence[str], config: Mapping[str, object], now_ms: int
    ) -> CompactionReport:
        """Compact each partition in ``folders`` as its system's cleaner would at time ``now_ms``.

        The caller has locked the partitions.

        Raises:
            LogError: the round failed as a whole. The next run repairs any log that it changed.
        """
        runner = self._runner or InlineRunner()
        exchange = exchange_for(runner, self._scratch_bytes)
        try:
            throttles = self._throttles
            if not exchange.scratch:  # the workers are in a cluster, and cannot read local files
                throttles = Throttles("", self._rates, runner.workers)
            options = Options(
                config=config, now_ms=now_ms, check=self._check, keep_scans=self._keep_scans
            )
            limits = throttles.on(self._limits)
            cache = RoundScanCache(runner)
            context = Context(
                self._system, exchange, runner.workers, limits, options, NoProgress(), cache
            )
            return run_round(context, folders)
        finally:
            exchange.close()

    def sent_requests(self) -> Requests:
        """The total number of object-store requests of this process and the workers."""
        return (
            sent_requests()
            if self._runner is None
            else sent_requests() + self._runner.sent_requests()
        )

    def _check(self) -> None:
        if self._is_stopped:
            raise LogError(
                "the compaction was stopped",
                remedy="the log was left unchanged; run the command again to continue",
            )

    def stop(self) -> None:
        """Stop all rounds: no further step or swap starts, and unfinished files are deleted."""
        self._is_stopped = True
        self._throttles.stop()

    def cancel(self) -> None:
        """Cancel the tasks that are still running after ``stop``."""
        if self._runner is not None:
            self._runner.cancel()

    @property
    def is_alive(self) -> bool:
        """Whether the Spark session has not died, so that it can run rounds."""
        return self._runner is None or self._runner.is_alive

    def close(self) -> None:
        """End the session."""
        self._stack.close()
