"""Tests of ``verify`` on topic folders: an intact folder, and the message for each kind of
damage.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import lastwrite
from lastwrite.pulsar.format.compacted import encode_record, ledger_custom_metadata
from lastwrite.pulsar.format.entry import PulsarMessage, encode_batch, encode_entry, encode_single
from lastwrite.pulsar.format.names import INDEX_SUFFIX
from lastwrite.pulsar.format.offload import IndexObject
from lastwrite.pulsar.format.position import Position
from lastwrite.pulsar.store.manifest import read_manifest, replace_manifest
from lastwrite.pulsar.store.topic import MADE_BY
from lastwrite.reports.verification import PartitionVerification
from lastwrite.spark.inline import INLINE
from tests.support.pulsar.topics import put_ledger, topic_folder

NOW = 1_700_000_000_000


def single(key: bytes | None, value: bytes) -> bytes:
    return encode_entry(*encode_single(PulsarMessage(key=key, value=value, publish_time=NOW)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two raw ledgers of several blocks with a transaction, and a compacted ledger of the first."""
    made = topic_folder(tmp_path)
    members = [
        PulsarMessage(index=n, key=b"b%d" % n, value=b"x" * n, publish_time=NOW) for n in range(4)
    ]
    batch = encode_entry(*encode_batch(members))
    put_ledger(
        made,
        10,
        [*(single(b"k%d" % (n % 3), b"v%d" % n) for n in range(20)), batch],
        block_bytes=600,
    )
    lastwrite.compact(str(made), now_ms=NOW, spark=INLINE)
    meta, payload = encode_single(PulsarMessage(key=b"t", value=b"v", publish_time=NOW))
    inside = replace(meta, txnid_least_bits=1, txnid_most_bits=0)
    marker = encode_entry(replace(inside, partition_key=None, marker_type=22))
    put_ledger(
        made, 12, [single(None, b"x"), single(b"k1", b""), encode_entry(inside, payload), marker]
    )
    return made


def verified(folder: Path) -> PartitionVerification:
    [found] = lastwrite.verify(str(folder)).partitions
    return found


def test_intact_topic_is_verified(folder: Path) -> None:
    found = verified(folder)
    assert (str(found.status), found.problems, found.advice) == ("verified", [], [])
    assert (found.segments, found.batches, found.records) == (3, 4 + 21 + 4, 6 + 24 + 3)
    # The batch's first message is empty, which makes it a delete.
    assert (found.tombstones, found.keyless_records, found.control_records) == (2, 1, 1)
    assert found.transactions is not None
    assert found.transactions.to_dict() == {
        "open": 0,
        "aborted": 1,
        "committed": 0,
        "aborted_records": 1,
    }
    assert (found.log_start_offset, found.end_offset) == (10 << 32, (12 << 32) + 4)


def raw(folder: Path, ledger: int = 10) -> Path:
    return next(path for path in folder.iterdir() if path.name.endswith(f"-ledger-{ledger}"))


def compacted(folder: Path) -> Path:
    manifest = read_manifest(str(folder))
    assert manifest is not None
    return folder / manifest.object


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def change_index(path: Path, change: Callable[[IndexObject], IndexObject]) -> None:
    index = path.with_name(path.name + INDEX_SUFFIX)
    index.write_bytes(change(IndexObject.decode(index.read_bytes())).encode())


def with_metadata(index: IndexObject, **fields: object) -> IndexObject:
    return replace(index, metadata_bytes=replace(index.metadata, **fields).encode())  # type: ignore[arg-type]


def with_manifest(folder: Path, **fields: object) -> None:
    manifest = read_manifest(str(folder))
    assert manifest is not None
    replace_manifest(str(folder), replace(manifest, **fields))  # type: ignore[arg-type]


def second_block_moved(index: IndexObject) -> IndexObject:
    first, second, *rest = index.blocks
    return replace(index, blocks=(first, second._replace(offset=second.offset + 1), *rest))


