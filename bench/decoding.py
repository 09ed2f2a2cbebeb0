"""Decoding values to Arrow columns, compared with fastavro, json and Protobuf's library.

``python -m bench.decoding [--values 200000] [--runs 5]`` prints processor time for a value.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import fastavro
import pyarrow as pa
from google.protobuf import message_factory

from lastwrite.decoding.avro import AvroProgram
from lastwrite.decoding.avro_schema import parse_avro, shape_of
from lastwrite.decoding.columns import Program
from lastwrite.decoding.json_schema import parse_json_schema
from lastwrite.decoding.json_values import JsonProgram
from lastwrite.decoding.protobuf import ProtobufProgram
from lastwrite.decoding.protobuf_schema import ProtobufFile
from lastwrite.decoding.protobuf_schema import shape_of as protobuf_shape
from lastwrite.rows.schemas import read_schema

AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": "string"},
        {"name": "amount", "type": "double"},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B", "C"]}},
        {"name": "note", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
    ],
}
_TEXT, _WHOLE = {"type": "string"}, {"type": "integer"}
JSON = {
    "type": "object",
    "properties": {
        "id": _WHOLE,
        "name": _TEXT,
        "amount": {"type": "number"},
        "kind": _TEXT,
        "note": {"type": ["null", "string"]},
        "at": _WHOLE,
        "ok": {"type": "boolean"},
        "tags": {"type": "array", "items": _TEXT},
        "address": {"type": "object", "properties": {"city": _TEXT, "zip": _TEXT}},
    },
}
PROTO = """
syntax = "proto3";
enum Kind { A = 0; B = 1; C = 2; }
message Order {
  int64 id = 1;
  string name = 2;
  double amount = 3;
  Kind kind = 4;
  optional string note = 5;
  int64 at = 6;
  repeated string tags = 7;
}
"""


def orders(count: int) -> list[dict[str, Any]]:
    """Random orders, the same at each call."""
    rng = random.Random(7)
    return [
        {
            "id": n * 7919,
            "name": f"customer-{rng.randrange(10_000)}",
            "amount": round(rng.random() * 100, 2),
            "kind": rng.choice("ABC"),
            "note": None if n % 3 else f"note {n}",
            "at": 1_700_000_000_000 + n,
            "tags": [f"x{rng.randrange(9)}" for _ in range(rng.randrange(4))],
        }
        for n in range(count)
    ]


def seconds(work: Callable[[], object], runs: int) -> float:
    """The median processor time of a call in seconds."""
    found = []
    for _ in range(runs):
        begin = time.process_time()
        work()
        found.append(time.process_time() - begin)
    return median(found)


def compare(
    name: str, values: list[bytes], program: Program, read: Callable[[bytes], object], runs: int
) -> None:
    """Time one decoder and its peer, and print a line."""
    column = pa.array(values, pa.binary())
    program.decode(column.slice(0, 10))  # compiles or loads the kernel
    ours = seconds(lambda: program.decode(column), runs)
    theirs = seconds(lambda: pa.Table.from_pylist([read(value) for value in values]), runs)
    size, each = sum(map(len, values)) / len(values), 1e6 / len(values)
    print(
        f"{name}: {size:.0f} bytes a value, ours {ours * each:.2f} us, theirs "
        f"{theirs * each:.2f} us, {theirs / ours:.1f} times; load {os.getloadavg()[0]:.1f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--values", type=int, default=200_000)
    parser.add_argument("--runs", type=int, default=5)
    asked = parser.parse_args()
    drawn = orders(asked.values)
    schema = fastavro.parse_schema(AVRO)

    def written(order: dict[str, Any]) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, order)
        return out.getvalue()

    more = {"ok": True, "address": {"city": "Köln", "zip": "50667"}}
    type = parse_avro(json.dumps(AVRO))
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "order.proto").write_text(PROTO)
        order_type = ProtobufFile(read_schema(f"{folder}/order.proto").descriptors).message("")
    made: Any = message_factory.GetMessageClass(order_type)
    names = [field.name for field in order_type.fields]

    def attributes(value: bytes) -> dict[str, Any]:
        message = made.FromString(value)
        found = {name: getattr(message, name) for name in names}
        return found | {"tags": list(message.tags)}

    sides: dict[str, tuple[list[bytes], Any, Callable[[bytes], object]]] = {
        "avro": (
            [written(order) for order in drawn],
            AvroProgram(type, type, shape_of(type)),
            lambda value: fastavro.schemaless_reader(io.BytesIO(value), schema),
        ),
        "json": (
            [json.dumps(order | more).encode() for order in drawn],
            JsonProgram(parse_json_schema(json.dumps(JSON))),
            json.loads,
        ),
        "protobuf": (
            [
                made(**order | {"kind": "ABC".index(order["kind"])}).SerializeToString()
                for order in drawn
            ],
            ProtobufProgram(order_type, protobuf_shape(order_type)),
            attributes,
        ),
    }
    for name, (values, program, read) in sides.items():
        compare(name, values, program, read, asked.runs)


if __name__ == "__main__":
    main()
