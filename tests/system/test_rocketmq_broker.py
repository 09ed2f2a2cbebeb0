"""Tests of RocketMQ on our files: produce, stop, dispatch, compact, start, consume.

Finally the broker runs its own compaction on them.
"""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import lastwrite
from lastwrite.errors import LogHeld
from lastwrite.reports.compaction import Status
from lastwrite.rocketmq.network.client import RocketmqClient
from lastwrite.spark.inline import INLINE
from tests.support.rocketmq.broker import (
    COMPACTED,
    SIZES,
    SMALL_FILES,
    Broker,
    Unavailable,
    rocketmq_home,
)
from tests.support.rocketmq.scenario import Topic, active_from, wait_until_dispatched
from tests.support.rocketmq.stock import StockClient

pytestmark = [pytest.mark.broker, pytest.mark.slow]

DAY_MS = 86_400_000
AT_ONCE = {"min.cleanable.dirty.ratio": 0, "delete.retention.ms": 0}
LATER = {"min.cleanable.dirty.ratio": 0, "delete.retention.ms": DAY_MS}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    try:
        made = Broker(rocketmq_home(), tmp_path / "store", SMALL_FILES)
    except Unavailable as reason:
        pytest.skip(str(reason))
    yield made
    made.kill()


def compact(store: Path, topic: Topic, config: dict[str, object], **options: bool) -> None:
    report = lastwrite.compact(
        str(store),
        system="rocketmq",
        topic=topic.name,
        config=config,
        spark=INLINE,
        like_broker=options.get("like_broker", False),
    )
    assert [partition.status for partition in report.partitions] == [
        Status.CLEANED
    ] * topic.queues, report.to_dict()


def positions(store: Path) -> dict[str, int]:
    path = store / "compaction" / "position-checkpoint"
    found: dict[str, int] = json.loads(path.read_text())["queueOffsetMap"] if path.exists() else {}
    return found


@pytest.mark.parametrize(
    "like_broker",
    [False, pytest.param(True, marks=pytest.mark.long)],
    ids=["in place", "like the broker"],
)
def test_broker_continues_after_our_compaction(broker: Broker, like_broker: bool) -> None:
    rng = random.Random(6)
    topic = Topic("table", 2)
    with broker, RocketmqClient(broker.name_server) as client:
        client.create_topic(topic.name, topic.queues, COMPACTED)
        topic.produce(client, 320, rng)
        wait_until_dispatched(topic, client)
        with pytest.raises(LogHeld):
            compact(broker.store, topic, dict(AT_ONCE))

    # All dispatched trees are lost and rebuilt from the commit log.
    for tree in ("compaction", "consumequeue", "index"):
        shutil.rmtree(broker.store / tree)
    lastwrite.dispatch(str(broker.store), config=dict(SIZES), spark=INLINE)
    boundaries = {queue: active_from(broker.store, topic.name, queue) for queue in topic.messages}
    assert min(boundaries.values()) > 60  # several files of each kind
    compact(broker.store, topic, dict(AT_ONCE if like_broker else LATER), like_broker=like_broker)
    for queue, end in boundaries.items():
        topic.compact(queue, end, drops_deletes=like_broker)

    with broker, StockClient(broker) as stock, RocketmqClient(broker.name_server) as client:
        topic.check(stock)
        topic.produce_stock(stock, 30, rng)
        topic.produce(client, 150, rng)
        wait_until_dispatched(topic, client)
        topic.check(stock)

    # A second round compacts new and already compacted messages. Expired tombstones are removed.
    boundaries = {queue: active_from(broker.store, topic.name, queue) for queue in topic.messages}
    compact(broker.store, topic, dict(AT_ONCE), like_broker=like_broker)
    for queue, end in boundaries.items():
        topic.compact(queue, end)
    with broker, StockClient(broker) as stock, RocketmqClient(broker.name_server) as client:
        topic.check(stock)
        topic.produce(client, 150, rng)
        wait_until_dispatched(topic, client)

    # The broker's own compaction continues with our files and positions.
    boundaries = {queue: active_from(broker.store, topic.name, queue) for queue in topic.messages}
    before = positions(broker.store)
    eager = Broker(broker.home, broker.store, {**SMALL_FILES, "compactionScheduleInternal": "1000"})
    with eager.disposable(), StockClient(eager) as stock:
        deadline = time.monotonic() + 90
        while any(
            positions(broker.store).get(f"table_{queue}", -1) < end - 1
            for queue, end in boundaries.items()
        ):
            assert time.monotonic() < deadline, (before, positions(broker.store), boundaries)
            time.sleep(0.2)
        for queue, end in boundaries.items():
            assert before[f"table_{queue}"] < end - 1
            topic.compact(queue, end)
        topic.check(stock)


@pytest.mark.long
def test_archive_is_compacted_to_its_end(broker: Broker) -> None:
    rng = random.Random(7)
    topic = Topic("archive", 2)
    with broker, RocketmqClient(broker.name_server) as client:
        client.create_topic(topic.name, topic.queues, COMPACTED)
        topic.produce(client, 200, rng)
        wait_until_dispatched(topic, client)
    report = lastwrite.compact(
        str(broker.store),
        system="rocketmq",
        topic=topic.name,
        config=dict(LATER),
        spark=INLINE,
        include_active=True,
    )
    assert {partition.status for partition in report.partitions} == {Status.CLEANED}
    for queue, messages in topic.messages.items():
        topic.compact(queue, messages[-1].offset + 1, drops_deletes=False)
    with (
        broker.disposable(),
        StockClient(broker) as stock,
        RocketmqClient(broker.name_server) as client,
    ):
        topic.check(stock)
        topic.produce(client, 60, rng)
        wait_until_dispatched(topic, client)
        topic.check(stock)
