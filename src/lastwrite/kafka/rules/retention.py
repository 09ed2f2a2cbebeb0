"""Which segments a log no longer has to keep, and why.

Kafka takes whole segments, from the oldest up, in three passes over what the pass before left::

    log start         always                   the next segment begins at or below the log start
    retention.bytes   policy with ``delete``   without it the log has that many bytes or more
    retention.ms      policy with ``delete``   its largest timestamp is older than that; equal age stays

A pass ends at the first segment that does not qualify, and whatever lies behind stays too: one record from the
future keeps all later segments. No pass takes a segment that ends above the high watermark, so the log start never
passes what is replicated.

The last segment goes like any other, unless it is empty: then it is what a broker appends to. If all go, an empty
one is made at the log's end first, since a log has at least one, and since its name says where the next offset is.

Source: Kafka 4.4.0 UnifiedLog.deleteOldSegments, deletableSegments, deleteSegments; cleanup spec, section 12.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate

from lastwrite.compaction.settings import KafkaTopicConfig
from lastwrite.model.log import PartitionLog


class RetentionRule(StrEnum):
    """What takes a segment, in the order in which it is asked."""

    LOG_START = "log start"
    BYTES = "retention.bytes"
    AGE = "retention.ms"


@dataclass(frozen=True, slots=True)
class Expired:
    """A segment that goes."""

    base_offset: int
    size_bytes: int
    rule: RetentionRule
    reason: str  # a sentence with the figures

    def to_dict(self) -> dict[str, object]:
        return {
            "base_offset": self.base_offset,
            "bytes": self.size_bytes,
            "rule": str(self.rule),
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class Retention:
    """What goes from the old end of a log: a prefix of its segments, oldest first."""

    segments: tuple[Expired, ...]
    rolls: bool  # all go: an empty segment is made at the log's end first
    first_base: int  # of the first segment that is there afterwards
    log_start: int  # afterwards
    stays: str | None  # why the first of the others stays, with the figures; None: there is none

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)


def expired(log: PartitionLog, config: KafkaTopicConfig, now_ms: int) -> Retention:
    """The segments of ``log`` that Kafka would delete at ``now_ms``.

    The policy ``compact`` alone, and an empty one, know the log start only. ``log`` has at least one segment.
    """
    limits = {RetentionRule.LOG_START: log.log_start}
    if config.deletes:
        limits |= {
            RetentionRule.BYTES: config.retention_bytes,
            RetentionRule.AGE: config.retention_ms,
        }
    # The bytes of each segment and all behind it.
    sizes = list(accumulate(segment.size_bytes for segment in reversed(log.segments)))[::-1]
    gone: list[Expired] = []
    stays = None
    for rule, limit in limits.items():
        if limit < 0:  # switched off
            continue
        while len(gone) < len(log.segments):
            qualifies, reason = _ask(rule, limit, log, len(gone), sizes[len(gone)], now_ms)
            if not qualifies:
                stays = reason
                break
            segment = log.segments[len(gone)]
            gone.append(Expired(segment.base_offset, segment.size_bytes, rule, reason))
    rolls = len(gone) == len(log.segments)
    first_base = log.end_offset if rolls else log.segments[len(gone)].base_offset
    return Retention(
        segments=tuple(gone),
        rolls=rolls,
        first_base=first_base,
        log_start=max(log.log_start, first_base) if gone else log.log_start,
        stays=None if rolls else stays,
    )


def _ask(
    rule: RetentionRule, limit: int, log: PartitionLog, place: int, bytes_left: int, now_ms: int
) -> tuple[bool, str]:
    """Whether the oldest segment that is left qualifies, and why or why not; ``bytes_left`` with it."""
    segment = log.segments[place]
    end = log.segment_end(place)
    is_last = place + 1 == len(log.segments)
    if is_last and log.is_torn:
        return False, "a crash cut it short, and only a broker's start may end the log there"
    if is_last and not segment.size_bytes:
        return False, "it is empty and the last one: a broker appends to it"
    if log.high_watermark < end:
        return (
            False,
            f"it ends at offset {end}, and only what lies below {log.high_watermark} is replicated",
        )
    if rule is RetentionRule.LOG_START:
        if is_last:
            return False, "it is the last one, which no log start takes"
        return end <= limit, f"it ends at offset {end}, and the log starts at {limit}"
    if rule is RetentionRule.BYTES:
        without = bytes_left - segment.size_bytes
        return (
            without >= limit,
            f"of {bytes_left} bytes {without} stay without it; retention.bytes is {limit}",
        )
    age = now_ms - segment.largest_timestamp_ms
    if age < 0:
        return (
            False,
            f"its largest timestamp, {segment.largest_timestamp_ms}, is {-age} ms ahead of {now_ms}",
        )
    return (
        age > limit,
        f"its largest timestamp, {segment.largest_timestamp_ms}, is {age} ms old; retention.ms is {limit}",
    )
