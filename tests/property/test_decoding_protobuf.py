"""Properties of decoding Protobuf: the values and errors of Protobuf's own library."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastwrite.decoding import protobuf_schema as schema
from lastwrite.decoding.protobuf import ProtobufProgram
from lastwrite.decoding.protobuf_schema import ProtobufFile, shape_of

pytest.importorskip("google.protobuf", reason="pip install 'lastwrite[protobuf]'")

from google.protobuf import message_factory  # noqa: E402
from google.protobuf.descriptor_pb2 import (  # noqa: E402
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)
from google.protobuf.message import DecodeError  # noqa: E402
from google.protobuf.timestamp_pb2 import Timestamp  # noqa: E402

KEYS = [schema.INT32, schema.UINT64, schema.SINT64, schema.FIXED32, schema.BOOL, schema.STRING]
SCALARS = [each for each in range(1, 19) if each not in (schema.GROUP, schema.MESSAGE)]
NUMBERS = [0, 7, -3, 2_000_000_000]  # numbers of the enum; the first is the default


class Bad(Exception):
    """A value that Protobuf accepts but columns cannot store."""


@st.composite
def files(
    draw: st.DrawFn, syntax: str, has_enums: bool = True, has_maps: bool = True
) -> FileDescriptorProto:
    """A schema file with a message ``M``, whose fields have any type and may be nested."""
    file = FileDescriptorProto(name="drawn.proto", package="p", syntax=syntax)
    enum = file.enum_type.add(name="E")
    for n, number in enumerate(NUMBERS):
        enum.value.add(name=f"S{n}", number=number)
    drawn = Drawing(file, (f"I{n}" for n in itertools.count()), syntax, has_enums, has_maps)
    file.message_type.add().CopyFrom(draw(messages(drawn, "M", 2)))
    file.dependency.append("google/protobuf/timestamp.proto")
    return file


class Drawing(NamedTuple):
    """The state of drawing a schema file. ``names`` yields the names of further messages."""

    file: FileDescriptorProto
    names: Iterator[str]
    syntax: str
    has_enums: bool
    has_maps: bool


@st.composite
def messages(draw: st.DrawFn, drawing: Drawing, name: str, depth: int) -> DescriptorProto:
    file, syntax = drawing.file, drawing.syntax
    message = DescriptorProto(name=name)
    kinds = [each for each in SCALARS if drawing.has_enums or each != schema.ENUM]
    shapes = ["one", "one", "many", "oneof"] + ["message"] * (depth > 0)
    shapes += ["map"] * (depth > 0 and drawing.has_maps)
    numbers = draw(st.lists(st.integers(1, 40), min_size=1, max_size=5, unique=True))
    has_oneof = draw(st.booleans())
    for number in numbers:
        field = message.field.add(name=f"f{number}", number=number)
        shape = draw(st.sampled_from(shapes))
        field.type = draw(st.sampled_from(kinds))
        if shape == "message" or (shape != "map" and depth > 0 and draw(st.integers(0, 3)) == 0):
            field.type = schema.MESSAGE
            if draw(st.integers(0, 3)) == 0:
                field.type_name = ".google.protobuf.Timestamp"
            else:
                inner = next(drawing.names)
                file.message_type.add().CopyFrom(draw(messages(drawing, inner, depth - 1)))
                field.type_name = f".p.{inner}"
                if syntax == "proto2" and draw(st.booleans()):
                    field.type = schema.GROUP
        field.label = FieldDescriptorProto.LABEL_OPTIONAL
        if shape == "many":
            field.label = FieldDescriptorProto.LABEL_REPEATED
            if field.type not in (*_DELIMITED, schema.GROUP):
                field.options.packed = draw(st.booleans())
        elif shape == "oneof" and has_oneof:
            if not message.oneof_decl:
                message.oneof_decl.add(name="o")
            field.oneof_index = 0
        elif shape == "map":
            entry = message.nested_type.add(name=f"F{number}Entry")
            entry.options.map_entry = True
            key = draw(st.sampled_from(KEYS))
            optional = FieldDescriptorProto.LABEL_OPTIONAL
            entry.field.add(name="key", number=1, type=key, label=optional)
            value = entry.field.add(name="value", number=2, type=field.type, label=optional)
            if field.type == schema.ENUM:
                value.type_name = ".p.E"
            field.type, field.type_name = schema.MESSAGE, f"{_scope(name)}.F{number}Entry"
            field.label = FieldDescriptorProto.LABEL_REPEATED
        elif syntax == "proto2" and draw(st.integers(0, 4)) == 0:
            field.label = FieldDescriptorProto.LABEL_REQUIRED
        elif syntax == "proto2" and field.type in _DEFAULTS and draw(st.booleans()):
            field.default_value = _DEFAULTS[field.type]
        if field.type == schema.ENUM:
            field.type_name = ".p.E"
    for field in message.field:
        if syntax == "proto3" and _may_be_optional(field) and draw(st.booleans()):
            field.proto3_optional = True
            field.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{field.name}")
    return message


_DELIMITED = (schema.STRING, schema.BYTES, schema.MESSAGE)
_DEFAULTS = {
    schema.INT64: "-5",
    schema.UINT64: str(2**64 - 1),
    schema.DOUBLE: "-inf",
    schema.STRING: "é",
    schema.BOOL: "true",
    schema.ENUM: "S2",
}


def _scope(name: str) -> str:
    return f".p.{name}"


def _may_be_optional(field: Any) -> bool:
    is_one = field.label == FieldDescriptorProto.LABEL_OPTIONAL
    return is_one and field.type != schema.MESSAGE and not field.HasField("oneof_index")


def descriptors(file: FileDescriptorProto) -> bytes:
    return FileDescriptorSet(file=[file]).SerializeToString()


def values(message: Any) -> st.SearchStrategy[bytes]:
    """Encoded messages: fields in any order and number, which are merged when read."""
    return st.lists(fields_of(message), max_size=8).map(b"".join)


def fields_of(message: Any) -> st.SearchStrategy[bytes]:
    return st.sampled_from(list(message.fields)).flatmap(field_bytes)


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(found) + bytes([value])


def field_bytes(field: Any) -> st.SearchStrategy[bytes]:
    number, kind = field.number, field.type
    if kind == schema.GROUP:
        begin, end = varint(number << 3 | 3), varint(number << 3 | 4)
        return values(field.message_type).map(lambda inner: begin + inner + end)
    if kind == schema.MESSAGE:
        inner = values(field.message_type)
        return inner.map(lambda inner: varint(number << 3 | 2) + varint(len(inner)) + inner)
    if kind in _DELIMITED:
        texts = st.text(max_size=9).map(str.encode) if kind == schema.STRING else st.binary()
        return texts.map(lambda text: varint(number << 3 | 2) + varint(len(text)) + text)
    one = scalars(kind)
    wire = {**dict.fromkeys(_FIXED32, 5), **dict.fromkeys(_FIXED64, 1)}.get(kind, 0)
    alone = one.map(lambda value: varint(number << 3 | wire) + value)
    if not field.is_repeated:
        return alone
    many = st.lists(one, max_size=4).map(b"".join)
    return alone | many.map(lambda some: varint(number << 3 | 2) + varint(len(some)) + some)


_FIXED32 = (schema.FLOAT, schema.FIXED32, schema.SFIXED32)
_FIXED64 = (schema.DOUBLE, schema.FIXED64, schema.SFIXED64)


def scalars(kind: int) -> st.SearchStrategy[bytes]:
    if kind in _FIXED32:
        return st.binary(min_size=4, max_size=4)
    if kind in _FIXED64:
        return st.binary(min_size=8, max_size=8)
    if kind == schema.ENUM:
        return st.sampled_from(NUMBERS).map(varint)
    return (st.integers(-(1 << 63), (1 << 64) - 1) | st.integers(-3, 300)).map(varint)


def expected(message: Any) -> dict[str, Any]:
    """The column's value for a message that Protobuf's library has read."""
    return {field.name: _expected(message, field) for field in message.DESCRIPTOR.fields}


def _expected(message: Any, field: Any) -> Any:
    held = getattr(message, field.name)
    if schema.is_map(field):
        value = field.message_type.fields_by_name["value"]
        return sorted(((key, _one(value, held[key])) for key in held), key=repr)
    if field.is_repeated:
        return [_one(field, each) for each in held]
    is_default = field.has_default_value and not field.containing_oneof
    if field.has_presence and not message.HasField(field.name) and not is_default:
        return None
    return _one(field, held)


def _one(field: Any, value: Any) -> Any:
    if field.type == schema.ENUM:
        if value not in NUMBERS:
            raise Bad
        return f"S{NUMBERS.index(value)}"
    if isinstance(value, Timestamp) or field.message_type == Timestamp.DESCRIPTOR:
        return _micros(value)
    if field.type in (schema.MESSAGE, schema.GROUP):
        if field.message_type.full_name == schema.TIMESTAMP:
            return _micros(value)
        return expected(value)
    return value


def _micros(value: Any) -> int:
    if (
        not -62_135_596_800 <= value.seconds <= 253_402_300_799
        or not 0 <= value.nanos < 1_000_000_000
    ):
        raise Bad
    return int(value.seconds * 1_000_000 + value.nanos // 1000)


def by_library(file: ProtobufFile, data: bytes) -> Any:
    """The value by Protobuf's library.

    Raises:
        Bad: The library cannot read the message, or a column cannot store its value.
    """
    message = message_factory.GetMessageClass(file.message("M"))()
    try:
        message.ParseFromString(data)
        if not message.IsInitialized():
            raise Bad
        return expected(message)
    except (DecodeError, UnicodeDecodeError) as error:
        raise Bad from error


def read(file: ProtobufFile, data: list[bytes | None], names: list[str] | None = None) -> Any:
    message = file.message("M")
    shape = shape_of(message)
    if names is not None:
        kept = tuple(each for each in shape.fields if each.name in names)
        shape = type(shape)(shape.kind, fields=kept)
    column, bad = ProtobufProgram(message, shape).decode(pa.array(data, pa.binary()))
    column.validate(full=True)
    return [_plain(each) for each in column.cast(_numbers(column.type)).to_pylist()], bad


def _numbers(type: pa.DataType) -> pa.DataType:
    """The type with timestamps as integers, because Python's datetime ends with the year 9999."""
    if pa.types.is_timestamp(type):
        return pa.int64()
    if pa.types.is_struct(type):
        return pa.struct([each.with_type(_numbers(each.type)) for each in type])
    if pa.types.is_map(type):
        return pa.map_(_numbers(type.key_type), _numbers(type.item_type))
    if pa.types.is_list(type):
        return pa.list_(type.value_field.with_type(_numbers(type.value_type)))
    return type


