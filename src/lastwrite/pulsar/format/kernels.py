"""Kernels over Pulsar's entries: split, open, walk, thin, seal.

A kernel works on whole chunks, checks every length and count before using it, and returns a code
and a position instead of raising. A function that is called for every message takes the address of
the bytes instead of an array (see ``encoding.intrinsics``). ``tests/unit/test_pulsar_kernels.py``
compares each kernel with its slow version in ``pulsar.format.entry``.

A data object, big-endian, is a sequence of blocks: a header, entries, then padding
(docs/formats/pulsar.md, "Offloaded ledger"):

    0 magic FBDBABCB · 4 header length i64, 128 · 12 block length i64 · 20 first entry id i64 ·
    28 zeros · 128 entries
    entry: 0 length i32 · 4 entry id i64 · 12 bytes
    padding: FE DC DE AD, repeated

The first byte shows which of the three begins: below 80 an entry, FB a header, otherwise padding.
So a chunk may begin with any of them, and no state is kept between chunks.

An entry's bytes are framed, or a record of a compacted ledger around a framed entry:

    [0E 02 · size u32 · broker metadata] [0E 01 · crc-32c u32 of all that follows]
    size u32 · metadata · payload

    size u32 · MessageIdData · size u32 · framed entry

A MessageIdData begins with field 1 as a varint, byte 08. A MessageMetadata, whose field 1 is a
string, never does.

A batch's decompressed payload is a sequence of messages: size u32, SingleMessageMetadata, value.
"""
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lastwrite.encoding.big_endian import i64, u16, u32
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
    swap32,
)
from lastwrite.encoding.kernel import njit
from lastwrite.encoding.lz4_frame import decode_block
from lastwrite.model.columns import (
    ABORTED,
    COPY,
    DROP,
    IN_GROUP,
    IS_ABORTED,
    IS_DELETE,
    IS_SINGLE,
    IS_TRANSACTIONAL,
    KEYLESS,
    ROW_BASE_OFFSET,
    ROW_MAX_TIMESTAMP,
    ROW_NEXT_OFFSET,
    ROW_NUMBER,
    ROW_POSITION,
    ROW_SIZE,
    SHADOWED,
    TIME_SHIFT,
    TOMBSTONE,
    BatchTable,
    ByteArray,
    Int64Array,
    UInt64Array,
)

# The columns of ``SplitChunk.entries``. ``…_at`` is a position in the chunk's buffer.
ENTRY = np.dtype(
    [
        (name, np.int64)
        for name in (
            "kind",  # kind of the entry: MARKER, SINGLE, BATCH or WHOLE
            "marks",  # flags of the entry, from IS_PART to IS_DROPPED
            "framed_at",  # position after the broker's metadata
            "metadata_at",
            "payload_at",  # position after the metadata
            "key_at",  # position of the key of a single message or an encrypted batch
            "key_length",  # -1 without a key
            # value length of a single message; a message with length 0 is a tombstone
            "value_length",
            "event_time",
            "messages",  # value of num_messages_in_batch, or 1 if absent
            "kept",  # number of values of compacted_batch_indexes
            "kept_at",  # position of the first compacted_batch_index's tag
            "plain_size",  # value of uncompressed_size, or -1 if absent
            "marker",  # marker_type, or -1
            "uuid_at",  # position of the uuid of a chunked message
            "uuid_length",  # -1 without a uuid
        )
    ]
)

EntryTable = npt.NDArray[np.void]


class SplitChunk(NamedTuple):
    """The result of ``split`` for a chunk: tables with one row per entry.

    ``entries`` may have more rows than ``table``, which are not used.
    """

    buffer: ByteArray
    table: BatchTable
    entries: EntryTable


class KeyedRecords(NamedTuple):
    """The tables that ``walk`` fills, with one row for each record that has a key to compact by."""

    entries: UInt64Array
    places: Int64Array  # position and length of each key; no rows if keys are not needed


class EntryActions(NamedTuple):
    """The actions for the entries and records of a chunk."""

    actions: ByteArray  # one byte per entry
    keep: ByteArray  # one byte per record
    keeps_prefix: bool  # broker metadata are kept


class Scratch(NamedTuple):
    """Buffers for the largest batch that is rebuilt, or for a run of batches."""

    plain: ByteArray  # decompressed payloads
    thinned: ByteArray  # payloads without the dropped messages
    indexes: Int64Array
    heads: ByteArray
    notes: Int64Array  # positions of each rebuilt batch: one row per batch, with THINNED columns


class RebuildProgress(NamedTuple):
    """The progress of a rebuild."""

    entries: int
    keep_at: int  # index into ``EntryActions.keep``
    at: int  # byte of the output
    rows: int


# Kinds of entries.
MARKER = 0  # an entry that the broker wrote, not a message
SINGLE = 1  # one record: a message, a chunk, or an encrypted batch
BATCH = 2  # a batch with readable messages
WHOLE = 3  # an unreadable batch, which is kept unchanged

# Marks of entries.
IS_PART = 1  # a chunk of a message, but not the last chunk
IS_ENCRYPTED = 2
IS_COMPACTED = 4  # the entry is in a record of a compacted ledger
IS_BATCHED = 8  # the metadata have num_messages_in_batch
IS_HUGE = 16  # uncompressed_size is above the limit
HAS_CHECKSUM = 32
HAS_TRANSACTION = 64
IS_CHUNKED = 128  # a chunk of a message of several chunks
IS_DROPPED = 256  # all records of the entry are dropped, so it is not decompressed

# Bits of ``Policy.reading``, which select how entries are read. LIKE_BROKER reads as Pulsar 4.2.4
# does: each chunk competes, and only the length decides whether a value is empty.
LIKE_BROKER = 1
KEEPS_PREFIX = 2  # rebuilt entries keep the broker metadata before them
TELLS_GROUPS = 4  # a record's version identifies the chunked message that it belongs to
SKIPS_CHECKSUMS = 8  # checksums are not verified

