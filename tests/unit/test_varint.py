"""Tests of varints: hand-made bytes, limits and round trips."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastwrite.encoding.varint import (
    decode_varint,
    decode_varlong,
    encode_varint,
    encode_varlong,
    varint_bytes,
)
from lastwrite.errors import CorruptLog, TruncatedLog


@pytest.mark.parametrize(
    ("number", "encoded"),
    [
        (0, "00"),
        (-1, "01"),
        (1, "02"),
        (63, "7e"),
        (-64, "7f"),
        (64, "8001"),
        (-65, "8101"),
        (8191, "fe7f"),
        (-8192, "ff7f"),
        (8192, "808001"),
        (2**31 - 1, "feffffff0f"),
        (-(2**31), "ffffffff0f"),
    ],
)
def test_32_bit_numbers_round_trip(number: int, encoded: str) -> None:
    data = bytes.fromhex(encoded)
    for encode, decode in ((encode_varint, decode_varint), (encode_varlong, decode_varlong)):
        assert encode(number) == data
        assert decode(data, 0) == (number, len(data))
        assert decode(memoryview(b"\xff" + data + b"\xff"), 1) == (number, len(data) + 1)
        for cut in range(len(data)):
            with pytest.raises(TruncatedLog) as caught:
                decode(data, 0, cut)
            assert caught.value.at == 0


def test_64_bit_limits_are_encoded() -> None:
    assert encode_varlong(2**63 - 1) == b"\xfe" + b"\xff" * 8 + b"\x01"
    assert encode_varlong(-(2**63)) == b"\xff" * 9 + b"\x01"


@pytest.mark.parametrize(("decode", "longest"), [(decode_varint, 5), (decode_varlong, 10)])
def test_overlong_varint_is_refused(
    decode: Callable[[bytes, int], tuple[int, int]], longest: int
) -> None:
    for data in (b"\x80" * longest + b"\x00", b"\xff" * 20):
        with pytest.raises(CorruptLog) as caught:
            decode(b"\0" + data, 1)
        assert type(caught.value) is CorruptLog and caught.value.at == 1
    assert decode(b"\x80" * (longest - 1) + b"\x00", 0) == (
        0,
        longest,
    )  # not minimal, but Java reads it


def test_bits_above_the_width_are_ignored() -> None:
    assert decode_varint(b"\x80\x80\x80\x80\x70", 0) == (0, 5)
    assert decode_varlong(b"\x80" * 9 + b"\x7e", 0) == (0, 10)


@given(st.integers(-(2**63), 2**63 - 1))
def test_random_numbers_round_trip(number: int) -> None:
    data = encode_varlong(number)
    assert decode_varlong(data, 0) == (number, len(data))
    assert varint_bytes(number) == len(data)
    if -(2**31) <= number < 2**31:
        assert decode_varint(encode_varint(number), 0) == (number, len(data))
    else:
        with pytest.raises(ValueError):
            encode_varint(number)


def test_wider_numbers_are_refused() -> None:
    for number in (2**63, -(2**63) - 1):
        with pytest.raises(ValueError):
            encode_varlong(number)
