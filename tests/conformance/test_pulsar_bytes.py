"""Tests that bytes of real clusters are decoded, and encoded to the same bytes."""

from __future__ import annotations

import base64
import gzip
import importlib.util
import json
import os
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from lastwrite.errors import LogError, TruncatedLog
from lastwrite.pulsar.format.compacted import decode_record, encode_record, is_record
from lastwrite.pulsar.format.entry import (
    PLACEHOLDER,
    TXN_ABORT,
    Entry,
    PulsarMessage,
    batch_parts,
    decode_entry,
    encode_entry,
    is_undecodable,
    messages_of,
    plain_payload,
    rebatched,
)
from lastwrite.pulsar.format.entry_log import LogRecord, decode_map, walk_entry_log, walk_journal
from lastwrite.pulsar.format.ledger_metadata import Digest, LedgerMetadata
from lastwrite.pulsar.format.managed_ledger import (
    CursorInfo,
    ManagedLedgerInfo,
    PositionInfo,
    from_json,
)
from lastwrite.pulsar.format.names import INDEX_SUFFIX, parse_map_file_name, parse_object_name
from lastwrite.pulsar.format.offload import IndexObject, walk_data
from lastwrite.pulsar.format.position import Position
from lastwrite.pulsar.format.sequence_file import METADATA_KEY, walk_sequence_file
from tests.support.kafka.oracle import PEERS
from tests.support.pulsar.corpus import (
    CORPUS,
    TOPICS,
    compacted_entries,
    horizon,
    raw_entries,
    rows,
)
from tests.support.pulsar.writers import encode_data

NAMES = list(TOPICS)
ROUNDS = [(name, number) for name in NAMES for number in (1, 2)]
BLOCK_BYTES = 5 << 20


def content(path: Path) -> bytes:
    data = path.read_bytes()
    return gzip.decompress(data) if path.suffix == ".gz" else data


@cache
def entries(name: str) -> list[Entry]:
    return [decode_entry(data, *place) for place, data in raw_entries(name).items()]


@cache
def aborted(name: str) -> set[tuple[int, int]]:
    found = {
        entry.metadata.transaction
        for entry in entries(name)
        if entry.metadata.marker_type == TXN_ABORT
    }
    return {one for one in found if one is not None}


# ---------------------------------------------------------------- entries


@pytest.mark.parametrize("name", NAMES)
def test_every_raw_entry_is_verified_and_round_trips(name: str) -> None:
    """Pulsar writes fields in the order of Lastwrite's tables, so encoding restores the bytes."""
    without_checksum = 0
    for entry, data in zip(entries(name), raw_entries(name).values(), strict=True):
        assert not is_record(data)
        assert entry.crc_holds is not False
        without_checksum += entry.crc_holds is None
        if not entry.metadata.unknown:
            again = encode_entry(
                entry.metadata,
                entry.payload,
                broker=entry.broker,
                checksum=entry.crc_holds is not None,
            )
            assert again == data
        if entry.is_readable_batch and not is_undecodable(entry):
            plain = plain_payload(entry)
            parts = batch_parts(entry.metadata, plain)
            assert b"".join(part for _, _, _, part in parts) == plain
            for _, single, value, part in parts:
                assert part == len(single.encode()).to_bytes(4, "big") + single.encode() + value
    assert (without_checksum > 0) == (name == "odd")


def test_corpus_has_every_shape() -> None:
    found = entries("shapes")
    metas = [entry.metadata for entry in found]
    assert {meta.compression or 0 for meta in metas} == set(range(5))
    assert (
        {True, False}
        == {entry.is_batch for entry in found}
        == {entry.is_encrypted for entry in found}
    )
    assert any(entry.is_batch and entry.is_encrypted for entry in found)
    assert any(meta.is_chunk for meta in metas) and any(meta.is_marker for meta in metas)
    assert any(meta.transaction and not meta.is_marker for meta in metas) and aborted("shapes")
    assert any(entry.broker is not None for entry in found)
    assert any(meta.num_messages_in_batch == 1 for meta in metas)
    assert any(meta.partition_key_b64_encoded for meta in metas) and any(
        meta.partition_key is None for meta in metas
    )
    assert any(entry.metadata.unknown for entry in entries("odd"))


