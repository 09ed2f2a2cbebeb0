"""The faults of a day, for daemons that follow a cluster.

The daemons are killed, brokers crash, a disk is full, an object store is unreachable.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from tests.support.objects import PEER, S3, s3_home

SECONDS = float(os.environ.get("LASTWRITE_DAY_S", "150"))
# A silent store times out, and replaced objects are deleted, within seconds.
WAITS = ("--config", "storage.timeoutMs=5000", "--config", "storage.keepReplacedMs=5000")


class Broker(Protocol):
    """A broker of any system that can crash or shut down."""

    def kill(self) -> None: ...

    def stop(self) -> None: ...


class Running:
    """A Lastwrite command in its own process, which can be restarted with the same arguments."""

    def __init__(self, said: Path, *words: object) -> None:
        self._command = [sys.executable, "-m", "lastwrite.cli", *map(str, words), "--json"]
        self._said = said
        self.start()

    def start(self) -> None:
        with self._said.open("ab") as said:
            self._process = subprocess.Popen(
                self._command, stdout=said, stderr=said, start_new_session=True
            )

    def kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(90) == 0, self._said.read_text()[-3000:]

    def again(self) -> None:
        self.kill()
        self.start()

    def check_alive(self) -> None:
        assert self._process.poll() is None, self._said.read_text()[-3000:]

    def events(self) -> list[dict[str, Any]]:
        lines = self._said.read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith('{"event"')]


def config_words(config: dict[str, str]) -> list[str]:
    """The settings as command-line arguments."""
    return [part for each in config.items() for part in ("--config", "=".join(each))]


def fill(disk: Path) -> Path:
    """Fill the disk with one file, and return its path."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 16))
        except OSError:
            return filler


def live_through(
    broker: Broker,
    start: Callable[[], object],
    server: S3,
    disk: Path,
    cleaning: Running,
    following: Running,
) -> None:
    """Cause one fault after another, spread evenly over ``SECONDS``.

    Args:
        broker: The broker to crash and to restart.
        start: Starts the broker, and returns when it serves requests.
        server: The object store with the archive that ``cleaning`` compacts.
        disk: A small disk with the archive that ``following`` writes.
        cleaning: The daemon that compacts the archive in ``server``.
        following: The daemon that fetches into the archive on ``disk``.
    """
    port = server.endpoint.rpartition(":")[2]

    def crash() -> None:
        broker.kill()
        time.sleep(3)
        start()

    def restart() -> None:
        broker.stop()
        start()

    def bucket_is_away() -> None:
        subprocess.run([str(PEER / "stop.sh"), str(server.data), "KILL"], check=True)
        time.sleep(10)
        command = [str(PEER / "start.sh"), str(s3_home()), str(server.data), port]
        subprocess.run(command, check=True, capture_output=True)

    def disk_is_full() -> None:
        filler = fill(disk)
        time.sleep(8)
        following.check_alive()
        filler.unlink()

    happening = [
        *(cleaning.again, crash, disk_is_full, bucket_is_away, following.again, restart),
        *(cleaning.again, bucket_is_away, disk_is_full, following.again, crash),
    ]
    for trouble in happening:
        time.sleep(SECONDS / len(happening))
        trouble()


def until_level(is_level: Callable[[], bool], daemons: Sequence[Running]) -> None:
    """Wait until ``is_level`` is true. Fails if a daemon ends, or after 5 minutes."""
    deadline = time.monotonic() + 300
    while not is_level():
        assert time.monotonic() < deadline, [each.events()[-5:] for each in daemons]
        for each in daemons:
            each.check_alive()
        time.sleep(1)
