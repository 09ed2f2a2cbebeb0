"""Tests of the kernels for a bookie's files, against the slow reader and on malformed files."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastwrite.errors import LogError
from lastwrite.pulsar.format import entry_log_kernels as kernels
from lastwrite.pulsar.format.entry_log import (
    encode_header,
    encode_map,
    encode_record,
    walk_entry_log,
)
from lastwrite.pulsar.format.ledger_metadata import Digest

EXAMPLE_CRC32C = bytes.fromhex(  # a worked example: ledger 10, entry 0
    "00000044000000000000000a0000000000000000ffffffffffffffff0000000000000020705f6c990e0136fee0a4000000140a03702d3110"
    "071880d095ffbc3132026b3148027631"
)
EXAMPLE_CRC32 = bytes.fromhex(  # R: ledger 77, entry 0
    "0000006e000000000000004d0000000000000000ffffffffffffffff00000000000000460000000061f0804a0000000f080a100318ffffff"
    "ffffffffffff010000002f0e020000000908fbd095ffbc3110290e0136fee0a4000000140a03702d3110071880d095ffbc3132026b314802"
    "7631"
)


def walk(
    data: bytes,
    wanted: Sequence[int],
    rows: int = 100,
    scratch: int = 1 << 16,
    is_journal: bool = False,
) -> tuple[list[tuple[int, int, int, bytes, int]], int, int]:
    """Walk over ``data``.

    Returns ledger, entry, last confirmed entry, payload and digest of each record, and where and
    why the walk stopped.
    """
    table = np.zeros(rows, kernels.STORED)
    array = np.frombuffer(data, np.uint8)
    ids = np.array(sorted(wanted), np.int64)
    count, at, _, why = kernels.walk(
        array, 0, False, ids, is_journal, table, np.empty(scratch, np.uint8)
    )
    found = [
        (
            int(r["ledger"]),
            int(r["entry"]),
            int(r["confirmed"]),
            data[r["at"] : r["at"] + r["size"]],
            int(r["digest"]),
        )
        for r in table[:count]
    ]
    return found, int(at), int(why)


def test_documented_examples_are_found() -> None:
    found, at, why = walk(EXAMPLE_CRC32C + EXAMPLE_CRC32, [10, 77])
    assert [row[:3] for row in found] == [(10, 0, -1), (77, 0, -1)]
    assert [row[4] for row in found] == [kernels.CRC32C_HELD, kernels.CRC32_HELD]
    assert found[0][3] == EXAMPLE_CRC32C[-32:]
    assert found[1][3] == EXAMPLE_CRC32[-70:]
    assert (at, why) == (len(EXAMPLE_CRC32C + EXAMPLE_CRC32), kernels.AT_END)


def test_other_ledgers_maps_and_internal_records_are_skipped() -> None:
    fence = struct.pack(">iqq", 16, 10, -4096)
    data = (
        encode_record(9, 0, b"x")
        + encode_map({9: 9, 10: 9})
        + fence
        + encode_record(10, 4, b"mine")
        + encode_record(11, 0, b"y")
    )
    found, _, why = walk(data, [10])
    assert found == [(10, 4, 3, b"mine", kernels.CRC32C_HELD)]
    assert why == kernels.AT_END


@pytest.mark.parametrize("gap", [bytes(7), struct.pack(">i", 15), bytes(4096)])
def test_record_after_a_gap_is_verified(gap: bytes) -> None:
    one, two = encode_record(10, 0, b"a" * 300), encode_record(10, 1, b"b")
    assert [row[3] for row in walk(gap + one + gap + two + gap, [10])[0]] == [b"a" * 300, b"b"]


def test_padding_of_the_direct_writer_ends_at_a_multiple_of_4096() -> None:
    one = encode_record(10, 0, b"a")
    assert [
        row[3] for row in walk(one.ljust(4096, b"\xf0") + encode_record(10, 1, b"b"), [10])[0]
    ] == [b"a", b"b"]


def test_failed_digest_is_reported_and_the_walk_continues() -> None:
    broken = encode_record(10, 0, b"broken")
    data = broken[:-1] + b"!" + encode_record(10, 1, b"whole")
    found, _, _ = walk(data, [10])
    assert [row[4] for row in found] == [kernels.NO_DIGEST_HELD, kernels.CRC32C_HELD]


def test_full_table_or_scratch_returns_the_next_position() -> None:
    one, two = encode_record(10, 0, b"a"), encode_record(10, 1, b"b" * 99)
    assert walk(one + two, [10], rows=1)[1:] == (len(one), kernels.TABLE_FULL)
    assert walk(one + two, [10], scratch=64)[1:] == (len(one), kernels.SCRATCH_FULL)


def test_journal_padding_and_end_are_recognised() -> None:
    padding = struct.pack(">ii", -256, 5) + bytes(5)
    data = encode_record(10, 0, b"a") + padding + encode_record(10, 1, b"b")
    found, at, why = walk(data + bytes(100), [10], is_journal=True)
    assert [row[3] for row in found] == [b"a", b"b"]
    assert (at, why) == (len(data), kernels.WRITTEN_END)
    assert walk(struct.pack(">ii", -256, -5), [10], is_journal=True)[2] == kernels.TORN


@pytest.mark.parametrize("size", [45, 1 << 20, (1 << 31) - 1])
def test_impossible_size_stops_the_walk_there(size: int) -> None:
    data = encode_record(10, 0, b"a") + struct.pack(">i", size) + bytes(40)
    found, at, why = walk(data, [10])
    assert len(found) == 1
    assert (at, why) == (len(encode_record(10, 0, b"a")), kernels.TORN)


RECORDS = st.builds(
    encode_record,
    st.integers(0, 3),
    st.integers(0, 9),
    st.binary(max_size=400),
    digest=st.sampled_from([Digest.CRC32C, Digest.CRC32]),
)
GAPS = st.one_of(st.binary(max_size=9), st.integers(0, 40).map(bytes), st.just(b"\xf0" * 4096))


@given(
    st.lists(st.one_of(RECORDS, RECORDS, GAPS, st.just(encode_map({1: 2}))), max_size=9),
    st.integers(1, 3),
)
def test_kernel_equals_the_slow_reader(parts: list[bytes], rows: int) -> None:
    data = encode_header() + b"".join(parts)
    slow: list[tuple[int, int, int, bytes, int]] = []
    is_torn = False
    held = {
        Digest.CRC32C: kernels.CRC32C_HELD,
        Digest.CRC32: kernels.CRC32_HELD,
        None: kernels.NO_DIGEST_HELD,
    }
    try:
        for one in walk_entry_log(data):
            payload = data[one.at : one.at + one.size]
            slow.append((one.ledger, one.entry, one.last_confirmed, payload, held[one.digest]))
    except LogError:
        is_torn = True
    found: list[tuple[int, int, int, bytes, int]] = []
    array, at, must_prove, why = np.frombuffer(data, np.uint8), 1024, False, kernels.TABLE_FULL
    table = np.zeros(rows, kernels.STORED)
    while why == kernels.TABLE_FULL:
        count, at, must_prove, why = kernels.walk(
            array,
            at,
            must_prove,
            np.array([1, 2], np.int64),
            False,
            table,
            np.empty(9999, np.uint8),
        )
        found += [
            (
                *(int(r[name]) for name in ("ledger", "entry", "confirmed")),
                data[r["at"] :][: r["size"]],
                int(r["digest"]),
            )
            for r in table[:count]
        ]
    assert found == [row for row in slow if row[0] in (1, 2)]
    assert (why == kernels.TORN) is is_torn


@given(st.binary(max_size=200), st.booleans())
def test_malformed_file_causes_no_read_out_of_bounds(data: bytes, is_journal: bool) -> None:
    found, at, _ = walk(encode_record(10, 0, b"a") + data, [0, 10], is_journal=is_journal)
    assert 0 <= at <= len(data) + len(encode_record(10, 0, b"a"))
    assert found[0][3] == b"a"


def test_frames_equal_those_of_a_data_object() -> None:
    data = encode_record(10, 0, b"first") + encode_record(10, 1, b"")
    table = np.zeros(2, kernels.STORED)
    array = np.frombuffer(data, np.uint8)
    kernels.walk(array, 0, False, np.array([10], np.int64), False, table, np.empty(999, np.uint8))
    out = np.zeros(2 * kernels.FRAME_BYTES + 5, np.uint8)
    kernels.frame(array, table, np.array([0, kernels.FRAME_BYTES + 5], np.int64), out)
    assert out.tobytes() == struct.pack(">iq", 5, 0) + b"first" + struct.pack(">iq", 0, 1)
