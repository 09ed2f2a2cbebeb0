"""Step two, scan: check the batches of a piece, and emit an entry for each record with a key.

A task scans pieces of one partition. It checks every batch's checksum while the batch is in the
processor's cache, and visits every record once. The output is one entry of 16 bytes per record with
a key, in blocks sorted by bucket, and one state byte per record. If many keys repeat in a block,
the records that lose within the block are marked here, and their entries are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from lastwrite.encoding.fingerprint import secret_from
from lastwrite.engine.buffers import Buffers
from lastwrite.engine.chunks import BatchWindow, BatchWindows
from lastwrite.engine.elect import NO_KEYS, losers_among
from lastwrite.engine.profile import step, steps
from lastwrite.engine.rules import election
from lastwrite.engine.rules.transactions import TransactionTracker, flag_aborted
from lastwrite.engine.rules.verdict import Verdict, are_plain, judge, last_held_ms
from lastwrite.engine.system import Format, system_named
from lastwrite.errors import CorruptLog, UnsupportedFormat, located
from lastwrite.model.columns import (
    ABORTED,
    BAD_HORIZON,
    CONTROL,
    IS_TRANSACTIONAL,
    KEYLESS,
    SHADOWED,
    TOMBSTONE,
    BatchRun,
    BatchTable,
    ByteArray,
    Int64Array,
    UInt64Array,
)
from lastwrite.model.log import Problem, ProblemKind
from lastwrite.model.policy import Strategy
from lastwrite.model.work import PieceScan, ScanRange, ScanUnit
from lastwrite.storage.problems import problem_of

_MOST_NOTES = 100  # maximum number of problems in a piece's report
_SAMPLE_SHARE = 16  # 1/16 of the buckets is the sample that shows whether keys repeat in a block
# least number of entries of a block that is sampled; in a smaller block, sampling would cost as
# much as an election
_LEAST_SAMPLED = 4096


class EntryBlock(NamedTuple):
    """Entries of one piece, sorted by bucket. A block is valid until the next block is filled."""

    piece: int
    rows: UInt64Array
    ends: np.ndarray  # uint32 per bucket: the row at which it ends
    lengths: np.ndarray | None  # uint32 per entry: length of its key; None without exact comparison
    keys: ByteArray | None


def scan(
    unit: ScanUnit, hand_on: Callable[[EntryBlock], None], buffers: Buffers | None = None
) -> Iterator[tuple[PieceScan, ByteArray]]:
    """Scan the pieces of a unit. Yields the result and the record states of each piece.

    A result is valid until the next is requested. ``hand_on`` receives each full block of entries.
    A cached scan replaces the scan of a piece: its blocks are passed to ``hand_on``, or stay in
    their file. If a piece is damaged or has an unsupported format, its result has a problem, and
    the other pieces are still scanned. The units of a task share ``buffers``.
    """
    buffers = buffers or Buffers()
    worker = _Scanner(
        unit,
        buffers.format(unit.system, unit.limits.plain_bytes, unit.policy.reading),
        hand_on,
        buffers,
    )
    for piece in unit.pieces:
        with step("check kept scans"):
            known = piece.cached and piece.cached.scanned(unit, piece, hand_on)
        if known:
            yield known, np.zeros(known.records, dtype=np.uint8)
            continue
        result = PieceScan(unit.partition, piece.number)
        try:
            worker.scan_piece(piece, result)
        except (CorruptLog, UnsupportedFormat) as error:
            result.problem = problem_of(error, piece.path, remedy=None)
        yield result, worker.states[: result.records]


class _Scanner:
    """Scans the pieces of a unit one after the other, in the worker's buffers."""

    def __init__(
        self,
        unit: ScanUnit,
        format: Format,
        hand_on: Callable[[EntryBlock], None],
        buffers: Buffers,
    ) -> None:
        self._unit = unit
        self._format = format
        self._hand_on = hand_on
        self._buffers = buffers
        self._chunks = BatchWindows(unit.limits, buffers)
        self._secret = secret_from(unit.secret)
        self.states: ByteArray = buffers.rows("states", 1 << 18, np.uint8)
        self._columns = 3 if unit.policy.strategy.has_versions else 2
        # fewer entries with whole keys, which take about as much memory as the entries
        words = 4 if unit.exact else self._columns
        self._reserve_entries(2 * unit.limits.block_entries // words)
        self._filled = 0
        self._follower = TransactionTracker()
        self._ends = np.empty(1 << unit.bits, dtype=np.uint32)
        self._keys = _KeyBytes(len(self._entries)) if unit.exact else None

    def _reserve_entries(self, entries: int) -> None:
        """Allocate arrays for the entries of a block and for their sorted copy."""
        self._entries: UInt64Array = self._buffers.rows(
            "entries", entries, np.uint64, self._columns
        )
        self._sorted: UInt64Array = self._buffers.rows("sorted", entries, np.uint64, self._columns)

    def scan_piece(self, piece: ScanRange, result: PieceScan) -> None:
        self._filled = 0
        self._follower = TransactionTracker()
        result.is_plain = self._keys is None and self._columns == 2
        checker = system_named(self._unit.system).index_checker(piece)
        for chunk in self._chunks.of(self._format, piece):
            table = chunk.table
            if not result.batches:
                result.first_offset = int(table["base_offset"][0])
            result.batches += len(table)
            result.next_offset = int(table["next_offset"][-1])
            with step("check indexes"):
                checker.check(table, chunk.shift)
            if piece.keyed and result.problem is None:
                self._scan_chunk(chunk, piece, result)
            else:
                result.records += chunk.records
        checker.ends()
        if piece.keyed and result.problem is None:
            self._flush(result)
            result.tombstones = int(np.count_nonzero(self.states[: result.records] & TOMBSTONE))
            result.transactions = self._follower.result()
            result.is_plain &= result.records > 0
            result.lost_last = bool(result.records and self.states[result.records - 1] & SHADOWED)

    def _scan_chunk(self, chunk: BatchWindow, piece: ScanRange, result: PieceScan) -> None:
        buffer, table = chunk.buffer, chunk.table
        first_record = ordinal = result.records
        is_transactional = bool(chunk.flags & IS_TRANSACTIONAL)
        if is_transactional:
            flag_aborted(table, self._unit.aborted)
        with located(piece.path, chunk.shift):
            # Together, the runs contain all batches of the table, in order.
            for run in steps("decompress", self._format.opened(buffer, table)):
                is_all = run.last - run.first == len(table)
                records = table["records"][run.first : run.last]
                in_run = chunk.records if is_all else int(records.sum())
                self._walk_run(buffer, run, table, (ordinal, in_run), result)
                ordinal += in_run
        for position, words in self._format.take_problems():
            if len(result.notes) < _MOST_NOTES:
                place = position + chunk.shift
                result.notes.append(
                    Problem(
                        ProblemKind.KEPT,
                        words,
                        piece.path,
                        place,
                        "no action is needed: compaction keeps the batch unchanged",
                    )
                )
        result.records += chunk.records
        states = self.states[first_record : result.records]
        if is_transactional:
            self._follower.follow(table, states, first_record)
        are_live = chunk.fewest > 0 and not states.any()
        result.is_plain &= are_live and are_plain(chunk.fewest, chunk.flags)
        # If all records have keys and values and none is aborted, the only change that does not
        # depend on the election is the replacement of a bad horizon.
        if not are_live or chunk.flags & BAD_HORIZON:
            self._judge(table, states, piece.mtime_ns // 1_000_000, result)

    def _walk_run(
        self,
        buffer: ByteArray,
        run: BatchRun,
        table: BatchTable,
        numbered: tuple[int, int],
        result: PieceScan,
    ) -> None:
        """Add the states and entries of the run's records.

        ``numbered`` is the ordinal of the run's first record, and the number of its records.
        """
        ordinal, in_run = numbered
        is_full = self._keys is not None and self._keys.is_full
        if self._filled + in_run > len(self._entries) or is_full:
            self._flush(result)
            if in_run > len(self._entries):
                self._reserve_entries(in_run)
        if ordinal + in_run > election.ORDINAL_MASK:
            raise CorruptLog(
                "a piece of the segment has more than 2^32 records", int(table["origin"][run.first])
            )
        # Memory is reserved only now, because the record count is unreliable until the batches are
        # decompressed.
        self._reserve(ordinal + in_run)
        before = self._filled
        positions = None if self._keys is None else self._keys.room(len(self._entries))
        states = self.states[ordinal:]
        with step("walk"):
            self._filled = self._format.walk(
                run, table, self._secret, ordinal, states, self._entries, before, positions
            )
        if self._columns > 2:
            policy, entries, filled = self._unit.policy, self._entries, self._filled
            self._format.add_versions(buffer, run, table, policy, ordinal, entries, before, filled)
        if self._keys is not None:
            self._keys.take(run.plain, before, self._filled)
        self._find_border(run, table, ordinal, result)
        self._find_keyless(run, table, ordinal, in_run, result)

    def _judge(self, table: BatchTable, states: ByteArray, file_ms: int, result: PieceScan) -> None:
        """Count the batches that change regardless of the election's result."""
        counts = np.zeros(len(Verdict), dtype=np.int64)
        with step("judge"):
            result.changed_batches += judge(
                table,
                states,
                self._unit.policy,
                file_ms,
                np.empty(len(states), dtype=np.uint8),
                np.empty(len(table), dtype=np.uint8),
                np.empty(len(table), dtype=np.int64),
                counts,
            )
        result.held_until_ms = max(
            result.held_until_ms, last_held_ms(table, states, self._unit.policy)
        )
        result.keyless += int(counts[Verdict.KEYLESS])
        result.hidden += int(np.count_nonzero(states & (CONTROL | ABORTED)))

    def _find_border(
        self, run: BatchRun, table: BatchTable, ordinal: int, result: PieceScan
    ) -> None:
        """Set ``dirty_from`` to the ordinal of the first record at or above the first dirty offset.

        Applies only if the run of batches begins below that offset.
        """
        border = self._unit.first_dirty
        first, last = run.first, run.last
        if int(table["base_offset"][first]) >= border:
            return
        clean = table["next_offset"][first:last] <= border
        whole = int(np.count_nonzero(clean))
        below = int(table["records"][first : first + whole].sum())
        if first + whole < last:
            below += self._format.records_below(run, table[first + whole], border)
        result.dirty_from = ordinal + below

    def _find_keyless(
        self, run: BatchRun, table: BatchTable, ordinal: int, in_run: int, result: PieceScan
    ) -> None:
        """Set the offset of the piece's first record without a key, if the policy drops such
        records.
        """
        if result.first_keyless >= 0 or self._unit.policy.keep_keyless:
            return
        states = self.states[ordinal : ordinal + in_run]
        if not states.any():
            return
        found = states & (KEYLESS | CONTROL | ABORTED) == KEYLESS
        if not found.any():
            return
        place = int(np.argmax(found))
        ends = np.cumsum(table["records"][run.first : run.last])
        row = table[run.first + int(np.searchsorted(ends, place, side="right"))]
        place -= int(ends[ends <= place][-1]) if (ends <= place).any() else 0
        low, high = int(row["base_offset"]), int(row["next_offset"]) - 1
        # binary search for the greatest offset below which the batch has at most ``place`` records
        while low < high:
            middle = (low + high + 1) // 2
            if self._format.records_below(run, row, middle) <= place:
                low = middle
            else:
                high = middle - 1
        result.first_keyless = low

    def _reserve(self, records: int) -> None:
        if records > len(self.states):
            grown = self._buffers.rows("states", records + (records >> 1), np.uint8)
            grown[: len(self.states)] = self.states
            self.states = grown

    def _flush(self, result: PieceScan) -> None:
        """Sort the entries by bucket, and pass the block to ``hand_on``.

        If many keys repeat, superseded entries are marked and dropped first.
        """
        count, self._filled = self._filled, 0
        if not count:
            return
        rows, ends = self._sorted[:count], self._ends
        lengths = keys = None
        with step("sort entries"):
            if self._keys is None:
                election.partition(self._entries, count, self._unit.bits, rows, ends)
            else:
                order = np.empty(count, dtype=np.int64)
                election.partition_order(self._entries, count, self._unit.bits, order, ends)
                np.take(self._entries, order, axis=0, out=rows)
                lengths, keys = self._keys.ordered(order)
            # Do not elect within the block: with EVENT_TIME, all records of a key are compared in
            # the log's order.
            if self._unit.thins and self._unit.policy.strategy is not Strategy.EVENT_TIME:
                rows, lengths, keys = self._thin(rows, ends, lengths, keys, result)
        result.keyed += count
        self._hand_on(EntryBlock(result.piece, rows, ends, lengths, keys))

    def _thin(
        self,
        rows: UInt64Array,
        ends: np.ndarray,
        lengths: np.ndarray | None,
        keys: ByteArray | None,
        result: PieceScan,
    ) -> tuple[UInt64Array, np.ndarray | None, ByteArray | None]:
        """Mark and drop the records that lose within the block, if many keys repeat.

        A sample of the buckets shows whether they repeat. Small blocks, and blocks with an overfull
        bucket, are processed without a sample.
        """
        buckets = len(ends)
        sample = max(1, buckets // _SAMPLE_SHARE)
        sampled = int(ends[sample - 1])
        key_at, all_keys = NO_KEYS
        if lengths is not None and keys is not None:
            key_at, all_keys = np.zeros(len(rows) + 1, dtype=np.int64), keys
            np.cumsum(lengths, out=key_at[1:])
        usual = 4 * max(64, len(rows) // buckets)
        if len(rows) > _LEAST_SAMPLED and election.fullest(ends.reshape(1, -1)) < usual:
            if (
                not sampled
                or self._elect(rows, ends[:sample], key_at, all_keys, result)[0] > 3 * sampled // 4
            ):
                return rows, lengths, keys
        _, losers = self._elect(rows, ends, key_at, all_keys, result)
        election.mark(self.states, losers)
        result.losers += len(losers)
        if lengths is not None:
            ordinals = (rows[:, 1] & np.uint64(election.ORDINAL_MASK)).astype(np.int64)
            stay = np.flatnonzero(self.states[ordinals] & SHADOWED == 0)
            lengths = lengths[stay]
            keys = np.empty(int(lengths.sum(dtype=np.int64)), dtype=np.uint8)
            election.gather(all_keys, key_at[stay], lengths.astype(np.int64), keys)
        return rows[: election.drop_losers(rows, ends, self.states)], lengths, keys

    def _elect(
        self,
        rows: UInt64Array,
        ends: np.ndarray,
        key_at: Int64Array,
        keys: ByteArray,
        result: PieceScan,
    ) -> tuple[int, np.ndarray]:
        """Elect in the block's first ``len(ends)`` buckets.

        Returns the number of last writes, and the ordinals of the other entries.
        """
        winners, losers = losers_among(
            [rows.ctypes.data],
            self._columns,
            ends.reshape(1, -1),
            [result.dirty_from],
            key_at,
            keys,
            self._unit.policy.strategy,
        )
        return winners, losers[0]


class _KeyBytes:
    """The whole keys of a block's entries, for exact comparison."""

    def __init__(self, entries: int) -> None:
        self._place = np.empty((entries, 2), dtype=np.int64)
        self._lengths = np.empty(entries, dtype=np.uint32)
        self._parts: list[ByteArray] = []
        self._starts = np.empty(entries, dtype=np.int64)
        self._size = 0
        self._limit = 16 * entries

    @property
    def is_full(self) -> bool:
        """Whether the key bytes exceed the limit, so that the block must be flushed."""
        return self._size > self._limit

    def room(self, entries: int) -> Int64Array:
        if len(self._place) < entries:
            self._place = np.empty((entries, 2), dtype=np.int64)
            self._lengths = np.resize(self._lengths, entries)
            self._starts = np.resize(self._starts, entries)
        return self._place

    def take(self, plain: ByteArray, first: int, last: int) -> None:
        """Copy the keys of the entries [``first``, ``last``) from ``plain``."""
        starts, lengths = map(np.ascontiguousarray, self._place[first:last].T)
        ends = np.cumsum(lengths)
        self._lengths[first:last] = lengths
        self._starts[first:last] = self._size + ends - lengths
        total = int(ends[-1]) if len(ends) else 0
        part = np.empty(total, dtype=np.uint8)
        election.gather(plain, starts, lengths, part)
        self._parts.append(part)
        self._size += total

    def ordered(self, order: Int64Array) -> tuple[np.ndarray, ByteArray]:
        """Return the key lengths and key bytes in the row order ``order``, and clear them."""
        lengths = self._lengths[: len(order)][order]
        whole = np.concatenate(self._parts) if self._parts else np.empty(0, dtype=np.uint8)
        self._parts = []
        keys = np.empty(self._size, dtype=np.uint8)
        election.gather(whole, self._starts[: len(order)][order], lengths.astype(np.int64), keys)
        self._size = 0
        return lengths, keys
