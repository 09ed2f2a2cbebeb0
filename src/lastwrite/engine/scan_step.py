"""Step two, scan, on the driver: create the units, and combine their results by partition.

``engine.scan`` runs on the workers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from msgspec import structs

from lastwrite.config import keyless
from lastwrite.engine.context import Context
from lastwrite.engine.partition import (
    FinishedPartition,
    PartitionPlan,
    ScannedPartition,
    advance,
    by_partition,
    finish,
)
from lastwrite.engine.pieces import split_by_bytes
from lastwrite.engine.rules.transactions import aborted_table, merge
from lastwrite.errors import LogError
from lastwrite.model.log import Problem, ProblemKind
from lastwrite.model.policy import Policy
from lastwrite.model.work import FailedUnit, PieceScan, ScanRange, ScanUnit
from lastwrite.reports.compaction import Status

_LEAST_TASK_BYTES = 8 << 20


def scan_partitions(
    context: Context, plans: Sequence[PartitionPlan]
) -> list[ScannedPartition | FinishedPartition]:
    """Scan partitions.

    A partition that is damaged, or has too many records without a key, is not processed further.
    """
    wave = scan_pieces(context, plans)
    return advance(wave, lambda open: [_count_records(context, each) for each in open])


def scan_pieces(
    context: Context, plans: Sequence[PartitionPlan]
) -> list[ScannedPartition | FinishedPartition]:
    """Scan the pieces of partitions.

    A partition that is damaged, or has inconsistent transaction markers, is not processed further.
    """
    wave = _scan_once(context, plans)
    if any(_contradicts(each) for each in wave):
        # If a transaction index disagrees with its log, the log is right. Scan again, with the
        # transactions in the log. All partitions are scanned again, because an exchange has the
        # entries of only one scan.
        wave = advance(wave, lambda open: _scan_by_log(context, open))
    return wave


def _contradicts(partition: ScannedPartition | FinishedPartition) -> bool:
    if isinstance(partition, FinishedPartition):
        return False
    return partition.transactions.contradiction is not None


def _scan_by_log(
    context: Context, partitions: Sequence[ScannedPartition]
) -> list[ScannedPartition | FinishedPartition]:
    """Scan partitions again. Markers are used where a log's transaction index is wrong."""
    plans: list[PartitionPlan | FinishedPartition] = []
    for each in partitions:
        plan = each.plan
        try:
            if _contradicts(each):
                plan = replace(plan, aborted=context.system.aborted_by_log(plan.log))
            plans.append(plan)
        except (LogError, OSError) as error:
            plans.append(finish(plan, each.report, error=error))
    wave = advance(plans, lambda open: _scan_once(context, open))
    return advance(wave, lambda open: [_reject_contradiction(each) for each in open])


def _reject_contradiction(partition: ScannedPartition) -> ScannedPartition | FinishedPartition:
    offset = partition.transactions.contradiction
    if offset is None:
        return partition
    reason = (
        f"the transaction that ends at offset {offset} is marked both as aborted and as committed"
    )
    return finish(
        partition, structs.replace(partition.report, status=Status.DAMAGED, reason=reason)
    )


