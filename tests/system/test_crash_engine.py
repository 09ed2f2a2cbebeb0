"""Tests of a whole compaction killed at every file operation: the folder has the old log or the new
one.

The next run leaves the bytes of an undisturbed run. The child is forked with its kernels compiled,
so that a kill costs milliseconds. ``test_crash_commit`` tests the commit alone, over more layouts
and with Kafka's own loader.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import lastwrite
from lastwrite.encoding.compression import Codec
from lastwrite.kafka.format.batch import encode_batch
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.spark.inline import INLINE
from lastwrite.storage import files
from lastwrite.storage.files import FaultPoints
from tests.support.kafka.logs import read_segments, write_segment
from tests.support.kafka.model import records_of
from tests.support.sample import some

NOW = 1_700_000_100_000
# name: settings and whether the active segment is compacted
LAYOUTS = {
    "each segment alone": ({"segment.bytes": 100}, False),
    "all merged": ({}, False),
    "some merged": ({"segment.bytes": 5000}, False),
    "the active segment too": ({"segment.bytes": 3000}, True),
}


def make_log(root: Path) -> None:
    """Write six closed segments and an active one.

    Two of the closed segments lose no record, and one loses all of them.
    """
    rng = random.Random(3)
    offset = 0
    for segment in range(6):
        base, batches = offset, []
        for _ in range(6):
            records = []
            for _ in range(5):
                key = (
                    b"only-%d" % offset
                    if segment in (1, 4)
                    else b"k%d" % rng.randint(0, 12 if segment != 2 else 3)
                )
                value = None if segment == 5 and rng.random() < 0.3 else b"v" * rng.randint(0, 40)
                records.append(Record(offset, NOW - 100, key, value))
                offset += 1
            batches.append(encode_batch(records, codec=rng.choice([Codec.NONE, Codec.LZ4])))
        write_segment(root / "t-0", base, batches, interval_bytes=200, mtime_ms=NOW)
    write_segment(
        root / "t-0", offset, [encode_batch([Record(offset, NOW, b"k1", b"last")])], mtime_ms=NOW
    )


def folder_files(root: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(file.relative_to(root)): (
            file.read_bytes(),
            file.stat().st_mtime_ns if file.suffix == ".log" else 0,
        )
        for file in sorted(root.rglob("*"))
        if file.is_file() and file.name != ".lock"
    }


def compact(root: Path, config: dict[str, object], include_active: bool) -> None:
    report = lastwrite.compact(
        str(root),
        config={"cleanup.policy": "compact", "index.interval.bytes": 200, **config},
        now_ms=NOW,
        include_active=include_active,
        spark=INLINE,
    )
    assert report.exit_status == 0, report.partitions[0].reason


def killed_at(point: int, root: Path, config: dict[str, object], include_active: bool) -> bool:
    """Compact in a child process that kills itself before operation ``point``.

    Returns False if the round ended before that operation.
    """
    child = os.fork()
    if child == 0:
        files.faults = FaultPoints(point)
        try:
            compact(root, config, include_active)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def records(root: Path, partition: int = 0) -> list[object]:
    """The records that our own reader finds in a recovered copy of the partition."""
    view = root.with_name("view")
    shutil.rmtree(view, ignore_errors=True)
    shutil.copytree(root, view)
    from lastwrite.kafka.store import log_dir

    log_dir.recover(str(view / f"t-{partition}"))
    return list(records_of(read_segments(view / f"t-{partition}")))


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory if there is one. Disk speed does not matter to these tests."""
    shm = Path("/dev/shm")
    if not os.access(shm, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="lastwrite-crash-", dir=shm) as folder:
        yield Path(folder)


@pytest.mark.parametrize("name", some(LAYOUTS, 1))
def test_kill_at_any_operation_leaves_the_old_log_or_the_new(place: Path, name: str) -> None:
    tmp_path = place
    config, include_active = LAYOUTS[name]
    origin, done = tmp_path / "origin", tmp_path / "done"
    make_log(origin)
    shutil.copytree(origin, done)
    compact(done, config, include_active)
    expected, old, new = folder_files(done), records(origin), records(done)
    assert len(new) < len(old)
    point, sides = 0, set()
    while True:
        point += 1
        root = tmp_path / "run"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(origin, root)
        if not killed_at(point, root, config, include_active):
            break
        found = records(root)
        assert found in (old, new), f"point {point}: neither the old log nor the new one"
        sides.add("old" if found == old else "new")
        compact(root, config, include_active)
        left = folder_files(root)
        assert left.keys() == expected.keys(), f"point {point}"
        assert left == expected, f"point {point}"
    assert sides == {"old", "new"} and point > 30


def test_kill_during_a_wave_leaves_each_partition_old_or_new(
    place: Path,
) -> None:
    """The partitions share one write of their root's cleaner checkpoint."""
    origin, done, root = place / "origin", place / "done", place / "run"
    for partition in range(3):
        for base in (0, 10):
            batches = [
                encode_batch([Record(base + n, NOW - 100, b"k%d" % (n % (partition + 2)), b"v")])
                for n in range(10)
            ]
            write_segment(origin / f"t-{partition}", base, batches, mtime_ms=NOW)
    shutil.copytree(origin, done)
    compact(done, {}, False)
    expected = folder_files(done)
    old, new = ([records(side, n) for n in range(3)] for side in (origin, done))
    point, sides, recorded = 0, set(), 0
    while True:
        point += 1
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(origin, root)
        if not killed_at(point, root, {}, False):
            break
        checkpoint = root / "cleaner-offset-checkpoint"
        is_recorded = checkpoint.exists() and len(checkpoint.read_text().splitlines()) == 5
        recorded += is_recorded
        found = [records(root, n) for n in range(3)]
        for n in range(3):
            assert found[n] == new[n] or (found[n] == old[n] and not is_recorded), (
                f"point {point}, partition {n}"
            )
        sides.add(tuple(found[n] == new[n] for n in range(3)))
        compact(root, {}, False)
        assert folder_files(root) == expected, f"point {point}"
    assert sides == {
        (False, False, False),
        (True, False, False),
        (True, True, False),
        (True, True, True),
    }
    assert recorded > 3
