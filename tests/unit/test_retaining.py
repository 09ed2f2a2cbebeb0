"""Tests of retention as part of a compaction: after the round, in place, in a copy and in a plan."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import lastwrite
from lastwrite.cli.output import Output
from lastwrite.cli.plan import show_compaction
from lastwrite.kafka.format.batch import encode_batch
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.reports.compaction import PartitionReport, Status
from lastwrite.spark.inline import INLINE
from tests.support.kafka.crashing import contents
from tests.support.kafka.expiring import EXPIRING, NOW_MS, Expiring, write_expiring
from tests.support.kafka.logs import NAME, bases, headers_of, write_checkpoint, write_segment
from tests.support.kafka.metadata import write_metadata

BOTH = {"cleanup.policy": "compact,delete", "retention.ms": "-1", "min.cleanable.dirty.ratio": "0"}
AT = 1_700_000_000_000


def only(report: Any) -> PartitionReport:
    [partition] = report.partitions
    assert isinstance(partition, PartitionReport)
    return partition


def plan(
    root: Path, config: dict[str, str], now_ms: int = NOW_MS, topic: str = "t"
) -> PartitionReport:
    return only(lastwrite.plan(str(root), topic=topic, config=config, now_ms=now_ms, spark=INLINE))


def compact(
    root: Path, config: dict[str, str], now_ms: int = NOW_MS, to: Path | None = None
) -> PartitionReport:
    target = None if to is None else str(to)
    return only(
        lastwrite.compact(
            str(root), to=target, topic="t", config=config, now_ms=now_ms, spark=INLINE
        )
    )


def figures(report: PartitionReport) -> dict[str, object]:
    changing = ("seconds", "stage_seconds", "bytes_read")
    return {name: value for name, value in report.to_dict().items() if name not in changing}


def write(root: Path, segments: dict[int, list[tuple[str, int]]]) -> Path:
    """Write segments of one-record batches, each a key and a time after ``AT``.

    The last segment is active. In each other segment the last batch extends to the next segment.
    """
    ends = [*segments, None][1:]
    for (base, records), end in zip(segments.items(), ends, strict=True):
        batches = [
            encode_batch(
                [Record(base + n, AT + time, key.encode(), b"v" * 100)],
                base_offset=base + n,
                last_offset=end - 1 if end is not None and n == len(records) - 1 else None,
            )
            for n, (key, time) in enumerate(records)
        ]
        write_segment(root / NAME, base, batches, mtime_ms=AT)
    return root


@pytest.mark.parametrize("layout", EXPIRING, ids=lambda layout: layout.name)
def test_plan_compact_and_copy_report_and_do_the_same(tmp_path: Path, layout: Expiring) -> None:
    root = tmp_path / "root"
    write_expiring(root, layout)
    config = {**layout.config, "min.cleanable.dirty.ratio": "0"}
    before = contents(root)
    planned = plan(root, config)
    assert contents(root) == before
    copied = compact(root, config, to=tmp_path / "to")
    assert {name: file for name, file in contents(root).items() if name != ".lock"} == before
    done = compact(root, config)
    assert figures(planned) == figures(done) == figures(copied)
    assert done.status is Status.CLEANED
    gone = [base for base in layout.segments if base not in layout.new_bases]
    assert [entry.base_offset for entry in done.retention] == gone
    assert (done.segments_deleted, done.segments_after) == (len(gone), len(layout.new_bases))
    assert (done.log_start_before, done.log_start_after) == (layout.old_start, layout.new_start)
    assert done.bytes_after == sum(file.stat().st_size for file in (root / NAME).glob("*.log"))
    assert bases(root / NAME) == bases(tmp_path / "to" / NAME) == layout.new_bases
    for name in ("leader-epoch-checkpoint", *(f"{base:020d}.log" for base in layout.new_bases)):
        assert (root / NAME / name).read_bytes() == (tmp_path / "to" / NAME / name).read_bytes()
    starts = "log-start-offset-checkpoint"
    if layout.new_start != layout.new_bases[0]:
        assert (tmp_path / "to" / starts).read_text() == f"0\n1\nt 0 {layout.new_start}\n"
    else:
        assert not (tmp_path / "to" / starts).exists()
    again = compact(root, config)
    assert (again.segments_deleted, again.retention) == (0, [])
    assert again.status is not Status.CLEANED


def test_retention_uses_the_sizes_after_the_round(tmp_path: Path) -> None:
    """Of seven records compaction removes the three in segment 10. The log is then within its size
    limit.
    """
    root = write(
        tmp_path,
        {
            0: [("only", 0)],
            10: [("a", 0), ("b", 0), ("c", 0)],
            20: [("a", 0), ("b", 0), ("c", 0)],
            30: [],
        },
    )
    left = plan(root, BOTH).bytes_after
    assert left == sum((root / NAME / f"{base:020d}.log").stat().st_size for base in (0, 20))
    config = {**BOTH, "retention.bytes": str(left)}
    assert plan(root, {**config, "cleanup.policy": "delete"}).segments_deleted == 1
    assert plan(root, config).segments_deleted == 0
    config["retention.bytes"] = "1"
    planned = plan(root, config)
    done = compact(root, config)
    assert figures(planned) == figures(done)
    assert [entry.base_offset for entry in done.retention][:1] == [0]
    assert (done.records_before, done.records_after) == (7, 3)
    assert bases(root / NAME) == [20, 30]
    rest = compact(root, {**BOTH, "retention.bytes": "0"})
    assert rest.bytes_after == 0 and bases(root / NAME) == [30]


def test_retention_uses_the_age_of_the_surviving_records(tmp_path: Path) -> None:
    """The youngest record of segment 0 is superseded by segment 10. Its other records are old."""
    segments = {0: [("a", 10), ("b", 900)], 10: [("b", 901)], 20: [("c", 902)]}
    config = {**BOTH, "retention.ms": "500", "segment.bytes": "200"}
    root = write(tmp_path, segments)
    assert (
        plan(root, {**config, "cleanup.policy": "delete"}, now_ms=AT + 1000).segments_deleted == 0
    )
    planned = plan(root, config, now_ms=AT + 1000)
    done = compact(root, config, now_ms=AT + 1000)
    assert figures(planned) == figures(done)
    assert [entry.base_offset for entry in done.retention] == [0]
    assert (
        done.retention[0].reason
        == f"its largest timestamp, time {AT + 10}, is 990 ms old; retention.ms is 500"
    )
    assert done.records_after == 2
    assert [
        header.base_offset
        for base in bases(root / NAME)
        for _, header in headers_of(root / NAME / f"{base:020d}.log")
    ] == [10, 20]


def test_segments_expire_without_a_due_round(tmp_path: Path) -> None:
    root = write(tmp_path, {0: [("a", 0)], 10: [("b", 0)], 20: [("c", 0)]})
    write_checkpoint(root, "cleaner-offset-checkpoint", {NAME: 20})
    write_checkpoint(root, "log-start-offset-checkpoint", {NAME: 10})
    done = compact(root, {})
    assert done.status is Status.CLEANED
    assert done.reason is not None and done.reason.startswith("compaction is not due: ")
    assert [entry.rule for entry in done.retention] == ["log start"]
    assert (done.records_before, done.records_after) == (None, None)
    skipped = compact(root, {})
    assert skipped.status is Status.SKIPPED and skipped.segments_deleted == 0


@pytest.mark.parametrize("policy", ["delete", ""])
def test_policy_without_compact_has_no_round(tmp_path: Path, policy: str) -> None:
    root = write(tmp_path, {0: [("a", 0)], 10: [("a", 0)], 20: [("a", 0)]})
    before = contents(root / NAME)
    config = {"cleanup.policy": policy, "retention.ms": "1000", "retention.bytes": "-1"}
    unchanged = compact(root, config, now_ms=AT + 1000)
    assert unchanged.status is Status.UNCHANGED
    assert (
        unchanged.reason is not None
        and f"cleanup.policy is {policy or 'empty'}" in unchanged.reason
    )
    assert contents(root / NAME) == before
    old = compact(root, config, now_ms=AT + 1001)
    assert old.segments_deleted == (3 if policy else 0)


def test_folder_with_unknown_settings_is_only_compacted(tmp_path: Path) -> None:
    root = write(tmp_path, {0: [("a", 0)], 10: [("b", 0)], 20: [("c", 0)]})
    assert (
        plan(
            root, {"retention.ms": "0", "retention.bytes": "0"}, now_ms=AT + 10**9
        ).segments_deleted
        == 0
    )


def test_damaged_partition_keeps_expired_segments(tmp_path: Path) -> None:
    root = write(tmp_path, {0: [("a", 0)], 10: [("b", 0)], 20: [("c", 0)]})
    write_checkpoint(root, "log-start-offset-checkpoint", {NAME: 10})
    file = root / NAME / f"{10:020d}.log"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    before = contents(root / NAME)
    found = compact(root, BOTH, now_ms=AT + 10**9)
    assert found.status is Status.DAMAGED and found.segments_deleted == 0
    assert contents(root / NAME) == before


def test_unknown_retention_time_deletes_nothing(tmp_path: Path) -> None:
    """The metadata log has the topic, but not the settings in its brokers' files."""
    root = write(tmp_path, {0: [("a", 0)], 10: [("b", 0)], 20: []})
    year_later = AT + 366 * 86_400_000
    own = {"cleanup.policy": "delete"}
    write_metadata(root, {"t": own})
    silent = plan(root, {}, now_ms=year_later)
    assert silent.status is Status.UNCHANGED and silent.reason is not None
    assert "retention.ms is set neither by the topic nor by --config" in silent.reason
    for stated in ({"log.retention.hours": "168"}, {"retention.ms": "1000"}, {"log.dirs": "/data"}):
        assert plan(root, stated, now_ms=year_later).segments_deleted == 2, stated
    assert plan(root, {"cleanup.policy": "delete"}, now_ms=year_later).segments_deleted == 0, (
        "of unknown topics"
    )
    own["retention.bytes"] = "0"  # by default there is no size limit
    write_metadata(root, {"t": own})
    assert plan(root, {}, now_ms=year_later).segments_deleted == 2
    own.update({"retention.bytes": "-1", "retention.ms": "1000"})
    write_metadata(root, {"t": own})
    assert plan(root, {}, now_ms=year_later).segments_deleted == 2
    assert plan(root, {"retention.ms": "-1"}, now_ms=year_later).segments_deleted == 2, (
        "the topic says otherwise"
    )
    write_metadata(root, {"t": {**own, "retention.ms": "-1"}})
    assert plan(root, {"retention.ms": "1"}, now_ms=year_later).segments_deleted == 0, (
        "the topic says otherwise"
    )


