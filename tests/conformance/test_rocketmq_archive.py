"""Tests of RocketMQ compaction logs in an archive: ``fetch``, and rounds as on a store."""

from __future__ import annotations

import json
import random
import shutil
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

import lastwrite
from lastwrite import cli
from lastwrite.cleaner.events import Event, RoundEnded
from lastwrite.errors import LogHeld
from lastwrite.model.log import TopicPartition
from lastwrite.reports.fetching import FetchedLog
from lastwrite.rocketmq.format.record import decode_message
from lastwrite.rocketmq.format.units import BATCH_UNIT
from lastwrite.rocketmq.network.client import RocketmqClient
from lastwrite.rocketmq.store.archived_file import ArchivedFile
from lastwrite.rocketmq.store.archiving import QueueRounds
from lastwrite.spark.inline import INLINE
from tests.support.objects import BUCKET, S3
from tests.support.rocketmq.broker import COMPACTED, Broker, Unavailable, rocketmq_home
from tests.support.rocketmq.model import (
    START_MS,
    ModelMessage,
    ModelQueue,
    compact_like_broker,
    message,
    random_message,
    write_store,
)
from tests.support.rocketmq.model import compact as compact_model
from tests.support.rocketmq.scenario import Topic, wait_until_dispatched
from tests.support.rocketmq.stores import StoreWriter

CORPUS = Path(__file__).parent.parent / "corpus" / "rocketmq"
REAL = [CORPUS / "5.5.0", CORPUS / "5.5.0-compacted"]
NOW_MS = 1_900_000_000_000
RETENTION_MS = 1000
UNCLEAN = {"unclean": "true"}

Rows = list[dict[str, Any]]


# ---------------------------------------------------------------------- comparison


@dataclass(frozen=True)
class Archive:
    """One queue of an archive in a folder, read without the package's store."""

    to: Path
    topic: str
    queue: int

    @property
    def folder(self) -> Path:
        return self.to / "rocketmq" / self.topic / str(self.queue)

    def manifest(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "manifest.json").read_bytes())
        return found

    def log(self) -> dict[str, Any]:
        found: dict[str, Any] = self.manifest()["log"]
        return found

    def records(self) -> dict[int, bytes]:
        """Each record's bytes by queue offset, with the address set to 0."""
        found: dict[int, bytes] = {}
        named = {each["key"]: each["bytes"] for each in self.manifest()["objects"]}
        end = 0
        for file in self.log()["files"]:
            stem = self.folder / file["folder"] / f"{file['address']:020d}"
            log, index = stem.read_bytes(), Path(f"{stem}.index").read_bytes()
            for path, data in ((stem, log), (Path(f"{stem}.index"), index)):
                assert named.pop(str(path.relative_to(self.folder))) == len(data)
            assert file["address"] >= end and not file["address"] % self.log()["file_bytes"]
            at, end = 0, file["address"] + len(log)
            for unit in range(0, len(index), BATCH_UNIT.size):
                place, size, _, stored_ms, base, count, *_ = BATCH_UNIT.unpack_from(index, unit)
                assert (place, count) == (file["address"] + at, 1)
                record = decode_message(log, at, len(log))
                assert (record.size, record.physical_offset) == (size, place)
                assert (record.queue_offset, record.store_time_ms) == (base, stored_ms)
                assert base > max(found, default=-1)
                found[base] = without_address(log[at : at + size])
                at += size
            assert at == len(log)
            assert file["base_offset"] <= base < file["end_offset"] <= self.log()["end_offset"]
        assert not named
        return found


def without_address(record: bytes) -> bytes:
    return record[:28] + bytes(8) + record[36:]


def fetch(source: Path, to: Path | str, **options: Any) -> list[FetchedLog]:
    report = lastwrite.fetch([str(source)], str(to), **options)
    worst = [each.reason and (3 if each.is_damaged else 1) or 0 for each in report.partitions]
    assert report.exit_status == max(worst)
    return [each for each in report.partitions if isinstance(each, FetchedLog)]


def brought(source: Path, to: Path | str, **options: Any) -> FetchedLog:
    (found,) = fetch(source, to, **options)
    assert found.reason is None, found.reason
    return found


