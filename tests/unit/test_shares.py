"""Tests of dividing a rewrite among workers.

A share has complete segments if their sizes allow it, else parts of segments.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lastwrite.engine.shares import Shares
from lastwrite.model.work import ScanRange

MIB = 1 << 20


def pieces(costs: list[int], size: int = 32 * MIB) -> dict[ScanRange, int]:
    """Pieces of ``size`` bytes each, with these costs."""
    return {
        ScanRange(
            number=n,
            segment=0,
            path="0.log",
            start=n * size,
            end=(n + 1) * size,
            size_bytes=len(costs) * size,
            mtime_ns=0,
            lowest_offset=0,
            end_offset=1,
            keyed=True,
        ): cost
        for n, cost in enumerate(costs)
    }


def parts(segments: list[list[int]], workers: int, size: int = 32 * MIB) -> list[list[int]]:
    """The costs of each segment's parts, with pieces of ``size`` bytes."""
    shares = Shares([sum(costs) for costs in segments], workers)
    made = []
    for costs in segments:
        by_piece = pieces(costs, size)
        taken = shares.take(by_piece, may_cut=True)
        assert [piece for part in taken for piece in part] == list(by_piece)
        made.append([sum(by_piece[piece] for piece in part) for part in taken])
    return made


def test_segments_of_equal_shares_are_not_divided() -> None:
    assert parts([[100] * 8, [105] * 8], 2) == [[800], [840]]
    assert parts([[40] * 4, [60] * 4, [100] * 4], 2) == [[160], [240], [400]]


def test_large_segment_is_divided_among_the_workers() -> None:
    assert parts([[100] * 8], 2) == [[400, 400]]
    assert parts([[100] * 8, [10]], 2) == [[400, 400], [10]]


def test_share_is_cut_although_it_ends_in_the_first_bytes_of_a_part() -> None:
    """Regression: the segment was not divided, so one worker took 1.77 s and the other 1.26 s."""
    assert parts([[31] * 10, [43] * 10], 2, 5 * MIB) == [[310], [344, 86]]


@given(
    segments=st.lists(st.lists(st.integers(MIB, 128 * MIB), min_size=1, max_size=8), max_size=9),
    workers=st.integers(1, 9),
)
def test_only_segments_that_would_delay_others_are_divided(
    segments: list[list[int]], workers: int
) -> None:
    made = parts(segments, workers)
    if all(len(each) == 1 for each in made):
        return
    costs = sorted((sum(costs) for costs in segments), reverse=True)
    loads = [0] * workers
    for cost in costs:
        loads[loads.index(min(loads))] += cost
    assert max(loads) > 1.1 * sum(costs) / workers
