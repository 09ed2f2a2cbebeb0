"""Tests of ``read`` on topics fetched from a real cluster: same messages and last message id as its
clients.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar as client
import pytest

import lastwrite
from lastwrite.pulsar.look.read import TopicReading
from tests.support.pulsar.broker import Broker
from tests.support.pulsar.driver import Driver

pytestmark = [pytest.mark.broker, pytest.mark.slow]


@pytest.fixture
def consumers(pulsar: Broker) -> Iterator[client.Client]:
    made = client.Client(pulsar.service_url, logger=client.ConsoleLogger(client.LoggerLevel.Error))
    yield made
    made.close()


def message(key: str, value: str | None) -> dict[str, Any]:
    return {
        "key": key,
        "value": None if value is None else base64.b64encode(value.encode()).decode(),
    }


def told(row: dict[str, Any]) -> dict[str, Any]:
    """A row of ``read`` in the format of the driver's reader."""
    return {
        "ledger": row["ledger"],
        "entry": row["entry"],
        "index": row["batch_index"],
        "key": row["key"],
        "value": row["value"],
        "properties": row["properties"],
        "publishTime": row["publish_time"],
        "eventTime": row["event_time"],
        "sequenceId": row["sequence_id"],
        "producer": row["producer"],
        "orderingKey": row["ordering_key"],
    }


def last_message_id(
    consumers: client.Client, topic: str, reads_compacted: bool
) -> tuple[int, int, int]:
    """The broker's answer."""
    consumer = consumers.subscribe(topic, "asks", is_read_compacted=reads_compacted)
    found = consumer.get_last_message_id()
    consumer.unsubscribe()
    return found.ledger_id(), found.entry_id(), found.batch_index()


def check(
    pulsar: Broker, driver: Driver, consumers: client.Client, topic: str, archive: Path
) -> list[tuple[int, ...]]:
    """Compare both kinds of readers with ``read``. Returns the last message ids of both kinds."""
    lastwrite.fetch(
        [topic], str(archive), config={"metadataStoreUrl": f"zk:{pulsar.metadata_store}"}
    )
    ids = []
    for reads_compacted in (False, True):
        reading = lastwrite.read(str(archive), topic=topic, read_compacted=reads_compacted)
        assert isinstance(reading, TopicReading)
        assert [told(row) for row in reading] == driver.read(topic, compacted=reads_compacted)
        said = last_message_id(consumers, topic, reads_compacted)
        ours = reading.summary()["last_message_id"]
        assert (ours["ledger"], ours["entry"]) == said[:2]
        assert ours["batch_index"] == said[2] or said[:2] == (-1, -1)
        ids.append(said)
    return ids


def test_read_equals_the_clients_and_their_last_message_id(
    pulsar: Broker, driver: Driver, consumers: client.Client, tmp_path: Path
) -> None:
    topic = "persistent://public/default/read-here"
    driver.create(topic)
    driver.send(topic, [{"messages": [message("a", "1"), message("b", "2")]}])
    driver.send(
        topic,
        [{"batch": True, "messages": [message("a", "3"), message("c", "4"), message("a", "5")]}],
    )
    raw, compacted = check(pulsar, driver, consumers, topic, tmp_path / "0")
    assert raw == compacted and raw[2] == 2
    driver.send(topic, [{"batch": True, "messages": [message("d", "6"), message("c", None)]}])
    driver.send(topic, [{"messages": [message("b", None)]}])
    driver.compact(
        topic
    )  # the last message of a compacted reader is not the last one that was sent
    raw, compacted = check(pulsar, driver, consumers, topic, tmp_path / "1")
    assert compacted < raw and compacted[2] == 0
    driver.send(topic, [{"batch": True, "messages": [message("b", "7"), message("e", "8")]}])
    raw, compacted = check(pulsar, driver, consumers, topic, tmp_path / "2")
    assert raw == compacted and raw[2] == 1
    driver.unload(topic)
    driver.send(topic, [{"messages": [message(key, None) for key in "abcde"]}])
    driver.compact(topic)  # no message is left
    raw, compacted = check(pulsar, driver, consumers, topic, tmp_path / "3")
    assert raw[0] >= 0 and compacted[:2] == (-1, -1)
