"""Tests of ``restore`` into a running cluster.

Under all failures, consumers get the archive's records once and in order, and groups continue at
their offsets.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, ResourceType

import lastwrite
from lastwrite.errors import InvalidConfig, RemoteFailed
from lastwrite.kafka.format.batch import decode_batch, encode_batch
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.kafka.jobs import produce_restore
from lastwrite.kafka.network.connection import KafkaConnection
from lastwrite.kafka.network.producer import TransactionalProducer as OurProducer
from lastwrite.kafka.restored import LogGiven, LogsGiven
from lastwrite.spark.inline import INLINE
from tests.conformance.test_kafka_archive import Archive
from tests.support.breaking import BreakingProxy
from tests.support.kafka.broker import Broker, Unavailable, kafka_home
from tests.support.kafka.clients import CODECS, Seen, Sent, consume, create_topic, produce
from tests.support.kafka.groups import committed
from tests.support.kafka.logs import write_segment
from tests.support.objects import BUCKET, S3, s3_server
from tests.support.sample import LONG
from tests.system.test_internal_topics import resumes_at
from tests.system.test_kafka_live import SPOILER, SPOILT, Spoiler
from tests.system.test_restore import java_resumes

pytest.importorskip("kio")
pytestmark = [pytest.mark.broker]

NOW_MS = int(time.time() * 1000)
SMALL = {"internal.segment.bytes": "4000", "segment.index.bytes": "1024"}
TABLE = {**SMALL, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.3"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    try:
        made = Broker(
            kafka_home(),
            tmp_path_factory.mktemp("give") / "data",
            {"message.max.bytes": "50000000"},
            listeners={"SPOILT": ("PLAINTEXT", SPOILT, SPOILER)},
        )
    except Unavailable as reason:
        pytest.skip(str(reason))
    with made:
        yield made


@pytest.fixture
def restarting(tmp_path: Path) -> Iterator[Broker]:
    """A broker that a test may kill and restart."""
    try:
        made = Broker(kafka_home(), tmp_path / "data")
    except Unavailable as reason:
        pytest.skip(str(reason))
    try:
        yield made.start()
    finally:
        made.kill()


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The restore notes its progress every two batches."""
    monkeypatch.setattr(produce_restore, "_WINDOW_BATCHES", 2)


class Plain(NamedTuple):
    """The part of a record that a restore preserves."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: tuple[tuple[str, bytes | None], ...]


def plain(seen: Sequence[Seen]) -> list[Plain]:
    return [Plain(each.key, each.value, each.timestamp_ms, each.headers) for each in seen]


def archived(archive: Archive) -> list[tuple[int, Plain]]:
    """The live records of an archive's log with their offsets, decoded from its batches."""
    aborted = archive.log()["aborted"]
    found = []
    for data in archive.batches():
        batch = decode_batch(data, 0)
        header = batch.header
        is_aborted = batch.attributes.transactional and any(
            producer == header.producer_id and first <= header.base_offset <= last
            for producer, first, last, _ in aborted
        )
        if batch.attributes.control or is_aborted:
            continue
        for each in batch.records:
            headers = tuple((name.decode(), value) for name, value in each.headers)
            found.append((each.offset, Plain(each.key, each.value, each.timestamp_ms, headers)))
    return found


def write_random(broker: Broker, topic: str, seed: int, batches: int, partition: int = 0) -> None:
    """Write random records in all codecs, and transactions of which some are aborted.

    Keys and values may be None, and timestamps start in 1970.
    """
    rng = random.Random(seed)
    is_table = topic.startswith("table")
    for _ in range(batches):
        records = [
            Sent(
                None if not is_table and rng.random() < 0.2 else b"k%d" % rng.randrange(30),
                None if rng.random() < 0.1 else rng.randbytes(rng.randrange(200)),
                rng.choice((rng.randrange(1, 1 << 35), NOW_MS - rng.randrange(10_000))),
                (("h", rng.choice((None, rng.randbytes(3)))), ("h", b"")) * (rng.random() < 0.2),
            )
            for _ in range(rng.randrange(1, 30))
        ]
        codec = rng.choice(CODECS)
        produce(broker, topic, records, codec=codec, batch_records=7, partition=partition)
    client = Producer(
        {
            "bootstrap.servers": broker.address,
            "transactional.id": f"{topic}-{partition}-{seed}",
            "linger.ms": 0,
            "log_level": 0,
        }
    )
    client.init_transactions(60)
    for n in range(5):
        client.begin_transaction()
        for _ in range(rng.randrange(1, 7)):
            client.produce(topic, rng.randbytes(20), b"t%d" % rng.randrange(9), partition)
            client.flush()
        client.abort_transaction(60) if n % 3 == 1 else client.commit_transaction(60)


