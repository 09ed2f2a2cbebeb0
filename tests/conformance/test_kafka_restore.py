"""Tests of restoring Kafka logs to a log root: same records and offsets, no recovery."""

from __future__ import annotations

import base64
import itertools
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

import lastwrite
from lastwrite import cli
from lastwrite.archive.manifest import encode
from lastwrite.archive.partition_store import MANIFEST, read_versioned_manifest
from lastwrite.errors import InvalidConfig, LogError, LogHeld, NotALog
from lastwrite.kafka.format.batch import encode_batch
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.kafka.format.names import LEADER_EPOCHS, PARTITION_METADATA
from lastwrite.kafka.restored import LogsRestored, RestoredLog
from lastwrite.kafka.store import archived, lock
from lastwrite.kafka.store.archiving import successor
from lastwrite.kafka.store.log_dir import read_partition
from lastwrite.model.log import TopicPartition
from lastwrite.spark.inline import INLINE
from tests.conformance.test_kafka_archive import (
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOG_STARTS,
    REAL,
    Archive,
    all_killed,
    brought,
    copy,
    replicated,
    split,
    write_log,
)
from tests.property.test_compaction import empty_root
from tests.support.engine import compact
from tests.support.files import contents
from tests.support.kafka import metadata
from tests.support.kafka.logs import (
    NAME,
    bases,
    check_indexes,
    read_checkpoint,
    read_segments,
    write_checkpoint,
    write_segment,
)
from tests.support.kafka.model import ModelBatch, ModelRecord, ModelSegment
from tests.support.kafka.producers import State, apply, read_snapshot
from tests.support.kafka.strategies import START_MS, Life, append, lives

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
OTHER_ID = b"fedcba9876543210"


def text_of(topic_id: bytes) -> str:
    return base64.urlsafe_b64encode(topic_id).decode().rstrip("=")


def log_root(
    root: Path,
    topic: str = "t",
    topic_id: bytes = metadata.TOPIC_ID,
    *,
    partitions: int = 1,
    leader_epoch: int = 0,
    replicas: Sequence[int] = (1,),
    directories: Sequence[bytes] = (),
    settings: dict[str, str] | None = None,
) -> Path:
    """The log root of a stopped broker. Its cluster has the topic, without records."""
    root.mkdir(exist_ok=True, parents=True)
    (root / "meta.properties").write_text(
        f"version=1\ncluster.id=c\nnode.id=1\ndirectory.id={text_of(b'd' * 16)}\n"
    )
    (root / ".lock").touch()
    made = [
        metadata.partition(n, topic_id, replicas, leader_epoch, directories)
        for n in range(partitions)
    ]
    own = [metadata.setting(topic, *each) for each in (settings or {}).items()]
    values = [metadata.topic(topic, topic_id), *made, *own]
    metadata.write_records(root, f"{0:020d}.log", 0, *values)
    for n in range(partitions):
        folder = root / f"{topic}-{n}"
        write_segment(folder, 0, [])
        (folder / LEADER_EPOCHS).write_text("0\n0\n")
        (folder / PARTITION_METADATA).write_text(f"version: 0\ntopic_id: {text_of(topic_id)}")
    for file in (RECOVERY_POINTS, HIGH_WATERMARKS):
        write_checkpoint(root, file, {"other-3": 7, f"{topic}-0": 0})
    return root


def restore(archive: Path, to: Path, **options: Any) -> RestoredLog:
    """Restore one partition. Returns its report."""
    report = lastwrite.restore(str(archive), to=str(to), **options)
    assert isinstance(report, LogsRestored)
    (found,) = report.partitions
    assert report.exit_status == (found.reason and (3 if found.is_damaged else 1) or 0)
    return found


def restored(archive: Path, to: Path, **options: Any) -> RestoredLog:
    found = restore(archive, to, **options)
    assert found.reason is None, found.reason
    return found


