"""Units: the entry of a record in a consume queue, a batch consume queue or a compaction index.

Consume queue, the smallest case: the unit number is the queue offset and a unit has 20 bytes, so
unit q is at byte ``20 * q`` of the queue. If the first kept message of a queue is not number 0,
fillers stand before it in its file.

Batch consume queue: 46 bytes for each record. A record covers the offsets ``base`` to ``base +
number - 1``, so units are searched by base. A record that is not an inner batch covers its own
offset. The compaction index has the same units, with ``number`` always 1 and gaps between bases.
Its file ends at the first invalid unit: an end unit, zeros, or the file's end.

Extension: units of 20 bytes and more, at addresses that a consume queue has instead of a tags code.

Source: RocketMQ 5.5.0 ``ConsumeQueue``, ``BatchConsumeQueue``, ``SparseConsumeQueue``,
``ConsumeQueueExt``; docs/formats/rocketmq.md, "Units".
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lastwrite.encoding.layout import I16, I32, I64, At, Buffer, layout
from lastwrite.errors import CorruptLog, TruncatedLog


class ConsumeQueueUnit(NamedTuple):
    """A record in a consume queue."""

    # fmt: off
    #                               offset  type
    physical_offset: Annotated[int, At(0,  I64)]  # in the commit log
    size:            Annotated[int, At(8,  I32)]  # of the whole record
    # hash of the tag, delivery time, or address of an extension unit
    tags_code:       Annotated[int, At(12, I64)]
    # fmt: on


class BatchUnit(NamedTuple):
    """A record in a batch consume queue or in a compaction index."""

    # fmt: off
    #                                offset  type
    physical_offset:  Annotated[int, At(0,  I64)]  # in the commit log, or in the compaction log
    size:             Annotated[int, At(8,  I32)]
    tags_code:        Annotated[int, At(12, I64)]
    store_time_ms:    Annotated[int, At(20, I64)]
    base:             Annotated[int, At(28, I64)]  # first queue offset
    number:           Annotated[int, At(36, I16)]  # of queue offsets
    compacted_offset: Annotated[int, At(38, I32)]  # -1
    reserved:         Annotated[int, At(42, I32)]  # 0
    # fmt: on


class ExtensionHead(NamedTuple):
    """The start of an extension's unit."""

    # fmt: off
    #                             offset  type
    size:          Annotated[int, At(0,  I16)]  # of the unit; below 1: no more units in this file
    tags_code:     Annotated[int, At(2,  I64)]
    store_time_ms: Annotated[int, At(10, I64)]
    bitmap_length: Annotated[int, At(18, I16)]
    # 20: bitmap
    # fmt: on


CONSUME_QUEUE_UNIT = layout(ConsumeQueueUnit, byte_order=">", size=20)
BATCH_UNIT = layout(BatchUnit, byte_order=">", size=46)
EXTENSION_UNIT = layout(ExtensionHead, byte_order=">", size=20)

CONSUME_QUEUE_DTYPE = np.dtype(CONSUME_QUEUE_UNIT.dtype_items())
BATCH_DTYPE = np.dtype(BATCH_UNIT.dtype_items())

FILLER_SIZE = (1 << 31) - 1
FILLER = CONSUME_QUEUE_UNIT.pack(0, FILLER_SIZE, 0)
END_UNIT = BATCH_UNIT.pack(-1, 0, 0, 0, 0, 0, -1, 0)

EXTENSION_BASE = -(1 << 63)  # plus the byte of an extension unit: the tags code that refers to it

Units = npt.NDArray[np.void]


class Extension(NamedTuple):
    """A decoded unit of an extension."""

    size: int
    tags_code: int
    store_time_ms: int
    bitmap: bytes


