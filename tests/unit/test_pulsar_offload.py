"""Tests of offloaded ledgers: blocks, padding and indexes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from lastwrite.errors import CorruptLog, TruncatedLog, UnsupportedFormat
from lastwrite.pulsar.format.ledger_metadata import LedgerMetadata, LedgerState
from lastwrite.pulsar.format.offload import (
    BLOCK_HEADER_BYTES,
    PADDING,
    IndexObject,
    OffloadIndexEntry,
    block_header,
    parse_block_header,
    walk_data,
)
from tests.support.pulsar.bytes import EXAMPLES
from tests.support.pulsar.writers import encode_data

ENTRIES = [bytes([n]) * size for n, size in enumerate([0, 1, 40, 7, 88, 3, 60])]


def entries_of(data: bytes) -> list[tuple[int, bytes]]:
    return [(entry, data[at : at + size]) for entry, at, size in walk_data(data)]


def test_documented_object_round_trips() -> None:
    assert entries_of(EXAMPLES["O"]) == [(0, EXAMPLES["A"]), (1, EXAMPLES["C"])]
    data, blocks = encode_data([EXAMPLES["A"], EXAMPLES["C"]])
    assert data == EXAMPLES["O"] and blocks == [OffloadIndexEntry(0, 1, 0)]


def test_documented_index_round_trips() -> None:
    index = IndexObject.decode(EXAMPLES["P"])
    assert (index.data_bytes, index.blocks) == (217, (OffloadIndexEntry(0, 1, 0),))
    meta = index.metadata
    assert (meta.quorum, meta.ensemble, meta.length, meta.last_entry, meta.state) == (
        2,
        2,
        65,
        1,
        LedgerState.CLOSED,
    )
    assert index.encode() == EXAMPLES["P"]


@pytest.mark.parametrize("block_bytes", [*range(228, 300, 5), 1000])
def test_entries_are_split_into_blocks(block_bytes: int) -> None:
    data, blocks = encode_data(ENTRIES, block_bytes)
    assert entries_of(data) == list(enumerate(ENTRIES))
    index = IndexObject(len(data), b"", tuple(blocks))
    assert IndexObject.decode(index.encode()) == index
    ends = [index.block_end(block) for block in blocks]
    assert ends == [block.offset for block in blocks[1:]] + [len(data)]
    for entry in range(len(ENTRIES)):
        block = index.block_of(entry)
        assert block is not None
        found = dict(entries_of(data[block.offset : index.block_end(block)]))
        assert found[entry] == ENTRIES[entry]
    for low, high in pairwise(blocks):
        header = parse_block_header(data, low.offset, len(data))
        assert (header.first_entry, header.block_bytes) == (low.first_entry, block_bytes)
        assert low.part + 1 == high.part
    assert index.block_of(-1) is None


def test_empty_ledger_has_no_blocks() -> None:
    assert encode_data([]) == (b"", [])
    assert entries_of(b"") == []
    empty = IndexObject(0, b"", ())
    assert IndexObject.decode(empty.encode()) == empty and empty.block_of(0) is None


def test_entry_that_fits_in_no_block_is_refused() -> None:
    with pytest.raises(ValueError, match="88 bytes in blocks of 200"):
        encode_data(ENTRIES, 200)


def damaged(at: int, text: str) -> bytes:
    data = bytearray(encode_data(ENTRIES, 240)[0])
    data[at : at + len(text) // 2] = bytes.fromhex(text)
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "at"),
    [
        (damaged(0, "00"), 0),
        (damaged(4, "00000000000000ff"), 4),
        (damaged(12, "000000000000007f"), 12),
        (damaged(12, "ffffffffffffffff"), 12),
        (damaged(12, "7fffffffffffffff"), 12),
        (damaged(20, "ffffffffffffffff"), 20),
        (damaged(20, "0000000000000001"), 132),
        (damaged(128, "7fffffff"), 128),
        (damaged(128, "fffffffe"), 128),
        (damaged(132, "0000000000000005"), 132),
        (damaged(239, "00"), 224),
        (damaged(240 + 20, "0000000000000009"), 260),
    ],
)
def test_damage_is_named_by_its_byte(data: bytes, at: int) -> None:
    with pytest.raises(CorruptLog) as raised:
        entries_of(data)
    assert raised.value.at == at


def test_object_truncated_inside_a_block_is_refused() -> None:
    data, blocks = encode_data(ENTRIES, 240)
    borders = {0, *(block.offset for block in blocks)}
    for cut in range(len(data)):
        if cut in borders:
            assert entries_of(data[:cut]) == list(enumerate(ENTRIES))[: len(entries_of(data[:cut]))]
        else:
            with pytest.raises(TruncatedLog):
                entries_of(data[:cut])


def test_padding_may_be_cut_anywhere() -> None:
    for room in range(40):
        head = block_header(BLOCK_HEADER_BYTES + 13 + room, 5)
        padding = (PADDING * 10)[:room]
        data = head + bytes.fromhex("000000010000000000000005aa") + padding
        assert entries_of(data) == [(5, b"\xaa")]
        if room:
            with pytest.raises(CorruptLog):
                entries_of(data[:-1] + b"\x01")


@pytest.mark.parametrize(
    ("at", "text"),
    [
        (0, "00"),
        (4, "0000003f"),
        (4, "0000003d"),
        (4, "ffffffff"),
        (8, "ffffffffffffffff"),
        (8, "0000000000000000"),
        (16, "0000000000000081"),
        (24, "7fffffff"),
        (24, "ffffffff"),
        (28, "7fffffff"),
        (28, "ffffffff"),
        (42, "ffffffffffffffff"),
        (54, "00000000000000d9"),
    ],
)
def test_malformed_index_is_refused(at: int, text: str) -> None:
    data = bytearray(EXAMPLES["P"])
    data[at : at + len(text) // 2] = bytes.fromhex(text)
    with pytest.raises(CorruptLog):
        IndexObject.decode(bytes(data))
    for cut in range(len(EXAMPLES["P"])):
        with pytest.raises(TruncatedLog):
            IndexObject.decode(EXAMPLES["P"][:cut])


def test_blocks_of_an_index_must_rise() -> None:
    for second in (OffloadIndexEntry(0, 2, 300), OffloadIndexEntry(5, 2, 0)):
        with pytest.raises(CorruptLog, match="in the wrong order"):
            IndexObject.decode(IndexObject(400, b"", (OffloadIndexEntry(0, 1, 0), second)).encode())


def test_index_of_the_v2_layout_is_refused() -> None:
    with pytest.raises(UnsupportedFormat, match="V2"):
        IndexObject.decode(bytes.fromhex("3d1fb0bc") + bytes(56))


def test_missing_ledger_metadata_is_refused() -> None:
    with pytest.raises(CorruptLog, match="of LedgerMetadata is missing"):
        _ = replace(IndexObject.decode(EXAMPLES["P"]), metadata_bytes=b"").metadata
    assert LedgerMetadata.decode(IndexObject.decode(EXAMPLES["P"]).metadata_bytes).is_closed


@pytest.mark.parametrize(
    ("last", "firsts"),
    [
        (-2, ()),
        (0, ()),
        (-1, (0,)),
        (None, (0,)),
        (3, (0, 4)),
        (3, (1, 2)),
        (1 << 40, (0,)),
        (99, (0,)),
    ],
)
def test_metadata_that_contradicts_the_blocks_is_refused(
    last: int | None, firsts: tuple[int, ...]
) -> None:
    metadata = LedgerMetadata(
        quorum=1, ensemble=1, length=0, last_entry=last, state=LedgerState.CLOSED
    )
    blocks = tuple(OffloadIndexEntry(first, n + 1, 200 * n) for n, first in enumerate(firsts))
    with pytest.raises(CorruptLog, match="the index describes a ledger up to entry"):
        _ = IndexObject(500, metadata.encode(), blocks).metadata
