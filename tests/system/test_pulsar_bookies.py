"""Tests with several bookies: striped ledgers, changed ensembles and failing bookies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

import lastwrite
from lastwrite.errors import CorruptLog, RemoteFailed
from lastwrite.pulsar.format.ledger_metadata import Ensemble, LedgerMetadata
from lastwrite.pulsar.format.names import TopicName
from lastwrite.pulsar.network.bookies import Bookies, LedgerWriter, LiveLedger
from lastwrite.pulsar.network.ledgers import Quorums, open_metadata, write_ledger
from lastwrite.pulsar.network.metadata import MetadataStore
from lastwrite.spark.inline import INLINE
from tests.support.pulsar.broker import Broker, Unavailable, pulsar_home
from tests.support.pulsar.driver import Driver

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.long]

NOW_MS = 1_700_000_000_000
TOPIC = TopicName.parse("persistent://public/default/striped")


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    quorums = {"EnsembleSize": "3", "WriteQuorum": "2", "AckQuorum": "2"}
    try:
        made = Broker(
            pulsar_home(),
            tmp_path_factory.mktemp("three") / "data",
            {f"managedLedgerDefault{name}": value for name, value in quorums.items()},
            bookies=3,
        )
    except Unavailable as reason:
        pytest.skip(str(reason))
    with made:
        yield made


@pytest.fixture(scope="module")
def clients(three: Broker) -> Iterator[Driver]:
    with Driver(three) as driver:
        driver.create(TOPIC.full)
        driver.send(
            TOPIC.full,
            [{"messages": [{"key": f"k{n % 9}", "value": "dmFsdWU="} for n in range(300)]}],
        )
        yield driver


@pytest.fixture
def store(three: Broker) -> Iterator[MetadataStore]:
    with MetadataStore(three.metadata_store, timeout=10) as store:
        yield store


def without(store: MetadataStore, *gone: str) -> Callable[[str], str]:
    """The addresses of bookies, as if the ``gone`` ones were unreachable."""
    return lambda bookie: "127.0.0.1:1" if bookie in gone else store.address_of(bookie)


def raw(clients: Driver, store: MetadataStore) -> tuple[LiveLedger, list[bytes]]:
    number = clients.ledgers(TOPIC.full)[1][-1].ledger
    ledger = store.ledger(number)
    assert ledger is not None and (ledger.metadata.ensemble, ledger.metadata.quorum) == (3, 2)
    return ledger, clients.dump(number, last=299)


def test_striped_ledger_is_read_without_any_one_bookie(
    clients: Driver, store: MetadataStore
) -> None:
    ledger, expected = raw(clients, store)
    for gone in ("none", *store.bookies()):
        with Bookies(without(store, gone), timeout=5) as bookies:
            assert [payload for _, payload in bookies.read(ledger, 0, 299)] == expected
            # The last entry may be stored only on the unreachable bookies.
            assert bookies.last_entry(ledger).entry >= 298
    first, second, _ = store.bookies()
    with (
        Bookies(without(store, first, second), timeout=5) as bookies,
        pytest.raises(RemoteFailed) as caught,
    ):
        list(bookies.read(ledger, 0, 299))
    assert "cannot be read" in caught.value.problem


def test_ledger_is_written_to_other_bookies_if_one_fails(
    clients: Driver, store: MetadataStore
) -> None:
    _, payloads = raw(clients, store)
    whole = write_ledger(
        store, Bookies(store.address_of), lambda: payloads, Quorums(3, 2, 2), {}, NOW_MS
    )
    assert clients.dump(whole.id) == payloads
    for gone in store.bookies():
        tried: list[int] = []
        with Bookies(without(store, gone), timeout=5) as bookies:
            made = write_ledger(
                store, bookies, lambda: payloads, Quorums(2, 2, 2), {}, NOW_MS, tried.append
            )
        assert gone not in made.metadata.ensembles[0].bookies
        assert clients.dump(made.id) == payloads
        assert all(store.ledger(number) is None for number in tried[:-1])
    with (
        Bookies(without(store, "bk0test"), timeout=5) as bookies,
        pytest.raises(RemoteFailed, match="bk0test failed"),
    ):
        write_ledger(store, bookies, lambda: payloads, Quorums(3, 2, 2), {}, NOW_MS)


def test_changed_ensemble_is_followed(clients: Driver, store: MetadataStore) -> None:
    _, payloads = raw(clients, store)
    first, second, third = store.bookies()
    start = open_metadata(Quorums(3, 1, 1), (first, second, third), {}, NOW_MS)
    changed = (
        Ensemble(bookies=(first, second, third), first_entry=0),
        Ensemble(bookies=(third, first, second), first_entry=7),
    )
    made = store.create_ledger(replace(start, ensembles=changed))
    with Bookies(store.address_of, timeout=5) as bookies:
        writer = LedgerWriter(bookies, made.ledger)
        for payload in payloads:
            writer.add(payload)
        writer.flush()
        closed: LedgerMetadata = replace(
            made.ledger.metadata, state=3, length=writer.bytes, last_entry=299
        )
        store.close_ledger(made, closed)
        assert clients.dump(made.ledger.id) == payloads
        assert [
            payload for _, payload in bookies.read(LiveLedger(made.ledger.id, closed), 0, 299)
        ] == payloads
        never = LiveLedger(made.ledger.id, replace(closed, ensembles=changed[:1]))
        with pytest.raises(CorruptLog, match="none of its bookies has entry"):
            list(bookies.read(never, 7, 12))


def test_round_uses_the_topics_own_quorums(
    three: Broker, clients: Driver, store: MetadataStore
) -> None:
    report = lastwrite.compact(
        TOPIC.full, config={"metadataStoreUrl": three.metadata_store}, spark=INLINE
    )
    (found,) = report.partitions
    assert found.published is not None, found.reason
    made = store.ledger(int(str(found.published["ledger"])))
    assert made is not None
    assert (made.metadata.ensemble, made.metadata.quorum, made.metadata.ack_quorum) == (3, 2, 2)
    assert len(clients.read(TOPIC.full, compacted=True)) == 9
