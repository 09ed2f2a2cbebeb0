"""Tests of ``lastwrite clean persistent://…`` on topics of a real standalone, in this process,
without Spark.
"""

from __future__ import annotations

import base64
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

import lastwrite
from lastwrite.cleaner.events import DaemonNote, Event, PartitionQuarantined, RoundEnded
from lastwrite.cleaner.live import LiveCleaner
from lastwrite.cleaner.loop import Cleaner
from lastwrite.errors import InvalidConfig
from lastwrite.pulsar.format.names import TopicName
from lastwrite.pulsar.network.cluster import ClusterAccess, CursorHold, PulsarCluster
from lastwrite.spark.inline import INLINE
from tests.support.pulsar.broker import Broker
from tests.support.pulsar.driver import Driver

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def send(driver: Driver, topic: str, count: int, size: int = 100, keys: int = 5) -> None:
    values = [base64.b64encode(b"%0*d" % (size, n)).decode() for n in range(count)]
    driver.send(
        topic,
        [{"messages": [{"key": f"k{n % keys}", "value": value} for n, value in enumerate(values)]}],
    )


def settings(broker: Broker, **other: object) -> dict[str, object]:
    return {
        "metadataStoreUrl": f"zk:{broker.metadata_store}",
        "brokerServiceUrl": broker.service_url,
        **other,
    }


def clean(config: dict[str, object], *topics: str) -> tuple[int, list[Event]]:
    """Run ``clean`` once. Returns its exit status and its events."""
    events: list[Event] = []
    return lastwrite.clean(topics, config, once=True, spark=INLINE, tell=events.append), events


def compacted(events: list[Event]) -> list[str]:
    return [str(event.report.name) for event in events if isinstance(event, RoundEnded)]


def view(driver: Driver, topic: str) -> dict[object, object]:
    return {message["key"]: message["value"] for message in driver.read(topic, compacted=True)}


def test_topics_above_the_threshold_are_compacted(pulsar: Broker, driver: Driver) -> None:
    much, little, parts = (
        driver.fresh("clean-much"),
        driver.fresh("clean-little"),
        driver.fresh("clean-parts", 2),
    )
    send(driver, much, 40)
    send(driver, little, 3)
    send(driver, f"{parts}-partition-1", 30)
    before = view(driver, much)
    config = settings(pulsar, compactionThreshold="2K")
    status, events = clean(config, much, little, parts)
    assert (status, compacted(events)) == (0, [much, f"{parts}-1"]), (
        "the one with the most to compact first"
    )
    assert events[0].report.published is not None  # type: ignore[union-attr]
    assert view(driver, much) == before and driver.horizon(little) is None
    raw = driver.read(much, compacted=True)
    assert len(raw) == 5
    assert clean(config, much, little, parts) == (0, []), "nothing has come since"
    send(driver, much, 30)
    assert compacted(clean(config, much)[1]) == [much]
    assert len(driver.read(much, compacted=True)) == 5
    driver.unload(much)  # closes the open ledger, so that all of it is below the horizon
    send(driver, much, 3)
    [planned] = lastwrite.plan(much, config=settings(pulsar), spark=INLINE).partitions
    found = planned.backlog
    assert found is not None and found.segments >= 1 and found.bytes > 70 * 100
    assert found.segments_free == 0 and "retention has no limit" in (found.reason or "")
    # overrides the namespace's retention policy
    none = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
    [planned] = lastwrite.plan(much, config=settings(pulsar) | none, spark=INLINE).partitions
    assert planned.backlog is not None and planned.backlog.reason is None
    assert planned.backlog.segments_free == planned.backlog.segments


def test_daemon_compacts_new_messages_and_stops_on_request(
    pulsar: Broker, driver: Driver, tmp_path: Path
) -> None:
    topic = driver.fresh("clean-daemon")
    events: list[Event] = []
    cleaners: list[Cleaner | LiveCleaner] = []
    config = settings(
        pulsar, compactionThreshold="1K", brokerServiceCompactionMonitorIntervalInSeconds=1
    )
    thread = threading.Thread(
        target=lastwrite.clean,
        args=([topic], config),
        kwargs={
            "spark": INLINE,
            "tell": events.append,
            "started": cleaners.append,
            "archive": str(tmp_path),
            "metrics_port": 0,
        },
    )
    thread.start()
    send(driver, topic, 30)
    wait_for(lambda: compacted(events) == [topic])
    send(driver, topic, 30)
    wait_for(lambda: compacted(events) == [topic, topic])
    cleaners[0].request_stop()
    thread.join(120)
    assert not thread.is_alive() and len(driver.read(topic, compacted=True)) == 5
    assert [event.text for event in events if isinstance(event, DaemonNote)][1:] == [], (
        "but for the metrics' address"
    )
    assert any(tmp_path.rglob("compacted.json")), "the archive stays"


