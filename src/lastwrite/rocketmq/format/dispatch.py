"""The rules by which a broker dispatches a commit log to queues, an index and compaction logs.

A commit log has the records of all topics in order of arrival. A broker's reput thread reads them
one by one and dispatches each to up to three destinations:

    record of topic t, queue 3, queue offset 7, KEYS "a b"
      consumequeue/t/3            unit number 7: address, size, tags code (20 bytes)
      index/…                     one entry for each of t#UNIQ_KEY, t#a and t#b
      compaction/…/t/3            if t is compacted: the record itself and a unit of 46 bytes

This module does the same for many records at once, without Python code per record:

1. ``take`` converts split records to *rows* of eight words, and ``group`` sorts them by queue. The
   rows of a queue are then contiguous and in log order. ``kernels.index_keys`` returns the index
   entries.
2. ``fill_queue``, ``fill_batch_queue`` and ``place_records`` apply a broker's rules to each row.

The rules:

- A prepared or rolled back message of a transaction gets no unit.
- A record that names light queues (``INNER_MULTI_DISPATCH``) also gets a unit in each of these
  queues, at the queue offset in ``INNER_MULTI_QUEUE_OFFSET``; see ``find_light_queues``.
- A record below the queue's end address is skipped, so dispatching twice adds nothing.
- A unit's number is its queue offset. If a queue's first record is not number 0, fillers precede
  its unit. A second number 0 means that the topic was deleted and created again, so the queue
  starts over. As in a broker, any other existing offset is skipped. A gap in the offsets ends the
  dispatch, because a broker would store all later records under wrong numbers.
- A batch consume queue counts queue offsets by INNER_NUM and INNER_BASE if a record has both. Other
  records count 1, from their own queue offset on (observed with 5.5.0). A record with a negative
  value is skipped.
- A record is appended to a compaction log if it has a key and its offset is above all offsets in
  the log; see ``place_records``.

Source: RocketMQ 5.5.0 ``DefaultMessageStore`` (the reput service and its dispatchers),
``ConsumeQueue``, ``BatchConsumeQueue``, ``MultiDispatchUtils``, ``CompactionLog``;
docs/formats/rocketmq.md;
docs/formats/rocketmq-compaction.md, "Into the compaction log".
"""
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

from typing import Final

import numpy as np

from lastwrite.encoding.big_endian import i64
from lastwrite.encoding.intrinsics import (
    address,
    copy_bytes,
    load8,
    load64,
    store16,
    store32,
    store64,
    swap16,
    swap32,
    swap64,
)
from lastwrite.encoding.kernel import njit
from lastwrite.model.columns import ByteArray, Int64Array
from lastwrite.rocketmq.format.kernels import (
    BAD_NUMBER,
    HAS_DELAY,
    HAS_INNER,
    HAS_MULTI_DISPATCH,
    decimal,
    is_blank,
    value_end,
)
from lastwrite.rocketmq.format.record import (
    BLANK_BYTES,
    MAGIC_BLANK,
    PHYSICAL_OFFSET_AT,
    SMALLEST_RECORD_BYTES,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
)
from lastwrite.rocketmq.format.units import BATCH_UNIT, CONSUME_QUEUE_UNIT

# The words of a row. A row is one record for one queue.
ADDRESS: Final = 0  # the record's first byte in the commit log
SIZE: Final = 1
TAGS: Final = 2  # tags code
OFFSET: Final = 3  # queue offset
STORED: Final = 4  # store time, ms
NUMBER: Final = 5  # count of queue offsets: INNER_NUM of an inner batch, else 1
BASE: Final = 6  # first queue offset: INNER_BASE of an inner batch, else the queue offset
FLAGS: Final = 7  # the bits below
ROW_WORDS: Final = 8

IS_QUEUED: Final = 1  # the record gets a unit
IS_KEYED: Final = 2  # KEYS is present and not blank
IS_DELAYED: Final = 4  # the record has a property DELAY
IS_LIGHT: Final = 8  # the queue is a light queue; the record belongs to another topic

