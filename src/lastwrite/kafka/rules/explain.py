"""Why a partition is not clean, or why a tombstone remains, in the order of Kafka's checks.

``ranges`` and ``verdict`` decide; this module describes their results. The smallest case: a log
with all records in the active segment. The reason is that the active segment is not compacted. A
broker closes it before an append that would exceed ``segment.bytes``, or that has a timestamp more
than ``segment.ms`` after that of the segment's first batch.

Source: docs/formats/kafka-cleaning.md, "Which partitions" and "The range", which also describes
when a segment is closed.
"""

from __future__ import annotations

from collections.abc import Iterator

from lastwrite.engine.rules.ranges import Hold, Range
from lastwrite.explanation.outcomes import OutcomeReason, OutcomeRules, RecordFacts
from lastwrite.explanation.range_reasons import lag_reasons, range_reasons
from lastwrite.kafka.rules import joining
from lastwrite.kafka.rules.settings import KafkaTopicConfig
from lastwrite.model.log import PartitionLog
from lastwrite.model.policy import LONG_MAX
from lastwrite.reports.explanation import Reason, RecordOutcome, Rule


def policy_reason(config: KafkaTopicConfig) -> Reason | None:
    """The reason why the cleanup policy excludes compaction. None if the topic is compacted."""
    if config.compacts:
        return None
    return Reason(
        Rule.POLICY,
        f"cleanup.policy is {','.join(config.cleanup_policy) or 'empty'}, without compact",
        "with cleanup.policy compact, or compact,delete",
    )


def kafka_reasons(
    found: Range, log: PartitionLog, config: KafkaTopicConfig, now_ms: int
) -> list[Reason]:
    """The reasons why the range ``found`` is not compacted, or ends before the log does."""
    all_clean = (
        f"all offsets below {log.end_offset} were compacted before, and no record was written since"
    )
    return range_reasons(found, log, config, _holds(found, log, config, now_ms), all_clean)


def _holds(
    found: Range, log: PartitionLog, config: KafkaTopicConfig, now_ms: int
) -> Iterator[Reason]:
    at = {hold: offset for offset, hold in found.holds if offset < log.end_offset}
    if Hold.ACTIVE_SEGMENT in at:
        yield _active_segment(log, config, max(at[Hold.ACTIVE_SEGMENT], found.first_dirty))
    if log.first_unstable_offset is not None and log.first_unstable_offset < log.end_offset:
        yield _transaction(log, log.first_unstable_offset)
    if Hold.HIGH_WATERMARK in at:
        yield Reason(
            Rule.HIGH_WATERMARK,
            f"the high watermark is {log.high_watermark}: offsets {log.high_watermark} to "
            f"{log.end_offset - 1} may not be replicated",
            "when the replicas have caught up and the broker has written "
            "replication-offset-checkpoint, which it does every 5 seconds and when it stops",
            from_offset=log.high_watermark,
        )
    yield from lag_reasons(found, log, config, now_ms, lambda base: f"segment {base}")


def _active_segment(log: PartitionLog, config: KafkaTopicConfig, first_offset: int) -> Reason:
    parts = [each for each in log.segments if each.base_offset >= log.closed_end]
    active, size = parts[0], sum(each.size_bytes for each in parts)
    place = f"offsets {first_offset} to {log.end_offset - 1}, {size} bytes"
    message = f"{place}, are in the active segment, which is not compacted"
    change = (
        "with --include-active, if no broker appends to this log any more; otherwise when a "
        f"broker's append would make the segment larger than segment.bytes ({config.segment_bytes})"
    )
    # A compacted topic's segments are also closed in time for max.compaction.lag.ms.
    roll_ms = joining.roll_ms(config)
    setting = "segment.ms" if roll_ms == config.segment_ms else "max.compaction.lag.ms"
    at_ms = None
    stamp = active.first_batch_timestamp_ms
    if stamp is not None and 0 <= stamp <= LONG_MAX - roll_ms - 1:
        at_ms = stamp + roll_ms + 1
        change += (
            f", or with the first append at time {at_ms} or later, because of {setting}={roll_ms}"
        )
        if config.segment_jitter_ms:
            change += f" minus a jitter of up to {config.segment_jitter_ms} ms"
    return Reason(Rule.ACTIVE_SEGMENT, message, change, at_ms, first_offset)


