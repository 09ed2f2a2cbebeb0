"""Tests of our client against a real cluster: metadata store, bookies and brokers.

Pulsar's and BookKeeper's own Java clients are the judges (``Driver``).
"""

from __future__ import annotations

import base64
import os
import time
from collections.abc import Iterator

import pytest

from lastwrite.errors import (
    CommitConflict,
    CorruptLog,
    InvalidConfig,
    LogHeld,
    NotALog,
    RemoteFailed,
)
from lastwrite.pulsar.format.compacted import encode_record, ledger_custom_metadata
from lastwrite.pulsar.format.ledger_metadata import Digest
from lastwrite.pulsar.format.managed_ledger import PositionInfo
from lastwrite.pulsar.format.names import COMPACTION_CURSOR, TopicName
from lastwrite.pulsar.format.position import Position
from lastwrite.pulsar.network.admin import TopicInMemory, topic_in_memory
from lastwrite.pulsar.network.bookies import Bookies, LedgerWriter, LiveLedger
from lastwrite.pulsar.network.broker import find_owner
from lastwrite.pulsar.network.ledgers import Quorums, choose_bookies, open_metadata, write_ledger
from lastwrite.pulsar.network.metadata import MetadataStore
from tests.support.pulsar.broker import Broker
from tests.support.pulsar.driver import Driver

pytestmark = [pytest.mark.broker, pytest.mark.slow]

ONE = Quorums(1, 1, 1)
NOW_MS = 1_700_000_000_000


@pytest.fixture
def store(pulsar: Broker) -> Iterator[MetadataStore]:
    with MetadataStore(pulsar.metadata_store, timeout=10) as store:
        yield store


@pytest.fixture
def bookies(store: MetadataStore) -> Iterator[Bookies]:
    with Bookies(store.address_of, timeout=10) as bookies:
        yield bookies


def topic(name: str) -> TopicName:
    return TopicName.parse(f"persistent://public/default/{name}")


def singles(count: int, size: int = 20, first: int = 0) -> list[dict[str, object]]:
    values = (base64.b64encode(os.urandom(size)).decode() for _ in range(count))
    return [
        {
            "messages": [
                {"key": f"k{n % 7}", "value": value} for n, value in enumerate(values, first)
            ]
        }
    ]


def find(store: MetadataStore, number: int) -> LiveLedger:
    ledger = store.ledger(number)
    assert ledger is not None
    return ledger


def test_ledger_equals_bookkeepers_own_read(
    driver: Driver, store: MetadataStore, bookies: Bookies
) -> None:
    name = topic("read")
    driver.create(name.full)
    driver.send(name.full, singles(700))
    driver.unload(name.full)
    driver.send(name.full, singles(5, 300_000))
    driver.unload(name.full)
    theirs, rows = driver.ledgers(name.full)
    found = store.managed_ledger(name)
    assert found is not None
    node, info = found
    assert node == theirs
    closed = [row for row in rows if row.last >= 0]
    assert [row.last for row in closed] == [699, 4]
    assert {row.ledger for row in closed} <= {each.ledger for each in info.ledgers}
    for row in closed:
        ledger = find(store, row.ledger)
        assert ledger.metadata.encode_node() == row.metadata
        assert ledger.metadata.is_closed and ledger.metadata.last_entry == row.last
        ours = list(bookies.read(ledger, 0, row.last))
        assert [entry for entry, _ in ours] == list(range(row.last + 1))
        assert [payload for _, payload in ours] == driver.dump(row.ledger)
        assert sum(len(payload) for _, payload in ours) == ledger.metadata.length
    part = list(bookies.read(find(store, closed[0].ledger), 33, 35))
    assert [entry for entry, _ in part] == [33, 34, 35]


def test_open_ledger_is_read_and_stays_open(
    pulsar: Broker, driver: Driver, store: MetadataStore, bookies: Bookies
) -> None:
    """The last entry is not confirmed to readers until the next one is written. Only the broker
    knows it.
    """
    name = topic("open")
    driver.create(name.full)
    driver.send(name.full, singles(9))
    number = driver.ledgers(name.full)[1][-1].ledger
    ledger = find(store, number)
    assert not ledger.metadata.is_closed
    end = bookies.last_entry(ledger)
    assert end.entry == 8 and -1 <= end.confirmed < 8
    with (
        find_owner([pulsar.address], name.full, timeout=10) as owner,
        owner.temporary_subscription(name.full) as looking,
    ):
        assert looking.last_message().position == Position(number, 8)
    entries = [payload for _, payload in bookies.read(ledger, 0, 8)]
    assert entries == driver.dump(number, last=8)
    assert entries[-1] == end.payload
    driver.send(name.full, singles(3))  # reading has not fenced the ledger
    assert driver.ledgers(name.full)[1][-1].ledger == number
    assert bookies.last_entry(find(store, number)).entry == 11
    assert store.cursor(name, COMPACTION_CURSOR) is None  # reading has created no cursor