def set_topic_id(folder: Path, topic_id: bytes = metadata.TOPIC_ID) -> None:
    (folder / PARTITION_METADATA).write_text(f"version: 0\ntopic_id: {text_of(topic_id)}")


def batches_of(segments: Sequence[ModelSegment]) -> list[ModelBatch]:
    return [batch for segment in segments for batch in segment.batches]


def ended(segments: Sequence[ModelSegment], end: int) -> dict[str, list[ModelBatch]]:
    """The batches that begin below ``end``, by the outcome of their transactions below it.

    Batches without a transaction are under ``plain``, and markers under ``control``.
    """
    found: dict[str, list[ModelBatch]] = {"plain": [], "commit": [], "abort": [], "control": []}
    open_: dict[int, list[ModelBatch]] = {}
    for batch in batches_of(segments):
        if batch.base_offset >= end:
            continue
        if batch.control:
            found["control"].append(batch)
            if batch.marker is not None:
                found[batch.marker] += open_.pop(batch.producer_id, [])
        elif batch.transactional:
            open_.setdefault(batch.producer_id, []).append(batch)
        else:
            found["plain"].append(batch)
    return found


def records(*batches: ModelBatch, end: int) -> list[ModelRecord]:
    found = [record for batch in batches for record in batch.records if record.offset < end]
    return sorted(found, key=lambda record: record.offset)


def check_loads(root: Path, name: str, end: int, log_start: int, topic_id: bytes) -> Path:
    """Check the files that a broker's loader reads."""
    folder = root / name
    assert set(root.glob(f"{name}*")) == {folder}, "nothing is left beside it"
    assert {file.suffix for file in folder.iterdir() if file.name[:1] == "0"} <= {
        ".log",
        ".index",
        ".timeindex",
        ".txnindex",
        ".snapshot",
    }
    assert bases(folder)[-1] == end, "the active segment is new"
    assert (folder / f"{end:020d}.log").stat().st_size == 0
    for base in bases(folder)[:-1]:
        check_indexes(folder, base)
    log = read_partition(str(folder))
    assert not log.problems
    assert (log.log_start, log.end_offset, log.high_watermark) == (log_start, end, end)
    assert log.first_unstable_offset is None
    for file in (RECOVERY_POINTS, HIGH_WATERMARKS):
        assert read_checkpoint(root, file) == {"other-3": 7, name: end}
    said = (folder / PARTITION_METADATA).read_text()
    assert said == f"version: 0\ntopic_id: {text_of(topic_id)}"
    lines = (folder / LEADER_EPOCHS).read_text().splitlines()
    assert lines[:2] == ["0", str(len(lines) - 2)]
    return folder


def check_same(
    folder: Path, source: Sequence[ModelSegment], begin: int, end: int, snapshot: bytes | None
) -> None:
    """Check that the batches are the original ones, without transactions open at ``end``.

    Batches below ``begin`` may differ, because nobody reads them.
    """
    every = sorted(sum(ended(source, end).values(), []), key=lambda batch: batch.base_offset)
    whole = every.pop() if every and every[-1].next_offset > end else None
    kept = [batch for batch in every if batch.next_offset > begin]
    got = batches_of(read_segments(folder))
    left = [] if whole is None or whole.transactional else records(whole, end=end)
    if whole is not None and left:  # the batch contains the offset ``end``
        cut = got.pop()
        assert (cut.base_offset, cut.next_offset, list(cut.records)) == (
            whole.base_offset,
            end,
            left,
        )
        assert (cut.producer_id, cut.base_sequence) == (whole.producer_id, whole.base_sequence)
        every.append(cut)
    elif got and (not every or every[-1].next_offset < end):
        shell = got.pop()
        assert (shell.base_offset, shell.last_offset, shell.records) == (end - 1, end - 1, ())
    assert [batch for batch in got if batch.next_offset > begin] == kept
    state: State = {}
    for batch in every:
        apply(state, batch)
    written = (folder / f"{end:020d}.snapshot").read_bytes()
    if snapshot is not None:
        assert written == snapshot
    else:
        assert read_snapshot(folder, end) == state


