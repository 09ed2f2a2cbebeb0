"""Tests that no tombstone is dropped while an older value remains.

See docs/decisions/dropping-a-tombstone.md. In each test a tombstone's horizon has passed, and an
older value of its key is in a place that a compactor might miss. After any number of rounds a
reader must never get the value without the tombstone after it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

import lastwrite
from lastwrite.errors import InvalidConfig
from lastwrite.reports.compaction import PartitionReport, Status
from lastwrite.spark.inline import INLINE
from tests.support.engine import compact
from tests.support.kafka import reference
from tests.support.kafka.crashing import run_until
from tests.support.kafka.logs import (
    NAME,
    SCRATCH,
    encode_model,
    read_checkpoint,
    read_segments,
    write_checkpoint,
    write_segment,
)
from tests.support.kafka.model import ModelBatch, ModelRecord, fold, readable
from tests.support.pulsar.folders import single
from tests.support.pulsar.topics import put_ledger, topic_folder
from tests.support.rocketmq.model import ModelPair, ModelQueue, message, write_store

NOW_MS = 1_700_000_000_000
PASSED_MS = NOW_MS - 1
CONFIG = {"cleanup.policy": "compact", "delete.retention.ms": "1000"}
# Enough unchanged records that no round merges this segment into its neighbour.
FAR = [f"other-{n}" for n in range(40)]

both = pytest.mark.parametrize("like_broker", [True, False], ids=["like-a-broker", "sparing"])


def batch(offset: int, *words: str, timestamp_ms: int = NOW_MS) -> ModelBatch:
    """A batch of records ``key=value``. A bare ``key`` is a tombstone."""
    records = []
    for n, word in enumerate(words, offset):
        key, _, value = word.partition("=")
        records.append(
            ModelRecord(n, timestamp_ms, key.encode(), value.encode() if value else None)
        )
    return ModelBatch(
        offset, offset + len(words) - 1, tuple(records), max_timestamp_ms=timestamp_ms
    )


def stamped(made: ModelBatch, horizon_ms: int = PASSED_MS) -> ModelBatch:
    """The batch with a delete horizon, as a replica fetches it from a leader that has
    cleaned it.
    """
    return replace(made, horizon_ms=horizon_ms, base_timestamp_ms=horizon_ms)


def write(
    root: Path, segments: Mapping[int, Iterable[ModelBatch]], checkpoint: int | None = None
) -> Path:
    for base, batches in segments.items():
        write_segment(root / NAME, base, [encode_model(made) for made in batches], mtime_ms=NOW_MS)
    if checkpoint is not None:
        write_checkpoint(root, "cleaner-offset-checkpoint", {NAME: checkpoint})
    return root


def offsets(root: Path) -> list[int]:
    return [record.offset for record in readable(read_segments(root / NAME))]


def table(root: Path) -> Mapping[bytes, bytes]:
    return fold(readable(read_segments(root / NAME)))


# --------------------------------------------------- 1. the value is in an older, unchanged segment


@both
@pytest.mark.parametrize("checkpoint", [None, 41], ids=["all-dirty", "value-is-clean"])
def test_value_in_a_file_without_duplicates_is_removed_with_its_tombstone(
    tmp_path: Path, like_broker: bool, checkpoint: int | None
) -> None:
    root = write(
        tmp_path,
        {
            0: [batch(0, "a=1", *(f"{key}=x" for key in FAR))],
            41: [stamped(batch(41, "a", "b=1"))],
            43: [],
        },
        checkpoint,
    )
    compact(root, CONFIG, NOW_MS, like_broker=like_broker)
    # The first round that compares the tombstone removes it and its older value in one swap.
    assert 0 not in offsets(root) and 41 not in offsets(root)
    assert b"a" not in table(root)


@both
def test_unchanged_segment_never_contains_the_value_of_a_dropped_tombstone(
    tmp_path: Path, like_broker: bool
) -> None:
    """Over several rounds. The keys of an unchanged segment are compared, too."""
    root = write(
        tmp_path,
        {
            0: [batch(0, "a=1"), batch(1, *(f"{key}=x" for key in FAR))],
            41: [batch(41, "a", "b=1")],
            43: [],
        },
    )
    for number, now_ms in enumerate((NOW_MS, NOW_MS + 999, NOW_MS + 1000), 43):
        compact(root, CONFIG, now_ms, like_broker=like_broker)
        assert 0 not in offsets(root)
        assert (41 in offsets(root)) == (now_ms < NOW_MS + 1000)
        write(root, {number: [batch(number, "dirt=x")], number + 1: []})


# ------------------------------------------------------- 2. the value is after the range, but older


@both
@pytest.mark.parametrize("strategy", ["timestamp", "header"])
def test_tombstone_waits_for_older_values_at_higher_offsets(
    tmp_path: Path, like_broker: bool, strategy: str
) -> None:
    """By offset, values at higher offsets are newer (next test). By KIP-280's orders they may be
    older, so the tombstone is kept.
    """
    delete, value = (
        batch(0, "a", "b=1", timestamp_ms=NOW_MS),
        batch(2, "a=1", timestamp_ms=NOW_MS - 50),
    )
    if strategy == "header":
        delete, value = with_version(delete, 9), with_version(value, 5)
    config = {**CONFIG, "compaction.strategy": strategy, "compaction.strategy.header": "version"}
    root = write(tmp_path, {0: [stamped(delete)], 2: [value]})
    compact(root, config, NOW_MS, like_broker=like_broker)
    assert offsets(root) == [0, 1, 2]
    # Rolled: the next round includes the value. It is kept as the log's last record.
    write(root, {3: []})
    compact(root, config, NOW_MS, like_broker=like_broker)
    assert offsets(root) == [0, 1, 2]
    write(root, {3: [batch(3, "c=1", timestamp_ms=NOW_MS)], 4: []})
    compact(root, config, NOW_MS, like_broker=like_broker)
    assert offsets(root) == [1, 3]


def with_version(made: ModelBatch, version: int) -> ModelBatch:
    headers = ((b"version", version.to_bytes(8, "big")),)
    return replace(made, records=tuple(replace(record, headers=headers) for record in made.records))


@both
def test_by_offset_no_higher_record_is_older(tmp_path: Path, like_broker: bool) -> None:
    root = write(
        tmp_path, {0: [batch(0, "a=1")], 1: [stamped(batch(1, "a", "b=1"))], 3: [batch(3, "a=2")]}
    )
    compact(root, CONFIG, NOW_MS, like_broker=like_broker)
    assert offsets(root) == [2, 3]


# -------------------------------------------------- 3. the tombstone expired before it was compared


@both
@pytest.mark.parametrize("checkpoint", [1, 2, 3, 4], ids="checkpoint-{}".format)
def test_expired_tombstone_stays_until_it_was_compared(
    tmp_path: Path, like_broker: bool, checkpoint: int
) -> None:
    """Kafka leaves this state if its offset map was full: a checkpoint within a batch, and a
    stamped tombstone after it.
    """
    root = write(
        tmp_path,
        {
            0: [batch(0, "a=1")],
            1: [batch(1, "b=1", "c=1"), batch(3, "d=1"), stamped(batch(4, "a", "e=1"))],
            6: [],
        },
        checkpoint,
    )
    compact(root, CONFIG, NOW_MS, like_broker=like_broker)
    assert offsets(root) == [1, 2, 3, 5]


# ---------------------------------------------- 4. both are in files that are not replaced together


SPREAD = {
    0: [batch(0, "a=1", *(f"{key}=x" for key in FAR))],
    41: [batch(41, *(f"{key}=y" for key in FAR[:3]))],
    44: [stamped(batch(44, "a", "b=1"))],
    46: [],
}


@both
def test_crash_between_two_files_never_restores_the_value(
    like_broker: bool, tmp_path: Path
) -> None:
    """The round is killed before every file operation. The next run finds either all files of the
    old log or all of the new one.
    """
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        point, survived = 0, 0
        killed = True
        while killed:
            point += 1
            root = Path(folder) / str(point)
            write(root, SPREAD)
            killed = run_until(
                point, lambda root=root: compact(root, CONFIG, NOW_MS, like_broker=like_broker)
            )
            if read_checkpoint(root, "cleaner-offset-checkpoint"):
                survived += 1
                # All segments below the checkpoint have been swapped.
                assert 0 not in offsets(root), point
            compact(root, CONFIG, NOW_MS, like_broker=like_broker)
            assert 0 not in offsets(root) and 44 not in offsets(root), point
        assert point > 20
        assert survived > 1


@both
def test_copy_has_the_result_of_a_single_round(tmp_path: Path, like_broker: bool) -> None:
    root = write(tmp_path / "log", SPREAD)
    compact(root, CONFIG, NOW_MS, like_broker=like_broker, to=str(tmp_path / "copy"))
    assert 0 not in offsets(tmp_path / "copy") and 44 not in offsets(tmp_path / "copy")
    # The source was not cleaned, and no checkpoint covers it.
    assert {0, 44} <= set(offsets(root))
    assert read_checkpoint(root, "cleaner-offset-checkpoint") == {}


def test_path_of_a_segment_compacts_its_partition(tmp_path: Path) -> None:
    root = write(tmp_path, SPREAD)
    compact(root / NAME / f"{44:020d}.log", CONFIG, NOW_MS)
    assert 0 not in offsets(root) and 44 not in offsets(root)


@both
def test_retention_removes_the_value_before_its_tombstone(
    tmp_path: Path, like_broker: bool
) -> None:
    """Segments expire in order, whatever their age, so a tombstone is never removed before its
    older value.
    """
    young = [replace(made, max_timestamp_ms=NOW_MS + 10**6, append_time=True) for made in SPREAD[0]]
    root = write(tmp_path, {**SPREAD, 0: young})
    config = {**CONFIG, "cleanup.policy": "delete", "retention.ms": "1000"}
    compact(root, config, NOW_MS + 10_000, like_broker=like_broker)
    assert {0, 44} <= set(offsets(root))
    assert reference.listed(root).log_start == 0


# ---------------------------------------------------------------------- in a log that nobody writes


@pytest.mark.parametrize("include_active", [False, True])
def test_idle_log_keeps_a_tombstone_until_expired_deletes_are_dropped(
    tmp_path: Path, include_active: bool
) -> None:
    root = write(
        tmp_path,
        {0: [batch(0, "a=1", "b=1")], 2: [batch(2, "a"), batch(3, "c=1")], 4: [batch(4, "d=1")]},
    )

    def at(now_ms: int, **asked: bool) -> PartitionReport:
        (found,) = compact(root, CONFIG, now_ms, include_active=include_active, **asked).partitions
        return found

    assert at(NOW_MS).status is Status.CLEANED and offsets(root) == [1, 2, 3, 4]
    late = NOW_MS + 1000
    assert at(late + 1).status is Status.SKIPPED, "nothing is dirty, and so it is for ever"
    early = at(late - 1, drop_expired_deletes=True)
    assert (early.status, offsets(root)) == (Status.UNCHANGED, [1, 2, 3, 4])
    found = at(late, drop_expired_deletes=True)
    assert (found.status, found.tombstones_dropped) == (Status.CLEANED, 1)
    assert offsets(root) == [1, 3, 4]
    end = 5 if include_active else 4
    assert read_checkpoint(root, "cleaner-offset-checkpoint")[NAME] == end
    assert at(late + 1, drop_expired_deletes=True).status is Status.UNCHANGED


def test_round_for_expired_deletes_compares_all_keys(tmp_path: Path) -> None:
    """The checkpoint wrongly counts everything as clean. The value is removed with its
    tombstone.
    """
    segments = {0: [batch(0, "a=1", "b=1")], 2: [stamped(batch(2, "a"))], 3: []}
    root = write(tmp_path, segments, checkpoint=3)
    (found,) = compact(root, CONFIG, NOW_MS, drop_expired_deletes=True).partitions
    assert (found.verdicts["shadowed"], found.tombstones_dropped) == (1, 1)
    assert offsets(root) == [1] and table(root) == {b"b": b"1"}


def test_round_for_expired_deletes_honours_the_policy(tmp_path: Path) -> None:
    segments = {0: [batch(0, "b=1")], 1: [stamped(batch(1, "a"))], 2: []}
    root = write(tmp_path, segments, checkpoint=2)
    config = {"cleanup.policy": "delete"}
    (found,) = compact(root, config, NOW_MS, drop_expired_deletes=True).partitions
    assert offsets(root) == [0, 1] and "cleanup.policy is delete, without compact" in (
        found.reason or ""
    )


def test_pulsar_refuses_to_drop_expired_deletes(tmp_path: Path) -> None:
    folder = topic_folder(tmp_path)
    put_ledger(folder, 3, [single("k", b"")], 1 << 20)
    with pytest.raises(InvalidConfig, match="contains no tombstones"):
        lastwrite.compact(str(folder), spark=INLINE, drop_expired_deletes=True)


def test_rocketmq_store_drops_expired_deletes(tmp_path: Path) -> None:
    queue = ModelQueue(log_bytes=3680, index_bytes=368)
    first = message(0, "k", b"", 1000), message(1, "l", b"x", 1000)
    queue.pairs = [
        ModelPair(0, first, is_closed=True),
        ModelPair(3680, (message(9, "m", b"y", 1000),)),
    ]
    write_store(tmp_path, [queue])
    config = {"delete.retention.ms": "5000"}

    def at(now_ms: int, **asked: bool) -> PartitionReport:
        (found,) = compact(tmp_path, config, now_ms, **asked).partitions
        return found

    assert at(2000).status is Status.UNCHANGED
    assert at(9000).status is Status.SKIPPED
    assert at(5999, drop_expired_deletes=True).status is Status.UNCHANGED
    found = at(9000, drop_expired_deletes=True)
    assert (found.status, found.tombstones_dropped) == (Status.CLEANED, 1)
    left = [row["queue_offset"] for row in lastwrite.dump(str(tmp_path), compacted=True)]
    assert left == [1, 9]
