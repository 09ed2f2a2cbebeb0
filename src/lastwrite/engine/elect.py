"""Stage three, elect: find superseded entries in some buckets of one partition.

A task maps into memory the scratch files that contain the entries of its buckets. It finds the
*losers*, the entries whose key has a later write, and marks them in the mapped state files of the
pieces. A unit has about ``slice_bytes`` of entries; a larger bucket is a unit of its own.

A page fault maps 64 KiB of a cached file around the touched byte, and mapped pages count as this
process's memory. If many short ranges were mapped, they would count many times their size. Short
ranges are therefore copied, and their pages are released.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing

import numpy as np

from lastwrite.engine.profile import step
from lastwrite.engine.rules import election
from lastwrite.model.columns import ByteArray, Int64Array
from lastwrite.model.policy import Strategy
from lastwrite.model.work import Block, ElectionResult, ElectUnit, Limits
from lastwrite.storage.scratch import PAGE_BYTES, ScratchMap

# maximum number of bytes that the operating system maps before and after a range, together
_AROUND_BYTES = 128 << 10

NO_KEYS: tuple[Int64Array, ByteArray] = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.uint8)


class LoserMarker:
    """The mapped scratch files of a task, and the superseded records (losers) not marked yet."""

    def __init__(self, limits: Limits) -> None:
        self._stack = ExitStack()
        self._slice_bytes = limits.slice_bytes
        # a quarter of the memory for decompression, because this step decompresses nothing
        self._most_bytes = limits.plain_bytes // 4
        self._states: dict[str, ScratchMap] = {}
        # The losers that are not marked yet. The key identifies a piece by the file and the
        # position of its record states. The value has the number of states, and the losers'
        # ordinals.
        self._lost: dict[tuple[str, int], tuple[int, list[np.ndarray]]] = {}
        self._held_bytes = 0
        self.entries: dict[str, ScratchMap] = {}

    def map(self, unit: ElectUnit) -> None:
        for block, (path, _) in zip(unit.blocks, unit.states, strict=True):
            if block.path not in self.entries:
                self.entries[block.path] = self._map(block.path)
            if path not in self._states:
                self._states[path] = self._map(path, writable=True)

    def _map(self, path: str, writable: bool = False) -> ScratchMap:
        return self._stack.enter_context(closing(ScratchMap(path, writable)))

    def add(self, unit: ElectUnit, losers: Sequence[np.ndarray]) -> None:
        """Add the superseded records of a unit, by block."""
        for place, last, lost in zip(unit.states, unit.last_records, losers, strict=True):
            if len(lost):
                self._lost.setdefault(place, (last + 1, []))[1].append(lost)
        self._held_bytes += unit.entry_bytes // 4  # the losers take at most four bytes per entry
        if self._held_bytes > self._most_bytes:
            self.mark()

    def mark(self) -> None:
        """Mark the superseded records that were added since the last call."""
        touched = 0
        for (path, at), (records, losers) in self._lost.items():
            states = self._states[path]
            # On average each page has a loser, so populating all pages at once is cheaper than a
            # fault per page.
            if PAGE_BYTES * sum(map(len, losers)) > records:
                states.populate(at, records)
            for lost in losers:
                election.mark(states.bytes[at:], lost)
            touched += records + _AROUND_BYTES
            if touched > self._slice_bytes:
                touched = _release_pages(self._states)
        _release_pages(self._states)
        self._lost.clear()
        self._held_bytes = 0

    def close(self) -> None:
        self._stack.close()


def elect(marks: LoserMarker, unit: ElectUnit) -> ElectionResult:
    """Find each key's last write in the unit's buckets, and add the other records to ``marks``."""
    if not unit.blocks:
        return ElectionResult(unit.partition, 0, {})
    marks.map(unit)
    with step("elect"):
        winners, losers = _elect(unit, marks.entries)
        _release_pages(marks.entries)
    with step("mark"):
        marks.add(unit, losers)
    pieces = [block.piece for block in unit.blocks]
    return tally((unit.partition, unit.strategy), winners, pieces, unit.last_records, losers)


def tally(
    unit: tuple[int, Strategy],
    winners: int,
    pieces: Sequence[int],
    last_records: Sequence[int],
    losers: Sequence[np.ndarray],
) -> ElectionResult:
    """The result of an election: the number of superseded records (losers) in each piece.

    ``unit`` is the partition's number and its strategy. The sequences have one item per block: the
    number of the block's piece, the ordinal of the piece's last record, and the block's losers.
    """
    partition, strategy = unit
    by_piece: dict[int, int] = {}
    lost_last = []
    for piece, last, lost in zip(pieces, last_records, losers, strict=True):
        by_piece[piece] = by_piece.get(piece, 0) + len(lost)
        # The log's last record can be superseded only if the strategy compares versions, not
        # offsets.
        if strategy.has_versions and np.any(lost == last):
            lost_last.append(piece)
    return ElectionResult(partition, winners, by_piece, tuple(lost_last))


def _elect(unit: ElectUnit, entries: dict[str, ScratchMap]) -> tuple[int, list[np.ndarray]]:
    limit = unit.limits.slice_bytes
    found, touched = [], 0
    for block in unit.blocks:
        found.append(_stretch(entries[block.path], block, unit))
        touched += 4 * (unit.end_bucket - unit.first_bucket) + _AROUND_BYTES
        if touched > limit:
            touched = _release_pages(entries)
    starts = [start for start, _ in found]
    ends = np.stack([ends for _, ends in found])
    key_at, keys = _keys(entries, unit, starts, ends) if unit.exact else NO_KEYS
    columns = unit.blocks[0].columns
    row_bytes = 8 * columns
    sizes = row_bytes * ends[:, -1].astype(np.int64)
    rows_at = [
        _rows_at(block, unit) + row_bytes * start
        for block, start in zip(unit.blocks, starts, strict=True)
    ]
    total = int(sizes.sum())
    if touched + total + _AROUND_BYTES * len(sizes) <= 2 * limit:
        places = [
            entries[block.path].address + at for block, at in zip(unit.blocks, rows_at, strict=True)
        ]
        return losers_among(places, columns, ends, unit.dirty_from, key_at, keys, unit.strategy)
    copied = np.empty(total, dtype=np.uint8)
    behind = np.cumsum(sizes)
    touched = _release_pages(entries)
    for block, at, size, end in zip(
        unit.blocks, rows_at, sizes.tolist(), behind.tolist(), strict=True
    ):
        copied[end - size : end] = entries[block.path].bytes[at : at + size]
        touched += size + _AROUND_BYTES
        if touched > limit:
            touched = _release_pages(entries)
    _release_pages(entries)
    places = (int(copied.ctypes.data) + behind - sizes).tolist()
    return losers_among(places, columns, ends, unit.dirty_from, key_at, keys, unit.strategy)


def _release_pages(maps: dict[str, ScratchMap]) -> int:
    """Release the files' mapped pages from memory. Returns the bytes that stay mapped: 0."""
    for file in maps.values():
        file.release()
    return 0


