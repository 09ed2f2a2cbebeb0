"""Small partitions: scan, elect and rewrite in one stage, each partition in one task.

A stage takes at least 40 ms, or a few milliseconds in a persistent job (``spark.persistent_job``).
A wave is processed in one stage if each partition is at most a worker's share, or so small that
dividing it would save less than a stage takes. A task then runs all three steps for its partitions,
and workers exchange nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

from lastwrite.engine.context import Context, Exchange, Options, WholeWork, never_stop
from lastwrite.engine.elect_step import elect_partitions
from lastwrite.engine.partition import (
    FinishedPartition,
    PartitionPlan,
    RewrittenPartition,
    advance,
    finish,
)
from lastwrite.engine.rewrite_step import rewrite_partitions
from lastwrite.engine.scan_step import scan_partitions
from lastwrite.engine.system import system_named
from lastwrite.model.progress import NoProgress
from lastwrite.model.work import FailedUnit, Limits, PendingResult

# A partition may have at most 1/4 of a worker's share of the bytes, so that all workers end at
# about the same time.
_SHARES = 4


@dataclass(frozen=True, slots=True)
class _Steps(WholeWork):
    system: str
    limits: Limits
    options: Options

    def __call__(
        self, exchange: Exchange, plans: Sequence[PartitionPlan]
    ) -> list[RewrittenPartition | FinishedPartition]:
        system = system_named(self.system)
        context = Context(system, exchange, 1, self.limits, self.options, NoProgress())
        return take_steps(context, plans, lambda _: nullcontext())


def take_steps(
    context: Context,
    wave: Sequence[PartitionPlan | FinishedPartition],
    timed: Callable[[str], AbstractContextManager[None]],
) -> list[RewrittenPartition | FinishedPartition]:
    """Run scan, elect and rewrite, one after another, on partitions that are processed together.

    ``timed`` measures each step.
    """
    with timed("scan"):
        scanned = advance(wave, lambda open: scan_partitions(context, open))
    with timed("elect"):
        elected = advance(scanned, lambda open: elect_partitions(context, open))
    with timed("rewrite"):
        return advance(elected, lambda open: rewrite_partitions(context, open))


def fits_one_stage(context: Context, plans: Sequence[PartitionPlan | FinishedPartition]) -> bool:
    """Whether all partitions of a wave are small enough to be processed in one stage."""
    open = [each for each in plans if isinstance(each, PartitionPlan)]
    system, options = context.system, context.options
    if not open or not context.exchange.one_stage_bytes:
        return False
    # Two cases need separate stages. If scans are stored for later rounds, they are read from the
    # exchange, which a single stage does not use. If ``system`` is a wrapper, a worker would not
    # use it, because workers import the system by its name.
    if options.keep_scans or type(system) is not type(system_named(system.name)):
        return False
    # Copies, and systems with ``begin_writing``, also need separate stages. Before the rewrite, the
    # driver must prepare the partitions that will be written, and these are known only after the
    # election.
    if context.writes and (
        options.to is not None or any(system.starts_writing(each.log, None) for each in open)
    ):
        return False
    sizes = [each.log.size_bytes for each in open]
    share = sum(sizes) // (_SHARES * context.workers)
    return max(sizes) <= max(context.exchange.one_stage_bytes, share)


def begin_one_stage(
    context: Context, wave: Sequence[PartitionPlan | FinishedPartition]
) -> PendingResult[list[RewrittenPartition | FinishedPartition]]:
    """Start one stage that scans, elects and rewrites several partitions."""
    options = replace(context.options, check=never_stop)
    work = _Steps(context.system.name, context.limits, options)
    plans = [each for each in wave if isinstance(each, PartitionPlan)]

    def merge(
        answers: Sequence[RewrittenPartition | FinishedPartition | FailedUnit[PartitionPlan]],
    ) -> list[RewrittenPartition | FinishedPartition]:
        found = [
            finish(plan, plan.report, error=answer.error)
            if isinstance(answer, FailedUnit)
            else answer
            for plan, answer in zip(plans, answers, strict=True)
        ]
        return advance(wave, lambda _: found)

    return context.exchange.begin_one_stage(plans, work, context.progress).then(merge)