def check_elsewhere(folder: Path, source: Sequence[ModelSegment], begin: int, end: int) -> None:
    """Check that all committed records are there, without producers and transactions."""
    of = ended(source, end)
    got = batches_of(read_segments(folder))
    seen, wanted = records(*got, end=end), records(*of["plain"], *of["commit"], end=end)
    assert [r for r in seen if r.offset >= begin] == [r for r in wanted if r.offset >= begin]
    for batch in got:
        assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (-1, -1, -1)
        assert not batch.control and not batch.transactional
        assert batch.leader_epoch == (0 if batch.magic == 2 else -1)
    assert not got or got[-1].next_offset == end, "a consumer finds the end"
    assert read_snapshot(folder, end) == {}
    assert not list(folder.glob("*.txnindex"))


@settings(max_examples=25)
@given(lives(max_rounds=2), st.data())
def test_restored_log_equals_the_fetched_log(life: Life, data: st.DataObject) -> None:
    with empty_root() as root:
        archive = Archive(root.with_name("archive"))
        for phase in life.phases:
            append(root / NAME, phase, life.interval_bytes)
        set_topic_id(root / NAME)
        end = replicated(root / NAME, 1)
        write_checkpoint(root, HIGH_WATERMARKS, {NAME: end})
        begin = data.draw(st.integers(0, end), label="log start")
        if begin:
            write_checkpoint(root, LOG_STARTS, {NAME: begin})
        assert brought(root, archive.to, include_active=True).end_offset == end
        if data.draw(st.booleans(), label="compact"):
            compact(archive.to, life.config, life.phases[-1].now_ms)
        source = read_segments(archive.submit(root.with_name("laid")))
        until = data.draw(st.none() | st.integers(0, end), label="until")
        cleaned = archive.log()["checkpoint"]
        topic_id = data.draw(st.sampled_from([metadata.TOPIC_ID, OTHER_ID]))
        target = log_root(root.with_name("target"), topic_id=topic_id)
        options: dict[str, Any] = {"until": until, "drop_open": True}
        if until is not None and cleaned is not None and cleaned > until:
            assert "the earlier values are removed" in (
                restore(archive.to, target, **options).reason or ""
            )
            return
        before = (target / "meta.properties").read_bytes()
        found = restored(archive.to, target, **options)
        stop = end if until is None else max(until, begin)
        assert (found.first_offset, found.end_offset, found.is_written) == (begin, stop, stop > 0)
        assert found.is_other_topic == (topic_id == OTHER_ID)
        assert (target / "meta.properties").read_bytes() == before
        if not stop:
            assert (target / NAME / f"{0:020d}.log").stat().st_size == 0
            return
        folder = check_loads(target, NAME, stop, begin, topic_id)
        if topic_id == OTHER_ID:
            check_elsewhere(folder, source, begin, stop)
        else:
            stored = archive.log()["snapshot"]
            is_whole = stop == end and archive.log()["first_unstable"] is None
            snapshot = (archive.folder / stored).read_bytes() if stored and is_whole else None
            check_same(folder, source, begin, stop, snapshot)
        starts = read_checkpoint(target, LOG_STARTS) if (target / LOG_STARTS).exists() else {}
        assert starts == ({NAME: begin} if begin > bases(folder)[0] else {})
        if cleaned is not None:
            assert read_checkpoint(target, CLEANER_OFFSETS) == {NAME: min(cleaned, stop)}
        got = batches_of(read_segments(folder))
        has_gap = any(a.next_offset != b.base_offset for a, b in itertools.pairwise(got))
        verified = lastwrite.verify(str(target), spark=INLINE).exit_status
        # Without a cleaner checkpoint, missing offsets between two segments count as damage.
        assert verified == 0 or (verified == 3 and has_gap and cleaned is None)
        again = restored(archive.to, target, **options)
        assert not again.is_written and again.end_offset == stop


