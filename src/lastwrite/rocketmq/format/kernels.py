"""Kernels over RocketMQ records: ``split``, ``index_keys`` and ``put_entries``.

Each kernel processes a whole chunk and checks every size and length before use. It returns a code
and a position instead of raising. Functions that run for every record take the address of the bytes
instead of an array; see ``encoding.intrinsics``. ``tests/unit/test_rocketmq_kernels.py`` compares
each kernel with a slow version in ``record``, ``properties``, ``java_hash`` or ``units``. These
modules also have the layout tables.

A record, big-endian. B and S are the sizes of the hosts, 8 or 20 bytes (docs/formats/rocketmq.md,
"Record"):

    0 size i32 · 4 magic i32 · 8 body crc i32 · 12 queue i32 · 16 flag i32 · 20 queue offset i64
    28 physical offset i64 · 36 sysFlag i32 · 40 born time i64 · 48 born host B · store time i64 ·
    store host S reconsume times i32 · prepared offset i64 · body length i32 · body · topic length
    i8 or i16 · topic properties length i16 · properties
"""
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lastwrite.encoding.big_endian import i16, i32, i64
from lastwrite.encoding.checksum import crc32
from lastwrite.encoding.intrinsics import (
    address,
    load8,
    load16,
    load32,
    load64,
    store32,
    store64,
    swap32,
    swap64,
    trailing_zeros,
)
from lastwrite.encoding.kernel import njit
from lastwrite.rocketmq.format.record import (
    BORN_V6,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    STORE_V6,
    TRANSACTION_MASK,
    TRANSACTION_ROLLBACK,
)

MESSAGE = np.dtype(
    [
        (name, np.int64)
        for name in (
            # the record's first byte in the buffer; fields named ``…_at`` are buffer positions too
            "position",
            "size",
            "magic",
            "body_crc",
            "queue_id",
            "flag",
            "queue_offset",
            "physical_offset",  # address stored in the record; in a sound log its real address
            "sys_flag",
            "born_time",
            "store_time",
            "reconsume_times",
            "prepared_offset",
            "born_host_at",
            "store_host_at",
            "body_at",
            "body_length",
            "topic_at",
            "topic_length",
            "properties_at",
            "properties_length",
            "key_at",  # position of the value of KEYS, which may be blank
            "key_length",  # bytes of KEYS; -1: KEYS is missing or blank
            "tags_at",
            "tags_length",  # -1: no TAGS
            "tags_code",  # Java's hash of the tag; 0 without a tag
            "inner_num",  # INNER_NUM; -1 unless both INNER_NUM and INNER_BASE are present
            "inner_base",  # INNER_BASE; -1 unless both are present
            "uniq_at",  # position of the value of UNIQ_KEY
            "uniq_length",  # -1: no UNIQ_KEY
            "marks",  # the bits below
        )
    ]
)

# Bits of the column ``marks``. ``record.decode_message`` decodes the values of these properties.
HAS_DELAY = 1  # a property DELAY
HAS_MULTI_DISPATCH = 2  # a property INNER_MULTI_DISPATCH
HAS_INNER = 4  # both INNER_NUM and INNER_BASE
BAD_NUMBER = 8  # INNER_NUM or INNER_BASE is not a number: a broker treats the record as broken
# KEYS has only white space; its length is in the bits from KEY_LENGTH_SHIFT on.
BLANK_KEY = 16
KEY_LENGTH_SHIFT = 16

MessageTable = npt.NDArray[np.void]

# Return codes of kernels; ``CODES`` has their messages.
OK = 0
NEED_MORE = 1
BLANK = 2
END = 3
BAD_SIZE = 4
BAD_MAGIC = 5
BAD_LENGTHS = 6
BAD_CRC = 7
BAD_ORDER = 8

CODES = {
    OK: "whole records",
    NEED_MORE: "the bytes end inside a record",
    BLANK: "a blank record ends the file",
    END: "the file has no record from here on",
    BAD_SIZE: "the record's size is smaller than its fixed fields",
    BAD_MAGIC: "the record's magic is wrong",
    BAD_LENGTHS: "the lengths of body, topic and properties contradict the record's size",
    BAD_CRC: "the body has a wrong checksum",
    BAD_ORDER: "the queue offset is not higher than the one before",
}

# A DLedger commit log has a header before each record: magic i32, size i32 (header included), index
# i64, term i64, position i64, channel i32, chain CRC i32, body CRC i32, body length i32. A blank
# entry at the end of a file has the magic -1 and the number of bytes left. Source: DLedger 0.3.2.
DLEDGER_HEADER_BYTES = 48
_DLEDGER_MESSAGE = 1
_DLEDGER_BLANK = -1

