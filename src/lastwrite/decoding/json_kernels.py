"""The kernel that decodes JSON texts into slots. Each value is one text.

Skipped parts of a text must conform to RFC 8259, too. If an object has a name twice, the last value
is used.
"""
# mypy: disable-error-code="untyped-decorator, no-untyped-def, assignment"

from __future__ import annotations

import numpy as np

from lastwrite.decoding.slot_kernels import (
    CUT,
    DEPTH,
    ESCAPE,
    LEFT_OVER,
    OF_ITEMS,
    OF_STORED,
    OK,
    RANGE,
    SYNTAX,
    TYPE,
    UTF8,
    count_of,
    field_of,
    is_utf8,
    put_nulls,
    room_for_bytes,
    set_byte,
    set_items,
    set_length,
    set_present,
    set_wide,
    take_back,
)
from lastwrite.decoding.slots import BYTE, LIST, RECORD, VAR, WIDE
from lastwrite.encoding.intrinsics import (
    load8,
    load32,
    load64,
    store8,
    store64,
    trailing_zeros,
)
from lastwrite.encoding.kernel import njit

MOST_DEPTH = 512  # most levels of nested values, including skipped values
# The columns of the table ``traits``, which has a row for each slot: see ``json_values``.
IS_DOUBLE, FIELDS, FIELD_COUNT, SLOT_END, IS_MAP = range(5)
TRAITS = 5
# The columns of the table of fields: offset of the field's name in ``names``, bytes of the name,
# the field's slot, and 1 if no character of the name needs an escape.
NAME_AT, NAME_BYTES, FIELD_SLOT, IS_PLAIN = range(4)
# The kinds of open values, which are nested values whose end was not read yet.
_OBJECT, _ARRAY, _MAP = range(3)
_HIGH = np.uint64(0x8080808080808080)
_LOW = np.uint64(0x0101010101010101)
_QUOTE = np.uint64(0x2222222222222222)
_BACKSLASH = np.uint64(0x5C5C5C5C5C5C5C5C)
_SPACE = np.uint64(0x2020202020202020)
_POWERS = 10.0 ** np.arange(23)
_MOST_EXPONENT = 1 << 20


@njit(cache=True, nogil=True)
def run(
    data,
    starts,
    present,
    rows,
    traits,
    fields,
    names,
    slots,
    counts,
    arena,
    stack,
    scratch,
    long_numbers,
    faults,
):
    """Decode ``rows`` JSON texts into slots. Other arguments are as in ``avro_kernels.run``.

    Args:
        stack: four int64 for each open value.
        scratch: the address of a buffer for a name.
        long_numbers: four int64 for each number that plain arithmetic cannot convert exactly:
            slot, entry, position, length.

    Returns:
        The number of ``long_numbers``.
    """
    many = 0
    top_end = traits[0, SLOT_END]
    for row in range(rows):
        put_nulls(slots, counts, arena, 0, top_end)
        faults[row, 0] = OK
        faults[row, 1] = 0
        if load8(present, row) == 0:
            continue
        start = np.int64(load32(starts, 4 * row))
        end = np.int64(load32(starts, 4 * row + 4))
        before = many
        code, at, many = one_text(
            data,
            start,
            end,
            traits,
            fields,
            names,
            slots,
            counts,
            arena,
            stack,
            scratch,
            long_numbers,
            many,
        )
        if code != OK:
            take_back(slots, counts, arena, 0, top_end, row)
            put_nulls(slots, counts, arena, 0, top_end)
            many = before
            faults[row, 0] = code
            faults[row, 1] = at - start
    return many


@njit(cache=True, nogil=True)
def past_spaces(data, at, end):
    while at < end:
        one = load8(data, at)
        if one != 0x20 and one != 0x0A and one != 0x0D and one != 0x09:
            break
        at += 1
    return at


