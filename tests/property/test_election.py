"""Properties of the election: in any buckets and blocks, the same records win as in a dict."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastwrite.engine.rules.election import (
    drop_losers,
    elect,
    first_rows,
    fold,
    mark,
    new_table,
    partition,
    partition_order,
)
from lastwrite.model.columns import IN_GROUP, IS_DELETE, IS_SINGLE, SHADOWED, TIME_SHIFT

# Fingerprints of keys that agree only in one of the two lanes, or only in their bucket.
FINGERPRINTS = [
    (first << 60 | low, second)
    for first in (0, 1, 15)
    for low in (1, 3, 2**40 + 1)
    for second in (0, 7)
]
BLOCKS = st.lists(st.lists(st.integers(0, len(FINGERPRINTS) - 1), max_size=30), max_size=4)


def entries_of(block: list[int]) -> np.ndarray:
    rows = [
        (FINGERPRINTS[key][0], FINGERPRINTS[key][1] << 32 | ordinal)
        for ordinal, key in enumerate(block)
    ]
    return np.array(rows, dtype=np.uint64).reshape(-1, 2)


@pytest.mark.parametrize("exact", [False, True])
@given(
    blocks=BLOCKS,
    bits=st.integers(0, 4),
    dirty=st.lists(st.integers(0, 30), min_size=4, max_size=4),
)
def test_last_dirty_write_of_a_key_wins(
    exact: bool, blocks: list[list[int]], bits: int, dirty: list[int]
) -> None:
    """With ``exact``, two keys share each fingerprint, and are distinguished by their bytes."""
    names = [
        [
            f"{key}-{(ordinal * 7 + n) % 2}" if exact else str(key)
            for ordinal, key in enumerate(block)
        ]
        for n, block in enumerate(blocks)
    ]
    latest: dict[str, tuple[int, int]] = {}
    for n, block in enumerate(names):
        for ordinal, name in enumerate(block):
            if ordinal >= dirty[n]:
                latest[name] = (n, ordinal)
    expected = {
        (n, ordinal)
        for n, block in enumerate(names)
        for ordinal, name in enumerate(block)
        if latest.get(name, (-1, -1)) > (n, ordinal)
    }

    sorted_blocks, ends, keys = [], np.zeros((len(blocks), 1 << bits), np.uint32), []
    for n, block in enumerate(blocks):
        entries, out, order = (
            entries_of(block),
            np.zeros((len(block), 2), np.uint64),
            np.zeros(len(block), np.uint32),
        )
        partition(entries, len(block), bits, out, ends[n])
        again = ends[n].copy()
        partition_order(entries, len(block), bits, order, again)
        assert (entries[order] == out).all() and (again == ends[n]).all()
        sorted_blocks.append(out)
        keys += [names[n][at].encode() for at in order]
    key_at = np.cumsum([0, *map(len, keys)]).astype(np.int64) if exact else np.zeros(0, np.int64)
    dirty_from = np.array(dirty[: len(blocks)], np.int64)
    addresses = np.array([block.ctypes.data for block in sorted_blocks], np.int64)
    total = sum(map(len, blocks))
    losers, lost = np.zeros(len(blocks), np.int64), np.zeros(total, np.uint32)
    winners = elect(
        addresses,
        2,
        ends,
        first_rows(ends),
        dirty_from,
        lost,
        losers,
        new_table(ends, exact),
        key_at,
        np.frombuffer(b"".join(keys), np.uint8),
    )
    starts = np.cumsum([0, *map(len, blocks)])
    found = [
        (n, int(at)) for n in range(len(blocks)) for at in lost[starts[n] : starts[n] + losers[n]]
    ]
    assert len(found) == len(set(found)) == losers.sum()
    assert set(found) == expected
    assert winners == total - len(expected)
    states = np.full(31, 64, np.uint8)
    mark(states, np.array([at for n, at in found if n == 0], np.uint32))
    assert {(0, int(at)) for at in np.flatnonzero(states != 64)} == {
        pair for pair in expected if pair[0] == 0
    }
    assert set(states) <= {64, 64 | SHADOWED}

    for n, block in enumerate(sorted_blocks):
        lost = np.array(
            [SHADOWED if (n, at) in expected else 0 for at in range(len(block))], np.uint8
        )
        before = np.split(block.copy(), ends[n].astype(np.int64))
        kept = drop_losers(block, ends[n], lost)
        after = np.split(block[:kept], ends[n].astype(np.int64))
        for old, new in zip(before, after, strict=True):
            ordinals = (old[:, 1] & np.uint64(0xFFFFFFFF)).astype(np.int64)
            assert (old[lost[ordinals] == 0] == new).all()


# Few keys and times, so that equal ones occur. The largest time uses its highest bit.
TIMED = st.tuples(
    st.integers(0, 4), st.sampled_from([0, 1, 2, 3, 2**62 - 1]), st.booleans(), st.booleans()
)
TIMED_BLOCKS = st.lists(st.lists(TIMED, max_size=30), max_size=4)


def by_event_time(records: list[tuple[str, int, bool, bool]]) -> tuple[dict[str, int], set[int]]:
    """The last message of each key and the superseded ones, by event time.

    The rule is in docs/formats/pulsar-compaction.md, "Event time".
    """
    latest: dict[str, tuple[int, int]] = {}
    losers = set()
    for place, (key, time, is_single, is_delete) in enumerate(records):
        if key in latest:
            holder, stored = latest[key]
            if not (time >= stored if is_single else time > stored):
                losers.add(place)
                continue
            losers.add(holder)
        if is_delete:
            latest.pop(key, None)
        else:
            latest[key] = place, time
    return {key: holder for key, (holder, _) in latest.items()}, losers


def told(
    kernel: Callable[..., int],
    blocks: list[list[tuple[int, int]]],
    bits: int,
    dirty: int,
    exact: bool,
) -> tuple[int, set[tuple[int, int]], list[str]]:
    """Run a kernel over blocks of (key, version).

    Returns the number of winners, the positions of the losers, and the keys' names.
    """
    names: list[str] = []
    keys: list[bytes] = []
    sorted_blocks, ends = [], np.zeros((len(blocks), 1 << bits), np.uint32)
    for n, block in enumerate(blocks):
        here = [
            f"{key}-{(ordinal * 7 + n) % 2}" if exact else str(key)
            for ordinal, (key, _) in enumerate(block)
        ]
        names += here
        entries = np.zeros((len(block), 3), np.uint64)
        entries[:, :2] = entries_of([key for key, _ in block])
        entries[:, 2] = np.array([version for _, version in block], np.uint64)
        out, order = np.zeros_like(entries), np.zeros(len(block), np.uint32)
        partition(entries, len(block), bits, out, ends[n])
        partition_order(entries, len(block), bits, order, ends[n])
        sorted_blocks.append(out)
        keys += [here[at].encode() for at in order]
    key_at = np.cumsum([0, *map(len, keys)]).astype(np.int64) if exact else np.zeros(0, np.int64)
    losers, lost = np.zeros(len(blocks), np.int64), np.zeros(len(names), np.uint32)
    winners = kernel(
        np.array([block.ctypes.data for block in sorted_blocks], np.int64),
        3,
        ends,
        first_rows(ends),
        np.full(len(blocks), dirty),
        lost,
        losers,
        new_table(ends, True),
        key_at,
        np.frombuffer(b"".join(keys), np.uint8),
    )
    starts = np.cumsum([0, *map(len, blocks)])
    found = [
        (n, int(at)) for n in range(len(blocks)) for at in lost[starts[n] : starts[n] + losers[n]]
    ]
    assert len(found) == len(set(found))
    return winners, set(found), names


@pytest.mark.parametrize("exact", [False, True])
@given(blocks=TIMED_BLOCKS, bits=st.integers(0, 4), dirty=st.integers(0, 30))
def test_event_times_are_compared_in_log_order(
    exact: bool, blocks: list[list[tuple[int, int, bool, bool]]], bits: int, dirty: int
) -> None:
    """Records below ``dirty`` take part like all others."""
    versioned = [
        [
            (key, time << TIME_SHIFT | IS_SINGLE * is_single | IS_DELETE * is_delete)
            for key, time, is_single, is_delete in block
        ]
        for block in blocks
    ]
    winners, found, names = told(fold, versioned, bits, dirty, exact)
    places = [(n, ordinal) for n, block in enumerate(blocks) for ordinal in range(len(block))]
    rows = [row for block in blocks for row in block]
    held, expected = by_event_time(
        [(name, *row[1:]) for name, row in zip(names, rows, strict=True)]
    )
    assert found == {places[at] for at in expected}
    assert winners == len(held)


GROUPED = st.tuples(st.integers(0, 5), st.integers(0, 3), st.booleans())
GROUPED_BLOCKS = st.lists(st.lists(GROUPED, max_size=30), max_size=4)


@pytest.mark.parametrize("exact", [False, True])
@given(blocks=GROUPED_BLOCKS, bits=st.integers(0, 4))
def test_parts_stay_with_the_last_part_of_their_group(
    exact: bool, blocks: list[list[tuple[int, int, bool]]], bits: int
) -> None:
    """A row has a key, a group (0 means none), and whether its group has a later part."""
    versioned = [
        [(key, group << 1 | IN_GROUP * is_part) for key, group, is_part in block]
        for block in blocks
    ]
    winners, found, names = told(partial(elect, has_groups=True), versioned, bits, 0, exact)
    places = [(n, ordinal) for n, block in enumerate(blocks) for ordinal in range(len(block))]
    rows = [row for block in blocks for row in block]
    last: dict[str, int] = {}
    for at, (name, (_, _, is_part)) in enumerate(zip(names, rows, strict=True)):
        if not is_part:
            last[name] = at
    expected = set()
    for at, (name, (_, group, is_part)) in enumerate(zip(names, rows, strict=True)):
        later = last.get(name, -1)
        if later > at and not (is_part and group and group == rows[later][1]):
            expected.add(places[at])
    assert found == expected
    assert winners == len(last)


@pytest.mark.parametrize(
    ("written", "stays"),
    [
        ("5 5", 1),  # for equal times, a single message wins over an earlier one
        ("5 5b", 0),  # a message of a batch does not
        ("5 4", 0),
        ("5 4x", 0),  # an older delete has no effect
        ("5 5x", None),
        ("5 6bx 1", 2),  # a delete forgets the key's time: an older write creates the key again
        ("5 6x 1 0b", 2),
        ("5x 1b", 1),
        ("0b 0b", 0),  # a record without a time has time 0
    ],
)
def test_event_time_examples_give_the_expected_winner(written: str, stays: int | None) -> None:
    """``5bx`` means event time 5, in a batch, a delete."""
    rows = [("k", int(word.rstrip("bx")), "b" not in word, "x" in word) for word in written.split()]
    assert by_event_time(rows)[0].get("k") == stays
    entries = np.ones((len(rows), 3), np.uint64)
    for n, (_, time, is_single, is_delete) in enumerate(rows):
        entries[n, 1:] = n, time << TIME_SHIFT | IS_SINGLE * is_single | IS_DELETE * is_delete
    ends = np.full((1, 1), len(rows), np.uint32)
    losers, lost = np.zeros(1, np.int64), np.zeros(len(rows), np.uint32)
    nothing = np.zeros(0, np.int64), np.zeros(0, np.uint8)
    fold(
        np.array([entries.ctypes.data]),
        3,
        ends,
        first_rows(ends),
        np.zeros(1, np.int64),
        lost,
        losers,
        new_table(ends, True),
        *nothing,
    )
    alive = {n for n, row in enumerate(rows) if not row[3]} - set(lost[: losers[0]].tolist())
    assert alive == ({stays} if stays is not None else set())