_SMALLEST = 91
_V1_HEAD = 75  # bytes of the fixed fields, without the hosts
_MAX_I16 = 32767
_MAX_I64 = 0x7FFFFFFFFFFFFFFF

# Property names as little-endian words, for comparison with ``load64``, ``load32`` and ``load16``.
_KEYS = np.uint64(int.from_bytes(b"KEYS", "little"))
_TAGS = np.uint64(int.from_bytes(b"TAGS", "little"))
_UNIQ_KEY = np.uint64(int.from_bytes(b"UNIQ_KEY", "little"))
_INNER_NU = np.uint64(int.from_bytes(b"INNER_NU", "little"))
_INNER_BA = np.uint64(int.from_bytes(b"INNER_BA", "little"))
_INNER_MU = np.uint64(int.from_bytes(b"INNER_MU", "little"))
_LTI_DISP = np.uint64(int.from_bytes(b"LTI_DISP", "little"))
_ATCH = np.uint64(int.from_bytes(b"ATCH", "little"))
_SE = np.uint64(int.from_bytes(b"SE", "little"))
_DELA = np.uint64(int.from_bytes(b"DELA", "little"))

_ONES = np.uint64(0x0101010101010101)
_TWOS = np.uint64(0x0202020202020202)
_TOPS = np.uint64(0x8080808080808080)


@njit(cache=True, nogil=True, forceinline=True)
def value_end(source, at, end, bound):
    """The position of the first byte with the value 2 in ``[at, end)``; ``end`` if none has it.

    Never loads a byte at ``bound`` or after it.
    """
    while at < end:
        if at + 8 <= bound:
            word = load64(source, at) ^ _TWOS
            hit = (word - _ONES) & ~word & _TOPS
            if hit != np.uint64(0):
                return min(at + np.int64(trailing_zeros(hit) >> np.uint64(3)), end)
            at += 8
        else:
            if load8(source, at) == np.uint64(2):
                return at
            at += 1
    return end


@njit(cache=True, nogil=True, inline="always")
def _continues(byte):
    return byte & 0xC0 == 0x80


@njit(cache=True, nogil=True)
def is_blank(source, at, end):
    """Whether the text ``[at, end)`` has only characters that Java's ``isWhitespace`` accepts."""
    while at < end:
        byte = np.int64(load8(source, at))
        if 0x09 <= byte <= 0x0D or 0x1C <= byte <= 0x20:
            at += 1
            continue
        if byte < 0xE1 or byte > 0xE3 or end - at < 3:
            return False
        second = np.int64(load8(source, at + 1))
        third = np.int64(load8(source, at + 2))
        if not _continues(second) or not _continues(third):
            return False
        point = (byte & 15) << 12 | (second & 63) << 6 | (third & 63)
        if point == 0x2007 or not (
            point == 0x1680
            or 0x2000 <= point <= 0x200A
            or point == 0x2028
            or point == 0x2029
            or point == 0x205F
            or point == 0x3000
        ):
            return False
        at += 3
    return True


@njit(cache=True, nogil=True, inline="always")
def _mixed(value, unit):
    return (value * np.int64(31) + unit) & np.int64(0xFFFFFFFF)


@njit(cache=True, nogil=True)
def _hash_on(source, at, end, value):
    """Continue Java's string hash ``value`` with the text ``[at, end)``, modulo 2**32."""
    while at < end:
        first = np.int64(load8(source, at))
        if first < 0x80:
            value = _mixed(value, first)
            at += 1
            continue
        left = end - at
        second = np.int64(load8(source, at + 1)) if left > 1 else np.int64(0)
        third = np.int64(load8(source, at + 2)) if left > 2 else np.int64(0)
        fourth = np.int64(load8(source, at + 3)) if left > 3 else np.int64(0)
        unit = np.int64(0xFFFD)
        size = np.int64(1)
        if first < 0xC2 or first > 0xF4:
            pass
        elif first < 0xE0:
            if _continues(second):
                unit = (first & 31) << 6 | (second & 63)
                size = np.int64(2)
        elif first < 0xF0:
            if _continues(second) and not (first == 0xE0 and second < 0xA0):
                size = np.int64(2)
                if _continues(third):
                    size = np.int64(3)
                    if not (first == 0xED and second >= 0xA0):
                        unit = (first & 15) << 12 | (second & 63) << 6 | (third & 63)
        elif (
            _continues(second)
            and not (first == 0xF0 and second < 0x90)
            and not (first == 0xF4 and second > 0x8F)
        ):
            size = np.int64(2)
            if _continues(third):
                size = np.int64(3)
                if _continues(fourth):
                    size = np.int64(4)
                    point = (
                        (first & 7) << 18 | (second & 63) << 12 | (third & 63) << 6 | (fourth & 63)
                    )
                    point -= 0x10000
                    value = _mixed(value, np.int64(0xD800) + (point >> 10))
                    unit = np.int64(0xDC00) + (point & 0x3FF)
        value = _mixed(value, unit)
        at += size
    return value


