"""The base class of programs, which decode a column of bytes to a typed column.

A program's kernel decodes some thousand values at a time into an arena, which is reused. The
results own their memory. Lengths inside a value never determine the size of an allocation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from lastwrite.decoding.shape import arrow_type
from lastwrite.decoding.slot_kernels import OK, REASONS
from lastwrite.decoding.slots import FilledColumns, Slots
from lastwrite.model.columns import ByteArray, Int64Array

ROWS_AT_ONCE = 1 << 16
BYTES_AT_ONCE = 1 << 20


class DecodedColumn(NamedTuple):
    """A typed column, and the reason for each bad row, ascending by row. Bad rows are null."""

    column: pa.Array
    bad: dict[int, str]


class Program(ABC):
    """Decodes values of one schema. Two threads must not use an instance at once.

    Args:
        constants: slot number to the value of the slot in every row.
        defaults: slot number to the value that replaces nulls of the slot.
    """

    def __init__(
        self, slots: Slots, constants: Mapping[int, Any], defaults: Mapping[int, Any] | None = None
    ) -> None:
        self.slots = slots
        self.type = arrow_type(slots.top.shape)
        self._constants = constants
        self._defaults = defaults or {}
        self._arena: ByteArray = np.empty(0, np.uint8)

    def decode(self, values: pa.Array) -> DecodedColumn:
        """Decode a column of bytes. Null stays null."""
        values = values.cast(pa.binary()) if values.type != pa.binary() else values
        columns, bad, at = [], {}, 0
        for part in _parts(values):
            column, faults = self._decoded(part)
            columns.append(column)
            for row in np.flatnonzero(faults[:, 0] != OK).tolist():
                bad[at + row] = f"{REASONS[int(faults[row, 0])]}, at its byte {faults[row, 1]}"
            at += len(part)
        if len(columns) == 1:
            return DecodedColumn(columns[0], bad)
        return DecodedColumn(pa.concat_arrays(columns) if columns else pa.array([], self.type), bad)

    def _decoded(self, values: pa.Array) -> tuple[pa.Array, Int64Array]:
        data, starts, present = _buffers(values)
        table, size = self.slots.table(len(values), len(data))
        if size > len(self._arena):
            self._arena = np.empty(size, np.uint8)
        counts = np.zeros(len(self.slots.all), np.int64)
        for base in table[:, 1].tolist():  # set the first offset of each list or text to 0
            self._arena[base : base + 4] = 0
        faults = self._run(data, starts, present, table, counts)
        filled = FilledColumns(self._arena, table, counts, self._constants, self._defaults)
        return filled.column(self.slots.top), faults

    @abstractmethod
    def _run(
        self,
        data: ByteArray,
        starts: Any,
        present: ByteArray,
        table: Int64Array,
        counts: Int64Array,
    ) -> Int64Array:
        """Decode the values into slots, the arena's buffers for columns.

        Returns two int64 for each value: error code and error position.
        """


def _parts(values: pa.Array) -> Iterator[pa.Array]:
    """Yield slices of the column whose values have a bounded size in total.

    A value above the limit is a slice by itself.
    """
    at = 0
    if not len(values):
        return
    starts = np.frombuffer(values.buffers()[1], np.int32)[values.offset :][: len(values) + 1]
    while at < len(values):
        end = int(np.searchsorted(starts, int(starts[at]) + BYTES_AT_ONCE, side="right")) - 1
        end = min(max(end, at + 1), at + ROWS_AT_ONCE, len(values))
        yield values.slice(at, end - at)
        at = end


def _buffers(values: pa.Array) -> tuple[ByteArray, Any, ByteArray]:
    """The buffers of a column: the bytes of all values, their positions, and validity bytes.

    Positions are int32. There is a validity byte for each value: 0 for null.
    """
    _, ends, data = values.buffers()
    starts = np.frombuffer(ends, np.int32)[values.offset :][: len(values) + 1]
    first, last = int(starts[0]), int(starts[-1])
    joined: ByteArray = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    if values.null_count:
        present = np.asarray(values.is_valid()).astype(np.uint8)
    else:
        present = np.ones(len(values), np.uint8)
    return joined[first:last], np.ascontiguousarray(starts - first), present
