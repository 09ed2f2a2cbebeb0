"""Runs waves of partitions through the engine: one Spark session for all, a throttle over all
workers, one stop.
"""

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
from lastwrite.storage.objects.address import asked
from lastwrite.storage.objects.store import Requests
from lastwrite.storage.scratch import make_folder, remove_folder
from lastwrite.storage.throttle import Throttles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lastwrite.spark.inline import Inline

CANCEL_S = 3.0  # after a stop, for what runs on workers to end by itself
# for what then still runs: swaps, or a publication, that were decided before the stop
GIVE_UP_S = 30.0
DONE = (Status.CLEANED, Status.UNCHANGED)


def exit_status(statuses: Collection[Status], was_held: bool) -> int:
    """What a daemon that looked once ends with: 1, 3 or 4 where something failed, is damaged or is
    held elsewhere.
    """
    return 1 if Status.FAILED in statuses else 3 if Status.DAMAGED in statuses else 4 * was_held


def spark_has_died(error: Exception | None) -> LogError:
    """What ends a daemon whose session is gone."""
    remedy = error.remedy if isinstance(error, LogError) else None
    problem = error.problem if isinstance(error, LogError) else str(error)
    return LogError(f"Spark has died: {problem}", remedy=remedy or "start again")


class RoundRunner:
    """The engine with its session, which is started when the first round needs it, and ends with
    ``close``.

    ``run`` may be called from several threads; all else from one.
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
        self._asked: set[str] = set()  # roots that the workers of a cluster see
        self._rates = Rates()
        self._is_stopped = False
        self._scratch = make_folder()
        self._stack.callback(remove_folder, self._scratch)
        self._throttles = Throttles(str(self._scratch), self._rates, 1)

    def start(self, folders: Sequence[str] = ()) -> None:
        """Start the session if it is not there; of a cluster, ask its workers once for what they
        have and whether they see ``folders``, one partition of each root.

        Raises:
            EnvironmentUnfit: there is no Java, Spark does not start, or workers lack something.
        """
        if self._runner is None:
            self._runner, plan = self._stack.enter_context(self._session())
            self._limits = plan.limits()
            self._scratch_bytes = plan.scratch_bytes
        new = {self._system.root_of(each): each for each in reversed(folders)}
        for root in self._asked & new.keys():
            del new[root]
        if new:
            check_workers(self._runner, [*new.values()], self._progress)
            self._asked |= new.keys()

    def set_rates(self, rates: Rates) -> None:
        """What all workers together may read and write from now on; on a cluster from the next
        round on.
        """
        self._rates = rates
        self._throttles.set_rates(rates)

    def run(
        self, folders: Sequence[str], config: Mapping[str, object], now_ms: int
    ) -> CompactionReport:
        """What Kafka's cleaner would do to each partition at ``now_ms``; the caller holds all of
        them.

        Raises:
            LogError: the work could not be done at all; no log has changed that the next run would
                not mend.
        """
        runner = self._runner or InlineRunner()
        exchange = exchange_for(runner, self._scratch_bytes)
        try:
            throttles = self._throttles
            if not exchange.scratch:  # a cluster: no file of ours is seen there
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

    def asked(self) -> Requests:
        """What was asked of buckets so far, by this process and by workers."""
        return asked() if self._runner is None else asked() + self._runner.asked()

    def _check(self) -> None:
        if self._is_stopped:
            raise LogError(
                "the work was stopped", remedy="the log is as it was; start again when you like"
            )

    def stop(self) -> None:
        """Let all rounds end where they are: nothing is begun or swapped any more, what was written
        aside goes.
        """
        self._is_stopped = True
        self._throttles.stop()

    def cancel(self) -> None:
        """End what has not ended by itself after ``stop``."""
        if self._runner is not None:
            self._runner.cancel()

    @property
    def is_alive(self) -> bool:
        """Whether a round can run: the session has not died."""
        return self._runner is None or self._runner.is_alive

    def close(self) -> None:
        """End the session."""
        self._stack.close()
