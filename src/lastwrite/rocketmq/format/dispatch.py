"""What is dispatched where: the rules by which a commit log becomes queues, an index and compaction
logs. No files.

A commit log holds all topics' records in the order in which they came. A broker's reput thread
reads them one by one and files each in up to three places:

    record of topic t, queue 3, queue offset 7, KEYS "a b"
      consumequeue/t/3            unit number 7: address, size, tags code (20 bytes)
      index/…                     an entry each for t#UNIQ_KEY, t#a and t#b
      compaction/…/t/3            where t is compacted: the record itself and a unit of 46 bytes

Here that is done for many records at once, in two steps without any Python per record. ``take``
turns split records into *rows* of eight words, and ``group`` sorts a piece's rows by queue; index
entries are those of ``kernels.index_keys``. Then each queue is a run of rows in the log's order,
and ``fill_queue``, ``fill_batch_queue`` and ``place_records`` decide row by row what a broker would
decide:

- A prepared or rolled back message of a transaction gets no unit.
- A record that names light queues (``INNER_MULTI_DISPATCH``) gets a unit in each of them, too, at
  the queue offset that ``INNER_MULTI_QUEUE_OFFSET`` states for it; see ``find_light_queues``.
- What the queue already has (an address below its end) is passed over, so dispatching twice adds
  nothing.
- A unit's number is its queue offset. Where a queue's first record is not number 0, fillers stand
  before it. A second number 0 is a topic that was deleted and made again: the queue begins again.
  Any other offset that was there already is passed over, as a broker does. One that leaves offsets
  out ends the dispatch there: a broker would file all that follows under wrong numbers.
- A batch consume queue counts queue offsets by INNER_NUM and INNER_BASE, where a record has both,
  else 1 from its own queue offset on (5.5.0, seen by running it); below 0 either is passed over.
- A compaction log takes what has a higher offset than all it holds, and a key; see
  ``place_records``.

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

# A row: a record on its way into the queues.
ADDRESS: Final = 0  # in the commit log
SIZE: Final = 1
TAGS: Final = 2  # tags code
OFFSET: Final = 3  # queue offset
STORED: Final = 4  # store time, ms
NUMBER: Final = 5  # of queue offsets: INNER_NUM of an inner batch, else 1
BASE: Final = 6  # the first of them: INNER_BASE of an inner batch, else the queue offset
FLAGS: Final = 7  # the bits below
ROW_WORDS: Final = 8

IS_QUEUED: Final = 1  # gets a unit
IS_KEYED: Final = 2  # KEYS is there and not blank
IS_DELAYED: Final = 4  # has a property DELAY
IS_LIGHT: Final = 8  # for a light queue; the record is of another topic

# Light queues of one record, as ``find_light_queues`` gives them.
NAME_AT: Final = 0
NAME_LENGTH: Final = 1
LIGHT_QUEUE_ID: Final = 2
LIGHT_OFFSET: Final = 3
LIGHT_NUMBER: Final = 4  # of the queue in ``QueueNumbers``
LIGHT_WORDS: Final = 5
MOST_LIGHT: Final = 1 << 14  # of a record: properties have 32,767 bytes, a name and its comma two

# Where light queues are numbered (``enableLmq``), and whether they are built at all.
NO_LIGHT: Final = 0
LIGHT_AT_ZERO: Final = 1  # a queue named %LMQ%… is queue 0
LIGHT_BY_RECORD: Final = 2  # it has the record's queue number

# Of a queue in ``QueueNumbers``.
TO_LIGHT: Final = 1  # its records are dispatched to light queues, too
NO_UNITS: Final = 2  # it takes none of 20 bytes

# Why a kernel stopped.
DONE: Final = 0
NEW_QUEUE: Final = 1
FULL: Final = 2
GAP: Final = 3  # an offset is left out
NEW_LIGHT_QUEUE: Final = 4

UNIT_BYTES: Final = CONSUME_QUEUE_UNIT.size
BATCH_UNIT_BYTES: Final = BATCH_UNIT.size

_MAGIC = np.uint64(0x20A3DA)  # of both magics the first three bytes, as a little-endian number
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
    """The first position from ``start`` to before ``end`` where a record may begin, -1 if there is
    none.

    ``data`` is a whole file whose first byte has the address ``base``. A record begins where a
    magic is, and the place that the record itself states is this very place. A body may hold such
    bytes too if somebody means it to: whoever begins here must see whether what lies before ends
    here.
    """
    source = address(data)
    last = min(end, len(data) - SMALLEST_RECORD_BYTES + 1) + 4
    at = start + 4
    while at < last:
        word = load64(source, at)  # within the file: 87 bytes follow at least
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
def count_sound(table, count, base):
    """How many of the first ``count`` messages a broker could dispatch from where they lie.

    Behind that one does not lie where it says: stale bytes of another place, or the number
    of an inner batch is no number. ``base``: the address of the first byte of what was split.
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
    """Where the text ends without the commas at its end: Java's ``split`` drops empty parts
    there.
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
    """The light queues that the properties ``data[at:end]`` of a record name, into ``out``.

    ``light``: LIGHT_AT_ZERO or LIGHT_BY_RECORD; ``queue_id``: the record's. As a broker does it:
    none unless there are as many offsets as names; a name with a slash is passed over. Returns
    (count, whether an offset is no number from 0 on: a broker's dispatch fails there again and
    again; the queues before it have their units by then, those after it none).

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
    """The queues that ``take`` has met, numbered as they came; topics as bytes."""

    def __init__(self) -> None:
        self.names: list[tuple[bytes, int]] = []
        self.slots: Int64Array = np.full(1 << 8, -1, np.int64)  # open addressing, at most half full
        # topic's place, its length, queue, is compacted, TO_LIGHT and NO_UNITS
        self.table: Int64Array = np.zeros((1 << 7, 5), np.int64)
        self.topics: ByteArray = np.zeros(1 << 12, np.uint8)
        self._used = 0

    def __len__(self) -> int:
        return len(self.names)

    def add(self, topic: bytes, queue: int, *, is_compacted: bool, light: int = 0) -> None:
        """Give a new queue the next number.

        ``is_compacted``: its records go into a compaction log; ``light``: TO_LIGHT, NO_UNITS.
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
    """The light queues of a message, with their numbers in ``QueueNumbers``.

    Returns how many there are; -1 where the one in row 0 of ``light_queues`` is not known.
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
        if queues[number, 4] & NO_UNITS:  # a broker's dispatch fails there, too
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
    """Turn the rows ``first`` to ``count`` of a MESSAGE table of ``data`` into rows, from ``row``
    on.

    ``slots``, ``queues`` and ``topics`` are those of a ``QueueNumbers``; a row's queue goes to
    ``row_queues``. Records below the address ``queued_from``, and those that get no unit, give a
    row only to compacted queues. ``light``: see ``find_light_queues``, whose ``out`` is
    ``light_queues``; ``light_bad`` counts the records with a bad light queue, and has the first
    one's address.

    Returns (messages done, rows, code): NEW_QUEUE, where the next message's queue is not known,
    NEW_LIGHT_QUEUE, where the light queue in row 0 of ``light_queues`` is not, or FULL. A kernel
    takes arrays and numbers, no objects: hence so many parameters.
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
    """Sort the first ``count`` rows by queue into ``out``, those of a queue in their order;
    ``ends``: where each ends.

    ``ends`` has a place for every queue.
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

