"""Tests on a real Spark cluster on this machine, with master and workers in their own processes.

Missing parts are reported with a remedy, and the log is unchanged.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

import lastwrite
from tests.support.cluster import SECONDS, Cluster, cluster_in
from tests.support.objects import s3_server
from tests.support.rocketmq.dispatch import Broker, send, write_store
from tests.system.test_killed_starts import mark as mark
from tests.system.test_killed_workers import files

pytestmark = [pytest.mark.spark, pytest.mark.slow]
STOPPED = Path(__file__).parent.parent / "corpus" / "kafka-4.4.0" / "stopped"
TOPIC = "client-zstd"


@pytest.fixture
def cluster(tmp_path: Path, mark: str) -> Iterator[Cluster]:
    with cluster_in(tmp_path / "cluster", mark) as made:
        yield made


def copy_of_corpus(folder: Path) -> Path:
    root = folder / "log"
    root.mkdir()
    shutil.copytree(STOPPED / f"{TOPIC}-0", root / f"{TOPIC}-0")
    return root


def compact(
    root: Path | Sequence[str],
    master: str,
    conf: Mapping[str, str] | None = None,
    python: str = sys.executable,
) -> subprocess.CompletedProcess[str]:
    words = [
        "compact",
        *([str(root)] if isinstance(root, Path) else root),
        "--topic",
        TOPIC,
        "--now",
        "1800000000000",
        "--config",
        "min.cleanable.dirty.ratio=0",
        "--include-active",
        "--drop-keyless",
    ]
    return run(words, master, conf, python)


def run(
    words: Sequence[str],
    master: str,
    conf: Mapping[str, str] | None = None,
    python: str = sys.executable,
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lastwrite.cli", *words, "--master", master]
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


def test_cluster_without_workers_is_reported(cluster: Cluster, tmp_path: Path) -> None:
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
        "lastwrite: the cluster started no executor within 3 s (0 of 2) — nothing was swapped; "
    )
    assert "--conf spark.lastwrite.executor.timeout=SECONDS" in said and "--master local[*]" in said
    assert files(root) == before


def python_without_us(tmp_path: Path) -> str:
    """A Python environment that has every package except lastwrite."""
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    packages = tmp_path / "packages"
    packages.mkdir()
    for each in Path(sysconfig.get_path("purelib")).iterdir():
        if "lastwrite" not in each.name and not each.name.endswith(".pth"):
            (packages / each.name).symlink_to(each)
    (site,) = bare.glob("lib/python*/site-packages")
    (site / "others.pth").write_text(f"{packages}\n")
    return str(bare / "bin" / "python")


def zip_of_us(folder: Path) -> Path:
    package, made = Path(lastwrite.__file__).parent, folder / "lastwrite.zip"
    with zipfile.ZipFile(made, "w") as file:
        for source in package.rglob("*.py"):
            file.write(source, source.relative_to(package.parent))
    return made


def test_worker_without_lastwrite_is_reported(cluster: Cluster, tmp_path: Path) -> None:
    cluster.add_worker()
    root = copy_of_corpus(tmp_path)
    before = files(root)
    done = compact(root, cluster.url, python=python_without_us(tmp_path))
    assert done.returncode == 1
    said = done.stderr.splitlines()[-1]
    assert said.startswith(
        "lastwrite: 1 of 1 worker has no lastwrite installed — nothing was changed; "
    )
    assert "install the same version of lastwrite for the Python of every worker" in said
    assert files(root) == before


@pytest.mark.long
def test_all_missing_parts_of_workers_are_reported_at_once(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Three workers: a complete one, one with an old release and one with lastwrite in a zip file.

    None of them can read the log.
    """
    old = tmp_path / "old" / "lastwrite"
    old.mkdir(parents=True)
    (old / "__init__.py").write_text('__version__ = "0.0.9"\n')
    (tmp_path / "driver").mkdir()
    root = copy_of_corpus(tmp_path / "driver")
    before = files(root)
    for path in (None, str(old.parent), str(zip_of_us(tmp_path))):
        cluster.add_worker([tmp_path / "driver"], {"PYTHONPATH": path})
    done = compact(root, cluster.url, {"spark.cores.max": "3", "spark.executor.cores": "1"})
    assert done.returncode == 1
    said = done.stderr.splitlines()[-1]
    assert "1 of 3 workers has lastwrite 0.0.9, but this machine has 0.1.0; " in said
    assert "1 of 3 workers has lastwrite in a zip file" in said
    assert f"1 of 3 workers cannot access {root}/{TOPIC}-0 — nothing was changed; " in said
    assert (
        "spark.archives=lastwrite.zip#lw" in said
        and "give an address that every worker can read" in said
    )
    assert files(root) == before