# The words that ``find_light_queues`` writes for each light queue of a record.
NAME_AT: Final = 0
NAME_LENGTH: Final = 1
LIGHT_QUEUE_ID: Final = 2
LIGHT_OFFSET: Final = 3
LIGHT_NUMBER: Final = 4  # number of the queue in ``QueueNumbers``
LIGHT_WORDS: Final = 5
# Maximum number of light queues of a record: properties have at most 32,767 bytes, and a name with
# its comma needs at least two.
MOST_LIGHT: Final = 1 << 14

# Whether light queues are built, and which queue number they have.
NO_LIGHT: Final = 0
LIGHT_AT_ZERO: Final = 1  # a queue named %LMQ%… is queue 0
LIGHT_BY_RECORD: Final = 2  # a light queue has the record's queue number

# Bits of a queue in ``QueueNumbers``.
TO_LIGHT: Final = 1  # the queue's records are also dispatched to light queues
NO_UNITS: Final = 2  # the queue has no units of 20 bytes

# Reasons why a kernel stopped.
DONE: Final = 0
NEW_QUEUE: Final = 1
FULL: Final = 2
GAP: Final = 3  # queue offsets are missing
NEW_LIGHT_QUEUE: Final = 4

UNIT_BYTES: Final = CONSUME_QUEUE_UNIT.size
BATCH_UNIT_BYTES: Final = BATCH_UNIT.size

_MAGIC = np.uint64(0x20A3DA)  # the first three bytes of both magics, as a little-endian number
_LOW = np.uint64(0xFFFFFF)
_LAST_V1 = np.uint64(0xA7)
_LAST_V2 = np.uint64(0xAB)
_MIX = np.uint64(0x9E3779B97F4A7C15)


@njit(cache=True, nogil=True, inline="always")
def _put64(data, at, value):
    store64(data, at, swap64(np.uint64(value)))


@njit(cache=True, nogil=True, inline="always")
def _put32(data, at, value):
    store32(data, at, swap32(np.uint64(value)))


@njit(cache=True, nogil=True, inline="always")
def _put16(data, at, value):
    store16(data, at, swap16(np.uint64(value)))


# ---------------------------------------------------------------------- where records begin


@njit(cache=True, nogil=True)
def find_record(data, start, end, base):
    """The first position in ``[start, end)`` where a record may begin. -1 if there is none.

    ``data`` is a whole file whose first byte has the address ``base``. A record may begin at a
    position if it has a valid magic there and stores the position's address. A malicious body can
    contain such bytes, so the caller must check that the previous record ends at the position.
    """
    source = address(data)
    last = min(end, len(data) - SMALLEST_RECORD_BYTES + 1) + 4
    at = start + 4
    while at < last:
        word = load64(source, at)  # in bounds: at least 87 bytes follow
        if word == np.uint64(0):
            at += 8  # no byte of a magic is zero
            continue
        if word & _LOW == _MAGIC:
            kind = (word >> np.uint64(24)) & np.uint64(0xFF)
            if kind == _LAST_V1 or kind == _LAST_V2:
                if i64(source, at - 4 + PHYSICAL_OFFSET_AT) == base + at - 4:
                    return at - 4
        at += 1
    return -1


@njit(cache=True, nogil=True)
def count_dispatchable(table, count, base):
    """The number of leading messages that a broker could dispatch, at most ``count``.

    Counting stops at a message whose stored address is not its position (stale bytes), or whose
    INNER_NUM or INNER_BASE is not a number. ``base`` is the address of the first byte of the data
    that was split.
    """
    for i in range(count):
        if table[i].physical_offset != base + table[i].position or table[i].marks & BAD_NUMBER:
            return i
    return count


# ---------------------------------------------------------------------- light queues

_COMMA = np.uint64(44)
_SLASH = np.uint64(47)
_MULTI_DISPATCH = np.frombuffer(b"INNER_MULTI_DISPATCH\x01", np.uint8)
_MULTI_QUEUE_OFFSET = np.frombuffer(b"INNER_MULTI_QUEUE_OFFSET\x01", np.uint8)
_LMQ = np.frombuffer(b"%LMQ%", np.uint8)
_MAX_I64 = (1 << 63) - 1


