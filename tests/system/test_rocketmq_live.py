"""Tests of fetching topics of a live RocketMQ into an archive while its own compaction runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

import lastwrite
from lastwrite import cli
from lastwrite.cleaner.events import Event
from lastwrite.cleaner.follow import ArchiveFollower
from lastwrite.cleaner.following import Follow, Stoppable
from lastwrite.decoding.options import DecodingConfig
from lastwrite.errors import CommitConflict, InvalidConfig, NotALog, RemoteFailed
from lastwrite.model.progress import NoProgress
from lastwrite.reports.fetching import LogsFetched
from lastwrite.reports.table_round import TableRound
from lastwrite.rocketmq.network.access import RequestCredentials
from lastwrite.rocketmq.network.client import RocketmqClient
from lastwrite.rocketmq.network.connection import RocketmqConnection
from lastwrite.rocketmq.network.outgoing import OutgoingMessage
from lastwrite.rocketmq.network.route import MessageQueue
from lastwrite.rocketmq.rules.live_settings import RocketmqClientConfig
from lastwrite.rows.decoded import DecodedRows
from lastwrite.source.options import parse
from lastwrite.source.stream import StreamReader
from lastwrite.spark.inline import INLINE
from tests.support.breaking import BreakingProxy
from tests.support.rocketmq.broker import (
    COMPACTED,
    SMALL_FILES,
    Broker,
    Unavailable,
    rocketmq_home,
)
from tests.support.rocketmq.live import (
    COMPACTING,
    Load,
    messages_in,
    start_again,
    table_in,
    wait_until,
)

pytestmark = [pytest.mark.broker, pytest.mark.slow]

_DELETE_TOPIC_IN_BROKER, _DELETE_TOPIC_IN_NAME_SERVER = 215, 216
_DELETE_EXPIRED = 329


PATIENT = {"waitTimeMillsInSendQueue": "60000"}  # for a machine that is under load


def make(folder: Path, settings: dict[str, str]) -> Broker:
    try:
        return Broker(rocketmq_home(), folder / "store", SMALL_FILES | PATIENT | settings)
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that compacts every two seconds and deletes expired commit log files at once."""
    # a broker can delete topics only with timerWheelEnable
    settings = {"fileReservedTime": "0", "timerWheelEnable": "true"}
    made = make(tmp_path_factory.mktemp("rocketmq"), COMPACTING | settings)
    with made.disposable():
        yield made


@pytest.fixture
def client(broker: Broker) -> Iterator[RocketmqClient]:
    with RocketmqClient(broker.name_server) as client:
        yield client


def url(broker: Broker) -> str:
    return f"rocketmq://{broker.name_server}"


def fetch(broker: Broker, to: Path, topic: str, **options: object) -> LogsFetched:
    asked: Any = {"topic": topic, **options}
    report = lastwrite.fetch([url(broker)], str(to), **asked)
    assert isinstance(report, LogsFetched)
    return report


def reason(report: LogsFetched) -> str:
    assert report.exit_status == 1
    return str(report.partitions[0].reason)


def served(client: RocketmqClient, queue: MessageQueue) -> int:
    """The number of messages that a consumer gets."""
    offset = count = 0
    while (pulled := client.pull(queue, offset)).records:
        at = 0
        while at < len(pulled.records):
            at += int.from_bytes(pulled.records[at : at + 4], "big")
            count += 1
        offset = pulled.next_offset
    return count


def wait_for_compaction(client: RocketmqClient, queue: MessageQueue) -> None:
    """Wait until no key occurs twice in closed files."""
    before = served(client, queue)
    wait_until(lambda: served(client, queue) < before)


