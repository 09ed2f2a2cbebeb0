"""Kernels over Kafka record batches: split, walk, thin, seal.

Each kernel works on a chunk and checks every count, size and length before use. It returns an error
as a code and a position instead of raising. Functions that run for every record take the address of
the bytes instead of an array (see ``encoding.intrinsics``). ``tests/unit/test_kafka_kernels.py``
compares each kernel with the slow function in ``kafka.format.batch``.

Header, 61 bytes, big-endian (docs/formats/kafka.md, "Record batch"):

    0 base offset i64 · 8 length i32 · 12 leader epoch i32 · 16 magic i8 · 17 crc u32 · 21
    attributes i16 23 last offset delta i32 · 27 base timestamp i64 · 35 max timestamp i64 · 43
    producer id i64 51 producer epoch i16 · 53 base sequence i32 · 57 record count i32 · 61 records

Record: length, attributes i8, timestamp delta, offset delta, key length, key, value
length, value, header count, headers; lengths and deltas are zig-zag varints.
"""
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import numpy as np

from lastwrite.encoding.big_endian import i32, i64, u16, u32
from lastwrite.encoding.checksum import crc32c
from lastwrite.encoding.fingerprint import fingerprint
from lastwrite.encoding.intrinsics import (
    address,
    copy_bytes,
    load8,
    store8,
    store16,
    store32,
    store64,
    swap16,
    swap32,
    swap64,
)
from lastwrite.encoding.kernel import njit
from lastwrite.model.columns import (
    ABORTED,
    BAD_HORIZON,
    COMMITTED,
    CONTROL,
    COPY,
    DROP,
    EMPTY,
    HAS_PRODUCER,
    IS_ABORTED,
    IS_CONTROL,
    IS_OLD,
    IS_TRANSACTIONAL,
    KEEPS_LAST,
    KEYLESS,
    NO_HORIZON,
    REBUILD,
    ROW_BASE_OFFSET,
    ROW_MAX_TIMESTAMP,
    ROW_NEXT_OFFSET,
    ROW_POSITION,
    ROW_SIZE,
    TOMBSTONE,
)

HEADER_BYTES = 61
SMALLEST_RECORD = 7  # a byte each: length, attributes, two deltas, two lengths, header count

# Codes that kernels return; ``chunk`` has the messages.
OK = 0
NEED_MORE = 1  # the chunk ends inside a batch
BAD_SIZE = 2
BAD_MAGIC = 3
OLD_MAGIC = 4
BAD_CRC = 5
BAD_COUNT = 6
BAD_OFFSET = 7
BAD_CODEC = 8
BAD_RECORD = 9
TRAILING = 10
BAD_ATTRIBUTES = 11
BAD_CONTROL = 12

_APPEND_TIME = 8
_TRANSACTIONAL = 16
_CONTROL = 32
_HORIZON = 64


