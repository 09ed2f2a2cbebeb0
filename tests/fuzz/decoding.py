"""Targets for keys and values: Avro, JSON, Protobuf, and the schemas that describe them."""

from __future__ import annotations

import base64
import json
import random
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import pyarrow as pa

from lastwrite.decoding.avro import AvroProgram
from lastwrite.decoding.avro_schema import parse_avro, shape_of
from lastwrite.decoding.columns import Program
from lastwrite.decoding.frames import decode_frame, frames_of
from lastwrite.decoding.json_schema import parse_json_schema
from lastwrite.decoding.json_values import JsonProgram
from lastwrite.decoding.protobuf import ProtobufProgram
from lastwrite.decoding.protobuf_schema import ProtobufFile
from lastwrite.decoding.protobuf_schema import shape_of as protobuf_shape
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


# A FileDescriptorSet with a message that has a field of every type.
_DESCRIPTORS = base64.b64decode(
    "CuMDCgdtLnByb3RvGh9nb29nbGUvcHJvdG9idWYvdGltZXN0YW1wLnByb3RvIoIDCgFNEgwKAWEYASABKAVSAWES"
    "DAoBYhgCIAEoElIBYhIMCgFjGAMgASgEUgFjEgwKAWQYBCABKAhSAWQSEAoBZRgFIAEoDjICLkVSAWUSDAoBZhgG"
    "IAEoB1IBZhIOCgJnZxgHIAEoAVICZ2cSDAoBaBgIIAEoCVIBaBIMCgFpGAkgASgMUgFpEhAKAWoYCiADKANCAhAB"
    "UgFqEhAKAWsYCyADKAsyAi5NUgFrEhIKAWcYDCABKAoyBC5NLkdSAWcSFwoBbBgNIAMoCzIJLk0uTEVudHJ5UgFs"
    "Eg4KAW0YDiABKAlIAFIBbRISCgFuGA8gASgLMgIuTkgAUgFuEigKAXAYECABKAsyGi5nb29nbGUucHJvdG9idWYu"
    "VGltZXN0YW1wUgFwGh8KAUcSDAoBeBgBIAEoDVIBeBIMCgF5GAIgAygJUgF5GjQKBkxFbnRyeRIQCgNrZXkYASAB"
    "KAlSA2tleRIUCgV2YWx1ZRgCIAEoEVIFdmFsdWU6AjgBQgMKAW8iHwoBThIMCgF4GAEgAigGUgF4EgwKAXkYAiAB"
    "KAJSAXkqEQoBRRIFCgFBEAASBQoBQhAH"
)
_HAS_PROTOBUF = find_spec("google") is not None and find_spec("google.protobuf") is not None
_MESSAGES = [
    b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x10\t\x18\xff\xff\xff\xff\xff\xff\xff\xff"
    b"\xff\x01 \x01(\x075\t\x00\x00\x009\x00\x00\x00\x00\x00\x00\xf8?B\x02"
    b"\xc3\xa9J\x02\x00\xffR\r\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\xac\x02Z"
    b"\x02\x08\x02Z\x0eB\x01qz\t\t\x05\x00\x00\x00\x00\x00\x00\x00j\x05\n"
    b"\x01x\x10\x07r\x01x\x82\x01\r\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x10"
    b"\x07c\x08\x05\x12\x01ydz\x0e\t\x01\x00\x00\x00\x00\x00\x00\x00\x15\x00\x00"
    b" @",
    b"\xa2\x06\x02zz\xa3\x06\x08\x01\xa4\x06P\x05z\x0e\t\x01\x00\x00\x00\x00\x00"
    b"\x00\x00\x15\x00\x00 @",
    b"\x08\x05B\x03abc",
]


def targets() -> list[Target]:
    """The targets for all decoders of values."""
    avro = parse_avro(json.dumps(_AVRO))
    avro_program = AvroProgram(avro, avro, shape_of(avro))
    json_program = JsonProgram(parse_json_schema(json.dumps(_JSON)))
    return [
        *_protobuf_targets(),
        Target(
            "avro values",
            _drawn(_VALUES),
            _checked(avro_program),
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
            _drawn(_TEXTS),
            _checked(json_program),
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


def _protobuf_targets() -> list[Target]:
    return [
        Target(
            "protobuf values",
            _drawn(_MESSAGES),
            check_messages,
            tuple(
                f"decoding.protobuf_kernels:{name}"
                for name in (
                    "run read_varint read_tag past_field past_group one_message scalar timestamp "
                    "append_bytes"
                ).split()
            ),
        ),
        reader(
            "protobuf descriptors",
            lambda data: _HAS_PROTOBUF and protobuf_shape(ProtobufFile(data).message("M")),
            [_DESCRIPTORS],
            ["decoding.protobuf_schema:ProtobufFile.__init__"],
            share=0.2,
        ),
        reader(
            "confluent frames",
            check_frames,
            [b"\0\0\0\0\7\0", b"\1" + bytes(range(16)) + b"\4\0\x80\1", b"\0\0\0\0\7\6\2\4\6"],
            [
                "decoding.frames:frame_lengths",
                "decoding.frames:frames_of",
                "decoding.frames:decode_frame",
            ],
            share=0.2,
        ),
    ]


def _drawn(samples: list[bytes]) -> Any:
    """A damaged sample, and another intact one."""

    def make(rng: random.Random) -> tuple[bytes, Any]:
        data = rng.choice(samples)
        for _ in range(rng.choice([0, 1, 1, 2])):
            data = harm(rng, data, samples)
        return data, rng.choice(samples)

    return make


def _checked(program: Program) -> Any:
    return lambda data, other, rng: check_values(program, data, other)


@cache
def _protobuf_program() -> Program:
    message = ProtobufFile(_DESCRIPTORS).message("M")
    return ProtobufProgram(message, protobuf_shape(message))


def check_messages(data: bytes, other: bytes, rng: random.Random) -> str:
    return check_values(_protobuf_program(), data, other) if _HAS_PROTOBUF else READ


def check_frames(data: bytes) -> None:
    """Check that a value's frame does not depend on the values around it."""
    joined = np.frombuffer(data * 2, np.uint8)
    starts, ends = np.array([0, len(data)]), np.array([len(data), 2 * len(data)])
    for has_indexes in (False, True):
        lengths, which, found = frames_of(joined, starts, ends, has_indexes)
        assert lengths[0] == lengths[1] <= len(data) and len(set(which.tolist())) == len(found) <= 1
        if found:
            assert found == [decode_frame(data[: lengths[0]])]


def check_values(program: Program, data: bytes, other: bytes) -> str:
    """Check that a bad value becomes null with a reason, and that its neighbours do not change."""
    alone = program.decode(pa.array([other, other], pa.binary())).column
    joined = INPUT.put(other + data + other)
    ends = np.cumsum([0, len(other), len(data), len(other)]).astype(np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(joined)]
    column, bad = program.decode(pa.Array.from_buffers(pa.binary(), 3, buffers))
    column.validate(full=True)
    assert column.take(pa.array([0, 2])).equals(alone) and set(bad) <= {1}
    assert column[1].is_valid != (1 in bad)
    return REFUSED if bad else READ