@njit(cache=True, nogil=True)
def _begins_with(source, at, end, wanted):
    if end - at < len(wanted):
        return False
    for i in range(len(wanted)):
        if load8(source, at + i) != np.uint64(wanted[i]):
            return False
    return True


@njit(cache=True, nogil=True)
def _without_commas(source, at, end):
    """The end of a text without its trailing commas.

    Java's ``split`` also drops trailing empty parts.
    """
    while end > at and load8(source, end - 1) == _COMMA:
        end -= 1
    return end


@njit(cache=True, nogil=True)
def _part_end(source, at, end):
    while at < end and load8(source, at) != _COMMA:
        at += 1
    return at


@njit(cache=True, nogil=True)
def _parts(source, at, end):
    if at == end:
        return 0
    count = 1
    while at < end:
        count += load8(source, at) == _COMMA
        at += 1
    return count


@njit(cache=True, nogil=True)
def find_light_queues(data, at, end, queue_id, light, out):
    """Write the light queues named in the properties ``data[at:end]`` of a record to ``out``.

    ``light`` is LIGHT_AT_ZERO or LIGHT_BY_RECORD; ``queue_id`` is the record's queue. As in a
    broker, a record with different numbers of names and offsets has no light queues, and a name
    with a slash is skipped.
    Returns (count, whether an offset is invalid: negative or not a number). A broker's dispatch
    fails at such an offset, again at each retry. The queues named before it have their units, the
    queues named after it do not.

    Source: RocketMQ 5.5.0 ``ConsumeQueue.multiDispatchLmqQueue``,
    ``MultiDispatchUtils.checkMultiDispatchQueue``.
    """
    source = address(data)
    name_at = name_end = offset_at = offset_end = np.int64(-1)
    while at < end:
        stop = value_end(source, at, end, end)
        if _begins_with(source, at, stop - 1, _MULTI_DISPATCH):
            name_at, name_end = at + len(_MULTI_DISPATCH), stop
        elif _begins_with(source, at, stop - 1, _MULTI_QUEUE_OFFSET):
            offset_at, offset_end = at + len(_MULTI_QUEUE_OFFSET), stop
        at = stop + 1
    if name_at < 0 or offset_at < 0:
        return 0, False
    if is_blank(source, name_at, name_end) or is_blank(source, offset_at, offset_end):
        return 0, False
    name_end = _without_commas(source, name_at, name_end)
    offset_end = _without_commas(source, offset_at, offset_end)
    if _parts(source, name_at, name_end) != _parts(source, offset_at, offset_end):
        return 0, False
    count = 0
    while name_at < name_end and count < len(out):
        stop = _part_end(source, name_at, name_end)
        offset_stop = _part_end(source, offset_at, offset_end)
        has_slash = False
        for i in range(name_at, stop):
            has_slash = has_slash or load8(source, i) == _SLASH
        if not has_slash:
            if offset_at == offset_stop:
                return count, True
            offset, is_number = decimal(source, offset_at, offset_stop, _MAX_I64)
            if not is_number or offset < 0:
                return count, True
            is_zero = light == LIGHT_AT_ZERO and _begins_with(source, name_at, stop, _LMQ)
            out[count, NAME_AT] = name_at
            out[count, NAME_LENGTH] = stop - name_at
            out[count, LIGHT_QUEUE_ID] = 0 if is_zero else queue_id
            out[count, LIGHT_OFFSET] = offset
            count += 1
        name_at, offset_at = stop + 1, offset_stop + 1
    return count, False


# ---------------------------------------------------------------------- rows


