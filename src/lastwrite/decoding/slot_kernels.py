"""Kernels that all decoders share: append, set and remove entries of slots; check UTF-8.

``slots``, ``counts`` and ``arena`` are addresses (see ``encoding.intrinsics``). Only the last entry
of a slot can be written: ``put_nulls`` appends a null, and ``set_*`` replace it by a value, several
times if needed. Bytes of text after the last entry belong to removed entries.
"""
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import numpy as np

from lastwrite.decoding.slots import (
    BASE,
    BYTE,
    COLUMNS,
    DECIMAL,
    HEAP,
    ITEMS,
    ITEMS_END,
    LIST,
    NARROW,
    OWNER,
    STORED,
    VALID,
    VAR,
    WIDE,
)
from lastwrite.encoding.intrinsics import (
    load8,
    load32,
    load64,
    store8,
    store32,
    store64,
)
from lastwrite.encoding.kernel import njit

ROW = 8 * COLUMNS  # bytes of a slot in the table
OF_STORED, OF_BASE, OF_VALID, OF_HEAP = 8 * STORED, 8 * BASE, 8 * VALID, 8 * HEAP
OF_OWNER, OF_ITEMS, OF_ITEMS_END = 8 * OWNER, 8 * ITEMS, 8 * ITEMS_END

# The error codes of bad values.
OK = 0
CUT = 1
LEFT_OVER = 2
LONG_NUMBER = 3
RANGE = 4
LENGTH = 5
FLAG = 6
UTF8 = 7
BRANCH = 8
NO_BRANCH = 9
SYMBOL = 10
ITEM_COUNT = 11
TYPE = 12
SYNTAX = 13
DEPTH = 14
ESCAPE = 15
WIRE = 16
REQUIRED = 17

REASONS = {
    CUT: "it stops early",
    LEFT_OVER: "bytes are left over",
    LONG_NUMBER: "a number of too many bytes",
    RANGE: "a number that is out of range",
    LENGTH: "a length that is negative",
    FLAG: "a boolean that is neither 0 nor 1",
    UTF8: "text that is not UTF-8",
    BRANCH: "a branch that its union does not have",
    NO_BRANCH: "a branch that the reader's schema does not have",
    SYMBOL: "a symbol that the enum does not have",
    ITEM_COUNT: "more items than there are bytes",
    TYPE: "a value of another type than the schema's",
    SYNTAX: "no JSON",
    DEPTH: "nested too deep",
    ESCAPE: "an escape that means no character",
    WIRE: "no field of Protobuf's begins",
    REQUIRED: "a required field is missing",
}


@njit(cache=True, nogil=True)
def field_of(slots, s, column):
    """Read one column of the table of slots, for slot ``s``.

    ``column`` is the byte in the row where the column begins.
    """
    return np.int64(load64(slots, s * ROW + column))


@njit(cache=True, nogil=True)
def count_of(counts, s):
    return np.int64(load64(counts, s * 8))


@njit(cache=True, nogil=True)
def put_nulls(slots, counts, arena, first, end):
    """Append a null to each slot from ``first`` to before ``end``."""
    for s in range(first, end):
        n = count_of(counts, s)
        store64(counts, s * 8, np.uint64(n + 1))
        store8(arena, field_of(slots, s, OF_VALID) + n, np.uint64(0))
        stored, base = field_of(slots, s, OF_STORED), field_of(slots, s, OF_BASE)
        if stored == WIDE:
            store64(arena, base + 8 * n, np.uint64(0))
        elif stored >= VAR:
            store32(arena, base + 4 * n + 4, load32(arena, base + 4 * n))
        elif stored == NARROW:
            store32(arena, base + 4 * n, np.uint64(0))
        elif stored == BYTE:
            store8(arena, base + n, np.uint64(0))
        elif stored == DECIMAL:
            store64(arena, base + 16 * n, np.uint64(0))
            store64(arena, base + 16 * n + 8, np.uint64(0))


@njit(cache=True, nogil=True)
def take_back(slots, counts, arena, first, end, count):
    """Truncate the slots [``first``, ``end``) to ``count`` entries, and remove items of lists."""
    for s in range(first, end):
        store64(counts, s * 8, np.uint64(count))
    for s in range(first, end):
        if field_of(slots, s, OF_STORED) == LIST:
            # A list's slot has a lower number than its items' slots, so it is truncated first.
            for held in range(field_of(slots, s, OF_ITEMS), field_of(slots, s, OF_ITEMS_END)):
                owner = field_of(slots, held, OF_OWNER)
                base, n = field_of(slots, owner, OF_BASE), count_of(counts, owner)
                store64(counts, held * 8, load32(arena, base + 4 * n))


