"""Start Spark with the settings that rounds need, or wrap the caller's session.

Local mode needs no server: a JVM beside the driver and one Python worker per core. The JVM only
schedules, so it gets a small heap, one compiler tier and no web page. It gets only a
``SparkContext``, since no SQL is needed; a session would take longer than the JVM's own start.
Spark starts while the driver imports and plans: ``OwnSpark`` starts the processes, and waits only
when a stage needs the context. At the end the JVM is killed, because all results have arrived and
the folder with its files is deleted too. Between two calls of a program, the JVM is parked
(``spark.session_pool``).
"""

from __future__ import annotations

import contextlib
import logging
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from lastwrite.errors import EnvironmentUnfit, InvalidConfig
from lastwrite.spark.launcher.boot import Boot
from lastwrite.spark.launcher.forkserver import WARM_UP
from lastwrite.spark.launcher.gateway import quieten
from lastwrite.spark.launcher.java import (
    prepare_environment,
    reject_other_pyspark,
    set_local_defaults,
)
from lastwrite.spark.launcher.jvm import JvmDeath, jvm_options
from lastwrite.spark.memory import HEAP_BYTES
from lastwrite.spark.persistent_job import PersistentJob
from lastwrite.spark.spark_errors import start_failure
from lastwrite.storage.machine import MORE_ADDRESSES, core_count, tight_address_limit

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_SETTINGS = {
    "spark.app.name": "lastwrite",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.python.worker.reuse": "true",
    # Unix sockets: with TCP, each task would wait 40 ms for a delayed acknowledgement.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.scheduler.mode": "FIFO",
    "spark.rdd.compress": "false",
    "spark.shuffle.compress": "false",
    # no compression: a task has a few KB, and loading the codec's library takes longer than sending
    # them
    "spark.broadcast.compress": "false",
}
_OURS = "spark.lastwrite."
_LAUNCHER = "spark.lastwrite.launcher"
_SECONDS_TO_END = 10
_ATTEMPTS = 4  # default of spark.task.maxFailures on clusters
_SECONDS_TO_STAND_DOWN = 2.0
_DAEMON, _OUR_DAEMON = "spark.python.daemon.module", "lastwrite.spark.launcher.attach"


def local_workers(master: str) -> int | None:
    """The number of workers of ``local[n]`` or ``local[n,attempts]``. None for a cluster.

    Raises:
        InvalidConfig: ``master`` is not a master URL of Spark.
    """
    local = _local(master)
    if local is None:
        return None
    return core_count() if local[0] == "*" else int(local[0])


def with_attempts(master: str) -> str:
    """The master URL to pass to Spark.

    In local mode, a task has four attempts if the URL states no number.

    Source: Spark, SparkMasterRegex and SparkContext.createTaskScheduler: ``local[n]`` fails with
    the first failure, regardless of ``spark.task.maxFailures``.
    """
    local = _local(master)
    return master if local is None or local[1] else f"local[{local[0]},{_ATTEMPTS}]"


def _local(master: str) -> tuple[str, str | None] | None:
    """The numbers of workers and attempts in a local master URL, as text. None for a cluster."""
    if master == "local":
        return "1", None
    if not master.startswith("local["):
        return None
    found = re.fullmatch(r"local\[(\*|0*[1-9][0-9]*)(?:\s*,\s*(0*[1-9][0-9]*))?\]", master)
    if found is None:
        raise InvalidConfig(
            f"the master {master!r} is not supported: local[n] takes a number or *, and "
            "optionally the attempts per task, for example local[2,4]"
        )
    return found[1], found[2]


class SparkProvider(Protocol):
    """The source of the Spark context on which a runner's stages run."""

    @property
    def master(self) -> str: ...

    @property
    def context(self) -> SparkContext:
        """The Spark context. Waits until it exists.

        Raises:
            EnvironmentUnfit: there is no Java 17 or newer, or Spark does not start.
        """
        ...

    @property
    def is_lean(self) -> bool:
        """Whether Lastwrite starts the JVM and the workers, so that they take less memory."""
        ...

    @property
    def is_ours(self) -> bool:
        """Whether Lastwrite started this Spark, which then has no other user."""
        ...

    def setting(self, name: str) -> str | None: ...

    def start_job(self) -> PersistentJob:
        """The persistent job that serves all stages. Call this only if Lastwrite started Spark."""
        ...

    def stop_job(self) -> None:
        """End the persistent job, if there is one, because other jobs need the workers."""
        ...

    def find_death(self, error: Exception) -> JvmDeath | None:
        """The reason why the JVM has ended, if ``error`` means that it does not respond.

        None means that the JVM is alive, or that its state is unknown.
        """
        ...


