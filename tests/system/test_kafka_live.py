"""Tests of ``fetch`` from a real Kafka broker: the archive has the bytes of the broker's files."""

from __future__ import annotations

import contextlib
import itertools
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import astuple
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import lastwrite
from lastwrite.errors import InvalidConfig, NotALog, RemoteFailed
from lastwrite.kafka.format.text import decode_leader_epochs, decode_partition_metadata
from lastwrite.kafka.network import live_log
from lastwrite.kafka.network.connection import KafkaConnection
from lastwrite.kafka.producers.snapshot import decode_snapshot
from lastwrite.kafka.store import archive_writer
from lastwrite.kafka.store.archive_writer import KafkaArchiveWriter
from lastwrite.reports.fetching import FetchedLog, LogsFetched
from lastwrite.spark.inline import INLINE
from tests.conformance.test_kafka_archive import Archive, check_no_waste
from tests.support.breaking import BreakingProxy
from tests.support.jars import free_ports
from tests.support.kafka.broker import Broker, Unavailable, kafka_home
from tests.support.kafka.clients import CODECS, Sent, create_topic, produce
from tests.support.kafka.crashing import run_until
from tests.support.kafka.logs import bases, headers_of, read_aborted
from tests.support.kafka.raw import Raw, part
from tests.support.sample import LONG

pytest.importorskip("kio")
pytestmark = [pytest.mark.broker]

START_MS = 1_700_000_000_000


SPOILT, SPOILER = free_ports(2)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    try:
        made = Broker(
            kafka_home(),
            tmp_path_factory.mktemp("live") / "data",
            {"log.cleaner.delete.retention.ms": "7200000", "message.max.bytes": "50000000"},
            listeners={"SPOILT": ("PLAINTEXT", SPOILT, SPOILER)},
        )
    except Unavailable as reason:
        pytest.skip(str(reason))
    with made:
        yield made


class Spoiler(ThreadingTCPServer):
    """A proxy in front of the broker that damages responses.

    It closes the connection within a response, stops sending, or flips bits of values.
    """

    daemon_threads = allow_reuse_address = True
    WORD = b"SPOIL-ME"

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.spoilt: dict[str, int] = {}
        super().__init__(("127.0.0.1", SPOILER), _Spoilt)

    def spoil(self, data: bytes) -> bytes | None:
        """The bytes to send instead of ``data``. None closes the connection."""
        if self.rng.random() > 0.08:
            return data
        how = self.rng.choice(("cut", "cut", "cut", "flip", "flip", "flip", "silent"))
        if how == "flip" and self.WORD not in data:
            return data
        self.spoilt[how] = self.spoilt.get(how, 0) + 1
        if how == "cut":
            return None
        if how == "silent":
            time.sleep(1.5)
            return None
        places = [match.start() for match in re.finditer(self.WORD, data)]
        at = self.rng.choice(places) + self.rng.randrange(len(self.WORD))
        return data[:at] + bytes([data[at] ^ 1 << self.rng.randrange(8)]) + data[at + 1 :]


