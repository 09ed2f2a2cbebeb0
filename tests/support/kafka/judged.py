"""One random log, cleaned round by round by Kafka's own cleaner and by Lastwrite, and compared.

Each round cleans three copies of the log: by Kafka, by Lastwrite with ``like_broker``, and by
Lastwrite in its default mode, which leaves unchanged segments alone. All three must leave the same
records in the same batches and, after retention, the same log. The first two must also leave the
same segments and indexes, byte for byte if no batch is compressed. Kafka's loader then recovers
Lastwrite's result, and must keep all of it. Kafka also reads it as a read_committed consumer does.

The plain model of ``tests/support/kafka/model.py`` and the rules for ranges and groups are compared
as well, so that a failure shows the step with the difference.

Kafka fails in a round that would leave a batch of magic 0 or 1 empty. Only the model judges there.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from lastwrite.engine.rules.ranges import cleanable_range
from lastwrite.kafka.rules.grouping import group_segments
from lastwrite.kafka.rules.settings import KafkaTopicConfig
from lastwrite.kafka.store.log_dir import read_partition
from lastwrite.reports.compaction import CompactionReport, Status
from tests.support.engine import compact
from tests.support.kafka.logs import (
    NAME,
    SCRATCH,
    bases,
    check_indexes,
    headers_of,
    read_checkpoint,
    read_files,
    read_segments,
    write_checkpoint,
)
from tests.support.kafka.model import (
    LastBatch,
    ModelAborted,
    ModelBatch,
    ModelRecord,
    ModelSegment,
    aborted_offsets,
    clean_segments,
)
from tests.support.kafka.oracle import MAP_SLOTS, Oracle, scenario, shut_down
from tests.support.kafka.producers import EXPIRATION_MS, snapshots
from tests.support.kafka.reference import listed, old_until_ms

NO_EMPTY_OLD_BATCH = "Empty batches are only supported for magic v2 and above"


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round of the real cleaner: the log root before and after it, and Kafka's answers."""

    before: Path
    after: Path
    config: dict[str, str]
    now_ms: int
    bounds: dict[str, int]  # log_start, log_end, high_watermark
    answer: dict[str, Any]  # the cleaner's answer
    producers: dict[int, LastBatch]  # active producers by Kafka's loader
    last_stable: int
    left: tuple[ModelSegment, ...]  # segments after the cleaner
    retained: dict[str, Any]  # the answer of the retention that follows
    hidden: set[int]  # the offsets of all aborted data so far

    @property
    def compacts(self) -> bool:
        return "compact" in self.config["cleanup.policy"]

    @property
    def gave_up(self) -> bool:
        return not self.answer["ok"]

    @property
    def cleaned(self) -> bool:
        return self.compacts and not self.answer.get("skipped")

    @property
    def agrees(self) -> bool:
        """Whether Kafka left what the model leaves if it forgets no transaction."""
        return not self.cleaned or self.gave_up or modelled(self) == self.left

    @property
    def end(self) -> int:
        return int(self.answer["first_uncleanable_segment_base"])

    def opened(self, folder: Path, log_start: int | None = None) -> dict[str, Any]:
        """The arguments with which the oracle opens the log in ``folder`` as in this round."""
        return {
            "dir": str(folder),
            "config": self.config,
            "now_ms": self.now_ms,
            "log_start": self.bounds["log_start"] if log_start is None else log_start,
            "high_watermark": self.bounds["high_watermark"],
        }