class GivenSpark:
    """The session that the caller has passed."""

    is_ours = False

    def __init__(self, session: SparkSession) -> None:
        self.context: SparkContext = session.sparkContext

    @property
    def master(self) -> str:
        return str(self.context.master or "")

    @property
    def is_lean(self) -> bool:
        return self.setting(_DAEMON) == _OUR_DAEMON

    def setting(self, name: str) -> str | None:
        found: str | None = self.context.getConf().get(name, None)
        return found

    def start_job(self) -> PersistentJob:
        raise NotImplementedError("others' jobs need the workers, too")

    def stop_job(self) -> None:
        """Do nothing: there is no persistent job."""

    def find_death(self, error: Exception) -> JvmDeath | None:
        return _SILENT if _is_silence(error) else None


class OwnSpark:
    """A Spark that Lastwrite starts at once. The first use waits for it, and ``close`` ends it."""

    def __init__(self, master: str, conf: Mapping[str, str], system: str | None = None) -> None:
        """Start Spark for the logs of ``system``. None means that no logs will be compacted."""
        self._master = master
        self._conf = dict(conf)
        self._boot = _take_ahead(system) if _is_plain(master, conf) else None
        self._context: SparkContext | None = None
        self._gateway: Any = None  # Py4J gateway to a JVM that only this object uses
        self._is_ours = True
        self._error: EnvironmentUnfit | None = None
        self._persistent_job: PersistentJob | None = None
        self._is_waited_for = threading.Event()
        self._starting = threading.Thread(target=self._start, name="lastwrite-spark", daemon=True)
        self._starting.start()

    @property
    def master(self) -> str:
        return self._master

    @property
    def is_lean(self) -> bool:
        return self._boot is not None and self._boot.fork_server is not None

    @property
    def context(self) -> SparkContext:
        self._is_waited_for.set()
        self._starting.join()
        if self._error is not None:
            raise self._error
        assert self._context is not None
        return self._context

    @property
    def is_ours(self) -> bool:
        return self._is_ours

    def setting(self, name: str) -> str | None:
        # the other settings are unset: a JVM that was started early reads none from files
        if self._boot is not None:
            return self._conf.get(name)
        found: str | None = self.context.getConf().get(name, None)
        return found

    def find_death(self, error: Exception) -> JvmDeath | None:
        if not _is_silence(error):
            return None
        return (self._boot.jvm.find_death() if self._boot is not None else None) or _SILENT

    def _start(self) -> None:
        try:
            reject_other_pyspark()
            try:
                from pyspark import SparkContext
            except ImportError as error:
                raise EnvironmentUnfit(
                    f"PySpark cannot be imported: {error}", remedy="run pip install pyspark"
                ) from error
            # Suppress the traceback that Py4J prints if the user presses Ctrl-C.
            logging.getLogger("py4j").setLevel(logging.CRITICAL)
            self._context = self._context_of_boot(SparkContext) or self._context_in_sparks_way(
                SparkContext
            )
            if self._is_ours:
                # End PySpark's accumulator server, which prints a traceback when the JVM exits.
                # Rounds use no accumulators.
                server: Any = self._context._accumulatorServer
                server.handle_error = lambda *_: None
            if not self._is_waited_for.is_set():
                self._warm_up(self._context)
        except EnvironmentUnfit as error:
            self._error = error
        except Exception as error:
            death = self.find_death(error) or JvmDeath(
                start_failure(error), "check --master and --conf, or run lastwrite doctor"
            )
            remedy = death.remedy if tight_address_limit() is None else MORE_ADDRESSES
            self._error = EnvironmentUnfit(f"Spark did not start: {death.problem}", remedy=remedy)

    def _context_of_boot(self, spark: type[SparkContext]) -> SparkContext | None:
        """A Spark context in the JVM that was started early. None if that JVM does not start."""
        if self._boot is None:
            return None
        try:
            gateway = self._boot.jvm.gateway()
        except EnvironmentUnfit:
            death = self._boot.jvm.find_death()
            if self._boot.is_ended or (death is not None and death.for_memory):
                raise
            self._boot.close()
            self._boot = None
            return None
        self._gateway = gateway
        own = {"spark.python.unix.domain.socket.dir": str(self._boot.folder)}
        if self._boot.fork_server is not None:
            own[_DAEMON] = _OUR_DAEMON
        return spark(conf=self._settings(own), gateway=gateway)

    def _context_in_sparks_way(self, spark: type[SparkContext]) -> SparkContext:
        prepare_environment(local=local_workers(self._master) is not None)
        self._is_ours = spark._active_spark_context is None
        launches_jvm = spark._gateway is None
        own = {
            "spark.driver.memory": f"{HEAP_BYTES >> 20}m",
            "spark.driver.extraJavaOptions": " ".join(jvm_options()),
        }
        try:
            return spark.getOrCreate(self._settings(own))
        finally:
            if launches_jvm and spark._gateway is not None:
                self._gateway = quieten(spark._gateway)

    def _settings(self, own: Mapping[str, str]) -> Any:
        from pyspark import SparkConf

        return SparkConf(loadDefaults=False).setAll(
            list(
                {
                    **_SETTINGS,
                    "spark.master": with_attempts(self._master),
                    **own,
                    **self._conf,
                }.items()
            )
        )

    def _warm_up(self, context: SparkContext) -> None:
        """Run a first job that does nothing.

        The JVM warms up and forks workers while the driver still plans.
        """
        workers = local_workers(self._master) or 1
        with contextlib.suppress(Exception):
            context.parallelize(range(workers), workers).foreach(_nothing)

    @property
    def can_wait(self) -> bool:
        """Whether this Spark can be parked for the next call.

        It can if it runs on this machine, in its own JVM, and has left no unfinished work behind.

        Unfinished work means shuffle files, or running tasks whose results are no longer needed.
        """
        is_up = not self._starting.is_alive() and self._context is not None
        if not is_up or self._gateway is None or local_workers(self._master) is None:
            return False
        leaves = {"spark.speculation": "true", "spark.lastwrite.exchange": "shuffle"}
        return self.is_alive and all(self.setting(name) != way for name, way in leaves.items())

    @property
    def is_alive(self) -> bool:
        """Whether work can still be started on this Spark."""
        context: Any = self._context
        try:
            is_stopped = context._jsc.sc().isStopped()
        except Exception:  # the JVM has ended
            return False
        return not is_stopped and (self._boot is None or self._boot.folder.is_dir())

    def hide(self) -> None:
        """Hide this Spark from PySpark, so that the caller's next session is a new one."""
        from pyspark import SparkContext

        with SparkContext._lock:
            SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None

    def step_in(self) -> bool:
        """Make this Spark PySpark's session again.

        Returns False if the caller has started another session meanwhile.
        """
        from pyspark import SparkContext

        with SparkContext._lock:
            if SparkContext._gateway is not None:
                return False
            SparkContext._gateway, SparkContext._jvm = self._gateway, self._gateway.jvm
            SparkContext._active_spark_context = self._context
        return True

    def start_job(self) -> PersistentJob:
        if self._persistent_job is None:
            self._persistent_job = PersistentJob(None if self._boot is None else self._boot.folder)
        return self._persistent_job

    def stop_job(self, patience_seconds: float = 0.0) -> None:
        standing, self._persistent_job = self._persistent_job, None
        if standing is not None:
            standing.end(patience_seconds)

    def close(self, *, at_once: bool = False) -> None:
        """End this Spark without waiting for work whose result is not needed.

        With ``at_once``, also without waiting for the class archive to be written.
        """
        # End the persistent job before Spark, which prints errors if it is stopped while tasks end.
        self.stop_job(0.0 if at_once else _SECONDS_TO_STAND_DOWN)
        if self._boot is None:
            self._starting.join()
            if self._is_ours and (self._context is not None or self._gateway is not None):
                self._has_stopped()
                _forget(self._context, self._gateway)
                _end_launched(self._gateway)
            return
        is_up = not self._starting.is_alive() and self._context is not None
        let_go = is_up and not at_once and self._boot.jvm.archive.is_written and self._has_stopped()
        if not let_go and self._context is not None:
            _forget_accumulators(self._context)
        self._boot.close(let_go=let_go)
        self._starting.join()
        _forget(self._context, self._gateway)

    def _has_stopped(self) -> bool:
        """Stop the Spark context normally. Returns False if there is none, or no JVM.

        PySpark's ``stop`` is not used, because it also makes PySpark forget a session that the
        caller has started.
        """
        context: Any = self._context
        try:
            if context._jsc is not None:  # the caller may have stopped the context already
                context._jsc.stop()
        except Exception:
            return False
        finally:
            if context is not None:
                _forget_accumulators(context)
        return True


