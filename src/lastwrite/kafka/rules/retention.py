"""Which segments retention deletes, and why.

Kafka deletes whole segments from the oldest on, in three passes. Each pass continues where the one
before ended, and deletes a segment under this condition::

    log start         always                   the next segment begins at or below the log start
    retention.bytes   policy with ``delete``   the later segments have ``retention.bytes`` or more
    retention.ms      policy with ``delete``   largest timestamp more than ``retention.ms`` ago

A pass ends at the first segment that does not qualify, and all later segments stay. So one record
with a future timestamp keeps all later segments. No pass deletes a segment that ends above the high
watermark, so the log start never exceeds the replicated part.

The last segment is deleted like any other, unless it is empty: a broker appends to an empty last
segment. If all segments are deleted, an empty segment is created at the log's end first. A log
needs at least one segment, because the segment's name stores the next offset.

Source: Kafka 4.4.0 UnifiedLog.deleteOldSegments, deletableSegments, deleteSegments.
"""

from __future__ import annotations

from itertools import accumulate

from lastwrite.engine.rules.retention import Retention
from lastwrite.kafka.rules.settings import KafkaTopicConfig
from lastwrite.model.log import PartitionLog
from lastwrite.reports.compaction import Expired, RetentionRule


def expired(log: PartitionLog, config: KafkaTopicConfig, now_ms: int) -> Retention:
    """The oldest segments of ``log`` that Kafka would delete at ``now_ms``, with reasons.

    If the policy is only ``compact``, or empty, these are the segments below the log start. ``log``
    must have at least one segment.
    """
    limits = {RetentionRule.LOG_START: log.log_start}
    if config.deletes:
        limits |= {
            RetentionRule.BYTES: config.retention_bytes,
            RetentionRule.AGE: config.retention_ms,
        }
    # For each segment, the bytes from its start to the log's end.
    sizes = list(accumulate(segment.size_bytes for segment in reversed(log.segments)))[::-1]
    removed: list[Expired] = []
    stays = None
    for rule, limit in limits.items():
        if limit < 0:  # a negative limit switches the rule off
            continue
        while len(removed) < len(log.segments):
            qualifies, reason = _evaluate_rule(
                rule, limit, log, len(removed), sizes[len(removed)], now_ms
            )
            if not qualifies:
                stays = reason
                break
            segment = log.segments[len(removed)]
            removed.append(Expired(segment.base_offset, segment.size_bytes, rule, reason))
    rolls = len(removed) == len(log.segments)
    first_base = log.end_offset if rolls else log.segments[len(removed)].base_offset
    return Retention(
        segments=tuple(removed),
        rolls=rolls,
        first_base=first_base,
        log_start=max(log.log_start, first_base) if removed else log.log_start,
        stays=None if rolls else stays,
    )


def _evaluate_rule(
    rule: RetentionRule, limit: int, log: PartitionLog, place: int, bytes_left: int, now_ms: int
) -> tuple[bool, str]:
    """Whether the retention rule ``rule`` deletes segment number ``place``, and the reason.

    ``bytes_left`` is the total size in bytes of this segment and all later segments.
    """
    segment = log.segments[place]
    end = log.segment_end(place)
    is_last = place + 1 == len(log.segments)
    if is_last and log.is_torn:
        return (
            False,
            "it is the last segment, and a crash left it incomplete; only a broker's start may "
            "truncate it",
        )
    if is_last and not segment.size_bytes:
        return False, "it is the last segment and empty: a broker appends to it"
    if log.high_watermark < end:
        return (
            False,
            f"it ends at offset {end}, above the high watermark {log.high_watermark}, so some of "
            "its records may not be replicated",
        )
    if rule is RetentionRule.LOG_START:
        if is_last:
            return False, "it is the last segment, which is not deleted because of the log start"
        return end <= limit, f"it ends at offset {end}, and the log start is offset {limit}"
    if rule is RetentionRule.BYTES:
        without = bytes_left - segment.size_bytes
        return (
            without >= limit,
            f"the log would shrink from {bytes_left} to {without} bytes without it; "
            f"retention.bytes is {limit}",
        )
    age = now_ms - segment.largest_timestamp_ms
    if age < 0:
        return (
            False,
            f"its largest timestamp, time {segment.largest_timestamp_ms}, is {-age} ms in the "
            f"future of time {now_ms}",
        )
    return (
        age > limit,
        f"its largest timestamp, time {segment.largest_timestamp_ms}, is {age} ms old; "
        f"retention.ms is {limit}",
    )
