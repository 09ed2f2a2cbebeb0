"""Tests of producer snapshots against Kafka's bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastwrite.errors import CorruptLog, LogError, TruncatedLog, UnsupportedFormat
from lastwrite.kafka.producers.snapshot import ProducerEntry, decode_snapshot, encode_snapshot

TWO_BYTES = bytes.fromhex(
    "00017c82929e00000002"
    "0000000000000001 0000 00000004 0000000000000008 00000000 0000018bcfe56800 00000003 ffffffffffffffff"
    "0000000000000002 0000 00000001 0000000000000003 00000001 0000018bcfe56800 00000003 ffffffffffffffff"
)
TWO = (
    ProducerEntry(1, 0, 4, 8, 0, 1700000000000, 3, -1),
    ProducerEntry(2, 0, 1, 3, 1, 1700000000000, 3, -1),
)


def test_snapshot_equals_kafkas_bytes() -> None:
    assert decode_snapshot(TWO_BYTES) == TWO
    assert encode_snapshot(TWO) == TWO_BYTES


def test_empty_snapshot_round_trips() -> None:
    empty = encode_snapshot(())
    assert len(empty) == 10
    assert decode_snapshot(empty) == ()


def test_truncated_snapshot_is_refused() -> None:
    for cut in range(len(TWO_BYTES)):
        with pytest.raises(TruncatedLog):
            decode_snapshot(TWO_BYTES[:cut])


def test_trailing_bytes_are_refused() -> None:
    with pytest.raises(CorruptLog) as caught:
        decode_snapshot(TWO_BYTES + b"\0")
    assert caught.value.at == 102


def test_every_flipped_bit_is_found() -> None:
    for place in range(len(TWO_BYTES)):
        flipped = bytearray(TWO_BYTES)
        flipped[place] ^= 1 << (place % 8)
        with pytest.raises(UnsupportedFormat if place < 2 else CorruptLog):
            decode_snapshot(flipped)


@given(st.binary(max_size=120))
def test_noise_raises_only_log_errors(noise: bytes) -> None:
    for data in (noise, b"\0\1" + noise):
        with pytest.raises(LogError) as caught:
            decode_snapshot(data)
        assert caught.value.at is not None


i16, i32, i64 = (st.integers(-(2**bits), 2**bits - 1) for bits in (15, 31, 63))


@given(st.lists(st.builds(ProducerEntry, i64, i16, i32, i64, i32, i64, i32, i64), max_size=5))
def test_snapshots_round_trip(producers: list[ProducerEntry]) -> None:
    assert decode_snapshot(encode_snapshot(producers)) == tuple(producers)
