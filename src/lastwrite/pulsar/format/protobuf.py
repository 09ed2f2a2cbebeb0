"""Protocol Buffers' wire format, and messages defined as tables of fields.

A message is a sequence of fields, each a *tag* and a value. The tag is a varint: field number << 3
| wire type. ``08 0a`` is field 1, wire type 0 (varint), 10; ``12 02 6b 31`` is field 2, wire type 2
(length, then bytes), "k1". Details:

- A varint has seven bits a byte, the lowest first. Bit 7 is set on all bytes but the last. It has
  at most ten bytes, and only the low 64 bits count. Negative numbers of type int32 and int64 are
  64-bit two's complement and so take ten bytes.
- Wire types 1 and 5 are 8 and 4 plain bytes. No message of Pulsar uses them today, so they are
  unknown fields. Types 3, 4, 6, 7 and field number 0 are damage.
- If a field occurs twice, the last one counts. All values of a *repeated* field count, in order.
  Repeated numbers are separate fields or *packed*: one value of wire type 2 with all the varints.
- A known field number with an unexpected wire type is an unknown field, as in Pulsar's own reader.

A class lists its fields with their number and kind::

    class KeyValue(ProtoMessage):
        key:   Annotated[str, ProtoField(1, STRING, required=True)]
        value: Annotated[str, ProtoField(2, STRING, required=True)]

The class decodes, encodes, and keeps unknown fields. An absent field is None, or () if repeated.
Lengths may be false: bounds are checked first, and no memory is allocated by a stated length. This
is the slow reader; the kernels read what compaction needs.

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
    """The positions of one field: ``start`` of its tag, ``value``, and ``end`` of the value."""

    number: int
    wire_type: int
    start: int
    value: int
    end: int


def decode_varint(data: Buffer, at: int, end: int) -> tuple[int, int]:
    """Decode the varint at byte ``at``: an unsigned 64-bit number, and the position after it.

    No byte at or after ``end`` is read.

    Raises:
        TruncatedLog: the varint does not end before ``end``.
        CorruptLog: the tenth byte is not the last one.
    """
    value = 0
    for place in range(MAX_VARINT_BYTES):
        if at + place >= end:
            raise TruncatedLog("the data end inside a varint", at)
        byte = int(data[at + place])
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value & _U64, at + place + 1
    raise CorruptLog(f"the varint is longer than {MAX_VARINT_BYTES} bytes", at)


def put_varint(value: int) -> bytes:
    """Encode a number from -2^63 to 2^64 - 1 as a varint. Any other number is a ``ValueError``."""
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
    """Convert the unsigned 64-bit number of a varint to a signed number."""
    return value - (1 << 64) if value >> 63 else value


def spans(data: Buffer, at: int = 0, end: int | None = None) -> list[Span]:
    """The positions of the fields of the message ``data[at:end]``, adjacent and in order.

    Raises:
        TruncatedLog: a field exceeds ``end``.
        CorruptLog: field number 0 or above the maximum, or an unused wire type.
    """
    end = len(data) if end is None else end
    found: list[Span] = []
    while at < end:
        tag, value = decode_varint(data, at, end)
        number, wire_type = tag >> 3, tag & 7
        if not 0 < number <= MAX_FIELD_NUMBER:
            raise CorruptLog(f"the field number {number} is invalid", at)
        if wire_type == VARINT:
            _, behind = decode_varint(data, value, end)
        elif wire_type == BYTES_OF_LENGTH:
            length, value = decode_varint(data, value, end)
            if length > end - value:
                raise TruncatedLog(
                    f"the length of field {number} is {length} bytes, but only {end - value} "
                    "bytes follow",
                    at,
                )
            behind = value + length
        elif wire_type in (FIXED64, FIXED32):
            behind = value + (8 if wire_type == FIXED64 else 4)
            if behind > end:
                raise TruncatedLog(f"the data end inside field {number}", at)
        else:
            raise CorruptLog(f"field {number} has the invalid wire type {wire_type}", at)
        found.append(Span(number, wire_type, at, value, behind))
        at = behind
    return found


def put(number: int, value: int | bytes) -> bytes:
    """Encode one field: a number as a varint, bytes with their length."""
    if isinstance(value, int):
        return put_varint(number << 3 | VARINT) + put_varint(value)
    return put_varint(number << 3 | BYTES_OF_LENGTH) + put_varint(len(value)) + value


class ProtoKind(Enum):
    """The type of a field's value."""

    UINT64 = "uint64"
    INT64 = "int64"
    UINT32 = "uint32"
    INT32 = "int32"
    BOOL = "bool"
    STRING = "string"  # invalid UTF-8 becomes U+FFFD
    BYTES = "bytes"

    @property
    def is_varint(self) -> bool:
        return self not in (ProtoKind.STRING, ProtoKind.BYTES)


