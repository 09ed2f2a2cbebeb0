"""Tests of ``format("lastwrite")`` and ``read(spark=)`` against a consumer, on logs of a real
broker.
"""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import lastwrite
from lastwrite.kafka.store.partitions import find_partitions, partition_name
from lastwrite.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark]
pytest.importorskip("pyarrow", reason="pip install 'lastwrite[frames]'")
pytest.importorskip("pandas", reason="pip install 'lastwrite[frames]'")
datasource = pytest.importorskip(
    "pyspark.sql.datasource", reason="Python data sources came with PySpark 4"
)

CORPUS = Path(__file__).parents[1] / "corpus" / "kafka-4.4.0" / "stopped"
TOPICS = sorted({partition_name(folder).topic for folder in find_partitions(str(CORPUS))})
LEVELS = ["read_uncommitted", "read_committed"]
TYPES = {"CreateTime": 0, "LogAppendTime": 1, "none": -1}


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with spark_session("local[2]", {"spark.sql.session.timeZone": "Asia/Kolkata"}) as session:
        yield session


def load(spark: SparkSession, *, path: Path | str = CORPUS, **options: Any) -> Any:
    reader = spark.read.format("lastwrite")
    for name, value in options.items():
        reader = reader.option(name.replace("__", "."), value)
    return reader.load(str(path))


def rows(frame: Any) -> list[tuple[Any, ...]]:
    """The rows of a DataFrame in the log's order, with timestamps in milliseconds."""
    millis = "cast(unix_micros(timestamp) / 1000 as bigint) AS ms"
    some = ["key", "value", "topic", "partition", "offset", millis, "timestampType", "headers"]
    found = frame.selectExpr(*some).collect()
    return sorted((tuple(map(_plain, row)) for row in found), key=lambda row: row[2:5])


def _plain(value: Any) -> Any:
    if isinstance(value, bytearray):
        return bytes(value)
    return [tuple(map(_plain, one)) for one in value] if isinstance(value, list) else value


def consumed(topic: str, level: str, path: Path | str = CORPUS) -> list[tuple[Any, ...]]:
    """The rows from ``read``, which reads record by record."""
    reading = lastwrite.read(str(path), topic, queue=0, isolation_level=level)
    return [
        (
            _bytes(row["key"]),
            _bytes(row["value"]),
            row["topic"],
            row["partition"],
            row["offset"],
            row["timestamp"],
            TYPES[row["timestamp_type"]],
            [(name, _bytes(value)) for name, value in row["headers"]] or None,
        )
        for row in reading
    ]


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


@pytest.mark.parametrize("level", LEVELS)
def test_source_equals_a_consumer(spark: SparkSession, level: str) -> None:
    options = {"subscribePattern": ".*", "includeHeaders": "true", "kafka__isolation__level": level}
    found = rows(load(spark, **options))
    expected = [row for topic in TOPICS for row in consumed(topic, level)]
    assert found == expected
    assert len(found) > 600


def test_frame_of_read_has_the_same_rows(spark: SparkSession) -> None:
    columns = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    frame = lastwrite.read(str(CORPUS), spark=spark)
    assert frame.columns == columns
    source = load(spark, subscribePattern=".*")
    assert source.columns == columns
    assert frame.exceptAll(source).count() == source.exceptAll(frame).count() == 0
    part = lastwrite.read(str(CORPUS), "client-gzip", spark=spark, columns=["offset"], offset=20)
    assert [row.offset for row in part.collect()] == [
        row[4] for row in consumed("client-gzip", LEVELS[0]) if row[4] >= 20
    ]


def test_ranges_by_offset_and_time_are_honoured(spark: SparkSession) -> None:
    whole = consumed("client-zstd", LEVELS[0])
    starting, ending = ({"client-zstd": {"0": offset}} for offset in (10, 50))
    some = load(
        spark,
        subscribe="client-zstd",
        startingOffsets=json.dumps(starting),
        endingOffsets=json.dumps(ending),
        includeHeaders="true",
        minPartitions="4",
    )
    assert rows(some) == [row for row in whole if 10 <= row[4] < 50]
    middle = whole[30][5]
    later = load(spark, subscribe="client-zstd", startingTimestamp=middle, includeHeaders="true")
    first = next(row[4] for row in whole if row[5] >= middle)
    assert rows(later) == [row for row in whole if row[4] >= first]


