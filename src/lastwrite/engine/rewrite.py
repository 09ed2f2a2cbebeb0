"""Step four, rewrite: copy the surviving records into a new, staged segment.

A task rewrites the pieces that become one new segment, or some of these pieces if the segment is
large. For each chunk, the rules decide by the record states that the election has set. The format
then removes the dropped records, and the result is appended. Without a folder nothing is written,
but the sizes are still computed, so ``plan`` reports exact sizes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lastwrite.engine.buffers import Buffers
from lastwrite.engine.chunks import BatchWindows
from lastwrite.engine.profile import step
from lastwrite.engine.rules.sums import sums_of
from lastwrite.engine.rules.verdict import Verdict, are_plain, judge
from lastwrite.engine.system import Format, SegmentAppender, System, system_named
from lastwrite.errors import CorruptLog, LogError, located
from lastwrite.model.columns import (
    DROP,
    EMPTY,
    ROW_BASE_OFFSET,
    ROW_COLUMNS,
    ROW_NEXT_OFFSET,
    ROW_POSITION,
    SPENT,
    BatchTable,
    ByteArray,
    Int64Array,
)
from lastwrite.model.work import PieceLeft, RewriteUnit, ScanRange, SegmentOutput
from lastwrite.storage.problems import problem_of
from lastwrite.storage.scratch import read_states
from lastwrite.storage.staging import sync_staged
from lastwrite.storage.throttle import spender


def rewrite(
    unit: RewriteUnit, states: tuple[ByteArray, ...] | None = None, buffers: Buffers | None = None
) -> SegmentOutput:
    """Rewrite the unit's pieces.

    ``states`` has the record states by piece. None means that they are in scratch files. The units
    of a task share ``buffers``. Errors are part of the result, so that the work on other partitions
    continues. The output is not synced: see ``fsync_outputs``.
    """
    result = SegmentOutput(unit.partition, unit.group, unit.part)
    system = system_named(unit.system)
    buffers = buffers or Buffers()
    format = buffers.format(unit.system, unit.limits.plain_bytes, unit.policy.reading)
    worker = _Rewriter(unit, system, format, buffers)
    left: list[PieceLeft] = []
    try:
        for n, piece in enumerate(unit.pieces):
            with step("read states"):
                found = read_states(*unit.states[n]) if states is None else states[n]
            found[list(unit.used_markers[n])] |= SPENT
            worker.rewrite_piece(piece, found, result)
            left.append(worker.rest)
        worker.finish(result)
        result.rests = () if result.more_outputs else tuple(left)
    except CorruptLog as error:
        worker.abandon()
        result.problem = problem_of(error, unit.pieces[0].path, remedy=None)
    except (LogError, OSError) as failure:
        worker.abandon()
        result.error = failure
    result.counts = tuple(int(n) for n in worker.counts)
    result.records = int(worker.counts[Verdict.KEEP])
    return result


def fsync_outputs(outputs: Sequence[SegmentOutput]) -> None:
    """Sync the staged segments of a task to disk, together.

    Parts of a segment are not synced, because the segment is synced after they are joined.
    """
    with step("sync"):
        whole = (each for each in outputs if each.error is None and each.problem is None)
        sync_staged([each for each in whole if each.index_path])


class _Rewriter:
    """Rewrites a unit's pieces, chunk by chunk, in the worker's buffers."""

    def __init__(self, unit: RewriteUnit, system: System, format: Format, buffers: Buffers) -> None:
        self._unit = unit
        self._system = system
        self._format = format
        self._outputs: list[tuple[int, SegmentAppender]] = []
        self._begin(unit.base_offset)
        self._buffers = buffers
        self._chunks = BatchWindows(unit.limits, buffers, is_proven=True)
        self._throttle = spender(unit.limits.writing)
        self._policy = unit.policy
        self.counts: Int64Array = np.zeros(len(Verdict), dtype=np.int64)
        self._out: ByteArray = buffers.rows("out", 0, np.uint8)
        self._keep: ByteArray = buffers.rows("keep", 0, np.uint8)
        self._reserve_batches(4096)
        self._size = 0  # bytes written
        self.rest = PieceLeft(-1, 0, 0)

    def _reserve_batches(self, batches: int) -> None:
        """Allocate the per-batch columns for ``batches`` batches."""
        self._rows: Int64Array = self._buffers.rows("rows", batches, np.int64, ROW_COLUMNS)
        self._actions: ByteArray = self._buffers.rows("actions", batches, np.uint8)
        self._horizons: Int64Array = self._buffers.rows("horizons", batches, np.int64)

    def rewrite_piece(self, piece: ScanRange, states: ByteArray, result: SegmentOutput) -> None:
        at = 0
        self.rest = PieceLeft(piece.number, self._size, self._size)
        for chunk in self._chunks.of(self._format, piece):
            table = chunk.table
            batches = len(table)
            records = chunk.records
            if at + records > len(states):
                raise CorruptLog(
                    "the file has more records than the scan had read", chunk.shift, piece.path
                )
            if records > len(self._keep):
                self._keep = self._buffers.rows("keep", 2 * records, np.uint8)
            if batches > len(self._actions):
                self._reserve_batches(batches)
            keep = self._keep[:records]
            actions, horizons = self._actions[:batches], self._horizons[:batches]
            with step("judge"):
                judge(
                    table,
                    states[at : at + records],
                    self._policy,
                    piece.mtime_ns // 1_000_000,
                    keep,
                    actions,
                    horizons,
                    self.counts,
                )
            at += records
            room = self._format.rebuilt_size(table, records)
            if room > len(self._out):
                self._out = self._buffers.rows("out", room + (room >> 2), np.uint8)
            with located(piece.path, chunk.shift), step("rebuild"):
                self._out, size, filled = self._format.rebuild(
                    chunk.buffer, table, actions, horizons, keep, self._out, self._rows
                )
            if self._unit.reports_rest:
                self._note_rest(
                    table, actions, keep, states[at - records : at], self._rows[:filled]
                )
            self._size += size
            self.rest.end = self._size
            with step("write"):
                self._append(self._out[:size], self._rows[:filled])
            if self._unit.folder is not None:
                self._throttle(size)
            result.bytes_read += chunk.origin_bytes
        if at != len(states):
            raise CorruptLog(
                "the file has fewer records than the scan had read", piece.end, piece.path
            )

    def _note_rest(
        self,
        table: BatchTable,
        actions: ByteArray,
        keep: ByteArray,
        states: ByteArray,
        rows: Int64Array,
    ) -> None:
        """Add a chunk's surviving records to ``self.rest``.

        ``rows`` describes the written batches.
        """
        left, kept = self.rest, int(np.count_nonzero(keep))
        if len(rows):
            left.first_offset = (
                int(rows[0, ROW_BASE_OFFSET]) if left.first_offset < 0 else left.first_offset
            )
            left.next_offset = int(rows[-1, ROW_NEXT_OFFSET])
        left.records += kept
        left.batches += len(rows)
        # Check that only records with state 0 stay. Records with state 0 always stay, so ``kept``
        # exceeds their number if another record stays too.
        all_plain = kept == len(states) - int(np.count_nonzero(states))
        if left.is_plain and len(rows):
            _, fewest, _, flags = sums_of(table[actions != DROP])
            all_plain &= not (actions == EMPTY).any() and are_plain(fewest, flags)
        left.is_plain &= all_plain

    def _begin(self, base_offset: int) -> None:
        self._outputs.append((base_offset, self._system.appender(base_offset, self._unit)))

    def _append(self, data: ByteArray, rows: Int64Array) -> None:
        """Append batches to the new segment.

        Starts another segment if an offset is too far from the segment's base.
        """
        while len(rows):
            base, appender = self._outputs[-1]
            if (
                self._unit.parts > 1
                or rows[-1, ROW_NEXT_OFFSET] - 1 - base <= self._system.offset_span
            ):
                appender.append(data, rows)
                return
            fits = int(np.argmax(rows[:, ROW_NEXT_OFFSET] - 1 - base > self._system.offset_span))
            cut = int(rows[fits, ROW_POSITION])
            appender.append(data[:cut], rows[:fits])
            self._begin(int(rows[fits, ROW_BASE_OFFSET]))
            data, rows = data[cut:], rows[fits:].copy()
            rows[:, ROW_POSITION] -= cut

    def finish(self, result: SegmentOutput) -> None:
        """Finish all new segments of this unit.

        The first is described in ``result``, the others in ``result.more_outputs``.
        """
        bases = [base for base, _ in self._outputs]
        ends = [*bases[1:], None]
        made = [
            result,
            *(SegmentOutput(result.partition, result.group, result.part) for _ in bases[1:]),
        ]
        for new, (base, appender), end in zip(made, self._outputs, ends, strict=True):
            new.base_offset = base
            aborted = [
                entry
                for entry in self._unit.aborted
                if base <= entry.last_offset and (end is None or entry.last_offset < end)
            ]
            appender.finish(new, self._unit.mtime_ns, aborted if self._unit.parts == 1 else ())
        behind = (further for new in made[1:] for further in (new, *new.more_outputs))
        result.more_outputs = (*result.more_outputs, *behind)

    def abandon(self) -> None:
        """Remove the staged files."""
        for _, appender in self._outputs:
            appender.abandon()