UINT64, INT64, UINT32, INT32, BOOL, STRING, BYTES = ProtoKind


@dataclass(frozen=True, slots=True)
class ProtoField:
    """One row of a message's table: the field's number, and its kind or message class."""

    number: int
    kind: ProtoKind | type[ProtoMessage]
    required: bool = False
    repeated: bool = False

    @property
    def is_varint(self) -> bool:
        return isinstance(self.kind, ProtoKind) and self.kind.is_varint

    def decode(self, data: Buffer, span: Span) -> Any:
        """Decode the value of one field. Its wire type must be the field's own."""
        if not isinstance(self.kind, ProtoKind):
            return self.kind.decode(data, span.value, span.end)
        if self.kind is ProtoKind.BYTES:
            return bytes(data[span.value : span.end])
        if self.kind is ProtoKind.STRING:
            return bytes(data[span.value : span.end]).decode(errors="replace")
        return self.of_varint(decode_varint(data, span.value, span.end)[0])

    def of_varint(self, value: int) -> int | bool:
        """Convert a decoded varint to the field's type.

        32-bit types keep the low half, as Java does.
        """
        if self.kind is ProtoKind.BOOL:
            return value != 0
        if self.kind is ProtoKind.INT64:
            return signed(value)
        if self.kind is ProtoKind.UINT64:
            return value
        value &= 0xFFFF_FFFF
        return value - (1 << 32) if self.kind is ProtoKind.INT32 and value >> 31 else value

    def encode(self, value: Any) -> bytes:
        """The bytes of the field, with its tag."""
        if not isinstance(self.kind, ProtoKind):
            value = value.encode()
        elif self.kind is ProtoKind.STRING:
            value = value.encode()
        return put(self.number, value if isinstance(value, bytes) else int(value))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtoMessage:
    """A protobuf message. The annotations of a subclass are the table of its fields.

    ``unknown`` keeps the fields that are not in the table, byte for byte.

    ``encode`` writes the known fields by ascending number, then the unknown fields, so it may
    change the order of decoded fields. Use ``without`` and ``inserted`` to change one field of a
    message and keep all other bytes.
    """

    unknown: bytes = b""

    @classmethod
    def decode(cls, data: Buffer, at: int = 0, end: int | None = None) -> Self:
        """Decode the message ``data[at:end]``.

        Raises:
            TruncatedLog, CorruptLog: as ``spans``, or a required field is missing. Positions are
                bytes of ``data``.
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
                raise CorruptLog(f"the field {name} of {cls.__name__} is missing", at)
            if field.repeated:
                values[name] = tuple(values.get(name, ()))
        return cls(**values, unknown=b"".join(unknown))

    def encode(self) -> bytes:
        """The bytes of the message. Fields that are None are omitted."""
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
    """A message's fields by field number. Raises ``TypeError`` if the table is inconsistent."""
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
            raise TypeError(f"{name} has no field number, or one that another field has")
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
    """The message without the fields of these numbers, otherwise unchanged. Errors as ``spans``."""
    return b"".join(
        bytes(data[span.start : span.end]) for span in spans(data) if span.number not in numbers
    )


def inserted(data: Buffer, number: int, field: bytes) -> bytes:
    """The message with ``field`` inserted before its first field of a higher number.

    ``field`` is one or more encoded fields.

    This is the right position if the fields are in ascending order. All generated writers use that
    order. Errors as ``spans``.
    """
    place = next((span.start for span in spans(data) if span.number > number), len(data))
    return bytes(data[:place]) + field + bytes(data[place:])
