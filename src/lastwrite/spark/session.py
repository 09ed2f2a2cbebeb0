"""Spark, started as this work needs it, or the caller's own session.

Local mode needs no server: a JVM beside the driver and a Python worker a core. The JVM only schedules, so it gets a
small heap, one compiler tier and no web page; and only a ``SparkContext``, since no SQL is asked of it (a session
would cost it more than its own start). It comes up while the driver imports and plans: ``OwnSpark`` starts everything
and waits for nothing until a stage asks for the context. At the end it is killed where it stands: all results are in,
and what it wrote lies in a folder that goes too.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from lastwrite.errors import EnvironmentUnfit, InvalidConfig
from lastwrite.pipeline.boot import Boot
from lastwrite.pipeline.jvm import HEAP_BYTES, jvm_options
from lastwrite.pipeline.machine import core_count

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_SETTINGS = {
    "spark.app.name": "lastwrite",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.python.worker.reuse": "true",
    # Without it each task waits 40 ms for a delayed TCP acknowledgement.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.scheduler.mode": "FIFO",
    "spark.rdd.compress": "false",
    "spark.shuffle.compress": "false",
    "spark.broadcast.compress": "false",  # a task is a few KB; the codec's library costs more
}
_OURS = "spark.lastwrite."
_DAEMON, _OUR_DAEMON = "spark.python.daemon.module", "lastwrite.attach"


def local_workers(master: str) -> int | None:
    """How many workers ``local[n]`` means; None for a cluster.

    Raises:
        InvalidConfig: not a master URL that Spark has.
    """
    if master == "local":
        return 1
    if master.startswith("local[") and master.endswith("]"):
        count = master[6:-1].split(",")[0]
        if count == "*":
            return core_count()
        if count.isdigit() and int(count) > 0:
            return int(count)
        raise InvalidConfig(f"master {master!r}: local[n] takes a number or *")
    return None


class Spark(Protocol):
    """Where a runner's stages run."""

    @property
    def master(self) -> str: ...

    @property
    def context(self) -> SparkContext:
        """The context; waits until it is there.

        Raises:
            EnvironmentUnfit: no Java of version 17 or newer, or Spark does not start.
        """
        ...

    @property
    def is_lean(self) -> bool:
        """Whether JVM and workers are started in our own way, which takes less memory than Spark's."""
        ...

    def setting(self, name: str) -> str | None: ...


class GivenSpark:
    """A caller's own session."""

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


class OwnSpark:
    """A context of our own: started at once, waited for when it is asked for, ended with ``close``."""

    def __init__(self, master: str, conf: Mapping[str, str]) -> None:
        self._master = master
        self._conf = dict(conf)
        self._boot = _take_ahead() if _is_plain(master, conf) else None
        self._context: SparkContext | None = None
        self._is_ours = True
        self._error: EnvironmentUnfit | None = None
        self._is_waited_for = threading.Event()
        self._is_closing = False
        self._starting = threading.Thread(target=self._start, name="lastwrite-spark", daemon=True)
        self._starting.start()

    @property
    def master(self) -> str:
        return self._master

    @property
    def is_lean(self) -> bool:
        return self._boot is not None and self._boot.nursery is not None

    @property
    def context(self) -> SparkContext:
        self._is_waited_for.set()
        self._starting.join()
        if self._error is not None:
            raise self._error
        assert self._context is not None
        return self._context

    def setting(self, name: str) -> str | None:
        if self._boot is not None:  # then no file says more
            return self._conf.get(name)
        found: str | None = self.context.getConf().get(name, None)
        return found

    def _start(self) -> None:
        try:
            try:
                from pyspark import SparkContext
            except ImportError as error:
                raise EnvironmentUnfit(
                    f"PySpark cannot be imported: {error}", remedy="pip install pyspark"
                ) from error
            logging.getLogger("py4j").setLevel(
                logging.CRITICAL
            )  # it prints a page when a user presses Ctrl-C
            self._context = self._context_of_boot(SparkContext) or self._context_in_sparks_way(
                SparkContext
            )
            if not self._is_waited_for.is_set():
                self._warm_up(self._context)
        except EnvironmentUnfit as error:
            self._error = error
        except Exception as error:
            first = str(error).splitlines()[0] if str(error) else type(error).__name__
            self._error = EnvironmentUnfit(
                f"Spark did not start: {first}", remedy="run: lastwrite doctor"
            )

    def _context_of_boot(self, spark: type[SparkContext]) -> SparkContext | None:
        """A context in the JVM that was started ahead; None: that JVM does not come up."""
        if self._boot is None:
            return None
        try:
            gateway = self._boot.jvm.gateway()
        except EnvironmentUnfit:
            if self._is_closing:
                raise
            self._boot.close()
            self._boot = None
            return None
        own = {"spark.python.unix.domain.socket.dir": str(self._boot.folder)}
        if self._boot.nursery is not None:
            own[_DAEMON] = _OUR_DAEMON
        return spark(conf=self._settings(own), gateway=gateway)

    def _context_in_sparks_way(self, spark: type[SparkContext]) -> SparkContext:
        from lastwrite.pipeline.java import prepare_environment

        prepare_environment(local=local_workers(self._master) is not None)
        self._is_ours = spark._active_spark_context is None
        return spark.getOrCreate(
            self._settings(
                {
                    "spark.driver.memory": f"{HEAP_BYTES >> 20}m",
                    "spark.driver.extraJavaOptions": " ".join(jvm_options()),
                }
            )
        )

    def _settings(self, own: Mapping[str, str]) -> Any:
        from pyspark import SparkConf

        return SparkConf(loadDefaults=False).setAll(
            list({**_SETTINGS, "spark.master": self._master, **own, **self._conf}.items())
        )

    def _warm_up(self, context: SparkContext) -> None:
        """A first job that does nothing: the JVM learns how, and forks workers, while the driver still plans."""
        workers = local_workers(self._master) or 1
        with contextlib.suppress(Exception):
            context.parallelize(range(workers), workers).foreach(_nothing)

    def close(self) -> None:
        """End it, waiting for nothing that has no result."""
        self._is_closing = True
        if self._boot is None:
            self._starting.join()
            if self._context is not None and self._is_ours:
                self._context.stop()
            return
        is_up = not self._starting.is_alive() and self._context is not None
        let_go = is_up and self._boot.jvm.archive.is_written
        if let_go:
            assert self._context is not None
            self._context.stop()
        elif self._context is not None:
            _forget_accumulators(self._context)
        self._boot.close(let_go=let_go)
        self._starting.join()
        _forget_gateway()


