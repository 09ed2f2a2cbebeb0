"""Tests of decoded keys and values, including undecodable ones, in every command that reads
records.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

import lastwrite
from lastwrite.cli import main
from lastwrite.demo.topic_writer import TopicWriter
from lastwrite.errors import BadValue, InvalidConfig
from lastwrite.model.log import TopicPartition
from lastwrite.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

fastavro = pytest.importorskip("fastavro", reason="pip install 'lastwrite[test]'")


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with spark_session("local[2]", {"spark.sql.session.timeZone": "UTC"}) as session:
        yield session


ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": "string"},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "labels", "type": {"type": "map", "values": "int"}},
    ],
}
NEWER = {
    **ORDER,
    "fields": [
        {"name": "name", "type": ["null", "string"]},
        {"name": "note", "type": "string", "default": "-"},
        {"name": "id", "type": "long"},
    ],
}


def avro(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def order(n: int) -> dict[str, Any]:
    return {"id": n, "name": f"name {n}", "tags": ["a"] * (n % 3), "labels": {"x": n}}


def write(root: Path, values: list[tuple[bytes, bytes | None]]) -> None:
    with TopicWriter(
        str(root), TopicPartition("orders", 0), segment_bytes=4000, batch_bytes=500
    ) as log:
        for n, (key, value) in enumerate(values):
            log.append(key, value, 1_700_000_000_000 + n)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """200 writes of 40 keys. Only the last value of k7 is undecodable, and k9 is deleted."""
    values: list[tuple[bytes, bytes | None]] = [
        (b"k%d" % (n % 40), avro(ORDER, order(n))) for n in range(200)
    ]
    values += [(b"k7", b"\x02"), (b"k9", None)]
    write(tmp_path / "logs", values)
    (tmp_path / "order.avsc").write_text(json.dumps(ORDER))
    (tmp_path / "newer.avsc").write_text(json.dumps(NEWER))
    yield tmp_path


def options(place: Path, **more: Any) -> dict[str, Any]:
    return {"value_format": "avro", "value_schema": str(place / "order.avsc"), **more}


def test_bad_last_write_is_never_replaced_by_an_older_one(place: Path) -> None:
    logs = str(place / "logs")
    with lastwrite.table(logs, "orders", **options(place)) as table:
        assert table[b"k5"] == order(165) | {"labels": [("x", 165)]}
        with pytest.raises(BadValue, match="orders: key b'k7', value: it stops early"):
            table[b"k7"]
        with pytest.raises(
            BadValue, match="orders-0: offset 200, value: it stops early, at its byte"
        ):
            table.to_arrow()
        assert b"k7" in table and b"k9" not in table
    with lastwrite.table(logs, "orders", **options(place, on_bad="null")) as table:
        rows = {row["key"]: row for row in table.to_arrow().to_pylist()}
        assert len(rows) == 39 and table[b"k7"] is None and dict(table.items())[b"k7"] is None
        assert rows[b"k7"]["value"] is None and "it stops early" in rows[b"k7"]["_error"]
        assert rows[b"k8"]["value"]["name"] == "name 168" and rows[b"k8"]["_error"] is None
    assert lastwrite.latest(logs, "orders", **options(place, on_bad="null"))[b"k7"] is None
    aside = place / "bad"
    with lastwrite.table(
        logs, "orders", **options(place, on_bad="aside", bad_to=str(aside))
    ) as table:
        for _ in range(2):  # a second run writes the same file
            assert b"k7" not in table.to_arrow()["key"].to_pylist()
    (file,) = aside.iterdir()
    (bad,) = pq.read_table(file).to_pylist()
    assert (bad["key"], bad["value"], bad["offset"]) == (b"k7", b"\x02", 200)
    assert "it stops early" in bad["error"]


def test_requested_fields_are_read_by_any_readers_schema(place: Path) -> None:
    logs, given = str(place / "logs"), options(place, on_bad="null", key_format="utf8")
    with lastwrite.table(logs, "orders", **given) as table:
        found = table.to_arrow(["value.name", "key", "value.labels"])
        assert found.schema.names == ["value", "key", "_error"]
        row = next(row for row in found.to_pylist() if row["key"] == "k8")
        assert row["value"] == {"name": "name 168", "labels": [("x", 168)]}
        with pytest.raises(InvalidConfig, match="no field nam in value"):
            table.to_arrow(["value.nam"])
        with pytest.raises(InvalidConfig):
            table.to_arrow(["offset.x"])


def test_framed_values_are_read_by_the_newest_schema(place: Path) -> None:
    def framed(number: int, data: bytes) -> bytes:
        return b"\0" + number.to_bytes(4, "big") + data

    schemas, root = place / "schemas", place / "framed"
    schemas.mkdir()
    (schemas / "7.avsc").write_text(json.dumps(ORDER))
    (schemas / "300.avsc").write_text(json.dumps(NEWER))
    (schemas / "orders-value.avsc").write_text(json.dumps(NEWER))
    values: list[tuple[bytes, bytes | None]] = [
        (b"a", framed(7, avro(ORDER, order(1)))),
        (b"b", framed(300, avro(NEWER, {"name": None, "note": "x", "id": 2}))),
        (b"c", b"\x01bad"),
        (b"d", framed(7, avro(ORDER, order(4)))),
        (b"e", framed(300, b"")),
    ]
    write(root, values)
    given = {"value_format": "confluent", "schema_registry": str(schemas), "on_bad": "null"}
    with lastwrite.table(str(root), "orders", **given) as table:
        found = table.to_arrow(["key", "value"]).to_pylist()
    assert [row["value"] for row in found] == [
        {"name": "name 1", "note": "-", "id": 1},
        {"name": None, "note": "x", "id": 2},
        None,
        {"name": "name 4", "note": "-", "id": 4},
        None,
    ]
    assert [row["_error"] for row in found][2:] == [
        "value: the value does not begin with a magic byte and schema id",
        None,
        "value: it stops early, at its byte 0 (schema 300)",
    ]
    (schemas / "7.avsc").unlink()
    with lastwrite.table(str(root), "orders", **given) as table:
        found = table.to_arrow(["key", "value"]).to_pylist()
    assert [row["value"] is None for row in found] == [True, False, True, True, True]
    assert all("schema 7" in row["_error"] for row in (found[0], found[3]))


def test_dump_and_read_show_decoded_values(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs = str(place / "logs")
    rows = list(lastwrite.dump(logs, topic="orders", offset=199, **options(place, on_bad="null")))
    assert [row["decoded"]["value"] for row in rows] == [
        order(199),
        None,
        None,
    ]
    assert [row["decoded"]["problem"] is None for row in rows] == [True, False, True]
    found = lastwrite.read(logs, "orders", offset=198, **options(place))
    assert next(found)["decoded"]["value"]["id"] == 198 and found.next_offset == 199
    with pytest.raises(BadValue, match="orders-0, offset 200: value: it stops early"):
        list(found)
    words = [
        "--topic",
        "orders",
        "--value-format",
        "avro",
        "--value-schema",
        str(place / "order.avsc"),
    ]
    capsys.readouterr()
    with pytest.raises(SystemExit, match="0"):
        main(["dump", logs, *words, "--offset", "199", "--limit", "1"])
    assert (
        '"k39" = {id: 199, name: "name 199", tags: [a], labels: {x: 199}}'
        in capsys.readouterr().out
    )
    with pytest.raises(SystemExit, match="3"):
        main(["dump", logs, *words])
    assert "offset 200: value: it stops early" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="3"):
        main(["read", logs, *words, "--offset", "199"])
    assert "ended early: 2 messages" in capsys.readouterr().err
    with pytest.raises(InvalidConfig, match="needs a schema"):
        lastwrite.dump(logs, topic="orders", value_format="avro")


@pytest.mark.spark
def test_spark_has_the_same_columns(place: Path, spark: SparkSession) -> None:
    logs = str(place / "logs")
    reader = (
        spark.read.format("lastwrite")
        .option("subscribe", "orders")
        .option("valueFormat", "avro")
        .option("valueSchema", str(place / "order.avsc"))
        .option("keyFormat", "utf8")
    )
    with lastwrite.table(
        logs, "orders", **options(place, on_bad="null", key_format="utf8")
    ) as table:
        expected = table.to_arrow(["key", "value"]).to_pylist()
    wanted = {row["key"]: row["value"] for row in expected}
    frame = reader.option("onBad", "null").option("view", "compacted").load(logs)
    assert frame.schema.simpleString().startswith(
        "struct<key:string,value:struct<id:bigint,name:string,tags:array<string>,"
        "labels:map<string,int>>"
    )
    found = {row["key"]: row for row in frame.collect()}
    assert set(found) == set(wanted) and found["k7"]["value"] is None and found["k7"]["_error"]
    assert found["k8"]["value"].asDict() == wanted["k8"] | {"labels": {"x": 168}}
    fields = reader.option("onBad", "null").option("columns", "value.id,offset").load(logs)
    assert fields.where("offset = 163").collect()[0].asDict(True) == {
        "value": {"id": 163},
        "offset": 163,
        "_error": None,
    }
    aside = place / "aside"
    rows = lastwrite.read(
        logs,
        "orders",
        spark=spark,
        view="compacted",
        **options(place, on_bad="aside", bad_to=str(aside)),
    )
    assert rows.count() == 38 and len(list(aside.glob("*.parquet"))) == 1
    last = lastwrite.latest(logs, "orders", spark=spark, **options(place, on_bad="null"))
    by_key = {bytes(row["key"]).decode(): row for row in last.collect()}
    assert set(by_key) == set(wanted) and by_key["k7"]["value"] is None and by_key["k7"]["_error"]
    assert by_key["k8"]["value"] == found["k8"]["value"]
    with pytest.raises(Exception, match="orders-0: offset 200, value: it stops early"):
        reader.option("onBad", "fail").load(logs).count()
