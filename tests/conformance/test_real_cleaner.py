"""Kafka's own cleaner as judge: 300 random logs by its own append path, cleaned round by round.

For each round the log before it is cleaned three times: by Kafka, by Lastwrite doing all that a broker does
(``like_broker``), and by Lastwrite leaving segments alone in which nothing changes. All three have to leave the
same records in the same batches; the first two the same segments with the same indexes, byte for byte where
no codec is in the way. What Lastwrite wrote is then recovered by Kafka's loader, which has to keep all of it.

The plain model of ``tests/model.py`` and the rules of ranges and groups stand beside it, so that a
difference shows where it begins.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from lastwrite.compaction.grouping import group_segments
from lastwrite.compaction.ranges import cleanable_range
from lastwrite.compaction.settings import KafkaTopicConfig
from lastwrite.logstore.kafka import read_partition
from lastwrite.model.report import CompactionReport, Status
from tests import reference
from tests.conformance.oracle import MAP_SLOTS, Oracle, scenario, shut_down
from tests.engine import compact
from tests.logs import (
    NAME,
    SCRATCH,
    bases,
    check_indexes,
    read_checkpoint,
    read_files,
    read_segments,
    write_checkpoint,
)
from tests.model import ModelBatch, ModelRecord, ModelSegment, clean_segments
from tests.reference import listed
from tests.strategies import Life, append, lives

SEEDS = int(os.environ.get("LASTWRITE_ORACLE_SEEDS", "300"))

pytestmark = pytest.mark.oracle


@pytest.fixture(scope="session")
def oracle() -> Iterator[Oracle]:
    asked = Oracle()
    yield asked
    asked.close()


@dataclass(frozen=True, slots=True)
class Round:
    """One round of the real cleaner: the log root before it and after it, and what the cleaner said."""

    before: Path
    after: Path
    config: dict[str, str]
    now_ms: int
    bounds: dict[str, int]  # log_start, log_end, high_watermark
    checkpoint: int | None
    answer: dict[str, Any]

    @property
    def cleaned(self) -> bool:
        return not self.answer.get("skipped")

    @property
    def end(self) -> int:
        return int(self.answer["first_uncleanable_segment_base"])


def played(oracle: Oracle, plan: dict[str, Any], folder: Path) -> Iterator[Round]:
    """The rounds of a scenario. Each starts from what Kafka left, with the checkpoint files that a broker keeps."""
    work = folder / "kafka"
    (work / NAME).mkdir(parents=True)
    config = plan["config"]
    log_start, checkpoint = 0, None
    for number, phase in enumerate(plan["phases"], 1):
        written = oracle.ask(
            "write", dir=str(work / NAME), now_ms=phase["actions"][0]["clock"], log_start=log_start, lenient=True,
            # A leader refuses records without a key in a compacted topic; a topic may become one later.
            config={**config, "cleanup.policy": "delete"}, actions=phase["actions"],
        )  # fmt: skip
        shut_down(work / NAME)
        high_watermark = max(int(written["log_end"] * phase["replicated"]), log_start)
        if phase["raise_log_start"] is not None:
            log_start = max(log_start, int(high_watermark * phase["raise_log_start"]))
        write_checkpoint(work, "replication-offset-checkpoint", {NAME: high_watermark})
        write_checkpoint(work, "log-start-offset-checkpoint", {NAME: log_start})
        write_checkpoint(work, "cleaner-offset-checkpoint", {} if checkpoint is None else {NAME: checkpoint})
        before = folder / f"before-{number}"
        shutil.copytree(work, before)
        answer = oracle.ask(
            "clean", dir=str(work / NAME), config=config, now_ms=phase["now_ms"], checkpoint=checkpoint,
            log_start=log_start, high_watermark=high_watermark, map_slots=MAP_SLOTS,
        )  # fmt: skip
        shut_down(work / NAME)
        bounds = {"log_start": log_start, "log_end": written["log_end"], "high_watermark": high_watermark}
        yield Round(before, work, config, phase["now_ms"], bounds, checkpoint, answer)
        checkpoint = answer.get("end_offset", checkpoint)


def batches_of(segments: tuple[ModelSegment, ...]) -> list[ModelBatch]:
    return [batch for segment in segments for batch in segment.batches]


def without_base_timestamps(batches: list[ModelBatch]) -> list[ModelBatch]:
    """Readers cannot tell a base timestamp from another, as long as it is not a horizon."""
    return [replace(batch, base_timestamp_ms=batch.horizon_ms or 0) for batch in batches]


@pytest.mark.parametrize("seed", range(1, SEEDS + 1))
def test_the_same_log_is_left(seed: int, oracle: Oracle) -> None:
    plan = scenario(seed)
    with tempfile.TemporaryDirectory(prefix="lastwrite-oracle-", dir=SCRATCH) as folder:
        for round_ in played(oracle, plan, Path(folder)):
            check_reading(oracle, round_)
            check_rules(round_)
            check_model(round_)
            check_like_broker(oracle, round_, plan["plain"])
            check_sparing(round_)


def check_reading(oracle: Oracle, round_: Round) -> None:
    """Bytes decode to what Kafka reads in them, and a log is listed with the bounds that Kafka gives it."""
    folder = round_.after / NAME
    theirs = oracle.ask("state", dir=str(folder))["segments"]
    ours = read_segments(folder)
    assert [segment["base"] for segment in theirs] == [segment.base_offset for segment in ours]
    for segment, mine in zip(theirs, ours, strict=True):
        assert [said_of(batch) for batch in segment["batches"]] == [
            replace(batch, base_timestamp_ms=0) for batch in mine.batches
        ]
    log, plain = read_partition(str(round_.before / NAME)), listed(round_.before)
    assert not log.problems
    assert log.segments[:-1] == plain.segments[:-1]
    assert log.segments[-1].base_offset == plain.segments[-1].base_offset
    assert (log.log_start, log.end_offset) == (plain.log_start, plain.end_offset)
    assert (log.high_watermark, log.checkpoint) == (plain.high_watermark, plain.checkpoint)


def said_of(batch: dict[str, Any]) -> ModelBatch:
    """A batch as the oracle describes it, which leaves out the base timestamp."""
    records = []
    for offset, timestamp_ms, key, value, *headers in batch["records"]:
        pairs = tuple((name.encode(), unhex(content)) for name, content in (headers[0] if headers else ()))
        records.append(ModelRecord(offset, timestamp_ms, unhex(key), unhex(value), pairs))
    return ModelBatch(
        base_offset=batch["base"],
        last_offset=batch["last"],
        records=tuple(records),
        codec=("none", "gzip", "snappy", "lz4", "zstd").index(batch["codec"]),
        append_time=batch["ts_type"] == "LogAppendTime",
        base_timestamp_ms=0,
        max_timestamp_ms=batch["max_ts"],
        horizon_ms=batch["delete_horizon"],
        leader_epoch=batch["leader_epoch"],
    )


def unhex(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


def check_rules(round_: Round) -> None:
    """Range and verdict of the plan are those of Kafka's own manager."""
    found = cleanable_range(listed(round_.before), KafkaTopicConfig.from_names(round_.config), round_.now_ms)
    said = round_.answer
    assert found.first_dirty == said["first_dirty"]
    assert found.first_uncleanable == said["first_uncleanable_segment_base"]
    assert (found.clean_bytes, found.cleanable_bytes) == (said["clean_bytes"], said["cleanable_bytes"])
    assert found.ratio == pytest.approx(said["ratio"], abs=1e-12)
    assert found.overdue_ms == said["overdue_ms"]
    assert found.eligible == said["picked_by_kafka"]
    assert found.checkpoint_corrected == said["checkpoint_corrected"]