# Codes that kernels return; ``chunk`` has their texts.
OK = 0
NEED_MORE = 1  # the chunk ends inside an entry
BAD_BORDER = 2
BAD_BLOCK = 3
BAD_PADDING = 4
BAD_ORDER = 5
BAD_SIZE = 6
BAD_FRAME = 7
BAD_CRC = 8
BAD_METADATA = 9
BAD_RECORD = 10
TOO_FAR = 11
BAD_TRANSACTION = 12
CHANGED = 13
NEED_ROOM = 14
PACKED = 15

BLOCK_HEADER_BYTES = 128
ENTRY_HEADER_BYTES = 12
SMALLEST_MESSAGE = 6  # minimum bytes of a message in a batch: a length and payload_size
PLACEHOLDER_BYTES = 8
MOST_DENSE = 1 << 14  # limit of num_messages_in_batch in the layout without placeholders
TRANSACTION_BITS = 48  # low bits of a transaction's id; the high bits number the coordinator

_MAGIC = 0xFBDBABCB
_PADDING = np.array([0xFE, 0xDC, 0xDE, 0xAD], dtype=np.uint8)
# the bytes 00 00 00 04 18 00 20 01 of a placeholder, as a little-endian number
_PLACEHOLDER = 0x0120001804000000
_MOST_TAG = 0xFFFFFFFF
_MOST_LEDGER = (1 << 31) - 1
_MOST_ENTRY = 1 << 32
MOST_TIME = (1 << 61) - 1
_LZ4 = 1
_CODECS = 5
# The maximum number of decompressed bytes for each compressed byte, by codec; see ``codecs``.
_RATIOS = np.array([1, 255, 1032, 1 << 62, 22], dtype=np.int64)


@njit(cache=True, nogil=True)
def _long_varint(data, at, end):
    """Decode a varint of two bytes or more.

    Returns its value, and the position after it or -1 if it is broken.
    """
    value = np.uint64(0)
    shift = np.uint64(0)
    while at < end and shift < np.uint64(70):
        byte = load8(data, at)
        value |= (byte & np.uint64(127)) << shift
        at += 1
        if byte < np.uint64(128):
            return np.int64(value), at
        shift += np.uint64(7)
    return np.int64(0), np.int64(-1)


@njit(cache=True, nogil=True, forceinline=True)
def _varint(data, at, end):
    """The varint at ``at`` as an int64, and the position after it.

    Nearly all varints have one byte, and are decoded without a loop.
    """
    if at < end:
        byte = np.int64(load8(data, at))
        if byte < 128:
            return byte, at + 1
    return _long_varint(data, at, end)


@njit(cache=True, nogil=True, forceinline=True)
def _skip(data, wire, at, end):
    """The position after a field's value of this wire type, or -1 if the value is broken."""
    if wire == 0:
        value, at = _varint(data, at, end)
        return at
    size = np.int64(-1)
    if wire == 2:
        size, at = _varint(data, at, end)
    elif wire == 1:
        size = np.int64(8)
    elif wire == 5:
        size = np.int64(4)
    if at < 0 or size < 0 or size > end - at:
        return np.int64(-1)
    return at + size


# This function is long because it has a branch for each field of the message.
@njit(cache=True, nogil=True)
def _metadata(data, at, end, row, entry):
    """Read the MessageMetadata in ``data[at:end]`` into an entry's rows in the two tables.

    Returns (whether the metadata are valid, position at fault). ``row.codec`` gets field 8.
    ``row.producer_id`` gets the transaction's number, or -2 if that number does not fit.
    """
    seen = np.int64(0)
    codec = np.int64(0)
    chunks = np.int64(1)
    chunk = np.int64(0)
    least = np.int64(0)
    most = np.int64(0)
    halves = 0
    null_value = False
    entry.key_length = -1
    entry.event_time = 0
    entry.messages = 1
    entry.kept = 0
    entry.kept_at = 0
    entry.plain_size = -1
    entry.marker = -1
    entry.uuid_length = -1
    marks = np.int64(0)
    while at < end:
        place = at
        tag, at = _varint(data, at, end)
        if at < 0 or tag < 8 or tag > _MOST_TAG:
            return False, place
        if tag & 7 == 0:
            value, at = _varint(data, at, end)
            if at < 0:
                return False, place
            if tag == 16:  # field 2, sequence_id
                seen |= 2
            elif tag == 24:  # field 3, publish_time
                seen |= 4
                row.max_timestamp = value
            elif tag == 64:  # field 8, compression
                codec = np.int64(np.int32(value))
            elif tag == 72:  # field 9, uncompressed_size
                entry.plain_size = value & 0xFFFFFFFF
            elif tag == 88:  # field 11, num_messages_in_batch
                entry.messages = np.int64(np.int32(value))
                marks |= IS_BATCHED
            elif tag == 96:  # field 12, event_time
                entry.event_time = value
            elif tag == 160:  # field 20, marker_type
                entry.marker = value & 0x7FFFFFFF
            elif tag == 176:  # field 22, txnid_least_bits
                least = value
                halves |= 1
            elif tag == 184:  # field 23, txnid_most_bits
                most = value
                halves |= 2
            elif tag == 200:  # field 25, null_value
                null_value = value != 0
            elif tag == 216:  # field 27, num_chunks_from_msg
                chunks = np.int64(np.int32(value))
            elif tag == 232:  # field 29, chunk_id
                chunk = np.int64(np.int32(value))
            elif tag == 248:  # field 31, compacted_batch_indexes
                if entry.kept == 0:
                    entry.kept_at = place
                entry.kept += 1
        elif tag & 7 == 2:
            size, at = _varint(data, at, end)
            if at < 0 or size < 0 or size > end - at:
                return False, place
            if tag == 10:  # field 1, producer_name
                seen |= 1
            elif tag == 50:  # field 6, partition_key
                entry.key_at = at
                entry.key_length = size
            elif tag == 106:  # field 13, encryption_keys
                marks |= IS_ENCRYPTED
            elif tag == 210:  # field 26, uuid
                entry.uuid_at = at
                entry.uuid_length = size
            elif tag == 250 and size > 0:  # field 31, packed
                if entry.kept == 0:
                    entry.kept_at = place
                inside = at
                while inside < at + size:
                    value, inside = _varint(data, inside, at + size)
                    if inside < 0:
                        return False, place
                    entry.kept += 1
            at += size
        else:
            at = _skip(data, tag & 7, at, end)
            if at < 0:
                return False, place
    if seen != 7:
        return False, at
    if chunks > 1:
        marks |= IS_CHUNKED | (IS_PART if chunk < chunks - 1 else 0)
    row.codec = codec
    row.producer_id = -1
    if halves == 3:
        marks |= HAS_TRANSACTION
        fits = 0 <= most < 1 << (63 - TRANSACTION_BITS) and 0 <= least < 1 << TRANSACTION_BITS
        row.producer_id = most << TRANSACTION_BITS | least if fits else -2
    entry.marks |= marks
    entry.value_length = -2 if null_value else entry.plain_size
    return True, at


