"""Kernels of a compaction run, for records split by ``kernels.split`` and their index units.

A record counts as a batch with one record. ``tests/unit/test_rocketmq_chunk.py`` compares each
kernel with a slow Python version.
"""
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import numpy as np

from lastwrite.encoding.big_endian import i64
from lastwrite.encoding.fingerprint import fingerprint
from lastwrite.encoding.intrinsics import (
    address,
    copy_bytes,
    load16,
    load32,
    store16,
    store32,
    store64,
    swap16,
    swap32,
    swap64,
)
from lastwrite.encoding.kernel import njit
from lastwrite.model.columns import (
    DROP,
    KEYLESS,
    ROW_BASE_OFFSET,
    ROW_MAX_TIMESTAMP,
    ROW_NEXT_OFFSET,
    ROW_NUMBER,
    ROW_POSITION,
    ROW_SIZE,
    TOMBSTONE,
)
from lastwrite.rocketmq.format.kernels import is_whole
from lastwrite.rocketmq.format.record import COMPRESSED

_PHYSICAL_OFFSET_AT = 28  # position of the address in a record
_UNIT_BYTES = 46
_MAX_I64 = 0x7FFFFFFFFFFFFFFF


@njit(cache=True, nogil=True)
def frame(messages, rows, lowest_offset, table):
    """Fill a BATCH row for each of the first ``rows`` rows of a MESSAGE table.

    Returns the number of rows filled: filling stops before the first record whose queue offset is
    below ``lowest_offset`` or does not rise.
    """
    floor = lowest_offset
    for i in range(rows):
        message = messages[i]
        base = message.queue_offset
        if base < floor or base == _MAX_I64:
            return i
        floor = base + 1
        row = table[i]
        row.position = message.position
        row.origin = message.position
        row.origin_size = message.size
        row.size = message.size
        row.base_offset = base
        row.next_offset = base + 1
        row.records = 1
        row.max_timestamp = message.store_time
        row.horizon = message.store_time
        row.flags = 0
        row.producer_id = -1
        row.producer_epoch = -1
        row.codec = 0
        row.plain_start = message.position
        row.plain_end = message.position + message.size
    return rows


@njit(cache=True, nogil=True)
def note_deletes(messages, rows, deletes):
    """Mark the records whose body is empty in ``deletes``, for the first ``rows`` records.

    Returns the number of compressed records among the other records.
    """
    packed = 0
    for i in range(rows):
        message = messages[i]
        deletes[i] = message.body_length == 0
        packed += message.body_length != 0 and message.sys_flag & COMPRESSED != 0
    return packed


@njit(cache=True, nogil=True)
def walk(data, messages, first, last, deletes, secret, ordinal, states, entries, filled, keys):
    """Write the states and key fingerprints of the records ``messages[first:last]`` of ``data``.

    ``deletes`` has a byte for each record: whether its body is empty. Returns the number of entries
    filled. The parameters are those of ``engine.system.Format.walk``, as arrays and numbers,
    because a kernel does not accept objects.
    """
    source = address(data)
    for i in range(first, last):
        message = messages[i]
        seen = i - first
        length = message.key_length
        if length < 0:
            states[seen] = KEYLESS
            continue
        states[seen] = TOMBSTONE if deletes[i] else 0
        one, two = fingerprint(source, message.key_at, length, secret)
        entries[filled, 0] = one
        entries[filled, 1] = (two & np.uint64(0xFFFFFFFF00000000)) | np.uint64(ordinal + seen)
        if len(keys) > 0:
            keys[filled, 0] = message.key_at
            keys[filled, 1] = length
        filled += 1
    return filled


@njit(cache=True, nogil=True)
def rebuild(data, messages, count, actions, out, rows):
    """Copy each of the first ``count`` records to ``out``, unless its action is DROP.

    Writes a row for each to ``rows`` (see ROW_COLUMNS).

    Returns (bytes written, rows filled, records processed). If fewer than ``count`` records are
    processed, the next record's body does not match its checksum.
    """
    at = np.int64(0)
    filled = 0
    # Adjacent records are copied in one operation.
    begin = np.int64(0)
    pending = np.int64(0)
    for i in range(count):
        message = messages[i]
        if actions[i] == DROP:
            if pending:
                copy_bytes(out, at - pending, data, begin, pending)
                pending = np.int64(0)
            continue
        if not is_whole(data, message.body_at, message.body_length, message.body_crc):
            return at, filled, i
        if pending == 0:
            begin = message.position
        row = rows[filled]
        row[ROW_POSITION] = at
        row[ROW_SIZE] = message.size
        row[ROW_NEXT_OFFSET] = message.queue_offset + 1
        row[ROW_MAX_TIMESTAMP] = message.store_time
        row[ROW_BASE_OFFSET] = message.queue_offset
        row[ROW_NUMBER] = message.tags_code
        filled += 1
        at += message.size
        pending += message.size
    if pending:
        copy_bytes(out, at - pending, data, begin, pending)
    return at, filled, count


