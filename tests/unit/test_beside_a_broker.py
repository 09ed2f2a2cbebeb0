"""Tests of reading a log that a running broker has open, up to its high watermark."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import lastwrite
from lastwrite.errors import CommitConflict, CorruptLog, LogHeld
from lastwrite.kafka.format.batch import ControlType
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.kafka.recovery.walking import end_offset_of
from lastwrite.kafka.store import log_dir
from lastwrite.kafka.system import KafkaSystem
from lastwrite.model.log import ProblemKind
from lastwrite.reports.compaction import Status
from lastwrite.spark.inline import INLINE
from lastwrite.storage.reading import TRIES
from tests.support.kafka.logs import NAME, read_checkpoint, write_checkpoint, write_segment
from tests.support.kafka.single import data_batch, marker_batch

T = 1_700_000_000_000
MARKS = "replication-offset-checkpoint"
CONFIG = {"min.cleanable.dirty.ratio": 0}

_BROKER = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""


@contextmanager
def broker_on(root: Path, watermark: int | None) -> Iterator[None]:
    """A process that locks the root as a broker does. The high watermark is written meanwhile."""
    (root / ".lock").touch()
    with subprocess.Popen(
        [sys.executable, "-c", _BROKER, str(root / ".lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == b"locked\n"
        if watermark is not None:
            note(root, watermark)
        yield
        process.stdin.close()


def note(root: Path, watermark: int) -> None:
    """Write the high watermark checkpoint, with a time long after all segments."""
    write_checkpoint(root, MARKS, {NAME: watermark})
    os.utime(root / MARKS, (time.time() + 3600,) * 2)


def data(*offsets: int, producer: int = -1) -> bytes:
    """A batch of records with the keys a, b and c in turn."""
    records = [Record(n, T + n, b"abc"[n % 3 : n % 3 + 1], b"v%d" % n) for n in offsets]
    return data_batch(records, producer)


def marker(producer: int, offset: int, kind: ControlType) -> bytes:
    return marker_batch(producer, offset, T + offset, kind)


def segment(base: int) -> str:
    return f"{base:020d}.log"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Segments 0, 4 and the active 8, which ends at offset 12 and has half a batch after it."""
    root = tmp_path / "root"
    write_segment(root / NAME, 0, [data(0, 1), data(2, 3)])
    write_segment(root / NAME, 4, [data(4, 5), data(6, 7)])
    write_segment(root / NAME, 8, [data(8, 9), data(10, 11)])
    active = root / NAME / segment(8)
    active.write_bytes(active.read_bytes() + data(12, 13)[:-5])
    active.with_suffix(".index").write_bytes(bytes(8 << 10))
    active.with_suffix(".timeindex").write_bytes(bytes(12 << 10))
    (root / NAME / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    (root / "meta.properties").write_text("version=1\ncluster.id=c\nnode.id=1\n")
    return root


def offsets(root: Path, **wanted: object) -> list[int]:
    return [row["offset"] for row in lastwrite.dump(str(root), **wanted)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("watermark", "end"), [(12, 12), (11, 10), (10, 10), (8, 8), (7, 6), (4, 4), (0, 0)]
)
def test_read_ends_at_the_high_watermark(root: Path, watermark: int, end: int) -> None:
    with broker_on(root, watermark):
        report = lastwrite.inspect(str(root), spark=INLINE)
        [found] = report.partitions
        assert (found.end_offset, found.high_watermark) == (end, end)
        assert found.contents.records == end
        [note] = found.problems
        assert note.kind is ProblemKind.OPEN and f"read up to offset {end}," in note.message
        assert report.exit_status == 0
        said: list[str] = []
        assert offsets(root, say=said.append) == list(range(end))
        assert len(said) == 1 and "a broker has this log open" in said[0]
        assert len(list(lastwrite.read(str(root)))) == end
        verified = lastwrite.verify(str(root), spark=INLINE)
        assert verified.ok and verified.exit_status == 0
        [planned] = lastwrite.plan(str(root), topic="t", config=CONFIG, spark=INLINE).partitions
        assert planned.first_uncleanable_offset == (8 if end >= 8 else 4 if end >= 4 else 0)
        assert lastwrite.latest(str(root), "t").end_offsets == {0: end}


def test_read_commands_write_and_lock_nothing(root: Path) -> None:
    def listing() -> list[tuple[str, int, bytes]]:
        files = sorted(path for path in root.rglob("*") if path.is_file())
        return [(str(path), path.stat().st_mtime_ns, path.read_bytes()) for path in files]

    with broker_on(root, 12):
        before = listing()
        lastwrite.inspect(str(root), spark=INLINE)
        lastwrite.verify(str(root), spark=INLINE)
        lastwrite.explain(str(root), topic="t", key=b"a")
        offsets(root)
        assert listing() == before


def test_torn_end_is_damage_after_a_clean_shutdown(root: Path) -> None:
    with broker_on(root, 12):
        assert offsets(root) == list(range(12))
    (root / ".kafka_cleanshutdown").touch()
    with pytest.raises(CorruptLog):
        offsets(root)


def test_incomplete_batch_below_the_high_watermark_is_damage(root: Path) -> None:
    with broker_on(root, 14), pytest.raises(CorruptLog):
        offsets(root)


def test_log_that_ends_below_its_high_watermark_is_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_dir, "_LOOKS", 5)
    active = root / NAME / segment(8)
    active.write_bytes(data(8, 9))
    with broker_on(root, 12), pytest.raises(CommitConflict, match="ends at offset 10, below"):
        offsets(root)


