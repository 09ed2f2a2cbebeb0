"""Decode JSON texts to columns. Fields outside the shape are skipped; missing fields are null."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa

from lastwrite.decoding import json_kernels as kernels
from lastwrite.decoding.columns import Program
from lastwrite.decoding.shape import Shape, ShapeKind
from lastwrite.decoding.slots import BASE, Slots
from lastwrite.model.columns import ByteArray, Int64Array

_ESCAPED = re.compile(r'["\\\x00-\x1f]')


class JsonProgram(Program):
    """Decodes JSON texts to columns of ``shape``."""

    def __init__(self, shape: Shape) -> None:
        slots = Slots(shape)
        super().__init__(slots, {})
        self._traits = np.zeros((len(slots.all), kernels.TRAITS), np.int64)
        names = b""
        fields: list[tuple[int, int, int, int]] = []
        for slot in slots.all:
            traits = self._traits[slot.number]
            traits[kernels.IS_DOUBLE] = slot.shape.kind is ShapeKind.DOUBLE
            traits[kernels.SLOT_END] = slot.end
            traits[kernels.IS_MAP] = slot.shape.kind is ShapeKind.MAP
            if slot.shape.kind is not ShapeKind.RECORD:
                continue
            traits[kernels.FIELDS] = len(fields)
            traits[kernels.FIELD_COUNT] = len(slot.fields)
            for each in slot.fields:
                name = each.shape.name.encode()
                is_plain = not _ESCAPED.search(each.shape.name)
                fields.append((len(names), len(name), each.number, int(is_plain)))
                names += name
        self._fields = np.array(fields or [(0, 0, 0, 0)], np.int64)
        self._names = np.frombuffer(names + bytes(8), np.uint8)
        self._stack = np.zeros(4 * kernels.MOST_DEPTH, np.int64)
        longest = int(self._fields[:, 1].max())
        self._scratch = np.zeros(16 + 12 * (longest + 1), np.uint8)
        self._scratch[:8] = np.array([longest], np.int64).view(np.uint8)

    def _run(
        self,
        data: ByteArray,
        starts: Any,
        present: ByteArray,
        table: Int64Array,
        counts: Int64Array,
    ) -> Int64Array:
        faults = np.empty((len(present), 2), np.int64)
        # a long number has at least 4 bytes, such as 1e23
        long_numbers = np.empty((len(data) // 4 + 1, 4), np.int64)
        many = kernels.run(
            data.ctypes.data,
            starts.ctypes.data,
            present.ctypes.data,
            len(present),
            self._traits,
            self._fields,
            self._names.ctypes.data,
            table.ctypes.data,
            counts.ctypes.data,
            self._arena.ctypes.data,
            self._stack,
            self._scratch.ctypes.data,
            long_numbers,
            faults,
        )
        if many:
            self._set_long(data, table, long_numbers[:many])
        return faults

    def _set_long(self, data: ByteArray, table: Int64Array, numbers: Int64Array) -> None:
        """Convert the numbers in ``long_numbers`` to their nearest doubles.

        The single multiplication in the kernel would not give the nearest double.
        """
        texts = [data[at : at + length].tobytes() for at, length in numbers[:, 2:].tolist()]
        try:
            values = np.asarray(pa.array(texts, pa.binary()).cast(pa.string()).cast(pa.float64()))
        except pa.ArrowInvalid:  # a number above the largest double is infinite, as in Python
            values = np.array([float(text) for text in texts])
        places = table[numbers[:, 0], BASE] // 8 + numbers[:, 1]
        words = self._arena[: len(self._arena) // 8 * 8].view(np.float64)
        words[places] = values
