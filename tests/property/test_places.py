"""Properties of the index of last writes, compared with a dictionary."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lastwrite.model.columns import Places
from lastwrite.rows import places as module
from lastwrite.rows.places import PlaceIndex, PlaceIndexBuilder, SegmentPartitions, SegmentSlice

# Fingerprints of keys: lanes that collide in either half, and distant ones.
KEYS = [(lane, other) for lane in (1, 2, 1 << 40, (1 << 64) - 1) for other in (0, 7)]
WRITES = st.lists(
    st.tuples(
        st.integers(0, len(KEYS) - 1),
        st.integers(0, 3),  # segment
        st.booleans(),  # whether it is a delete
        st.integers(0, 2),  # time
    ),
    max_size=60,
)
PARTITIONS = [0, 0, 1, 5]  # of each segment


def as_places(writes: list[tuple[int, int, bool, int]], first: int) -> Places:
    places = Places.room(len(writes))
    for n, (key, segment, is_delete, time) in enumerate(writes):
        places.lanes[n], places.other_lanes[n] = KEYS[key]
        places.segments[n], places.orders[n], places.times_ms[n] = segment, first + n, time
        places.positions[n] = ~(first + n) if is_delete else first + n
    return places


def model(writes: list[tuple[int, int, bool, int]]) -> dict[int, int]:
    """The order of each key's last write, without deleted keys."""
    of_partition: dict[tuple[int, int], tuple[int, int, int, int, bool]] = {}
    for order, (key, segment, is_delete, time) in enumerate(writes):
        partition = PARTITIONS[segment]
        write = time, partition, segment, order, is_delete
        before = of_partition.get((key, partition))
        if before is None or before[2] <= segment:
            of_partition[key, partition] = write
    last: dict[int, tuple[int, int, int, int, bool]] = {}
    for (key, _), write in of_partition.items():
        last[key] = max(last.get(key, write), write)
    return {key: order for key, (_, _, _, order, is_delete) in last.items() if not is_delete}


@settings(deadline=None)
@given(WRITES, st.integers(1, 20), st.sampled_from([1, 300, 1 << 20]), st.randoms())
def test_index_equals_the_dictionary(
    writes: list[tuple[int, int, bool, int]], block: int, memory: int, chance: object
) -> None:
    """Blocks are added in any order, as threads do. With little memory, runs are files."""
    blocks = [
        as_places(writes[start : start + block], start) for start in range(0, len(writes), block)
    ]
    chance.shuffle(blocks)  # type: ignore[attr-defined]
    sources = SegmentPartitions.of(PARTITIONS)
    # the index takes in the remaining blocks after it is built
    for known in (len(blocks), len(blocks) // 2, 0):
        builder = PlaceIndexBuilder(sources, memory)
        for each in blocks[:known]:
            builder.add(each)
        index = builder.finish()
        assert all(index.take_in(each, sources) for each in blocks[known:])
        check(index, model(writes))
        if known == len(blocks):
            check_order(index, blocks, memory)
        index.close()


def check_order(index: PlaceIndex, blocks: list[Places], memory: int) -> None:
    """Check that an index built for reading in order gives the same results."""
    builder = PlaceIndexBuilder(SegmentPartitions.of(PARTITIONS), memory)
    for each in blocks:
        builder.add(each)
    found = builder.finish_in_order()
    for segment, start, end in itertools.product(range(len(PARTITIONS)), (0, 7), (8, 1 << 40)):
        for has_deletes in (False, True):
            stretch = SegmentSlice(segment, start, end)
            orders = found.orders_in(stretch, has_deletes=has_deletes).tolist()
            assert orders == index.orders_in(stretch, has_deletes=has_deletes).tolist()
    assert len(found) == len(index) and found.has_moved_keys == index.has_moved_keys
    assert found.last_deletes() == index.last_deletes()
    found.close()


def check(index: PlaceIndex, expected: dict[int, int]) -> None:
    found = {n: index.find(*key) for n, key in enumerate(KEYS)}
    assert {n: place.order for n, place in found.items() if place is not None} == expected
    assert len(index) == len(expected)
    inside = [index.in_segment(segment).orders.tolist() for segment in range(len(PARTITIONS))]
    assert all(orders == sorted(orders) for orders in inside)
    assert sorted(order for some in inside for order in some) == sorted(expected.values())


def test_lookup_finds_present_keys_and_no_others() -> None:
    count = 200_000
    lanes = np.random.default_rng(7).integers(1, 1 << 64, count, dtype=np.uint64)
    places = Places.room(count)
    places.lanes[:], places.other_lanes[:] = lanes, np.arange(count)
    places.segments[:] = places.times_ms[:] = 0
    places.positions[:] = places.orders[:] = np.arange(count)
    builder = PlaceIndexBuilder(SegmentPartitions.of([0]), 1 << 22)
    for start in range(0, count, 30_000):
        builder.add(places.take(slice(start, start + 30_000)))
    index = builder.finish()
    assert index._folder is not None
    for n in range(0, count, 997):
        found = index.find(int(lanes[n]), n)
        assert found is not None and found.order == n
        assert index.find(int(lanes[n]) ^ 1, n) is None
        assert index.find(int(lanes[n]), n + 1) is None
    assert index.find(1, 0) is index.find((1 << 64) - 1, 0) is None
    index.close()
    assert module.PLACE_BYTES == sum(column.itemsize for column in places)