@njit(cache=True, nogil=True, inline="always")
def _search_from(data, at, length, queue):
    h = np.uint64(queue) * _MIX + np.uint64(length)
    i = 0
    while i + 8 <= length:
        h = (h ^ load64(data, at + i)) * _MIX
        h ^= h >> np.uint64(29)
        i += 8
    while i < length:
        h = (h ^ load8(data, at + i)) * _MIX
        i += 1
    return np.int64((h ^ (h >> np.uint64(32))) & np.uint64(0x7FFFFFFF))


@njit(cache=True, nogil=True)
def _search_from_topic(topic, length, queue):
    return _search_from(address(topic), 0, length, queue)


@njit(cache=True, nogil=True, inline="always")
def _is_same(one, at, other, start, length):
    i = 0
    while i + 8 <= length:
        if load64(one, at + i) != load64(other, start + i):
            return False
        i += 8
    while i < length:
        if load8(one, at + i) != load8(other, start + i):
            return False
        i += 1
    return True


class QueueNumbers:
    """Numbers for the queues found by ``take``, in the order of discovery. Topics are bytes."""

    def __init__(self) -> None:
        self.names: list[tuple[bytes, int]] = []
        self.slots: Int64Array = np.full(1 << 8, -1, np.int64)  # open addressing, at most half full
        # Columns: position and length of the topic's name, queue, whether the topic is compacted,
        # the bits TO_LIGHT and NO_UNITS.
        self.table: Int64Array = np.zeros((1 << 7, 5), np.int64)
        self.topics: ByteArray = np.zeros(1 << 12, np.uint8)
        self._used = 0

    def __len__(self) -> int:
        return len(self.names)

    def add(self, topic: bytes, queue: int, *, is_compacted: bool, light: int = 0) -> None:
        """Assign the next number to a new queue.

        ``is_compacted``: the queue has a compaction log. ``light``: the bits TO_LIGHT and NO_UNITS.
        """
        number = len(self.names)
        if number == len(self.table):
            self.table = np.concatenate([self.table, np.zeros_like(self.table)])
            self.slots = np.full(2 * len(self.slots), -1, np.int64)
            for known, (name, old) in enumerate(self.names):
                self._enter(name, old, known)
        while self._used + len(topic) > len(self.topics):
            self.topics = np.concatenate([self.topics, np.zeros_like(self.topics)])
        self.topics[self._used : self._used + len(topic)] = np.frombuffer(topic, np.uint8)
        self.table[number] = self._used, len(topic), queue, is_compacted, light
        self._used += len(topic)
        self.names.append((topic, queue))
        self._enter(topic, queue, number)

    def _enter(self, topic: bytes, queue: int, number: int) -> None:
        mask = len(self.slots) - 1
        name = np.frombuffer(topic + b"\0", np.uint8)
        slot = int(_search_from_topic(name, len(topic), queue)) & mask
        while self.slots[slot] >= 0:
            slot = (slot + 1) & mask
        self.slots[slot] = number


@njit(cache=True, nogil=True)
def _take_light(data, message, slots, queues, topics, light, light_queues, light_bad):
    """Write the light queues of a message to ``light_queues``, with their numbers.

    Returns their count. Returns -1 if a light queue has no number yet; row 0 of ``light_queues``
    then describes that queue.
    """
    source = address(data)
    names = address(topics)
    at = message.properties_at
    end = at + message.properties_length
    count, is_bad = find_light_queues(data, at, end, message.queue_id, light, light_queues)
    mask = len(slots) - 1
    for n in range(count):
        at, length = light_queues[n, NAME_AT], light_queues[n, NAME_LENGTH]
        queue = light_queues[n, LIGHT_QUEUE_ID]
        slot = _search_from(source, at, length, queue) & mask
        number = slots[slot]
        while number >= 0:
            if queues[number, 2] == queue and queues[number, 1] == length:
                if _is_same(source, at, names, queues[number, 0], length):
                    break
            slot = (slot + 1) & mask
            number = slots[slot]
        if number < 0:
            light_queues[0] = light_queues[n]
            return -1
        light_queues[n, LIGHT_NUMBER] = number
        if queues[number, 4] & NO_UNITS:  # a broker's dispatch fails at such a queue, too
            count, is_bad = n, True
            break
    if is_bad:
        if light_bad[0] == 0:
            light_bad[1] = message.physical_offset
        light_bad[0] += 1
    return count


