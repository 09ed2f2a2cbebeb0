"""Units: the entries for records in a consume queue, a batch consume queue or a compaction index.

Consume queue, the smallest case: a unit has 20 bytes and its number is the queue offset, so unit q
is at byte ``20 * q`` of the queue. If a queue's first message is not number 0, fillers precede its
unit in the file.

Batch consume queue: a unit has 46 bytes. Its record has the queue offsets ``base`` to ``base +
number - 1``, so units are searched by base. The compaction index has the same units, with
``number`` always 1 and gaps between bases. Its units end at the first invalid unit: an end unit,
zeros, or the file's end.

Consume queue extension: units of at least 20 bytes. A consume queue unit then has the address of an
extension unit instead of a tags code.

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
    """The unit of a record in a consume queue: 20 bytes."""

    # fmt: off
    #                               offset  type
    physical_offset: Annotated[int, At(0,  I64)]  # address in the commit log
    size:            Annotated[int, At(8,  I32)]  # bytes of the record
    # hash of the tag, delivery time, or address of an extension unit
    tags_code:       Annotated[int, At(12, I64)]
    # fmt: on


class BatchUnit(NamedTuple):
    """The unit of a record in a batch consume queue or a compaction index: 46 bytes.

    ``physical_offset`` is an address in the commit log or in the compaction log.
    """

    # fmt: off
    #                                offset  type
    physical_offset:  Annotated[int, At(0,  I64)]
    size:             Annotated[int, At(8,  I32)]
    tags_code:        Annotated[int, At(12, I64)]
    store_time_ms:    Annotated[int, At(20, I64)]
    base:             Annotated[int, At(28, I64)]  # first queue offset
    number:           Annotated[int, At(36, I16)]  # count of queue offsets
    compacted_offset: Annotated[int, At(38, I32)]  # always -1
    reserved:         Annotated[int, At(42, I32)]  # always 0
    # fmt: on


class ExtensionHead(NamedTuple):
    """The first fields of a unit in a consume queue extension file."""

    # fmt: off
    #                             offset  type
    size:          Annotated[int, At(0,  I16)]  # bytes of the unit; below 1: no more units
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

# A tags code that refers to an extension unit is EXTENSION_BASE plus the unit's address.
EXTENSION_BASE = -(1 << 63)

Units = npt.NDArray[np.void]


class Extension(NamedTuple):
    """A decoded unit of a consume queue extension file (``consumequeue_ext``)."""

    size: int
    tags_code: int
    store_time_ms: int
    bitmap: bytes


def consume_queue_units(data: Buffer) -> Units:
    """A view of the units of 20 bytes in ``data``. A partial unit at the end is skipped."""
    return np.frombuffer(data, CONSUME_QUEUE_DTYPE, len(data) // CONSUME_QUEUE_UNIT.size)


def batch_units(data: Buffer) -> Units:
    """A view of the units of 46 bytes in ``data``. A partial unit at the end is skipped."""
    return np.frombuffer(data, BATCH_DTYPE, len(data) // BATCH_UNIT.size)


def queue_units(data: Buffer, *, is_batch: bool) -> Units:
    """A view of the complete units of a consume queue file; ``is_batch`` selects 46-byte units."""
    return batch_units(data) if is_batch else consume_queue_units(data)


def offsets_of(units: Units, row: int, start: int) -> tuple[int, int]:
    """The first and last queue offset of the unit in row ``row``.

    ``start`` is the address of the file's first byte in the queue.
    """
    if units.dtype == BATCH_DTYPE:
        base = int(units["base"][row])
        return base, base + int(units["number"][row]) - 1
    offset = start // CONSUME_QUEUE_UNIT.size + row
    return offset, offset


def lower_bound(column: npt.NDArray[Any], needed: int, count: int) -> int:
    """The index of the first value in ``column`` that is at least ``needed``; ``count`` if none is.

    The values are ascending. Bisection reads only a few pages of a mapped file.
    """
    return bisect_left(range(count), needed, key=lambda row: int(column[row]))


def valid_count(units: Units) -> int:
    """The number of units before the first invalid unit.

    A unit is valid if its address is at least 0 and its size at least 1. A unit of 46 bytes must
    also have a base of at least 0 and a number of at least 1. A filler is valid.
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
    """The number of the first 46-byte unit whose last offset is at least ``offset``.

    A read at queue offset ``offset`` begins with this unit. Returns the number of valid units if
    there is no such unit. ``count`` is the number of valid units; if it is None, they are counted.
    """
    if count is None:
        count = valid_count(units)
    return bisect_left(range(count), offset, key=lambda row: offsets_of(units, row, 0)[1])


def decode_extension(buffer: Buffer, at: int, end: int) -> Extension | None:
    """Decode the extension unit at ``at``. Returns None if the file's units end there.

    Raises:
        TruncatedLog: the bytes end inside the unit.
        CorruptLog: the unit's size is too small for its fields or its bitmap.
    """
    if end - at < 2:
        return None
    size = int.from_bytes(bytes(buffer[at : at + 2]), "big", signed=True)
    if size < 1:
        return None
    if size < EXTENSION_UNIT.size:
        raise CorruptLog(f"the extension unit's size is {size} bytes, which is invalid", at)
    if size > end - at:
        raise TruncatedLog(
            f"the file ends inside an extension unit: it has {end - at} of {size} bytes", at
        )
    head = ExtensionHead._make(EXTENSION_UNIT.unpack_from(buffer, at))
    if not 0 <= head.bitmap_length <= size - EXTENSION_UNIT.size:
        raise CorruptLog(
            f"the bitmap length is {head.bitmap_length}, which does not fit into an extension "
            f"unit of {size} bytes",
            at + 18,
        )
    start = at + EXTENSION_UNIT.size
    return Extension(
        size, head.tags_code, head.store_time_ms, bytes(buffer[start : start + head.bitmap_length])
    )


def encode_extension(tags_code: int, store_time_ms: int, bitmap: bytes = b"") -> bytes:
    """Encode an extension unit.

    Raises:
        ValueError: the unit has more than 32,767 bytes.
    """
    try:
        head = EXTENSION_UNIT.pack(
            EXTENSION_UNIT.size + len(bitmap), tags_code, store_time_ms, len(bitmap)
        )
    except struct.error as error:
        raise ValueError(f"extension unit with a bitmap of {len(bitmap)} bytes") from error
    return head + bitmap
