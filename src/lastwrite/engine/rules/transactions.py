"""The transactions of a round: aborted data, and markers without data.

The smallest case: producer 7 writes ``a@0 b@1`` and aborts at 2. The transaction index has the
entry (7, 0, 2): a batch of producer 7 whose last offset is in [0, 2) is *aborted*. The first round
drops its records. The marker at 2 is not *spent* yet, because this round still reads a batch of its
transaction. The next round reads no such batch. The marker is then spent, and gets a delete
horizon.

If a producer wrote, or ended a transaction, earlier in a piece, that piece is enough to decide on
its next marker. Other markers are *pending*: ``merge`` decides on them by the earlier pieces. The
same pass checks the transaction index against the log. They disagree if a marker aborts data that
the index does not list, or commits data that it lists.

Source: Kafka 4.4.0 CleanedTransactionMetadata; docs/formats/kafka-cleaning.md, "Transactions".
"""
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from lastwrite.encoding.kernel import njit
from lastwrite.model.columns import (
    ABORTED,
    COMMITTED,
    IS_ABORTED,
    IS_CONTROL,
    IS_TRANSACTIONAL,
    NO_HORIZON,
    SPENT,
    BatchTable,
    ByteArray,
    Int64Array,
)
from lastwrite.model.log import AbortedTransaction
from lastwrite.model.policy import Policy
from lastwrite.model.work import PendingMarker, PieceTransactions

# Flags of a producer in one piece, which is a range of a segment: whether it has data after its
# last marker, and whether it has a marker.
_DATA = 1  # the producer has data after its last marker, or after the start of the piece
_UNFLAGGED = 2  # some of the producer's data are not flagged as aborted
_FLAGGED = 4  # some of the producer's data are flagged as aborted
_ENDED = 8  # the piece has a marker of the producer, so data in earlier pieces no longer matter

# Values stored in place of the record's ordinal, if a marker is not spent because the piece has
# data of its transaction.
# the piece has data of the transaction, all with the same flag; earlier pieces may have more
_BEGUN = -1
_WHOLE = -2  # all data of the transaction is in this piece

# Columns of ``aborted_table``.
_PRODUCER = 0
_MARKER_OFFSET = 1
_FIRST_OFFSET = 2
_ABORTED_COLUMNS = 3

# Columns of the pending markers that the kernel writes.
_OF_PRODUCER = 0
_OFFSET = 1
_ORDINAL = 2  # ordinal of the marker's record, or _BEGUN or _WHOLE
_ABORTS = 3
_HORIZON = 4
_MARKER_COLUMNS = 5


def aborted_table(aborted: Iterable[AbortedTransaction], first: int, end: int) -> Int64Array:
    """The aborted transactions that overlap the offsets [first, end), as a sorted table.

    A row has the producer, the marker's offset and the first offset.
    """
    rows = sorted(
        (entry.producer_id, entry.last_offset, entry.first_offset)
        for entry in aborted
        if entry.last_offset >= first and entry.first_offset < end
    )
    return np.array(rows, dtype=np.int64).reshape(-1, _ABORTED_COLUMNS)


@njit(cache=True, nogil=True)
def flag_aborted(table, aborted):
    """Set IS_ABORTED on the data batches in ``table`` that are in a transaction of ``aborted``."""
    for b in range(len(table)):
        row = table[b]
        if not row.flags & IS_TRANSACTIONAL or row.flags & IS_CONTROL:
            continue
        low, high = 0, len(aborted)
        last = row.next_offset - 1
        while low < high:
            middle = (low + high) // 2
            before = aborted[middle, _PRODUCER] < row.producer_id
            if before or (
                aborted[middle, _PRODUCER] == row.producer_id
                and aborted[middle, _MARKER_OFFSET] <= last
            ):
                low = middle + 1
            else:
                high = middle
        if (
            low < len(aborted)
            and aborted[low, _PRODUCER] == row.producer_id
            and aborted[low, _FIRST_OFFSET] <= last
        ):
            row.flags |= IS_ABORTED


@njit(cache=True, nogil=True)
def _slot(pids, pid):
    mask = len(pids) - 1
    slot = np.int64((np.uint64(pid) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)) & mask
    while pids[slot] >= 0 and pids[slot] != pid:
        slot = (slot + 1) & mask
    return slot


