"""What becomes of each record and each batch: one decision, from which all counts follow.

The smallest case: ``a@1``, ``a@2``. Election has marked ``a@1`` SHADOWED, so it goes. Then, in
order:

- a record of an aborted transaction goes at once, whatever it is;
- a transaction's marker stays as long as any batch of its transaction does. The first round that
  finds none stamps a *delete horizon*, now + retention, into the marker's batch; a round at or
  after it drops the marker;
- a record without a key cannot be kept as anybody's last write: it goes, where the policy says so;
- a shadowed record goes at once, tombstone or not;
- a tombstone that is its key's last write stays until its batch's delete horizon. The first round
  that keeps it stamps the horizon; a round at or after the horizon drops it. A horizon is never
  moved, and stays when the tombstone has left. A retention that reaches beyond the last moment
  that a batch can hold gives no horizon: the tombstone stays. A horizon below 0, which such a sum
  leaves where it wraps, counts as none, and a round replaces it. A tombstone of an old format,
  which has no place for a horizon, ages by its file instead, and comes out stamped, since it comes
  out in the new format; where batches say instead when they were written, a tombstone ages from
  there, and nothing is stamped; one that a reader has not come to, for whom they are held, goes
  later by the policy's limit;
- where nothing but records tells where a log ends, the last one stays, whatever it is;
- a batch that loses all its records goes, save two: the last of an active producer, by which a
  broker tells a duplicate, and the one that ends where the log's replicated part ends, so that the
  log's end can still be found. They stay as empty shells.

Source: Kafka 4.4.0 cleaner; docs/formats/kafka-cleaning.md.
"""
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

from enum import IntEnum

import numpy as np

from lastwrite.encoding.kernel import njit
from lastwrite.model.columns import (
    ABORTED,
    BAD_HORIZON,
    CONTROL,
    COPY,
    DROP,
    EMPTY,
    HAS_PRODUCER,
    IS_CONTROL,
    IS_OLD,
    IS_TRANSACTIONAL,
    KEEPS_LAST,
    KEYLESS,
    NO_HORIZON,
    REBUILD,
    SHADOWED,
    SPENT,
    TOMBSTONE,
    BatchTable,
    ByteArray,
    Int64Array,
)
from lastwrite.model.policy import LONG_MAX, LONG_MIN, Policy


class Verdict(IntEnum):
    """Why a record stays or goes; the first that holds decides."""

    KEEP = 0
    KEYLESS = 1  # no key to compact by
    SHADOWED = 2  # a later record has its key
    EXPIRED = 3  # a delete past its horizon
    ABORTED = 4  # of a transaction that was aborted
    MARKER = 5  # the end of a transaction of which nothing is left, past its horizon

    @property
    def label(self) -> str:
        return self.name.lower()


# For the kernel, which knows no enum.
_KEEP = int(Verdict.KEEP)
_KEYLESS = int(Verdict.KEYLESS)
_SHADOWED = int(Verdict.SHADOWED)
_EXPIRED = int(Verdict.EXPIRED)
_ABORTED = int(Verdict.ABORTED)
_MARKER = int(Verdict.MARKER)

# What the kernel takes of a policy, and whether its file's age lets old tombstones go.
_OF_POLICY = (
    "now_ms tombstone_retention_ms keep_keyless keep_empty shell_offset end_offset pinned_offset "
    "keep_tombstones ages_by_write_time kept_end_offset held_from"
).split()
_MORE = ("old_due", "old_held_due", "due_ms", "held_due_ms", "new_horizon")
_NUMBERS = np.dtype([(name, np.int64) for name in (*_OF_POLICY, *_MORE)])


def judge(
    table: BatchTable,
    states: ByteArray,
    policy: Policy,
    file_ms: int,
    keep: ByteArray,
    actions: ByteArray,
    horizons: Int64Array,
    counts: Int64Array,
) -> int:
    """Judge the records of the batches in ``table``; ``states`` has a byte a record, in order.

    ``file_ms`` is the modification time of the segment's file. Fills ``keep`` (a record: 1 stays),
    ``actions`` and ``horizons`` (a batch: the horizon it shall carry, or NO_HORIZON), and adds to
    ``counts`` (records by Verdict). Returns the batches that change; that an old batch would be
    converted is no change by itself.
    """
    numbers = _numbers_of(policy, file_ms)
    producers = policy.last_offsets, policy.marker_producers
    return int(_judge(table, states, numbers, producers, keep, actions, horizons, counts))


_last: tuple[Policy, int, np.ndarray] | None = None  # what ``_numbers_of`` gave


def _numbers_of(policy: Policy, file_ms: int) -> np.ndarray:
    """The row of ``_NUMBERS``; chunk for chunk it is the same."""
    global _last
    last = _last
    if last is not None and last[0] is policy and last[1] == file_ms:
        return last[2]
    if last is not None and last[0] is policy:  # of another file
        numbers = last[2].copy()
    else:
        numbers = np.empty(1, dtype=_NUMBERS)
        for name in _OF_POLICY:
            numbers[name] = getattr(policy, name)
        # Not added to a horizon, which can lie and be huge.
        written_ms = policy.tombstone_retention_ms if policy.ages_by_write_time else 0
        numbers["due_ms"] = policy.now_ms - written_ms
        numbers["held_due_ms"] = max(policy.now_ms - written_ms - policy.hold_ms, LONG_MIN)
        new_horizon = policy.new_horizon_ms
        numbers["new_horizon"] = NO_HORIZON if new_horizon is None else new_horizon
    numbers["old_due"] = file_ms <= policy.old_tombstones_until_ms
    numbers["old_held_due"] = file_ms <= policy.old_tombstones_until_ms - policy.hold_ms
    _last = policy, file_ms, numbers
    return numbers


