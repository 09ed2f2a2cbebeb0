"""Tests of a day of following RocketMQ in minutes.

Broker and daemons are killed, the bucket is unavailable, and a disk is full. A broker that dies
while it exchanges the files of its own compaction does not restart
(docs/formats/rocketmq-compaction.md), so a compacting broker is only suspended.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from functools import partial
from pathlib import Path

import pytest

import lastwrite
from lastwrite.archive.layout import partition_address
from lastwrite.config.stores import store_settings
from lastwrite.errors import LogError
from lastwrite.rocketmq.format.record import body_of, decode_message
from lastwrite.rocketmq.network.client import PullCode, RocketmqClient
from lastwrite.rocketmq.network.outgoing import OutgoingMessage
from lastwrite.rocketmq.network.route import queue_of
from lastwrite.rocketmq.store.archived import SYSTEM, read_contents
from lastwrite.storage.objects import address
from tests.support.day import WAITS, Running, config_words, live_through, until_level
from tests.support.objects import s3_server
from tests.support.rocketmq.broker import COMPACTED, SMALL_FILES, Broker, Unavailable, rocketmq_home
from tests.support.rocketmq.live import COMPACTING, messages_in, start_again

pytestmark = [pytest.mark.broker, pytest.mark.long]

TABLE, LOG, QUEUES = "day-table", "day-log", 2
# Acknowledged messages survive a kill of the broker. A file has 105 messages.
SETTINGS = SMALL_FILES | {
    "flushDiskType": "SYNC_FLUSH",
    "compactionMappedFileSize": "25300",
    "compactionCqMappedFileSize": "5060",
    "waitTimeMillsInSendQueue": "60000",
}

Row = tuple[int, str, bytes]  # queue offset, key, body


class Load:
    """Writes repeated keys and deletes to both topics until ``stop``, also during failures."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._is_over = threading.Event()
        self._rng = random.Random(18)
        self.answered: dict[tuple[str, int], set[int]] = {}  # offsets by topic and queue
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def _write(self) -> None:
        while not self._is_over.is_set():
            try:
                with RocketmqClient(self._broker.name_server) as client:
                    while not self._is_over.wait(0.05):
                        for topic in (TABLE, LOG) * 5:
                            self._send(client, topic)
            except LogError:  # the server is down: try again
                self._is_over.wait(0.5)

    def _send(self, client: RocketmqClient, topic: str) -> None:
        key = f"k{self._rng.randrange(300)}"
        is_delete = topic == TABLE and self._rng.random() < 0.15
        message = OutgoingMessage(key, None if is_delete else self._rng.randbytes(60))
        queue = queue_of(key, client.route(topic).writable)
        offset = client.send(queue, message).offset
        self.answered.setdefault((topic, queue.queue), set()).add(offset)

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join(120)
        assert not self._thread.is_alive()


def pulled(broker: Broker, topic: str, queue: int) -> list[Row]:
    """All messages that a consumer gets."""
    rows: list[Row] = []
    with RocketmqClient(broker.name_server) as client:
        (there,) = [each for each in client.route(topic).readable if each.queue == queue]
        offset = 0
        while (found := client.pull(there, offset)).status is PullCode.FOUND:
            at = 0
            while at < len(found.records):
                message = decode_message(found.records, at, len(found.records))
                assert message.keys is not None
                rows.append((message.queue_offset, message.keys, body_of(message, 1 << 20)))
                at += message.size
            offset = found.next_offset
    return rows


def table_of(broker: Broker) -> dict[str, bytes]:
    table: dict[str, bytes] = {}
    for queue in range(QUEUES):
        for _, key, body in pulled(broker, TABLE, queue):
            if body:
                table[key] = body
            else:
                table.pop(key, None)
    return table


def is_level(broker: Broker, archive: str, config: dict[str, str]) -> bool:
    address.use(store_settings(config))
    with RocketmqClient(broker.name_server) as client:
        ends = {
            (topic, queue.queue): client.bounds(queue)[1]
            for topic in (TABLE, LOG)
            for queue in client.route(topic).readable
        }
    try:
        return all(
            read_contents(partition_address(archive, SYSTEM, *place)).end_offset == end
            for place, end in ends.items()
        )
    except LogError:  # not created yet
        return False


def check_table(broker: Broker, archive: str, config: dict[str, str]) -> None:
    assert dict(lastwrite.latest(archive, TABLE, config=config)) == table_of(broker)
    assert lastwrite.verify(archive, config=config).exit_status == 0


def check_log(broker: Broker, load: Load, archive: str) -> None:
    """Each message is there once and in order, and no acknowledged message is missing."""
    for queue in range(QUEUES):
        messages = [message for message, _ in messages_in(Path(archive), LOG, queue)]
        rows = [(each.queue_offset, str(each.keys), body_of(each, 1 << 20)) for each in messages]
        assert rows == pulled(broker, LOG, queue)
        assert [offset for offset, _, _ in rows] == list(range(len(rows)))
        assert load.answered[LOG, queue] <= {offset for offset, _, _ in rows}


class Silent:
    """A broker that is suspended for a while instead of killed."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def kill(self) -> None:
        os.kill(self._broker.pid, signal.SIGSTOP)

    stop = kill

    def start(self) -> None:
        time.sleep(5)
        os.kill(self._broker.pid, signal.SIGCONT)


@pytest.mark.parametrize("compacts", [False, True])
def test_archive_stays_correct_through_kills_and_outages(
    tmp_path: Path, small_disk: Path, compacts: bool
) -> None:
    try:
        home = rocketmq_home()
    except Unavailable as reason:
        pytest.skip(str(reason))
    broker = Broker(home, tmp_path / "store", SETTINGS | (COMPACTING if compacts else {}))
    folder = str(small_disk / "archive")
    with broker.disposable(), s3_server(tmp_path / "s3") as server:
        with RocketmqClient(broker.name_server) as client:
            client.create_topic(TABLE, queues=QUEUES, attributes=COMPACTED)
            client.create_topic(LOG, queues=QUEUES)
        source = f"rocketmq://{broker.name_server}"
        common = [
            *("--topic", TABLE, "--topic", LOG, "--every", "1", *WAITS),
            *("--topic-config", f"{LOG}:cleanup.policy=compact"),
            *config_words({"request.timeout.ms": "5000"}),
        ]
        load = Load(broker)
        cleaning = Running(
            tmp_path / "cleaning.log",
            *("clean", "--source", source, "--to", "s3://archive/day", *common),
            *config_words(server.config | {"log.cleaner.backoff.ms": "2000"}),
            *config_words({"min.cleanable.dirty.ratio": "0.01"}),
            *("--master", "local[2]"),
        )
        following = Running(
            tmp_path / "following.log", "fetch", source, "--to", folder, "--follow", *common
        )
        silent = Silent(broker)
        lives, start = (
            (silent, silent.start) if compacts else (broker, partial(start_again, broker))
        )
        live_through(lives, start, server, small_disk, cleaning, following)
        load.stop()
        for archive, config in (("s3://archive/day", server.config), (folder, {})):
            until_level(partial(is_level, broker, archive, config), (cleaning, following))
        cleaning.stop()
        following.stop()
        assert sum(map(len, load.answered.values())) > 1000
        assert any(each["event"] == "round" for each in cleaning.events())
        check_table(broker, "s3://archive/day", server.config)
        check_table(broker, folder, {})
        check_log(broker, load, folder)
