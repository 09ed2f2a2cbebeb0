"""Tests of timestamps before the year 1 and after 9999.

SQL's and Python's timestamps cannot represent them.
"""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyiceberg", reason="pip install 'lastwrite[tables]'")
pytest.importorskip("deltalake", reason="pip install 'lastwrite[tables]'")

from deltalake import DeltaTable

import lastwrite
from lastwrite.cli import run
from lastwrite.errors import BadValue
from tests.support.kafka.growing import GrowingLog
from tests.support.tables.judges import iceberg_table, parquet_files, readings

FIRST_MS, LAST_MS = -62_135_596_800_000, 253_402_300_799_999
EDGES = {
    b"first": FIRST_MS,
    b"last": LAST_MS,
    b"none": -1,  # Kafka's "no timestamp", which its Spark source shows as a time
    b"usual": 1_700_000_000_000,
}
ODD = {
    b"micros": 1_700_000_000_000_000,  # from a producer that sends microseconds
    b"most": (1 << 63) - 1,
    b"least": -(1 << 63),
    b"past the last": LAST_MS + 1,
    b"before the first": FIRST_MS - 1,
}
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
RIGHT: dict[bytes, datetime.datetime | None] = {
    key: EPOCH + datetime.timedelta(milliseconds=time_ms) for key, time_ms in EDGES.items()
} | dict.fromkeys(ODD)


@pytest.fixture
def log(tmp_path: Path) -> GrowingLog:
    (tmp_path / "log").mkdir()
    log = GrowingLog(tmp_path / "log")
    for key, time_ms in (EDGES | ODD).items():
        log.append([(key, b"1", time_ms)])
    return log


def times(rows: list[dict[str, Any]], name: str) -> dict[bytes, datetime.datetime | None]:
    return {row["key"]: row[name] for row in rows}


def test_rows_have_null_for_an_unrepresentable_time(log: GrowingLog) -> None:
    with lastwrite.table(str(log.root), "t") as table:
        assert times(table.to_arrow().to_pylist(), "timestamp") == RIGHT
        assert len(dict(table.items())) == len(RIGHT)
        log.append([(b"usual", b"2", 1 << 60)])
        (batch,) = table.follow(poll_s=None)
        assert batch.to_pylist()[0]["timestamp"] is None
    assert len(lastwrite.latest(str(log.root), topic="t")) == len(RIGHT)


@pytest.mark.parametrize("format", ["iceberg", "iceberg-vectors", "delta", "parquet"])
def test_tables_have_null_and_the_report_names_the_record(
    log: GrowingLog, tmp_path: Path, format: str
) -> None:
    to = tmp_path / "table"
    options = {"format": format.partition("-")[0], "vectors": format.endswith("vectors")}
    report = lastwrite.table_to(str(log.root), "t", to=str(to), **options)
    found = report.first_odd_time
    assert report.odd_times == len(ODD) and found is not None
    assert (found.partition, found.offset, found.timestamp_ms) == (0, 4, ODD[b"micros"])
    assert times(rows_of(format, to), "_timestamp") == RIGHT
    for name, rows in readings(format, to):
        assert len(rows) == len(RIGHT), name
    log.append([(b"usual", b"2", 1 << 60), (b"most", None, -(1 << 60))])
    report = lastwrite.table_to(str(log.root), "t", to=str(to))
    assert (report.how, report.odd_times) == ("updated", 1)
    after = RIGHT | {b"usual": None}
    del after[b"most"]
    assert times(rows_of(format, to), "_timestamp") == after
    assert lastwrite.verify_table(str(log.root), str(to)).is_proven


def rows_of(format: str, to: Path) -> list[dict[str, Any]]:
    if format == "delta":
        return DeltaTable(str(to)).to_pyarrow_table().to_pylist()
    if format == "parquet":
        import pyarrow.parquet as pq

        return [
            row for path in parquet_files(to) for row in pq.ParquetFile(path).read().to_pylist()
        ]
    return iceberg_table(to).scan().to_arrow().to_pylist()


def test_partitions_with_unrepresentable_times_and_deletes_are_compared(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    one, other = (GrowingLog(tmp_path / "log", n) for n in range(2))
    one.append([(b"a", b"1", 1), (b"b", b"1", 1)])
    other.append([(b"c", b"1", 1), (b"c", None, 1 << 60)])
    to = str(tmp_path / "table")
    lastwrite.table_to(str(one.root), "t", to=to, format="delta")
    one.append([(b"c", b"2", (1 << 60) + 1)])  # later than the tombstone in the other partition
    report = lastwrite.table_to(str(one.root), "t", to=to)
    assert report.rows == 3 and lastwrite.verify_table(str(one.root), to).is_proven


def test_table_command_names_the_record(
    log: GrowingLog, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to = str(tmp_path / "table")
    assert run(["table", str(log.root), "--topic", "t", "--to", to]) == 0
    printed = capsys.readouterr().out
    assert "5 rows without _timestamp" in printed
    assert "t-0, offset 4, 1700000000000000 ms" in printed


@pytest.mark.parametrize(
    ("type", "edges", "odd"),
    [
        ("timestamp-millis", (FIRST_MS, LAST_MS), (FIRST_MS - 1, LAST_MS + 1)),
        (
            "local-timestamp-micros",
            (FIRST_MS * 1000, LAST_MS * 1000 + 999),
            (FIRST_MS * 1000 - 1, LAST_MS * 1000 + 1000, (1 << 63) - 1),
        ),
        ("date", (-719_162, 2_932_896), (-719_163, 2_932_897)),
    ],
)
def test_value_with_an_unrepresentable_time_is_bad(
    tmp_path: Path, type: str, edges: tuple[int, ...], odd: tuple[int, ...]
) -> None:
    (tmp_path / "log").mkdir()
    log = GrowingLog(tmp_path / "log")
    at = {"type": "int" if type == "date" else "long", "logicalType": type}
    record = {"type": "record", "name": "r", "fields": [{"name": "at", "type": at}]}
    (tmp_path / "r.avsc").write_text(json.dumps(record))
    for n, number in enumerate((*edges, *odd)):
        log.append([(b"%d" % n, zigzag(number), 1)])
    avro: dict[str, Any] = {"value_format": "avro", "value_schema": str(tmp_path / "r.avsc")}
    with lastwrite.table(str(log.root), "t", **avro, on_bad="null") as table:
        rows = table.to_arrow().to_pylist()
    assert [row["value"] is None for row in rows] == [False] * len(edges) + [True] * len(odd)
    with (
        lastwrite.table(str(log.root), "t", **avro) as table,
        pytest.raises(BadValue, match=f"t-0: offset {len(edges)}, value"),
    ):
        table.to_arrow()
    for format in ("iceberg", "delta"):
        to = str(tmp_path / format)
        lastwrite.table_to(str(log.root), "t", to=to, format=format, **avro, on_bad="null")


def zigzag(number: int) -> bytes:
    """Avro's zigzag encoding of an integer."""
    left, found = (number << 1) ^ (number >> 63), bytearray()
    while left > 0x7F:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*found, left])
