"""Kernels that convert entries of message formats v0 and v1 to uncompressed batches of v2.

Rules and writers support only batches of v2, so older entries are converted when they are read. A
message becomes a batch of one record. A wrapper becomes one batch of all its records; the header
has the wrapper's codec, but the records are uncompressed. A converted batch is never written
unchanged, so its checksum field stays 0. ``kafka.old_format.entries`` describes the layout of the
entries; ``tests/unit/test_old_kernels.py`` compares the two modules.

    entry   0 offset i64 · 8 size i32 · 12 crc u32 · 16 magic i8 · 17 attributes u8 · v1: 18
            timestamp i64
            18 (v1: 26) key length i32 · key · value length i32 · value
"""
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import numpy as np

from lastwrite.encoding.big_endian import i32, i64, u32
from lastwrite.encoding.checksum import crc32
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
from lastwrite.kafka.format.kernels import (
    _APPEND_TIME,
    BAD_CODEC,
    BAD_CRC,
    BAD_MAGIC,
    BAD_OFFSET,
    BAD_RECORD,
    BAD_SIZE,
    HEADER_BYTES,
    NEED_MORE,
    OK,
    _put_varint,
    _varint_size,
)
from lastwrite.model.columns import IS_OLD, NO_HORIZON

# More codes, in addition to ``format.kernels``.
WRAPPER = 20  # the next entry must be decompressed first
NEED_ROOM = 21  # the next batch does not fit the output
NEW_MAGIC = 22  # the next entry has magic 2
NESTED = 23
NO_MESSAGE = 24

_LARGEST_I32 = 0x7FFFFFFF
_LARGEST_I64 = np.int64(0x7FFFFFFFFFFFFFFF)


@njit(cache=True, nogil=True)
def _fields(source, at, end):
    """Locate key and value of the entry ``source[at:end]``.

    The caller has checked that the entry is not too small for its magic.

    Returns (timestamp, key position, key length, value position, value length). A length of -1 is
    null. The value position is -1 if the lengths do not match the entry's size.
    """
    zero = np.int64(0)
    time = np.int64(-1)
    place = at + 18
    if load8(source, at + 16) != np.uint64(0):
        time = i64(source, place)
        place += 8
    key_length = i32(source, place)
    key_at = place + 4
    if key_length < -1 or key_length > end - key_at - 4:
        return time, zero, zero, np.int64(-1), zero
    place = key_at + max(key_length, zero)
    value_length = i32(source, place)
    if value_length < -1 or max(value_length, zero) != end - place - 4:
        return time, zero, zero, np.int64(-1), zero
    return time, key_at, key_length, place + 4, value_length


@njit(cache=True, nogil=True, inline="always")
def _nullable_size(length):
    return _varint_size(length) + max(length, np.int64(0))


@njit(cache=True, nogil=True, inline="always")
def _body_size(stamp, delta, key_length, value_length):
    """The size in bytes of a v2 record without headers, after its length field."""
    return (
        2
        + _varint_size(stamp)
        + _varint_size(delta)
        + _nullable_size(key_length)
        + _nullable_size(value_length)
    )


@njit(cache=True, nogil=True)
def _put_record(out, to, source, stamp, delta, key_at, key_length, value_at, value_length):
    to = _put_varint(out, to, _body_size(stamp, delta, key_length, value_length))
    store8(out, to, np.uint64(0))
    to = _put_varint(out, to + 1, stamp)
    to = _put_varint(out, to, delta)
    to = _put_varint(out, to, key_length)
    if key_length > 0:
        copy_bytes(out, to, source, key_at, key_length)
        to += key_length
    to = _put_varint(out, to, value_length)
    if value_length > 0:
        copy_bytes(out, to, source, value_at, value_length)
        to += value_length
    store8(out, to, np.uint64(0))
    return to + 1


