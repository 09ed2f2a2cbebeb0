"""Protocol Buffers' wire format, and messages as tables that run.

A message is fields one behind another, each a *tag* and a value. The tag is a varint: field number
<< 3 | wire type. ``08 0a`` is field 1, wire type 0 (varint), 10; ``12 02 6b 31`` is field 2, wire
type 2 (length, then bytes), "k1". Then:

- A varint has seven bits a byte, the lowest first, bit 7 on all but the last; ten bytes at most, of
  which 64 bits count. Negative numbers of type int32 and int64 are 64-bit two's complement, and so
  take ten bytes.
- Wire types 1 and 5 are 8 and 4 bytes as they lie; nothing of Pulsar's has them today, so they are
  unknown fields. Types 3, 4, 6, 7 and field number 0 are damage.
- Of a field that is there twice the last counts, unless it is *repeated*; then all do, in their
  order. Repeated numbers lie one by one, or *packed*: one value of wire type 2 that is varints one
  behind another.
- A field whose number we know, of a wire type that is not its own, is an unknown field, as in
  Pulsar's own reader.

A class lists its fields with their number and kind::

    class KeyValue(Message):
        key:   Annotated[str, Field(1, STRING, required=True)]
        value: Annotated[str, Field(2, STRING, required=True)]

and decodes, encodes and keeps what it does not know. Absent is None, or () where repeated. Lengths
are claims: bounds come first, and nothing is allocated by a claim. This is the slow reader; the
kernels read what compaction needs.

Source: Protocol Buffers' encoding guide; Pulsar 4.2.4, LightProto; docs/formats/pulsar.md,
"Protocol Buffers".
"""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from enum import Enum
from typing import Annotated, Any, NamedTuple, Self, get_args, get_origin, get_type_hints

from lastwrite.encoding.layout import Buffer
from lastwrite.errors import CorruptLog, TruncatedLog

VARINT = 0
FIXED64 = 1
BYTES_OF_LENGTH = 2
FIXED32 = 5

MAX_VARINT_BYTES = 10
MAX_FIELD_NUMBER = (1 << 29) - 1
_U64 = (1 << 64) - 1


class Span(NamedTuple):
    """Where a field lies: ``start`` of its tag, ``value``, and ``end`` of the value."""

    number: int
    wire_type: int
    start: int
    value: int
    end: int


def decode_varint(data: Buffer, at: int, end: int) -> tuple[int, int]:
    """The unsigned 64-bit number at byte ``at``, and the position behind it; ``end`` is where
    readable bytes end.

    Raises:
        TruncatedLog: ``end`` comes before the last byte.
        CorruptLog: a tenth byte that says that one more follows.
    """
    value = 0
    for place in range(MAX_VARINT_BYTES):
        if at + place >= end:
            raise TruncatedLog("varint cut short", at)
        byte = int(data[at + place])
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value & _U64, at + place + 1
    raise CorruptLog(f"varint longer than {MAX_VARINT_BYTES} bytes", at)


def put_varint(value: int) -> bytes:
    """The bytes of a number of -2^63 to 2^64 - 1; any other is a ``ValueError``."""
    if not -(1 << 63) <= value <= _U64:
        raise ValueError(f"{value} does not fit 64 bits")
    value &= _U64
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def signed(value: int) -> int:
    """An unsigned 64-bit number, as a varint gives it, as a signed one."""
    return value - (1 << 64) if value >> 63 else value


def spans(data: Buffer, at: int = 0, end: int | None = None) -> list[Span]:
    """Where the fields of the message ``data[at:end]`` lie, one behind another without a gap.

    Raises:
        TruncatedLog: a field reaches beyond ``end``.
        CorruptLog: field number 0, or one that no message may have; a wire type that nobody writes.
    """
    end = len(data) if end is None else end
    found: list[Span] = []
    while at < end:
        tag, value = decode_varint(data, at, end)
        number, wire_type = tag >> 3, tag & 7
        if not 0 < number <= MAX_FIELD_NUMBER:
            raise CorruptLog(f"field number {number}", at)
        if wire_type == VARINT:
            _, behind = decode_varint(data, value, end)
        elif wire_type == BYTES_OF_LENGTH:
            length, value = decode_varint(data, value, end)
            if length > end - value:
                raise TruncatedLog(f"field {number} of {length} bytes, {end - value} are left", at)
            behind = value + length
        elif wire_type in (FIXED64, FIXED32):
            behind = value + (8 if wire_type == FIXED64 else 4)
            if behind > end:
                raise TruncatedLog(f"field {number} cut short", at)
        else:
            raise CorruptLog(f"field {number} of wire type {wire_type}", at)
        found.append(Span(number, wire_type, at, value, behind))
        at = behind
    return found


def put(number: int, value: int | bytes) -> bytes:
    """One field: a varint of a number, length and bytes of bytes."""
    if isinstance(value, int):
        return put_varint(number << 3 | VARINT) + put_varint(value)
    return put_varint(number << 3 | BYTES_OF_LENGTH) + put_varint(len(value)) + value


class ProtoKind(Enum):
    """What a field's bytes mean."""

    UINT64 = "uint64"
    INT64 = "int64"
    UINT32 = "uint32"
    INT32 = "int32"
    BOOL = "bool"
    STRING = "string"  # what is no UTF-8 becomes U+FFFD
    BYTES = "bytes"

    @property
    def is_varint(self) -> bool:
        return self not in (ProtoKind.STRING, ProtoKind.BYTES)


