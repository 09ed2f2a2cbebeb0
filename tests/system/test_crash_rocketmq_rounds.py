"""Whole rounds over random RocketMQ stores, killed at every other operation, some of them twice.

Wherever it happens, every queue and the positions are what they were or what they will be, all of them together; the
run that follows leaves the bytes of a run that nobody disturbed and nothing beside them.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import lastwrite
from lastwrite.logstore import files
from lastwrite.logstore.files import FaultPoints
from lastwrite.logstore.rocketmq import publish
from lastwrite.pipeline.inline import INLINE
from tests.crashing import run_until
from tests.logs import SCRATCH
from tests.rocketmq_model import START_MS, ModelQueue, random_message, read_files, write_store
from tests.rocketmq_model import compact as model_compact
from tests.rocketmq_model import files_of as model_files
from tests.rocketmq_trees import contents, fresh

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a child that was forked")

NOW_MS = START_MS + 1_000_000
RETENTION_MS = 1000
SEEDS = (3, 8, 9, 12)  # in each of these something goes
Tree = dict[str, bytes]


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder in memory where there is one: kills test the order of operations, not the disk's speed."""
    with tempfile.TemporaryDirectory(prefix="lastwrite-crash-", dir=SCRATCH) as folder:
        yield Path(folder)


def lay_out(seed: int, root: Path, include_active: bool) -> tuple[Tree, Tree]:
    """A store of some queues, of which some were compacted before, and one has nothing to clean.

    Returns what their files are, and what a round makes of them.
    """
    queues = _drawn(random.Random(f"rocketmq-{seed}"))
    write_store(root, queues)
    old = {name: content for queue in queues for name, content in model_files(queue).items()}
    for queue in queues:
        model_compact(queue, NOW_MS, RETENTION_MS, include_active=include_active)
    return old, {name: content for queue in queues for name, content in model_files(queue).items()}


def _drawn(rng: random.Random) -> list[ModelQueue]:
    index_bytes = 46 * rng.randint(4, 9)
    queues = [
        ModelQueue(index_bytes * 30, index_bytes, number) for number in range(rng.randint(1, 3))
    ]
    for queue in queues:
        offset = rng.randint(0, 3)
        for count in (rng.randint(3, 25), rng.randint(8, 30)):
            for _ in range(count):
                offset += rng.choice((1, 1, 1, 3))
                queue.append(
                    random_message(
                        rng, offset, rng.choice((3, 9)), START_MS + offset * 100, queue.number
                    )
                )
            if rng.random() < 0.5:
                model_compact(queue, NOW_MS - 500_000, RETENTION_MS)
    still = ModelQueue(index_bytes * 30, index_bytes, 9)
    still.append(random_message(rng, 0, 3, START_MS, 9))
    return [*queues, still]


def compact(root: Path, include_active: bool) -> None:
    config = {"delete.retention.ms": RETENTION_MS, "min.cleanable.dirty.ratio": 0}
    report = lastwrite.compact(
        str(root),
        system="rocketmq",
        config=config,
        now_ms=NOW_MS,
        include_active=include_active,
        spark=INLINE,
    )
    assert report.exit_status == 0, [str(each.reason) for each in report.partitions]


def tree_of(root: Path) -> Tree:
    """All files of all queues, and the positions where a broker would find them."""
    found = read_files(root)
    for name in ("position-checkpoint", "position-checkpoint.bak"):
        path = root / "compaction" / name
        if path.exists():
            return {**found, "positions": path.read_bytes()}
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_wherever_it_is_killed_all_queues_are_old_or_all_new(place: Path, seed: int) -> None:
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