@njit(cache=True, nogil=True)
def split(data, start, end, table, lowest_offset):
    """Divide ``data[start:end]`` into complete batches, and fill a row of ``table`` for each.

    ``lowest_offset`` is the smallest valid base offset of the first batch. Offsets must rise from
    there.

    Returns (rows, position after the last complete batch, code, position of the error, size of the
    faulty or incomplete batch or 0 if unknown).
    """
    rows = 0
    at = start
    floor = lowest_offset
    while rows < len(table) and at < end:
        if end - at < 17:
            return rows, at, NEED_MORE, at, 0
        length = i32(data, at + 8)
        magic = np.int64(np.int8(data[at + 16]))
        if length < 14:
            return rows, at, BAD_SIZE, at + 8, 0
        if magic < 0 or magic > 2:
            return rows, at, BAD_MAGIC, at + 16, 0
        if magic < 2:
            return rows, at, OLD_MAGIC, at + 16, 0
        size = length + 12
        if size < HEADER_BYTES:
            return rows, at, BAD_SIZE, at + 8, 0
        if end - at < size:
            return rows, at, NEED_MORE, at, size
        if np.int64(crc32c(data, at + 21, at + size)) != u32(data, at + 17):
            return rows, at, BAD_CRC, at + 17, size
        base = i64(data, at)
        delta = i32(data, at + 23)
        if base < floor or delta < 0 or base > np.int64(0x7FFFFFFFFFFFFFFF) - delta - 1:
            return rows, at, BAD_OFFSET, at, size
        attributes = np.int64(data[at + 22])
        codec = attributes & 7
        if codec > 4:
            return rows, at, BAD_CODEC, at + 22, size
        count = i32(data, at + 57)
        if count < 0 or count > delta + 1:
            return rows, at, BAD_COUNT, at + 57, size
        if codec == 0 and count * SMALLEST_RECORD > size - HEADER_BYTES:
            return rows, at, BAD_COUNT, at + 57, size
        row = table[rows]
        row.position = at
        row.origin = at
        row.origin_size = size
        row.size = size
        row.base_offset = base
        row.next_offset = base + delta + 1
        row.records = count
        row.max_timestamp = i64(data, at + 35)
        row.horizon = i64(data, at + 27) if attributes & _HORIZON else NO_HORIZON
        flags = 0
        if attributes & _HORIZON and row.horizon < 0:
            row.horizon = NO_HORIZON
            flags |= BAD_HORIZON
        if attributes & _CONTROL:
            flags |= IS_CONTROL
        if attributes & _TRANSACTIONAL:
            flags |= IS_TRANSACTIONAL
        producer_id = i64(data, at + 43)
        if producer_id >= 0:
            flags |= HAS_PRODUCER
        row.flags = flags
        row.producer_id = producer_id
        row.producer_epoch = np.int64(
            np.int16((np.int64(data[at + 51]) << 8) | np.int64(data[at + 52]))
        )
        row.codec = codec
        row.plain_start = at + HEADER_BYTES
        row.plain_end = at + size
        floor = base + delta + 1
        rows += 1
        at += size
    return rows, at, OK, at, 0


@njit(cache=True, nogil=True)
def _long_varint(data, at, end):
    """Decode a varint of any length. Returns (value, position after the varint or -1)."""
    value = np.uint64(0)
    shift = np.uint64(0)
    while at < end and shift < np.uint64(70):
        byte = load8(data, at)
        value |= (byte & np.uint64(127)) << shift
        at += 1
        if byte < np.uint64(128):
            return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1)), at
        shift += np.uint64(7)
    return np.int64(0), np.int64(-1)


@njit(cache=True, nogil=True, forceinline=True)
def _varint(data, at, end):
    """Decode the varint at ``at``. Nearly all have one or two bytes and need no loop."""
    if at < end:
        byte = np.int64(load8(data, at))
        if byte < 128:
            return (byte >> 1) ^ -(byte & 1), at + 1
        if at + 1 < end:
            second = np.int64(load8(data, at + 1))
            if second < 128:
                byte = (byte & 127) | (second << 7)
                return (byte >> 1) ^ -(byte & 1), at + 2
    return _long_varint(data, at, end)


@njit(cache=True, nogil=True)
def _headers_end(data, at, end):
    """The position after the headers that begin at ``at``, or -1 if they pass ``end``."""
    count, at = _varint(data, at, end)
    if at < 0 or count < 0 or count > end - at:
        return np.int64(-1)
    for _ in range(count):
        length, at = _varint(data, at, end)
        if at < 0 or length < 0 or length > end - at:
            return np.int64(-1)
        at += length
        length, at = _varint(data, at, end)
        if at < 0 or length > end - at or length < -1:
            return np.int64(-1)
        if length > 0:
            at += length
    return at