class _Spoilt(BaseRequestHandler):
    server: Spoiler

    def handle(self) -> None:
        with socket.create_connection(("127.0.0.1", SPOILT)) as there:
            asking = threading.Thread(target=self._ask, args=(there,), daemon=True)
            asking.start()
            while data := there.recv(4000):
                spoilt = self.server.spoil(data)
                if spoilt is None:
                    break
                self.request.sendall(spoilt)
            self.request.shutdown(socket.SHUT_RDWR)

    def _ask(self, there: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := self.request.recv(4000):
                there.sendall(data)
            there.shutdown(socket.SHUT_RDWR)


def fetched(broker: Broker, to: Path, **how: Any) -> LogsFetched:
    found = lastwrite.fetch([f"kafka://{broker.address}"], str(to), **how)
    assert isinstance(found, LogsFetched)
    return found


def one(broker: Broker, to: Path, topic: str, **how: Any) -> FetchedLog:
    (found,) = fetched(broker, to, topic=topic, **how).partitions
    return found


def stored(broker: Broker, name: str) -> bytes:
    """The bytes of the broker's segments of the partition, concatenated."""
    return b"".join(path.read_bytes() for path in sorted((broker.data / name).glob("*.log")))


def check_same(broker: Broker, archive: Archive) -> None:
    """The archive has the batches of the broker's files and the same metadata."""
    folder, log = broker.data / archive.name, archive.log()
    assert b"".join(archive.batches()) == stored(broker, archive.name)
    aborted = [entry for base in bases(folder) for entry in read_aborted(folder, base)]
    assert [tuple(each) for each in log["aborted"]] == [astuple(each) for each in aborted]
    epochs = decode_leader_epochs((folder / "leader-epoch-checkpoint").read_bytes())
    inside = [tuple(each) for each in epochs if each.start_offset < log["end_offset"]]
    assert [tuple(each) for each in log["epochs"]] == inside
    # Kafka 2.1 has no such file, and Kafka 2.8 writes it later
    metadata = folder / "partition.metadata"
    if metadata.exists():
        assert log["topic_id"] == str(decode_partition_metadata(metadata.read_bytes()))
    archive.submit(archive.to.parent / "laid-out")  # the laid-out log has the indexes of a broker


def write_random(broker: Broker, topic: str, seed: int, batches: int) -> None:
    """Write records in all codecs, tombstones, headers, and committed and aborted transactions."""
    rng = random.Random(seed)
    for _ in range(batches):
        records = [
            Sent(
                f"k{rng.randrange(50)}".encode(),
                None if rng.random() < 0.1 else rng.randbytes(rng.randrange(200)),
                START_MS + rng.randrange(10_000),
                (("h", rng.randbytes(3)),) if rng.random() < 0.2 else (),
            )
            for _ in range(rng.randrange(1, 40))
        ]
        produce(broker, topic, records, codec=rng.choice(CODECS), batch_records=9)
    client = Producer(
        {
            "bootstrap.servers": broker.address,
            "transactional.id": f"{topic}-{seed}",
            "linger.ms": 0,
            "log_level": 0,
        }
    )
    client.init_transactions(60)
    for n in range(8):
        client.begin_transaction()
        for _ in range(rng.randrange(1, 9)):
            client.produce(topic, rng.randbytes(20), f"t{rng.randrange(9)}")
            client.flush()
        client.abort_transaction(60) if n % 3 == 1 else client.commit_transaction(60)


SMALL = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "4000",
    "segment.index.bytes": "1024",
    "index.interval.bytes": "300",
}


def test_fetched_batches_equal_the_brokers_files(broker: Broker, tmp_path: Path) -> None:
    create_topic(broker, "bytes", SMALL)
    write_random(broker, "bytes", 1, 12)
    archive = Archive(tmp_path / "archive", "bytes-0")

    found = one(broker, archive.to, "bytes")

    assert found.reason is None and found.is_new and found.first_offset == 0
    assert found.source == f"kafka://{broker.address}/bytes-0"
    check_same(broker, archive)
    segments = archive.log()["segments"]
    assert len(segments) == found.segments > 3
    assert all(each["bytes"] <= 4000 for each in segments)
    known = archive.log()["known"]
    assert known["topic"] == SMALL
    assert known["file"]["log.cleaner.delete.retention.ms"] == "7200000"

    again = one(broker, archive.to, "bytes")
    assert again.segments == 0 and again.first_offset == again.end_offset == found.end_offset
    write_random(broker, "bytes", 2, 3)
    more = one(broker, archive.to, "bytes")
    assert more.first_offset == found.end_offset and more.segments and not more.is_new
    check_same(broker, archive)


def test_empty_topic_and_several_partitions_are_fetched(broker: Broker, tmp_path: Path) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    for done in admin.create_topics([NewTopic("wide", 3, 1)]).values():
        done.result(30)
    client = Producer({"bootstrap.servers": broker.address})
    client.produce("wide", b"v", b"k", partition=2)
    client.flush()

    found = fetched(broker, tmp_path, topic="wi*").partitions

    assert [(each.topic, each.partition, each.end_offset) for each in found] == [
        ("wide", 0, 0),
        ("wide", 1, 0),
        ("wide", 2, 1),
    ]
    assert [each.is_new for each in found] == [True] * 3
    for number in range(3):
        assert b"".join(Archive(tmp_path, f"wide-{number}").batches()) == stored(
            broker, f"wide-{number}"
        )