@njit(cache=True, nogil=True)
def take(
    data,
    table,
    first,
    count,
    slots,
    queues,
    topics,
    rows,
    row_queues,
    row,
    queued_from,
    light,
    light_queues,
    light_bad,
):
    """Convert the messages ``table[first:count]`` to dispatch rows, from ``rows[row]`` on.

    ``slots``, ``queues`` and ``topics`` belong to a ``QueueNumbers``. ``row_queues`` receives the
    queue number of each row. A record below the address ``queued_from``, or without a unit, gets a
    row only if its queue is compacted. ``light`` and ``light_queues`` are passed to
    ``find_light_queues`` as ``light`` and ``out``. ``light_bad`` receives the
    count of records with a bad light queue, and the address of the first of these records.

    Returns (messages processed, rows, code). The code is NEW_QUEUE if the next message's queue has
    no number, NEW_LIGHT_QUEUE if the light queue in row 0 of ``light_queues`` has none, FULL if
    ``rows`` is full, or DONE. There are many parameters because a kernel accepts only arrays and
    numbers.
    """
    source = address(data)
    names = address(topics)
    mask = len(slots) - 1
    for i in range(first, count):
        message = table[i]
        if row == len(rows):
            return i, row, FULL
        topic_at, length, queue = message.topic_at, message.topic_length, message.queue_id
        slot = _search_from(source, topic_at, length, queue) & mask
        number = slots[slot]
        while number >= 0:
            if queues[number, 2] == queue and queues[number, 1] == length:
                if _is_same(source, topic_at, names, queues[number, 0], length):
                    break
            slot = (slot + 1) & mask
            number = slots[slot]
        if number < 0:
            return i, row, NEW_QUEUE
        stage = message.sys_flag & TRANSACTION_MASK
        is_queued = stage == 0 or stage == TRANSACTION_COMMIT
        has_unit = is_queued and message.physical_offset >= queued_from
        if queues[number, 3] == 0 and not has_unit:
            continue
        more = 0
        if message.marks & HAS_MULTI_DISPATCH and light and has_unit:
            if queues[number, 4] & TO_LIGHT:
                if row + 1 + len(light_queues) > len(rows):
                    return i, row, FULL
                more = _take_light(
                    data, message, slots, queues, topics, light, light_queues, light_bad
                )
                if more < 0:
                    return i, row, NEW_LIGHT_QUEUE
        flags = np.int64(0)
        if is_queued:
            flags |= IS_QUEUED
        if message.key_length >= 0:
            flags |= IS_KEYED
        if message.marks & HAS_DELAY:
            flags |= IS_DELAYED
        rows[row, ADDRESS] = message.physical_offset
        rows[row, SIZE] = message.size
        rows[row, TAGS] = message.tags_code
        rows[row, OFFSET] = message.queue_offset
        rows[row, STORED] = message.store_time
        is_inner = message.marks & HAS_INNER != 0
        rows[row, NUMBER] = message.inner_num if is_inner else 1
        rows[row, BASE] = message.inner_base if is_inner else message.queue_offset
        rows[row, FLAGS] = flags
        row_queues[row] = number
        row += 1
        for n in range(more):
            rows[row] = rows[row - 1 - n]
            rows[row, OFFSET] = light_queues[n, LIGHT_OFFSET]
            rows[row, FLAGS] = IS_QUEUED | IS_LIGHT
            row_queues[row] = light_queues[n, LIGHT_NUMBER]
            row += 1
    return count, row, DONE


@njit(cache=True, nogil=True)
def group(rows, row_queues, count, ends, out):
    """Sort the first ``count`` rows by queue into ``out``. The sort is stable.

    ``ends`` has an element for each queue, which is set to the end of the queue's rows.
    """
    ends[:] = 0
    for i in range(count):
        ends[row_queues[i]] += 1
    total = 0
    for n in range(len(ends)):
        held = ends[n]
        ends[n] = total
        total += held
    for i in range(count):
        target = ends[row_queues[i]]
        for word in range(ROW_WORDS):
            out[target, word] = rows[i, word]
        ends[row_queues[i]] = target + 1