# What a queue is, and what becomes of it; the kernels below go on from it and change it.
NEXT: Final = 0  # the next unit's number; -1: the queue is empty
# where its last record ends in the commit log; of a batch consume queue where it begins; -1: none
END: Final = 1
FIRST: Final = 2  # the number of the first unit that was filled
FILLED: Final = 3  # units filled
IS_ANEW: Final = 4  # the queue began anew: what it had goes
PASSED: Final = 5  # records passed over: their offset was there, or is below 0
STATE_WORDS: Final = 6


@njit(cache=True, nogil=True)
def fill_queue(rows, until, state, out):
    """The units of 20 bytes of one queue's ``rows`` below the address ``until``, from ``FILLED`` on
    in ``out``.

    Returns (rows done, code).
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
    """The units of 46 bytes of one batch consume queue's ``rows`` below ``until``, from ``FILLED``
    on in ``out``.

    Returns (rows done, code).
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

# What a compaction log is, and what becomes of it.
HIGHEST: Final = 0  # offset in it; -1: none
# the pair of files being written, counted from 0 for the one that was there; -1: there is none
PAIR: Final = 1
LOG_WROTE: Final = 2  # bytes of its log
INDEX_WROTE: Final = 3  # bytes of its index
OLD: Final = 4  # records left out because their offset was there
KEYLESS: Final = 5  # without a key
TOO_LARGE: Final = 6  # for any file
LOG_STATE_WORDS: Final = 7


@njit(cache=True, nogil=True)
def place_records(rows, until, log_bytes, index_bytes, state, pairs, positions):
    """Where a broker appends one queue's ``rows`` in its compaction log
    (docs/formats/rocketmq-compaction.md, "Into the compaction log").

    ``pairs``: for each row the pair of files that takes it, -1 where it is left out; ``positions``:
    the place in that pair's log file. A pair that another one follows was closed: see ``closing``.
    A record that no file has room for is left out; a broker loses it too, but leaves a pair without
    a unit, which makes it serve nothing at all.
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
    """What a broker appends to a pair that takes no more: to its log a blank record, to its index
    an end unit or not.

    Nothing where one of the two is full to its last byte, since then the next record does not even
    try.
    """
    room = log_bytes - log_wrote
    if room == 0 or index_wrote >= index_bytes:
        return b"", False
    if room < BLANK_BYTES:  # left by another writer; a broker fails here
        return b"", True
    return room.to_bytes(4, "big") + MAGIC_BLANK.to_bytes(4, "big", signed=True), True


@njit(cache=True, nogil=True)
def copy_records(data, base, rows, log_address, positions, out, units):
    """Copy records of a commit log file into a compaction log file's bytes, and write their units.

    ``data`` is the commit log file, its first byte at ``base``. The records follow each other in
    ``out``, their units in ``units``; ``log_address`` is the address of the compaction log file's
    first byte, ``positions`` the records' places in it. Returns the bytes written, -1 if a record
    does not lie within ``data``.
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
