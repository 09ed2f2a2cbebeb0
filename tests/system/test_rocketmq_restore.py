"""Tests of ``restore`` from a live broker into a store that lost its old part."""

from __future__ import annotations

import copy
import errno
import json
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import lastwrite
from lastwrite import cli
from lastwrite.errors import InvalidConfig, LogError, LogHeld, RemoteFailed
from lastwrite.model.log import TopicPartition
from lastwrite.rocketmq.format.units import batch_units
from lastwrite.rocketmq.network.client import RocketmqClient
from lastwrite.rocketmq.store.compacted import CompactedQueue
from lastwrite.spark.inline import INLINE
from lastwrite.storage import files
from lastwrite.storage.files import FaultPoints
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
from tests.system.test_interrupts import interrupted

pytestmark = [pytest.mark.broker, pytest.mark.slow]

SETTINGS = {**SMALL_FILES, "mappedFileSizeCommitLog": "16384"}
AT_ONCE = {"min.cleanable.dirty.ratio": 0, "delete.retention.ms": 0}


@dataclass
class Produced:
    """A topic of a stopped broker, and the messages sent to it."""

    home: Path
    store: Path
    topic: Topic


@pytest.fixture(scope="module")
def produced(tmp_path_factory: pytest.TempPathFactory) -> Produced:
    try:
        broker = Broker(rocketmq_home(), tmp_path_factory.mktemp("rocketmq") / "store", SETTINGS)
    except Unavailable as reason:
        pytest.skip(str(reason))
    topic, rng = Topic("table", 2), random.Random(11)
    with broker, RocketmqClient(broker.name_server) as client:
        client.create_topic(topic.name, topic.queues, COMPACTED)
        # Keys of the old part are rarely written later, and some are then deleted.
        topic.produce(client, 120, rng, keys=60, prefix="old")
        topic.produce(client, 250, rng)
        topic.produce(client, 60, rng, keys=60, prefix="old")
        topic.produce(client, 60, rng)
        wait_until_dispatched(topic, client)
    return Produced(broker.home, broker.store, topic)


