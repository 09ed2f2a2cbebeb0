"""Check the invariants of compaction for transactions, producers and converted batches.

The smallest case: producer 7 writes ``a@0 b@1`` and aborts at 2. No field of the batch shows that
its transaction was aborted: the *next marker of its producer* decides. Batches are therefore
processed from the log's end backwards, and each batch gets the outcome of its producer's marker
that was read last. The engine works forwards and uses the transaction index. Here only the log
decides, and the index is compared with the result (``kafka.recovery.index_check``).

- A batch that was aborted is still aborted, or has been removed. Without its marker it would be
  open, or belong to the producer's next marker: aborted data would be read as committed.
- A marker is *spent* when no batch of its transaction is left, not even an empty one. Only a spent
  marker may be missing.
- A transaction without a marker, or with a marker that is not replicated, is open. The last stable
  offset is at most the offset of its first batch.
- The last data batch of an active producer stays, perhaps empty. If a producer's epoch began with a
  marker, there is no such batch, and all control batches of that epoch stay.
- A batch of an older format may be converted to one v2 batch of the same codec. The new batch's
  first and last offset are the offsets of its first and last record.

A *fact* is a row about one batch, see ``verification.rows``. Facts are in blocks, in the order of
the log. Memory: one block, 56 bytes per marker, 16 bytes per range of aborted data, 24 bytes per
batch of an open transaction.

Source: docs/formats/kafka-cleaning.md; docs/formats/kafka.md, "Indexes" and "Producer snapshot".
"""
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lastwrite.encoding.kernel import njit
from lastwrite.model.columns import Int64Array
from lastwrite.verification.rows import (
    ABORT_MARKER,
    BASE,
    COMMIT_MARKER,
    EMPTIED_MARKER,
    EPOCH,
    FIRST_LEFT,
    IDEMPOTENT_DATA,
    KIND,
    LAST,
    LAST_LEFT,
    LEFT,
    LEFT_RECORDS,
    MARKER,
    OLD_DATA,
    OWNER,
    PRESENT,
    PRODUCER,
    SHAPE,
    SIMPLE_DATA,
    TIME,
    TRANSACTION_DATA,
    TRANSACTION_WORDS,
    VERDICT,
)

Facts = Sequence[Int64Array]

_CODEC = 7


class KnownProducer(NamedTuple):
    """The state of one producer in a snapshot."""

    producer_id: int
    epoch: int
    last_offset: int  # last offset of the last data batch in this epoch; -1 if there is none
    base_offset: int  # first offset of the last data batch
    timestamp_ms: int
    open_from: int  # first offset of the producer's open transaction; -1 if there is none


class Snapshot(NamedTuple):
    """The states of a log's producers at an offset."""

    offset: int
    producers: tuple[KnownProducer, ...]


@dataclass(slots=True)
class TransactionHistory:
    """The transactions of one log, according to its markers."""

    transactions: Int64Array  # finished transactions, sorted by marker; see ``verification.rows``
    aborted: Int64Array  # ranges (first, last offset) of aborted data, ascending
    open: Int64Array  # batches (first, last offset, producer) without a marker, ascending

    @property
    def discardable(self) -> Int64Array:
        """Ranges (first, last offset) that may be removed regardless of keys.

        These are aborted data, and markers whose transaction has no batch left.
        """
        spent = self.transactions[self.transactions[:, LEFT] == 0, MARKER]
        rows = np.concatenate([self.aborted, np.stack([spent, spent], axis=1)])
        return rows[np.argsort(rows[:, 0], kind="stable")]

    def last_stable_offset(self, high_watermark: int) -> int:
        """The last stable offset. Records below it are replicated and in no open transaction."""
        unreplicated = self.transactions[self.transactions[:, MARKER] >= high_watermark]
        firsts = unreplicated[unreplicated[:, LEFT] > 0, FIRST_LEFT]
        return min(int(n) for n in (high_watermark, *firsts, *self.open[:1, 0]))

    def count(self, verdict: int) -> int:
        return int(np.count_nonzero(self.transactions[:, VERDICT] == verdict))

    @property
    def aborted_records(self) -> int:
        """The number of records of aborted transactions that are still in the log."""
        return int(
            self.transactions[self.transactions[:, VERDICT] == ABORT_MARKER, LEFT_RECORDS].sum()
        )

    @property
    def open_transactions(self) -> list[tuple[int, int]]:
        """(producer, first offset) of each open transaction, by first offset."""
        producers, rows = np.unique(self.open[:, 2], return_index=True)
        return sorted(
            zip(producers.tolist(), self.open[rows, 0].tolist(), strict=True),
            key=lambda found: found[1],
        )