def losers_among(
    rows_at: Sequence[int],
    columns: int,
    ends: np.ndarray,
    dirty_from: Sequence[int],
    key_at: Int64Array,
    keys: ByteArray,
    strategy: Strategy,
) -> tuple[int, list[np.ndarray]]:
    """Run the election kernel of the strategy.

    Returns the number of last writes (winners), and the ordinals of the other records by block.
    """
    starts = election.first_rows(ends)
    losers: Int64Array = np.zeros(len(starts), dtype=np.int64)
    lost = np.empty(int(starts[-1]) + int(ends[-1, -1]), dtype=np.uint32)
    arguments = (
        np.array(rows_at, dtype=np.int64),
        columns,
        ends,
        starts,
        np.array(dirty_from, dtype=np.int64),
        lost,
        losers,
        election.new_table(ends, columns > 2 or len(key_at) > 0),
        key_at,
        keys,
    )
    if strategy is Strategy.EVENT_TIME:
        winners = election.fold(*arguments)
    else:
        winners = election.elect(*arguments, strategy is Strategy.GROUPS)
    return int(winners), [
        lost[start : start + n] for start, n in zip(starts.tolist(), losers.tolist(), strict=True)
    ]


def _rows_at(block: Block, unit: ElectUnit) -> int:
    """The position of a block's entries in its file. The table of bucket ends precedes them."""
    return block.position + (4 << unit.bits + block.finer)


def _stretch(file: ScratchMap, block: Block, unit: ElectUnit) -> tuple[int, np.ndarray]:
    """Where a block's entries in the unit's buckets are: their first row, and the buckets' ends.

    The ends are relative to the first row.
    """
    ends = file.bytes[block.position : _rows_at(block, unit)].view(np.uint32)
    ends = ends[(1 << block.finer) - 1 :: 1 << block.finer]
    start = int(ends[unit.first_bucket - 1]) if unit.first_bucket else 0
    return start, ends[unit.first_bucket : unit.end_bucket] - np.uint32(start)


def _keys(
    entries: dict[str, ScratchMap], unit: ElectUnit, starts: Sequence[int], ends: np.ndarray
) -> tuple[Int64Array, ByteArray]:
    """The keys of the entries in all blocks, and their positions, for an exact comparison."""
    lengths, keys = [], []
    touched = 0
    for block, start, last in zip(unit.blocks, starts, ends[:, -1].tolist(), strict=True):
        file = entries[block.path].bytes
        at = _rows_at(block, unit) + 8 * block.columns * block.count
        all_lengths = np.frombuffer(file, dtype=np.uint32, count=start + last, offset=at)
        first = at + 4 * block.count + int(all_lengths[:start].sum(dtype=np.int64))
        lengths.append(all_lengths[start:].astype(np.int64))
        keys.append(file[first : first + int(lengths[-1].sum())].copy())
        touched += 4 * (start + last) + len(keys[-1]) + 2 * _AROUND_BYTES
        if touched > unit.limits.slice_bytes:
            touched = _release_pages(entries)
    key_at: Int64Array = np.concatenate([np.zeros(1, dtype=np.int64), *lengths])
    np.cumsum(key_at, out=key_at)
    return key_at, np.concatenate(keys)
