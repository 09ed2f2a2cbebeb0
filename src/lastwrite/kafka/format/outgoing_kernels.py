"""The kernel of ``outgoing``: joins records of several batches, with offset deltas 0, 1, 2, ….

``tests/unit/test_outgoing.py`` compares it with ``kafka.format.batch``.
"""
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import numpy as np

from lastwrite.encoding.big_endian import i64
from lastwrite.encoding.intrinsics import address, copy_bytes, store8
from lastwrite.encoding.kernel import njit
from lastwrite.kafka.format.batch_layout import APPEND_TIME_BIT
from lastwrite.kafka.format.kernels import (
    BAD_OFFSET,
    BAD_RECORD,
    OK,
    TRAILING,
    _put_varint,
    _record,
    _varint,
    _varint_size,
)

ROOM = 24  # a record grows by at most this many bytes


@njit(cache=True, nogil=True)
def renumber(plain, data, table, first, last, low, end_offset, out, offsets):
    """Write the selected records of the batches ``table[first:last]`` to ``out``, as one batch.

    Selects the offsets from ``low`` to ``end_offset``, exclusive. The new offset deltas are 0, 1,
    …, and timestamps are relative to the first record. ``plain`` has the decompressed records and
    ``data`` the batches' headers.

    ``offsets`` receives the records' source offsets. ``out`` needs space for the decompressed
    records, plus ROOM bytes per record.

    Returns (bytes written, records, first timestamp, largest timestamp, code, index of the faulty
    batch, position in ``plain``).
    """
    source = address(plain)
    target = address(out)
    at = np.int64(0)
    kept = np.int64(0)
    reference = np.int64(-1)
    largest = np.int64(-1)
    for b in range(first, last):
        row = table[b]
        base_time = i64(data, row.position + 27)
        append_time = (data[row.position + 22] & APPEND_TIME_BIT) != 0
        place = row.plain_start
        end = row.plain_end
        before = np.int64(-1)
        top = row.next_offset - 1 - row.base_offset
        for _ in range(row.records):
            stop, stamp, offset_at, delta, key_at, key_length, value_length = _record(
                source, place, end
            )
            if stop < 0:
                return at, kept, reference, largest, BAD_RECORD, b, place
            if delta <= before or delta > top:
                return at, kept, reference, largest, BAD_OFFSET, b, place
            before = delta
            offset = row.base_offset + delta
            if low <= offset < end_offset:
                time = row.max_timestamp if append_time else base_time + stamp
                if kept == 0:
                    reference = time
                    largest = time
                largest = max(largest, time)
                rest = _varint(source, offset_at, stop)[1]
                new_stamp = time - reference
                length = 1 + _varint_size(new_stamp) + _varint_size(kept) + (stop - rest)
                at = _put_varint(target, at, length)
                store8(target, at, np.uint64(0))
                at = _put_varint(target, at + 1, new_stamp)
                at = _put_varint(target, at, kept)
                copy_bytes(target, at, source, rest, stop - rest)
                at += stop - rest
                offsets[kept] = offset
                kept += 1
            place = stop
        if place != end:
            return at, kept, reference, largest, TRAILING, b, place
    return at, kept, reference, largest, OK, last, 0