def is_readable(entry: Entry) -> bool:
    """Whether a reader can decode the entry, or it is a chunk.

    ``odd`` has entries that it cannot.
    """
    try:
        messages_of(entry)
    except LogError:
        return entry.metadata.is_chunk
    return True


def shown(message: PulsarMessage, place: tuple[int, int], size: int | None) -> dict[str, Any]:
    """A message as the Java reader's program prints it."""
    row: dict[str, Any] = {
        "ledger": place[0],
        "entry": place[1],
        "producer": message.producer_name,
        "publishTime": message.publish_time,
        "sequenceId": message.sequence_id,
        "key": None if message.key is None else message.key.decode(),
        "value": None if message.is_null else base64.b64encode(message.value).decode(),
    }
    if message.index is not None:
        row |= {"batchIndex": message.index, "batchSize": size}
    if message.is_b64:
        row["keyB64"] = True
    if message.event_time:
        row["eventTime"] = message.event_time
    if message.properties:
        row["properties"] = dict(message.properties)
    if message.ordering_key is not None:
        row["orderingKey"] = base64.b64encode(message.ordering_key).decode()
    if message.is_encrypted:
        row["encrypted"] = True
    return row


def told(path: str) -> dict[tuple[int, int, int], dict[str, Any]]:
    """The Java reader's messages by position.

    One reader stopped at a message that it cannot decode.
    """
    return {
        (row["ledger"], row["entry"], row.get("batchIndex", -1)): row
        for row in rows(path)
        if "ledger" in row
    }


@pytest.mark.parametrize(("name", "number"), ROUNDS)
def test_messages_equal_those_of_the_java_reader(name: str, number: int) -> None:
    answers = told(f"topics/{name}/{number}/read.jsonl.gz")
    ends = any("timeout" in row for row in rows(f"topics/{name}/{number}/read.jsonl.gz"))
    last = max(answers)
    seen: set[tuple[int, int, int]] = set()
    for entry in entries(name):
        place = (entry.ledger, entry.entry)
        meta = entry.metadata
        if place > last[:2] or meta.is_chunk or meta.is_marker or meta.transaction in aborted(name):
            continue
        if not is_readable(entry):
            assert name == "odd"
            continue
        for message in messages_of(entry):
            index = -1 if message.index is None else message.index
            if (*place, index) not in answers and (ends or entry.is_encrypted):
                continue
            answer = answers[(*place, index)]
            seen.add((*place, index))
            if entry.is_encrypted:  # a reader presents an encrypted batch in its own way
                assert answer["encrypted"] and answer["key"] == (
                    None if message.key is None else message.key.decode()
                )
                continue
            assert shown(message, place, meta.num_messages_in_batch) == answer
    rest = {place for place in answers if place not in seen}
    chunks = {
        (entry.ledger, entry.entry, -1) for entry in entries(name) if entry.metadata.is_last_chunk
    }
    encrypted = {(entry.ledger, entry.entry) for entry in entries(name) if entry.is_encrypted}
    assert all(place in chunks or place[:2] in encrypted for place in rest)
    assert len(seen) > 4


# ---------------------------------------------------------------- compacted ledgers


def broker_s_own(entry: Entry, kept: set[int], with_prefix: bool) -> bytes | None:
    body = rebatched(entry, kept.__contains__)
    return body if body is None or with_prefix else body[len(entry.prefix) :]


