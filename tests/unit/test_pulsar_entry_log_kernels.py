"""The kernels over a bookie's files beside the slow reader, over records of every kind and over lies."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastwrite.formats.pulsar import entry_log_kernels as kernels

EXAMPLE_CRC32C = bytes.fromhex(  # spec/pulsar.md section 29.3, Q: ledger 10, entry 0
    "00000044000000000000000a0000000000000000ffffffffffffffff0000000000000020705f6c990e0136fee0a4000000140a03702d3110"
    "071880d095ffbc3132026b3148027631"
)
EXAMPLE_CRC32 = bytes.fromhex(  # R: ledger 77, entry 0
    "0000006e000000000000004d0000000000000000ffffffffffffffff00000000000000460000000061f0804a0000000f080a100318ffffff"
    "ffffffffffff010000002f0e020000000908fbd095ffbc3110290e0136fee0a4000000140a03702d3110071880d095ffbc3132026b314802"
    "7631"
)


def record(ledger: int, entry: int, payload: bytes, digest: str = "CRC32C", confirmed: int = -1) -> bytes:
    """A record of an entry log, size first."""
    head = struct.pack(">qqqq", ledger, entry, confirmed, len(payload))
    if digest == "CRC32C":
        proof = struct.pack(">I", google_crc32c.value(head + payload))
    elif digest == "CRC32":
        proof = struct.pack(">Q", zlib.crc32(head + payload))
    else:
        proof = bytes.fromhex("00c0ffee")
    return struct.pack(">i", len(head + proof + payload)) + head + proof + payload


def ledgers_map(*ledgers: int) -> bytes:
    body = struct.pack(">qqi", -1, -2, len(ledgers)) + b"".join(struct.pack(">qq", ledger, 9) for ledger in ledgers)
    return struct.pack(">i", len(body)) + body


def walk(
    data: bytes, wanted: Sequence[int], rows: int = 100, scratch: int = 1 << 16, is_journal: bool = False
) -> tuple[list[tuple[int, int, int, bytes, int]], int, int]:
    """Ledger, entry, last confirmed, payload and digest of what is found, where the walk stopped and why."""
    table = np.zeros(rows, kernels.STORED)
    array = np.frombuffer(data, np.uint8)
    ids = np.array(sorted(wanted), np.int64)
    count, at, why = kernels.walk(array, 0, ids, is_journal, table, np.empty(scratch, np.uint8))
    found = [
        (int(r["ledger"]), int(r["entry"]), int(r["confirmed"]), data[r["at"] : r["at"] + r["size"]], int(r["digest"]))
        for r in table[:count]
    ]
    return found, int(at), int(why)


def test_the_examples_of_the_format() -> None:
    found, at, why = walk(EXAMPLE_CRC32C + EXAMPLE_CRC32, [10, 77])
    assert [row[:3] for row in found] == [(10, 0, -1), (77, 0, -1)]
    assert [row[4] for row in found] == [kernels.CRC32C_HELD, kernels.CRC32_HELD]
    assert found[0][3] == EXAMPLE_CRC32C[-32:]
    assert found[1][3] == EXAMPLE_CRC32[-70:]
    assert (at, why) == (len(EXAMPLE_CRC32C + EXAMPLE_CRC32), kernels.AT_END)


def test_other_ledgers_maps_and_a_bookies_own_records_are_passed_over() -> None:
    fence = struct.pack(">iqq", 16, 10, -4096)
    data = record(9, 0, b"x") + ledgers_map(9, 10) + fence + record(10, 4, b"mine", confirmed=3) + record(11, 0, b"y")
    found, _, why = walk(data, [10])
    assert found == [(10, 4, 3, b"mine", kernels.CRC32C_HELD)]
    assert why == kernels.AT_END


@pytest.mark.parametrize("padding", [b"\xf0" * 4093, bytes(7), b"\xf0\xf0\xf0" + bytes(2)])
def test_padding_of_both_writers(padding: bytes) -> None:
    data = padding + record(10, 0, b"a") + padding + record(10, 1, b"b") + padding
    assert [row[3] for row in walk(data, [10])[0]] == [b"a", b"b"]


def test_a_digest_that_does_not_hold_is_said_and_the_walk_goes_on() -> None:
    data = record(10, 0, b"broken", digest="none") + record(10, 1, b"whole")
    found, _, _ = walk(data, [10])
    assert [row[4] for row in found] == [kernels.NO_DIGEST_HELD, kernels.CRC32C_HELD]


def test_a_full_table_and_a_small_scratch_say_where_to_go_on() -> None:
    one, two = record(10, 0, b"a"), record(10, 1, b"b" * 99)
    assert walk(one + two, [10], rows=1)[1:] == (len(one), kernels.TABLE_FULL)
    assert walk(one + two, [10], scratch=64)[1:] == (len(one), kernels.SCRATCH_FULL)


def test_a_journal_has_padding_of_its_own_and_an_end() -> None:
    padding = struct.pack(">ii", -256, 5) + bytes(5)
    data = record(10, 0, b"a") + padding + record(10, 1, b"b")
    found, at, why = walk(data + bytes(100), [10], is_journal=True)
    assert [row[3] for row in found] == [b"a", b"b"]
    assert (at, why) == (len(data), kernels.WRITTEN_END)
    assert walk(struct.pack(">ii", -256, -5), [10], is_journal=True)[2] == kernels.TORN


@pytest.mark.parametrize("size", [1, 15, 1 << 20, (1 << 31) - 1])
def test_a_size_that_lies_stops_the_walk_where_it_lies(size: int) -> None:
    data = record(10, 0, b"a") + struct.pack(">i", size) + bytes(40)
    found, at, why = walk(data, [10])
    assert len(found) == 1
    assert (at, why) == (len(record(10, 0, b"a")), kernels.TORN)


@given(st.lists(st.tuples(st.integers(0, 3), st.binary(max_size=40), st.sampled_from(["CRC32C", "CRC32"])), max_size=9))
def test_everything_written_is_found(entries: list[tuple[int, bytes, str]]) -> None:
    data = b"".join(record(ledger, n, payload, digest) for n, (ledger, payload, digest) in enumerate(entries))
    found, at, _ = walk(data, [1, 2])
    expected = [(ledger, n, -1, payload) for n, (ledger, payload, _) in enumerate(entries) if ledger in (1, 2)]
    assert [row[:4] for row in found] == expected
    assert all(row[4] != kernels.NO_DIGEST_HELD for row in found)
    assert at == len(data)


@given(st.binary(max_size=200), st.booleans())
def test_no_lie_reads_out_of_bounds(data: bytes, is_journal: bool) -> None:
    found, at, _ = walk(record(10, 0, b"a") + data, [0, 10], is_journal=is_journal)
    assert 0 <= at <= len(data) + len(record(10, 0, b"a"))
    assert found[0][3] == b"a"


def test_frames_are_those_of_a_data_object() -> None:
    data = record(10, 0, b"first") + record(10, 1, b"")
    table = np.zeros(2, kernels.STORED)
    array = np.frombuffer(data, np.uint8)
    kernels.walk(array, 0, np.array([10], np.int64), False, table, np.empty(999, np.uint8))
    out = np.zeros(2 * kernels.FRAME_BYTES + 5, np.uint8)
    kernels.frame(array, table, np.array([0, kernels.FRAME_BYTES + 5], np.int64), out)
    assert out.tobytes() == struct.pack(">iq", 5, 0) + b"first" + struct.pack(">iq", 0, 1)