def played(oracle: Oracle, plan: dict[str, Any], folder: Path) -> Iterator[Round]:
    """Run the rounds of a scenario.

    Each round starts from Kafka's result of the previous one, with the checkpoint files of a
    broker.
    """
    work = folder / "kafka"
    (work / NAME).mkdir(parents=True)
    config = plan["config"]
    log_start = high_watermark = 0
    checkpoint = None
    hidden: set[int] = set()
    for number, phase in enumerate(plan["phases"], 1):
        written = oracle.ask(
            "write",
            dir=str(work / NAME),
            now_ms=phase["actions"][0]["clock"],
            log_start=log_start,
            lenient=True,
            # A leader refuses records without a key in a compacted topic, but a topic can become
            # compacted later.
            config={**config, "cleanup.policy": "delete"},
            actions=phase["actions"],
        )
        shut_down(work / NAME)
        high_watermark = max(
            int(written["log_end"] * phase["replicated"]), log_start, high_watermark
        )
        if phase["raise_log_start"] is not None:
            log_start = max(log_start, int(high_watermark * phase["raise_log_start"]))
        write_checkpoint(work, "replication-offset-checkpoint", {NAME: high_watermark})
        write_checkpoint(work, "log-start-offset-checkpoint", {NAME: log_start})
        write_checkpoint(
            work, "cleaner-offset-checkpoint", {} if checkpoint is None else {NAME: checkpoint}
        )
        before = folder / f"before-{number}"
        shutil.copytree(work, before)
        hidden |= aborted_offsets(read_segments(before / NAME))
        opened = {
            "config": config,
            "now_ms": phase["now_ms"],
            "log_start": log_start,
            "high_watermark": high_watermark,
        }
        loaded = _asked_of_a_copy(oracle, "load", before, opened)
        answer: dict[str, Any] = {"ok": True, "skipped": True}
        if "compact" in config["cleanup.policy"]:
            answer = oracle.attempt(
                "clean", dir=str(work / NAME), checkpoint=checkpoint, map_slots=MAP_SLOTS, **opened
            )
        if not answer["ok"]:
            assert NO_EMPTY_OLD_BATCH in answer["message"], answer
            shutil.rmtree(work / NAME)
            shutil.copytree(before / NAME, work / NAME)
        shut_down(work / NAME)
        left = read_segments(work / NAME)
        retained = {"deleted_segments": 0, "log_start": log_start}
        # otherwise the partition is uncleanable, and Kafka runs no retention on it either
        if answer["ok"]:
            retained = oracle.ask("retention", dir=str(work / NAME), **opened)
            shut_down(work / NAME)
        yield Round(
            before=before,
            after=work,
            config=config,
            now_ms=phase["now_ms"],
            answer=answer,
            left=left,
            bounds={
                "log_start": log_start,
                "log_end": written["log_end"],
                "high_watermark": high_watermark,
            },
            producers={
                int(producer): LastBatch(
                    known["epoch"],
                    -1 if known["last_data_offset"] is None else known["last_data_offset"],
                )
                for producer, known in loaded["producers"].items()
            },
            last_stable=loaded["last_stable"],
            retained=retained,
            hidden=hidden,
        )
        checkpoint = answer.get("end_offset", checkpoint)
        log_start = retained["log_start"]


def _asked_of_a_copy(
    oracle: Oracle, op: str, root: Path, arguments: dict[str, Any]
) -> dict[str, Any]:
    """Ask the oracle for an operation on a copy of the log, because opening a log changes it."""
    copy = root.with_name("copy")
    shutil.copytree(root, copy)
    answer = oracle.ask(op, **{**arguments, "dir": str(copy / NAME)})
    shutil.rmtree(copy)
    return answer


def check_seed(oracle: Oracle, seed: int) -> Counter[str]:
    """Check all rounds of a seed. Returns how often each case occurred."""
    met: Counter[str] = Counter(logs=1)
    for round_ in checked(oracle, scenario(seed)):
        met += _occurred(round_)
    return met


def checked(oracle: Oracle, plan: dict[str, Any]) -> Iterator[Round]:
    """Run the rounds of a plan. Each round is checked after it was yielded."""
    with tempfile.TemporaryDirectory(prefix="lastwrite-oracle-", dir=SCRATCH) as folder:
        for round_ in played(oracle, plan, Path(folder)):
            yield round_
            check_reading(oracle, round_)
            if round_.compacts and not round_.gave_up and not check_rules(round_):
                break  # no running broker would continue from Kafka's result
            check_model(round_)
            check_like_broker(oracle, round_, plan["plain"])
            check_sparing(oracle, round_)
            if not round_.agrees:
                # Kafka forgot a transaction below the log start: the transaction index no longer
                # matches the log
                break


