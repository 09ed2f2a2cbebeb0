"""Tests of a process killed before every file operation of a commit: the log is old or new.

A model of Kafka's loader judges the log here, and Kafka's own loader in ``tests/conformance``. The
next run must leave the bytes of an undisturbed run. Recovery is also killed at each of its
operations.
"""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lastwrite.errors import LogError
from lastwrite.kafka.store import log_dir
from lastwrite.storage import files
from lastwrite.storage.files import FaultPoints
from tests.support.kafka.crashing import (
    LAYOUTS,
    Layout,
    compact,
    compact_to,
    contents,
    fail_at,
    load_like_kafka,
    offsets_seen,
    run_until,
    transaction_indexes_at,
    transaction_indexes_seen,
    write_layout,
)
from tests.support.kafka.logs import SCRATCH, bases, check_indexes, read_checkpoint
from tests.support.sample import some

pytestmark = pytest.mark.skipif(
    not hasattr(__import__("os"), "fork"), reason="kills a child that was forked"
)
LEAST_KILLS = 200
LONG = pytest.mark.long


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder in memory if there is one, because the tests sync thousands of times."""
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        yield Path(folder)


def operations(place: Path, layout: Layout) -> int:
    """The number of file operations of an undisturbed round."""
    folder = write_layout(place / "counted", layout)
    files.faults = FaultPoints(1 << 30)
    try:
        compact(folder, layout)
        return files.faults.passed
    finally:
        files.faults = FaultPoints()


def fresh(place: Path, name: str) -> Path:
    """A new copy of the old log; returns the partition's folder."""
    root = place / name
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(place / "old", root)
    return root / "t-0"


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_undisturbed_commit_leaves_exactly_the_new_log(place: Path, layout: Layout) -> None:
    folder = write_layout(place / "root", layout)
    untouched = {base: (folder / f"{base:020d}.log").stat().st_ino for base in layout.segments}
    compact(folder, layout)
    assert offsets_seen(folder) == layout.new_offsets
    replaced = layout.rewritten
    kept = [base for base in layout.segments if base not in replaced]
    assert bases(folder) == layout.new_bases
    assert (
        transaction_indexes_at(folder)
        == transaction_indexes_seen(folder)
        == layout.transaction_indexes()[1]
    )
    for base in bases(folder):
        check_indexes(folder, base)
    assert all((folder / f"{base:020d}.log").stat().st_ino == untouched[base] for base in kept)
    for group in layout.groups:
        time_ms = 1_700_000_000_000 + 1000 * list(layout.segments).index(group[-1])
        for base, _ in layout.outputs(group):
            for path in folder.glob(f"{base:020d}.*x"):
                assert path.stat().st_mtime_ns == time_ms * 1_000_000
            assert (folder / f"{base:020d}.log").stat().st_mtime_ns == time_ms * 1_000_000
    names = {path.name for path in folder.iterdir()}
    assert not [name for name in names if name.endswith((".cleaned", ".swap", ".deleted", ".tmp"))]
    vanished = replaced - set(layout.new_bases)
    assert {int(name[:20]) for name in names if name.endswith(".snapshot")} == set(
        layout.snapshots
    ) - vanished
    assert read_checkpoint(folder.parent, "cleaner-offset-checkpoint") == {
        "u-3": 1,
        "t-0": layout.first_dirty,
    }


@pytest.mark.parametrize("layout", some(LAYOUTS, 3))
def test_kill_at_any_operation_leaves_the_old_log_or_the_new(place: Path, layout: Layout) -> None:
    write_layout(place / "old", layout)
    old = contents(place / "old")
    folder = fresh(place, "new")
    compact(folder, layout)
    new = contents(place / "new")
    count = operations(place, layout)
    decided = []
    for point in range(1, count + 1):
        folder = fresh(place, "killed")
        assert run_until(point, lambda folder=folder: compact(folder, layout)), point
        seen = offsets_seen(folder)
        assert seen in (layout.old_offsets, layout.new_offsets), point
        decided.append(seen == layout.new_offsets)
        indexed = transaction_indexes_seen(folder)
        assert indexed == layout.transaction_indexes()[decided[-1]], point
        shutil.copytree(folder, place / "loaded")
        assert load_like_kafka(place / "loaded") == seen, point
        assert transaction_indexes_at(place / "loaded") == indexed, point
        shutil.rmtree(place / "loaded")
        # Reading the folder changes nothing.
        recovered = place / "recovered"
        shutil.copytree(folder.parent, recovered)
        log_dir.recover(str(recovered / "t-0"))
        assert offsets_seen(recovered / "t-0") == seen, point
        left = contents(recovered)
        if decided[-1]:
            assert left == new, point
        else:
            assert left == old, point
        shutil.rmtree(recovered)
        compact(folder, layout)
        assert contents(folder.parent) == new, point
    assert decided == sorted(decided), "once the new log counts, the old one never does again"
    assert not decided[0] and decided[-1]


