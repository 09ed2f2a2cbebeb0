"""Step five, commit: staged segments replace the old ones, and expired segments are deleted.

    in place   swap ─ checkpoint ─ delete ─ retention   every partition is swapped before a root's
                                                        checkpoint is written, and only then are
                                                        old segments deleted
    a copy     publish                                  all partitions are copied, cleaned or not
    a dry run                                           only figures are computed

A partition that fails at any point is reported as failed; the others continue.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from msgspec import structs

from lastwrite.engine.account import account_round, records_by_segment
from lastwrite.engine.context import Context
from lastwrite.engine.partition import FinishedPartition, RewrittenPartition, failed
from lastwrite.engine.retain import account_retention, after_round, end_without_round
from lastwrite.engine.rules.retention import Retention
from lastwrite.engine.system import CommitPlan, SegmentParts, System
from lastwrite.errors import LogError
from lastwrite.model.log import PartitionLog, Segment
from lastwrite.model.work import SegmentOutput
from lastwrite.reports.compaction import PartitionReport
from lastwrite.storage import deferred_unlink

_SIDE_BY_SIDE = 256

T = TypeVar("T")


@dataclass(slots=True)
class _Commit:
    """The commit of one partition: its plan and its progress."""

    partition: RewrittenPartition | FinishedPartition
    new: CommitPlan | None = None  # new content of the log, or of its copy
    after: PartitionLog | None = None  # the log after the round
    retention: Retention | None = None  # expired segments of ``after``, which the commit deletes
    error: Exception | None = None

    @property
    def open(self) -> RewrittenPartition | None:
        """The rewritten partition. None if it was not rewritten, or if its commit has failed."""
        is_open = isinstance(self.partition, RewrittenPartition) and self.error is None
        return self.partition if is_open else None  # type: ignore[return-value]

    def fail(self, system: System, error: Exception) -> None:
        self.error, self.retention, self.new = error, None, None
        self.discard(system)

    def discard(self, system: System) -> None:
        for part in self.partition.written:
            system.discard(part)


def commit(
    context: Context, partitions: Sequence[RewrittenPartition | FinishedPartition]
) -> list[PartitionReport]:
    """Commit the partitions of a wave together. Returns their reports in the same order."""
    wave = [_Commit(partition) for partition in partitions]
    weights = [sum(part.bytes_written for part in each.partition.written) for each in wave]
    context.progress.stage("commit", sum(weights))
    for first in range(0, len(wave), _SIDE_BY_SIDE):
        some = wave[first : first + _SIDE_BY_SIDE]
        for each in some:
            _prepare(context, each)
        _keep(context, some)
        _publish(context, some)
        context.progress.advance(sum(weights[first : first + _SIDE_BY_SIDE]))
    if context.is_in_place:
        with deferred_unlink.after_syncs():
            _finish_in_place(context, wave)
    return [_report(context, each) for each in wave]


def _prepare(context: Context, each: _Commit) -> None:
    """Plan the new content of a partition's log, or of its copy."""
    last = each.partition
    try:
        if isinstance(last, RewrittenPartition):
            context.options.check()
            each.after = after_round(context.system, last.plan.log, last.replacements)
            each.retention = _expired(context, each.after)
            if context.writes:
                each.new = _joined(context, last, each.retention)
        elif last.resting is not None and last.log is not None:
            each.after = last.log
            each.retention = _expired(context, each.after)
            each.new = CommitPlan(last.log, retention=each.retention)
        else:
            each.discard(context.system)
            each.new = None if last.log is None else CommitPlan(last.log)
    except (LogError, OSError) as error:
        each.fail(context.system, error)


def _expired(context: Context, log: PartitionLog) -> Retention:
    return context.system.expired(log, context.options.config, context.options.now_ms)


def _joined(context: Context, partition: RewrittenPartition, retention: Retention) -> CommitPlan:
    """Join segments that were written in parts, and plan the new content of the log."""
    plan, system = partition.plan, context.system
    sources: list[Sequence[Segment]] = []
    made: list[SegmentOutput] = []
    folder = system.output_folder(plan.log, context.options.to) if partition.replacements else ""
    for each in partition.replacements:
        replaced = [plan.log.segments[place] for place in each.places]
        whole = system.join_parts(
            SegmentParts(
                log=plan.log,
                sources=replaced,
                parts=each.parts,
                folder=folder,
                index_interval_bytes=plan.decision.index_interval_bytes,
                limits=context.limits,
                aborted=each.aborted,
            )
        )
        made += (whole, *whole.more_outputs)
        sources += (replaced, *([] for _ in whole.more_outputs))
    aborted = [entry for each in partition.replacements for entry in each.aborted]
    return CommitPlan(
        plan.log, sources, made, plan.decision.end, retention, partition.policy, aborted
    )


