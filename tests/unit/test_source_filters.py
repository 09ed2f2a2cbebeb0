"""Tests of filters that Spark pushes into the source: the rows read include every matching row."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pip install 'lastwrite[frames]'")
datasource = pytest.importorskip("pyspark.sql.datasource")
if not hasattr(datasource.DataSourceReader, "pushFilters"):
    pytest.skip("filters came with PySpark 4.1", allow_module_level=True)

from pyspark.sql import types  # noqa: E402

from lastwrite.errors import InvalidConfig  # noqa: E402
from lastwrite.source.filters import RowFilter, narrowed_by  # noqa: E402
from lastwrite.source.options import parse  # noqa: E402
from lastwrite.source.reader import DefaultSource  # noqa: E402
from tests.unit.test_stream import Root  # noqa: E402

SCHEMA = types.StructType(
    [
        types.StructField("topic", types.StringType()),
        types.StructField("partition", types.IntegerType()),
        types.StructField("offset", types.LongType()),
        types.StructField("key", types.BinaryType()),
        types.StructField("timestamp", types.TimestampType()),
    ]
)


def told(name: str, column: str, value: Any) -> Any:
    return getattr(datasource, name)((column,), value)


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (
            [("GreaterThan", "offset", 7), ("LessThanOrEqual", "offset", 9)],
            RowFilter(first=8, end=10),
        ),
        (
            [("GreaterThanOrEqual", "offset", 7), ("LessThan", "offset", 9)],
            RowFilter(first=7, end=9),
        ),
        ([("EqualTo", "offset", 7)], RowFilter(first=7, end=8)),
        ([("In", "offset", (7, 3)), ("In", "offset", (4, 9))], RowFilter(first=4, end=8)),
        ([("In", "value", (b"v", 1, "x"))], RowFilter()),
        ([("EqualTo", "topic", "a")], RowFilter(topics=frozenset("a"))),
        (
            [("In", "partition", (1, 2)), ("EqualTo", "partition", 2)],
            RowFilter(partitions=frozenset([2])),
        ),
        ([("EqualTo", "key", b"k")], RowFilter(keys=frozenset([b"k"]))),
        ([("EqualTo", "key", "decoded")], RowFilter()),
        ([("EqualTo", "value", b"v"), ("StringStartsWith", "topic", "a")], RowFilter()),
        ([("In", "key", tuple(b"%d" % n for n in range(65)))], RowFilter()),
        ([("EqualNullSafe", "key", None), ("In", "partition", (1, None))], RowFilter()),
        ([("LessThan", "timestamp", datetime(2020, 1, 1, tzinfo=UTC))], RowFilter()),
        (
            [("GreaterThan", "timestamp", datetime(1970, 1, 1, 0, 0, 1, 999, UTC))],
            RowFilter(least_ms=1000),
        ),
        (
            [
                (
                    "EqualTo",
                    "timestamp",
                    datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))),
                )
            ],
            RowFilter(least_ms=0),
        ),
    ],
    ids=str,
)
def test_filters_are_translated_to_ranges(
    filters: list[tuple[str, str, Any]], expected: RowFilter
) -> None:
    assert narrowed_by([told(*each) for each in filters]) == expected
    assert narrowed_by([datasource.Not(told(*each)) for each in filters]) == RowFilter()


def rows(path: Path, filters: list[Any], **options: str) -> list[tuple[Any, ...]]:
    """The rows that the source returns in the log's order, before Spark applies the filters."""
    source = DefaultSource({"path": str(path), "pushdown": "true", **options})
    reader = source.reader(SCHEMA)
    assert list(reader.pushFilters(filters)) == filters
    found = [
        tuple(row[name] for name in SCHEMA.fieldNames())
        for piece in reader.partitions()
        for batch in reader.read(piece)
        for row in batch.to_pylist()
    ]
    return sorted(found, key=lambda row: row[:3])


@pytest.fixture
def root(tmp_path: Path) -> Root:
    made = Root(tmp_path / "logs")
    for name in ("t-0", "t-1", "u-0"):
        made.add(name, 60)
        made.add(name, 40)
    return made


def time_of(offset: int) -> datetime:
    """The timestamp of a record of ``Root``."""
    return datetime.fromtimestamp((1000 + offset) / 1000, UTC)


@pytest.mark.parametrize(
    ("filters", "holds", "most"),
    [
        ([("EqualTo", "topic", "t")], lambda row: row[0] == "t", 200),
        ([("EqualTo", "topic", "nothing")], lambda row: False, 0),
        ([("In", "partition", (1, 5))], lambda row: row[1] == 1, 100),
        ([("GreaterThan", "offset", 57)], lambda row: row[2] > 57, 126),
        ([("EqualTo", "key", b"k3")], lambda row: row[3] == b"k3", 45),
        ([("In", "key", (b"k3", b"k33", b""))], lambda row: row[3] == b"k3", 45),
        # batches of five records are read as a whole
        (
            [("GreaterThanOrEqual", "timestamp", time_of(62))],
            lambda row: row[4] >= time_of(62),
            120,
        ),
        (
            [("EqualTo", "key", b"k1"), ("LessThan", "offset", 8), ("EqualTo", "partition", 0)],
            lambda row: row[3] == b"k1" and row[2] < 8 and row[1] == 0,
            4,
        ),
    ],
    ids=["topic", "no topic", "partition", "offset", "key", "keys", "time", "several"],
)
@pytest.mark.parametrize("view", ["log", "compacted"])
def test_filter_loses_no_row_and_reads_few(
    root: Root, filters: list[tuple[str, str, Any]], holds: Any, most: int, view: str
) -> None:
    asked = {"subscribePattern": ".*", "view": view}
    whole = rows(root.path, [], **asked)
    assert len(whole) == (300 if view == "log" else 14)
    found = rows(root.path, [told(*each) for each in filters], **asked)
    assert set(found) <= set(whole)
    assert [row for row in found if holds(row)] == [row for row in whole if holds(row)]
    assert len(found) <= most


def test_filters_are_pushed_only_if_enabled(root: Root) -> None:
    source = DefaultSource({"path": str(root.path), "subscribe": "t"})
    reader = source.reader(SCHEMA)
    assert type(reader).pushFilters is datasource.DataSourceReader.pushFilters
    with pytest.raises(InvalidConfig, match="streams"):
        parse({"path": str(root.path), "pushdown": "true"}, is_stream=True)
