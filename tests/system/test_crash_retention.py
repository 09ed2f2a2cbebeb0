"""Tests of a process killed before every operation of retention.

The log loads, and the next run completes retention. A model of Kafka's loader judges the log here,
and Kafka's own loader in ``tests/conformance/test_retention.py``.
"""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import lastwrite
from lastwrite.kafka.format.batch import encode_batch
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.kafka.store import log_dir
from lastwrite.reports.compaction import Status
from lastwrite.spark.inline import INLINE
from lastwrite.storage import files
from lastwrite.storage.files import FaultPoints
from tests.support.kafka.crashing import contents, fail_at, load_like_kafka, offsets_seen, run_until
from tests.support.kafka.expiring import EXPIRING, NOW_MS, Expiring, retain, write_expiring
from tests.support.kafka.logs import (
    NAME,
    SCRATCH,
    bases,
    headers_of,
    read_checkpoint,
    write_segment,
)

pytestmark = pytest.mark.skipif(
    not hasattr(__import__("os"), "fork"), reason="kills a child that was forked"
)

IDS = {"ids": lambda layout: layout.name}


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        yield Path(folder)


def fresh(place: Path, name: str) -> Path:
    root = place / name
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(place / "old", root)
    return root / NAME


def operations(place: Path, layout: Expiring) -> int:
    folder = fresh(place, "counted")
    files.faults = FaultPoints(1 << 30)
    try:
        retain(folder, layout)
        return files.faults.passed
    finally:
        files.faults = FaultPoints()


def bytes_of(root: Path) -> dict[str, bytes]:
    return {name: content for name, (content, _) in contents(root).items()}


def readable(folder: Path) -> list[int]:
    """The offsets that our listing of the partition makes readable, from the log start."""
    start = log_dir.read_partition(str(folder)).log_start
    return [offset for offset in offsets_seen(folder) if offset >= start]


@pytest.mark.parametrize("layout", EXPIRING, **IDS)
def test_undisturbed_run_leaves_exactly_the_unexpired_segments(
    place: Path, layout: Expiring
) -> None:
    folder = write_expiring(place / "root", layout)
    untouched = {base: (folder / f"{base:020d}.log").stat() for base in layout.segments}
    retain(folder, layout)
    log = log_dir.read_partition(str(folder))
    assert not log.problems, log.problems
    assert (log.log_start, log.end_offset, bases(folder)) == (
        layout.new_start,
        layout.end,
        layout.new_bases,
    )
    for base in set(layout.new_bases) & set(layout.segments):
        now = (folder / f"{base:020d}.log").stat()
        assert (now.st_ino, now.st_mtime_ns) == (
            untouched[base].st_ino,
            untouched[base].st_mtime_ns,
        )
    numbered = {path.name for path in folder.iterdir() if path.name[0].isdigit()}
    assert {name[:20] for name in numbered} <= {
        f"{base:020d}" for base in [*layout.new_bases, *layout.snapshots]
    }
    assert not [
        name
        for name in numbered
        if not name.endswith((".log", ".index", ".timeindex", ".snapshot"))
    ]
    kept = [base for base in layout.snapshots if base >= layout.new_bases[0]]
    assert sorted(int(name[:20]) for name in numbered if name.endswith(".snapshot")) == kept
    assert (folder / "leader-epoch-checkpoint").read_text() == layout.new_epochs
    # The checkpoint has an entry only if the log start is not the base offset of the first segment.
    # The entry of another partition is kept.
    own = {} if layout.new_start == layout.new_bases[0] else {NAME: layout.new_start}
    assert read_checkpoint(folder.parent, "log-start-offset-checkpoint") == {"u-3": 1, **own}
    before = contents(folder.parent)
    retain(folder, layout)
    assert contents(folder.parent) == before


