"""Tests of stored scans.

They check when a stored scan saves reading, when it must be ignored, and that its errors stop no
round.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from lastwrite.errors import CorruptLog
from lastwrite.kafka.format.batch import encode_batch
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.reports.compaction import PartitionReport, Status
from lastwrite.scan_cache import files as store
from lastwrite.scan_cache import format as layout
from lastwrite.scan_cache.task import FileCachedScan
from lastwrite.storage import files
from lastwrite.storage.files import FaultPoints
from tests.support.engine import compact
from tests.support.kafka.crashing import load_like_kafka, run_until
from tests.support.kafka.logs import NAME, read_segments, write_segment
from tests.support.kafka.model import records_of

NOW_MS = 1_700_000_000_000
CONFIG = {"segment.bytes": "2000", "index.interval.bytes": "200"}
ALONE = {**CONFIG, "segment.bytes": "14"}  # so small that no segments are merged
EACH = 20


@pytest.fixture(autouse=True)
def small() -> Iterator[None]:
    """Store scans even of small segments."""
    with (
        patch("lastwrite.scan_cache.cache.LEAST_SEGMENT_BYTES", 1),
        patch("lastwrite.scan_cache.cache._LEAST_FILLED", 0),
        patch("lastwrite.engine.pieces._PIECE_BYTES", 600),
    ):
        yield


def batch(offset: int, keys: list[bytes]) -> bytes:
    return encode_batch(
        [Record(offset + n, NOW_MS - 9, key, b"value %d" % offset) for n, key in enumerate(keys)]
    )


def add(root: Path, base: int, keys: list[bytes]) -> None:
    """Write a closed segment of ``EACH`` records in batches of five, and a new active segment."""
    active = root / NAME / f"{base:020d}.log"
    for kind in (".log", ".index", ".timeindex"):
        active.with_suffix(kind).unlink(missing_ok=True)
    batches = [batch(base + n, keys[n : n + 5]) for n in range(0, EACH, 5)]
    write_segment(root / NAME, base, batches, 200, NOW_MS)
    write_segment(root / NAME, base + EACH, [], 200, NOW_MS)


def fresh(base: int) -> list[bytes]:
    return [b"%06d" % (base + n) for n in range(EACH)]


def make_log(root: Path) -> None:
    """Write three segments whose records are all kept."""
    for base in (0, EACH, 2 * EACH):
        add(root, base, fresh(base))


def round_of(
    root: Path, keep_scans: bool = True, config: dict[str, str] = CONFIG, **more: object
) -> PartitionReport:
    [report] = compact(root, config, NOW_MS, keep_scans=keep_scans, **more).partitions
    return report


def size(root: Path, *bases: int) -> int:
    return sum((root / NAME / f"{base:020d}.log").stat().st_size for base in bases)


def kept(root: Path) -> list[str]:
    return sorted(file.name for file in (root / NAME).glob("*kept*"))


def kept_file(root: Path, base: int) -> Path:
    return root / NAME / f"{base:020d}.kept"


def log_files(root: Path) -> dict[str, bytes]:
    found = {
        file.name: file.read_bytes()
        for file in (root / NAME).iterdir()
        if not file.name.startswith("lastwrite")
    }
    return {name: content for name, content in found.items() if ".kept" not in name}


def second_round(root: Path, before: Callable[[Path], None] = lambda root: None) -> PartitionReport:
    """Run a second round after a new segment has superseded some records of the first.

    ``before`` is called between the rounds.
    """
    make_log(root)
    round_of(root)
    before(root)
    add(root, 3 * EACH, [b"%06d" % 3, *fresh(3 * EACH)[1:]])
    wanted = root.with_name("wanted")
    shutil.copytree(root, wanted)
    plain = round_of(wanted, keep_scans=False)
    report = round_of(root)
    assert (
        report.status is plain.status
        and report.verdicts == plain.verdicts
        and report.keys == plain.keys
    )
    assert log_files(root) == log_files(wanted)
    return report


# ---------------------------------------------------------------------- what it spares


def test_clean_segment_is_not_read_again(tmp_path: Path) -> None:
    root = tmp_path / "log"
    make_log(root)
    first = round_of(root)
    assert first.status is Status.UNCHANGED and first.bytes_read == size(root, 0, EACH, 2 * EACH)
    assert kept(root) == [f"{base:020d}.kept" for base in (0, EACH, 2 * EACH)]
    add(root, 3 * EACH, fresh(3 * EACH))
    second = round_of(root)
    assert (
        second.status is Status.UNCHANGED
        and second.records_before == 4 * EACH
        and second.keys == 4 * EACH
    )
    assert second.bytes_read == size(root, 3 * EACH)


def test_scan_of_a_rewritten_segment_is_replaced(tmp_path: Path) -> None:
    root = tmp_path / "log"
    second_round(root)
    assert len(records_of(read_segments(root / NAME))) == 4 * EACH - 1
    bases = [int(name[:20]) for name in kept(root)]
    assert bases == sorted(int(name[:20]) for name in log_files(root) if name.endswith(".log"))[:-1]
    add(root, 4 * EACH, [b"%06d" % 5, *fresh(4 * EACH)[1:]])
    third = round_of(root)
    # Only the new segment and the one that loses a record are read.
    assert third.status is Status.CLEANED and third.verdicts["shadowed"] == 1
    assert third.bytes_read < size(root, *bases) + size(root, 4 * EACH)
    assert len(records_of(read_segments(root / NAME))) == 5 * EACH - 2


def test_scan_of_a_linked_segment_is_kept(tmp_path: Path) -> None:
    """The segment lies between two rewritten ones. The swap temporarily adds a hard link, which
    changes its inode's change time.
    """
    root = tmp_path / "log"
    make_log(root)
    round_of(root)
    before = kept_file(root, EACH).read_bytes()
    add(root, 3 * EACH, [b"%06d" % 3, b"%06d" % (2 * EACH + 3), *fresh(3 * EACH)[2:]])
    report = round_of(root, config=ALONE)
    assert report.segments_untouched == 3 and report.verdicts["shadowed"] == 2
    after = kept_file(root, EACH).read_bytes()
    assert after[: layout.HEADER.size] != before[: layout.HEADER.size]
    assert after[layout.HEADER.size :] == before[layout.HEADER.size :]
    add(root, 4 * EACH, fresh(4 * EACH))
    report = round_of(root, config=ALONE)
    assert report.bytes_read == size(root, 4 * EACH)


def test_only_pieces_with_a_tombstone_are_read_again(tmp_path: Path) -> None:
    root = tmp_path / "log"
    add(root, 0, fresh(0))
    gone = encode_batch([Record(EACH, NOW_MS - 9, b"gone", None)])
    batches = [gone, *(batch(EACH + 1 + n, fresh(EACH + 1)[n : n + 5]) for n in range(0, EACH, 5))]
    for file in (root / NAME).glob(f"{EACH:020d}.*"):
        file.unlink()
    write_segment(root / NAME, EACH, batches, 1, NOW_MS)
    write_segment(root / NAME, 2 * EACH + 1, [], 200, NOW_MS)
    with patch("lastwrite.engine.pieces._PIECE_BYTES", 200):
        # the first round stamped the batches
        assert round_of(root, config=ALONE).status is Status.CLEANED
        add(root, 2 * EACH + 1, fresh(2 * EACH + 1))
        report = round_of(root, config=ALONE)
    assert size(root, 2 * EACH + 1) < report.bytes_read < size(root, EACH, 2 * EACH + 1)


def test_round_without_the_option_stores_nothing_and_removes_stale_scans(
    tmp_path: Path,
) -> None:
    root = tmp_path / "log"
    make_log(root)
    round_of(root, keep_scans=False)
    assert not kept(root) and not (root / NAME / "lastwrite.secret").exists()
    round_of(root)
    add(root, 3 * EACH, [b"%06d" % 3, *fresh(3 * EACH)[1:]])
    report = round_of(root, keep_scans=False)
    assert report.bytes_read >= size(root, 0, EACH, 2 * EACH)
    left = {int(name[:20]) for name in kept(root)}
    assert 0 not in left and left <= {EACH, 2 * EACH}


def test_exact_rounds_and_copies_use_and_store_no_scans(tmp_path: Path) -> None:
    root = tmp_path / "log"
    make_log(root)
    round_of(root, exact=True)
    round_of(root, to=str(tmp_path / "copy"))
    assert not kept(root) and not kept(tmp_path / "copy")
    round_of(root)
    add(root, 3 * EACH, fresh(3 * EACH))
    assert round_of(root, exact=True).bytes_read == size(root, 0, EACH, 2 * EACH, 3 * EACH)


def test_secret_is_readable_only_by_its_owner(tmp_path: Path) -> None:
    root = tmp_path / "log"
    make_log(root)
    round_of(root)
    secret = root / NAME / "lastwrite.secret"
    assert secret.stat().st_mode & 0o777 == 0o600
    drawn = secret.read_bytes()
    add(root, 3 * EACH, fresh(3 * EACH))
    round_of(root)
    assert secret.read_bytes() == drawn


def test_lost_checkpoint_keeps_the_stored_scans_valid(tmp_path: Path) -> None:
    def forget(root: Path) -> None:
        (root / "cleaner-offset-checkpoint").unlink()

    report = second_round(tmp_path / "log", forget)
    assert report.first_dirty_offset == 0 and report.bytes_read < 5 * size(tmp_path / "wanted", 0)


# ---------------------------------------------------------------------- what is not believed


def believed(root: Path, base: int) -> object:
    """The pieces of a stored scan. None if it is not trusted."""
    folder = root / NAME
    log_path = str(folder / f"{base:020d}.log")
    secret = store.read_secret(str(folder), 8 * 76)
    assert secret is not None
    found = store.read_cached(log_path, store.identity_of(log_path), layout.digest_of(secret))
    if found is None:
        return None
    scans = [
        FileCachedScan(found.path, found.bits, found.identity, piece) for piece in found.pieces
    ]
    return found.pieces if all(scan.is_valid(log_path) for scan in scans) else None


def test_changed_or_truncated_scan_file_is_ignored(tmp_path: Path) -> None:
    root = tmp_path / "log"
    make_log(root)
    round_of(root)
    file = kept_file(root, 0)
    whole = file.read_bytes()
    truth = believed(root, 0)
    assert truth is not None
    padding = 0
    for at in range(len(whole)):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        if believed(root, 0) is not None:
            assert believed(root, 0) == truth and whole[at] == 0
            padding += 1
        file.write_bytes(whole[:at])
        assert believed(root, 0) is None
    assert padding <= 64 * (1 + whole.count(b"value") + 4)
    file.write_bytes(whole + b"\0")
    assert believed(root, 0) is None
    file.write_bytes(whole)
    assert believed(root, 0) == truth


def flip(base: int, at: int) -> Callable[[Path], None]:
    def harm(root: Path) -> None:
        content = bytearray(kept_file(root, base).read_bytes())
        content[at] ^= 1
        kept_file(root, base).write_bytes(content)

    return harm


def cut(root: Path) -> None:
    os.truncate(kept_file(root, 0), 100)


def empty(root: Path) -> None:
    kept_file(root, 0).write_bytes(b"")


def exchange(root: Path) -> None:
    one, two = kept_file(root, 0), kept_file(root, EACH)
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)


def other_secret(root: Path) -> None:
    store.write_secret(str(root / NAME), os.urandom(8 * 76))


def no_secret(root: Path) -> None:
    (root / NAME / "lastwrite.secret").unlink()


def open_secret(root: Path) -> None:
    (root / NAME / "lastwrite.secret").chmod(0o644)


def odd_secret(root: Path) -> None:
    (root / NAME / "lastwrite.secret").write_bytes(b"no secret")


def copied_segment(root: Path) -> None:
    """Copy a segment with its bytes and modification time to another inode."""
    log = root / NAME / f"{0:020d}.log"
    shutil.copy2(log, root / "aside")
    os.replace(root / "aside", log)


def touched_index(root: Path) -> None:
    os.utime(root / NAME / f"{0:020d}.index")


HARMS = {
    "header": flip(0, 10),
    "identity": flip(0, 20),
    "block": flip(0, 200),
    "last entry": flip(EACH, -200),
    "tables": flip(0, -1),
    "cut": cut,
    "empty": empty,
    "exchanged": exchange,
    "other secret": other_secret,
    "no secret": no_secret,
    "open secret": open_secret,
    "odd secret": odd_secret,
    "copied": copied_segment,
    "touched index": touched_index,
}


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)
def test_invalid_scan_is_replaced_by_a_new_one(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    root = tmp_path / "log"
    report = second_round(root, harm)
    assert report.bytes_read > size(root, 3 * EACH)
    bases = [base for base in (0, EACH, 2 * EACH) if (root / NAME / f"{base:020d}.log").exists()]
    assert bases and all(believed(root, base) is not None for base in bases)


def test_edit_with_a_restored_modification_time_is_detected(tmp_path: Path) -> None:
    """Keys are replaced in records of the same size, with a valid checksum. The inode's change time
    reveals it.
    """

    def edit(root: Path) -> None:
        log = root / NAME / f"{EACH:020d}.log"
        seen = log.stat()
        keys = [b"%06d" % (900 + n) for n in range(EACH)]
        content = b"".join(batch(EACH + n, keys[n : n + 5]) for n in range(0, EACH, 5))
        assert len(content) == seen.st_size
        with open(log, "r+b") as file:
            file.write(content)
        os.utime(log, ns=(seen.st_atime_ns, seen.st_mtime_ns))
        assert log.stat().st_mtime_ns == seen.st_mtime_ns

    second_round(tmp_path / "log", edit)


def test_damage_with_a_restored_modification_time_is_detected(tmp_path: Path) -> None:
    def harm(root: Path) -> None:
        log = root / NAME / f"{EACH:020d}.log"
        seen = log.stat()
        content = bytearray(log.read_bytes())
        content[-3] ^= 4
        log.write_bytes(content)
        os.utime(log, ns=(seen.st_atime_ns, seen.st_mtime_ns))

    assert second_round(tmp_path / "log", harm).status is Status.DAMAGED


def test_scan_of_an_older_generation_is_ignored(tmp_path: Path) -> None:
    """The segment was rewritten since. Its size and modification time may be unchanged."""
    root = tmp_path / "log"
    make_log(root)
    round_of(root)
    old = kept_file(root, 0).read_bytes()
    add(root, 3 * EACH, [b"%06d" % 3, *fresh(3 * EACH)[1:]])
    round_of(root)
    kept_file(root, 0).write_bytes(old)
    assert believed(root, 0) is None
    add(root, 4 * EACH, [b"%06d" % 4, *fresh(4 * EACH)[1:]])
    wanted = tmp_path / "wanted"
    shutil.copytree(root, wanted)
    round_of(wanted, keep_scans=False)
    round_of(root)
    assert log_files(root) == log_files(wanted)


def test_malformed_scan_header_is_refused() -> None:
    with pytest.raises(CorruptLog):
        layout.decode_header(b"short", "x")
    with pytest.raises(CorruptLog):
        layout.decode_header(bytes(layout.HEADER.size), "x")


# ---------------------------------------------------------------------- its trouble


def log_that_is_due(root: Path) -> None:
    make_log(root)
    round_of(root)
    add(root, 3 * EACH, [b"%06d" % 3, b"%06d" % (2 * EACH + 3), *fresh(3 * EACH)[2:]])


def kept_operations(root: Path, log: Path) -> list[int]:
    """The numbers of a round's file operations that write stored scans, counted from 1."""
    files.faults = FaultPoints(log=str(log))
    try:
        round_of(root)
    finally:
        files.faults = FaultPoints()
    lines = log.read_text().splitlines()
    return [
        n
        for n, line in enumerate(lines, 1)
        if re.search(r"[0-9]{20}\.kept|lastwrite\.secret", line)
    ]


