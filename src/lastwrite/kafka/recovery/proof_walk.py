"""Walk a segment from entry to entry, verifying each checksum, as a broker's recovery does.

The smallest case: two batches of 97 and 78 bytes, and 30 bytes of a third. The walk verifies the
first two batches. The length of the third is more than the rest of the file, so the walk stops at
byte 175. Nothing is decompressed. The walk checks only length and checksum, so it stops exactly
where Kafka's recovery truncates a segment.

Source: Kafka 4.4 ``FileLogInputStream.nextBatch``, ``LogSegment.recover``,
``DefaultRecordBatch.ensureValid``, ``LegacyRecord.ensureValid``; docs/formats/kafka.md, "Record
batch"; docs/formats/kafka-cleaning.md, "Loading a log".
"""
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import numpy as np

from lastwrite.encoding.big_endian import i32, i64, u32
from lastwrite.encoding.checksum import crc32, crc32c
from lastwrite.encoding.kernel import njit
from lastwrite.kafka.format.kernels import HEADER_BYTES
from lastwrite.model.columns import ByteArray, Int64Array

# Columns of a row. A compressed message of magic 0 or 1 has its base offset inside the compressed
# data, so BASE_OFFSET is its last offset.
POSITION, SIZE, BASE_OFFSET, LAST_OFFSET, TIMESTAMP_MS, IS_CONTROL = range(6)
COLUMNS = 6

# Why a walk stops.
MORE = 0  # the next entry extends beyond ``data``
FULL = 1  # ``rows`` is full
END = 2  # the file ends here
TORN = 3  # the file ends inside an entry
CORRUPT = 4  # an impossible size, or a wrong checksum

_FRAME_BYTES = 17  # bytes of an entry from its start through the magic
_LEAST_SIZE = 14


@njit(cache=True, nogil=True)
def describe(data, at, size, row):
    """Write the header fields of the entry ``data[at:at + size]`` to a row."""
    magic = np.int64(np.int8(data[at + 16]))
    base = i64(data, at)
    row[0] = at
    row[1] = size
    row[2] = base
    row[3] = base + i32(data, at + 23) if magic >= 2 else base
    row[4] = np.int64(-1)
    row[5] = 0
    if magic >= 2:
        row[4] = i64(data, at + 35)
        row[5] = (data[at + 22] >> 5) & 1
    elif magic == 1 and size >= 26:
        row[4] = i64(data, at + 18)


@njit(cache=True, nogil=True)
def walk_proven(data: ByteArray, left: int, rows: Int64Array) -> tuple[int, int, int, int]:
    """Verify the complete entries in ``data`` one after another, and write a row for each.

    ``left`` is the number of bytes in the file from the first byte of ``data`` on. Returns (rows
    filled, position after the last verified entry, size of the next entry or 0 if unknown, why the
    walk stopped). Positions in rows are relative to ``data``.
    """
    at = 0
    end = len(data)
    filled = 0
    while True:
        if left - at <= _FRAME_BYTES:
            return filled, at, 0, END if at == left else TORN
        if end - at <= _FRAME_BYTES:
            return filled, at, _FRAME_BYTES + 1, MORE
        size = i32(data, at + 8)
        if size < _LEAST_SIZE:
            return filled, at, 0, CORRUPT
        size += 12
        if size > left - at:
            return filled, at, size, TORN
        if size > end - at:
            return filled, at, size, MORE
        if filled == len(rows):
            return filled, at, size, FULL
        magic = np.int64(np.int8(data[at + 16]))
        if magic < 2:
            if crc32(data, at + 16, at + size) != np.uint64(u32(data, at + 12)):
                return filled, at, size, CORRUPT
        elif size < HEADER_BYTES or crc32c(data, at + 21, at + size) != np.uint64(
            u32(data, at + 17)
        ):
            return filled, at, size, CORRUPT
        describe(data, at, size, rows[filled])
        filled += 1
        at += size


@njit(cache=True, nogil=True)
def seek(data: ByteArray, at: int, left: int, floor: int, ceiling: int) -> int:
    """The first position in ``data[at:]`` where an entry may begin, or -1.

    The offset there is from ``floor`` to ``ceiling``, and the entry does not exceed the ``left``
    bytes of the file from the start of ``data`` on. The checksum is not verified.
    """
    for place in range(at, len(data) - _FRAME_BYTES):
        magic = data[place + 16]
        if magic > 2:
            continue
        size = np.int64(i32(data, place + 8))
        if size < (HEADER_BYTES - 12 if magic == 2 else _LEAST_SIZE) or size + 12 > left - place:
            continue
        base = i64(data, place)
        if floor <= base <= ceiling:
            return place
    return -1
