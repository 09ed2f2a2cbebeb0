"""Tests that ``read`` equals the real broker's responses at every offset.

Status, next offset, bounds and messages are compared.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import lastwrite
from lastwrite.reports.compaction import Status
from lastwrite.rocketmq.format.record import decode_message
from lastwrite.rocketmq.network.client import PullResponse, RocketmqClient
from lastwrite.rocketmq.network.route import MessageQueue
from lastwrite.spark.inline import INLINE
from tests.support.rocketmq.broker import COMPACTED, SMALL_FILES, Broker, Unavailable, rocketmq_home
from tests.support.rocketmq.routes import await_route
from tests.support.rocketmq.scenario import Topic, wait_until_dispatched

pytestmark = [pytest.mark.broker, pytest.mark.slow]

CONFIG = {"min.cleanable.dirty.ratio": 0, "delete.retention.ms": 0}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    try:
        made = Broker(rocketmq_home(), tmp_path / "store", SMALL_FILES)
    except Unavailable as reason:
        pytest.skip(str(reason))
    yield made
    made.kill()


def offsets_in(pulled: PullResponse) -> list[int]:
    found, at = [], 0
    while at < len(pulled.records):
        message = decode_message(pulled.records, at, len(pulled.records))
        found.append(message.queue_offset)
        at += message.size
    return found


def check_every_offset(client: RocketmqClient, queue: MessageQueue, copy: Path) -> set[str]:
    """Compare ``read`` with pulls at each offset and a few beyond, with several response sizes."""
    seen = set()
    path, topic, number = str(copy), queue.topic, queue.queue
    largest = lastwrite.read(path, topic=topic, queue=number, limit=0)
    list(largest)
    for offset in (*range(largest.max_offset + 4), largest.max_offset + 1000):
        for most in (32, 5):
            pulled = client.pull(queue, offset, most)
            reading = lastwrite.read(
                path, topic=topic, queue=number, offset=offset, limit=most, one_pull=True
            )
            rows = [row["queue_offset"] for row in reading]
            told = (reading.code, reading.next_offset, reading.min_offset, reading.max_offset, rows)
            answered = (
                int(pulled.status),
                pulled.next_offset,
                pulled.min_offset,
                pulled.max_offset,
                offsets_in(pulled),
            )
            assert told == answered, (topic, number, offset, most, reading.status)
            seen.add(str(reading.status))
    return seen


@pytest.mark.long
def test_every_offset_has_the_brokers_response(broker: Broker, tmp_path: Path) -> None:
    rng = random.Random(15)
    topics = {name: Topic(name, 2) for name in ("whole", "compacted", "emptied")}
    with broker, RocketmqClient(broker.name_server) as client:
        for topic in topics.values():
            client.create_topic(topic.name, topic.queues, COMPACTED)
            topic.produce(client, 150, rng, keys=12)
        client.create_topic("fresh", 1, COMPACTED)
        for topic in topics.values():
            wait_until_dispatched(topic, client)
        # Beside a running broker (more in test_rocketmq_live_files.py).
        assert list(lastwrite.read(str(broker.store), topic="whole", queue=0))
        assert lastwrite.latest(str(broker.store), topic="whole")

    report = lastwrite.compact(str(broker.store), topic="compacted", config=CONFIG, spark=INLINE)
    assert {partition.status for partition in report.partitions} == {Status.CLEANED}
    # File pairs without a unit, as another program might leave them: the first pair of queue 0, and
    # a middle one of queue 1.
    for queue, place in ((0, 0), (1, 1)):
        for part in ("compactionLog", "compactionCq"):
            path = sorted((broker.store / "compaction" / part / "emptied" / str(queue)).iterdir())[
                place
            ]
            path.write_bytes(bytes(path.stat().st_size))
    copy = tmp_path / "copy"
    shutil.copytree(broker.store, copy)

    seen: set[str] = set()
    with broker, RocketmqClient(broker.name_server) as client:
        for name in (*topics, "fresh"):
            for queue in await_route(client, name).readable:
                seen |= check_every_offset(client, queue, copy)
    assert seen == {
        "FOUND",
        "OFFSET_OVERFLOW_ONE",
        "OFFSET_OVERFLOW_BADLY",
        "OFFSET_FOUND_NULL",
        "NO_MESSAGE_IN_QUEUE",
    }
