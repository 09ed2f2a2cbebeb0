"""Slots: the columns of a shape in one arena. Kernels fill them; Arrow columns are built from them.

The slots of a shape are numbered. Slots with one entry per row are first (a record, then its
fields, in order), then the slots inside each list. Slots that always have the same number of
entries have consecutive numbers, and so have all slots inside a list at any depth. An entry is
therefore appended or removed by a loop over a range of numbers.

    {id, tags: [text], at: {x, y}}   0 record, 1 id, 2 tags, 3 at, 4 x, 5 y, 6 text of tags
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from lastwrite.decoding.shape import Shape, ShapeKind, arrow_type
from lastwrite.model.columns import ByteArray, Int64Array

# How a slot stores its entries.
RECORD, BYTE, NARROW, WIDE, DECIMAL, VAR, LIST = range(7)

# The columns of the table of slots. Each is an int64.
STORED, BASE, VALID, HEAP, OWNER, END, ITEMS, ITEMS_END = range(8)
COLUMNS = 8

_STORED = {
    ShapeKind.BOOLEAN: BYTE,
    ShapeKind.INT: NARROW,
    ShapeKind.FLOAT: NARROW,
    ShapeKind.DATE: NARROW,
    ShapeKind.ENUM: NARROW,
    ShapeKind.LONG: WIDE,
    ShapeKind.DOUBLE: WIDE,
    ShapeKind.TIMESTAMP: WIDE,
    ShapeKind.LOCAL_TIMESTAMP: WIDE,
    ShapeKind.DECIMAL: DECIMAL,
    ShapeKind.STRING: VAR,
    ShapeKind.BYTES: VAR,
    ShapeKind.RECORD: RECORD,
    ShapeKind.LIST: LIST,
    ShapeKind.MAP: LIST,
}
_WIDTH = {RECORD: 0, BYTE: 1, NARROW: 4, WIDE: 8, DECIMAL: 16, VAR: 4, LIST: 4}


@dataclass(slots=True, eq=False)
class Slot:
    """The slot of one node of a shape: the column that a kernel fills for it.

    Attributes:
        fields: the slots of a record's fields, or the item of a list.
        end: the number after the last slot of this node and its fields at any depth. Slots inside
            lists are not counted.
        items_end: for a list: the number after the last slot inside the list.
    """

    shape: Shape
    number: int
    owner: int  # number of the innermost list that contains the slot; -1 if it is in no list
    fields: list[Slot] = field(default_factory=list)
    end: int = 0
    items_end: int = 0


class Slots:
    """The slots of all nodes of a shape."""

    def __init__(self, shape: Shape) -> None:
        self.all: list[Slot] = []
        self.top = self._numbered(shape, -1)

    def _numbered(self, shape: Shape, owner: int) -> Slot:
        lists: list[Slot] = []
        top = self._level(shape, owner, lists)
        for each in lists:
            each.fields = [self._numbered(each.shape.fields[0], each.number)]
            each.items_end = len(self.all)
        return top

    def _level(self, shape: Shape, owner: int, lists: list[Slot]) -> Slot:
        slot = Slot(shape, len(self.all), owner)
        self.all.append(slot)
        if shape.kind is ShapeKind.RECORD:
            slot.fields = [self._level(each, owner, lists) for each in shape.fields]
        elif _STORED[shape.kind] == LIST:
            lists.append(slot)
        slot.end = len(self.all)
        return slot

    def table(self, rows: int, data_bytes: int) -> tuple[Int64Array, int]:
        """The table of slots for kernels, and the size of the arena in bytes.

        A slot inside a list has at most as many entries as the data have bytes. All text of a slot
        takes at most as many bytes as the data.
        """
        table = np.zeros((len(self.all), COLUMNS), np.int64)
        at = 0
        for slot in self.all:
            row, entries = table[slot.number], rows if slot.owner < 0 else data_bytes
            row[STORED] = stored = _STORED[slot.shape.kind]
            row[OWNER], row[END] = slot.owner, slot.end
            row[BASE], at = at, at + -(-_WIDTH[stored] * (entries + 1) // 16) * 16
            row[VALID], at = at, at + -(-(entries + 1) // 16) * 16
            if stored == VAR:
                row[HEAP], at = at, at + -(-data_bytes // 16) * 16 + 16
            elif stored == LIST:
                row[ITEMS], row[ITEMS_END] = slot.fields[0].number, slot.items_end
        return table, at


class FilledColumns:
    """Converts the slots that a kernel has filled to Arrow columns, which own their memory."""

    def __init__(
        self,
        arena: ByteArray,
        table: Int64Array,
        counts: Int64Array,
        constants: Mapping[int, Any],
        defaults: Mapping[int, Any],
    ) -> None:
        self._arena = arena
        self._table = table
        self._counts = counts
        self._constants = constants
        self._defaults = defaults

    def column(self, slot: Slot) -> pa.Array:
        """The Arrow column with the values of a slot."""
        return self._column(slot, int(self._counts[slot.number]))

    def _column(self, slot: Slot, count: int) -> pa.Array:
        found, default = self._filled(slot, count), self._defaults.get(slot.number)
        return found if default is None else found.fill_null(pa.scalar(default, found.type))

    def _filled(self, slot: Slot, count: int) -> pa.Array:
        kind, type = slot.shape.kind, arrow_type(slot.shape)
        if slot.number in self._constants:
            return pa.repeat(pa.scalar(self._constants[slot.number], type), count)
        present = self._view(slot, VALID, np.uint8, count)
        mask = None if present.all() else _bits(present)
        if kind is ShapeKind.RECORD:
            children = [self._column(each, count) for each in slot.fields]
            return pa.Array.from_buffers(type, count, [mask], children=children)
        stored = _STORED[kind]
        if stored == LIST:
            ends = self._view(slot, BASE, np.int32, count + 1).copy()
            items = self._column(slot.fields[0], int(ends[-1]))
            if kind is ShapeKind.MAP:
                ends, items = _with_last_entries(ends, items)
                items = items.cast(pa.struct([type.key_field, type.item_field]))
            return pa.Array.from_buffers(type, count, [mask, pa.py_buffer(ends)], children=[items])
        if stored == VAR:
            ends = self._view(slot, BASE, np.int32, count + 1).copy()
            joined = self._view(slot, HEAP, np.uint8, int(ends[-1])).copy()
            return pa.Array.from_buffers(
                type, count, [mask, pa.py_buffer(ends), pa.py_buffer(joined)]
            )
        if kind is ShapeKind.ENUM:
            numbers = pa.Array.from_buffers(
                pa.int32(), count, [mask, pa.py_buffer(self._view(slot, BASE, np.int32, count))]
            )
            return pa.array(slot.shape.symbols, pa.string()).take(numbers)
        if kind is ShapeKind.BOOLEAN:
            flags = _bits(self._view(slot, BASE, np.uint8, count))
            return pa.Array.from_buffers(type, count, [mask, flags])
        values = self._view(slot, BASE, np.uint8, _WIDTH[stored] * count).copy()
        return pa.Array.from_buffers(type, count, [mask, pa.py_buffer(values)])

    def _view(self, slot: Slot, column: int, kind: Any, count: int) -> Any:
        start = int(self._table[slot.number, column])
        return self._arena[start : start + count * np.dtype(kind).itemsize].view(kind)


def _with_last_entries(ends: Any, entries: pa.Array) -> tuple[Any, pa.Array]:
    """Remove all but the last entry of each key in each map of a column.

    Returns the new offsets and entries.

    ``ends`` are the maps' offsets in ``entries``, as in an Arrow list.
    """
    if len(entries) < 2:
        return ends, entries
    keys = entries.field(0).dictionary_encode()
    codes = np.asarray(keys.indices.fill_null(len(keys.dictionary))).astype(np.int64)
    of_maps = np.repeat(np.arange(len(ends) - 1), np.diff(ends))
    codes += of_maps * (len(keys.dictionary) + 1)
    _, last = np.unique(codes[::-1], return_index=True)
    if len(last) == len(entries):
        return ends, entries
    stays = np.zeros(len(entries), np.bool_)
    stays[len(entries) - 1 - last] = True
    counts = np.bincount(of_maps[stays], minlength=len(ends) - 1)
    ends = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    return ends, entries.filter(pa.array(stays))


def _bits(flags: ByteArray) -> pa.Buffer:
    return pa.py_buffer(np.packbits(flags, bitorder="little"))
