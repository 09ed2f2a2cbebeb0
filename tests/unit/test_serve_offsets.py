"""Positions of ``serve`` over kills: the short form of ``python -m tests.commits``."""

from __future__ import annotations

from pathlib import Path

import pytest

from lastwrite.kafka.cluster.commits import Commit, Place
from lastwrite.server.offsets import Offsets
from tests.commits.killed import live

_HERE = Place("a", "t", 0)


@pytest.mark.parametrize("seed", range(4))
def test_what_was_answered_outlives_a_kill(seed: int, tmp_path: Path) -> None:
    assert live(tmp_path / "state", seed) > 0


def test_a_server_starts_on_what_a_kill_tore_off(tmp_path: Path) -> None:
    """Found by the long form: the torn end was cut, and then taken for somebody else's change."""
    store = Offsets(str(tmp_path))
    store.commit([(_HERE, Commit(7))], 1)
    store.commit([(_HERE, Commit(8))], 2)
    store.close()
    [path] = (tmp_path / "__consumer_offsets-0").glob("*.log")
    path.write_bytes(path.read_bytes()[:-5])
    for _ in range(2):
        store = Offsets(str(tmp_path))
        assert store.of(_HERE) == Commit(7, at_ms=1)
        store.close()


def test_what_was_deleted_here_does_not_come_back_from_the_archive(tmp_path: Path) -> None:
    store = Offsets(str(tmp_path))
    store.start_from([(_HERE, Commit(3))], 1)
    store.commit([(_HERE, None)], 2)
    store.close()
    store = Offsets(str(tmp_path))
    store.start_from([(_HERE, Commit(3))], 3)
    assert store.of(_HERE) is None
    store.close()
