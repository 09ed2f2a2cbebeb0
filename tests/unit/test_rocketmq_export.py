"""Tests of ``dump --to``: the messages of ``dump`` as Parquet and JSON lines."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

import lastwrite
from lastwrite.cli import run
from lastwrite.errors import InvalidConfig
from tests.support.rocketmq.stores import StoreWriter, shop

pq = pytest.importorskip("pyarrow.parquet")

Row = dict[str, Any]


@pytest.fixture
def writer(tmp_path: Path) -> StoreWriter:
    writer = shop(tmp_path / "store")
    pairs = b"KEYS\x01a\x02"
    writer.send("batches", inner=[(n, b"inner %d" % n, pairs) for n in range(3)])
    writer.send("orders", b"last", {"KEYS": "z"})
    writer.write()
    return writer


def dumped(path: Path, **options: Any) -> list[Row]:
    rows = []
    try:
        for row in lastwrite.dump(str(path), **options):
            rows.append(row)
    except lastwrite.errors.CorruptLog:
        pass
    return rows


def parquet_rows(folder: Path) -> list[Row]:
    return [row for path in sorted(folder.iterdir()) for row in pq.read_table(path).to_pylist()]


def same(row: Row, of_dump: Row) -> None:
    for name, value in row.items():
        wanted = of_dump[name]
        if name == "properties":
            assert dict(value) == wanted
        elif name == "body":
            assert (None if value is None else base64.b64encode(value).decode()) == wanted
        elif name == "stored_body":
            assert (
                value is None
                if of_dump["compression"] == "none"
                else base64.b64encode(value).decode() == wanted
            )
        else:
            assert value == wanted, name


def test_export_writes_parquet(writer: StoreWriter, tmp_path: Path) -> None:
    report = lastwrite.export(str(writer.root), str(tmp_path / "out"))
    rows, wanted = parquet_rows(tmp_path / "out"), dumped(writer.root)
    assert report.messages == len(rows) == len(wanted) and report.exit_status == 0
    for row, of_dump in zip(rows, wanted, strict=True):
        same(row, of_dump)
    assert sum(path.stat().st_size for path in (tmp_path / "out").iterdir()) == report.bytes


def test_export_writes_json_lines_of_a_topic(writer: StoreWriter, tmp_path: Path) -> None:
    lastwrite.export(
        str(writer.root), str(tmp_path / "out"), format="json", topic="orders", partition=1
    )
    lines = "".join(path.read_text() for path in sorted((tmp_path / "out").iterdir())).splitlines()
    wanted = [
        row for row in dumped(writer.root) if (row["topic"], row["queue_id"]) == ("orders", 1)
    ]
    assert [json.loads(line) for line in lines] == wanted


def test_damage_is_reported_and_the_rest_is_written(writer: StoreWriter, tmp_path: Path) -> None:
    body, magic = writer.sent[20], writer.sent[70]
    for message, at in ((body, 90), (magic, 4)):
        path = writer.root / "commitlog" / f"{message.physical_offset // 4000 * 4000:020}"
        data = bytearray(path.read_bytes())
        data[message.physical_offset % 4000 + at] ^= 0x10
        path.write_bytes(bytes(data))
    report = lastwrite.export(str(writer.root), str(tmp_path / "out"))
    rows, wanted = parquet_rows(tmp_path / "out"), dumped(writer.root)
    assert report.exit_status == 3 and len(report.problems) == 2
    assert len(rows) == len(wanted) == len(writer.sent) - 1 + 2
    for row, of_dump in zip(rows, wanted, strict=True):
        same(row, of_dump)
    assert [row["physical_offset"] for row in rows if row["problem"]] == [body.physical_offset]


def test_export_overwrites_nothing(writer: StoreWriter, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("x")
    with pytest.raises(InvalidConfig):
        lastwrite.export(str(writer.root), str(tmp_path / "out"))
    with pytest.raises(InvalidConfig):
        lastwrite.export(str(writer.root), str(tmp_path / "new"), format="csv")
    with pytest.raises(InvalidConfig):
        lastwrite.export(str(writer.root / "index"), str(tmp_path / "new"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "store"]


def test_dump_to_command_prints_a_summary(
    writer: StoreWriter, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["dump", str(writer.root), "--to", str(tmp_path / "out"), "--format", "json"]) == 0
    assert capfd.readouterr().out.startswith("124 messages in 7 files")
    assert run(["dump", str(writer.root), "--to", str(tmp_path / "again"), "--offset", "1"]) == 2


@pytest.mark.spark
@pytest.mark.long
def test_export_on_spark_equals_dump(writer: StoreWriter, tmp_path: Path) -> None:
    from lastwrite.spark.session import spark_session

    with spark_session("local[2]", {}) as spark:
        report = lastwrite.export(str(writer.root), str(tmp_path / "out"), spark=spark)
    assert report.messages == 124
    assert [row["physical_offset"] for row in parquet_rows(tmp_path / "out")] == [
        row["physical_offset"] for row in dumped(writer.root)
    ]
