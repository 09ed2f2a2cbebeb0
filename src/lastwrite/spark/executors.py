"""Waits for a cluster's executors.

Without an executor, a Spark job would wait forever and only write log messages.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lastwrite.errors import EnvironmentUnfit, InvalidConfig
from lastwrite.model.progress import Progress
from lastwrite.spark.session import local_workers

if TYPE_CHECKING:
    from pyspark import SparkContext

    from lastwrite.spark.session import SparkProvider

# seconds without an executor after which a job is cancelled
TIMEOUT = "spark.lastwrite.executor.timeout"
_TIMEOUT_S = 600.0
_SECONDS_A_LOOK = 1.0
_SECONDS_A_POLL = 0.1
_SECONDS_A_NOTE = 30.0
_SECONDS_QUIET = 2.0  # seconds without a new executor after which the wait ends
_REMEDY = (
    "nothing was swapped; see the cluster's web page for the cause: no free cores or memory "
    "(spark.executor.cores, spark.executor.memory), or executors that do not start. To wait "
    f"longer, add --conf {TIMEOUT}=SECONDS; to run on this machine, --master local[*]"
)


class Executors:
    """Watches the start of a cluster's executors while a job runs.

    Cancels the job if none starts in time.
    """

    def __init__(
        self,
        spark: SparkProvider,
        context: SparkContext,
        progress: Progress,
        cancel: Callable[[], None],
    ) -> None:
        """Start to watch the executors of the cluster.

        Raises:
            InvalidConfig: the setting of the timeout is not a number.
        """
        self.error: EnvironmentUnfit | None = None  # why the job was cancelled
        self._progress = progress
        self._cancel = cancel
        self._is_here = local_workers(spark.master) is not None
        if self._is_here:
            return
        self._context: Any = context
        self._stated = requested_executors(spark.setting)
        self._requested = self._stated or 1
        self._timeout_s = _seconds(spark.setting(TIMEOUT))
        self._alone_since = self._checked_s = time.monotonic()
        self._noted = -_SECONDS_A_NOTE

    def check(self) -> None:
        """Report that no executor has started, and cancel the job after the timeout.

        Call this method regularly.
        """
        now = time.monotonic()
        if self._is_here or self.error is not None or now - self._checked_s < _SECONDS_A_LOOK:
            return
        self._checked_s = now
        if self.count():
            self._alone_since = now
        elif now - self._alone_since >= self._timeout_s:
            self.error = EnvironmentUnfit(
                f"the cluster started no executor within {self._timeout_s:.0f} s (0 of "
                f"{self._requested})",
                remedy=_REMEDY,
            )
            self._cancel()
        elif now - self._noted >= _SECONDS_A_NOTE:
            self._noted = now
            self._progress.note(f"waiting for executors (0 of {self._requested})")

    def count(self) -> int:
        """The number of executors that the cluster has started."""
        # Spark's map has an item for the driver, which is not an executor.
        return int(self._context._jsc.sc().getExecutorMemoryStatus().size()) - 1

    def wait(self) -> None:
        """Wait for the first executor, and for others that start right after it.

        Raises:
            EnvironmentUnfit: no executor started in time, or the cluster ended the application. A
                cluster does so if executors fail repeatedly.
        """
        count, since = 0, time.monotonic()
        while True:
            now, before = time.monotonic(), count
            try:
                count = self.count()
            except Exception as error:
                raise EnvironmentUnfit(
                    "Spark ended before the cluster started an executor", remedy=_REMEDY
                ) from error
            if count != before:
                since = now
            if count and (count >= self._stated > 0 or now - since >= _SECONDS_QUIET):
                return
            self.check()
            if self.error is not None:
                raise self.error
            time.sleep(_SECONDS_A_POLL)


def worker_count(spark: SparkProvider, progress: Progress) -> tuple[int, int]:
    """The number of tasks that run at once: in total, and per executor.

    In local mode both are equal.

    On a cluster, Spark reports 2 until an executor has started, so this function waits for one. The
    function does not wait with dynamic allocation, where the first job may start the executors.

    Raises:
        EnvironmentUnfit: Spark does not start, or the cluster starts no executor.
        InvalidConfig: a setting is not a number.
    """
    here = local_workers(spark.master)
    if here is not None:
        return here, here
    executors = Executors(spark, spark.context, progress, lambda: None)
    if spark.setting("spark.dynamicAllocation.enabled") != "true":
        executors.wait()
    workers = int(spark.context.defaultParallelism)
    stated = spark.setting("spark.executor.cores") or ""
    each = int(stated) if stated.isdigit() else -(-workers // max(1, executors.count()))
    return workers, max(1, each)


def requested_executors(setting: Callable[[str], str | None]) -> int:
    """The number of executors that the settings request. 0 means that they request no number.

    A standalone cluster then starts as many as possible.
    """

    def number(name: str) -> int:
        text = setting(name) or ""
        return int(text) if text.isdigit() else 0

    cores, each = number("spark.cores.max"), number("spark.executor.cores")
    by_cores = -(-cores // each) if each else 0
    least = max(
        number("spark.dynamicAllocation.initialExecutors"),
        number("spark.dynamicAllocation.minExecutors"),
    )
    return number("spark.executor.instances") or by_cores or least


def _seconds(text: str | None) -> float:
    if text is None:
        return _TIMEOUT_S
    try:
        return float(text.removesuffix("s"))
    except ValueError:
        raise InvalidConfig(
            f"{TIMEOUT} is {text!r}, which is not a number of seconds",
            remedy="give a number of seconds, for example 600",
        ) from None