def test_segment_without_its_index_is_read(root: Path) -> None:
    """A cleaner that replaces a segment renames its log before its index."""
    (root / NAME / segment(8)).with_suffix(".index").unlink(missing_ok=True)
    with broker_on(root, 12):
        assert offsets(root) == list(range(12))


def test_commands_refuse_a_log_whose_broker_is_starting(root: Path) -> None:
    write_checkpoint(root, MARKS, {NAME: 12})
    os.utime(root / MARKS, (1, 1))
    with broker_on(root, None):
        with pytest.raises(LogHeld, match="a broker is starting"):
            lastwrite.inspect(str(root))
        [found] = lastwrite.explain(str(root), topic="t").partitions
        assert "a broker is starting" in found.reasons[0].message


def test_compact_refuses_a_log_that_a_broker_has_open(root: Path) -> None:
    with broker_on(root, 12):
        with pytest.raises(LogHeld):
            lastwrite.compact(str(root), topic="t", config=CONFIG, spark=INLINE)
        [found] = lastwrite.explain(str(root), topic="t", key=b"a").partitions
        assert any(reason.message == "a broker has the log open" for reason in found.reasons)
        assert len(found.records) == 4


def test_single_file_that_the_broker_may_be_writing_is_refused(root: Path) -> None:
    with broker_on(root, 12):
        assert offsets(root / NAME / segment(4)) == [4, 5, 6, 7]
        for suffix in (".log", ".index"):
            path = (root / NAME / segment(8)).with_suffix(suffix)
            with pytest.raises(LogHeld, match="may be writing to it"):
                lastwrite.dump(str(path))
            with pytest.raises(LogHeld, match="may be writing to it"):
                lastwrite.inspect(str(path))


# ---------------------------------------------------------------------- what moves meanwhile


def cleaned(root: Path) -> None:
    """Replace segments 0 and 4 by one new segment, as a broker's cleaner does."""
    for suffix in (".log", ".index", ".timeindex"):
        for base in (0, 4):
            path = (root / NAME / segment(base)).with_suffix(suffix)
            path.rename(f"{path}.deleted")
    write_segment(root / NAME, 0, [data(0, 1), data(5, 7)], mtime_ms=T)


def expired(root: Path) -> None:
    """Delete the two closed segments, as retention does."""
    for base in (0, 4):
        for suffix in (".log", ".index", ".timeindex"):
            (root / NAME / segment(base)).with_suffix(suffix).unlink()