def test_fetched_messages_equal_the_store(tmp_path: Path) -> None:
    """All bytes except the address are equal, after several fetches with open and closed files."""
    load = Load("orders")
    live, copied = tmp_path / "live", tmp_path / "copied"
    with make(tmp_path, {}).disposable() as broker, RocketmqClient(broker.name_server) as client:
        client.create_topic("orders", queues=2, attributes=COMPACTED)
        for count in (20, 90, 0, 55):
            load.send(client, count)
            ends = [client.bounds(queue)[1] for queue in client.route("orders").readable]
            wait_until(lambda ends=ends: sum(ends) == load.count)  # type: ignore[misc]
            report = fetch(broker, live, "orders")
            assert report.exit_status == 0
            assert [each.end_offset for each in report.partitions] == ends
            lastwrite.fetch([str(broker.store)], str(copied), include_active=True)
            for queue in (0, 1):
                found = [record for _, record in messages_in(live, "orders", queue)]
                assert found == [record for _, record in messages_in(copied, "orders", queue)]
    assert table_in(live, "orders", (0, 1)) == load.table == dict(lastwrite.latest(live, "orders"))
    assert lastwrite.verify(str(live)).exit_status == 0


def test_dropped_tombstones_are_fetched_from_the_commit_log(
    broker: Broker, client: RocketmqClient, tmp_path: Path
) -> None:
    load = Load("prices", keys=12)
    (queue,) = client.create_topic("prices", queues=1, attributes=COMPACTED).readable
    load.send(client, 70)
    fetch(broker, tmp_path / "a", "prices")
    for _ in range(3):
        sent = load.send(client, 80)
        wait_for_compaction(client, queue)
        assert fetch(broker, tmp_path / "a", "prices").exit_status == 0
        assert table_in(tmp_path / "a", "prices", [0]) == load.table
    offsets = [message.queue_offset for message, _ in messages_in(tmp_path / "a", "prices", 0)]
    assert offsets[-1] == sent[-1].offset
    # messages that the broker's compaction dropped were not fetched
    assert len(offsets) < load.count
    # a new archive does not need old tombstones
    assert fetch(broker, tmp_path / "b", "prices").exit_status == 0
    assert table_in(tmp_path / "b", "prices", [0]) == load.table


def test_keyless_members_of_batches_are_no_loss(
    broker: Broker, client: RocketmqClient, tmp_path: Path
) -> None:
    (queue,) = client.create_topic("batches", queues=1, attributes=COMPACTED).readable
    client.send(queue, OutgoingMessage("a", b"1"))
    assert fetch(broker, tmp_path, "batches").exit_status == 0
    client.send_batch(
        queue,
        [OutgoingMessage(None, b"x"), OutgoingMessage("b", b"2"), OutgoingMessage(None, b"y")],
    )
    client.send(queue, OutgoingMessage("c", b"3"))
    wait_until(lambda: client.pull(queue, 0).max_offset == 5)
    assert fetch(broker, tmp_path, "batches").exit_status == 0
    assert table_in(tmp_path, "batches", [0]) == {"a": b"1", "b": b"2", "c": b"3"}


def test_requests_are_signed_and_encrypted(tmp_path: Path) -> None:
    """ACL 2.0 of RocketMQ 5, whose signature is that of 4.x, and TLS with the server's self-signed
    certificate.
    """
    user = {"accessKey": "alice", "secretKey": "12345678"}
    provider = "org.apache.rocketmq.auth.authentication.provider."
    settings = {
        "authenticationEnabled": "true",
        "authenticationProvider": f"{provider}DefaultAuthenticationProvider",
        "authenticationMetadataProvider": f"{provider}LocalAuthenticationMetadataProvider",
        "initAuthenticationUser": '{"username":"alice","password":"12345678"}',
        "innerClientAuthenticationCredentials": json.dumps(user),
        "authConfigPath": str(tmp_path / "auth"),
    }
    with make(tmp_path, settings).disposable() as broker:
        known = RocketmqClientConfig.from_names(user)
        with RocketmqClient(broker.name_server, access=RequestCredentials(known)) as client:
            (queue,) = client.create_topic("secret", queues=1, attributes=COMPACTED).readable
            client.send(queue, OutgoingMessage("a", b"1"))
            wait_until(lambda: client.pull(queue, 0).max_offset == 1)
        with pytest.raises(RemoteFailed, match="refused"):
            fetch(broker, tmp_path / "a", "secret")
        with pytest.raises(RemoteFailed, match="refused"):
            fetch(broker, tmp_path / "a", "secret", config=user | {"secretKey": "wrong"})
        tls = user | {"tls.enable": True, "request.timeout.ms": 5000, "default.api.timeout.ms": 100}
        with pytest.raises(RemoteFailed, match="certificate"):
            fetch(broker, tmp_path / "a", "secret", config=tls)
        tls["tls.client.authServer"] = False
        assert fetch(broker, tmp_path / "a", "secret", config=tls).exit_status == 0
    assert table_in(tmp_path / "a", "secret", [0]) == {"a": b"1"}


