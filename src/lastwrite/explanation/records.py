"""Count the records that compaction will remove, and find the records of one key.

Each found record has the results of the rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lastwrite.encoding.fingerprint import fingerprint, secret_from
from lastwrite.engine.chunks import BatchWindow, BatchWindows
from lastwrite.engine.context import Context
from lastwrite.engine.plan import new_secret
from lastwrite.engine.rules.verdict import Verdict, judge, last_held_ms
from lastwrite.engine.system import Decision
from lastwrite.model.columns import (
    ABORTED,
    BAD_HORIZON,
    CONTROL,
    IS_OLD,
    KEYLESS,
    NO_HORIZON,
    SHADOWED,
    SPENT,
    TOMBSTONE,
    BatchTable,
    ByteArray,
    Int64Array,
)
from lastwrite.model.policy import LONG_MAX
from lastwrite.model.work import ScanRange
from lastwrite.reports.explanation import Waiting
from lastwrite.storage.reading import reader_of_piece

_LANE = np.uint64(0xFFFFFFFF00000000)


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """A record of the explained key: its position, and the results of the engine's rules."""

    piece: ScanRange
    batch: np.void  # a copy of the batch's row in the batch table
    data: bytes  # the batch as stored in the file
    number: int  # index of the record in the batch
    position: int  # byte of the batch in the file
    is_inside: bool  # whether the record is in the range of the next round
    goes: bool  # whether the next round drops the record
    state: int  # the record's state in the next round; 0 if the record is above its range
    state_ever: int  # the record's state if the entire log were closed and replicated


@dataclass(frozen=True, slots=True)
class _JudgedRecords:
    """The results of the rules for the records of a chunk, a byte for each record."""

    states: ByteArray | None  # states in the next round; None if the chunk is above its range
    ever: ByteArray  # states if the entire log were closed and replicated
    keep: ByteArray  # 0 if the next round drops the record


