"""Tests of reading beside a real RocketMQ broker that appends, closes files and compacts them."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest

import lastwrite
from lastwrite.errors import LogHeld
from lastwrite.model.log import ProblemKind
from lastwrite.reports.compaction import Status
from lastwrite.rocketmq.network.client import RocketmqClient
from lastwrite.spark.inline import INLINE
from tests.support.rocketmq.broker import COMPACTED, Broker, Unavailable, rocketmq_home
from tests.support.rocketmq.scenario import Topic

pytestmark = [pytest.mark.broker, pytest.mark.slow]

CONFIG = {"min.cleanable.dirty.ratio": 0, "delete.retention.ms": 0}
SETTINGS = {
    "compactionMappedFileSize": "60000",
    "compactionCqMappedFileSize": "10000",  # 217 messages a file
    "compactionScheduleInternal": "2000",
}


class Writing(threading.Thread):
    """Sends messages until it is stopped, so that files are closed and the broker compacts them.

    It pauses while the broker rewrites a queue's files. A pair of files that is closed then may
    damage the store, by a fault of the broker (docs/decisions/beside-a-broker.md).
    """

    def __init__(self, store: Path, client: RocketmqClient, topic: Topic) -> None:
        super().__init__()
        self._logs = store / "compaction" / "compactionLog" / topic.name
        self._client, self._topic = client, topic
        self._ended = threading.Event()

    def run(self) -> None:
        rng = random.Random(16)
        while not self._ended.wait(0.02):
            if not any((queue / "compacting").exists() for queue in self._logs.iterdir()):
                self._topic.produce(self._client, 10, rng)

    def __enter__(self) -> Writing:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()


def table_of(topic: Topic, ends: dict[int, int]) -> dict[str, bytes]:
    """The table of the messages below these offsets. Each key is in one queue only."""
    table: dict[str, bytes] = {}
    for queue, messages in topic.messages.items():
        below = [seen for seen in messages if seen.offset < ends[queue]]
        assert [seen.offset for seen in below] == list(range(ends[queue]))
        table.update({str(seen.key): seen.body for seen in below})
    return {key: body for key, body in table.items() if body}


def look_at_all(store: str, topic: Topic) -> None:
    """Run every command that reads, and compare its result with the messages sent."""
    found = lastwrite.inspect(store)
    problems = [*found.problems, *(each for one in found.partitions for each in one.problems)]
    assert {problem.kind for problem in problems} == {ProblemKind.OPEN}, problems
    verified = lastwrite.verify(store, spark=INLINE)
    assert verified.ok, verified.to_dict()
    for planned in lastwrite.plan(store, config=CONFIG, spark=INLINE).partitions:
        assert planned.status not in (Status.FAILED, Status.DAMAGED), planned.reason
    for why in lastwrite.explain(store, key=b"key-3", config=CONFIG).partitions:
        assert "a broker has the log open" in [each.message for each in why.reasons]
        assert all(problem.is_note for problem in why.problems), why.problems
    table = lastwrite.latest(store, topic.name)
    said: list[str] = []
    dumped: dict[int, list[int]] = {queue: [] for queue in topic.messages}
    for row in lastwrite.dump(store, topic=topic.name, say=said.append):
        dumped[row["queue_id"]].append(row["queue_offset"])
    assert len(said) == 1 and "a broker has the store open" in said[0]
    for queue in topic.messages:
        end = int(table.end_offsets[queue])
        assert dumped[queue] == list(range(len(dumped[queue]))) and len(dumped[queue]) >= end
        pulled = lastwrite.read(store, topic=topic.name, queue=queue)
        offsets = [row["queue_offset"] for row in pulled]
        assert offsets == sorted(set(offsets)) and offsets[-1] >= end - 1 and not pulled.notes
        rows = lastwrite.dump(
            store, topic=topic.name, partition=queue, compacted=True, say=said.append
        )
        assert [row["queue_offset"] for row in rows][-1] >= end - 1
    assert len(said) == 1
    deadline = time.monotonic() + 60
    while any(
        len(messages) < table.end_offsets[queue] for queue, messages in topic.messages.items()
    ):
        assert time.monotonic() < deadline, "a message was stored, and no answer came"
        time.sleep(0.01)  # the responses to these messages are still under way
    assert table == table_of(topic, {queue: int(end) for queue, end in table.end_offsets.items()})


def test_reads_are_correct_beside_a_working_broker(tmp_path: Path) -> None:
    try:
        broker = Broker(rocketmq_home(), tmp_path / "store", SETTINGS)
    except Unavailable as reason:
        pytest.skip(str(reason))
    topic = Topic("table", 2)
    first = broker.store / "compaction" / "compactionLog" / "table" / "0" / f"{0:020d}"
    with broker, RocketmqClient(broker.name_server) as client:
        client.create_topic(topic.name, topic.queues, COMPACTED)
        topic.produce(client, 500, random.Random(7))
        while not first.exists():
            time.sleep(0.05)
        store = str(broker.store)
        with pytest.raises(LogHeld):
            lastwrite.compact(store, config=CONFIG, spark=INLINE)
        with pytest.raises(LogHeld, match="so Lastwrite cannot copy the log"):
            lastwrite.compact(store, to=str(tmp_path / "to"), config=CONFIG, spark=INLINE)
        made = {first.stat().st_mtime_ns}
        deadline = time.monotonic() + 300
        with Writing(broker.store, client, topic):
            for _ in range(6):
                look_at_all(store, topic)
            # both the file as first written and those of the broker's compactions
            while len(made) < 4:
                assert time.monotonic() < deadline, f"runs of the broker: {len(made) - 1}"
                look_at_all(store, topic)
                made.add(first.stat().st_mtime_ns if first.exists() else max(made))
        look_at_all(store, topic)
    assert lastwrite.verify(str(broker.store), spark=INLINE).ok
