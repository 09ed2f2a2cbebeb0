"""Tests of merging messages from a broker with those of a store by offset."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lastwrite.commands.restore import Records, merged
from lastwrite.rocketmq.format.kernels import MESSAGE

STREAMS = (
    st.lists(st.integers(0, 40), unique=True)
    .map(sorted)
    .flatmap(
        lambda offsets: st.lists(st.integers(0, len(offsets)), max_size=4).map(
            lambda cuts: [
                offsets[a:b]
                for a, b in zip([0, *sorted(cuts)], [*sorted(cuts), len(offsets)], strict=True)
            ]
        )
    )
)


def records(parts: list[list[int]], mark: int) -> list[Records]:
    found = []
    for offsets in parts:
        table = np.zeros(len(offsets), MESSAGE)
        table["queue_offset"] = offsets
        found.append((np.full(1, mark, np.uint8), table))
    return found


@given(STREAMS, STREAMS)
def test_messages_are_merged_by_offset_with_pulled_ones_first(
    pulled: list[list[int]], own: list[list[int]]
) -> None:
    found = [
        (int(offset), 0 if is_pulled else 1, int(data[0]))
        for is_pulled, data, table in merged(records(pulled, 0), records(own, 1))
        for offset in table["queue_offset"]
    ]
    expected = [
        (offset, mark)
        for mark, parts in enumerate((pulled, own))
        for part in parts
        for offset in part
    ]
    assert [one[:2] for one in found] == sorted(expected)
    assert all(mark == of_data for _, mark, of_data in found)
