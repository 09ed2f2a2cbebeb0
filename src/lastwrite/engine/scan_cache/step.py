"""What a round keeps of its scans, at the two places of its commit where that is due.

    swap ─ checkpoint ─ write_aside ─ tidy ─ retention ─ put_in_place

Kept files are written before the segments that they were made from may go, and get their names once
nothing renames or links a segment any more. What could not be kept is no failure of the round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lastwrite.engine.context import Context
from lastwrite.engine.partition import RewrittenPartition
from lastwrite.engine.scan_cache.use import NewSegment, finish, forget, units_of
from lastwrite.errors import LogError
from lastwrite.model.scan_cache import KeepUnit, Kept
from lastwrite.model.work import Failed


def write_aside(
    context: Context, partitions: Sequence[RewrittenPartition]
) -> Mapping[int, Sequence[tuple[KeepUnit, Kept]]]:
    """Write what later rounds need not scan again: by partition, each unit and what came of it."""
    units = [unit for each in partitions for unit in _units(context, each)]
    written: dict[int, list[tuple[KeepUnit, Kept]]] = {}
    if not units:
        return written
    try:
        answers = context.exchange.keep(units, context.progress)
    except LogError as error:
        context.progress.note(f"no scan was kept: {error}")
        return written
    for unit, answer in zip(units, answers, strict=True):
        done = Kept(problem=str(answer.error)) if isinstance(answer, Failed) else answer
        written.setdefault(unit.partition, []).append((unit, done))
    return written


def _units(context: Context, partition: RewrittenPartition) -> Sequence[KeepUnit]:
    plan = partition.plan
    if plan.kept is None:
        return ()
    made = [
        NewSegment(
            context.system.segment_path(plan.log, each.parts[0].base_offset),
            plan.log.segments[each.places[0]].base_offset,
            each.parts,
        )
        for each in partition.replacements
    ]
    return [
        *units_of(plan.number, plan.kept, plan.pieces, partition.scans, partition.replaced, made)
    ]


def put_in_place(
    context: Context,
    partition: RewrittenPartition,
    written: Sequence[tuple[KeepUnit, Kept]],
) -> None:
    """Give what was written its place, and remove what is stale."""
    plan = partition.plan
    if plan.kept is None:
        problems = forget(plan.log, partition.replaced)
    else:
        problems = finish(plan.kept, partition.replaced, written)
    for problem in problems:
        context.progress.note(f"{plan.log.name}: a scan was not kept: {problem}")