def last_held_ms(table: BatchTable, states: ByteArray, policy: Policy) -> int:
    """The latest horizon of a tombstone among these records that the policy holds, be it that it
    gets one now; -1: there is none. LONG_MAX: one of them never gets a horizon.
    """
    rows = np.flatnonzero(table["next_offset"] > policy.held_from)
    if not len(rows):
        return -1
    is_delete = (states & (TOMBSTONE | SHADOWED | ABORTED | CONTROL | KEYLESS)) == TOMBSTONE
    deletes = np.concatenate(([0], np.cumsum(is_delete)))
    ends = np.cumsum(table["records"])
    rows = rows[deletes[ends[rows]] > deletes[ends[rows] - table["records"][rows]]]
    horizons = table["horizon"][rows]
    fresh = LONG_MAX if policy.new_horizon_ms is None else policy.new_horizon_ms
    return int(np.where(horizons == NO_HORIZON, fresh, horizons).max(initial=-1))


def are_plain(fewest: int, flags: int) -> bool:
    """Whether all batches have records, ``fewest`` at least, are in no transaction and of the
    format that we write; ``flags``: those that any has.
    """
    return fewest > 0 and not flags & (IS_CONTROL | IS_TRANSACTIONAL | IS_OLD | BAD_HORIZON)


@njit(cache=True, nogil=True)
def _is_among(sorted_values, value):
    at = np.searchsorted(sorted_values, value)
    return at < len(sorted_values) and sorted_values[at] == value


@njit(cache=True, nogil=True)
def _is_pair_among(pairs, one, two):
    at = np.searchsorted(pairs[:, 0], one)
    while at < len(pairs) and pairs[at, 0] == one:
        if pairs[at, 1] == two:
            return True
        at += 1
    return False


# It is one loop, so that each record is looked at once.
@njit(cache=True, nogil=True)
def _judge(table, states, numbers, producers, keep, actions, horizons, counts):
    policy = numbers[0]
    new_horizon = policy.new_horizon
    # Read once, since the arrays that are written might hide a change of them.
    last_due_ms, held_due_ms = policy.due_ms, policy.held_due_ms
    ages_by_write_time, kept_end_offset = policy.ages_by_write_time, policy.kept_end_offset
    keep_keyless, keep_tombstones = policy.keep_keyless, policy.keep_tombstones
    pinned_offset, held_from = policy.pinned_offset, policy.held_from
    changed = 0
    at = 0
    for b in range(len(table)):
        row = table[b]
        horizon = row.horizon
        old = (row.flags & IS_OLD) != 0
        due = policy.old_due if old else (horizon != NO_HORIZON and last_due_ms >= horizon)
        goes = due
        if row.next_offset > held_from:
            goes = policy.old_held_due if old else (due and held_due_ms >= horizon)
        if old and row.next_offset == policy.end_offset:
            row.flags |= KEEPS_LAST
        kept = 0
        stamp = False  # the batch needs a horizon
        seen = np.uint8(0)
        end = at + row.records
        for i in range(at, end):
            seen |= states[i]
        if seen & ~np.uint8(SHADOWED) == 0 and row.next_offset != pinned_offset:
            # The usual batch: every record has a key and a value, and some have been written again.
            for i in range(at, end):
                keep[i] = states[i] == 0
                kept += states[i] == 0
            counts[_KEEP] += kept
            counts[_SHADOWED] += row.records - kept
            at = end
        for i in range(at, end):
            state = states[i]
            verdict = _KEEP
            if state & CONTROL:
                if state & SPENT:
                    if due:
                        verdict = _MARKER
                    elif horizon == NO_HORIZON:
                        stamp = True
            elif state & ABORTED:
                verdict = _ABORTED
            elif row.next_offset == kept_end_offset and i + 1 == end:
                pass
            elif state & KEYLESS:
                if not keep_keyless:
                    verdict = _KEYLESS
            elif state & SHADOWED:
                if row.next_offset != pinned_offset or i + 1 < end:
                    verdict = _SHADOWED
            elif state & TOMBSTONE:
                if goes and not keep_tombstones:
                    verdict = _EXPIRED
                elif horizon == NO_HORIZON and not ages_by_write_time:
                    stamp = True
            counts[verdict] += 1
            keep[i] = verdict == _KEEP
            kept += verdict == _KEEP
        at = end
        if stamp:
            horizon = new_horizon
        horizons[b] = horizon
        bad = (row.flags & BAD_HORIZON) != 0
        if kept == row.records and kept > 0:
            action = REBUILD if stamp or bad else COPY
            # Old tombstones are stamped where they are converted, which by itself is no reason to
            # convert them. Where there is no horizon to give, Kafka rebuilds the batch all the
            # same: its base timestamp may differ afterwards, and nothing else.
            changed += (bad or (stamp and horizon != NO_HORIZON)) and not old
        elif kept > 0:
            action = REBUILD
            changed += 1
        else:
            stays = row.next_offset == policy.shell_offset or (
                policy.keep_empty and row.records == 0
            )
            if not stays and row.flags & HAS_PRODUCER:
                if row.flags & IS_CONTROL:
                    stays = _is_pair_among(producers[1], row.producer_id, row.producer_epoch)
                else:
                    stays = _is_among(producers[0], row.next_offset - 1)
            if stays:
                action = EMPTY if row.records > 0 or old else COPY
            else:
                action = DROP
            changed += action != COPY
        actions[b] = action
    return changed
