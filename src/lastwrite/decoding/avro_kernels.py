"""The kernel that runs a program of ``avro`` over many values."""
# mypy: disable-error-code="untyped-decorator, no-untyped-def, assignment"

from __future__ import annotations

import numpy as np

from lastwrite.decoding.slot_kernels import (
    BRANCH,
    CUT,
    FLAG,
    ITEM_COUNT,
    LEFT_OVER,
    LENGTH,
    LONG_NUMBER,
    NO_BRANCH,
    OK,
    RANGE,
    SYMBOL,
    UTF8,
    put_nulls,
    set_byte,
    set_bytes,
    set_decimal,
    set_items,
    set_narrow,
    set_present,
    set_wide,
    take_back,
)
from lastwrite.encoding.intrinsics import load8, load32, load64
from lastwrite.encoding.kernel import njit

# The fields of an instruction are op, slot, a, b, c, d, each an int64. Two words are unused.
WORDS = 8
(
    DONE,
    NUMBER,  # operand a: AS_*; b, c: least and greatest value; d: multiplier
    FLOAT,  # operand a: AS_FLOAT or AS_DOUBLE
    DOUBLE,
    BOOLEAN,
    BYTES,  # operand a: 1 for text
    FIXED,  # a: size
    ENUM,  # operand a: index of the symbols in ``numbers``; b: number of symbols
    DECIMAL_BYTES,  # operand a: size, or -1 for a length prefix; b, c: words of the limit
    SKIP_NUMBER,
    SKIP,  # a: size
    SKIP_BYTES,
    UNION,  # operand a: index in ``numbers`` of the branches' first instructions; b: their count
    JUMP,  # operand a: number of the next instruction
    NULLS,  # append a null to each slot from ``slot`` to ``a`` - 1
    PRESENT,
    ITEMS,  # begin an array or map, skipped if slot is -1; operand a: depth; b: number after NEXT
    NEXT,  # end an item; operand a: depth; b: number of the ITEMS instruction
) = range(18)
AS_NARROW, AS_WIDE, AS_FLOAT, AS_DOUBLE = range(4)
MOST_NUMBER = 10  # most bytes of an encoded number


@njit(cache=True, nogil=True)
def read_number(data, at, end):
    """Read a zig-zag number. Returns it and the position after it, or a negative error code."""
    if at < end:
        one = load8(data, at)
        if one < 0x80:
            return np.int64(one >> np.uint64(1)) ^ -np.int64(one & np.uint64(1)), at + 1
    folded, shift = np.uint64(0), np.uint64(0)
    for _ in range(MOST_NUMBER):
        if at >= end:
            return 0, -CUT
        one = load8(data, at)
        at += 1
        if shift == 63 and one > 1:
            return 0, -LONG_NUMBER
        folded |= (one & np.uint64(0x7F)) << shift
        if one < 0x80:
            return np.int64(folded >> np.uint64(1)) ^ -np.int64(folded & np.uint64(1)), at
        shift += np.uint64(7)
    return 0, -LONG_NUMBER


@njit(cache=True, nogil=True)
def words_of(data, at, size):
    """Read a big-endian number of ``size`` bytes.

    Returns its low and high word, and whether it fits in 128 bits.
    """
    negative = size > 0 and load8(data, at) >= 0x80
    fill = np.uint64(0xFFFFFFFFFFFFFFFF) if negative else np.uint64(0)
    low, high = fill, fill
    for i in range(size):
        one = load8(data, at + i)
        if size - i > 16 and one != fill & np.uint64(0xFF):
            return low, high, False
        high = (high << np.uint64(8)) | (low >> np.uint64(56))
        low = (low << np.uint64(8)) | one
    # A longer number fits if only copies of the sign were shifted out, and the sign is unchanged.
    return low, high, size <= 16 or (high >> np.uint64(63) != 0) == negative


@njit(cache=True, nogil=True)
def is_below(low, high, limit_low, limit_high):
    """Whether the absolute value of a 128-bit number is below the limit."""
    if np.int64(high) < 0:
        low = ~low + np.uint64(1)
        high = ~high + (np.uint64(1) if low == 0 else np.uint64(0))
    return high < limit_high or (high == limit_high and low < limit_low)


@njit(cache=True, nogil=True)
def run(
    data, starts, present, rows, program, numbers, top_end, slots, counts, arena, stack, faults
):
    """Decode ``rows`` Avro values into slots. Bad values become null.

    Args:
        starts: int32 positions of the values in ``data``, and the end of the last value.
        present: a byte for each value, 0 for null.
        top_end: the end of the slots with an entry per row.
        arena: a buffer of the size that ``Slots.table`` returns.
        faults: two int64 for each value: error code, and position of the error.

    All arguments except ``rows``, ``top_end``, ``stack`` and ``faults`` are addresses.
    """
    for row in range(rows):
        code, where = OK, 0
        if load8(present, row) == 0:
            put_nulls(slots, counts, arena, 0, top_end)
        else:
            start = np.int64(load32(starts, 4 * row))
            end = np.int64(load32(starts, 4 * row + 4))
            code, where = one_value(data, start, end, program, numbers, slots, counts, arena, stack)
            if code != OK:
                take_back(slots, counts, arena, 0, top_end, row)
                put_nulls(slots, counts, arena, 0, top_end)
                where -= start
        faults[row, 0] = code
        faults[row, 1] = where