@pytest.mark.parametrize(("name", "number"), ROUNDS)
def test_batches_are_rebuilt_like_the_real_compactors(name: str, number: int) -> None:
    """A raw batch and its kept indexes give the real compactor's bytes.

    Compressed ones are decoded.
    """
    originals = {(entry.ledger, entry.entry): entry for entry in entries(name)}
    batches = 0
    places = []
    for data in compacted_entries(name, number):
        assert is_record(data)
        position, partition, body = decode_record(data)
        assert partition == (1 if name == "parts-partition-1" else -1)
        assert encode_record(position, partition, body) == data
        places.append(position)
        entry = decode_entry(body, *position)
        assert entry.crc_holds is not False
        original = originals[position]
        if not entry.is_readable_batch or is_undecodable(original):
            assert body in (
                raw_entries(name)[position],
                raw_entries(name)[position][len(original.prefix) :],
            )
            continue
        batches += 1
        kept = set(entry.metadata.compacted_batch_indexes)
        assert kept == {m.index for m in messages_of(entry) if not m.compacted_out}
        ours = broker_s_own(original, kept, name == "events")
        assert ours is not None
        if not entry.metadata.compression and not original.metadata.unknown:
            assert ours == body
        again = decode_entry(ours, *position)
        assert messages_of(again) == messages_of(entry)
        assert plain_payload(again) == plain_payload(entry)
        assert again.metadata.compression == entry.metadata.compression
        if len(kept) < (entry.metadata.num_messages_in_batch or 0):
            assert PLACEHOLDER in plain_payload(entry)
    assert places == sorted(places)
    assert batches or name not in ("shapes", "files")


@pytest.mark.parametrize("kind", [row["kind"] for row in rows("topics/unreadable.jsonl")])
def test_undecodable_batch_is_kept(kind: str) -> None:
    """The real compactor keeps some of them and fails on others. Lastwrite keeps all."""
    (row,) = (row for row in rows("topics/unreadable.jsonl") if row["kind"] == kind)
    raw = {(one["ledger"], one["entry"]): base64.b64decode(one["bytes"]) for one in row["raw"]}
    found = [decode_entry(data, *place) for place, data in raw.items()]
    assert [is_undecodable(entry) for entry in found] == [False, True, False]
    assert all(entry.crc_holds for entry in found)
    with pytest.raises(LogError):
        messages_of(found[1])
    if row["compacted"] is not None:
        kept = [decode_record(base64.b64decode(one["bytes"])) for one in row["compacted"]]
        assert [(tuple(position), body) for position, _, body in kept] == list(raw.items())


# ---------------------------------------------------------------- files of ledgers

OBJECTS = [path for path in (CORPUS / "offloaded").iterdir() if parse_object_name(path.name)]


@pytest.mark.parametrize("path", OBJECTS, ids=lambda path: str(path.name[-9:]))
def test_offloaded_objects_round_trip(path: Path) -> None:
    data = path.read_bytes()
    named = parse_object_name(path.name)
    assert named is not None
    index_bytes = path.with_name(path.name + INDEX_SUFFIX).read_bytes()
    index = IndexObject.decode(index_bytes)
    assert index.encode() == index_bytes and index.data_bytes == len(data)
    found = [data[at : at + size] for _, at, size in walk_data(data)]
    assert encode_data(found, BLOCK_BYTES) == (data, list(index.blocks))
    assert index.metadata.is_closed and index.metadata.last_entry == len(found) - 1
    assert index.metadata.length == sum(map(len, found))
    everything = {place: entry for name in NAMES for place, entry in raw_entries(name).items()}
    assert all(everything[named[1], number] == entry for number, entry in enumerate(found))
    user = json.loads(path.with_name(path.name + ".meta.json").read_text())
    assert user["role"] == "data" and user["s3managedledgeroffloaderformatversion"] == "1"


def test_object_of_two_blocks_with_padding_is_read() -> None:
    (path,) = (CORPUS / "blocks").glob("*.gz")
    data = content(path)
    index = IndexObject.decode(path.with_name(path.stem + INDEX_SUFFIX).read_bytes())
    found = [data[at : at + size] for _, at, size in walk_data(data)]
    assert len(index.blocks) == 2 and encode_data(found, BLOCK_BYTES) == (data, list(index.blocks))
    for number in range(len(found)):
        block = index.block_of(number)
        assert block is not None
        part = data[block.offset : index.block_end(block)]
        assert {entry: part[at : at + size] for entry, at, size in walk_data(part)}[
            number
        ] == found[number]