@njit(cache=True, nogil=True, inline="always")
def _signed32(value):
    return np.int64(np.int32(np.uint32(value)))


@njit(cache=True, nogil=True)
def decimal(source, at, end, largest):
    """Parse the decimal number in ``[at, end)`` like Java. Returns (number, whether it is valid).

    A number above ``largest`` is invalid.
    """
    negative = False
    sign = load8(source, at)
    if sign == np.uint64(45) or sign == np.uint64(43):
        negative = sign == np.uint64(45)
        at += 1
    if at >= end:
        return np.int64(0), False
    top = np.uint64(largest) + np.uint64(1 if negative else 0)
    value = np.uint64(0)
    while at < end:
        digit = load8(source, at) - np.uint64(48)
        if digit > np.uint64(9) or value > (top - digit) // np.uint64(10):
            return np.int64(0), False
        value = value * np.uint64(10) + digit
        at += 1
    return (np.int64(np.uint64(0) - value) if negative else np.int64(value)), True


@njit(cache=True, nogil=True, forceinline=True)
def _properties(source, at, end, bound, row):
    """Fill the columns of ``row`` that depend on the record's properties, ``[at, end)``.

    If a name is repeated, its last value counts. This is one function, because smaller functions
    would have to pass a dozen local numbers.
    """
    key_at = np.int64(-1)
    key_length = np.int64(-1)
    tags_at = np.int64(-1)
    tags_length = np.int64(-1)
    uniq_at = np.int64(-1)
    uniq_length = np.int64(-1)
    marks = np.int64(0)
    num_at = np.int64(-1)
    num_end = np.int64(-1)
    base_at = np.int64(-1)
    base_end = np.int64(-1)
    one = np.uint64(1)
    while at < end:
        stop = value_end(source, at, end, bound)
        length = stop - at
        # No name contains a byte 1, so a byte 1 after the expected letters ends the name. Each
        # length check keeps loads within the property, and requires a value of at least one byte.
        if length >= 6:
            word = load32(source, at)
            if word == _KEYS and load8(source, at + 4) == one:
                key_at = at + 5
                key_length = length - 5
            elif word == _TAGS and load8(source, at + 4) == one:
                tags_at = at + 5
                tags_length = length - 5
            elif length >= 10:
                long = load64(source, at)
                if long == _UNIQ_KEY:
                    if load8(source, at + 8) == one:
                        uniq_at = at + 9
                        uniq_length = length - 9
                elif long == _INNER_NU:
                    if (
                        length >= 11
                        and load8(source, at + 8) == np.uint64(77)
                        and load8(source, at + 9) == one
                    ):
                        num_at = at + 10
                        num_end = stop
                elif long == _INNER_BA:
                    if (
                        length >= 12
                        and load16(source, at + 8) == _SE
                        and load8(source, at + 10) == one
                    ):
                        base_at = at + 11
                        base_end = stop
                elif long == _INNER_MU:
                    if (
                        length >= 22
                        and load64(source, at + 8) == _LTI_DISP
                        and load32(source, at + 16) == _ATCH
                        and load8(source, at + 20) == one
                    ):
                        marks |= HAS_MULTI_DISPATCH
            if (
                length >= 7
                and word == _DELA
                and load8(source, at + 4) == np.uint64(89)
                and load8(source, at + 5) == one
            ):
                marks |= HAS_DELAY
        at = stop + 1
    if key_at >= 0 and load8(source, key_at) - np.uint64(0x21) > np.uint64(0x5E):
        # Only a value that begins with a control character, a space or a non-ASCII byte can be
        # blank.
        if is_blank(source, key_at, key_at + key_length):
            marks |= BLANK_KEY | key_length << KEY_LENGTH_SHIFT
            key_length = np.int64(-1)
    row.key_at = key_at
    row.key_length = key_length
    row.tags_at = tags_at
    row.tags_length = tags_length
    code = np.int64(0)
    if tags_at >= 0:
        code = _signed32(_hash_on(source, tags_at, tags_at + tags_length, np.int64(0)))
    row.tags_code = code
    row.uniq_at = uniq_at
    row.uniq_length = uniq_length
    row.inner_num = np.int64(-1)
    row.inner_base = np.int64(-1)
    if num_at >= 0 and base_at >= 0:
        number, number_good = decimal(source, num_at, num_end, _MAX_I16)
        base, base_good = decimal(source, base_at, base_end, _MAX_I64)
        marks |= HAS_INNER
        if number_good and base_good:
            row.inner_num = number
            row.inner_base = base
        else:
            marks |= BAD_NUMBER
    row.marks = marks