@njit(cache=True, nogil=True)
def _classify(row, entry, stop, limit, reading):
    """Set the kind and the number of records of an entry that ends at ``stop``."""
    payload = stop - entry.payload_at
    # value_length is -2 for a null value; plain_size is -1 without uncompressed_size
    if entry.value_length == -2:
        entry.value_length = 0 if reading & LIKE_BROKER == 0 else entry.plain_size
    if entry.value_length < 0:
        entry.value_length = payload
    if reading & LIKE_BROKER:
        entry.marks &= ~IS_PART
    row.records = 1
    if entry.marker >= 0:
        entry.kind = MARKER
        row.records = 0
        return
    entry.kind = SINGLE
    if entry.marks & IS_BATCHED == 0 or entry.marks & IS_ENCRYPTED:
        return
    entry.kind = WHOLE
    codec = row.codec
    count = entry.messages
    if codec < 0 or codec >= _CODECS or count < 0 or entry.kept > count:
        return
    if count == 0 and (codec != 0 or payload > 0):
        return
    size = payload if codec == 0 else entry.plain_size
    if size < 0 or (codec != 3 and size > _RATIOS[codec] * payload + 64):
        return
    if codec != 0 and size > limit:
        entry.kind = BATCH
        entry.marks |= IS_HUGE
        return
    if entry.kept * SMALLEST_MESSAGE > size:
        return
    if count * SMALLEST_MESSAGE > size and (entry.kept == 0 or count > MOST_DENSE):
        return
    entry.kind = BATCH
    row.records = entry.kept if entry.kept > 0 else count


@njit(cache=True, nogil=True, forceinline=True)
def _message_id(data, at, end):
    """Ledger and entry of a MessageIdData. (-1, -1) if it is broken."""
    ledger = np.int64(-1)
    number = np.int64(-1)
    while at < end:
        tag, at = _varint(data, at, end)
        if at < 0 or tag < 8 or tag > _MOST_TAG:
            return np.int64(-1), np.int64(-1)
        if tag == 8:
            ledger, at = _varint(data, at, end)
        elif tag == 16:
            number, at = _varint(data, at, end)
        else:
            at = _skip(data, tag & 7, at, end)
        if at < 0:
            return np.int64(-1), np.int64(-1)
    if ledger < 0 or number < 0:
        return np.int64(-1), np.int64(-1)
    return ledger, number


@njit(cache=True, nogil=True)
def _between(buffer, data, at, end, is_first, expected):
    """Skip one block header or run of padding, which begins with a byte of 80 hex or above.

    ``is_first`` is true at the start of a chunk, where padding may have begun earlier. Returns
    (code, position after it, expected entry id, bytes needed).
    """
    byte = load8(data, at)
    if byte == np.uint64(0xFB):
        if end - at < BLOCK_HEADER_BYTES:
            return NEED_MORE, at, expected, BLOCK_HEADER_BYTES
        first = i64(data, at + 20)
        if u32(data, at) != _MAGIC or i64(data, at + 4) != BLOCK_HEADER_BYTES or first < 0:
            return BAD_BLOCK, at, expected, 0
        if i64(data, at + 12) < BLOCK_HEADER_BYTES or (expected >= 0 and first != expected):
            return BAD_BLOCK, at, expected, 0
        return OK, at + BLOCK_HEADER_BYTES, first, 0
    phase = 0
    while phase < 4 and np.uint64(_PADDING[phase]) != byte:
        phase += 1
    if phase == 4 or (phase > 0 and not is_first):
        return BAD_BORDER, at, expected, 0
    while at < end and load8(data, at) == np.uint64(_PADDING[phase]):
        at += 1
        phase = (phase + 1) & 3
    if at < end and load8(data, at) != np.uint64(0xFB):
        return BAD_PADDING, at, expected, 0
    return OK, at, expected, 0


