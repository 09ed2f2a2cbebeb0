"""Tests of decoding Protobuf values, framed or described by a header, in tables."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
import uuid
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pip install 'lastwrite[frames]'")
pytest.importorskip("grpc_tools", reason="pip install 'lastwrite[protobuf]'")

import pyarrow.parquet as pq  # noqa: E402
from google.protobuf import descriptor_pb2, message_factory  # noqa: E402

import lastwrite  # noqa: E402
from lastwrite.cli import run  # noqa: E402
from lastwrite.decoding.protobuf_schema import ProtobufFile  # noqa: E402
from lastwrite.demo.topic_writer import TopicWriter  # noqa: E402
from lastwrite.errors import BadValue, InvalidConfig  # noqa: E402
from lastwrite.model.log import TopicPartition  # noqa: E402
from lastwrite.rows.known_protos import KNOWN_PROTOS  # noqa: E402
from lastwrite.rows.schemas import read_schema  # noqa: E402

PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "parts/place.proto";
enum Kind { NEW = 0; OLD = 5; }
message Order {
  message Line { string what = 1; repeated sint32 counts = 2; }
  int64 id = 1;
  optional string note = 2;
  Kind kind = 3;
  repeated Line lines = 4;
  map<string, fixed64> sums = 5;
  oneof by { string mail = 6; Place place = 7; }
  google.protobuf.Timestamp at = 8;
  Tree tree = 9;
}
message Tree { string name = 1; repeated Tree below = 2; }
message Click { string url = 1; }
"""
PLACE = 'syntax = "proto3"; package shop; message Place { string city = 1; }'
ORDER = "shop.Order"
COLUMNS = ["key", *(f"value.{name}" for name in "id note kind lines sums mail place at".split())]


@pytest.fixture
def schemas(tmp_path: Path) -> Path:
    folder = tmp_path / "schemas"
    (folder / "parts").mkdir(parents=True)
    (folder / "order.proto").write_text(PROTO)
    (folder / "parts" / "place.proto").write_text(PLACE)
    return folder


def message(schemas: Path, name: str = ORDER) -> Any:
    file = ProtobufFile(read_schema(str(schemas / "order.proto")).descriptors)
    return message_factory.GetMessageClass(file.message(name))


def write(root: Path, values: list[tuple[bytes, bytes | None, list[tuple[bytes, bytes]]]]) -> str:
    place = TopicPartition("orders", 0)
    with TopicWriter(str(root), place, segment_bytes=1 << 20, batch_bytes=300) as log:
        for n, (key, value, headers) in enumerate(values):
            log.append(key, value, 1_700_000_000_000 + n, headers)
    return str(root)


def order(made: Any, n: int) -> bytes:
    found = made(id=n, kind=5 * (n % 2), sums={"x": 2**64 - n})
    found.lines.add(what="tea", counts=[1, -n])
    found.at.FromMilliseconds(1_700_000_000_000)
    if n % 2:
        found.place.city = "Oslo"
    data: bytes = found.SerializeToString()
    return data


@pytest.mark.parametrize("end", ["proto", "desc"])
def test_protobuf_message_becomes_a_record(end: str, schemas: Path, tmp_path: Path) -> None:
    made = message(schemas)
    if end == "desc":
        command = [sys.executable, "-m", "grpc_tools.protoc", "-I", str(schemas)]
        command += [f"--descriptor_set_out={schemas / 'order.desc'}", "--include_imports"]
        bundled = Path(sys.modules["grpc_tools"].__path__[0], "_proto")
        subprocess.run([*command, "-I", str(bundled), "order.proto"], check=True)
    values = [(b"a", order(made, 1), []), (b"b", order(made, 2), []), (b"a", None, [])]
    path = write(tmp_path / "logs", [*values, (b"c", order(made, 3), []), (b"c", b"\x0a\x05x", [])])
    given: dict[str, Any] = {"value_format": "protobuf", "value_message": ORDER}
    given["value_schema"] = str(schemas / f"order.{end}")
    with lastwrite.table(path, "orders", on_bad="null", **given) as table:
        b, c = table.to_arrow(COLUMNS).to_pylist()
        assert table[b"b"]["tree"] is None
    assert b["value"]["at"].isoformat() == "2023-11-14T22:13:20+00:00"
    b["value"].pop("at")
    assert b["value"] == {
        "id": 2,
        "note": None,
        "kind": "NEW",
        "lines": [{"what": "tea", "counts": [1, -2]}],
        "sums": [("x", 2**64 - 2)],
        "mail": None,
        "place": None,
    }
    assert c["value"] is None and c["_error"] == "value: it stops early, at its byte 0"
    with (
        lastwrite.table(path, "orders", **given) as table,
        pytest.raises(BadValue, match="orders-0: offset 4, value: it stops early"),
    ):
        table.to_arrow(["value.id"])
    given["value_message"] = ""
    with pytest.raises(InvalidConfig, match="order.proto: the schema has 3 messages") as caught:
        lastwrite.table(path, "orders", **given)
    assert "value_message: Order, Tree, Click" in (caught.value.remedy or "")