@njit(cache=True, nogil=True)
def one_text(
    data,
    at,
    end,
    traits,
    fields,
    names,
    slots,
    counts,
    arena,
    stack,
    scratch,
    long_numbers,
    many,
):
    """Decode one JSON text.

    Returns an error code, the error's position, and the number of rows in ``long_numbers``.
    """
    depth, slot = 0, 0
    while True:
        # a value begins; it belongs to ``slot``, or is skipped if ``slot`` is -1
        at = past_spaces(data, at, end)
        if at >= end:
            return CUT, at, many
        one = load8(data, at)
        stored = field_of(slots, slot, OF_STORED) if slot >= 0 else -1
        if one == 0x7B or one == 0x5B:  # { [
            if depth >= MOST_DEPTH:
                return DEPTH, at, many
            kind = _ARRAY
            if one == 0x7B:
                kind = _MAP if slot >= 0 and traits[slot, IS_MAP] else _OBJECT
            wanted = RECORD if kind == _OBJECT else LIST
            if slot >= 0 and (stored != wanted or (kind == _ARRAY and traits[slot, IS_MAP])):
                return TYPE, at, many
            stack[4 * depth] = kind
            stack[4 * depth + 1] = slot
            stack[4 * depth + 2] = 0  # index of the field that is expected next
            depth += 1
            if slot >= 0:
                set_present(slots, counts, arena, slot)
            at = past_spaces(data, at + 1, end)
            if at >= end:
                return CUT, at, many
            is_done = load8(data, at) == (0x5D if kind == _ARRAY else 0x7D)
        else:
            is_done = True
            then = at
            if one == 0x22:  # "
                if slot >= 0 and stored != VAR:
                    return TYPE, at, many
                code, then = text(data, at + 1, end, slots, counts, arena, slot, scratch)
                if code != OK:
                    return code, then, many
            elif one == 0x2D or 0x30 <= one <= 0x39:
                if slot >= 0 and (stored != WIDE):
                    return TYPE, at, many
                code, then, many = number(
                    data, at, end, traits, slots, counts, arena, slot, long_numbers, many
                )
                if code != OK:
                    return code, then, many
            else:
                code, then = word(data, at, end, slots, counts, arena, slot, stored)
                if code != OK:
                    return code, then, many
            at = then
            # a value has ended; ``is_done`` stays True unless a comma follows
            if depth == 0:
                at = past_spaces(data, at, end)
                return (OK if at == end else LEFT_OVER), at, many
            kind = stack[4 * (depth - 1)]
            at = past_spaces(data, at, end)
            if at >= end:
                return CUT, at, many
            one = load8(data, at)
            if one == 0x2C:  # ,
                is_done = False
                at = past_spaces(data, at + 1, end)
                if at >= end:
                    return CUT, at, many
            elif one != (0x5D if kind == _ARRAY else 0x7D):
                return SYNTAX, at, many
        # here ``at`` is at a closing bracket if ``is_done``, otherwise at the next name or item
        while is_done:
            depth -= 1
            slot = stack[4 * depth + 1]
            if slot >= 0 and stack[4 * depth] != _OBJECT:
                set_items(slots, counts, arena, slot)
            at = past_spaces(data, at + 1, end)
            if depth == 0:
                return (OK if at == end else LEFT_OVER), at, many
            if at >= end:
                return CUT, at, many
            kind = stack[4 * (depth - 1)]
            one = load8(data, at)
            if one == 0x2C:
                is_done = False
                at = past_spaces(data, at + 1, end)
                if at >= end:
                    return CUT, at, many
            elif one != (0x5D if kind == _ARRAY else 0x7D):
                return SYNTAX, at, many
        kind = stack[4 * (depth - 1)]
        inside = stack[4 * (depth - 1) + 1]
        if kind == _ARRAY:
            slot = -1
            if inside >= 0:
                slot = field_of(slots, inside, OF_ITEMS)
                put_nulls(slots, counts, arena, slot, traits[slot, SLOT_END])
            continue
        if load8(data, at) != 0x22:
            return SYNTAX, at, many
        if kind == _MAP:
            entry = field_of(slots, inside, OF_ITEMS)
            put_nulls(slots, counts, arena, entry, traits[entry, SLOT_END])
            set_present(slots, counts, arena, entry)
            first = traits[entry, FIELDS]
            code, then = text(
                data, at + 1, end, slots, counts, arena, fields[first, FIELD_SLOT], scratch
            )
            slot = fields[first + 1, FIELD_SLOT]
        elif inside < 0:
            code, then = text(data, at + 1, end, slots, counts, arena, -1, scratch)
            slot = -1
        else:
            code, then, slot = field(
                data,
                at + 1,
                end,
                traits,
                fields,
                names,
                slots,
                counts,
                arena,
                stack,
                depth,
                scratch,
            )
        if code != OK:
            return code, then, many
        at = past_spaces(data, then, end)
        if at >= end:
            return CUT, at, many
        if load8(data, at) != 0x3A:  # :
            return SYNTAX, at, many
        at += 1