@njit(cache=True, nogil=True)
def place(data, rows, first, last, start, units, units_at):
    """Store new addresses in the records ``rows[first:last]`` of ``data``, and write their units.

    The first record's address is ``start``. The units have 46 bytes each and are written from byte
    ``units_at`` of ``units``.

    Source: docs/formats/rocketmq-compaction.md, "Into the compaction log".
    """
    records, out = address(data), address(units)
    for i in range(first, last):
        at, size = rows[i, ROW_POSITION], rows[i, ROW_SIZE]
        physical = swap64(np.uint64(start))
        store64(records, at + _PHYSICAL_OFFSET_AT, physical)
        store64(out, units_at, physical)
        store32(out, units_at + 8, swap32(np.uint64(size)))
        store64(out, units_at + 12, swap64(np.uint64(rows[i, ROW_NUMBER])))
        store64(out, units_at + 20, swap64(np.uint64(rows[i, ROW_MAX_TIMESTAMP])))
        store64(out, units_at + 28, swap64(np.uint64(rows[i, ROW_BASE_OFFSET])))
        store16(out, units_at + 36, swap16(np.uint64(1)))
        store32(out, units_at + 38, np.uint64(0xFFFFFFFF))
        store32(out, units_at + 42, np.uint64(0))
        units_at += _UNIT_BYTES
        start += size


# Defects of a unit. ``store.queues`` has the messages.
FITS = 0
GAP = 1  # the record does not begin where the previous record ends
BEHIND = 2  # the record would end after the end of its file
ORDER = 3  # the queue offset is not above the previous unit's
NUMBER = 4  # the unit counts more than one record
PLACE = 5  # the unit's address differs from the record's address
SIZE = 6  # the unit's size differs from the record's size
OFFSET = 7  # the unit's queue offset differs from the record's
TIME = 8  # the unit's store time differs from the record's
NONE = 9  # the record has no unit


@njit(cache=True, nogil=True, inline="always")
def _size(data, at):
    return np.int64(np.int32(swap32(load32(data, at + 8))))


@njit(cache=True, nogil=True, inline="always")
def _number(data, at):
    return np.int64(np.int16(swap16(load16(data, at + 36))))


@njit(cache=True, nogil=True, inline="always")
def _is_valid(data, at):
    is_placed = i64(data, at) >= 0 and _size(data, at) > 0
    return is_placed and i64(data, at + 28) >= 0 and _number(data, at) > 0


@njit(cache=True, nogil=True)
def count_units(data, is_valid):
    """The number of leading units in ``data`` that are all valid, or all invalid.

    ``is_valid`` selects which of the two are counted.
    """
    source = address(data)
    slots = len(data) // _UNIT_BYTES
    for i in range(slots):
        if _is_valid(source, i * _UNIT_BYTES) != is_valid:
            return i
    return slots


@njit(cache=True, nogil=True)
def follow_units(data, start, file_end, floor):
    """Check that the records of the units in ``data`` are contiguous in the log file.

    The first record must begin at address ``start``, and the last end at ``file_end`` or before.
    Queue offsets must rise, and be at least ``floor``.
    Returns (defect, number of the defective unit, address after the last record, largest store
    time).
    """
    source = address(data)
    place = np.int64(start)
    largest = np.int64(-1)
    for i in range(len(data) // _UNIT_BYTES):
        at = i * _UNIT_BYTES
        size, base = _size(source, at), i64(source, at + 28)
        if i64(source, at) != place:
            return GAP, i, place, largest
        if size > file_end - place:
            return BEHIND, i, place, largest
        if base < floor or base == _MAX_I64:
            return ORDER, i, place, largest
        if _number(source, at) != 1:
            return NUMBER, i, place, largest
        place += size
        floor = base + 1
        largest = max(largest, i64(source, at + 20))
    return FITS, np.int64(0), place, largest


@njit(cache=True, nogil=True)
def compare_units(data, table, shift):
    """Compare the units in ``data`` with the records of a BATCH table, row by row.

    A record's address is its origin in ``table`` plus ``shift``. Returns (defect, row of the
    defective unit).
    """
    source = address(data)
    for i in range(len(table)):
        row = table[i]
        at = i * _UNIT_BYTES
        if at + _UNIT_BYTES > len(data) or i64(source, at) < 0 or _size(source, at) <= 0:
            return NONE, i
        if i64(source, at) != row.origin + shift:
            return PLACE, i
        if _size(source, at) != row.origin_size:
            return SIZE, i
        if i64(source, at + 28) != row.base_offset:
            return OFFSET, i
        if i64(source, at + 20) != row.max_timestamp:
            return TIME, i
    return FITS, 0