def thinned(facts: Int64Array) -> Int64Array:
    """A copy of the rows ``facts``, with at most one idempotent batch per producer: its last."""
    plain = np.flatnonzero(facts[:, KIND] == IDEMPOTENT_DATA)
    _, last = np.unique(facts[plain, PRODUCER][::-1], return_index=True)
    kept = facts[:, KIND] != IDEMPOTENT_DATA
    kept[plain[len(plain) - 1 - last]] = True
    found: Int64Array = facts[kept]
    return found


def history(blocks: Facts) -> TransactionHistory:
    """The outcome of every transaction that has a batch or a marker in ``blocks``."""
    ids, markers = _producers(blocks)
    verdicts: Int64Array = np.full(len(ids), -1, dtype=np.int64)
    deciding = np.zeros(len(ids), dtype=np.int64)
    transactions: Int64Array = np.empty((markers, TRANSACTION_WORDS), dtype=np.int64)
    aborted: list[Int64Array] = []
    still_open: list[Int64Array] = []
    filled = 0
    for n in range(len(blocks) - 1, -1, -1):
        block = blocks[n]
        block = block[(block[:, KIND] >= TRANSACTION_DATA) & (block[:, KIND] <= COMMIT_MARKER)]
        gone = np.empty((len(block), 2), dtype=np.int64)
        left = np.empty((len(block), 3), dtype=np.int64)
        slots = np.searchsorted(ids, block[:, PRODUCER])
        filled, first_gone, first_left = _decide(
            block, slots, verdicts, deciding, transactions, filled, gone, left
        )
        aborted.append(gone[first_gone:].copy())
        still_open.append(left[first_left:].copy())
    return TransactionHistory(
        transactions[::-1],
        np.concatenate([np.empty((0, 2), np.int64), *aborted[::-1]]),
        np.concatenate([np.empty((0, 3), np.int64), *still_open[::-1]]),
    )


def _producers(blocks: Facts) -> tuple[Int64Array, int]:
    """The ids of all producers, ascending, and the number of transaction markers."""
    ids: Int64Array = np.empty(0, dtype=np.int64)
    markers = 0
    for block in blocks:
        ids = np.union1d(ids, block[:, PRODUCER])
        markers += int(
            np.count_nonzero((block[:, KIND] == ABORT_MARKER) | (block[:, KIND] == COMMIT_MARKER))
        )
    return ids, markers


