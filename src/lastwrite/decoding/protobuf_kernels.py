"""The kernel that decodes Protobuf values into slots, driven by the tables of ``protobuf``.

Fields that the schema lacks are skipped, and so are fields with another wire type than in the
schema, as in Protobuf's libraries.

Source: Protocol Buffers, "Encoding"; upb, ``wire/decode.c``.
"""
# mypy: disable-error-code="untyped-decorator, no-untyped-def, assignment"

from __future__ import annotations

import numpy as np

from lastwrite.decoding.slot_kernels import (
    CUT,
    DEPTH,
    LONG_NUMBER,
    OF_BASE,
    OF_VALID,
    OK,
    RANGE,
    REQUIRED,
    SYMBOL,
    UTF8,
    WIRE,
    count_of,
    field_of,
    put_nulls,
    room_for_bytes,
    set_byte,
    set_bytes,
    set_decimal,
    set_items,
    set_length,
    set_narrow,
    set_present,
    set_wide,
    take_back,
)
from lastwrite.encoding.intrinsics import load8, load32, load64, store8, store64
from lastwrite.encoding.kernel import njit

# The actions that decode a field's bytes.
(
    INT32,
    INT64,
    UINT32,
    UINT64,
    SINT32,
    SINT64,
    BOOL,
    ENUM,
    NARROW32,  # copy 4 bytes
    WIDE32,
    WIDE64,  # copy 8 bytes
    DECIMAL64,
    BYTES,
    TEXT,
    MESSAGE,
    TIMESTAMP,
    MERGED,  # a message left as bytes; repeated values are concatenated, which merges the messages
    PASSED_OVER,  # skip a member of a oneof, because it is not requested, and clear the others
) = range(18)

# The columns of the table of messages. They contain the first index and the length of three lists:
# the message's fields; the slots (in ``numbers``) that are not null if their field is absent; the
# slots (in ``numbers``) of required fields.
FIELDS_AT, FIELD_COUNT, SET_AT, SET_COUNT, REQUIRED_AT, REQUIRED_COUNT = range(6)
MESSAGE_WORDS = 6
# The columns of the table of fields. The fields of a message are sorted by number.
# ``LIST``: the slot of the list whose item is ``SLOT``, or -1.
# ``OTHERS_AT``: for a member of a oneof, the index in ``numbers`` of the other members' ranges of
# slots (first, end).
# ``SYMBOLS_AT``: index in ``numbers`` of an enum's numbers, ascending, then their symbols.
(
    NUMBER,
    WIRE_TYPE,
    ACTION,
    SLOT,
    SLOT_END,
    LIST,
    INNER,
    OTHERS_AT,
    OTHERS_COUNT,
    SYMBOLS_AT,
    SYMBOL_COUNT,
) = range(11)
FIELD_WORDS = 11
VARINT, FIXED64, DELIMITED, GROUP, GROUP_END, FIXED32 = range(6)
# The words of a stack entry: a message's index, its end, the group's number or 0, expected field.
FRAME_WORDS = 4
MOST_GROUPS = 100  # most levels of nested groups in skipped fields

_MOST_TAG = np.uint64(0xFFFFFFFF)
_FOUR = np.uint64(0xFFFFFFFF)
_UNKNOWN = 0xFFFFFFFF  # value of an enum's slot for a number that the enum lacks
_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_799  # years 1 to 9999
_MICROS = 1_000_000


@njit(cache=True, nogil=True)
def read_varint(data, at, end):
    """Read a varint of up to 64 bits.

    Returns the varint and the position after it, or a negative error code.
    """
    if at < end:
        one = load8(data, at)
        if one < 0x80:
            return one, at + 1
    found, shift = np.uint64(0), np.uint64(0)
    for _ in range(10):
        if at >= end:
            return np.uint64(0), -CUT
        one = load8(data, at)
        at += 1
        found |= (one & np.uint64(0x7F)) << shift
        if one < 0x80:
            return found, at
        shift += np.uint64(7)
    return np.uint64(0), -LONG_NUMBER


