"""Move data between stages in scratch files.

Elections get the entries of keys, and rewrites get the superseded records (losers).

``FolderExchange`` writes packed blocks to scratch files that every worker of this machine can read.
Only their positions travel through Spark. On one machine this is faster than Spark's shuffle. A
block in a file::

    uint32 per bucket: its end, counted in entries · 16 bytes per entry (24 with a version), by
    bucket and, with exact comparison: uint32 per entry, the key's length · the keys

Both exchanges give the same results; tests compare them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

from lastwrite.engine.buffers import Buffers
from lastwrite.engine.context import WholeWork
from lastwrite.engine.elect import LoserMarker, elect
from lastwrite.engine.partition import FinishedPartition, PartitionPlan, RewrittenPartition
from lastwrite.engine.profile import step
from lastwrite.engine.rewrite import fsync_outputs, rewrite
from lastwrite.engine.scan import EntryBlock, scan
from lastwrite.errors import LogError
from lastwrite.model.log import KeptScan
from lastwrite.model.progress import Progress
from lastwrite.model.work import (
    Block,
    CacheUnit,
    ElectionResult,
    ElectUnit,
    FailedUnit,
    PendingResult,
    PieceScan,
    RewriteUnit,
    ScanUnit,
    SegmentOutput,
)
from lastwrite.spark.work import InlineRunner, Runner, Task, each, is_repeated
from lastwrite.storage.scratch import ScratchFolders, ScratchShare, ScratchWriter

_ENTRY_SHARE = 16  # record states take about 1/16 of the scratch bytes, and entries take the rest
_SYNC_BYTES = 256 << 20
_SYNC_UNITS = 256


def scan_to_folder(units: Sequence[ScanUnit]) -> Iterator[list[PieceScan] | FailedUnit[ScanUnit]]:
    """Scan the pieces of units to two scratch files: one for entries, one for record states."""
    if units:
        with (
            ScratchWriter(units[0].scratch, "entries") as entries,
            ScratchWriter(units[0].scratch, "states") as states,
        ):
            yield from each(partial(_scan_unit, entries, states, Buffers()))(units)


def _scan_unit(
    entries: ScratchWriter, states: ScratchWriter, buffers: Buffers, unit: ScanUnit
) -> list[PieceScan]:
    blocks: list[Block] = []
    # a repeated task uses only the disk: files of its first attempt still take up the memory
    memory_bytes = 0 if is_repeated() else unit.memory_bytes
    entries.allow(unit.memory_scratch, memory_bytes * (_ENTRY_SHARE - 1) // _ENTRY_SHARE)
    states.allow(unit.memory_scratch, memory_bytes // _ENTRY_SHARE)

    def take(block: EntryBlock) -> None:
        parts = [block.ends, block.rows]
        key_bytes = 0
        if block.lengths is not None and block.keys is not None:
            parts += [block.lengths, block.keys]
            key_bytes = len(block.keys)
        with step("write entries"):
            path, position = entries.append(*parts)
        blocks.append(
            Block(block.piece, path, position, len(block.rows), key_bytes, block.rows.shape[1])
        )

    results: list[PieceScan] = []
    for piece, (result, piece_states) in zip(unit.pieces, scan(unit, take, buffers), strict=True):
        if result.problem is None and piece.keyed:
            with step("write states"):
                result.states, result.states_at = states.append(piece_states)
            result.blocks = result.blocks or blocks
        blocks = []
        results.append(result)
    return results


def elect_and_mark(units: Sequence[ElectUnit]) -> Iterator[ElectionResult | FailedUnit[ElectUnit]]:
    """Run the elections of the units, and mark superseded records in the state files."""
    if units:
        with closing(LoserMarker(units[0].limits)) as marks:
            found = list(each(partial(elect, marks))(units))
            with step("mark"):
                marks.mark()
        yield from found


def rewrite_staged(
    units: Sequence[RewriteUnit],
) -> Iterator[SegmentOutput | FailedUnit[RewriteUnit]]:
    """Rewrite the units, and sync the new segments. Many are synced together, which is faster."""
    work = partial(rewrite, buffers=Buffers())
    for some in _stretches(units):
        results = list(each(work)(some))
        fsync_outputs([result for result in results if not isinstance(result, FailedUnit)])
        yield from results


def _stretches(units: Sequence[RewriteUnit]) -> Iterator[list[RewriteUnit]]:
    """Group units of work whose new segments are synced together.

    The bytes of a group are limited, so that its syncs do not stall the disk.
    """
    held: list[RewriteUnit] = []
    size = 0
    for unit in units:
        held.append(unit)
        size += sum(piece.bytes for piece in unit.pieces)
        if size > _SYNC_BYTES or len(held) >= _SYNC_UNITS:
            yield held
            held, size = [], 0
    if held:
        yield held


def begin_one_stage(
    runner: Runner,
    work: WholeWork,
    plans: Sequence[PartitionPlan],
    progress: Progress,
    scratch: ScratchShare | None = None,
) -> PendingResult[list[RewrittenPartition | FinishedPartition | FailedUnit[PartitionPlan]]]:
    """Start tasks that run all steps for their partitions by calling ``work``.

    ``scratch`` has the folders in which tasks create their own. None means the default folders of
    each machine.
    """
    weights = [_weight_of(plan) for plan in plans]
    task: Task[PartitionPlan, RewrittenPartition | FinishedPartition] = partial(
        _collect_one_stage, work, scratch, sum(weights)
    )
    pending: PendingResult[list[Any]] = runner.begin_tasks(
        "compact", task, plans, weights, progress
    )
    return pending


def _collect_one_stage(
    work: WholeWork, scratch: ScratchShare | None, total: int, plans: Sequence[PartitionPlan]
) -> Iterator[RewrittenPartition | FinishedPartition | FailedUnit[PartitionPlan]]:
    if scratch is None:
        folders = ScratchFolders()
    else:
        # a repeated task uses only the disk: files of its first attempt still take up the memory
        part = 0 if is_repeated() else sum(map(_weight_of, plans))
        memory_bytes = scratch.memory_bytes * part // max(1, total)
        folders = ScratchFolders.within(scratch._replace(memory_bytes=memory_bytes))
    exchange = FolderExchange(InlineRunner(), folders)
    try:
        yield from work(exchange, plans)
    except (LogError, OSError, MemoryError) as error:
        yield from (FailedUnit(plan, error) for plan in plans)
    finally:
        exchange.close()


def _weight_of(plan: PartitionPlan) -> int:
    return sum(piece.scan_bytes for piece in plan.pieces)


class FolderExchange:
    """An exchange that uses scratch files on this machine."""

    def __init__(self, runner: Runner, folders: ScratchFolders, whole_bytes: int = 0) -> None:
        self._runner = runner
        self._folders = folders
        self.one_stage_bytes = whole_bytes

    @property
    def scratch(self) -> str:
        return self._folders.folder

    def scan(
        self, units: Sequence[ScanUnit], progress: Progress
    ) -> list[list[PieceScan] | FailedUnit[ScanUnit]]:
        weights = [sum(piece.scan_bytes for piece in unit.pieces) for unit in units]
        memory, memory_bytes = self._folders.memory, self._folders.memory_bytes
        if memory:
            total = max(1, sum(weights))
            units = [
                replace(unit, memory_scratch=memory, memory_bytes=memory_bytes * weight // total)
                for unit, weight in zip(units, weights, strict=True)
            ]
        pending = self._runner.begin_tasks("scan", scan_to_folder, units, weights, progress)
        return pending.result()

    def elect(
        self, units: Sequence[ElectUnit], progress: Progress
    ) -> list[ElectionResult | FailedUnit[ElectUnit]]:
        weights = [unit.entry_bytes for unit in units]
        pending = self._runner.begin_tasks("elect", elect_and_mark, units, weights, progress)
        return pending.result()

    def rewrite(
        self, units: Sequence[RewriteUnit], progress: Progress
    ) -> list[SegmentOutput | FailedUnit[RewriteUnit]]:
        weights = [unit.cost for unit in units]
        pending = self._runner.begin_tasks("rewrite", rewrite_staged, units, weights, progress)
        return pending.result()

    def begin_one_stage(
        self, plans: Sequence[PartitionPlan], work: WholeWork, progress: Progress
    ) -> PendingResult[list[RewrittenPartition | FinishedPartition | FailedUnit[PartitionPlan]]]:
        return begin_one_stage(self._runner, work, plans, progress, self._folders.share)

    def keep(
        self,
        units: Sequence[CacheUnit],
        work: Callable[..., KeptScan],
        progress: Progress,
    ) -> list[KeptScan | FailedUnit[Any]]:
        weights = [unit.entry_bytes for unit in units]
        return self._runner.run("keep", work, units, weights, progress)

    def clear(self) -> None:
        self._folders.clear()

    def close(self) -> None:
        self._folders.close()