def compact(path: Path | str, now_ms: int = NOW_MS, **arguments: Any) -> Any:
    config = {
        "delete.retention.ms": str(RETENTION_MS),
        "min.cleanable.dirty.ratio": "0",
        **arguments.pop("config", {}),
    }
    report = lastwrite.compact(str(path), config=config, now_ms=now_ms, spark=INLINE, **arguments)
    assert report.exit_status == 0, [str(each.reason) for each in report.partitions]
    return report


def rows(path: Path | str, **options: Any) -> Rows:
    """The rows of ``dump`` without file names and positions."""
    where = ("file", "position", "physical_offset", "message_id")
    return [
        {name: value for name, value in row.items() if name not in where}
        for row in lastwrite.dump(str(path), **options)
    ]


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.broker)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, dict[str, str]]:
    """The address of an archive, and the settings that access it."""
    if request.param == "folder":
        return str(tmp_path / "archive"), {}
    s3: S3 = request.getfixturevalue("s3")
    return f"s3://{BUCKET}/{uuid.uuid4().hex}", s3.config


# ---------------------------------------------------------------------- real brokers' bytes


@pytest.mark.parametrize("real", REAL, ids=lambda real: real.name)
def test_log_of_a_real_broker_is_fetched_and_compacted(
    tmp_path: Path, place: tuple[str, dict[str, str]], real: Path
) -> None:
    (to, config), store = place, tmp_path / "store"
    shutil.copytree(real, store)
    found = fetch(store, to, include_active=True, config=config)
    assert [(each.topic, each.partition, each.is_new) for each in found] == [
        ("ctopic", 0, True),
        ("ctopic", 1, True),
    ]
    told: dict[str, Any] = {"config": config}
    assert rows(to, **told) == rows(store, compacted=True)
    check_looks(store, to, config)
    copied, twin = to + "-copied", to + "-twin"
    compact(to, to=copied, config=config)
    if config:  # a store in a folder is copied to a store
        compact(store, to=twin, include_active=True, config=config)
    plan = lastwrite.plan(to, spark=INLINE, now_ms=NOW_MS, config=config)
    report = compact(to, config=config)
    assert [(each.bytes_after, each.records_after) for each in plan.partitions] == [
        (each.bytes_after, each.records_after) for each in report.partitions
    ]
    assert plan.requests == report.requests
    wanted = compact(store, include_active=True)
    assert [each.bytes_after for each in report.partitions] == [
        each.bytes_after for each in wanted.partitions
    ]
    assert plan.requests == report.requests and (report.requests is not None) == bool(config)
    for left in (to, copied, *([twin] if config else [])):
        assert rows(left, **told) == rows(store, compacted=True)
        check_looks(store, left, config)
    verified = lastwrite.verify(to, before=str(real), config=config, now_ms=NOW_MS, spark=INLINE)
    assert verified.exit_status == 0
    again = fetch(store, to, include_active=True, config=config)
    assert not any(each.segments or each.reason for each in again)
    assert not any(each.reason for each in lastwrite.sweep(to, config=config).partitions)
    assert rows(to, **told) == rows(store, compacted=True)


def check_looks(store: Path, to: str, config: dict[str, str]) -> None:
    """Check that every reading command returns the same for the archive and the store."""
    told: dict[str, Any] = {"config": config}
    assert lastwrite.latest(to, "ctopic", **told) == lastwrite.latest(str(store), "ctopic")
    ends = lastwrite.latest(to, **told, topic="ctopic").end_offsets
    assert ends == lastwrite.latest(str(store), "ctopic").end_offsets
    for queue in (0, 1):
        said = []
        for path, how in ((to, config), (str(store), {})):
            reading = lastwrite.read(path, "ctopic", queue=queue, config=how)
            said.append(([each["queue_offset"] for each in reading], reading.summary()))
        assert said[0] == said[1]
    found = lastwrite.inspect(to, **told)
    assert found.exit_status == 0 and not found.problems
    there = [each for each in lastwrite.inspect(str(store)).partitions if each.topic == "ctopic"]
    for ours, its in zip(found.partitions, there, strict=True):
        assert ours.compaction is not None and its.compaction is not None
        assert ours.compaction.contents == its.compaction.contents
        assert ours.compaction.keys == its.compaction.keys
    verified = lastwrite.verify(to, **told, spark=INLINE)
    assert verified.exit_status == 0
    assert [each.topic for each in lastwrite.settings(to, **told).topics] == ["ctopic"]
    all_rows = rows(to, **told)
    key = all_rows[0]["properties"]["KEYS"]
    of_key = [row for row in all_rows if row["properties"]["KEYS"] == key]
    assert rows(to, key=key.encode(), **told) == of_key
    explained = lastwrite.explain(to, key=key.encode(), **told)
    assert explained.exit_status == 0
    assert sum(len(each.records or ()) for each in explained.partitions) == len(of_key)
    assert len(rows(to, index=True, **told)) == len(all_rows)