def rolled(root: Path) -> None:
    path = root / NAME / segment(8)
    path.write_bytes(data(8, 9) + data(10, 11))
    write_segment(root / NAME, 12, [data(12, 13)])


def recut(root: Path) -> None:
    """Truncate the log at offset 10 and append other records, as after an election."""
    (root / NAME / segment(8)).write_bytes(data(8, 9) + data(10, 11, 12, 13))
    (root / NAME / "leader-epoch-checkpoint").write_text("0\n2\n0 0\n1 10\n")


def in_the_middle(
    monkeypatch: pytest.MonkeyPatch, move: Callable[[Path], None], root: Path, times: int = 1
) -> None:
    """Change the root during a read, just after its segments were listed."""
    real, left = log_dir.read_partition, [times]

    def read(folder: str, *below: int) -> object:
        found = real(folder, *below)
        if left[0]:
            left[0] -= 1
            move(root)
        return found

    monkeypatch.setattr(log_dir, "read_partition", read)


@pytest.mark.parametrize(
    ("move", "expected"),
    [
        (cleaned, [0, 1, 5, 7, 8, 9, 10, 11]),
        (expired, [8, 9, 10, 11]),
        (rolled, list(range(12))),
    ],
)
def test_log_that_changes_before_it_is_read_is_read_again(
    root: Path, monkeypatch: pytest.MonkeyPatch, move: Callable[[Path], None], expected: list[int]
) -> None:
    with broker_on(root, 12):
        in_the_middle(monkeypatch, move, root)
        assert offsets(root) == expected
        [found] = lastwrite.inspect(str(root), spark=INLINE).partitions
        assert found.contents.records == len(expected) and len(found.problems) == 1
        assert [row["offset"] for row in lastwrite.read(str(root))] == expected