@njit(cache=True, nogil=True)
def _put_header(out, to, size, base, top, bits, base_time, max_time, count):
    minus = np.uint64(0xFFFFFFFFFFFFFFFF)
    store64(out, to, swap64(np.uint64(base)))
    store32(out, to + 8, swap32(np.uint64(size - 12)))
    store32(out, to + 12, minus)  # leader epoch
    store8(out, to + 16, np.uint64(2))
    store32(out, to + 17, np.uint64(0))  # crc
    store16(out, to + 21, swap16(np.uint64(bits)))
    store32(out, to + 23, swap32(np.uint64(top)))
    store64(out, to + 27, swap64(np.uint64(base_time)))
    store64(out, to + 35, swap64(np.uint64(max_time)))
    store64(out, to + 43, minus)  # producer id
    store16(out, to + 51, minus)  # producer epoch
    store32(out, to + 53, minus)  # base sequence
    store32(out, to + 57, swap32(np.uint64(count)))


@njit(cache=True, nogil=True)
def _put_row(table, rows, to, size, at, taken, base, next_offset, count, max_time, codec):
    row = table[rows]
    row.position = to
    row.size = size
    row.origin = at
    row.origin_size = taken
    row.base_offset = base
    row.next_offset = next_offset
    row.records = count
    row.max_timestamp = max_time
    row.horizon = NO_HORIZON
    row.flags = IS_OLD
    row.producer_id = -1
    row.producer_epoch = -1
    row.codec = codec
    row.plain_start = to + HEADER_BYTES
    row.plain_end = to + size


@njit(cache=True, nogil=True, inline="always")
def _bits(attributes, magic):
    """The attributes of v2 for an old entry: its codec, and in v1 its timestamp type."""
    return attributes & (7 | _APPEND_TIME) if magic else attributes & 7


@njit(cache=True, nogil=True)
def convert_messages(data, start, end, table, rows, floor, out, to):
    """Convert the uncompressed messages at the start of ``data[start:end]``.

    Writes a row per message, beginning at ``table[rows]``, and the batches, beginning at
    ``out[to]``. Offsets must rise from ``floor``. Stops before an entry that is not an
    uncompressed message. If the entry is a WRAPPER, its length, magic, checksum and codec have been
    checked, but not its offsets.

    Returns (rows, position after the last message, code, position of the error, size of the next
    entry or needed size of ``out``, floor, position in ``out``).
    """
    at = start
    while rows < len(table) and at < end:
        if end - at < 17:
            return rows, at, NEED_MORE, at, 0, floor, to
        length = i32(data, at + 8)
        magic = np.int64(np.int8(data[at + 16]))
        if length < 14:
            return rows, at, BAD_SIZE, at + 8, 0, floor, to
        if magic == 2:
            return rows, at, NEW_MAGIC, at, 0, floor, to
        if magic < 0 or magic > 2:
            return rows, at, BAD_MAGIC, at + 16, 0, floor, to
        size = length + 12
        if size < 26 + 8 * magic:
            return rows, at, BAD_SIZE, at + 8, 0, floor, to
        if end - at < size:
            return rows, at, NEED_MORE, at, size, floor, to
        if np.int64(crc32(data, at + 16, at + size)) != u32(data, at + 12):
            return rows, at, BAD_CRC, at + 12, size, floor, to
        attributes = np.int64(data[at + 17])
        codec = attributes & 7
        if codec > 3:
            return rows, at, BAD_CODEC, at + 17, size, floor, to
        offset = i64(data, at)
        if offset < 0 or offset == _LARGEST_I64 or (offset < floor and not codec):
            return rows, at, BAD_OFFSET, at, size, floor, to
        if codec:
            return rows, at, WRAPPER, at, size, floor, to
        source = address(data)
        time, key_at, key_length, value_at, value_length = _fields(source, at, at + size)
        if value_at < 0:
            return rows, at, BAD_RECORD, at, size, floor, to
        zero = np.int64(0)
        body = _body_size(zero, zero, key_length, value_length)
        made = HEADER_BYTES + _varint_size(body) + body
        if made > len(out) - to:
            return rows, at, NEED_ROOM, at, to + made, floor, to
        _put_header(out, to, made, offset, zero, _bits(attributes, magic), time, time, 1)
        _put_record(
            address(out),
            to + HEADER_BYTES,
            source,
            zero,
            zero,
            key_at,
            key_length,
            value_at,
            value_length,
        )
        _put_row(table, rows, to, made, at, size, offset, offset + 1, 1, time, 0)
        to += made
        rows += 1
        at += size
        floor = offset + 1
    return rows, at, OK, at, 0, floor, to