# This long function reads an entry's frame once from front to back, and checks every length before
# the next read. Smaller functions would need all of its state as parameters.
@njit(cache=True, nogil=True)
def split(buffer, start, end, table, entries, lowest_offset, limit, reading):
    """Split ``buffer[start:end]`` into complete entries, a row of each table per entry.

    ``lowest_offset`` is the lowest offset that the first entry may have; for raw entries its upper
    half is the ledger. Offsets rise, for raw entries by 1. ``limit`` is the largest payload, in
    bytes, that may be decompressed.

    Returns (rows, position after the last whole entry, code, position at fault, bytes of the
    damaged or incomplete part there, 0 if unknown).
    """
    data = address(buffer)
    rows = 0
    at = np.int64(start)
    floor = np.int64(lowest_offset)
    expected = np.int64(-1)  # the id that the next entry in the object must have
    checks = reading & SKIPS_CHECKSUMS == 0
    while rows < len(table) and at < end:
        if load8(data, at) >= np.uint64(0x80):
            code, behind, expected, wanted = _between(buffer, data, at, end, at == start, expected)
            if code != OK:
                return rows, at, code, behind, wanted
            at = behind
            continue
        if end - at < ENTRY_HEADER_BYTES:
            return rows, at, NEED_MORE, at, ENTRY_HEADER_BYTES
        size = u32(data, at)
        number = i64(data, at + 4)
        if expected >= 0 and number != expected:
            return rows, at, BAD_ORDER, at + 4, 0
        if number < 0 or number >= _MOST_ENTRY:
            return rows, at, TOO_FAR, at + 4, 0
        body = at + ENTRY_HEADER_BYTES
        if end - body < size:
            return rows, at, NEED_MORE, at, ENTRY_HEADER_BYTES + size
        stop = body + size
        if size < 4:
            return rows, at, BAD_SIZE, at, 0
        row = table[rows]
        entry = entries[rows]
        entry.marks = 0
        framed = u16(data, body)
        if (
            size > 8
            and framed != 0x0E01
            and framed != 0x0E02
            and load8(data, body + 4) == np.uint64(8)
        ):
            length = u32(data, body)
            inner = body + 8 + length
            if length > size - 8 or u32(data, inner - 4) != stop - inner:
                return rows, at, BAD_RECORD, body, 0
            ledger, own = _message_id(data, body + 4, inner - 4)
            if ledger < 0:
                return rows, at, BAD_RECORD, body + 4, 0
            if ledger >= _MOST_LEDGER or own >= _MOST_ENTRY:
                return rows, at, TOO_FAR, body + 4, 0
            base = ledger << 32 | own
            if base < floor:
                return rows, at, BAD_ORDER, body + 4, 0
            entry.marks = IS_COMPACTED
            body = inner
            if stop - body < 4:
                return rows, at, BAD_SIZE, body, 0
            framed = u16(data, body)
        else:
            base = (floor if rows == 0 else table[rows - 1].base_offset) >> 32 << 32 | number
            if base < floor or (base > floor and rows > 0):
                return rows, at, BAD_ORDER, at + 4, 0
        place = body
        if framed == 0x0E02:
            if stop - place < 6 or u32(data, place + 2) > stop - place - 6:
                return rows, at, BAD_FRAME, place, 0
            place += 6 + u32(data, place + 2)
        entry.framed_at = place
        if stop - place >= 2 and u16(data, place) == 0x0E01:
            if stop - place < 6:
                return rows, at, BAD_FRAME, place, 0
            if checks and np.int64(crc32c(buffer, place + 6, stop)) != u32(data, place + 2):
                return rows, at, BAD_CRC, place + 2, 0
            entry.marks |= HAS_CHECKSUM
            place += 6
        if stop - place < 4 or u32(data, place) > stop - place - 4:
            return rows, at, BAD_FRAME, place, 0
        entry.metadata_at = place + 4
        entry.payload_at = place + 4 + u32(data, place)
        sound, fault = _metadata(data, entry.metadata_at, entry.payload_at, row, entry)
        if not sound:
            return rows, at, BAD_METADATA, fault, 0
        if row.producer_id == -2:
            return rows, at, BAD_TRANSACTION, entry.metadata_at, 0
        _classify(row, entry, stop, limit, reading)
        row.position = body
        row.size = stop - body
        row.origin = at
        row.origin_size = stop - at
        row.base_offset = base
        row.next_offset = base + 1
        row.horizon = 0  # 0 means that tombstones may be removed at once
        row.flags = (
            IS_TRANSACTIONAL if entry.marks & HAS_TRANSACTION and entry.kind != MARKER else 0
        )
        row.producer_epoch = -1
        if entry.kind == BATCH:
            row.plain_start = entry.payload_at
            row.plain_end = stop
        else:
            row.plain_start = entry.key_at if entry.key_length >= 0 else body
            row.plain_end = row.plain_start + max(entry.key_length, 0)
        floor = base + 1
        expected = number + 1
        rows += 1
        at = stop
    return rows, at, OK, at, 0


@njit(cache=True, nogil=True)
def open_many(buffer, table, entries, first, last, plain, used, enough):
    """Decompress the batches' payloads to ``plain[used:]``, and copy other entries' keys.

    Works on ``table[first:last]`` until ``enough`` bytes are used. Stops before an entry that does
    not fit, and before an entry that only a library can decompress reliably. Sets ``plain_start``
    and ``plain_end``. Returns (end of the entries done, bytes used).
    """
    source = address(buffer)
    target = address(plain)
    b = first
    while b < last and used < enough:
        row = table[b]
        entry = entries[b]
        begin = used
        if entry.marks & IS_DROPPED:
            pass
        elif entry.kind != BATCH:
            size = max(entry.key_length, 0)
            if size > len(plain) - used:
                break
            copy_bytes(target, used, source, entry.key_at, size)
            used += size
        elif row.records > 0:
            if entry.marks & IS_HUGE:
                break
            stop = row.position + row.size
            size = stop - entry.payload_at if row.codec == 0 else entry.plain_size
            if size > len(plain) - used:
                break
            if row.codec == 0:
                copy_bytes(target, used, source, entry.payload_at, size)
            elif row.codec != _LZ4 or used + size != decode_block(
                source, entry.payload_at, stop, len(buffer), target, used, len(plain), size
            ):
                break
            used += size
        row.plain_start = begin
        row.plain_end = used
        b += 1
    return b, used


@njit(cache=True, nogil=True)
def library_end(table, entries, first, last):
    """The end of the adjacent batches, from ``first`` on, that only a library can decompress."""
    b = first
    while b < last:
        codec = table[b].codec
        marks = entries[b].marks
        if marks & IS_DROPPED == 0 and (
            entries[b].kind != BATCH or marks & IS_HUGE or codec == 0 or codec == _LZ4
        ):
            break
        b += 1
    return b


