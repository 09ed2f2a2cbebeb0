"""Tests of an archive that follows live topics of a real standalone, in a folder and in a bucket.

It is updated by repeated ``fetch``, by ``fetch --follow`` and by ``clean --source``.
"""

from __future__ import annotations

import base64
import errno
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import lastwrite
from lastwrite.archive.partition_store import partition_store_at
from lastwrite.cleaner.events import Event, FetchHeldBack, RoundEnded
from lastwrite.cleaner.following import Follow
from lastwrite.commands.sweep import sweep
from lastwrite.errors import InvalidConfig, LogError, NotALog
from lastwrite.pulsar.fetched import FetchMethod, FetchReport
from lastwrite.pulsar.format.names import TopicName
from lastwrite.pulsar.store.archived import address_in
from lastwrite.spark.inline import INLINE
from lastwrite.storage import files
from tests.support.objects import BUCKET, S3, s3_server
from tests.support.pulsar.broker import Broker
from tests.support.pulsar.driver import Driver
from tests.system.test_pulsar_fetch_live import messages

pytestmark = [pytest.mark.broker, pytest.mark.slow]


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


def settings(broker: Broker, **other: object) -> dict[str, object]:
    return {"metadataStoreUrl": f"zk:{broker.metadata_store}", **other}


def table(driver: Driver, url: str) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for each in driver.read(url, compacted=True):
        found[each["key"]] = base64.b64decode(each["value"])
    return found


def fetched(url: str, to: str, config: dict[str, object]) -> list[FetchMethod]:
    report = lastwrite.fetch([url], to, config=config)
    assert isinstance(report, FetchReport) and report.exit_status == 0, report
    return [each.how for topic in report.topics for each in topic.ledgers]