@pytest.mark.parametrize("layout", some(LAYOUTS[2::3], 1))
def test_kill_during_the_recovery_loses_nothing(place: Path, layout: Layout) -> None:
    write_layout(place / "old", layout)
    folder = fresh(place, "new")
    compact(folder, layout)
    new = contents(place / "new")
    for point in range(1, operations(place, layout) + 1, 5):
        folder = fresh(place, "killed")
        run_until(point, lambda folder=folder: compact(folder, layout))
        seen = offsets_seen(folder)
        again, is_killed = 1, True
        while is_killed:
            root = place / "again"
            shutil.copytree(folder.parent, root)
            is_killed = run_until(again, lambda root=root: log_dir.recover(str(root / "t-0")))
            assert offsets_seen(root / "t-0") == seen, (point, again)
            shutil.copytree(root / "t-0", place / "loaded")
            assert load_like_kafka(place / "loaded") == seen, (point, again)
            compact(root / "t-0", layout)
            assert contents(root) == new, (point, again)
            shutil.rmtree(place / "loaded")
            shutil.rmtree(root)
            again += 1


def test_commit_has_many_operations_to_be_killed_at(place: Path) -> None:
    assert (
        sum(operations(place / str(n), layout) for n, layout in enumerate(LAYOUTS)) >= LEAST_KILLS
    )


@pytest.mark.parametrize("once", [False, True], ids=["for good", "once"])
@pytest.mark.parametrize(
    "error",
    [errno.ENOSPC, errno.EACCES, *(pytest.param(n, marks=LONG) for n in (errno.EIO, errno.EROFS))],
    ids=errno.errorcode.get,
)
@pytest.mark.parametrize("layout", [LAYOUTS[3], LAYOUTS[5]], ids=lambda layout: layout.name)
def test_failed_operation_leaves_the_old_log_or_reports_the_new_one_as_safe(
    place: Path, layout: Layout, error: int, once: bool
) -> None:
    write_layout(place / "old", layout)
    old = contents(place / "old")
    folder = fresh(place, "new")
    compact(folder, layout)
    new = contents(place / "new")
    point, raised = 1, LogError("")
    while True:
        folder = fresh(place, "failed")
        raised = fail_at(point, error, lambda folder=folder: compact(folder, layout), once=once)
        if raised is None:
            break
        assert raised.path is not None and raised.remedy is not None, point
        seen = offsets_seen(folder)
        if seen == layout.new_offsets:
            assert "run the command again to finish" in raised.remedy, point
        else:
            assert seen == layout.old_offsets, point
            log_dir.recover(str(folder))
            assert contents(folder.parent) == old, point
        shutil.copytree(folder, place / "loaded")
        assert load_like_kafka(place / "loaded") == seen, point
        shutil.rmtree(place / "loaded")
        compact(folder, layout)
        assert contents(folder.parent) == new, point
        point += 1
    assert point > 20


@pytest.mark.parametrize("layout", LAYOUTS[2:6:3], ids=lambda layout: layout.name)
def test_killed_copy_is_complete_or_absent(place: Path, layout: Layout) -> None:
    folder = write_layout(place / "root", layout)
    old = contents(folder.parent)
    compact_to(folder, place / "whole" / "t-0", layout)
    whole = contents(place / "whole")
    point, is_killed = 1, True
    while is_killed:
        target = place / "to" / "t-0"
        is_killed = run_until(point, lambda target=target: compact_to(folder, target, layout))
        assert contents(folder.parent) == old
        if target.exists():
            assert contents(target) == contents(place / "whole" / "t-0")
        else:
            compact_to(folder, target, layout)
        assert contents(place / "to") == whole, point
        shutil.rmtree(place / "to")
        point += 1
    assert point > 20
