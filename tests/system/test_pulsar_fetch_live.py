"""``lastwrite.fetch`` of a topic that a real cluster serves."""

from __future__ import annotations

from pathlib import Path

import pytest

import lastwrite
from lastwrite.errors import InvalidConfig, NotALog
from lastwrite.logstore.pulsar.objects import read_entries
from lastwrite.model.fetched import FetchedTopic, HowFetched
from tests.system.pulsar.broker import Broker
from tests.system.pulsar.driver import Driver

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def messages(first: int, count: int) -> list[dict[str, object]]:
    return [
        {
            "messages": [
                {"key": f"k{n % 5}", "value": f"dmFsdWU{n:05d}"}
                for n in range(first, first + count)
            ]
        }
    ]


def check(driver: Driver, topic: FetchedTopic) -> None:
    """The raw ledgers are those of the bookies, the compacted one that of the cluster."""
    _, rows = driver.ledgers(topic.topic)
    raw = {each.ledger: each for each in topic.ledgers if not each.is_compacted}
    for row in rows:
        entries = driver.dump(row.ledger, 0, row.last) if row.last >= 0 else []
        assert (row.ledger in raw) is bool(entries)
        if entries:
            assert [data for _, data in read_entries(raw[row.ledger].path)] == entries
    told = driver.horizon(topic.topic)
    compacted = [each for each in topic.ledgers if each.is_compacted]
    if told is None:
        assert (compacted, topic.horizon) == ([], None)
        return
    assert topic.horizon == f"{told.ledger}:{told.entry}"
    assert [data for _, data in read_entries(compacted[0].path)] == driver.dump(
        told.compacted_ledger
    )


def test_a_topic_is_brought_whole_and_then_what_is_new(
    pulsar: Broker, driver: Driver, tmp_path: Path
) -> None:
    url = "persistent://public/default/fetched"
    config = {"metadataStoreUrl": f"zk:{pulsar.metadata_store}"}
    driver.create(url)
    driver.send(url, messages(0, 20))
    driver.unload(url)
    driver.send(url, messages(20, 10))
    [topic] = lastwrite.fetch([url], str(tmp_path), config=config).topics
    check(driver, topic)
    assert {each.how for each in topic.ledgers} == {HowFetched.WRITTEN}
    driver.compact(url)
    driver.send(url, messages(30, 10))
    report = lastwrite.fetch([url], str(tmp_path), config=config)
    assert report.exit_status == 0
    [topic] = report.topics
    check(driver, topic)
    assert [each.how for each in topic.ledgers] == [
        HowFetched.PRESENT,
        HowFetched.WRITTEN,
        HowFetched.WRITTEN,
    ]
    # What folders have of it is taken from there, and the cluster asked for the rest.
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    for suffix in ("", "-index"):
        name = Path(topic.ledgers[0].path).name + suffix
        (bucket / name).write_bytes(Path(topic.ledgers[0].path + suffix).read_bytes())
    [topic] = lastwrite.fetch([str(bucket), url], str(tmp_path / "other"), config=config).topics
    check(driver, topic)
    assert [each.how for each in topic.ledgers] == [
        HowFetched.LINKED,
        HowFetched.WRITTEN,
        HowFetched.WRITTEN,
    ]


def test_all_partitions_of_a_topic_are_brought(
    pulsar: Broker, driver: Driver, tmp_path: Path
) -> None:
    url = "persistent://public/default/parts"
    driver.create(url, 2)
    driver.send(url, messages(0, 20))
    topics = lastwrite.fetch(
        [url], str(tmp_path), config={"metadataStoreUrl": f"zk:{pulsar.metadata_store}"}
    ).topics
    assert [topic.topic for topic in topics] == [f"{url}-partition-0", f"{url}-partition-1"]
    for topic in topics:
        check(driver, topic)


def test_what_a_cluster_has_not_is_said(pulsar: Broker, tmp_path: Path) -> None:
    config = {"metadataStoreUrl": f"zk:{pulsar.metadata_store}"}
    with pytest.raises(NotALog):
        lastwrite.fetch(["persistent://public/default/never-made"], str(tmp_path), config=config)
    with pytest.raises(InvalidConfig, match="metadata store"):
        lastwrite.fetch(["persistent://public/default/never-made"], str(tmp_path))
    with pytest.raises(InvalidConfig, match="leave out|says itself"):
        lastwrite.fetch(["persistent://public/default/x"], str(tmp_path), topic="x", config=config)
