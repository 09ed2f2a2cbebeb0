"""Spark, started as this work needs it, or the caller's own session.

Local mode needs no server: a JVM beside the driver and a Python worker a core. The JVM only schedules,
so it gets a small heap, one compiler tier (it lives for seconds) and no web page.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from lastwrite.errors import EnvironmentUnfit, InvalidConfig
from lastwrite.pipeline.machine import core_count
from lastwrite.pipeline.memory import MemoryPlan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOGGING = Path(__file__).with_name("log4j2.properties")


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


@contextlib.contextmanager
def spark_session(master: str, memory: MemoryPlan, conf: Mapping[str, str]) -> Iterator[SparkSession]:
    """A session of our own, stopped at the end.

    Raises:
        EnvironmentUnfit: no Java of version 17 or newer, or Spark does not start.
    """
    from lastwrite.pipeline.java import prepare_environment

    prepare_environment(local=local_workers(master) is not None)
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise EnvironmentUnfit(f"PySpark cannot be imported: {error}", remedy="pip install pyspark") from error
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # it prints a page when a user presses Ctrl-C
    heap = memory.heap_bytes >> 20
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": f"{heap}m",
        "spark.driver.extraJavaOptions": (
            "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=64m -Xss512k "
            "-Xms96m -XX:MaxNewSize=64m -XX:MaxDirectMemorySize=64m "
            f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}"
        ),
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.python.worker.reuse": "true",
        # Without it each task waits 40 ms for a delayed TCP acknowledgement.
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.scheduler.mode": "FIFO",
        "spark.rdd.compress": "false",
        "spark.shuffle.compress": "false",
        **conf,
    }
    builder = SparkSession.builder.master(master).appName("lastwrite")
    for name, value in settings.items():
        builder = builder.config(name, value)
    interrupt = signal.getsignal(signal.SIGINT)
    try:
        session = builder.getOrCreate()
    except Exception as error:
        raise EnvironmentUnfit(
            f"Spark did not start: {str(error).splitlines()[0] if str(error) else type(error).__name__}",
            remedy="run: lastwrite doctor",
        ) from error
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, interrupt)  # PySpark's own asks the JVM in the middle of another question
    try:
        yield session
    finally:
        session.stop()