@pytest.mark.parametrize(
    ("folder", "is_same"),
    [
        pytest.param(each, n % 2 > 0, id=f"{each.parent.name}/{each.name}-{n % 2 > 0}")
        for n, each in enumerate(REAL)
    ],
)
def test_log_of_a_real_broker_is_restored(tmp_path: Path, folder: Path, is_same: bool) -> None:
    root = copy(folder, tmp_path / "log")
    archive = Archive(tmp_path / "archive", folder.name)
    end = brought(root, archive.to, include_active=True).end_offset
    assert end is not None
    topic = folder.name.rpartition("-")[0]
    known = archive.log()["topic_id"]
    same = base64.urlsafe_b64decode(known + "==") if is_same and known else OTHER_ID
    target = log_root(tmp_path / "target", topic, same, leader_epoch=99)
    if topic == "__transaction_state" and same == OTHER_ID:
        report = lastwrite.restore(str(archive.to), to=str(target))
        assert isinstance(report, LogsRestored) and not report.partitions
        assert report.notes == (
            "__transaction_state was not restored: it contains the state of the source cluster's "
            "brokers",
        )
        return
    restored(archive.to, target, drop_open=True)
    if end:
        check_loads(target, folder.name, end, archive.log()["log_start"], same)
    assert lastwrite.verify(str(target), spark=INLINE).exit_status == 0
    whole = archive.log()["first_unstable"] is None
    if topic != "__consumer_offsets" or same != OTHER_ID:
        assert whole is False or lastwrite.latest(str(target)) == lastwrite.latest(str(archive.to))


# ---------------------------------------------------------------------- choice of the log root


def written(tmp_path: Path, topic_id: bytes = metadata.TOPIC_ID) -> Archive:
    """An archive of 60 offsets in three segments, with the leader epochs 0 and 5."""
    root, archive = tmp_path / "log", Archive(tmp_path / "archive")
    write_log(root, {0: range(20), 20: range(20, 40), 40: range(40, 60)}, {0: 0, 5: 25})
    set_topic_id(root / NAME, topic_id)
    brought(root, archive.to, include_active=True)
    return archive


def held(root: Path) -> list[tuple[int, bytes | None]]:
    return [(r.offset, r.key) for b in batches_of(read_segments(root / NAME)) for r in b.records]


def test_restored_leader_epochs_never_exceed_the_partitions(tmp_path: Path) -> None:
    archive = written(tmp_path)
    for number, (topic_id, leader_epoch, kept) in enumerate(
        [(metadata.TOPIC_ID, 5, True), (metadata.TOPIC_ID, 4, False), (OTHER_ID, 9, False)]
    ):
        target = log_root(
            tmp_path / f"target-{number}", topic_id=topic_id, leader_epoch=leader_epoch - 1
        )
        change = metadata.new_leader(0, topic_id)
        metadata.write_records(target, f"{9:020d}.log", 9, change)
        restored(archive.to, target)
        of = batches_of(read_segments(target / NAME))
        lines = (target / NAME / LEADER_EPOCHS).read_text()
        if kept:
            assert [b.leader_epoch for b in of] == [0] * 25 + [5] * 35
            assert lines == "0\n2\n0 0\n5 25\n"
            assert [
                b
                for base in bases(target / NAME)
                for b in split(target / NAME / f"{base:020d}.log")
            ] == archive.batches()
        else:
            assert {b.leader_epoch for b in of} == {0}
            assert lines == "0\n1\n0 0\n"
        assert [offset for offset, _ in held(target)] == list(range(60))


def with_data(target: Path) -> None:
    write_segment(target / NAME, 0, [encode_batch([Record(3, START_MS, b"k", b"v")])])


def write_elsewhere(target: Path) -> None:
    set_topic_id(target / NAME, OTHER_ID)