def _plain(value: Any) -> Any:
    """The value with maps as sorted pairs.

    Of two entries with the same key, the later one remains.
    """
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        if value and isinstance(value[0], tuple):
            last = {key: _plain(each) for key, each in value}
            return sorted(last.items(), key=repr)
        return [_plain(each) for each in value]
    return value


def same(one: Any, other: Any) -> bool:
    """Whether both are equal. NaN equals NaN, and a Decimal the integer of its value."""
    one_text, other_text = (
        repr(each).replace("Decimal('", "").replace("')", "") for each in (one, other)
    )
    return bool(one == other or one_text == other_text)


def is_of_a_piece(why: str) -> bool:
    """Whether the reason is a difference from Protobuf's library for messages in several pieces.

    Lastwrite checks required fields and time ranges in each piece, the library after merging.
    """
    return "a required field is missing" in why or "a number that is out of range" in why


SYNTAX = st.sampled_from(["proto2", "proto3"])


@settings(max_examples=60)
@given(st.data())
def test_values_that_the_library_reads_are_read(data: st.DataObject) -> None:
    file = ProtobufFile(descriptors(data.draw(SYNTAX.flatmap(files))))
    some = data.draw(st.lists(values(file.message("M")), max_size=4))
    found, bad = read(file, [*some])
    for n, each in enumerate(some):
        try:
            wanted = by_library(file, each)
        except Bad:
            assert n in bad and found[n] is None
            continue
        if is_of_a_piece(bad.get(n, "")):
            continue
        assert n not in bad, (each, bad[n])
        assert same(found[n], wanted), (found[n], wanted)