def _occurred(round_: Round) -> Counter[str]:
    segments = read_segments(round_.before / NAME)
    before, after = batches_of(segments), batches_of(round_.left)
    left = {batch.base_offset for batch in after}
    return Counter(
        {
            "rounds": 1,
            "rounds that cleaned": round_.cleaned and not round_.gave_up,
            "rounds that Kafka gave up": round_.gave_up,
            "rounds with old formats": any(batch.magic < 2 for batch in before),
            "aborted transactions": sum(len(segment.aborted) for segment in segments),
            "aborted transactions kept": sum(len(segment.aborted) for segment in round_.left),
            "markers dropped": sum(
                batch.control and batch.base_offset not in left for batch in before
            ),
            "markers with a horizon": sum(
                batch.control and batch.horizon_ms is not None for batch in after
            ),
            "shells": sum(not batch.records for batch in after),
            "segments retired": round_.retained["deleted_segments"],
        }
    )


def batches_of(segments: Sequence[ModelSegment]) -> list[ModelBatch]:
    return [batch for segment in segments for batch in segment.batches]


# ---------------------------------------------------------------------- before the round


def check_reading(oracle: Oracle, round_: Round) -> None:
    """Lastwrite and Kafka decode the same batches, and agree on the bounds of the log."""
    folder = round_.after / NAME
    theirs = oracle.ask("state", dir=str(folder))["segments"]
    ours = read_segments(folder)
    assert [segment["base"] for segment in theirs] == [segment.base_offset for segment in ours]
    for segment, mine in zip(theirs, ours, strict=True):
        assert [said_of(batch) for batch in segment["batches"]] == [
            replace(batch, base_timestamp_ms=0) for batch in mine.batches
        ]
        assert [ModelAborted(*entry) for entry in segment["txn_index"]] == list(mine.aborted)
    log, plain = read_partition(str(round_.before / NAME)), listed(round_.before)
    assert not log.problems
    assert log.segments[:-1] == plain.segments[:-1]
    assert log.segments[-1].base_offset == plain.segments[-1].base_offset
    assert (log.log_start, log.end_offset) == (plain.log_start, plain.end_offset)
    assert (log.high_watermark, log.checkpoint) == (plain.high_watermark, plain.checkpoint)
    # If a transaction began below the log start, a reader of the log may or may not know of it.
    assert (
        log.last_stable_offset == plain.last_stable_offset
        or plain.last_stable_offset == log.log_start
    )
    theirs_stable = max(round_.last_stable, log.log_start)
    if (
        log.high_watermark == log.end_offset
    ):  # otherwise Kafka does not know the markers above the high watermark
        assert log.last_stable_offset == theirs_stable
    assert log.last_stable_offset <= theirs_stable
    assert round_.producers == {
        known.producer_id: LastBatch(known.producer_epoch, known.last_offset)
        for known in log.producers
        if known.open_from >= 0 or round_.now_ms - known.timestamp_ms < EXPIRATION_MS
    }


def said_of(batch: dict[str, Any]) -> ModelBatch:
    """A batch as the oracle describes it, without the base timestamp."""
    records = []
    for offset, timestamp_ms, key, value, *headers in batch["records"]:
        pairs = tuple(
            (name.encode(), unhex(content)) for name, content in (headers[0] if headers else ())
        )
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
        magic=batch["magic"],
        producer_id=batch["pid"],
        producer_epoch=batch["epoch"],
        base_sequence=batch["base_seq"],
        transactional=batch["txn"],
        control=batch["control"],
    )


