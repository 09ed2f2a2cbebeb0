"""Tests of copying a growing commit log: repeated dispatch, and an archive that follows it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import lastwrite
from lastwrite.cleaner.follow import ArchiveFollower
from lastwrite.rocketmq.network.client import RocketmqClient
from lastwrite.spark.inline import INLINE
from tests.support.rocketmq.broker import COMPACTED, SMALL_FILES, Broker, Unavailable, rocketmq_home
from tests.support.rocketmq.live import Load, copy_growing, messages_in, table_in, wait_until

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.long]

SETTINGS = SMALL_FILES | {
    "mappedFileSizeCommitLog": "65536",
    "mappedFileSizeConsumeQueue": "2000",
    "waitTimeMillsInSendQueue": "60000",  # for a machine that is under load
}
CONFIG: dict[str, Any] = {
    name: value
    for name, value in SETTINGS.items()
    if name.startswith(("mappedFileSizeConsume", "compaction"))
} | {"maxHashSlotNum": "100", "maxIndexNum": "1000"}


@contextmanager
def written(load: Load, broker: Broker) -> Any:
    """A producer writes during the context."""
    stop = threading.Event()

    def send() -> None:
        with RocketmqClient(broker.name_server) as client:
            while not stop.is_set():
                load.send(client, 5)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        stop.set()
        sender.join()


@pytest.mark.parametrize("follows", [False, True])
def test_copy_of_a_growing_log_is_complete(tmp_path: Path, follows: bool) -> None:
    """No message is lost or duplicated, wherever a copy of the log ended."""
    try:
        broker = Broker(rocketmq_home(), tmp_path / "store", SETTINGS)
    except Unavailable as reason:
        pytest.skip(str(reason))
    copy, archive, load = tmp_path / "copy", tmp_path / "archive", Load("orders", keys=40)
    with broker.disposable():
        with RocketmqClient(broker.name_server) as client:
            client.create_topic("orders", queues=2, attributes=COMPACTED)
        turn, end = following(copy, archive) if follows else (lambda: once(copy, archive), int)
        with written(load, broker):
            wait_until(lambda: follows or load.count > 100)
            deadline = time.monotonic() + 25
            while time.monotonic() < deadline:
                copy_growing(broker.store, copy)
                turn()
        copy_growing(broker.store, copy)
        turn()

    def has_all() -> bool:
        return sum(len(messages_in(archive, "orders", queue)) for queue in (0, 1)) == load.count

    wait_until(has_all)
    end()
    assert table_in(archive, "orders", (0, 1)) == load.table
    assert lastwrite.dispatch(str(copy), config=CONFIG, spark=INLINE).exit_status == 0
    assert dict(lastwrite.latest(copy, "orders")) == load.table
    assert lastwrite.verify(str(copy)).exit_status == 0


def once(copy: Path, archive: Path) -> None:
    """Copy once, by dispatch and fetch."""
    lastwrite.dispatch(str(copy), config=CONFIG, spark=INLINE)
    report = lastwrite.fetch([str(copy)], str(archive), topic="orders", include_active=True)
    assert report.exit_status == 0


def following(copy: Path, archive: Path) -> tuple[Callable[[], object], Callable[[], object]]:
    """A following archive. Returns one function for each copy and one for the end."""
    followers = list[ArchiveFollower]()

    def run() -> None:
        lastwrite.follow(
            [f"rocketmq://{copy}"],
            str(archive),
            topic="orders",
            every_s=0.2,
            config=CONFIG,
            started=followers.append,
        )

    thread = threading.Thread(target=run)

    def turn() -> None:
        if thread.ident is None:
            thread.start()
        time.sleep(0.5)
        assert thread.is_alive()

    def end() -> None:
        followers[0].request_stop()
        thread.join(60)
        assert not thread.is_alive()

    return turn, end
