"""Stage three, elect: some buckets of one partition, and which of their entries are shadowed.

A task reads its buckets' stretch of every block, elects, and marks the losers in the pieces' state files.
It holds ``slice_bytes`` of entries; a single bucket that is larger is taken alone.
"""

from __future__ import annotations

import numpy as np

from lastwrite.compaction import election
from lastwrite.logstore.scratch import ScratchReader, StateFile
from lastwrite.model.columns import ByteArray, Int64Array, UInt64Array
from lastwrite.model.work import Elected, ElectUnit
from lastwrite.pipeline.profile import step


class Stretch:
    """The entries of neighbouring buckets, block after block, oldest first."""

    def __init__(self, ends: list[np.ndarray], exact: bool, columns: int = 2) -> None:
        """``ends``: a block's bucket ends, counted from the stretch's begin in that block; ``columns`` of an entry."""
        sizes = np.array([int(e[-1]) if len(e) else 0 for e in ends], dtype=np.int64)
        self.ends = np.stack(ends) if ends else np.empty((0, 0), dtype=np.uint32)
        self.starts: Int64Array = np.cumsum(sizes) - sizes
        self.sizes = sizes
        total = int(sizes.sum())
        self.rows: UInt64Array = np.empty((total, columns), dtype=np.uint64)
        self.lengths = np.empty(total if exact else 0, dtype=np.uint32)
        self.keys: ByteArray = np.empty(0, dtype=np.uint8)

    def elect(self, dirty_from: Int64Array) -> int:
        """Mark winners and losers in ``rows`` (see ``election.elect``); returns the winners' count."""
        if not len(self.rows):
            return 0
        table = np.empty((int(election.table_slots(self.ends)), 3), dtype=np.uint64)
        key_at: Int64Array = np.empty(0, dtype=np.int64)
        if len(self.lengths):
            key_at = np.zeros(len(self.lengths) + 1, dtype=np.int64)
            np.cumsum(self.lengths, out=key_at[1:])
        return int(election.elect(self.rows, self.starts, self.ends, dirty_from, table, key_at, self.keys))


def elect(unit: ElectUnit) -> Elected:
    """Elect in the unit's buckets and mark the losers in the pieces' state files."""
    with step("read entries"):
        stretch = _read(unit)
    with step("elect"):
        winners = stretch.elect(np.array(unit.dirty_from, dtype=np.int64))
    with step("mark"):
        return _marked(unit, stretch, winners)


def _marked(unit: ElectUnit, stretch: Stretch, winners: int) -> Elected:
    losers: dict[int, int] = {}
    lost_last = []
    last = ""
    state: StateFile | None = None
    try:
        for k, block in enumerate(unit.blocks):
            start = int(stretch.starts[k])
            end = start + int(stretch.sizes[k])
            if start == end:
                continue
            path, at = unit.states[k]
            if state is None or path != last:
                if state is not None:
                    state.close()
                state, last = StateFile(path), path
            marked = int(election.mark(stretch.rows, start, end, state.states[at:]))
            losers[block.piece] = losers.get(block.piece, 0) + marked
            # Only by another order than that of offsets can the log's last record lose.
            if block.columns > 2 and election.loses(stretch.rows, start, end, unit.last_records[k]):
                lost_last.append(block.piece)
    finally:
        if state is not None:
            state.close()
    return Elected(unit.partition, winners, losers, tuple(lost_last))


def _read(unit: ElectUnit) -> Stretch:
    """The unit's stretch of each block: see ``exchange`` for the file's layout."""
    buckets = 1 << unit.bits
    first, end = unit.first_bucket, unit.end_bucket
    ends, spans = [], []
    readers: dict[str, ScratchReader] = {}
    try:
        for block in unit.blocks:
            if block.path not in readers:
                readers[block.path] = ScratchReader(block.path)
            bounds = np.zeros(end - first + 1, dtype=np.uint32)
            skip = 1 if first == 0 else 0
            readers[block.path].read_into(bounds[skip:], block.position + 4 * (first - 1 + skip))
            spans.append(int(bounds[0]))
            ends.append(bounds[1:] - bounds[0])
        columns = unit.blocks[0].columns if unit.blocks else 2
        entry_bytes = 8 * columns
        stretch = Stretch(ends, unit.exact, columns)
        keys: list[ByteArray] = []
        for k, block in enumerate(unit.blocks):
            reader = readers[block.path]
            start, size = int(stretch.starts[k]), int(stretch.sizes[k])
            rows_at = block.position + 4 * buckets
            if size:
                reader.read_into(stretch.rows[start : start + size], rows_at + entry_bytes * spans[k])
            if unit.exact and size:
                lengths_at = rows_at + entry_bytes * block.count
                before = np.empty(spans[k], dtype=np.uint32)
                reader.read_into(before, lengths_at)
                reader.read_into(stretch.lengths[start : start + size], lengths_at + 4 * spans[k])
                part = np.empty(int(stretch.lengths[start : start + size].sum(dtype=np.int64)), dtype=np.uint8)
                reader.read_into(part, lengths_at + 4 * block.count + int(before.sum(dtype=np.int64)))
                keys.append(part)
        if keys:
            stretch.keys = np.concatenate(keys)
        return stretch
    finally:
        for reader in readers.values():
            reader.close()