@settings(max_examples=60)
@given(st.data())
def test_damaged_value_is_bad_if_the_library_refuses_it(data: st.DataObject) -> None:
    # Lastwrite rejects an unknown number of a closed enum, which the library treats as an unknown
    # field. Python's library also drops a map entry that contains an unknown field, unlike all
    # others.
    syntax = data.draw(SYNTAX)
    drawn = data.draw(files(syntax, has_enums=syntax == "proto3", has_maps=False))
    file = ProtobufFile(descriptors(drawn))
    whole = data.draw(values(file.message("M")))
    at = data.draw(st.integers(0, len(whole)))
    other = data.draw(st.binary(max_size=12))
    harmed = whole[:at] + other + whole[at + data.draw(st.integers(0, 3)) :]
    found, bad = read(file, [whole, harmed, whole])
    try:
        wanted = by_library(file, harmed)
    except Bad:
        assert 1 in bad and found[1] is None
    else:
        if not is_of_a_piece(bad.get(1, "")):
            assert 1 not in bad, bad
            assert same(found[1], wanted), (found[1], wanted)
    assert (0 in bad) == (2 in bad) and same(found[0], found[2])


def test_timestamp_in_several_pieces_is_merged() -> None:
    """A negative ``nanos`` before a second piece was once read as 999,999 microseconds."""
    drawn = FileDescriptorProto(name="t.proto", package="p", syntax="proto3")
    drawn.dependency.append("google/protobuf/timestamp.proto")
    drawn.message_type.add(name="M").field.add(
        name="f1", number=1, label=1, type=schema.MESSAGE, type_name=".google.protobuf.Timestamp"
    )
    file = ProtobufFile(descriptors(drawn))

    def value(*pieces: tuple[int, int]) -> bytes:
        inner = [b"\x08" + varint(s) + b"\x10" + varint(nanos) for s, nanos in pieces]
        return b"".join(b"\n" + varint(len(each)) + each for each in inner)

    first, last = -62_135_596_800, 253_402_300_799  # years 1 to 9999
    good = [(0, 0), (-1, 999_999_999), (last, 999_999_999), (first, 0), (5, 1)]
    found, bad = read(file, [value(each) for each in good])
    assert not bad and [each["f1"] for each in found] == [
        seconds * 1_000_000 + nanos // 1000 for seconds, nanos in good
    ]
    late = [value((0, -1)), value((0, -1), (0, 0)), value((0, 10**9))]
    late += [value((last + 1, 0)), value((first - 1, 0))]
    found, bad = read(file, late)
    assert found == [None] * 5 and all("out of range" in bad[n] for n in range(5))
    halves = b"\n\x02\x08\x05" + b"\n\x03\x10" + varint(7000)
    assert read(file, [halves]) == ([by_library(file, halves)], {})


