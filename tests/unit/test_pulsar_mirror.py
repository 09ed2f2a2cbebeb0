"""Tests of a topic folder that follows a live cluster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from lastwrite.errors import CorruptLog, LogHeld, RemoteFailed
from lastwrite.pulsar.format.compacted import encode_record, ledger_custom_metadata
from lastwrite.pulsar.format.entry import PulsarMessage, encode_batch, encode_entry, encode_single
from lastwrite.pulsar.format.ledger_metadata import (
    Digest,
    LedgerMetadata,
    LedgerState,
    custom_items,
)
from lastwrite.pulsar.format.managed_ledger import LedgerInfo, ManagedLedgerInfo
from lastwrite.pulsar.format.names import TopicName
from lastwrite.pulsar.format.position import Position
from lastwrite.pulsar.store.mirror import mirror_folder, mirroring
from lastwrite.pulsar.store.objects import read_entries, read_index
from lastwrite.pulsar.store.topic import list_topic

TOPIC = TopicName.parse("persistent://public/default/t")


def metadata(custom: dict[str, bytes] | None = None) -> LedgerMetadata:
    return LedgerMetadata(
        quorum=1,
        ensemble=1,
        ack_quorum=1,
        length=0,
        state=LedgerState.CLOSED,
        digest=Digest.CRC32,
        custom_items=custom_items(custom or {}),
    )


COMPACTED = metadata(ledger_custom_metadata(TOPIC.full, Position(10, 1)))


def single(key: str, value: bytes) -> bytes:
    return encode_entry(
        *encode_single(PulsarMessage(key=key.encode(), value=value, publish_time=1))
    )


def batch(*keys: str | None) -> bytes:
    """A batch. None stands for a removed message."""
    messages = [
        PulsarMessage(key=key.encode(), value=b"v", publish_time=1)
        if key
        else PulsarMessage(compacted_out=True, publish_time=1)
        for key in keys
    ]
    metadata, payload = encode_batch(messages)
    left = tuple(n for n, key in enumerate(keys) if key) if None in keys else ()
    return encode_entry(replace(metadata, compacted_batch_indexes=left), payload)


RAW = [single("a", b"1"), batch("b", "c"), single("a", b"2")]


def test_ledger_is_fetched_once_and_replaced_after_it_has_grown(tmp_path: Path) -> None:
    with mirroring(str(tmp_path), TOPIC) as mirror:
        assert mirror.find(10, 2) is None
        path = mirror.fetch(10, metadata(), enumerate(RAW[:2]))
        assert mirror.find(10, 2) == path
        assert mirror.find(10, 3) is None
        assert mirror.find(10, 2, uuid4()) is None
    with mirroring(str(tmp_path), TOPIC) as mirror:
        assert mirror.find(10, 2) == path
        longer = mirror.fetch(10, metadata(), enumerate(RAW))
        assert [data for _, data in read_entries(longer)] == RAW
        assert longer != path and not Path(path).exists()
        offloaded = uuid4()
        other = mirror.fetch(10, metadata(), enumerate(RAW), offloaded)
        assert (mirror.find(10, 3, offloaded), mirror.raw_ledgers) == (other, [10])
        assert not Path(longer).exists()


def test_entries_of_several_copies_are_merged_with_the_existing_ones(tmp_path: Path) -> None:
    notes: list[CorruptLog] = []

    def entries(*numbers: int) -> list[tuple[int, bytes]]:
        return [(number, single("k", b"%d" % number)) for number in numbers]

    with mirroring(str(tmp_path), TOPIC) as mirror:
        assert mirror.merge(10, metadata(), [[], []], 9, notes.append) is None
        path = mirror.merge(
            10, metadata(), [entries(0, 1, 5), entries(1, 2, 8, 9)], 9, notes.append
        )
        assert path is not None and list(read_entries(path)) == entries(0, 1, 2, 5, 8)
        assert read_index(path).missing == ((3, 4), (6, 7))
        assert mirror.find(10, 9) is None, "with gaps it is not the ledger"
        other = mirror.merge(10, metadata(), [entries(3, 6)], 9, notes.append)
        assert other is not None and list(read_entries(other)) == entries(0, 1, 2, 3, 5, 6, 8)
        assert not Path(path).exists()
        whole = mirror.merge(10, metadata(), [entries(4, 7)], 9, notes.append)
        assert whole is not None and mirror.find(10, 9) == whole
        assert (list(read_entries(whole)), read_index(whole).missing, notes) == (
            entries(*range(9)),
            (),
            [],
        )


def test_failed_fetch_leaves_no_files(tmp_path: Path) -> None:
    def failing() -> list[tuple[int, bytes]]:
        raise RemoteFailed("gone")

    with mirroring(str(tmp_path), TOPIC) as mirror:
        with pytest.raises(RemoteFailed):
            mirror.fetch(10, metadata(), (each for _ in range(1) for each in failing()))
        assert mirror.raw_ledgers == []
        assert {path.name for path in Path(mirror.folder).iterdir()} == {"lastwrite.lock"}
        with pytest.raises(LogHeld), mirroring(str(tmp_path), TOPIC):
            pass


def test_manifest_follows_the_cluster(tmp_path: Path) -> None:
    records = [
        encode_record(Position(10, 0), -1, RAW[0]),
        encode_record(Position(10, 1), -1, batch("b", None)),
    ]
    info = ManagedLedgerInfo(ledgers=(LedgerInfo(ledger=10, entries=3, closed_ms=1),))
    with mirroring(str(tmp_path), TOPIC) as mirror:
        mirror.fetch(10, metadata(), enumerate(RAW))
        mirror.fetch(77, COMPACTED, enumerate(records))
        mirror.write_metadata(info.encode())
        mirror.is_compacted(77, Position(10, 2))
        found = mirror.manifest
        assert found is not None
        assert (found.ledger, found.from_, found.to, found.horizon) == (
            77,
            (10, 0),
            (10, 1),
            (10, 2),
        )
        assert (found.entries, found.messages, found.size_bytes) == (2, 2, sum(map(len, records)))
        mirror.is_compacted(77, Position(12, -1))
        assert mirror.manifest is not None and mirror.manifest.horizon == (12, -1)
        assert mirror.raw_ledgers == [10]
    topic = list_topic(mirror_folder(str(tmp_path), TOPIC))
    assert topic.compacted is not None and [each.id for each in topic.compacted] == [77]
    assert (topic.problems, topic.strays) == ((), ())
    with mirroring(str(tmp_path), TOPIC) as mirror:
        mirror.is_published(90, Position(12, -1))
        assert mirror.manifest is not None and mirror.manifest.ledger == 90
        assert mirror.find(90, 2) is None  # the ledger list was read when the context began
    with mirroring(str(tmp_path), TOPIC) as mirror:
        assert mirror.find(90, 2) is not None and mirror.find(77, 2) is None
        mirror.is_not_compacted()
        mirror.clear_compacted(None)
        assert mirror.manifest is None
    topic = list_topic(mirror_folder(str(tmp_path), TOPIC))
    assert [ledger.id for ledger in topic.ledgers] == [10]
    assert topic.strays == ()


def test_manifest_records_that_the_ledger_has_chunks(tmp_path: Path) -> None:
    chunks = [
        encode_entry(
            replace(
                encode_single(PulsarMessage(key=b"a", value=b"v", publish_time=1))[0],
                uuid="u",
                chunk_id=n,
                num_chunks_from_msg=2,
                total_chunk_msg_size=2,
            ),
            b"v",
        )
        for n in range(2)
    ]
    with mirroring(str(tmp_path), TOPIC) as mirror:
        for number, bodies in ((77, RAW[:1]), (78, chunks)):
            records = [encode_record(Position(10, n), -1, body) for n, body in enumerate(bodies)]
            mirror.fetch(number, COMPACTED, enumerate(records))
            mirror.is_compacted(number, Position(10, 2))
            assert mirror.manifest is not None and mirror.manifest.parts is (number == 78)


def test_empty_compacted_ledger_is_fetched(tmp_path: Path) -> None:
    with mirroring(str(tmp_path), TOPIC) as mirror:
        mirror.fetch(77, COMPACTED, [])
        assert mirror.find(77, 0) is not None
        mirror.is_compacted(77, Position(10, 2))
        found = mirror.manifest
        assert found is not None and (found.from_, found.to, found.entries) == ((10, 2), (10, 2), 0)
    assert list_topic(mirror_folder(str(tmp_path), TOPIC)).problems == ()