@njit(cache=True, nogil=True, forceinline=True)
def _message(data, at, end):
    """Parse the message of a batch at byte ``at``.

    Returns (its end, or -1 if it is broken; key position; key length, -1 without a key; value
    length; event time; whether it is a placeholder; whether its value is null).
    """
    bad = np.int64(-1)
    key_at = np.int64(0)
    key_length = np.int64(-1)
    size = np.int64(-1)
    event_time = np.int64(0)
    is_out = False
    is_null = False
    if end - at < SMALLEST_MESSAGE or u32(data, at) > end - at - 4:
        return bad, key_at, key_length, size, event_time, is_out, is_null
    stop = at + 4 + u32(data, at)
    at += 4
    while at < stop:
        tag, at = _varint(data, at, stop)
        if at < 0 or tag < 8 or tag > _MOST_TAG:
            return bad, key_at, key_length, size, event_time, is_out, is_null
        if tag & 7 == 0:
            value, at = _varint(data, at, stop)
            if tag == 24:  # field 3, payload_size
                size = np.int64(np.int32(value))
            elif tag == 32:  # field 4, compacted_out
                is_out = value != 0
            elif tag == 40:  # field 5, event_time
                event_time = value
            elif tag == 72:  # field 9, null_value
                is_null = value != 0
        elif tag == 18:  # field 2, partition_key
            length, at = _varint(data, at, stop)
            if at < 0 or length < 0 or length > stop - at:
                return bad, key_at, key_length, size, event_time, is_out, is_null
            key_at = at
            key_length = length
            at += length
        else:
            at = _skip(data, tag & 7, at, stop)
        if at < 0:
            return bad, key_at, key_length, size, event_time, is_out, is_null
    if size < 0 or size > end - stop:
        return bad, key_at, key_length, size, event_time, is_out, is_null
    return stop + size, key_at, key_length, size, event_time, is_out, is_null


@njit(cache=True, nogil=True)
def _next_index(data, at, end, packed_end):
    """Read the next compacted_batch_index from an entry's metadata.

    Returns (index, or -1 after the last; position after it; end of the packed field, if it is in
    one).
    """
    while at < end:
        if at < packed_end:
            value, at = _varint(data, at, packed_end)
            return value, at, packed_end
        tag, at = _varint(data, at, end)
        if tag == 248:
            value, at = _varint(data, at, end)
            return np.int64(np.int32(value)), at, packed_end
        if tag == 250:
            size, at = _varint(data, at, end)
            packed_end = at + size
        else:
            at = _skip(data, tag & 7, at, end)
    return np.int64(-1), at, packed_end


@njit(cache=True, nogil=True)
def _is_dense(plain, at, end, data, entry):
    """Whether the payload ``plain[at:end]`` lacks the removed messages and their placeholders.

    The indexes of the kept messages must ascend. False if no message of the batch was removed.
    """
    if entry.kept == 0 or entry.kept == entry.messages:
        return False
    count = 0
    index = np.int64(-1)
    place = entry.kept_at
    packed_end = np.int64(0)
    while at < end and count <= entry.kept:
        at, key_at, key_length, size, event_time, is_out, is_null = _message(plain, at, end)
        before = index
        index, place, packed_end = _next_index(data, place, entry.payload_at, packed_end)
        if at < 0 or (count < entry.kept and index <= before) or index >= entry.messages:
            return False
        count += 1
    return count == entry.kept


@njit(cache=True, nogil=True)
def _group(data, entry, secret):
    """The version of a single entry if TELLS_GROUPS is set: see ``PulsarFormat.add_versions``."""
    if entry.marks & IS_CHUNKED == 0 or entry.uuid_length < 0:
        return np.uint64(IN_GROUP if entry.marks & IS_PART else 0)
    one, two = fingerprint(data, entry.uuid_at, entry.uuid_length, secret)
    return one & ~np.uint64(IN_GROUP) | np.uint64(IN_GROUP if entry.marks & IS_PART else 0)


@njit(cache=True, nogil=True, forceinline=True)
def _version(event_time, is_single, is_tombstone):
    """The version of a message: see ``PulsarFormat.add_versions``."""
    held = min(max(event_time, np.int64(0)), np.int64(MOST_TIME))
    return np.uint64(
        held << TIME_SHIFT | (IS_SINGLE if is_single else 0) | (IS_DELETE if is_tombstone else 0)
    )


@njit(cache=True, nogil=True, forceinline=True)
def _enter(found, keys, filled, plain, key_at, key_length, secret, ordinal):
    """Fill a row of ``KeyedRecords``, except its version."""
    one, two = fingerprint(plain, key_at, key_length, secret)
    found[filled, 0] = one
    found[filled, 1] = (two & np.uint64(0xFFFFFFFF00000000)) | np.uint64(ordinal)
    if len(keys) > 0:
        keys[filled, 0] = key_at
        keys[filled, 1] = key_length


