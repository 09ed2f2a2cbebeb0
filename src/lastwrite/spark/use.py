"""Provide a runner and an exchange: on the caller's session, on a new session, or in this process.

Modules that need Spark are imported only where a session is used, so that commands that only read
start without it.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, cast

from lastwrite.errors import EnvironmentUnfit, InvalidConfig
from lastwrite.model.progress import Progress
from lastwrite.spark.folder_exchange import FolderExchange
from lastwrite.spark.inline import Inline
from lastwrite.spark.memory import MemoryPlan, plan_executor_memory, plan_memory
from lastwrite.spark.spark_errors import start_failure
from lastwrite.spark.work import InlineRunner, Runner
from lastwrite.storage.scratch import ScratchFolders

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lastwrite.spark.runner import SparkRunner
    from lastwrite.spark.session import SparkProvider
    from lastwrite.spark.shuffle_exchange import ShuffleExchange


def reject_workers_without_us(spark: SparkSession) -> None:
    """Check that the Python which runs the workers of the caller's local session has this package.

    Without it a later computation would fail with Spark's error message.

    Raises:
        EnvironmentUnfit: it does not have the package.
    """
    from lastwrite.spark.session import local_workers

    context = getattr(spark, "sparkContext", None)  # Spark Connect has no SparkContext
    if context is None or local_workers(str(context.master)) is None:
        return
    python = str(context.pythonExec)
    if python == sys.executable:
        return
    try:
        if subprocess.run([python, "-c", "import lastwrite"], capture_output=True).returncode == 0:
            return
    except OSError:
        pass
    raise EnvironmentUnfit(
        f"the workers of this session run {python!r}, where lastwrite is not installed",
        remedy=f"set PYSPARK_PYTHON={sys.executable} in the environment before the session is "
        "created",
    )


def exchange_for(runner: Runner, memory_bytes: int = 0) -> FolderExchange | ShuffleExchange:
    """The exchange for ``runner``. By default it uses scratch files if all workers are on this
    machine, otherwise Spark's shuffle.

    The Spark setting ``spark.lastwrite.exchange`` (``folder`` or ``shuffle``) overrides this, for
    example if all executors share a folder. With the setting, all data passes the exchange. Without
    it, small partitions do not need the exchange (``engine.one_stage``). ``memory_bytes`` is the
    memory of this machine that scratch files may use, unless a folder is named for them.
    """
    if isinstance(runner, InlineRunner):
        return FolderExchange(runner, ScratchFolders(memory_bytes=memory_bytes))
    from lastwrite.spark.session import local_workers
    from lastwrite.spark.shuffle_exchange import ShuffleExchange

    runner = cast("SparkRunner", runner)
    usual = "folder" if local_workers(runner.spark.master) else "shuffle"
    asked = runner.spark.setting("spark.lastwrite.exchange")
    chosen, whole_bytes = asked or usual, 0 if asked else runner.one_stage_bytes
    if chosen == "shuffle":
        return ShuffleExchange(runner, whole_bytes)
    if chosen == "folder":
        folder = runner.spark.setting("spark.lastwrite.scratch")
        is_here = folder is None and runner.is_here
        folders = ScratchFolders(folder, memory_bytes if is_here else 0)
        return FolderExchange(runner, folders, whole_bytes)
    raise InvalidConfig(
        f"spark.lastwrite.exchange is {chosen!r}, which is not supported",
        remedy="give folder or shuffle",
    )


def shared_folder(runner: Runner) -> str | None:
    """A folder for scratch files that all workers can read.

    "" means this machine's default folder. None means that the workers of a cluster share no known
    folder.
    """
    if isinstance(runner, InlineRunner):
        return ""
    from lastwrite.spark.session import local_workers

    runner = cast("SparkRunner", runner)
    named = runner.spark.setting("spark.lastwrite.scratch")
    if named is None:
        return "" if local_workers(runner.spark.master) else None
    return named


@contextlib.contextmanager
def runner_for(
    spark: SparkSession | Inline | None,
    master: str,
    memory: str | int | None,
    conf: Mapping[str, str],
    progress: Progress,
    *,
    system: str | None = None,
    is_daemon: bool = False,
) -> Iterator[tuple[Runner, MemoryPlan]]:
    """A runner on ``spark``, or on a session that is started on ``master``.

    Only one thread at a time may use a started session. At the end that session is parked, or
    stopped if it cannot be parked. ``system`` is the system whose logs will be compacted. With
    ``is_daemon``, other threads get an error instead of waiting for the session.

    Raises:
        EnvironmentUnfit: a daemon of this process uses the shared Spark, or ``spark`` is
            unsuitable.
    """
    if isinstance(spark, Inline):
        yield InlineRunner(), plan_memory(memory, 1)
        return
    from lastwrite.spark.executors import worker_count
    from lastwrite.spark.runner import SparkRunner
    from lastwrite.spark.session import GivenSpark, OwnSpark, local_workers
    from lastwrite.spark.session_pool import exclusive, park, take

    if spark is not None:
        if not hasattr(spark, "_jsc") and not hasattr(type(spark), "sparkContext"):
            raise EnvironmentUnfit(
                "Lastwrite cannot run on a Spark Connect session",
                remedy="pass a classic Spark session",
            )
        given = GivenSpark(spark)
        workers, each = worker_count(given, progress)
        yield SparkRunner(given, workers), _memory_of(given, memory, each)
        return
    # Check the memory setting before Spark is started.
    workers = local_workers(master) or 0
    plan_memory(memory, workers) if workers else plan_executor_memory(memory, 1)
    with exclusive(progress, is_daemon=is_daemon):
        own = take(master, conf)
        if own is None:
            progress.note("starting Spark")
            own = OwnSpark(master, conf, system)
        is_done = is_idle = False
        try:
            each = workers
            if not workers:
                workers, each = worker_count(own, progress)
            memory_plan = _memory_of(own, memory, each)
            runner = SparkRunner(own, workers)
            yield runner, memory_plan
            is_done, is_idle = True, not runner.has_failed
        finally:
            if not is_idle or not park(own, master, conf):
                own.close(at_once=not is_done)


@contextlib.contextmanager
def sql_session(
    spark: SparkSession | None, master: str, conf: Mapping[str, str], progress: Progress
) -> Iterator[SparkSession]:
    """The caller's session, or a session on the shared Spark that ends with this context.

    Raises:
        EnvironmentUnfit: Spark does not start, or a query fails in the session.
    """
    if spark is not None:
        yield spark
        return
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from lastwrite.spark.session import OwnSpark
    from lastwrite.spark.session_pool import exclusive, take

    with exclusive(progress):
        own = take(master, conf) or OwnSpark(master, conf)
        try:
            own.stop_job()
            context = own.context
            from pyspark.sql import SparkSession

            session = SparkSession(context)
            try:
                yield session
            # converted, because users cannot understand this error if Spark has ended
            except (Py4JError, PySparkException) as error:
                raise EnvironmentUnfit(
                    f"Spark could not run a query: {start_failure(error)}",
                    remedy="run `lastwrite doctor`, which checks the installation",
                ) from error
            session.stop()
        finally:
            own.close()


def _memory_of(spark: SparkProvider, memory: str | int | None, workers: int) -> MemoryPlan:
    """The memory setting, divided among the workers: those of this machine, or of one executor."""
    from lastwrite.spark.session import local_workers

    if local_workers(spark.master) is None:
        of_python = spark.setting("spark.executor.pyspark.memory")
        return plan_executor_memory(memory, workers, of_python)
    return plan_memory(memory, workers, lean=spark.is_lean)