def test_fetch_completes_through_broken_connections(
    broker: Broker, client: RocketmqClient, tmp_path: Path
) -> None:
    (queue,) = client.create_topic("far", queues=1, attributes=COMPACTED).readable
    for n in range(40):
        client.send(queue, OutgoingMessage(f"k{n % 7}", os.urandom(1_500)))
    wait_until(lambda: client.bounds(queue)[1] == 40)
    random = Random(1)
    sizes = [random.randint(2_000, 40_000) for _ in range(50)]
    before = BreakingProxy(sizes)
    names = BreakingProxy(sizes, renamed=(broker.address, before.address))
    with before.before(broker.address), names.before(broker.name_server):
        report = lastwrite.fetch([f"rocketmq://{names.address}"], str(tmp_path / "a"), topic="far")
    assert (report.exit_status, before.breaks > 0) == (0, True)
    assert fetch(broker, tmp_path / "b", "far").exit_status == 0
    assert messages_in(tmp_path / "a", "far", 0) == messages_in(tmp_path / "b", "far", 0)


class Killing(NoProgress):
    """Kills the broker when the first messages arrive."""

    def __init__(self, broker: Broker) -> None:
        self._broker: Broker | None = broker

    def advance(self, done_bytes: int) -> None:
        broker, self._broker = self._broker, None
        if broker is not None:
            broker.kill()


def test_vanished_broker_ends_the_fetch_and_the_next_continues(tmp_path: Path) -> None:
    config = {"default.api.timeout.ms": 2_000, "request.timeout.ms": 1_000}
    load = Load("gone", keys=300)
    with make(tmp_path, {}).disposable() as broker, RocketmqClient(broker.name_server) as client:
        (queue,) = client.create_topic("gone", queues=1, attributes=COMPACTED).readable
        load.send(client, 10)
        wait_until(lambda: client.bounds(queue)[1] == 10)
        assert fetch(broker, tmp_path / "a", "gone").exit_status == 0
        load.send(client, 200)
        wait_until(lambda: client.bounds(queue)[1] == 210)
        asked = {"config": config, "progress": Killing(broker)}
        report = fetch(broker, tmp_path / "a", "gone", **asked)
        (found,) = report.partitions
        assert found.held == "waiting" and 10 < (found.end_offset or 0) < 210
        assert f"no message from offset {found.end_offset} on arrived for " in str(found.reason)
        assert "default.api.timeout.ms" in str(found.reason)
        start_again(broker)
        assert fetch(broker, tmp_path / "a", "gone").exit_status == 0
    assert table_in(tmp_path / "a", "gone", [0]) == load.table


