"""Properties of reading a compacted log step by step while newer horizons appear."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from lastwrite.pulsar.rules.horizon import EARLIEST, LogPart, last_source, step


class Written(NamedTuple):
    offset: int
    key: str
    value: str | None  # None deletes the key


Pair = tuple[int | None, list[Written]]  # a horizon, and the compacted messages up to it


@st.composite
def logs(draw: st.DrawFn) -> list[Written]:
    offset, log = draw(st.integers(0, 2)), []
    for number in range(draw(st.integers(0, 25))):
        is_delete = draw(st.integers(0, 4)) == 0
        log.append(
            Written(offset, draw(st.sampled_from("abcd")), None if is_delete else f"v{number}")
        )
        offset += draw(st.sampled_from([1, 1, 1, 3]))
    return log


def compacted_to(log: Sequence[Written], horizon: int | None) -> Pair:
    if horizon is None:
        return None, []
    last = {one.key: one for one in log if one.offset <= horizon}
    return horizon, sorted(one for one in last.values() if one.value is not None)


def read_once(
    log: Sequence[Written], pair: Pair, position: int, most: int
) -> tuple[list[Written], int]:
    horizon, part = pair
    said = step(position, horizon, [one.offset for one in part])
    if said.source is LogPart.BACKLOG:
        got = [one for one in log if one.offset >= said.position][:most]
    else:
        got = [] if said.first is None else part[said.first : said.first + most]
    return got, got[-1].offset + 1 if got else said.position


def read_all(
    log: Sequence[Written], pairs: Sequence[Pair], position: int, most: int
) -> list[Written]:
    """The messages that a reader gets if each read uses the next pair."""
    got: list[Written] = []
    for turn in range(1000):
        pair = pairs[min(turn, len(pairs) - 1)]
        asked, (some, position) = position, read_once(log, pair, position, most)
        got += some
        if not some and turn >= len(pairs) and position == asked:
            return got
    raise AssertionError("the reader does not come to an end")


def stock_search(position: int, offsets: Sequence[int]) -> int | None:
    """The broker's binary search, which probes start, middle and end."""

    def among(start: int, end: int) -> int | None:
        if offsets[start] >= position:
            return start
        middle = (start + end) // 2
        if offsets[middle] >= position:
            return among(start + 1, middle)
        if offsets[end] >= position:
            return among(middle + 1, end)
        return None

    return among(0, len(offsets) - 1) if offsets else None


@given(st.lists(st.integers(0, 60), unique=True).map(sorted), st.integers(-1, 62))
def test_search_equals_the_upstream_search(offsets: list[int], position: int) -> None:
    assert step(position, 99, offsets).first == stock_search(position, offsets)


@given(
    st.lists(st.integers(0, 60), unique=True, min_size=1).map(sorted),
    st.integers(-1, 62),
    st.data(),
)
def test_cached_borders_change_only_the_number_of_reads(
    offsets: list[int], position: int, data: st.DataObject
) -> None:
    borders = data.draw(st.lists(st.integers(0, len(offsets) - 1), unique=True).map(sorted))
    asked: list[int] = []

    class Asked(list[int]):
        def __getitem__(self, place: Any) -> Any:
            asked.append(place)
            return super().__getitem__(place)

    assert step(position, 99, Asked(offsets), borders) == step(position, 99, offsets)
    others = [place for place in asked if place not in borders]
    between = {sum(border <= place for border in borders) for place in others}
    assert len(between) <= 1


@given(logs(), st.none() | st.integers(-1, 60), st.integers(-1, 60), st.integers(1, 7))
def test_read_has_no_gap_and_no_duplicate_at_the_horizon(
    log: list[Written], horizon: int | None, position: int, most: int
) -> None:
    _, part = pair = compacted_to(log, horizon)
    above = EARLIEST if horizon is None else horizon + 1
    expected = part + [one for one in log if one.offset >= above]
    assert read_all(log, [pair], position, most) == [
        one for one in expected if one.offset >= position
    ]


@given(logs(), st.lists(st.integers(-1, 60), max_size=6), st.integers(1, 5))
def test_newer_horizon_during_a_read_loses_no_last_write(
    log: list[Written], horizons: list[int], most: int
) -> None:
    pairs = [compacted_to(log, None), *(compacted_to(log, horizon) for horizon in sorted(horizons))]
    got = read_all(log, pairs, EARLIEST, most)
    assert [one.offset for one in got] == sorted({one.offset for one in got})
    assert set(got) <= set(log)
    last, seen = {one.key: one for one in log}, {one.key: one for one in got}
    for key, write in last.items():
        if write.value is not None:
            assert seen[key] == write  # a complete read returns the last write of every live key
        elif key in seen and seen[key] != write:
            assert write.offset <= max(horizons)  # only deletes below a horizon can be missed


@given(logs(), st.none() | st.integers(-1, 60), st.booleans())
def test_last_message_is_the_last_one_that_a_reader_gets(
    log: list[Written], horizon: int | None, reads_compacted: bool
) -> None:
    pair = compacted_to(log, horizon)
    got = read_all(log, [pair if reads_compacted else (None, [])], EARLIEST, 3)
    source = last_source(log[-1].offset if log else None, horizon, reads_compacted)
    named = pair[1] if source is LogPart.COMPACTED else log if source is LogPart.BACKLOG else []
    assert named[-1:] == got[-1:]
