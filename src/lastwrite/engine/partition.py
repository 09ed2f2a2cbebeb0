"""The state of one partition during a round, with one class for the state after each step.

    PartitionPlan ──► ScannedPartition ──► ElectedPartition ──► RewrittenPartition ──► report
         │ plan              │ scan               │ elect               │ rewrite        commit
         └───────────────────┴─────────┬──────────┴─────────────────────┘
                                       ▼
                               FinishedPartition

The objects are immutable. A partition that is skipped, is damaged or fails becomes a
``FinishedPartition``, which no further step processes. The commit removes its staged files. If the
round makes copies, the commit copies the partition unchanged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from msgspec import structs

from lastwrite.engine.retain import Replacement
from lastwrite.engine.rules.transactions import MergedTransactions
from lastwrite.engine.system import Decision
from lastwrite.errors import CommitConflict, LogError, RemoteFailed
from lastwrite.model.log import AbortedTransaction, PartitionLog
from lastwrite.model.policy import Policy
from lastwrite.model.work import ElectionResult, FailedUnit, PieceScan, ScanRange, SegmentOutput
from lastwrite.reports.compaction import PartitionReport, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPlan:
    """A partition that a round will clean, before its records are read."""

    number: int  # number of the partition, unique in its wave
    started: float  # ``perf_counter`` at the start, in seconds
    report: PartitionReport  # the partition's report, with the figures known so far
    log: PartitionLog
    decision: Decision
    pieces: Sequence[ScanRange]
    # aborted transactions, from the log's transaction index, or from the log's markers if the index
    # is wrong
    aborted: Sequence[AbortedTransaction]
    bits: int  # number of fingerprint bits that choose a key's bucket
    secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedPartition:
    """A partition after the scan, with valid pieces only. The exchange has the pieces' entries."""

    plan: PartitionPlan
    report: PartitionReport
    scans: Sequence[PieceScan]  # by piece
    transactions: MergedTransactions


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectedPartition:
    """A partition with the number of superseded records in each of its pieces."""

    plan: PartitionPlan
    report: PartitionReport
    scans: Sequence[PieceScan]  # scan results by piece, with all losers found so far
    transactions: MergedTransactions
    winners: int
    policy: Policy  # the policy that decides on each record


@dataclass(frozen=True, slots=True, kw_only=True)
class RewrittenPartition:
    """A partition whose new segments are staged, or only measured in a dry run."""

    plan: PartitionPlan
    report: PartitionReport
    scans: Sequence[PieceScan]  # scan results by piece, with all losers found so far
    winners: int
    policy: Policy
    replacements: Sequence[Replacement]

    @property
    def replaced(self) -> set[int]:
        """The indexes of the segments that are replaced."""
        return {place for each in self.replacements for place in each.places}

    @property
    def written(self) -> Iterator[SegmentOutput]:
        """The new segments, or parts of segments, that are not committed yet."""
        return (part for each in self.replacements for part in each.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedPartition:
    """A partition that the round does not clean.

    Either no round is due, or the partition is damaged, or an error stopped the work on it.
    """

    started: float
    report: PartitionReport
    log: PartitionLog | None  # the partition's log; None if reading it failed
    # the decision, if no round is due; None if the partition is damaged or failed
    resting: Decision | None = None
    written: Sequence[SegmentOutput] = ()  # staged files, which the commit removes
    error: Exception | None = None  # the error that stopped the work on the partition


Open: TypeAlias = PartitionPlan | ScannedPartition | ElectedPartition | RewrittenPartition

A = TypeVar("A", bound=Open)
B = TypeVar("B", bound=Open)
R = TypeVar("R", PieceScan, ElectionResult, SegmentOutput)


def advance(
    wave: Sequence[A | FinishedPartition],
    step: Callable[[Sequence[A]], Sequence[B | FinishedPartition]],
) -> list[B | FinishedPartition]:
    """Run ``step`` once, with all partitions of a wave that are not finished.

    The results are in the order of the wave.
    """
    answers = iter(step([each for each in wave if not isinstance(each, FinishedPartition)]))
    return [each if isinstance(each, FinishedPartition) else next(answers) for each in wave]


def by_partition(
    answers: Iterable[R | FailedUnit[Any]],
) -> tuple[Mapping[int, list[R]], Mapping[int, Exception]]:
    """A step's results, and the error of the first unit that failed, each by partition number."""
    results: dict[int, list[R]] = defaultdict(list)
    errors: dict[int, Exception] = {}
    for answer in answers:
        if isinstance(answer, FailedUnit):
            errors.setdefault(answer.unit.partition, answer.error)
        else:
            results[answer.partition].append(answer)
    return results, errors


def finish(
    last: PartitionPlan | ScannedPartition | ElectedPartition,
    report: PartitionReport,
    written: Sequence[SegmentOutput] = (),
    error: Exception | None = None,
) -> FinishedPartition:
    """The finished partition. If ``error`` is given, the report gets its status and reason."""
    plan = last if isinstance(last, PartitionPlan) else last.plan
    if error is not None:
        report = failed(report, error)
    return FinishedPartition(
        started=plan.started, report=report, log=plan.log, written=written, error=error
    )


def failed(report: PartitionReport, error: Exception) -> PartitionReport:
    """The partition's report after ``error``. Its status is damaged or failed."""
    is_damaged = isinstance(error, LogError) and error.exit_status == 3
    return structs.replace(
        report,
        status=Status.DAMAGED if is_damaged else Status.FAILED,
        reason=str(error),
        may_pass=isinstance(error, RemoteFailed),
        lost_commit=isinstance(error, CommitConflict),
    )
