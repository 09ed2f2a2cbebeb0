"""Tests of Confluent's message frames with a real registry: ids, latest schemas, references,
imports.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lastwrite
from lastwrite.demo.topic_writer import TopicWriter
from lastwrite.errors import BadValue, InvalidConfig, RemoteFailed
from lastwrite.model.log import TopicPartition
from tests.support.registry import Registry, registry

pytestmark = pytest.mark.broker
fastavro = pytest.importorskip("fastavro", reason="pip install 'lastwrite[test]'")

CITY = {"type": "record", "name": "City", "fields": [{"name": "name", "type": "string"}]}
PERSON = {
    "type": "record",
    "name": "Person",
    "fields": [{"name": "id", "type": "int"}, {"name": "city", "type": "City"}],
}
NEWER = {
    "type": "record",
    "name": "Person",
    "fields": [
        {"name": "city", "type": "City"},
        {"name": "id", "type": "long"},
        {"name": "mail", "type": ["null", "string"], "default": None},
    ],
}
CLICK = {"type": "object", "properties": {"url": {"type": "string"}}}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with registry(tmp_path_factory.mktemp("registry")) as found:
        yield found


def framed(number: int, data: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + data


def avro(schema: Any, value: Any) -> bytes:
    names: dict[str, Any] = {}
    fastavro.parse_schema(CITY, named_schemas=names)
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema, named_schemas=names), value)
    return out.getvalue()


def write(root: Path, topic: str, values: list[bytes]) -> None:
    place = TopicPartition(topic, 0)
    with TopicWriter(str(root), place, segment_bytes=1 << 20, batch_bytes=200) as log:
        for n, value in enumerate(values):
            log.append(b"k%d" % n, value, 1_700_000_000_000 + n)


def test_values_of_two_schemas_are_read_by_the_newest(running: Registry, tmp_path: Path) -> None:
    running.register("city", CITY)
    city = [{"name": "City", "subject": "city", "version": 1}]
    old = running.register("people-value", PERSON, references=city)
    new = running.register("people-value", NEWER, references=city)
    values = [
        framed(old, avro(PERSON, {"id": 1, "city": {"name": "Oslo"}})),
        framed(new, avro(NEWER, {"id": 2, "city": {"name": "Rome"}, "mail": "x@y"})),
        framed(old, avro(PERSON, {"id": 3, "city": {"name": "Bonn"}})),
    ]
    write(tmp_path, "people", values)
    given: Any = {"value_format": "confluent", "schema_registry": running.url}
    with lastwrite.table(str(tmp_path), "people", **given) as table:
        assert table.to_arrow(["value"])["value"].to_pylist() == [
            {"city": {"name": "Oslo"}, "id": 1, "mail": None},
            {"city": {"name": "Rome"}, "id": 2, "mail": "x@y"},
            {"city": {"name": "Bonn"}, "id": 3, "mail": None},
        ]
        fields = table.to_arrow(["value.city.name"])["value"].to_pylist()
        assert fields[2] == {"city": {"name": "Bonn"}}
    row = next(lastwrite.dump(str(tmp_path), topic="people", **given))
    assert row["decoded"]["value"] == {"city": {"name": "Oslo"}, "id": 1, "mail": None}


def test_protobuf_value_with_imports_is_read(running: Registry, tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason="pip install 'lastwrite[protobuf]'")
    head = 'syntax = "proto3"; package shop; '
    running.register("place", head + "message Place { string city = 1; }", kind="PROTOBUF")
    told = head + 'import "parts/place.proto"; message Order { int64 id = 1; Place place = 2; }'
    imports = [{"name": "parts/place.proto", "subject": "place", "version": 1}]
    number = running.register("sales-value", told, kind="PROTOBUF", references=imports)
    write(tmp_path, "sales", [framed(number, b"\0\x08\x07\x12\x06\x0a\x04Oslo")])
    given: Any = {"value_format": "confluent", "schema_registry": running.url}
    with lastwrite.table(str(tmp_path), "sales", **given) as table:
        assert table[b"k0"] == {"id": 7, "place": {"city": "Oslo"}}


def test_json_schema_is_used_and_a_missing_one_reported(running: Registry, tmp_path: Path) -> None:
    number = running.register("clicks-value", CLICK, kind="JSON")
    write(tmp_path, "clicks", [framed(number, json.dumps({"url": "/a"}).encode())])
    write(tmp_path, "lost", [framed(99_999, b"{}")])
    given: Any = {"value_format": "confluent", "schema_registry": running.url}
    with lastwrite.table(str(tmp_path), "clicks", **given) as table:
        assert table[b"k0"] == {"url": "/a"}
    with pytest.raises(InvalidConfig, match="the registry does not have subject lost-value"):
        lastwrite.table(str(tmp_path), "lost", **given)
    schema = tmp_path / "click.json"
    schema.write_text(json.dumps(CLICK))
    with (
        lastwrite.table(str(tmp_path), "lost", value_schema=str(schema), **given) as table,
        pytest.raises(
            BadValue, match="lost-0: offset 0, value: the registry does not have schema 99999"
        ),
    ):
        table.to_arrow()
    given["schema_registry"] = "http://127.0.0.1:1"
    with pytest.raises(RemoteFailed, match="no answer from the registry"):
        lastwrite.table(str(tmp_path), "clicks", **given)