def on_another_broker(target: Path) -> None:
    shutil.rmtree(target)
    log_root(target, replicas=(2, 3))


def in_another_root(target: Path) -> None:
    shutil.rmtree(target)
    log_root(target, directories=(b"e" * 16,))


def without_the_partition(target: Path) -> None:
    shutil.rmtree(target)
    log_root(target, partitions=0)


def without_metadata(target: Path) -> None:
    shutil.rmtree(target / metadata.FOLDER)
    (target / NAME / PARTITION_METADATA).unlink()


def linked(target: Path) -> None:
    (target / NAME).rename(target.with_name("elsewhere"))
    (target / NAME).symlink_to(target.with_name("elsewhere"))


@pytest.mark.parametrize(
    "change, words",
    [
        (
            with_data,
            "the log root already has this partition with other records: it starts at offset 0 "
            "and ends at offset 4",
        ),
        (write_elsewhere, "the folder belongs to topic id"),
        (on_another_broker, "has t-0 on broker 2, 3, but this log root belongs to broker 1"),
        (in_another_root, f"contains directory.id={text_of(b'e' * 16)}"),
        (without_the_partition, "t has 0 partitions in the cluster, and 1 in the archive"),
        (without_metadata, "with --metadata PATH"),
        (linked, "is a symbolic link"),
    ],
)
def test_target_that_a_broker_would_reject_is_not_written(
    tmp_path: Path, change: Callable[[Path], None], words: str
) -> None:
    archive, target = written(tmp_path), log_root(tmp_path / "target")
    change(target)
    before = contents(target)
    found = restore(archive.to, target)
    assert found.reason is not None and words in found.reason and " — " in found.reason
    assert contents(target) == before


def test_missing_topic_is_refused_with_the_command_that_creates_it(tmp_path: Path) -> None:
    root, archive = tmp_path / "log", Archive(tmp_path / "archive", "orders-0")
    settings = {"cleanup.policy": "compact,delete", "leader.replication.throttled.replicas": "0:1"}
    metadata.write_metadata(root, {"orders": settings})
    for n in range(3):
        write_segment(root / f"orders-{n}", 0, [])
    lastwrite.fetch([str(root)], str(archive.to), include_active=True)
    new = tmp_path / "new"  # the log root of a cluster without topics
    metadata.write_identity(new, "c")
    metadata.write_records(new, f"{0:020d}.log", 0)
    for target in (log_root(tmp_path / "target"), new):
        before = contents(target)
        with pytest.raises(InvalidConfig) as refused:
            lastwrite.restore(str(archive.to), to=str(target), partition=1)
        assert (
            "kafka-topics.sh --bootstrap-server HOST:PORT --create --topic orders --partitions 3 "
            "--config cleanup.policy=compact,delete;" in f"{refused.value.remedy};"
        )
        assert contents(target) == before


def test_folder_of_the_broker_provides_the_topic_id_without_metadata(tmp_path: Path) -> None:
    archive, target = written(tmp_path), log_root(tmp_path / "target", topic_id=OTHER_ID)
    shutil.rmtree(target / metadata.FOLDER)
    assert restored(archive.to, target).is_other_topic
    assert len(held(target)) == 60


def test_notes_describe_the_later_actions_of_a_broker(tmp_path: Path) -> None:
    archive = written(tmp_path)
    policy = {"cleanup.policy": "delete", "retention.ms": "1000"}
    target = log_root(tmp_path / "target", partitions=2, replicas=(1, 2), settings=policy)
    report = lastwrite.restore(str(archive.to), to=str(target))
    assert isinstance(report, LogsRestored)
    said = "\n".join(report.notes)
    assert "t has 2 partitions in the cluster, and 1 in the archive" in said
    assert "t has several replicas" in said
    assert "retention.ms is 1000, and some segments are older" in said


