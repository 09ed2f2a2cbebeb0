"""The exchange for clusters: blocks and losers go through Spark's own shuffle.

No folder is shared but the log itself. A block is cut by the elect units' bucket ranges and each
part goes to the task of its unit; the losers come back packed, four bytes each, to the task that
rewrites their piece, which scans the piece once more for the states that election did not touch.
What a stage made is kept on the executors' disks, since the driver looks at its figures before the
next one starts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from lastwrite.engine.elect import NO_KEYS, losers_among, tally
from lastwrite.engine.rewrite import fsync_outputs, rewrite
from lastwrite.engine.scan import EntryBlock, scan
from lastwrite.model.columns import SHADOWED
from lastwrite.model.policy import Strategy
from lastwrite.model.progress import Progress
from lastwrite.model.work import (
    Block,
    Elected,
    ElectUnit,
    Failed,
    PieceScan,
    RewriteUnit,
    ScanUnit,
    SegmentOutput,
)
from lastwrite.spark.runner import SparkRunner, pack, seen_from_here
from lastwrite.spark.work import guarded

if TYPE_CHECKING:
    from pyspark import RDD


class ShuffleExchange:
    """By Spark's shuffle."""

    scratch = ""

    def __init__(self, runner: SparkRunner) -> None:
        self._context = runner.context
        self._runner = runner
        self._kept: list[RDD[Any]] = []
        self._scans: dict[int, ScanUnit] = {}

    def scan(
        self, units: Sequence[ScanUnit], progress: Progress
    ) -> list[list[PieceScan] | Failed[ScanUnit]]:
        self.close()
        self._scans = {}
        for unit in units:  # one a partition, with what all of its pieces need
            seen = self._scans.get(unit.partition, unit)
            aborted = np.unique(np.concatenate((seen.aborted, unit.aborted)), axis=0)
            self._scans[unit.partition] = replace(unit, aborted=aborted)
        weights = [sum(piece.bytes for piece in unit.pieces) for unit in units]
        found = self._keep("scan", list(enumerate(units)), weights, _scan_rows, progress)
        return [found[n] for n in range(len(units))]

    def elect(
        self, units: Sequence[ElectUnit], progress: Progress
    ) -> list[Elected | Failed[ElectUnit]]:
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
        moved = self._kept[-1].flatMap(cut).partitionBy(len(tasks), lambda task: int(task))
        found = self._collect("elect", moved.mapPartitions(elect_task), sum(weights), progress)
        return [found.get(n, Elected(unit.partition, 0, {})) for n, unit in enumerate(units)]

    def rewrite(
        self, units: Sequence[RewriteUnit], progress: Progress
    ) -> list[SegmentOutput | Failed[RewriteUnit]]:
        weights = [unit.cost for unit in units]
        tasks = pack(weights, self._runner.workers)
        task_of = {n: t for t, task in enumerate(tasks) for n in task}
        place = {
            (unit.partition, piece.number): n
            for n, unit in enumerate(units)
            for piece in unit.pieces
        }
        scans = self._scans

        def address(row: tuple[str, Any]) -> Iterator[tuple[int, Any]]:
            if row[0] == "losers":
                partition, piece, losers = row[1]
                n = place.get((partition, piece))
                if n is not None:
                    yield task_of[n], (n, piece, losers)

        def rewrite_task(rows: Iterable[tuple[int, Any]]) -> Iterator[tuple[str, Any]]:
            losers: dict[tuple[int, int], list[Any]] = {}
            wanted: dict[int, RewriteUnit] = {}
            for _, (n, piece, value) in rows:
                if piece < 0:
                    wanted[n] = value
                else:
                    losers.setdefault((n, piece), []).append(value)
            for n, unit in wanted.items():
                yield (
                    "result",
                    (
                        n,
                        guarded(
                            lambda unit, n=n: _rewrite_scanned(  # type: ignore[misc]
                                unit,
                                replace(scans[unit.partition], pieces=unit.pieces),
                                {
                                    piece.number: losers.get((n, piece.number), [])
                                    for piece in unit.pieces
                                },
                            ),
                            unit,
                        ),
                    ),
                )

        if not units:
            return []
        asked = self._context.parallelize(
            [(task_of[n], (n, -1, unit)) for n, unit in enumerate(units)], len(tasks)
        )
        moved = asked.union(self._kept[-1].flatMap(address)).partitionBy(
            len(tasks), lambda task: int(task)
        )
        found = self._collect("rewrite", moved.mapPartitions(rewrite_task), sum(weights), progress)
        return [found[n] for n in range(len(units))]

    def _keep(
        self, name: str, rows: list[Any], weights: list[int], work: Any, progress: Progress
    ) -> dict[int, Any]:
        tasks = pack(weights, self._runner.workers)
        batches = [[rows[i] for i in task] for task in tasks]
        made = (
            self._context.parallelize(batches, max(1, len(batches)))
            .flatMap(lambda batch: batch)
            .flatMap(work)
        )
        return self._collect(name, made, sum(weights), progress)

    def _collect(self, name: str, made: RDD[Any], total: int, progress: Progress) -> dict[int, Any]:
        """Keep what a stage made, and bring its results to the driver."""
        from pyspark import StorageLevel

        progress.stage(name, total)
        kept = made.persist(StorageLevel.DISK_ONLY)
        self._kept.append(kept)
        results = kept.filter(lambda row: row[0] == "result").map(lambda row: row[1])
        found = dict(self._runner.run_job(name, lambda _: results.collect(), progress))
        progress.advance(total)
        return (
            found
            if self._runner.is_here
            else {n: seen_from_here(answer) for n, answer in found.items()}
        )

    def close(self) -> None:
        for kept in self._kept:
            with contextlib.suppress(Exception):  # a JVM that has gone keeps nothing
                kept.unpersist()
        self._kept = []


def _scan_rows(numbered: tuple[int, ScanUnit]) -> Iterator[tuple[str, Any]]:
    """Blocks as rows, then the unit's result."""
    n, unit = numbered
    blocks: list[Any] = []
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
        for result, _ in scan(unit, keep):
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


def _cut_block(
    unit: ElectUnit, ends: Any, rows: Any, lengths: Any, keys: Any
) -> tuple[Any, Any, Any, Any]:
    """The part of a block that lies in the unit's buckets."""
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
    parts.sort(key=lambda part: (part[0], part[1]))  # piece, serial: the log's order
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


def _rewrite_scanned(
    unit: RewriteUnit, again: ScanUnit, losers: dict[int, list[Any]]
) -> SegmentOutput:
    """Rewrite with the states of a second scan, which is the first one's equal, and the losers on
    top.
    """
    states = []
    for result, piece_states in scan(again, lambda block: None):
        marked = piece_states.copy()
        for ordinals in losers[result.piece]:
            marked[ordinals] |= SHADOWED
        states.append(marked)
    made = rewrite(unit, tuple(states))
    fsync_outputs([made])
    return made
