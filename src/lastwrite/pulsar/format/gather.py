"""Keys, values and properties of many messages, as columns of positions.

No Python statement runs per message.

``tests/unit/test_other_rows.py`` compares it with ``pulsar.format.entry``.

A message has the offset of its entry, so the messages of a batch share an offset. ``orders``
distinguishes them: the entry's position in the file, then the message's original index in the
batch.
"""
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lastwrite.encoding.big_endian import u32
from lastwrite.encoding.intrinsics import address
from lastwrite.encoding.kernel import njit
from lastwrite.errors import CorruptLog, LogError, OutOfMemoryBudget, UnsupportedFormat
from lastwrite.model.columns import (
    IS_ABORTED,
    BatchRun,
    BatchTable,
    ByteArray,
    Int64Array,
    RecordColumns,
)
from lastwrite.pulsar.format.codecs import PulsarCodec
from lastwrite.pulsar.format.kernels import (
    BATCH,
    IS_BATCHED,
    IS_CHUNKED,
    IS_ENCRYPTED,
    IS_HUGE,
    IS_PART,
    MARKER,
    SINGLE,
    WHOLE,
    EntryTable,
    _is_dense,
    _message,
    _next_index,
    _skip,
    _varint,
)
from lastwrite.pulsar.format.remedy import RESTORE

CREATE_TIME = 0
INDEX_BITS = 20  # number of low bits of an order; they contain the message's index in its batch
IN_PARTS = -3  # used as a value's length if the value is split into chunks
NULL = -1

_OK, _ENCRYPTED, _UNREADABLE, _HUGE, _TOO_MANY = range(5)
_WORDS = {
    _ENCRYPTED: "the message is encrypted, and Lastwrite cannot read it",
    _UNREADABLE: "the messages of the batch cannot be decoded",
    _HUGE: "a payload decompresses to more bytes than the memory setting allows",
    _TOO_MANY: f"the batch has more than {1 << INDEX_BITS} messages, which is not supported",
}
_REMEDIES = {
    _ENCRYPTED: "publish the decrypted messages to another topic, and read that topic",
    _UNREADABLE: RESTORE,
    _HUGE: "raise --memory",
}
_KINDS: dict[int, type[LogError]] = {_HUGE: OutOfMemoryBudget, _UNREADABLE: CorruptLog}
_COLUMNS = 9
_OFFSET, _TIME, _KEY_AT, _KEY, _VALUE_AT, _VALUE, _PROPERTIES_AT, _PROPERTIES, _AT = range(_COLUMNS)
# Tags of the fields for a Base64 key, a null value and a property: in an entry, in a batch.
_OF_ENTRY = np.array([136, 200, 34], np.int64)  # 17, 25, 4
_OF_MEMBER = np.array([48, 72, 10], np.int64)  # 6, 9, 1


class SplitRows(NamedTuple):
    """The result of ``split`` for a chunk, one row per entry; see ``kernels.SplitChunk``."""

    buffer: ByteArray
    table: BatchTable
    entries: EntryTable


def open_singles(given: SplitRows, selected: ByteArray | None, limit_bytes: int) -> None:
    """Mark compressed single messages as batches, so that ``opened`` decompresses their payloads.

    Raises:
        CorruptLog, UnsupportedFormat: the decompressed size is absent or wrong, or the codec
            unknown.
    """
    table, entries = given.table, given.entries[: len(given.table)]
    packed = (entries["kind"] == SINGLE) & (table["codec"] != 0)
    packed &= entries["marks"] & (IS_ENCRYPTED | IS_CHUNKED | IS_PART) == 0
    if selected is not None:
        packed &= selected != 0
    if not packed.any():
        return
    sizes, codecs = entries["plain_size"], table["codec"]
    bad = packed & ((codecs < 0) | (codecs >= len(PulsarCodec)))
    if bad.any():
        row = int(np.argmax(bad))
        wrong = f"the compression codec {int(codecs[row])} is unknown"
        raise UnsupportedFormat(wrong, int(table["origin"][row]))
    # An absent size counts as 0, as clients read it.
    entries["plain_size"] = np.where(packed, np.maximum(sizes, 0), sizes)
    entries["kind"] = np.where(packed, BATCH, entries["kind"])
    huge = packed & (sizes > limit_bytes)
    entries["marks"] |= np.where(huge, IS_HUGE, 0)


