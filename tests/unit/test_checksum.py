"""Tests of the CRC-32C and CRC-32 kernels against the libraries."""

from __future__ import annotations

import zlib

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastwrite.encoding.checksum import (
    _IEEE_TABLES,
    _by_tables,
    check_against_library,
    check_crc32_against_library,
    crc32,
    crc32c,
)


def test_crc32c_has_the_standard_check_value() -> None:
    assert int(crc32c(np.frombuffer(b"123456789", np.uint8), 0, 9)) == 0xE3069283


@given(st.binary(max_size=14_000), st.integers(0, 20))
def test_checksum_of_any_range_equals_the_librarys(data: bytes, start: int) -> None:
    start = min(start, len(data))
    assert int(crc32c(np.frombuffer(data, np.uint8), start, len(data))) == google_crc32c.value(
        data[start:]
    )
    assert int(crc32(np.frombuffer(data, np.uint8), start, len(data))) == zlib.crc32(data[start:])


@pytest.mark.parametrize("start", range(3))
def test_checksum_of_every_short_range_equals_the_librarys(start: int) -> None:
    data = np.random.default_rng(7).integers(0, 256, 400, dtype=np.uint8)
    for end in range(start, len(data)):
        wanted = zlib.crc32(data[start:end].tobytes())
        assert int(crc32(data, start, end)) == wanted
        begun = np.uint64(0xFFFFFFFF)
        assert int(_by_tables(_IEEE_TABLES, data, start, end, begun)) == wanted, "by tables alone"


def test_kernels_pass_their_self_check_on_this_processor() -> None:
    check_against_library()
    check_crc32_against_library()