# ---------------------------------------------------------------------- random queues


def compacted(
    messages: Sequence[ModelMessage], position: int, last: int, now_ms: int
) -> list[ModelMessage]:
    """The messages after a round over all of them. The message at offset ``last`` always stays."""
    latest = {each.key: each.offset for each in messages if each.offset > position}
    return [
        each
        for each in messages
        if each.offset == last
        or (
            each.offset >= latest.get(each.key, -1)
            and not (each.is_delete and each.store_ms <= now_ms - RETENTION_MS)
        )
    ]


@pytest.mark.parametrize("seed", range(40))
def test_archive_has_every_message_or_the_fetch_is_refused(tmp_path: Path, seed: int) -> None:
    """Appends messages, compacts the store (as a broker and with Lastwrite), fetches, and compacts
    the archive, in random order.
    """
    rng = random.Random(f"archive-{seed}")
    index_bytes = 46 * rng.randint(4, 9)
    queue = ModelQueue(index_bytes * 30, index_bytes)
    store, archive = tmp_path / "store", Archive(tmp_path / "archive", queue.topic, 0)
    kept: list[ModelMessage] = []  # the messages that the archive must have
    end, position, offset, now_ms = 0, -1, rng.randint(0, 3), START_MS
    for step in range(rng.randint(3, 7)):
        for _ in range(rng.randint(1, 25)):
            offset += rng.choice((1, 1, 1, 1, 1, 1, 2)) if seed % 2 else 1
            now_ms += 100
            queue.append(random_message(rng, offset, rng.choice((3, 9)), now_ms))
        if rng.random() < 0.2:
            compact_like_broker(queue)
        elif rng.random() < 0.2:
            compact_model(queue, now_ms, 500)
        write_store(store, [queue])
        active = rng.random() < 0.5 or not step
        upto = queue.end_offset if active else queue.pairs[-1].messages[0].offset
        offsets = {each.offset for each in queue.messages}
        holes = set(range(end, min(queue.position + 1, upto))) - offsets
        (found,) = fetch(store, archive.to, include_active=active)
        if holes and end:
            assert (
                found.reason is not None
                and "Deletes that the archive needs may be lost" in found.reason
            )
            shutil.rmtree(archive.to)
            kept, end, position = [], 0, -1
            (found,) = fetch(store, archive.to, include_active=active)
        assert found.reason is None, found.reason
        kept += [each for each in queue.messages if end <= each.offset < upto]
        end = max(end, upto)
        assert archive.records() == {each.offset: each.content for each in kept}
        assert archive.log()["end_offset"] == end
        if rng.random() < 0.6:
            report = compact(archive.to, now_ms)
            if any(each.offset > position for each in kept):
                kept = compacted(kept, position, end - 1, now_ms)
                position = end - 1
                assert report.partitions[0].status in ("cleaned", "unchanged")
            assert archive.records() == {each.offset: each.content for each in kept}
            sizes = [file["bytes"] for file in archive.log()["files"]]
            assert sum(sizes) == report.partitions[0].bytes_after
    assert lastwrite.verify(str(archive.to), spark=INLINE).exit_status == 0
    report = lastwrite.inspect(str(archive.to))
    assert report.exit_status == 0 and not report.partitions[0].problems


# ---------------------------------------------------------------------- one change of the store