# The loop is one long function, because each part would need fifteen parameters.
@njit(cache=True, nogil=True)
def walk(run, chunk, reading, secret, ordinal, states, keyed, filled):
    """Visit every record of the run's entries, whose keys or messages are in ``run.plain``.

    Writes a state byte per record, beginning at ``states[0]``. Writes a row per record that
    competes for its key, beginning at ``keyed.entries[filled]``. The first word of a row is the
    first word of the key's fingerprint. The second word joins the high half of the fingerprint's
    second word and the record's ordinal. The third word, if rows have it, is the version. If
    ``keyed.places`` has rows, they get the key's position in ``run.plain`` and its length. A batch
    whose messages do not match its metadata becomes WHOLE. Returns the number of filled rows.
    """
    seen = 0
    first, last, plain = run
    buffer, table, entries = chunk
    found, keys = keyed
    source = address(plain)
    data = address(buffer)
    grouped = reading & TELLS_GROUPS != 0
    timed = found.shape[1] > 2
    for b in range(first, last):
        row = table[b]
        entry = entries[b]
        if entry.kind == MARKER:
            continue
        if row.flags & IS_ABORTED or entry.kind == WHOLE or entry.marks & IS_HUGE:
            state = ABORTED if row.flags & IS_ABORTED else 0
            for i in range(row.records):
                states[seen + i] = state
            seen += row.records
            continue
        if entry.kind == SINGLE:
            length = entry.key_length
            if length < 0:
                states[seen] = KEYLESS
            elif entry.marks & IS_PART and not grouped:
                states[seen] = 0
            else:
                is_tombstone = entry.value_length <= 0 and entry.marks & IS_PART == 0
                states[seen] = TOMBSTONE if is_tombstone else 0
                _enter(found, keys, filled, source, row.plain_start, length, secret, ordinal + seen)
                if timed and grouped:
                    found[filled, 2] = _group(data, entry, secret)
                elif timed:
                    found[filled, 2] = _version(entry.event_time, True, is_tombstone)
                filled += 1
            seen += 1
            continue
        at = row.plain_start
        end = row.plain_end
        begin = seen
        stop_at = seen + row.records
        was_filled = filled
        count = entry.kept if _is_dense(source, at, end, data, entry) else entry.messages
        for _ in range(count):
            at, key_at, key_length, size, event_time, is_out, is_null = _message(source, at, end)
            if at < 0:
                break
            if is_out and entry.kept > 0:
                continue
            if seen == stop_at:
                at = np.int64(-1)
                break
            if is_out:
                # The metadata do not state the number of placeholders, so each counts as a
                # superseded record.
                states[seen] = SHADOWED
            elif key_length < 0:
                states[seen] = KEYLESS
            else:
                is_tombstone = size == 0 or (is_null and reading & LIKE_BROKER == 0)
                states[seen] = TOMBSTONE if is_tombstone else 0
                _enter(found, keys, filled, source, key_at, key_length, secret, ordinal + seen)
                if timed and grouped:
                    found[filled, 2] = np.uint64(0)
                elif timed:
                    found[filled, 2] = _version(event_time, False, is_tombstone)
                filled += 1
            seen += 1
        if at != end or seen != stop_at:
            entry.kind = WHOLE
            filled = was_filled
            seen = stop_at
            for i in range(begin, stop_at):
                states[i] = 0
    return filled


@njit(cache=True, nogil=True, inline="always")
def put_varint(out, at, value):
    rest = np.uint64(value)
    while rest >= np.uint64(128):
        store8(out, at, (rest & np.uint64(127)) | np.uint64(128))
        rest >>= np.uint64(7)
        at += 1
    store8(out, at, rest)
    return at + 1


@njit(cache=True, nogil=True)
def _placeholders(out, at, count):
    for _ in range(count):
        store64(out, at, np.uint64(_PLACEHOLDER))
        at += PLACEHOLDER_BYTES
    return at


@njit(cache=True, nogil=True, forceinline=True)
def _flushed(out, to, plain, run, end):
    """Copy the adjacent kept messages ``plain[run:end]`` to ``out``.

    Nothing is copied if ``run`` is -1. Returns the end position in ``out``.
    """
    if run >= 0:
        copy_bytes(out, to, plain, run, end - run)
        to += end - run
    return to


@njit(cache=True, nogil=True)
def thin(plain, end, data, row, entry, keep, out, indexes):
    """Write a batch's messages to ``out``: kept messages unchanged, placeholders for the others.

    ``plain[:end]`` has the messages and ``data`` the entry's metadata; these and ``out`` are
    addresses. ``keep`` has a byte for each record that is present. ``indexes`` receives the batch
    indexes of the kept messages. ``out`` must have ``thin_room`` bytes.

    Returns (bytes written, or -1 if the messages do not match the metadata; number of kept
    messages).
    """
    bad = np.int64(-1)
    at = np.int64(0)
    to = np.int64(0)
    dense = _is_dense(plain, at, end, data, entry)
    place = entry.kept_at
    packed_end = np.int64(0)
    count = entry.kept if dense else entry.messages
    records = row.records
    slot = 0
    kept = 0
    index = np.int64(-1)
    run = bad  # start of the kept messages that are not copied yet; -1: none
    for i in range(count):
        begin = at
        at, key_at, key_length, size, event_time, is_out, is_null = _message(plain, at, end)
        if at < 0:
            return bad, 0
        before = index
        if dense:
            index, place, packed_end = _next_index(data, place, entry.payload_at, packed_end)
            if index > before + 1:
                to = _flushed(out, to, plain, run, begin)
                run = bad
                to = _placeholders(out, to, index - before - 1)
        else:
            index = np.int64(i)
        stays = False
        if not is_out or entry.kept == 0:
            if slot == records:
                return bad, 0
            stays = keep[slot] != 0
            slot += 1
        if stays:
            indexes[kept] = index
            kept += 1
            if run < 0:
                run = begin
        else:
            to = _flushed(out, to, plain, run, begin)
            run = bad
            to = _placeholders(out, to, 1)
    if slot != records or at != end:
        return bad, 0
    to = _flushed(out, to, plain, run, at)
    if dense:
        to = _placeholders(out, to, entry.messages - index - 1)
    return to, kept


@njit(cache=True, nogil=True)
def thin_room(entry, size):
    """The maximum number of bytes that ``thin`` writes for a payload of ``size`` bytes."""
    return size + (PLACEHOLDER_BYTES if entry.kept > 0 else 2) * entry.messages


@njit(cache=True, nogil=True)
def head_room(row, entry):
    """The maximum number of bytes that ``put_head`` writes for an entry."""
    return entry.payload_at - row.position + 16 + 7 * row.records


