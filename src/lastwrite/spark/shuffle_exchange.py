"""The exchange for clusters, which moves blocks and losers through Spark's own shuffle.

Only the log itself is in a shared folder. Blocks are split by the bucket ranges of the elect units,
and each part is sent to the task of its unit. The task that rewrites a piece receives the piece's
losers, four bytes each. It also receives the compressed record states from the scan, which are a
few bytes for a piece of live records, so that it need not scan again. The output of a stage stays
on the executors' disks, because the driver checks its figures before it starts the next stage.
"""

from __future__ import annotations

import contextlib
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from lastwrite.engine.context import WholeWork
from lastwrite.engine.elect import NO_KEYS, losers_among, tally
from lastwrite.engine.partition import FinishedPartition, PartitionPlan, RewrittenPartition
from lastwrite.engine.rewrite import fsync_outputs, rewrite
from lastwrite.engine.scan import EntryBlock, scan
from lastwrite.errors import LogError
from lastwrite.model.columns import SHADOWED, ByteArray
from lastwrite.model.log import KeptScan
from lastwrite.model.policy import Strategy
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
    ScannedEntries,
    ScanUnit,
    SegmentOutput,
)
from lastwrite.spark.folder_exchange import begin_one_stage
from lastwrite.spark.profile import StageProfile, TaskClock
from lastwrite.spark.runner import SparkRunner, explain_worker_errors, pack
from lastwrite.spark.work import guarded
from lastwrite.spark.worker import settle

if TYPE_CHECKING:
    from pyspark import RDD