def orders(count: int = 40, first_ms: int = START_MS, keys: int = 5) -> ModelQueue:
    queue = ModelQueue(6 * 46 * 30, 6 * 46, topic="orders")
    for n in range(count):
        body = b"" if n % 9 == 4 else b"value %d" % n
        queue.append(message(n, f"key {n % keys}", body, first_ms + n, topic="orders"))
    return queue


def made_anew(queue: ModelQueue) -> ModelQueue:
    return orders(50, START_MS + 1_000_000)


def made_anew_with_an_old_clock(queue: ModelQueue) -> ModelQueue:
    return orders(50, START_MS - 1_000_000, keys=3)


def ends_before(queue: ModelQueue) -> ModelQueue:
    return orders(12)


def begins_behind(queue: ModelQueue) -> ModelQueue:
    later = orders(60)
    later.pairs = [pair for pair in later.pairs if pair.messages[0].offset > 45]
    return later


def ran_a_broker(queue: ModelQueue) -> ModelQueue:
    later = orders(60)
    assert compact_like_broker(later)
    return later


@pytest.mark.parametrize(
    "change, words",
    [
        (made_anew, "created again: the message at queue offset 39 was stored at"),
        (made_anew_with_an_old_clock, "the archive has another message at queue offset 39"),
        (ends_before, "the log ends at queue offset 12, but the archive has offsets up to 40"),
        (begins_behind, "The messages in between are lost"),
        (ran_a_broker, "offset 40 is in neither the compaction log nor the commit log"),
    ],
)
def test_log_that_does_not_continue_the_archive_is_refused(
    tmp_path: Path, change: Callable[[ModelQueue], ModelQueue], words: str
) -> None:
    store, archive = tmp_path / "store", Archive(tmp_path / "archive", "orders", 0)
    queue = orders()
    write_store(store, [queue])
    assert brought(store, archive.to, include_active=True).is_new
    before = archive.manifest()
    shutil.rmtree(store)
    write_store(store, [change(queue)])
    (found,) = fetch(store, archive.to, include_active=True)
    assert found.reason is not None and words in found.reason
    assert "give another --to" in found.reason
    assert archive.manifest() == before
    assert not list((archive.folder / "rounds").glob("*"))
    assert brought(store, tmp_path / "other", include_active=True).is_new


@pytest.mark.parametrize("change", [begins_behind, ran_a_broker])
def test_accepted_gap_is_recorded(
    tmp_path: Path, change: Callable[[ModelQueue], ModelQueue]
) -> None:
    store, archive = tmp_path / "store", Archive(tmp_path / "archive", "orders", 0)
    write_store(store, [orders()])
    brought(store, archive.to, include_active=True)
    shutil.rmtree(store)
    later = change(orders())
    write_store(store, [later])
    (refused,) = fetch(store, archive.to, include_active=True)
    assert "--accept-gap" in (refused.reason or "")
    found = brought(store, archive.to, include_active=True, accepts_gap=True)
    assert found.gap is not None and "queue offsets 40 to 49 were lost" in found.gap
    assert archive.log()["gaps"] == [[40, 50]]
    there = {each.offset: each.content for pair in later.pairs for each in pair.messages}
    now = archive.records()
    assert {offset: now[offset] for offset in there if offset >= 40}.items() <= there.items()
    assert brought(store, archive.to, include_active=True).gap is None


def test_rounds_between_fetches_are_accepted_with_the_retention_setting(
    tmp_path: Path,
) -> None:
    store, archive = tmp_path / "store", Archive(tmp_path / "archive", "orders", 0)
    write_store(store, [orders()])
    brought(store, archive.to, include_active=True)
    write_store(store, [ran_a_broker(orders())])
    config = {"delete.retention.ms": "86400000"}
    assert brought(store, archive.to, include_active=True, config=config).segments


