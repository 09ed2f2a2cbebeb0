"""Checks of a segment's index entries against its batches.

With an offset entry ``(o, p)`` a reader of offset ``o`` or later starts at byte ``p``. So a batch
must begin there, and no earlier batch may reach ``o``. A time entry ``(t, o)`` means that every
record with a timestamp above ``t`` has an offset above ``o``. The last time entry of a closed
segment has the segment's largest timestamp, which lookups and retention use. Missing entries are
not an error: any subset of correct entries is a correct index, even an empty one.

The functions named ``false_…`` expect batches in log order, one row each, and return the first
wrong entry, or None.

Source: docs/formats/kafka.md, "Indexes".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lastwrite.encoding.kernel import njit
from lastwrite.verification.rows import (
    ABORT_MARKER,
    COMMIT_MARKER,
    FIRST_LEFT,
    LAST_LEFT,
    LEFT,
    MARKER,
    OWNER,
    VERDICT,
)

Int64s = npt.NDArray[np.int64]

NO_TIME = np.iinfo(np.int64).min
_NEVER = np.iinfo(np.int64).max


class BadIndexEntry(NamedTuple):
    """A wrong index entry: its number in the index, and what is wrong."""

    row: int
    problem: str


@njit(cache=True, nogil=True)
def time_if_true(  # type: ignore[no-untyped-def]
    offsets, positions, times, time_offsets, table, shift, reached, last_before
):
    """Check index entries. Returns the largest timestamp so far, or NO_TIME if an entry is wrong.

    Combines the checks of ``false_offset_entry`` and ``false_time_entry`` in one faster pass.
    ``table`` has one row per batch. Its ``origin`` plus ``shift`` is the batch's position in the
    segment. The other parameters are as in the two functions.
    """
    rows = len(table)
    final = table[rows - 1]
    end = final.origin + shift + final.origin_size
    b = 0
    for i in range(np.searchsorted(positions, table[0].origin + shift), len(positions)):
        position = positions[i]
        if position >= end:
            break
        while b < rows and table[b].origin + shift < position:
            b += 1
        if b == rows or table[b].origin + shift != position or offsets[i] < table[b].base_offset:
            return np.int64(NO_TIME)
    largest = reached
    b = 0
    for i in range(np.searchsorted(time_offsets, last_before), len(time_offsets)):
        offset = time_offsets[i]
        if offset >= final.next_offset:
            break
        while b < rows and table[b].next_offset <= offset:
            largest = max(largest, table[b].max_timestamp)
            b += 1
        if b < rows and table[b].next_offset - 1 == offset:
            largest = max(largest, table[b].max_timestamp)
            if table[b].max_timestamp != times[i]:
                return np.int64(NO_TIME)
        if largest > times[i]:
            return np.int64(NO_TIME)
    while b < rows:
        largest = max(largest, table[b].max_timestamp)
        b += 1
    return largest


def false_offset_entry(
    offsets: Int64s, positions: Int64s, begins: Int64s, end: int, base_offsets: Int64s
) -> BadIndexEntry | None:
    """The first wrong offset index entry with a position from the first batch up to ``end``.

    ``begins`` and ``base_offsets`` are the positions and base offsets of the batches.
    """
    first, behind = positions.searchsorted((begins[0], end)).tolist()
    if first >= behind:
        return None
    chosen = positions[first:behind]
    batch = begins.searchsorted(chosen, side="right") - 1
    beside = begins[batch] != chosen
    early = offsets[first:behind] < base_offsets[batch]
    if not (beside | early).any():
        return None
    n = int(np.argmax(beside | early))
    row = first + n
    if beside[n]:
        return BadIndexEntry(
            row, f"the entry points to byte {int(positions[row])}, where no batch begins"
        )
    return BadIndexEntry(
        row,
        f"the entry points for offset {int(offsets[row])} to byte {int(positions[row])}, which is "
        f"after that offset: the batch there begins at offset {int(base_offsets[batch[n]])}",
    )


def false_time_entry(
    times: Int64s,
    offsets: Int64s,
    last_offsets: Int64s,
    max_timestamps: Int64s,
    reached: int,
    last_before: int,
) -> BadIndexEntry | None:
    """The first wrong time index entry with an offset from ``last_before`` to the batches' end.

    An entry is wrong if a record up to its offset has a later timestamp. ``reached`` and
    ``last_before`` are the largest timestamp and the last offset of all earlier batches. An entry
    with an offset inside a batch is compared with the batches before that batch. An entry with a
    batch's last offset must have that batch's timestamp.
    """
    first, behind = (
        int(offsets.searchsorted(last_before)),
        int(offsets.searchsorted(last_offsets[-1], side="right")),
    )
    if first >= behind:
        return None
    chosen, said = offsets[first:behind], times[first:behind]
    largest = np.maximum.accumulate(np.concatenate([np.array([reached], np.int64), max_timestamps]))
    found = largest[last_offsets.searchsorted(chosen, side="right")]
    batch = np.minimum(last_offsets.searchsorted(chosen), len(last_offsets) - 1)
    misdated = (last_offsets[batch] == chosen) & (max_timestamps[batch] != said)
    wrong = (found > said) | misdated
    if not wrong.any():
        return None
    n = int(np.argmax(wrong))
    row = first + n
    if found[n] > times[row]:
        return _bad_time_entry(row, times, offsets, int(found[n]))
    time, right = int(times[row]), int(max_timestamps[batch[n]])
    return BadIndexEntry(
        row,
        f"the entry has time {time} for the batch that ends at offset {int(offsets[row])}, whose "
        f"largest time is {right}",
    )


def hidden_from_time_entry(
    times: Int64s, offsets: Int64s, next_offset: int, reached: int
) -> BadIndexEntry | None:
    """The first time index entry with an offset of at least ``next_offset - 1``, if it is wrong.

    The entry is wrong if its timestamp is below ``reached``, the largest timestamp of the records
    below ``next_offset``.
    """
    row = int(np.searchsorted(offsets, next_offset - 1))
    if row < len(times) and int(times[row]) < reached:
        return _bad_time_entry(row, times, offsets, reached)
    return None


def _bad_time_entry(row: int, times: Int64s, offsets: Int64s, found: int) -> BadIndexEntry:
    return BadIndexEntry(
        row,
        f"the entry's time {int(times[row])} must be the largest up to offset "
        f"{int(offsets[row])}, but a record there has time {found}",
    )


def entry_beyond(
    offsets: Int64s, positions: Int64s, size_bytes: int, next_offset: int
) -> BadIndexEntry | None:
    """The first offset entry whose position or offset is beyond the segment's end."""
    beyond = np.flatnonzero((positions >= size_bytes) | (offsets >= next_offset))
    if not len(beyond):
        return None
    row = int(beyond[0])
    return BadIndexEntry(
        row,
        f"the entry (offset {int(offsets[row])}, byte {int(positions[row])}) is beyond the "
        f"segment's end (offset {next_offset}, byte {size_bytes})",
    )


