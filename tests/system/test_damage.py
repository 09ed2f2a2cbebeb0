"""Tests of damage of every kind: ``inspect`` and ``verify`` report file and byte.

``compact`` leaves the damaged partition unchanged, compacts the others, and exits with 3.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import google_crc32c
import pytest

import lastwrite
from lastwrite.encoding.compression import Codec
from lastwrite.kafka.format.batch import encode_batch
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.reports.compaction import Status
from lastwrite.spark.inline import INLINE
from tests.support.files import contents
from tests.support.kafka.logs import write_segment

NOW = 1_700_000_000_000


def make_partition(folder: Path) -> None:
    """Three closed segments of 30 batches and an active one of five."""
    rng = random.Random(1)
    offset = 0
    for count in (30, 30, 30, 5):
        base, batches = offset, []
        for _ in range(count):
            batches.append(
                encode_batch(
                    [
                        Record(offset + n, NOW + offset, b"k%d" % rng.randint(0, 20), b"v" * 40)
                        for n in range(3)
                    ]
                )
            )
            offset += 3
        write_segment(folder, base, batches, interval_bytes=300, mtime_ms=NOW)


def closed(folder: Path) -> Path:
    return sorted(folder.glob("*.log"))[1]


def active(folder: Path) -> Path:
    return sorted(folder.glob("*.log"))[-1]


def torn_tail(folder: Path) -> Path:
    file = closed(folder)
    file.write_bytes(file.read_bytes()[:-7])
    return file


def torn_tail_of_the_active_segment(folder: Path) -> Path:
    file = active(folder)
    file.write_bytes(file.read_bytes()[:-7])
    return file


def patched(file: Path, at: int, value: bytes) -> Path:
    data = bytearray(file.read_bytes())
    data[at : at + len(value)] = value
    file.write_bytes(data)
    return file


def flipped_byte(folder: Path) -> Path:
    file = closed(folder)
    at = file.stat().st_size // 2
    return patched(file, at, bytes([file.read_bytes()[at] ^ 0x10]))


def flipped_byte_in_the_active_segment(folder: Path) -> Path:
    file = active(folder)
    return patched(file, 100, bytes([file.read_bytes()[100] ^ 0x10]))


def wrong_length(folder: Path) -> Path:
    return patched(closed(folder), 8, (13).to_bytes(4, "big"))


def length_beyond_the_file(folder: Path) -> Path:
    return patched(closed(folder), 8, (2**31 - 1).to_bytes(4, "big"))


def index_that_lies(folder: Path) -> Path:
    file = closed(folder).with_suffix(".index")
    position = int.from_bytes(file.read_bytes()[12:16], "big")
    return patched(file, 12, (position + 1).to_bytes(4, "big"))


def time_index_that_lies(folder: Path) -> Path:
    file = closed(folder).with_suffix(".timeindex")
    stamp = int.from_bytes(file.read_bytes()[12:20], "big")
    return patched(file, 12, (stamp - 1).to_bytes(8, "big"))


def index_of_an_odd_size(folder: Path) -> Path:
    file = closed(folder).with_suffix(".index")
    file.write_bytes(file.read_bytes() + b"\0\1\2")
    return file


def missing_index(folder: Path) -> Path:
    file = closed(folder).with_suffix(".index")
    file.unlink()
    return file


def missing_time_index(folder: Path) -> Path:
    file = closed(folder).with_suffix(".timeindex")
    file.unlink()
    return file


def foreign_file(folder: Path) -> Path:
    file = folder / "notes.txt"
    file.write_text("who put this here")
    return file


def offsets_that_fall(folder: Path) -> Path:
    return patched(closed(folder), 0, (5).to_bytes(8, "big"))


DAMAGES: list[Callable[[Path], Path]] = [
    torn_tail,
    torn_tail_of_the_active_segment,
    flipped_byte,
    flipped_byte_in_the_active_segment,
    wrong_length,
    length_beyond_the_file,
    index_that_lies,
    time_index_that_lies,
    index_of_an_odd_size,
    missing_index,
    missing_time_index,
    foreign_file,
    offsets_that_fall,
]
HAVE_NO_BYTE = {missing_index, missing_time_index, foreign_file}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_damaged_partition_is_named_and_left_unchanged(
    tmp_path: Path, damage: Callable[[Path], Path]
) -> None:
    for partition in range(3):
        make_partition(tmp_path / f"t-{partition}")
    file = damage(tmp_path / "t-1")
    before = contents(tmp_path / "t-1")

    inspected = lastwrite.inspect(str(tmp_path)).partitions[1]
    verified = lastwrite.verify(str(tmp_path), spark=INLINE)
    for problems in (inspected.problems, verified.partitions[1].problems):
        named = [problem for problem in problems if file.name in problem.path]
        assert named, f"{file.name} is not named in {problems}"
        assert damage in HAVE_NO_BYTE or named[0].position is not None
        assert named[0].remedy
    assert inspected.is_damaged and verified.exit_status == 3

    planned = lastwrite.plan(str(tmp_path), topic="t", now_ms=NOW, spark=INLINE)
    assert [p.status for p in planned.partitions] == [
        Status.CLEANED,
        Status.DAMAGED,
        Status.CLEANED,
    ]
    report = lastwrite.compact(str(tmp_path), topic="t", now_ms=NOW, spark=INLINE)
    assert [p.status for p in report.partitions] == [Status.CLEANED, Status.DAMAGED, Status.CLEANED]
    assert file.name in (report.partitions[1].reason or "")
    assert report.exit_status == 3
    assert contents(tmp_path / "t-1") == before


def test_leftovers_of_a_crash_are_named_and_are_not_damage(tmp_path: Path) -> None:
    make_partition(tmp_path / "t-0")
    make_partition(tmp_path / "expected" / "t-0")
    lost = tmp_path / "t-0" / f"{17:020d}.index"
    lost.touch()
    inspected = lastwrite.inspect(str(tmp_path / "t-0")).partitions[0]
    planned = lastwrite.plan(str(tmp_path / "t-0"), now_ms=NOW, spark=INLINE)
    for problems in (inspected.problems, planned.partitions[0].problems):
        assert [(str(problem.kind), problem.path) for problem in problems] == [
            ("recovered", str(lost))
        ]
    assert (
        not inspected.is_damaged
        and planned.partitions[0].status is Status.CLEANED
        and planned.exit_status == 0
    )
    for folder in (tmp_path / "t-0", tmp_path / "expected" / "t-0"):
        assert lastwrite.compact(str(folder), now_ms=NOW, spark=INLINE).exit_status == 0
    assert contents(tmp_path / "t-0") == contents(tmp_path / "expected" / "t-0")


def test_copy_contains_a_damaged_partition_unchanged(tmp_path: Path) -> None:
    make_partition(tmp_path / "log" / "t-0")
    flipped_byte(tmp_path / "log" / "t-0")
    before = contents(tmp_path / "log" / "t-0")
    report = lastwrite.compact(
        str(tmp_path / "log"), to=str(tmp_path / "copy"), topic="t", now_ms=NOW, spark=INLINE
    )
    assert report.exit_status == 3
    assert contents(tmp_path / "log" / "t-0") == before
    assert contents(tmp_path / "copy" / "t-0") == before


def test_offsets_out_of_order_between_two_pieces_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CRC does not cover the base offset, and within its piece the batch is in order."""
    make_partition(tmp_path / "t-0")
    file = closed(tmp_path / "t-0")
    base = int(file.stem)
    entries = file.with_suffix(".index").read_bytes()
    middle = int.from_bytes(entries[12:16], "big")
    patched(file, middle, (base + 1).to_bytes(8, "big"))
    monkeypatch.setattr("lastwrite.engine.pieces._PIECE_BYTES", 300)
    report = lastwrite.compact(str(tmp_path), topic="t", now_ms=NOW, spark=INLINE)
    assert report.partitions[0].status is Status.DAMAGED
    assert f"{file.name}, byte {middle}" in (report.partitions[0].reason or "")