def gather(
    given: SplitRows,
    run: BatchRun,
    span: tuple[int, int],
    *,
    is_committed: bool,
    raw_keys: bool,
    shift: int,
) -> RecordColumns:
    """The messages of ``run`` whose entries' offsets are in ``span``, end exclusive.

    A message in several chunks is represented by its last chunk, with IN_PARTS as the value's
    length.

    Args:
        is_committed: skip messages of aborted transactions, which ``table`` marks.
        raw_keys: return a binary key as the Base64 text that was sent.
        shift: bytes to add to a position in the buffer to get the position in the file.

    Raises:
        CorruptLog: a batch cannot be read.
        UnsupportedFormat: a message is encrypted.
        OutOfMemoryBudget: a batch decompresses to more than the limit.
    """
    buffer, table, entries = given
    data, base = buffer, 0
    if run.plain is not buffer:
        base = int(table["plain_end"][run.first : run.last].max(initial=0))
        data = np.concatenate((run.plain[:base], buffer))
    count = int(table["records"][run.first : run.last].sum())
    rows = np.empty((_COLUMNS, count), dtype=np.int64)
    orders = np.empty(count, dtype=np.int64)
    is_b64 = np.zeros(count, dtype=np.bool_)
    skipped = IS_ABORTED if is_committed else 0
    filled, code, b = _locate(
        data, base, table, entries, run.first, run.last, *span, skipped, shift, rows, orders, is_b64
    )
    if code != _OK:
        kind = _KINDS.get(code, UnsupportedFormat)
        raise kind(_WORDS[code], int(table["origin"][b]), remedy=_REMEDIES.get(code))
    rows, is_b64 = rows[:, :filled], is_b64[:filled]
    if is_b64.any() and not raw_keys:
        data = _with_keys(data, rows, np.flatnonzero(is_b64))
    return RecordColumns(
        data=data,
        offsets=rows[_OFFSET],
        times_ms=rows[_TIME],
        time_types=np.full(filled, CREATE_TIME, np.int64),
        keys=(rows[_KEY_AT], rows[_KEY]),
        values=(rows[_VALUE_AT], rows[_VALUE]),
        headers=(rows[_PROPERTIES_AT], rows[_PROPERTIES]),
        positions=rows[_AT] + shift,
        orders=orders[:filled],
    )


def with_properties(records: RecordColumns) -> RecordColumns:
    """A copy of ``records`` with the messages' properties added as headers.

    Raises:
        CorruptLog: a property is not a pair of texts.
    """
    starts, counts = records.headers
    found = np.zeros((4, int(counts.sum())), dtype=np.int64)
    if not _locate_properties(records.data, starts, counts, found):
        raise CorruptLog("a property of a message has no name or no value", 0, remedy=RESTORE)
    return records._replace(header_names=(found[0], found[1]), header_values=(found[2], found[3]))


def _with_keys(data: ByteArray, rows: Int64Array, which: npt.NDArray[np.int64]) -> ByteArray:
    """The data of ``records``, followed by their decoded Base64 keys.

    A key that is not valid Base64 is not decoded.
    """
    room = np.empty(int(rows[_KEY][which].sum()), dtype=np.uint8)
    used = _decode_keys(data, rows[_KEY_AT], rows[_KEY], which, room)
    return np.concatenate((data, room[:used]))


@njit(cache=True, nogil=True)
def _facts(data, at, end, tags):
    """Read a message's metadata, which the caller has validated.

    Returns whether the key is Base64, whether the value is null, and the number of properties.
    """
    is_b64 = False
    is_null = False
    count = 0
    while at < end:
        tag, at = _varint(data, at, end)
        if tag == tags[0] or tag == tags[1]:
            value, at = _varint(data, at, end)
            if tag == tags[0]:
                is_b64 = value != 0
            else:
                is_null = value != 0
            continue
        if tag == tags[2]:
            count += 1
        at = _skip(data, tag & 7, at, end)
    return is_b64, is_null, count