@pytest.mark.parametrize("limit", [100, 7000])
def test_responses_that_end_inside_a_batch_are_handled(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """A cut batch is ignored and fetched again. A batch larger than a response is fetched alone."""
    topic = f"parts-{limit}"
    create_topic(broker, topic, SMALL)
    write_random(broker, topic, 3, 8)
    monkeypatch.setattr(live_log, "_FETCH_BYTES", limit)
    assert one(broker, tmp_path, topic).reason is None
    check_same(broker, Archive(tmp_path, f"{topic}-0"))


def test_throttling_broker_is_waited_for(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quota throttles the client: nothing is sent on the connection until the throttle time is
    over.
    """
    create_topic(broker, "quota", {})
    value = random.Random(1).randbytes(100_000)
    produce(broker, "quota", [Sent(b"k", value, START_MS)] * 8, batch_records=1)
    about = "alter_client_quotas"
    entity = part(about, 1, "EntityData", entity_type="client-id", entity_name="greedy")
    limit = part(about, 1, "OpData", key="consumer_byte_rate", value=65_000.0, remove=False)
    entry = part(about, 1, "EntryData", entity=(entity,), ops=(limit,))
    with Raw(broker.address) as raw:
        answer = raw.ask(about, 1, entries=(entry,), validate_only=False)
    assert [each.error_code for each in answer.entries] == [0]
    muted, mute, send = list[float](), KafkaConnection._wait_out_throttle, KafkaConnection._send

    def muting(self: KafkaConnection, throttle_ms: float) -> None:
        muted.extend([throttle_ms] if throttle_ms > 0 else [])
        mute(self, throttle_ms)

    def sending(self: KafkaConnection, request: bytes) -> None:
        assert time.monotonic() >= self._muted_until
        send(self, request)

    monkeypatch.setattr(KafkaConnection, "_wait_out_throttle", muting)
    monkeypatch.setattr(KafkaConnection, "_send", sending)
    monkeypatch.setattr(live_log, "_FETCH_BYTES", 90_000)
    assert one(broker, tmp_path, "quota", config={"client.id": "greedy"}).end_offset == 8
    assert muted
    check_same(broker, Archive(tmp_path, "quota-0"))


def test_records_that_expire_during_a_fetch_restart_it(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next offset has been deleted, so the fetch starts again at the log start."""
    create_topic(broker, "expires", {})
    write_plain(broker, "expires", 200)
    admin = AdminClient({"bootstrap.servers": broker.address})
    real, is_deleted = KafkaArchiveWriter.append, False

    def append(self: KafkaArchiveWriter, data: Any, table: Any) -> None:
        nonlocal is_deleted
        real(self, data, table)
        if not is_deleted and int(table["next_offset"][-1]) >= 50:
            is_deleted = True
            for done in admin.delete_records([TopicPartition("expires", 0, 150)]).values():
                done.result(30)

    monkeypatch.setattr(KafkaArchiveWriter, "append", append)
    monkeypatch.setattr(live_log, "_FETCH_BYTES", 1000)
    archive = Archive(tmp_path, "expires-0")
    assert one(broker, tmp_path, "expires").reason is None and is_deleted
    assert archive.log()["log_start"] == 150 and archive.log()["end_offset"] == 200
    assert offsets_of(archive) == list(range(150, 200))


def test_internal_topics_are_fetched_only_by_name(broker: Broker, tmp_path: Path) -> None:
    create_topic(broker, "ordinary", {})
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "own"})
    consumer.commit(offsets=[TopicPartition("ordinary", 0, 0)], asynchronous=False)
    consumer.close()
    found = fetched(broker, tmp_path / "all", topic="*o*").partitions
    assert "ordinary" in {each.topic for each in found}
    assert not any(each.topic.startswith("__") for each in found)
    assert one(broker, tmp_path / "named", "__consumer_offsets").reason is None


def test_batch_larger_than_the_fetch_size_is_fetched(broker: Broker, tmp_path: Path) -> None:
    create_topic(broker, "large", {"max.message.bytes": "50000000"})
    value = random.Random(1).randbytes(20_000_000)
    settings = {"message.max.bytes": "60000000"}
    for size in (100, len(value), 100):
        produce(broker, "large", [Sent(b"k", value[:size], START_MS)], settings=settings)

    assert one(broker, tmp_path, "large").segments == 1
    assert b"".join(Archive(tmp_path, "large-0").batches()) == stored(broker, "large-0")


