"""Tests of reading beside a real Kafka broker that appends, rolls, cleans and deletes, and of a
copy that another broker serves.
"""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer

import lastwrite
from lastwrite.errors import LogHeld
from lastwrite.reports.compaction import Status
from lastwrite.spark.inline import INLINE
from tests.support.jars import Unavailable
from tests.support.kafka.broker import Broker, kafka_home
from tests.support.kafka.clients import Sent, bounds, consume, create_topic, produce

pytestmark = [pytest.mark.broker, pytest.mark.slow]

TOPIC = "live"
SETTINGS = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "20000",
    "min.cleanable.dirty.ratio": "0.01",
}
CONFIG = {"min.cleanable.dirty.ratio": 0}


@pytest.fixture(scope="module")
def home() -> Path:
    try:
        return kafka_home()
    except Unavailable as missing:
        pytest.skip(str(missing))


def sent(first: int, count: int) -> list[Sent]:
    return [
        Sent(b"k%d" % (n % 50), b"%d" % n * 9, 1_700_000_000_000 + n)
        for n in range(first, first + count)
    ]


def wait_for(what: str, is_so: object, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():  # type: ignore[operator]
        assert time.monotonic() < deadline, f"waited {seconds} s for: {what}"
        time.sleep(0.1)


class Writing(threading.Thread):
    """Produces until it is stopped, so that segments roll and the broker's cleaner runs."""

    def __init__(self, broker: Broker) -> None:
        super().__init__()
        self._broker = broker
        self.stopped = threading.Event()
        self.written = 0

    def run(self) -> None:
        while not self.stopped.is_set():
            produce(self._broker, TOPIC, sent(10_000 + self.written, 200))
            self.written += 200

    def __enter__(self) -> Writing:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        self.join()


@pytest.mark.long
def test_reads_are_correct_beside_a_working_broker(home: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    settings = {"log.cleaner.backoff.ms": "8000", "file.delete.delay.ms": "100"}
    with Broker(home, data, settings) as broker:
        create_topic(broker, TOPIC, SETTINGS)
        produce(broker, TOPIC, sent(0, 2000))
        marks = data / "replication-offset-checkpoint"
        wait_for("a noted high watermark", lambda: f"{TOPIC} 0 2000" in marks.read_text())
        with pytest.raises(LogHeld):
            lastwrite.compact(str(data), topic=TOPIC, config=CONFIG, spark=INLINE)
        exchanged: set[int] = set()
        deadline = time.monotonic() + 300
        with Writing(broker) as writing:
            # both the segment as the broker first wrote it and the cleaned one
            while len(exchanged) < 2:
                assert time.monotonic() < deadline, f"segments so far: {len(exchanged)}"
                exchanged.add((data / f"{TOPIC}-0" / f"{0:020d}.log").stat().st_ino)
                before = writing.written
                [found] = lastwrite.inspect(str(data), topic=TOPIC, spark=INLINE).partitions
                assert [str(each.kind) for each in found.problems] == ["open"], found.problems
                assert found.end_offset is not None and found.end_offset >= 2000
                verified = lastwrite.verify(str(data), topic=TOPIC, spark=INLINE)
                assert verified.ok, verified.to_dict()
                table = lastwrite.latest(str(data), TOPIC)
                end = int(table.end_offsets[0])
                # The table has all keys: no record is missing because the cleaner found a later
                # write of its key beyond ``end``.
                assert set(table) == {b"k%d" % n for n in range(50)}
                offsets = [row["offset"] for row in lastwrite.dump(str(data), topic=TOPIC)]
                assert offsets == sorted(set(offsets)) and offsets[-1] >= end - 1
                [why] = lastwrite.explain(str(data), topic=TOPIC, key=b"k7").partitions
                assert "a broker has the log open" in [each.message for each in why.reasons]
                [planned] = lastwrite.plan(
                    str(data), topic=TOPIC, config=CONFIG, spark=INLINE
                ).partitions
                assert planned.status not in (Status.FAILED, Status.DAMAGED), planned.reason
                wait_for("more records", lambda at=before: writing.written > at)
        assert not [line for line in broker.said() if "ERROR" in line]


def test_copy_made_beside_a_broker_is_served_by_another(home: Path, tmp_path: Path) -> None:
    """The broker has an open transaction during the copy. The copy ends before it."""
    data, to = tmp_path / "data", tmp_path / "to"
    with Broker(home, data) as broker:
        create_topic(broker, TOPIC, SETTINGS)
        produce(broker, TOPIC, sent(0, 2000))
        producer = Producer({"bootstrap.servers": broker.address, "transactional.id": "open"})
        producer.init_transactions(60)
        producer.begin_transaction()
        producer.produce(TOPIC, b"k1", b"of an open transaction")
        producer.flush(60)
        produce(broker, TOPIC, sent(2000, 10))
        marks = data / "replication-offset-checkpoint"
        wait_for("a noted high watermark", lambda: f"{TOPIC} 0 2011" in marks.read_text())
        expected = lastwrite.latest(str(data), TOPIC)
        assert expected.end_offsets == {0: 2000}
        [copied] = lastwrite.compact(
            str(data), to=str(to), topic=TOPIC, config=CONFIG, spark=INLINE
        ).partitions
        assert copied.status is Status.CLEANED, copied.reason
        assert lastwrite.verify(str(to), str(data), topic=TOPIC, spark=INLINE).ok
        assert lastwrite.verify(str(to), spark=INLINE).ok
        producer.commit_transaction(60)
        wait_for("the commit, since it lives", lambda: bounds(broker, TOPIC)[1] > 2011)
    # Replace the partition of a broker that has the topic by the copy.
    with Broker(home, data) as broker:
        pass
    shutil.rmtree(data / f"{TOPIC}-0")
    shutil.copytree(to / f"{TOPIC}-0", data / f"{TOPIC}-0")
    for name in ("cleaner-offset-checkpoint", "replication-offset-checkpoint"):
        lines = (data / name).read_text().splitlines() if (data / name).exists() else ["0", "0"]
        kept = [line for line in lines[2:] if not line.startswith(f"{TOPIC} ")]
        new = (to / name).read_text().splitlines()[2:]
        (data / name).write_text("\n".join(["0", str(len(kept + new)), *kept, *new, ""]))
    with Broker(home, data) as broker:
        assert bounds(broker, TOPIC)[1] == 2000
        seen = consume(broker, TOPIC)
        table = {each.key: each.value for each in seen}
        assert table == dict(expected)
        produce(broker, TOPIC, sent(5000, 5))
        assert bounds(broker, TOPIC)[1] == 2005