def test_map_files_are_read() -> None:
    folders = [path.parent for path in (CORPUS / "filesystem").rglob("data")]
    assert folders
    for folder in folders:
        named = parse_map_file_name(folder.name)
        assert named is not None
        first, *rest = walk_sequence_file((folder / "data").read_bytes())
        metadata = LedgerMetadata.decode(first.value)
        assert first.key == METADATA_KEY and metadata.last_entry == len(rest) - 1
        assert [pair.key for pair in rest] == list(range(len(rest)))
        raw = raw_entries("files")
        assert all(raw[named[0], pair.key] == pair.value for pair in rest)


def ledger_nodes() -> dict[int, LedgerMetadata]:
    return {
        int(path.name): LedgerMetadata.decode_node(path.read_bytes())
        for path in (CORPUS / "ledgers").iterdir()
    }


def test_ledger_nodes_round_trip() -> None:
    for path in (CORPUS / "ledgers").iterdir():
        data = path.read_bytes()
        metadata = LedgerMetadata.decode_node(data)
        assert metadata.encode_node() == data and not metadata.unknown
    nodes = ledger_nodes()
    for name, number in ROUNDS:
        node = nodes.get(horizon(name, number)["ledger"])
        if node is not None:
            assert (
                node.compacted_topic == TOPICS[name]
                and node.digest == Digest.CRC32
                and node.is_closed
            )
    assert any(
        node.compacted_topic is None and node.digest == Digest.CRC32C for node in nodes.values()
    )


LOGS = sorted((CORPUS / "bookies").rglob("*.log.gz"))


def test_records_of_entry_logs_are_verified() -> None:
    """Every record's digest is checked, with the guessed type and the metadata's type."""
    everything = {place: data for name in NAMES for place, data in raw_entries(name).items()}
    digests = {
        ledger: Digest(node.digest) for ledger, node in ledger_nodes().items() if node.digest
    }
    copies: dict[tuple[int, int], int] = {}
    maps = 0
    for path in LOGS:
        data = content(path)
        records = list(walk_entry_log(data))
        assert all(record.digest is not None for record in records)
        assert list(walk_entry_log(data, digests)) == records
        for record in records:
            assert digests.get(record.ledger, record.digest) == record.digest
            place = (record.ledger, record.entry)
            copies[place] = copies.get(place, 0) + 1
            if place in everything:
                assert data[record.at : record.at + record.size] == everything[place]
        found = decode_map(data) if data else {}
        maps += bool(found)
        sizes: dict[int, int] = {}
        for record in records:
            sizes[record.ledger] = (
                sizes.get(record.ledger, 0) + record.at + record.size - record.record_at
            )
        assert all(found.get(ledger, 0) >= size for ledger, size in sizes.items()) or not found
    assert maps and everything.keys() <= copies.keys()
    assert set(copies.values()) >= {2}


def test_journals_are_read_to_their_end() -> None:
    """A journal is read to its end, or to where the bookie was killed.

    Its records are those of the logs.
    """
    everything = {place: data for name in NAMES for place, data in raw_entries(name).items()}
    seen: set[tuple[int, int]] = set()
    for path in sorted((CORPUS / "bookies").rglob("*.txn.gz")):
        data = content(path)
        for record in walked(data):
            place = (record.ledger, record.entry)
            assert record.digest is not None
            if place in everything:
                seen.add(place)
                assert data[record.at : record.at + record.size] == everything[place]
    assert seen == everything.keys()
    (killed,) = (CORPUS / "killed").rglob("*.txn.gz")
    assert len(list(walked(content(killed)))) > 3


def walked(data: bytes) -> list[LogRecord]:
    found: list[LogRecord] = []
    try:
        found.extend(walk_journal(data))
    except TruncatedLog:
        pass
    return found


# ---------------------------------------------------------------- managed ledgers