def wrong_last_time(
    times: Int64s, offsets: Int64s, next_offset: int, largest: int
) -> BadIndexEntry | None:
    """The last time entry of a closed segment, if it is wrong.

    It must have the segment's ``largest`` timestamp, and an offset in the segment. A time index
    without entries is correct.
    """
    if not len(times):
        return None
    row = len(times) - 1
    if int(offsets[row]) >= next_offset:
        return BadIndexEntry(
            row,
            f"the entry's offset {int(offsets[row])} is beyond the segment's last offset, "
            f"{next_offset - 1}",
        )
    if int(times[row]) != largest:
        return BadIndexEntry(
            row,
            f"the last entry has time {int(times[row])}, but the segment's largest time is "
            f"{largest}",
        )
    return None


def widest_gap(positions: Int64s, size_bytes: int) -> int:
    """The largest number of bytes that a reader scans after a lookup in the offset index."""
    return int(np.diff(np.concatenate([[0], positions, [size_bytes]])).max())


class TransactionIndexCheck:
    """Checks transaction index entries against the transactions in the log.

    With an entry ``(producer, first, last, stable)`` a reader drops the producer's transactional
    batches that end at ``first`` or later, before the ABORT marker at ``last``.
    The entry must not cover a committed transaction. It must not begin after the first remaining
    data of its transaction.

    No transaction with a later marker may begin below ``stable``: a reader stops its search at the
    first entry whose ``stable`` is at or above the end of the reader's range.

    An aborted transaction with remaining data must have an entry. An entry without remaining data
    is harmless. Data below the log start is never read, and Kafka's cleaner drops its entries.

    ``transactions`` are rows of ``verification.rows``, ascending by marker. ``first_open`` is the
    first offset of the earliest transaction without a marker. Source: docs/formats/kafka.md,
    "Indexes"; docs/formats/kafka-cleaning.md, "What a reader may rely on".
    """

    def __init__(self, transactions: Int64s, first_open: int | None, log_start: int = 0) -> None:
        self._log_start = log_start
        self._markers = transactions[:, MARKER]
        self._transactions = transactions
        begins = np.where(transactions[:, LEFT] > 0, transactions[:, FIRST_LEFT], _NEVER)
        begins = np.append(begins, _NEVER if first_open is None else first_open)
        # For each row: the smallest first offset of its transaction and all later transactions.
        self._earliest = np.minimum.accumulate(begins[::-1])[::-1]
        committed = transactions[
            (transactions[:, VERDICT] == COMMIT_MARKER) & (transactions[:, LEFT] > 0)
        ]
        self._committed = committed[np.lexsort((committed[:, MARKER], committed[:, OWNER]))]

    def first_bad_entry(
        self, entries: Sequence[tuple[int, int, int, int]], base_offset: int, end_offset: int
    ) -> BadIndexEntry | None:
        """The first wrong or missing entry of the segment from ``base_offset`` to ``end_offset``.

        ``entries`` are (producer, first offset, last offset, last stable offset), ascending by last
        offset.
        """
        named = set()
        for row, (producer, first, last, stable) in enumerate(entries):
            words = (
                self._check_entry(producer, first, last, stable, end_offset)
                if last >= self._log_start
                else None
            )
            if words is not None:
                return BadIndexEntry(
                    row, f"the entry (producer {producer}, offsets {first} to {last}) {words}"
                )
            named.add(last)
        low, high = np.searchsorted(self._markers, [base_offset, end_offset])
        here = self._transactions[low:high]
        needed = (
            (here[:, VERDICT] == ABORT_MARKER)
            & (here[:, LEFT] > 0)
            & (here[:, LAST_LEFT] >= self._log_start)
        )
        for found in here[needed].tolist():
            if found[MARKER] not in named:
                row = sum(last < found[MARKER] for _, _, last, _ in entries)
                return BadIndexEntry(
                    row,
                    f"the index has no entry for the transaction of producer {found[OWNER]} that "
                    f"was aborted at offset {found[MARKER]}: its records from offset "
                    f"{found[FIRST_LEFT]} on would be read as committed",
                )
        return None

    def _check_entry(
        self, producer: int, first: int, last: int, stable: int, end_offset: int
    ) -> str | None:
        if last >= end_offset:
            return f"is beyond its segment, which ends before offset {end_offset}"
        at = int(np.searchsorted(self._markers, last))
        found = self._transactions[at] if at < len(self._transactions) else None
        if found is None or tuple(found[[MARKER, OWNER, VERDICT]]) != (
            last,
            producer,
            ABORT_MARKER,
        ):
            return "points to an abort marker that does not exist"
        if found[LEFT] and found[FIRST_LEFT] < first:
            return (
                "begins after the first record of its transaction, at offset "
                f"{int(found[FIRST_LEFT])}"
            )
        low = int(np.searchsorted(self._committed[:, OWNER], producer))
        high = int(np.searchsorted(self._committed[:, OWNER], producer, side="right"))
        before = low + int(np.searchsorted(self._committed[low:high, MARKER], last)) - 1
        if before >= low and self._committed[before, LAST_LEFT] >= max(first, self._log_start):
            return (
                f"covers committed records, up to offset {int(self._committed[before, LAST_LEFT])}"
            )
        earliest = int(self._earliest[at + 1])
        bound = min(last + 1, earliest if earliest < last else _NEVER)
        if stable > bound:
            return f"has last stable offset {stable}, but the largest allowed one is {bound}"
        return None