def test_compacted_view_equals_the_table(spark: SparkSession) -> None:
    view = {"view": "compacted", "subscribePattern": ".*", "includeHeaders": "true"}
    found = rows(load(spark, **view))
    for topic in TOPICS:
        of_topic = [row for row in found if row[2] == topic]
        assert {row[0]: row[1] for row in of_topic} == lastwrite.latest(str(CORPUS), topic)
        assert len({row[0] for row in of_topic}) == len(of_topic)
        assert set(map(repr, of_topic)) <= set(map(repr, consumed(topic, LEVELS[1])))
    frame = lastwrite.read(str(CORPUS), spark=spark, view="compacted", columns=["topic", "offset"])
    assert sorted(map(tuple, frame.collect())) == [(row[2], row[4]) for row in found]
    with pytest.raises(Exception, match="reads entire topics"):
        load(spark, startingTimestamp="5", **view).count()


def test_caller_may_choose_the_schema(spark: SparkSession) -> None:
    frame = spark.read.format("lastwrite").schema("offset BIGINT, key BINARY")
    found = frame.option("subscribe", "client-lz4").load(str(CORPUS)).collect()
    assert [(row.offset, bytes(row.key)) for row in found if row.key is not None][:2]
    assert len(found) == len(consumed("client-lz4", LEVELS[0]))


def test_filters_are_pushed_if_enabled(spark: SparkSession) -> None:
    pushed = "spark.sql.python.filterPushdown.enabled"
    if not hasattr(datasource.DataSourceReader, "pushFilters"):
        pytest.skip("filters came with PySpark 4.1")
    whole = {
        row[4]: row for row in rows(load(spark, subscribe="client-lz4", includeHeaders="true"))
    }
    middle = sorted(row[5] for row in whole.values())[len(whole) // 2]
    conditions = {
        "offset >= 7 and offset < 31 and topic = 'client-lz4'": lambda row: 7 <= row[4] < 31,
        "key in (X'757365722d36', X'00')": lambda row: row[0] == b"user-6",
        f"timestamp >= timestamp_millis({middle}) and partition = 0": lambda row: row[5] >= middle,
        "partition = 1 or offset = 4": lambda row: row[4] == 4,
        "key is null": lambda row: row[0] is None,
    }
    spark.conf.set(pushed, "true")
    try:
        asked = {"subscribePattern": "client-lz4", "includeHeaders": "true", "pushdown": "true"}
        for condition, holds in conditions.items():
            found = rows(load(spark, **asked).where(condition))
            assert found == [row for row in whole.values() if holds(row)], condition
    finally:
        spark.conf.unset(pushed)
    with pytest.raises(Exception, match="DATA_SOURCE_PUSHDOWN_DISABLED"):
        load(spark, **asked).where("offset = 4").count()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"subscribe": "nothing"}, "no topic 'nothing'"),
        ({"subscribe": "client-lz4", "startingOffsets": "latest"}, "cannot be latest"),
        ({"subscribe": "client-lz4", "frobnicate": "1"}, "unknown option frobnicate"),
        ({}, "select topics with the option subscribe"),
        (
            {"subscribe": "client-lz4", "startingOffsets": '{"client-lz4":{"0":5000}}'},
            "were requested, but the log contains",
        ),
    ],
)
def test_wrong_options_are_reported(
    spark: SparkSession, options: dict[str, str], words: str
) -> None:
    with pytest.raises(Exception, match=words):
        load(spark, **options).count()


def test_missing_data_is_tolerated_on_request(spark: SparkSession) -> None:
    asked = {"startingOffsets": '{"client-lz4":{"0":5000}}', "failOnDataLoss": "false"}
    assert load(spark, subscribe="client-lz4", **asked).count() == 0
    assert load(spark, subscribePattern="nothing").count() == 0


def test_damage_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "logs"
    shutil.copytree(CORPUS, root)
    path = root / "client-lz4-0" / "00000000000000000000.log"
    data = bytearray(path.read_bytes())
    data[90] ^= 4
    path.write_bytes(data)
    with pytest.raises(Exception, match=f"{path}, byte 17: the batch's checksum is wrong"):
        load(spark, path=root, subscribe="client-lz4").count()
    with pytest.raises(Exception, match="the batch's checksum is wrong"):
        lastwrite.read(str(root), "client-lz4", spark=spark).count()