# ---------------------------------------------------------------------- consume queues

# The state of a queue, which the kernels below read and update.
NEXT: Final = 0  # number of the next unit; -1: the queue is empty
# address at which the queue's last record ends, or begins if the queue is a batch consume queue;
# -1: no record
END: Final = 1
FIRST: Final = 2  # number of the first unit written
FILLED: Final = 3  # number of units written
IS_ANEW: Final = 4  # whether the queue's numbers started again, so that old units are replaced
PASSED: Final = 5  # records skipped because their offset exists or is negative
STATE_WORDS: Final = 6


@njit(cache=True, nogil=True)
def fill_queue(rows, until, state, out):
    """Append the units (20 bytes each) of one queue's ``rows`` to ``out``.

    ``state[FILLED]`` is the number of units in ``out``. Stops at the first row whose address is not
    below ``until``. Returns (rows processed, code).
    """
    target = address(out)
    for i in range(len(rows)):
        at = rows[i, ADDRESS]
        if at >= until:
            break
        if rows[i, FLAGS] & IS_QUEUED == 0 or at + rows[i, SIZE] <= state[END]:
            continue
        number = rows[i, OFFSET]
        if state[NEXT] < 0:
            if number < 0:
                return i, GAP
            state[NEXT] = number
            state[FIRST] = number
        elif number == 0 and state[NEXT] > 0:
            state[IS_ANEW] = 1
            state[NEXT] = 0
            state[FIRST] = 0
            state[FILLED] = 0
        elif number < state[NEXT]:
            state[PASSED] += 1
            continue
        elif number > state[NEXT]:
            if rows[i, FLAGS] & IS_LIGHT == 0:
                return i, GAP
            number = state[NEXT]
        place = state[FILLED] * UNIT_BYTES
        _put64(target, place, at)
        _put32(target, place + 8, rows[i, SIZE])
        _put64(target, place + 12, rows[i, TAGS])
        state[FILLED] += 1
        state[NEXT] = number + 1
        state[END] = at + rows[i, SIZE]
    return len(rows), DONE


@njit(cache=True, nogil=True)
def fill_batch_queue(rows, until, state, out):
    """Append the units (46 bytes each) of a batch consume queue's ``rows`` to ``out``.

    ``state[FILLED]`` is the number of units in ``out``. Stops at the first row whose address is not
    below ``until``. Returns (rows processed, code).
    """
    target = address(out)
    for i in range(len(rows)):
        at = rows[i, ADDRESS]
        if at >= until:
            break
        if rows[i, FLAGS] & IS_QUEUED == 0 or at <= state[END]:
            continue
        if rows[i, NUMBER] < 0 or rows[i, BASE] < 0:
            state[PASSED] += 1
            continue
        _put_batch_unit(
            target, state[FILLED] * BATCH_UNIT_BYTES, rows, i, at, rows[i, BASE], rows[i, NUMBER]
        )
        state[FILLED] += 1
        state[END] = at
    return len(rows), DONE


@njit(cache=True, nogil=True, inline="always")
def _put_batch_unit(target, place, rows, i, at, base, number):
    _put64(target, place, at)
    _put32(target, place + 8, rows[i, SIZE])
    _put64(target, place + 12, rows[i, TAGS])
    _put64(target, place + 20, rows[i, STORED])
    _put64(target, place + 28, base)
    _put16(target, place + 36, number)
    _put32(target, place + 38, -1)
    _put32(target, place + 42, 0)


# ---------------------------------------------------------------------- compaction logs