def commit(broker: Broker, topic: str, groups: dict[str, int], partition: int = 0) -> None:
    for group, offset in groups.items():
        consumer = Consumer({"bootstrap.servers": broker.address, "group.id": group})
        consumer.commit(offsets=[TopicPartition(topic, partition, offset)], asynchronous=False)
        consumer.close()


def fetched(broker: Broker, to: Path | str, topic: str, **how: Any) -> None:
    report = lastwrite.fetch([f"kafka://{broker.address}"], str(to), topic=topic, **how)
    assert report.exit_status == 0


def given(broker: Broker | str, archive: Path | str, name: str | None, **how: Any) -> LogsGiven:
    address = broker if isinstance(broker, str) else broker.address
    found = lastwrite.restore(str(archive), to=f"kafka://{address}", name=name, **how)
    assert isinstance(found, LogsGiven)
    return found


def one(broker: Broker | str, archive: Path | str, name: str | None, **how: Any) -> LogGiven:
    (found,) = given(broker, archive, name, **how).partitions
    return found


def check_same(
    broker: Broker, archive: Archive, topic: str, partition: int = 0
) -> list[tuple[int, int]]:
    """Consumers get the archive's records. Returns each record's offset in the archive and in the
    topic.
    """
    expected = archived(archive)
    for isolation in ("read_uncommitted", "read_committed"):
        seen = consume(broker, topic, partition=partition, isolation=isolation)
        assert plain(seen) == [each for _, each in expected]
        assert all(each.is_create_time for each in seen)
    return [(offset, each.offset) for (offset, _), each in zip(expected, seen, strict=True)]


def settings_of(broker: Broker, topic: str) -> dict[str, str]:
    """The settings of the topic itself, without inherited ones."""
    admin = AdminClient({"bootstrap.servers": broker.address})
    resource = ConfigResource(ResourceType.TOPIC, topic)
    (done,) = admin.describe_configs([resource]).values()
    return {name: each.value for name, each in done.result(30).items() if each.source == 1}


def test_compacted_topic_is_restored_with_its_groups(broker: Broker, tmp_path: Path) -> None:
    create_topic(broker, "table", TABLE, 2)
    for number in range(2):
        write_random(broker, "table", number, 12, number)
    archive = Archive(tmp_path / "archive", "table-0")
    end = 2 + max(each.offset for each in consume(broker, "table"))
    groups = {f"g{offset}": offset for offset in range(0, end + 1, 29)} | {"late": end}
    commit(broker, "table", groups)
    fetched(broker, archive.to, "table")
    lastwrite.compact(str(archive.to), spark=INLINE, config={"min.cleanable.dirty.ratio": 0})

    report = given(broker, archive.to, "table-again")

    assert report.exit_status == 0, report
    assert not any("retention" in note for note in report.notes)
    places = check_same(broker, archive, "table-again")
    check_same(broker, Archive(archive.to, "table-1"), "table-again", 1)
    found = report.partitions[0]
    assert found.end_offset == places[-1][1] + 1 and found.records == len(places)
    for group, offset in groups.items():
        wanted = next((there for before, there in places if before >= offset), found.end_offset)
        assert committed(broker, group, ["table-again"]) == {"table-again": wanted}, group
    assert settings_of(broker, "table-again") == TABLE

    again = given(broker, archive.to, "table-again")  # a second restore changes nothing
    assert [each.is_written for each in again.partitions] == [False, False]
    assert not any(group.is_set for group in again.partitions[0].groups)
    assert check_same(broker, archive, "table-again") == places