def test_uncompacted_replica_continues_the_archive(tmp_path: Path) -> None:
    """It still has the last message below the archive's end offset, unlike the first."""
    queues = [(orders(count), orders(count)) for count in range(20, 60)]
    one, other = next(
        pair for pair in queues if not pair[0].pairs[-2].messages[-1].body and pair[0].pairs[2:]
    )
    assert compact_like_broker(one)
    for name, queue in (("one", one), ("other", other)):
        write_store(tmp_path / name, [queue])
    to = tmp_path / "archive"
    end = brought(tmp_path / "one", to).end_offset
    assert end is not None and end - 1 not in Archive(to, "orders", 0).records()
    assert brought(tmp_path / "other", to, include_active=True).first_offset == end


def grown(root: Path, count: int) -> StoreWriter:
    writer = StoreWriter(root, log_bytes=1 << 16)
    for n in range(count):
        pairs = {"KEYS": f"key-{n % 4}", "TAGS": f"tag{n % 2}"} if n % 10 != 7 else {}
        writer.send("orders", b"" if n % 6 == 3 else b"value %d" % n, pairs)
    writer.write_compaction("orders")
    writer.write()
    return writer


@pytest.mark.parametrize("expired", [False, True])
def test_dropped_tombstones_are_fetched_from_the_commit_log(tmp_path: Path, expired: bool) -> None:
    store, archive = tmp_path / "store", Archive(tmp_path / "archive", "orders", 0)
    brought(grown(store, 30).root, archive.to, include_active=True)
    first = archive.records()
    shutil.rmtree(store)
    sent = grown(store, 90).sent
    compact(store, like_broker=True)
    left = {row["queue_offset"] for row in rows(store, compacted=True)}
    dropped = {m.queue_offset for m in sent if m.keys and not m.body and m.queue_offset not in left}
    assert any(offset >= 30 for offset in dropped)
    if expired:
        shutil.rmtree(store / "commitlog")
        (found,) = fetch(store, archive.to, include_active=True)
        assert (
            found.reason is not None
            and "Deletes that the archive needs may be lost" in found.reason
        )
        assert archive.records() == first
        return
    found = brought(store, archive.to, include_active=True)
    assert (found.first_offset, found.end_offset) == (30, 90)
    wanted = {*first, *(n for n in left | dropped if n >= 30)}
    assert set(archive.records()) == wanted
    by_offset = {m.queue_offset: m for m in sent}
    for offset, record in archive.records().items():
        told, was = decode_message(record, 0, len(record)), by_offset[offset]
        assert (told.body, told.properties_bytes) == (was.body, was.properties_bytes)
    assert lastwrite.verify(str(archive.to), spark=INLINE).exit_status == 0
    compact(archive.to)
    assert lastwrite.latest(str(archive.to), "orders") == lastwrite.latest(str(store), "orders")


def test_log_that_begins_with_keyless_messages_continues_the_archive(tmp_path: Path) -> None:
    """Messages without a key are never in the compaction log, so that none is lost."""
    store, to = tmp_path / "store", tmp_path / "archive"
    writer = StoreWriter(store, log_bytes=1 << 16)
    writer.send("orders", b"one", {"KEYS": "key"})
    writer.write_compaction("orders")
    writer.write()
    brought(store, to, include_active=True)
    for _ in range(5):
        writer.send("orders", b"without")
    writer.send("orders", b"two", {"KEYS": "key"})
    shutil.rmtree(store)
    writer.sent, sent = writer.sent[1:], writer.sent
    writer.write_compaction("orders")
    writer.sent = sent
    writer.write()
    assert brought(store, to, include_active=True).end_offset == 7
    assert dict(lastwrite.latest(str(to), "orders")) == {"key": b"two"}


# ---------------------------------------------------------------------- in an archive


def test_small_files_are_merged(tmp_path: Path) -> None:
    store, archive = tmp_path / "store", Archive(tmp_path / "archive", "orders", 0)
    for count in range(10, 50, 4):
        write_store(store, [orders(count)])
        brought(store, archive.to, include_active=True)
    assert len(archive.log()["files"]) > 10
    whole = archive.records()
    compact(archive.to)
    assert len(archive.log()["files"]) < 4
    assert set(archive.records()) < set(whole)
    write_store(store, [orders(60)])
    assert brought(store, archive.to, include_active=True).segments
    compact(archive.to)
    archive.records()