def test_report_names_the_command_that_restores_the_groups(tmp_path: Path) -> None:
    archive, target = written(tmp_path), log_root(tmp_path / "target")
    report = lastwrite.restore(str(archive.to), to=str(target))
    assert isinstance(report, LogsRestored)
    assert report.groups_command is None
    folder = archived.address_in(str(archive.to), TopicPartition("t", 0))
    seen = read_versioned_manifest(folder).manifest
    after = structs.replace(archived.contents_of(seen, folder), groups=(("a", 3, -1, "x"),))
    Path(folder, MANIFEST).write_bytes(encode(successor(seen, after)))
    target = log_root(tmp_path / "again")
    metadata.write_records(target, f"{9:020d}.log", 9, metadata.registration(1, "h1", 9092))
    report = lastwrite.restore(str(archive.to), "t", to=str(target), until=7)
    assert isinstance(report, LogsRestored)
    assert report.groups_command == (
        f"lastwrite restore {archive.to} --to kafka://h1:9092 --groups --topic t --until 7"
    )


def test_until_option_restores_nothing_later(tmp_path: Path) -> None:
    root, archive = tmp_path / "log", Archive(tmp_path / "archive")
    append_times = [START_MS + 1000 * n for n in range(40)]
    write_times(root, append_times)
    brought(root, archive.to, include_active=True)
    for number, (until, end) in enumerate(
        [
            (datetime.fromtimestamp((START_MS + 7000) / 1000, UTC), 7),
            (datetime.fromtimestamp((START_MS + 7001) / 1000, UTC), 8),
            (datetime.fromtimestamp(0, UTC), 0),
            (datetime.fromtimestamp(2**31, UTC), 40),
            (13, 13),
            (1000, 40),
        ]
    ):
        target = log_root(tmp_path / f"target-{number}")
        assert restored(archive.to, target, until=until).end_offset == end
        assert [offset for offset, _ in held(target)] == list(range(end))


def write_times(root: Path, times: Sequence[int]) -> None:
    """Write batches of three records in segments of six batches."""
    all_records = [Record(offset, ms, b"k", b"v") for offset, ms in enumerate(times)]
    made = [encode_batch(all_records[at : at + 3]) for at in range(0, len(times), 3)]
    for at in range(0, len(made), 6):
        write_segment(root / NAME, 3 * at, made[at : at + 6], mtime_ms=times[0])


def test_topic_is_restored_under_another_name(tmp_path: Path) -> None:
    archive, target = written(tmp_path), log_root(tmp_path / "target", "again", OTHER_ID)
    found = restored(archive.to, target, name="again")
    assert (found.topic, found.folder) == ("again", str(target / "again-0"))
    assert len(batches_of(read_segments(target / "again-0"))) == 60


def test_open_transaction_is_refused_or_dropped(tmp_path: Path) -> None:
    root, archive = tmp_path / "log", Archive(tmp_path / "archive")
    record = Record(0, START_MS, b"k", b"v")
    begun = encode_batch(
        [replace(record, offset=1)],
        transactional=True,
        producer_id=7,
        producer_epoch=0,
        base_sequence=0,
    )
    last = encode_batch([replace(record, offset=2)])
    write_segment(root / NAME, 0, [encode_batch([record]), begun, last], mtime_ms=START_MS)
    set_topic_id(root / NAME)
    brought(root, archive.to, include_active=True)
    for topic_id in (metadata.TOPIC_ID, OTHER_ID):
        target = log_root(tmp_path / f"target-{topic_id[0]}", topic_id=topic_id)
        before = contents(target)
        found = restore(archive.to, target)
        assert found.reason is not None
        assert "a transaction of producer 7 is open since offset 1" in found.reason
        assert contents(target) == before
        restored(archive.to, target, drop_open=True)
        assert [offset for offset, _ in held(target)] == [0, 2]


# ---------------------------------------------------------------------- crashes and damage