@njit(cache=True, nogil=True)
def read_tag(data, at, end):
    """Read a tag: ``field number << 3 | wire type``.

    Returns the tag and the position after it, or a negative error code.
    """
    tag, then = read_varint(data, at, end)
    if then < 0:
        return tag, then
    if tag > _MOST_TAG or then - at > 5 or tag < 8 or tag & np.uint64(7) > FIXED32:
        return tag, -WIRE
    return tag, then


@njit(cache=True, nogil=True)
def unfolded(value):
    """The signed number that a zig-zag number encodes."""
    return (value >> np.uint64(1)) ^ (~(value & np.uint64(1)) + np.uint64(1))


@njit(cache=True, nogil=True)
def past_field(data, at, end, tag):
    """Skip a field's value. Returns the position after it, or a negative error code."""
    wire = np.int64(tag & np.uint64(7))
    if wire == VARINT:
        _, at = read_varint(data, at, end)
        return at
    if wire == FIXED64 or wire == FIXED32:
        size = 8 if wire == FIXED64 else 4
        return at + size if size <= end - at else -CUT
    if wire == DELIMITED:
        many, at = read_varint(data, at, end)
        if at < 0:
            return at
        return at + np.int64(many) if many <= np.uint64(end - at) else -CUT
    return past_group(data, at, end, tag)


@njit(cache=True, nogil=True)
def past_group(data, at, end, tag):
    """Skip a group, which may contain other groups.

    Returns the position after it, or a negative error code.
    """
    numbers = np.empty(MOST_GROUPS, np.uint64)
    numbers[0], depth = tag >> np.uint64(3), 1
    while depth > 0:
        tag, at = read_tag(data, at, end)
        if at < 0:
            return at
        wire = np.int64(tag & np.uint64(7))
        if wire == GROUP:
            if depth == MOST_GROUPS:
                return -DEPTH
            numbers[depth] = tag >> np.uint64(3)
            depth += 1
        elif wire == GROUP_END:
            if numbers[depth - 1] != tag >> np.uint64(3):
                return -WIRE
            depth -= 1
        elif wire == VARINT:
            _, at = read_varint(data, at, end)
        elif wire == DELIMITED:
            many, at = read_varint(data, at, end)
            if at >= 0:
                at = at + np.int64(many) if many <= np.uint64(end - at) else -CUT
        else:
            size = 8 if wire == FIXED64 else 4
            at = at + size if size <= end - at else -CUT
        if at < 0:
            return at
    return at


@njit(cache=True, nogil=True)
def run(
    data,
    starts,
    present,
    rows,
    messages,
    fields,
    numbers,
    top_end,
    slots,
    counts,
    arena,
    stack,
    faults,
):
    """Decode ``rows`` Protobuf values into slots. Other arguments are as in ``avro_kernels.run``.

    ``messages``, ``fields`` and ``numbers`` are addresses of int64 tables. ``stack`` has
    ``FRAME_WORDS`` int64 for each level of nesting.
    """
    for row in range(rows):
        put_nulls(slots, counts, arena, 0, top_end)
        faults[row, 0] = OK
        faults[row, 1] = 0
        if load8(present, row) == 0:
            continue
        start = np.int64(load32(starts, 4 * row))
        end = np.int64(load32(starts, 4 * row + 4))
        code, at = one_message(
            data, start, end, messages, fields, numbers, slots, counts, arena, stack
        )
        if code != OK:
            take_back(slots, counts, arena, 0, top_end, row)
            put_nulls(slots, counts, arena, 0, top_end)
            faults[row, 0] = code
            faults[row, 1] = at - start


@njit(cache=True, nogil=True)
def word(table, row, words, column):
    return np.int64(load64(table, 8 * (row * words + column)))


@njit(cache=True, nogil=True)
def begin(messages, message, numbers, slots, counts, arena, slot):
    """Set the last entry of a message's slot, which is null, to a message without fields."""
    set_present(slots, counts, arena, slot)
    first = word(messages, message, MESSAGE_WORDS, SET_AT)
    for i in range(word(messages, message, MESSAGE_WORDS, SET_COUNT)):
        set_present(slots, counts, arena, np.int64(load64(numbers, 8 * (first + i))))


