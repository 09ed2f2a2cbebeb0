"""The CRC-32C kernel beside the library."""

from __future__ import annotations

import google_crc32c
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lastwrite.encoding.checksum import check_against_library, crc32c


def test_the_check_value_of_the_field() -> None:
    assert int(crc32c(np.frombuffer(b"123456789", np.uint8), 0, 9)) == 0xE3069283


@given(st.binary(max_size=14_000), st.integers(0, 20))
def test_any_stretch_is_what_the_library_says(data: bytes, start: int) -> None:
    start = min(start, len(data))
    assert int(crc32c(np.frombuffer(data, np.uint8), start, len(data))) == google_crc32c.value(
        data[start:]
    )


def test_this_processor_agrees() -> None:
    check_against_library()
