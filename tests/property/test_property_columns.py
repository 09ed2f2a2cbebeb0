"""Properties of parsing message properties by kernel, and of joining slices."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lastwrite.encoding.slices import gathered
from lastwrite.rocketmq.format.properties import items
from lastwrite.rocketmq.format.property_columns import property_items

# Mostly the bytes with a meaning in the format.
RAW = st.lists(
    st.sampled_from([b"\x01", b"\x02", b"a", b"b", b"KEYS", b"\xff", b"\x00"]), max_size=14
).map(b"".join)


@given(st.lists(RAW, max_size=6), st.binary(max_size=3))
def test_parsed_properties_equal_the_slow_parser(raws: list[bytes], before: bytes) -> None:
    data = np.frombuffer(before + b"".join(raws) + b"\0", np.uint8)
    lengths = np.array([len(raw) for raw in raws], np.int64)
    starts = (
        len(before) + np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64)
        if raws
        else lengths
    )
    found = property_items(data, starts, lengths)
    whole = data.tobytes()
    for n, raw in enumerate(raws):
        told = [
            (
                whole[found.name_at[i] : found.name_at[i] + found.name_length[i]],
                whole[found.value_at[i] : found.value_at[i] + found.value_length[i]],
            )
            for i in range(found.offsets[n], found.offsets[n + 1])
        ]
        assert len(dict(told)) == len(told)
        assert dict(told) == dict(items(raw))


@given(st.lists(st.binary(max_size=9), max_size=8))
def test_slices_are_joined(values: list[bytes]) -> None:
    data = np.frombuffer(b"".join(b"." + value for value in values) + b"\0", np.uint8)
    lengths = np.array([len(value) for value in values], np.int64)
    starts = np.cumsum(lengths + 1) - lengths
    joined, offsets = gathered(data, starts, lengths)
    assert [joined[a:b].tobytes() for a, b in zip(offsets[:-1], offsets[1:], strict=True)] == values
