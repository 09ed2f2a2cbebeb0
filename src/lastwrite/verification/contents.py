"""The tasks of ``verify``: read every record of a part of a log, and compare two logs' contents.

``read_contents`` checks such a part, a *piece*, completely (checksums, records, index entries). If
there is an earlier log to compare with, the task writes a row for each record and batch to a
scratch file:

    per bucket: uint32, the bucket's end in rows · per row, sorted by bucket: 40 bytes
    (see ``verification.rows``)

It also stores rows about some batches (*facts*). ``decide_transactions`` judges the facts, and
derives conditions for records and batches. ``compare`` reads the rows of some buckets from both
logs, and judges them under these conditions (see ``verification.invariants``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np

from lastwrite.engine.chunks import BatchWindow, BatchWindows
from lastwrite.engine.system import Format, system_named
from lastwrite.errors import CorruptLog, LogError, UnsupportedFormat
from lastwrite.model.columns import BatchRun, BatchTable, ByteArray, Int64Array, UInt64Array
from lastwrite.model.log import Problem
from lastwrite.model.work import ScanRange
from lastwrite.storage.problems import problem_of
from lastwrite.storage.scratch import ScratchReader, ScratchWriter
from lastwrite.verification.batch_invariants import thinned
from lastwrite.verification.invariants import (
    COUNTS,
    Finding,
    by_bucket,
    judged,
    mark_discardable,
    mark_owed,
)
from lastwrite.verification.proof import log_proof_of
from lastwrite.verification.rows import AFTER, FACT_WORDS, ROW_BYTES, ROW_WORDS, TALLIES
from lastwrite.verification.units import (
    CompareUnit,
    ComparisonResult,
    ContentsUnit,
    FactBlock,
    PieceContents,
    RowBlock,
)

_EXAMPLES = 20  # most violations of a kind that a task reports
_MOST_FACTS = 1 << 15  # most rows about batches in memory before they are written to a file


class ContentsDecoder(Protocol):
    """Converts decompressed batches to rows for comparison, and to rows that describe batches."""

    is_old_due: bool  # whether tombstones of older formats in this file may be removed

    def take(
        self,
        run: BatchRun,
        table: BatchTable,
        buffer: ByteArray,
        rows: UInt64Array,
        filled: int,
        tally: Int64Array,
        facts: Int64Array,
        noted: int,
    ) -> tuple[int, int]: ...


class IndexProof(Protocol):
    """Compares the indexes of a segment with its batches, and collects the problems."""

    problems: list[Problem]

    def check(self, table: BatchTable, shift: int) -> None: ...


# ---------------------------------------------------------------------- reading


def read_contents(unit: ContentsUnit) -> list[PieceContents]:
    """Read the unit's pieces of a log. Results contain problems; a damaged piece has no rows."""
    reader = log_proof_of(unit.system).reader(unit)
    try:
        return [reader.read(piece) for piece in unit.pieces]
    finally:
        reader.close()