def unhex(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


def check_rules(round_: Round) -> bool:
    """Check the plan's range and verdict against Kafka's own cleaner manager.

    Returns False if a transaction whose marker is not replicated ends Lastwrite's range earlier. A
    running broker knows that transaction. The oracle does not, because it loads a snapshot taken
    after the marker.
    """
    log = listed(round_.before)
    found = cleanable_range(log, KafkaTopicConfig.from_names(round_.config), round_.now_ms)
    said = round_.answer
    if log.last_stable_offset < round_.last_stable:
        assert found.first_uncleanable <= said["first_uncleanable_segment_base"]
        if found.first_uncleanable < said["first_uncleanable_segment_base"]:
            return False
    assert found.first_dirty == said["first_dirty"]
    assert found.first_uncleanable == said["first_uncleanable_segment_base"]
    assert (found.clean_bytes, found.cleanable_bytes) == (
        said["clean_bytes"],
        said["cleanable_bytes"],
    )
    assert found.ratio == pytest.approx(said["ratio"], abs=1e-12)
    assert found.overdue_ms == said["overdue_ms"]
    assert found.eligible == said["picked_by_kafka"]
    assert found.checkpoint_corrected == said["checkpoint_corrected"]
    return True


def modelled(round_: Round, forgotten_below: int = 0) -> tuple[ModelSegment, ...]:
    """The plain model's segments after the round."""
    config = KafkaTopicConfig.from_names({**round_.config, "min.cleanable.dirty.ratio": "0"})
    log = listed(round_.before)
    found = cleanable_range(log, config, round_.now_ms)
    groups = group_segments(
        log.segments, found.first_uncleanable, config.segment_bytes, config.segment_index_bytes
    )
    return clean_segments(
        read_segments(round_.before / NAME),
        [[segment.base_offset for segment in group] for group in groups],
        first_dirty=found.first_dirty,
        end=found.first_uncleanable,
        high_watermark=round_.bounds["high_watermark"],
        now_ms=round_.now_ms,
        retention_ms=config.delete_retention_ms,
        producers=round_.producers,
        old_until_ms=old_until_ms(log, found.first_dirty, config.delete_retention_ms),
        forgotten_below=forgotten_below,
    )


def check_model(round_: Round) -> None:
    """The plain model leaves what Kafka left, with base timestamps and transaction indexes."""
    if round_.gave_up:
        return
    log_start = round_.bounds["log_start"]
    assert round_.left == (
        modelled(round_, log_start) if round_.cleaned else read_segments(round_.before / NAME)
    )
    if round_.cleaned:
        assert round_.answer["end_offset"] == round_.end


# ---------------------------------------------------------------------- Lastwrite's rounds


def check_like_broker(oracle: Oracle, round_: Round, plain: bool) -> None:
    ours = round_.before.with_name("like-broker")
    shutil.copytree(round_.before, ours)
    report = compact(ours, round_.config, round_.now_ms, like_broker=True)
    if round_.gave_up:
        check_solved(round_, ours, report)
        shutil.rmtree(ours)
        return
    check_status(report, round_)
    theirs = round_.after
    left, wanted = read_segments(ours / NAME), read_segments(theirs / NAME)
    if (
        not plain
        and "delete" in round_.config["cleanup.policy"]
        and round_.config["retention.bytes"] != "-1"
    ):
        # Retention compares sizes, and another build of a codec compresses to another size. One of
        # the two may keep one more segment.
        first = max(left[0].base_offset, wanted[0].base_offset)
        left = tuple(segment for segment in left if segment.base_offset >= first)
        wanted = tuple(segment for segment in wanted if segment.base_offset >= first)
    else:
        assert listed(ours).log_start == round_.retained["log_start"]
        assert _base_snapshots(ours, round_) == _base_snapshots(theirs, round_)
    if not round_.agrees:  # Lastwrite and the model know the transactions that Kafka forgot
        known = {segment.base_offset: segment for segment in modelled(round_)}
        wanted = tuple(known.get(segment.base_offset, segment) for segment in wanted)
    assert left == wanted
    if round_.cleaned:
        assert read_checkpoint(ours, "cleaner-offset-checkpoint") == {NAME: round_.end}
        cleaned = [segment.base_offset for segment in left if segment.base_offset < round_.end]
        for base in cleaned:
            check_indexes(ours / NAME, base)
            made, theirs_ = read_files(ours / NAME, base), read_files(theirs / NAME, base)
            assert made.mtime_ms == theirs_.mtime_ms
            if plain and round_.agrees:
                assert made == theirs_
        round_ = replace(round_, retained={"log_start": listed(ours).log_start})
        check_recovery(oracle, round_, ours, cleaned)
        check_reads(oracle, round_, ours)
    assert not [
        file.name
        for file in (ours / NAME).iterdir()
        if file.suffix in (".cleaned", ".swap", ".deleted")
    ]
    shutil.rmtree(ours)


def _base_snapshots(root: Path, round_: Round) -> list[int]:
    """The producer snapshots at the base offsets of former segments, above the log start.

    A loader removes all others.
    """
    present = bases(round_.before / NAME)
    return [
        offset
        for offset in snapshots(root / NAME)
        if offset in present and offset > round_.retained["log_start"]
    ]


def check_status(report: CompactionReport, round_: Round) -> None:
    [told] = report.partitions
    if round_.cleaned:
        assert told.status in (Status.CLEANED, Status.UNCHANGED), told.reason
        assert told.first_dirty_offset == round_.answer["first_dirty"]
        assert told.first_uncleanable_offset == round_.end
    else:
        retired = round_.retained["deleted_segments"] > 0
        # Without compact in the policy, retention runs, and may find nothing to delete.
        idle = Status.SKIPPED if round_.compacts else Status.UNCHANGED
        assert told.status is (Status.CLEANED if retired else idle), told.reason


def check_solved(round_: Round, ours: Path, report: CompactionReport) -> None:
    """In a round in which Kafka fails, Lastwrite leaves the old batch as an empty one of magic 2.

    The batch is the one that ends at the high watermark.
    """
    [told] = report.partitions
    assert told.status is Status.CLEANED, told.reason
    left = read_segments(ours / NAME)
    # The retention that follows deletes segments from the front.
    assert left == modelled(round_)[-len(left) :]


def check_recovery(oracle: Oracle, round_: Round, ours: Path, cleaned: list[int]) -> None:
    """Kafka's loader must change nothing when it checks all CRCs and rebuilds all indexes."""
    segments = read_segments(ours / NAME)
    files = {base: read_files(ours / NAME, base) for base in cleaned}
    copy = ours.with_name("recovered")
    shutil.copytree(ours, copy)
    opened = round_.opened(copy / NAME, round_.retained["log_start"])
    loaded = oracle.ask("load", **opened, clean_shutdown=False, recovery_point=0)
    shut_down(copy / NAME)
    assert loaded["log_end"] == round_.bounds["log_end"]
    recovered = read_segments(copy / NAME)
    assert [replace(s, aborted=()) for s in recovered] == [replace(s, aborted=()) for s in segments]
    for ours_, theirs in zip(segments, recovered, strict=True):
        # An entry built from the remaining records may begin later or be absent. It still hides the
        # same aborted records.
        entries = {entry.last_offset: entry for entry in ours_.aborted}
        for entry in theirs.aborted:
            kept = entries[entry.last_offset]
            assert kept.producer_id == entry.producer_id
            assert kept.first_offset <= entry.first_offset
    for base, made in files.items():
        rebuilt = read_files(copy / NAME, base)
        assert (rebuilt.log, rebuilt.index, rebuilt.time_index) == (
            made.log,
            made.index,
            made.time_index,
        ), base
    shutil.rmtree(copy)


def check_reads(oracle: Oracle, round_: Round, ours: Path) -> None:
    """A read_committed fetch returns the committed records, before and after the round."""
    for root, log_start in ((round_.before, None), (ours, round_.retained["log_start"])):
        span = round_.bounds["log_end"] - round_.bounds["log_start"]
        opened = round_.opened(root / NAME, log_start)
        answer = _asked_of_a_copy(oracle, "reads", root, {**opened, "step": 1 + span // 60})
        placed = {
            segment.base_offset: list(
                zip(
                    headers_of(root / NAME / f"{segment.base_offset:020d}.log"),
                    segment.batches,
                    strict=True,
                )
            )
            for segment in read_segments(root / NAME)
        }
        for read in answer["reads"]:
            start, end = read["position"], read["position"] + read["bytes"]
            fetched = [
                batch
                for (position, _), batch in placed.get(read["segment_base"], [])
                if read["bytes"] and start <= position < end
            ]
            aborted = [(first, producer) for producer, first in read["aborted"]]
            expected = [
                record.offset
                for batch in fetched
                if not batch.control
                for record in batch.records
                if record.offset >= read["fetch_offset"] and record.offset not in round_.hidden
            ]
            assert consumed(fetched, aborted, read["fetch_offset"]) == expected, read


def consumed(
    batches: Sequence[ModelBatch], aborted: list[tuple[int, int]], offset: int
) -> list[int]:
    """The offsets that a read_committed client delivers from a fetch.

    ``aborted`` is the fetch's list of (first offset, producer id).
    """
    coming = sorted(aborted)
    hidden: set[int] = set()
    delivered: list[int] = []
    for batch in batches:
        while coming and coming[0][0] <= batch.last_offset:
            hidden.add(coming.pop(0)[1])
        if batch.marker == "abort":
            hidden.discard(batch.producer_id)
        elif not batch.control and not (batch.transactional and batch.producer_id in hidden):
            delivered += [record.offset for record in batch.records if record.offset >= offset]
    return delivered


def check_sparing(oracle: Oracle, round_: Round) -> None:
    """The default mode leaves unchanged segments alone, and leaves the same batches and records.

    Retention depends on the files, which differ here. ``check_like_broker`` compares it.
    """
    if not round_.compacts:
        return
    ours = round_.before.with_name("sparing")
    shutil.copytree(round_.before, ours)
    config = {**round_.config, "cleanup.policy": "compact"}
    report = compact(ours, config, round_.now_ms, like_broker=False)
    left = read_segments(ours / NAME)
    wanted = modelled(round_) if round_.cleaned else round_.left
    if not round_.gave_up:
        [told] = report.partitions
        assert not round_.cleaned or told.status in (Status.CLEANED, Status.UNCHANGED), told.reason
    # Retention deletes whole files below the log start. Smaller files are deleted earlier.
    first = left[0].base_offset
    assert first <= max(round_.bounds["log_start"], wanted[0].base_offset)
    # Old batches in an unchanged segment keep their format, and their tombstones expire by the
    # file's modification time. Converted batches get a delete horizon.
    old = {batch.base_offset for batch in batches_of(left) if batch.magic < 2}
    wanted_batches = [
        replace(batch, horizon_ms=None) if batch.base_offset in old else batch
        for batch in batches_of(wanted)
        if batch.base_offset >= first
    ]
    assert seen_as_new(batches_of(left)) == seen_as_new(wanted_batches)
    # An unchanged segment keeps its transaction index. The entries that Kafka dropped there hide no
    # record.
    entries = [entry for segment in left for entry in segment.aborted]
    wanted_entries = [
        entry for segment in wanted for entry in segment.aborted if entry.last_offset >= first
    ]
    stale = [entry for entry in entries if entry not in wanted_entries]
    assert [entry for entry in entries if entry not in stale] == wanted_entries
    for entry in stale:
        holding = max(
            segment.base_offset for segment in left if segment.base_offset <= entry.last_offset
        )
        file = f"{holding:020d}.log"
        assert (ours / NAME / file).read_bytes() == (round_.before / NAME / file).read_bytes(), (
            entry
        )
    if round_.cleaned:
        end = report.partitions[0].first_uncleanable_offset
        assert read_checkpoint(ours, "cleaner-offset-checkpoint") == {NAME: end}
        for base in bases(ours / NAME):
            if end is not None and base < end:
                check_indexes(ours / NAME, base)
        if not round_.gave_up:
            check_reads(
                oracle, replace(round_, retained={"log_start": round_.bounds["log_start"]}), ours
            )
    shutil.rmtree(ours)


def seen_as_new(batches: Sequence[ModelBatch]) -> list[ModelBatch]:
    """The batches as readers see them: old ones converted, base timestamps only as horizons."""
    return [
        replace(batch, base_timestamp_ms=batch.horizon_ms or 0, magic=2, leader_epoch=_epoch(batch))
        for batch in batches
    ]


def _epoch(batch: ModelBatch) -> int:
    return -1 if batch.magic < 2 else batch.leader_epoch