def test_clients_of_both_kinds_continue(broker: Broker, tmp_path: Path) -> None:
    create_topic(broker, "clients", SMALL)
    write_random(broker, "clients", 5, 4)
    end = max(each.offset for each in consume(broker, "clients"))
    groups = {"java-classic": end // 3, "java-consumer": end // 2, "native-classic": end - 2}
    commit(broker, "clients", groups)
    archive = Archive(tmp_path, "clients-0")
    fetched(broker, tmp_path, "clients")
    assert given(broker, tmp_path, "clients-again").exit_status == 0
    places = check_same(broker, archive, "clients-again")
    wanted = {
        group: next(there for before, there in places if before >= offset)
        for group, offset in groups.items()
    }
    assert resumes_at(broker, "native-classic", "classic", "clients-again") == wanted.pop(
        "native-classic"
    )
    for group, offset in wanted.items():
        protocol = group.removeprefix("java-")
        assert java_resumes(broker, protocol, "clients-again", group) == {group: offset}


def test_groups_of_a_log_directory_continue(restarting: Broker, tmp_path: Path) -> None:
    """The group offsets are read from the directory's own ``__consumer_offsets``."""
    create_topic(restarting, "stopped", SMALL)
    write_random(restarting, "stopped", 6, 4)
    end = max(each.offset for each in consume(restarting, "stopped"))
    groups = {"begin": 0, "middle": end // 2, "end": end}
    commit(restarting, "stopped", groups)
    restarting.stop()
    archive = Archive(tmp_path / "archive", "stopped-0")
    source = str(restarting.data)
    report = lastwrite.fetch([source], str(archive.to), topic="stopped", include_active=True)
    assert report.exit_status == 0
    restarting.start()
    assert given(restarting, archive.to, "stopped-again").exit_status == 0
    places = check_same(restarting, archive, "stopped-again")
    for group, offset in groups.items():
        wanted = next(there for before, there in places if before >= offset)
        assert committed(restarting, group, ["stopped-again"]) == {"stopped-again": wanted}


def test_old_records_survive_in_a_topic_with_retention(broker: Broker, tmp_path: Path) -> None:
    policy = {"retention.ms": "604800000", "message.timestamp.type": "CreateTime"}
    create_topic(broker, "aged", policy)
    produce(broker, "aged", [Sent(None, b"%d" % n, 1 + n) for n in range(20)])
    fetched(broker, tmp_path, "aged")
    produce(broker, "aged", [Sent(None, b"new", NOW_MS)])

    report = given(broker, tmp_path, "aged-again")

    assert [each.timestamp_ms for each in consume(broker, "aged-again")] == list(range(1, 21))
    assert settings_of(broker, "aged-again") == {**policy, "retention.ms": "-1"}
    (note,) = report.notes
    assert "restored records are older. retention.ms stays -1" in note
    assert note.endswith("--entity-name aged-again --add-config retention.ms=604800000")


def test_later_records_of_the_archive_are_added_by_the_next_restore(
    broker: Broker, tmp_path: Path
) -> None:
    create_topic(broker, "grows", SMALL)
    archive, known = Archive(tmp_path, "grows-0"), []
    for seed in range(3):
        write_random(broker, "grows", seed, 3)
        fetched(broker, tmp_path, "grows")
        found = one(broker, tmp_path, "grows-again")
        assert found.reason is None and found.is_written
        places = check_same(broker, archive, "grows-again")
        assert places[: len(known)] == known
        known = places


def test_until_option_accepts_an_offset_and_a_time(broker: Broker, tmp_path: Path) -> None:
    create_topic(broker, "until", {})
    produce(broker, "until", [Sent(b"k", b"%d" % n, NOW_MS + n) for n in range(20)])
    commit(broker, "until", {"before": 5, "behind": 15})
    fetched(broker, tmp_path, "until")
    one(broker, tmp_path, "until-8", until=8)
    assert [each.value for each in consume(broker, "until-8")] == [b"%d" % n for n in range(8)]
    assert committed(broker, "before", ["until-8"]) == {"until-8": 6}
    assert committed(broker, "behind", ["until-8"]) == {"until-8": 9}
    assert one(broker, tmp_path, "until-8").records == 12  # the remaining records


def test_batches_that_a_topic_would_reject_are_restored(broker: Broker, tmp_path: Path) -> None:
    """Too large, too far in the future, compressed with another codec, or with append time."""
    create_topic(broker, "odd", {"max.message.bytes": "50000000"})
    far_ms = NOW_MS + 10 * 86_400_000
    value = random.Random(1).randbytes(9_000_000)
    settings = {"message.max.bytes": "60000000"}
    produce(broker, "odd", [Sent(b"k", value, 5)], settings=settings)
    fetched(broker, tmp_path, "odd")
    own = {
        "max.message.bytes": "1000",
        "message.timestamp.before.max.ms": "1000",
        "compression.type": "gzip",
        "message.timestamp.type": "LogAppendTime",
    }
    create_topic(broker, "odd-again", own)
    assert one(broker, tmp_path, "odd-again").reason is None
    check_same(broker, Archive(tmp_path, "odd-0"), "odd-again")
    assert settings_of(broker, "odd-again") == {
        **own,
        "retention.ms": "-1",
    }  # its records are of 1970
    produce(broker, "odd-again", [Sent(b"k", b"v", far_ms)])
    assert not consume(broker, "odd-again")[-1].is_create_time


def test_wrong_targets_and_arguments_are_refused(broker: Broker, tmp_path: Path) -> None:
    create_topic(broker, "mine", {})
    produce(broker, "mine", [Sent(b"k", b"%d" % n, NOW_MS) for n in range(9)])
    fetched(broker, tmp_path / "mine", "mine")

    why = one(broker, tmp_path / "mine", None).reason
    assert why is not None and "records of another producer, from offset 0 on" in why
    assert len(consume(broker, "mine")) == 9
    assert settings_of(broker, "mine") == {}

    create_topic(broker, "other", {})
    produce(broker, "other", [Sent(b"k", b"%d" % n, NOW_MS) for n in range(3)])
    fetched(broker, tmp_path / "other", "other")
    one(broker, tmp_path / "mine", "taken")
    why = one(broker, tmp_path / "other", "taken").reason
    assert why is not None and "from another log" in why

    create_topic(broker, "wide", {}, 3)
    fetched(broker, tmp_path / "wide", "wide")
    create_topic(broker, "narrow", {})
    report = given(broker, tmp_path / "wide", "narrow")
    assert [each.reason is None for each in report.partitions] == [True, False, False]
    assert "narrow has 1 partitions in the cluster, and 3 in the archive" in str(report)

    with pytest.raises(InvalidConfig, match="rate and --replication-factor"):
        lastwrite.restore(str(tmp_path / "mine"), to=str(tmp_path), rate="1m")
    with pytest.raises(RemoteFailed):
        given("127.0.0.1:1", tmp_path / "mine", "nowhere")


def delete_topic(broker: Broker, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.delete_topics([topic])[topic].result(60)
    deadline = time.monotonic() + 60
    while topic in admin.list_topics(timeout=30).topics and time.monotonic() < deadline:
        time.sleep(0.1)


@pytest.mark.parametrize("cause", ["foreign", "deleted", "another log"])
def test_remedies_of_a_refused_restore_work(broker: Broker, tmp_path: Path, cause: str) -> None:
    """``--as`` keeps the records in the topic. A deleted topic is restored completely."""
    source, name = f"remedy-{cause.replace(' ', '-')}", f"refused-{cause.replace(' ', '-')}"
    create_topic(broker, source, {})
    produce(broker, source, [Sent(b"k%d" % n, b"%d" % n, NOW_MS) for n in range(9)])
    archive = Archive(tmp_path / "archive", f"{source}-0")
    fetched(broker, archive.to, source)
    create_topic(broker, name, {})
    log_start = 0
    if cause == "foreign":
        produce(broker, name, [Sent(b"mine", b"1", NOW_MS)])
    elif cause == "deleted":
        one(broker, archive.to, name)
        produce(broker, name, [Sent(b"mine", b"%d" % n, NOW_MS) for n in range(2)])
        admin = AdminClient({"bootstrap.servers": broker.address})
        (done,) = admin.delete_records([TopicPartition(name, 0, 10)]).values()
        log_start = done.result(30).low_watermark
        produce(broker, source, [Sent(b"later", b"9", NOW_MS)])
        fetched(broker, archive.to, source)
    else:
        create_topic(broker, "remedy-log", {})
        produce(broker, "remedy-log", [Sent(b"log", b"1", NOW_MS)])
        fetched(broker, tmp_path / "log", "remedy-log")
        one(broker, tmp_path / "log", name)
    there = consume(broker, name, start=log_start)

    report = given(broker, archive.to, name)

    assert report.exit_status == 1
    assert "restore under another name with --as" in str(report)
    assert (
        "if the topic's records are not needed, delete the topic, and run the command again"
        in str(report)
    )
    assert one(broker, archive.to, f"{name}-as").reason is None
    check_same(broker, archive, f"{name}-as")
    assert consume(broker, name, start=log_start) == there
    delete_topic(broker, name)
    assert one(broker, archive.to, name).reason is None
    check_same(broker, archive, name)


def test_remedies_for_too_few_partitions_work(broker: Broker, tmp_path: Path) -> None:
    create_topic(broker, "three", {}, 3)
    for number in range(3):
        record = Sent(b"k", b"%d" % number, NOW_MS)
        produce(broker, "three", [record], partition=number)
    fetched(broker, tmp_path / "archive", "three")
    create_topic(broker, "single", {})
    report = given(broker, tmp_path / "archive", "single")
    assert "add partitions with kafka-topics.sh --alter and run the command again" in str(report)
    assert given(broker, tmp_path / "archive", "single-as").exit_status == 0
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_partitions([NewPartitions("single", 3)])["single"].result(30)
    assert given(broker, tmp_path / "archive", "single").exit_status == 0
    for name in ("single", "single-as"):
        for number in range(3):
            check_same(broker, Archive(tmp_path / "archive", f"three-{number}"), name, number)


def test_batch_above_the_request_limit_is_refused_by_name(tmp_path: Path) -> None:
    batches = [
        encode_batch([Record(n, NOW_MS, b"k", random.Random(n).randbytes(size))])
        for n, size in enumerate([100, 1000, 300_000, 50])
    ]
    for topic, some in (("large-0", batches), ("small-0", batches[:2])):
        write_segment(tmp_path / "root" / topic, 0, some, mtime_ms=NOW_MS)
    archive = str(tmp_path / "archive")
    lastwrite.fetch([str(tmp_path / "root")], archive, include_active=True)
    try:
        made = Broker(kafka_home(), tmp_path / "data", {"socket.request.max.bytes": "200000"})
    except Unavailable as reason:
        pytest.skip(str(reason))
    with made:
        begin = time.monotonic()
        report = given(made, archive, None)
        assert time.monotonic() - begin < 20
        large, small = report.partitions
        assert (report.exit_status, small.records) == (1, 2)
        assert large.reason is not None and large.records == 0
        assert "the batch at offset 2 of large-0 has 300" in large.reason
        assert "socket.request.max.bytes=200000" in large.reason
        assert one(made, archive, None, topic="large", until=2).records == 2


def test_group_with_members_is_set_later(broker: Broker, tmp_path: Path) -> None:
    create_topic(broker, "busy", {})
    produce(broker, "busy", [Sent(b"k", b"%d" % n, NOW_MS) for n in range(9)])
    commit(broker, "busy", {"member": 4})
    fetched(broker, tmp_path, "busy")
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "member"})
    consumer.subscribe(["busy"])
    while not consumer.assignment():
        consumer.poll(0.1)
    report = given(broker, tmp_path, "busy-again")
    (group,) = report.partitions[0].groups
    assert report.exit_status == 1 and not group.is_set
    assert group.reason is not None and "the group has members" in group.reason
    consumer.close()
    report = given(broker, tmp_path, "busy-again")
    (group,) = report.partitions[0].groups
    assert report.exit_status == 0 and group.is_set and group.offset == 5


def groups_of(broker: Broker, archive: Path, name: str | None, **how: Any) -> dict[str, Any]:
    """For each group whether its offset was set and what it is, or the reason why it
    was not set.
    """
    found = one(broker, archive, name, **how)
    assert found.reason is None, found.reason
    return {each.group: each.reason or (each.is_set, each.offset) for each in found.groups}


def test_later_group_offsets_of_the_source_are_applied(broker: Broker, tmp_path: Path) -> None:
    create_topic(broker, "later", SMALL)
    write_random(broker, "later", 1, 12)
    archive = Archive(tmp_path, "later-0")
    (first, second, third) = (
        sorted(o for o, _ in archived_of(broker, archive))[n] for n in (9, 30, 60)
    )
    commit(broker, "later", {"stays": first, "goes on": first, "moved": first, "busy": first})
    fetched(broker, tmp_path, "later")
    assert set(groups_of(broker, tmp_path, "later-again").values()) == {
        (True, there(broker, archive, first))
    }

    # All new offsets are among restored records, and one group is new.
    commit(broker, "later", {"goes on": second, "moved": second, "busy": second, "new": second})
    commit(broker, "later-again", {"moved": 3})
    member = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": "busy",
            "enable.auto.commit": False,
        }
    )
    member.subscribe(["later-again"])
    while not member.assignment():
        member.poll(0.1)
    write_random(broker, "later", 2, 3)
    fetched(broker, tmp_path, "later")
    found, at = groups_of(broker, tmp_path, "later-again"), there(broker, archive, second)
    assert "the group has members" in found.pop("busy")
    assert found == {
        "stays": (False, there(broker, archive, first)),
        "goes on": (True, at),
        "moved": (False, 3),
        "new": (True, at),
    }
    member.close()
    assert groups_of(broker, tmp_path, "later-again")["busy"] == (True, at)

    # A reset in the source is applied, too. No new records are restored.
    commit(broker, "later", {"goes on": third, "new": first})
    fetched(broker, tmp_path, "later")
    found = groups_of(broker, tmp_path, "later-again")
    assert found["goes on"] == (True, there(broker, archive, third))
    assert found["new"] == (True, there(broker, archive, first))
    assert committed(broker, "goes on", ["later-again"]) == {"later-again": found["goes on"][1]}