def consume_queue_units(data: Buffer) -> Units:
    """The whole units of 20 bytes in ``data``, without a copy; a partial unit is left out."""
    return np.frombuffer(data, CONSUME_QUEUE_DTYPE, len(data) // CONSUME_QUEUE_UNIT.size)


def batch_units(data: Buffer) -> Units:
    """The whole units of 46 bytes in ``data``, without a copy; a partial unit is left out."""
    return np.frombuffer(data, BATCH_DTYPE, len(data) // BATCH_UNIT.size)


def queue_units(data: Buffer, *, is_batch: bool) -> Units:
    """The whole units of a consume queue file of either kind."""
    return batch_units(data) if is_batch else consume_queue_units(data)


def offsets_of(units: Units, row: int, start: int) -> tuple[int, int]:
    """The first and last queue offset of a unit in a file that begins at byte ``start``."""
    if units.dtype == BATCH_DTYPE:
        base = int(units["base"][row])
        return base, base + int(units["number"][row]) - 1
    offset = start // CONSUME_QUEUE_UNIT.size + row
    return offset, offset


def lower_bound(column: npt.NDArray[Any], wanted: int, count: int) -> int:
    """The index of the first ascending value that is not below ``wanted``, else ``count``.

    Searches by bisection, so that only a few pages of a mapped file are read.
    """
    return bisect_left(range(count), wanted, key=lambda row: int(column[row]))


def valid_count(units: Units) -> int:
    """The number of units before the first invalid one, for either kind.

    A filler counts, because it replaces a unit. A unit of 46 bytes is valid if its address and base
    are at least 0, and its size and number at least 1.
    """
    step = 1 << 14
    for first in range(0, len(units), step):
        some = units[first : first + step]
        good = (some["physical_offset"] >= 0) & (some["size"] > 0)
        if units.dtype == BATCH_DTYPE:
            good &= (some["base"] >= 0) & (some["number"] > 0)
        if not good.all():
            return first + int(np.argmin(good))
    return len(units)


def find_offset(units: Units, offset: int, count: int | None = None) -> int:
    """The number of the unit of 46 bytes that answers a read of queue offset ``offset``.

    That is the first whose last offset is not below ``offset``, else ``count``. ``count`` is the
    number of valid units, counted if it is None.
    """
    if count is None:
        count = valid_count(units)
    return bisect_left(range(count), offset, key=lambda row: offsets_of(units, row, 0)[1])


def decode_extension(buffer: Buffer, at: int, end: int) -> Extension | None:
    """The extension's unit at ``at``. Returns None if the file's units end there.

    Raises:
        TruncatedLog: the bytes end inside the unit.
        CorruptLog: lengths contradict each other.
    """
    if end - at < 2:
        return None
    size = int.from_bytes(bytes(buffer[at : at + 2]), "big", signed=True)
    if size < 1:
        return None
    if size < EXTENSION_UNIT.size:
        raise CorruptLog(f"extension unit of {size} bytes", at)
    if size > end - at:
        raise TruncatedLog(f"extension unit cut short: {end - at} of {size} bytes", at)
    head = ExtensionHead._make(EXTENSION_UNIT.unpack_from(buffer, at))
    if not 0 <= head.bitmap_length <= size - EXTENSION_UNIT.size:
        raise CorruptLog(
            f"bitmap of {head.bitmap_length} bytes in an extension unit of {size}", at + 18
        )
    start = at + EXTENSION_UNIT.size
    return Extension(
        size, head.tags_code, head.store_time_ms, bytes(buffer[start : start + head.bitmap_length])
    )


def encode_extension(tags_code: int, store_time_ms: int, bitmap: bytes = b"") -> bytes:
    """An extension's unit.

    Raises:
        ValueError: more than 32,767 bytes.
    """
    try:
        head = EXTENSION_UNIT.pack(
            EXTENSION_UNIT.size + len(bitmap), tags_code, store_time_ms, len(bitmap)
        )
    except struct.error as error:
        raise ValueError(f"extension unit with a bitmap of {len(bitmap)} bytes") from error
    return head + bitmap