def _keep(context: Context, some: Sequence[_Commit]) -> None:
    """Store the scans of archived segments. The commit lists them in the manifests."""
    pairs = [(each, each.open, each.new) for each in some if each.open and each.new is not None]
    if context.scan_cache is None or not pairs:
        return
    found = context.scan_cache.store(context, [open for _, open, _ in pairs if open is not None])
    for (each, _, new), kept in zip(pairs, found, strict=True):
        assert new is not None
        each.new = replace(new, scans=kept)


def _publish(context: Context, some: Sequence[_Commit]) -> None:
    """Swap new segments in, or publish copies. Old segments stay until the checkpoint is stored."""
    system = context.system
    if context.is_in_place:
        new = [(each, each.new) for each in some if each.open and each.new is not None]
        _for_all(system, system.swap, new)
    elif context.options.to is not None:
        copies = [(each, each.new) for each in some if each.new is not None]
        _for_all(system, partial(system.publish_copies, to=context.options.to), copies)


def _for_all(
    system: System,
    work: Callable[[list[T]], Sequence[Exception | None]],
    some: Sequence[tuple[_Commit, T]],
) -> None:
    """Call ``work`` once, with the values in ``some``.

    ``work`` returns an error or None for each value. A partition with an error fails.
    """
    for (each, _), error in zip(some, work([value for _, value in some]), strict=True):
        if error is not None:
            each.fail(system, error)


def _finish_in_place(context: Context, wave: Sequence[_Commit]) -> None:
    """Write checkpoints, delete replaced segments and apply retention, after all swaps."""
    system = context.system
    _record(system, wave)
    cache = context.scan_cache
    if cache is not None:
        cache.write(context, [each.open for each in wave if each.open])
    swapped = [(each, each.open.plan.log) for each in wave if each.open and each.open.replacements]
    _for_all(system, system.delete_replaced, swapped)
    # Retention is applied in one call, because the partitions of a root share a log start
    # checkpoint.
    judged = [
        (each, (each.after, each.retention))
        for each in wave
        if each.after is not None and each.retention is not None
    ]
    _for_all(system, system.retain, judged)
    for each in wave:
        if each.open and cache is not None:
            cache.install(context, each.open)


def _record(system: System, wave: Sequence[_Commit]) -> None:
    """Write each root's checkpoint once, after all swaps.

    If a checkpoint were written before a swap, a crash between the two would leave dirty records
    below the checkpoint.
    """
    by_root: dict[str, list[tuple[_Commit, RewrittenPartition]]] = {}
    for each in wave:
        if each.open:
            root = system.root_of(each.open.plan.log.folder)
            by_root.setdefault(root, []).append((each, each.open))
    for root, inside in by_root.items():
        ends = {open.plan.log.name: open.plan.decision.end for _, open in inside}
        try:
            system.record(root, ends)
        except (LogError, OSError) as error:
            for each, _ in inside:
                each.fail(system, error)


def _report(context: Context, each: _Commit) -> PartitionReport:
    """The partition's report at the end of the round."""
    last = each.partition
    report = structs.replace(last.report)
    if each.error is not None:
        report = failed(report, each.error)
    elif isinstance(last, RewrittenPartition) and each.retention is not None:
        report = account_round(last)
        _account_backlog(context, report, last.plan.log, last.plan.decision.end)
        records = records_by_segment(last)
        account_retention(report, last.plan.log, each.retention, last.replacements, records)
    elif isinstance(last, FinishedPartition) and last.log is not None and last.resting is not None:
        assert each.retention is not None
        _account_backlog(context, report, last.log, last.resting.first_dirty)
        account_retention(report, last.log, each.retention)
        end_without_round(report, each.retention, last.resting.compacts, last.resting.reason)
    started = last.started if isinstance(last, FinishedPartition) else last.plan.started
    report.seconds = time.perf_counter() - started
    return report


def _account_backlog(
    context: Context, report: PartitionReport, log: PartitionLog, horizon: int
) -> None:
    options = context.options
    # If the backlog cannot be read, the report has none. An error here means that another program
    # has changed the log since the commit.
    with contextlib.suppress(LogError, OSError):
        report.backlog = context.system.backlog(log, horizon, options.config, options.now_ms)
