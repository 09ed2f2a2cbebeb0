"""Walk a segment from batch header to batch header for producers and transaction markers.

The smallest case, two batches: one of 97 bytes without a producer, one of 78 that is a COMMIT of
producer 7. The walk looks at bytes 0 to 61, jumps to 97, finds a producer and a control batch, and
reads the type of its one record. The result is one row::

    COMMIT  producer 7  epoch 0  base offset 2  last offset 2  timestamp 1700000000000

CRCs are not checked and nothing is decompressed: the scan verifies every batch before anything is
written. Entries of the old formats have no producer and are skipped.

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

# Kinds of batches that have a producer. Emptied control batches and those of other types have none.
DATA = 0
TRANSACTIONAL = 1
ABORT = 2
COMMIT = 3
PACKED = 4  # a compressed control batch, at the row's position

# Why a walk stops.
MORE = 0  # the next batch extends beyond ``data``
FULL = 1  # ``rows`` is full
END = 2  # the file ends, or a batch that reaches ``end_offset`` begins
DAMAGED = 3  # no whole batch begins here

_LARGEST = np.int64(0x7FFFFFFFFFFFFFFF)


@njit(cache=True, nogil=True)
def _control_type(data, at, end):
    """The type in the key of the uncompressed control record at ``at``; -1 if there is none."""
    stop, _, _, _, key_at, key_length, _ = kernels._record(address(data), at, end)
    if stop < 0 or key_length < 4 or data[key_at] >= 128:  # a version below 0
        return np.int64(-1)
    return (np.int64(data[key_at + 2]) << 8) | np.int64(data[key_at + 3])


@njit(cache=True, nogil=True)
def walk_headers(
    data: ByteArray, left: int, floor: int, from_offset: int, end_offset: int, rows: Int64Array
) -> tuple[int, int, int, int, int]:
    """Walk the batches that begin in ``data``; the file has ``left`` bytes from its first byte on.

    ``floor`` is the least offset that the next batch may have. Each batch with a producer that ends
    in [``from_offset``, ``end_offset``) fills a row of ``rows``, in order. A marker's timestamp is
    its batch's largest timestamp.

    Returns (rows filled, position to continue at, which may be beyond ``data``, floor there,
    batches walked, why it stopped). MORE at position 0 means that ``data`` is too small for a batch
    that must be read whole.
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
