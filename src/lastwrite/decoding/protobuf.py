"""Decode Protobuf values to columns. The reader's message is converted to tables for the kernel.

Fields are matched by number, not by name. Fields that the reader's schema lacks are skipped. If a
value lacks a field without presence, the field is 0, false or empty. If it lacks a field with
presence, the field is null, or has the default that its schema declares.

Source: Protocol Buffers, "Encoding", "Field Presence".
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np

from lastwrite.decoding import protobuf_kernels as kernels
from lastwrite.decoding import protobuf_schema as schema
from lastwrite.decoding.columns import Program
from lastwrite.decoding.shape import Shape, ShapeKind
from lastwrite.decoding.slots import Slot, Slots
from lastwrite.model.columns import ByteArray, Int64Array

_ACTIONS = {
    schema.DOUBLE: (kernels.WIDE64, kernels.FIXED64),
    schema.FLOAT: (kernels.NARROW32, kernels.FIXED32),
    schema.INT64: (kernels.INT64, kernels.VARINT),
    schema.UINT64: (kernels.UINT64, kernels.VARINT),
    schema.INT32: (kernels.INT32, kernels.VARINT),
    schema.FIXED64: (kernels.DECIMAL64, kernels.FIXED64),
    schema.FIXED32: (kernels.WIDE32, kernels.FIXED32),
    schema.BOOL: (kernels.BOOL, kernels.VARINT),
    schema.STRING: (kernels.TEXT, kernels.DELIMITED),
    schema.GROUP: (kernels.MESSAGE, kernels.GROUP),
    schema.MESSAGE: (kernels.MESSAGE, kernels.DELIMITED),
    schema.BYTES: (kernels.BYTES, kernels.DELIMITED),
    schema.UINT32: (kernels.UINT32, kernels.VARINT),
    schema.ENUM: (kernels.ENUM, kernels.VARINT),
    schema.SFIXED32: (kernels.NARROW32, kernels.FIXED32),
    schema.SFIXED64: (kernels.WIDE64, kernels.FIXED64),
    schema.SINT32: (kernels.SINT32, kernels.VARINT),
    schema.SINT64: (kernels.SINT64, kernels.VARINT),
}


class ProtobufProgram(Program):
    """Decodes values of a message to columns of ``shape``.

    Args:
        message: the descriptor of the message to read by.
        shape: ``shape_of(message)``, or the part of it to decode.
    """

    def __init__(self, message: Any, shape: Shape) -> None:
        slots = Slots(shape)
        tables = _Tables()
        tables.add(message, slots.top)
        super().__init__(slots, {}, tables.defaults)
        self._messages = np.array(tables.messages, np.int64)
        self._fields = np.array(tables.fields or [[0] * kernels.FIELD_WORDS], np.int64)
        self._numbers = np.array([*tables.numbers, 0], np.int64)
        self._stack = np.zeros(kernels.FRAME_WORDS * (tables.depth + 1), np.int64)

    def _run(
        self,
        data: ByteArray,
        starts: Any,
        present: ByteArray,
        table: Int64Array,
        counts: Int64Array,
    ) -> Int64Array:
        faults = np.empty((len(present), 2), np.int64)
        kernels.run(
            data.ctypes.data,
            starts.ctypes.data,
            present.ctypes.data,
            len(present),
            self._messages.ctypes.data,
            self._fields.ctypes.data,
            self._numbers.ctypes.data,
            self.slots.top.end,
            table.ctypes.data,
            counts.ctypes.data,
            self._arena.ctypes.data,
            self._stack.ctypes.data,
            faults,
        )
        return faults


class _Tables:
    def __init__(self) -> None:
        self.messages: list[list[int]] = []
        self.fields: list[list[int]] = []
        self.numbers: list[int] = []
        self.defaults: dict[int, Any] = {}  # slot number to default
        self.depth = 0

    def add(self, message: Any, slot: Slot, depth: int = 0) -> int:
        """Add a message to the tables, with only the fields of ``slot``. Returns its index."""
        self.depth = max(self.depth, depth)
        place = len(self.messages)
        self.messages.append([])
        places = {each.shape.name: each for each in slot.fields}
        rows = []
        for field in sorted(message.fields, key=lambda each: each.number):
            own = places.get(field.name)
            others = [
                places[each.name]
                for each in (field.containing_oneof.fields if field.containing_oneof else ())
                if each is not field and each.name != field.name and each.name in places
            ]
            if own is None and not others:
                continue
            row = [0] * kernels.FIELD_WORDS
            action, row[kernels.WIRE_TYPE] = _ACTIONS[field.type]
            row[kernels.NUMBER], row[kernels.LIST] = field.number, -1
            row[kernels.OTHERS_COUNT] = len(others)
            row[kernels.OTHERS_AT] = self._kept(
                [number for each in others for number in (each.number, each.end)]
            )
            row[kernels.ACTION] = kernels.PASSED_OVER
            if own is not None:
                self._fill(row, field, own, action, depth)
            rows.append(row)
        wanted = [(each, places[each.name]) for each in message.fields if each.name in places]
        is_entry = message.GetOptions().map_entry
        full = [
            own.number
            for field, own in wanted
            if is_entry or field.is_repeated or not field.has_presence
        ]
        if is_entry and slot.fields[1].shape.kind is ShapeKind.RECORD:
            # if a map entry has no value, its value is an empty message
            inner = self.messages[rows[1][kernels.INNER]]
            at = inner[kernels.SET_AT]
            full += self.numbers[at : at + inner[kernels.SET_COUNT]]
        required = [own.number for field, own in wanted if field.is_required]
        self.messages[place] = [
            len(self.fields),
            len(rows),
            self._kept(full),
            len(full),
            self._kept(required),
            len(required),
        ]
        self.fields += rows
        return place

    def _fill(self, row: list[int], field: Any, own: Slot, action: int, depth: int) -> None:
        """Fill the table row of one requested field."""
        slot = own
        if field.is_repeated:
            row[kernels.LIST], slot = own.number, own.fields[0]
        row[kernels.SLOT], row[kernels.SLOT_END] = slot.number, slot.end
        if slot.shape.kind is ShapeKind.TIMESTAMP:
            action = kernels.TIMESTAMP
        elif action == kernels.MESSAGE and slot.shape.kind is ShapeKind.BYTES:
            action = kernels.MERGED
        elif action == kernels.MESSAGE:
            row[kernels.INNER] = self.add(field.message_type, slot, depth + 1)
        elif action == kernels.ENUM:
            symbols = {number: n for n, number in enumerate(schema.symbols_of(field.enum_type))}
            numbers = sorted(symbols)
            row[kernels.SYMBOLS_AT] = self._kept(numbers + [symbols[each] for each in numbers])
            row[kernels.SYMBOL_COUNT] = len(symbols)
        row[kernels.ACTION] = action
        if field.has_default_value and field.has_presence and not field.containing_oneof:
            self.defaults[own.number] = _default_of(field)

    def _kept(self, numbers: list[int]) -> int:
        at = len(self.numbers)
        self.numbers += numbers
        return at


def _default_of(field: Any) -> Any:
    """The default of a field, converted to a value for Arrow."""
    given = field.default_value
    if field.type == schema.ENUM:
        return schema.symbols_of(field.enum_type)[given]
    return Decimal(given) if field.type in (schema.UINT64, schema.FIXED64) else given