@njit(cache=True, nogil=True)
def is_present(slots, counts, arena, s):
    """Whether the last entry of slot ``s`` is not null."""
    return load8(arena, field_of(slots, s, OF_VALID) + count_of(counts, s) - 1) != 0


@njit(cache=True, nogil=True)
def lacks_required(messages, message, numbers, slots, counts, arena):
    """Whether the message, which was read completely, lacks a required field."""
    first = word(messages, message, MESSAGE_WORDS, REQUIRED_AT)
    for i in range(word(messages, message, MESSAGE_WORDS, REQUIRED_COUNT)):
        if not is_present(slots, counts, arena, np.int64(load64(numbers, 8 * (first + i)))):
            return True
    return False


@njit(cache=True, nogil=True)
def field_numbered(fields, first, count, number, expected):
    """The index of the field with this number in its message, or -1. Tries ``expected`` first."""
    if expected < count and word(fields, first + expected, FIELD_WORDS, NUMBER) == number:
        return expected
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        found = word(fields, first + middle, FIELD_WORDS, NUMBER)
        if found == number:
            return middle
        if found < number:
            low = middle + 1
        else:
            high = middle
    return -1


@njit(cache=True, nogil=True)
def one_message(data, at, end, messages, fields, numbers, slots, counts, arena, stack):
    """Decode one message. Returns an error code, and the position of the error.

    An unknown number of an enum is an error unless a later value of the field replaces it. Its
    slot, entry and position are therefore stored, and checked at the end.
    """
    depth, message, group, expected = 0, 0, np.int64(0), 0
    unknown, unknown_entry, unknown_at = np.int64(-1), np.int64(0), np.int64(0)
    begin(messages, 0, numbers, slots, counts, arena, 0)
    while True:
        tag, then = np.uint64(0), at
        is_over = at == end and group == 0
        if not is_over:
            tag, then = read_tag(data, at, end)
            if then < 0:
                return -then, at
            if tag & np.uint64(7) == GROUP_END:
                if np.int64(tag >> np.uint64(3)) != group:
                    return WIRE, at
                is_over = True
        if is_over:
            if lacks_required(messages, message, numbers, slots, counts, arena):
                return REQUIRED, at
            at = then
            if depth == 0:
                if unknown >= 0 and is_unknown(slots, counts, arena, unknown, unknown_entry):
                    return SYMBOL, unknown_at
                return OK, at
            depth -= 1
            message = word(stack, depth, FRAME_WORDS, 0)
            end = word(stack, depth, FRAME_WORDS, 1)
            group = word(stack, depth, FRAME_WORDS, 2)
            expected = word(stack, depth, FRAME_WORDS, 3)
            continue
        first = word(messages, message, MESSAGE_WORDS, FIELDS_AT)
        count = word(messages, message, MESSAGE_WORDS, FIELD_COUNT)
        place = field_numbered(fields, first, count, np.int64(tag >> np.uint64(3)), expected)
        row, wire = first + place, np.int64(tag & np.uint64(7))
        is_packed = False
        if place >= 0:
            wanted = word(fields, row, FIELD_WORDS, WIRE_TYPE)
            is_packed = (
                wire == DELIMITED
                and wanted != DELIMITED
                and wanted != GROUP
                and word(fields, row, FIELD_WORDS, LIST) >= 0
            )
            if wire != wanted and not is_packed:
                place = -1
        if place < 0:
            then = past_field(data, then, end, tag)
            if then < 0:
                return -then, at
            at = then
            continue
        of_list = word(fields, row, FIELD_WORDS, LIST)
        expected = place if of_list >= 0 else place + 1
        action = word(fields, row, FIELD_WORDS, ACTION)
        slot = word(fields, row, FIELD_WORDS, SLOT)
        slot_end = word(fields, row, FIELD_WORDS, SLOT_END)
        others = word(fields, row, FIELD_WORDS, OTHERS_AT)
        for i in range(word(fields, row, FIELD_WORDS, OTHERS_COUNT)):
            other = np.int64(load64(numbers, 8 * (others + 2 * i)))
            if is_present(slots, counts, arena, other):
                other_end = np.int64(load64(numbers, 8 * (others + 2 * i + 1)))
                take_back(slots, counts, arena, other, other_end, count_of(counts, other) - 1)
                put_nulls(slots, counts, arena, other, other_end)
        if action == PASSED_OVER:
            then = past_field(data, then, end, tag)
            if then < 0:
                return -then, at
            at = then
            continue
        stop = end
        if wire == DELIMITED:
            size, then = read_varint(data, then, end)
            if then < 0:
                return -then, at
            if size > np.uint64(end - then):
                return CUT, at
            stop = then + np.int64(size)
        if is_packed:
            while then < stop:
                put_nulls(slots, counts, arena, slot, slot_end)
                code, then = scalar(
                    data, then, stop, fields, row, numbers, slots, counts, arena, action, slot
                )
                if code != OK:
                    return code, at
            set_items(slots, counts, arena, of_list)
            at = then
            continue
        if of_list >= 0:
            put_nulls(slots, counts, arena, slot, slot_end)
        if action == MESSAGE:
            inner = word(fields, row, FIELD_WORDS, INNER)
            if not is_present(slots, counts, arena, slot):
                begin(messages, inner, numbers, slots, counts, arena, slot)
            frame = stack + 8 * FRAME_WORDS * depth
            keep(frame, message, end, group, expected)
            depth += 1
            message, expected = inner, 0
            group = np.int64(tag >> np.uint64(3)) if wire == GROUP else np.int64(0)
            end, at = stop, then
        elif action == BYTES or action == TEXT:
            is_text = action == TEXT
            if not set_bytes(slots, counts, arena, slot, data, then, stop - then, is_text):
                return UTF8, at
            at = stop
        elif action == MERGED:
            append_bytes(slots, counts, arena, slot, data, then, stop - then)
            at = stop
        elif action == TIMESTAMP:
            code = timestamp(data, then, stop, slots, counts, arena, slot)
            if code != OK:
                return code, at
            at = stop
        else:
            code, then = scalar(
                data, then, end, fields, row, numbers, slots, counts, arena, action, slot
            )
            if code == SYMBOL and of_list < 0:
                entry = count_of(counts, slot) - 1
                if unknown < 0 or (unknown == slot and unknown_entry == entry):
                    set_narrow(slots, counts, arena, slot, np.uint64(_UNKNOWN))
                    unknown, unknown_entry, unknown_at, code = slot, entry, at, OK
                    _, then = read_varint(data, at, end)  # the tag
                    _, then = read_varint(data, then, end)
            if code != OK:
                return code, at
            at = then
        if of_list >= 0:
            set_items(slots, counts, arena, of_list)