def _transaction(log: PartitionLog, first: int) -> Reason:
    begun = sorted(
        (p.open_from, p.producer_id, p.producer_epoch) for p in log.producers if p.open_from >= 0
    )
    if begun and begun[0][0] == first:
        _, producer_id, epoch = begun[0]
        message = (
            f"the transaction of producer {producer_id}, epoch {epoch}, is open since offset "
            f"{first}"
        )
        if len(begun) > 1:
            message += f"; {len(begun) - 1} later transactions are open, too"
        change = (
            "when the transaction commits or aborts; its coordinator aborts it after "
            "transaction.timeout.ms; to end a hanging transaction, run kafka-transactions.sh abort"
        )
    else:
        message = (
            f"the transaction that began at offset {first} has ended, but its marker may not be "
            f"replicated: the high watermark is {log.high_watermark}"
        )
        change = "when the high watermark is above the marker"
    return Reason(Rule.TRANSACTION, message, change, from_offset=first)


class KafkaOutcomeRules(OutcomeRules):
    """Explains why a record is kept or removed, in Kafka's terms."""

    forget_clean = "the partition's line is removed from cleaner-offset-checkpoint"

    @staticmethod
    def writer(facts: RecordFacts) -> str:
        return f"producer {facts.producer_id} wrote it in"

    def delete(self, facts: RecordFacts, message: str) -> OutcomeReason:
        now_ms = self.round.now_ms
        if facts.is_old:
            return self._old_delete(facts, message)
        if facts.horizon_ms is None:
            return self._unstamped_delete(facts, message)
        message += f"; its delete horizon, time {facts.horizon_ms},"
        if facts.goes:
            return self.next_expired(f"{message} passed {now_ms - facts.horizon_ms} ms ago")
        if facts.horizon_ms <= now_ms and self.is_held(facts):
            return self.held(facts, message)
        if facts.horizon_ms <= now_ms:
            return OutcomeReason(
                RecordOutcome.LATER,
                f"{message} passed, but an older version of the key may be at or above "
                f"{self.place(self.round.end)}, beyond the next round's range, because versions "
                "are not ordered by offset",
                "the first round that reaches the log's end removes the tombstone",
            )
        return OutcomeReason(
            RecordOutcome.LATER,
            f"{message} is {facts.horizon_ms - now_ms} ms ahead",
            "the first round at or after that time removes the tombstone; a round needs dirty data",
            facts.horizon_ms,
        )

    def _unstamped_delete(self, facts: RecordFacts, message: str) -> OutcomeReason:
        policy = self.round.policy
        retention = f"delete.retention.ms ({policy.tombstone_retention_ms})"
        if facts.has_bad_horizon:
            message += (
                "; its batch has a negative delete horizon, which Lastwrite ignores; a broker's "
                "cleaner would remove the tombstone in its next round"
            )
        else:
            message += "; no round has processed it yet, so it has no delete horizon"
        horizon_ms = policy.new_horizon_ms
        if horizon_ms is None:
            takes = "the next round removes its delete horizon; " if facts.has_bad_horizon else ""
            change = (
                f"{takes}no round sets a delete horizon while its time plus {retention} exceeds "
                "the largest timestamp"
            )
            return OutcomeReason(RecordOutcome.LATER, message, change)
        return OutcomeReason(
            RecordOutcome.LATER,
            message,
            f"the next round sets the delete horizon to its own time plus {retention}: time "
            f"{horizon_ms} if it ran now{self.if_due}; the first round at or after the horizon "
            "removes the tombstone",
            horizon_ms,
        )

    def _old_delete(self, facts: RecordFacts, message: str) -> OutcomeReason:
        policy = self.round.policy
        until = policy.old_tombstones_until_ms
        message += (
            "; its record format is v0 or v1, in which the age of a tombstone is its file's age: "
            f"the file was changed at time {facts.file_ms}"
        )
        if facts.goes:
            return self.next_expired(
                f"{message}, and tombstones in files of time {until} or earlier are removed"
            )
        return OutcomeReason(
            RecordOutcome.LATER,
            f"{message}; only tombstones in files of time {until} or earlier are removed: "
            f"delete.retention.ms ({policy.tombstone_retention_ms}) before the last change of the "
            "clean part",
            "a round that rewrites its segment sets a delete horizon; the first round at or after "
            "the horizon removes the tombstone",
        )
