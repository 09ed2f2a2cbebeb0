"""Tests of Protobuf's wire format: what is decoded, what is refused, and what stays byte for
byte.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest

from lastwrite.errors import CorruptLog, TruncatedLog
from lastwrite.pulsar.format import entry, protobuf
from lastwrite.pulsar.format.protobuf import (
    BOOL,
    BYTES,
    INT32,
    INT64,
    STRING,
    UINT32,
    UINT64,
    ProtoField,
    ProtoMessage,
    Span,
    decode_varint,
    inserted,
    put,
    put_varint,
    signed,
    spans,
    without,
)


def fields(data: bytes, at: int = 0) -> list[tuple[int, int | bytes]]:
    """The fields of a message: varints as unsigned numbers, all else as bytes."""
    return [
        (
            one.number,
            data[one.value : one.end]
            if one.wire_type
            else decode_varint(data, one.value, one.end)[0],
        )
        for one in spans(data, at)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner(ProtoMessage):
    name: Annotated[str, ProtoField(1, STRING, required=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer(ProtoMessage):
    number: Annotated[int, ProtoField(1, INT64, required=True)]
    small: Annotated[int | None, ProtoField(2, INT32)] = None
    flag: Annotated[bool | None, ProtoField(3, BOOL)] = None
    many: Annotated[tuple[int, ...], ProtoField(4, INT32, repeated=True)] = ()
    data: Annotated[bytes | None, ProtoField(5, BYTES)] = None
    inner: Annotated[Inner | None, ProtoField(6, Inner)] = None
    inners: Annotated[tuple[Inner, ...], ProtoField(7, Inner, repeated=True)] = ()
    size: Annotated[int | None, ProtoField(8, UINT32)] = None
    big: Annotated[int | None, ProtoField(9, UINT64)] = None


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "00"),
        (127, "7f"),
        (128, "8001"),
        (300, "ac02"),
        (1_700_000_000_000, "80d095ffbc31"),
        (-1, "ffffffffffffffffff01"),
        ((1 << 64) - 1, "ffffffffffffffffff01"),
        (-(1 << 63), "80808080808080808001"),
    ],
)
def test_varints_round_trip(number: int, text: str) -> None:
    data = bytes.fromhex(text)
    assert put_varint(number) == data
    value, end = decode_varint(data, 0, len(data))
    assert end == len(data) and number in (value, signed(value))
    for cut in range(len(data)):
        with pytest.raises(TruncatedLog):
            decode_varint(data, 0, cut)


def test_invalid_varints_are_refused() -> None:
    with pytest.raises(CorruptLog, match="longer than 10"):
        decode_varint(b"\xff" * 10 + b"\x01", 0, 11)
    assert decode_varint(b"\xff" * 9 + b"\x7f", 0, 10) == (
        (1 << 64) - 1,
        10,
    )  # bits above 64 are cut off
    with pytest.raises(ValueError, match="64 bits"):
        put_varint(1 << 64)


def test_fields_are_found_with_their_positions() -> None:
    data = (
        put(1, 10)
        + put(2, b"k1")
        + bytes([3 << 3 | 1])
        + b"12345678"
        + bytes([4 << 3 | 5])
        + b"1234"
        + put(1, -1)
    )
    assert fields(data) == [(1, 10), (2, b"k1"), (3, b"12345678"), (4, b"1234"), (1, (1 << 64) - 1)]
    assert spans(data)[1] == Span(number=2, wire_type=2, start=2, value=4, end=6)
    assert without(data, 1, 3) == put(2, b"k1") + bytes([4 << 3 | 5]) + b"1234"
    assert inserted(put(1, 1) + put(5, 1), 3, put(3, 1)) == put(1, 1) + put(3, 1) + put(5, 1)
    assert inserted(b"", 3, put(3, 1)) == put(3, 1)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("08", TruncatedLog),
        ("0aff", TruncatedLog),
        ("0a05313233", TruncatedLog),
        ("0affffffffffffffffff01", TruncatedLog),  # a length of 2^64 - 1
        ("0931", TruncatedLog),
        ("0d31", TruncatedLog),
        ("0b", CorruptLog),
        ("0c", CorruptLog),
        ("0e", CorruptLog),
        ("0f", CorruptLog),
        ("0001", CorruptLog),
        ("808080801000", CorruptLog),  # field 2^29
        ("08" + "ff" * 10 + "01", CorruptLog),
    ],
)
def test_malformed_fields_are_refused(text: str, error: type[CorruptLog]) -> None:
    with pytest.raises(error):
        spans(bytes.fromhex(text))


def test_error_names_the_byte() -> None:
    with pytest.raises(CorruptLog) as raised:
        fields(b"??" + put(1, 1) + b"\x0f", 2)
    assert raised.value.at == 4


def test_message_round_trips() -> None:
    value = Outer(
        number=-5,
        small=-1,
        flag=False,
        many=(1, -2, 3),
        data=b"",
        inner=Inner(name="a"),
        inners=(Inner(name="b"), Inner(name="ü")),
        size=(1 << 32) - 1,
        big=(1 << 64) - 1,
    )
    assert Outer.decode(value.encode()) == value
    assert Outer.decode(b"??" + value.encode() + b"!", 2, 2 + len(value.encode())) == value
    assert Outer(number=0).encode() == bytes.fromhex("0800")


def test_unknown_fields_are_kept() -> None:
    data = put(50, b"x") + put(1, b"not a number") + put(1, 3) + put(51, 7) + put(1, 4)
    found = Outer.decode(data)
    assert found.number == 4
    assert found.unknown == put(50, b"x") + put(1, b"not a number") + put(51, 7)
    assert Outer.decode(found.encode()) == found


def test_repeated_numbers_may_be_packed() -> None:
    packed = b"".join(put_varint(n) for n in (1, -2, 300))
    assert Outer.decode(put(1, 0) + put(4, 9) + put(4, packed)).many == (9, 1, -2, 300)
    with pytest.raises(TruncatedLog):
        Outer.decode(put(1, 0) + put(4, packed[:-1]))


def test_32_bit_numbers_keep_their_low_half() -> None:
    assert Outer.decode(put(1, 0) + put(2, (5 << 32) | 7)).small == 7
    assert Outer.decode(put(1, 0) + put(2, 0xFFFF_FFFF)).small == -1
    assert Outer.decode(put(1, 0) + put(8, -1)).size == 0xFFFF_FFFF


def test_invalid_utf8_is_replaced() -> None:
    assert Inner.decode(put(1, b"\xff")).name == "�"


def test_missing_required_field_is_named() -> None:
    with pytest.raises(CorruptLog, match="the field number of Outer is missing"):
        Outer.decode(b"")
    with pytest.raises(CorruptLog, match="the field name of Inner is missing"):
        Outer.decode(put(1, 1) + put(6, b""))


def test_message_table_without_unique_field_numbers_is_refused() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Twice(ProtoMessage):
        one: Annotated[int | None, ProtoField(1, INT32)] = None
        other: Annotated[int | None, ProtoField(1, INT32)] = None

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Nowhere(ProtoMessage):
        one: int = 0

    for table in (Twice, Nowhere):
        with pytest.raises(TypeError, match="has no field number"):
            protobuf._table(table)


def test_tables_of_messages_have_unique_field_numbers() -> None:
    assert len(protobuf._table(entry.Metadata)) == 30 and 10 not in protobuf._table(entry.Metadata)
    assert sorted(protobuf._table(entry.SingleMetadata)) == list(range(1, 11))