def test_missing_topics_and_wrong_arguments_are_refused(broker: Broker, tmp_path: Path) -> None:
    with pytest.raises(NotALog, match="no topic 'nothing'"):
        one(broker, tmp_path, "nothing")
    with pytest.raises(InvalidConfig, match="contains more than broker addresses"):
        lastwrite.fetch([f"kafka://{broker.address}/bytes"], str(tmp_path))
    with pytest.raises(InvalidConfig, match="is not the address of a live cluster"):
        lastwrite.fetch([f"kafka://{broker.address}", str(tmp_path)], str(tmp_path / "a"))
    with pytest.raises(InvalidConfig, match="security.protocol"):
        fetched(broker, tmp_path, config={"security.protocol": "KERBEROS"})
    (port,) = free_ports(1)
    with pytest.raises(RemoteFailed, match="connection refused"):
        lastwrite.fetch([f"kafka://127.0.0.1:{port}"], str(tmp_path))
    assert not list(tmp_path.iterdir())


def all_headers(folder: Path) -> list[Any]:
    return [
        header for base in bases(folder) for _, header in headers_of(folder / f"{base:020d}.log")
    ]


def offsets_of(archive: Archive) -> list[int]:
    return [
        header.base_offset
        for _, stem in archive.segments()
        for _, header in headers_of(stem.with_suffix(".log"))
    ]


def write_plain(broker: Broker, topic: str, count: int, word: str = "v") -> None:
    """Write batches of one record, so that a batch begins at every offset."""
    records = [Sent(f"k{n}".encode(), f"{word}{n}".encode(), START_MS) for n in range(count)]
    produce(broker, topic, records, batch_records=1)


def refused(found: FetchedLog, archive: Archive, before: bytes) -> str:
    """Check that nothing was fetched or changed, and return the reason."""
    assert found.reason is not None and found.segments == 0
    assert (archive.folder / "manifest.json").read_bytes() == before
    assert {path.name for path in archive.folder.glob("rounds/*")} == set()
    return found.reason


@pytest.fixture
def restarting(tmp_path: Path) -> Iterator[Broker]:
    """A broker that a test may stop, kill and start again."""
    try:
        made = Broker(kafka_home(), tmp_path / "data")
    except Unavailable as reason:
        pytest.skip(str(reason))
    try:
        yield made.start()
    finally:
        made.kill()


