"""Tests of the offsets that ``serve`` stores, across kills.

A short form of ``python -m tests.commits``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lastwrite.kafka.cluster.commits import Commit, GroupPartition
from lastwrite.kafka.cluster.group_states import GroupKind, GroupStates
from lastwrite.kafka.store.positions import GroupPositions, OffsetRetention, positions_in
from lastwrite.model.policy import LONG_MAX
from lastwrite.reports.groups import UnreadPosition
from lastwrite.server.offsets import Offsets
from tests.commits.killed import live
from tests.golden.commands import CORPUS
from tests.support.kafka.expiring_groups import DAY_MS, expiring_groups

_HERE = GroupPartition("a", "t", 0)


@pytest.mark.parametrize("seed", range(4))
def test_acknowledged_commit_survives_a_kill(seed: int, tmp_path: Path) -> None:
    assert live(tmp_path / "state", seed) > 0


def test_server_starts_after_a_torn_commit(tmp_path: Path) -> None:
    """Found by the long form: the server truncated the torn end, then reported it as a foreign
    change.
    """
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


def test_offset_deleted_on_the_server_is_not_restored_from_the_archive(tmp_path: Path) -> None:
    store = Offsets(str(tmp_path))
    store.start_from([(_HERE, Commit(3))], 1)
    store.commit([(_HERE, None)], 2)
    store.close()
    store = Offsets(str(tmp_path))
    store.start_from([(_HERE, Commit(3))], 3)
    assert store.of(_HERE) is None
    store.close()


def _of_broker(*commits: tuple[GroupPartition, Commit], **more: Any) -> GroupPositions:
    return GroupPositions(dict(commits), frozenset(), **more)


def _continued(state: Path, source: GroupPositions) -> Offsets:
    store = Offsets(str(state))
    store.continue_from(source, lambda topic: topic == "t")
    return store


def test_offset_of_a_stopped_broker_is_continued(tmp_path: Path) -> None:
    elsewhere = GroupPartition("a", "not served", 0)
    broker = _of_broker((_HERE, Commit(3, at_ms=10)), (elsewhere, Commit(3, at_ms=10)))
    store = _continued(tmp_path, broker)
    assert store.of(_HERE) == Commit(3, at_ms=10)
    assert store.of(elsewhere) is None
    store.close()


def test_later_commit_counts_after_a_restart(tmp_path: Path) -> None:
    broker = _of_broker((_HERE, Commit(3, at_ms=10)))
    store = _continued(tmp_path, broker)
    store.commit([(_HERE, Commit(7))], 20)
    store.close()
    for _ in range(2):
        store = _continued(tmp_path, broker)
        assert store.of(_HERE) == Commit(7, at_ms=20)
        store.close()
    # the broker has run again
    store = _continued(tmp_path, _of_broker((_HERE, Commit(5, at_ms=30))))
    assert store.of(_HERE) == Commit(5, at_ms=30)
    store.close()


def test_offset_deleted_on_the_server_is_not_restored_from_the_broker(tmp_path: Path) -> None:
    broker = _of_broker((_HERE, Commit(3, at_ms=10)))
    store = _continued(tmp_path, broker)
    store.commit([(_HERE, None)], 20)
    store.close()
    store = _continued(tmp_path, broker)
    assert store.of(_HERE) is None
    store.close()


def test_group_keeps_the_protocol_of_the_stopped_broker(tmp_path: Path) -> None:
    kinds = positions_in(str(CORPUS / "internal-topics"), OffsetRetention(0, LONG_MAX)).kinds
    assert kinds == {
        "classic": GroupKind("consumer"),
        "static": GroupKind("consumer"),
        "new": GroupKind("consumer", True, 3, 3),
        "pattern": GroupKind("consumer", True, 3, 3),
    }
    store = _continued(tmp_path, _of_broker((_HERE, Commit(3, at_ms=10)), kinds=kinds))
    assert store.kind_of("new") == kinds["new"]
    assert store.kind_of("a") == GroupKind()
    store.close()


def test_expired_offset_is_ignored(tmp_path: Path) -> None:
    store = _continued(tmp_path, _of_broker((_HERE, Commit(3, at_ms=10)), expired={_HERE}))
    assert store.of(_HERE) is None
    store.close()


def test_unreadable_offset_is_not_a_missing_one(tmp_path: Path) -> None:
    unread = UnreadPosition(source="x.log", offset=4, group="a", reason="cut")
    store = _continued(tmp_path, _of_broker(unread=(unread,)))
    assert store.is_unread(_HERE) and not store.is_unread(GroupPartition("b", "t", 0))
    store.close()


def test_offsets_expire_as_the_table_states() -> None:
    """tests/system/test_serve.py compares a broker with the same table."""
    now_ms = 100 * DAY_MS
    states = GroupStates()
    cases = expiring_groups(now_ms, "t", "other")
    states.take([record for case in cases for record in case.records])
    rule = states.expiry()
    for case in cases:
        for place, commit, is_expired in case.positions:
            found = rule.is_expired(place, commit, now_ms, 7 * DAY_MS)
            assert found == is_expired, case.positions
