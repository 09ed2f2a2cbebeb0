"""Tests of dispatch against a real broker: lost trees are rebuilt byte for byte, and the broker
continues.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import lastwrite
from lastwrite.rocketmq.network.access import RequestCredentials
from lastwrite.rocketmq.network.client import RequestCode, RocketmqClient
from lastwrite.rocketmq.network.connection import RocketmqConnection
from lastwrite.rocketmq.network.outgoing import OutgoingMessage
from lastwrite.rocketmq.network.route import MessageQueue
from lastwrite.rocketmq.store.trees import GUARD
from lastwrite.spark.inline import INLINE
from tests.support.rocketmq.broker import COMPACTED, SMALL_FILES, Broker, Unavailable, rocketmq_home
from tests.support.rocketmq.dispatch import Files, read_dispatched
from tests.support.rocketmq.stock import Seen, StockClient

pytestmark = [pytest.mark.broker, pytest.mark.slow]

SETTINGS = {
    **SMALL_FILES,
    "mappedFileSizeCommitLog": "65536",
    "mappedFileSizeConsumeQueue": "2000",
    "mapperFileSizeBatchConsumeQueue": "4600",
    "maxHashSlotNum": "100",
    "maxIndexNum": "300",
    "enableLmq": "true",
    "enableMultiDispatch": "true",
}
CONFIG: dict[str, object] = {
    name: value for name, value in SETTINGS.items() if name != "mappedFileSizeCommitLog"
}
TREES = ("consumequeue", "batchconsumequeue", "index", "compaction")
TOPICS: dict[str, dict[str, str]] = {
    "kept": COMPACTED,
    "plain": {},
    "batched": {"queue.type": "BatchCQ"},
}
# Names of light queues in a message: none, one, two, one twice, and one beside an ordinary name.
LIGHT = [None, "%LMQ%a", "%LMQ%b,%LMQ%a", "%LMQ%b,%LMQ%b", "%LMQ%a,other"]
QUEUES = [(topic, queue) for topic in TOPICS for queue in (0, 1)]
Queues = dict[tuple[str, int], list[Seen]]


@pytest.fixture(scope="module")
def home() -> Path:
    try:
        return rocketmq_home()
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def written(
    home: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[tuple[str, int], list[Seen]]]:
    """A store of an orderly stopped broker, and what a consumer got from each queue."""
    store = tmp_path_factory.mktemp("dispatch") / "store"
    rng = random.Random(4)
    with Broker(home, store, SETTINGS) as broker, RocketmqClient(broker.name_server) as client:
        queues = {
            topic: client.create_topic(topic, 2, attributes).writable
            for topic, attributes in TOPICS.items()
        }
        for n in range(300):
            send(client, queues, rng, n)
        # Due in hours: these messages wait in a queue whose units contain their due times.
        for level in (17, 18, 18):
            client.send(
                queues["plain"][0], OutgoingMessage("later", b"later", "T1", {"DELAY": str(level)})
            )
        seen = consumed(broker, QUEUES)
    return store, seen


def send(
    client: RocketmqClient, queues: dict[str, Sequence[MessageQueue]], rng: random.Random, n: int
) -> None:
    topic = rng.choice(list(TOPICS))
    key = f"k{rng.randrange(20)}" + (" other" if rng.random() < 0.2 else "")
    body = b"%d " % n * rng.randrange(1, 60)
    tag, light = rng.choice([None, "T1", "größe"]), rng.choice(LIGHT)
    properties = {} if light is None else {"INNER_MULTI_DISPATCH": light}
    client.send(rng.choice(queues[topic]), OutgoingMessage(key, body, tag, properties))


def light_end(broker: Broker, topic: str) -> int:
    """The next offset of a light queue from the broker. Name servers have no route for
    such queues.
    """
    connection = RocketmqConnection(broker.address, 10, RequestCredentials())
    try:
        fields = {"topic": topic, "queueId": "0"}
        answer = connection.call(RequestCode.MAX_OFFSET, fields, doing="asking for the offset")
        return int(answer.fields["offset"])
    finally:
        connection.close()


def consumed(
    broker: Broker, queues: Sequence[tuple[str, int]]
) -> dict[tuple[str, int], list[Seen]]:
    with StockClient(broker) as stock:
        return {(topic, queue): stock.pull(topic, queue).messages for topic, queue in queues}


@pytest.fixture
def store(written: tuple[Path, object], tmp_path: Path) -> Iterator[Path]:
    yield Path(shutil.copytree(written[0], tmp_path / "store"))


def dispatched(store: Path) -> Files:
    return {
        name: data
        for name, data in read_dispatched(store).items()
        if "position-checkpoint" not in name
    }


@pytest.mark.parametrize("lost", [TREES, *((tree,) for tree in TREES)], ids="+".join)
def test_lost_trees_are_rebuilt_as_the_broker_built_them(store: Path, lost: Sequence[str]) -> None:
    before = dispatched(store)
    assert {name.split("/")[0] for name in before} == set(TREES)
    assert any("SCHEDULE_TOPIC_XXXX/17" in name for name in before)
    assert any("%LMQ%b" in name for name in before)
    for tree in lost:
        shutil.rmtree(store / tree)
    report = lastwrite.dispatch(str(store), config=CONFIG, spark=INLINE)
    after = dispatched(store)
    assert (
        sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
        == []
    )
    assert report.exit_status == 0


def test_broker_continues_with_the_result(
    home: Path, store: Path, written: tuple[Path, dict[tuple[str, int], list[Seen]]]
) -> None:
    for tree in TREES:
        shutil.rmtree(store / tree)
    report = lastwrite.dispatch(str(store), config=CONFIG, spark=INLINE)
    assert report.exit_status == 0
    made = dispatched(store)
    rng = random.Random(5)
    with Broker(home, store, SETTINGS) as broker, RocketmqClient(broker.name_server) as client:
        assert consumed(broker, list(written[1])) == written[1]
        ends = {q.topic: q.next_offset for q in report.queues if q.topic.startswith("%LMQ%")}
        assert ends.keys() == {"%LMQ%a", "%LMQ%b"} and min(map(int, ends.values())) > 20
        assert {topic: light_end(broker, topic) for topic in ends} == ends
        queues = {topic: client.route(topic).writable for topic in TOPICS}
        for n in range(60):
            send(client, queues, rng, n)
        more = consumed(broker, list(written[1]))
    for name, messages in written[1].items():
        assert more[name][: len(messages)] == messages
    assert sum(map(len, more.values())) == 360
    # The broker only appended to its files, and we would create the same new ones.
    after = dispatched(store)
    assert made.keys() <= after.keys()
    for tree in TREES:
        shutil.rmtree(store / tree)
    lastwrite.dispatch(str(store), config=CONFIG, spark=INLINE)
    again = dispatched(store)
    assert (
        sorted(name for name in after.keys() | again.keys() if after.get(name) != again.get(name))
        == []
    )


def damage(store: Path, share: float) -> tuple[int, dict[tuple[str, int], int]]:
    """Destroy the header of a record.

    Returns its physical offset, and the offset of each queue's first message from there.
    """
    rows = [row for row in lastwrite.dump(str(store)) if row["topic"] in TOPICS]
    row = rows[int(len(rows) * share)]
    with open(row["file"], "r+b") as file:
        file.seek(row["position"] + 5)
        file.write(b"\xee" * 20)
    firsts: dict[tuple[str, int], int] = {}
    for later in rows[int(len(rows) * share) :]:
        firsts.setdefault((later["topic"], later["queue_id"]), later["queue_offset"])
    return row["physical_offset"], firsts


def below(seen: Queues, firsts: dict[tuple[str, int], int]) -> Queues:
    return {
        name: [one for one in messages if one.offset < firsts.get(name, 1 << 62)]
        for name, messages in seen.items()
    }


@pytest.mark.long
def test_broker_continues_after_a_cut(
    home: Path, store: Path, written: tuple[Path, dict[tuple[str, int], list[Seen]]]
) -> None:
    """``test_rocketmq_cut`` tests more, including an undo."""
    at, firsts = damage(store, 0.6)
    before = dispatched(store)
    report = lastwrite.dispatch(str(store), config=CONFIG, whole_log=True, spark=INLINE)
    assert report.exit_status == 3 and dispatched(store) == before
    assert report.damage is not None and report.damage.physical_offset == at
    (lost,) = report.damage.lost
    assert (
        lost.first == lost.last == firsts[lost.topic, lost.queue] and lost.source == "consume queue"
    )
    lastwrite.cut(str(store), at=at)
    kept = below(written[1], firsts)
    rng = random.Random(6)
    with (
        Broker(home, store, SETTINGS).disposable() as broker,
        RocketmqClient(broker.name_server) as client,
    ):
        assert consumed(broker, QUEUES) == kept
        queues = {topic: client.route(topic).writable for topic in TOPICS}
        for n in range(40):
            send(client, queues, rng, n)
        more = consumed(broker, QUEUES)
    for name, messages in kept.items():
        assert more[name][: len(messages)] == messages
        count = len(more[name]) - len(messages)
        assert [one.offset for one in more[name][len(messages) :]] == [
            firsts[name] + n for n in range(count)
        ]
    assert sum(map(len, more.values())) == sum(map(len, kept.values())) + 40


@pytest.mark.long
def test_killed_dispatch_does_not_mislead_a_broker(
    home: Path, store: Path, written: tuple[Path, dict[tuple[str, int], list[Seen]]]
) -> None:
    """A broker ignores unfinished files beside its trees. Between the exchanges of both kinds of
    consume queues it does not start.
    """
    shutil.copytree(store / "consumequeue", store / "consumequeue.dispatched")
    (store / "lastwrite-dispatch").mkdir()
    (store / "lastwrite-dispatch" / "ab12").write_bytes(b"half a file")
    with Broker(home, store, SETTINGS) as broker:
        assert consumed(broker, list(written[1])) == written[1]
    guard = store / "commitlog" / GUARD
    guard.write_text("a dispatch was stopped here")
    with pytest.raises(RuntimeError):
        Broker(home, store, SETTINGS).start()
    (store / "abort").unlink(missing_ok=True)  # left by the broker that failed to start
    before = dispatched(store)
    shutil.rmtree(store / "batchconsumequeue")
    report = lastwrite.dispatch(str(store), config=CONFIG, spark=INLINE)
    assert report.exit_status == 0 and not guard.exists()
    assert dispatched(store) == before
    assert not {"consumequeue.dispatched", "lastwrite-dispatch"} & {
        path.name for path in store.iterdir()
    }