# The loop is one long function, because each part would need fifteen parameters.
@njit(cache=True, nogil=True)
def _locate(
    joined,
    base,
    table,
    entries,
    first,
    last,
    low,
    high,
    skipped,
    shift,
    rows,
    orders,
    is_b64,
):
    """Write the positions of each message to a column of ``rows``.

    Returns (messages, code, entry at fault).

    ``joined`` has the decompressed payloads up to ``base``, then the chunk.
    """
    filled = 0
    data = address(joined)
    for b in range(first, last):
        row = table[b]
        entry = entries[b]
        if row.base_offset < low or row.base_offset >= high:
            continue
        if entry.kind == MARKER or row.flags & skipped or entry.marks & IS_PART:
            continue
        if entry.marks & IS_ENCRYPTED:
            return filled, _ENCRYPTED, b
        if entry.marks & IS_HUGE:
            return filled, _HUGE, b
        if entry.kind == WHOLE:
            return filled, _UNREADABLE, b
        place = (row.origin + shift) << INDEX_BITS
        if entry.marks & IS_BATCHED == 0:
            begin = base + entry.metadata_at
            coded, is_null, count = _facts(data, begin, base + entry.payload_at, _OF_ENTRY)
            size = row.position + row.size - entry.payload_at
            rows[_VALUE_AT, filled] = base + entry.payload_at
            if entry.kind == BATCH:  # marked by ``open_singles``: its payload was decompressed
                rows[_VALUE_AT, filled] = row.plain_start
                size = row.plain_end - row.plain_start
            if entry.marks & IS_CHUNKED:
                size = np.int64(IN_PARTS)
            rows[_VALUE, filled] = NULL if is_null else size
            rows[_OFFSET, filled] = row.base_offset
            rows[_TIME, filled] = row.max_timestamp
            rows[_KEY_AT, filled] = base + entry.key_at
            rows[_KEY, filled] = entry.key_length
            # The position is stored inverted (``~``) to show that the properties are in the entry's
            # metadata.
            rows[_PROPERTIES_AT, filled] = ~begin
            rows[_PROPERTIES, filled] = count
            rows[_AT, filled] = row.origin
            orders[filled] = place
            is_b64[filled] = coded and entry.key_length >= 0
            filled += 1
            continue
        # The positions of the payload are in ``data``. If nothing was decompressed, ``data`` is the
        # chunk.
        at = row.plain_start
        end = row.plain_end
        dense = _is_dense(data, at, end, data + base, entry)
        most = entry.kept if dense else entry.messages
        sent_at = np.int64(entry.kept_at)
        packed_end = np.int64(0)
        if entry.messages > 1 << INDEX_BITS:
            return filled, _TOO_MANY, b
        stop_at = filled + row.records
        for index in range(most):
            begin = at + 4
            at, key_at, key_length, size, event_time, is_out, is_null = _message(data, at, end)
            if at < 0:
                break
            sent = np.int64(index)
            if dense:
                sent, sent_at, packed_end = _next_index(
                    data + base, sent_at, entry.payload_at, packed_end
                )
            if is_out:
                stop_at -= 0 if entry.kept > 0 else 1
                continue
            if filled == stop_at:
                at = np.int64(-1)
                break
            coded, is_null, count = _facts(data, begin, begin + u32(data, begin - 4), _OF_MEMBER)
            rows[_OFFSET, filled] = row.base_offset
            rows[_TIME, filled] = row.max_timestamp
            rows[_KEY_AT, filled] = key_at
            rows[_KEY, filled] = key_length
            rows[_VALUE_AT, filled] = at - size
            rows[_VALUE, filled] = NULL if is_null else size
            rows[_PROPERTIES_AT, filled] = begin
            rows[_PROPERTIES, filled] = count
            rows[_AT, filled] = row.origin
            orders[filled] = place | sent
            is_b64[filled] = coded and key_length >= 0
            filled += 1
        if at != end or filled != stop_at:
            return filled, _UNREADABLE, b
    return filled, _OK, last


@njit(cache=True, nogil=True)
def _locate_properties(joined, starts, counts, found):
    """Fill the positions and lengths of the name and the value of each property.

    Returns whether every property has a name and a value.
    """
    filled = 0
    data = address(joined)
    whole = np.int64(len(joined))
    for n in range(len(starts)):
        tag_of_one = _OF_MEMBER[2] if starts[n] >= 0 else _OF_ENTRY[2]
        at = starts[n] if starts[n] >= 0 else ~starts[n]
        left = counts[n]
        while left:
            tag, at = _varint(data, at, whole)
            if tag != tag_of_one:
                at = _skip(data, tag & 7, at, whole)
                continue
            size, at = _varint(data, at, whole)
            stop = at + size
            seen = 0
            while at < stop:
                tag, at = _varint(data, at, stop)
                if at < 0:
                    return False
                if tag == 10 or tag == 18:
                    size, begin = _varint(data, at, stop)
                    if begin < 0 or size < 0 or size > stop - begin:
                        return False
                    place = 0 if tag == 10 else 2
                    found[place, filled] = begin
                    found[place + 1, filled] = size
                    seen |= 1 if tag == 10 else 2
                    at = begin + size
                else:
                    at = _skip(data, tag & 7, at, stop)
                    if at < 0:
                        return False
            if seen != 3:
                return False
            filled += 1
            left -= 1
    return True


@njit(cache=True, nogil=True)
def _sextet(byte):
    """The six bits of a Base64 letter, or -1 for any other byte."""
    if 65 <= byte <= 90:
        return np.int64(byte) - 65
    if 97 <= byte <= 122:
        return np.int64(byte) - 71
    if 48 <= byte <= 57:
        return np.int64(byte) + 4
    if byte == 43:
        return np.int64(62)
    return np.int64(63 if byte == 47 else -1)


@njit(cache=True, nogil=True)
def _decode_keys(data, starts, lengths, which, room):
    """Write the decoded Base64 keys to ``room``, and set their positions after ``data``.

    Returns the bytes written.
    """
    used = 0
    for n in which:
        at = starts[n]
        size = lengths[n]
        while size > 0 and data[at + size - 1] == 61 and lengths[n] - size < 2:
            size -= 1
        begin = used
        bits = np.int64(0)
        held = 0
        is_sound = size & 3 != 1
        for i in range(size):
            six = _sextet(data[at + i])
            if six < 0:
                is_sound = False
                break
            bits = (bits << 6 | six) & 0xFFFF
            held += 6
            if held >= 8:
                held -= 8
                room[used] = (bits >> held) & 0xFF
                used += 1
        if is_sound:
            starts[n] = len(data) + begin
            lengths[n] = used - begin
        else:
            used = begin
    return used
