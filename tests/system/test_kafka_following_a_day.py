"""A day of following in minutes: settings that let segments roll, deletes expire and daemons turn
within seconds, while brokers and daemons are killed, the bucket goes away, and a disk is full.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from base64 import b64decode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

import lastwrite
from lastwrite.spark.inline import INLINE
from tests.support.kafka.broker import Broker, Unavailable, kafka_home
from tests.support.kafka.clients import create_topic
from tests.support.objects import PEER, S3, s3_home, s3_server

pytest.importorskip("kio")
pytestmark = [pytest.mark.broker, pytest.mark.long]

SECONDS = float(os.environ.get("LASTWRITE_DAY_S", "150"))
TABLE, LOG = "day-table", "day-log"
OF_BROKER = {
    "log.cleaner.backoff.ms": "300",
    "log.cleaner.min.cleanable.ratio": "0.01",
    "log.retention.check.interval.ms": "1000",
}
COMPACTED = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "30000",
    "segment.ms": "4000",
    "delete.retention.ms": "15000",
    "min.cleanable.dirty.ratio": "0.01",
}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    try:
        made = Broker(kafka_home(), tmp_path / "data", OF_BROKER)
    except Unavailable as reason:
        pytest.skip(str(reason))
    with made:
        yield made


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=60m", "tmpfs", str(place)]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"mounting a small disk needs rights: {made.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


class Load:
    """Writes to both topics until ``stop``: keys again and again, deletes, come what may."""

    def __init__(self, broker: Broker) -> None:
        self._client = Producer(
            {
                "bootstrap.servers": broker.address,
                "enable.idempotence": True,
                "linger.ms": 50,
                "delivery.timeout.ms": 300_000,
                "log_level": 0,
            }
        )
        self._is_over = threading.Event()
        self._rng = random.Random(18)
        self.sent = 0
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def _write(self) -> None:
        while not self._is_over.wait(0.05):
            for _ in range(10):
                key = b"k%d" % self._rng.randrange(300)
                value = None if self._rng.random() < 0.15 else b"%09d" % self.sent * 10
                self._client.produce(TABLE, value, key)
                self._client.produce(LOG, b"%09d" % self.sent, key)
                self.sent += 1
            self._client.poll(0)

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()
        assert self._client.flush(120) == 0


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


def consumed(broker: Broker, topic: str) -> list[tuple[int, bytes | None, bytes | None]]:
    """Offset, key and value of all that a consumer gets."""
    client = Consumer(
        {"bootstrap.servers": broker.address, "group.id": "judge", "enable.partition.eof": True}
    )
    client.assign([TopicPartition(topic, 0, 0)])
    found = []
    while (record := client.poll(60)) is not None:
        if record.error():
            break
        found.append((record.offset(), record.key(), record.value()))
    client.close()
    return found


def table_of(broker: Broker) -> dict[bytes, bytes]:
    table: dict[bytes, bytes] = {}
    for _, key, value in consumed(broker, TABLE):
        assert key is not None
        if value is None:
            table.pop(key, None)
        else:
            table[key] = value
    return table


def end_of(broker: Broker, topic: str) -> int:
    client = Consumer({"bootstrap.servers": broker.address, "group.id": "judge"})
    _, end = client.get_watermark_offsets(TopicPartition(topic, 0), 60)
    client.close()
    return int(end)


def inspected(archive: str, config: dict[str, str]) -> dict[str, int]:
    """Where each topic of the archive ends."""
    report = lastwrite.inspect(archive, config=config, spark=INLINE)
    assert report.exit_status == 0
    return {each.topic: each.end_offset for each in report.partitions}


def until_level(broker: Broker, archive: str, config: dict[str, str], *daemons: Running) -> None:
    ends = {topic: end_of(broker, topic) for topic in (TABLE, LOG)}
    deadline = time.monotonic() + 300
    while inspected(archive, config) != ends:
        assert time.monotonic() < deadline, (ends, [each.events()[-5:] for each in daemons])
        for each in daemons:
            each.check_alive()
        time.sleep(1)


def check(broker: Broker, archive: str, config: dict[str, str]) -> None:
    """The archive's table is the consumer's; of the log each record is there once, in order."""
    assert dict(lastwrite.latest(archive, TABLE, config=config)) == table_of(broker)
    found = lastwrite.read(archive, LOG, config=config)
    archived = [(each["offset"], *map(b64decode, (each["key"], each["value"]))) for each in found]
    assert archived == consumed(broker, LOG)
    assert [offset for offset, _, _ in archived] == list(range(len(archived)))
    assert lastwrite.verify(archive, config=config).exit_status == 0


def fill(disk: Path) -> Path:
    """Take all room there is."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 16))
        except OSError:
            return filler


def troubles(
    broker: Broker, server: S3, disk: Path, cleaning: Running, following: Running
) -> Iterator[Callable[[], None]]:
    """What goes wrong in a day, one after another."""
    port = server.endpoint.rpartition(":")[2]

    def broker_crashes() -> None:
        broker.kill()
        time.sleep(3)
        broker.start()

    def broker_restarts() -> None:
        broker.stop()
        broker.start()

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

    yield cleaning.again
    yield broker_crashes
    yield disk_is_full
    yield bucket_is_away
    yield following.again
    yield broker_restarts
    yield cleaning.again
    yield bucket_is_away
    yield disk_is_full
    yield following.again
    yield broker_crashes


def test_a_day(broker: Broker, tmp_path: Path, small_disk: Path) -> None:
    create_topic(broker, TABLE, COMPACTED)
    create_topic(broker, LOG, {"segment.ms": "4000", "internal.segment.bytes": "40000"})
    source, folder = f"kafka://{broker.address}", str(small_disk / "archive")
    with s3_server(tmp_path / "s3") as server:
        common = ["--topic", "day-*", "--every", "1", "--set-aside"]
        waits = ["--config", "storage.timeoutMs=5000", "--config", "storage.keepReplacedMs=5000"]
        bucket = [part for each in server.config.items() for part in ("--config", "=".join(each))]
        load = Load(broker)
        cleaning = Running(
            tmp_path / "cleaning.log",
            *("clean", "--source", source, "--to", "s3://archive/day", *common, *waits, *bucket),
            *("--config", "log.cleaner.backoff.ms=2000", "--master", "local[2]"),
        )
        following = Running(
            tmp_path / "following.log",
            *("fetch", source, "--to", folder, "--follow", *common, *waits),
        )
        happening = list(troubles(broker, server, small_disk, cleaning, following))
        for trouble in happening:
            time.sleep(SECONDS / len(happening))
            trouble()
        load.stop()
        until_level(broker, "s3://archive/day", server.config, cleaning, following)
        until_level(broker, folder, {}, cleaning, following)
        cleaning.stop()
        following.stop()
        assert load.sent > 1000
        assert any(each["event"] == "round" for each in cleaning.events())
        check(broker, "s3://archive/day", server.config)
        check(broker, folder, {})
        lastwrite.compact(folder, spark=INLINE, include_active=True)
        check(broker, folder, {})
