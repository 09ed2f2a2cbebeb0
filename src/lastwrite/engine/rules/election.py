"""Find the last write of every key: sort entries into buckets, and elect in each bucket.

The smallest case: the log holds ``a@0 b@1 a@2``. Read it from its end. The first record seen with a
key is its last write: ``a@2`` wins, ``b@1`` wins, and ``a@0`` loses, because its key was seen. So a
set of keys is enough, and entries of the set never change. Kafka keeps a map of offsets.

An *entry* is two uint64. The first is one lane of the key's fingerprint. The second has 32 bits of
the other lane in its high half, and the record's ordinal in its piece in its low half. The top bits
of the first lane choose the entry's bucket. All entries of a key are therefore in one bucket, and a
bucket's set fits the processor's cache. Inside a bucket, entries keep the log's order.

*Clean* records (below the first dirty offset) were compared with each other in earlier rounds. As
in Kafka, their keys are looked up in the set but not added. In each piece, the clean records are
those below one ordinal.

With a strategy other than the offset, an entry has a third word, the record's version. If the
greatest version wins, and the latest of equal versions (KIP-280), the method is the same. With
``Strategy.EVENT_TIME`` a delete resets its key's time, so the order of a key's records matters.
``fold`` therefore reads from the log's start.

With ``exact`` the whole keys are stored beside the entries, and entries with equal fingerprints are
compared by key.

Entries are not copied: ``elect`` gets their addresses in a mapped file or an array.
"""
# mypy: disable-error-code="untyped-decorator, no-untyped-def, assignment"

from __future__ import annotations

from itertools import accumulate

import numpy as np

from lastwrite.encoding.intrinsics import load64
from lastwrite.encoding.kernel import njit
from lastwrite.model.columns import (
    IN_GROUP,
    IS_DELETE,
    IS_SINGLE,
    SHADOWED,
    TIME_SHIFT,
    Int64Array,
    UInt64Array,
)

ENTRY_BYTES = 16  # bytes of an entry without a version; an entry with a version has 24
# target size of a bucket; its table of 32,768 slots of 16 bytes fills half of a second-level cache
_ENTRIES_A_BUCKET = 16_384
_MOST_BITS = 16

# mask of the record's ordinal in an entry's second word
ORDINAL_MASK = 0xFFFFFFFF

# The words of a slot of the set. The last two exist only if entries have versions or whole keys.
_LANE = 0  # first word of the key's fingerprint; 0 if the slot is free
_OTHER_LANE = 1
_ROW = 2  # row of the entry whose key is in the slot; rows are counted over all blocks
# ``elect`` stores the block of the slot's entry, or the entry's group if ``has_groups``. ``fold``
# stores the block + 1, or 0 if the slot's key has no current record.
_HOLDER = 3

# The byte positions of an entry's words.
_SECOND_AT = 8
_VERSION_AT = 16


