"""The verdict on each record and the action on each batch. All counts derive from the verdicts.

The smallest case: ``a@1``, ``a@2``. Election has marked ``a@1`` SHADOWED, so it is dropped. The
rules, in order:

- A record of an aborted transaction is dropped at once.
- A transaction's marker stays as long as any batch of its transaction does. The first round that
  finds none stamps a *delete horizon*, now + retention, into the marker's batch. A round at or
  after the horizon drops the marker.
- A record without a key is no key's last write: it is dropped if the policy demands it.
- A shadowed record is dropped at once, tombstone or not.
- A tombstone that is its key's last write stays until its batch's delete horizon. The first round
  that keeps it stamps the horizon; a round at or after the horizon drops it.
- If only its records show where a log ends, the log's last record always stays.
- A batch that loses all its records is dropped, with two exceptions that stay without records. One
  is the last batch of an active producer, by which a broker recognizes duplicates. The other is
  the batch that ends at the high watermark, so that the log's end can still be found.

Delete horizons have special cases:

- A horizon is never moved, and stays after the tombstone is dropped.
- If now + retention exceeds a 64-bit integer, no horizon is stamped and the tombstone stays.
- A horizon below 0 is the result of such an overflow. It counts as none, and a round replaces it.
- An old format has no field for a horizon, so its tombstones age by the modification time of their
  file. A round that keeps such a tombstone writes its batch in the new format, with a horizon.
- If batches contain their write time instead, a tombstone ages from that time, and nothing is
  stamped.
- A tombstone that a reader has not reached yet is dropped later, by the policy's limit.

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
    """The reason why a record stays or is dropped. If several apply, the first decides."""

    KEEP = 0
    KEYLESS = 1  # the record has no key to compact by
    SHADOWED = 2  # a later record has its key
    EXPIRED = 3  # a tombstone past its horizon
    ABORTED = 4  # the record is in an aborted transaction
    MARKER = 5  # a marker without remaining data, past its horizon

    @property
    def label(self) -> str:
        return self.name.lower()


# The verdicts as plain numbers, because the kernel cannot use an enum.
_KEEP = int(Verdict.KEEP)
_KEYLESS = int(Verdict.KEYLESS)
_SHADOWED = int(Verdict.SHADOWED)
_EXPIRED = int(Verdict.EXPIRED)
_ABORTED = int(Verdict.ABORTED)
_MARKER = int(Verdict.MARKER)

# The policy fields that the kernel reads, and in _MORE the numbers that also depend on the
# modification time of the segment's file.
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
    """Judge the records of the batches in ``table``, and return the number of batches that change.

    ``states`` has one byte per record, in order. ``file_ms`` is the modification time of the
    segment's file. Fills ``keep`` (per record: 1 if it stays), ``actions`` and ``horizons`` (per
    batch: its new horizon, or NO_HORIZON). Adds the number of records by Verdict to ``counts``. A
    batch that is only converted from an old format does not count as changed.
    """
    numbers = _numbers_of(policy, file_ms)
    producers = policy.last_offsets, policy.marker_producers
    return int(_judge(table, states, numbers, producers, keep, actions, horizons, counts))


_last: tuple[Policy, int, np.ndarray] | None = None  # the last result of ``_numbers_of``


def _numbers_of(policy: Policy, file_ms: int) -> np.ndarray:
    """The policy and the file's time as a row of ``_NUMBERS``, the input of the kernels.

    The row is cached, because it is the same for all chunks of a file.
    """
    global _last
    last = _last
    if last is not None and last[0] is policy and last[1] == file_ms:
        return last[2]
    if last is not None and last[0] is policy:  # only the file differs
        numbers = last[2].copy()
    else:
        numbers = np.empty(1, dtype=_NUMBERS)
        for name in _OF_POLICY:
            numbers[name] = getattr(policy, name)
        # The delay is subtracted from now, because adding it to a corrupt horizon could overflow.
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
    """The latest delete horizon of the tombstones that the policy keeps until readers read them.

    These tombstones are in the batches of ``table`` that end beyond ``Policy.held_from``. A horizon
    that this round stamps counts too. Returns -1 without such a tombstone, and LONG_MAX if one
    never gets a horizon.
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
    """Whether all batches are ordinary: with records, without a transaction, in the written format.

    ``fewest`` is the smallest record count of a batch. ``flags`` is the bitwise OR of all flags.
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


# All rules are in one loop, so that each record is read once.
@njit(cache=True, nogil=True)
def _judge(table, states, numbers, producers, keep, actions, horizons, counts):
    policy = numbers[0]
    new_horizon = policy.new_horizon
    # The fields are copied to local variables. Numba would read a field in each iteration, because
    # a write to an array might change it.
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
            # The usual batch: every record has a key and a value, and some are shadowed.
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
            # Old tombstones are stamped when they are converted, but stamping alone is no reason to
            # convert them. If there is no horizon to stamp, Kafka still rebuilds the batch, and at
            # most its base timestamp changes.
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
