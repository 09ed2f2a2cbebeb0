"""Tests of a day of following in minutes.

Brokers and daemons are killed, the bucket is unavailable, and a disk is full. The settings let
segments roll and tombstones expire within seconds.
"""

from __future__ import annotations

import random
import threading
from base64 import b64decode
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

import lastwrite
from lastwrite.spark.inline import INLINE
from tests.support.day import WAITS, Running, config_words, live_through, until_level
from tests.support.kafka.broker import Broker, Unavailable, kafka_home
from tests.support.kafka.clients import create_topic
from tests.support.objects import s3_server

pytest.importorskip("kio")
pytestmark = [pytest.mark.broker, pytest.mark.long]

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


class Load:
    """Writes repeated keys and deletes to both topics until ``stop``, also during failures."""

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


def consumed(broker: Broker, topic: str) -> list[tuple[int, bytes | None, bytes | None]]:
    """Offset, key and value of each record that a consumer gets."""
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
    """The end offset of each topic in the archive."""
    report = lastwrite.inspect(archive, config=config, spark=INLINE)
    assert report.exit_status == 0
    return {each.topic: each.end_offset for each in report.partitions}


def is_level(broker: Broker, archive: str, config: dict[str, str]) -> bool:
    ends = {topic: end_of(broker, topic) for topic in (TABLE, LOG)}
    return inspected(archive, config) == ends


def check(broker: Broker, archive: str, config: dict[str, str]) -> None:
    """The table equals a consumer's. The log has each record once and in order."""
    assert dict(lastwrite.latest(archive, TABLE, config=config)) == table_of(broker)
    found = lastwrite.read(archive, LOG, config=config)
    archived = [(each["offset"], *map(b64decode, (each["key"], each["value"]))) for each in found]
    assert archived == consumed(broker, LOG)
    assert [offset for offset, _, _ in archived] == list(range(len(archived)))
    assert lastwrite.verify(archive, config=config).exit_status == 0


def test_archive_stays_correct_through_kills_and_outages(
    broker: Broker, tmp_path: Path, small_disk: Path
) -> None:
    create_topic(broker, TABLE, COMPACTED)
    create_topic(broker, LOG, {"segment.ms": "4000", "internal.segment.bytes": "40000"})
    source, folder = f"kafka://{broker.address}", str(small_disk / "archive")
    with s3_server(tmp_path / "s3") as server:
        common = ["--topic", "day-*", "--every", "1", "--set-aside"]
        load = Load(broker)
        cleaning = Running(
            tmp_path / "cleaning.log",
            *("clean", "--source", source, "--to", "s3://archive/day", *common, *WAITS),
            *config_words(server.config | {"log.cleaner.backoff.ms": "2000"}),
            *("--master", "local[2]"),
        )
        following = Running(
            tmp_path / "following.log",
            *("fetch", source, "--to", folder, "--follow", *common, *WAITS),
        )
        live_through(broker, broker.start, server, small_disk, cleaning, following)
        load.stop()
        for archive, config in (("s3://archive/day", server.config), (folder, {})):
            until_level(partial(is_level, broker, archive, config), (cleaning, following))
        cleaning.stop()
        following.stop()
        assert load.sent > 1000
        assert any(each["event"] == "round" for each in cleaning.events())
        check(broker, "s3://archive/day", server.config)
        check(broker, folder, {})
        lastwrite.compact(folder, spark=INLINE, include_active=True)
        check(broker, folder, {})