@njit(cache=True, nogil=True)
def _decide(facts, slots, verdicts, deciding, transactions, filled, gone, left):
    """Decide the outcome of each batch of a transaction, from the last of ``facts`` to the first.

    ``verdicts`` and ``deciding`` have a row for each producer: the kind of the last marker that was
    read, and its row in ``transactions``. The rows of ``transactions`` are filled in descending
    order of markers; ``gone`` (aborted) and ``left`` (open) are filled from their ends. Returns the
    number of filled transactions, and the first used rows of ``gone`` and ``left``.
    """
    g = len(gone)
    o = len(left)
    for i in range(len(facts) - 1, -1, -1):
        kind = facts[i, KIND]
        slot = slots[i]
        if kind != TRANSACTION_DATA:
            verdicts[slot] = kind
            deciding[slot] = filled
            transactions[filled, MARKER] = facts[i, LAST]
            transactions[filled, OWNER] = facts[i, PRODUCER]
            transactions[filled, VERDICT] = kind
            transactions[filled, LEFT] = 0
            transactions[filled, FIRST_LEFT] = -1
            transactions[filled, LAST_LEFT] = -1
            transactions[filled, LEFT_RECORDS] = 0
            filled += 1
            continue
        if verdicts[slot] < 0:
            o -= 1
            left[o, 0] = facts[i, BASE]
            left[o, 1] = facts[i, LAST]
            left[o, 2] = facts[i, PRODUCER]
            continue
        row = transactions[deciding[slot]]
        row[LEFT] += 1
        row[FIRST_LEFT] = facts[i, BASE]
        row[LAST_LEFT] = max(row[LAST_LEFT], facts[i, LAST])
        row[LEFT_RECORDS] += facts[i, PRESENT]
        if verdicts[slot] == ABORT_MARKER:
            if g < len(gone) and gone[g, 0] == facts[i, LAST] + 1:
                gone[g, 0] = facts[i, BASE]
            else:
                g -= 1
                gone[g, 0] = facts[i, BASE]
                gone[g, 1] = facts[i, LAST]
    return filled, g, o


def owed_batches(
    blocks: Facts, log_start: int, snapshot: Snapshot | None, clock_ms: int, expiration_ms: int
) -> Int64Array:
    """The ascending base offsets of the batches that must stay for active producers.

    These are the last batches of the producers.

    Without a snapshot, the log has all batches that determine the producers' states. A producer
    that wrote nothing for ``expiration_ms`` before ``clock_ms`` has expired, so none of its batches
    is needed.
    """
    known = () if snapshot is None else snapshot.producers
    ids = np.union1d(
        _producers(blocks)[0], np.array([p.producer_id for p in known], dtype=np.int64)
    )
    # Columns: epoch, last offset, base offset, time, 1 if the producer is known.
    states: Int64Array = np.zeros((len(ids), 5), dtype=np.int64)
    for producer in known:
        states[np.searchsorted(ids, producer.producer_id)] = (
            producer.epoch,
            producer.last_offset,
            producer.base_offset,
            producer.timestamp_ms,
            1,
        )
    first = log_start if snapshot is None else snapshot.offset
    for block in blocks:
        later = block[(block[:, LAST] >= first) & (block[:, PRODUCER] >= 0)]
        _follow(later, np.searchsorted(ids, later[:, PRODUCER]), states)
    active = (states[:, 4] == 1) & (clock_ms - states[:, 3] < expiration_ms)
    owed = [states[active & (states[:, 1] >= 0), 2]]
    epochs = np.where(active & (states[:, 1] < 0), states[:, 0], -1)
    for block in blocks if (epochs >= 0).any() else ():
        control = block[(block[:, KIND] >= ABORT_MARKER) & (block[:, KIND] <= EMPTIED_MARKER)]
        control = control[control[:, PRODUCER] >= 0]
        slots = np.searchsorted(ids, control[:, PRODUCER])
        owed.append(control[(control[:, EPOCH] == epochs[slots]), BASE])
    found: Int64Array = np.unique(np.concatenate(owed))
    return found


@njit(cache=True, nogil=True)
def _follow(facts, slots, states):
    """Update the producers' states as a broker does when it reads these batches."""
    for i in range(len(facts)):
        kind = facts[i, KIND]
        state = states[slots[i]]
        if kind == IDEMPOTENT_DATA or kind == TRANSACTION_DATA:
            state[1] = facts[i, LAST]
            state[2] = facts[i, BASE]
        elif kind == ABORT_MARKER or kind == COMMIT_MARKER:
            if state[4] == 0 or state[0] != facts[i, EPOCH]:
                state[1] = -1
        else:
            continue
        state[0] = facts[i, EPOCH]
        state[3] = facts[i, TIME]
        state[4] = 1