class RowSink:
    """Collects a worker's rows, and writes them to a scratch file by bucket.

    An instance is reused for all pieces.
    """

    def __init__(self, unit: ContentsUnit) -> None:
        # Rows and their sorted copy get as much memory as the entries of a compaction scan.
        room = 0
        if unit.seed is not None:
            room = max(1024, 2 * 16 * unit.limits.block_entries // (2 * ROW_BYTES))
        self.is_seeded = unit.seed is not None
        self.rows: UInt64Array = np.empty((room, ROW_WORDS), dtype=np.uint64)
        self.filled = 0
        self._bits = unit.bits
        self._sorted = np.empty_like(self.rows)
        self._ends = np.empty(1 << unit.bits, dtype=np.uint32)
        self.scratch = None if unit.scratch is None else ScratchWriter(unit.scratch, "contents")

    def close(self) -> None:
        if self.scratch is not None:
            self.scratch.close()

    def reserve(self, needed: int, found: PieceContents) -> None:
        """Ensure space for more rows. May write the rows in memory to the file."""
        if not self.is_seeded:
            return
        if self.filled + needed > len(self.rows):
            self.flush(found)
        if needed > len(self.rows):
            self.rows = np.empty((needed, ROW_WORDS), dtype=np.uint64)
            self._sorted = np.empty_like(self.rows)

    def add(self, rows: UInt64Array, found: PieceContents) -> None:
        self.reserve(len(rows), found)
        self.rows[self.filled : self.filled + len(rows)] = rows
        self.filled += len(rows)

    def flush(self, found: PieceContents) -> None:
        """Sort the rows by bucket and write them to the file."""
        count, self.filled = self.filled, 0
        if not count or self.scratch is None:
            return
        offsets = self.rows[:count, 2].view(np.int64)
        rows = self._sorted[:count]
        by_bucket(self.rows, count, self._bits, rows, self._ends)
        path, position = self.scratch.append(self._ends, rows)
        found.blocks.append(RowBlock(path, position, count, int(offsets.min()), int(offsets.max())))


class BatchReader:
    """Reads pieces of logs whose format has batches, with the buffers of one worker."""

    def __init__(
        self,
        unit: ContentsUnit,
        contents: ContentsDecoder,
        indexes: Callable[[ScanRange], IndexProof],
    ) -> None:
        self._partition, self._is_after = unit.partition, unit.is_after
        self._format: Format = system_named(unit.system).new_format(unit.limits.plain_bytes)
        self._contents = contents
        self._indexes = indexes
        self._chunks = BatchWindows(unit.limits)
        self._sink = RowSink(unit)
        self._facts: Int64Array = np.empty((0, FACT_WORDS), dtype=np.int64)
        self._noted = 0
        self._old_until_ms = -1
        if unit.rules is not None and not unit.is_after:
            self._old_until_ms = unit.rules.old_tombstones_until_ms

    def close(self) -> None:
        self._sink.close()

    def read(self, piece: ScanRange) -> PieceContents:
        found = PieceContents(self._partition, self._is_after, piece)
        tally: Int64Array = np.zeros(TALLIES, dtype=np.int64)
        self._sink.filled = self._noted = 0
        self._contents.is_old_due = piece.mtime_ns // 1_000_000 <= self._old_until_ms
        indexes = self._indexes(piece)
        try:
            for chunk in self._chunks.of(self._format, piece):
                indexes.check(chunk.table, chunk.shift)
                self._note(chunk, found)
                self._take(chunk, piece, found, tally)
            self._sink.flush(found)
            self._flush_facts(found)
            found.is_whole = True
        except (CorruptLog, UnsupportedFormat) as error:
            found.problems.append(problem_of(error, piece.path, remedy=None))
        found.problems += indexes.problems
        found.tally = tuple(int(n) for n in tally)
        return found

    @staticmethod
    def _note(chunk: BatchWindow, found: PieceContents) -> None:
        table = chunk.table
        if found.first_offset < 0:
            found.first_offset = int(table["base_offset"][0])
        found.batches += len(table)
        found.next_offset = int(table["next_offset"][-1])
        found.largest_timestamp = max(found.largest_timestamp, int(table["max_timestamp"].max()))
        found.largest_batch_bytes = max(found.largest_batch_bytes, int(table["origin_size"].max()))

    def _take(
        self, chunk: BatchWindow, piece: ScanRange, found: PieceContents, tally: Int64Array
    ) -> None:
        try:
            for run in self._format.opened(chunk.buffer, chunk.table):
                batches = run.last - run.first
                if self._noted + batches > len(self._facts):
                    if self._noted > _MOST_FACTS:
                        self._flush_facts(found)
                    grown: Int64Array = np.empty(
                        (self._noted + 2 * batches, FACT_WORDS), dtype=np.int64
                    )
                    grown[: self._noted] = self._facts[: self._noted]
                    self._facts = grown
                records = int(chunk.table["records"][run.first : run.last].sum())
                self._sink.reserve(batches + records, found)
                self._sink.filled, self._noted = self._contents.take(
                    run,
                    chunk.table,
                    chunk.buffer,
                    self._sink.rows,
                    self._sink.filled,
                    tally,
                    self._facts,
                    self._noted,
                )
        except LogError as error:
            raise error.located(piece.path, chunk.shift) from error

    def _flush_facts(self, found: PieceContents) -> None:
        """Write the collected rows on batches to the scratch file, in the order of the log."""
        facts, self._noted = thinned(self._facts[: self._noted]), 0
        if not len(facts):
            return
        if self._sink.scratch is None:
            found.facts.append(FactBlock("", 0, len(facts), facts))
        else:
            found.facts.append(FactBlock(*self._sink.scratch.append(facts), len(facts)))


# ---------------------------------------------------------------------- comparing


def compare(unit: CompareUnit) -> ComparisonResult:
    """Judge the rows of the unit's buckets.

    All rows are judged at once if they fit in memory, otherwise in parts, from the log's end
    backwards.
    """
    result = ComparisonResult(unit.partition, np.zeros(COUNTS, dtype=np.int64))
    discardable, owed = (None, None) if unit.lookups is None else unit.lookups.read()
    with _Buckets(unit) as buckets:
        carried: UInt64Array = np.empty((0, ROW_WORDS), dtype=np.uint64)
        parts = buckets.parts()
        for first, end in parts:
            rows = np.concatenate([carried, *buckets.rows(first, end)])
            if discardable is not None and owed is not None:
                mark_discardable(rows, discardable)
                mark_owed(rows, owed)
            ordered, findings, carried = judged(
                rows,
                unit.log_start,
                unit.limit,
                result.counts,
                first > _LOWEST,
                unit.by_version,
                unit.last_offset,
                unit.appended,
            )
            _collect(ordered, findings, result.broken)
            missing = ordered[findings == Finding.KEYLESS, 2]
            if len(missing):
                lowest = int(missing.min())
                result.first_keyless = (
                    lowest if result.first_keyless < 0 else min(lowest, result.first_keyless)
                )
    return result


def _collect(rows: UInt64Array, findings: ByteArray, broken: list[tuple[int, int, bool]]) -> None:
    """Add the first violations of each kind, by offset, to ``broken``."""
    for finding in np.unique(findings[findings >= Finding.LOST]):
        found = np.flatnonzero(findings == finding)
        lowest = found[np.argsort(rows[found, 2])[:_EXAMPLES]]
        broken += [
            (int(finding), int(rows[n, 2]), bool(rows[n, 1] & np.uint64(AFTER))) for n in lowest
        ]
    broken[:] = first_of_each_kind(broken)


def first_of_each_kind(broken: Sequence[tuple[int, int, bool]]) -> list[tuple[int, int, bool]]:
    """The first violations of each kind, sorted by kind and offset."""
    kept: list[tuple[int, int, bool]] = []
    for found in sorted(broken):
        if len(kept) < _EXAMPLES or kept[-_EXAMPLES][0] != found[0]:
            kept.append(found)
    return kept


_LOWEST = -(1 << 63)
_HIGHEST = (1 << 63) - 1


class _Buckets:
    """The rows of the unit's buckets, in the blocks of both logs."""

    def __init__(self, unit: CompareUnit) -> None:
        self._unit = unit
        self._readers: dict[str, ScratchReader] = {}
        self._sides = [self._stretches(unit.before), self._stretches(unit.after)]

    def __enter__(self) -> _Buckets:
        return self

    def __exit__(self, *_: object) -> None:
        for reader in self._readers.values():
            reader.close()

    def _stretches(self, blocks: Sequence[RowBlock]) -> list[tuple[RowBlock, int, int]]:
        """The parts of blocks that have rows of the unit's buckets.

        Each is (block, byte of the first row, number of rows).
        """
        unit = self._unit
        found = []
        for block in blocks:
            if block.path not in self._readers:
                self._readers[block.path] = ScratchReader(block.path)
            bounds = np.zeros(unit.end_bucket - unit.first_bucket + 1, dtype=np.uint32)
            skip = 1 if unit.first_bucket == 0 else 0
            self._readers[block.path].read_into(
                bounds[skip:], block.position + 4 * (unit.first_bucket - 1 + skip)
            )
            count = int(bounds[-1]) - int(bounds[0])
            if count:
                at = block.position + 4 * (1 << unit.bits) + ROW_BYTES * int(bounds[0])
                found.append((block, at, count))
        return found

    def parts(self) -> list[tuple[int, int]]:
        """Ranges of offsets, the highest offsets first. The rows of each range fit in memory."""
        stretches = sorted(
            (stretch for side in self._sides for stretch in side),
            key=lambda s: s[0].first_offset,
            reverse=True,
        )
        cuts, held = [_HIGHEST], 0
        for n, (block, _, count) in enumerate(stretches):
            held += count
            following = stretches[n + 1][2] if n + 1 < len(stretches) else 0
            if self._unit.by_version:  # one part, because a superseding record may be anywhere
                break
            if (
                held + following > self._unit.most_rows
                and following
                and block.first_offset < cuts[-1]
            ):
                cuts.append(block.first_offset)
                held = 0
        cuts.append(_LOWEST)
        return [(first, end) for end, first in zip(cuts, cuts[1:], strict=False)]

    def rows(self, first: int, end: int) -> Iterator[UInt64Array]:
        """Yield the rows with offsets from ``first`` to below ``end``.

        The earlier log's rows are first, then the present log's.
        """
        for side in self._sides:
            for block, at, count in side:
                if block.last_offset < first or block.first_offset >= end:
                    continue
                rows: UInt64Array = np.empty((count, ROW_WORDS), dtype=np.uint64)
                self._readers[block.path].read_into(rows, at)
                if block.first_offset < first or block.last_offset >= end:
                    offsets = rows[:, 2].view(np.int64)
                    rows = rows[(offsets >= first) & (offsets < end)]
                yield rows