@njit(cache=True, nogil=True)
def _put_indexes(out, at, kept):
    for i in range(len(kept)):
        store16(out, at, np.uint64(0x01F8))  # tag 248
        at = put_varint(out, at + 2, kept[i])
    return at


@njit(cache=True, nogil=True)
def put_head(data, row, entry, size, kept, keeps_prefix, out, at):
    """Write the part of an entry before its payload, without the checksum.

    The metadata get the indexes of the kept messages and ``size``, the size of the decompressed
    payload. All other fields are copied. ``data`` and ``out`` are addresses. Returns (start of the
    frame, position after the head). Source: docs/formats/pulsar-compaction.md, "Batches".
    """
    if keeps_prefix:
        copy_bytes(out, at, data, row.position, entry.framed_at - row.position)
        at += entry.framed_at - row.position
    frame = at
    store16(out, at, np.uint64(0x010E))
    at += 10
    place = entry.metadata_at
    begin = place
    sized = False
    listed = False
    while place < entry.payload_at:
        field = place
        tag, place = _varint(data, place, entry.payload_at)
        place = _skip(data, tag & 7, place, entry.payload_at)
        is_replaced = tag == 72 or tag == 248 or tag == 250
        if is_replaced or (not sized and tag >= 80) or (not listed and tag >= 256):
            copy_bytes(out, at, data, begin, field - begin)
            at += field - begin
            begin = field
            if not sized and tag >= 80:
                store8(out, at, np.uint64(72))
                at = put_varint(out, at + 1, size)
                sized = True
            if not listed and tag >= 256:
                at = _put_indexes(out, at, kept)
                listed = True
            if is_replaced:
                begin = place
    copy_bytes(out, at, data, begin, place - begin)
    at += place - begin
    if not sized:
        store8(out, at, np.uint64(72))
        at = put_varint(out, at + 1, size)
    if not listed:
        at = _put_indexes(out, at, kept)
    store32(out, frame + 6, swap32(np.uint64(at - frame - 10)))
    return frame, at


@njit(cache=True, nogil=True)
def put_checksum(out, frame, end):
    """Write the checksum of the framed entry ``out[frame:end]``."""
    store32(out, frame + 2, swap32(np.uint64(crc32c(out, frame + 6, end))))


@njit(cache=True, nogil=True, inline="always")
def _note(rows, filled, begin, at, row, kept):
    rows[filled, ROW_POSITION] = begin
    rows[filled, ROW_SIZE] = at - begin
    rows[filled, ROW_NEXT_OFFSET] = row.next_offset
    rows[filled, ROW_MAX_TIMESTAMP] = row.max_timestamp
    rows[filled, ROW_BASE_OFFSET] = row.base_offset
    rows[filled, ROW_NUMBER] = kept


@njit(cache=True, nogil=True)
def is_unchanged(row, entry, action):
    """Whether an entry is copied unchanged.

    True if it is not a readable batch, or if its metadata already list all kept indexes.
    """
    if entry.kind != BATCH or entry.marks & IS_HUGE:
        return True
    return action == COPY and entry.kept > 0 and entry.plain_size >= 0


@njit(cache=True, nogil=True)
def _put_batch(chunk, orders, scratch, b, keep_at, out, at):
    """Write batch ``b`` without its dropped messages.

    A compressed batch is written only if all messages stay.

    Returns (position after it, number of kept messages, code). The code PACKED means that the batch
    must be decompressed or compressed elsewhere. CHANGED means that its messages do not match its
    metadata.
    """
    row = chunk.table[b]
    entry = chunk.entries[b]
    data = address(chunk.buffer)
    stop = row.position + row.size
    # If all messages stay, the compressed payload is copied after a check that the messages can be
    # read.
    packed = row.codec != 0
    if packed and (row.codec != _LZ4 or orders.actions[b] != COPY):
        return at, 0, PACKED
    payload = entry.plain_size if packed else stop - entry.payload_at
    room = thin_room(entry, payload)
    if room > len(scratch.thinned) or row.records > len(scratch.indexes):
        return at, 0, NEED_ROOM
    if at + head_room(row, entry) + (stop - entry.payload_at if packed else room) > len(out):
        return at, 0, NEED_ROOM
    source = data + entry.payload_at
    if packed:
        source = address(scratch.plain)
        most = len(scratch.plain)
        if payload > most:
            return at, 0, NEED_ROOM
        opened = decode_block(
            data, entry.payload_at, stop, len(chunk.buffer), source, np.int64(0), most, payload
        )
        if payload != opened:
            return at, 0, PACKED
    body = address(scratch.thinned)
    keep = orders.keep[keep_at:]
    size, kept = thin(source, payload, data, row, entry, keep, body, scratch.indexes)
    if size < 0:
        return at, 0, CHANGED
    if packed and size != payload:
        return at, 0, PACKED
    target = address(out)
    indexes = scratch.indexes[:kept]
    frame, at = put_head(data, row, entry, size, indexes, orders.keeps_prefix, target, at)
    if packed:
        body = data + entry.payload_at
        size = stop - entry.payload_at
    copy_bytes(target, at, body, np.int64(0), size)
    put_checksum(out, frame, at + size)
    return at + size, kept, OK


