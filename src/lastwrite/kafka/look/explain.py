"""Kafka's part of ``explain``: reasons of its compaction and retention rules, and its records."""

from __future__ import annotations

from dataclasses import replace

from lastwrite.engine.context import Context
from lastwrite.engine.round import run_round
from lastwrite.engine.rules.ranges import cleanable_range
from lastwrite.engine.system import Decision
from lastwrite.explanation.partition import RangeReasons, RecordDescription, RecordExplainer
from lastwrite.explanation.records import KeyRecord
from lastwrite.kafka.format.batch import decode_batch
from lastwrite.kafka.rules.explain import KafkaOutcomeRules, kafka_reasons, policy_reason
from lastwrite.kafka.rules.settings import KafkaTopicConfig
from lastwrite.kafka.system import KafkaSystem
from lastwrite.model.log import PartitionLog
from lastwrite.model.progress import NoProgress


class KafkaExplainer(RecordExplainer):
    """Explains the records and ranges of Kafka's logs."""

    fates = KafkaOutcomeRules

    def range_of(self, context: Context, log: PartitionLog, decision: Decision) -> RangeReasons:
        settings, options = self._settings(context, log), context.options
        found = cleanable_range(log, settings, options.now_ms, options.include_active)
        reasons = kafka_reasons(found, log, settings, options.now_ms)
        return RangeReasons(found.clean_bytes, policy_reason(settings), reasons)

    def _settings(self, context: Context, log: PartitionLog) -> KafkaTopicConfig:
        assert isinstance(self.system, KafkaSystem)
        return self.system.settings(log.folder, context.options.config).config

    def describe(self, log: PartitionLog, record: KeyRecord) -> RecordDescription:
        found = decode_batch(memoryview(record.data), 0).records[record.number]
        size = None if found.value is None else len(found.value)
        return RecordDescription(
            found.offset, self.fates.place(found.offset), found.timestamp_ms, size
        )

    def expired(self, context: Context, log: PartitionLog) -> tuple[int, str]:
        if not self._settings(context, log).deletes and (
            log.log_start <= log.segments[0].base_offset
        ):
            return 0, ""
        # Retention applies to the segments that compaction leaves, so simulate a compaction.
        (report,) = run_round(replace(context, progress=NoProgress()), [log.folder]).partitions
        if not report.retention:
            return 0, ""
        gone = report.retention[-1]
        if report.log_start_after != report.log_start_before:
            below = report.log_start_after
        else:  # the log starts inside the first segment that stays
            below = next(
                (s.base_offset for s in log.segments if s.base_offset > gone.base_offset), None
            )
        return below or 0, gone.reason


EXPLAINER = KafkaExplainer