def test_last_number_of_a_repeated_enum_field_counts() -> None:
    """Unknown numbers before it, or in a dropped member of a oneof, do not matter."""
    drawn = FileDescriptorProto(name="e.proto", package="p", syntax="proto3")
    enum = drawn.enum_type.add(name="E")
    for n, number in enumerate(NUMBERS):
        enum.value.add(name=f"S{n}", number=number)
    message = drawn.message_type.add(name="M")
    message.oneof_decl.add(name="o")
    for number in range(1, 4):
        field = message.field.add(name=f"f{number}", number=number, label=1, type=schema.ENUM)
        field.type_name = ".p.E"
        if number > 1:
            field.oneof_index = 0
    file = ProtobufFile(descriptors(drawn))

    def value(*fields: tuple[int, int]) -> bytes:
        return b"".join(varint(number << 3) + varint(symbol) for number, symbol in fields)

    good = [((1, 7), (1, -3)), ((1, 5), (1, 7)), ((1, 5), (2, 7), (1, 0))]
    good += [((2, 5), (3, 7)), ((2, 5), (3, 7), (2, -3)), ((2, 5), (2, 5), (2, 7))]
    found, bad = read(file, [value(*each) for each in good])
    assert not bad and found == [by_library(file, value(*each)) for each in good]
    late = [((1, 7), (1, 5)), ((1, 5),), ((2, 5), (3, 7), (2, 5)), ((1, 5), (1, 7), (1, 6))]
    found, bad = read(file, [value(*each) for each in late])
    assert found == [None] * len(late) and len(bad) == len(late)
    for each in late:
        with pytest.raises(Bad):
            by_library(file, value(*each))


@settings(max_examples=30)
@given(st.data())
def test_choice_of_fields_does_not_change_their_values(data: st.DataObject) -> None:
    file = ProtobufFile(descriptors(data.draw(SYNTAX.flatmap(files))))
    message = file.message("M")
    some = data.draw(st.lists(values(message), min_size=1, max_size=4))
    names = data.draw(st.lists(st.sampled_from([each.name for each in message.fields]), min_size=1))
    whole, bad = read(file, [*some])
    part, _ = read(file, [*some], names)
    for n, value in enumerate(whole):
        if n not in bad:
            assert same(part[n], {name: each for name, each in value.items() if name in names})
