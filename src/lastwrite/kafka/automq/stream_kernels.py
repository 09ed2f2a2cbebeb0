"""Kernels that walk stream records and copy their payloads.

A run is a range of bytes with stream records of one stream: data blocks in an object, or records in
a write-ahead object, which are ``WAL_GAP_BYTES`` apart. ``stored_objects`` has the layouts.
"""
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import numpy as np

from lastwrite.encoding.big_endian import i32, i64
from lastwrite.encoding.intrinsics import address, copy_bytes, load8
from lastwrite.encoding.kernel import njit

WAL_GAP_BYTES = 24  # size of the header between two records of a write-ahead object
BLOCK_HEADER_BYTES, RECORD_HEADER_BYTES = 10, 33
_BLOCK_MAGIC, _BLOCK_FLAGS, _RECORD_MAGIC = 0x5A, 0x02, 0x22

# Why a kernel stopped.
AT_END = 0
BLOCK_MAGIC = 1  # the block's magic is unknown
BLOCK_FLAGS = 2  # the block's flags are unknown
BLOCK_SIZE = 3  # the block states a negative size, or exceeds the run
BLOCK_COUNT = 4  # the block's record count does not match its records
RECORD_MAGIC = 5  # the record's magic is unknown
RECORD_SIZE = 6  # the record exceeds its block
OTHER_STREAM = 7  # the record belongs to another stream
NOT_CONTINUED = 8  # the record does not begin where the one before ended
IS_LINK = 9  # the record is a link record


# The places of ``state``.
STREAM = 0  # stream id
NEXT = 1  # stream offset of the next record
FIRST = 2  # records up to this stream offset are skipped
STOP = 3  # records from this stream offset on are skipped
FILLED = 4  # bytes in ``target``
STATE_WORDS = 5


@njit(cache=True, nogil=True)
def _copy_records(data, at, end, gap, state, target):
    """Copy the payloads of records in ``data[at:end]``; return (position, records, code)."""
    records = np.int64(0)
    while at < end:
        if end - at < RECORD_HEADER_BYTES:
            return at, records, RECORD_SIZE
        if load8(data, at) != np.uint64(_RECORD_MAGIC):
            return at, records, RECORD_MAGIC
        base = i64(data, at + 17)
        count = i32(data, at + 25)
        size = i32(data, at + 29)
        if size < 0 or size > end - at - RECORD_HEADER_BYTES:
            return at, records, RECORD_SIZE
        if i64(data, at + 1) != state[STREAM]:
            return at, records, OTHER_STREAM
        if count < 0:
            return at, records, IS_LINK
        if base != state[NEXT]:
            return at, records, NOT_CONTINUED
        if base + count > state[FIRST] and base < state[STOP]:
            copy_bytes(target, state[FILLED], data, at + RECORD_HEADER_BYTES, size)
            state[FILLED] += size
        state[NEXT] = base + count
        at += RECORD_HEADER_BYTES + size
        records += 1
        if at < end:
            at += gap
    return at, records, AT_END


@njit(cache=True, nogil=True)
def copy_payloads(data, at, end, gap, state, target):
    """Copy the payloads of the run ``data[at:end]`` to ``target``, which has enough space.

    ``gap`` is 0 for data blocks, and WAL_GAP_BYTES for a write-ahead object. ``state`` is updated.
    Returns the number of records, the position reached, and a code for the reason to stop.
    """
    where = address(data)
    to = address(target)
    if gap:
        place, records, code = _copy_records(where, at, end, gap, state, to)
        return records, place, code
    records = np.int64(0)
    while at < end:
        if end - at < BLOCK_HEADER_BYTES:
            return records, at, BLOCK_SIZE
        if load8(where, at) != np.uint64(_BLOCK_MAGIC):
            return records, at, BLOCK_MAGIC
        if load8(where, at + 1) != np.uint64(_BLOCK_FLAGS):
            return records, at, BLOCK_FLAGS
        count = i32(where, at + 2)
        size = i32(where, at + 6)
        body = at + BLOCK_HEADER_BYTES
        if size < 0 or size > end - body:
            return records, at, BLOCK_SIZE
        place, found, code = _copy_records(where, body, body + size, 0, state, to)
        records += found
        if code != AT_END:
            return records, place, code
        if found != count:
            return records, at, BLOCK_COUNT
        at = body + size
    return records, at, AT_END
