"""Tests of an archive that follows a real broker: ``clean --source`` and ``fetch --follow``."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import lastwrite
from lastwrite.archive.following import FollowRequest
from lastwrite.archive.partition_store import PartitionStore
from lastwrite.cleaner.events import Event
from lastwrite.cleaner.follow import ArchiveFollower
from lastwrite.commands.following import limits_of, open_followed
from lastwrite.model.progress import NoProgress
from tests.support.kafka.broker import Broker, Unavailable, kafka_home
from tests.support.kafka.clients import Sent, create_topic, produce
from tests.support.two_writers import run_both
from tests.system.test_clean_daemon import daemon

pytest.importorskip("kio")
pytestmark = [pytest.mark.broker]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    try:
        made = Broker(kafka_home(), tmp_path_factory.mktemp("follow") / "data", {})
    except Unavailable as reason:
        pytest.skip(str(reason))
    with made:
        yield made


def send(broker: Broker, topic: str, first: int, count: int, keys: int = 7) -> dict[bytes, bytes]:
    now_ms = time.time_ns() // 1_000_000
    records = [
        Sent(b"k%d" % (n % keys), b"%060d" % n, now_ms + n) for n in range(first, first + count)
    ]
    produce(broker, topic, records, batch_records=10)
    return {each.key: each.value for each in records if each.key and each.value}


def level(archive: Path, topic: str, end: int) -> Callable[[], bool]:
    manifest = archive / "kafka" / topic / "0" / "manifest.json"
    return lambda: (
        manifest.exists() and json.loads(manifest.read_bytes())["log"]["end_offset"] >= end
    )


def until(is_so: Callable[[], bool], seconds: float = 90.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def metrics_of(page: str) -> dict[str, float]:
    with urllib.request.urlopen(page) as answer:
        lines = answer.read().decode().splitlines()
    return {
        name: float(value)
        for name, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")
    }


def test_archive_follows_existing_and_new_topics(broker: Broker, tmp_path: Path) -> None:
    """The second topic is created while the archive follows the first. Ctrl-C ends the
    following.
    """
    create_topic(broker, "follow-a", {})
    send(broker, "follow-a", 0, 50)
    archive, told, followers = tmp_path / "archive", list[Event](), list[ArchiveFollower]()

    def run() -> None:
        lastwrite.follow(
            [f"kafka://{broker.address}"],
            str(archive),
            topic="follow-*",
            every_s=0.2,
            metrics_port=0,
            tell=told.append,
            started=followers.append,
        )

    thread = threading.Thread(target=run)
    thread.start()
    until(level(archive, "follow-a", 50))
    create_topic(broker, "follow-b", {})
    send(broker, "follow-b", 0, 20)
    send(broker, "follow-a", 50, 30)
    until(level(archive, "follow-b", 20))
    until(level(archive, "follow-a", 80))
    page = next(each.text for each in told if hasattr(each, "text")).split()[-1]
    figures = metrics_of(page)
    labels = '{partition="0",topic="follow-a"}'
    assert figures[f"lastwrite_follower_lag_records{labels}"] == 0
    assert figures[f"lastwrite_follower_lag_seconds{labels}"] < 60
    assert figures[f"lastwrite_follower_brought_bytes_total{labels}"] > 0
    assert figures['lastwrite_follower_held_partitions{why="fork"}'] == 0
    followers[0].request_stop()
    thread.join(30)
    assert not thread.is_alive()
    brought = [each.to_dict() for each in told if each.event == "brought"]
    assert sum(each["partitions"] for each in brought) >= 3


def test_clean_with_a_source_follows_and_cleans(broker: Broker, tmp_path: Path) -> None:
    create_topic(
        broker,
        "cleaned-a",
        {
            "cleanup.policy": "compact",
            "internal.segment.bytes": "2000",
            "min.cleanable.dirty.ratio": "0.3",
        },
    )
    table = send(broker, "cleaned-a", 0, 200)
    archive = tmp_path / "archive"
    with daemon(
        "--source",
        f"kafka://{broker.address}",
        "--topic",
        "cleaned-*",
        "--to",
        archive,
        "--every",
        "0.5",
        "--config",
        "log.cleaner.backoff.ms=1000",
    ) as running:
        running.expect("brought")
        running.expect("round", topic="cleaned-a")
        table |= send(broker, "cleaned-a", 200, 300)
        until(level(archive, "cleaned-a", 500))
        running.expect("round", topic="cleaned-a")
        running.stop()
    assert dict(lastwrite.latest(str(archive), "cleaned-a")) == table
    log = json.loads((archive / "kafka/cleaned-a/0/manifest.json").read_bytes())["log"]
    assert log["checkpoint"] <= log["active_from"] <= log["end_offset"] == 500
    assert all(each["bytes"] <= 2000 for each in log["segments"])


def test_once_option_runs_a_single_round(broker: Broker, tmp_path: Path) -> None:
    create_topic(broker, "once-a", {"cleanup.policy": "compact", "internal.segment.bytes": "2000"})
    table = send(broker, "once-a", 0, 200)
    archive = tmp_path / "archive"
    how: dict[str, Any] = {"master": "local[2]", "once": True}
    told: list[Event] = []
    from lastwrite.cleaner.following import Follow

    follow = Follow(sources=[f"kafka://{broker.address}"], topic="once-*")
    config = {"client.id": "archive", "default.api.timeout.ms": 9000, "sasl.username": "nobody"}
    assert lastwrite.clean([str(archive)], config, follow=follow, tell=told.append, **how) == 0
    assert [each.event for each in told] == ["brought", "round"]
    assert dict(lastwrite.latest(str(archive), "once-a")) == table


def test_loser_of_two_followers_starts_again(broker: Broker, tmp_path: Path) -> None:
    create_topic(broker, "followed-twice", {})
    table = send(broker, "followed-twice", 0, 50)
    archive = str(tmp_path / "archive")
    wanted = FollowRequest(
        sources=[f"kafka://{broker.address}"],
        to=archive,
        topic="followed-twice",
        partition=0,
        config=dict,
        overrides=(),
        limits=limits_of(None, None),
        progress=NoProgress(),
    )
    followers = [open_followed(wanted), open_followed(wanted)]
    try:
        logs = [
            log
            for turn in run_both(PartitionStore, *[each.fetch for each in followers])
            for log in turn
        ]
        assert sorted(each.log.attempts for each in logs) == [1, 2]
        assert [each.log.reason for each in logs] == [None, None]
    finally:
        for each in followers:
            each.close()
    assert lastwrite.latest(archive) == table
