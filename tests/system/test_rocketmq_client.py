"""Tests of our client against a real name server and broker: routes, sends, pulls, bounds and
refusals.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import lastwrite
from lastwrite import cli
from lastwrite.errors import InvalidConfig, RemoteFailed
from lastwrite.rocketmq.format.record import Compression, RocketmqMessage, body_of, decode_message
from lastwrite.rocketmq.network.client import PullCode, RocketmqClient
from lastwrite.rocketmq.network.outgoing import OutgoingMessage
from lastwrite.rocketmq.network.route import MessageQueue, queue_of
from tests.support.rocketmq.broker import (
    COMPACTED,
    OLD_VERSION,
    SMALL_FILES,
    Broker,
    Unavailable,
    rocketmq_home,
)
from tests.support.rocketmq.stock import Seen, StockClient

pytestmark = [pytest.mark.broker, pytest.mark.slow]

COUNT = 60


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    try:
        made = Broker(rocketmq_home(), tmp_path_factory.mktemp("rocketmq") / "store", SMALL_FILES)
    except Unavailable as reason:
        pytest.skip(str(reason))
    with made.disposable():
        yield made


@pytest.fixture
def client(broker: Broker) -> Iterator[RocketmqClient]:
    with RocketmqClient(broker.name_server) as client:
        yield client


def messages_of(records: bytes) -> list[RocketmqMessage]:
    found, at = [], 0
    while at < len(records):
        message = decode_message(records, at, len(records))
        assert message.body_crc_holds
        found.append(message)
        at += message.size
    return found


def wait_for(client: RocketmqClient, queue: MessageQueue, end: int, seconds: float = 120) -> None:
    """Wait until the broker serves all messages below ``end``."""
    deadline = time.monotonic() + seconds
    while client.pull(queue, 0).max_offset < end:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def pull_all(client: RocketmqClient, queue: MessageQueue, end: int) -> list[RocketmqMessage]:
    """All messages of a queue whose next offset is ``end``."""
    found: list[RocketmqMessage] = []
    offset = 0
    wait_for(client, queue, end)
    while (pulled := client.pull(queue, offset)).status is PullCode.FOUND:
        found += messages_of(pulled.records)
        offset = pulled.next_offset
    assert pulled.status is PullCode.NOT_FOUND
    assert offset == pulled.max_offset
    return found


def test_sent_messages_are_pulled_by_offset(broker: Broker, client: RocketmqClient) -> None:
    route = client.create_topic("kinds", 2, COMPACTED)
    assert [queue.queue for queue in route.writable] == [0, 1]
    kinds = [Compression.NONE, Compression.ZLIB, Compression.LZ4, Compression.ZSTD]
    sent: dict[int, list[tuple[str | None, bytes, str | None]]] = {0: [], 1: []}
    for n in range(COUNT):
        key, tag = f"key-{n % 7}", f"T{n % 3}" if n % 2 else None
        body = None if n % 5 == 4 else f"body {n} ".encode() * (n + 1)
        queue = queue_of(key, route.writable)
        stored = client.send(
            queue, OutgoingMessage(key, body, tag, {"n": str(n)}, kinds[n % 4], compress_from=100)
        )
        assert stored.offset == len(sent[queue.queue])
        assert len(stored.message_id) == 32
        sent[queue.queue].append((key, body or b"", tag))
    for queue in route.readable:
        found = [
            (message.keys, body_of(message), message.tags)
            for message in pull_all(client, queue, len(sent[queue.queue]))
        ]
        assert found == sent[queue.queue]
        assert client.bounds(queue) == (0, len(found))
    with StockClient(broker) as stock:
        for queue in route.readable:
            seen = stock.pull("kinds", queue.queue).messages
            assert [(one.key, one.body, one.tag) for one in seen] == sent[queue.queue]
        # The stock producer selects the same queue for the same key.
        for n in range(12):
            key = f"käse-{n}\U0001f9c0"
            assert stock.send("kinds", key, b"x")[0] == queue_of(key, route.writable).queue


def test_batch_is_stored_in_one_step(broker: Broker, client: RocketmqClient) -> None:
    (queue,) = client.create_topic("batches", 1, COMPACTED).writable
    client.send(queue, OutgoingMessage("first", b"1"))
    stored = client.send_batch(
        queue,
        [OutgoingMessage("a", b"1", "T"), OutgoingMessage("b", None), OutgoingMessage(None, b"3")],
    )
    assert [one.offset for one in stored] == [1, 2, 3]
    found = [
        (message.queue_offset, message.keys, message.body) for message in pull_all(client, queue, 3)
    ]
    # A message without a key is stored, but not copied to the compaction log.
    assert found == [
        (0, "first", b"1"),
        (1, "a", b"1"),
        (2, "b", b""),
    ]


def test_pull_beyond_the_queue_returns_its_bounds(client: RocketmqClient) -> None:
    (queue,) = client.create_topic("bounds", 1, COMPACTED).writable
    assert client.pull(queue, 0).status is PullCode.NOT_FOUND
    for n in range(3):
        client.send(queue, OutgoingMessage(f"k{n}", b"x"))
    wait_for(client, queue, 3)
    assert client.pull(queue, 3).status is PullCode.NOT_FOUND
    far = client.pull(queue, 100)
    assert (far.status, far.next_offset, far.max_offset) == (PullCode.MOVED, 0, 3)
    assert [
        message.queue_offset for message in messages_of(client.pull(queue, 1, count=1).records)
    ] == [1]


def test_refusals_of_brokers_are_reported(broker: Broker, client: RocketmqClient) -> None:
    (queue,) = client.create_topic("refusing", 1, COMPACTED).writable
    with pytest.raises(RemoteFailed, match="code 13.*key") as caught:
        client.send(queue, OutgoingMessage(None, b"x"))
    assert caught.value.path == broker.address
    with pytest.raises(RemoteFailed, match="the cluster has no topic nowhere"):
        client.route("nowhere")
    assert client.find_route("nowhere") is None
    with pytest.raises(RemoteFailed, match="code 29: queueId"):
        client.pull(MessageQueue("refusing", "tests", 7), 0)
    with pytest.raises(RemoteFailed, match="refused|no answer"):
        RocketmqClient("127.0.0.1:1", timeout=2).route("refusing")
    # The second name server is used if the first is down.
    with RocketmqClient(f"127.0.0.1:1;{broker.name_server}", timeout=5) as other:
        assert other.route("refusing").topic == "refusing"


def test_settings_of_a_running_broker_are_changed(client: RocketmqClient) -> None:
    (name,) = client.masters()
    assert client.broker_config(name)["searchBcqByCacheEnable"] == "false"
    client.set_broker_config(name, {"searchBcqByCacheEnable": "true"})
    assert client.broker_config(name)["searchBcqByCacheEnable"] == "true"
    client.set_broker_config(name, {"searchBcqByCacheEnable": "false"})


def test_send_command_sends_messages(
    broker: Broker, client: RocketmqClient, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    route = client.create_topic("sent", 2, COMPACTED)
    lines = tmp_path / "lines"
    lines.write_text(
        "".join(
            json.dumps({"key": f"k{n % 3}", "body": f"b{n}", "tag": "T"}) + "\n" for n in range(9)
        )
        + '\n{"key": "k0", "body": null}\n'
    )
    assert cli.run(["send", broker.name_server, "sent", "--lines", str(lines), "--json"]) == 0
    sent = json.loads(capfd.readouterr().out)["sent"]
    assert len(sent) == 10
    assert (
        cli.run(
            [
                "send",
                broker.name_server,
                "sent",
                "--key",
                "k1",
                "--body",
                "last",
                "--property",
                "a=b",
            ]
        )
        == 0
    )
    said = capfd.readouterr().out
    table: dict[str | None, bytes] = {}
    for queue in route.readable:
        for message in pull_all(client, queue, client.bounds(queue)[1]):
            assert queue_of(str(message.keys), route.writable) == queue
            table[message.keys] = body_of(message)
            if message.properties.get("a") == "b":
                assert said.startswith(f"sent-{queue.queue} @{message.queue_offset} ")
    assert table == {"k0": b"", "k1": b"last", "k2": b"b8"}
    lines.write_text('{"key": "k", "body": "x"}\n{"kee": "k"}\n')
    assert cli.run(["send", broker.name_server, "sent", "--lines", str(lines)]) == 2
    assert "line 2: a message has no field 'kee'" in capfd.readouterr().err
    assert cli.run(["send", broker.name_server, "sent", "--key", "k"]) == 2
    assert cli.run(["send", "nonsense", "sent", "--key", "k", "--delete"]) == 2
    with pytest.raises(
        InvalidConfig, match="sent has no writable queue with this number and broker"
    ):
        lastwrite.send(broker.name_server, "sent", [{"key": "k", "body": "x"}], queue=9)


def test_old_release_is_supported(tmp_path: Path) -> None:
    """RocketMQ 4.9.3: unquoted numbers in routes, no attributes, and only zlib."""
    try:
        old = Broker(rocketmq_home(OLD_VERSION), tmp_path / "store")
    except Unavailable as reason:
        pytest.skip(str(reason))
    with old.disposable(), RocketmqClient(old.name_server) as client:
        route = client.create_topic("old", 2)
        rng = np.random.default_rng(7)
        sent: dict[int, list[Seen]] = {0: [], 1: []}
        for n in range(20):
            key, body = f"k{n % 5}", bytes(rng.integers(97, 123, 50 * (n + 1), np.uint8))
            stored = client.send(
                queue_of(key, route.writable), OutgoingMessage(key, body, "T", compress_from=300)
            )
            sent[stored.queue.queue].append(Seen(stored.offset, key, "T", body))
        batch = client.send_batch(
            route.writable[1], [OutgoingMessage("a", b"1"), OutgoingMessage("b", b"2")]
        )
        sent[1] += [Seen(batch[0].offset, "a", None, b"1"), Seen(batch[1].offset, "b", None, b"2")]
        for queue in route.readable:
            found = [
                Seen(m.queue_offset, m.keys, m.tags, body_of(m))
                for m in pull_all(client, queue, len(sent[queue.queue]))
            ]
            assert found == sent[queue.queue]
        with StockClient(old) as stock:
            assert stock.pull("old", 1).messages == sent[1]
