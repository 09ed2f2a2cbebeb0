"""Units: what a consume queue, a batch consume queue and a compaction index keep of a record.

Consume queue, the smallest case: unit number = queue offset, 20 bytes, so unit q lies at byte ``20
* q`` of the queue. Where a queue's first kept message is not number 0, fillers stand before it in
its file.

Batch consume queue: 46 bytes a record; a record covers the offsets ``base`` to ``base + number -
1``, so units are searched by base; one that is no inner batch covers its own offset. The compaction
index has the same units, ``number`` always 1, with gaps between bases; its file ends at the first
unit that is not valid: an end unit, zeros, or the file's end.

Extension: units of 20 bytes and more, at addresses that a consume queue states in place of a tags
code.

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
    # hash of the tag, time of delivery, or an extension's address
    tags_code:       Annotated[int, At(12, I64)]
    # fmt: on


class BatchUnit(NamedTuple):
    """A record in a batch consume queue or in a compaction index."""

    # fmt: off
    #                                offset  type
    physical_offset:  Annotated[int, At(0,  I64)]  # in the commit log; in the compaction log
    size:             Annotated[int, At(8,  I32)]
    tags_code:        Annotated[int, At(12, I64)]
    store_time_ms:    Annotated[int, At(20, I64)]
    base:             Annotated[int, At(28, I64)]  # first queue offset
    number:           Annotated[int, At(36, I16)]  # of queue offsets
    compacted_offset: Annotated[int, At(38, I32)]  # -1
    reserved:         Annotated[int, At(42, I32)]  # 0
    # fmt: on


class ExtensionHead(NamedTuple):
    """What an extension's unit begins with."""

    # fmt: off
    #                             offset  type
    size:          Annotated[int, At(0,  I16)]  # of the unit; below 1: nothing more in this file
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

EXTENSION_BASE = -(1 << 63)  # plus a byte of the extension: the tags code that names it

Units = npt.NDArray[np.void]


class Extension(NamedTuple):
    """A decoded unit of an extension."""

    size: int
    tags_code: int
    store_time_ms: int
    bitmap: bytes


def consume_queue_units(data: Buffer) -> Units:
    """The whole units of 20 bytes in ``data``, without a copy; a rest that is no unit is left out."""
    return np.frombuffer(data, CONSUME_QUEUE_DTYPE, len(data) // CONSUME_QUEUE_UNIT.size)


def batch_units(data: Buffer) -> Units:
    """The whole units of 46 bytes in ``data``, without a copy; a rest that is no unit is left out."""
    return np.frombuffer(data, BATCH_DTYPE, len(data) // BATCH_UNIT.size)


def queue_units(data: Buffer, *, is_batch: bool) -> Units:
    """The whole units of a file of a consume queue, of either kind."""
    return batch_units(data) if is_batch else consume_queue_units(data)


def offsets_of(units: Units, row: int, start: int) -> tuple[int, int]:
    """The first and last queue offset of a unit in a file that begins at byte ``start``."""
    if units.dtype == BATCH_DTYPE:
        base = int(units["base"][row])
        return base, base + int(units["number"][row]) - 1
    offset = start // CONSUME_QUEUE_UNIT.size + row
    return offset, offset


def lower_bound(column: npt.NDArray[Any], wanted: int, count: int) -> int:
    """The first of ``count`` ascending values that is not below ``wanted``, else ``count``. Looks
    at the logarithm of their number, so that a mapped file is not read.
    """
    return bisect_left(range(count), wanted, key=lambda row: int(column[row]))


def valid_count(units: Units) -> int:
    """How many units there are before the first that is not valid, of either kind.

    A filler counts: it takes the place of a unit. Of 46 bytes valid are those with an address and a
    base from 0 on, a size and a number from 1 on.
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
    """Which of the first ``count`` units of 46 bytes answers a reader of queue offset ``offset``:
    the first whose last offset is not below it, else ``count``.

    ``count``: of valid units, found where it is not given.
    """
    if count is None:
        count = valid_count(units)
    return bisect_left(range(count), offset, key=lambda row: offsets_of(units, row, 0)[1])


def decode_extension(buffer: Buffer, at: int, end: int) -> Extension | None:
    """The extension's unit at ``at``, None where the file's units end there.

    Raises:
        TruncatedLog: the bytes end inside the unit.
        CorruptLog: lengths that contradict each other.
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