def test_fetch_survives_a_broker_restart(
    restarting: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(restarting, "dies", SMALL)
    write_plain(restarting, "dies", 300)
    archive, taken = Archive(tmp_path / "archive", "dies-0"), 0
    real = KafkaArchiveWriter.append

    def append(self: KafkaArchiveWriter, data: Any, table: Any) -> None:
        nonlocal taken
        taken += 1
        if taken == 2:
            restarting.kill()
            restarting.start()
        real(self, data, table)

    monkeypatch.setattr(KafkaArchiveWriter, "append", append)
    monkeypatch.setattr(live_log, "_FETCH_BYTES", 2000)

    found = one(restarting, archive.to, "dies")

    assert found.reason is None and found.end_offset == 300 and taken > 4
    write_plain(restarting, "dies", 10)  # appended by the leader of a later epoch
    assert one(restarting, archive.to, "dies").end_offset == 310
    check_same(restarting, archive)
    assert len(archive.log()["epochs"]) == 2


def test_offsets_rewritten_by_another_leader_are_refused(
    restarting: Broker, tmp_path: Path
) -> None:
    """After an unclean election the log was truncated below the archive's end and then
    appended to.
    """
    create_topic(restarting, "cut", {})
    write_plain(restarting, "cut", 100)
    archive = Archive(tmp_path / "archive", "cut-0")
    one(restarting, archive.to, "cut")
    before = (archive.folder / "manifest.json").read_bytes()
    restarting.kill()
    log = restarting.data / "cut-0" / f"{0:020d}.log"
    at = next(at for at, header in headers_of(log) if header.base_offset == 60)
    with log.open("r+b") as file:
        file.truncate(at)
    restarting.start()
    for more in (0, 20, 100):  # the new end is below, at and beyond the archive's end
        write_plain(restarting, "cut", more, "w")
        why = refused(one(restarting, archive.to, "cut"), archive, before)
        assert (
            "offsets 60 to 100 have leader epoch 0 in the archive, and a later epoch in the log"
            in why
        ), why
        assert "--set-aside" in why

    old = archive.batches()
    done = one(restarting, archive.to, "cut", sets_aside=True)
    assert done.reason is None and done.aside is not None and done.first_offset == 60
    check_same(restarting, archive)
    aside = Archive(Path(done.aside), "cut-0")
    assert aside.batches() == old[-len(aside.batches()) :] and aside.log()["log_start"] == 60
    assert [key for key, _ in lastwrite.latest(done.aside, "cut").items()]
    again = one(restarting, archive.to, "cut", sets_aside=True)
    assert again.reason is None and again.aside is None and not again.segments


def test_recreated_topic_is_refused_or_set_aside(broker: Broker, tmp_path: Path) -> None:
    create_topic(broker, "anew", {})
    write_plain(broker, "anew", 10)
    archive = Archive(tmp_path / "archive", "anew-0")
    one(broker, archive.to, "anew")
    before = (archive.folder / "manifest.json").read_bytes()
    admin = AdminClient({"bootstrap.servers": broker.address})
    for done in admin.delete_topics(["anew"]).values():
        done.result(30)
    while "anew" in admin.list_topics().topics:
        time.sleep(0.05)
    create_topic(broker, "anew", {})
    write_plain(broker, "anew", 20)

    assert "the topic was deleted and created again" in refused(
        one(broker, archive.to, "anew"), archive, before
    )
    old = archive.batches()
    done = one(broker, archive.to, "anew", sets_aside=True)
    assert done.is_new and done.end_offset == 20 and done.aside is not None
    check_same(broker, archive)
    assert Archive(Path(done.aside), "anew-0").batches() == old


def test_records_deleted_at_the_log_start_are_reported(broker: Broker, tmp_path: Path) -> None:
    create_topic(broker, "begin", {})
    records = [Sent(f"k{n}".encode(), b"v", START_MS) for n in range(30)]
    produce(broker, "begin", records, batch_records=10)
    archive = Archive(tmp_path / "archive", "begin-0")
    admin = AdminClient({"bootstrap.servers": broker.address})

    def delete(offset: int) -> None:
        for done in admin.delete_records([TopicPartition("begin", 0, offset)]).values():
            done.result(30)

    delete(15)
    assert one(broker, archive.to, "begin").end_offset == 30
    assert archive.log()["log_start"] == 15 and offsets_of(archive) == [10, 20]
    before = (archive.folder / "manifest.json").read_bytes()
    produce(broker, "begin", records, batch_records=10)
    delete(45)
    why = refused(one(broker, archive.to, "begin"), archive, before)
    assert (
        "starts at offset 45, and the archive ends at offset 30: the 15 offsets between them are "
        "lost" in why
    )
    done = one(broker, archive.to, "begin", sets_aside=True)
    assert done.end_offset == 60 and done.aside is not None
    assert archive.log()["log_start"] == 45 and offsets_of(archive) == [40, 50]
    assert offsets_of(Archive(Path(done.aside), "begin-0")) == [10, 20]


def test_possibly_missed_tombstones_are_reported(restarting: Broker, tmp_path: Path) -> None:
    """The broker has cleaned records that the archive lacks. For one topic the last fetch is older
    than ``delete.retention.ms``.
    """
    archives = {topic: Archive(tmp_path / "archive", f"{topic}-0") for topic in ("late", "timely")}
    to = tmp_path / "archive"
    for topic, retention_ms in (("late", "2000"), ("timely", "86400000")):
        create_topic(restarting, topic, SMALL | {"delete.retention.ms": retention_ms})
        write_plain(restarting, topic, 100)
        one(restarting, to, topic)
        write_plain(restarting, topic, 100)
        time.sleep(2.1)
        # too late for tombstones, but the broker has cleaned nothing yet
        assert one(restarting, to, topic).end_offset == 200
        write_plain(restarting, topic, 100)
        write_plain(restarting, topic, 100)
    before = (archives["late"].folder / "manifest.json").read_bytes()
    restarting.stop()
    config = {"min.cleanable.dirty.ratio": 0, "internal.segment.bytes": 4000}
    lastwrite.compact(str(restarting.data), config=config, spark=INLINE, now_ms=START_MS)
    restarting.start()
    left = {
        topic: [header.base_offset for header in all_headers(restarting.data / archive.name)]
        for topic, archive in archives.items()
    }
    assert all(200 not in offsets and 399 in offsets for offsets in left.values())

    why = refused(one(restarting, to, "late"), archives["late"], before)
    assert "the broker's cleaner compacted offsets from 200 on" in why
    assert "delete.retention.ms" in why
    assert one(restarting, to, "late", sets_aside=True).aside is not None
    check_same(restarting, archives["late"])
    found = one(restarting, to, "timely")
    assert found.reason is None and found.end_offset == 400
    come = [at for at in offsets_of(archives["timely"]) if at >= 200]
    assert come == [at for at in left["timely"] if at >= 200]


@pytest.mark.parametrize("seed", range(2))
def test_corrupted_responses_never_reach_the_archive(
    broker: Broker, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = f"spoilt{seed}-{time.time_ns()}"  # unique, because the test may be rerun
    create_topic(broker, topic, SMALL)
    value = Spoiler.WORD * 40
    produce(broker, topic, [Sent(b"%d" % n, value, START_MS) for n in range(300)])
    monkeypatch.setattr(live_log, "_FETCH_BYTES", 12_000)
    archive = Archive(tmp_path / "archive", f"{topic}-0")
    spoiler = Spoiler(seed)
    threading.Thread(target=spoiler.serve_forever, daemon=True).start()
    try:
        config = {"request.timeout.ms": 1000}
        for _ in range(20):  # a failed connection attempt is not retried
            with contextlib.suppress(RemoteFailed):
                found = lastwrite.fetch(
                    [f"kafka://127.0.0.1:{SPOILER}"], str(archive.to), topic=topic, config=config
                )
                if found.exit_status == 0 and spoiler.spoilt:
                    break
        else:
            pytest.fail("never came through")
    finally:
        spoiler.shutdown()
        spoiler.server_close()
    assert spoiler.spoilt
    check_same(broker, archive)


def test_connections_that_break_after_2000_to_40000_bytes_are_resumed(
    broker: Broker, tmp_path: Path
) -> None:
    topic = f"breaking-{time.time_ns()}"  # unique, because the test may be rerun
    create_topic(broker, topic, {})
    rng = random.Random(40)
    records = [Sent(b"%d" % n, rng.randbytes(900), START_MS) for n in range(1000)]
    produce(broker, topic, records, batch_records=4)
    archive = Archive(tmp_path / "archive", f"{topic}-0")
    proxy = BreakingProxy([rng.randint(2_000, 40_000) for _ in range(100)], SPOILER)
    with proxy.before(f"127.0.0.1:{SPOILT}"):
        found = lastwrite.fetch([f"kafka://{proxy.address}"], str(archive.to), topic=topic)
    assert (found.exit_status, proxy.breaks > 20) == (0, True)
    check_same(broker, archive)


def test_fetch_killed_at_any_point_continues(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(broker, "killed", SMALL)
    write_random(broker, "killed", 5, 2)
    archive = Archive(tmp_path / "archive", "killed-0")
    one(broker, archive.to, "killed")
    shutil.copytree(archive.to, tmp_path / "begin")
    write_random(broker, "killed", 6, 2)
    monkeypatch.setattr(archive_writer, "_COMMIT_BYTES", 1)  # commits after each segment

    def start() -> None:
        shutil.rmtree(archive.to)
        shutil.copytree(tmp_path / "begin", archive.to)

    def work() -> None:
        assert one(broker, archive.to, "killed").reason is None

    lengths = set()
    for point in itertools.count(1, 1 if LONG else 11):
        start()
        was_killed = run_until(point, work)
        come = b"".join(archive.batches())
        assert stored(broker, "killed-0").startswith(come), point
        lengths.add(len(come))
        if point % 2:
            check_no_waste(archive)
        work()
        check_same(broker, archive)
        if not was_killed:
            break
    assert len(lengths) > 3
    check_no_waste(archive)


def test_producers_equal_the_brokers_snapshot(restarting: Broker, tmp_path: Path) -> None:
    """Compares epochs, sequence numbers and open transactions at the log's end, after one fetch and
    after two.
    """
    create_topic(restarting, "known", SMALL)
    archive = Archive(tmp_path / "archive", "known-0")
    for seed in (1, 2):
        write_random(restarting, "known", seed, 2)
        settings = {"enable.idempotence": True}
        records = [Sent(b"k", b"v", now_ms()) for _ in range(3)]
        produce(restarting, "known", records, settings=settings, batch_records=2)
        client = Producer(
            {"bootstrap.servers": restarting.address, "transactional.id": "open", "log_level": 0}
        )
        client.init_transactions(60)
        client.begin_transaction()
        client.produce("known", b"v", b"k")
        client.flush()
        assert one(restarting, archive.to, "known").reason is None
    first_open = archive.log()["first_unstable"]
    assert first_open == archive.log()["end_offset"] - 1
    restarting.stop()
    end = archive.log()["end_offset"]
    theirs = (restarting.data / "known-0" / f"{end:020d}.snapshot").read_bytes()
    ours = (archive.folder / archive.log()["snapshot"]).read_bytes()
    assert sorted(decode_snapshot(ours)) == sorted(decode_snapshot(theirs))
    assert len(decode_snapshot(ours)) > 4


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_group_offsets_are_fetched(broker: Broker, tmp_path: Path) -> None:
    create_topic(broker, "groups", {})
    write_plain(broker, "groups", 30)
    archive = Archive(tmp_path / "archive", "groups-0")

    def commit(group: str, offset: int, word: str | None = None) -> None:
        consumer = Consumer({"bootstrap.servers": broker.address, "group.id": group})
        at = TopicPartition("groups", 0, offset)
        if word is not None:
            at = TopicPartition("groups", 0, offset, metadata=word, leader_epoch=0)
        consumer.commit(offsets=[at], asynchronous=False)
        consumer.close()

    one(broker, archive.to, "groups")
    assert archive.log()["groups"] == []
    commit("plain", 7)
    commit("älter", 30, "up to here")
    # committed offsets alone do not add segments
    assert one(broker, archive.to, "groups").segments == 0
    word = "up to here\0"  # librdkafka also commits the terminating zero byte
    assert archive.log()["groups"] == [["plain", 7, -1, ""], ["älter", 30, 0, word]]
    commit("plain", 9)
    write_plain(broker, "groups", 5)
    lastwrite.compact(str(archive.to), topic="groups", spark=INLINE)
    one(broker, archive.to, "groups")
    assert archive.log()["groups"] == [["plain", 9, -1, ""], ["älter", 30, 0, word]]
    assert archive.log()["end_offset"] == 35


def test_rate_option_limits_a_fetch(broker: Broker, tmp_path: Path) -> None:
    create_topic(broker, "slow", {})
    value = random.Random(1).randbytes(100_000)
    produce(broker, "slow", [Sent(b"k", value, START_MS)] * 20, batch_records=1)
    begun = time.monotonic()
    assert one(broker, tmp_path / "slow", "slow", rate="1m").end_offset == 20
    assert time.monotonic() - begun > 1.2  # 2 MB, less the bytes that may be sent at once
    for rate in ("nothing", 0, "-1m"):
        with pytest.raises(InvalidConfig, match="the rate "):
            one(broker, tmp_path / "none", "slow", rate=rate)
    with pytest.raises(InvalidConfig, match="--rate is only for a live"):
        lastwrite.fetch([str(tmp_path)], str(tmp_path / "none"), rate="1m")


def test_interrupt_keeps_committed_parts(broker: Broker, tmp_path: Path) -> None:
    create_topic(broker, "interrupted", {})
    value = random.Random(1).randbytes(500_000)
    produce(broker, "interrupted", [Sent(b"k", value, START_MS)] * 20, batch_records=1)
    archive = Archive(tmp_path / "archive", "interrupted-0")
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "lastwrite",
            "fetch",
            f"kafka://{broker.address}",
            "--topic",
            "interrupted",
            "--to",
            str(archive.to),
            "--rate",
            "1k",
        ],
        stderr=subprocess.PIPE,
        start_new_session=True,
    )  # at this rate the fetch would take hours
    while not list(archive.folder.glob("rounds/*")):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert process.returncode == 1
    assert not list(archive.folder.rglob("*.log")) and not list(archive.folder.glob("rounds/*"))
    assert one(broker, archive.to, "interrupted").end_offset == 20
    assert b"".join(archive.batches()) == stored(broker, "interrupted-0")


def test_many_short_fetches_leave_few_segments(broker: Broker, tmp_path: Path) -> None:
    """The batches of many short fetches are merged into few segments, including transactions."""
    create_topic(broker, "turns", {"segment.bytes": "1048576"})
    archive = Archive(tmp_path / "archive", "turns-0")
    for n in range(12):
        write_random(broker, "turns", 100 + n, 1)
        assert one(broker, archive.to, "turns").segments == 1
        if n % 4 == 3:
            check_same(broker, archive)
    log = archive.log()
    assert len(log["segments"]) == 4 and log["active_from"] is None
    assert len(log["aborted"]) == 36
    assert sum(each["records"] for each in log["segments"]) > 200
    check_same(broker, archive)
    assert lastwrite.verify(str(archive.to)).exit_status == 0
    check_no_waste(archive)