def test_second_of_two_rounds_starts_again(tmp_path: Path) -> None:
    store, archive = tmp_path / "store", Archive(tmp_path / "archive", "orders", 0)
    write_store(store, [orders()])
    brought(store, archive.to, include_active=True)
    swap, won = QueueRounds.swap, []

    def late(self: QueueRounds, wave: Any) -> Any:
        if not won:
            won.append(True)
            compact(archive.to)
        return swap(self, wave)

    with patch.object(QueueRounds, "swap", late):
        config = {"min.cleanable.dirty.ratio": "0", "delete.retention.ms": str(RETENTION_MS)}
        report = lastwrite.compact(str(archive.to), config=config, now_ms=NOW_MS, spark=INLINE)
    assert report.exit_status == 0 and report.partitions[0].attempts == 2
    archive.records()
    named = {each["key"] for key in ("objects", "unused") for each in archive.manifest()[key]}
    there = {str(f.relative_to(archive.folder)) for f in archive.folder.glob("data/*/*")}
    assert there == named and not list((archive.folder / "rounds").glob("*"))


@pytest.mark.parametrize("status", ["changed", "gone", "cut"])
def test_damaged_object_is_named_and_nothing_changes(tmp_path: Path, status: str) -> None:
    store, archive = tmp_path / "store", Archive(tmp_path / "archive", "orders", 0)
    write_store(store, [orders()])
    brought(store, archive.to, include_active=True)
    file = archive.log()["files"][1]
    path = archive.folder / file["folder"] / f"{file['address']:020d}"
    data = bytearray(path.read_bytes())
    data[90] ^= 1
    if status == "gone":
        path.unlink()
    else:
        path.write_bytes(data if status == "changed" else data[:-1])
    before = archive.manifest()
    report = lastwrite.compact(
        str(archive.to), config={"min.cleanable.dirty.ratio": "0"}, now_ms=NOW_MS, spark=INLINE
    )
    assert report.exit_status == (1 if status == "cut" else 3)
    assert str(path) in str(report.partitions[0].reason)
    assert archive.manifest() == before
    assert lastwrite.verify(str(archive.to), spark=INLINE).exit_status != 0


def test_store_may_have_the_name_of_the_system(tmp_path: Path) -> None:
    store, to = tmp_path / "rocketmq", tmp_path / "archives" / "rocketmq"
    write_store(store, [orders()])
    brought(store, to, include_active=True)
    assert rows(to) == rows(store, compacted=True)
    assert rows(to / "rocketmq") == rows(store, compacted=True)
    compact(store, include_active=True)
    compact(to)
    assert rows(to / "rocketmq" / "orders" / "0") == rows(store, compacted=True)


def test_topic_name_that_is_no_object_key_is_escaped(tmp_path: Path) -> None:
    store, to = tmp_path / "store", tmp_path / "archive"
    queue = replace(orders(5), topic="%RETRY%a")
    queue.pairs = []
    for n in range(5):
        queue.append(message(n, "key", b"value", START_MS + n, topic="%RETRY%a"))
    write_store(store, [queue])
    brought(store, to, include_active=True)
    compact(to)
    (row,) = rows(to)
    assert (row["topic"], row["queue_offset"]) == ("%RETRY%a", 4)
    assert [each.name for each in lastwrite.inspect(str(to)).partitions] == [
        TopicPartition("%RETRY%a", 0)
    ]


def test_store_of_a_killed_broker_is_refused(tmp_path: Path) -> None:
    store, to = tmp_path / "store", tmp_path / "archive"
    write_store(store, [orders()])
    (store / "abort").touch()
    with pytest.raises(LogHeld, match="was killed"):
        lastwrite.fetch([str(store)], str(to))
    assert not to.exists()
    assert brought(store, to, config=UNCLEAN).segments


def test_fetch_without_the_active_file_copies_the_closed_files(tmp_path: Path) -> None:
    store, archive = tmp_path / "store", Archive(tmp_path / "archive", "orders", 0)
    queue = orders()
    write_store(store, [queue])
    found = brought(store, archive.to)
    assert found.end_offset == queue.pairs[-1].messages[0].offset
    assert list(archive.records()) == list(range(found.end_offset))
    log = archive.log()
    assert (log["topic"], log["source"]) == (None, str(store))
    # the store time of the next message
    assert log["last_stored_ms"] == START_MS + found.end_offset