@pytest.mark.long
def test_lost_tombstones_are_reported(
    broker: Broker, client: RocketmqClient, tmp_path: Path
) -> None:
    load = Load("stock", keys=12)
    (queue,) = client.create_topic("stock", queues=1, attributes=COMPACTED).readable
    load.send(client, 70)
    fetch(broker, tmp_path / "a", "stock")
    before = table_in(tmp_path / "a", "stock", [0])
    load.send(client, 80)
    wait_for_compaction(client, queue)
    (filler,) = client.create_topic("filler", queues=1).writable
    end = client.bounds(queue)[1]

    def expired() -> bool:
        client.send(filler, OutgoingMessage("f", os.urandom(500_000)))
        with RocketmqConnection(broker.address) as connection:
            connection.request(_DELETE_EXPIRED, {})
        return client.bounds(queue)[0] >= end

    wait_until(expired)
    assert "deletes that the archive needs may be lost" in reason(
        fetch(broker, tmp_path / "a", "stock")
    )
    assert table_in(tmp_path / "a", "stock", [0]) == before
    assert fetch(broker, tmp_path / "b", "stock").exit_status == 0
    assert table_in(tmp_path / "b", "stock", [0]) == load.table
    accepted = fetch(broker, tmp_path / "a", "stock", accepts_gap=True)
    assert accepted.exit_status == 0 and accepted.partitions[0].gap is not None
    after = table_in(tmp_path / "a", "stock", [0])
    assert after.items() >= load.table.items()  # lost tombstones leave their keys in the table
    assert all(before[key] == value for key, value in after.items() if key not in load.table)


def delete(broker: Broker, client: RocketmqClient, topic: str) -> None:
    with (
        RocketmqConnection(broker.address) as connection,
        RocketmqConnection(broker.name_server) as names,
    ):
        connection.call(_DELETE_TOPIC_IN_BROKER, {"topic": topic})
        names.call(_DELETE_TOPIC_IN_NAME_SERVER, {"topic": topic, "clusterName": "tests"})
    wait_until(lambda: client.find_route(topic) is None)


def test_recreated_topic_is_refused(broker: Broker, client: RocketmqClient, tmp_path: Path) -> None:
    def create() -> MessageQueue:
        (queue,) = client.create_topic("again", queues=1, attributes=COMPACTED).readable
        return queue

    load = Load("again", keys=5)
    create()
    load.send(client, 30)
    assert fetch(broker, tmp_path, "again").exit_status == 0
    delete(broker, client, "again")
    queue = create()
    client.send(queue, OutgoingMessage("k1", b"of the new one"))
    wait_until(lambda: client.bounds(queue)[1] == 1)
    assert "created again" in reason(fetch(broker, tmp_path, "again"))


def test_recreated_topic_with_more_messages_is_data_loss(
    broker: Broker, client: RocketmqClient, tmp_path: Path
) -> None:
    """The broker keeps the old compaction log and appends from offset 30."""

    def create(messages: int) -> None:
        (queue,) = client.create_topic("more", queues=1, attributes=COMPACTED).readable
        load.send(client, messages)
        wait_until(lambda: client.bounds(queue)[1] == messages)

    def update(**options: Any) -> TableRound:
        to = str(tmp_path / "table")
        return lastwrite.table_to(str(broker.store), "more", to=to, format="parquet", **options)

    def opened() -> StreamReader:
        given = {"path": str(broker.store), "subscribe": "more", "startingOffsets": "earliest"}
        rows = DecodedRows(DecodingConfig(), ("offset", "value"), None)
        return StreamReader(parse(given, is_stream=True), rows)

    load = Load("more", keys=50)
    create(30)
    assert fetch(broker, tmp_path, "more").exit_status == 0
    lastwrite.fetch([str(broker.store)], str(tmp_path / "copy"), topic="more", include_active=True)
    update()
    checkpoint = opened().latestOffset(opened().initialOffset(), ReadAllAvailable())
    assert checkpoint["more"] == {"0": 30}
    with lastwrite.table(broker.store, "more") as table:
        assert list(table.follow(poll_s=None)) == []
        delete(broker, client, "more")
        create(45)
        with pytest.raises(CommitConflict, match="created again"):
            list(table.follow(poll_s=None))
    with pytest.raises(CommitConflict, match="created again"):
        update()
    with pytest.raises(CommitConflict, match="deleted and created again"):
        opened().partitions(checkpoint, opened().latestOffset(checkpoint, ReadAllAvailable()))
    assert "created again" in reason(fetch(broker, tmp_path, "more"))
    copied = lastwrite.fetch(
        [str(broker.store)], str(tmp_path / "copy"), topic="more", include_active=True
    )
    assert isinstance(copied, LogsFetched) and "created again" in reason(copied)


