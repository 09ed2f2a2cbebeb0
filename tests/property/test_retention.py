"""Properties of retention, compared with Kafka's loop in plain Python, pass after pass."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from lastwrite.kafka.rules.retention import expired
from lastwrite.kafka.rules.settings import KafkaTopicConfig
from lastwrite.model.log import PartitionLog, Segment, TopicPartition

TIMES = st.integers(0, 40)
POLICIES = st.sampled_from([(), ("compact",), ("delete",), ("compact", "delete")])


@st.composite
def partition_logs(draw: st.DrawFn) -> PartitionLog:
    """Random logs of a few segments, some empty, with random bounds."""
    base = draw(st.integers(0, 5))
    segments = []
    for length in draw(st.lists(st.integers(1, 9), min_size=1, max_size=6)):
        segments.append(
            Segment(base, f"{base:020d}.log", draw(st.integers(0, 3)) * 10, 0, draw(TIMES))
        )
        base += length
    last = segments[-1]
    end = base if last.size_bytes else last.base_offset
    start = draw(st.integers(segments[0].base_offset, end))
    return PartitionLog(
        TopicPartition("t", 0),
        "t-0",
        tuple(segments),
        log_start=start,
        end_offset=end,
        high_watermark=draw(st.integers(start, end)),
        checkpoint=None,
    )


class Broker:
    """A broker's log in memory."""

    def __init__(self, log: PartitionLog) -> None:
        self.segments = list(log.segments)
        self.log_start = log.log_start
        self.end = log.end_offset
        self.high_watermark = log.high_watermark
        self.deleted: list[int] = []
        self.rolled = False

    def delete_while(self, qualifies: Callable[[Segment, int | None], bool]) -> None:
        doomed = []
        for segment, following in zip(self.segments, [*self.segments[1:], None], strict=True):
            end = self.end if following is None else following.base_offset
            base = None if following is None else following.base_offset
            if self.high_watermark < end or not qualifies(segment, base):
                break
            if following is None and segment.size_bytes == 0:
                break
            doomed.append(segment)
        if doomed and len(doomed) == len(self.segments):
            self.segments.append(Segment(self.end, "", 0, 0, 0))
            self.rolled = True
        self.segments = self.segments[len(doomed) :]
        self.deleted += [segment.base_offset for segment in doomed]
        if doomed:
            self.log_start = max(self.log_start, self.segments[0].base_offset)

    def retain(self, config: KafkaTopicConfig, now: int) -> None:
        self.delete_while(
            lambda _, following: following is not None and following <= self.log_start
        )
        if "delete" not in config.cleanup_policy:
            return
        total = sum(segment.size_bytes for segment in self.segments)
        if 0 <= config.retention_bytes <= total:
            excess = total - config.retention_bytes

            def is_excess(segment: Segment, _: int | None) -> bool:
                nonlocal excess
                if excess < segment.size_bytes:
                    return False
                excess -= segment.size_bytes
                return True

            self.delete_while(is_excess)
        if config.retention_ms >= 0:
            self.delete_while(
                lambda segment, _: now - segment.largest_timestamp_ms > config.retention_ms
            )


@given(partition_logs(), POLICIES, st.integers(-1, 120), st.integers(-1, 20), TIMES)
def test_expired_segments_equal_those_of_the_brokers_loop(
    log: PartitionLog, policy: tuple[str, ...], limit_bytes: int, limit_ms: int, now: int
) -> None:
    config = KafkaTopicConfig(
        cleanup_policy=policy, retention_bytes=limit_bytes, retention_ms=limit_ms
    )
    found = expired(log, config, now)
    broker = Broker(log)
    broker.retain(config, now)
    assert [gone.base_offset for gone in found.segments] == broker.deleted
    assert found.rolls == broker.rolled
    assert found.log_start == broker.log_start
    assert found.first_base == broker.segments[0].base_offset
    # These hold for every log:
    assert found.log_start <= log.high_watermark
    assert (found.stays is None) == found.rolls


@given(partition_logs(), POLICIES, st.integers(-1, 120), st.integers(-1, 20), TIMES)
def test_second_pass_expires_nothing(
    log: PartitionLog, policy: tuple[str, ...], limit_bytes: int, limit_ms: int, now: int
) -> None:
    config = KafkaTopicConfig(
        cleanup_policy=policy, retention_bytes=limit_bytes, retention_ms=limit_ms
    )
    found = expired(log, config, now)
    left = log.segments[len(found.segments) :] or (Segment(log.end_offset, "", 0, 0, 0),)
    after = PartitionLog(
        log.name,
        log.folder,
        left,
        log_start=found.log_start,
        end_offset=log.end_offset,
        high_watermark=log.high_watermark,
        checkpoint=None,
    )
    assert expired(after, config, now).segments == ()
