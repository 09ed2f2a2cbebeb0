"""The offsets that a round may clean, and whether the round is due or why not.

For example, a log has the segments 0, 10 and 20 and the active segment 30, and was cleaned up to
offset 10. The *clean* part is segment 0. The *dirty* part starts at offset 10, the *first dirty
offset*, which a checkpoint stores. A round reads the keys of the dirty part and rewrites everything
up to its end, the *first uncleanable offset*. The lowest of these limits determines that end:

- the high watermark: nothing that is not replicated is touched;
- the first offset of the earliest transaction that is open or whose marker is not replicated;
- the active segment, since a broker appends to it;
- ``min.compaction.lag.ms``: the first closed segment with a record younger than that.

The end is rounded down to a segment's base, because a round cleans whole segments. The first dirty
offset is not rounded. If it is inside a segment, that segment counts as clean *and* as cleanable.

A round is due if the cleanable share of the bytes is *above* ``min.cleanable.dirty.ratio``, or if
the oldest closed dirty segment has waited longer than ``max.compaction.lag.ms``.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

from lastwrite.model.log import PartitionLog, Segment
from lastwrite.model.policy import LONG_MAX


class RangeSettings(Protocol):
    """The settings that determine the range of a round. ``KafkaTopicConfig`` describes them."""

    @property
    def cleanup_policy(self) -> tuple[str, ...]: ...

    @property
    def compacts(self) -> bool: ...

    @property
    def min_cleanable_dirty_ratio(self) -> float: ...

    @property
    def min_compaction_lag_ms(self) -> int: ...

    @property
    def max_compaction_lag_ms(self) -> int: ...


class Hold(StrEnum):
    """The limit that ends a round's range."""

    HIGH_WATERMARK = "the high watermark"
    TRANSACTION = "an open transaction"
    ACTIVE_SEGMENT = "the active segment"
    MIN_LAG = "min.compaction.lag.ms"
    LOG_END = "the log's end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """The range of a round, [first_dirty, first_uncleanable), and whether the round is due."""

    first_dirty: int
    first_uncleanable: int  # end of the range, exclusive: a segment's base, or the log's end
    clean_bytes: int  # bytes of segments whose base offset is below first_dirty
    # bytes of the segments in the range; the first of them contains first_dirty
    cleanable_bytes: int
    overdue_ms: int  # milliseconds by which the log exceeds max.compaction.lag.ms; 0 if it does not
    held_by: Hold
    # whether the checkpoint was outside the log and was replaced by the log start
    checkpoint_corrected: bool
    eligible: bool
    reason: str | None  # why the round is not due, with figures; None if ``eligible``
    # offset and kind of every limit that applies to the range's end
    holds: tuple[tuple[int, Hold], ...] = ()
    # time at which max.compaction.lag.ms is exceeded; None if that never happens
    overdue_at_ms: int | None = None

    @property
    def ratio(self) -> float:
        """The cleanable share of the bytes; 0 if the log has no bytes."""
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0


def cleanable_range(
    log: PartitionLog, config: RangeSettings, now_ms: int, include_active: bool = False
) -> Range:
    """The range of the next round of ``log``, and whether Kafka would run the round at ``now_ms``.

    With ``include_active`` the active segment counts as closed: a log without a writer is cleaned
    up to its end if all of it is replicated.

    ``log`` has at least one segment.

    Source: Kafka 4.4.0 LogCleanerManager.cleanableOffsets, maxCompactionDelay and LogToClean;
    KIP-58, KIP-354; docs/formats/kafka-cleaning.md, "Which partitions" and "The range".
    """
    first_dirty, corrected = _first_dirty(log)
    include_active = include_active or (log.is_closed and log.closed_end >= log.end_offset)
    closed_end = log.end_offset if include_active else log.closed_end
    closed = tuple(segment for segment in log.segments if segment.base_offset < closed_end)
    dirty = _segments_from(closed, first_dirty, closed_end)

    holds = [
        (log.high_watermark, Hold.HIGH_WATERMARK),
        (closed_end, Hold.LOG_END if include_active else Hold.ACTIVE_SEGMENT),
    ]
    if log.last_stable_offset < log.high_watermark:
        holds.append((log.last_stable_offset, Hold.TRANSACTION))
    if config.min_compaction_lag_ms > 0:
        youngest_allowed = now_ms - config.min_compaction_lag_ms
        young = next((s for s in dirty if s.largest_timestamp_ms > youngest_allowed), None)
        if young is not None:
            holds.append((young.base_offset, Hold.MIN_LAG))
    # If several limits have the same offset, the last one is reported, because it explains most.
    held_at = min(offset for offset, _ in holds)
    held_by = next(hold for offset, hold in reversed(holds) if offset == held_at)
    first_uncleanable = _rounded_down(closed, max(first_dirty, held_at), closed_end)

    clean_bytes = sum(s.size_bytes for s in log.segments if s.base_offset < first_dirty)
    cleanable = _segments_from(closed, min(first_dirty, first_uncleanable), closed_end)
    cleanable_bytes = sum(s.size_bytes for s in cleanable if s.base_offset < first_uncleanable)
    overdue_at_ms = _overdue_at_ms(dirty, config)

    found = Range(
        first_dirty=first_dirty,
        first_uncleanable=first_uncleanable,
        clean_bytes=clean_bytes,
        cleanable_bytes=cleanable_bytes,
        held_by=held_by,
        checkpoint_corrected=corrected,
        eligible=True,
        reason=None,
        overdue_ms=0 if overdue_at_ms is None else max(now_ms + 1 - overdue_at_ms, 0),
        holds=tuple(holds),
        overdue_at_ms=overdue_at_ms,
    )
    reason = _reason_against(found, log, config, now_ms)
    return found if reason is None else replace(found, eligible=False, reason=reason)


def is_at_rest(found: Range, log: PartitionLog, config: RangeSettings) -> bool:
    """Whether a round is not due only because too little of the log is dirty.

    The records below the range's end are then clean, and a round on request can clean them again.
    """
    # A range that ends below the checkpoint does not count, because a round on it would move the
    # checkpoint back.
    reaches_dirty = found.first_dirty <= found.first_uncleanable
    below = (s.size_bytes for s in log.segments if s.base_offset < found.first_uncleanable)
    return config.compacts and not found.eligible and reaches_dirty and any(below)


def _first_dirty(log: PartitionLog) -> tuple[int, bool]:
    """The first dirty offset, and whether the checkpoint was outside the log."""
    if log.checkpoint is None:
        return log.log_start, False
    if log.checkpoint < log.log_start or log.checkpoint > log.end_offset:
        return log.log_start, True
    return log.checkpoint, False


def _segments_from(
    closed: tuple[Segment, ...], offset: int, closed_end: int
) -> tuple[Segment, ...]:
    """The closed segment that contains ``offset``, and all later closed segments."""
    if offset >= closed_end:
        return ()
    at = bisect.bisect_right(closed, offset, key=lambda s: s.base_offset) - 1
    return closed[max(at, 0) :]


def _rounded_down(closed: tuple[Segment, ...], offset: int, closed_end: int) -> int:
    """The base offset of the closed segment that contains ``offset``.

    ``closed_end`` if none does.
    """
    holding = _segments_from(closed, offset, closed_end)
    return holding[0].base_offset if holding else closed_end


def _overdue_at_ms(dirty: tuple[Segment, ...], config: RangeSettings) -> int | None:
    stamps = [s.first_batch_timestamp_ms for s in dirty if s.first_batch_timestamp_ms is not None]
    earliest = min((stamp for stamp in stamps if stamp > 0), default=LONG_MAX)
    at_ms = earliest + config.max_compaction_lag_ms + 1
    return at_ms if at_ms <= LONG_MAX else None


def _reason_against(
    found: Range, log: PartitionLog, config: RangeSettings, now_ms: int
) -> str | None:
    """The first reason, in Kafka's order, why Kafka would not clean the log. None if it would."""
    if not config.compacts:
        return f"cleanup.policy is {','.join(config.cleanup_policy) or 'empty'}, without compact"
    if found.clean_bytes + found.cleanable_bytes == 0 and log.size_bytes == 0:
        return "the log is empty"
    if found.cleanable_bytes == 0:
        return _nothing_cleanable(found, log, config, now_ms)
    if found.ratio > config.min_cleanable_dirty_ratio or found.overdue_ms > 0:
        return None
    total = found.clean_bytes + found.cleanable_bytes
    return (
        f"{found.cleanable_bytes} of {total} bytes are dirty, a ratio of {found.ratio:.4g}; a "
        "round requires more than min.cleanable.dirty.ratio, "
        f"{config.min_cleanable_dirty_ratio:g}"
    )


def _nothing_cleanable(found: Range, log: PartitionLog, config: RangeSettings, now_ms: int) -> str:
    start = f"nothing to clean from offset {found.first_dirty}"
    if found.first_dirty >= log.end_offset:
        return f"all {log.end_offset} offsets are already clean"
    if found.held_by is Hold.HIGH_WATERMARK:
        return f"{start}: the high watermark {log.high_watermark} is within the segment or below it"
    if found.held_by is Hold.TRANSACTION:
        return (
            f"{start}: the transaction that began at offset {log.last_stable_offset} is still "
            "open, or its marker is not replicated"
        )
    if found.held_by is Hold.MIN_LAG:
        return (
            f"{start}: at time {now_ms} the segment has a record younger than "
            f"min.compaction.lag.ms, {config.min_compaction_lag_ms}"
        )
    if found.held_by is Hold.ACTIVE_SEGMENT:
        return f"{start}: the active segment begins at offset {log.closed_end}"
    return f"{start}: the segments up to offset {found.first_uncleanable} are empty"
