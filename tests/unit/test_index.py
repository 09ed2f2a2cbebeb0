"""Tests of the three indexes against Kafka's bytes, a plain model and damage."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastwrite.errors import CorruptLog, LogError, UnsupportedFormat
from lastwrite.kafka.format.index import (
    AbortedEntry,
    SegmentIndexer,
    decode_offset_index,
    decode_time_index,
    decode_transaction_index,
    encode_offset_index,
    encode_time_index,
    encode_transaction_index,
)

Row = tuple[int, int, int, int]  # position, size, last offset, largest timestamp


def offset_entry(relative_offset: int, position: int) -> bytes:
    return struct.pack(">ii", relative_offset, position)


def time_entry(timestamp_ms: int, relative_offset: int) -> bytes:
    return struct.pack(">qi", timestamp_ms, relative_offset)


def append(indexer: SegmentIndexer, rows: Sequence[Row]) -> None:
    table = np.array(rows, np.int64).reshape(-1, 4)
    indexer.append(*(np.ascontiguousarray(column) for column in table.T))


# ------------------------------------------------------------------------- offset index


def test_kafkas_index_entries_are_decoded() -> None:
    index = decode_offset_index(bytes.fromhex("0000000200000090"), 100)
    assert (index.offsets.tolist(), index.positions.tolist()) == ([102], [144])
    assert encode_offset_index(index) == bytes.fromhex("0000000200000090")
    times = decode_time_index(bytes.fromhex("0000018bcfe5680000000001"), 100)
    assert (times.timestamps_ms.tolist(), times.offsets.tolist()) == ([1700000000000], [101])
    assert encode_time_index(times) == bytes.fromhex("0000018bcfe5680000000001")


def test_offset_lookup_returns_the_entry_at_or_before_an_offset() -> None:
    index = decode_offset_index(offset_entry(5, 4200) + offset_entry(9, 8400), 1000)
    assert [index.lookup(o) for o in (0, 1004, 1005, 1008, 1009, 2**62)] == [
        (1000, 0),
        (1000, 0),
        (1005, 4200),
        (1005, 4200),
        (1009, 8400),
        (1009, 8400),
    ]
    assert decode_offset_index(b"", 7).lookup(9) == (7, 0)


def test_trailing_zeros_are_preallocated_space() -> None:
    data = offset_entry(5, 4200) + bytes(8 * 100)
    assert decode_offset_index(data, 0).offsets.tolist() == [5]
    assert len(decode_offset_index(bytes(8 * 100), 3)) == 0
    data = time_entry(5, 0) + time_entry(6, 0) + bytes(12 * 100)
    assert decode_time_index(data, 0).timestamps_ms.tolist() == [5, 6]
    assert decode_time_index(bytes(12 * 100), 3).largest_timestamp_ms is None


def test_timestamp_zero_is_a_valid_time() -> None:
    assert decode_time_index(time_entry(0, 0), 9).largest_timestamp_ms == 0
    assert decode_time_index(time_entry(0, 0) + time_entry(4, 3), 9).offsets.tolist() == [9, 12]
    assert decode_time_index(time_entry(0, 2) + bytes(24), 9).offsets.tolist() == [11]


@pytest.mark.parametrize(
    ("data", "at"),
    [
        (bytes(7), 0),
        (offset_entry(1, 1) + b"\0", 8),
        (offset_entry(5, 10) + offset_entry(5, 20), 8),
        (offset_entry(5, 10) + offset_entry(4, 20), 8),
        (offset_entry(5, 10) + bytes(8) + offset_entry(6, 20), 8),
        (offset_entry(0, 10), 0),
        (offset_entry(-1, 10), 0),
        (offset_entry(5, 10) + offset_entry(6, 9), 12),
        (offset_entry(5, -1), 4),
    ],
)
def test_broken_offset_index_is_refused(data: bytes, at: int) -> None:
    with pytest.raises(CorruptLog) as caught:
        decode_offset_index(data, 0)
    assert caught.value.at == at


@pytest.mark.parametrize(
    ("data", "at"),
    [
        (bytes(13), 12),
        (time_entry(5, 1) + time_entry(5, 2), 12),
        (time_entry(5, 1) + time_entry(4, 2), 12),
        (time_entry(-1, 1), 0),
        (time_entry(5, -1), 8),
        (time_entry(5, 3) + time_entry(6, 2), 20),
        (bytes(24) + time_entry(6, 2), 0),
    ],
)
def test_broken_time_index_is_refused(data: bytes, at: int) -> None:
    with pytest.raises(CorruptLog) as caught:
        decode_time_index(data, 0)
    assert caught.value.at == at


@given(st.binary(max_size=96))
def test_noise_raises_only_log_errors(noise: bytes) -> None:
    for decode in (decode_offset_index, decode_time_index, decode_transaction_index):
        try:
            decode(noise, 0)
        except LogError as error:
            assert error.at is not None


def test_offset_that_does_not_fit_is_not_encoded() -> None:
    index = decode_offset_index(offset_entry(5, 4200), 1000)
    index.offsets[0] += 2**31
    with pytest.raises(ValueError):
        encode_offset_index(index)


# ------------------------------------------------------------------------- building


def plain_indexes(
    base_offset: int, interval_bytes: int, rows: Sequence[Row]
) -> tuple[bytes, bytes]:
    """The rule in docs/formats/kafka-cleaning.md, "Index entries", in plain Python."""
    offsets, times = b"", b""
    since, largest, largest_offset, written = 0, -1, base_offset, -1
    for position, size, last_offset, max_timestamp in rows:
        if max_timestamp > largest:
            largest, largest_offset = max_timestamp, last_offset
        if since > interval_bytes:
            offsets += offset_entry(last_offset - base_offset, position)
            if largest > written:
                times += time_entry(largest, largest_offset - base_offset)
                written = largest
            since = 0
        since += size
    if largest > written:
        times += time_entry(largest, largest_offset - base_offset)
    return offsets, times


def test_worked_example_gives_its_entries() -> None:
    indexer = SegmentIndexer(0)
    append(indexer, [(0, 3000, 9, 7), (3000, 3000, 19, 8), (6000, 3000, 29, 8)])
    assert indexer.finish() == (offset_entry(29, 6000), time_entry(8, 19))
    assert indexer.largest_timestamp_ms == 8


def test_exactly_the_interval_adds_no_entry() -> None:
    indexer = SegmentIndexer(0, 100)
    append(indexer, [(0, 100, 0, 1), (100, 1, 1, 2), (101, 50, 2, 3)])
    assert indexer.finish() == (offset_entry(2, 101), time_entry(3, 2))


def test_finish_adds_a_closing_time_entry() -> None:
    indexer = SegmentIndexer(50, 100)
    append(indexer, [(0, 101, 50, 5), (101, 10, 51, 9), (111, 10, 52, 12), (121, 10, 53, 12)])
    assert indexer.finish() == (offset_entry(1, 101), time_entry(9, 1) + time_entry(12, 2))
    assert indexer.finish() == indexer.finish()


def test_without_timestamps_the_time_index_is_empty() -> None:
    indexer = SegmentIndexer(0, 0)
    append(indexer, [(0, 61, 0, -1), (61, 61, 1, -1)])
    assert indexer.finish() == (offset_entry(1, 61), b"")
    assert indexer.largest_timestamp_ms is None
    assert SegmentIndexer(0).finish() == (b"", b"")


@st.composite
def segments(draw: st.DrawFn) -> tuple[int, list[Row]]:
    base = draw(st.integers(0, 2**62))
    rows, position, offset = [], 0, base - 1
    for size, gap, timestamp in draw(
        st.lists(
            st.tuples(st.integers(61, 6000), st.integers(1, 500), st.integers(-1, 40)), max_size=60
        )
    ):
        offset += gap
        rows.append((position, size, offset, timestamp))
        position += size
    return base, rows


@given(segments(), st.integers(0, 9000), st.lists(st.integers(0, 60), max_size=5))
def test_indexer_equals_the_plain_model(
    segment: tuple[int, list[Row]], interval_bytes: int, cuts: list[int]
) -> None:
    base, rows = segment
    indexer = SegmentIndexer(base, interval_bytes)
    borders = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    for first, end in zip(borders, borders[1:], strict=False):
        append(indexer, rows[first:end])
    offset_bytes, time_bytes = indexer.finish()
    assert (offset_bytes, time_bytes) == plain_indexes(base, interval_bytes, rows)
    index, times = decode_offset_index(offset_bytes, base), decode_time_index(time_bytes, base)
    assert (encode_offset_index(index), encode_time_index(times)) == (offset_bytes, time_bytes)
    assert times.largest_timestamp_ms == indexer.largest_timestamp_ms
    for position, size, last_offset, timestamp in rows:
        start = index.lookup(last_offset)[1]
        assert start <= position and all(o < last_offset for p, s, o, _ in rows if p + s <= start)
        row = int(np.searchsorted(times.timestamps_ms, timestamp - 1, side="right")) - 1
        # Without an entry the search begins at the base offset, inclusive.
        assert row < 0 or last_offset > times.offsets[row]
        assert size > 0


@pytest.mark.parametrize(
    ("rows", "at"),
    [
        ([(0, 61, 5, 0), (61, 61, 5, 0)], 61),
        ([(0, 61, 5, 0), (61, 61, 4, 0)], 61),
        ([(0, 61, -1, 0)], 0),
        ([(0, 61, 0, 0), (60, 61, 1, 0)], 60),
        ([(0, 61, 0, 0), (61, 61, 2**31, 0)], 61),
        ([(0, 61, 0, 0), (2**31, 61, 1, 0)], 2**31),
    ],
)
def test_batches_that_no_index_can_represent_are_refused(rows: list[Row], at: int) -> None:
    with pytest.raises(CorruptLog) as caught:
        append(SegmentIndexer(0), rows)
    assert caught.value.at == at
    one_by_one = SegmentIndexer(0)
    with pytest.raises(CorruptLog) as caught:
        for row in rows:
            append(one_by_one, [row])
    assert caught.value.at == at


def test_refused_batches_leave_no_trace() -> None:
    indexer = SegmentIndexer(0, 0)
    append(indexer, [(0, 61, 0, 1), (61, 61, 1, 2)])
    before = indexer.finish()
    with pytest.raises(CorruptLog):
        append(indexer, [(122, 61, 2, 9), (183, 61, 2, 9)])
    assert indexer.finish() == before


# ------------------------------------------------------------------------- transactions

ABORTED = AbortedEntry(0, 1, 0, 6, 2)
ABORTED_BYTES = bytes.fromhex(
    "00000000000000000001000000000000000000000000000000060000000000000002"
)


def test_transaction_index_round_trips() -> None:
    assert decode_transaction_index(ABORTED_BYTES, 0) == (ABORTED,)
    assert encode_transaction_index([ABORTED]) == ABORTED_BYTES
    later = ABORTED._replace(producer_id=2, first_offset=2, last_offset=9, last_stable_offset=10)
    both = encode_transaction_index([ABORTED, later])
    assert decode_transaction_index(both, 6) == (ABORTED, later)
    for cut in range(len(both)):
        assert len(decode_transaction_index(both[:cut], 0)) == cut // 34


def test_broken_transaction_index_is_refused() -> None:
    with pytest.raises(UnsupportedFormat):
        decode_transaction_index(b"\0\1" + ABORTED_BYTES[2:], 0)
    for broken, base, at in (
        (b"\xff\xff" + ABORTED_BYTES[2:], 0, 0),
        (ABORTED_BYTES, 7, 0),
        (ABORTED_BYTES * 2, 0, 34),
    ):
        with pytest.raises(CorruptLog) as caught:
            decode_transaction_index(broken, base)
        assert caught.value.at == at