@njit(cache=True, nogil=True)
def is_unknown(slots, counts, arena, slot, entry):
    """Whether the enum column ``slot`` has a value in row ``entry`` that the enum does not define.

    False if the row has no value, or if its value was removed with a replaced message.
    """
    if (
        count_of(counts, slot) <= entry
        or load8(arena, field_of(slots, slot, OF_VALID) + entry) == 0
    ):
        return False
    return load32(arena, field_of(slots, slot, OF_BASE) + 4 * entry) == np.uint64(_UNKNOWN)


@njit(cache=True, nogil=True)
def keep(frame, message, end, group, expected):
    """Store the state of a message on the stack, before a nested message is read."""
    store64(frame, 0, np.uint64(message))
    store64(frame, 8, np.uint64(end))
    store64(frame, 16, np.uint64(group))
    store64(frame, 24, np.uint64(expected))


@njit(cache=True, nogil=True)
def scalar(data, at, end, fields, row, numbers, slots, counts, arena, action, slot):
    """Read a number into the last entry of a slot.

    Returns an error code, and the position after the number.
    """
    if action >= NARROW32:
        size = 4 if action == NARROW32 or action == WIDE32 else 8
        if size > end - at:
            return CUT, at
        if action == NARROW32:
            set_narrow(slots, counts, arena, slot, load32(data, at))
        elif action == WIDE32:
            set_wide(slots, counts, arena, slot, load32(data, at))
        elif action == WIDE64:
            set_wide(slots, counts, arena, slot, load64(data, at))
        else:
            set_decimal(slots, counts, arena, slot, load64(data, at), np.uint64(0))
        return OK, at + size
    value, then = read_varint(data, at, end)
    if then < 0:
        return -then, at
    if action == INT64:
        set_wide(slots, counts, arena, slot, value)
    elif action == INT32:
        set_narrow(slots, counts, arena, slot, value)
    elif action == BOOL:
        set_byte(slots, counts, arena, slot, np.uint64(value != 0))
    elif action == UINT32:
        set_wide(slots, counts, arena, slot, value & _FOUR)
    elif action == UINT64:
        set_decimal(slots, counts, arena, slot, value, np.uint64(0))
    elif action == SINT32:
        set_narrow(slots, counts, arena, slot, unfolded(value & _FOUR))
    elif action == SINT64:
        set_wide(slots, counts, arena, slot, unfolded(value))
    else:
        number = np.int64(np.int32(value & _FOUR))
        first = word(fields, row, FIELD_WORDS, SYMBOLS_AT)
        count = word(fields, row, FIELD_WORDS, SYMBOL_COUNT)
        low, high = 0, count
        while low < high:
            middle = (low + high) // 2
            if np.int64(load64(numbers, 8 * (first + middle))) < number:
                low = middle + 1
            else:
                high = middle
        if low == count or np.int64(load64(numbers, 8 * (first + low))) != number:
            return SYMBOL, at
        set_narrow(slots, counts, arena, slot, load64(numbers, 8 * (first + count + low)))
    return OK, then