@njit(cache=True, nogil=True)
def _follow(table, first, states, ordinal, pids, seen, used, markers, filled):
    """Follow the transactions of the next batches; see ``TransactionTracker.follow``.

    Returns (batches done, slots used, markers filled, offset of a marker that disagrees with the
    index or -1). Stops early if an array is full.
    """
    at = 0
    for b in range(first):
        at += table[b].records
    for b in range(first, len(table)):
        row = table[b]
        if row.flags & IS_TRANSACTIONAL:
            if 2 * used >= len(pids) or filled == len(markers):
                return b, used, filled, np.int64(-1)
            slot = _slot(pids, row.producer_id)
            if pids[slot] < 0:
                pids[slot] = row.producer_id
                seen[slot] = 0
                used += 1
            if not row.flags & IS_CONTROL:
                seen[slot] |= _DATA | (_FLAGGED if row.flags & IS_ABORTED else _UNFLAGGED)
            elif row.records > 0 and states[at] & (ABORTED | COMMITTED):
                aborts = (states[at] & ABORTED) != 0
                if seen[slot] & (_UNFLAGGED if aborts else _FLAGGED):
                    return b, used, filled, row.next_offset - 1
                if not seen[slot] & _DATA:
                    if seen[slot] & _ENDED:
                        states[at] |= SPENT
                    else:
                        markers[filled, _OF_PRODUCER] = row.producer_id
                        markers[filled, _OFFSET] = row.next_offset - 1
                        markers[filled, _ORDINAL] = ordinal + at
                        markers[filled, _ABORTS] = aborts
                        markers[filled, _HORIZON] = row.horizon
                        filled += 1
                elif aborts or not seen[slot] & _ENDED:
                    markers[filled, _OF_PRODUCER] = row.producer_id
                    markers[filled, _OFFSET] = row.next_offset - 1
                    markers[filled, _ORDINAL] = _WHOLE if seen[slot] & _ENDED else _BEGUN
                    markers[filled, _ABORTS] = aborts
                    markers[filled, _HORIZON] = row.horizon
                    filled += 1
                seen[slot] = _ENDED
        at += row.records
    return len(table), used, filled, np.int64(-1)


class TransactionTracker:
    """Follows the transactions of one piece, chunk by chunk."""

    def __init__(self) -> None:
        self._pids = np.full(16, -1, dtype=np.int64)
        self._marks = np.zeros(16, dtype=np.uint8)
        self._used = 0
        self._markers = np.empty((16, _MARKER_COLUMNS), dtype=np.int64)
        self._filled = 0
        # offset of a marker that disagrees with the transaction index
        self.contradiction: int | None = None

    def follow(self, table: BatchTable, states: ByteArray, ordinal: int) -> None:
        """Process the next batches, and set SPENT in the states of markers that are certainly
        spent.

        ``states`` has the states of the batches' records; ``ordinal`` is the ordinal of the first
        record.
        """
        b = 0
        while True:
            b, self._used, self._filled, contradiction = _follow(
                table,
                b,
                states,
                ordinal,
                self._pids,
                self._marks,
                self._used,
                self._markers,
                self._filled,
            )
            if contradiction >= 0 and self.contradiction is None:
                self.contradiction = int(contradiction)
            if contradiction >= 0 or b == len(table):
                return
            self._grow()

    def _grow(self) -> None:
        if self._filled == len(self._markers):
            self._markers = np.concatenate((self._markers, np.empty_like(self._markers)))
        if 2 * self._used >= len(self._pids):
            pids, seen = self._pids, self._marks
            self._pids = np.full(4 * len(pids), -1, dtype=np.int64)
            self._marks = np.zeros(len(self._pids), dtype=np.uint8)
            for pid, bits in zip(pids[pids >= 0], seen[pids >= 0], strict=True):
                slot = _slot(self._pids, pid)
                self._pids[slot], self._marks[slot] = pid, bits

    def result(self) -> PieceTransactions | None:
        """The producers and pending markers of this piece, which ``merge`` combines with other
        pieces. None if the piece has no transactional batch.
        """
        if not self._used:
            return None
        known = self._pids >= 0
        return PieceTransactions(
            producers=self._pids[known],
            marks=self._marks[known],
            contradiction=self.contradiction,
            markers=tuple(
                PendingMarker(
                    pid, offset, at, bool(aborts), None if horizon == NO_HORIZON else horizon
                )
                for pid, offset, at, aborts, horizon in self._markers[: self._filled].tolist()
            ),
        )


@dataclass(slots=True)
class MergedTransactions:
    """The decisions on the transactions of a log, from all its pieces."""

    # pending markers that are spent, by piece
    used_markers: list[list[PendingMarker]] = field(default_factory=list)
    # offsets of the abort markers whose transactions still have data in the log
    aborting: set[int] = field(default_factory=set)
    contradiction: int | None = None  # offset of a marker that disagrees with the transaction index


def merge(pieces: Sequence[PieceTransactions | None]) -> MergedTransactions:
    """Decide on the pending markers of all pieces, which are in the order of the log."""
    merged = MergedTransactions()
    before: dict[int, int] = {}
    for piece in pieces:
        merged.used_markers.append([])
        if piece is None:
            continue
        contradictions = [] if piece.contradiction is None else [piece.contradiction]
        for marker in piece.markers:
            bits = 0 if marker.ordinal == _WHOLE else before.get(marker.producer_id, 0)
            if bits & (_UNFLAGGED if marker.aborts else _FLAGGED):
                contradictions.append(marker.offset)
            if marker.ordinal >= 0 and not bits & _DATA:
                merged.used_markers[-1].append(marker)
            elif marker.aborts:
                merged.aborting.add(marker.offset)
        if contradictions and merged.contradiction is None:
            merged.contradiction = min(contradictions)
        for pid, bits in zip(piece.producers.tolist(), piece.marks.tolist(), strict=True):
            before[pid] = bits if bits & _ENDED else bits | before.get(pid, 0)
    return merged


def spent_changes(marker: PendingMarker, policy: Policy) -> bool:
    """Whether a round stamps or drops the batch of a spent marker."""
    if marker.horizon_ms is None:
        return policy.new_horizon_ms is not None
    return policy.now_ms >= marker.horizon_ms