def second_block_of_another_entry(index: IndexObject) -> IndexObject:
    first, second, *rest = index.blocks
    return replace(
        index, blocks=(first, second._replace(first_entry=second.first_entry - 1), *rest)
    )


DAMAGE: dict[str, Callable[[Path], None]] = {
    "checksum does not match": lambda folder: flip(raw(folder), 160),
    "the index places a block at byte": lambda folder: change_index(
        raw(folder), second_block_moved
    ),
    "but the index states entry": lambda folder: change_index(
        raw(folder), second_block_of_another_entry
    ),
    "the ledger has 21 entries, but its metadata state 22": lambda folder: change_index(
        raw(folder), lambda index: with_metadata(index, last_entry=21)
    ),
    "bytes of entries, but its metadata state 7": lambda folder: change_index(
        raw(folder), lambda index: with_metadata(index, length=7)
    ),
    "the messages of the compacted ledger: 6, but the manifest states 7": lambda folder: (
        with_manifest(folder, messages=7)
    ),
    "the bytes of the compacted ledger: ": lambda folder: with_manifest(folder, size_bytes=1),
    "is beyond the compaction horizon": lambda folder: with_manifest(
        folder,
        horizon=read_manifest(str(folder)).horizon._replace(entry=3),  # type: ignore[union-attr]
    ),
    "but the manifest states ": lambda folder: with_manifest(
        folder,
        from_=read_manifest(str(folder)).horizon._replace(entry=0),  # type: ignore[union-attr]
    ),
    "superseded messages": lambda folder: made_by_hand(folder, b"k0", b"v"),
    "messages without a key, which compaction always removes": lambda folder: made_by_hand(
        folder, None, b"v"
    ),
}


def made_by_hand(folder: Path, key: bytes | None, value: bytes, is_ours: bool = True) -> None:
    """Write a compacted ledger of two messages, one with key ``k0``, and a matching manifest."""
    records = [
        encode_record(Position(10, 0), -1, single(b"k0", b"v")),
        encode_record(Position(10, 1), -1, single(key, value)),
    ]
    manifest = read_manifest(str(folder))
    assert manifest is not None
    custom = {
        **ledger_custom_metadata(manifest.topic, Position(10, 1)),
        **({MADE_BY: b"test"} if is_ours else {}),
    }
    path = put_ledger(folder, 99, records, custom=custom)
    with_manifest(
        folder,
        ledger=99,
        object=path.name,
        entries=2,
        messages=2,
        size_bytes=sum(map(len, records)),
        from_=Position(10, 0),
        to=Position(10, 1),
    )


@pytest.mark.parametrize("words", list(DAMAGE))
def test_each_kind_of_damage_has_its_message(folder: Path, words: str) -> None:
    DAMAGE[words](folder)
    report = lastwrite.verify(str(folder))
    assert report.exit_status == 3
    assert words in str(report.partitions[0].problems[0]), report.partitions[0].problems
    json.dumps(report.to_dict())


def test_keyless_messages_of_a_broker_are_advice_and_not_damage(folder: Path) -> None:
    made_by_hand(folder, None, b"v", is_ours=False)
    found = verified(folder)
    assert (
        str(found.status) == "verified"
        and "the compacted ledger contains 1 messages without a key" in found.advice[0]
    )


def test_tombstones_in_a_compacted_ledger_are_advice(folder: Path) -> None:
    made_by_hand(folder, b"k1", b"")
    assert [line for line in verified(folder).advice if line.endswith("contains 1 tombstones")]


def test_compacted_ledger_without_a_manifest_is_advice(folder: Path) -> None:
    made_by_hand(folder, b"k1", b"v")
    found = verified(folder)
    assert str(found.status) == "verified"
    assert [
        line for line in found.advice if line.endswith("no manifest names this compacted ledger")
    ]