_SILENT = JvmDeath(
    "Spark's JVM no longer answers",
    "run the command again; if it happens again, run lastwrite doctor",
)


def _is_silence(error: Exception) -> bool:
    """Whether ``error`` is one that Py4J raises if the JVM has ended."""
    if isinstance(error, (ConnectionError, EOFError)):
        return True
    py4j: Any = sys.modules.get("py4j.protocol")
    return py4j is not None and (
        isinstance(error, py4j.Py4JNetworkError)
        or (type(error) is py4j.Py4JError and "Answer from Java" in str(error))
    )


def _nothing(_: int) -> None:
    """The task of the first job, which does nothing."""


def _forget_accumulators(context: Any) -> None:
    """End PySpark's server for accumulators, which wakes up once a second."""
    server = getattr(context, "_accumulatorServer", None)
    context._jsc = context._accumulatorServer = None
    if server is not None:
        server.server_shutdown = True
        # ignored, because Python 3.12 and newer cannot start a thread while the interpreter exits
        with contextlib.suppress(RuntimeError):
            threading.Thread(target=server.shutdown, daemon=True).start()


def _end_launched(gateway: Any) -> None:
    """End the JVM that PySpark launched. The next session then uses the current environment."""
    process = getattr(gateway, "proc", None)
    if process is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()  # closing its input ends the JVM
        try:
            process.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _forget(context: Any, gateway: Any) -> None:
    """Let PySpark start a new JVM for the next session."""
    from pyspark import SparkContext

    with SparkContext._lock:
        if SparkContext._active_spark_context is context:
            SparkContext._active_spark_context = None
        if SparkContext._gateway is gateway:
            SparkContext._gateway = SparkContext._jvm = None
    with contextlib.suppress(Exception):  # an error means that there is no gateway to close
        gateway.close()