def test_unknown_policy_deletes_nothing_by_size_or_age(tmp_path: Path) -> None:
    """The metadata log has the topic, but not whether its brokers' default policy is
    ``compact``.
    """
    root = write(tmp_path, {0: [("a", 0)], 10: [("b", 0)], 20: []})
    write_metadata(root, {"t": {"retention.ms": "1000", "retention.bytes": "0"}})
    silent = plan(root, {}, now_ms=AT + 10_000)
    assert (
        silent.status is Status.UNCHANGED
        and silent.segments_deleted == 0
        and silent.reason is not None
    )
    assert "cleanup.policy is set neither by the topic nor by --config" in silent.reason
    for stated in ({"log.cleanup.policy": "delete"}, {"log.dirs": "/data"}):
        assert plan(root, stated, now_ms=AT + 10_000).segments_deleted == 2, stated
    compacted = plan(root, {"log.cleanup.policy": "compact"}, now_ms=AT + 10_000)
    assert (compacted.reason, compacted.segments_deleted) == ("compaction removes no record", 0)
    write_checkpoint(root, "log-start-offset-checkpoint", {NAME: 10})
    assert [gone.rule for gone in plan(root, {}, now_ms=AT + 10_000).retention] == ["log start"]


def test_retention_time_of_a_broker_does_not_apply_to_an_unknown_topic(tmp_path: Path) -> None:
    """The topic may have its own retention time."""
    root = write(tmp_path, {0: [("a", 0)], 10: [("b", 0)], 20: []})
    policy = {"cleanup.policy": "delete"}
    for stated in (
        {},
        {"log.retention.ms": "1"},
        {"log.retention.bytes": "0"},
        {"log.dirs": "/data"},
    ):
        assert plan(root, {**policy, **stated}, now_ms=AT + 10**12).segments_deleted == 0, stated
    assert plan(root, {**policy, "retention.ms": "1"}, now_ms=AT + 10**12).segments_deleted == 2


