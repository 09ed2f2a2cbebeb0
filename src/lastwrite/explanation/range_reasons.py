"""Describe why a partition, or a part of it, is not cleaned, and what ends each reason.

Used for systems whose compaction works on closed segments.

``engine.rules.ranges`` decides; this module puts the decision into words.

Source: docs/formats/kafka-cleaning.md, "Which partitions" and "The range".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from lastwrite.engine.rules.ranges import Hold, Range, RangeSettings
from lastwrite.model.log import PartitionLog
from lastwrite.model.policy import LONG_MAX
from lastwrite.reports.explanation import Reason, Rule


def range_reasons(
    found: Range, log: PartitionLog, config: RangeSettings, holds: Iterable[Reason], all_clean: str
) -> list[Reason]:
    """Why ``found``, the range of the next round of ``log``, excludes some or all of the log.

    Args:
        holds: the reasons why the range ends before the log's end, in the system's order.
        all_clean: the system's message for a log without dirty records.
    """
    if not log.size_bytes:
        return [Reason(Rule.EMPTY, "the log is empty", "when a record is written")]
    if found.first_dirty >= log.end_offset:
        return [Reason(Rule.CLEAN, all_clean, "when a record is written")]
    reasons = list(holds)
    if config.compacts and not found.eligible:
        if found.cleanable_bytes:
            reasons.append(_ratio(found, config))
        elif not reasons:  # no rule applies, because the segments are empty
            assert found.reason is not None
            reasons.append(Reason(Rule.EMPTY, found.reason, "when a record is written"))
    return reasons


def lag_reasons(
    found: Range,
    log: PartitionLog,
    config: RangeSettings,
    now_ms: int,
    segment_at: Callable[[int], str],
) -> Iterator[Reason]:
    """Yield a reason if a segment is younger than the compaction lag.

    ``segment_at`` returns the file name of the segment at an offset, for the message.
    """
    at = {hold: offset for offset, hold in found.holds}.get(Hold.MIN_LAG)
    if at is None or at >= log.end_offset:
        return
    stamp = next(s for s in log.segments if s.base_offset == at).largest_timestamp_ms
    passes = stamp + config.min_compaction_lag_ms
    is_ever = passes <= LONG_MAX
    yield Reason(
        Rule.MIN_LAG,
        f"{segment_at(at)} has a record of time {stamp}, which is {now_ms - stamp} ms old; "
        f"min.compaction.lag.ms is {config.min_compaction_lag_ms}",
        f"from time {passes} on, in {passes - now_ms} ms" if is_ever else "never, by this setting",
        passes if is_ever else None,
        at,
    )


def _ratio(found: Range, config: RangeSettings) -> Reason:
    assert found.reason is not None
    missing = dirty_bytes_missing(found, config.min_cleanable_dirty_ratio)
    if missing is None:
        change = "never by this ratio, which no dirty ratio exceeds"
    else:
        change = f"after {missing} more bytes in closed segments"
    if found.overdue_at_ms is not None:
        lag_ms = config.max_compaction_lag_ms
        change += f", or from time {found.overdue_at_ms} on, by max.compaction.lag.ms, {lag_ms}"
    return Reason(Rule.DIRTY_RATIO, found.reason, change, found.overdue_at_ms)


def dirty_bytes_missing(found: Range, threshold: float) -> int | None:
    """The number of additional cleanable bytes at which the dirty ratio exceeds ``threshold``.

    Returns None if no number is enough.

    Further bytes come after the first dirty segment, so they count as dirty.
    """
    if threshold >= 1:
        return None

    def is_enough(more: int) -> bool:
        return replace(found, cleanable_bytes=found.cleanable_bytes + more).ratio > threshold

    high = 1
    while not is_enough(high):
        high *= 2
    low = 0
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle + 1, high)
    return low