# ---------------------------------------------------------------------- ahead of time

_ahead: Boot | None = None


def start_ahead(
    master: str,
    conf: Mapping[str, str],
    note: Callable[[str], None],
    system: Callable[[], str | None] = lambda: None,
    warm_up: str = WARM_UP,
) -> None:
    """Start the processes for a session on ``master``, before the rest of the program is imported.

    Only for a program that does nothing else, because it may be forked. The next ``OwnSpark`` uses
    the processes, and reports their errors. ``note`` is called before kernels are compiled.
    ``system`` returns the system whose logs will be compacted; it is called only if needed.
    ``warm_up`` is as in ``launcher.forkserver.load``.
    """
    global _ahead
    with contextlib.suppress(EnvironmentUnfit, InvalidConfig, OSError):
        if _ahead is None and _is_plain(master, conf):
            _ahead = Boot(system, forks=True, note=note, warm_up=warm_up)


def _take_ahead(system: str | None) -> Boot | None:
    """The processes that ``start_ahead`` started, or new ones.

    None if Lastwrite cannot start a JVM itself.
    """
    global _ahead
    boot, _ahead = _ahead, None
    if boot is not None:
        # set again, because the environment may have changed since the processes were started
        set_local_defaults()
    try:
        return boot or Boot(lambda: system)
    except (EnvironmentUnfit, OSError):
        return None  # PySpark's launcher is used instead, and reports the cause


def _is_plain(master: str, conf: Mapping[str, str]) -> bool:
    """Whether Lastwrite can start the JVM itself, without PySpark's launcher.

    It can if all workers are on this machine, there are only Lastwrite's settings, and this process
    has no JVM yet.
    """
    if _launcher(conf) == "spark" or local_workers(master) is None:
        return False
    if any(not name.startswith(_OURS) for name in conf):
        return False
    loaded: Any = sys.modules.get("pyspark")
    return loaded is None or getattr(loaded.SparkContext, "_gateway", None) is None


def _launcher(conf: Mapping[str, str]) -> str:
    """The launcher in the settings: ``fast`` is ``spark/launcher``, ``spark`` is PySpark's.

    Raises:
        InvalidConfig: the setting has another value.
    """
    way = conf.get(_LAUNCHER, "fast")
    if way not in ("fast", "spark"):
        raise InvalidConfig(
            f"{_LAUNCHER} is {way!r}, which is not supported", remedy="give fast or spark"
        )
    return way


@contextlib.contextmanager
def spark_session(master: str, conf: Mapping[str, str]) -> Iterator[SparkSession]:
    """A new Spark session, like one that a caller would pass. It is stopped at the end.

    Raises:
        EnvironmentUnfit: there is no Java 17 or newer, or Spark does not start.
    """
    spark = OwnSpark(master, conf)
    try:
        context = spark.context
        from pyspark.sql import SparkSession

        session = SparkSession(context)
        yield session
        session.stop()
    finally:
        spark.close()
