"""Tests of a damaged commit log with a real broker.

Dispatch reports the damage, ``cut`` removes it, and an undo restores it.
"""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import lastwrite
from lastwrite.errors import LogHeld
from lastwrite.rocketmq.network.client import RocketmqClient
from lastwrite.rocketmq.network.outgoing import OutgoingMessage
from lastwrite.spark.inline import INLINE
from tests.support.rocketmq.broker import Broker, Unavailable, rocketmq_home
from tests.system.test_rocketmq_dispatch import (
    CONFIG,
    QUEUES,
    SETTINGS,
    TOPICS,
    below,
    consumed,
    damage,
    send,
)
from tests.unit.test_rocketmq_cut import everything

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.long]
TIMED = SETTINGS | {"timerWheelEnable": "true", "mappedFileSizeTimerLog": "536"}


@pytest.fixture(scope="module")
def home() -> Path:
    try:
        return rocketmq_home()
    except Unavailable as reason:
        pytest.skip(str(reason))


def test_broker_continues_after_a_cut_and_undo_restores_everything(
    home: Path, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    rng = random.Random(7)
    with Broker(home, store, SETTINGS) as broker, RocketmqClient(broker.name_server) as client:
        queues = {
            topic: client.create_topic(topic, 2, attributes).writable
            for topic, attributes in TOPICS.items()
        }
        for n in range(240):
            send(client, queues, rng, n)
        seen = consumed(broker, QUEUES)
    at, firsts = damage(store, 0.6)
    assert firsts.keys() == set(QUEUES) and all(firsts.values())
    before = everything(store)

    report = lastwrite.dispatch(str(store), config=CONFIG, whole_log=True, spark=INLINE)
    assert report.exit_status == 3 and everything(store) == before
    assert (
        report.damage is not None
        and report.damage.physical_offset == at
        and report.damage.records_beyond == 95
    )
    (lost,) = report.damage.lost
    assert (
        lost.first == lost.last == firsts[lost.topic, lost.queue] and lost.source == "consume queue"
    )

    lastwrite.cut(str(store), at=at)
    kept = below(seen, firsts)
    with Broker(home, store, SETTINGS) as broker, RocketmqClient(broker.name_server) as client:
        with pytest.raises(LogHeld):
            lastwrite.cut(str(store), undo=True)
        assert consumed(broker, QUEUES) == kept
    # The broker stored no message, so an undo is allowed. Other files that a broker's start
    # rewrites do not belong to the log.
    undone = lastwrite.cut(str(store), undo=True)
    after = everything(store)
    trees = ("commitlog/", "consumequeue/", "batchconsumequeue/", "index/", "compaction/")
    assert {name: data for name, data in after.items() if name.startswith(trees)} == {
        name: data for name, data in before.items() if name.startswith(trees)
    }
    assert undone.records == 95 and not [
        path for path in store.rglob("*") if ".before-cut" in path.name
    ]

    lastwrite.cut(str(store), at=at)
    with Broker(home, store, SETTINGS) as broker, RocketmqClient(broker.name_server) as client:
        queues = {topic: client.route(topic).writable for topic in TOPICS}
        for n in range(90):
            send(client, queues, rng, n)
        more = consumed(broker, QUEUES)
    for name, messages in kept.items():
        assert more[name][: len(messages)] == messages
        assert [one.offset for one in more[name][len(messages) :]] == list(
            range(firsts[name], firsts[name] + len(more[name]) - len(messages))
        )
    assert sum(map(len, more.values())) == 144 + 90
    with pytest.raises(LogHeld, match="has new records since"):
        lastwrite.cut(str(store), undo=True)
    # All trees derived from the log, including keys, equal rebuilt ones.
    made = everything(store)
    copy = Path(shutil.copytree(store, tmp_path / "copy"))
    for tree in ("consumequeue", "batchconsumequeue", "index", "compaction"):
        shutil.rmtree(copy / tree)
    assert lastwrite.dispatch(str(copy), config=CONFIG, spark=INLINE).exit_status == 0
    for tree in (
        "consumequeue/",
        "batchconsumequeue/",
        "compaction/compactionLog/",
        "compaction/compactionCq/",
    ):
        ours = {name: data for name, data in everything(copy).items() if name.startswith(tree)}
        assert ours == {name: data for name, data in made.items() if name.startswith(tree)}
    old, new = (
        [data for name, data in sorted(some.items()) if name.startswith("index/")]
        for some in (made, everything(copy))
    )
    assert old == new


def until(done: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_timer_of_a_broker_continues_after_a_cut(home: Path, tmp_path: Path) -> None:
    """The timer delivers kept messages and new ones, but no removed ones. It repeats those that it
    delivered after the cut.
    """
    store = tmp_path / "store"
    with Broker(home, store, TIMED) as broker, RocketmqClient(broker.name_server) as client:
        (queue,) = client.create_topic("timed", 1).writable

        def send_timed(key: str, seconds: int, count: int = 1) -> None:
            for _ in range(count):
                properties = {"TIMER_DELAY_SEC": str(seconds)}
                client.send(queue, OutgoingMessage(key, key.encode(), None, properties))

        send_timed("early", 1)
        until(lambda: client.bounds(queue)[1] == 1)
        send_timed("late", 45, 12)
        send_timed("again", 3)
        client.send(queue, OutgoingMessage("marker", b"m"))
        send_timed("gone", 45, 12)
        until(lambda: client.bounds(queue)[1] == 3)
    rows = lastwrite.dump(str(store), topic="timed")
    (at,) = [row["physical_offset"] for row in rows if row["properties"].get("KEYS") == "marker"]
    planned = lastwrite.cut(str(store), at=at, dry_run=True)
    assert planned.timer is not None and planned.timer.units_removed == 12
    lastwrite.cut(str(store), at=at)
    with (
        Broker(home, store, TIMED).disposable() as broker,
        RocketmqClient(broker.name_server) as client,
    ):
        (queue,) = client.route("timed").writable
        client.send(queue, OutgoingMessage("new", b"n", None, {"TIMER_DELAY_SEC": "2"}))
        until(lambda: client.bounds(queue)[1] >= 15, 90)
        time.sleep(3)  # any further message would have arrived by now
        seen = consumed(broker, [("timed", 0)])["timed", 0]
        said = broker.logged("store.log")
    assert seen[0].key == "early"
    assert Counter(one.key for one in seen) == {"early": 1, "late": 12, "again": 1, "new": 1}
    assert "Fail to read msg from commitLog" not in said
