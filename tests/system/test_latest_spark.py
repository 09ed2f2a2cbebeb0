"""Tests of ``latest`` on Spark: the DataFrame has the rows of the dictionary."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import lastwrite
from lastwrite.errors import EnvironmentUnfit
from lastwrite.pulsar.format.position import Position
from lastwrite.spark.session import spark_session
from tests.support.pulsar.folders import batch, single, write_compacted, write_ledger
from tests.support.pulsar.topics import topic_folder
from tests.support.rocketmq.queues import TIME_MS, Sent, write_queue

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark]
pytest.importorskip("pyarrow", reason="pip install 'lastwrite[frames]'")
pytest.importorskip("pandas", reason="pip install 'lastwrite[frames]'")

COLUMNS = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
CORPUS = Path(__file__).parents[1] / "corpus" / "kafka-4.4.0" / "stopped"


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with spark_session("local[2]", {}) as session:
        yield session


def test_session_with_another_python_is_refused_with_a_remedy(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it is with ``.venv/bin/python`` in an environment that is not activated: the workers run
    ``python3`` from ``PATH``.
    """
    for python in (tmp_path / "python3", tmp_path / "no-such-python"):
        if python.name == "python3":
            python.write_text("#!/bin/sh\nexit 1\n")
            python.chmod(0o755)
        monkeypatch.setattr(spark.sparkContext, "pythonExec", str(python))
        with pytest.raises(EnvironmentUnfit, match=f"PYSPARK_PYTHON={sys.executable}"):
            lastwrite.latest(str(CORPUS), topic="client-zstd", spark=spark)


def test_rocketmq_topic_equals_the_dictionary(spark: SparkSession, tmp_path: Path) -> None:
    for queue in range(2):
        files = [
            [
                Sent(
                    50 * file + n,
                    f"k{(7 * n + file) % 11}",
                    b"" if n % 9 == 4 else b"%d.%d.%d" % (queue, file, n),
                    n % 5 == 0,
                    TIME_MS + (n * 13 + queue * 5) % 31,
                    "red",
                )
                for n in range(0, 18, 2)
            ]
            for file in range(4)
        ]
        write_queue(tmp_path, "t", queue, files)
    table = lastwrite.latest(str(tmp_path), topic="t", spark=spark)
    assert table.columns == COLUMNS
    rows = table.collect()
    assert {row.key.decode(): bytes(row.value) for row in rows} == lastwrite.latest(
        str(tmp_path), topic="t"
    )
    assert len(rows) == len({bytes(row.key) for row in rows}) > 5
    served = {
        (queue, row["queue_offset"]): row
        for queue in range(2)
        for row in lastwrite.read(str(tmp_path), topic="t", queue=queue)
    }
    view = lastwrite.read(
        str(tmp_path), "t", spark=spark, view="compacted", columns=[*COLUMNS, "headers"]
    )
    for row in view.collect():
        was = served[row.partition, row.offset]
        assert {each.key: each.value.decode() for each in row.headers} == was["properties"]
        assert int(row.timestamp.timestamp() * 1000) == was["store_timestamp"]


@pytest.mark.parametrize("topic", ["client-zstd", "transactional"])
def test_kafka_topic_equals_the_dictionary(spark: SparkSession, topic: str) -> None:
    rows = lastwrite.latest(str(CORPUS), topic=topic, spark=spark).collect()
    assert {bytes(row.key): bytes(row.value) for row in rows} == lastwrite.latest(
        str(CORPUS), topic=topic
    )


def test_pulsar_topic_equals_the_dictionary(spark: SparkSession, tmp_path: Path) -> None:
    topic = "persistent://public/default/orders"
    for partition in range(2):
        folder = topic_folder(tmp_path, f"{topic}-partition-{partition}")
        values = [
            ("moved", f"in {partition}"),
            ("gone", "x"),
            (f"own {partition}", "1"),
            ("gone", None),
        ]
        raw = [
            single(key, value, 7 * number + partition) for number, (key, value) in enumerate(values)
        ]
        write_ledger(folder, 10 + partition, raw, block_bytes=150)
        write_compacted(
            folder,
            20 + partition,
            [(Position(10 + partition, 0), raw[0])],
            Position(10 + partition, 1),
        )
        write_ledger(
            folder,
            30 + partition,
            [batch([("a", "2"), ("a", f"3 of {partition}"), (None, "keyless")], 40)],
        )
    table = lastwrite.latest(str(tmp_path), "orders", spark=spark)
    assert table.columns == COLUMNS
    rows = table.collect()
    assert {row.key.decode(): bytes(row.value) for row in rows} == lastwrite.latest(
        str(tmp_path), "orders"
    )
    assert {row.key.decode(): (row.partition, Position.of(row.offset)) for row in rows} == {
        "moved": (1, Position(11, 0)),
        "own 0": (0, Position(10, 2)),
        "own 1": (1, Position(11, 2)),
        "a": (1, Position(31, 0)),
    }
    log = lastwrite.read(str(tmp_path), "orders", spark=spark, queue=1)
    assert log.count() == 7
    by_source = spark.read.format("lastwrite").option("view", "compacted").load(str(tmp_path))
    assert sorted(by_source.collect()) == sorted(rows)
