"""Tests of ``lastwrite groups`` on a log directory, on the state of serve and on an archive."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

import lastwrite
from lastwrite.archive.manifest import encode
from lastwrite.archive.partition_store import MANIFEST, read_versioned_manifest
from lastwrite.kafka.cluster.commits import Commit, GroupPartition, key_of, value_of
from lastwrite.kafka.format.batch import encode_batch
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.kafka.format.names import RECOVERY_POINTS
from lastwrite.kafka.store import archived
from lastwrite.kafka.store.archiving import successor
from lastwrite.kafka.store.checkpoints import write_offset
from lastwrite.model.log import TopicPartition
from lastwrite.reports.compaction import Status
from lastwrite.reports.groups import GroupPosition
from lastwrite.server.offsets import Offsets
from lastwrite.spark.inline import INLINE
from tests.unit.test_dropped_tombstones import CONFIG, NOW_MS
from tests.unit.test_holding import HOLD, commit, log, round_of


def brief(found: list[GroupPosition]) -> list[tuple[object, ...]]:
    return [(each.group, each.topic, each.position, each.end_offset, each.lag) for each in found]


def test_groups_lists_positions_of_a_log_directory(tmp_path: Path) -> None:
    root = log(tmp_path / "root")
    commit(root, {"b": 4, "a": 7})
    commit(root, {"b": 1}, topic="gone")
    found = lastwrite.groups(str(root)).positions
    assert brief(found) == [
        ("a", "t", 7, 6, 0),
        ("b", "gone", 1, None, None),
        ("b", "t", 4, 6, 2),
    ]
    assert {each.committed_ms for each in found} == {NOW_MS}
    assert brief(lastwrite.groups(str(root), group="b", topic="t").positions) == [
        ("b", "t", 4, 6, 2)
    ]


def test_groups_lists_positions_of_a_server_state(tmp_path: Path) -> None:
    root, state = log(tmp_path / "root"), tmp_path / "state"
    store = Offsets(str(state))  # its server is running
    store.commit([(GroupPartition("a", "t", 0), Commit(2, 0, "here"))], NOW_MS)
    [alone] = lastwrite.groups(str(state)).positions
    assert (alone.position, alone.lag, alone.metadata) == (2, None, "here")
    assert brief(lastwrite.groups([str(state), str(root)]).positions) == [("a", "t", 2, 6, 4)]
    store.close()


def test_groups_lists_positions_of_an_archive(tmp_path: Path) -> None:
    root, archive = log(tmp_path / "root"), tmp_path / "archive"
    lastwrite.fetch([str(root)], to=str(archive), config=CONFIG, include_active=True)
    folder = str(archive / "kafka" / "t" / "0")
    seen = read_versioned_manifest(folder).manifest
    after = structs.replace(archived.contents_of(seen, folder), groups=(("a", 3, -1, "x"),))
    Path(folder, MANIFEST).write_bytes(encode(successor(seen, after)))
    [found] = lastwrite.groups(str(archive)).positions
    assert (found.group, found.position, found.lag, found.committed_ms) == ("a", 3, 3, None)


NEWER = b"\0\x09" + bytes(24)  # a value of version 9
KEY = key_of(GroupPartition("a", "t", 0))
UNREADABLE = {
    "a newer version": (KEY, NEWER, "a"),
    "a cut value": (KEY, value_of(Commit(2))[:9], "a"),
    "an empty value": (KEY, b"", "a"),
    "a cut key": (KEY[:-2], value_of(Commit(2)), "a"),
    "a key of two bytes": (b"\0\1", value_of(Commit(2)), None),
    "a key that is no text": (b"\0\1\0\2\xff\xfe", value_of(Commit(2)), None),
}


def offsets_log(root: Path, *records: tuple[bytes | None, bytes | None], number: int = 0) -> str:
    """Write a partition of ``__consumer_offsets`` with a record for each key and value."""
    name = TopicPartition("__consumer_offsets", number)
    folder = root / str(name)
    folder.mkdir()
    write_offset(str(root), RECOVERY_POINTS, name, 0)  # a killed broker leaves this recovery point
    batch = encode_batch([Record(n, NOW_MS, *each) for n, each in enumerate(records)])
    path = folder / f"{0:020}.log"
    path.write_bytes(batch)
    return str(path)


@pytest.mark.parametrize("which", UNREADABLE)
def test_unreadable_record_does_not_hide_other_groups(tmp_path: Path, which: str) -> None:
    key, value, group = UNREADABLE[which]
    root, archive = log(tmp_path / "root"), tmp_path / "archive"
    lastwrite.fetch([str(root)], to=str(archive), config=CONFIG, include_active=True)
    path = offsets_log(
        root,
        (KEY, value_of(Commit(1))),
        (key_of(GroupPartition("b", "t", 0)), value_of(Commit(4))),
        (key, value),
    )
    found = lastwrite.groups(str(root))
    others = [each for each in found.positions if each.group == "b"]
    assert brief(others) == [("b", "t", 4, 6, 2)]
    [unread] = found.unread
    assert (unread.source, unread.offset, unread.group) == (path, 2, group)
    assert found.exit_status == 3
    if key == KEY:  # the previous offset may be above the newest one, so it is not reported
        assert found.positions == others
    fetched = lastwrite.fetch([str(root)], topic="t", to=str(archive), config=CONFIG)
    assert (fetched.unread_positions, fetched.exit_status) == ((unread,), 3)
    kept = {(each.group, each.position) for each in lastwrite.groups(str(archive)).positions}
    assert ("b", 4) in kept


def test_fetch_keeps_the_archived_position_of_an_unreadable_record(
    tmp_path: Path,
) -> None:
    root, archive = log(tmp_path / "root"), tmp_path / "archive"
    commit(root, {"a": 3})
    lastwrite.fetch([str(root)], topic="t", to=str(archive), config=CONFIG, include_active=True)
    with (root / "__consumer_offsets-0" / f"{0:020}.log").open("ab") as file:
        file.write(encode_batch([Record(1, NOW_MS, KEY, NEWER)]))
    lastwrite.fetch([str(root)], topic="t", to=str(archive), config=CONFIG, include_active=True)
    assert brief(lastwrite.groups(str(archive)).positions) == [("a", "t", 3, 6, 3)]


def test_later_record_of_the_key_replaces_an_unreadable_one(tmp_path: Path) -> None:
    root = log(tmp_path / "root")
    offsets_log(root, (KEY, NEWER), (b"\0\1", b"x"), (KEY, value_of(Commit(5))), (b"\0\1", None))
    found = lastwrite.groups(str(root))
    assert (brief(found.positions), found.unread) == ([("a", "t", 5, 6, 1)], [])


def test_records_that_are_not_positions_are_skipped(tmp_path: Path) -> None:
    """Records of group members, types of a later release, and records without a key."""
    root = log(tmp_path / "root")
    others = [(b"\0\2\0\1a", b"\0\3members"), (b"\0\x63\0\1a", b"\0\0x"), (None, b"x")]
    offsets_log(root, *others, (KEY, value_of(Commit(5))))
    found = lastwrite.groups(str(root))
    assert (brief(found.positions), found.unread) == ([("a", "t", 5, 6, 1)], [])


def test_damaged_partition_hides_only_its_own_groups(tmp_path: Path) -> None:
    root = log(tmp_path / "root")
    offsets_log(root, (KEY, value_of(Commit(3))))
    path = Path(offsets_log(root, (KEY, value_of(Commit(1))), number=7))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    (root / RECOVERY_POINTS).write_text("0\n2\n__consumer_offsets 0 0\n__consumer_offsets 7 1\n")
    found = lastwrite.groups(str(root))
    assert brief(found.positions) == [("a", "t", 3, 6, 3)]
    [unread] = found.unread
    assert (unread.source, unread.offset, found.exit_status) == (str(path), None, 3)


def test_plan_keeps_tombstones_for_a_group_with_an_unreadable_position(tmp_path: Path) -> None:
    root = log(tmp_path / "root")
    other = key_of(GroupPartition("B", "t", 0)), value_of(Commit(6))
    path = offsets_log(root, (KEY, value_of(Commit(6))), other, (KEY, NEWER))
    report = lastwrite.plan(
        str(root), topic="t", config={**HOLD, "cleanup.policy": "compact"}, spark=INLINE
    )
    [found] = report.partitions
    [held] = found.held_for
    assert (held.group, held.position) == ("a", None)
    assert held.reason is not None and f"{path}: the record at offset 2" in held.reason
    assert (found.status is Status.DAMAGED, report.exit_status) == (False, 3)
    assert round_of(root, {**HOLD, "hold.tombstones.for.groups": "B"}).held_for == []
