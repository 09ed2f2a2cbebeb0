"""Tests of starting and ending Spark.

Everything that starts also ends, and Spark starts itself if we cannot start it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from lastwrite.encoding.kernel_cache import COMPILING
from lastwrite.kafka import warm_up
from lastwrite.spark.launcher.attach import ADDRESS
from lastwrite.spark.launcher.forkserver import ForkServer, _load_all
from lastwrite.spark.session import OwnSpark

CORPUS = Path(__file__).parents[1] / "corpus"

ROUND = """
import sys, time
from lastwrite.spark.session import OwnSpark, start_ahead
if {ahead}:
    start_ahead("local[2]", {{}}, print)
spark = OwnSpark("local[2]", {{}})
print(sum(spark.context.parallelize(range(10), 2).map(lambda x: x + 1).collect()), spark._boot is not None, flush=True)
if {wait}:
    time.sleep(60)
spark.close()
"""


@pytest.fixture(autouse=True)
def own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("SPARK_", "PYSPARK_"))]:
        monkeypatch.delenv(name)
    (tmp_path / "t").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "t"))


def run(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def wait_for(condition: object, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.spark
@pytest.mark.parametrize("ahead", [False, True])
def test_killed_driver_ends_every_process(ahead: bool) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", ROUND.format(ahead=ahead, wait=True)],
        stdout=subprocess.PIPE,
        text=True,
    ) as driver:
        assert driver.stdout is not None and driver.stdout.readline() == "55 True\n"
        started = psutil.Process(driver.pid).children(recursive=True)
        assert len(started) >= 5  # JVM, fork server, attached process, daemon and workers
        driver.kill()
    wait_for(
        lambda: (
            not any(process.is_running() and process.status() != "zombie" for process in started)
        )
    )


@pytest.mark.spark
@pytest.mark.parametrize("ahead", [False, True])
def test_run_leaves_no_files(tmp_path: Path, ahead: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "no" / "cache"))
    (tmp_path / "no").write_bytes(b"")
    assert run(ROUND.format(ahead=ahead, wait=False)) == "55 True\n"
    assert list((tmp_path / "t").iterdir()) == []


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.long
def test_start_from_the_class_archive_gives_the_same(tmp_path: Path) -> None:
    """The first run writes the archive at its end, and the second uses it. A damaged archive is
    removed.
    """
    cache = tmp_path / "cache"
    code = ROUND.format(ahead=True, wait=False)

    def archives() -> list[Path]:
        return [file for file in (cache / "lastwrite").iterdir() if file.suffix in (".jsa", ".aot")]

    for _ in range(2):
        assert run(code, XDG_CACHE_HOME=str(cache)) == "55 True\n"
        wait_for(archives, 120)
    (archive,) = archives()
    written = archive.read_bytes()
    archive.chmod(0o600)
    archive.write_bytes(b"x" * 100_000)  # Java detects this and does not use the archive
    assert run(code, XDG_CACHE_HOME=str(cache)) == "55 True\n"
    archive.write_bytes(written[: len(written) // 2])  # Java may detect this, or crash
    assert run(code, XDG_CACHE_HOME=str(cache)) in ("55 True\n", "55 False\n")
    assert run(code, XDG_CACHE_HOME=str(cache)) == "55 True\n"


@pytest.mark.spark
@pytest.mark.long
def test_external_settings_use_sparks_own_start(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text("spark.lastwrite.exchange shuffle\n")
    code = ROUND.format(ahead=True, wait=False).replace(
        "spark.close", 'print(spark.setting("spark.lastwrite.exchange")); spark.close'
    )
    assert run(code, SPARK_CONF_DIR=str(tmp_path)) == "55 False\nshuffle\n"


@pytest.mark.spark
def test_unused_session_ends_at_once() -> None:
    before = psutil.Process().children(recursive=True)
    began = time.monotonic()
    OwnSpark("local[2]", {}).close()
    assert time.monotonic() - began < 60
    left = {process.pid for process in psutil.Process().children(recursive=True)} - {
        process.pid for process in before
    }
    assert not left


# ---------------------------------------------------------------------- the fork server by itself


@pytest.fixture
def fork_server() -> Iterator[ForkServer]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        made = ForkServer(Path(folder))
        made.spawn(None)
        yield made
        made.close()


def attach(cwd: Path | None = None, **environment: str) -> subprocess.Popen[bytes]:
    """Start what the JVM starts: a daemon that writes its port to standard output."""
    return subprocess.Popen(
        [sys.executable, "-m", "lastwrite.spark.launcher.attach", "pyspark.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHON_WORKER_FACTORY_SECRET": "secret", **environment},
        cwd=cwd,
    )


@contextlib.contextmanager
def forked_worker(
    daemon: subprocess.Popen[bytes], secret: str = "secret"
) -> Iterator[psutil.Process]:
    """A worker that the daemon forks, as it does for the JVM. It ends with the connection."""
    assert daemon.stdout is not None
    port = int.from_bytes(daemon.stdout.read(4), "big")
    with socket.create_connection(("127.0.0.1", port)) as connection:
        worker = int.from_bytes(connection.recv(4), "big")
        told = secret.encode()
        connection.sendall(len(told).to_bytes(4, "big") + told)
        with connection.makefile("rb") as answers:
            assert answers.read(6) == b"\0\0\0\2ok"
            yield psutil.Process(worker)


def test_daemon_is_forked_from_the_server_and_ends_with_its_input(
    fork_server: ForkServer,
) -> None:
    with attach(**fork_server.environment) as daemon:
        with forked_worker(daemon) as worker:
            assert worker.parent().ppid() == fork_server._spawned.pid  # type: ignore[union-attr]
        assert daemon.stdin is not None
        daemon.stdin.close()
        daemon.wait(20)


def test_daemon_ends_with_its_attached_process(fork_server: ForkServer) -> None:
    with attach(**fork_server.environment) as daemon:
        with forked_worker(daemon) as worker:
            parent = worker.parent()
        # the JVM also ends it with this signal and closes its streams
        daemon.send_signal(signal.SIGTERM)
    wait_for(lambda: not parent.is_running())


@pytest.mark.parametrize("address", ["", "/no/such/forkserver"])
def test_missing_fork_server_is_replaced_by_the_daemon(address: str) -> None:
    with attach(**({ADDRESS: address} if address else {})) as daemon:
        with forked_worker(daemon) as worker:
            assert worker.ppid() == daemon.pid
        assert daemon.stdin is not None
        daemon.stdin.close()
        daemon.wait(20)


def test_worker_has_the_environment_and_folder_of_its_attached_process(
    fork_server: ForkServer, tmp_path: Path
) -> None:
    """The worker gets the secret from the environment and accepts a connection with it."""
    with attach(
        cwd=tmp_path, **fork_server.environment, PYTHON_WORKER_FACTORY_SECRET="ä b"
    ) as daemon:
        with forked_worker(daemon, "ä b") as worker:
            assert Path(worker.parent().cwd()) == tmp_path
        assert daemon.stdin is not None
        daemon.stdin.close()


def test_preloading_of_worker_modules_succeeds() -> None:
    """``load`` ignores failed imports, because the task reports them. Preloading alone must not
    fail.
    """
    _load_all(warm_up)


@pytest.mark.slow
@pytest.mark.long
def test_first_run_reports_the_compilation(tmp_path: Path) -> None:
    """The first run reports it once, before the scan. The second run does not. Kernels of other
    systems are not compiled.
    """
    store = CORPUS / "rocketmq" / "5.5.0"
    command = [sys.executable, "-m", "lastwrite", "compact", str(store)]
    cache = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "kernels")}
    for run in range(2):
        to = ["--to", str(tmp_path / str(run))]
        said = subprocess.run(
            command + to, env=cache, stderr=subprocess.PIPE, text=True, check=True
        ).stderr
        assert said.split("scan: ")[0].count(COMPILING) == (0 if run else 1), said
    compiled = {path.name.split("-")[0] for path in (tmp_path / "kernels").rglob("*.nbi")}
    assert "chunk_kernels.walk" in compiled  # RocketMQ's
    assert not [name for name in compiled if name.startswith("packed_kernels")]  # Kafka's