@pytest.mark.long
def test_uncompacted_topic_is_fetched_on_request(
    broker: Broker, client: RocketmqClient, tmp_path: Path
) -> None:
    load = Load("plain", keys=6)
    client.create_topic("plain", queues=2)
    load.send(client, 40)
    with pytest.raises(InvalidConfig, match="--topic-config plain:cleanup.policy=compact"):
        fetch(broker, tmp_path, "plain")
    with pytest.raises(NotALog, match="no topic with cleanup.policy=COMPACTION"):
        fetch(broker, tmp_path, "pl*")
    with pytest.raises(NotALog, match="did you mean plain"):
        fetch(broker, tmp_path, "plane")
    said = {"plain": {"cleanup.policy": "compact"}}
    assert fetch(broker, tmp_path, "plain", topic_config=said).exit_status == 0
    load.send(client, 30)
    wait_until(lambda: sum(client.bounds(q)[1] for q in client.route("plain").readable) == 70)
    assert fetch(broker, tmp_path, "plain", topic_config=said).exit_status == 0
    kept = [message for queue in (0, 1) for message in messages_in(tmp_path, "plain", queue)]
    assert len(kept) == 70
    report = lastwrite.compact(
        str(tmp_path), config={"min.cleanable.dirty.ratio": 0}, spark=None, now_ms=None
    )
    assert report.exit_status == 0
    assert table_in(tmp_path, "plain", (0, 1)) == load.table


def test_broker_that_may_skip_messages_is_refused(
    broker: Broker, client: RocketmqClient, tmp_path: Path
) -> None:
    client.create_topic("holes", queues=1, attributes=COMPACTED)
    client.set_broker_config("tests", {"searchBcqByCacheEnable": "true"})
    try:
        with pytest.raises(RemoteFailed, match="searchBcqByCacheEnable -v false"):
            fetch(broker, tmp_path, "holes", config={"default.api.timeout.ms": 100})
    finally:
        client.set_broker_config("tests", {"searchBcqByCacheEnable": "false"})


