"""Tests of decoded keys and values of all three systems, and of ``follow``."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow", reason="pip install 'lastwrite[frames]'")

import pyarrow.parquet as pq  # noqa: E402

import lastwrite  # noqa: E402
from lastwrite.errors import BadValue, InvalidConfig  # noqa: E402
from lastwrite.spark.inline import Inline  # noqa: E402
from tests.support.kafka.growing import GrowingLog  # noqa: E402
from tests.support.pulsar.folders import single, write_ledger  # noqa: E402
from tests.support.pulsar.topics import topic_folder  # noqa: E402
from tests.support.rocketmq.queues import Sent, write_queue  # noqa: E402

SCHEMA = {"type": "object", "properties": {"id": {"type": "integer"}, "name": {"type": "string"}}}
PULSAR = "persistent://public/default/orders"


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    """Options that decode values as JSON. The schema registry is a folder of files with the same
    schema.
    """
    schemas = tmp_path / "schemas"
    schemas.mkdir()
    for name in ("5.json", "orders-value.json"):
        (schemas / name).write_text(json.dumps(SCHEMA))
    return {"value_format": "json", "value_schema": str(schemas / "5.json")}


def value(n: int) -> bytes:
    return json.dumps({"id": n, "name": f"name {n}"}).encode()


def changes_schema(table: Any) -> pa.Schema:
    """The schema of changes from ``follow``: the table's columns and whether the key
    was deleted.
    """
    return table.reader().schema.append(pa.field("deleted", pa.bool_()))


def write(system: str, root: Path, values: dict[str, bytes]) -> str:
    """Write a topic ``orders`` with these values in order. Returns its path."""
    place = root / system
    if system == "rocketmq":
        sents = [Sent(n, key, each) for n, (key, each) in enumerate(values.items())]
        write_queue(place, "orders", 0, [sents])
    elif system == "pulsar":
        entries = [single(key, each, n) for n, (key, each) in enumerate(values.items())]
        write_ledger(topic_folder(place, PULSAR), 10, entries)
    else:
        raise AssertionError(system)
    return str(place)


@pytest.mark.parametrize("system", ["rocketmq", "pulsar"])
def test_rocketmq_and_pulsar_have_the_same_columns(
    system: str, tmp_path: Path, options: dict[str, Any]
) -> None:
    path = write(system, tmp_path, {"a": value(1), "b": b'{"id":', "c": value(3), "d": b""})
    with lastwrite.table(path, "orders", key_format="utf8", on_bad="null", **options) as table:
        found = table.to_arrow(["key", "value.id"]).to_pylist()
        assert table[b"a"] == {"id": 1, "name": "name 1"} and table[b"b"] is None
        assert list(table.values())[2]["id"] == 3 and b"d" not in table
    assert [(row["key"], row["value"]) for row in found] == [
        ("a", {"id": 1}),
        ("b", None),
        ("c", {"id": 3}),
    ]
    assert [row["_error"] is None for row in found] == [True, False, True]
    with (
        lastwrite.table(path, "orders", **options) as table,
        pytest.raises(BadValue, match="orders.*: offset .*, value: it stops early"),
    ):
        table.to_arrow()
    aside = tmp_path / "aside"
    with lastwrite.table(path, "orders", **options, on_bad="aside", bad_to=str(aside)) as table:
        assert table.to_arrow(["key"]).num_rows == 3  # values are not decoded
        assert table.to_arrow(["key", "value"])["key"].to_pylist() == [b"a", b"c"]
    (file,) = aside.iterdir()
    assert pq.read_table(file)["value"].to_pylist() == [b'{"id":']
    last = lastwrite.latest(path, "orders", on_bad="null", **options)
    assert last == {"a": {"id": 1, "name": "name 1"}, "b": None, "c": {"id": 3, "name": "name 3"}}


@pytest.mark.parametrize("system", ["rocketmq", "pulsar"])
def test_subject_is_the_topics_own_name(
    system: str, tmp_path: Path, options: dict[str, Any]
) -> None:
    path = write(system, tmp_path, {"a": b"\0" + (5).to_bytes(4, "big") + value(1)})
    given: dict[str, Any] = {
        "value_format": "confluent",
        "schema_registry": str(tmp_path / "schemas"),
    }
    meant = {"id": 1, "name": "name 1"}
    with lastwrite.table(path, "orders", **given) as table:
        assert table[b"a"] == meant and dict(table.items()) == {b"a": meant}
    assert lastwrite.latest(path, "orders", **given) == {"a": meant}
    (row,) = lastwrite.dump(path, topic="orders", compacted=system == "rocketmq", **given)
    assert row["decoded"]["value"] == meant
    (row,) = lastwrite.read(path, "orders", **given)
    assert row["decoded"] == {"value": meant, "problem": None}


@pytest.mark.parametrize("view", ["log", "compacted"])
@pytest.mark.parametrize("system", ["rocketmq", "pulsar"])
def test_decoding_options_reach_the_tasks_of_the_spark_source(
    system: str, view: str, tmp_path: Path, options: dict[str, Any]
) -> None:
    pytest.importorskip("pyspark.sql.datasource", reason="pip install 'pyspark>=4'")
    from pyspark.sql.pandas.types import from_arrow_schema

    from lastwrite.source.reader import DefaultSource

    path = write(system, tmp_path, {"a": value(1), "b": b'{"id":'})
    given = {"path": path, "subscribe": "orders", "columns": "value.id,key", "onBad": "null"}
    given |= {"valueFormat": "json", "valueSchema": options["value_schema"], "view": view}
    source = DefaultSource(given)
    assert source.schema() == "`value` STRUCT<`id`: BIGINT>, `key` BINARY, `_error` STRING"
    fields = [("value", pa.struct([("id", pa.int64())])), ("key", pa.binary())]
    schema = pa.schema([*fields, ("_error", pa.string())])
    planned = source.reader(from_arrow_schema(schema))
    reader, pieces = pickle.loads(pickle.dumps((planned, planned.partitions())))
    batches = [batch for piece in pieces for batch in reader.read(piece)]
    assert all(batch.schema == schema for batch in batches)
    good, bad = [row for batch in batches for row in batch.to_pylist()]
    assert good == {"value": {"id": 1}, "key": b"a", "_error": None}
    assert bad["value"] is None and "it stops early" in bad["_error"]


def test_follow_decodes_its_rows(tmp_path: Path, options: dict[str, Any]) -> None:
    log = GrowingLog(tmp_path / "logs")
    log.append([(b"a", value(1), 5), (b"b", value(2), 5)])
    path = str(tmp_path / "logs")
    table = lastwrite.table(path, "t", key_format="utf8", on_bad="null", **options)
    strict = lastwrite.table(path, "t", **options)
    log.append([(b"a", value(3), 6), (b"b", None, 6), (b"c", b"{", 6)])
    (batch,) = table.follow(poll_s=None)
    assert batch.schema == changes_schema(table)
    a, b, c = batch.to_pylist()
    assert (a["key"], a["value"]) == ("a", {"id": 3, "name": "name 3"})
    assert (b["key"], b["value"], b["_error"]) == ("b", None, None)
    assert [row["deleted"] for row in (a, b, c)] == [False, True, False]
    assert (c["key"], c["value"]) == ("c", None) and "it stops early" in c["_error"]
    for _ in range(2):  # the failed change is not skipped
        with pytest.raises(BadValue, match="t-0: offset 4, value"):
            list(strict.follow(poll_s=None))
    log.append([(b"c", value(4), 7)])
    (batch,) = strict.follow(poll_s=None)
    assert [row["key"] for row in batch.to_pylist()] == [b"a", b"b", b"c"]


def test_value_that_follow_sets_aside_is_not_replaced_by_an_older_one(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    log = GrowingLog(tmp_path / "logs")
    log.append([(b"a", value(1), 5), (b"b", value(2), 5)])
    bad_to = tmp_path / "aside"
    given = options | {"key_format": "utf8", "on_bad": "aside", "bad_to": str(bad_to)}
    table = lastwrite.table(str(tmp_path / "logs"), "t", **given)
    applied = {row["key"]: row["value"] for row in table.to_arrow().to_pylist()}
    for changes in (
        [(b"a", b"{", 6), (b"\xff", value(3), 6), (b"c", value(4), 6)],
        [(b"\xff", b"[", 7)],  # neither key nor value can be decoded
        [(b"d", value(5), 8)],
    ):
        log.append(changes)
        for batch in table.follow(poll_s=None):
            assert len(batch) and batch.schema == changes_schema(table)
            applied |= {row["key"]: row["value"] for row in batch.to_pylist()}
    assert {key: each and each["id"] for key, each in applied.items()} == {
        "a": None,
        "b": 2,
        "c": 4,
        "d": 5,
    }
    rows = [row for file in bad_to.iterdir() for row in pq.read_table(file).to_pylist()]
    assert sorted((row["offset"], row["key"], row["value"]) for row in rows) == [
        (2, b"a", b"{"),
        (3, b"\xff", value(3)),
        (5, b"\xff", b"["),
    ]
    assert all(row["error"] for row in rows)


def test_inferred_delete_has_the_types_of_the_table(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    folder = topic_folder(tmp_path / "archive", PULSAR)
    write_ledger(folder, 10, [single("a", value(1), 1), single("b", value(2), 2)])
    path = str(tmp_path / "archive")
    table = lastwrite.table(path, "orders", key_format="utf8", **options)
    write_ledger(folder, 11, [single("a", "", 3), single("c", value(3), 4)])
    lastwrite.compact(path, spark=Inline())
    batches = list(table.follow(poll_s=None))
    assert all(batch.schema == changes_schema(table) for batch in batches)
    rows = {row["key"]: row for batch in batches for row in batch.to_pylist()}
    assert rows["a"]["value"] is None and rows["a"]["offset"] is None
    assert rows["c"]["value"] == {"id": 3, "name": "name 3"}
    assert b"a" not in table and table[b"b"] == {"id": 2, "name": "name 2"}


def test_incompatible_options_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    path = write("pulsar", tmp_path, {"a": value(1)})
    with pytest.raises(InvalidConfig, match="keys of a dictionary"):
        lastwrite.latest(path, "orders", key_format="utf8")
    with pytest.raises(InvalidConfig, match="is only for table"):
        lastwrite.latest(path, "orders", **options, on_bad="aside", bad_to=str(tmp_path))
    with lastwrite.table(path, "orders", **options) as table:
        with pytest.raises(InvalidConfig, match="no field nam in value"):
            table.to_arrow(["value.nam"])
        for columns in (["key", "key"], ["value.id", "value.id"], ["key.id"], ["offset.x"]):
            with pytest.raises(InvalidConfig, match="columns "):
                table.to_arrow(columns)


@pytest.mark.parametrize("format", ["json", "avro"])
def test_value_that_decodes_to_null_is_a_row_and_not_a_delete(tmp_path: Path, format: str) -> None:
    schema = tmp_path / f"null.{'avsc' if format == 'avro' else 'json'}"
    if format == "avro":
        schema.write_text('["null", "long"]')
        null, seven = b"\x00", b"\x02\x0e"
    else:
        schema.write_text('{"type": ["null", "integer"]}')
        null, seven = b"null", b"7"
    log = GrowingLog(tmp_path / "logs")
    log.append([(b"a", null, 5), (b"b", seven, 5), (b"c", seven, 5)])
    given: Any = {"value_format": format, "value_schema": str(schema)}
    with lastwrite.table(tmp_path / "logs", "t", **given) as table:
        rows = table.to_arrow(["key", "value"]).to_pylist()
        assert [tuple(row.values()) for row in rows] == [(b"a", None), (b"b", 7), (b"c", 7)]
        log.append([(b"b", null, 6), (b"c", None, 6)])
        (batch,) = table.follow(poll_s=None)
        changes = [(row["key"], row["value"], row["deleted"]) for row in batch.to_pylist()]
        assert changes == [(b"b", None, False), (b"c", None, True)]
        assert dict(table.items()) == {b"a": None, b"b": None}
        assert table[b"b"] is None and b"b" in table and b"c" not in table


def test_unknown_schema_id_is_a_bad_value(tmp_path: Path, options: dict[str, Any]) -> None:
    log = GrowingLog(tmp_path / "logs")
    framed = b"\0" + (5).to_bytes(4, "big") + value(1)
    unknown = b"\0" + (9).to_bytes(4, "big") + value(2)
    log.append([(b"a", framed, 5), (b"b", unknown, 5)])
    place, schemas = str(tmp_path / "logs"), tmp_path / "schemas"
    given: Any = {
        "value_format": "confluent",
        "value_schema": str(schemas / "5.json"),
        "schema_registry": str(schemas),
    }
    with lastwrite.table(place, "t", **given) as table:
        with pytest.raises(
            BadValue, match="t-0: offset 1, value: the folder has no file for schema 9 in"
        ):
            table.to_arrow()
        with pytest.raises(BadValue, match="no file for schema 9"):
            table[b"b"]
        # a schema in another format is reported
        (schemas / "9.avsc").write_text('"long"')
        with pytest.raises(
            BadValue,
            match="offset 1, value: schema 9 is of the format avro, but .* is json",
        ):
            table.to_arrow()
        (schemas / "9.avsc").unlink()
    with lastwrite.table(place, "t", **given, on_bad="null") as table:
        good, bad = table.to_arrow().to_pylist()
        assert good["value"] == {"id": 1, "name": "name 1"} and good["_error"] is None
        assert bad["value"] is None and "no file for schema 9" in bad["_error"]
        # the registry is asked again
        (schemas / "9.json").write_text(json.dumps(SCHEMA))
        assert table[b"b"] == {"id": 2, "name": "name 2"}
    aside = tmp_path / "aside"
    (schemas / "9.json").unlink()
    with lastwrite.table(place, "t", **given, on_bad="aside", bad_to=str(aside)) as table:
        assert table.to_arrow()["key"].to_pylist() == [b"a"]
    (file,) = aside.iterdir()
    assert pq.read_table(file)["value"].to_pylist() == [unknown]


def _varint_map(pairs: list[tuple[str, int]]) -> bytes:
    """A Protobuf message whose field 1 is a map of string to int64."""
    entries = (b"\x0a%c%s\x10%c" % (len(key), key.encode(), n) for key, n in pairs)
    return b"".join(b"\x0a%c%s" % (len(each), each) for each in entries)


@pytest.mark.parametrize("format", ["json", "avro", "protobuf"])
def test_last_entry_of_a_duplicate_map_key_counts(tmp_path: Path, format: str) -> None:
    duckdb = pytest.importorskip("duckdb")
    maps = [[("k", 1), ("x", 2), ("k", 3)], [], [("k", 4)], [("x", 5), ("x", 6), ("x", 7)]]
    if format == "json":
        schema = tmp_path / "map.json"
        schema.write_text('{"type": "object", "additionalProperties": {"type": "integer"}}')
        texts = (",".join(f'"{key}":{n}' for key, n in pairs) for pairs in maps)
        values = [f"{{{text}}}".encode() for text in texts]
    elif format == "avro":
        schema = tmp_path / "map.avsc"
        schema.write_text('{"type": "map", "values": "long"}')
        blocks = (
            b"%c" % (2 * len(pairs))
            + b"".join(b"%c%s%c" % (2 * len(key), key.encode(), 2 * n) for key, n in pairs)
            for pairs in maps
        )
        values = [
            block + b"\0" if pairs else b"\0" for block, pairs in zip(blocks, maps, strict=True)
        ]
    else:
        pytest.importorskip("grpc_tools", reason="pip install 'lastwrite[protobuf]'")
        schema = tmp_path / "map.proto"
        schema.write_text('syntax = "proto3"; message M { map<string, int64> m = 1; }')
        values = [_varint_map(pairs) for pairs in maps]
    log = GrowingLog(tmp_path / "logs")
    log.append([(b"%d" % n, each, 5) for n, each in enumerate(values)])
    given: Any = {"value_format": format, "value_schema": str(schema)}
    with lastwrite.table(tmp_path / "logs", "t", **given) as table:
        found = table.to_arrow(["key", "value"])
        assert found.schema.field("value").type == table.reader(["value"]).schema.field(0).type
        shown = [each["m"] if format == "protobuf" else each for each in found["value"].to_pylist()]
        assert shown == [[("x", 2), ("k", 3)], [], [("k", 4)], [("x", 7)]]
        single = table[b"3"]
        assert (single["m"] if format == "protobuf" else single) == [("x", 7)]
        assert len(duckdb.sql("select value::varchar from found").fetchall()) == 4
