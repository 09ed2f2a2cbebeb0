"""A real cluster of Spark's own on this machine: what it lacks is said with its remedy, and the log
stays as it was.

Master and worker are processes of their own; whatever they start goes with them.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil
import pytest

from lastwrite.spark.launcher.java import JavaFound, find_java
from tests.system.test_killed_starts import mark as mark
from tests.system.test_killed_starts import started
from tests.system.test_killed_workers import files

pytestmark = [pytest.mark.spark, pytest.mark.slow]
STOPPED = Path(__file__).parent.parent / "corpus" / "kafka-4.4.0" / "stopped"
TOPIC = "client-zstd"
DEPLOY = "org.apache.spark.deploy"
SECONDS = 240  # a machine with other work


class Cluster:
    """A master, and workers of one core each."""

    def __init__(self, folder: Path, java: JavaFound) -> None:
        import pyspark

        self._home = Path(pyspark.__file__).parent
        self._folder = folder
        self._java = java
        self._processes: list[subprocess.Popen[bytes]] = []
        self.url = ""

    def start_master(self) -> None:
        self.url = self._start("master.Master", [], r"Starting Spark master at (spark://\S+)")

    def add_worker(self) -> None:
        work = self._folder / "work"
        options = ["--cores", "1", "--memory", "600m", "--work-dir", str(work), self.url]
        self._start("worker.Worker", options, r"(Successfully registered) with master")

    def _start(self, role: str, options: Sequence[str], ready: str) -> str:
        log = self._folder / f"{role}.{len(self._processes)}.log"
        environment = {**os.environ, "SPARK_HOME": str(self._home), "SPARK_LOCAL_IP": "127.0.0.1"}
        environment["JAVA_HOME"] = self._java.home
        (core,) = glob.glob(f"{self._home}/jars/spark-core_*.jar")
        environment["SPARK_SCALA_VERSION"] = core.rpartition("_")[2].partition("-")[
            0
        ]  # as bin/spark-class does
        with log.open("wb") as file:
            self._processes.append(
                subprocess.Popen(
                    [
                        self._java.path,
                        "-Xmx128m",
                        "-XX:TieredStopAtLevel=1",
                        "-cp",
                        f"{self._home}/jars/*",
                        f"{DEPLOY}.{role}",
                        "--host",
                        "127.0.0.1",
                        "--port",
                        "0",
                        "--webui-port",
                        "0",
                        *options,
                    ],
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

    def close(self) -> None:
        for process in reversed(self._processes):  # a worker ends its executors
            process.terminate()
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()


@pytest.fixture
def cluster(tmp_path: Path, mark: str) -> Iterator[Cluster]:
    (tmp_path / "cluster").mkdir()
    java = find_java()
    if not java.has_vector_module:
        pytest.skip("executors need a whole Java: this one has no module jdk.incubator.vector")
    made = Cluster(tmp_path / "cluster", java)
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


def copy_of_corpus(folder: Path) -> Path:
    root = folder / "log"
    root.mkdir()
    shutil.copytree(STOPPED / f"{TOPIC}-0", root / f"{TOPIC}-0")
    return root


def compact(
    root: Path, master: str, conf: Mapping[str, str] | None = None, python: str = sys.executable
) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "lastwrite.cli",
        "compact",
        str(root),
        "--topic",
        TOPIC,
        "--now",
        "1800000000000",
        "--config",
        "min.cleanable.dirty.ratio=0",
        "--include-active",
        "--drop-keyless",
        "--master",
        master,
    ]
    settings = {"spark.executor.memory": "512m", "spark.driver.host": "127.0.0.1", **(conf or {})}
    for name, value in settings.items() if not master.startswith("local") else ():
        command += ["--conf", f"{name}={value}"]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PYSPARK_PYTHON": python},
    )


def test_no_worker_at_all(cluster: Cluster, tmp_path: Path) -> None:
    root = copy_of_corpus(tmp_path)
    before = files(root)
    done = compact(
        root,
        cluster.url,
        {"spark.lastwrite.executor.timeout": "3", "spark.executor.instances": "2"},
    )
    assert done.returncode == 1
    assert "waiting for executors (0 of 2)" in done.stderr.splitlines()
    said = done.stderr.splitlines()[-1]
    assert said.startswith(
        "lastwrite: the cluster gave no executor in 3 s (0 of 2) — nothing was swapped; "
    )
    assert "--conf spark.lastwrite.executor.timeout=SECONDS" in said and "--master local[*]" in said
    assert files(root) == before


def test_a_worker_without_lastwrite(cluster: Cluster, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    packages = tmp_path / "packages"
    packages.mkdir()
    for each in Path(sysconfig.get_path("purelib")).iterdir():
        if "lastwrite" not in each.name and not each.name.endswith(".pth"):
            (packages / each.name).symlink_to(each)
    (site,) = bare.glob("lib/python*/site-packages")
    (site / "others.pth").write_text(f"{packages}\n")
    cluster.add_worker()
    root = copy_of_corpus(tmp_path)
    before = files(root)
    done = compact(root, cluster.url, python=str(bare / "bin" / "python"))
    assert done.returncode == 1
    said = done.stderr.splitlines()[-1]
    assert "No module named 'lastwrite'" in said
    assert "install the same version of lastwrite for the Python of every worker" in said
    assert files(root) == before
