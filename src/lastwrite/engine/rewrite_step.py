"""Step four, rewrite, on the driver: choose the segments to join, and divide the writing among
tasks.

``engine.rewrite`` runs on the workers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from msgspec import structs

from lastwrite.engine.context import Context
from lastwrite.engine.partition import (
    ElectedPartition,
    FinishedPartition,
    RewrittenPartition,
    by_partition,
    finish,
)
from lastwrite.engine.retain import Replacement
from lastwrite.engine.rules.transactions import spent_changes
from lastwrite.engine.rules.untouched import rewritten_runs
from lastwrite.engine.scan_step import policy_of
from lastwrite.engine.shares import Shares, rewrite_cost
from lastwrite.errors import LogError
from lastwrite.model.log import AbortedTransaction
from lastwrite.model.work import RewriteUnit, SegmentOutput
from lastwrite.reports.compaction import Status


def rewrite_partitions(
    context: Context, partitions: Sequence[ElectedPartition]
) -> list[RewrittenPartition | FinishedPartition]:
    """Stage the new segments of partitions, or measure them in a dry run.

    A partition with a damaged piece is not processed further.
    """
    chosen = [_choose_runs(context, each) for each in partitions]
    costs = [
        cost for each, runs in zip(partitions, chosen, strict=True) for cost in _costs(each, runs)
    ]
    shares = Shares(costs, context.workers)
    if context.writes:
        written = [each.plan.log for each, runs in zip(partitions, chosen, strict=True) if runs]
        to = context.options.to
        if begun := [log for log in written if context.system.starts_writing(log, to)]:
            context.system.begin_writing(begun, to)
    units: list[RewriteUnit] = []
    errors: dict[int, Exception] = {}
    for each, runs in zip(partitions, chosen, strict=True):
        try:
            folder = None
            if context.writes and runs:
                folder = context.system.output_folder(each.plan.log, context.options.to)
            for group, run in enumerate(runs):
                units += _units(context, each, (group, run), shares, folder)
        except (LogError, OSError) as error:
            errors[each.plan.number] = error
    units = [unit for unit in units if unit.partition not in errors]
    made, failed = by_partition(context.exchange.rewrite(units, context.progress))
    errors = {**failed, **errors}
    return [
        _rewritten(each, runs, made[each.plan.number], errors.get(each.plan.number))
        for each, runs in zip(partitions, chosen, strict=True)
    ]


def _choose_runs(context: Context, partition: ElectedPartition) -> list[tuple[int, ...]]:
    """The runs of segments to rewrite, as segment indexes. Each run becomes one new segment."""
    segments = partition.plan.log.segments
    records, lost = [0] * len(segments), [0] * len(segments)
    for piece, scan in zip(partition.plan.pieces, partition.scans, strict=True):
        records[piece.segment] += scan.records
        lost[piece.segment] += scan.losers
    changes = _changes(context, partition)
    like_broker = context.options.like_broker
    groups = context.system.group(
        partition.plan.log, partition.plan.decision.end, context.options.config, like_broker
    )
    runs: list[tuple[int, ...]] = []
    for group in groups:
        if like_broker or context.system.makes_one_segment:
            runs.append(tuple(group))
            continue
        sizes = [segments[n].size_bytes for n in group]
        left = [
            size * (records[n] - lost[n]) // max(1, records[n])
            for n, size in zip(group, sizes, strict=True)
        ]
        changed = [bool(changes[n]) for n in group]
        runs += [tuple(group[first:end]) for first, end in rewritten_runs(sizes, left, changed)]
    return runs


def _changes(context: Context, partition: ElectedPartition) -> list[int]:
    """The number of records and batches in each segment that change.

    A segment without changes can stay unchanged in the log.
    """
    plan, transactions = partition.plan, partition.transactions
    segments = plan.log.segments
    changes = [0] * len(segments)
    for piece, scan, spent in zip(
        plan.pieces, partition.scans, transactions.used_markers, strict=True
    ):
        changes[piece.segment] += scan.losers + scan.changed_batches
        changes[piece.segment] += sum(spent_changes(marker, partition.policy) for marker in spent)
    # A segment whose transaction index disagrees with the log counts as changed, so that its index
    # is rebuilt.
    told = {entry.last_offset for entry in plan.log.aborted}
    known = {entry.last_offset for entry in plan.aborted}
    for offset in (told - known) | (known & transactions.aborting) - told:
        changes[bisect_right(segments, offset, key=lambda each: each.base_offset) - 1] += 1
    return changes


def _costs(partition: ElectedPartition, runs: Sequence[tuple[int, ...]]) -> list[int]:
    """The cost of rewriting each run, in bytes read."""
    costs = [0] * len(partition.plan.log.segments)
    for piece, scan in zip(partition.plan.pieces, partition.scans, strict=True):
        costs[piece.segment] += rewrite_cost(piece, scan)
    return [sum(costs[place] for place in run) for run in runs]


def _units(
    context: Context,
    partition: ElectedPartition,
    numbered: tuple[int, tuple[int, ...]],
    shares: Shares,
    folder: str | None,
) -> Iterator[RewriteUnit]:
    """The units of work that write one new segment, one unit for each of its parts.

    ``numbered`` is the segment's number in the partition, and the indexes of the segments it
    replaces. ``folder`` is the folder where the segment is staged. None means that only its size is
    measured.
    """
    group, run = numbered
    plan, scans, spent = partition.plan, partition.scans, partition.transactions.used_markers
    first, last = plan.log.segments[run[0]], plan.log.segments[run[-1]]
    pieces = [piece for piece in plan.pieces if piece.segment in run]
    end_offset = max(
        (scans[piece.number].next_offset for piece in pieces), default=first.base_offset
    )
    fits = end_offset - 1 - first.base_offset <= context.system.offset_span
    may_cut = fits and context.system.joins_parts
    costs = {piece: rewrite_cost(piece, scans[piece.number]) for piece in pieces}
    parts = shares.take(costs, may_cut=may_cut)
    aborted = _aborted_in(partition, run)
    for n, part in enumerate(parts):
        yield RewriteUnit(
            partition=plan.number,
            system=context.system.name,
            group=group,
            part=n,
            parts=len(parts),
            base_offset=first.base_offset,
            pieces=tuple(part),
            states=tuple(scans[piece.number].states_location for piece in part),
            used_markers=tuple(
                tuple(marker.ordinal for marker in spent[piece.number]) for piece in part
            ),
            policy=policy_of(partition.policy, part),
            index_interval_bytes=plan.decision.index_interval_bytes,
            limits=context.limits,
            folder=folder,
            mtime_ns=last.mtime_ns,
            aborted=aborted,
            reports_rest=context.options.keep_scans,
            cost=sum(costs[piece] for piece in part),
            like_broker=context.options.like_broker,
            source=first.path,
        )


def _aborted_in(
    partition: ElectedPartition, run: tuple[int, ...]
) -> tuple[AbortedTransaction, ...]:
    """The transaction index entries for the segment that replaces the segments ``run``."""
    log = partition.plan.log
    base_offset, end_offset = log.segments[run[0]].base_offset, log.segment_end(run[-1])
    return tuple(
        entry
        for entry in partition.plan.aborted
        if base_offset <= entry.last_offset < end_offset
        and entry.last_offset in partition.transactions.aborting
    )


def _rewritten(
    partition: ElectedPartition,
    runs: Sequence[tuple[int, ...]],
    outputs: Sequence[SegmentOutput],
    error: Exception | None,
) -> RewrittenPartition | FinishedPartition:
    problems = [part.problem for part in outputs if part.problem is not None]
    report = structs.replace(partition.report, problems=[*partition.report.problems, *problems])
    error = next((part.error for part in outputs if part.error is not None), None) or error
    if problems:
        report.status, report.reason = Status.DAMAGED, str(problems[-1])
        return finish(partition, report, outputs)
    if error is not None:
        return finish(partition, report, outputs, error)
    parts: list[list[SegmentOutput]] = [[] for _ in runs]
    for part in sorted(outputs, key=lambda part: part.part):
        parts[part.group].append(part)
    return RewrittenPartition(
        plan=partition.plan,
        report=report,
        scans=partition.scans,
        winners=partition.winners,
        policy=partition.policy,
        replacements=[
            Replacement(run, tuple(of_run), _aborted_in(partition, run))
            for run, of_run in zip(runs, parts, strict=True)
        ],
    )