def _scan_once(
    context: Context, plans: Sequence[PartitionPlan]
) -> list[ScannedPartition | FinishedPartition]:
    total = sum(piece.scan_bytes for plan in plans for piece in plan.pieces)
    target = max(_LEAST_TASK_BYTES, total // (2 * context.workers))
    units = [
        scan_unit(context, plan, pieces)
        for plan in plans
        for pieces in split_by_bytes(plan.pieces, target)
    ]
    answers = context.exchange.scan(units, context.progress)
    found: list[PieceScan | FailedUnit[ScanUnit]] = []
    for answer in answers:
        found += [answer] if isinstance(answer, FailedUnit) else answer
    scans, errors = by_partition(found)
    return [
        _scanned(
            plan,
            sorted(scans[plan.number], key=lambda scan: scan.piece),
            errors.get(plan.number),
            context.system.damage_remedy,
        )
        for plan in plans
    ]


def scan_unit(context: Context, plan: PartitionPlan, pieces: Sequence[ScanRange]) -> ScanUnit:
    """One unit of work with neighbouring pieces of a partition."""
    return ScanUnit(
        partition=plan.number,
        system=context.system.name,
        pieces=tuple(pieces),
        first_dirty=plan.decision.elect_from,
        bits=plan.bits,
        exact=context.options.exact,
        secret=plan.secret,
        policy=policy_of(plan.decision.policy, pieces),
        aborted=aborted_table(plan.aborted, pieces[0].lowest_offset, pieces[-1].end_offset),
        limits=context.limits,
        scratch=context.exchange.scratch,
    )


def policy_of(policy: Policy, pieces: Sequence[ScanRange]) -> Policy:
    """The policy for a unit of work.

    To keep the unit small, the policy contains only the producers whose last batch is in
    ``pieces``.
    """
    # ``pieces`` is empty for a group of empty segments
    if not pieces or not len(policy.last_offsets):
        return policy
    low, high = np.searchsorted(
        policy.last_offsets, (pieces[0].lowest_offset, pieces[-1].end_offset)
    )
    return replace(policy, last_offsets=policy.last_offsets[low:high])


def _scanned(
    plan: PartitionPlan, scans: Sequence[PieceScan], error: Exception | None, remedy: str
) -> ScannedPartition | FinishedPartition:
    """The partition with its scan results.


    A ``FinishedPartition`` is returned instead if a piece is damaged or has an unsupported format.
    """
    problems = [*_falling_offsets(plan.pieces, scans, remedy)]
    problems += [scan.problem for scan in scans if scan.problem is not None]
    damage = [problem for problem in problems if problem.kind is ProblemKind.DAMAGED]
    notes = [note for scan in scans for note in scan.notes]
    report = structs.replace(
        plan.report, problems=[*plan.report.problems, *(damage or problems[:1]), *notes]
    )
    if damage:
        return finish(plan, structs.replace(report, status=Status.DAMAGED, reason=str(damage[0])))
    if error is not None:
        return finish(plan, report, error=error)
    if problems:
        return finish(plan, structs.replace(report, status=Status.SKIPPED, reason=str(problems[0])))
    transactions = merge([scan.transactions for scan in scans])
    until_ms = max((scan.held_until_ms for scan in scans), default=-1)
    held_until_ms = None if until_ms < 0 else plan.decision.policy.held_until_ms(until_ms)
    if held_until_ms is not None:
        report.held_for = [
            structs.replace(each, until_ms=held_until_ms) for each in report.held_for
        ]
    return ScannedPartition(plan=plan, report=report, scans=scans, transactions=transactions)


def _falling_offsets(
    pieces: Sequence[ScanRange], scans: Sequence[PieceScan], remedy: str
) -> Iterator[Problem]:
    """Yield a problem for each piece whose offsets do not continue above the previous piece.

    The scan of a single piece cannot detect this.
    """
    for (piece, scan), (following, later) in pairwise(zip(pieces, scans, strict=False)):
        if piece.segment == following.segment and 0 <= later.first_offset < scan.next_offset:
            yield Problem(
                ProblemKind.DAMAGED,
                f"offset {later.first_offset} follows offset {scan.next_offset - 1}, out of order",
                following.path,
                following.start,
                remedy,
            )


def _count_records(
    context: Context, partition: ScannedPartition
) -> ScannedPartition | FinishedPartition:
    """Add record counts to the report.

    A partition in which too many records have no key is not processed further.
    """
    plan = partition.plan
    records = sum(scan.records for scan in partition.scans)
    report = structs.replace(partition.report, records_before=records, records_after=records)
    in_range = [
        scan for scan, piece in zip(partition.scans, plan.pieces, strict=True) if piece.keyed
    ]
    found = sum(scan.keyless for scan in in_range)
    if not found:
        return replace(partition, report=report)
    data = sum(scan.records - scan.hidden for scan in in_range)
    first = min(scan.first_keyless for scan in in_range if scan.keyless)
    report.keyless_records = found
    report.first_keyless_offset = first
    report.keyless_setting = context.system.governs_keyless
    most = plan.decision.max_keyless_ratio
    if not keyless.is_over_limit(found, data, most):
        return replace(partition, report=report)
    report.is_keyless = True
    report.status, report.reason = Status.SKIPPED, keyless.refusal(found, data, first, most)
    return finish(plan, report)