def test_own_ledger_is_readable_by_bookkeeper(
    driver: Driver, store: MetadataStore, bookies: Bookies
) -> None:
    told: list[int] = []
    payloads = [b"", b"one", os.urandom(4 << 20), *(n.to_bytes(4, "big") * 9 for n in range(3000))]
    custom = ledger_custom_metadata("persistent://public/default/ours", Position(1, 2))
    ledger = write_ledger(store, bookies, lambda: payloads, ONE, custom, NOW_MS, told.append)
    assert told == [ledger.id]
    assert driver.dump(ledger.id) == payloads
    assert find(store, ledger.id) == ledger
    assert ledger.metadata.is_closed and ledger.metadata.digest == Digest.CRC32
    assert ledger.metadata.custom == custom
    assert [payload for _, payload in bookies.read(ledger, 0, len(payloads) - 1)] == payloads
    empty = write_ledger(store, bookies, list, ONE, custom, NOW_MS)
    assert empty.id > ledger.id
    assert driver.dump(empty.id) == []
    assert find(store, empty.id).metadata.last_entry == -1
    for number in (ledger.id, empty.id, empty.id):
        store.delete_ledger(number)
        assert store.ledger(number) is None


def test_wrong_entries_are_reported(store: MetadataStore, bookies: Bookies) -> None:
    ledger = write_ledger(store, bookies, lambda: [b"a", b"b"], ONE, {}, NOW_MS)
    changed = {"digest": Digest.CRC32C, "last_entry": 2}
    other = LiveLedger(ledger.id, type(ledger.metadata)(**_values(ledger) | changed))
    with pytest.raises(
        CorruptLog,
        match=f"entry 0 of ledger {ledger.id}: the entry from bookie .* has a wrong digest",
    ):
        list(bookies.read(other, 0, 1))
    with pytest.raises(
        CorruptLog, match=f"none of its bookies has entry 2 of ledger {ledger.id}: bk0test"
    ):
        list(bookies.read(ledger, 0, 2))
    store.delete_ledger(ledger.id)


def _values(ledger: LiveLedger) -> dict[str, object]:
    return {
        name: getattr(ledger.metadata, name) for name in type(ledger.metadata).__dataclass_fields__
    }


def test_ledger_changed_by_another_client_is_not_closed(
    store: MetadataStore, bookies: Bookies
) -> None:
    made = store.create_ledger(open_metadata(ONE, store.bookies(), {}, NOW_MS))
    LedgerWriter(bookies, made.ledger).flush()
    store.close_ledger(made, made.ledger.metadata)
    with pytest.raises(CommitConflict):
        store.close_ledger(made, open_metadata(ONE, store.bookies(), {"changed": b"too"}, NOW_MS))
    store.delete_ledger(made.ledger.id)
    with pytest.raises(CommitConflict):
        store.close_ledger(made, open_metadata(ONE, store.bookies(), {"gone": b"too"}, NOW_MS))


def test_unavailable_bookies_are_reported(store: MetadataStore) -> None:
    with pytest.raises(
        RemoteFailed, match="a new ledger needs 2 bookies, but only 1 accept entries"
    ) as caught:
        choose_bookies(store.bookies(), 2, store.racks())
    assert "managedLedgerDefaultEnsembleSize" in str(caught.value.remedy)
    with pytest.raises(RemoteFailed, match="bookie bk7 is not running"):
        store.address_of("bk7")
    with pytest.raises(InvalidConfig):
        Quorums(2, 3, 1)
    ledger = LiveLedger(0, open_metadata(ONE, ["bk7"], {}, NOW_MS))
    with (
        Bookies(store.address_of, timeout=2) as bookies,
        pytest.raises(RemoteFailed, match="bk7 is not running"),
    ):
        list(bookies.read(ledger, 0, 3))
    refused = {"b": RemoteFailed("x")}
    assert set(choose_bookies(["a", "b", "c"], 2, {}, refused)) == {"a", "c"}
    racks = {"a": "r1", "b": "r1", "c": "r2"}
    assert all("c" in choose_bookies(["a", "b", "c"], 2, racks) for _ in range(20))


def test_failing_bookie_leaves_no_ledger(store: MetadataStore) -> None:
    before = store._nodes.children("/ledgers/00/0000", "looking")
    with (
        Bookies(lambda bookie: "127.0.0.1:1", timeout=2) as bookies,
        pytest.raises(RemoteFailed, match="bk0test failed"),
    ):
        write_ledger(store, bookies, lambda: [b"x"], ONE, {}, NOW_MS)
    assert store._nodes.children("/ledgers/00/0000", "looking") == before