def archived_of(broker: Broker, archive: Archive) -> list[tuple[int, Plain]]:
    fetched(broker, archive.to, "later")
    return archived(archive)


def there(broker: Broker, archive: Archive, position: int) -> int:
    """The restored offset for an archive ``position``, counted in consumed records."""
    seen = consume(broker, "later-again")
    before = sum(offset < position for offset, _ in archived(archive))
    return seen[before].offset


def test_later_offset_is_not_applied_if_the_archive_lost_records(
    broker: Broker, tmp_path: Path
) -> None:
    create_topic(broker, "cleaned", {"cleanup.policy": "compact"})
    produce(broker, "cleaned", [Sent(b"k%d" % (n % 5), b"%d" % n, NOW_MS) for n in range(60)])
    commit(broker, "cleaned", {"g": 10})
    fetched(broker, tmp_path, "cleaned")
    assert groups_of(broker, tmp_path, "cleaned-again") == {"g": (True, 11)}
    commit(broker, "cleaned", {"g": 40})
    fetched(broker, tmp_path, "cleaned")
    lastwrite.compact(str(tmp_path), spark=INLINE, config={"min.cleanable.dirty.ratio": 0})
    assert groups_of(broker, tmp_path, "cleaned-again") == {"g": (False, 11)}


def test_groups_are_restored_at_unchanged_offsets(broker: Broker, tmp_path: Path) -> None:
    """The source cluster serves as the new one, because it has the records at their offsets."""
    create_topic(broker, "kept", {})
    produce(broker, "kept", [Sent(b"k", b"%d" % n, NOW_MS) for n in range(20)])
    commit(broker, "kept", {"a kept": 4, "b kept": 20})
    fetched(broker, tmp_path, "kept")
    admin = AdminClient({"bootstrap.servers": broker.address})
    for done in admin.delete_consumer_groups(["a kept", "b kept"]).values():
        done.result(30)
    kept = {"topic": "kept", "groups": True}
    assert groups_of(broker, tmp_path, None, **kept) == {"a kept": (True, 4), "b kept": (True, 20)}
    assert committed(broker, "a kept", ["kept"]) == {"kept": 4}

    commit(broker, "kept", {"a kept": 9})  # committed in the source before its loss
    fetched(broker, tmp_path, "kept")
    commit(broker, "kept", {"a kept": 4})
    assert groups_of(broker, tmp_path, None, **kept) == {"a kept": (True, 9), "b kept": (False, 20)}
    commit(broker, "kept", {"a kept": 7})  # committed in the new cluster
    assert groups_of(broker, tmp_path, None, **kept)["a kept"] == (False, 7)

    create_topic(broker, "kept-short", {})
    produce(broker, "kept-short", [Sent(b"k", b"%d" % n, NOW_MS) for n in range(5)])
    short = groups_of(broker, tmp_path, "kept-short", **kept)
    assert short["a kept"].startswith("the partition ends at offset 5 in the cluster")
    short = groups_of(broker, tmp_path, "kept-short", until=5, **kept)
    assert short == {"a kept": (True, 5), "b kept": (True, 5)}

    one(broker, tmp_path, "kept-given")
    why = one(broker, tmp_path, "kept-given", groups=True).reason
    assert (
        why is not None
        and "the partition's records were restored at new offsets, so the archive's offsets do not "
        "apply"
        in why
    )
    why = one(broker, tmp_path, "kept-nowhere", groups=True).reason
    assert why is not None and "the cluster has no partition kept-nowhere-0" in why
    with pytest.raises(InvalidConfig, match="can be restored only into a running cluster"):
        lastwrite.restore(str(tmp_path), to=str(tmp_path), groups=True)