def bucket_bits(entries: int) -> int:
    """The number of bits that choose the bucket, for about ``entries`` entries.

    There are 2**bits buckets.
    """
    return min(_MOST_BITS, max(0, (entries // _ENTRIES_A_BUCKET).bit_length()))


@njit(cache=True, nogil=True)
def _begin_buckets(entries, count, bits, ends):
    """Write the start of each bucket to ``ends``.

    Returns the number of bits by which a fingerprint word is shifted to get its bucket.
    """
    buckets = 1 << bits
    shift = np.uint64(63 - bits)
    for b in range(buckets):
        ends[b] = 0
    for i in range(count):
        ends[(entries[i, 0] >> np.uint64(1)) >> shift] += 1
    total = np.uint32(0)
    for b in range(buckets):
        n = ends[b]
        ends[b] = total
        total += n
    return shift


@njit(cache=True, nogil=True)
def partition(entries, count, bits, out, ends):
    """Sort ``entries[:count]`` into ``out`` by bucket, in stable order, and write the buckets' ends
    to ``ends``.
    """
    shift = _begin_buckets(entries, count, bits, ends)
    for i in range(count):
        b = (entries[i, 0] >> np.uint64(1)) >> shift
        place = ends[b]
        out[place, 0] = entries[i, 0]
        out[place, 1] = entries[i, 1]
        if entries.shape[1] > 2:
            out[place, 2] = entries[i, 2]
        ends[b] = place + np.uint32(1)


@njit(cache=True, nogil=True)
def partition_order(entries, count, bits, order, ends):
    """Write the row order that ``partition`` would produce to ``order``.

    This order is used for entries with whole keys.
    """
    shift = _begin_buckets(entries, count, bits, ends)
    for i in range(count):
        b = (entries[i, 0] >> np.uint64(1)) >> shift
        order[ends[b]] = i
        ends[b] += np.uint32(1)


@njit(cache=True, nogil=True)
def fullest(ends):
    """The number of entries in the fullest bucket. ``ends`` has the shape (blocks, buckets)."""
    most = 0
    for b in range(ends.shape[1]):
        most = max(most, _entries_in(ends, b))
    return most


@njit(cache=True, nogil=True)
def _entries_in(ends, b):
    total = 0
    for k in range(ends.shape[0]):
        total += np.int64(ends[k, b]) - (np.int64(ends[k, b - 1]) if b else 0)
    return total


@njit(cache=True, nogil=True)
def table_slots(entries):
    """The number of slots for ``entries`` entries, a power of two. At least half stay free."""
    slots = 16
    while slots < 2 * entries:
        slots *= 2
    return slots


def first_rows(ends: np.ndarray) -> Int64Array:
    """For each block, the row number of its first entry.

    This is the number of entries in all earlier blocks.
    """
    return np.array([0, *accumulate(ends[:-1, -1].tolist())], dtype=np.int64)


def new_table(ends: np.ndarray, has_more: bool) -> UInt64Array:
    """An uninitialized hash table for ``elect`` or ``fold``.

    A slot has four words if ``has_more`` (entries have versions or whole keys), otherwise two.
    """
    slots = int(table_slots(fullest(ends)))
    return np.empty((slots, 4 if has_more else 2), dtype=np.uint64)


# The kernels have many parameters because Numba cannot pass them as one value. The code that
# searches the set is repeated in ``elect`` and ``fold``, because in a separate function, inlined or
# not, Numba would count references for each entry.
@njit(cache=True, nogil=True)
def elect(
    rows_at,
    columns,
    ends,
    first_row,
    dirty_from,
    lost,
    losers,
    table,
    key_at,
    keys,
    has_groups=False,
):
    """Find the losers in some buckets: entries whose key has a later write.

    Returns the number of winners, the other entries.

    ``rows_at[k]`` is the address of block ``k``'s entries in these buckets. An entry has
    ``columns`` words. ``ends[k, b]`` is the end of bucket ``b`` in block ``k``, in rows from that
    address. ``first_row`` is
    ``first_rows(ends)``. Blocks are ordered from the log's oldest to its newest. Entries of block
    ``k`` below ordinal ``dirty_from[k]`` are clean. ``table`` is scratch: see ``new_table``.
    ``key_at`` has the position in ``keys`` of each entry's key, over all blocks, and the end of the
    last key. It is empty if fingerprints are compared only.

    With ``has_groups`` some records are parts of a larger record, which counts at the offset of its
    last part. The version is then a group number that the parts share, 0 for none. All parts but
    the last have the bit IN_GROUP. Such a part never wins: until the last part, an earlier record
    holds the key. The part loses if a later record has its key, unless that record is the last part
    of its group.

    ``lost`` (uint32, one row per entry) receives the losers' ordinals. The losers of block ``k``
    start at ``first_row[k]``, and ``losers[k]`` is their number. ``losers`` must be 0 before the
    call.
    """
    winners = 0
    exact = len(key_at) > 0
    more = exact or columns > 2
    stride = 8 * columns
    blocks, buckets = ends.shape
    for b in range(buckets):
        slots = table_slots(_entries_in(ends, b))
        mask = slots - 1
        for s in range(slots):
            table[s, _LANE] = 0
        for k in range(blocks - 1, -1, -1):
            low = np.int64(ends[k, b - 1]) if b else 0
            rows = rows_at[k]
            border = dirty_from[k]
            to = first_row[k] + losers[k]
            for i in range(np.int64(ends[k, b]) - 1, low - 1, -1):
                one = load64(rows, i * stride)
                two = load64(rows, i * stride + _SECOND_AT)
                lane = two >> np.uint64(32)
                ordinal = np.int64(two & np.uint64(ORDINAL_MASK))
                row = first_row[k] + i
                slot = np.int64(one) & mask
                seen = False
                while table[slot, _LANE] != 0:
                    if table[slot, _LANE] == one and table[slot, _OTHER_LANE] == lane:
                        if not exact or _same_key(key_at, keys, row, np.int64(table[slot, _ROW])):
                            seen = True
                            break
                    slot = (slot + 1) & mask
                version = load64(rows, i * stride + _VERSION_AT) if columns > 2 else np.uint64(0)
                group = version & ~np.uint64(IN_GROUP)
                if has_groups and version & np.uint64(IN_GROUP) != 0:
                    # The entry is not the last part of its group. It neither wins nor loses if no
                    # later record has its key, or if that record is the last part of the same
                    # group.
                    if not seen or (group != 0 and group == table[slot, _HOLDER]):
                        continue
                if not seen:
                    winners += 1
                    if ordinal >= border:
                        table[slot, _LANE] = one
                        table[slot, _OTHER_LANE] = lane
                        if more:
                            table[slot, _ROW] = np.uint64(row)
                            table[slot, _HOLDER] = group if has_groups else np.uint64(k)
                    continue
                if columns > 2 and not has_groups:
                    other = np.int64(table[slot, _HOLDER])
                    best = (
                        rows_at[other] + (np.int64(table[slot, _ROW]) - first_row[other]) * stride
                    )
                    if np.int64(version) > np.int64(load64(best, _VERSION_AT)):
                        ordinal = np.int64(load64(best, _SECOND_AT) & np.uint64(ORDINAL_MASK))
                        table[slot, _ROW] = np.uint64(row)
                        table[slot, _HOLDER] = np.uint64(k)
                        if other != k:
                            lost[first_row[other] + losers[other]] = ordinal
                            losers[other] += 1
                            continue
                lost[to] = ordinal
                to += 1
            losers[k] = to - first_row[k]
    return winners


@njit(cache=True, nogil=True)
def fold(rows_at, columns, ends, first_row, dirty_from, lost, losers, table, key_at, keys):
    """Elect by event time: compare all records of a key, clean ones too, in the log's order.

    The arguments are those of ``elect``. A version is ``time << TIME_SHIFT`` with the bits
    ``IS_SINGLE`` and ``IS_DELETE``. A key may have a current record. A record is *newer* if its key
    has no current record, or if the current record has an earlier time. With equal times, a record
    outside of batches is newer. A newer record with a value becomes the current record, and the
    previous one loses. After a newer delete there is no current record, so a later record with an
    earlier time can win. A record that is not newer loses, even a delete. A newer delete neither
    wins nor loses: ``verdict`` decides on it.

    Source: Pulsar 4.2.4 EventTimeOrderCompactor; docs/formats/pulsar-compaction.md, "Event time".
    """
    winners = 0
    exact = len(key_at) > 0
    stride = 8 * columns
    blocks, buckets = ends.shape
    for b in range(buckets):
        slots = table_slots(_entries_in(ends, b))
        mask = slots - 1
        for s in range(slots):
            table[s, _LANE] = 0
        for k in range(blocks):
            rows = rows_at[k]
            for i in range(np.int64(ends[k, b - 1]) if b else 0, np.int64(ends[k, b])):
                one = load64(rows, i * stride)
                two = load64(rows, i * stride + _SECOND_AT)
                version = load64(rows, i * stride + _VERSION_AT)
                lane = two >> np.uint64(32)
                row = first_row[k] + i
                slot = np.int64(one) & mask
                while table[slot, _LANE] != 0:
                    if table[slot, _LANE] == one and table[slot, _OTHER_LANE] == lane:
                        if not exact or _same_key(key_at, keys, row, np.int64(table[slot, _ROW])):
                            break
                    slot = (slot + 1) & mask
                if table[slot, _LANE] == 0:
                    table[slot, _LANE] = one
                    table[slot, _OTHER_LANE] = lane
                    table[slot, _ROW] = np.uint64(row)
                    table[slot, _HOLDER] = 0  # the key has no current record
                loser, of, is_newer = two, k, True
                is_held = table[slot, _HOLDER] != 0
                if is_held:
                    other = np.int64(table[slot, _HOLDER]) - 1
                    held = np.int64(table[slot, _ROW]) - first_row[other]
                    best = rows_at[other] + held * stride
                    time = version >> np.uint64(TIME_SHIFT)
                    best_time = load64(best, _VERSION_AT) >> np.uint64(TIME_SHIFT)
                    is_single = version & np.uint64(IS_SINGLE) != 0
                    is_newer = time > best_time or (time == best_time and is_single)
                    if is_newer:
                        loser, of = load64(best, _SECOND_AT), other
                    lost[first_row[of] + losers[of]] = loser & np.uint64(ORDINAL_MASK)
                    losers[of] += 1
                if is_newer:
                    winners -= is_held
                    if version & np.uint64(IS_DELETE) != 0:
                        table[slot, _HOLDER] = 0
                    else:
                        winners += 1
                        table[slot, _ROW] = np.uint64(row)
                        table[slot, _HOLDER] = np.uint64(k + 1)
    return winners


@njit(cache=True, nogil=True)
def mark(states, ordinals):
    """Set the state SHADOWED for the records at ``ordinals``."""
    for ordinal in ordinals:
        states[ordinal] |= SHADOWED


@njit(cache=True, nogil=True)
def _same_key(key_at, keys, i, j):
    length = key_at[i + 1] - key_at[i]
    if length != key_at[j + 1] - key_at[j]:
        return False
    for n in range(length):
        if keys[key_at[i] + n] != keys[key_at[j] + n]:
            return False
    return True


@njit(cache=True, nogil=True)
def drop_losers(rows, ends, states):
    """Move the last writes (winners) among a block's ``rows`` to the front.

    Returns the number of winners.

    Losers have the state SHADOWED in ``states``. ``ends`` is updated.
    """
    kept = 0
    start = np.uint32(0)
    for b in range(len(ends)):
        end = ends[b]
        for i in range(start, end):
            if states[np.int64(rows[i, 1] & np.uint64(ORDINAL_MASK))] & SHADOWED == 0:
                for c in range(rows.shape[1]):
                    rows[kept, c] = rows[i, c]
                kept += 1
        start = end
        ends[b] = np.uint32(kept)
    return kept


@njit(cache=True, nogil=True)
def gather(source, starts, lengths, out):
    """Copy byte ranges of ``source`` to ``out``, one after another.

    Used for whole keys.
    """
    at = 0
    for i in range(len(starts)):
        start = starts[i]
        for n in range(lengths[i]):
            out[at + n] = source[start + n]
        at += lengths[i]
