"""Properties of a round's range and of segment groups, against a model by offset."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lastwrite.engine.rules.ranges import cleanable_range
from lastwrite.kafka.rules.grouping import group_segments
from lastwrite.kafka.rules.settings import KafkaTopicConfig
from lastwrite.model.log import PartitionLog, Segment, TopicPartition

TIMES = st.integers(0, 40)


@st.composite
def partition_logs(draw: st.DrawFn) -> PartitionLog:
    """Random logs of a few segments of 0 to 9 offsets, with random bounds."""
    base = draw(st.integers(0, 5))
    segments = []
    for length in draw(st.lists(st.integers(1, 9), min_size=1, max_size=6)):
        first = draw(st.none() | st.integers(-1, 40))
        segments.append(
            Segment(
                base,
                f"{base:020d}.log",
                draw(st.integers(0, 30)),
                0,
                draw(TIMES),
                first,
                index_bytes=8 * draw(st.integers(0, 3)),
                time_index_bytes=12 * draw(st.integers(0, 3)),
            )
        )
        base += length
    end = draw(st.integers(segments[-1].base_offset, base))
    start = draw(st.integers(segments[0].base_offset, end))
    return PartitionLog(
        TopicPartition("t", 0),
        "t-0",
        tuple(segments),
        log_start=start,
        end_offset=end,
        high_watermark=draw(st.integers(0, end)),
        checkpoint=draw(st.none() | st.integers(0, end + 2)),
    )


@given(
    partition_logs(),
    TIMES,
    st.sampled_from([0, 1, 7]),
    st.integers(1, 20),
    st.sampled_from([0.0, 0.3, 0.5, 1.0]),
)
def test_range_equals_the_offset_by_offset_model(
    log: PartitionLog, now: int, lag: int, max_lag: int, threshold: float
) -> None:
    config = KafkaTopicConfig(
        min_compaction_lag_ms=lag,
        max_compaction_lag_ms=max(lag, max_lag),
        min_cleanable_dirty_ratio=threshold,
    )
    found = cleanable_range(log, config, now)

    active = log.segments[-1].base_offset
    closed = log.segments[:-1]
    checkpoint = log.log_start if log.checkpoint is None else log.checkpoint
    dirty = checkpoint if log.log_start <= checkpoint <= log.end_offset else log.log_start

    def holds(segment: Segment, offset: int) -> bool:
        at = log.segments.index(segment)
        return segment.base_offset <= offset < log.segments[at + 1].base_offset

    # An offset is cleanable if no rule excludes it or an offset before it.
    end = 0
    while end < active and end < log.high_watermark:
        young = [
            s
            for s in closed
            if holds(s, end)
            and lag
            and s.largest_timestamp_ms > now - lag
            and (s.base_offset >= dirty or holds(s, dirty))
        ]
        if young:
            break
        end += 1
    end = max(dirty, end)
    rounded = next((s.base_offset for s in closed if holds(s, end)), active)
    assert (found.first_dirty, found.first_uncleanable) == (dirty, rounded)

    clean = sum(s.size_bytes for s in log.segments if s.base_offset < dirty)
    to_clean = [
        s for s in closed if s.base_offset < rounded and (s.base_offset >= dirty or holds(s, dirty))
    ]
    cleanable = sum(s.size_bytes for s in to_clean)
    assert (found.clean_bytes, found.cleanable_bytes) == (clean, cleanable)
    late = any(
        s.first_batch_timestamp_ms is not None
        and 0 < s.first_batch_timestamp_ms < now - config.max_compaction_lag_ms
        for s in closed
        if s.base_offset >= dirty or holds(s, dirty)
    )
    due = cleanable > 0 and (late or cleanable / (clean + cleanable) > threshold)
    assert found.eligible == due == (found.reason is None)
    assert (found.overdue_ms > 0) == late
    assert found.checkpoint_corrected == (dirty != checkpoint)


@given(partition_logs(), TIMES, st.sampled_from([0, 7]))
def test_include_active_equals_an_added_empty_segment(
    log: PartitionLog, now: int, lag: int
) -> None:
    config = KafkaTopicConfig(min_compaction_lag_ms=lag)
    found = cleanable_range(log, config, now, include_active=True)
    filled = log.segments[-1].base_offset < log.end_offset
    behind = (*log.segments[: None if filled else -1], Segment(log.end_offset, "", 0, 0, 0))
    rolled = PartitionLog(
        log.name,
        log.folder,
        behind,
        log.log_start,
        log.end_offset,
        log.high_watermark,
        log.checkpoint,
    )
    expected = cleanable_range(rolled, config, now)
    expected_bytes = (
        expected.clean_bytes if filled else found.clean_bytes
    )  # a segment without offsets has no bytes
    assert (
        found.first_dirty,
        found.first_uncleanable,
        found.clean_bytes,
        found.cleanable_bytes,
    ) == (
        expected.first_dirty,
        expected.first_uncleanable,
        expected_bytes,
        expected.cleanable_bytes,
    )


@given(
    partition_logs(), st.integers(0, 60), st.integers(14, 60), st.sampled_from([8, 24, 36, 1000])
)
def test_groups_are_adjacent_segments_of_maximal_size(
    log: PartitionLog, end: int, limit: int, index_limit: int
) -> None:
    groups = group_segments(log.segments, end, limit, index_limit)
    assert [s for group in groups for s in group] == [
        s for s in log.segments if s.base_offset < end
    ]

    def fits(group: list[Segment]) -> bool:
        return (
            sum(s.size_bytes for s in group) <= limit
            and sum(s.index_bytes for s in group) <= index_limit
            and sum(s.time_index_bytes for s in group) <= index_limit
        )

    for group, following in zip(groups, [*groups[1:], None], strict=False):
        assert len(group) == 1 or fits(group)
        assert following is None or not fits([*group, following[0]])