@njit(cache=True, nogil=True, forceinline=True)
def _record(data, at, end):
    """Locate the fields of one record.

    Returns (end or -1, timestamp delta, position of the offset delta, offset delta, key position,
    key length or -1, value length or -1).
    """
    bad = np.int64(-1)
    zero = np.int64(0)
    length, body = _varint(data, at, end)
    if body < 0 or length < SMALLEST_RECORD - 1 or length > end - body:
        return bad, zero, zero, zero, zero, zero, zero
    stop = body + length
    stamp, offset_at = _varint(data, body + 1, stop)
    if offset_at < 0:
        return bad, zero, zero, zero, zero, zero, zero
    delta, place = _varint(data, offset_at, stop)
    if place < 0:
        return bad, zero, zero, zero, zero, zero, zero
    key_length, key_at = _varint(data, place, stop)
    if key_at < 0 or key_length < -1 or key_length > stop - key_at:
        return bad, zero, zero, zero, zero, zero, zero
    value_length, place = _varint(data, key_at + max(key_length, zero), stop)
    if place < 0 or value_length < -1 or value_length > stop - place:
        return bad, zero, zero, zero, zero, zero, zero
    place += max(value_length, zero)
    # Nearly every record ends with a header count of 0.
    if (place + 1 != stop or load8(data, place) != np.uint64(0)) and _headers_end(
        data, place, stop
    ) != stop:
        return bad, zero, zero, zero, zero, zero, zero
    return stop, stamp, offset_at, delta, key_at, key_length, value_length


@njit(cache=True, nogil=True, forceinline=True)
def _record_end(data, at, end):
    """Read only a record's length. Returns (position after the length, the record's end or -1)."""
    length, body = _varint(data, at, end)
    if body < 0 or length < SMALLEST_RECORD - 1 or length > end - body:
        return body, np.int64(-1)
    return body, body + length


@njit(cache=True, nogil=True)
def walk(plain, table, first, last, secret, ordinal, states, entries, filled, keys):
    """Compute state and key fingerprint of every record of the batches ``table[first:last]``.

    Writes one state byte per record, beginning at ``states[0]``. Writes one row per keyed record,
    beginning at ``entries[filled]``, except for control batches and aborted transactions. The row
    has the first 64 bits of the key's fingerprint, then its next 32 bits joined with the record's
    ordinal. ``plain`` contains the records. If ``keys`` has rows, they receive the key's position
    in ``plain`` and its length.

    Returns (entries filled, records visited, code, index of the faulty batch, position in
    ``plain``).
    """
    seen = 0
    source = address(plain)
    for b in range(first, last):
        row = table[b]
        at = row.plain_start
        end = row.plain_end
        control = row.flags & IS_CONTROL
        aborted = row.flags & IS_ABORTED
        before = np.int64(-1)
        top = row.next_offset - 1 - row.base_offset
        for _ in range(row.records):
            stop, stamp, offset_at, delta, key_at, key_length, value_length = _record(
                source, at, end
            )
            if stop < 0:
                return filled, seen, BAD_RECORD, b, at
            if delta <= before or delta > top:
                return filled, seen, BAD_OFFSET, b, at
            before = delta
            if control:
                if key_length < 4:
                    return filled, seen, BAD_CONTROL, b, at
                states[seen] = CONTROL
                if u16(source, key_at) >= 0x8000:
                    return filled, seen, BAD_CONTROL, b, at
                kind = u16(source, key_at + 2)
                if kind <= 1:
                    states[seen] = CONTROL | (COMMITTED if kind else ABORTED)
            elif aborted:
                states[seen] = ABORTED | (TOMBSTONE if value_length < 0 else 0)
            elif key_length < 0:
                states[seen] = KEYLESS
            else:
                states[seen] = TOMBSTONE if value_length < 0 else 0
                one, two = fingerprint(source, key_at, key_length, secret)
                entries[filled, 0] = one
                entries[filled, 1] = (two & np.uint64(0xFFFFFFFF00000000)) | np.uint64(
                    ordinal + seen
                )
                if len(keys) > 0:
                    keys[filled, 0] = key_at
                    keys[filled, 1] = key_length
                filled += 1
            seen += 1
            at = stop
        if at != end:
            return filled, seen, TRAILING, b, at
    return filled, seen, OK, last, 0


@njit(cache=True, nogil=True, inline="always")
def _varint_size(value):
    zigzag = np.uint64(value << 1) ^ np.uint64(value >> 63)
    size = 1
    while zigzag >= np.uint64(128):
        zigzag >>= np.uint64(7)
        size += 1
    return size