def test_claim_of_a_billion_records_needs_no_memory(tmp_path: Path) -> None:
    """The record count of a compressed batch is unchecked until the batch is decompressed. Found by
    fuzzing.
    """
    import resource

    batch = bytearray(
        encode_batch([Record(0, NOW, b"k", b"v" * 50)], codec=Codec.GZIP, last_offset=2**30)
    )
    batch[57:61] = (2**30).to_bytes(4, "big")
    batch[17:21] = google_crc32c.value(bytes(batch[21:])).to_bytes(4, "big")
    make_partition(tmp_path / "t-0")
    write_raw(tmp_path / "t-1", bytes(batch))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    limit = resource.getrlimit(resource.RLIMIT_AS)
    size = (
        int(Path("/proc/self/statm").read_text().split()[0]) * 4096
        if Path("/proc/self/statm").exists()
        else 1 << 34
    )
    resource.setrlimit(resource.RLIMIT_AS, (size + (1 << 30), limit[1]))
    try:
        report = lastwrite.compact(str(tmp_path), topic="t", now_ms=NOW, spark=INLINE)
        assert lastwrite.inspect(str(tmp_path)).partitions[1].is_damaged
        assert lastwrite.verify(str(tmp_path), spark=INLINE).exit_status == 3
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limit)
    assert [p.status for p in report.partitions] == [Status.CLEANED, Status.DAMAGED]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20  # KiB


def write_raw(folder: Path, data: bytes) -> None:
    """Write a closed segment with these bytes and an empty active one."""
    folder.mkdir()
    (folder / f"{0:020d}.log").write_bytes(data)
    (folder / f"{0:020d}.index").write_bytes(b"")
    (folder / f"{0:020d}.timeindex").write_bytes(b"")
    (folder / f"{2**31:020d}.log").write_bytes(b"")