# ---------------------------------------------------------------------- what may happen meanwhile


def killed_at(point: int, is_after: bool, action: Callable[[], None]) -> bool:
    """Run ``action`` in a process that is killed before or after its ``point``-th request.

    Returns False if it ended before that request.
    """
    child = os.fork()
    if child == 0:
        status, count, send = 1, 0, KafkaConnection._send
        try:

            def counted(self: KafkaConnection, request: bytes) -> None:
                nonlocal count
                count += 1
                if count == point and not is_after:
                    os.kill(os.getpid(), signal.SIGKILL)
                send(self, request)
                if count == point:
                    os.kill(os.getpid(), signal.SIGKILL)

            KafkaConnection._send = counted  # type: ignore[method-assign]
            action()
            status = 0
        except BaseException as error:
            print(f"in the child: {error!r}", flush=True)
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return True
    assert os.WEXITSTATUS(status) == 0, "the child failed; its output says why"
    return False


def check_kills(broker: Broker, archive: Archive, seed: int, step: int) -> None:
    """Kill the restore repeatedly, after more requests each time, until one ends."""
    rng, name = random.Random(seed), f"{archive.name.rpartition('-')[0]}-{seed}"
    for _ in range(400):
        point, is_after = rng.randrange(1, step), rng.random() < 0.5

        def work() -> None:
            found = one(broker, archive.to, name)
            assert found.reason is None, found.reason

        if not killed_at(point, is_after, work):
            break
        step += 1
    else:
        raise AssertionError("never through")
    check_same(broker, archive, name)
    assert settings_of(broker, name) == SMALL


