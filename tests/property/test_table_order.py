"""Properties of sorting keys, compared with Python's sort."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from lastwrite.tables.buckets import order_of

PIECES = st.sampled_from([b"", b"\0", b"a", b"key-0000", b"key-0001", b"\xff" * 9])


@settings(deadline=None)
@given(st.lists(st.lists(PIECES, max_size=4).map(b"".join), max_size=200), st.integers(0, 3))
def test_keys_are_in_byte_order(keys: list[bytes], passed: int) -> None:
    column = pa.array(keys, pa.binary()).slice(passed)
    order = order_of(column)
    given_ = column.to_pylist()
    assert (order is None) == (given_ == sorted(given_))
    if order is not None:
        assert sorted(order.tolist()) == list(range(len(given_)))
        assert [given_[n] for n in order.tolist()] == sorted(given_)


def test_keys_with_a_common_prefix_are_in_byte_order() -> None:
    keys = [b"%09d" % (n * 7919 % 1000) * 2 for n in range(1000)] + [b"a", b""]
    order = order_of(pa.array(keys, pa.binary()))
    assert order is not None and [keys[n] for n in order.tolist()] == sorted(keys)
