"""Tests of dividing units among tasks so that all workers end together."""

from __future__ import annotations

import heapq

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastwrite.spark import runner
from lastwrite.spark.runner import pack

GIB = 1 << 30


def seconds(weights: list[int], workers: int) -> int:
    """The time at which the last worker ends, if each takes the next task as soon as it is free."""
    free = [0] * workers
    for places in pack(weights, workers):
        heapq.heappush(free, heapq.heappop(free) + sum(weights[place] for place in places))
    return max(free)


@given(st.lists(st.integers(0, 3 * GIB), min_size=1, max_size=40), st.integers(1, 5))
def test_each_unit_has_one_task_and_tasks_fill_rounds(weights: list[int], workers: int) -> None:
    tasks = pack(weights, workers)
    assert sorted(place for places in tasks for place in places) == list(range(len(weights)))
    assert len(tasks) == len(weights) or len(tasks) % workers == 0
    assert len(tasks) >= min(len(weights), sum(weights) // runner._TASK_BYTES)


@pytest.mark.parametrize("total", [GIB // 2, 2 * GIB, 3 * GIB, 5 * GIB])
def test_workers_end_together(total: int) -> None:
    """Regression: 2.9 GB gave three tasks for two workers, so that one was idle for a third of the
    time.
    """
    weights = [total // 24] * 24
    for workers in (2, 3, 4):
        assert seconds(weights, workers) == total // 24 * 24 // workers