@pytest.mark.parametrize("seed", range(40 if LONG else 1))
def test_repeated_kills_cause_no_duplicates(
    broker: Broker, tmp_path: Path, small_steps: None, seed: int
) -> None:
    topic = f"killed{seed}"
    create_topic(broker, topic, SMALL)
    write_random(broker, topic, seed, 3)
    commit(broker, topic, {f"{topic}-a": 3, f"{topic}-b": 11})
    archive = Archive(tmp_path, f"{topic}-0")
    fetched(broker, tmp_path, topic)
    check_kills(broker, archive, seed, 30)
    places = check_same(broker, archive, f"{topic}-{seed}")
    for group, offset in ((f"{topic}-a", 3), (f"{topic}-b", 11)):
        wanted = next(there for before, there in places if before >= offset)
        name = f"{topic}-{seed}"
        assert committed(broker, group, [name]) == {name: wanted}


class Cutter(Spoiler):
    """Closes the connection instead of sending a response."""

    def spoil(self, data: bytes) -> bytes | None:
        if self.rng.random() > 0.06:
            return data
        self.spoilt["cut"] = self.spoilt.get("cut", 0) + 1
        return None


@pytest.mark.parametrize("seed", range(10 if LONG else 1))
def test_lost_responses_cause_no_duplicates(
    broker: Broker, tmp_path: Path, small_steps: None, seed: int
) -> None:
    topic = f"lost{seed}"
    create_topic(broker, topic, SMALL)
    write_random(broker, topic, seed, 5)
    archive = Archive(tmp_path, f"{topic}-0")
    fetched(broker, tmp_path, topic)
    with Cutter(seed) as spoiler:
        threading.Thread(target=spoiler.serve_forever, daemon=True).start()
        config = {"request.timeout.ms": 1000, "default.api.timeout.ms": 20_000}
        address = f"127.0.0.1:{SPOILER}"
        for _ in range(50):
            with contextlib.suppress(RemoteFailed):
                if one(address, tmp_path, f"{topic}-again", config=config).reason is None:
                    break
        spoiler.shutdown()
    assert spoiler.spoilt["cut"] > 0
    check_same(broker, archive, f"{topic}-again")