def test_segment_cleaned_after_the_checkpoint_needs_a_newer_checkpoint(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cleaner removed a@0, b@1 and c@2 because of later writes above the high watermark."""
    monkeypatch.setattr(log_dir, "_LOOKS", 5)
    with broker_on(root, 4):
        assert lastwrite.latest(str(root), "t").keys() == {b"a", b"b", b"c"}
        cleaned(root)
        note(root, 4)
        # as if the checkpoint were older than the cleaning
        monkeypatch.setattr(log_dir, "_NOTING_NS", 7200 * 10**9)
        with pytest.raises(CommitConflict, match="since the last high watermark was written"):
            lastwrite.latest(str(root), "t")
        monkeypatch.undo()
        note(root, 12)
        assert lastwrite.latest(str(root), "t").keys() == {b"a", b"b", b"c"}


@pytest.mark.parametrize("move", [cleaned, expired, rolled])
@pytest.mark.parametrize("command", ["inspect", "latest", "verify", "explain"])
def test_every_command_reads_again_after_a_change(
    root: Path, monkeypatch: pytest.MonkeyPatch, move: Callable[[Path], None], command: str
) -> None:
    with broker_on(root, 12):
        in_the_middle(monkeypatch, move, root)
        if command == "inspect":
            [found] = lastwrite.inspect(str(root), spark=INLINE).partitions
            assert [str(each.kind) for each in found.problems] == ["open"]
        elif command == "latest":
            assert dict(lastwrite.latest(str(root), "t"))[b"c"] == b"v11"
        elif command == "verify":
            assert lastwrite.verify(str(root), spark=INLINE).ok
        else:
            [why] = lastwrite.explain(str(root), topic="t").partitions
            assert [str(each.kind) for each in why.problems] == ["open"]


def test_dump_continues_after_the_log_was_cleaned(root: Path) -> None:
    with broker_on(root, 12):
        rows = lastwrite.dump(str(root))
        seen = [next(rows)["offset"] for _ in range(3)]
        cleaned(root)
        assert [*seen, *(row["offset"] for row in rows)] == [0, 1, 2, 3, 5, 7, 8, 9, 10, 11]


def test_dump_names_the_offsets_that_were_deleted_before_they_were_read(root: Path) -> None:
    with broker_on(root, 12):
        rows = lastwrite.dump(str(root))
        assert next(rows)["offset"] == 0
        expired(root)
        with pytest.raises(CommitConflict, match="offsets 4 to 7 were deleted"):
            list(rows)


def test_truncation_during_a_read_is_reported(root: Path) -> None:
    with broker_on(root, 12):
        for rows in (lastwrite.dump(str(root)), lastwrite.read(str(root))):
            assert isinstance(rows, Iterator) and next(rows)["offset"] == 0
            recut(root)
            with pytest.raises(CommitConflict, match="was truncated"):
                list(rows)
            shutil.copy(root / NAME / segment(0), root / "unused")
            (root / NAME / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")


def test_read_gives_up_on_a_log_that_keeps_changing(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def touch(root: Path) -> None:
        os.utime(root / NAME / segment(0))

    with broker_on(root, 12):
        in_the_middle(monkeypatch, touch, root, times=100)
        with pytest.raises(CommitConflict, match=f"in {TRIES} attempts"):
            lastwrite.inspect(str(root), spark=INLINE)
        verified = lastwrite.verify(str(root), spark=INLINE)
        assert not verified.ok and "another program changed" in (
            verified.partitions[0].reason or ""
        )
        [why] = lastwrite.explain(str(root), topic="t").partitions
        assert "another program changed" in (why.summary or "")


def test_unfinished_segment_swap_is_refused_after_a_wait(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_dir, "_LOOKS", 5)
    path = root / NAME / segment(4)
    path.rename(f"{path}.swap")
    with broker_on(root, 12), pytest.raises(CommitConflict, match="is replacing segments"):
        lastwrite.inspect(str(root))


def test_plan_is_computed_again_after_a_change(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with broker_on(root, 12):
        in_the_middle(monkeypatch, cleaned, root)
        monkeypatch.setattr(KafkaSystem, "read", staticmethod(_read))
        [planned] = lastwrite.plan(str(root), topic="t", config=CONFIG, spark=INLINE).partitions
        assert planned.status is Status.CLEANED and planned.records_before == 8


def _read(folder: str, spend: object = None) -> object:
    return log_dir.read_partition(folder)


def test_vanished_file_is_named_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(CommitConflict, match="another program deleted"):
        end_offset_of(str(tmp_path / segment(0)), str(tmp_path / "0.index"), 0)


# ---------------------------------------------------------------------- a copy


def test_copy_ends_at_the_last_stable_offset(root: Path, tmp_path: Path) -> None:
    """Producer 7 has a transaction open from offset 10. Its marker is not replicated."""
    active = root / NAME / segment(8)
    active.write_bytes(
        data(8, 9) + data(10, 11, producer=7) + data(12) + marker(7, 13, ControlType.ABORT)
    )
    (root / NAME / "leader-epoch-checkpoint").write_text("0\n2\n0 0\n1 12\n")
    (root / NAME / f"{13:020d}.snapshot").write_bytes(b"half")
    with broker_on(root, 13):
        to = tmp_path / "to"
        [found] = lastwrite.compact(
            str(root), to=str(to), topic="t", config=CONFIG, spark=INLINE
        ).partitions
        assert found.status is Status.CLEANED, found.reason
        assert (found.records_before, found.records_after) == (
            10,
            5,
        )
        verified = lastwrite.verify(str(to), str(root), spark=INLINE)
        assert verified.ok, verified.to_dict()
    assert read_checkpoint(to, MARKS) == {NAME: 10}
    assert (to / NAME / segment(8)).read_bytes() == data(8, 9)
    assert (to / NAME / "leader-epoch-checkpoint").read_text() == "0\n1\n0 0\n"
    assert not list((to / NAME).glob("*.snapshot"))
    assert lastwrite.verify(str(to), spark=INLINE).ok
    assert offsets(to) == [5, 6, 7, 8, 9]
