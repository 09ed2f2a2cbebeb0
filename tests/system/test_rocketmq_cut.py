"""A damaged commit log and a real broker: dispatch says it, cut does it, the broker goes on, undo
puts all back.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

import lastwrite
from lastwrite.errors import LogHeld
from lastwrite.rocketmq.network.client import Client
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


@pytest.fixture(scope="module")
def home() -> Path:
    try:
        return rocketmq_home()
    except Unavailable as reason:
        pytest.skip(str(reason))


def test_a_broker_goes_on_after_a_cut_and_an_undo_puts_all_back(home: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    rng = random.Random(7)
    with Broker(home, store, SETTINGS) as broker, Client(broker.name_server) as client:
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
    with Broker(home, store, SETTINGS) as broker, Client(broker.name_server) as client:
        with pytest.raises(LogHeld):
            lastwrite.cut(str(store), undo=True)
        assert consumed(broker, QUEUES) == kept
    # The broker wrote nothing, so an undo may follow; what a broker's start writes anew besides is
    # not the log's.
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
    with Broker(home, store, SETTINGS) as broker, Client(broker.name_server) as client:
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
    with pytest.raises(LogHeld, match="gone on"):
        lastwrite.cut(str(store), undo=True)
    # All that follows from the log agrees with it, keys too: made anew it is the same.
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
