"""Tests of a round's range of offsets, by example, with the figures from the rule's description."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from lastwrite.engine.rules.ranges import Hold, cleanable_range
from lastwrite.kafka.rules.settings import KafkaTopicConfig
from lastwrite.model.log import PartitionLog, Segment, TopicPartition

NOW = 1_700_000_000_000


def segment(base: int, size: int = 100, largest: int = 1, first: int | None = 1) -> Segment:
    return Segment(base, f"{base:020d}.log", size, 0, largest, first)


def log(
    segments: Sequence[Segment],
    end: int,
    checkpoint: int | None = None,
    high_watermark: int | None = None,
    log_start: int | None = None,
) -> PartitionLog:
    return PartitionLog(
        TopicPartition("t", 0),
        "t-0",
        tuple(segments),
        log_start=segments[0].base_offset if log_start is None else log_start,
        end_offset=end,
        high_watermark=end if high_watermark is None else high_watermark,
        checkpoint=checkpoint,
    )


def test_documented_example_gives_its_range() -> None:
    sizes = [288, 288, 288, 288, 288, 288, 288, 164]
    first = log(
        [segment(4 * n, size) for n, size in enumerate(sizes)] + [segment(30, 0, first=None)], 30
    )
    found = cleanable_range(first, KafkaTopicConfig(), NOW)
    assert (found.first_dirty, found.first_uncleanable) == (0, 30)
    assert (found.clean_bytes, found.cleanable_bytes, found.ratio) == (0, 2180, 1.0)
    assert found.eligible and found.reason is None and found.held_by is Hold.ACTIVE_SEGMENT

    left = [segment(4 * n, 0) for n in range(6)] + [segment(24, 219), segment(28, 146)]
    second = log([*left, segment(30, 144), segment(32, 0, first=None)], 32, checkpoint=30)
    found = cleanable_range(second, KafkaTopicConfig(), NOW)
    assert (found.first_dirty, found.first_uncleanable) == (30, 32)
    assert (found.clean_bytes, found.cleanable_bytes) == (365, 144)
    assert found.ratio == pytest.approx(0.283, abs=0.0005)
    assert not found.eligible
    assert found.reason is not None and "144 of 509 bytes" in found.reason and "0.5" in found.reason
    assert cleanable_range(second, KafkaTopicConfig(min_cleanable_dirty_ratio=0.28), NOW).eligible


def test_segment_with_the_first_dirty_offset_counts_as_clean_and_dirty() -> None:
    half_clean = log([segment(0, 360), segment(10, 292), segment(20)], 20, checkpoint=5)
    found = cleanable_range(half_clean, KafkaTopicConfig(), 9)
    assert (found.first_dirty, found.clean_bytes, found.cleanable_bytes) == (5, 360, 652)
    assert found.ratio == pytest.approx(0.644, abs=0.0005)


def test_ratio_must_exceed_the_threshold() -> None:
    half = log([segment(0, 100), segment(10, 100), segment(20, 7)], 25, checkpoint=10)
    assert cleanable_range(half, KafkaTopicConfig(), 9).ratio == 0.5
    assert not cleanable_range(half, KafkaTopicConfig(), 9).eligible
    assert cleanable_range(half, KafkaTopicConfig(min_cleanable_dirty_ratio=0.4999), 9).eligible


@pytest.mark.parametrize(
    ("checkpoint", "log_start", "first_dirty", "corrected"),
    [
        (None, 0, 0, False),
        (None, 7, 7, False),
        (20, 0, 20, False),
        (25, 0, 25, False),
        (26, 0, 0, True),
        (6, 7, 7, True),
        (7, 7, 7, False),
    ],
)
def test_checkpoint_outside_the_log_is_corrected(
    checkpoint: int | None, log_start: int, first_dirty: int, corrected: bool
) -> None:
    found = cleanable_range(
        log([segment(0), segment(10), segment(20)], 25, checkpoint, log_start=log_start),
        KafkaTopicConfig(),
        NOW,
    )
    assert (found.first_dirty, found.checkpoint_corrected) == (first_dirty, corrected)


@pytest.mark.parametrize(
    ("high_watermark", "first_uncleanable", "held_by"),
    [
        (25, 20, Hold.ACTIVE_SEGMENT),
        (20, 20, Hold.ACTIVE_SEGMENT),
        (19, 10, Hold.HIGH_WATERMARK),
        (10, 10, Hold.HIGH_WATERMARK),
        (9, 0, Hold.HIGH_WATERMARK),
        (0, 0, Hold.HIGH_WATERMARK),
    ],
)
def test_range_ends_with_complete_segments_below_the_high_watermark(
    high_watermark: int, first_uncleanable: int, held_by: Hold
) -> None:
    found = cleanable_range(
        log([segment(0), segment(10), segment(20)], 25, high_watermark=high_watermark),
        KafkaTopicConfig(),
        NOW,
    )
    assert (found.first_uncleanable, found.held_by) == (first_uncleanable, held_by)
    assert found.eligible == (first_uncleanable > 0)


def test_lag_ends_the_range_at_the_first_young_segment() -> None:
    config = KafkaTopicConfig(min_compaction_lag_ms=1000)

    def reach(*ages: int) -> tuple[int, Hold]:
        segments = [segment(10 * n, largest=NOW - age) for n, age in enumerate(ages)]
        found = cleanable_range(log([*segments, segment(10 * len(ages))], 100), config, NOW)
        return found.first_uncleanable, found.held_by

    assert reach(5000, 1000) == (20, Hold.ACTIVE_SEGMENT)  # exactly as old as the lag: cleanable
    assert reach(5000, 999) == (10, Hold.MIN_LAG)
    assert reach(999, 5000) == (0, Hold.MIN_LAG)  # later segments are not considered
    found = cleanable_range(
        log([segment(0, largest=NOW), segment(10, largest=1), segment(20)], 25, checkpoint=10),
        config,
        NOW,
    )
    assert found.first_uncleanable == 20  # segments below the checkpoint are not considered


def test_young_segment_that_is_half_clean_ends_the_round_below_its_start() -> None:
    config = KafkaTopicConfig(min_compaction_lag_ms=1000)
    found = cleanable_range(
        log([segment(0), segment(10, largest=NOW), segment(20)], 25, checkpoint=15), config, NOW
    )
    assert (found.first_dirty, found.first_uncleanable, found.cleanable_bytes) == (15, 10, 0)
    assert not found.eligible
    assert found.reason is not None and "min.compaction.lag.ms, 1000" in found.reason


def test_overdue_time_counts_closed_dirty_segments_by_their_first_batch() -> None:
    config = KafkaTopicConfig(max_compaction_lag_ms=1000)

    def late(*firsts: int | None, checkpoint: int = 10) -> tuple[int, bool]:
        segments = [
            segment(0, 10_000, first=1),
            *(segment(10 + 10 * n, 10, first=f) for n, f in enumerate(firsts)),
        ]
        found = cleanable_range(log(segments, 1000, checkpoint), config, NOW)
        return found.overdue_ms, found.eligible

    # Exactly at the limit. The active segment is not considered.
    assert late(NOW - 1000, 1) == (
        0,
        False,
    )
    assert late(NOW - 1001, 1) == (1, True)
    assert late(NOW, NOW - 1500, 1) == (500, True)
    assert late(None, 1) == (0, False)
    assert late(-1, 0, 1) == (0, False)
    assert late(NOW, 1, checkpoint=25)[0] == 0


def test_include_active_extends_the_range_to_the_log_end() -> None:
    archive = log([segment(0), segment(10), segment(20)], 25)
    found = cleanable_range(archive, KafkaTopicConfig(), NOW, include_active=True)
    assert (found.first_uncleanable, found.cleanable_bytes, found.held_by) == (
        25,
        300,
        Hold.LOG_END,
    )
    again = cleanable_range(
        log(archive.segments, 25, checkpoint=25), KafkaTopicConfig(), NOW, include_active=True
    )
    assert not again.eligible and again.reason == "all 25 offsets are already clean"
    behind = cleanable_range(
        log(archive.segments, 25, high_watermark=24), KafkaTopicConfig(), NOW, include_active=True
    )
    assert (behind.first_uncleanable, behind.held_by) == (20, Hold.HIGH_WATERMARK)


@pytest.mark.parametrize(
    ("of", "config", "reason"),
    [
        (log([segment(0, 0, first=None)], 0), KafkaTopicConfig(), "the log is empty"),
        (
            log([segment(0)], 5),
            KafkaTopicConfig(),
            "nothing to clean from offset 0: the active segment begins at offset 0",
        ),
        (
            log([segment(0), segment(9)], 9),
            KafkaTopicConfig(cleanup_policy=("delete",)),
            "cleanup.policy is delete, without compact",
        ),
        (
            log([segment(0), segment(9)], 9),
            KafkaTopicConfig(cleanup_policy=()),
            "cleanup.policy is empty, without compact",
        ),
        (
            log([segment(0), segment(9)], 15, 12),
            KafkaTopicConfig(),
            "nothing to clean from offset 12: the active segment begins at offset 9",
        ),
        (
            log([segment(0), segment(9)], 15, high_watermark=3),
            KafkaTopicConfig(),
            "nothing to clean from offset 0: the high watermark 3 is within the segment or below it",
        ),
    ],
)
def test_reason_contains_the_figures(
    of: PartitionLog, config: KafkaTopicConfig, reason: str
) -> None:
    found = cleanable_range(of, config, NOW)
    assert not found.eligible
    assert found.reason == reason


def test_following_archive_may_have_several_active_segments() -> None:
    """A round leaves them unchanged unless told otherwise. Retention may delete them."""
    segments = [segment(10 * n) for n in range(5)]
    closed = replace(log(segments, 50), is_closed=True)
    assert cleanable_range(closed, KafkaTopicConfig(), NOW).first_uncleanable == 50

    following = replace(closed, active_from=30)
    found = cleanable_range(following, KafkaTopicConfig(), NOW)
    assert (found.first_uncleanable, found.held_by) == (30, Hold.ACTIVE_SEGMENT)
    assert found.cleanable_bytes == 300
    assert cleanable_range(following, KafkaTopicConfig(), NOW, True).first_uncleanable == 50
    found = cleanable_range(replace(following, checkpoint=30), KafkaTopicConfig(), NOW)
    assert found.reason is not None and "begins at offset 30" in found.reason
    rolled = replace(closed, active_from=50)
    assert cleanable_range(rolled, KafkaTopicConfig(), NOW).first_uncleanable == 50
