"""Find the last write of every key: entries into buckets, buckets into winners.

The smallest case: the log holds ``a@0 b@1 a@2``. Read from its end, the first sight of a key is its
last write: ``a@2`` wins, ``b@1`` wins, ``a@0`` has been seen and loses. So a set will do where
others keep a map, nothing is ever updated, and offsets need not be stored.

An *entry* is two uint64: a fingerprint lane; 32 bits of the other lane above the record's ordinal
in its piece. Entries are cut into buckets by the top bits of the first lane, so that all entries of
a key meet in one bucket and a bucket's set fits the processor's cache; inside a bucket they keep
the log's order.

*Clean* records (below the first dirty offset) were compared with each other in earlier rounds: they
are looked up and never entered, as Kafka does. In a piece they are those below an ordinal.

With another strategy than the offset an entry has a third word, the record's version. Where the
greatest version wins, the latest of equals (KIP-280), the way is the same. Where times decide and a
delete lets its key's time be forgotten (``Strategy.EVENT_TIME``) it matters in which order the
records of a key meet: ``fold`` reads from the log's begin.

With ``exact`` the entries' whole keys travel beside them and equal fingerprints are compared by
key.

Entries stay where they lie, in a mapped file or an array: ``elect`` is given addresses, so that
nothing is copied.
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

ENTRY_BYTES = 16  # 24 with a version
_ENTRIES_A_BUCKET = 16_384  # with a table of 32,768 slots of 16 bytes: half a second-level cache
_MOST_BITS = 16

ORDINAL_MASK = 0xFFFFFFFF  # of an entry's second word: the record's ordinal in its piece

# A slot of the set, by words: with a version or whole keys there are two more.
_LANE = 0  # the first fingerprint lane; 0: the slot is free
_OTHER_LANE = 1
_ROW = 2  # of the entry that holds the key, counted through all blocks
_HOLDER = 3  # its block; with groups the record's group; of ``fold`` 1 + its block, or 0

# Where an entry's words lie in it, in bytes.
_SECOND_AT = 8
_VERSION_AT = 16


def bucket_bits(entries: int) -> int:
    """How many top bits choose the bucket for about so many entries; 2**bits buckets."""
    return min(_MOST_BITS, max(0, (entries // _ENTRIES_A_BUCKET).bit_length()))


@njit(cache=True, nogil=True)
def _begin_buckets(entries, count, bits, ends):
    """Write to ``ends`` where each bucket begins; returns how far a lane is shifted to give its
    bucket.
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
    """Sort ``entries[:count]`` into ``out`` by bucket, keeping order inside; ``ends`` takes the
    buckets' ends.
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
    """As ``partition``, but writes which entry comes where: for entries with keys beside them."""
    shift = _begin_buckets(entries, count, bits, ends)
    for i in range(count):
        b = (entries[i, 0] >> np.uint64(1)) >> shift
        order[ends[b]] = i
        ends[b] += np.uint32(1)


@njit(cache=True, nogil=True)
def fullest(ends):
    """Entries of the bucket that has most. ``ends``: (blocks, buckets)."""
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
    """Slots that a bucket of so many entries needs: a power of two, at most half full."""
    slots = 16
    while slots < 2 * entries:
        slots *= 2
    return slots


def first_rows(ends: np.ndarray) -> Int64Array:
    """By block: how many entries the blocks before it have in these buckets."""
    return np.array([0, *accumulate(ends[:-1, -1].tolist())], dtype=np.int64)


def new_table(ends: np.ndarray, has_more: bool) -> UInt64Array:
    """Room for the set of ``elect`` or ``fold``: two words a slot; with a version or whole keys
    (``has_more``) four.
    """
    slots = int(table_slots(fullest(ends)))
    return np.empty((slots, 4 if has_more else 2), dtype=np.uint64)


# Its arguments are columns of the entries and scratch, which a kernel cannot take as one value. The
# search of the set stands in both: a call, inlined or not, makes Numba count references per entry.
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
    """Tell winners from losers in some buckets of one partition.

    ``rows_at[k]`` is the address of block ``k``'s entries in these buckets, ``columns`` words each;
    its bucket ``b`` goes up to ``ends[k, b]``, counted from there; ``first_row`` is of
    ``first_rows(ends)``. Blocks go from the log's oldest to its newest. Entries of block ``k``
    below ordinal ``dirty_from[k]`` are clean. ``table`` is scratch: see ``new_table``. ``key_at``
    (a row more than there are entries; empty: fingerprints suffice) says where each entry's key
    lies in ``keys``, entries counted through all blocks.

    With ``has_groups`` some records are parts of a larger one, which has its key's place at its
    last part. A version then is a number that the parts of one record have in common, 0 for none,
    and the bit IN_GROUP on all but the last. Such a part never wins: what came before it has the
    key until the last part is there. It loses where a later record has its key, unless that is its
    own last part.

    ``lost`` (uint32, a row an entry) takes the losers' ordinals: block ``k``'s from the row on that
    its first entry has, ``losers[k]`` of them, which must be 0 before. Returns the winners' count.
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
                    # Before any record of its key, or its own last part: neither wins nor loses.
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
    """As ``elect``, by event times in the log's order: a key's records meet as they were written,
    clean ones too.

    A version is ``time << TIME_SHIFT`` with the bits ``IS_SINGLE`` and ``IS_DELETE``. A record is
    *newer* where its key has no time, or one that is less, or for a single record (not of a batch)
    the same. Of a newer record that lives the key takes the time, and who held the key loses; after
    a newer delete nobody holds it and its time is forgotten, so that an older write may come after
    it. Who is not newer loses, deletes too. A newer delete neither wins nor loses: that it is a
    delete decides. So no two records of a key may be compared before their turn.

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
                    table[slot, _HOLDER] = 0  # nobody
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
    """Set SHADOWED in the states of these records."""
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
    """Move the winners among a block's ``rows`` to the front, by ``states``, and set ``ends`` anew;
    their count.
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
    """Copy many stretches of bytes to ``out``, one behind the other: with exact comparison, whole
    keys.
    """
    at = 0
    for i in range(len(starts)):
        start = starts[i]
        for n in range(lengths[i]):
            out[at + n] = source[start + n]
        at += lengths[i]
