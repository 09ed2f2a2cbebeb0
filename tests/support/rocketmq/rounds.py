"""Random RocketMQ stores, rounds over them, and their files' state, for failure tests."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import lastwrite
from lastwrite.spark.inline import INLINE
from tests.support.rocketmq.model import (
    START_MS,
    ModelQueue,
    random_message,
    read_files,
    write_store,
)
from tests.support.rocketmq.model import compact as model_compact
from tests.support.rocketmq.model import files_of as model_files

NOW_MS = START_MS + 1_000_000
RETENTION_MS = 1000
Tree = dict[str, bytes]


def lay_out(seed: int, root: Path, include_active: bool) -> tuple[Tree, Tree]:
    """Write a store of some queues. Some were compacted before, and one has nothing to clean.

    Returns the files, and the files after a round.
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


def compact(root: Path, include_active: bool, **arguments: Any) -> None:
    config = {"delete.retention.ms": RETENTION_MS, "min.cleanable.dirty.ratio": 0}
    report = lastwrite.compact(
        str(root),
        system="rocketmq",
        config=config,
        now_ms=NOW_MS,
        include_active=include_active,
        spark=INLINE,
        **arguments,
    )
    assert report.exit_status == 0, [str(each.reason) for each in report.partitions]


def tree_of(root: Path) -> Tree:
    """All files of all queues, and the positions that a broker would load."""
    found = read_files(root)
    for name in ("position-checkpoint", "position-checkpoint.bak"):
        path = root / "compaction" / name
        if path.exists():
            return {**found, "positions": path.read_bytes()}
    return found