@pytest.mark.parametrize(("name", "number"), ROUNDS)
def test_managed_ledger_and_cursor_nodes_round_trip(name: str, number: int) -> None:
    folder = CORPUS / "topics" / name / str(number)
    node = (folder / "managed-ledger").read_bytes()
    info = ManagedLedgerInfo.decode_node(node)
    assert ManagedLedgerInfo.decode(node).encode() == node
    exported = from_json((folder / "stats-internal.json").read_text())
    assert [one.ledger for one in exported.info.ledgers] == [one.ledger for one in info.ledgers]
    for ours, other in zip(info.ledgers, exported.info.ledgers, strict=True):
        assert ours.is_closed == other.is_closed
        assert not ours.is_closed or (ours.entries, ours.size_bytes) == (
            other.entries,
            other.size_bytes,
        )
    names = {path.name for path in (CORPUS / "offloaded").iterdir()}
    for one in info.ledgers:
        if one.offloaded_as is not None and name not in ("files", "events"):
            assert f"{one.offloaded_as}-ledger-{one.ledger}" in names
    said = horizon(name, number)
    place = Position(said["horizon"]["ledger"], said["horizon"]["entry"])
    assert (exported.horizon, exported.compacted_ledger) == (place, said["ledger"])
    cursor = CursorInfo.decode_node((folder / "cursor").read_bytes())
    if cursor.cursors_ledger < 0:
        assert (cursor.horizon, cursor.compacted_ledger) == (place, said["ledger"])
        return
    entry = base64.b64decode(rows(f"topics/{name}/{number}/cursor-ledger.jsonl")[-1]["bytes"])
    mark = PositionInfo.decode_node(entry)
    assert (mark.horizon, mark.compacted_ledger) == (place, said["ledger"])
    assert mark.encode() == entry or entry[:2] == b"\x47\x78"


# ---------------------------------------------------------------- an independent decoder


@pytest.fixture(scope="module")
def peer() -> ModuleType:
    """An independent decoder of the same bytes, from the peer."""
    path = Path(os.path.abspath(PEERS / "pulsar" / "pulsarbytes.py"))
    if not path.exists():
        pytest.skip(f"no Pulsar peer at {path.parent}; LASTWRITE_PEERS names the folder of peers")
    spec = importlib.util.spec_from_file_location("pulsarbytes", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_second_reader_gets_the_same_messages(peer: ModuleType) -> None:
    for name in NAMES:
        for entry, data in zip(entries(name), raw_entries(name).values(), strict=True):
            if not is_readable(entry) or entry.metadata.is_chunk:
                continue
            ours = [
                (m.index, m.key, m.value, m.event_time, dict(m.properties))
                for m in messages_of(entry)
            ]
            theirs = [
                (one["index"], key(one), one["value"], one["event_time"], one["properties"])
                for one in peer.messages(data)
                if "marker" not in one and not one.get("encrypted")
            ]
            assert entry.is_encrypted or ours == theirs


def key(row: dict[str, Any]) -> bytes | None:
    return None if row["key"] is None else str(row["key"]).encode()


def test_second_reader_gets_the_same_files(peer: ModuleType) -> None:
    for path in LOGS[::5]:
        data = content(path)
        ours = [
            (r.record_at, r.ledger, r.entry, data[r.at : r.at + r.size])
            for r in walk_entry_log(data)
        ]
        theirs = (
            [
                (one[0], one[1], one[2], one[6])
                for one in peer.entry_log(data)[1]
                if one[5] is not None
            ]
            if data
            else []
        )
        assert ours == theirs
    for path in OBJECTS:
        data = path.read_bytes()
        assert [
            (entry, data[at : at + size]) for entry, at, size in walk_data(data)
        ] == peer.offload_data(data)[0]
    for path in (CORPUS / "filesystem").rglob("data"):
        data = path.read_bytes()
        assert [(pair.key, pair.value) for pair in walk_sequence_file(data)] == peer.sequence_file(
            data
        )[1]
