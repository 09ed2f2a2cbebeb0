"""Tests of ``lastwrite.compact`` on a disk that fails from one operation on.

The partition is reported as failed with the file's name, and the log is intact. The next run leaves
the bytes of an undisturbed run. ``test_crash_engine`` tests kills.
"""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import lastwrite
from lastwrite.encoding.compression import Codec
from lastwrite.kafka.format.batch import encode_batch
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.kafka.store import log_dir
from lastwrite.model.log import ProblemKind
from lastwrite.spark.inline import INLINE
from lastwrite.storage import files
from lastwrite.storage.files import FaultPoints
from tests.support.kafka.crashing import contents
from tests.support.kafka.logs import SCRATCH, headers_of, write_checkpoint, write_segment

NOW_MS = 1_700_000_100_000
CONFIG = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": 0,
    "internal.segment.bytes": 6000,
    "index.interval.bytes": 500,
}


def write_log(root: Path) -> Path:
    """Write five closed segments and an active one.

    Most keys are written repeatedly, and some are deleted. Two segments have keys that are written
    only once.
    """
    folder = root / "t-0"
    for n in range(6):
        batches = []
        for m in range(8):
            first = 40 * n + 5 * m
            records = [
                Record(
                    offset,
                    NOW_MS - 1000 + offset,
                    b"only-%d" % offset if n in (1, 3) else b"key-%d" % (offset % 7),
                    None if offset % 11 == 0 else b"value-%d" % offset * 5,
                )
                for offset in range(first, first + 5)
            ]
            batches.append(encode_batch(records, base_offset=first, codec=Codec(m % 5)))
        write_segment(folder, 40 * n, batches, 500, NOW_MS - 5000 + n)
    write_checkpoint(root, "replication-offset-checkpoint", {"t-0": 240})
    return folder


def compact(root: Path) -> None:
    report = lastwrite.compact(str(root), config=CONFIG, now_ms=NOW_MS, spark=INLINE)
    assert not [p for p in report.partitions if p.status in ("damaged", "failed")], report.to_dict()


def seen(folder: Path) -> list[tuple[int, int, int]]:
    log = log_dir.read_partition(str(folder))
    assert all(problem.kind is ProblemKind.RECOVERED for problem in log.problems), log.problems
    return [
        (header.base_offset, header.crc, header.record_count)
        for segment in log.segments
        for _, header in headers_of(Path(segment.path))
    ]


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        yield Path(folder)


def without_lock(root: Path) -> dict[str, tuple[bytes, int]]:
    return {name: file for name, file in contents(root).items() if name != ".lock"}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO], ids=errno.errorcode.get)
def test_failed_operation_fails_the_partition_and_keeps_the_log_intact(
    place: Path, number: int
) -> None:
    write_log(place / "old")
    before = seen(place / "old" / "t-0")
    shutil.copytree(place / "old", place / "new")
    compact(place / "new")
    new, after = without_lock(place / "new"), seen(place / "new" / "t-0")
    point, has_failed = 1, True
    while has_failed:
        root = place / "failed"
        shutil.copytree(place / "old", root)
        files.faults = FaultPoints(point, number)
        try:
            report = lastwrite.compact(str(root), config=CONFIG, now_ms=NOW_MS, spark=INLINE)
        finally:
            files.faults = FaultPoints()
        has_failed = report.partitions[0].status == "failed"
        if has_failed:
            assert str(root) in (report.partitions[0].reason or "")
        assert seen(root / "t-0") in (before, after), point
        compact(root)
        assert without_lock(root) == new, point
        shutil.rmtree(root)
        point += 1
    assert point > 40
