"""Tests of grouping segments, by example."""

from __future__ import annotations

from lastwrite.kafka.rules.grouping import group_segments
from lastwrite.model.log import Segment


def bases(
    sizes: dict[int, int],
    end: int,
    limit: int,
    index: int = 0,
    time_index: int = 0,
    index_limit: int = 10**6,
) -> list[list[int]]:
    segments = [
        Segment(
            base, f"{base:020d}.log", size, 0, 1, index_bytes=index, time_index_bytes=time_index
        )
        for base, size in sizes.items()
    ]
    return [
        [s.base_offset for s in group]
        for group in group_segments(segments, end, limit, index_limit)
    ]


def test_documented_example_is_grouped() -> None:
    assert bases({0: 288, 4: 288, 8: 164, 10: 0}, 10, 300) == [[0], [4], [8]]
    left = {0: 0, 4: 0, 8: 0, 12: 0, 16: 0, 20: 0, 24: 219, 28: 146, 30: 144, 32: 0}
    assert bases(left, 32, 300) == [[0, 4, 8, 12, 16, 20, 24], [28, 30]]


def test_sums_may_reach_their_limit_but_not_exceed_it() -> None:
    assert bases({0: 10, 1: 10, 2: 10}, 9, 20) == [[0, 1], [2]]
    assert bases({0: 10, 1: 11, 2: 10}, 9, 20) == [[0], [1], [2]]
    assert bases({0: 1, 1: 1, 2: 1}, 9, 20, index=8, index_limit=16) == [[0, 1], [2]]
    assert bases({0: 1, 1: 1, 2: 1}, 9, 20, time_index=12, index_limit=23) == [[0], [1], [2]]


def test_segment_larger_than_the_limit_is_alone() -> None:
    assert bases({0: 500, 1: 1, 2: 1}, 9, 20) == [[0], [1, 2]]


def test_offsets_fit_31_bits_relative_to_the_group() -> None:
    far = 2**31
    assert bases({0: 1, 5: 1, far: 1}, far + 1, 100) == [[0, 5], [far]]
    assert bases({0: 1, 5: 1, far + 1: 1}, far + 2, 100) == [[0], [5, far + 1]]
    assert bases({0: 1, 5: 1, far + 1: 1, far + 9: 1}, far + 10, 100) == [
        [0],
        [5],
        [far + 1, far + 9],
    ]
    # Empty segments have no index entries.
    assert bases({0: 1, 5: 0, far + 1: 1}, far + 2, 100) == [
        [0, 5],
        [far + 1],
    ]
    assert bases({0: 1, 5: 1}, far, 100) == [[0, 5]]
    assert bases({0: 1, 5: 1}, far + 1, 100) == [[0], [5]]


def test_only_segments_below_the_end_are_grouped() -> None:
    assert bases({0: 1, 5: 1, 9: 1}, 9, 100) == [[0, 5]]
    assert bases({0: 1, 5: 1}, 0, 100) == []
    assert bases({}, 5, 100) == []
