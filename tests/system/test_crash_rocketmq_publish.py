"""Tests of a process killed before every operation of a publication: the store is old or new.

A model of the broker's loader judges here, and a real broker in
``test_rocketmq_broker_after_kill.py``. Logs, indexes and positions change in one step. Recovery
must then leave exactly the old or the new state.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lastwrite.rocketmq.store import lock, publish
from lastwrite.storage import files
from lastwrite.storage.files import FaultPoints
from tests.support.kafka.crashing import fail_at, run_until
from tests.support.kafka.logs import SCRATCH
from tests.support.rocketmq.trees import (
    LAYOUTS,
    Layout,
    compact,
    contents,
    fresh,
    load_like_broker,
    write_layout,
)
from tests.support.sample import some

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a child that was forked")
LEAST_KILLS = 200


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder in memory if there is one, because the tests sync thousands of times."""
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        yield Path(folder)


def operations(place: Path, layout: Layout) -> int:
    """The number of file operations of an undisturbed round."""
    root = fresh(place / "old", place / "counted")
    files.faults = FaultPoints(1 << 30)
    try:
        compact(root, layout)
        return files.faults.passed
    finally:
        files.faults = FaultPoints()


def recover(root: Path, layout: Layout) -> None:
    with lock.hold(str(root), layout.before):
        for name in layout.before:
            publish.recover(str(root), name)


def tree_at(root: Path) -> dict[str, bytes | None]:
    """The files below ``compaction`` that a broker reads."""
    return contents((root / "compaction").resolve())


def states(place: Path, layout: Layout) -> tuple[dict[str, bytes | None], dict[str, bytes | None]]:
    """The store before the round, and after an undisturbed round."""
    write_layout(place / "old", layout)
    assert load_like_broker(place / "old") == (layout.old, layout.positions)
    root = fresh(place / "old", place / "new")
    compact(root, layout)
    assert load_like_broker(root) == (layout.new, layout.new_positions)
    return contents(place / "old"), contents(root)


@pytest.mark.parametrize("layout", some(LAYOUTS, 3))
def test_kill_at_any_operation_leaves_the_old_state_or_the_new(place: Path, layout: Layout) -> None:
    old, new = states(place, layout)
    decided = []
    for point in range(1, operations(place, layout) + 1):
        root = fresh(place / "old", place / "killed")
        assert run_until(point, lambda root=root: compact(root, layout)), point  # type: ignore[misc]
        seen = load_like_broker(root)
        assert seen in ((layout.old, layout.positions), (layout.new, layout.new_positions)), point
        decided.append(seen == (layout.new, layout.new_positions))
        if layout.after:  # the trees must also be equal byte for byte
            assert tree_at(root) == tree_at(place / ("new" if decided[-1] else "old")), point
        recovered = fresh(root, place / "recovered")
        recover(recovered, layout)
        assert load_like_broker(recovered) == seen, point
        if layout.after:
            assert contents(recovered) == (new if decided[-1] else old), point
        compact(root, layout)
        assert contents(root) == new, point
    assert decided == sorted(decided), "once the new state counts, the old one never does again"
    assert not decided[0]
    assert decided[-1] or not layout.after


@pytest.mark.parametrize("layout", some(LAYOUTS, 2))
def test_kill_during_the_recovery_loses_nothing(place: Path, layout: Layout) -> None:
    _, new = states(place, layout)
    for point in range(1, operations(place, layout) + 1, 7):
        root = fresh(place / "old", place / "killed")
        run_until(point, lambda root=root: compact(root, layout))  # type: ignore[misc]
        seen = load_like_broker(root)
        again, is_killed = 1, True
        while is_killed:
            other = fresh(root, place / "again")
            is_killed = run_until(again, lambda other=other: recover(other, layout))  # type: ignore[misc]
            assert load_like_broker(other) == seen, (point, again)
            compact(other, layout)
            assert contents(other) == new, (point, again)
            again += 1


@pytest.mark.parametrize("layout", some(LAYOUTS, 3))
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO])
@pytest.mark.parametrize("once", [True, False])
def test_failed_operation_leaves_the_old_state_or_the_new(
    place: Path, layout: Layout, number: int, once: bool
) -> None:
    old, new = states(place, layout)
    for point in range(1, operations(place, layout) + 1):
        root = fresh(place / "old", place / "failed")
        error = fail_at(point, number, lambda root=root: compact(root, layout), once=once)  # type: ignore[misc]
        seen = load_like_broker(root)
        assert seen in ((layout.old, layout.positions), (layout.new, layout.new_positions)), point
        if error is None:
            assert seen == (layout.new, layout.new_positions), point
        else:
            assert error.path and error.remedy, point
        recover(root, layout)
        if layout.after:
            assert contents(root) == (new if seen[0] == layout.new else old), point
        compact(root, layout)
        assert contents(root) == new, point


def test_publication_has_many_operations_to_be_killed_at(place: Path) -> None:
    counts = []
    for n, layout in enumerate(LAYOUTS):
        write_layout(place / str(n) / "old", layout)
        counts.append(operations(place / str(n), layout))
    assert sum(counts) >= LEAST_KILLS, counts