@njit(cache=True, nogil=True, inline="always")
def _put_varint(out, at, value):
    zigzag = np.uint64(value << 1) ^ np.uint64(value >> 63)
    while zigzag >= np.uint64(128):
        store8(out, at, (zigzag & np.uint64(127)) | np.uint64(128))
        zigzag >>= np.uint64(7)
        at += 1
    store8(out, at, zigzag)
    return at + 1


@njit(cache=True, nogil=True)
def thin(plain, header, header_at, start, end, count, keep, keep_at, horizon, rebase, out, at):
    """Write the kept records of one batch to ``out[at:]``.

    ``plain[start:end]`` has the batch's ``count`` records, and ``header[header_at:]`` its header.
    ``keep[keep_at:]`` has one byte per record. ``horizon`` is the new batch's delete horizon, or
    NO_HORIZON. The new base timestamp is the horizon, or else the first kept record's timestamp. If
    it differs from the old base timestamp, timestamp deltas are rewritten. Otherwise runs of kept
    records are copied unchanged. ``rebase`` also makes offset deltas start at 0.

    ``walk`` has checked these records. This kernel reads only the length of a dropped record, and
    only the changed fields of a kept record. ``out`` needs space for the records before thinning,
    plus 12 bytes per kept record.

    Returns (position after the records, records kept, base timestamp, largest timestamp, code,
    position in ``plain``, offset deltas of the first and the last kept record).
    """
    old_base = i64(header, header_at + 27)
    old_max = i64(header, header_at + 35)
    append_time = (header[header_at + 22] & _APPEND_TIME) != 0
    reference = horizon
    known = horizon != NO_HORIZON
    largest = np.int64(-1)
    kept = 0
    place = start
    run = np.int64(-1)
    first_delta = np.int64(0)
    last_delta = np.int64(0)
    source = address(plain)
    target = address(out)
    for i in range(count):
        body, stop = _record_end(source, place, end)
        if stop < 0:
            return at, kept, reference, largest, BAD_RECORD, place, first_delta, last_delta
        if keep[keep_at + i]:
            stamp, offset_at = _varint(source, body + 1, stop)
            delta, offset_end = _varint(source, max(offset_at, body), stop)
            if offset_at < 0 or offset_end < 0:
                return at, kept, reference, largest, BAD_RECORD, place, first_delta, last_delta
            last_delta = delta
            time = old_max if append_time else old_base + stamp
            if not known:
                reference = time
                known = True
            if kept == 0 or time > largest:
                largest = time
            if kept == 0:
                first_delta = delta
            kept += 1
            if rebase and first_delta != 0:
                new_stamp = time - reference
                new_delta = delta - first_delta
                length = 1 + _varint_size(new_stamp) + _varint_size(new_delta) + (stop - offset_end)
                at = _put_varint(target, at, length)
                store8(target, at, np.uint64(0))
                at = _put_varint(target, at + 1, new_stamp)
                at = _put_varint(target, at, new_delta)
                copy_bytes(target, at, source, offset_end, stop - offset_end)
                at += stop - offset_end
            elif reference == old_base and not append_time:
                if run < 0:
                    run = place
            else:
                new_stamp = time - reference
                length = 1 + _varint_size(new_stamp) + (stop - offset_at)
                at = _put_varint(target, at, length)
                store8(target, at, np.uint64(0))
                at = _put_varint(target, at + 1, new_stamp)
                copy_bytes(target, at, source, offset_at, stop - offset_at)
                at += stop - offset_at
        elif run >= 0:
            copy_bytes(target, at, source, run, place - run)
            at += place - run
            run = np.int64(-1)
        place = stop
    if place != end:
        return at, kept, reference, largest, TRAILING, place, first_delta, last_delta
    if run >= 0:
        copy_bytes(target, at, source, run, place - run)
        at += place - run
    if append_time:
        largest = old_max
    return at, kept, reference, largest, OK, place, first_delta, last_delta