def test_stop_during_a_round_publishes_nothing(pulsar: Broker, driver: Driver) -> None:
    topic = driver.fresh("clean-stopped")
    send(driver, topic, 400, keys=100)
    events: list[Event] = []
    cleaners: list[Cleaner | LiveCleaner] = []
    config = settings(
        pulsar, compactionThreshold=1, **{"log.cleaner.io.max.bytes.per.second": 20_000}
    )
    thread = threading.Thread(
        target=lastwrite.clean,
        args=([topic], config),
        kwargs={"spark": INLINE, "tell": events.append, "started": cleaners.append},
    )
    thread.start()
    time.sleep(1.5)
    cleaners[0].request_stop()
    thread.join(120)
    assert not thread.is_alive()
    assert compacted(events) == [] and "during the compaction" in str(events[-1])
    time.sleep(1.0)
    told = driver.horizon(topic)
    assert told is None or told.ledger in (None, -1)
    assert compacted(clean(settings(pulsar, compactionThreshold=1), topic)[1]) == [topic]
    assert len(driver.read(topic, compacted=True)) == 100


def test_topic_under_compaction_by_another_process_is_skipped(
    pulsar: Broker, driver: Driver
) -> None:
    topic = driver.fresh("clean-held")
    send(driver, topic, 30)
    config = settings(pulsar, compactionThreshold="1K")
    with (
        PulsarCluster(ClusterAccess(metadata_store=pulsar.metadata_store)) as cluster,
        CursorHold(cluster, TopicName.parse(topic)),
    ):
        status, events = clean(config, topic)
    assert (status, compacted(events)) == (4, []) and isinstance(events[0], DaemonNote)
    assert compacted(clean(config, topic)[1]) == [topic]


def test_missing_topic_is_reported(pulsar: Broker, driver: Driver) -> None:
    topic = driver.fresh("clean-there")
    send(driver, topic, 30)
    config = settings(pulsar, compactionThreshold="1K")
    status, events = clean(config, "persistent://public/default/clean-nowhere", topic)
    assert status == 1 and compacted(events) == [topic]
    assert isinstance(events[0], DaemonNote) and "has no ledgers" in events[0].text
    assert not any(isinstance(event, PartitionQuarantined) for event in events)


def test_threshold_of_the_clusters_policy_is_used(pulsar: Broker, driver: Driver) -> None:
    topic = driver.fresh("clean-policy")
    send(driver, topic, 30)
    status, events = clean(settings(pulsar), topic)
    assert (status, compacted(events)) == (0, []), "by the brokers' setting, 0, never"
    place = topic.removeprefix("persistent://")
    for method, path, size in (
        ("PUT", "namespaces/public/default/compactionThreshold", 1 << 20),
        ("POST", f"persistent/{place}/compactionThreshold", 1000),
    ):
        assert compacted(clean(settings(pulsar), topic)[1]) == []
        put(pulsar, method, path, size)
    deadline = time.monotonic() + 120  # a changed policy takes effect after a while
    while not compacted(events) and time.monotonic() < deadline:
        _, events = clean(settings(pulsar), topic)
    assert compacted(events) == [topic]
    put(pulsar, "PUT", "namespaces/public/default/compactionThreshold", 0)


def put(pulsar: Broker, method: str, path: str, value: int) -> None:
    request = urllib.request.Request(
        f"{pulsar.admin_url}/admin/v2/{path}",
        str(value).encode(),
        {"Content-Type": "application/json"},
        method=method,
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status in (200, 204)


@pytest.mark.parametrize(
    ("roots", "config", "words"),
    [
        (["persistent://public/default/x", "folder"], {}, "topics of a live cluster and folders"),
        (
            ["persistent://public/default/x"],
            {"compactionThreshold": 1},
            "metadata store, is missing",
        ),
        (["persistent://x"], {"metadataStoreUrl": "zk:h:1", "compactionThreshold": 1}, "topic"),
    ],
)
def test_impossible_arguments_are_refused_at_once(
    roots: list[str], config: dict[str, object], words: str
) -> None:
    with pytest.raises(InvalidConfig, match=words):
        lastwrite.clean(roots, config, once=True, spark=INLINE)


def wait_for(condition: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)
