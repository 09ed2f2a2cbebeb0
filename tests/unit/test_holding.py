"""Tests of ``hold.tombstones.for.groups``: finding committed offsets, keeping tombstones, reporting
them.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec import structs

import lastwrite
from lastwrite.archive.manifest import encode
from lastwrite.archive.partition_store import MANIFEST, read_versioned_manifest
from lastwrite.config.declaration import SettingsTable
from lastwrite.errors import CorruptLog, InvalidConfig, NotALog
from lastwrite.kafka import system
from lastwrite.kafka.cluster.commits import (
    Commit,
    GroupPartition,
    OffsetCommits,
    commit_of,
    key_of,
    value_of,
)
from lastwrite.kafka.format.batch import encode_batch, iter_batches
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.kafka.format.names import HIGH_WATERMARKS
from lastwrite.kafka.store import archived
from lastwrite.kafka.store.archiving import successor
from lastwrite.kafka.store.checkpoints import write_offset
from lastwrite.kafka.store.log_dir import read_partition
from lastwrite.kafka.store.positions import GroupPositions, positions_in
from lastwrite.model.log import TopicPartition
from lastwrite.pulsar.rules.settings import PulsarConfig
from lastwrite.reports.compaction import PartitionReport
from lastwrite.reports.holding import BlockingGroup
from lastwrite.rocketmq.rules.settings import RocketmqConfig
from lastwrite.server.offsets import Offsets
from lastwrite.spark.inline import INLINE
from tests.support.engine import compact
from tests.support.files import contents
from tests.support.kafka.logs import NAME
from tests.unit.test_dropped_tombstones import (
    CONFIG,
    NOW_MS,
    PASSED_MS,
    batch,
    offsets,
    stamped,
    write,
)

LIMIT_MS = 5000
HOLD = {
    **CONFIG,
    "hold.tombstones.for.groups": "a,B",
    "hold.tombstones.max.ms": str(LIMIT_MS),
}


def log(root: Path) -> Path:
    """A log with two tombstones whose horizon has passed, at offsets 1 and 3, and end offset 6."""
    return write(
        root,
        {
            0: [batch(0, "x=1"), stamped(batch(1, "k"))],
            2: [batch(2, "y=1"), stamped(batch(3, "l"))],
            4: [batch(4, "z=1", "z=2")],
            6: [],
        },
    )


def commit(state: Path, positions: Mapping[str, int], topic: str = "t") -> None:
    store = Offsets(str(state))
    store.commit(
        [(GroupPartition(group, topic, 0), Commit(at)) for group, at in positions.items()], NOW_MS
    )
    store.close()


def round_of(root: Path, config: Mapping[str, object], now_ms: int = NOW_MS) -> PartitionReport:
    [report] = compact(root, config, now_ms, topic="t").partitions
    return report


def test_tombstone_is_dropped_after_all_groups_passed_it(tmp_path: Path) -> None:
    root = log(tmp_path / "root")
    commit(root, {"a": 3, "B": 7})  # committed in the same root, as in a broker's log directory
    report = round_of(root, HOLD)
    assert offsets(root) == [0, 2, 3, 5]
    [held] = report.held_for
    until_ms = PASSED_MS + LIMIT_MS
    assert held == BlockingGroup(group="a", position=3, behind=3, until_ms=until_ms)
    assert held.message == f"held for group a, 3 behind, at most until time {until_ms}"


def test_unknown_group_keeps_all_tombstones_until_the_limit(tmp_path: Path) -> None:
    root = log(tmp_path / "root")
    commit(root, {"a": 6, "b": 6})  # group names are case-sensitive
    assert round_of(root, HOLD, PASSED_MS + LIMIT_MS - 1).held_for[0].position is None
    assert offsets(root) == [0, 1, 2, 3, 5]
    write(root, {6: [batch(6, "q=1")], 7: []})
    round_of(root, HOLD, PASSED_MS + LIMIT_MS)
    assert offsets(root) == [0, 2, 5, 6]


def test_tombstones_are_kept_for_ever_without_a_limit(tmp_path: Path) -> None:
    root = log(tmp_path / "root")
    report = round_of(root, {**HOLD, "hold.tombstones.max.ms": "-1"}, NOW_MS + 10**13)
    assert [each.message for each in report.held_for] == [
        "held for group a, whose committed offset is unknown",
        "held for group B, whose committed offset is unknown",
    ]
    assert offsets(root) == [0, 1, 2, 3, 5]


def test_named_path_of_positions_takes_precedence(tmp_path: Path) -> None:
    root, state = log(tmp_path / "root"), tmp_path / "state"
    commit(root, {"a": 0, "B": 4})
    commit(state, {"a": 2})
    config = {**HOLD, "hold.tombstones.positions": str(state)}
    assert [(each.group, each.position) for each in round_of(root, config).held_for] == [
        ("a", 2),
        ("B", 4),
    ]
    assert offsets(root) == [0, 2, 3, 5]
    with pytest.raises(NotALog):
        positions_in(str(tmp_path / "nowhere"))


def test_unreplicated_commit_is_not_a_position(tmp_path: Path) -> None:
    root = log(tmp_path)
    commit(root, {"a": 2, "B": 6})
    name = TopicPartition("__consumer_offsets", 0)
    end = read_partition(str(root / str(name))).end_offset
    commit(root, {"a": 6})
    # above the high watermark, so another leader may lack the last commit
    write_offset(str(root), HIGH_WATERMARKS, name, end)
    [held] = round_of(root, HOLD).held_for
    assert (held.group, held.position) == ("a", 2)


def test_positions_are_read_once_for_all_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = log(tmp_path)
    commit(root, {"a": 2, "B": 6})
    shutil.copytree(root / NAME, root / "t-1")
    looked: list[str] = []

    def looking(path: str) -> GroupPositions:
        looked.append(path)
        return positions_in(path)

    monkeypatch.setattr(system, "positions_in", looking)
    monkeypatch.setattr(system, "_ASK_AGAIN_S", 600.0)
    found = compact(root, HOLD, NOW_MS, topic="t").partitions
    assert [[each.position for each in one.held_for] for one in found] == [[2], [None, None]]
    assert looked == [str(root)]


def test_earlier_position_of_two_roots_counts(tmp_path: Path) -> None:
    root, other = log(tmp_path / "root"), tmp_path / "other"
    for place, offset in ((root, 6), (other, 2)):
        commit(place, {"a": offset, "B": 6})
    config = {**HOLD, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0}
    report = lastwrite.compact(
        [str(root), str(other)], topic="t", config=config, now_ms=NOW_MS, spark=INLINE
    )
    [held] = report.partitions[0].held_for
    assert (held.group, held.position) == ("a", 2)


def test_fetched_positions_count_in_an_archive(tmp_path: Path) -> None:
    root, archive = log(tmp_path / "root"), tmp_path / "archive"
    lastwrite.fetch([str(root)], to=str(archive), config=CONFIG, include_active=True)
    folder = str(archive / "kafka" / "t" / "0")
    seen = read_versioned_manifest(folder).manifest
    before = archived.contents_of(seen, folder)
    after = structs.replace(before, groups=(("a", 3, -1, ""), ("B", 6, -1, "")))
    Path(folder, MANIFEST).write_bytes(encode(successor(seen, after)))
    [held] = round_of(archive, HOLD).held_for
    assert (held.group, held.position, held.behind) == ("a", 3, 3)


def test_explain_names_the_group_and_the_limit(tmp_path: Path) -> None:
    root = log(tmp_path / "root")
    commit(root, {"a": 2, "B": 6})
    [found] = lastwrite.explain(
        str(root), topic="t", config=HOLD, now_ms=NOW_MS, key=b"l"
    ).partitions
    assert found.waiting is not None
    assert (found.waiting.deletes_due, found.waiting.deletes_held) == (1, 1)
    until_ms = PASSED_MS + LIMIT_MS
    words = f"held for group a, 4 behind, at most until time {until_ms}"
    assert [each.message for each in found.held_for] == [words]
    assert found.records is not None
    [record] = found.records
    assert "passed, and it is held for group a, 4 behind" in record.message
    assert record.at_ms == until_ms
    assert record.change == (
        "the first round after a committed 4 or more drops it, or the first at or after time "
        f"{until_ms}, which is the limit"
    )


@pytest.mark.parametrize("config", [RocketmqConfig, PulsarConfig])
def test_other_systems_refuse_the_setting(config: type[SettingsTable]) -> None:
    with pytest.raises(InvalidConfig, match="only for topics of Kafka"):
        config.from_names({"hold.tombstones.for.groups": "a"})


def test_transaction_commits_positions_with_its_marker() -> None:
    def data(offset: int, place: GroupPartition, at: int, producer: int) -> bytes:
        record = Record(offset, NOW_MS, key_of(place), value_of(Commit(at)))
        return encode_batch([record], producer_id=producer, producer_epoch=0, transactional=True)

    def marker(offset: int, kind: int, producer: int) -> bytes:
        record = Record(offset, NOW_MS, bytes([0, 0, 0, kind]), b"\0\0\0\0\0\0")
        return encode_batch(
            [record], producer_id=producer, producer_epoch=0, transactional=True, control=True
        )

    one, two, three = (GroupPartition("g", "t", n) for n in range(3))
    plain = Record(3, NOW_MS, key_of(two), value_of(Commit(50)))
    log = b"".join(
        [
            data(0, one, 10, 7),
            data(1, three, 30, 8),
            data(2, two, 20, 7),
            encode_batch([plain]),  # at a higher offset than the records of the open transaction
            marker(4, 1, 7),
            marker(5, 0, 8),
            data(6, one, 11, 9),  # a transaction that is still open
        ]
    )
    found = OffsetCommits()
    found.take(each for _, each in iter_batches(log))
    assert {place: each.offset for place, each in found.offsets.items()} == {one: 10, two: 50}


def test_positions_of_all_versions_are_decoded() -> None:
    v1 = b"\0\1" + (7).to_bytes(8, "big") + b"\0\2hi" + (1).to_bytes(8, "big") * 2
    assert commit_of(v1) == Commit(7, -1, "hi", 1, expires_ms=1)
    whole = value_of(Commit(9, 2, "é", NOW_MS))
    assert commit_of(whole) == Commit(9, 2, "é", NOW_MS)
    for size in range(len(whole)):
        with pytest.raises(CorruptLog):
            commit_of(whole[:size])


def test_unset_option_leaves_the_output_unchanged(tmp_path: Path) -> None:
    """Without the setting the output has the same bytes."""
    one, two = log(tmp_path / "one"), log(tmp_path / "two")
    commit(one, {"a": 0})
    round_of(one, CONFIG)
    round_of(two, {**CONFIG, "hold.tombstones.for.groups": ""})
    assert contents(one / NAME) == contents(two / NAME)