def check_model(round_: Round) -> None:
    """The plain model leaves what Kafka left, segment by segment, base timestamps too."""
    before, after = read_segments(round_.before / NAME), read_segments(round_.after / NAME)
    if not round_.cleaned:
        assert after == before
        return
    config = KafkaTopicConfig.from_names(round_.config)
    before_log = listed(round_.before)
    groups = group_segments(before_log.segments, round_.end, config.segment_bytes, config.segment_index_bytes)
    expected = clean_segments(
        before,
        [[segment.base_offset for segment in group] for group in groups],
        first_dirty=round_.answer["first_dirty"],
        end=round_.end,
        high_watermark=round_.bounds["high_watermark"],
        now_ms=round_.now_ms,
        retention_ms=config.delete_retention_ms,
    )
    assert after == expected
    assert round_.answer["end_offset"] == round_.end


def check_like_broker(oracle: Oracle, round_: Round, plain: bool) -> None:
    ours = round_.before.with_name("like-broker")
    shutil.copytree(round_.before, ours)
    check_status(compact(ours, round_.config, round_.now_ms, like_broker=True), round_)
    theirs = round_.after
    assert bases(ours / NAME) == bases(theirs / NAME)
    assert read_segments(ours / NAME) == read_segments(theirs / NAME)
    if round_.cleaned:
        assert read_checkpoint(ours, "cleaner-offset-checkpoint") == {NAME: round_.end}
        cleaned = [base for base in bases(ours / NAME) if base < round_.end]
        for base in cleaned:
            check_indexes(ours / NAME, base)
            made, wanted = read_files(ours / NAME, base), read_files(theirs / NAME, base)
            assert made.mtime_ms == wanted.mtime_ms
            if plain:
                assert made == wanted
        left = {file.name for file in (ours / NAME).iterdir() if file.suffix in (".cleaned", ".swap", ".deleted")}
        assert not left
        check_recovery(oracle, round_, ours, cleaned)
    shutil.rmtree(ours)