# The state of a compaction log, which ``place_records`` reads and updates.
HIGHEST: Final = 0  # highest queue offset in the log; -1: the log is empty
# number of the pair (log and index file) being written; 0: the pair that existed before; -1: none
PAIR: Final = 1
LOG_WROTE: Final = 2  # bytes written to the pair's log file
INDEX_WROTE: Final = 3  # bytes written to the pair's index file
OLD: Final = 4  # records skipped because their offset exists
KEYLESS: Final = 5  # records skipped because they have no key
TOO_LARGE: Final = 6  # records skipped because they are larger than a log file
LOG_STATE_WORDS: Final = 7


@njit(cache=True, nogil=True)
def place_records(rows, until, log_bytes, index_bytes, state, pairs, positions):
    """Decide where a broker appends the records of one queue's ``rows`` in its compaction log.

    See docs/formats/rocketmq-compaction.md, "Into the compaction log".

    ``pairs`` receives the number of the pair (log and index file) for each row, or -1 if the row is
    skipped. ``positions`` receives the row's position in the pair's log file. Every pair before the
    last is closed; see ``closing``. A record that is larger than a log file is skipped. A broker
    loses this record too, but it also creates a pair without a unit, and then serves nothing from
    the queue.
    """
    for i in range(len(rows)):
        pairs[i] = -1
        if rows[i, ADDRESS] >= until:
            pairs[i:] = -1
            break
        if rows[i, FLAGS] & IS_LIGHT:
            continue
        offset, size = rows[i, OFFSET], rows[i, SIZE]
        if offset <= state[HIGHEST]:
            state[OLD] += 1
            continue
        if rows[i, FLAGS] & IS_KEYED == 0:
            state[KEYLESS] += 1
            continue
        if size + BLANK_BYTES > log_bytes:
            state[TOO_LARGE] += 1
            continue
        if (
            state[PAIR] < 0
            or size + BLANK_BYTES > log_bytes - state[LOG_WROTE]
            or state[INDEX_WROTE] + BATCH_UNIT_BYTES >= index_bytes
        ):
            state[PAIR] += 1
            state[LOG_WROTE] = 0
            state[INDEX_WROTE] = 0
        pairs[i] = state[PAIR]
        positions[i] = state[LOG_WROTE]
        state[HIGHEST] = offset
        state[LOG_WROTE] += size
        state[INDEX_WROTE] += BATCH_UNIT_BYTES


def closing(
    log_wrote: int, index_wrote: int, log_bytes: int, index_bytes: int
) -> tuple[bytes, bool]:
    """The blank record that closes a full pair's log file, and whether the index gets an end unit.

    If one of the two files is full to its last byte, neither is closed, because a broker then does
    not try to append the next record.
    """
    room = log_bytes - log_wrote
    if room == 0 or index_wrote >= index_bytes:
        return b"", False
    if room < BLANK_BYTES:  # only another writer leaves so little space; a broker then fails
        return b"", True
    return room.to_bytes(4, "big") + MAGIC_BLANK.to_bytes(4, "big", signed=True), True


@njit(cache=True, nogil=True)
def copy_records(data, base, rows, log_address, positions, out, units):
    """Copy records of a commit log file into a compaction log file's bytes, and write their units.

    ``data`` is the commit log file, whose first byte has the address ``base``. ``log_address`` is
    the address of the compaction log file, and ``positions`` are the records' positions in that
    file. The records are written to ``out`` without gaps, and their units to ``units``. Returns the
    bytes written, or -1 if a record is not within ``data``.
    """
    source, target, unit = address(data), address(out), address(units)
    at = np.int64(0)
    for i in range(len(rows)):
        begin, size = rows[i, ADDRESS] - base, rows[i, SIZE]
        if begin < 0 or size < SMALLEST_RECORD_BYTES:
            return np.int64(-1)
        if begin > len(data) - size or at > len(out) - size:
            return np.int64(-1)
        copy_bytes(target, at, source, begin, size)
        own = log_address + positions[i]
        _put64(target, at + PHYSICAL_OFFSET_AT, own)
        _put_batch_unit(unit, i * BATCH_UNIT_BYTES, rows, i, own, rows[i, OFFSET], 1)
        at += size
    return at
