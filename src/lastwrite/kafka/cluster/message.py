"""Kafka's messages: a schema is a table of fields, from which messages are decoded.

In this example, version 3 added the second field. Version 4 added the third field, and is the first
*flexible* version::

    MessageSchema("Commit", last=4, flexible=4, fields=(
        SchemaField("offset",      I64),
        SchemaField("leaderEpoch", I32, since=3),
        SchemaField("topicId",     UUID, since=4, tag=0),
    ))

Fields are stored in the table's order. Lengths of strings, bytes and lists are fixed integers; -1
is null. In a flexible version they are unsigned varints of the length plus one; 0 is null. In such
a version every structure ends with its *tagged* fields: their count, then number, size and content
of each.
Unknown tagged fields are skipped, so Kafka can add fields without a new version. An absent tagged
field has no entry in the result.

A decoded message has Kafka's field names. Its values are numbers, strings, lists, dictionaries and
None. Bytes are base64 strings. A UUID is the string of 22 characters that Kafka prints.

Source: Kafka 4.4 ``MessageDataGenerator``, ``ByteBufferAccessor``,
``ByteUtils.readUnsignedVarint``; KIP-482.
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from lastwrite.encoding.layout import Buffer, Integer
from lastwrite.errors import CorruptLog, TruncatedLog, UnsupportedFormat
from lastwrite.kafka.format.text import topic_id_text

_UUID_BYTES = 16
_FLOAT64 = struct.Struct(">d")
_NEWEST = 1 << 15


class SchemaKind(Enum):
    """A basic field type that is not an integer, such as a string or a UUID."""

    STRING = "string"
    BYTES = "bytes"
    UUID = "uuid"
    BOOL = "bool"
    FLOAT64 = "float64"


STRING, BYTES, UUID = SchemaKind.STRING, SchemaKind.BYTES, SchemaKind.UUID
BOOL, FLOAT64 = SchemaKind.BOOL, SchemaKind.FLOAT64


class SchemaField(NamedTuple):
    """One field of a message: its name, type, and the versions that have it."""

    name: str
    type: Type
    since: int = 0  # first version that has the field
    until: int = _NEWEST  # last version that has the field
    tag: int | None = None  # number of a tagged field; it is tagged only in flexible versions


@dataclass(frozen=True, slots=True)
class Struct:
    """A field type: a structure.

    One byte precedes a ``nullable`` structure: 1 means that the structure is present.
    """

    fields: tuple[SchemaField, ...]
    nullable: bool = False


@dataclass(frozen=True, slots=True)
class Array:
    """A field type: a list of elements of one type."""

    of: Type


Type = Integer | SchemaKind | Struct | Array


@dataclass(frozen=True, slots=True)
class MessageSchema:
    """The schema of a message: its fields and versions.

    ``last`` is the newest known version. ``flexible`` is the first flexible version, or None.
    """

    name: str
    fields: tuple[SchemaField, ...]
    last: int = 0
    flexible: int | None = None

    def decode(self, data: Buffer, version: int, at: int = 0) -> tuple[dict[str, Any], int]:
        """Decode a message that begins at byte ``at``.

        Returns (fields by name, position after them).

        Raises:
            UnsupportedFormat: the version is unknown.
            TruncatedLog: the bytes end early.
            CorruptLog: a length or a string is invalid.
        """
        if not 0 <= version <= self.last:
            raise UnsupportedFormat(
                f"the version is {version}, and Lastwrite supports 0 to {self.last}", at
            )
        reader = MessageReader(data, at)
        decoder = _Decoder(reader, version, self.flexible is not None and version >= self.flexible)
        return decoder.fields(self.fields), reader.position


class MessageReader:
    """Reads numbers and strings from bytes, one after another, from ``position`` on."""

    def __init__(self, data: Buffer, at: int = 0) -> None:
        self._data = memoryview(data)
        self.position = at

    def take(self, count: int) -> bytes:
        """Read the next ``count`` bytes.

        Raises:
            TruncatedLog: fewer bytes are left.
        """
        left = len(self._data) - self.position
        if not 0 <= count <= left:
            raise TruncatedLog(
                f"the message is truncated: {count} bytes are needed, but {left} remain",
                self.position,
            )
        self.position += count
        return bytes(self._data[self.position - count : self.position])

    def integer(self, kind: Integer) -> int:
        """Read a big-endian integer of fixed size."""
        return int.from_bytes(self.take(kind.size), "big", signed=kind.code.islower())

    def unsigned(self) -> int:
        """Read an unsigned varint of at most 5 bytes."""
        start, number = self.position, 0
        for shift in range(0, 35, 7):
            byte = self.take(1)[0]
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
        raise CorruptLog("a varint has more than 5 bytes", start)

    def text(self, size: int) -> str:
        """Read a UTF-8 string of ``size`` bytes.

        Raises:
            CorruptLog: the bytes are not UTF-8.
        """
        start = self.position
        try:
            return self.take(size).decode("utf-8")
        except UnicodeDecodeError:
            raise CorruptLog("a text is not UTF-8", start) from None


@dataclass(frozen=True, slots=True)
class _Decoder:
    """Decodes a message of one version."""

    reader: MessageReader
    version: int
    flexible: bool

    def fields(self, table: tuple[SchemaField, ...]) -> dict[str, Any]:
        there = [field for field in table if field.since <= self.version <= field.until]
        found = {
            field.name: self.value(field.type)
            for field in there
            if field.tag is None or not self.flexible
        }
        if self.flexible:
            found.update(
                self._tagged({field.tag: field for field in there if field.tag is not None})
            )
        return found

    def value(self, kind: Type) -> Any:
        if isinstance(kind, Integer):
            return self.reader.integer(kind)
        if isinstance(kind, Struct):
            if kind.nullable and self.reader.take(1)[0] != 1:
                return None
            return self.fields(kind.fields)
        if isinstance(kind, Array):
            return self._array(kind)
        return _KINDS[kind](self)

    def length(self, fixed_bytes: int) -> int | None:
        """Read the length of a string, bytes or a list. None means null."""
        if self.flexible:
            number = self.reader.unsigned() - 1
        else:
            number = int.from_bytes(self.reader.take(fixed_bytes), "big", signed=True)
        if number < -1:
            raise CorruptLog(f"length {number}", self.reader.position)
        return None if number == -1 else number

    def string(self) -> str | None:
        length = self.length(2)
        return None if length is None else self.reader.text(length)

    def bytes(self) -> str | None:
        length = self.length(4)
        return (
            None if length is None else base64.b64encode(self.reader.take(length)).decode("ascii")
        )

    def uuid(self) -> str:
        return topic_id_text(self.reader.take(_UUID_BYTES))

    def boolean(self) -> bool:
        return self.reader.take(1)[0] != 0

    def float64(self) -> float | str:
        """Read a float. Values that JSON cannot represent become strings, such as "nan"."""
        number = float(_FLOAT64.unpack(self.reader.take(_FLOAT64.size))[0])
        return number if math.isfinite(number) else str(number)

    def _array(self, kind: Array) -> list[Any] | None:
        length = self.length(4)
        if length is None:
            return None
        found = []
        # A count that is too large soon raises TruncatedLog, because each element needs a byte.
        for _ in range(length):
            found.append(self.value(kind.of))
        return found

    def _tagged(self, known: dict[int | None, SchemaField]) -> dict[str, Any]:
        found = {}
        for _ in range(self.reader.unsigned()):
            tag, size = self.reader.unsigned(), self.reader.unsigned()
            content = self.reader.take(size)
            if tag in known:
                inner = _Decoder(MessageReader(content), self.version, self.flexible)
                found[known[tag].name] = inner.value(known[tag].type)
        return found


_KINDS: dict[SchemaKind, Callable[[_Decoder], Any]] = {
    SchemaKind.STRING: _Decoder.string,
    SchemaKind.BYTES: _Decoder.bytes,
    SchemaKind.UUID: _Decoder.uuid,
    SchemaKind.BOOL: _Decoder.boolean,
    SchemaKind.FLOAT64: _Decoder.float64,
}
