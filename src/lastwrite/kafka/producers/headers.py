"""Walk a segment from batch header to batch header for producers and transaction markers.

The smallest case is two batches: 97 bytes without a producer, then 78 bytes with a COMMIT of
producer 7. The walk reads bytes 0 to 61 and jumps to byte 97. It finds a producer and a control
batch there, and reads the type of its record. The result is one row::

    COMMIT  producer 7  epoch 0  base offset 2  last offset 2  timestamp 1700000000000

CRCs are not checked and nothing is decompressed, because the scan verifies every batch before a
file is written. Entries of the old formats have no producer and are skipped.

Source: Kafka 4.4 ``DefaultRecordBatch``, ``ControlRecordType``; docs/formats/kafka.md, "Record
batch".
"""
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import numpy as np

from lastwrite.encoding.big_endian import i32, i64, u16
from lastwrite.encoding.intrinsics import address
from lastwrite.encoding.kernel import njit
from lastwrite.kafka.format import kernels
from lastwrite.model.columns import ByteArray, Int64Array

# Columns of a row.
KIND, PRODUCER_ID, EPOCH, BASE_OFFSET, LAST_OFFSET, TIMESTAMP_MS, POSITION = range(7)
COLUMNS = 7

# Kinds of batches with a producer. Control batches without records or of other types get no row.
DATA = 0
TRANSACTIONAL = 1
ABORT = 2
COMMIT = 3
PACKED = 4  # a compressed control batch; POSITION is its position in ``data``

# Why a walk stops.
MORE = 0  # the next batch extends beyond ``data``
FULL = 1  # ``rows`` is full
END = 2  # the file ends, or a batch that reaches ``end_offset`` begins
DAMAGED = 3  # no complete batch begins here

_LARGEST = np.int64(0x7FFFFFFFFFFFFFFF)


@njit(cache=True, nogil=True)
def _control_type(data, at, end):
    """The type in the key of the uncompressed control record at ``at``; -1 if malformed."""
    stop, _, _, _, key_at, key_length, _ = kernels._record(address(data), at, end)
    if stop < 0 or key_length < 4 or data[key_at] >= 128:  # a version below 0
        return np.int64(-1)
    return (np.int64(data[key_at + 2]) << 8) | np.int64(data[key_at + 3])


@njit(cache=True, nogil=True)
def walk_headers(
    data: ByteArray, left: int, floor: int, from_offset: int, end_offset: int, rows: Int64Array
) -> tuple[int, int, int, int, int]:
    """Write a row for each batch that begins in ``data`` and has a producer.

    ``left`` is the number of bytes in the file from the first byte of ``data`` on. ``floor`` is the
    smallest valid base offset of the next batch. A batch gets a row of ``rows`` only if its last
    offset is in [``from_offset``, ``end_offset``). A marker's timestamp is its batch's largest
    timestamp.

    Returns (rows filled, position to continue at, floor there, batches walked, why it stopped). The
    position may be beyond ``data``. MORE at position 0 means that ``data`` is too small for a
    control batch, which must be read completely.
    """
    at = 0
    end = len(data)
    filled = 0
    seen = 0
    while True:
        if left - at < 17:
            return filled, at, floor, seen, END if at == left else DAMAGED
        if end - at < kernels.HEADER_BYTES and end < left:
            return filled, at, floor, seen, MORE
        length = i32(data, at + 8)
        magic = np.int64(np.int8(data[at + 16]))
        size = length + 12
        if length < 14 or magic < 0 or magic > 2 or size > left - at:
            return filled, at, floor, seen, DAMAGED
        base = i64(data, at)
        delta = np.int64(0)
        if magic == 2:
            if size < kernels.HEADER_BYTES:
                return filled, at, floor, seen, DAMAGED
            delta = i32(data, at + 23)
        if base < floor or delta < 0 or base > _LARGEST - delta - 1:
            return filled, at, floor, seen, DAMAGED
        if base + delta >= end_offset:
            return filled, at, floor, seen, END
        if magic == 2 and data[at + 43] < 128 and base + delta >= from_offset:
            if filled == len(rows):
                return filled, at, floor, seen, FULL
            attributes = data[at + 22]
            kind = TRANSACTIONAL if attributes & 16 else DATA
            if attributes & 32:
                kind = -1
                if i32(data, at + 57) != 0:
                    if end - at < size:
                        return filled, at, floor, seen, MORE
                    if attributes & 7:
                        kind = PACKED
                    else:
                        kind = _control_type(data, at + kernels.HEADER_BYTES, at + size)
                        if kind < 0:
                            return filled, at, floor, seen, DAMAGED
                        kind = (ABORT if kind == 0 else COMMIT) if kind <= 1 else -1
            if kind >= 0:
                row = rows[filled]
                row[0] = kind
                row[1] = i64(data, at + 43)
                row[2] = np.int64(np.int16(u16(data, at + 51)))
                row[3] = base
                row[4] = base + delta
                row[5] = i64(data, at + 35)
                row[6] = at
                filled += 1
        floor = base + delta + 1
        seen += 1
        at += size
        if at >= end and left > at:
            return filled, at, floor, seen, MORE