@pytest.mark.long
def test_other_commands_check_the_workers_first(cluster: Cluster, tmp_path: Path) -> None:
    old = tmp_path / "old" / "lastwrite"
    old.mkdir(parents=True)
    (old / "__init__.py").write_text('__version__ = "0.0.9"\n')
    cluster.add_worker(environment={"PYTHONPATH": str(old.parent)})
    root, store = copy_of_corpus(tmp_path), tmp_path / "store"
    broker = Broker()
    send(broker, "plain", 0, 0, keys="k", body=b"v")
    write_store(store, broker)
    sizes = [f"--config={name}={value}" for name, value in broker.sizes.config().items()]
    before = files(root), {**files(store), "lock": b""}  # RocketMQ's own
    clean = ["clean", str(root), "--once", "--config=min.cleanable.dirty.ratio=0"]
    clean += ["--config=cleanup.policy=compact", "--drop-keyless"]
    for words in (clean, ["dispatch", str(store), *sizes]):
        done = run(words, cluster.url, {"spark.lastwrite.scratch": str(tmp_path)})
        assert done.returncode == 1, done.stderr
        said = done.stderr.splitlines()[-1]
        assert (
            "1 of 1 worker has lastwrite 0.0.9, but this machine has 0.1.0 — nothing was changed; "
            in said
        )
    assert (files(root), files(store)) == before


@pytest.mark.long
def test_package_can_be_shipped_as_an_archive(cluster: Cluster, tmp_path: Path) -> None:
    """The archive is unpacked in the executor's folder. The test above covers ``--py-files``, which
    is refused.
    """
    cluster.add_worker()
    root = copy_of_corpus(tmp_path)
    twin = shutil.copytree(root, tmp_path / "twin")
    assert compact(twin, "local[1]").returncode == 0
    assert files(twin) != files(root)
    shipped = {
        "spark.archives": f"{zip_of_us(tmp_path)}#lw",
        "spark.executorEnv.PYTHONPATH": "lw",
    }
    done = compact(root, cluster.url, shipped, python_without_us(tmp_path))
    assert done.returncode == 0, done.stderr
    assert files(root) == files(twin)


@pytest.mark.long
def test_workers_without_credentials_are_reported(cluster: Cluster, tmp_path: Path) -> None:
    with s3_server(tmp_path / "s3", "archive") as s3:
        settings = [w for n, v in s3.config.items() for w in ("--config", f"{n}={v}")]
        address = ["s3://archive/a", *settings]
        fetch = [sys.executable, "-m", "lastwrite.cli", "fetch", str(copy_of_corpus(tmp_path))]
        subprocess.run([*fetch, "--to", *address], check=True, capture_output=True)
        cluster.add_worker(environment={"AWS_SECRET_ACCESS_KEY": "not this one"})
        done = compact(address, cluster.url)
        assert done.returncode == 1
        said = done.stderr.splitlines()[-1]
        place = f"s3://archive/a/kafka/{TOPIC}/0"
        assert said.startswith(
            f"lastwrite: 1 of 1 worker reports a problem of {place}: s3:GetObject "
        ), said
        assert "not this one" not in done.stderr
