"""Tests of the limits of retention, one by one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from lastwrite.engine.rules.retention import Retention
from lastwrite.kafka.rules.retention import expired
from lastwrite.kafka.rules.settings import KafkaTopicConfig
from lastwrite.model.log import PartitionLog, Segment, TopicPartition
from lastwrite.reports.compaction import RetentionRule

NOW = 1_700_000_000_000
OFF = {"retention_bytes": -1, "retention_ms": -1}


def segment(base: int, size: int = 100, age: int = 0) -> Segment:
    return Segment(base, f"{base:020d}.log", size, 0, NOW - age)


def log(
    segments: Sequence[Segment],
    end: int,
    *,
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
        checkpoint=None,
    )


def deleting(**limits: int) -> KafkaTopicConfig:
    return KafkaTopicConfig(cleanup_policy=("delete",), **{**OFF, **limits})  # type: ignore[arg-type]


def taken(found: Retention) -> list[int]:
    return [gone.base_offset for gone in found.segments]


def test_nothing_expires_without_a_reason() -> None:
    found = expired(log([segment(0), segment(10)], 20, log_start=3), deleting(), NOW)
    assert (found.segments, found.rolls, found.first_base, found.log_start) == ((), False, 0, 3)
    assert found.stays == "it ends at offset 10, and the log start is offset 3"


# ---------------------------------------------------------------------- log start


@pytest.mark.parametrize(
    ("log_start", "gone"), [(9, []), (10, [0]), (19, [0]), (20, [0, 10]), (30, [0, 10])]
)
def test_segment_below_the_log_start_is_deleted_except_the_last(
    log_start: int, gone: list[int]
) -> None:
    whole = log([segment(0), segment(10), segment(20)], 30, log_start=log_start)
    for policy in (("compact",), ("delete",), ("compact", "delete"), ()):
        config = KafkaTopicConfig(cleanup_policy=policy, retention_bytes=-1, retention_ms=-1)
        found = expired(whole, config, NOW)
        assert taken(found) == gone
        # A log start inside the first kept segment is not changed.
        assert (found.log_start, found.rolls) == (log_start, False)
        assert found.first_base == (gone[-1] + 10 if gone else 0)


def test_compact_only_and_empty_policies_have_no_other_rule() -> None:
    old = log([segment(0, age=10**9), segment(10, age=10**9)], 20)
    for policy in (("compact",), ()):
        config = KafkaTopicConfig(cleanup_policy=policy, retention_bytes=0, retention_ms=0)
        assert taken(expired(old, config, NOW)) == []
    both = KafkaTopicConfig(cleanup_policy=("compact", "delete"), retention_bytes=0, retention_ms=0)
    assert taken(expired(old, both, NOW)) == [0, 10]


# ---------------------------------------------------------------------- size


@pytest.mark.parametrize(
    ("limit", "gone"),
    [
        (-1, []),
        (301, []),
        (300, []),
        (299, []),
        (201, []),
        (200, [0]),
        (101, [0]),
        (100, [0, 10]),
        (1, [0, 10]),
        (0, [0, 10, 20]),
    ],
)
def test_size_limit_keeps_at_least_its_bytes(limit: int, gone: list[int]) -> None:
    found = expired(
        log([segment(0), segment(10), segment(20)], 30), deleting(retention_bytes=limit), NOW
    )
    assert taken(found) == gone
    assert found.rolls == (len(gone) == 3)
    assert found.log_start == found.first_base == 10 * len(gone)


def test_empty_segment_is_deleted_if_the_log_has_exactly_the_limit() -> None:
    whole = log([segment(0, 0), segment(10), segment(20, 0)], 20)
    assert taken(expired(whole, deleting(retention_bytes=100), NOW)) == [0]
    assert taken(expired(whole, deleting(retention_bytes=101), NOW)) == []
    # The last segment stays even if it is empty, whatever the limit.
    assert taken(expired(whole, deleting(retention_bytes=0), NOW)) == [0, 10]


# ---------------------------------------------------------------------- time


@pytest.mark.parametrize(("age", "gone"), [(999, []), (1000, []), (1001, [0])])
def test_segment_of_exactly_the_retention_time_stays(age: int, gone: list[int]) -> None:
    whole = log([segment(0, age=age), segment(10)], 20)
    assert taken(expired(whole, deleting(retention_ms=1000), NOW)) == gone


def test_retention_time_of_zero_deletes_everything_older_than_now() -> None:
    assert taken(
        expired(log([segment(0, age=1), segment(10, age=0)], 20), deleting(retention_ms=0), NOW)
    ) == [0]
    found = expired(log([segment(0, age=1), segment(10, age=1)], 20), deleting(retention_ms=0), NOW)
    assert taken(found) == [0, 10]
    assert (found.rolls, found.log_start, found.stays) == (True, 20, None)


def test_future_record_keeps_later_segments() -> None:
    whole = log([segment(0, age=50), segment(10, age=-1), segment(20, age=5000), segment(30)], 40)
    found = expired(whole, deleting(retention_ms=10), NOW)
    assert taken(found) == [0]
    assert (
        found.stays == f"its largest timestamp, time {NOW + 1}, is 1 ms in the future of time {NOW}"
    )


def test_unlimited_retention_time_deletes_nothing() -> None:
    assert (
        taken(
            expired(log([segment(0, age=10**12), segment(10)], 20), deleting(retention_ms=-1), NOW)
        )
        == []
    )


# ---------------------------------------------------------------------- bounds


@pytest.mark.parametrize(
    ("high_watermark", "gone"), [(9, []), (10, [0]), (19, [0]), (20, [0, 10]), (30, [0, 10, 20])]
)
def test_nothing_above_the_high_watermark_is_deleted(high_watermark: int, gone: list[int]) -> None:
    old = [segment(base, age=10**6) for base in (0, 10, 20)]
    whole = log(old, 30, high_watermark=high_watermark)
    for limits in ({"retention_ms": 0}, {"retention_bytes": 0}):
        found = expired(whole, deleting(**limits), NOW)
        assert taken(found) == gone
        assert found.log_start <= max(high_watermark, 0)
    raised = log(old, 30, high_watermark=high_watermark, log_start=30)
    assert taken(expired(raised, deleting(), NOW)) == gone[:2]


def test_last_segment_is_deleted_unless_it_is_empty() -> None:
    filled = expired(log([segment(5, age=9)], 12), deleting(retention_ms=0), NOW)
    assert (taken(filled), filled.rolls, filled.first_base, filled.log_start) == ([5], True, 12, 12)
    empty = expired(log([segment(5, 0, age=9)], 5), deleting(retention_ms=0), NOW)
    assert (taken(empty), empty.rolls) == ([], False)
    assert empty.stays == "it is the last segment and empty: a broker appends to it"


def test_rules_apply_in_order_and_each_segment_names_its_rule() -> None:
    whole = log(
        [segment(0, age=1), segment(10, age=1), segment(20, 50, age=9000), segment(30, 50)],
        40,
        log_start=10,
    )
    found = expired(whole, deleting(retention_bytes=100, retention_ms=1000), NOW)
    assert [(gone.base_offset, gone.rule) for gone in found.segments] == [
        (0, RetentionRule.LOG_START),
        (10, RetentionRule.BYTES),
        (20, RetentionRule.AGE),
    ]
    assert [gone.to_dict() for gone in found.segments] == [
        {
            "base_offset": 0,
            "bytes": 100,
            "rule": "log start",
            "reason": "it ends at offset 10, and the log start is offset 10",
        },
        {
            "base_offset": 10,
            "bytes": 100,
            "rule": "retention.bytes",
            "reason": "the log would shrink from 200 to 100 bytes without it; retention.bytes is 100",
        },
        {
            "base_offset": 20,
            "bytes": 50,
            "rule": "retention.ms",
            "reason": f"its largest timestamp, time {NOW - 9000}, is 9000 ms old; "
            "retention.ms is 1000",
        },
    ]
    assert (found.size_bytes, found.log_start, found.rolls) == (250, 30, False)