@pytest.mark.parametrize("layout", EXPIRING, **IDS)
def test_kill_at_any_operation_leaves_a_log_that_loads(place: Path, layout: Expiring) -> None:
    write_expiring(place / "old", layout)
    folder = fresh(place, "new")
    retain(folder, layout)
    new = bytes_of(place / "new")
    started = []
    for point in range(1, operations(place, layout) + 1):
        folder = fresh(place, "killed")
        assert run_until(point, lambda folder=folder: retain(folder, layout)), point
        shutil.copytree(folder, place / "loaded")
        loaded = load_like_kafka(place / "loaded")
        shutil.rmtree(place / "loaded")
        recovered = place / "recovered"
        shutil.copytree(folder.parent, recovered)
        log_dir.recover(str(recovered / NAME))
        start = log_dir.read_partition(str(recovered / NAME)).log_start
        assert start in (layout.old_start, layout.new_start), point
        expected = [offset for offset in layout.offsets if offset >= start]
        assert readable(recovered / NAME) == expected, point
        assert [offset for offset in loaded if offset >= start] == expected, point
        assert log_dir.read_partition(str(recovered / NAME)).end_offset == layout.end, point
        shutil.rmtree(recovered)
        started.append(start == layout.new_start)
        retain(folder, layout)
        assert bytes_of(folder.parent) == new, point
    assert started == sorted(started), "once the log starts later it never starts earlier again"


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EACCES], ids=errno.errorcode.get)
@pytest.mark.parametrize("layout", EXPIRING[1:4:2], **IDS)
def test_failed_operation_names_its_file_and_the_next_run_continues(
    place: Path, layout: Expiring, error: int
) -> None:
    write_expiring(place / "old", layout)
    folder = fresh(place, "new")
    retain(folder, layout)
    new = bytes_of(place / "new")
    point = 1
    while True:
        folder = fresh(place, "failed")
        raised = fail_at(point, error, lambda folder=folder: retain(folder, layout), once=False)
        if raised is None:
            break
        assert raised.path is not None and raised.remedy is not None, point
        retain(folder, layout)
        assert bytes_of(folder.parent) == new, point
        point += 1
    assert point > 10


# ---------------------------------------------------------------------- a round, then retention


ROUND = {
    "cleanup.policy": "compact,delete",
    "retention.ms": "-1",
    "retention.bytes": "900",
    "min.cleanable.dirty.ratio": "0",
    "segment.bytes": "1000",
}


def write_mixed(root: Path) -> Path:
    """Write four closed segments and an active one.

    The closed segments share five keys, and each has one key of its own.
    """
    for base in range(0, 30, 6):
        keys = [b"a", b"b", b"c", b"d", b"e", b"only-%d" % base]
        batches = [
            encode_batch(
                [Record(base + n, NOW_MS - 1000 + base, key, b"v" * 60)], base_offset=base + n
            )
            for n, key in enumerate(keys)
        ]
        write_segment(root / NAME, base, batches, mtime_ms=NOW_MS)
    (root / NAME / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    return root / NAME


def clean(folder: Path) -> None:
    report = lastwrite.compact(str(folder), config=ROUND, now_ms=NOW_MS, spark=INLINE)
    assert report.exit_status == 0, report.partitions[0].reason


def test_kill_during_a_round_with_retention_gives_the_same_log(
    place: Path,
) -> None:
    write_mixed(place / "old")
    old = [
        h.base_offset
        for base in range(0, 30, 6)
        for _, h in headers_of(place / "old" / NAME / f"{base:020d}.log")
    ]
    folder = fresh(place, "new")
    files.faults = FaultPoints(1 << 30)
    try:
        report = lastwrite.compact(str(folder), config=ROUND, now_ms=NOW_MS, spark=INLINE)
        count = files.faults.passed
    finally:
        files.faults = FaultPoints()
    [told] = report.partitions
    assert told.status is Status.CLEANED and told.segments_deleted >= 1 and told.bytes_written > 0
    new = bytes_of(place / "new")
    kept = offsets_seen(folder)
    for point in range(1, count + 1):
        folder = fresh(place, "killed")
        assert run_until(point, lambda folder=folder: clean(folder)), point
        shutil.copytree(folder, place / "loaded")
        loaded = load_like_kafka(place / "loaded")
        shutil.rmtree(place / "loaded")
        assert set(kept) <= set(loaded) <= set(old), point
        clean(folder)
        assert offsets_seen(folder) == kept, point
        left = bytes_of(folder.parent)
        assert left == new, (point, left.keys() ^ new.keys())
