"""Tests of choosing the segments of a tier, by example and against a model of each offset."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lastwrite.kafka.rules.lineage import Epochs, TieredSegment, agree_until, chain, lineage_of

ONE = ((1, 0),)
TWO = ((1, 0), (2, 120))


def test_documented_example_gives_its_chain() -> None:
    copies = [
        TieredSegment(0, 60, ONE, 1),
        TieredSegment(60, 120, ONE, 2),
        TieredSegment(120, 180, ONE, 3),
        TieredSegment(100, 150, TWO, 4),
        TieredSegment(150, 200, TWO, 5),
    ]
    assert lineage_of(copies) == TWO
    found = chain(copies, TWO, 0)
    assert found.parts == ((0, 60), (1, 100), (3, 150), (4, 200))
    assert found.gaps == ()
    assert chain(copies, TWO, 70, 160).parts == ((1, 100), (3, 150), (4, 160))


def test_gaps_are_listed() -> None:
    copies = [TieredSegment(10, 20, ONE, 1), TieredSegment(30, 40, ONE, 1)]
    assert chain(copies, ONE, 0, 50).gaps == ((0, 10), (20, 30), (40, 50))
    assert chain(copies, ONE, 10).gaps == ((20, 30),)
    assert chain([], (), 5).gaps == ()
    assert chain([], (), 5, 9).gaps == ((5, 9),)


def test_last_complete_copy_of_a_segment_is_chosen() -> None:
    copies = [
        TieredSegment(0, 9, ONE, 3),
        TieredSegment(0, 12, ONE, 1),
        TieredSegment(0, 12, ONE, 2),
    ]
    assert chain(copies, ONE, 0).parts == ((2, 12),)


def test_leader_epochs_below_the_log_start_are_ignored() -> None:
    copied = TieredSegment(0, 60, ((1, 0), (2, 30)), 1)
    assert agree_until(copied, ((2, 40),)) == 60
    # the epoch began at another offset, so the histories differ
    assert agree_until(copied, ((2, 25),)) == 25
    assert agree_until(copied, ((1, 40),)) == 30


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[TieredSegment], Epochs, int]:
    """Segments copied by successive leaders, each of which diverges from the former at
    some offset.
    """
    epochs: list[tuple[int, int]] = []
    copies: list[TieredSegment] = []
    end, epoch, copied_to = 0, 0, 0
    for number in range(draw(st.integers(1, 5))):
        epoch += draw(st.integers(1, 2))
        fork = end if number == 0 else draw(st.integers(max(0, end - 12), end))
        epochs = [each for each in epochs if each[1] < fork] + [(epoch, fork)]
        end = fork + draw(st.integers(1, 15))
        begin = max(0, min(copied_to, fork) - draw(st.integers(0, 5)))
        cuts = sorted(draw(st.sets(st.integers(begin, end), max_size=4)) | {begin})
        for base, stop in zip(cuts, [*cuts[1:], end], strict=True):
            if base < stop and draw(st.integers(0, 9)):
                known = tuple(each for each in epochs if each[1] < stop)
                copies.append(TieredSegment(base, stop, known, len(copies)))
                copied_to = stop
    return copies, tuple(epochs), draw(st.integers(0, 4))


def leader(epochs: Epochs, offset: int) -> int:
    return max((each for each in epochs if each[1] <= offset), key=lambda each: each[1])[0]


@given(histories())
def test_chain_follows_the_lineage_and_lists_missing_offsets(
    drawn: tuple[list[TieredSegment], Epochs, int],
) -> None:
    copies, lineage, log_start = drawn
    found = chain(copies, lineage, log_start)
    held = {
        offset
        for each in copies
        for offset in range(each.base_offset, each.end_offset)
        if leader(each.epochs, offset) == leader(lineage, offset)
    }
    given_ = []
    for n, (place, end) in enumerate(found.parts):
        copied = copies[place]
        assert copied.base_offset < end <= copied.end_offset
        for offset in range(copied.base_offset, end):
            assert leader(copied.epochs, offset) == leader(lineage, offset)
            given_.append(offset)
        if n:
            assert found.parts[n - 1][1] <= copied.base_offset
    assert given_ == sorted(set(given_))
    wanted = {offset for offset in held if offset >= log_start}
    assert {offset for offset in given_ if offset >= log_start} == wanted
    last = max(wanted, default=log_start - 1)
    named = {offset for first, end in found.gaps for offset in range(first, end)}
    assert named == set(range(log_start, last + 1)) - wanted
