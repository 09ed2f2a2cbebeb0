"""Tests of merging small segments: few remain, and no byte is copied many times."""

from __future__ import annotations

import math
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from lastwrite.kafka.rules.joining import AT_LEAST, joined, roll_ms
from lastwrite.kafka.rules.settings import KafkaTopicConfig

MOST = 1 << 20


class Tail(NamedTuple):
    """The sizes of segments in bytes, and how often the first byte of each was copied."""

    sizes: list[int]
    copies: list[int]


def turns(sizes: list[int]) -> tuple[Tail, int]:
    """The segments after rounds that add so many bytes, and the total bytes written."""
    tail, written = Tail([], []), 0
    for size in sizes:
        count = joined(tail.sizes, MOST - size)
        copied, often = sum(tail.sizes[-count:]) if count else 0, 0
        if count:
            often = max(tail.copies[-count:]) + 1
            del tail.sizes[-count:], tail.copies[-count:]
        tail.sizes.append(copied + size)
        tail.copies.append(often)
        written += copied + size
    return tail, written


def test_equal_rounds_leave_few_segments() -> None:
    """A day of rounds of 1,000 bytes each, two a minute."""
    tail, written = turns([1000] * 2880)
    assert len(tail.sizes) <= 17
    assert written < 5.1 * 2880 * 1000


def test_few_or_unequal_segments_are_not_merged() -> None:
    assert joined([5] * 7, MOST) == 0
    assert joined([5] * 8, MOST) == 8
    assert joined([32, *[8] * 7], MOST) == 0
    assert joined([32, *[8] * 8], MOST) == 9
    assert joined([33, *[8] * 8], MOST) == 8
    assert joined([1000, *[8] * 8], MOST) == 8
    assert joined([5] * 20, 60) == 12
    assert joined([], MOST) == 0


@given(st.lists(st.integers(1, 30_000), max_size=300))
def test_no_byte_is_copied_often_and_few_segments_stay(sizes: list[int]) -> None:
    tail, _ = turns(sizes)
    assert sum(tail.sizes) == sum(sizes)
    assert max(tail.sizes, default=0) <= MOST
    assert max(tail.copies, default=0) <= math.log(MOST, 3)
    full = math.ceil(sum(sizes) / MOST)
    assert len(tail.sizes) <= 2 * AT_LEAST * (full + math.log2(MOST))


def test_roll_time_depends_on_the_cleanup_policy() -> None:
    config = {"segment.ms": 1000, "max.compaction.lag.ms": 500}
    assert roll_ms(KafkaTopicConfig.from_names({**config, "cleanup.policy": "delete"})) == 1000
    assert roll_ms(KafkaTopicConfig.from_names({**config, "cleanup.policy": "compact"})) == 500