@njit(cache=True, nogil=True)
def set_present(slots, counts, arena, s):
    """Mark a slot's last entry as not null. Returns the entry's index."""
    n = count_of(counts, s) - 1
    store8(arena, field_of(slots, s, OF_VALID) + n, np.uint64(1))
    return n


@njit(cache=True, nogil=True)
def set_byte(slots, counts, arena, s, value):
    n = set_present(slots, counts, arena, s)
    store8(arena, field_of(slots, s, OF_BASE) + n, np.uint64(value))


@njit(cache=True, nogil=True)
def set_narrow(slots, counts, arena, s, value):
    n = set_present(slots, counts, arena, s)
    store32(arena, field_of(slots, s, OF_BASE) + 4 * n, np.uint64(value))


@njit(cache=True, nogil=True)
def set_wide(slots, counts, arena, s, value):
    n = set_present(slots, counts, arena, s)
    store64(arena, field_of(slots, s, OF_BASE) + 8 * n, np.uint64(value))


@njit(cache=True, nogil=True)
def set_decimal(slots, counts, arena, s, low, high):
    n = set_present(slots, counts, arena, s)
    store64(arena, field_of(slots, s, OF_BASE) + 16 * n, np.uint64(low))
    store64(arena, field_of(slots, s, OF_BASE) + 16 * n + 8, np.uint64(high))


@njit(cache=True, nogil=True)
def room_for_bytes(slots, counts, arena, s):
    """The address in the arena where the bytes of a slot's last entry are written."""
    n = count_of(counts, s) - 1
    return field_of(slots, s, OF_HEAP) + np.int64(
        load32(arena, field_of(slots, s, OF_BASE) + 4 * n)
    )


@njit(cache=True, nogil=True)
def set_length(slots, counts, arena, s, length):
    """Set a slot's last entry to the ``length`` bytes that were written at ``room_for_bytes``."""
    n = set_present(slots, counts, arena, s)
    base = field_of(slots, s, OF_BASE)
    store32(arena, base + 4 * n + 4, load32(arena, base + 4 * n) + np.uint64(length))


@njit(cache=True, nogil=True)
def set_bytes(slots, counts, arena, s, data, at, length, is_text):
    """Set a slot's last entry to bytes. Returns False for bytes of a text that are not UTF-8."""
    to = room_for_bytes(slots, counts, arena, s)
    seen, i = np.uint64(0), 0
    while i + 8 <= length:
        word = load64(data, at + i)
        seen |= word
        store64(arena, to + i, word)
        i += 8
    while i < length:
        word = load8(data, at + i)
        seen |= word
        store8(arena, to + i, word)
        i += 1
    set_length(slots, counts, arena, s, length)
    return not is_text or seen & np.uint64(0x8080808080808080) == 0 or is_utf8(data, at, length)


@njit(cache=True, nogil=True)
def set_items(slots, counts, arena, s):
    """Set a list slot's last entry to the items that were appended since the entry before."""
    n = set_present(slots, counts, arena, s)
    items = load64(counts, field_of(slots, s, OF_ITEMS) * 8)
    store32(arena, field_of(slots, s, OF_BASE) + 4 * n + 4, items)


@njit(cache=True, nogil=True)
def is_utf8(data, at, length):
    """Whether the bytes are valid UTF-8: shortest form, no surrogates, at most U+10FFFF."""
    end = at + length
    while at < end:
        one = np.int64(load8(data, at))
        at += 1
        if one < 0x80:
            continue
        low, high = 0x80, 0xBF
        if 0xC2 <= one <= 0xDF:
            more = 1
        elif 0xE0 <= one <= 0xEF:
            more = 2
            if one == 0xE0:
                low = 0xA0
            elif one == 0xED:
                high = 0x9F
        elif 0xF0 <= one <= 0xF4:
            more = 3
            if one == 0xF0:
                low = 0x90
            elif one == 0xF4:
                high = 0x8F
        else:
            return False
        if at + more > end:
            return False
        for _ in range(more):
            one = np.int64(load8(data, at))
            if one < low or one > high:
                return False
            low, high = 0x80, 0xBF
            at += 1
    return True