def test_frame_selects_a_message_of_its_schema(schemas: Path, tmp_path: Path) -> None:
    made, line = message(schemas), message(schemas, "shop.Order.Line")
    for name in ("7", "orders-value", GUID):
        (schemas / f"{name}.proto").write_text(PROTO)

    def framed(indexes: bytes, data: bytes) -> bytes:
        return b"\0" + (7).to_bytes(4, "big") + indexes + data

    header = [(b"__value_schema_id", b"\x01" + uuid.UUID(GUID).bytes + b"\0")]
    nested = line(what="x").SerializeToString()
    values: list[Any] = [
        (b"a", framed(b"\0", order(made, 1)), []),
        (b"b", framed(b"\x02\x04", b""), []),
        (b"c", framed(b"\x04\0\0", nested), []),
        (b"d", framed(b"\x04\0\x0e", nested), []),
        (b"e", framed(b"\0", b"\x0a"), []),
        (b"f", order(made, 6), [(b"other", b"\x00"), *header]),
        (b"g", b"\x00\x00\x00", []),
        (b"h", None, header),
        (b"i", framed(b"\0", order(made, 9)), []),
    ]
    path = write(tmp_path / "logs", values)
    given: dict[str, Any] = {"value_format": "confluent", "schema_registry": str(schemas)}
    with lastwrite.table(path, "orders", on_bad="null", **given) as table:
        rows = table.to_arrow(["key", "value.id"]).to_pylist()
        assert table[b"f"]["id"] == 6 and table[b"g"] is None and table[b"i"]["id"] == 9
        assert dict(table.items())[b"f"]["id"] == 6
    last = lastwrite.latest(path, "orders", on_bad="null", **given)
    assert last[b"f"]["id"] == 6 and last[b"a"]["id"] == 1 and last[b"e"] is None
    told = list(lastwrite.dump(path, topic="orders", on_bad="null", **given))
    assert [row["decoded"]["value"] and row["decoded"]["value"]["id"] for row in told] == [
        *[1, None, None, None, None, 6, None, None, 9]
    ]
    assert [row["value"] and row["value"]["id"] for row in rows] == [
        1,
        None,
        None,
        None,
        None,
        6,
        None,
        9,
    ]
    assert [row["_error"] for row in rows] == [
        None,
        "value: the message type is shop.Click, not shop.Order (schema 7)",
        "value: the message type is shop.Order.Line, not shop.Order (schema 7)",
        "value: the schema has no message with index [0, 7] (schema 7)",
        "value: it stops early, at its byte 0 (schema 7)",
        None,
        "value: the value does not begin with a magic byte and schema id",
        None,
    ]
    with lastwrite.table(
        path, "orders", on_bad="null", value_message="shop.Order.Line", **given
    ) as table:
        assert table[b"c"] == {"what": "x", "counts": []}
        assert table[b"a"] is None


GUID = str(uuid.UUID(int=0x1234567890ABCDEF1234567890ABCDEF))


