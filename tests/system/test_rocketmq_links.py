"""Tests that commands refuse to change a RocketMQ store beside its broker through any symbolic
link.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from lastwrite.model.log import TopicPartition
from lastwrite.rocketmq.system import RocketmqSystem
from lastwrite.storage import quarantine
from tests.support.rocketmq.dispatch import COMPACTED
from tests.system.test_cli import lastwrite as command
from tests.system.test_cli import one_line
from tests.unit.test_links import broker_on
from tests.unit.test_rocketmq_cut import everything, some, stored

TREES = ("commitlog", "consumequeue", "batchconsumequeue", "index", "compaction", "config")
QUEUE = TopicPartition(COMPACTED, 0)
# There is no name server, so the store must be checked before any connection.
COMMANDS = {
    "release": ["release", "STORE"],
    "restore": ["restore", "STORE", "--from", "127.0.0.1:1", "--topic", COMPACTED],
    "cut": ["cut", "STORE", "--at", "0"],
    "cut --undo": ["cut", "STORE", "--undo"],
    "dispatch": ["dispatch", "STORE", "--whole-log"],
}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with a quarantined queue."""
    root = stored(tmp_path / "store", some(60))
    quarantine.record_failures(str(root), {QUEUE: "it was damaged"}, 0, RocketmqSystem().notes)
    return root


def links(store: Path, beside: Path) -> list[Path]:
    """A link to a link to the store, and a folder whose trees are links into the store."""
    (beside / "trees").mkdir(parents=True)
    for tree in TREES:
        if (store / tree).exists():
            (beside / "trees" / tree).symlink_to(store / tree)
    (beside / "store").symlink_to(store)
    (beside / "again").symlink_to("store")
    return [beside / "again", beside / "trees"]


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_symbolic_link_does_not_hide_the_broker(
    store: Path, tmp_path: Path, words: Sequence[str]
) -> None:
    beside = tmp_path / "beside"
    ways = links(store, beside)
    before, listed = everything(store), sorted(beside.rglob("*"))
    with broker_on(store / "lock", 1):
        for way in ways:
            done = command(*(str(way) if word == "STORE" else word for word in words))
            assert done.returncode == 4, (way, done.stderr)
            assert "a broker (process" in one_line(done) and not done.stdout
            assert everything(store) == before and sorted(beside.rglob("*")) == listed