@njit(cache=True, nogil=True)
def field(data, at, end, traits, fields, names, slots, counts, arena, stack, depth, scratch):
    """Read the name of an object's field. ``at`` is after the name's opening quote.

    Returns an error code, the position after the name, and the field's slot, or -1 if there is no
    such field.

    The slot's last entry is null: the value of an earlier field of the same name is removed.
    """
    inside = stack[4 * (depth - 1) + 1]
    expected = stack[4 * (depth - 1) + 2]
    first, count = traits[inside, FIELDS], traits[inside, FIELD_COUNT]
    where, length, then = np.int64(0), np.int64(-1), at
    if (
        expected < count and fields[first + expected, IS_PLAIN]
    ):  # names usually have the same order in all values
        length = fields[first + expected, NAME_BYTES]
        if at + length < end and load8(data, at + length) == 0x22:
            if is_same(data, at, names, fields[first + expected, NAME_AT], length):
                stack[4 * (depth - 1) + 2] = expected + 1
                return OK, at + length + 1, fields[first + expected, FIELD_SLOT]
    code, then = text(data, at, end, slots, counts, arena, -1, scratch)
    if code != OK:
        return code, then, np.int64(-1)
    source, where, length = data, at, then - 1 - at
    for i in range(length):
        if load8(data, at + i) == 0x5C:
            # A character takes up to 12 bytes with escapes. A longer name matches no field.
            if length > 12 * np.int64(load64(scratch, 0)):
                return OK, then, np.int64(-1)
            _, _, length = unescaped(data, at, end, scratch + 8, 0)
            source, where = scratch + 8, np.int64(0)
            break
    for i in range(count):
        if fields[first + i, NAME_BYTES] == length:
            if is_same(source, where, names, fields[first + i, NAME_AT], length):
                slot = fields[first + i, FIELD_SLOT]
                if i < expected:  # the field may have a value already, which is removed
                    last = count_of(counts, slot) - 1
                    take_back(slots, counts, arena, slot, traits[slot, SLOT_END], last)
                    put_nulls(slots, counts, arena, slot, traits[slot, SLOT_END])
                stack[4 * (depth - 1) + 2] = max(expected, i + 1)
                return OK, then, slot
    return OK, then, np.int64(-1)


@njit(cache=True, nogil=True)
def is_same(data, at, other, other_at, length):
    i = 0
    while i + 8 <= length:
        if load64(data, at + i) != load64(other, other_at + i):
            return False
        i += 8
    while i < length:
        if load8(data, at + i) != load8(other, other_at + i):
            return False
        i += 1
    return True


@njit(cache=True, nogil=True)
def text(data, at, end, slots, counts, arena, slot, scratch):
    """Read a string into the last entry of ``slot``, or skip it if ``slot`` is -1.

    ``at`` is after the opening quote. Returns an error code, and the position after the closing
    quote.
    """
    to = room_for_bytes(slots, counts, arena, slot) if slot >= 0 else np.int64(0)
    seen, i, start = np.uint64(0), 0, at
    while True:
        if at + 8 <= end:
            one = load64(data, at)
            quote, slash = one ^ _QUOTE, one ^ _BACKSLASH
            special = (
                ((quote - _LOW) & ~quote) | ((slash - _LOW) & ~slash) | ((one - _SPACE) & ~one)
            )
            special &= _HIGH
            if special == 0:
                seen |= one
                if slot >= 0:
                    store64(arena, to + i, one)
                i += 8
                at += 8
                continue
            before = np.int64(trailing_zeros(special)) >> 3
            for _ in range(before):
                byte = load8(data, at)
                seen |= byte
                if slot >= 0:
                    store8(arena, to + i, byte)
                i += 1
                at += 1
        if at >= end:
            return CUT, at
        byte = load8(data, at)
        if byte == 0x22:
            break
        if byte < 0x20:
            return SYNTAX, at
        if byte == 0x5C:
            code, then, length = unescaped(
                data, at, end, arena if slot >= 0 else np.int64(0), to + i
            )
            if code != OK:
                return code, then
            if slot >= 0:
                whole = i + length
                set_length(slots, counts, arena, slot, whole)
                if not is_utf8(arena, to, whole):
                    return UTF8, start
            elif not is_utf8(data, start, then - 1 - start):
                return UTF8, start
            return OK, then
        seen |= byte
        if slot >= 0:
            store8(arena, to + i, byte)
        i += 1
        at += 1
    if seen & _HIGH != 0 and not is_utf8(data, start, at - start):
        return UTF8, start
    if slot >= 0:
        set_length(slots, counts, arena, slot, i)
    return OK, at + 1


