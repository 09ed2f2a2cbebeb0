"""Tests of dividing the election into units of work: enough for all workers and not more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lastwrite.engine.elect_step import elect_partitions
from lastwrite.model.policy import Strategy
from lastwrite.model.work import Block, Limits


class Asked(Exception):
    pass


def units_of(sizes: list[int], workers: int) -> list[list[tuple[int, int]]]:
    """For partitions of these sizes in entries: the slices of buckets that the units of
    each elect.
    """
    asked: list[Any] = []

    def elect(units: list[Any], _: object) -> list[Any]:
        asked.extend(units)
        raise Asked

    context: Any = SimpleNamespace(
        workers=workers,
        limits=Limits(),
        options=SimpleNamespace(exact=False),
        exchange=SimpleNamespace(elect=elect),
        progress=None,
    )
    policy = SimpleNamespace(strategy=Strategy.OFFSET, pinned_offset=-1)
    partitions: list[Any] = []
    for number, entries in enumerate(sizes):
        plan = SimpleNamespace(number=number, bits=12, decision=SimpleNamespace(policy=policy))
        blocks = [Block(0, "", 0, entries, 0, 2)]
        scan = SimpleNamespace(blocks=blocks, dirty_from=0, records=entries, states="", states_at=0)
        partitions.append(SimpleNamespace(plan=plan, scans=[scan]))
    with pytest.raises(Asked):  # only the units are needed, so the election is broken off
        elect_partitions(context, partitions)
    slices: list[list[tuple[int, int]]] = [[] for _ in sizes]
    for unit in asked:
        slices[unit.partition].append((unit.first_bucket, unit.end_bucket))
    return slices


def test_one_large_partition_is_divided_among_all_workers() -> None:
    (slices,) = units_of([8_000_000], 40)
    assert len(slices) == 80
    assert slices[0][0] == 0 and slices[-1][1] == 1 << 12
    assert all(end == first for (_, end), (first, _) in zip(slices, slices[1:], strict=False))


def test_partitions_are_divided_only_as_far_as_the_workers_need() -> None:
    """With a hundred workers and four hundred partitions, each partition stays whole."""
    slices = units_of([1_000_000] * 400, 100)
    assert {len(of_one) for of_one in slices} == {1}
    slices = units_of([10_000_000] + [250_000] * 40, 50)
    assert 48 <= len(slices[0]) <= 52
    assert {len(of_one) for of_one in slices[1:]} == {1}
