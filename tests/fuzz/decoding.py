"""Keys and values: Avro, JSON, and the schemas that describe them."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pyarrow as pa

from lastwrite.decoding.avro import AvroProgram
from lastwrite.decoding.avro_schema import parse_avro, shape_of
from lastwrite.decoding.columns import Program
from lastwrite.decoding.json_schema import parse_json_schema
from lastwrite.decoding.json_values import JsonProgram
from tests.fuzz.mutate import harm
from tests.fuzz.target import INPUT, READ, REFUSED, Target, reader

_AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": "string", "aliases": ["title"]},
        {"name": "kind", "type": {"type": "enum", "name": "K", "symbols": ["A", "B"]}},
        {"name": "note", "type": ["null", "string", "double", "boolean"], "default": None},
        {"name": "hash", "type": {"type": "fixed", "name": "H", "size": 3}},
        {"name": "sums", "type": {"type": "array", "items": {"type": "map", "values": "int"}}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "rate", "type": "float"},
    ],
}
_VALUES = [
    b"\x02\x04ab\x00\x00abc\x02\x02\x02k\x10\x00\x00\x02\x05\x80\x01\0\0\0\0",
    b"\x80\x80\x01\x06\xc3\xa9x\x02\x02\x02nxyz"
    b"\x01\x0a\x02\x02q\x01\x00\x00\x04\xff\x00\x02\0\0\0@",
    b"\x01\x00\x02\x04\0\0\0\0\0\0\0@aaa\x00\x00\x03\xff\xff\x7f\x7f",
]
_JSON = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "name": {"type": "string"},
        "rate": {"type": "number"},
        "ok": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "sums": {"type": "object", "additionalProperties": {"type": "integer"}},
        "at": {"type": "object", "properties": {"x": {"type": "number"}}},
    },
}
_TEXTS = [
    b'{"id":1,"name":"a\\u00e9\\ud83d\\ude00","rate":1e23,"ok":true,"tags":["x","y"]}',
    b'{"sums":{"a":1,"b":-2},"at":{"x":0.1,"y":[{}]},"other":[1,null,{"id":3}],"n\\u0061me":"z"}',
    b' {"id" : 9223372036854775807 , "tags" : [ ] , "at" : null, "id":5, "tags":["q"]} ',
]


def targets() -> list[Target]:
    """All decoders of values."""
    avro = parse_avro(json.dumps(_AVRO))
    avro_program = AvroProgram(avro, avro, shape_of(avro))
    json_program = JsonProgram(parse_json_schema(json.dumps(_JSON)))

    def values(samples: list[bytes]) -> Any:
        def make(rng: random.Random) -> tuple[bytes, Any]:
            data = rng.choice(samples)
            for _ in range(rng.choice([0, 1, 1, 2])):
                data = harm(rng, data, samples)
            return data, rng.choice(samples)

        return make

    def check(program: Program) -> Any:
        return lambda data, other, rng: check_values(program, data, other)

    return [
        Target(
            "avro values",
            values(_VALUES),
            check(avro_program),
            (
                "decoding.avro_kernels:read_number",
                "decoding.avro_kernels:words_of",
                "decoding.avro_kernels:run",
                "decoding.avro_kernels:one_value",
                "decoding.slot_kernels:set_bytes",
                "decoding.slot_kernels:is_utf8",
            ),
        ),
        Target(
            "json values",
            values(_TEXTS),
            check(json_program),
            tuple(
                f"decoding.json_kernels:{name}"
                for name in (
                    "run past_spaces one_text field is_same text digits unescaped word number"
                ).split()
            ),
        ),
        reader(
            "avro schemas",
            lambda data: shape_of(parse_avro(data.decode("utf-8", "replace"))),
            [json.dumps(_AVRO).encode()],
            ["decoding.avro_schema:parse_avro"],
            share=0.2,
        ),
        reader(
            "json schemas",
            lambda data: parse_json_schema(data.decode("utf-8", "replace")),
            [json.dumps(_JSON).encode()],
            ["decoding.json_schema:parse_json_schema"],
            share=0.2,
        ),
    ]


def check_values(program: Program, data: bytes, other: bytes) -> str:
    """A bad value is null with a reason, and its neighbours are as they are without it."""
    alone = program.decode(pa.array([other, other], pa.binary())).column
    joined = INPUT.put(other + data + other)
    ends = np.cumsum([0, len(other), len(data), len(other)]).astype(np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(joined)]
    column, bad = program.decode(pa.Array.from_buffers(pa.binary(), 3, buffers))
    column.validate(full=True)
    assert column.take(pa.array([0, 2])).equals(alone) and set(bad) <= {1}
    assert column[1].is_valid != (1 in bad)
    return REFUSED if bad else READ