def unmarked(found: TransactionHistory, snapshot: Snapshot | None) -> Int64Array:
    """Batches of transactions that have no marker and are not open: first, last offset, producer.

    Only batches before a snapshot can be checked: after it, every transaction without a marker is
    open.
    """
    if snapshot is None:
        return found.open[:0]
    begun = {p.producer_id: p.open_from for p in snapshot.producers if p.open_from >= 0}
    wrong = [
        last < snapshot.offset and not 0 <= begun.get(producer, -1) <= first
        for first, last, producer in found.open.tolist()
    ]
    lost: Int64Array = found.open[np.array(wrong, dtype=bool)]
    return lost


class ChangedDecision(NamedTuple):
    """A batch whose transaction has different outcomes in the earlier and in the present log."""

    offset: int
    producer_id: int
    was_aborted: bool
    is_open: bool  # whether the transaction is open in the present log


def redecided(
    blocks: Facts, before: TransactionHistory, after: TransactionHistory, log_start: int
) -> Iterator[ChangedDecision]:
    """Yield the transactional batches of the present log whose outcome for readers has changed."""
    for block in blocks:
        data = block[(block[:, KIND] == TRANSACTION_DATA) & (block[:, LAST] >= log_start)]
        was, now = _inside(before.aborted, data[:, BASE]), _inside(after.aborted, data[:, BASE])
        opened = _inside(after.open, data[:, BASE])
        # A transaction that was open before is not checked, because it may have ended since.
        decided = ~_inside(before.open, data[:, BASE])
        for i in np.flatnonzero(((was != now) | opened) & decided).tolist():
            yield ChangedDecision(
                int(data[i, BASE]), int(data[i, PRODUCER]), bool(was[i]), bool(opened[i])
            )


def _inside(stretches: Int64Array, offsets: Int64Array) -> npt.NDArray[np.bool_]:
    """For each offset, whether a range in ``stretches`` contains it.

    A row of ``stretches`` begins with the first and last offset of a range. Rows ascend.
    """
    if not len(stretches):
        return np.zeros(len(offsets), dtype=np.bool_)
    place = np.searchsorted(stretches[:, 0], offsets, side="right") - 1
    inside: npt.NDArray[np.bool_] = (place >= 0) & (offsets <= stretches[place, 1])
    return inside


def wrongly_converted(before: Facts, after: Facts) -> Iterator[int]:
    """Yield base offsets of batches that cannot be the result of converting an earlier batch.

    Only batches without producer and leader epoch are checked: converted batches have neither.
    """
    source = iter(before)
    window: Int64Array = np.empty((0, 0), dtype=np.int64)
    exhausted = False
    taken = -1  # base offset of the old batch from which the previous batch was converted
    for block in after:
        made = block[block[:, KIND] == SIMPLE_DATA]
        if not len(made):
            continue
        reach = int(made[-1, BASE])
        while not exhausted and (not len(window) or window[-1, BASE] <= reach):
            more = next(source, None)
            exhausted = more is None
            if more is not None:
                more = more[(more[:, KIND] == OLD_DATA) | (more[:, KIND] == SIMPLE_DATA)]
                window = more if not len(window) else np.concatenate([window, more])
        if not len(window):
            yield from made[:, BASE].tolist()
            continue
        place = np.searchsorted(window[:, BASE], made[:, BASE], side="right") - 1
        was = window[np.maximum(place, 0)]
        same = (place >= 0) & (was[:, KIND] == SIMPLE_DATA) & (was[:, BASE] == made[:, BASE])
        differs = was[:, SHAPE] ^ made[:, SHAPE]
        differs = np.where(made[:, PRESENT] == 0, differs & ~_CODEC, differs)
        drawn_in = (
            (place >= 0)
            & (was[:, KIND] == OLD_DATA)
            & (made[:, LAST] <= was[:, LAST])
            & (differs == 0)
        )
        for i in range(len(made)):
            if drawn_in[i] and int(was[i, BASE]) != taken:
                taken = int(was[i, BASE])
            elif not same[i]:
                yield int(made[i, BASE])
        window = window[window[:, LAST] >= reach]