class ShuffleExchange:
    """An exchange that uses Spark's shuffle."""

    scratch = ""

    def __init__(self, runner: SparkRunner, whole_bytes: int) -> None:
        self.one_stage_bytes = whole_bytes
        self._context = runner.context
        self._runner = runner
        self._persisted: list[RDD[Any]] = []

    def scan(
        self, units: Sequence[ScanUnit], progress: Progress
    ) -> list[list[PieceScan] | FailedUnit[ScanUnit]]:
        self.clear()
        weights = [sum(piece.bytes for piece in unit.pieces) for unit in units]
        found = self._keep("scan", list(enumerate(units)), weights, _scan_rows, progress)
        return [found[n] for n in range(len(units))]

    def elect(
        self, units: Sequence[ElectUnit], progress: Progress
    ) -> list[ElectionResult | FailedUnit[ElectUnit]]:
        weights = [unit.entry_bytes for unit in units]
        tasks = pack(weights, self._runner.workers)
        task_of = {n: t for t, task in enumerate(tasks) for n in task}
        of_unit = {n: (unit.partition, unit.strategy) for n, unit in enumerate(units)}
        by_partition: dict[int, list[tuple[int, ElectUnit]]] = {}
        for n, unit in enumerate(units):
            by_partition.setdefault(unit.partition, []).append(
                (n, replace(unit, blocks=(), dirty_from=(), last_records=(), states=()))
            )
        borders = {
            (unit.partition, block.piece): border
            for unit in units
            for block, *border in zip(unit.blocks, unit.dirty_from, unit.last_records, strict=True)
        }

        def cut(row: tuple[str, Any]) -> Iterator[tuple[int, Any]]:
            if row[0] == "block":
                partition, piece, serial, ends, rows, lengths, keys = row[1]
                for n, unit in by_partition.get(partition, ()):
                    part = _cut_block(unit, ends, rows, lengths, keys)
                    yield task_of[n], (n, piece, serial, *borders[partition, piece], *part)

        def elect_task(rows: Iterable[tuple[int, Any]]) -> Iterator[tuple[str, Any]]:
            held: dict[int, list[Any]] = {}
            for _, (n, *part) in rows:
                held.setdefault(n, []).append(part)
            for n, parts in held.items():
                yield from _elect_parts(n, *of_unit[n], parts)

        if not units:
            return []
        moved = self._persisted[-1].flatMap(cut).partitionBy(len(tasks), lambda task: int(task))
        found = self._collect("elect", moved, elect_task, sum(weights), progress)
        return [found.get(n, ElectionResult(unit.partition, 0, {})) for n, unit in enumerate(units)]

    def rewrite(
        self, units: Sequence[RewriteUnit], progress: Progress
    ) -> list[SegmentOutput | FailedUnit[RewriteUnit]]:
        weights = [unit.cost for unit in units]
        tasks = pack(weights, self._runner.workers)
        task_of = {n: t for t, task in enumerate(tasks) for n in task}
        place = {
            (unit.partition, piece.number): n
            for n, unit in enumerate(units)
            for piece in unit.pieces
        }

        def address(row: tuple[str, Any]) -> Iterator[tuple[int, Any]]:
            if row[0] in ("losers", "states"):
                partition, piece, value = row[1]
                n = place.get((partition, piece))
                if n is not None:
                    yield task_of[n], (n, piece, value)

        def rewrite_task(rows: Iterable[tuple[int, Any]]) -> Iterator[tuple[str, Any]]:
            losers: dict[tuple[int, int], list[Any]] = {}
            states: dict[tuple[int, int], bytes] = {}
            wanted: dict[int, RewriteUnit] = {}
            for _, (n, piece, value) in rows:
                if piece < 0:
                    wanted[n] = value
                elif isinstance(value, bytes):
                    states[n, piece] = value
                else:
                    losers.setdefault((n, piece), []).append(value)

            def work(n: int, unit: RewriteUnit) -> SegmentOutput:
                pieces = [piece.number for piece in unit.pieces]
                marked = [
                    _marked(states.get((n, piece)), losers.get((n, piece), [])) for piece in pieces
                ]
                return _rewrite_scanned(unit, marked)

            for n, unit in wanted.items():
                yield "result", (n, guarded(partial(work, n), unit))

        if not units:
            return []
        asked = self._context.parallelize(
            [(task_of[n], (n, -1, unit)) for n, unit in enumerate(units)], len(tasks)
        )
        # If no record has a key, there was no election, so there is only the RDD of the scan.
        made = (
            self._persisted[0]
            if len(self._persisted) == 1
            else self._persisted[0].union(self._persisted[-1])
        )
        moved = asked.union(made.flatMap(address)).partitionBy(len(tasks), lambda task: int(task))
        found = self._collect("rewrite", moved, rewrite_task, sum(weights), progress)
        return [found[n] for n in range(len(units))]

    def begin_one_stage(
        self, plans: Sequence[PartitionPlan], work: WholeWork, progress: Progress
    ) -> PendingResult[list[RewrittenPartition | FinishedPartition | FailedUnit[PartitionPlan]]]:
        return begin_one_stage(self._runner, work, plans, progress)

    def keep(
        self,
        units: Sequence[CacheUnit],
        work: Callable[..., KeptScan],
        progress: Progress,
    ) -> list[KeptScan | FailedUnit[Any]]:
        weights = [unit.entry_bytes for unit in units]
        tasks = pack(weights, self._runner.workers)
        task_of = {n: t for t, task in enumerate(tasks) for n in task}
        place = {
            (unit.partition, scan.piece): n for n, unit in enumerate(units) for scan in unit.scans
        }

        def address(row: tuple[str, Any]) -> Iterator[tuple[int, Any]]:
            if row[0] in ("block", "losers", "states"):
                partition, piece, *value = row[1]
                n = place.get((partition, piece))
                if n is not None:
                    yield task_of[n], (n, row[0], piece, value[:3])

        def keep_task(rows: Iterable[tuple[int, Any]]) -> Iterator[tuple[str, Any]]:
            wanted: dict[int, CacheUnit] = {}
            found: dict[tuple[int, str, int], list[Any]] = {}
            for _, (n, kind, piece, value) in rows:
                if kind == "unit":
                    wanted[n] = value
                else:
                    found.setdefault((n, kind, piece), []).append(value)

            def scanned(n: int, piece: int) -> ScannedEntries:
                blocks = sorted(found.get((n, "block", piece), []), key=lambda block: block[0])
                states = found.get((n, "states", piece), [[None]])
                losers = [value[0] for value in found.get((n, "losers", piece), [])]
                return ScannedEntries(
                    [
                        np.concatenate((ends.view(np.uint8), rows.reshape(-1).view(np.uint8)))
                        for _, ends, rows in blocks
                    ],
                    _marked(states[0][0], losers),
                )

            def write(n: int, unit: CacheUnit) -> KeptScan:
                return work(unit, {scan.piece: scanned(n, scan.piece) for scan in unit.scans})

            for n, unit in wanted.items():
                yield "result", (n, guarded(partial(write, n), unit))

        asked = self._context.parallelize(
            [(task_of[n], (n, "unit", -1, unit)) for n, unit in enumerate(units)], len(tasks)
        )
        made = self._context.union([asked, *(kept.flatMap(address) for kept in self._persisted)])
        moved = made.partitionBy(len(tasks), lambda task: int(task))
        answers = self._collect("keep", moved, keep_task, sum(weights), progress)
        return [answers[n] for n in range(len(units))]

    def _keep(
        self, name: str, rows: list[Any], weights: list[int], work: Any, progress: Progress
    ) -> dict[int, Any]:
        tasks = pack(weights, self._runner.workers)
        batches = [[rows[i] for i in task] for task in tasks]
        asked = self._context.parallelize(batches, max(1, len(batches)))

        def scan_task(some: Iterable[Any]) -> Iterator[tuple[str, Any]]:
            for batch in some:
                for row in batch:
                    yield from work(row)

        return self._collect(name, asked, scan_task, sum(weights), progress)

    def _collect(
        self, name: str, asked: RDD[Any], task: Any, total: int, progress: Progress
    ) -> dict[int, Any]:
        """Run ``task`` on each partition of the RDD ``asked``, and return the results.

        The rows that the task produces stay on the executors.
        """
        from pyspark import StorageLevel

        def clocked(rows: Iterable[Any]) -> Iterator[tuple[str, Any]]:
            clock = TaskClock()
            yield from task(rows)
            settle()
            yield "profile", clock.measure()

        progress.stage(name, total)
        kept = asked.mapPartitions(clocked).persist(StorageLevel.DISK_ONLY)
        self._persisted.append(kept)
        told = kept.filter(lambda row: row[0] in ("result", "profile"))
        begin = time.perf_counter()
        rows = self._runner.run_job(name, lambda _: told.collect(), progress)
        seconds = time.perf_counter() - begin
        profiles = [value for kind, value in rows if kind == "profile"]
        stage = self._runner.profile.setdefault(name, StageProfile())
        stage.add(seconds, self._runner.workers, profiles)
        found = dict(value for kind, value in rows if kind == "result")
        progress.advance(total)
        return (
            found
            if self._runner.is_here
            else {n: explain_worker_errors(answer) for n, answer in found.items()}
        )

    def clear(self) -> None:
        for kept in self._persisted:
            # an error means that the JVM has ended, with all rows
            with contextlib.suppress(Exception):
                kept.unpersist()
        self._persisted = []

    def close(self) -> None:
        self.clear()