def test_restore_killed_at_any_point_can_be_repeated(tmp_path: Path) -> None:
    root, archive = tmp_path / "log", Archive(tmp_path / "archive")
    write_log(root, {0: range(4)}, {0: 0})
    brought(root, archive.to, include_active=True)
    target, whole = tmp_path / "target", log_root(tmp_path / "whole")
    restored(archive.to, whole)

    def begin() -> None:
        shutil.rmtree(target, ignore_errors=True)
        log_root(target)

    begin()
    empty = contents(target / NAME)
    seen = set()
    for point in all_killed(lambda: void(restored(archive.to, target)), begin):
        there = contents(target / NAME)
        assert there in (empty, contents(whole / NAME)), point
        seen.add(there == empty)
        beside = {path.name for path in target.glob(f"{NAME}.*")}
        assert all(name.endswith("-delete") for name in beside), "a broker removes it"
        restored(archive.to, target)
        assert contents(target) == contents(whole)
    assert seen == {True, False}


def void(_: object) -> None:
    pass


def test_damaged_archive_leaves_the_target_unchanged(tmp_path: Path) -> None:
    archive, target = written(tmp_path), log_root(tmp_path / "target")
    before = contents(target)
    _, stem = list(archive.segments())[1]
    whole = stem.with_suffix(".log").read_bytes()
    for spoilt, is_damaged in ((whole[:-3] + b"\0\0\0", True), (whole[:-3], False), (None, False)):
        if spoilt is None:
            stem.with_suffix(".log").unlink()
        else:
            stem.with_suffix(".log").write_bytes(spoilt)
        found = restore(archive.to, target)
        assert found.reason is not None and " — " in found.reason
        assert found.is_damaged or not is_damaged
        assert contents(target) == before


def test_locked_partition_is_not_changed(tmp_path: Path) -> None:
    archive, target = written(tmp_path), log_root(tmp_path / "target")
    with (
        lock.hold(str(target), [TopicPartition("t", 0)]),
        pytest.raises(LogHeld, match="another run in this process"),
    ):
        restore(archive.to, target)


def test_wrong_addresses_are_named(tmp_path: Path) -> None:
    archive, target = written(tmp_path), log_root(tmp_path / "target")
    for path, to, kind, words in (
        (tmp_path / "log", target, NotALog, "lastwrite fetch DIR --to ARCHIVE"),
        (archive.to, tmp_path, NotALog, "kafka-storage.sh format"),
        (archive.to, "s3://b/p", InvalidConfig, "give one of the broker's log.dirs"),
        (archive.to, None, InvalidConfig, "give --to LOGROOT"),
    ):
        with pytest.raises(LogError) as refused:
            lastwrite.restore(str(path), to=None if to is None else str(to))
        assert isinstance(refused.value, kind) and words in (refused.value.remedy or "")


def test_copy_into_a_log_root_names_restore(tmp_path: Path) -> None:
    archive, target = written(tmp_path), log_root(tmp_path / "target")
    before = contents(target)
    with pytest.raises(InvalidConfig) as refused:
        compact(archive.to, {}, START_MS, to=str(target))
    assert f"lastwrite restore {archive.to} --to {target}" in (refused.value.remedy or "")
    assert contents(target) == before


def test_restore_command_prints_a_table_and_json(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    archive, target = written(tmp_path), log_root(tmp_path / "target", topic_id=OTHER_ID)
    assert cli.run(["restore", str(archive.to), "--to", str(target), "--topic", "t"]) == 0
    said = capfd.readouterr()
    assert [line.split() for line in said.out.splitlines()][-1][:4] == ["t-0", "0", "60", "3"]
    assert said.out.rstrip().endswith("restored")
    assert "t has another topic id in this cluster" in said.err
    assert cli.run(["restore", str(archive.to), "--to", str(target), "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["partitions"][0]["written"] is False
    arguments = ["restore", str(archive.to), "--to", str(target), "--until", "soon"]
    assert cli.run(arguments) == 2
    assert "is neither an offset nor a time" in capfd.readouterr().err
