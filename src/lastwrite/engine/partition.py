"""One partition on its way through a round: a value for each step to take, one for it to give.

    PartitionPlan ──► ScannedPartition ──► ElectedPartition ──► RewrittenPartition ──► report
         │ plan              │ scan               │ elect               │ rewrite        commit
         └───────────────────┴────────► Ended ◄───┴─────────────────────┘

None of them is changed once it is made. A partition that is not cleaned, is damaged or fails is
``Ended``: it waits for the commit, which removes what was written for it and, where a copy is made,
copies it as it is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from msgspec import structs

from lastwrite.engine.retain import Replacement
from lastwrite.engine.rules.transactions import Merged
from lastwrite.engine.system import Decision
from lastwrite.errors import CommitConflict, LogError, RemoteFailed
from lastwrite.model.log import AbortedTransaction, PartitionLog
from lastwrite.model.policy import Policy
from lastwrite.model.work import Elected, Failed, Piece, PieceScan, SegmentOutput
from lastwrite.reports.compaction import PartitionReport, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPlan:
    """A partition that a round cleans, as it is before its records are read."""

    number: int  # in its wave
    started: float  # by the clock of ``perf_counter``, seconds
    report: PartitionReport  # what is known by now
    log: PartitionLog
    decision: Decision
    pieces: Sequence[Piece]
    aborted: Sequence[AbortedTransaction]  # transactions: as the log's index says, or the log
    bits: int  # of a fingerprint that tell its bucket
    secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedPartition:
    """A partition whose pieces are all whole, with their entries in the exchange."""

    plan: PartitionPlan
    report: PartitionReport
    scans: Sequence[PieceScan]  # by piece
    transactions: Merged


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectedPartition:
    """A partition of which it is known how many records of each piece are shadowed."""

    plan: PartitionPlan
    report: PartitionReport
    scans: Sequence[PieceScan]  # by piece, with all its losers
    transactions: Merged
    winners: int
    policy: Policy  # by which its records are judged


@dataclass(frozen=True, slots=True, kw_only=True)
class RewrittenPartition:
    """A partition whose new segments are written aside, or measured."""

    plan: PartitionPlan
    report: PartitionReport
    scans: Sequence[PieceScan]  # as election left them
    winners: int
    policy: Policy
    replacements: Sequence[Replacement]

    @property
    def replaced(self) -> set[int]:
        """The places of the segments that new ones replace."""
        return {place for each in self.replacements for place in each.places}

    @property
    def written(self) -> Iterator[SegmentOutput]:
        """What was written aside."""
        return (part for each in self.replacements for part in each.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A partition that no round cleans, or that this one cannot."""

    started: float
    report: PartitionReport
    log: PartitionLog | None  # None: it could not be read
    resting: Decision | None = None  # it is whole, and by this decision no round is due
    written: Sequence[SegmentOutput] = ()  # aside
    error: Exception | None = None  # that stopped its work


Open: TypeAlias = PartitionPlan | ScannedPartition | ElectedPartition | RewrittenPartition

A = TypeVar("A", bound=Open)
B = TypeVar("B", bound=Open)
R = TypeVar("R", PieceScan, Elected, SegmentOutput)


def advance(
    wave: Sequence[A | Ended], step: Callable[[Sequence[A]], Sequence[B | Ended]]
) -> list[B | Ended]:
    """Take the partitions of a wave that go on through a step, all together, in their order."""
    answers = iter(step([each for each in wave if not isinstance(each, Ended)]))
    return [each if isinstance(each, Ended) else next(answers) for each in wave]


def by_partition(
    answers: Iterable[R | Failed[Any]],
) -> tuple[Mapping[int, list[R]], Mapping[int, Exception]]:
    """What came of a step's units, and what stopped the first that failed, by partition."""
    results: dict[int, list[R]] = defaultdict(list)
    errors: dict[int, Exception] = {}
    for answer in answers:
        if isinstance(answer, Failed):
            errors.setdefault(answer.unit.partition, answer.error)
        else:
            results[answer.partition].append(answer)
    return results, errors


def ended(
    last: PartitionPlan | ScannedPartition | ElectedPartition,
    report: PartitionReport,
    written: Sequence[SegmentOutput] = (),
    error: Exception | None = None,
) -> Ended:
    """The partition with this report, its last; ``error``, if one stopped it, is told in that."""
    plan = last if isinstance(last, PartitionPlan) else last.plan
    if error is not None:
        report = failed(report, error)
    return Ended(started=plan.started, report=report, log=plan.log, written=written, error=error)


def failed(report: PartitionReport, error: Exception) -> PartitionReport:
    """The report of a partition that this error stops: damaged, or failed."""
    is_damaged = isinstance(error, LogError) and error.exit_status == 3
    return structs.replace(
        report,
        status=Status.DAMAGED if is_damaged else Status.FAILED,
        reason=str(error),
        may_pass=isinstance(error, RemoteFailed),
        lost_commit=isinstance(error, CommitConflict),
    )