@njit(cache=True, nogil=True, inline="always")
def is_whole(data, body_at, body_length, crc):
    """Whether a record's body matches its checksum. An empty body matches any checksum."""
    if body_length == 0:
        return True
    return np.int64(crc32(data, body_at, body_at + body_length)) & 0x7FFFFFFF == crc


@njit(cache=True, nogil=True)
def split(data, start, end, table, check_crc):
    """Split ``data[start:end]`` into whole records, until the table is full.

    Each record fills one row of ``table`` (MESSAGE).

    Returns (rows, position after the last whole record, code, position that the code refers to,
    size of the record at that position or 0 if unknown). After NEED_MORE the size is the one stored
    in the record; compare it with the bytes left in the file. After BLANK the size is the one
    stored in the blank record, and the log continues in the next file. After END or a damage code,
    the position is that of the unwritten bytes or the damage.

    This is one function, because each check needs the numbers that earlier checks have read.
    Like a broker, it does not check the record's address. In a sound log ``physical_offset -
    position`` is equal in all rows; a row with another difference has stale bytes.
    """
    rows = 0
    at = np.int64(start)
    source = address(data)
    while rows < len(table) and at < end:
        left = end - at
        if left < 8:
            # Size and magic need eight bytes. At the end of a file, fewer zeros may be left.
            return rows, at, NEED_MORE, at, 8
        size = i32(source, at)
        magic = i32(source, at + 4)
        if magic == MAGIC_BLANK:
            return rows, at, BLANK, at, size
        if size == 0:
            return rows, at, END, at, 0
        if magic != MAGIC_V1 and magic != MAGIC_V2:
            if size == _DLEDGER_BLANK and magic >= 8:
                return rows, at, BLANK, at, magic
            if size != _DLEDGER_MESSAGE:
                return rows, at, BAD_MAGIC, at + 4, 0
            if left < DLEDGER_HEADER_BYTES:
                return rows, at, NEED_MORE, at, DLEDGER_HEADER_BYTES
            if magic < DLEDGER_HEADER_BYTES or i32(source, at + 44) != magic - DLEDGER_HEADER_BYTES:
                return rows, at, BAD_MAGIC, at + 4, 0
            at += DLEDGER_HEADER_BYTES  # the body of a DLedger entry is the record
            continue
        if size < _SMALLEST:
            return rows, at, BAD_SIZE, at, 0
        if left < size:
            return rows, at, NEED_MORE, at, size
        sys_flag = i32(source, at + 36)
        born = 20 if sys_flag & BORN_V6 else 8
        store = 20 if sys_flag & STORE_V6 else 8
        wide = 1 if magic == MAGIC_V2 else 0
        room = size - (_V1_HEAD + born + store + wide)
        if room < 0:
            return rows, at, BAD_SIZE, at, size
        stored_at = at + 48 + born
        tail_at = stored_at + 8 + store
        body_length = i32(source, tail_at + 12)
        if body_length < 0 or body_length > room:
            return rows, at, BAD_LENGTHS, tail_at + 12, size
        body_at = tail_at + 16
        topic_at = body_at + body_length
        topic_length = i16(source, topic_at) if wide else np.int64(np.int8(load8(source, topic_at)))
        room -= body_length
        if topic_length < 0 or topic_length > room:
            return rows, at, BAD_LENGTHS, topic_at, size
        topic_at += 1 + wide
        properties_at = topic_at + topic_length
        room -= topic_length
        properties_length = i16(source, properties_at)
        if properties_length != room:
            return rows, at, BAD_LENGTHS, properties_at, size
        properties_at += 2
        crc = i32(source, at + 8)
        if check_crc and not is_whole(data, body_at, body_length, crc):
            return rows, at, BAD_CRC, at + 8, size
        row = table[rows]
        row.position = at
        row.size = size
        row.magic = magic
        row.body_crc = crc
        row.queue_id = i32(source, at + 12)
        row.flag = i32(source, at + 16)
        row.queue_offset = i64(source, at + 20)
        row.physical_offset = i64(source, at + 28)
        row.sys_flag = sys_flag
        row.born_time = i64(source, at + 40)
        row.store_time = i64(source, stored_at)
        row.reconsume_times = i32(source, tail_at)
        row.prepared_offset = i64(source, tail_at + 4)
        row.born_host_at = at + 48
        row.store_host_at = stored_at + 8
        row.body_at = body_at
        row.body_length = body_length
        row.topic_at = topic_at
        row.topic_length = topic_length
        row.properties_at = properties_at
        row.properties_length = properties_length
        _properties(source, properties_at, at + size, end, row)
        rows += 1
        at += size
    return rows, at, OK, at, 0