def test_kill_while_storing_scans_leaves_the_log_intact(
    tmp_path: Path,
) -> None:
    log_that_is_due(tmp_path / "first")
    points = kept_operations(tmp_path / "first", tmp_path / "operations")
    assert len(points) > 5
    for point in points:
        root = tmp_path / f"killed-{point}"
        log_that_is_due(root)
        assert run_until(point, lambda root=root: round_of(root))  # type: ignore[misc]
        shutil.copytree(root, tmp_path / "loaded")
        load_like_kafka(tmp_path / "loaded" / NAME)
        shutil.rmtree(tmp_path / "loaded")
        add(root, 4 * EACH, [b"%06d" % 5, *fresh(4 * EACH)[1:]])
        wanted = tmp_path / f"wanted-{point}"
        shutil.copytree(root, wanted)
        assert round_of(wanted, keep_scans=False).status is Status.CLEANED
        assert round_of(root).status is Status.CLEANED
        assert log_files(root) == log_files(wanted)
        assert not list((root / NAME).glob("*.tmp"))


def test_full_disk_only_reduces_the_stored_scans(tmp_path: Path) -> None:
    log_that_is_due(tmp_path / "first")
    points = kept_operations(tmp_path / "first", tmp_path / "operations")
    for point in points:
        root = tmp_path / f"full-{point}"
        log_that_is_due(root)
        files.faults = FaultPoints(point, errno.ENOSPC, once=True)
        try:
            report = round_of(root)
        finally:
            files.faults = FaultPoints()
        assert report.status is Status.CLEANED
        assert log_files(root) == log_files(tmp_path / "first")