class Trial:
    """A live broker with a compacted topic, and a store with only the later part of its
    commit log.
    """

    def __init__(self, produced: Produced, folder: Path) -> None:
        self.topic = copy.deepcopy(produced.topic)
        self.rng = random.Random(12)
        self.live = Broker(produced.home, folder / "live", SETTINGS)
        self.lost = folder / "lost"
        for store in (self.live.store, self.lost):
            shutil.copytree(produced.store, store)
        files = sorted((self.lost / "commitlog").iterdir())
        for file in files[: len(files) // 2]:
            file.unlink()
        for tree in ("compaction", "consumequeue", "index"):
            shutil.rmtree(self.lost / tree)

    def compact_live(self) -> None:
        """Compact the live broker's store, which has the old part."""
        lastwrite.compact(
            str(self.live.store), system="rocketmq", config=dict(AT_ONCE), spark=INLINE
        )
        for queue in self.topic.messages:
            self.topic.compact(queue, active_from(self.live.store, self.topic.name, queue))

    def dispatch(self) -> None:
        lastwrite.dispatch(str(self.lost), config=dict(SIZES), spark=INLINE)

    def first_offset(self, queue: int) -> int:
        index = min(
            (self.lost / "compaction" / "compactionCq" / self.topic.name / str(queue)).iterdir()
        )
        return int(batch_units(index.read_bytes())["base"][0])

    def check_lost(self) -> None:
        """A broker on the restored store serves the live broker's messages, compacted
        to the end.
        """
        again = Broker(self.live.home, self.lost, SETTINGS)
        for queue, messages in self.topic.messages.items():
            self.topic.compact(queue, messages[-1].offset + 1)
        with (
            again.disposable(),
            StockClient(again) as stock,
            RocketmqClient(again.name_server) as client,
        ):
            self.topic.check(stock)
            self.topic.produce(client, 50, self.rng)
            wait_until_dispatched(self.topic, client)
            self.topic.check(stock)


@pytest.fixture
def trial(produced: Produced, tmp_path: Path) -> Iterator[Trial]:
    made = Trial(produced, tmp_path)
    yield made
    made.live.kill()


@pytest.mark.spark
@pytest.mark.long
def test_store_regains_its_old_part(trial: Trial, capfd: pytest.CaptureFixture[str]) -> None:
    trial.compact_live()
    trial.dispatch()
    first = {queue: trial.first_offset(queue) for queue in trial.topic.messages}
    assert min(first.values()) > 50
    with trial.live.disposable():
        for store in (trial.live.store, trial.lost):
            arguments = [
                "restore",
                str(store),
                "--from",
                trial.live.name_server,
                "--topic",
                "table",
                "--json",
            ]
            status = cli.run(
                [*arguments, "--config", "delete.retention.ms=0", "--master", "local[1]"]
            )
            document = json.loads(capfd.readouterr().out)
            assert status == (4 if store == trial.live.store else 0), document
    for queue in document["queues"]:
        expected = [
            seen
            for seen in trial.topic.messages[queue["partition"]]
            if seen.offset < first[queue["partition"]]
        ]
        assert queue["pulled"] == len(expected) > 0
        assert queue["pulled_below"] == first[queue["partition"]]
    assert [partition["status"] for partition in document["compaction"]["partitions"]] == [
        "cleaned"
    ] * 2
    trial.check_lost()


@pytest.mark.long
def test_tombstones_dropped_by_a_round_stay_effective(trial: Trial) -> None:
    """The store's round dropped tombstones. Older values of their keys are only in the live
    broker's files.
    """
    trial.dispatch()
    lastwrite.compact(str(trial.lost), system="rocketmq", config=dict(AT_ONCE), spark=INLINE)
    ends = {queue: active_from(trial.lost, "table", queue) for queue in trial.topic.messages}
    with trial.live.disposable():
        done = lastwrite.restore(
            str(trial.lost),
            "table",
            name_server=trial.live.name_server,
            config={"delete.retention.ms": 0},
            spark=INLINE,
        )
    assert {queue.name.partition: queue.pulled_below for queue in done.queues} == ends
    trial.check_lost()


def test_wrong_settings_and_stores_are_refused(trial: Trial) -> None:
    with trial.live.disposable(), RocketmqClient(trial.live.name_server) as client:
        ask = {"topic": "table", "name_server": trial.live.name_server}
        with pytest.raises(InvalidConfig, match="no compaction log of the queue") as undispatched:
            (trial.lost / "consumequeue" / "table" / "0").mkdir(parents=True)
            (trial.lost / "consumequeue" / "table" / "0" / f"{0:020d}").write_bytes(bytes(20_000))
            lastwrite.restore(str(trial.lost), **ask, spark=INLINE)
        assert (
            undispatched.value.remedy is not None
            and "lastwrite dispatch" in undispatched.value.remedy
        )
        shutil.rmtree(trial.lost / "consumequeue")
        with pytest.raises(InvalidConfig, match="no live broker has this queue of table"):
            lastwrite.restore(str(trial.lost), **ask, partition=7, spark=INLINE)
        with pytest.raises(RemoteFailed, match="the cluster has no topic other"):
            lastwrite.restore(
                str(trial.lost), "other", name_server=trial.live.name_server, spark=INLINE
            )
        with pytest.raises(InvalidConfig, match="min.cleanable.dirty.ration"):
            lastwrite.restore(
                str(trial.lost), **ask, config={"min.cleanable.dirty.ration": 0}, spark=INLINE
            )
        client.set_broker_config("tests", {"searchBcqByCacheEnable": "true"})
        with pytest.raises(RemoteFailed, match="so it may have skipped live messages"):
            lastwrite.restore(str(trial.lost), **ask, spark=INLINE)
        client.set_broker_config("tests", {"searchBcqByCacheEnable": "false"})
        (trial.lost / "abort").write_text("1")
        with pytest.raises(LogHeld, match="was killed"):
            lastwrite.restore(str(trial.lost), **ask, spark=INLINE)


def test_empty_store_becomes_an_archive(trial: Trial, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    (empty / "config").mkdir(parents=True)
    shutil.copy(trial.lost / "config" / "topics.json", empty / "config")
    with trial.live.disposable():
        done = lastwrite.restore(
            str(empty),
            "table",
            name_server=trial.live.name_server,
            spark=INLINE,
            config={**SMALL_FILES, "delete.retention.ms": 0},
        )
    assert [len(queue.notes) for queue in done.queues] == [1, 1]
    assert all("accept messages of the queue and not serve them" in note for note in done.notes)
    for queue, messages in trial.topic.messages.items():
        trial.topic.compact(queue, messages[-1].offset + 1)
    again = Broker(trial.live.home, empty, SETTINGS)
    with again.disposable(), StockClient(again) as stock:
        trial.topic.check(stock)


def stored(store: Path, queue: int) -> list[int]:
    """The queue offsets that a reader finds."""
    found = CompactedQueue(str(store), TopicPartition("table", queue))
    offsets = [int(offset) for block in found.blocks() for offset in block.table["queue_offset"]]
    assert not found.damage and not found.notes
    return offsets


@pytest.mark.long
def test_failing_disk_leaves_the_old_queue_or_the_new(
    trial: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial.compact_live()
    trial.dispatch()
    old = {queue: stored(trial.lost, queue) for queue in trial.topic.messages}
    whole = {
        queue: [seen.offset for seen in messages if seen.offset < old[queue][0]] + old[queue]
        for queue, messages in trial.topic.messages.items()
    }
    for queue, messages in trial.topic.messages.items():
        trial.topic.compact(queue, messages[-1].offset + 1)
    left = {
        queue: [seen.offset for seen in messages]
        for queue, messages in trial.topic.messages.items()
    }

    def restore(store: Path) -> bool:
        try:
            done = lastwrite.restore(
                str(store),
                "table",
                name_server=trial.live.name_server,
                config={"delete.retention.ms": 0},
                spark=INLINE,
            )
        except LogError:
            return False
        return done.exit_status == 0

    with trial.live.disposable():
        point = 0
        while True:
            # there are about 500 operations; test_crash_rocketmq_publish kills the publication at
            # each of its own
            point += 13
            store = tmp_path / "copy"
            shutil.copytree(trial.lost, store)
            faults = FaultPoints(point, errno.EIO)
            monkeypatch.setattr(files, "faults", faults)
            is_done = restore(store)
            monkeypatch.setattr(files, "faults", FaultPoints())
            if faults.passed < point:
                assert is_done
                break
            for queue in left:
                assert stored(store, queue) in (old[queue], whole[queue], left[queue]), point
            assert restore(store)
            assert {queue: stored(store, queue) for queue in left} == left
            shutil.rmtree(store)
    assert point > 200


@pytest.mark.spark
def test_interrupt_names_restored_queues_and_the_same_command_continues(
    trial: Trial,
) -> None:
    trial.dispatch()
    told = "{} restored, but not compacted yet; run the command again to continue"
    both = [f"table-{queue}" for queue in sorted(trial.topic.messages)]
    with trial.live.disposable():
        command = ["restore", str(trial.lost), "--from", trial.live.name_server, "--topic", "table"]
        command += ["--trust-broker", "--config", "delete.retention.ms=0"]
        first = trial.first_offset(0)
        # during the exchange of the first queue, of the second, and of the round over both
        for at, time, done in (
            ("exchange compaction", 1, []),
            ("exchange compaction", 2, both[:1]),
            ("exchange compaction", 2, both),
        ):
            said = interrupted(f"{time} {at}", *command)
            assert [line for line in said if "restored" in line] == [
                told.format(", ".join(done)) for _ in done[:1]
            ]
            assert [path.name for path in trial.lost.iterdir() if ".lastwrite" in path.name] == []
            assert (trial.first_offset(0) == first) is (not done)
        assert cli.run(command) == 0
        trial.check_lost()
