"""Tests of ``format("lastwrite")`` on an archive in a real S3 server: batches, streams and
writing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import lastwrite
from lastwrite.spark.session import spark_session
from tests.support.objects import BUCKET, s3_server
from tests.system.test_spark_source import CORPUS, LEVELS, consumed, load, rows

pytestmark = [pytest.mark.spark, pytest.mark.broker]
TOPIC = "transactional"


def test_archive_in_a_bucket_is_read(tmp_path: Path) -> None:
    with s3_server(tmp_path / "s3", BUCKET) as s3:
        address = f"s3://{BUCKET}/a"
        lastwrite.fetch([str(CORPUS)], address, topic=TOPIC, include_active=True, config=s3.config)
        options = {name.replace(".", "__"): value for name, value in s3.config.items()}
        with spark_session("local[2]", {}) as spark:
            for level in LEVELS:
                asked = {"includeHeaders": "true", "kafka__isolation__level": level, **options}
                found = load(spark, path=address, subscribe=TOPIC, **asked)
                assert rows(found) == consumed(TOPIC, level)
            frame = lastwrite.read(address, TOPIC, spark=spark, config=s3.config)
            assert frame.count() == len(consumed(TOPIC, LEVELS[0]))


@pytest.mark.long
def test_bucket_is_written_streamed_and_looked_up(tmp_path: Path) -> None:
    """``df.write``, ``readStream`` and the README's snippets, without any local path."""
    with s3_server(tmp_path / "s3", BUCKET) as s3, spark_session("local[2]", {}) as spark:
        address, options = f"s3://{BUCKET}/written", s3.config

        def write(first: int, end: int, number: int) -> None:
            some = ["cast(id % 10 as string) AS key", "cast(id as string) AS value"]
            writer = spark.range(first, end).selectExpr(*some).write.format("lastwrite")
            writer = writer.options(**options).option("topic", "orders").option("txnAppId", "job")
            writer.option("txnVersion", str(number)).mode("append").save(address)

        found: dict[int, list[int]] = {}

        def take(frame: Any, number: int) -> None:
            found[number] = [int(row.value) for row in frame.select("value").collect()]

        def stream() -> list[int]:
            reader = spark.readStream.format("lastwrite").option("subscribe", "orders")
            frame = reader.option("startingOffsets", "earliest").options(**options).load(address)
            writer = frame.writeStream.foreachBatch(take).trigger(availableNow=True)
            writer.option("checkpointLocation", str(tmp_path / "mark")).start().awaitTermination()
            return sorted(value for values in found.values() for value in values)

        write(0, 100, 1)
        write(0, 100, 1)  # a repeated write
        table = lastwrite.table(address, "orders", config=s3.config)
        assert stream() == list(range(100))
        write(100, 125, 2)
        assert stream() == list(range(125))

        view = spark.read.format("lastwrite").option("view", "compacted").options(**options)
        expected = {b"%d" % (n % 10): b"%d" % n for n in range(115, 125)}
        orders = view.load(address)
        assert {bytes(row.key): bytes(row.value) for row in orders.collect()} == expected
        assert table[b"7"] == b"97"
        changed = [row["key"] for each in table.follow(poll_s=None) for row in each.to_pylist()]
        assert sorted(changed) == sorted(expected)
        assert dict(table.items()) == expected