def test_brokers_and_bookies_are_listed(pulsar: Broker, store: MetadataStore) -> None:
    (found,) = store.brokers()
    assert found.binary == pulsar.service_url
    assert found.admin == pulsar.admin_url
    assert store.bookies() == ["bk0test"]
    assert store.address_of("bk0test") == pulsar.bookie
    assert store.racks() == {}


def test_topics_and_partitions_are_looked_up(driver: Driver, store: MetadataStore) -> None:
    driver.create(topic("three-parts").full, partitions=3)
    assert store.partitions(topic("three-parts")) == 3
    assert store.partitions(topic("three-parts").with_partition(1)) == 3
    assert store.partitions(topic("nowhere")) == 0
    assert store.managed_ledger(topic("nowhere")) is None
    assert store.ledger(2_000_000_000) is None


def test_notes_are_stored_and_removed(store: MetadataStore) -> None:
    name = topic("noted").with_partition(2)
    assert store.noted(name) == []
    store.note(name, 12)
    store.note(name, 12)
    store.note(name, 7)
    assert store.noted(name) == [7, 12]
    store.delete_note(name, 7)
    store.delete_note(name, 7)
    assert store.noted(name) == [12]
    store.delete_note(name, 12)
    assert store.noted(name) == []


def test_own_compacted_ledger_is_served(
    pulsar: Broker, driver: Driver, store: MetadataStore, bookies: Bookies
) -> None:
    name = topic("served")
    driver.create(name.full)
    driver.send(name.full, singles(20))
    number = driver.ledgers(name.full)[1][-1].ledger
    entries = list(bookies.read(find(store, number), 0, 19))
    records = [encode_record(Position(number, entry), -1, body) for entry, body in entries[13:]]
    custom = ledger_custom_metadata(name.full, Position(number, 19))
    with (
        find_owner([pulsar.address], name.full, timeout=10) as owner,
        owner.subscribe(name.full) as held,
    ):
        assert not held.is_lost
        with pytest.raises(LogHeld, match="Exclusive consumer is already connected"):
            owner.subscribe(name.full)
        assert held.last_message().mark_delete == Position(number, -1)
        ours = write_ledger(store, bookies, lambda: records, ONE, custom, NOW_MS)
        held.acknowledge(Position(number, 19), ours.id)
        deadline = time.monotonic() + 120
        expected = TopicInMemory(Position(number, 19), Position(number, 19), ours.id, ours.id)
        while topic_in_memory(pulsar.admin_url, name, timeout=10) != expected:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        driver.unload(name.full)
        while not held.is_lost:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    horizon = driver.horizon(name.full)
    assert horizon is not None and horizon.compacted_ledger == ours.id
    assert [message["entry"] for message in driver.read(name.full, compacted=True)] == list(
        range(13, 20)
    )
    cursor = store.cursor(name, COMPACTION_CURSOR)
    assert cursor is not None
    if cursor.cursors_ledger >= 0:
        said = PositionInfo.decode_node(
            bookies.last_entry(find(store, cursor.cursors_ledger)).payload
        )
        assert said.compacted_ledger == ours.id
    else:
        assert cursor.compacted_ledger == ours.id


def test_missing_topics_and_brokers_are_reported(pulsar: Broker, driver: Driver) -> None:
    with find_owner([pulsar.address], topic("nowhere").full, timeout=10) as owner:
        with pytest.raises(NotALog, match="does not exist"):
            owner.temporary_subscription(topic("nowhere").full)
        with pytest.raises(NotALog, match="does not exist"):
            owner.subscribe(topic("nowhere").full)
    with pytest.raises(RemoteFailed, match="invalid frame length"):
        find_owner([pulsar.admin_url.removeprefix("http://")], topic("nowhere").full, timeout=5)
    with pytest.raises(RemoteFailed, match="no broker of the cluster is running"):
        find_owner([], topic("nowhere").full)


def test_server_that_is_not_a_metadata_store_is_named(pulsar: Broker) -> None:
    """A port that is easily mistaken for the metadata store's is named in the error."""
    admin = pulsar.admin_url.removeprefix("http://")
    for address, words in {
        "127.0.0.1:1": "connection refused",
        admin: "admin port",
        pulsar.address: "a Pulsar broker's service port",
        pulsar.bookie: "does not answer a ZooKeeper client|not a ZooKeeper",
    }.items():
        with (
            MetadataStore(address, timeout=3600) as store,
            pytest.raises(RemoteFailed, match=words),
        ):
            store.bookies()
    with MetadataStore(f"127.0.0.1:1,{admin},{pulsar.metadata_store}") as store:
        assert store.bookies()