class WaitingRecords:
    """Counts the records that compaction will remove, and collects the records of some keys.

    Pieces of the log are processed oldest first. ``waiting`` has the counts. ``keys`` are in their
    stored form; ``found`` has the records of each key.
    """

    def __init__(self, context: Context, decision: Decision, keys: Sequence[bytes]) -> None:
        self.waiting = Waiting()
        self.found: list[list[KeyRecord]] = [[] for _ in keys]
        self._decision = decision
        self._held_ms = (
            -1
        )  # the latest delete horizon of a blocked tombstone; -1 if none is blocked
        self._format = context.system.new_format(
            context.limits.plain_bytes, decision.policy.reading
        )
        self._chunks = BatchWindows(context.limits)
        self._secret = secret_from(new_secret())
        self._keys = [np.frombuffer(key, dtype=np.uint8) for key in keys]
        self._lanes = []
        for key in self._keys:
            one, two = fingerprint(key, 0, len(key), self._secret)
            self._lanes.append((np.uint64(one), np.uint64(two) & _LANE))

    def piece(self, piece: ScanRange, following: ByteArray | None, ever: ByteArray | None) -> None:
        """Process the records of the next piece.

        Args:
            following: the states that the next round would give the records. None means that the
                piece is above the round's range.
            ever: the states if the entire log were closed and replicated.

        Raises:
            CorruptLog: as ``BatchWindows.of``.
        """
        assert ever is not None
        at = 0
        for chunk in self._chunks.of(self._format, piece):
            records = chunk.records
            end = at + records
            keep = np.ones(records, dtype=np.uint8)
            judged = _JudgedRecords(
                None if following is None else following[at:end], ever[at:end], keep
            )
            if judged.states is not None:
                self._judge(chunk.table, judged.states, piece, keep)
                self._count_inside(chunk.table, judged.states, judged.ever, keep)
            else:
                self._count_above(judged.ever)
            if self._keys:
                self._find(chunk, piece, judged)
            at = end

    def _judge(
        self, table: BatchTable, states: ByteArray, piece: ScanRange, keep: ByteArray
    ) -> None:
        judge(
            table,
            states,
            self._decision.policy,
            piece.mtime_ns // 1_000_000,
            keep,
            np.empty(len(table), dtype=np.uint8),
            np.empty(len(table), dtype=np.int64),
            np.zeros(len(Verdict), dtype=np.int64),
        )
        self._held_ms = max(self._held_ms, last_held_ms(table, states, self._decision.policy))

    @property
    def held_until_ms(self) -> int | None:
        """The time from which on the last blocked tombstone can be removed.

        None means that no tombstone is blocked, or that one stays blocked forever.
        """
        return None if self._held_ms < 0 else self._decision.policy.held_until_ms(self._held_ms)

    # ------------------------------------------------------------------ counts

    def _count_inside(
        self, table: BatchTable, states: ByteArray, ever: ByteArray, keep: ByteArray
    ) -> None:
        """Count the records in the range of the next round that will be removed."""
        waiting = self.waiting
        batch = np.repeat(np.arange(len(table)), table["records"])
        policy = self._decision.policy
        horizons: Int64Array = table["horizon"][batch]
        if policy.ages_by_write_time:
            retention_ms = policy.tombstone_retention_ms
            horizons = np.minimum(horizons, LONG_MAX - retention_ms) + retention_ms
        old = (table["flags"][batch] & IS_OLD) != 0
        control = (states & CONTROL) != 0
        data, gone = ~control, keep == 0
        aborted = data & ((states & ABORTED) != 0)
        shadowed = (states & SHADOWED) != 0
        waiting.superseded_next += _count(data & gone & shadowed)
        waiting.superseded_later += _count(data & ~gone & ((ever & SHADOWED) != 0) & ~shadowed)
        waiting.aborted_next += _count(aborted)
        waiting.keyless_next += _count(data & gone & ((states & KEYLESS) != 0))
        deletes = data & ((states & TOMBSTONE) != 0) & ~aborted & ~shadowed
        stamped = horizons != NO_HORIZON
        waits = deletes & ~gone & stamped & ~self._is_log_end(table)
        held = waits & (horizons <= policy.now_ms) & self._is_held(table)
        waits &= ~held
        waiting.deletes_due += _count(deletes & gone)
        waiting.deletes_held += _count(held)
        waiting.deletes_waiting += _count(waits)
        unstamped = deletes & ~gone & ~stamped & ~old
        is_bad = (table["flags"][batch] & BAD_HORIZON) != 0
        waiting.deletes_bad_horizon += _count(unstamped & is_bad)
        if policy.new_horizon_ms is None:
            waiting.deletes_never += _count(unstamped)
        else:
            waiting.deletes_unstamped += _count(unstamped)
        waiting.deletes_old += _count(deletes & ~gone & old)
        if waits.any():
            first, last = int(horizons[waits].min()), int(horizons[waits].max())
            waiting.first_horizon_ms = min(
                first, first if waiting.first_horizon_ms is None else waiting.first_horizon_ms
            )
            waiting.last_horizon_ms = max(
                last, last if waiting.last_horizon_ms is None else waiting.last_horizon_ms
            )
        spent = control & ((states & SPENT) != 0)
        waiting.markers_needed += _count(control & ~spent)
        waiting.markers_due += _count(spent & gone)
        waiting.markers_waiting += _count(spent & ~gone & stamped)
        if policy.new_horizon_ms is None:
            waiting.markers_never += _count(spent & ~gone & ~stamped)
        else:
            waiting.markers_unstamped += _count(spent & ~gone & ~stamped)

    def _is_held(self, table: BatchTable) -> np.ndarray:
        """For each record of the table, whether its removal is blocked if it is a tombstone."""
        policy = self._decision.policy
        is_held: np.ndarray = table["next_offset"] > policy.held_from
        return np.repeat(is_held, table["records"])

    def _is_log_end(self, table: BatchTable) -> ByteArray | np.ndarray:
        """For each record of the table, whether it is the log's last record, which always stays."""
        found = np.zeros(int(table["records"].sum()), dtype=bool)
        rows = np.flatnonzero(table["next_offset"] == self._decision.policy.kept_end_offset)
        found[np.cumsum(table["records"])[rows] - 1] = True
        return found

    def _count_above(self, ever: ByteArray) -> None:
        """Count the records above the range of the next round that will be removed."""
        data = (ever & CONTROL) == 0
        aborted = data & ((ever & ABORTED) != 0)
        shadowed = data & ((ever & SHADOWED) != 0)
        self.waiting.aborted_later += _count(aborted)
        self.waiting.superseded_later += _count(shadowed)
        self.waiting.deletes_above += _count(
            data & ((ever & TOMBSTONE) != 0) & ~aborted & ~shadowed
        )

    # ------------------------------------------------------------------ a key

    def _find(self, chunk: BatchWindow, piece: ScanRange, judged: _JudgedRecords) -> None:
        """Add the records of the keys in this chunk to ``found``.

        Records of aborted transactions are included, although the table does not flag them.
        """
        table = chunk.table
        starts = np.cumsum(table["records"]) - table["records"]
        for run in self._format.opened(chunk.buffer, table):
            records = int(table["records"][run.first : run.last].sum())
            entries = np.empty((records, 2), dtype=np.uint64)
            keys = np.empty((records, 2), dtype=np.int64)
            states = np.empty(records, dtype=np.uint8)
            first = int(starts[run.first])
            filled = self._format.walk(run, table, self._secret, first, states, entries, 0, keys)
            for key, lanes, found in zip(self._keys, self._lanes, self.found, strict=True):
                is_alike = (entries[:filled, 0] == lanes[0]) & (
                    (entries[:filled, 1] & _LANE) == lanes[1]
                )
                for n in np.flatnonzero(is_alike).tolist():
                    at, length = keys[n].tolist()
                    if not np.array_equal(run.plain[at : at + length], key):
                        continue  # another key with the same fingerprint
                    ordinal = int(entries[n, 1] & ~_LANE)
                    row = int(np.searchsorted(starts, ordinal, side="right")) - 1
                    number = ordinal - int(starts[row])
                    found.append(self._record(chunk, piece, judged, row, ordinal, number))

    def _record(
        self,
        chunk: BatchWindow,
        piece: ScanRange,
        judged: _JudgedRecords,
        row: int,
        ordinal: int,
        number: int,
    ) -> KeyRecord:
        batch = chunk.table[row].copy()
        position = int(batch["origin"]) + chunk.shift
        data = np.empty(int(batch["origin_size"]), dtype=np.uint8)
        with reader_of_piece(piece) as reader:
            reader.read_into(data, position)
        return KeyRecord(
            piece=piece,
            batch=batch,
            data=data.tobytes(),
            number=number,
            position=position,
            is_inside=judged.states is not None,
            goes=not judged.keep[ordinal],
            state=0 if judged.states is None else int(judged.states[ordinal]),
            state_ever=int(judged.ever[ordinal]),
        )


def _count(chosen: np.ndarray) -> int:
    return int(np.count_nonzero(chosen))