@njit(cache=True, nogil=True)
def timestamp(data, at, end, slots, counts, arena, slot):
    """Read a ``google.protobuf.Timestamp`` as microseconds into the last entry of a slot.

    If the entry has a value, the two are merged. Returns an error code. If a value contains the
    field several times, each occurrence must be in range, because digits below microseconds are not
    stored for the merge. ``nanos`` must be 0 to 999,999,999 (timestamp.proto).
    """
    micros = np.int64(0)
    if is_present(slots, counts, arena, slot):
        place = field_of(slots, slot, OF_BASE) + 8 * (count_of(counts, slot) - 1)
        micros = np.int64(load64(arena, place))
    seconds = micros // _MICROS
    nanos = (micros - seconds * _MICROS) * 1000
    while at < end:
        tag, then = read_tag(data, at, end)
        if then < 0:
            return -then
        if tag == 8 or tag == 16:
            value, at = read_varint(data, then, end)
            if at < 0:
                return -at
            if tag == 8:
                seconds = np.int64(value)
            else:
                nanos = np.int64(np.int32(value & _FOUR))
        else:
            if tag & np.uint64(7) == GROUP_END:
                return WIRE
            at = past_field(data, then, end, tag)
            if at < 0:
                return -at
    if not (_FIRST_SECOND <= seconds <= _LAST_SECOND and 0 <= nanos < 1000 * _MICROS):
        return RANGE
    set_wide(slots, counts, arena, slot, seconds * _MICROS + nanos // 1000)
    return OK


@njit(cache=True, nogil=True)
def append_bytes(slots, counts, arena, slot, data, at, length):
    """Append bytes to the last entry of a slot."""
    to = room_for_bytes(slots, counts, arena, slot)
    place = field_of(slots, slot, OF_BASE) + 4 * count_of(counts, slot)
    held = np.int64(load32(arena, place)) - np.int64(load32(arena, place - 4))
    for i in range(length):
        store8(arena, to + held + i, load8(data, at + i))
    set_length(slots, counts, arena, slot, held + length)