def test_daemon_cleans_due_queues(tmp_path: Path, place: tuple[str, dict[str, str]]) -> None:
    (to, config), store = place, tmp_path / "store"
    write_store(store, [orders()])
    brought(store, to, include_active=True, config=config)

    def clean() -> list[str]:
        told: list[Event] = []
        assert lastwrite.clean([to], config, once=True, spark=INLINE, tell=told.append) == 0
        return [str(each.report.name) for each in told if isinstance(each, RoundEnded)]

    assert clean() == ["orders-0"]
    left = rows(to, config=config)
    assert len(left) < 40 and clean() == []
    write_store(store, [orders(140)])
    brought(store, to, include_active=True, config=config)
    assert clean() == ["orders-0"]
    compact(store, time.time_ns() // 1_000_000, include_active=True)
    table = lastwrite.latest(to, "orders", config=config)
    assert table == lastwrite.latest(str(store), "orders")


def test_failed_fetch_leaves_no_files(tmp_path: Path) -> None:
    store, archive = tmp_path / "store", Archive(tmp_path / "archive", "orders", 0)
    write_store(store, [orders()])
    finish, done = ArchivedFile.finish, []

    def broken(self: ArchivedFile, *arguments: Any) -> None:
        done.append(self)
        if len(done) == 3:
            raise KeyboardInterrupt
        finish(self, *arguments)

    with patch.object(ArchivedFile, "finish", broken), pytest.raises(KeyboardInterrupt):
        lastwrite.fetch([str(store)], str(archive.to))
    assert not [path for path in archive.to.rglob("*") if path.is_file()]
    assert brought(store, archive.to, include_active=True).is_new
    assert len(archive.records()) == 40


def test_fetch_and_plan_commands_print_their_results(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    store, to = tmp_path / "store", tmp_path / "archive"
    write_store(store, [orders()])
    fetching = ["fetch", str(store), "--to", str(to), "--include-active"]
    assert cli.run([*fetching, "--json"]) == 0
    (found,) = json.loads(capfd.readouterr().out)["partitions"]
    assert (found["topic"], found["first_offset"], found["end_offset"]) == ("orders", 0, 40)
    assert cli.run(fetching) == 0
    assert "nothing new" in capfd.readouterr().out
    assert cli.run(["inspect", str(to)]) == 0
    assert "orders" in capfd.readouterr().out
    assert cli.run(["plan", str(to), "--like-broker"]) == 1
    assert "brokers do not compact archives" in capfd.readouterr().out
    assert cli.run(["fetch", str(to), "--to", str(tmp_path / "other")]) == 2


@pytest.mark.broker
@pytest.mark.long
def test_archive_follows_a_broker_that_compacts_between_fetches(tmp_path: Path) -> None:
    store, to, rng = tmp_path / "store", tmp_path / "archive", random.Random(1)
    sizes = {"compactionMappedFileSize": "60000", "compactionCqMappedFileSize": "10000"}
    settings = {**sizes, "compactionScheduleInternal": "2000"}
    position = store / "compaction" / "position-checkpoint"
    try:
        broker = Broker(rocketmq_home(), store, settings).start()
    except Unavailable as error:
        pytest.skip(str(error))
    try:
        topic = Topic("prices", 2)
        with RocketmqClient(broker.name_server) as client:
            client.create_topic(topic.name, topic.queues, COMPACTED)
            for _ in range(3):
                before = position.read_bytes() if position.exists() else b""
                topic.produce(client, 700, rng)
                wait_until_dispatched(topic, client)
                while not position.exists() or position.read_bytes() == before:
                    time.sleep(0.1)
                found = fetch(store, to, include_active=True)
                assert [each.reason for each in found] == [None, None]
                assert all(each.segments for each in found)
        broker.stop()
    finally:
        broker.kill()
    assert not any(each.segments or each.reason for each in fetch(store, to, include_active=True))
    compact(to)
    table = lastwrite.latest(str(to), topic.name)
    assert table == lastwrite.latest(str(store), topic.name) and len(table) > 10