def test_stale_checkpoint_entry_at_the_target_is_removed(tmp_path: Path) -> None:
    root = write(tmp_path / "root", {0: [("a", 0)], 10: [("b", 0)]})
    (tmp_path / "to").mkdir()
    write_checkpoint(tmp_path / "to", "log-start-offset-checkpoint", {NAME: 7, "u-0": 3})
    compact(root, {}, to=tmp_path / "to")
    assert (tmp_path / "to" / "log-start-offset-checkpoint").read_text() == "0\n1\nu 0 3\n"
    shutil.rmtree(tmp_path / "to")


def test_text_output_lists_expired_segments_with_reasons(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = write(tmp_path, {10 * n: [("a", 0)] for n in range(13)} | {130: []})
    config = {"cleanup.policy": "delete", "retention.bytes": "0"}
    for dry, goes, go in (
        (True, "would be deleted", "would be deleted"),
        (False, "was deleted", "were deleted"),
    ):
        act = lastwrite.plan if dry else lastwrite.compact
        output = Output()
        show_compaction(output, act(str(root), config=config, now_ms=NOW_MS, spark=INLINE))
        output.close()
        lines = capsys.readouterr().out.splitlines()
        assert f"13 expired segments of 2.2 kB {go}" in lines
        [first] = [line for line in lines if line.startswith("t-0: segment 0 of 171 B")]
        size = 13 * 171
        assert first.endswith(
            f"{goes} by retention.bytes: the log would shrink from {size} to {size - 171} bytes "
            "without it; retention.bytes is 0"
        )
        assert f"t-0: 3 later segments of 513 B {go} too; see --json" in lines
        assert "t-0: the log start offset changes from 0 to 130" in lines
