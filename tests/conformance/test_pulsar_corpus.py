"""Tests of compacting the raw entries of a real cluster without a broker.

Each round gets the ledgers that the topic had then. The horizon and the compacted ledger must equal
the real ones. The horizon stops before an open transaction, and includes markers and aborted
messages.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

import lastwrite
from lastwrite.pulsar.format.compacted import decode_record
from lastwrite.pulsar.format.entry import decode_entry, is_undecodable, plain_payload
from lastwrite.pulsar.format.managed_ledger import ManagedLedgerInfo
from lastwrite.pulsar.format.names import MANAGED_LEDGER
from lastwrite.pulsar.format.position import Position
from lastwrite.pulsar.store.manifest import read_manifest
from lastwrite.reports.compaction import Status
from lastwrite.spark.inline import INLINE
from tests.support.pulsar.corpus import (
    CORPUS,
    TOPICS,
    compacted_entries,
    horizon,
    raw_entries,
    unpack,
)
from tests.support.pulsar.topics import put_ledger, read_compacted, topic_folder

EVENTS = {
    "compactionServiceFactoryClassName": "org.apache.pulsar.compaction.EventTimeCompactionServiceFactory",
    "topicCompactionRetainNullKey": True,
    "exposingBrokerEntryMetadataToClientEnabled": True,
}


def lay_out(name: str, number: int, folder: Path) -> None:
    """Write the topic's ledgers as they were at that round of the real compactor.

    A ledger that was the last in both rounds had fewer entries in the first.
    """
    told = [horizon(name, each)["horizon"] for each in (1, 2)]
    grew = told[0]["ledger"] if told[0]["ledger"] == told[1]["ledger"] and number == 1 else None
    node = CORPUS / "topics" / name / str(number) / "managed-ledger"
    shutil.copy(node, folder / MANAGED_LEDGER)
    raw = raw_entries(name)
    for info in ManagedLedgerInfo.decode_node(node.read_bytes()).ledgers:
        entries = [
            data
            for (ledger, entry), data in sorted(raw.items())
            if ledger == info.ledger and not (ledger == grew and entry > told[0]["entry"])
        ]
        if entries:
            put_ledger(folder, info.ledger, entries, block_bytes=20_000)


def known(records: Iterable[tuple[Position, bytes]]) -> list[tuple[object, ...]]:
    """The entries' content, with only the metadata fields that a broker knows.

    A broker drops unknown fields from a batch, Lastwrite keeps them.
    """
    found = []
    for position, body in records:
        entry = decode_entry(body, *position)
        plain = (
            entry.payload
            if not entry.is_readable_batch or is_undecodable(entry)
            else plain_payload(entry)
        )
        metadata = (
            replace(entry.metadata, unknown=b"") if entry.is_readable_batch else entry.metadata
        )
        found.append((position, entry.prefix, entry.crc_holds, metadata, plain))
    return found


@pytest.mark.parametrize("name", TOPICS)
def test_each_round_equals_the_real_compactors(tmp_path: Path, name: str) -> None:
    folder = topic_folder(tmp_path, TOPICS[name])
    config = EVENTS if name == "events" else {}
    for number in (1, 2):
        lay_out(name, number, folder)
        (report,) = lastwrite.compact(
            str(folder), config=config, now_ms=1, like_broker=True, spark=INLINE
        ).partitions
        assert report.status is Status.CLEANED, report.reason
        told, manifest = horizon(name, number), read_manifest(str(folder))
        assert manifest is not None
        assert manifest.horizon == Position(told["horizon"]["ledger"], told["horizon"]["entry"])
        records = [decode_record(entry) for entry in compacted_entries(name, number)]
        assert known(read_compacted(folder)) == known(
            (position, body) for position, _, body in records
        )


@pytest.mark.parametrize("name", ["shapes", "odd", "files"])
def test_round_continues_from_the_real_compactors_ledger(tmp_path: Path, name: str) -> None:
    """The first round is the real compactor's, fetched from the bookies.

    The second is Lastwrite's.
    """
    bookies = unpack("bookies", tmp_path / "bookies")
    said = CORPUS / "topics" / name
    lastwrite.fetch(
        [str(bookies / str(number)) for number in range(3)],
        str(tmp_path / "archive"),
        topic=TOPICS[name],
        metadata=str(said / "2" / "managed-ledger"),
        cursor=str(said / "1" / "cursor"),
        recover=True,
    )
    folder = topic_folder(tmp_path / "archive", TOPICS[name])
    first = read_manifest(str(folder))
    assert first is not None and first.ledger == horizon(name, 1)["ledger"]
    (report,) = lastwrite.compact(str(folder), now_ms=1, like_broker=True, spark=INLINE).partitions
    assert report.status is Status.CLEANED, report.reason
    records = [decode_record(entry) for entry in compacted_entries(name, 2)]
    assert known(read_compacted(folder)) == known((position, body) for position, _, body in records)
    assert not list(folder.glob(f"{first.object}*"))
