"""Tests of ``readStream.format("lastwrite")``: every record once, over restarts and crashes.

The sources are an archive that follows a log, and a log that a real broker writes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import lastwrite
from lastwrite.spark.session import spark_session
from tests.unit.test_stream import Root

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with spark_session("local[2]", {}) as session:
        yield session


class Query:
    """A stream into a dictionary: the rows of each micro-batch by its number. A repeated one
    overwrites.
    """

    def __init__(self, spark: SparkSession, path: Path | str, checkpoint: Path) -> None:
        self._spark, self._path, self._checkpoint = spark, str(path), str(checkpoint)
        self.batches: dict[int, list[tuple[int, int]]] = {}
        self.fails_at = -1

    def _take(self, frame: Any, number: int) -> None:
        self.batches[number] = [tuple(row) for row in frame.select("partition", "offset").collect()]
        if number == self.fails_at:
            raise RuntimeError("the sink fails")

    def start(self, is_once: bool = True, **options: str) -> Any:
        reader = self._spark.readStream.format("lastwrite")
        for name, value in options.items():
            reader = reader.option(name.replace("__", "."), value)
        writer = reader.load(self._path).writeStream.foreachBatch(self._take)
        writer = writer.option("checkpointLocation", self._checkpoint)
        trigger = {"availableNow": True} if is_once else {"processingTime": "100 milliseconds"}
        return writer.trigger(**trigger).start()

    @property
    def rows(self) -> list[tuple[int, int]]:
        return sorted(row for rows in self.batches.values() for row in rows)

    def offsets(self, number: int) -> Any:
        """The offsets that Spark has logged for a micro-batch."""
        path = Path(self._checkpoint) / "offsets" / str(number)
        return json.loads(path.read_text().splitlines()[-1])


def test_stream_of_a_following_archive_gets_every_record_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    root, archive = Root(tmp_path / "logs"), str(tmp_path / "archive")

    def bring(name: str, records: int) -> None:
        root.add(name, records)
        lastwrite.fetch([str(root.path)], archive, topic="t", include_active=True)

    query = Query(spark, archive, tmp_path / "checkpoint")
    asked = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "30"}
    bring("t-0", 50)
    query.start(**asked).awaitTermination()
    assert query.rows == [(0, at) for at in range(50)]
    assert query.offsets(1) == {"t": {"0": 50}}
    bring("t-0", 50)
    bring("t-1", 10)
    query.fails_at = 2
    with pytest.raises(Exception, match="the sink fails"):
        query.start(**asked).awaitTermination()
    planned, before = query.offsets(2), query.batches[2]
    query.fails_at = -1
    bring("t-0", 20)
    query.start(**asked).awaitTermination()
    assert query.offsets(2) == planned
    assert sorted(query.batches[2]) == sorted(before)
    assert query.rows == [(0, at) for at in range(120)] + [(1, at) for at in range(10)]
    count = len(query.batches)
    query.start(**asked).awaitTermination()
    assert len(query.batches) == count


@pytest.mark.broker
@pytest.mark.long
@pytest.mark.parametrize("level", ["read_uncommitted", "read_committed"])
def test_stream_of_a_live_log_gets_every_record_once(
    spark: SparkSession, tmp_path: Path, level: str
) -> None:
    from confluent_kafka import Producer

    from tests.support.kafka.broker import Broker, Unavailable, kafka_home
    from tests.support.kafka.clients import Sent, consume, create_topic, produce

    try:
        home = kafka_home()
    except Unavailable as error:
        pytest.skip(str(error))
    query = Query(spark, tmp_path / "data", tmp_path / "checkpoint")
    asked = {
        "subscribe": "t",
        "startingOffsets": "earliest",
        "kafka__isolation__level": level,
    }

    def some(begin: int, count: int) -> list[Sent]:
        return [Sent(b"k%d" % (n % 50), b"v%d" % n, 1000 + n) for n in range(begin, begin + count)]

    def wait_for(expected: list[tuple[int, int]]) -> None:
        deadline = time.monotonic() + 300
        while query.rows != expected and time.monotonic() < deadline:
            time.sleep(0.3)
        assert query.rows == expected

    settings = {"replica.high.watermark.checkpoint.interval.ms": "300"}
    with Broker(home, tmp_path / "data", settings) as broker:
        create_topic(broker, "t", {"segment.bytes": "1048576", "index.interval.bytes": "512"})
        produce(broker, "t", some(0, 300), codec="zstd")
        running = query.start(is_once=False, **asked)
        for n in range(1, 4):
            produce(broker, "t", some(300 * n, 300), codec="lz4", batch_records=50)
        aborting = Producer({"bootstrap.servers": broker.address, "transactional.id": "a"})
        aborting.init_transactions(60)
        aborting.begin_transaction()
        aborting.produce("t", key=b"gone", value=b"gone", partition=0)
        aborting.flush(60)
        produce(broker, "t", some(1200, 50))
        seen = [(0, each.offset) for each in consume(broker, "t", isolation=level)]
        wait_for(seen)
        assert len(seen) == (1200 if level == "read_committed" else 1251)
        aborting.abort_transaction(60)
        seen = [(0, each.offset) for each in consume(broker, "t", isolation=level)]
        wait_for(seen)
        running.stop()
        produce(broker, "t", some(1250, 100))
        again = query.start(is_once=False, **asked)
        seen = [(0, each.offset) for each in consume(broker, "t", isolation=level)]
        wait_for(seen)
        assert len(seen) == (1350 if level == "read_committed" else 1351)
        again.stop()
        progress = [each["durationMs"] for each in again.recentProgress + running.recentProgress]
        assert progress
