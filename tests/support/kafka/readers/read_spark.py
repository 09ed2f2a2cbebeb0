"""Reads a topic with Spark's Kafka source, as a stream and as a batch. See programs.py.

Arguments: ADDRESS TOPIC COUNT GROUP.
"""

from __future__ import annotations

import os
import sys

from pyspark.sql import DataFrame, SparkSession

address, topic, count, _ = sys.argv[1:]
seen: list[str] = []
session = (
    SparkSession.builder.master("local[1]")
    .config("spark.jars", os.environ["SPARK_PEER_JARS"])
    .config("spark.ui.enabled", "false")
    .getOrCreate()
)
asked = {
    "kafka.bootstrap.servers": address,
    "subscribe": topic,
    "startingOffsets": "earliest",
}


def lines(rows: DataFrame) -> list[str]:
    found = rows.selectExpr("offset", "string(key) key", "string(value) value").collect()
    return [
        f"{each.offset} {each.key} {'NULL' if each.value is None else each.value}"
        for each in sorted(found)
    ]


def take(rows: DataFrame, _: int) -> None:
    more = lines(rows)
    seen.extend(more)
    for line in more:
        print(line, flush=True)


stream = session.readStream.format("kafka").options(**asked).load().writeStream.foreachBatch(take)
running = stream.start()
while len(seen) < int(count) and running.isActive:
    running.awaitTermination(0.2)
running.stop()
assert lines(session.read.format("kafka").options(**asked).load()) == seen
session.stop()