@njit(cache=True, nogil=True)
def one_value(data, at, end, program, numbers, slots, counts, arena, stack):
    """Decode one value with the program. Returns an error code, and the position of the error."""
    pc = 0
    while True:
        step = program + pc * (8 * WORDS)
        op = np.int64(load64(step, 0))
        slot = np.int64(load64(step, 8))
        a = np.int64(load64(step, 16))
        b = np.int64(load64(step, 24))
        c = np.int64(load64(step, 32))
        pc += 1
        if op == NUMBER:
            value, then = read_number(data, at, end)
            if then < 0:
                return -then, at
            if value < b or value > c:
                return RANGE, at
            at = then
            put_nulls(slots, counts, arena, slot, slot + 1)
            if a == AS_NARROW:
                set_narrow(slots, counts, arena, slot, value)
            elif a == AS_WIDE:
                set_wide(slots, counts, arena, slot, value * np.int64(load64(step, 40)))
            elif a == AS_FLOAT:
                set_narrow(slots, counts, arena, slot, np.float32(value).view(np.uint32))
            else:
                set_wide(slots, counts, arena, slot, np.float64(value).view(np.uint64))
        elif op == BYTES:
            size, then = read_number(data, at, end)
            if then < 0:
                return -then, at
            if size < 0:
                return LENGTH, at
            if size > end - then:
                return CUT, at
            put_nulls(slots, counts, arena, slot, slot + 1)
            if not set_bytes(slots, counts, arena, slot, data, then, size, a != 0):
                return UTF8, then
            at = then + size
        elif op == UNION:
            branch, then = read_number(data, at, end)
            if then < 0:
                return -then, at
            if branch < 0 or branch >= b:
                return BRANCH, at
            pc = np.int64(load64(numbers, 8 * (a + branch)))
            if pc < 0:
                return NO_BRANCH, at
            at = then
        elif op == NULLS:
            put_nulls(slots, counts, arena, slot, a)
        elif op == JUMP:
            pc = a
        elif op == PRESENT:
            put_nulls(slots, counts, arena, slot, slot + 1)
            set_present(slots, counts, arena, slot)
        elif op == DOUBLE or op == FLOAT:
            size = 8 if op == DOUBLE else 4
            if size > end - at:
                return CUT, at
            put_nulls(slots, counts, arena, slot, slot + 1)
            if op == DOUBLE:
                set_wide(slots, counts, arena, slot, load64(data, at))
            elif a == AS_FLOAT:
                set_narrow(slots, counts, arena, slot, load32(data, at))
            else:
                bits = np.uint32(load32(data, at))
                set_wide(
                    slots, counts, arena, slot, np.float64(bits.view(np.float32)).view(np.uint64)
                )
            at += size
        elif op == BOOLEAN:
            if at >= end:
                return CUT, at
            flag = load8(data, at)
            if flag > 1:
                return FLAG, at
            put_nulls(slots, counts, arena, slot, slot + 1)
            set_byte(slots, counts, arena, slot, flag)
            at += 1
        elif op == ITEMS:
            left, then = read_number(data, at, end)
            if then >= 0 and left < 0:  # after a negative count, the block's size in bytes follows
                left = -left
                _, then = read_number(data, then, end)
            if then < 0:
                return -then, at
            if left < 0 or left > end - then:
                return ITEM_COUNT, at
            at = then
            if left == 0:
                if slot >= 0:
                    put_nulls(slots, counts, arena, slot, slot + 1)
                    set_items(slots, counts, arena, slot)
                pc = b
            else:
                stack[a] = left
        elif op == NEXT:
            stack[a] -= 1
            pc = b if stack[a] == 0 else b + 1
        elif op == ENUM:
            symbol, then = read_number(data, at, end)
            if then < 0:
                return -then, at
            if symbol < 0 or symbol >= b:
                return SYMBOL, at
            symbol = np.int64(load64(numbers, 8 * (a + symbol)))
            if symbol < 0:
                return SYMBOL, at
            put_nulls(slots, counts, arena, slot, slot + 1)
            set_narrow(slots, counts, arena, slot, symbol)
            at = then
        elif op == FIXED:
            if a > end - at:
                return CUT, at
            put_nulls(slots, counts, arena, slot, slot + 1)
            set_bytes(slots, counts, arena, slot, data, at, a, False)
            at += a
        elif op == DECIMAL_BYTES:
            size, then = a, at
            if a < 0:
                size, then = read_number(data, at, end)
                if then < 0:
                    return -then, at
                if size < 0:
                    return LENGTH, at
            if size > end - then:
                return CUT, at
            low, high, fits = words_of(data, then, size)
            if not fits or not is_below(low, high, np.uint64(b), np.uint64(c)):
                return RANGE, at
            put_nulls(slots, counts, arena, slot, slot + 1)
            set_decimal(slots, counts, arena, slot, low, high)
            at = then + size
        elif op == SKIP:
            if a > end - at:
                return CUT, at
            at += a
        elif op == SKIP_NUMBER:
            _, then = read_number(data, at, end)
            if then < 0:
                return -then, at
            at = then
        elif op == SKIP_BYTES:
            size, then = read_number(data, at, end)
            if then < 0:
                return -then, at
            if size < 0:
                return LENGTH, at
            if size > end - then:
                return CUT, at
            at = then + size
        else:  # DONE
            return (OK, at) if at == end else (LEFT_OVER, at)