@njit(cache=True, nogil=True)
def measure_wrapper(plain, size, data, at):
    """Check the messages of the wrapper at ``data[at:]``, and measure the batch for them.

    ``plain`` contains the decompressed messages.

    Returns (code, position in ``plain``, records, first offset, last offset, bytes of the records
    in v2, first timestamp). The offsets are as stored inside the wrapper.
    """
    append_time = _bits(np.int64(data[at + 17]), np.int64(data[at + 16])) & _APPEND_TIME != 0
    wrapper_time = i64(data, at + 18)
    source = address(plain)
    place = np.int64(0)
    count = np.int64(0)
    first = np.int64(0)
    last = np.int64(-1)
    base_time = np.int64(0)
    made = np.int64(0)
    while place < size:
        if size - place < 26:
            return BAD_SIZE, place, count, first, last, made, base_time
        length = i32(source, place + 8)
        magic = np.int64(load8(source, place + 16))
        if magic > 1:
            return BAD_MAGIC, place, count, first, last, made, base_time
        if length < 14 + 8 * magic or length > size - place - 12:
            return BAD_SIZE, place, count, first, last, made, base_time
        stop = place + length + 12
        if np.int64(crc32(plain, place + 16, stop)) != u32(source, place + 12):
            return BAD_CRC, place, count, first, last, made, base_time
        if load8(source, place + 17) & np.uint64(7):
            return NESTED, place, count, first, last, made, base_time
        offset = i64(source, place)
        if offset <= last or offset == _LARGEST_I64:
            return BAD_OFFSET, place, count, first, last, made, base_time
        time, key_at, key_length, value_at, value_length = _fields(source, place, stop)
        if value_at < 0:
            return BAD_RECORD, place, count, first, last, made, base_time
        if append_time:
            time = wrapper_time
        if not count:
            first = offset
            base_time = time
        if offset - first > _LARGEST_I32:
            return BAD_OFFSET, place, count, first, last, made, base_time
        body = _body_size(time - base_time, offset - first, key_length, value_length)
        made += _varint_size(body) + body
        last = offset
        count += 1
        place = stop
    return OK if count else NO_MESSAGE, place, count, first, last, made, base_time


@njit(cache=True, nogil=True)
def convert_wrapper(
    plain, size, data, at, taken, base, last, first, base_time, count, made, table, rows, out, to
):
    """Write the messages ``plain[:size]`` of a wrapper to ``out[to:]``, as one batch.

    The batch has the offsets ``base`` to ``last``. The wrapper is ``data[at : at + taken]``.
    ``first``, ``base_time``, ``count`` and ``made`` are results of ``measure_wrapper``.
    """
    bits = _bits(np.int64(data[at + 17]), np.int64(data[at + 16]))
    max_time = i64(data, at + 18) if data[at + 16] else np.int64(-1)
    append_time = bits & _APPEND_TIME != 0
    _put_header(out, to, HEADER_BYTES + made, base, last - base, bits, base_time, max_time, count)
    source = address(plain)
    target = address(out)
    place = np.int64(0)
    end = to + HEADER_BYTES
    while place < size:
        stop = place + 12 + i32(source, place + 8)
        time, key_at, key_length, value_at, value_length = _fields(source, place, stop)
        stamp = np.int64(0) if append_time else time - base_time
        delta = i64(source, place) - first
        end = _put_record(
            target, end, source, stamp, delta, key_at, key_length, value_at, value_length
        )
        place = stop
    _put_row(
        table, rows, to, HEADER_BYTES + made, at, taken, base, last + 1, count, max_time, bits & 7
    )


@njit(cache=True, nogil=True)
def wrapped_value(data, at, size):
    """The position of a wrapper's value, or -1 if it is null or a length is wrong."""
    value_at, value_length = _fields(address(data), at, at + size)[3:]
    return value_at if value_length >= 0 else np.int64(-1)
