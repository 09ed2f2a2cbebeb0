"""Tests of a dispatch killed at every file operation.

Each tree is the old one or the new one, in an order that a broker can complete. The next run leaves
the bytes of an undisturbed run.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import lastwrite
from lastwrite.rocketmq.store.trees import GUARD, ORDER
from lastwrite.spark.inline import INLINE
from lastwrite.storage import files
from lastwrite.storage.files import FaultPoints
from tests.support.rocketmq.dispatch import (
    BATCHED,
    COMPACTED,
    Broker,
    Files,
    read_dispatched,
    send,
    write_store,
)
from tests.support.sample import some

NOW = 1_700_000_500_000
KINDS = {"all trees": (COMPACTED, BATCHED, "plain"), "no batch queues": (COMPACTED, "plain")}


def dispatch(root: Path, broker: Broker) -> None:
    report = lastwrite.dispatch(str(root), config=broker.sizes.config(), now_ms=NOW, spark=INLINE)
    assert report.exit_status == 0


def killed_at(point: int, root: Path, broker: Broker) -> bool:
    """Dispatch in a child process that kills itself before operation ``point``.

    Returns False if the dispatch ended before that operation.
    """
    child = os.fork()
    if child == 0:
        files.faults = FaultPoints(point)
        try:
            dispatch(root, broker)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def trees(root: Path) -> dict[str, Files]:
    """The files of each tree."""
    found: dict[str, Files] = {tree: {} for tree in ORDER}
    for name, data in read_dispatched(root).items():
        found[name.split("/")[0]][name] = data
    return found


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory if there is one. Disk speed does not matter to these tests."""
    shm = Path("/dev/shm")
    if not os.access(shm, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="lastwrite-crash-", dir=shm) as folder:
        yield Path(folder)


@pytest.mark.parametrize(
    "is_first",
    [
        pytest.param(True, id="all lost", marks=pytest.mark.long),
        pytest.param(False, id="some there"),
    ],
)
@pytest.mark.parametrize("kind", some(KINDS, 1))
def test_kill_at_any_operation_leaves_each_tree_old_or_new(
    place: Path, kind: str, is_first: bool
) -> None:
    origin, done, root = place / "origin", place / "done", place / "run"
    broker = Broker()
    numbers = dict.fromkeys(KINDS[kind], 0)
    for n in range(24):
        if n == 12 and not is_first:
            write_store(origin, broker)
            dispatch(origin, broker)
        topic = KINDS[kind][n % len(KINDS[kind])]
        send(broker, topic, 0, numbers[topic], keys=f"k{n % 5}", body=b"v" * 20 * (n % 4))
        numbers[topic] += 1
    write_store(origin, broker)
    shutil.copytree(origin, done)
    dispatch(done, broker)
    old, new = trees(origin), trees(done)
    assert read_dispatched(done) == broker.dispatched()
    changed = [tree for tree in ORDER if old[tree] != new[tree]]
    assert len(changed) == len(KINDS[kind]) + 1
    point, states = 0, set()
    while True:
        point += 1
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(origin, root)
        if not killed_at(point, root, broker):
            break
        found = trees(root)
        for tree in ORDER:
            assert found[tree] in (old[tree], new[tree]), (
                f"point {point}: {tree} is neither old nor new"
            )
        is_new = [found[tree] == new[tree] for tree in changed]
        assert is_new == sorted(is_new, reverse=True), (
            f"point {point}: {dict(zip(changed, is_new, strict=True))}"
        )
        states.add(sum(is_new))
        # If only one kind of consume queue is new, a broker would lose the messages that the other
        # kind lacks. The guard file must prevent its start.
        if "batchconsumequeue" in changed and is_new[-2] != is_new[-1]:
            assert (root / "commitlog" / GUARD).exists(), f"point {point}"
        dispatch(root, broker)
        assert read_dispatched(root) == broker.dispatched(), f"point {point}"
        assert sorted(path.name for path in root.iterdir()) == sorted(
            path.name for path in done.iterdir()
        )
        assert not (root / "commitlog" / GUARD).exists()
    assert states == set(range(len(changed) + 1)) and point > 40