@njit(cache=True, nogil=True)
def seal(
    header, header_at, out, at, end, count, reference, largest, horizon, base_offset, last_delta
):
    """Write the header and the checksum of the rebuilt batch ``out[at:end]``.

    The batch's records must be in ``out`` already. Fields that compaction does not change are
    copied from the old header.
    """
    copy_bytes(out, at, header, header_at, HEADER_BYTES)
    store64(out, at, swap64(np.uint64(base_offset)))
    store32(out, at + 23, swap32(np.uint64(last_delta)))
    store32(out, at + 8, swap32(np.uint64(end - at - 12)))
    attributes = np.uint64(header[header_at + 22]) & np.uint64(0xBF)
    if horizon != NO_HORIZON:
        attributes |= np.uint64(_HORIZON)
    if count == 0:
        attributes &= np.uint64(0xB8)  # an empty batch has neither codec nor horizon
    store16(out, at + 21, swap16(attributes))
    store64(out, at + 27, swap64(np.uint64(reference)))
    store64(out, at + 35, swap64(np.uint64(largest)))
    store32(out, at + 57, swap32(np.uint64(count)))
    store32(out, at + 17, swap32(np.uint64(crc32c(out, at + 21, end))))


@njit(cache=True, nogil=True)
def reseal(data, positions, sizes):
    """Recompute the checksums of the batches at ``positions``."""
    for n in range(len(positions)):
        at = positions[n]
        store32(data, at + 17, swap32(np.uint64(crc32c(data, at + 21, at + sizes[n]))))


@njit(cache=True, nogil=True)
def rebuild(data, table, first, last, actions, horizons, keep, keep_at, out, at, rows, filled):
    """Copy, thin or drop the batches ``table[first:last]``.

    Stops before a batch that must be recompressed. Writes batches to ``out``, beginning at byte
    ``at``. Writes one row per batch (see ROW_COLUMNS), beginning at ``rows[filled]``.
    ``keep[keep_at:]`` has one byte per record of these batches.

    Returns (index of the next batch, keep_at, position in ``out``, rows filled, code, position in
    ``data``).
    """
    b = first
    while b < last:
        row = table[b]
        action = actions[b]
        begin = at
        largest = row.max_timestamp
        base = row.base_offset
        top = row.next_offset - 1 - base
        old = (row.flags & IS_OLD) != 0
        if action == COPY and not old:
            copy_bytes(out, at, data, row.position, row.size)
            at += row.size
        elif action == COPY or action == REBUILD:
            if row.codec != 0:
                return b, keep_at, at, filled, OK, 0
            at, kept, reference, largest, code, place, first_delta, last_delta = thin(
                data,
                data,
                row.position,
                row.plain_start,
                row.plain_end,
                row.records,
                keep,
                keep_at,
                horizons[b],
                old,
                out,
                at + HEADER_BYTES,
            )
            if code != OK:
                return b, keep_at, begin, filled, code, place
            if old:
                base += first_delta
                top = (top if row.flags & KEEPS_LAST else last_delta) - first_delta
            seal(
                data, row.position, out, begin, at, kept, reference, largest, horizons[b], base, top
            )
        elif action == EMPTY:
            at += HEADER_BYTES
            seal(
                data, row.position, out, begin, at, 0, np.int64(-1), largest, NO_HORIZON, base, top
            )
        if action != DROP:
            rows[filled, ROW_POSITION] = begin
            rows[filled, ROW_SIZE] = at - begin
            rows[filled, ROW_NEXT_OFFSET] = base + top + 1
            rows[filled, ROW_MAX_TIMESTAMP] = largest
            rows[filled, ROW_BASE_OFFSET] = base
            filled += 1
        keep_at += row.records
        b += 1
    return b, keep_at, at, filled, OK, 0


@njit(cache=True, nogil=True)
def records_below(plain, start, end, count, base_offset, offset):
    """Count the records below ``offset`` in a batch of ``count`` records, ``plain[start:end]``."""
    at = start
    source = address(plain)
    for i in range(count):
        stop, stamp, offset_at, delta, key_at, key_length, value_length = _record(source, at, end)
        if stop < 0 or base_offset + delta >= offset:
            return i
        at = stop
    return count