def wait_for(condition: Callable[[], object], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_only_new_entries_are_sent_to_a_bucket(pulsar: Broker, driver: Driver, s3: S3) -> None:
    url = driver.fresh("followed")
    to = f"s3://{BUCKET}/{uuid.uuid4().hex}"
    config = settings(pulsar, **s3.config)
    driver.send(url, messages(0, 20))
    driver.unload(url)
    driver.send(url, messages(20, 10))
    assert fetched(url, to, config) == [FetchMethod.WRITTEN] * 2
    place = partition_store_at(address_in(to, TopicName.parse(url)))
    before = place.read()
    assert fetched(url, to, config) == [FetchMethod.PRESENT] * 2
    assert place.read() == before  # no new messages, so nothing was written
    driver.send(url, messages(30, 3))
    driver.compact(url)
    assert fetched(url, to, config) == [
        FetchMethod.PRESENT,
        FetchMethod.WRITTEN,
        FetchMethod.WRITTEN,
    ]
    assert lastwrite.verify(to, config=s3.config, spark=INLINE).exit_status == 0
    assert lastwrite.latest(to, url, config=s3.config) == table(driver, url)
    # One round by us, then one by the cluster.
    driver.send(url, messages(33, 30))
    fetched(url, to, config)
    assert lastwrite.compact(to, config=config, spark=INLINE).exit_status == 0
    driver.send(url, messages(63, 4))
    fetched(url, to, config)
    assert lastwrite.latest(to, url, config=s3.config) == table(driver, url)


@pytest.mark.long
def test_interrupted_fetch_leaves_the_old_archive_or_the_new(
    pulsar: Broker, driver: Driver, tmp_path: Path
) -> None:
    """The disk fails at each operation in turn and keeps failing until the next run."""
    url, to = driver.fresh("followed"), str(tmp_path)
    driver.send(url, messages(0, 4))
    fetched(url, to, settings(pulsar))
    driver.send(url, messages(4, 4))
    driver.compact(url)
    name = TopicName.parse(url)
    place = partition_store_at(address_in(to, name))
    before = place.read()
    assert before is not None
    point, generations = 0, {before.manifest.generation}
    try:
        while True:
            point += 1
            files.faults.__init__(point, errno.EIO)  # type: ignore[misc]
            try:
                report = lastwrite.fetch([url], to, config=settings(pulsar))
                if report.exit_status == 0 and files.faults.passed < point:
                    break
            except (OSError, LogError):
                pass
            files.faults.__init__()  # type: ignore[misc]
            found = place.read()
            assert found is not None
            generations.add(found.manifest.generation)
            if found.manifest.generation == before.manifest.generation:
                assert found == before
    finally:
        files.faults.__init__()  # type: ignore[misc]
    assert point > 10 and len(generations) == 2
    assert lastwrite.latest(to, url) == table(driver, url)
    assert lastwrite.verify(to, spark=INLINE).exit_status == 0
    # Interrupted fetches left journals, so a sweep removes their objects but no committed one.
    assert sum(each.objects for each in sweep(to, older_than_ms=0).partitions) > 0
    assert lastwrite.latest(to, url) == table(driver, url)


def test_archive_follows_a_namespace_and_is_compacted(
    pulsar: Broker, driver: Driver, tmp_path: Path
) -> None:
    first = driver.fresh("followed")
    driver.send(first, messages(0, 50))
    to, events, stop = str(tmp_path / "archive"), list[Event](), list[Any]()
    follow = Follow(sources=["persistent://public/default"], topic=["followed-*"], every_s=0.3)
    config = settings(
        pulsar, compactionThreshold=100, brokerServiceCompactionMonitorIntervalInSeconds=1
    )
    thread = threading.Thread(
        target=lambda: lastwrite.clean(
            [to], config, follow=follow, spark=INLINE, tell=events.append, started=stop.append
        )
    )
    thread.start()
    try:
        wait_for(lambda: any(isinstance(each, RoundEnded) for each in list(events)))
        second = driver.fresh("followed", 2)  # a topic created later
        driver.send(second, messages(0, 50))
        driver.send(first, messages(50, 7))

        def is_level() -> bool:
            try:
                found = [lastwrite.latest(to, url) for url in (first, second)]
            except LogError:
                return False
            return found == [table(driver, first), table(driver, second)]

        wait_for(is_level)
    finally:
        wait_for(lambda: stop)
        stop[0].request_stop()
        thread.join(60)
    assert not thread.is_alive()
    held = [each.log.log for each in events if isinstance(each, FetchHeldBack)]
    assert {each.held for each in held} <= {"waiting"}, held
    assert lastwrite.verify(to, spark=INLINE).exit_status == 0


def test_unfollowable_topics_are_reported(pulsar: Broker, driver: Driver, tmp_path: Path) -> None:
    url, other = driver.fresh("followed"), driver.fresh("followed")
    driver.send(url, messages(0, 5))
    driver.send(other, messages(0, 5))
    to, config = str(tmp_path), settings(pulsar, compactionThreshold=1)
    once: dict[str, Any] = {"once": True, "spark": INLINE}
    for sources, topic, error in (
        (["persistent://public/default/never-made-*"], None, NotALog),
        (["persistent://public"], None, InvalidConfig),
        ([url], ["x"], InvalidConfig),
        ([url, "kafka://localhost:1"], None, InvalidConfig),
    ):
        with pytest.raises(error):
            lastwrite.clean([to], config, follow=Follow(sources=sources, topic=topic), **once)
    assert lastwrite.clean([to], config, follow=Follow(sources=[url, other]), **once) == 0
    assert lastwrite.latest(to, other) == table(driver, other)
    # A topic that was deleted and created again is not continued. The other topics are.
    driver.ask("delete", topic=url)
    driver.create(url)
    driver.send(url, messages(0, 9))
    driver.send(other, messages(5, 9))
    events: list[Event] = []
    follow = Follow(sources=[url, other])
    assert lastwrite.clean([to], config, follow=follow, tell=events.append, **once) == 1
    [held] = [each.log.log for each in events if isinstance(each, FetchHeldBack)]
    assert (held.topic, held.held) == (url, "gap")
    assert lastwrite.latest(to, other) == table(driver, other)
