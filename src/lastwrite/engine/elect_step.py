"""Step three, elect, on the driver.

The hash buckets of keys are divided into units of work that fit in a worker's memory. Afterwards,
the superseded records of each piece of a segment are added up. ``engine.elect`` runs on workers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from lastwrite.engine.context import Context
from lastwrite.engine.partition import (
    ElectedPartition,
    FinishedPartition,
    ScannedPartition,
    by_partition,
    finish,
)
from lastwrite.engine.rules.election import ENTRY_BYTES
from lastwrite.model.policy import Policy
from lastwrite.model.work import ElectionResult, ElectUnit, PieceScan

_SMALL_ELECTION_BYTES = 4 << 20


def elect_partitions(
    context: Context, partitions: Sequence[ScannedPartition]
) -> list[ElectedPartition | FinishedPartition]:
    # A unit has at least half a worker's share of the bytes. If there are many partitions, each
    # partition is therefore one unit.
    share = -(-sum(map(_size_of, partitions)) // (2 * context.workers))
    units = [unit for each in partitions for unit in elect_units(context, each, share)]
    results, errors = by_partition(context.exchange.elect(units, context.progress))
    return [
        _elected(each, results[each.plan.number])
        if each.plan.number not in errors
        else finish(each, each.report, error=errors[each.plan.number])
        for each in partitions
    ]


def _size_of(partition: ScannedPartition) -> int:
    """The number of bytes that the election of a partition reads."""
    blocks = [block for scan in partition.scans for block in scan.blocks]
    size = sum(
        ENTRY_BYTES * block.columns // 2 * block.count + 2 * block.key_bytes for block in blocks
    )
    # bytes of the two tables of bucket ends that each block has, as uint32
    return size + (8 << partition.plan.bits) * len(blocks)


def elect_units(context: Context, partition: ScannedPartition, share: int) -> Iterator[ElectUnit]:
    """Divide a partition's buckets into units that fit memory.

    A large partition is divided further, into units of about ``share`` bytes, so that all workers
    are used.
    """
    plan, limits = partition.plan, context.limits
    blocks = [(scan, block) for scan in partition.scans for block in scan.blocks]
    if not blocks:
        return
    buckets = 1 << plan.bits
    size = _size_of(partition)
    slices = -(-size // limits.slice_bytes)
    if size > _SMALL_ELECTION_BYTES:
        slices = max(slices, -(-size // max(1, share)))
    slices = min(slices, buckets)
    # The units share these tuples, so that a task pickles them once.
    every = tuple(block for _, block in blocks)
    dirty_from = tuple(scan.dirty_from for scan, _ in blocks)
    last_records = tuple(scan.records - 1 for scan, _ in blocks)
    states = tuple((scan.states, scan.states_at) for scan, _ in blocks)
    for n in range(slices):
        yield ElectUnit(
            partition=plan.number,
            bits=plan.bits,
            first_bucket=buckets * n // slices,
            end_bucket=buckets * (n + 1) // slices,
            blocks=every,
            dirty_from=dirty_from,
            last_records=last_records,
            states=states,
            exact=context.options.exact,
            limits=limits,
            strategy=plan.decision.policy.strategy,
        )


def _elected(partition: ScannedPartition, results: Sequence[ElectionResult]) -> ElectedPartition:
    losers: dict[int, int] = {}
    for result in results:
        for piece, count in result.losers.items():
            losers[piece] = losers.get(piece, 0) + count
    lost_last = {piece for result in results for piece in result.lost_last}
    scans = [
        replace(
            scan,
            losers=scan.losers + losers.get(scan.piece, 0),
            lost_last=scan.lost_last or scan.piece in lost_last,
        )
        if losers.get(scan.piece) or scan.piece in lost_last
        else scan
        for scan in partition.scans
    ]
    return ElectedPartition(
        plan=partition.plan,
        report=partition.report,
        scans=scans,
        transactions=partition.transactions,
        winners=sum(result.winners for result in results),
        policy=_policy_after(partition.plan.decision.policy, scans),
    )


def _policy_after(policy: Policy, scans: Sequence[PieceScan]) -> Policy:
    """The policy with which the partition is rewritten.

    The log's last record stays even if the election marked it as shadowed. The tombstone that
    shadowed it must then stay too, so the policy keeps all tombstones.
    """
    if any(scan.lost_last and scan.next_offset == policy.pinned_offset for scan in scans):
        return replace(policy, keep_tombstones=True)
    return policy