@njit(cache=True, nogil=True)
def digits(data, at, end):
    """The value of four hexadecimal digits. -1 if the bytes are not such digits."""
    if at + 4 > end:
        return np.int64(-1)
    value = np.int64(0)
    for i in range(4):
        one = np.int64(load8(data, at + i))
        if 0x30 <= one <= 0x39:
            one -= 0x30
        elif 0x41 <= one <= 0x46:
            one -= 0x37
        elif 0x61 <= one <= 0x66:
            one -= 0x57
        else:
            return np.int64(-1)
        value = (value << 4) | one
    return value


@njit(cache=True, nogil=True)
def unescaped(data, at, end, out, to):
    """Write the rest of a string to ``out``, with escapes resolved.

    If ``out`` is 0, the string is only checked.

    Returns an error code, the position after the closing quote, and the number of bytes written.
    At most as many bytes are written as were read.
    """
    begin = to
    while True:
        if at >= end:
            return CUT, at, to - begin
        one = load8(data, at)
        if one == 0x22:
            return OK, at + 1, to - begin
        if one < 0x20:
            return SYNTAX, at, to - begin
        if one != 0x5C:
            if out != 0:
                store8(out, to, one)
            to += 1
            at += 1
            continue
        if at + 1 >= end:
            return CUT, at, to - begin
        one = load8(data, at + 1)
        at += 2
        point = np.int64(one)
        if one == 0x75:  # u
            point = digits(data, at, end)
            if point < 0 or 0xDC00 <= point < 0xE000:
                return ESCAPE, at - 2, to - begin
            at += 4
            if 0xD800 <= point < 0xDC00:
                low = np.int64(-1)
                if at + 6 <= end and load8(data, at) == 0x5C and load8(data, at + 1) == 0x75:
                    low = digits(data, at + 2, end)
                if low < 0xDC00 or low > 0xDFFF:
                    return ESCAPE, at - 6, to - begin
                point = 0x10000 + ((point - 0xD800) << 10) + (low - 0xDC00)
                at += 6
        elif one == 0x6E:
            point = np.int64(0x0A)
        elif one == 0x74:
            point = np.int64(0x09)
        elif one == 0x72:
            point = np.int64(0x0D)
        elif one == 0x62:
            point = np.int64(0x08)
        elif one == 0x66:
            point = np.int64(0x0C)
        elif one != 0x22 and one != 0x5C and one != 0x2F:
            return ESCAPE, at - 2, to - begin
        to = put_point(out, to, point)


@njit(cache=True, nogil=True)
def put_point(out, to, point):
    """Write a character as UTF-8 at ``to``. Returns the position after it."""
    size = 1 if point < 0x80 else 2 if point < 0x800 else 3 if point < 0x10000 else 4
    if out != 0:
        if size == 1:
            store8(out, to, np.uint64(point))
        else:
            lead = 0xC0 if size == 2 else 0xE0 if size == 3 else 0xF0
            store8(out, to, np.uint64(lead | (point >> (6 * (size - 1)))))
            for i in range(1, size):
                store8(out, to + i, np.uint64(0x80 | ((point >> (6 * (size - 1 - i))) & 0x3F)))
    return to + size


