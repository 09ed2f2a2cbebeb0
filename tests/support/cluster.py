"""Spark's standalone cluster on this machine, whose workers can see fewer files than the driver."""

from __future__ import annotations

import contextlib
import functools
import glob
import os
import re
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil
import pytest

from lastwrite.spark.launcher.java import JavaRuntime, find_java
from tests.system.test_killed_starts import started

DEPLOY = "org.apache.spark.deploy"
SECONDS = 240  # long enough for a busy machine
_MOUNT = (
    'while [ "$1" != -- ]; do mount -t tmpfs none "$1" || exit 1; shift; done; shift; exec "$@"'
)


@functools.cache
def apart() -> tuple[str, ...]:
    """The command that starts a program in a mount namespace of its own.

    Skips the test if the system does not allow mount namespaces.
    """
    begin = ("unshare", "-m") if os.geteuid() == 0 else ("unshare", "-rm")
    command = [*begin, "mount", "-t", "tmpfs", "none", "/tmp"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        pytest.skip(f"no mount namespaces here: {error}")
    if done.returncode:
        pytest.skip(f"no mount namespaces here: {done.stderr.strip()}")
    return begin


class Cluster:
    """A Spark master and its workers, each with one core."""

    def __init__(self, folder: Path, java: JavaRuntime) -> None:
        import pyspark

        self._home = Path(pyspark.__file__).parent
        self._folder = folder
        self._java = java
        self._processes: list[subprocess.Popen[bytes]] = []
        self.url = ""

    def start_master(self) -> None:
        self.url = self._start("master.Master", [], r"Starting Spark master at (spark://\S+)")

    def add_worker(
        self, hidden: Sequence[Path] = (), environment: Mapping[str, str | None] | None = None
    ) -> None:
        """Start a worker.

        Args:
            hidden: Folders that look empty to the worker and its executors.
            environment: Variables that differ from this process's. None removes a variable.
        """
        work = self._folder / "work"
        options = ["--cores", "1", "--memory", "600m", "--work-dir", str(work), self.url]
        around = (*apart(), "sh", "-c", _MOUNT, "sh", *map(str, hidden), "--") if hidden else ()
        self._start(
            "worker.Worker",
            options,
            r"(Successfully registered) with master",
            around,
            environment or {},
        )

    def _start(
        self,
        role: str,
        options: Sequence[str],
        ready: str,
        around: Sequence[str] = (),
        more: Mapping[str, str | None] | None = None,
    ) -> str:
        log = self._folder / f"{role}.{len(self._processes)}.log"
        environment = {**os.environ, "SPARK_HOME": str(self._home), "SPARK_LOCAL_IP": "127.0.0.1"}
        environment["JAVA_HOME"] = self._java.home
        (core,) = glob.glob(f"{self._home}/jars/spark-core_*.jar")
        # as bin/spark-class does
        environment["SPARK_SCALA_VERSION"] = core.rpartition("_")[2].partition("-")[0]
        for name, value in (more or {}).items():
            environment.pop(name, None)
            if value is not None:
                environment[name] = value
        java = [self._java.path, "-Xmx128m", "-XX:TieredStopAtLevel=1"]
        java += ["-cp", f"{self._home}/jars/*", f"{DEPLOY}.{role}"]
        ports = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        with log.open("wb") as file:
            self._processes.append(
                subprocess.Popen(
                    [*around, *java, *ports, *options],
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                    env=environment,
                )
            )
        end = time.monotonic() + SECONDS
        while not (found := re.search(ready, log.read_text(errors="replace"))):
            assert self._processes[-1].poll() is None and time.monotonic() < end, log.read_text()
            time.sleep(0.1)
        return found[1]

    def executors(self) -> list[psutil.Process]:
        """The running JVMs of executors."""
        found = []
        for worker in self._processes[1:]:
            with contextlib.suppress(psutil.NoSuchProcess):
                for each in psutil.Process(worker.pid).children(recursive=True):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        if "CoarseGrainedExecutorBackend" in " ".join(each.cmdline()):
                            found.append(each)
        return found

    def close(self) -> None:
        for process in reversed(self._processes):  # a worker stops its own executors
            process.terminate()
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()


@contextlib.contextmanager
def cluster_in(folder: Path, mark: str) -> Iterator[Cluster]:
    """A cluster of one master, stopped at the end.

    At the end, every process with ``mark`` in its environment is killed, too.
    """
    folder.mkdir()
    java = find_java()
    if not java.has_vector_module:
        pytest.skip("executors need a whole Java: this one has no module jdk.incubator.vector")
    made = Cluster(folder, java)
    try:
        made.start_master()
        yield made
    finally:
        made.close()
        left = started(mark)
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    assert not psutil.wait_procs(left, 10)[1]
