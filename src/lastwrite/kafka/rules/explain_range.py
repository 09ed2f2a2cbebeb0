"""Why a partition, or a part of it, is not clean: all rules that apply now, and what ends each.

``ranges`` decides; here its answer is put into words, in the order in which Kafka asks. The
smallest case: a log whose records all lie in the active segment. Its reason is that segment, and it
ends with an append: one that would make the segment larger than ``segment.bytes``, or whose
timestamp is more than ``segment.ms`` behind the first.

Source: docs/formats/kafka-cleaning.md, "Which partitions" and "The range", which also says when a
segment is closed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from lastwrite.config.declaration import LONG_MAX
from lastwrite.engine.rules.ranges import Hold, Range
from lastwrite.kafka.rules.settings import KafkaTopicConfig
from lastwrite.model.log import PartitionLog
from lastwrite.reports.explanation import Reason, Rule


def policy_reason(config: KafkaTopicConfig) -> Reason | None:
    """The policy, where it does not ask for compaction."""
    if config.compacts:
        return None
    return Reason(
        Rule.POLICY,
        f"cleanup.policy is {','.join(config.cleanup_policy) or 'empty'}, without compact",
        "with cleanup.policy compact, or compact,delete",
    )


def range_reasons(
    found: Range, log: PartitionLog, config: KafkaTopicConfig, now_ms: int, include_active: bool
) -> list[Reason]:
    """What keeps ``found``, the range of ``log``, from being cleaned, or from reaching the log's
    end.
    """
    if not log.size_bytes:
        return [Reason(Rule.EMPTY, "the log is empty", "when something is written")]
    if found.first_dirty >= log.end_offset:
        message = (
            f"all offsets below {log.end_offset} were cleaned before, and nothing was written since"
        )
        return [Reason(Rule.CLEAN, message, "when something is written")]
    reasons = list(_holds(found, log, config, now_ms, include_active))
    if config.compacts and not found.eligible:
        if found.cleanable_bytes:
            reasons.append(_ratio(found, config))
        elif not reasons:  # segments without a byte
            assert found.reason is not None
            reasons.append(Reason(Rule.EMPTY, found.reason, "when something is written"))
    return reasons


def _holds(
    found: Range, log: PartitionLog, config: KafkaTopicConfig, now_ms: int, include_active: bool
) -> Iterator[Reason]:
    at = {hold: offset for offset, hold in found.holds if offset < log.end_offset}
    if Hold.ACTIVE_SEGMENT in at:
        yield _active_segment(log, config, max(at[Hold.ACTIVE_SEGMENT], found.first_dirty))
    if log.first_unstable_offset is not None and log.first_unstable_offset < log.end_offset:
        yield _transaction(log, log.first_unstable_offset)
    if Hold.HIGH_WATERMARK in at:
        yield Reason(
            Rule.HIGH_WATERMARK,
            f"the high watermark is {log.high_watermark}: offsets from there to {log.end_offset - 1} are not known to "
            "be replicated",
            "when the replicas have caught up and the broker has written replication-offset-checkpoint, which it does "
            "every 5 seconds and when it stops",
            from_offset=log.high_watermark,
        )
    if Hold.MIN_LAG in at:
        young = next(s for s in log.segments if s.base_offset == at[Hold.MIN_LAG])
        stamp = young.largest_timestamp_ms
        passes = stamp + config.min_compaction_lag_ms
        yield Reason(
            Rule.MIN_LAG,
            f"segment {young.base_offset} has a record of {stamp}, {now_ms - stamp} ms old; min.compaction.lag.ms is "
            f"{config.min_compaction_lag_ms}",
            f"from {passes} on, in {passes - now_ms} ms",
            passes,
            young.base_offset,
        )


def _active_segment(log: PartitionLog, config: KafkaTopicConfig, first_offset: int) -> Reason:
    active = log.segments[-1]
    place = f"offsets {first_offset} to {log.end_offset - 1}, {active.size_bytes} bytes"
    message = f"{place}, lie in the active segment, which no round touches"
    change = f"with a broker's append that would make it larger than segment.bytes, {config.segment_bytes}"
    # A compacted topic's segments are also closed in time for max.compaction.lag.ms.
    roll_ms, setting = config.segment_ms, "segment.ms"
    if config.compacts and config.max_compaction_lag_ms < roll_ms:
        roll_ms, setting = config.max_compaction_lag_ms, "max.compaction.lag.ms"
    at_ms = None
    stamp = active.first_batch_timestamp_ms
    if stamp is not None and 0 <= stamp <= LONG_MAX - roll_ms - 1:
        at_ms = stamp + roll_ms + 1
        change += f", or the first one of {at_ms} or later, by {setting}, {roll_ms}"
        if config.segment_jitter_ms:
            change += f", less a jitter of up to {config.segment_jitter_ms}"
    change += "; where no broker appends any more, --include-active cleans it"
    return Reason(Rule.ACTIVE_SEGMENT, message, change, at_ms, first_offset)


def _transaction(log: PartitionLog, first: int) -> Reason:
    begun = sorted(
        (p.open_from, p.producer_id, p.producer_epoch) for p in log.producers if p.open_from >= 0
    )
    if begun and begun[0][0] == first:
        _, producer_id, epoch = begun[0]
        message = f"the transaction of producer {producer_id}, epoch {epoch}, open since offset {first}, is not decided"
        if len(begun) > 1:
            message += f"; {len(begun) - 1} more are open behind it"
        change = (
            "when it commits or aborts; its coordinator aborts it after its transaction.timeout.ms; a hanging one ends "
            "by kafka-transactions.sh abort"
        )
    else:
        message = (
            f"the transaction that began at offset {first} has ended, but its marker is not known to be replicated: "
            f"the high watermark is {log.high_watermark}"
        )
        change = "when the high watermark has passed the marker"
    return Reason(Rule.TRANSACTION, message, change, from_offset=first)


def _ratio(found: Range, config: KafkaTopicConfig) -> Reason:
    assert found.reason is not None
    missing = dirty_bytes_missing(found, config.min_cleanable_dirty_ratio)
    if missing is None:
        change = "never by this ratio, which no share is above"
    else:
        change = f"after {missing} more bytes in closed segments"
    if found.overdue_at_ms is not None:
        change += f", or from {found.overdue_at_ms} on, by max.compaction.lag.ms, {config.max_compaction_lag_ms}"
    return Reason(Rule.DIRTY_RATIO, found.reason, change, found.overdue_at_ms)


def dirty_bytes_missing(found: Range, threshold: float) -> int | None:
    """How many more cleanable bytes carry the share above ``threshold``; None: no number does.

    What is more lies in segments behind the first dirty one, so it is not counted as clean, too.
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