def check_status(report: CompactionReport, round_: Round) -> None:
    [told] = report.partitions
    wanted = (Status.CLEANED, Status.UNCHANGED) if round_.cleaned else (Status.SKIPPED,)
    assert told.status in wanted, told.reason
    assert told.first_dirty_offset == round_.answer["first_dirty"]
    assert told.first_uncleanable_offset == round_.end


def check_recovery(oracle: Oracle, round_: Round, ours: Path, cleaned: list[int]) -> None:
    """Kafka's loader, after a crash, checks every crc and builds every index anew: nothing may change."""
    segments = read_segments(ours / NAME)
    files = {base: read_files(ours / NAME, base) for base in cleaned}
    loaded = oracle.ask(
        "load", dir=str(ours / NAME), config=round_.config, now_ms=round_.now_ms, clean_shutdown=False,
        log_start=round_.bounds["log_start"], recovery_point=0,
    )  # fmt: skip
    shut_down(ours / NAME)
    assert loaded["log_end"] == round_.bounds["log_end"]
    assert read_segments(ours / NAME) == segments
    for base, made in files.items():
        rebuilt = read_files(ours / NAME, base)
        assert (rebuilt.log, rebuilt.index, rebuilt.time_index) == (made.log, made.index, made.time_index), base


def check_sparing(round_: Round) -> None:
    """Segments in which nothing changes are left alone: other files, the same batches and records."""
    ours = round_.before.with_name("sparing")
    shutil.copytree(round_.before, ours)
    check_status(compact(ours, round_.config, round_.now_ms, like_broker=False), round_)
    left, wanted = read_segments(ours / NAME), read_segments(round_.after / NAME)
    assert without_base_timestamps(batches_of(left)) == without_base_timestamps(batches_of(wanted))
    if round_.cleaned:
        assert read_checkpoint(ours, "cleaner-offset-checkpoint") == {NAME: round_.end}
        for base in bases(ours / NAME):
            if base < round_.end:
                check_indexes(ours / NAME, base)
    shutil.rmtree(ours)


@settings(max_examples=100)
@given(life=lives())
def test_the_reference_of_the_property_tests_is_right(life: Life, oracle: Oracle) -> None:
    """What those tests hold the engine against, on the logs that they draw."""
    with tempfile.TemporaryDirectory(prefix="lastwrite-life-", dir=SCRATCH) as folder:
        root, twin = Path(folder) / "kafka", Path(folder) / "reference"
        (root / NAME).mkdir(parents=True)
        for phase in life.phases:
            end = append(root / NAME, phase, life.interval_bytes)
            high_watermark = int(end * phase.replicated)
            write_checkpoint(root, "replication-offset-checkpoint", {NAME: high_watermark})
            shutil.rmtree(twin, ignore_errors=True)
            shutil.copytree(root, twin)
            found = reference.compact(twin, life.config, phase.now_ms)
            said = oracle.ask(
                "clean", dir=str(root / NAME), config=life.config, now_ms=phase.now_ms, map_slots=MAP_SLOTS,
                high_watermark=high_watermark,
            )  # fmt: skip
            shut_down(root / NAME)
            assert found.eligible == said["picked_by_kafka"]
            assert read_segments(twin / NAME) == read_segments(root / NAME)
            file = "cleaner-offset-checkpoint"
            assert read_checkpoint(twin, file) == read_checkpoint(root, file)
            plain = all(batch.codec == 0 for batch in batches_of(read_segments(root / NAME)))
            for base in bases(root / NAME):
                if plain and base < found.first_uncleanable:
                    assert read_files(twin / NAME, base) == read_files(root / NAME, base)