@pytest.mark.long
def test_restart_of_the_broker_causes_no_duplicates(
    restarting: Broker, tmp_path: Path, small_steps: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(restarting, "dies", SMALL)
    write_random(restarting, "dies", 1, 6)
    archive = Archive(tmp_path / "archive", "dies-0")
    fetched(restarting, archive.to, "dies")
    real, sent = OurProducer.send, 0

    def send(self: OurProducer, batches: Any, offset: int) -> None:
        nonlocal sent
        sent += 1
        if sent in (2, 5):
            restarting.kill()
            restarting.start()
        real(self, batches, offset)
        if sent == 8:
            restarting.kill()
            restarting.start()

    monkeypatch.setattr(OurProducer, "send", send)
    found = one(restarting, archive.to, "dies-again")
    assert found.reason is None and sent > 8
    check_same(restarting, archive, "dies-again")


def test_second_run_fences_the_first(
    broker: Broker, tmp_path: Path, small_steps: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run fails with an error, and the broker rejects its later batches."""
    create_topic(broker, "twice", SMALL)
    write_random(broker, "twice", 1, 6)
    archive = Archive(tmp_path, "twice-0")
    fetched(broker, tmp_path, "twice")
    real, other = OurProducer.send, []

    def send(self: OurProducer, batches: Any, offset: int) -> None:
        if offset > 10 and not other:
            other.append("begun")
            other[0] = one(broker, tmp_path, "twice-again")  # type: ignore[call-overload]
        real(self, batches, offset)

    monkeypatch.setattr(OurProducer, "send", send)
    first = one(broker, tmp_path, "twice-again")
    assert (
        first.reason is not None and "another restore of the same topic has started" in first.reason
    )
    assert isinstance(other[0], LogGiven) and other[0].reason is None
    check_same(broker, archive, "twice-again")


def test_archive_in_a_bucket_is_restored(broker: Broker, tmp_path: Path) -> None:
    create_topic(broker, "bucket", SMALL)
    write_random(broker, "bucket", 1, 4)
    fetched(broker, tmp_path / "local", "bucket")
    with s3_server(tmp_path / "s3", BUCKET) as s3:
        check_bucket(broker, s3, Archive(tmp_path / "local", "bucket-0"))


def check_bucket(broker: Broker, s3: S3, same: Archive) -> None:
    fetched(broker, f"s3://{BUCKET}/kept", "bucket", config=s3.config)
    found = one(broker, f"s3://{BUCKET}/kept", "bucket-again", config=s3.config, rate="100m")
    assert found.reason is None
    check_same(broker, same, "bucket-again")


def test_restore_through_breaking_connections_is_complete(broker: Broker, tmp_path: Path) -> None:
    topic = f"breaking-{time.time_ns()}"  # unique, because the test may be rerun
    create_topic(broker, topic, {})
    rng = random.Random(40)
    records = [Sent(b"%d" % n, rng.randbytes(900), NOW_MS + n) for n in range(300)]
    produce(broker, topic, records, batch_records=2)
    archive = Archive(tmp_path / "archive", f"{topic}-0")
    lastwrite.fetch([f"kafka://{broker.address}"], str(archive.to), topic=topic)
    proxy = BreakingProxy([rng.randint(2_000, 40_000) for _ in range(100)], SPOILER, is_both=True)
    with proxy.before(f"127.0.0.1:{SPOILT}"):
        found = lastwrite.restore(str(archive.to), to=f"kafka://{proxy.address}", name=f"{topic}-b")
    assert (found.exit_status, proxy.breaks > 10) == (0, True)
    seen = consume(broker, f"{topic}-b")
    assert [(each.key, each.value) for each in seen] == [(each.key, each.value) for each in records]


def test_restore_names_the_offset_at_which_no_batch_arrives(broker: Broker, tmp_path: Path) -> None:
    topic = f"stalled-{time.time_ns()}"  # unique, because the test may be rerun
    create_topic(broker, topic, {})
    rng = random.Random(41)
    records = [Sent(b"%d" % n, rng.randbytes(900), NOW_MS + n) for n in range(30)]
    records.insert(20, Sent(b"large", rng.randbytes(100_000), NOW_MS))
    produce(broker, topic, records, batch_records=1)
    archive = Archive(tmp_path / "archive", f"{topic}-0")
    lastwrite.fetch([f"kafka://{broker.address}"], str(archive.to), topic=topic)
    proxy, name = BreakingProxy([40_000], SPOILER, is_both=True), f"{topic}-b"
    with proxy.before(f"127.0.0.1:{SPOILT}"):
        config = {"default.api.timeout.ms": 2_000}
        found = lastwrite.restore(
            str(archive.to), to=f"kafka://{proxy.address}", name=name, config=config
        )
    (partition,) = found.partitions
    assert found.exit_status == 1 and partition.reason is not None
    assert f"no record of {topic}-0 from offset 20 on arrived for 2 s" in partition.reason
    again = lastwrite.restore(str(archive.to), to=f"kafka://{broker.address}", name=name)
    seen = consume(broker, name)
    assert (again.exit_status, [each.key for each in seen]) == (0, [each.key for each in records])