@njit(cache=True, nogil=True)
def word(data, at, end, slots, counts, arena, slot, stored):
    """Read true, false or null. Returns an error code, and the position after this literal."""
    one, length = load8(data, at), 4
    if one == 0x66:
        length = 5
    if at + length > end:
        return SYNTAX, at
    head = load32(data, at)
    if one == 0x6E and head == 0x6C6C756E:
        return OK, at + 4  # the entry is null already
    is_true = one == 0x74 and head == 0x65757274
    if not is_true and not (one == 0x66 and head == 0x736C6166 and load8(data, at + 4) == 0x65):
        return SYNTAX, at
    if slot >= 0:
        if stored != BYTE:
            return TYPE, at
        set_byte(slots, counts, arena, slot, 1 if is_true else 0)
    return OK, at + length


@njit(cache=True, nogil=True)
def number(data, at, end, traits, slots, counts, arena, slot, long_numbers, many):
    """Read a number into the last entry of ``slot``.

    Returns an error code, the position after the number, and the number of rows in
    ``long_numbers``.
    """
    start = at
    is_negative = load8(data, at) == 0x2D
    at += 1 if is_negative else 0
    value, used, exponent, is_whole = np.uint64(0), 0, 0, True
    if at >= end or not 0x30 <= load8(data, at) <= 0x39:
        return SYNTAX, at, many
    if load8(data, at) == 0x30 and at + 1 < end and 0x30 <= load8(data, at + 1) <= 0x39:
        return SYNTAX, at, many
    while at < end:
        one = load8(data, at)
        if one < 0x30 or one > 0x39:
            break
        if used < 19:
            value = value * np.uint64(10) + (one - np.uint64(0x30))
            used += 1 if value != 0 else 0
        else:
            exponent += 1
            used += 1
        at += 1
    if at < end and load8(data, at) == 0x2E:
        at += 1
        is_whole = False
        if at >= end or not 0x30 <= load8(data, at) <= 0x39:
            return SYNTAX, at, many
        while at < end:
            one = load8(data, at)
            if one < 0x30 or one > 0x39:
                break
            if used < 19:
                value = value * np.uint64(10) + (one - np.uint64(0x30))
                used += 1 if value != 0 else 0
                exponent -= 1
            else:
                used += 1
            at += 1
    if at < end and (load8(data, at) | np.uint64(0x20)) == 0x65:  # e
        at += 1
        is_whole = False
        minus = at < end and load8(data, at) == 0x2D
        if minus or (at < end and load8(data, at) == 0x2B):
            at += 1
        if at >= end or not 0x30 <= load8(data, at) <= 0x39:
            return SYNTAX, at, many
        written = 0
        while at < end and 0x30 <= load8(data, at) <= 0x39:
            if written < _MOST_EXPONENT:
                written = written * 10 + np.int64(load8(data, at)) - 0x30
            at += 1
        exponent += -written if minus else written
    if slot < 0:
        return OK, at, many
    if traits[slot, IS_DOUBLE]:
        if used <= 19 and value < np.uint64(1 << 53) and -22 <= exponent <= 22:
            real = np.float64(value)
            real = real * _POWERS[exponent] if exponent >= 0 else real / _POWERS[-exponent]
            bits = np.float64(real).view(np.uint64)
            if is_negative:
                bits |= np.uint64(1 << 63)
            set_wide(slots, counts, arena, slot, bits)
        else:
            set_wide(slots, counts, arena, slot, np.uint64(0))
            long_numbers[many, 0] = slot
            long_numbers[many, 1] = count_of(counts, slot) - 1
            long_numbers[many, 2] = start
            long_numbers[many, 3] = at - start
            many += 1
        return OK, at, many
    # an integer may be written as 1.0 or 1e3
    if used > 19 or (not is_whole and abs(exponent) > 40):
        return RANGE, start, many
    while exponent < 0:
        if value % np.uint64(10) != 0:
            return TYPE, start, many
        value //= np.uint64(10)
        exponent += 1
    limit = np.uint64(1 << 63) if is_negative else np.uint64((1 << 63) - 1)
    while exponent > 0 and value != 0:
        if value > limit // np.uint64(10):
            return RANGE, start, many
        value *= np.uint64(10)
        exponent -= 1
    if value > limit:
        return RANGE, start, many
    set_wide(slots, counts, arena, slot, ~value + np.uint64(1) if is_negative else value)
    return OK, at, many
