"""Tests of compaction of an archive in a real S3 server, on a cluster without shared folders.

The result equals that of local mode.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lastwrite.archive.manifest import Manifest, decode
from lastwrite.demo.topic_writer import TopicWriter
from lastwrite.kafka.store.archived import ArchivedLog, contents_of
from lastwrite.model.log import TopicPartition
from tests.support.cluster import SECONDS, Cluster, cluster_in
from tests.support.objects import S3, fault_proxy, s3_server
from tests.system.test_killed_starts import NAME

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.broker]
BUCKET = "archive"
STAGES = {"scan": "_scan_rows", "elect": "_elect_parts", "rewrite": "_rewrite_scanned"}
# Python code that each worker runs at its start. It stops a task that has done its work but not yet
# returned the result. It then either kills the executor, once a stage, or waits until the driver
# has been killed.
HOOK = """
import inspect, os, signal, time
import psutil
from lastwrite.spark import shuffle_exchange

TOLD, STAGES, WAITS = {told!r}, {stages!r}, os.environ.get("LASTWRITE_TEST_WAIT")

def reached(stage):
    try:
        os.close(os.open(f"{{TOLD}}/{{stage}}", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    if WAITS:
        time.sleep({seconds})
    for each in psutil.Process().parents():
        if "CoarseGrainedExecutorBackend" in " ".join(each.cmdline()):
            os.kill(each.pid, signal.SIGKILL)

def hooked(stage, work):
    def rows(*given):
        found = list(work(*given))
        reached(stage)
        return iter(found)

    def value(*given):
        found = work(*given)
        reached(stage)
        return found

    return rows if inspect.isgeneratorfunction(work) else value

for stage, name in STAGES.items():
    if WAITS in (None, stage):
        setattr(shuffle_exchange, name, hooked(stage, getattr(shuffle_exchange, name)))
"""
PARTITIONS = 2


@dataclass(frozen=True)
class Site:
    """A cluster, an S3 store, and the driver's folder, which no worker can read."""

    cluster: Cluster
    s3: S3
    driver: Path
    told: Path  # folder that the driver and all workers share

    def run(self, *words: str, endpoint: str = "", env: Any = None) -> Any:
        """Run a command and wait for its end."""
        with self.start(*words, endpoint=endpoint, env=env) as process:
            out, err = process.communicate(timeout=SECONDS)
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def start(self, *words: str, endpoint: str = "", env: Any = None) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "lastwrite.cli", *words, "--json"]
        for name, value in {
            **self.s3.config,
            **({"storage.endpoint": endpoint} if endpoint else {}),
        }.items():
            command += ["--config", f"{name}={value}"]
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.driver,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, **(env or {})},
        )

    def fetch(self, archive: str) -> None:
        done = self.run("fetch", str(self.driver / "root"), "--to", f"s3://{BUCKET}/{archive}")
        assert done.returncode == 0, done.stderr

    def compact(
        self, archive: str, *more: str, master: str = "", endpoint: str = "", env: Any = None
    ) -> Any:
        return self.run(*self.compaction(archive, *more, master=master), endpoint=endpoint, env=env)

    def compaction(self, archive: str, *more: str, master: str = "") -> list[str]:
        words = ["compact", f"s3://{BUCKET}/{archive}", "--topic", "t", "--now", "1800000000000"]
        for setting in ("cleanup.policy=compact", "min.cleanable.dirty.ratio=0"):
            words += ["--config", setting]
        words += ["--master", master or self.cluster.url]
        settings = {"executor.memory": "512m", "driver.host": "127.0.0.1", "cores.max": "3"}
        for name, value in settings.items() if not master else ():
            words += ["--conf", f"spark.{name}={value}"]
        return (
            [*words, "--conf", "spark.executor.cores=1", *more] if not master else [*words, *more]
        )

    def hook(self, waits: str | None = None) -> list[str]:
        """Spark options for ``HOOK``: workers kill their executors, or wait in the
        stage ``waits``.
        """
        folder = self.told / uuid.uuid4().hex
        folder.mkdir()
        text = HOOK.format(told=str(self.told), stages=STAGES, seconds=SECONDS)
        (folder / "sitecustomize.py").write_text(text)
        for old in self.told.glob("[a-z]*"):
            if old.is_file():
                old.unlink()
        told = {"PYTHONPATH": str(folder), **({"LASTWRITE_TEST_WAIT": waits} if waits else {})}
        return [w for n, v in told.items() for w in ("--conf", f"spark.executorEnv.{n}={v}")]

    def manifest(self, archive: str, partition: int) -> Manifest:
        path = self.s3.data / BUCKET / archive / "kafka" / "t" / str(partition) / "manifest.json"
        return decode(path.read_bytes(), str(path))

    def content(self, archive: str) -> list[Any]:
        """The content of the archive's partitions without names, times and writer."""
        return [self._content(archive, n) for n in range(PARTITIONS)]

    def _content(self, archive: str, partition: int) -> Any:
        folder = self.s3.data / BUCKET / archive / "kafka" / "t" / str(partition)
        log: ArchivedLog = contents_of(self.manifest(archive, partition), str(folder))
        shape = json.loads(bytes(self.manifest(archive, partition).log))
        shape.pop("brought_ms", None)
        shape["snapshot"] = log.snapshot and log.snapshot.rpartition("/")[2]
        for segment in shape["segments"]:
            segment["folder"] = ""
        objects = [
            (each.key.rpartition("/")[2], (folder / each.key).read_bytes())
            for each in log.objects()
        ]
        return shape, objects


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    base = tmp_path_factory.mktemp("site")
    driver, told = base / "driver", base / "told"
    for folder in (driver, driver / "t", driver / "root", told):
        folder.mkdir()
    for n in range(PARTITIONS):
        place = TopicPartition("t", n)
        with TopicWriter(str(driver / "root"), place, segment_bytes=12_000, batch_bytes=600) as log:
            for i in range(4000):
                log.append(b"key-%d" % (i % (20 + i // 4)), b"v-%d" % i, 1_700_000_000_000 + i)
    mark = uuid.uuid4().hex
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("SPARK_", "PYSPARK_"))]:
            patch.delenv(name)
        patch.setenv("TMPDIR", str(driver / "t"))
        patch.setenv(NAME, mark)
        with s3_server(base / "s3", BUCKET) as s3, cluster_in(base / "cluster", mark) as cluster:
            for _ in range(3):
                cluster.add_worker([driver, Path("/dev/shm")])
            made = Site(cluster, s3, driver, told)
            made.fetch("local")
            done = made.compact("local", master="local[3]")
            assert done.returncode == 0, done.stderr
            yield made


def figures(done: Any) -> Any:
    """The partition figures of a report, without addresses and seconds."""
    report = json.loads(done.stdout)
    for each in report["partitions"]:
        each.pop("seconds", None)
        each.pop("folder", None)
        each.pop("path", None)
    totals = {
        name: v
        for name, v in report["totals"].items()
        if "seconds" not in name and name != "profile"
    }
    return report["partitions"], totals


@pytest.mark.long
def test_cluster_equals_local_mode(site: Site) -> None:
    for archive in ("one", "other"):
        site.fetch(archive)
    before = site.content("one")
    done = site.compact("one")
    assert done.returncode == 0, done.stderr
    here = site.compact("other", master="local[3]")
    assert site.content("one") == site.content("other") == site.content("local") != before
    said, expected = (figures(each) for each in (done, here))
    assert said == expected
    asked, asked_here = (json.loads(each.stdout)["requests"] for each in (done, here))
    assert asked["puts"] == asked_here["puts"]
    assert asked["bytes_read"] == asked_here["bytes_read"]  # every byte is read at most twice
    words = ["verify", f"s3://{BUCKET}/one", "--topic", "t", "--master", site.cluster.url]
    for setting in ("executor.memory=512m", "driver.host=127.0.0.1"):
        words += ["--conf", f"spark.{setting}"]
    proven = site.run(*words)
    assert proven.returncode == 0, proven.stdout + proven.stderr


@pytest.mark.long
def test_cluster_equals_local_mode_although_executors_and_requests_fail(site: Site) -> None:
    site.fetch("dying")
    with fault_proxy(site.s3.endpoint) as proxy:
        proxy.spoil(
            {"method": "PUT", "path": "manifest.json", "do": "late", "times": 1},
            {"method": "PUT", "path": "manifest.json", "do": "lost", "times": 1},
            {"method": "PUT", "path": "[.]log$", "do": "lost", "times": 1},
            {"method": "GET", "path": "[.]log$", "do": "drop", "every": 5},
            {"method": "GET", "do": "503", "every": 4},
            {"method": "PUT", "do": "503", "every": 5},
        )
        done = site.compact("dying", *site.hook(), endpoint=proxy.endpoint)
        used = proxy.used()
    assert done.returncode == 0, done.stderr
    assert {each.name for each in site.told.iterdir() if each.is_file()} == set(STAGES)
    assert used >= 6
    assert site.content("dying") == site.content("local")


@pytest.mark.long
def test_executors_may_die_while_the_driver_commits(site: Site) -> None:
    site.fetch("idle")
    with fault_proxy(site.s3.endpoint) as proxy:
        proxy.spoil(
            {"method": "PUT", "path": "/rounds/", "do": "slow", "seconds": 3},
            {"method": "PUT", "path": "manifest.json", "do": "slow", "seconds": 3},
        )
        with site.start(*site.compaction("idle"), endpoint=proxy.endpoint) as driver:
            for requests in (1, PARTITIONS + 1):
                wait_for(driver, lambda least=requests: proxy.used() >= least)
                executors = site.cluster.executors()
                assert executors
                for each in executors:
                    each.kill()
            _, said = driver.communicate(timeout=SECONDS)
    assert driver.returncode == 0, said
    assert site.content("idle") == site.content("local")


@pytest.mark.long
def test_flipped_byte_on_the_network_is_detected(site: Site) -> None:
    """The proxy also refuses two connections and breaks off an upload. These requests
    are retried.
    """
    site.fetch("garbled")
    before, after = site.content("garbled"), site.content("local")
    with fault_proxy(site.s3.endpoint) as proxy:
        where = "garbled/kafka/t/0/.*[.]log$"
        proxy.spoil(
            {"method": "GET", "path": where, "do": "garble", "times": 1},
            {"method": "GET", "path": "1/.*[.]log$", "do": "refuse", "times": 2},
            {"method": "PUT", "path": "[.]log$", "do": "cutput", "bytes": 200, "times": 1},
        )
        done = site.compact("garbled", endpoint=proxy.endpoint)
        assert proxy.used() == 4
    assert done.returncode == 3, done.stderr
    partitions = json.loads(done.stdout)["partitions"]
    assert [each["status"] for each in partitions] == ["damaged", "cleaned"]
    assert site.content("garbled") == [before[0], after[1]]
    done = site.compact("garbled", master="local[3]")
    assert done.returncode == 0, done.stderr
    assert site.content("garbled") == after


@pytest.mark.parametrize(
    "stage",
    [
        pytest.param("scan", marks=pytest.mark.long),
        pytest.param("elect", marks=pytest.mark.long),
        pytest.param("rewrite", marks=pytest.mark.long),
    ],
)
def test_death_of_the_driver_leaves_the_archive_unchanged(site: Site, stage: str) -> None:
    archive = f"orphan-{stage}"
    site.fetch(archive)
    before = site.content(archive)
    with site.start(*site.compaction(archive, *site.hook(waits=stage))) as driver:
        wait_for(driver, (site.told / stage).exists)
        driver.kill()
    assert site.content(archive) == before
    done = site.compact(archive, master="local[3]")
    assert done.returncode == 0, done.stderr
    assert site.content(archive) == site.content("local")


@pytest.mark.long
def test_death_of_the_driver_while_planning_leaves_the_archive_unchanged(site: Site) -> None:
    site.fetch("planned")
    before = site.content("planned")
    with fault_proxy(site.s3.endpoint) as proxy:
        proxy.spoil({"method": "GET", "path": "manifest.json", "do": "hang"})
        with site.start(*site.compaction("planned"), endpoint=proxy.endpoint) as driver:
            wait_for(driver, lambda: proxy.used() >= PARTITIONS)
            driver.kill()
    assert site.content("planned") == before


@pytest.mark.long
def test_death_of_the_driver_while_committing_leaves_each_log_old_or_new(site: Site) -> None:
    """Each partition has the old log or the new one. The next run compacts the rest."""
    site.fetch("commit")
    before, after = site.content("commit"), site.content("local")
    with fault_proxy(site.s3.endpoint) as proxy:
        proxy.spoil({"method": "PUT", "path": "manifest.json", "do": "lost"})
        with site.start(*site.compaction("commit"), endpoint=proxy.endpoint) as driver:
            wait_for(driver, lambda: proxy.used() > 0)
            driver.kill()
    for found, old, new in zip(site.content("commit"), before, after, strict=True):
        assert found in (old, new)
    done = site.compact("commit", master="local[3]")
    assert done.returncode == 0, done.stderr
    assert site.content("commit") == after


def wait_for(driver: subprocess.Popen[str], is_there: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not is_there():
        assert driver.poll() is None and time.monotonic() < end, driver.communicate()
        time.sleep(0.1)