@njit(cache=True, nogil=True)
def rebuild(chunk, orders, scratch, done, out, rows):
    """Apply ``actions`` to the chunk's entries from ``done`` on, and write the kept entries.

    Stops at the first batch that must be decompressed or compressed elsewhere (PACKED). Writes to
    ``out``, and a row per entry to ``rows`` (see ROW_COLUMNS; the sixth is the number of records
    left). NEED_ROOM means that the next entry does not fit ``out`` or the scratch. Returns (a new
    ``done``, code).
    """
    table, entries, actions = chunk.table, chunk.entries, orders.actions
    data = address(chunk.buffer)
    target = address(out)
    b, keep_at, at, filled = done
    while b < len(table):
        row = table[b]
        entry = entries[b]
        if actions[b] == DROP:
            keep_at += row.records
            b += 1
            continue
        begin = at
        kept = row.records
        whole = is_unchanged(row, entry, actions[b])
        if not whole:
            at, kept, code = _put_batch(chunk, orders, scratch, b, keep_at, out, at)
            if code == CHANGED and actions[b] == COPY:
                entry.kind = WHOLE
                whole = True
                kept = row.records
            elif code != OK:
                return RebuildProgress(b, keep_at, at, filled), code
        if whole:
            place = row.position if orders.keeps_prefix else entry.framed_at
            size = row.position + row.size - place
            if at + size > len(out):
                return RebuildProgress(b, keep_at, at, filled), NEED_ROOM
            copy_bytes(target, at, data, place, size)
            at += size
        _note(rows, filled, begin, at, row, kept)
        filled += 1
        keep_at += row.records
        b += 1
    return RebuildProgress(b, keep_at, at, filled), OK


# Columns of ``Scratch.notes``, which ``thin_many`` fills for each batch.
HEAD = 0  # end of the entry's head in ``heads``
FRAME = 1  # start of the entry's frame in ``heads``
START = 2  # start of the batch's messages in ``thinned``
END = 3
KEPT = 4
THINNED = 5  # number of columns


@njit(cache=True, nogil=True)
def thin_many(chunk, orders, scratch, first, last, keep_at):
    """Write the kept messages of the batches ``first`` to ``last`` to ``scratch.thinned``.

    The batches are decompressed in ``scratch.plain``. The head of each payload is written to
    ``scratch.heads``, and a row per batch to ``scratch.notes``. A batch whose messages do not match
    its metadata becomes WHOLE if it is to be copied; otherwise the loop ends before it. Returns
    (end of the batches done, keep_at, code).
    """
    buffer, table, entries = chunk
    actions, keep, keeps_prefix = orders
    plain, thinned, indexes, heads, notes = scratch
    data = address(buffer)
    source = address(plain)
    target = address(thinned)
    front = address(heads)
    to = np.int64(0)
    at = np.int64(0)
    for b in range(first, last):
        row = table[b]
        entry = entries[b]
        note = notes[b - first]
        note[START] = note[END] = to
        note[HEAD] = note[FRAME] = at
        note[KEPT] = row.records
        if entry.marks & IS_DROPPED:
            note[KEPT] = -1
            keep_at += row.records
            continue
        size = np.int64(-1)
        kept = 0
        if entry.kind == BATCH:
            begin = source + row.plain_start
            length = row.plain_end - row.plain_start
            body = target + to
            size, kept = thin(begin, length, data, row, entry, keep[keep_at:], body, indexes)
        if size >= 0:
            note[FRAME], at = put_head(
                data, row, entry, size, indexes[:kept], keeps_prefix, front, at
            )
            to += size
            note[END], note[HEAD], note[KEPT] = to, at, kept
        elif actions[b] == COPY:
            entry.kind = WHOLE
        else:
            return b, keep_at, CHANGED
        keep_at += row.records
    return last, keep_at, OK


@njit(cache=True, nogil=True)
def seal_many(table, scratch, first, sizes, out, at, rows, filled):
    """Write the heads of ``thin_many``, with checksums, before payloads in ``out``.

    ``sizes`` has the size of each entry from ``first`` on, head included. The entries are adjacent
    from ``out[at]`` on, with room for the heads. An entry without a head is left unchanged. Writes
    a row per entry that is not dropped, beginning at ``rows[filled]``, as ``rebuild`` does. Returns
    the number of filled rows.
    """
    plain, thinned, indexes, heads, notes = scratch
    target = address(out)
    front = address(heads)
    before = np.int64(0)
    for i in range(len(sizes)):
        note = notes[i]
        if note[KEPT] < 0:
            continue
        size = note[HEAD] - before
        if size > 0:
            copy_bytes(target, at, front, before, size)
            put_checksum(out, at + note[FRAME] - before, at + sizes[i])
        _note(rows, filled, at, at + sizes[i], table[first + i], note[KEPT])
        before = note[HEAD]
        at += sizes[i]
        filled += 1
    return filled


@njit(cache=True, nogil=True)
def packed_end(table, entries, first, actions):
    """The end of the adjacent batches from ``first`` on that must be decompressed for a rebuild.

    Dropped entries between them are marked IS_DROPPED.
    """
    end = first
    for b in range(first, len(table)):
        row = table[b]
        if actions[b] == DROP:
            continue
        if row.codec == 0 or is_unchanged(row, entries[b], actions[b]):
            break
        end = b + 1
    for b in range(first, end):
        if actions[b] == DROP:
            entries[b].marks |= IS_DROPPED
    return end


@njit(cache=True, nogil=True)
def rooms(table, entries, first, last, enough):
    """The scratch needed to thin the batches of ``table[first:last]`` together.

    Returns (end of the batches that need at most ``enough`` bytes, bytes of payloads, bytes of
    heads, records of the largest batch). ``plain_start`` and ``plain_end`` must be set.
    """
    payloads = np.int64(0)
    heads = np.int64(0)
    records = np.int64(0)
    b = first
    while b < last:
        row = table[b]
        if entries[b].kind == BATCH and entries[b].marks & IS_DROPPED == 0:
            room = thin_room(entries[b], row.plain_end - row.plain_start)
            if b > first and payloads + room > enough:
                break
            payloads += room
            heads += head_room(row, entries[b])
            records = max(records, row.records)
        b += 1
    return b, payloads, heads, records


@njit(cache=True, nogil=True)
def rebuilt_size(table, entries, count):
    """The bytes that the first ``count`` entries need after the rebuild, if no batch grows."""
    size = np.int64(0)
    for b in range(count):
        size += table[b].size
        if entries[b].kind == BATCH:
            size += 24 + 9 * table[b].records
    return size
