"""``explain`` for RocketMQ: the rules as sentences, and descriptions of messages.

Source: docs/formats/rocketmq-compaction.md, "A run" and "Settings".
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from lastwrite.engine.context import Context
from lastwrite.engine.rules.ranges import Hold, Range
from lastwrite.engine.system import Decision
from lastwrite.errors import LogError
from lastwrite.explanation.outcomes import OutcomeReason, OutcomeRules, RecordFacts
from lastwrite.explanation.partition import RangeReasons, RecordDescription, RecordExplainer
from lastwrite.explanation.range_reasons import lag_reasons, range_reasons
from lastwrite.explanation.records import KeyRecord
from lastwrite.model.columns import TOMBSTONE
from lastwrite.model.log import PartitionLog
from lastwrite.model.policy import LONG_MAX
from lastwrite.reports.explanation import Reason, RecordOutcome, Rule
from lastwrite.reports.table import BODY_LIMIT_BYTES
from lastwrite.rocketmq.format.record import body_of, decode_message
from lastwrite.rocketmq.rules.settings import RocketmqConfig
from lastwrite.rocketmq.system import range_of


class RocketmqOutcomeRules(OutcomeRules):
    """Sentences of ``explain`` about the fate of a RocketMQ message."""

    active = "in the active file"
    forget_clean = "the queue is removed from compaction/position-checkpoint"

    @classmethod
    def place(cls, offset: int) -> str:
        return f"queue offset {offset}"

    def delete(self, facts: RecordFacts, message: str) -> OutcomeReason:
        """The sentence for a delete. Lastwrite keeps a delete for some time after its store time.

        A broker's compaction drops a delete at once.
        """
        stored_ms, due_ms = facts.horizon_ms, self.horizon_ms(facts)
        assert stored_ms is not None and due_ms is not None
        waits = due_ms - self.round.now_ms
        message += (
            f"; it was stored at time {stored_ms}, and delete.retention.ms "
            f"({self.round.policy.tombstone_retention_ms}) "
        )
        if facts.goes:
            return self.next_expired(f"{message}expired {-waits} ms ago")
        if due_ms > LONG_MAX:
            return OutcomeReason(
                RecordOutcome.LATER,
                f"{message}ends after the largest possible time",
                "Lastwrite never removes it; the broker's own compaction removes it at once",
            )
        if waits <= 0:
            return OutcomeReason(
                RecordOutcome.LATER,
                f"{message}expired, but it is the queue's last message, from which a broker "
                "determines the queue's end",
                "the first compaction after another message is written removes it",
            )
        return OutcomeReason(
            RecordOutcome.LATER,
            f"{message}expires in {waits} ms",
            f"the first compaction at or after time {due_ms} removes it, if the queue has dirty "
            "messages",
            due_ms,
        )


class RocketmqExplainer(RecordExplainer):
    """Explains RocketMQ's messages; implements ``explanation.partition.RecordExplainer``."""

    fates = RocketmqOutcomeRules

    def range_of(self, context: Context, log: PartitionLog, decision: Decision) -> RangeReasons:
        options = context.options
        settings = RocketmqConfig.from_names(options.config)
        found = range_of(log, settings, options.now_ms, options.include_active)
        all_clean = (
            f"all messages below queue offset {log.end_offset} were compacted before, and no "
            "message was written since"
        )
        holds = _holds(found, log, settings, options.now_ms)
        return RangeReasons(
            found.clean_bytes, None, range_reasons(found, log, settings, holds, all_clean)
        )

    def span(self, first: int, end: int) -> str:
        return f"queue {super().span(first, end)}"

    def describe(self, log: PartitionLog, record: KeyRecord) -> RecordDescription:
        found = decode_message(record.data, 0, len(record.data))
        try:
            size = len(body_of(found, BODY_LIMIT_BYTES))
        except LogError:  # compaction keeps the message unchanged
            size = len(found.body)
        return RecordDescription(
            found.queue_offset,
            self.fates.place(found.queue_offset),
            found.store_time_ms,
            None if record.state_ever & TOMBSTONE else size,
        )


def _holds(
    found: Range, log: PartitionLog, config: RocketmqConfig, now_ms: int
) -> Iterator[Reason]:
    at = {hold: offset for offset, hold in found.holds if offset < log.end_offset}
    if Hold.ACTIVE_SEGMENT in at:
        active, first = log.segments[-1], max(at[Hold.ACTIVE_SEGMENT], found.first_dirty)
        yield Reason(
            Rule.ACTIVE_SEGMENT,
            f"queue offsets {first} to {log.end_offset - 1} ({active.size_bytes} bytes) are in "
            "the active file, which compaction does not change",
            "when the active file or its index is full and the broker begins the next file; if "
            "no broker appends any more, --include-active compacts the active file",
            from_offset=first,
        )

    def file_at(base_offset: int) -> str:
        path = next(s.path for s in log.segments if s.base_offset == base_offset)
        return f"file {os.path.basename(path)}"

    yield from lag_reasons(found, log, config, now_ms, file_at)


EXPLAINER = RocketmqExplainer