def test_invalid_proto_file_is_refused(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.proto"
    path = write(tmp_path / "logs", [(b"a", b"", [])])
    given: dict[str, Any] = {"value_format": "protobuf", "value_schema": str(wrong)}
    for text, said in (
        ('syntax = "proto3"; message M {', "wrong.proto:1:"),
        (
            'syntax = "proto3"; import "not/there.proto"; message M { int32 a = 1; }',
            "not/there.proto",
        ),
    ):
        wrong.write_text(text)
        with pytest.raises(InvalidConfig, match=said):
            lastwrite.table(path, "orders", **given)
    given["value_schema"] = str(tmp_path / "wrong.desc")
    for data, said in ((b"\xff", "not a set of descriptors"), (b"", "is empty")):
        Path(given["value_schema"]).write_bytes(data)
        with pytest.raises(InvalidConfig, match=said):
            lastwrite.table(path, "orders", **given)
    with pytest.raises(InvalidConfig, match="value_message needs a Protobuf format"):
        lastwrite.table(path, "orders", value_message="M")


def test_proto2_defaults_and_required_fields_are_honoured(tmp_path: Path) -> None:
    (tmp_path / "two.proto").write_text(
        'syntax = "proto2"; enum E { A = 3; B = 4; }'
        'message M { required int32 id = 1; optional string name = 2 [default = "x"];'
        "  optional E kind = 3 [default = B]; optional int64 none = 4;"
        "  optional group Inner = 5 { optional bool ok = 1; } }"
    )
    path = write(
        tmp_path / "logs",
        [
            (b"a", b"\x08\x01", []),
            (b"b", b"\x12\x00", []),
            (b"c", b"\x18\x07\x08\x01", []),
            (b"d", b"\x08\x02\x2b\x08\x01\x2c\x18\x03", []),
        ],
    )
    given: dict[str, Any] = {"value_schema": str(tmp_path / "two.proto"), "on_bad": "null"}
    with lastwrite.table(path, "orders", value_format="protobuf", **given) as table:
        table = pickle.loads(pickle.dumps(table.to_arrow()))
    a, b, c, d = table["value"].to_pylist()
    assert a == {"id": 1, "name": "x", "kind": "B", "none": None, "inner": None}
    assert d == {"id": 2, "name": "x", "kind": "A", "none": None, "inner": {"ok": True}}
    assert b is None and c is None
    assert [each.as_py() for each in table["_error"]][1:3] == [
        "value: a required field is missing, at its byte 2",
        "value: a symbol that the enum does not have, at its byte 0",
    ]


def test_commands_accept_the_decoding_options(
    schemas: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    made = message(schemas, "shop.Click")
    path = write(tmp_path / "logs", [(b"\x0a\x02a1", made(url="/x").SerializeToString(), [])])
    told = ["--topic", "orders", "--key-format", "protobuf", "--value-format", "protobuf"]
    for which in ("key", "value"):
        told += [f"--{which}-schema", str(schemas / "order.proto"), f"--{which}-message", "Click"]
    for command in ("dump", "read"):
        assert run([command, path, *told, "--json"]) == 0
        decoded = json.loads(capfd.readouterr().out.splitlines()[0])["decoded"]
        assert decoded == {"key": {"url": "a1"}, "value": {"url": "/x"}, "problem": None}
    to = tmp_path / "made"
    assert run(["table", path, *told, "--as", "parquet", "--to", str(to)]) == 0
    (file,) = to.glob("*/*.parquet")
    (row,) = pq.read_table(file).to_pylist()
    assert (row["key"], row["value"]) == ({"url": "a1"}, {"url": "/x"})


def test_schema_can_import_well_known_types(tmp_path: Path) -> None:
    fields = "confluent.type.Decimal price = 1 [(confluent.field_meta) = {doc: 'in cents'}];"
    fields += " google.type.Date day = 2; google.type.Money sum = 3; google.type.Month month = 4;"
    imports = "".join(f'import "{name}"; ' for name in KNOWN_PROTOS)
    (tmp_path / "5.proto").write_text(
        f'syntax = "proto3"; package shop; {imports}message Sale {{ {fields} }}'
    )
    (tmp_path / "orders-value.proto").write_bytes((tmp_path / "5.proto").read_bytes())
    value = b"\0\0\0\0\5\0" + b"\x0a\x06\x0a\x02\x04\xd2\x18\x02"
    value += b"\x12\x07\x08\xea\x0f\x10\x0b\x18\x17\x1a\x07\x0a\x03EUR\x10\x07\x20\x0b"
    path = write(tmp_path / "logs", [(b"a", value, [])])
    given: dict[str, Any] = {"value_format": "confluent", "schema_registry": str(tmp_path)}
    with lastwrite.table(path, "orders", **given) as table:
        assert table[b"a"] == {
            "price": {"value": b"\x04\xd2", "precision": 0, "scale": 2},
            "day": {"year": 2026, "month": 11, "day": 23},
            "sum": {"currency_code": "EUR", "units": 7, "nanos": 0},
            "month": "NOVEMBER",
        }


@pytest.mark.parametrize(
    "name", ["confluent/meta", "confluent/type/decimal", "confluent/type/variant"]
)
def test_bundled_confluent_messages_equal_the_clients(name: str, tmp_path: Path) -> None:
    clients = find_spec("confluent_kafka")
    assert clients is not None and clients.origin is not None
    theirs = Path(clients.origin).parent / "schema_registry" / f"{name}_pb2.py"
    if not theirs.is_file():
        pytest.skip("this release of confluent-kafka has it not")
    spec = spec_from_file_location(theirs.stem, theirs)
    assert spec is not None and spec.loader is not None
    loaded = module_from_spec(spec)
    spec.loader.exec_module(loaded)
    for file, text in KNOWN_PROTOS.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    schema = read_schema(str(tmp_path / f"{name}.proto"))
    ours = descriptor_pb2.FileDescriptorSet.FromString(schema.descriptors).file[-1]
    wanted = descriptor_pb2.FileDescriptorProto.FromString(loaded.DESCRIPTOR.serialized_pb)
    for of in ("message_type", "extension"):  # the compiler adds names for JSON
        told = [re.sub(r'\s*json_name: "\w+"', "", str(each)) for each in getattr(ours, of)]
        assert told == [str(each) for each in getattr(wanted, of)]
    assert ours.message_type
