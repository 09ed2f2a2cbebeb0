"""What a day brings to daemons that follow a cluster, one trouble after another: they are killed,
brokers crash, a disk is full, a bucket is away.
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
# So that stores that are silent are given up, and what rounds replace goes, within seconds.
WAITS = ("--config", "storage.timeoutMs=5000", "--config", "storage.keepReplacedMs=5000")


class Broker(Protocol):
    """Of any system: it may crash, or shut down."""

    def kill(self) -> None: ...

    def stop(self) -> None: ...


class Running:
    """A command in a process of its own, started again with the same words."""

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
    """Settings as a command line has them."""
    return [part for each in config.items() for part in ("--config", "=".join(each))]


def fill(disk: Path) -> Path:
    """Take all room there is."""
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
    """What goes wrong in a day, one after another, spread over ``SECONDS``.

    Args:
        start: the broker again, until it serves.
        server: with the archive that ``cleaning`` keeps.
        disk: a small one, with the archive that ``following`` writes.
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
    """Wait until the archives have all that there is."""
    deadline = time.monotonic() + 300
    while not is_level():
        assert time.monotonic() < deadline, [each.events()[-5:] for each in daemons]
        for each in daemons:
            each.check_alive()
        time.sleep(1)