UINT64, INT64, UINT32, INT32, BOOL, STRING, BYTES = ProtoKind


@dataclass(frozen=True, slots=True)
class ProtoField:
    """One row of a message's table: the field's number, its kind or the message that it holds."""

    number: int
    kind: ProtoKind | type[ProtoMessage]
    required: bool = False
    repeated: bool = False

    @property
    def is_varint(self) -> bool:
        return isinstance(self.kind, ProtoKind) and self.kind.is_varint

    def decode(self, data: Buffer, span: Span) -> Any:
        """The value of one field of the wire type that is the field's own."""
        if not isinstance(self.kind, ProtoKind):
            return self.kind.decode(data, span.value, span.end)
        if self.kind is ProtoKind.BYTES:
            return bytes(data[span.value : span.end])
        if self.kind is ProtoKind.STRING:
            return bytes(data[span.value : span.end]).decode(errors="replace")
        return self.of_varint(decode_varint(data, span.value, span.end)[0])

    def of_varint(self, value: int) -> int | bool:
        """What a varint means as this field; 32-bit kinds keep the low half, as Java does."""
        if self.kind is ProtoKind.BOOL:
            return value != 0
        if self.kind is ProtoKind.INT64:
            return signed(value)
        if self.kind is ProtoKind.UINT64:
            return value
        value &= 0xFFFF_FFFF
        return value - (1 << 32) if self.kind is ProtoKind.INT32 and value >> 31 else value

    def encode(self, value: Any) -> bytes:
        """The field's bytes, tag first."""
        if not isinstance(self.kind, ProtoKind):
            value = value.encode()
        elif self.kind is ProtoKind.STRING:
            value = value.encode()
        return put(self.number, value if isinstance(value, bytes) else int(value))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtoMessage:
    """A message whose class is its table; ``unknown`` holds the fields that the table does not
    know, byte for byte.

    ``encode`` writes known fields by ascending number, then the unknown ones. Bytes that must stay
    as they are are therefore patched (``without``, ``inserted``), never encoded anew.
    """

    unknown: bytes = b""

    @classmethod
    def decode(cls, data: Buffer, at: int = 0, end: int | None = None) -> Self:
        """Decode the message ``data[at:end]``.

        Raises:
            TruncatedLog, CorruptLog: as ``spans``; also a required field that is missing. With the
                byte of ``data``.
        """
        table = _table(cls)
        values: dict[str, Any] = {}
        unknown: list[bytes] = []
        for span in spans(data, at, end):
            name, field = table.get(span.number, ("", None))
            if field is None:
                unknown.append(bytes(data[span.start : span.end]))
            elif field.is_varint and field.repeated and span.wire_type == BYTES_OF_LENGTH:
                values.setdefault(name, []).extend(_packed(field, data, span))
            elif span.wire_type != (VARINT if field.is_varint else BYTES_OF_LENGTH):
                unknown.append(bytes(data[span.start : span.end]))
            elif field.repeated:
                values.setdefault(name, []).append(field.decode(data, span))
            else:
                values[name] = field.decode(data, span)
        for name, field in table.values():
            if field.required and name not in values:
                raise CorruptLog(f"{cls.__name__} without {name}", at)
            if field.repeated:
                values[name] = tuple(values.get(name, ()))
        return cls(**values, unknown=b"".join(unknown))

    def encode(self) -> bytes:
        """The message's bytes; a None is absent."""
        out = []
        for _, (name, field) in sorted(_table(type(self)).items()):
            value = getattr(self, name)
            if field.repeated:
                out += [field.encode(item) for item in value]
            elif value is not None:
                out.append(field.encode(value))
        return b"".join(out) + self.unknown


_TABLES: dict[type[ProtoMessage], dict[int, tuple[str, ProtoField]]] = {}


def _table(message: type[ProtoMessage]) -> dict[int, tuple[str, ProtoField]]:
    """The fields by number; a table that contradicts itself is a ``TypeError``."""
    if message in _TABLES:
        return _TABLES[message]
    hints = get_type_hints(message, include_extras=True)
    table: dict[int, tuple[str, ProtoField]] = {}
    for field in dataclass_fields(message):
        if field.name == "unknown":
            continue
        hint = hints[field.name]
        told = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
        places = [each for each in told if isinstance(each, ProtoField)]
        if len(places) != 1 or places[0].number in table:
            name = f"{message.__name__}.{field.name}"
            raise TypeError(f"{name} does not say which field it is, or one that is taken")
        table[places[0].number] = field.name, places[0]
    _TABLES[message] = table
    return table


def _packed(field: ProtoField, data: Buffer, span: Span) -> list[int | bool]:
    values: list[int | bool] = []
    at = span.value
    while at < span.end:
        value, at = decode_varint(data, at, span.end)
        values.append(field.of_varint(value))
    return values


def without(data: Buffer, *numbers: int) -> bytes:
    """The message without the fields of these numbers, all else byte for byte; errors as ``spans``."""
    return b"".join(
        bytes(data[span.start : span.end]) for span in spans(data) if span.number not in numbers
    )


def inserted(data: Buffer, number: int, field: bytes) -> bytes:
    """The message with ``field``, tag and value or several of them, before its first field of a
    higher number.

    Where fields lie by ascending number, as every generated writer puts them, that is the place of
    field ``number``. Errors as ``spans``.
    """
    place = next((span.start for span in spans(data) if span.number > number), len(data))
    return bytes(data[:place]) + field + bytes(data[place:])
