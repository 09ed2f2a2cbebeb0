"""Properties of tombstones that are kept for consumer groups, on random logs.

Rounds are compared with plain Python, and a delayed consumer must see every delete.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from lastwrite.kafka.cluster.commits import Commit, GroupPartition
from lastwrite.server.offsets import Offsets
from tests.property.test_compaction import assert_same_batches, empty_root, grow, twin_of
from tests.support.engine import compact
from tests.support.files import contents
from tests.support.kafka import reference
from tests.support.kafka.logs import NAME, bases, read_segments
from tests.support.kafka.model import Held, aborted_offsets, fold, readable
from tests.support.kafka.strategies import DAY_MS, Life, lives

_FOR_EVER_MS = 2**62


def held_config(life: Life, state: Path, max_ms: int, groups: str = "a") -> dict[str, str]:
    return {
        **life.config,
        "hold.tombstones.for.groups": groups,
        "hold.tombstones.max.ms": str(max_ms),
        "hold.tombstones.positions": str(state),
    }


def commit(state: Path, group: str, position: int | None) -> None:
    offsets = Offsets(str(state))
    where = GroupPartition(group, "t", 0)
    offsets.commit([(where, None if position is None else Commit(position))], 0)
    offsets.close()


@given(
    life=lives(min_rounds=2),
    shares=st.lists(st.none() | st.floats(0, 1), min_size=8, max_size=8),
    max_ms=st.sampled_from([-1, 0, 1, DAY_MS, 8 * DAY_MS]),
    like_broker=st.booleans(),
)
def test_round_keeps_the_tombstones_of_the_model(
    life: Life, shares: list[float | None], max_ms: int, like_broker: bool
) -> None:
    with empty_root() as root:
        state = root.with_name("state")
        shutil.rmtree(state, ignore_errors=True)
        for number, phase in enumerate(life.phases):
            grow(root, phase, life)
            twin, end = twin_of(root), reference.listed(root).end_offset
            share = shares[number % len(shares)]
            position = None if share is None else int(end * share)
            commit(state, "a", position)
            held_from = 0 if position is None else position
            config = held_config(life, state, max_ms)
            compact(root, config, phase.now_ms, like_broker=like_broker)
            longer_ms = _FOR_EVER_MS if max_ms < 0 else max_ms
            held = Held(held_from if held_from < end else None, longer_ms)
            reference.compact(twin, life.config, phase.now_ms, held=held)
            assert_same_batches(root, twin)


@given(lives(min_rounds=2), st.integers(0, 3), st.floats(0, 1), st.booleans())
def test_delayed_reader_ends_with_the_same_table(
    life: Life, leaves_after: int, share: float, with_active: bool
) -> None:
    """A reader stops anywhere, and continues after the last round: it sees every delete."""
    with empty_root() as root:
        state = root.with_name("state")
        shutil.rmtree(state, ignore_errors=True)
        read, position = [], 0
        for number, phase in enumerate(life.phases):
            grow(root, phase, life)
            end = reference.listed(root).end_offset
            if number <= leaves_after:
                hidden = aborted_offsets(read_segments(root / NAME))
                stop = int(end * share)
                there = readable(read_segments(root / NAME))
                unstable = reference.listed(root).first_unstable_offset
                stop = min(stop, end if unstable is None else unstable)
                read += [
                    each
                    for each in there
                    if position <= each.offset < stop and each.offset not in hidden
                ]
                position = max(position, stop)
                commit(state, "a", position)
            compact(root, held_config(life, state, -1), phase.now_ms, include_active=with_active)
        segments = read_segments(root / NAME)
        behind = [each for each in readable(segments) if each.offset >= position]
        assert fold([*read, *behind]) == fold(readable(segments))


@given(lives())
def test_groups_that_have_read_everything_change_nothing(life: Life) -> None:
    with empty_root() as root:
        state = root.with_name("state")
        shutil.rmtree(state, ignore_errors=True)
        for phase in life.phases:
            grow(root, phase, life)
            twin = twin_of(root)
            commit(state, "a", reference.listed(root).end_offset)
            commit(state, "b", 2**40)
            [report] = compact(root, held_config(life, state, -1, "a,b"), phase.now_ms).partitions
            assert not report.held_for
            compact(twin, life.config, phase.now_ms)
            assert bases(root / NAME) == bases(twin / NAME)
            assert contents(root / NAME) == contents(twin / NAME)
