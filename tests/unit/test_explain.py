"""Tests that every sentence of ``explain`` agrees with what ``compact`` does at that time or after
that event.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import lastwrite
from lastwrite.cli import run
from lastwrite.cli.output import local_moment
from lastwrite.kafka.store import lock
from lastwrite.kafka.store.watching import NOTES
from lastwrite.model.log import TopicPartition
from lastwrite.reports.explanation import (
    LogRegion,
    PartitionExplanation,
    Reason,
    RecordExplanation,
    RecordOutcome,
    Rule,
)
from lastwrite.spark.inline import INLINE
from lastwrite.storage.quarantine import record_failures
from tests.support.kafka.logs import NAME, bases, read_segments, write_checkpoint
from tests.support.kafka.model import ModelBatch, ModelRecord
from tests.support.kafka.strategies import START_MS, Phase, append, shifted

NOW = START_MS + 1_000_000
RETENTION = 5000
Written = tuple[bytes, bytes | None]


def data(*records: Written, at: int = START_MS, **fields: Any) -> ModelBatch:
    made = tuple(ModelRecord(n, at, key, value) for n, (key, value) in enumerate(records))
    return ModelBatch(0, len(made) - 1, made, max_timestamp_ms=at, leader_epoch=0, **fields)


def sent(producer_id: int, *records: Written, at: int = START_MS) -> ModelBatch:
    """A batch in a transaction of the producer."""
    return data(
        *records,
        at=at,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )


def marker(producer_id: int, commits: bool, at: int = START_MS) -> ModelBatch:
    record = ModelRecord(0, at, b"\0\0\0\1" if commits else b"\0\0\0\0", b"\0\0\0\0\0\7")
    return ModelBatch(
        0,
        0,
        (record,),
        max_timestamp_ms=at,
        leader_epoch=0,
        producer_id=producer_id,
        producer_epoch=0,
        transactional=True,
        control=True,
    )


class Log:
    """A partition that grows and is cleaned in turn."""

    def __init__(self, root: Path, **config: object) -> None:
        self.root = root
        self.folder = root / NAME
        self.folder.mkdir(parents=True)
        self.config: dict[str, object] = {
            "cleanup.policy": "compact",
            "delete.retention.ms": RETENTION,
        }
        self.config |= {name.replace("_", "."): value for name, value in config.items()}
        self.end = 0

    def add(
        self, *segments: Sequence[ModelBatch], changed_ms: int = NOW, replicated: int | None = None
    ) -> None:
        """Append batches, the first list to the active segment. Each further list begins a new
        segment.
        """
        placed, offset = [], 0
        for segment in segments:
            row = []
            for batch in segment:
                row.append(shifted(batch, offset))
                offset = row[-1].next_offset
            placed.append(tuple(row))
        self.end = append(self.folder, Phase(tuple(placed), changed_ms, 1.0), 4096)
        self.replicate(self.end if replicated is None else replicated)

    def replicate(self, offset: int) -> None:
        write_checkpoint(self.root, "replication-offset-checkpoint", {NAME: offset})

    def explain(
        self, now_ms: int = NOW, key: bytes | None = None, **arguments: Any
    ) -> PartitionExplanation:
        (found,) = lastwrite.explain(
            str(self.root), config=self.config, now_ms=now_ms, key=key, **arguments
        ).partitions
        return found

    def reason(self, rule: Rule, now_ms: int = NOW, **arguments: Any) -> Reason:
        (found,) = [
            reason for reason in self.explain(now_ms, **arguments).reasons if reason.rule is rule
        ]
        return found

    def record(
        self, key: bytes, offset: int, now_ms: int = NOW, **arguments: Any
    ) -> RecordExplanation:
        found = self.explain(now_ms, key, **arguments).records
        assert found is not None
        return next(record for record in found if record.offset == offset)

    def compact(self, now_ms: int = NOW, **arguments: Any) -> str:
        (done,) = lastwrite.compact(
            str(self.root), config=self.config, now_ms=now_ms, spark=INLINE, **arguments
        ).partitions
        return str(done.status)

    def offsets(self) -> list[int]:
        return [
            record.offset
            for segment in read_segments(self.folder)
            for batch in segment.batches
            if not batch.control
            for record in batch.records
        ]


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


A, B, C = b"a", b"b", b"c"
V = b"value"


# ---------------------------------------------------------------------- why is it not clean


def test_explain_reports_a_due_log(log: Log) -> None:
    log.add([data((A, V), (A, V))], [])
    found = log.explain()
    assert found.is_due
    assert found.reasons == []
    assert found.summary.startswith("due: a round now cleans offsets 0 to 1; ")
    assert (found.first_dirty_offset, found.first_uncleanable_offset, found.dirty_ratio) == (
        0,
        2,
        1.0,
    )
    assert log.compact() == "cleaned"
    found = log.explain()
    assert (found.is_due, found.summary, [reason.rule for reason in found.reasons]) == (
        False,
        "clean",
        [Rule.CLEAN],
    )
    assert log.compact() == "skipped"


def test_explain_states_the_bytes_that_make_a_log_due(log: Log) -> None:
    log.config["min.cleanable.dirty.ratio"] = 0.6
    log.add([data((A, V), (B, V)), data((C, V))], [])
    assert log.compact() in ("cleaned", "unchanged")
    log.add([data((A, V))], [])
    reason = log.reason(Rule.DIRTY_RATIO)
    missing = int(reason.change.split()[1])
    assert reason.change == f"after {missing} more bytes in closed segments"
    assert reason.at_ms is None
    assert log.compact() == "skipped"
    found = log.explain()
    assert found.clean_bytes is not None and found.cleanable_bytes is not None
    for more, is_due in ((missing - 1, False), (missing, True)):
        dirty = found.cleanable_bytes + more
        assert (dirty / (dirty + found.clean_bytes) > 0.6) is is_due


def test_dirty_ratio_of_one_is_never_exceeded(log: Log) -> None:
    log.config["min.cleanable.dirty.ratio"] = 1
    log.add([data((A, V), (A, V))], [])
    assert (
        log.reason(Rule.DIRTY_RATIO).change == "never by this ratio, which no dirty ratio exceeds"
    )
    assert log.compact() == "skipped"


def test_explain_states_when_a_log_is_overdue(log: Log) -> None:
    log.config |= {"min.cleanable.dirty.ratio": 1, "max.compaction.lag.ms": 2_000_000}
    log.add([data((A, V), (A, V))], [])
    reason = log.reason(Rule.DIRTY_RATIO)
    assert reason.at_ms == START_MS + 2_000_001
    assert f"or from time {reason.at_ms} on, by max.compaction.lag.ms, 2000000" in reason.change
    assert log.compact(reason.at_ms - 1) == "skipped"
    assert log.explain(reason.at_ms).summary.endswith("; the round is overdue by 1 ms")
    assert log.compact(reason.at_ms) == "cleaned"


def test_explain_states_when_a_young_record_becomes_cleanable(log: Log) -> None:
    log.config["min.compaction.lag.ms"] = 10_000
    log.add([data((A, V), (A, V), at=NOW - 9_000)], [])
    reason = log.reason(Rule.MIN_LAG)
    assert (reason.at_ms, reason.from_offset) == (NOW + 1000, 0)
    assert "9000 ms old" in reason.message
    assert log.compact(NOW + 999) == "skipped"
    assert log.compact(NOW + 1000) == "cleaned"


def test_explain_states_when_the_active_segment_rolls(log: Log) -> None:
    log.config |= {"segment.ms": 50_000, "segment.bytes": 2000}
    log.add([data((A, V), (A, V))])
    found = log.explain()
    assert not found.is_due
    reason = log.reason(Rule.ACTIVE_SEGMENT)
    assert (reason.from_offset, reason.at_ms) == (0, START_MS + 50_001)
    assert (
        "larger than segment.bytes (2000)" in reason.change
        and "because of segment.ms=50000" in reason.change
    )
    assert log.compact() == "skipped"
    assert log.explain(include_active=True).is_due
    assert log.compact(include_active=True) == "cleaned"


def test_compaction_lag_rolls_the_active_segment(log: Log) -> None:
    log.config["max.compaction.lag.ms"] = 7000
    log.add([data((A, V))])
    reason = log.reason(Rule.ACTIVE_SEGMENT)
    assert (
        reason.at_ms == START_MS + 7001 and "because of max.compaction.lag.ms=7000" in reason.change
    )


def test_explain_names_an_open_transaction(log: Log) -> None:
    log.add([data((A, V), (A, V))], [sent(7, (B, V))], [data((A, V))], [])
    reason = log.reason(Rule.TRANSACTION)
    assert reason.from_offset == 2
    assert reason.message == "the transaction of producer 7, epoch 0, is open since offset 2"
    found = log.explain()
    assert (found.is_due, found.first_uncleanable_offset) == (True, 2)
    assert log.record(B, 2).message == "producer 7 wrote it in a transaction that is still open"
    assert log.record(A, 0).fate is RecordOutcome.NEXT_ROUND
    later = log.record(A, 1)  # superseded by offset 3, which comes after the transaction
    assert later.fate is RecordOutcome.LATER and "open transaction (from offset 2)" in (
        later.change or ""
    )
    assert log.compact() == "cleaned"
    assert log.offsets() == [1, 2, 3]
    log.add([marker(7, commits=True)], [])
    assert log.record(A, 1).fate is RecordOutcome.NEXT_ROUND
    assert log.record(B, 2).fate is RecordOutcome.STAYS
    assert log.compact() == "cleaned"
    assert log.offsets() == [2, 3]


def test_unreplicated_marker_blocks_like_an_open_transaction(log: Log) -> None:
    log.add([sent(7, (A, V))], [marker(7, commits=True)], [], replicated=1)
    reason = log.reason(Rule.TRANSACTION)
    assert "its marker may not be replicated: the high watermark is 1" in reason.message
    assert log.compact() == "skipped"
    log.replicate(2)
    assert [r.rule for r in log.explain().reasons] == []
    assert log.compact() in ("cleaned", "unchanged")


def test_high_watermark_limits_the_range(log: Log) -> None:
    log.add([data((A, V), (A, V))], [data((A, V))], [], replicated=1)
    reason = log.reason(Rule.HIGH_WATERMARK)
    assert reason.from_offset == 1 and "offsets 1 to 2 may not be replicated" in reason.message
    assert log.compact() == "skipped"
    log.replicate(3)
    assert log.explain().reasons == []
    assert log.compact() == "cleaned"


def test_policy_and_disabled_cleaner_are_the_first_reasons(log: Log) -> None:
    log.config |= {"cleanup.policy": "delete", "log.cleaner.enable": "false"}
    log.add([data((A, V), (A, V))], [data((B, V))])
    found = log.explain()
    assert [reason.rule for reason in found.reasons] == [
        Rule.POLICY,
        Rule.CLEANER,
        Rule.ACTIVE_SEGMENT,
    ]
    assert found.summary == "not due: cleanup.policy is delete, without compact"
    assert log.compact(now_ms=START_MS) in ("skipped", "unchanged")
    assert log.offsets() == [0, 1, 2]


def test_empty_log_has_its_own_reason(log: Log) -> None:
    log.add([])
    assert [reason.rule for reason in log.explain().reasons] == [Rule.EMPTY]


def test_reasons_are_listed_in_kafkas_order(log: Log) -> None:
    log.config |= {"min.compaction.lag.ms": 10_000, "min.cleanable.dirty.ratio": 1}
    log.add(
        [data((A, V), (A, V))],
        [data((A, V), at=NOW)],
        [sent(9, (A, V))],
        [data((A, V))],
        replicated=4,
    )
    found = log.explain()
    assert [reason.rule for reason in found.reasons] == [
        Rule.ACTIVE_SEGMENT,
        Rule.TRANSACTION,
        Rule.HIGH_WATERMARK,
        Rule.MIN_LAG,
        Rule.DIRTY_RATIO,
    ]
    assert [reason.from_offset for reason in found.reasons] == [4, 3, 4, 2, None]


def test_explain_names_the_process_that_has_the_lock(log: Log) -> None:
    log.add([data((A, V), (A, V))], [])
    with lock.hold(str(log.root), [TopicPartition("t", 0)]):
        found = log.explain()
    (reason,) = found.reasons
    assert reason.rule is Rule.HELD and "another run" in reason.message
    assert (found.is_due, found.waiting, found.cleanable_bytes) == (True, None, 87)
    assert (
        "another run" in found.summary and "by the rules due: a round now cleans" in found.summary
    )
    assert log.explain().is_due


def test_explain_names_a_quarantine_and_its_retry_time(log: Log) -> None:
    log.add([data((A, V), (A, V))], [])
    record_failures(str(log.root), {TopicPartition("t", 0): "the disk burns"}, NOW, NOTES)
    reason = log.reason(Rule.SET_ASIDE)
    assert reason.at_ms == NOW + 60_000 and reason.message.endswith("the disk burns")
    lastwrite.release(str(log.root))
    assert log.explain().reasons == []


def test_explain_reports_damage(log: Log) -> None:
    log.add([data((A, V), (A, V))], [])
    file = log.folder / f"{0:020}.log"
    content = bytearray(file.read_bytes())
    content[70] ^= 1
    file.write_bytes(content)
    report = lastwrite.explain(str(log.root), config=log.config, now_ms=NOW, key=A)
    (found,) = report.partitions
    assert report.exit_status == 3
    assert (found.is_due, found.waiting, found.records, found.summary) == (
        False,
        None,
        None,
        "the log is damaged",
    )
    assert found.reasons[0].rule is Rule.DAMAGE and "checksum" in found.reasons[0].message
    assert log.compact() == "damaged"


# ---------------------------------------------------------------------- why are there duplicates


def test_each_duplicate_has_its_outcome(log: Log) -> None:
    log.add([data((A, V))], [])
    log.compact()
    log.config |= {"min.compaction.lag.ms": 10_000, "min.cleanable.dirty.ratio": 0}
    log.add([data((A, V), (B, V))], [data((A, b"young"), at=NOW - 1)], [data((A, b""))])
    found = log.explain(key=A).records
    assert found is not None
    assert [(r.offset, r.segment, r.part, r.fate, r.value_bytes) for r in found] == [
        (0, 0, LogRegion.CLEAN, RecordOutcome.NEXT_ROUND, 5),
        (1, 1, LogRegion.DIRTY, RecordOutcome.LATER, 5),
        (3, 3, LogRegion.ABOVE, RecordOutcome.LATER, 5),
        (4, 4, LogRegion.ACTIVE, RecordOutcome.STAYS, 0),
    ]
    assert found[0].message == "offset 1 is a later write of the key, within the range"
    assert "active segment (from offset 4), min.compaction.lag.ms (from offset 3)" in (
        found[1].change or ""
    )
    assert (found[1].at_ms, found[2].at_ms) == (NOW + 9_999, NOW + 9_999)
    assert log.compact() == "cleaned"
    assert log.offsets() == [1, 2, 3, 4]
    # the former active segment is closed, but the compaction lag has not passed
    log.add([data((C, V))], [])
    assert log.compact(NOW + 9_998) == "skipped"
    assert log.compact(NOW + 9_999) == "cleaned"
    assert log.offsets() == [2, 4, 5]


def test_aborted_record_is_explained(log: Log) -> None:
    log.config["producer.id.expiration.ms"] = (
        # Otherwise the producer's empty last batch would stay, and the marker with it.
        1
    )
    log.add(
        [sent(7, (A, V))], [marker(7, commits=False)], [sent(8, (A, V)), marker(8, commits=False)]
    )
    aborted = log.record(A, 0)
    assert aborted.message == "producer 7 wrote it in a transaction that was aborted"
    assert aborted.fate is RecordOutcome.NEXT_ROUND
    above = log.record(A, 2)
    assert above.fate is RecordOutcome.LATER and above.message.startswith(
        "producer 8 wrote it in a transaction that was aborted"
    )
    waiting = log.explain().waiting
    assert waiting is not None
    assert (waiting.aborted_next, waiting.aborted_later, waiting.markers_needed) == (1, 1, 1)
    assert log.compact() == "cleaned"
    assert log.offsets() == [2]
    log.add([], [])
    assert log.record(A, 2).fate is RecordOutcome.NEXT_ROUND
    waiting = log.explain().waiting
    assert waiting is not None and waiting.markers_unstamped == 1
    assert log.compact() == "cleaned"
    assert log.offsets() == []


def test_duplicate_below_a_wrong_checkpoint_is_explained(log: Log) -> None:
    log.add([data((A, V))], [data((A, V))], [data((B, V))], [])
    log.config["min.cleanable.dirty.ratio"] = 0
    write_checkpoint(log.root, "cleaner-offset-checkpoint", {NAME: 2})
    old = log.record(A, 0)
    assert old.fate is RecordOutcome.LATER and "below the first dirty offset, 2" in old.message
    assert "cleaner-offset-checkpoint" in (old.change or "")
    assert log.compact() in ("cleaned", "unchanged")
    assert log.offsets() == [0, 1, 2]
    (log.root / "cleaner-offset-checkpoint").unlink()
    assert log.record(A, 0).fate is RecordOutcome.NEXT_ROUND
    assert log.compact() == "cleaned"
    assert log.offsets() == [1, 2]


def test_expired_segment_loses_all_its_records(log: Log) -> None:
    log.config |= {
        "cleanup.policy": "compact,delete",
        "retention.ms": 500_000,
        "min.cleanable.dirty.ratio": 1,
    }
    log.add([data((A, V))], [data((B, V), at=NOW)], [])
    gone = log.record(A, 0)
    assert gone.fate is RecordOutcome.NEXT_ROUND and "retention.ms is 500000" in gone.message
    assert log.record(B, 1).fate is RecordOutcome.STAYS
    log.compact()
    assert log.offsets() == [1]


def test_segment_merged_with_a_younger_one_does_not_expire(log: Log) -> None:
    log.config |= {"cleanup.policy": "compact,delete", "retention.ms": 500_000}
    log.add([data((A, V), (C, V))], [data((C, V), (B, V), at=NOW)], [data((B, V), at=NOW)], [])
    assert log.record(A, 0).fate is RecordOutcome.STAYS
    assert log.compact() == "cleaned"
    assert log.offsets() == [0, 2, 4]


def test_record_below_the_log_start_is_deleted_with_its_segment(log: Log) -> None:
    log.config["min.cleanable.dirty.ratio"] = 1
    log.add([data((A, V))], [data((B, V))], [])
    write_checkpoint(log.root, "log-start-offset-checkpoint", {NAME: 1})
    gone = log.record(A, 0)
    assert gone.fate is RecordOutcome.NEXT_ROUND and "the log start is offset 1" in gone.message
    assert log.record(B, 1).fate is RecordOutcome.STAYS
    log.compact()
    assert log.offsets() == [1]


def test_explain_names_the_greatest_version(log: Log) -> None:
    log.config["compaction.strategy"] = "timestamp"
    log.add([data((A, V), at=START_MS + 9)], [data((A, V), at=START_MS)], [data((B, V))], [])
    assert (
        log.record(A, 1).message == "offset 0 is the greatest version of the key, within the range"
    )
    assert log.record(A, 0).fate is RecordOutcome.STAYS
    assert log.compact() == "cleaned"
    assert log.offsets() == [0, 2]


def test_missing_key_has_no_records(log: Log) -> None:
    log.add([data((A, V), (b"", V))], [])
    assert log.explain(key=b"nobody").records == []
    assert [record.offset for record in log.explain(key=b"").records or ()] == [1]


# ------------------------------------------------------------------- why a tombstone is still there


def test_explain_follows_a_tombstone_until_it_is_dropped(log: Log) -> None:
    log.config["min.cleanable.dirty.ratio"] = 0
    log.add([data((A, V), (A, None))], [])
    first = log.record(A, 1)
    assert first.fate is RecordOutcome.LATER and "no round has processed it yet" in first.message
    assert first.at_ms == NOW + RETENTION
    waiting = log.explain().waiting
    assert waiting is not None and waiting.deletes_unstamped == 1
    assert log.compact(NOW + 7) == "cleaned"
    horizon = NOW + 7 + RETENTION

    second = log.record(A, 1)
    assert (second.fate, second.at_ms) == (RecordOutcome.LATER, horizon)
    assert f"its delete horizon, time {horizon}, is {RETENTION + 7} ms ahead" in second.message
    assert "a round needs dirty data" in (second.change or "")
    waiting = log.explain().waiting
    assert waiting is not None
    assert (waiting.deletes_waiting, waiting.first_horizon_ms, waiting.last_horizon_ms) == (
        1,
        horizon,
        horizon,
    )

    # After the horizon, removal still needs a round, and a round needs dirty data.
    third = log.record(A, 1, now_ms=horizon + 3)
    assert third.fate is RecordOutcome.NEXT_ROUND and "passed 3 ms ago" in third.message
    assert "no round is due now: all offsets below 2 were compacted before" in (third.change or "")
    hint = "compact --drop-expired-deletes drops it"
    assert (third.change or "").endswith(f"; {hint}") and hint not in (second.change or "")
    assert log.compact(horizon + 3) == "skipped"
    log.add([data((B, V))], [])
    assert log.record(A, 1, now_ms=horizon - 1).fate is RecordOutcome.LATER
    assert log.compact(horizon - 1) in ("cleaned", "unchanged")
    assert log.offsets() == [1, 2]
    log.add([data((B, V))], [])
    assert log.record(A, 1, now_ms=horizon).fate is RecordOutcome.NEXT_ROUND
    assert log.compact(horizon) == "cleaned"
    assert log.offsets() == [3]


def test_tombstone_superseded_above_the_range_still_expires(log: Log) -> None:
    log.config["min.cleanable.dirty.ratio"] = 0
    log.add([data((A, None))], [])
    log.compact()
    log.add([data((B, V))], [data((A, V))])
    found = log.record(A, 0)
    assert found.fate is RecordOutcome.LATER and found.message.startswith(
        "offset 2 is a later write of the key, but is above"
    )
    assert f"so does any round at or after time {NOW + RETENTION}" in (found.change or "")
    due = log.record(A, 0, now_ms=NOW + RETENTION)
    assert due.fate is RecordOutcome.NEXT_ROUND and due.message.startswith(
        "the record deletes the key; its delete horizon"
    )
    assert log.compact(NOW + RETENTION) == "cleaned"
    assert log.offsets() == [1, 2]


def test_tombstone_above_the_range_waits_for_a_later_round(log: Log) -> None:
    log.add([data((A, V))], [data((A, None))])
    found = log.record(A, 1)
    assert (
        found.fate is RecordOutcome.LATER and "the record is in the active segment" in found.message
    )
    waiting = log.explain().waiting
    assert waiting is not None and waiting.deletes_above == 1


def test_tombstone_of_an_old_format_expires_with_its_file(log: Log) -> None:
    log.config["min.cleanable.dirty.ratio"] = 0
    old = ModelBatch(0, 0, (ModelRecord(0, START_MS, A, None),), magic=1, max_timestamp_ms=START_MS)
    log.add([old, data((B, V))], [data((B, V))], [], changed_ms=NOW)
    first = log.record(A, 0)
    assert first.fate is RecordOutcome.LATER and f"changed at time {NOW}" in first.message
    waiting = log.explain().waiting
    assert waiting is not None and waiting.deletes_old == 1
    # the clean part was rewritten that much later
    write_checkpoint(log.root, "cleaner-offset-checkpoint", {NAME: 2})
    later = NOW + RETENTION
    assert bases(log.folder) == [0, 2, 3]
    os.utime(log.folder / f"{0:020}.log", ns=(NOW * 10**6, NOW * 10**6))
    write_checkpoint(log.root, "cleaner-offset-checkpoint", {NAME: 3})
    os.utime(log.folder / f"{2:020}.log", ns=(later * 10**6, later * 10**6))
    log.add([data((C, V))], [], changed_ms=later)
    gone = log.record(A, 0, now_ms=later)
    assert (
        gone.fate is RecordOutcome.NEXT_ROUND
        and f"tombstones in files of time {NOW} or earlier are removed" in gone.message
    )
    assert log.compact(later) == "cleaned"
    assert 0 not in log.offsets()


# ---------------------------------------------------------------------- the command


def test_explain_command_prints_text_and_json(log: Log, capfd: pytest.CaptureFixture[str]) -> None:
    log.add([data((A, V), (A, V), (B, None))], [data((A, V))])
    assert (
        run(["explain", str(log.root), "--topic", "t", "--key", "a", "--now", str(NOW), "--json"])
        == 0
    )
    document = json.loads(capfd.readouterr().out)
    (found,) = document["partitions"]
    assert (document["now_ms"], found["topic"], found["is_due"], found["end_offset"]) == (
        NOW,
        "t",
        True,
        4,
    )
    assert [(r["offset"], r["fate"]) for r in found["records"]] == [
        (0, "goes with the next round"),
        (1, "goes later"),
        (3, "stays"),
    ]
    assert (
        found["reasons"][0]["rule"] == "active segment" and found["reasons"][0]["from_offset"] == 3
    )
    assert run(["explain", str(log.root), "--topic", "t", "--now", str(NOW)]) == 0
    said = capfd.readouterr().out
    assert said.startswith("t-0: due: a round now cleans offsets 0 to 2; ")
    assert "1  superseded, dropped by the next round" in said
    assert "1  superseded, but they or their later writes are above the range" in said
    assert "1  deletes that get a horizon in the next round" in said
    assert (
        run(["explain", str(log.root), "--topic", "t", "--key-hex", "62", "--now", str(NOW)]) == 0
    )
    assert "a delete, segment 0, dirty: goes later" in capfd.readouterr().out
    assert run(["explain", str(log.root), "--now", str(NOW)]) == 0
    said = capfd.readouterr().out
    assert (
        said.startswith("t-0: not due: the policy of topic t is unknown")
        and "--topic-config t:cleanup.policy" in said
    )
    assert run(["explain", str(log.root), "--key-hex", "6"]) == 2
    assert run(["explain", str(log.root), "--key-hex", "61", "--key", "a"]) == 2
    assert run(["explain", str(log.root / "nowhere")]) == 2


def test_progress_is_shown_only_on_a_terminal(
    log: Log, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log.add([data((A, V), (A, V), (B, None))], [data((A, V))])
    arguments = ["explain", str(log.root), "--topic", "t", "--now", str(NOW)]
    assert run(arguments) == 0
    quiet = capsys.readouterr()
    assert quiet.out and not quiet.err
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert run(arguments) == 0
    assert "scan" in capsys.readouterr().err


def test_text_output_shows_local_times(log: Log, capfd: pytest.CaptureFixture[str]) -> None:
    log.add([data((A, V), (A, V), (B, None))], [data((A, V))])
    lag = ["--config", f"min.compaction.lag.ms={NOW}"]
    arguments = ["explain", str(log.root), "--topic", "t", "--now", str(NOW), *lag]
    assert run([*arguments, "--json"]) == 0
    [found] = json.loads(capfd.readouterr().out)["partitions"]
    due = [reason["at"] for reason in found["reasons"] if reason["at"] is not None]
    assert due and run(arguments) == 0
    said = capfd.readouterr().out
    assert [at_ms for at_ms in due if f": {local_moment(at_ms)}\n" not in said] == []


def test_sentences_contain_local_times(log: Log, capsys: pytest.CaptureFixture[str]) -> None:
    """For an expired tombstone without a due round, the sentence states what drops it."""
    log.config["min.cleanable.dirty.ratio"] = 0
    log.add([data((A, V), (A, None))], [])
    assert log.compact(NOW + 7) == "cleaned"
    horizon = NOW + 7 + RETENTION
    wanted = ["explain", str(log.root), "--topic", "t"]
    wanted += ["--config", "min.cleanable.dirty.ratio=0", "--now", str(horizon)]
    assert run(wanted) == 0
    said = capsys.readouterr().out
    assert "dropped by the next round, or now by compact --drop-expired-deletes" in said
    assert run([*wanted, "--key-hex", A.hex()]) == 0
    said = capsys.readouterr().out
    assert f"its delete horizon, {local_moment(horizon)}, passed 0 ms ago" in said
    assert "; compact --drop-expired-deletes drops it" in said
    raw = [word for word in re.findall(r"\S*\d{13}\S*", said) if not word.startswith("(")]
    assert raw == []
    assert run(["compact", *wanted[1:], "--drop-expired-deletes"]) == 0
    assert log.offsets() == []
