"""Tests of topics fetched from real bookies and compacted like the real cluster, entry for entry.

These compare as ``test_pulsar_compaction`` does, but need no broker: raw entries and compacted
ledgers are in the corpus.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import lastwrite
from lastwrite.pulsar.store.manifest import read_manifest
from lastwrite.pulsar.store.objects import read_entries
from lastwrite.reports.compaction import Status
from lastwrite.spark.inline import INLINE
from tests.support.pulsar import entries as slow
from tests.support.pulsar.corpus import CORPUS, TOPICS, compacted_entries, horizon, unpack

EVENTS = {
    "topicCompactionRetainNullKey": "true",
    "exposingBrokerEntryMetadataToClientEnabled": "true",
    "compactionServiceFactoryClassName": "org.apache.pulsar.compaction.EventTimeCompactionServiceFactory",
}
SETTINGS = {"events": EVENTS}
# Topic, round to compare with, and the round before it or None. ``events`` has one case: its open
# ledger grew after the first round, and by event time a broker forgets the times of deleted keys.
CASES = [
    *(
        (name, number, before)
        for name in TOPICS
        if name != "events"
        for number, before in ((1, None), (2, None), (2, 1))
    ),
    ("events", 2, 1),
]
KNOWN = frozenset(range(1, 33)) - {10, 21}  # fields of MessageMetadata that the broker knows
NOW_MS = 1_800_000_000_000


@pytest.fixture(scope="module")
def bookies(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = unpack("bookies", tmp_path_factory.mktemp("bookies"))
    return [str(folder / str(number)) for number in range(3)]


def fetched(bookies: list[str], archive: Path, name: str, number: int, cursor: int | None) -> Path:
    """The topic as it was after round ``number``, with the compacted ledger of round ``cursor``."""
    said = CORPUS / "topics" / name
    report = lastwrite.fetch(
        bookies,
        str(archive),
        topic=TOPICS[name],
        metadata=str(said / str(number) / "managed-ledger"),
        cursor=None if cursor is None else str(said / str(cursor) / "cursor"),
        recover=True,
    )
    assert report.exit_status == 0, report.to_dict()
    return Path(report.topics[0].folder)


def compacted(archive: Path, folder: Path, name: str) -> tuple[str, list[bytes]]:
    """Compact the topic. Returns the horizon and the records."""
    report = lastwrite.compact(
        str(archive), config=SETTINGS.get(name), now_ms=NOW_MS, spark=INLINE, like_broker=True
    )
    [partition] = report.partitions
    assert partition.status is Status.CLEANED, (partition.reason, partition.problems)
    manifest = read_manifest(str(folder))
    assert manifest is not None
    return str(manifest.horizon), [data for _, data in read_entries(str(folder / manifest.object))]


def same(ours: list[bytes], theirs: list[bytes]) -> None:
    """Compare two compacted ledgers entry for entry.

    Libraries may compress differently, and the broker drops fields that it does not know.
    """
    places = [[slow.record(each)[0] for each in side] for side in (ours, theirs)]
    assert places[0] == places[1]
    for our, their in zip(ours, theirs, strict=True):
        (place, our_id, our_body), (_, their_id, their_body) = slow.record(our), slow.record(their)
        one, two = slow.entry(our_body), slow.entry(their_body)
        assert (our_id, one.prefix, one.crc_holds, one.plain()) == (
            their_id,
            two.prefix,
            two.crc_holds,
            two.plain(),
        )
        known = [pair for pair in one.fields if pair[0] in KNOWN]
        assert known == [pair for pair in two.fields if pair[0] in KNOWN], place
        assert our == their or one.first(8) or known != one.fields, place


@pytest.mark.parametrize(("name", "number", "cursor"), CASES)
def test_round_equals_the_brokers_compacted_ledger(
    tmp_path: Path, bookies: list[str], name: str, number: int, cursor: int | None
) -> None:
    folder = fetched(bookies, tmp_path, name, number, cursor)
    at, records = compacted(tmp_path, folder, name)
    told = horizon(name, number)
    assert at == f"{told['horizon']['ledger']}:{told['horizon']['entry']}"
    same(records, compacted_entries(name, number))
