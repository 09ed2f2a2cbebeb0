"""Tests of repeated fetches while a producer writes and the broker's cleaner runs.

Finally the archive's table equals a consumer's. If a tombstone may have been missed, the fetch is
refused.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

import lastwrite
from lastwrite.reports.fetching import HoldReason
from lastwrite.spark.inline import INLINE
from tests.conformance.test_kafka_archive import Archive
from tests.support.kafka.broker import Broker, Unavailable, kafka_home
from tests.support.kafka.clients import Sent, consume, create_topic, produce
from tests.support.kafka.trio import wait_for
from tests.system.test_kafka_live import all_headers, now_ms, one

pytest.importorskip("kio")
pytestmark = [pytest.mark.broker, pytest.mark.long]

CLEANED = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "30000",
    "segment.index.bytes": "4096",
    "min.cleanable.dirty.ratio": "0.01",
}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    settings = {"log.cleaner.backoff.ms": "50", "log.segment.delete.delay.ms": "50"}
    settings |= {"log.initial.task.delay.ms": "100", "log.cleaner.min.compaction.lag.ms": "0"}
    try:
        made = Broker(kafka_home(), tmp_path / "data", settings)
    except Unavailable as reason:
        pytest.skip(str(reason))
    with made:
        yield made


class Writer(threading.Thread):
    """Writes to a topic until it is stopped.

    It writes few keys, tombstones, all codecs, and open and aborted transactions between other
    batches.
    """

    def __init__(self, broker: Broker, topic: str, seed: int) -> None:
        super().__init__(daemon=True)
        self.broker, self.topic, self.rng = broker, topic, random.Random(seed)
        self.ends = threading.Event()
        self.failed: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.ends.is_set():
                self._write()
        except BaseException as error:
            self.failed = error

    def _write(self) -> None:
        rng = self.rng
        told = {"bootstrap.servers": self.broker.address, "log_level": 0, "linger.ms": 5}
        in_transactions = rng.random() < 0.5
        if in_transactions:
            told["transactional.id"] = f"{self.topic}-{rng.randrange(3)}"
        client = Producer(
            {**told, "compression.type": rng.choice(("none", "gzip", "snappy", "lz4", "zstd"))}
        )
        if in_transactions:
            client.init_transactions(60)
        for _ in range(rng.randrange(1, 6)):
            if in_transactions:
                client.begin_transaction()
            for _ in range(rng.randrange(1, 80)):
                value = None if rng.random() < 0.3 else rng.randbytes(rng.randrange(300))
                client.produce(self.topic, value, f"k{rng.randrange(150)}".encode())
            client.flush(60)
            if in_transactions:
                client.abort_transaction(60) if rng.random() < 0.3 else client.commit_transaction(
                    60
                )

    def stop(self) -> None:
        self.ends.set()
        self.join(120)
        if self.failed is not None:
            raise self.failed


def was_cleaned(broker: Broker, topic: str) -> bool:
    headers = all_headers(broker.data / f"{topic}-0")
    return sum(header.record_count for header in headers) < headers[-1].next_offset


@pytest.mark.parametrize("seed", range(2))
def test_table_equals_that_of_a_consumer(broker: Broker, tmp_path: Path, seed: int) -> None:
    create_topic(broker, "kept", CLEANED | {"delete.retention.ms": "3600000"})
    archive, writer = Archive(tmp_path / "archive", "kept-0"), Writer(broker, "kept", seed)
    writer.start()
    turns, until = 0, time.monotonic() + 30
    while time.monotonic() < until or turns < 8:
        if turns % 3 == 2:
            lastwrite.compact(
                str(archive.to), spark=INLINE, config={"min.cleanable.dirty.ratio": 0}
            )
        found = one(broker, archive.to, "kept")
        assert found.reason is None, found.reason
        turns += 1
    writer.stop()
    wait_for(lambda: was_cleaned(broker, "kept"))
    found = one(broker, archive.to, "kept")
    assert found.reason is None, found.reason
    table = {seen.key: seen.value for seen in consume(broker, "kept")}
    expected = {key: value for key, value in table.items() if value is not None}
    assert dict(lastwrite.latest(str(archive.to), "kept")) == expected
    assert len(expected) > 50
    deleted = {f"k{n}".encode() for n in range(150)} - set(expected)
    assert deleted


def test_tombstones_expired_between_two_fetches_are_reported(
    broker: Broker, tmp_path: Path
) -> None:
    """The fetch may have missed the tombstone, so it is refused."""
    create_topic(broker, "brief", CLEANED | {"delete.retention.ms": "100"})
    produce(broker, "brief", [Sent(b"gone", b"v", now_ms())])
    archive, writer = Archive(tmp_path / "archive", "brief-0"), Writer(broker, "brief", 1)
    assert one(broker, archive.to, "brief").reason is None
    produce(broker, "brief", [Sent(b"gone", None, now_ms())])
    writer.start()
    folder = broker.data / "brief-0"
    wait_for(lambda: all_headers(folder)[0].next_offset > 2)
    writer.stop()
    found = one(broker, archive.to, "brief")
    assert found.held is HoldReason.DELETES and "delete.retention.ms" in (found.reason or "")
    assert dict(lastwrite.latest(str(archive.to), "brief")) == {b"gone": b"v"}
