"""Pulsar's part of ``explain``: its rules in words, and the description of a message.

A message is named by its id, ``10:5`` or, in a batch, ``10:5, index 2``. Messages of unreadable
batches have unknown keys, so no answer about a key contains them.

Source: docs/formats/pulsar-compaction.md, "A round" and "Retention and thresholds".
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from lastwrite.engine.context import Context
from lastwrite.engine.system import Decision
from lastwrite.explanation.outcomes import OutcomeReason, OutcomeRules, RecordFacts
from lastwrite.explanation.partition import RangeReasons, RecordDescription, RecordExplainer
from lastwrite.explanation.records import KeyRecord
from lastwrite.model.columns import TOMBSTONE
from lastwrite.model.log import PartitionLog
from lastwrite.pulsar.format.compacted import decode_record, is_record
from lastwrite.pulsar.format.entry import Entry, PulsarMessage, decode_entry, messages_of
from lastwrite.pulsar.format.offload import ENTRY_HEAD_BYTES
from lastwrite.pulsar.format.position import Position
from lastwrite.pulsar.look.rows import VALUE_LIMIT_BYTES, has_key, message_id
from lastwrite.pulsar.rules.horizon import NOT_BATCHED
from lastwrite.pulsar.rules.settings import PulsarConfig
from lastwrite.pulsar.store.place import name_of
from lastwrite.pulsar.store.survey import ABORT, COMMIT, DATA, stored_survey
from lastwrite.reports.explanation import Reason, Rule


class PulsarOutcomeRules(OutcomeRules):
    """The words with which ``explain`` describes why a Pulsar message stays or is removed."""

    forget_clean = "its compacted ledger is deleted, and all raw ledgers are still present"
    greatest = "the write with the latest event time"

    @staticmethod
    def number(offset: int) -> str:
        return str(Position.of(offset))

    @classmethod
    def place(cls, offset: int) -> str:
        return cls.number(offset)

    @staticmethod
    def writer(facts: RecordFacts) -> str:
        return "the message was published in"

    def delete(self, facts: RecordFacts, message: str) -> OutcomeReason:
        return self.next(f"{message}; a compacted ledger contains no tombstones")


class PulsarExplainer(RecordExplainer):
    """Explains Pulsar's messages; implements ``explanation.partition.RecordExplainer``."""

    fates = PulsarOutcomeRules
    has_active = False

    def range_of(self, context: Context, log: PartitionLog, decision: Decision) -> RangeReasons:
        first_dirty = decision.first_dirty
        clean = sum(s.size_bytes for s in log.segments if s.base_offset < first_dirty)
        threshold = PulsarConfig.from_names(context.options.config).compaction_threshold_bytes
        return RangeReasons(clean, None, list(_reasons(log, decision, threshold)))

    def stored_keys(self, key: bytes) -> Sequence[bytes]:
        # a set, because the empty key equals its own Base64
        return tuple({key, base64.b64encode(key)})

    def has_key(self, record: KeyRecord, key: bytes) -> bool:
        entry = _entry(record)
        message, meta = _message(entry, record.number), entry.metadata
        if meta.is_chunk:
            return has_key(meta.partition_key, bool(meta.partition_key_b64_encoded), key)
        return has_key(message.key, message.is_b64, key)

    def span(self, first: int, end: int) -> str:
        return f"{self.fates.number(first)} to {self.fates.number(end - 1)}"

    def open_from(self, log: PartitionLog) -> Mapping[int, int]:
        """The open transactions by number, each with the log's first unstable offset.

        In Pulsar the number of a transaction takes the place of Kafka's producer id.
        """
        data: set[int] = set()
        ended: set[int] = set()
        for segment in log.segments:
            seen = stored_survey(segment.path, segment.file_bytes, segment.mtime_ns)
            if seen is not None:
                data.update(seen.runs[seen.runs[:, 2] == DATA, 3].tolist())
                ended.update(seen.runs[np.isin(seen.runs[:, 2], (COMMIT, ABORT)), 3].tolist())
        return dict.fromkeys(data - ended, log.first_unstable_offset or 0)

    def describe(self, log: PartitionLog, record: KeyRecord) -> RecordDescription:
        entry = _entry(record)
        message = _message(entry, record.number)
        offset = int(record.batch["base_offset"])
        index, meta = message.index, entry.metadata
        return RecordDescription(
            offset=offset,
            place=self.fates.place(offset) + ("" if index is None else f", index {index}"),
            timestamp_ms=meta.publish_time,
            value_bytes=None if record.state_ever & TOMBSTONE else len(message.value),
            message_id=message_id(
                entry, name_of(log.folder), NOT_BATCHED if index is None else index
            ),
            is_part=meta.is_chunk and (meta.chunk_id or 0) + 1 < (meta.num_chunks_from_msg or 1),
        )


def _entry(record: KeyRecord) -> Entry:
    position, body = Position.of(int(record.batch["base_offset"])), record.data[ENTRY_HEAD_BYTES:]
    if is_record(body):
        position, _, body = decode_record(body)
    return decode_entry(body, position.ledger, position.entry)


def _message(entry: Entry, number: int) -> PulsarMessage:
    """The message of record ``number`` of an entry. Placeholders are not records."""
    if entry.metadata.is_chunk:
        return PulsarMessage(value=entry.payload)
    lists_kept = bool(entry.metadata.compacted_batch_indexes)
    there = [
        message
        for message in messages_of(entry, VALUE_LIMIT_BYTES)
        if not (message.compacted_out and lists_kept)
    ]
    return there[number]


def _reasons(log: PartitionLog, decision: Decision, threshold: int) -> Iterator[Reason]:
    first = log.first_unstable_offset
    if first is not None:
        yield Reason(
            Rule.TRANSACTION,
            f"an open transaction begins at {Position.of(first)}",
            "when the transaction is committed or aborted, which the coordinator forces after "
            "the transaction timeout",
            from_offset=first,
        )
    elif decision.reason is not None:
        rule = Rule.EMPTY if log.checkpoint is None else Rule.CLEAN
        yield Reason(rule, decision.reason, "when a message is published")
    if decision.reason is None and decision.waits is not None:
        missing = threshold - decision.cleanable_bytes + 1
        change = f"after {missing} more bytes" if threshold else "if compactionThreshold is set"
        yield Reason(
            Rule.THRESHOLD, decision.waits, f"{change}; lastwrite compact does not wait for it"
        )


EXPLAINER = PulsarExplainer