@njit(cache=True, nogil=True, inline="always")
def _key_hash(source, at, end, topic_hash):
    value = _signed32(_hash_on(source, at, end, topic_hash))
    value = -value if value < 0 else value
    return value if value <= 0x7FFFFFFF else np.int64(0)


@njit(cache=True, nogil=True)
def index_keys(data, table, first, last, hashes, places, times, tags=True):
    """The index entries of the rows ``first`` to ``last`` of a MESSAGE table, in a broker's order.

    A record has an entry for its UNIQ_KEY, then one for each word of KEYS. With ``tags``, as in
    5.5.0 but not in 4.9.3, an entry for its tag follows, under the key ``T#TAG``. A record of a
    rolled back transaction has no entries. The three arrays receive the hash, address and store
    time of each entry. Returns (entries, next row). A row whose entries may not fit is left for the
    next call.
    """
    source = address(data)
    filled = 0
    for i in range(first, last):
        row = table[i]
        if row.sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK:
            continue
        length = row.key_length
        if row.marks & BLANK_KEY:
            length = row.marks >> KEY_LENGTH_SHIFT
        # The row's entries may not fit. At most every second byte of KEYS begins a word, because a
        # word has at least one byte, and a space separates two words.
        if filled + 2 + (max(length, 0) + 1) // 2 > len(hashes):
            return filled, i
        before = _hash_on(source, row.topic_at, row.topic_at + row.topic_length, np.int64(0))
        before = _mixed(before, np.int64(35))
        if row.uniq_length > 0:
            hashes[filled] = _key_hash(source, row.uniq_at, row.uniq_at + row.uniq_length, before)
            places[filled] = row.physical_offset
            times[filled] = row.store_time
            filled += 1
        if row.key_at >= 0:
            at = row.key_at
            end = at + length
            while at < end:
                stop = at
                while stop < end and load8(source, stop) != np.uint64(32):
                    stop += 1
                if stop > at:
                    hashes[filled] = _key_hash(source, at, stop, before)
                    places[filled] = row.physical_offset
                    times[filled] = row.store_time
                    filled += 1
                at = stop + 1
        if tags and row.tags_length > 0:
            before = _mixed(_mixed(before, np.int64(84)), np.int64(35))
            hashes[filled] = _key_hash(source, row.tags_at, row.tags_at + row.tags_length, before)
            places[filled] = row.physical_offset
            times[filled] = row.store_time
            filled += 1
    return filled, last


@njit(cache=True, nogil=True)
def put_entries(out, slots, capacity, hashes, places, times, first, last):
    """Add ``hashes[first:last]`` to the index file ``out`` as a broker does, until it is full.

    ``out`` is the whole file. Its size must match ``slots`` and ``capacity``. Returns the number of
    entries written.
    """
    base = 40 + 4 * slots
    count = max(i32(out, 36), np.int64(1))
    begin = i64(out, 0)
    used = i32(out, 32)
    done = first
    while done < last and count < capacity:
        slot_at = 40 + 4 * (hashes[done] % slots)
        before = i32(out, slot_at)
        if before <= 0 or before > count:
            before = np.int64(0)
        seconds = np.int64(0)
        if begin > 0 and times[done] > begin:
            seconds = min((times[done] - begin) // 1000, np.int64(0x7FFFFFFF))
        entry_at = base + 20 * count
        store32(out, entry_at, swap32(np.uint64(hashes[done])))
        store64(out, entry_at + 4, swap64(np.uint64(places[done])))
        store32(out, entry_at + 12, swap32(np.uint64(seconds)))
        store32(out, entry_at + 16, swap32(np.uint64(before)))
        store32(out, slot_at, swap32(np.uint64(count)))
        if count <= 1:
            begin = times[done]
            store64(out, 0, swap64(np.uint64(begin)))
            store64(out, 16, swap64(np.uint64(places[done])))
        if before == 0:
            used += 1
        count += 1
        store64(out, 8, swap64(np.uint64(times[done])))
        store64(out, 24, swap64(np.uint64(places[done])))
        done += 1
    store32(out, 32, swap32(np.uint64(used)))
    store32(out, 36, swap32(np.uint64(count)))
    return done - first
