"""Tests of rounds on random RocketMQ stores, killed at every other operation.

Either all queues and positions are old or all are new. The next run leaves exactly the bytes of an
undisturbed run.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lastwrite.rocketmq.store import publish
from lastwrite.storage import files
from lastwrite.storage.files import FaultPoints
from tests.support.kafka.crashing import run_until
from tests.support.kafka.logs import SCRATCH
from tests.support.rocketmq.model import read_files
from tests.support.rocketmq.rounds import compact, lay_out, tree_of
from tests.support.rocketmq.trees import contents, fresh
from tests.support.sample import some

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a child that was forked")

SEEDS = (3, 8, 9, 12)  # a round over each of these stores removes messages


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder in memory if there is one. Disk speed does not matter to these tests."""
    with tempfile.TemporaryDirectory(prefix="lastwrite-crash-", dir=SCRATCH) as folder:
        yield Path(folder)


@pytest.mark.parametrize("seed", some(SEEDS, 1))
def test_kill_at_any_operation_leaves_all_queues_old_or_all_new(place: Path, seed: int) -> None:
    include_active = seed % 4 == 3
    before, after = lay_out(seed, place / "old", include_active)
    root = fresh(place / "old", place / "new")
    files.faults = FaultPoints(1 << 30)
    try:
        compact(root, include_active)
        operations = files.faults.passed
    finally:
        files.faults = FaultPoints()
    old, new, done = tree_of(place / "old"), tree_of(root), contents(root)
    assert read_files(place / "old") == before and read_files(root) == after
    assert before != after
    rng, sides = random.Random(seed), []
    for point in range(1 + seed % 2, operations + 1, 2):
        root = fresh(place / "old", place / "killed")
        assert run_until(point, lambda root=root: compact(root, include_active)), point  # type: ignore[misc]
        seen = tree_of(root)
        assert seen in (old, new), point
        sides.append(seen == new)
        if rng.random() < 0.3:
            run_until(rng.randint(1, operations), lambda root=root: compact(root, include_active))  # type: ignore[misc]
            then = tree_of(root)
            assert then == new or then == seen, point
        compact(root, include_active)
        assert contents(root) == done, point
        assert not publish.leftovers(str(root)), point
    assert sides == sorted(sides) and not sides[0] and sides[-1]
    shutil.rmtree(place / "killed")