def test_fetch_command_prints_the_queues(
    broker: Broker, client: RocketmqClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load = Load("words")
    client.create_topic("words", queues=1, attributes=COMPACTED)
    load.send(client, 5)
    arguments = ["fetch", url(broker), "--topic", "words", "--to", str(tmp_path), "--rate", "1m"]
    with pytest.raises(SystemExit, match="0"):
        cli.main(arguments)
    assert "words-0" in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.parametrize("compacts", [False, True])
def test_kills_of_brokers_and_fetches_lose_and_duplicate_nothing(
    tmp_path: Path, compacts: bool
) -> None:
    """A fetch waits for a killed broker to restart.

    A broker that is killed while it exchanges the files of its own compaction does not restart
    (docs/formats/rocketmq-compaction.md), so a compacting broker is not killed.
    """
    archive = tmp_path / "archive"
    with make(
        tmp_path, (COMPACTING if compacts else {}) | {"flushDiskType": "SYNC_FLUSH"}
    ) as broker:
        with RocketmqClient(broker.name_server) as client:
            client.create_topic("orders", queues=2, attributes=COMPACTED)
        load, stop = Load("orders", keys=40), threading.Event()

        def send() -> None:
            with RocketmqClient(broker.name_server) as client:
                while not stop.is_set():
                    load.send(client, 5)

        command = [
            *(sys.executable, "-m", "lastwrite", "fetch", url(broker), "--topic", "orders"),
            *("--to", str(archive), "--rate", "20k"),
        ]
        for turn in range(4):
            stop.clear()
            sender = threading.Thread(target=send)
            sender.start()
            time.sleep(2)
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            time.sleep(3)
            stop.set()
            sender.join()
            if not compacts:
                broker.kill()
            if turn % 2:
                process.kill()
            if not compacts:
                start_again(broker)
            assert process.wait() == (-signal.SIGKILL if turn % 2 else 0)
        with RocketmqClient(broker.name_server) as client:
            ends = [client.bounds(queue)[1] for queue in client.route("orders").readable]
        assert fetch(broker, archive, "orders").exit_status == 0
    found = [messages_in(archive, "orders", queue) for queue in (0, 1)]
    assert sum(ends) == load.count
    assert [each[-1][0].queue_offset + 1 for each in found] == ends
    assert table_in(archive, "orders", (0, 1)) == load.table
    assert dict(lastwrite.latest(broker.store, "orders")) == load.table


def level(archive: Path, topic: str, queue: int, end: int) -> bool:
    manifest = archive / "rocketmq" / topic / str(queue) / "manifest.json"
    return manifest.exists() and json.loads(manifest.read_bytes())["log"]["end_offset"] >= end


def test_archive_follows_existing_and_new_topics(
    broker: Broker, client: RocketmqClient, tmp_path: Path
) -> None:
    """The second topic is created later. A topic that cannot be followed is reported."""
    loads = [Load("follow-a", 1), Load("follow-b", 2)]
    client.create_topic("follow-a", queues=1, attributes=COMPACTED)
    client.create_topic("follow-plain", queues=1)
    loads[0].send(client, 50)
    archive, told, followers = tmp_path / "archive", list[Event](), list[ArchiveFollower]()

    def run() -> None:
        lastwrite.follow(
            [url(broker)],
            str(archive),
            topic=["follow-*", "follow-plain"],
            every_s=0.2,
            tell=told.append,
            started=followers.append,
        )

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: level(archive, "follow-a", 0, 50))
    client.create_topic("follow-b", queues=1, attributes=COMPACTED)
    for load in loads:
        load.send(client, 60)
        wait_until(partial(level, archive, load.topic, 0, load.count))
    followers[0].request_stop()
    thread.join(60)
    assert not thread.is_alive()
    assert [table_in(archive, load.topic, [0]) for load in loads] == [each.table for each in loads]
    assert any("follow-plain is not followed" in str(each) for each in told)


def test_clean_with_a_source_follows_and_cleans(
    broker: Broker, client: RocketmqClient, tmp_path: Path
) -> None:
    """One topic is also compacted by the broker, the other is not."""
    load, plain = Load("cleaned", 3), Load("cleaned-plain", 4)
    client.create_topic("cleaned", queues=2, attributes=COMPACTED)
    client.create_topic("cleaned-plain", queues=1)
    archive, cleaners = tmp_path / "archive", list[Stoppable]()
    config = {
        "min.cleanable.dirty.ratio": "0.3",
        "log.cleaner.backoff.ms": "200",
        "request.timeout.ms": "20000",  # a client setting
        "accessKey": "nobody",
        "secretKey": "asks",
    }

    def run() -> None:
        lastwrite.clean(
            [str(archive)],
            config,
            spark=INLINE,
            follow=Follow(sources=[url(broker)], topic=["cleaned", "cleaned-plain"], every_s=0.2),
            topic_config={"cleaned-plain": {"cleanup.policy": "compact"}},
            started=cleaners.append,
        )

    archive.mkdir()
    thread = threading.Thread(target=run)
    thread.start()
    for _ in range(6):
        load.send(client, 40)
        plain.send(client, 20)
        wait_until(partial(level, archive, "cleaned-plain", 0, plain.count))
        ends = [client.bounds(queue)[1] for queue in client.route("cleaned").readable]
        for queue, end in enumerate(ends):
            wait_until(partial(level, archive, "cleaned", queue, end))

    def is_cleaned() -> bool:
        return all(len(messages_in(archive, name, 0)) < 90 for name in ("cleaned", "cleaned-plain"))

    wait_until(is_cleaned)
    cleaners[0].request_stop()
    thread.join(60)
    assert not thread.is_alive()
    assert dict(lastwrite.latest(archive, "cleaned")) == load.table
    assert dict(lastwrite.latest(archive, "cleaned-plain")) == plain.table
    assert lastwrite.verify(str(archive)).exit_status == 0
