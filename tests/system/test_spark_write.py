"""Tests of ``df.write.format("lastwrite")`` and ``writeStream``.

Spark and the consumer of a restored broker read the result.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import lastwrite
from lastwrite.spark.session import spark_session
from tests.system.test_spark_source import load
from tests.unit.test_stream import Root

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark]
ROWS = [
    "cast(id % 20 AS STRING) AS key",
    "concat('v', id) AS value",
    "timestamp_millis(1000 + id) AS timestamp",
    "array(struct('h' AS key, X'01' AS value)) AS headers",
]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with spark_session(
        "local[2]",
        {"spark.sql.session.timeZone": "Asia/Kolkata", "spark.sql.shuffle.partitions": "2"},
    ) as session:
        yield session


def append(frame: Any, archive: Path, topic: str = "t", **options: str) -> None:
    writer = frame.write.format("lastwrite").mode("append").option("topic", topic)
    for name, value in options.items():
        writer = writer.option(name.replace("__", "."), value)
    writer.save(str(archive))


def test_appended_rows_are_read_back(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.range(0, 500, 1, 3).selectExpr(*ROWS)
    append(frame, tmp_path, numPartitions="3", kafka__compression__type="zstd")
    append(frame.limit(50), tmp_path, txnAppId="job", txnVersion="3")
    append(frame.limit(50), tmp_path, txnAppId="job", txnVersion="3")
    found = load(spark, path=tmp_path, subscribe="t", includeHeaders="true")
    back = found.selectExpr(
        "cast(key AS STRING) AS key", "cast(value AS STRING) AS value", "timestamp", "headers"
    )
    assert back.count() == 550
    assert back.exceptAll(frame).count() == 50
    assert frame.exceptAll(back).count() == 0
    assert found.select("partition").distinct().count() == 3
    assert {row.timestampType for row in found.select("timestampType").distinct().collect()} == {0}
    # rows that were read can be written with their own columns
    append(found, tmp_path, "copy", numPartitions="3")
    columns = ["key", "value", "partition", "timestamp", "headers"]
    copy = load(spark, path=tmp_path, subscribe="copy", includeHeaders="true").select(columns)
    assert copy.exceptAll(found.select(columns)).count() == 0
    assert copy.count() == 550


def test_wrong_options_and_columns_are_reported(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.range(5).selectExpr(*ROWS)
    for asked, words in [
        ({"frobnicate": "1"}, "unknown option frobnicate"),
        ({"compression.type": "brotli"}, "compression.type is 'brotli'"),
        ({"txnAppId": "x"}, "txnAppId and txnVersion must be set together"),
    ]:
        with pytest.raises(Exception, match=words):
            append(frame, tmp_path, **{k.replace(".", "__"): v for k, v in asked.items()})
    with pytest.raises(Exception, match="topic t has no partition 7; its last partition is 0"):
        append(frame.selectExpr("value", "7 AS partition"), tmp_path)
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.long
def test_stream_into_an_archive_writes_every_row_once(spark: SparkSession, tmp_path: Path) -> None:
    root, archive = Root(tmp_path / "logs"), tmp_path / "archive"

    def run() -> None:
        frame = (
            spark.readStream.format("lastwrite")
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", "20")
            .load(str(root.path))
        )
        writer = frame.select("key", "value", "timestamp").writeStream.format("lastwrite")
        writer = writer.option("topic", "copy").option("checkpointLocation", str(tmp_path / "c"))
        query = writer.trigger(availableNow=True).start(str(archive))
        query.awaitTermination()

    root.add("t-0", 50)
    run()
    root.add("t-0", 30)
    run()
    # removes the log entry of the last micro-batch, so that Spark runs it again
    last = max((tmp_path / "c" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    for path in (last, last.with_name(f".{last.name}.crc")):
        path.unlink(missing_ok=True)
    run()
    found = load(spark, path=archive, subscribe="copy")
    values = sorted(bytes(row.value) for row in found.select("value").collect())
    assert values == sorted(b"v%d" % n for n in range(80))


@pytest.mark.broker
@pytest.mark.long
def test_consumer_of_a_restored_broker_reads_the_rows(spark: SparkSession, tmp_path: Path) -> None:
    from tests.support.kafka.broker import Broker, Unavailable, kafka_home
    from tests.support.kafka.clients import Sent, consume, create_topic, produce

    try:
        home = kafka_home()
    except Unavailable as error:
        pytest.skip(str(error))
    archive = tmp_path / "archive"
    frame = spark.range(0, 2000, 1, 2).selectExpr(*ROWS)
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        append(frame.limit(400), archive, compression__type=codec)
    with Broker(home, tmp_path / "data") as broker:
        create_topic(broker, "t", {})
    lastwrite.restore(str(archive), topic="t", to=str(tmp_path / "data"))
    with Broker(home, tmp_path / "data") as broker:
        seen = consume(broker, "t")
        assert [each.offset for each in seen] == list(range(2000))
        rows = load(spark, path=archive, subscribe="t").orderBy("offset").collect()
        expected = [
            (row.offset, bytes(row.key), bytes(row.value), round(row.timestamp.timestamp() * 1000))
            for row in rows
        ]
        assert [tuple(each)[:4] for each in seen] == expected
        assert {each.headers for each in seen} == {(("h", b"\1"),)}
        produce(broker, "t", [Sent(b"more", b"more", 5)])
        assert consume(broker, "t")[-1].offset == 2000