def _nothing(_: int) -> None:
    """Done."""


def _forget_accumulators(context: Any) -> None:
    """End PySpark's server for accumulators. It looks up once a second, and complains when its JVM goes."""
    server = getattr(context, "_accumulatorServer", None)
    context._jsc = context._accumulatorServer = None
    if server is not None:
        server.server_shutdown = True
        server.handle_error = lambda *_: None
        threading.Thread(target=server.shutdown, daemon=True).start()


def _forget_gateway() -> None:
    """Let PySpark start a JVM anew when somebody asks for the next session."""
    from pyspark import SparkContext

    with SparkContext._lock:
        if SparkContext._gateway is not None:
            with contextlib.suppress(Exception):
                SparkContext._gateway.close()
        SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None


# ---------------------------------------------------------------------- ahead of time

_ahead: Boot | None = None


def start_ahead(master: str, conf: Mapping[str, str]) -> None:
    """Start what a session on ``master`` will need, before the rest of the program is even imported.

    For a program that does nothing else: it may be forked. The next ``OwnSpark`` takes over what was started, and
    tells what went wrong.
    """
    global _ahead
    with contextlib.suppress(EnvironmentUnfit, InvalidConfig, OSError):
        if _ahead is None and _is_plain(master, conf):
            _ahead = Boot(forks=True)
            atexit.register(_end_ahead)


def _take_ahead() -> Boot | None:
    """What was started ahead, or else a new start; None: it cannot be started like this here."""
    global _ahead
    boot, _ahead = _ahead, None
    try:
        return boot or Boot()
    except (EnvironmentUnfit, OSError):
        return None  # Spark's own way finds out what is wrong, and says it


def _end_ahead() -> None:
    """Nobody took it over."""
    global _ahead
    boot, _ahead = _ahead, None
    if boot is not None:
        boot.close()


def _is_plain(master: str, conf: Mapping[str, str]) -> bool:
    """Whether a JVM of our own will do: on this machine, no settings but ours, and no JVM in this process yet."""
    if local_workers(master) is None or any(not name.startswith(_OURS) for name in conf):
        return False
    loaded: Any = sys.modules.get("pyspark")
    return loaded is None or getattr(loaded.SparkContext, "_gateway", None) is None


@contextlib.contextmanager
def spark_session(master: str, conf: Mapping[str, str]) -> Iterator[SparkSession]:
    """A session of our own, as a caller would pass one; stopped at the end.

    Raises:
        EnvironmentUnfit: no Java of version 17 or newer, or Spark does not start.
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