def _scan_rows(numbered: tuple[int, ScanUnit]) -> Iterator[tuple[str, Any]]:
    """Scan a unit. Yields its result, then its blocks and record states, as rows."""
    n, unit = numbered
    blocks: list[Any] = []
    states: list[tuple[int, int, bytes]] = []
    # Only pieces in the round's range need states, because other pieces are not rewritten.
    keyed = {piece.number for piece in unit.pieces if piece.keyed}
    results: list[PieceScan] = []

    def keep(block: EntryBlock) -> None:
        blocks.append(
            (
                unit.partition,
                block.piece,
                len(blocks),
                block.ends.copy(),
                block.rows.copy(),
                block.lengths,
                block.keys,
            )
        )

    def work(unit: ScanUnit) -> list[PieceScan]:
        for result, of_piece in scan(unit, keep):
            if result.piece in keyed:
                states.append((unit.partition, result.piece, zlib.compress(of_piece, 1)))
            result.blocks = [
                Block(b[1], "", 0, len(b[4]), 0 if b[6] is None else len(b[6]), b[4].shape[1])
                for b in blocks
                if b[1] == result.piece
            ]
            results.append(result)
        return results

    yield "result", (n, guarded(work, unit))
    for block in blocks:
        yield "block", block
    for each in states:
        yield "states", each


def _cut_block(
    unit: ElectUnit, ends: Any, rows: Any, lengths: Any, keys: Any
) -> tuple[Any, Any, Any, Any]:
    """The part of a block that belongs to the buckets of the unit."""
    start = int(ends[unit.first_bucket - 1]) if unit.first_bucket else 0
    end = int(ends[unit.end_bucket - 1])
    part_ends = ends[unit.first_bucket : unit.end_bucket] - np.uint32(start)
    if lengths is None:
        return part_ends, rows[start:end], None, None
    places = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    return (
        part_ends,
        rows[start:end],
        lengths[start:end],
        keys[int(places[start]) : int(places[end])],
    )


def _elect_parts(
    n: int, partition: int, strategy: Strategy, parts: list[Any]
) -> Iterator[tuple[str, Any]]:
    # Sort by piece and block number, because the election needs the log's order.
    parts.sort(key=lambda part: (part[0], part[1]))
    pieces, _, dirty_from, last_records, ends, blocks, lengths, keys = zip(*parts, strict=True)
    key_at, all_keys = NO_KEYS
    if lengths[0] is not None:
        key_at = np.concatenate([np.zeros(1, np.int64), *lengths]).cumsum(dtype=np.int64)
        all_keys = np.concatenate(keys)
    blocks = tuple(np.ascontiguousarray(rows) for rows in blocks)
    winners, losers = losers_among(
        [rows.ctypes.data for rows in blocks],
        blocks[0].shape[1],
        np.stack(ends),
        dirty_from,
        key_at,
        all_keys,
        strategy,
    )
    for piece, lost in zip(pieces, losers, strict=True):
        if len(lost):
            yield "losers", (partition, piece, lost)
    yield "result", (n, tally((partition, strategy), winners, pieces, last_records, losers))


def _marked(states: bytes | None, losers: Sequence[Any]) -> ByteArray:
    """The record states of a piece, with superseded records marked."""
    if states is None:
        raise LogError(
            "the record states of a segment's piece did not arrive", remedy="run the command again"
        )
    marked = np.frombuffer(bytearray(zlib.decompress(states)), dtype=np.uint8)
    for ordinals in losers:
        marked[ordinals] |= SHADOWED
    return marked


def _rewrite_scanned(unit: RewriteUnit, states: Sequence[ByteArray]) -> SegmentOutput:
    """Rewrite the unit with the record states from scan and election."""
    made = rewrite(unit, tuple(states))
    fsync_outputs([made])
    return made
