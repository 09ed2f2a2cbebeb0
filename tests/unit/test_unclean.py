"""Tests of the log of a killed broker, without Kafka's loader.

For tests with it see ``tests/conformance/test_crash_states.py``.
"""

from __future__ import annotations

import json
import os
import random
import zlib
from dataclasses import replace
from pathlib import Path

import google_crc32c
import numpy as np
import pytest

import lastwrite
from lastwrite.errors import CommitConflict, CorruptLog, LogError
from lastwrite.kafka.format.batch import encode_batch
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.kafka.format.remedy import RESTORE
from lastwrite.kafka.recovery import proof_walk, unclean_shutdown
from lastwrite.kafka.store import index_files, log_dir
from lastwrite.kafka.store.outputs import NewSegment, check_outputs, check_unchanged
from lastwrite.model.log import PartitionLog, ProblemKind
from lastwrite.spark.inline import INLINE
from lastwrite.storage import files
from tests.support.files import contents
from tests.support.kafka.killed import (
    ACTIVE,
    EACH,
    EARLIER,
    END,
    LATER_MS,
    LOSSES,
    SHORT,
    STATES,
    TORN,
    WITNESSES,
    Loss,
    State,
    batch,
    cut,
    left_by_crash,
    marked,
    name,
    put_at,
    write_log,
)
from tests.support.kafka.logs import (
    bases,
    check_indexes,
    encode_model,
    read_segments,
    write_checkpoint,
    write_segment,
)
from tests.support.kafka.model import ModelBatch, ModelRecord


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = write_log(tmp_path / "root")
    write_checkpoint(folder.parent, "recovery-point-offset-checkpoint", {"t-0": EACH + 10})
    return folder


def kinds(log: PartitionLog) -> set[ProblemKind]:
    return {problem.kind for problem in log.problems}


# ---------------------------------------------------------------------- was it killed?


@pytest.mark.parametrize(
    ("files", "was_killed"),
    [
        ([], False),
        (["cleaner-offset-checkpoint"], False),
        (["meta.properties"], True),
        (["recovery-point-offset-checkpoint"], True),
        (["meta.properties", "recovery-point-offset-checkpoint", ".kafka_cleanshutdown"], False),
    ],
)
def test_only_a_brokers_root_reveals_a_kill(
    tmp_path: Path, files: list[str], was_killed: bool
) -> None:
    for file in files:
        (tmp_path / file).touch()
    assert unclean_shutdown.was_killed(str(tmp_path)) is was_killed


def test_torn_tail_is_damage_after_a_clean_shutdown(folder: Path) -> None:
    cut(ACTIVE, ACTIVE + 8, 50)(folder)
    log = log_dir.read_partition(str(folder))
    assert kinds(log) == {ProblemKind.RECOVERED}
    assert (log.end_offset, log.segments[-1].torn_bytes, log.is_torn) == (ACTIVE + 8, 50, True)
    assert log.segments[-1].file_bytes == os.stat(folder / name(ACTIVE)).st_size
    (folder.parent / ".kafka_cleanshutdown").touch()
    assert kinds(log_dir.read_partition(str(folder))) == {ProblemKind.DAMAGED}


def test_log_with_lost_records_is_not_recovered(folder: Path) -> None:
    put_at(EACH, EACH + 9, 65, b"\xff")(folder)
    (folder / name(0, "index")).unlink()
    for point in (EACH + 10, EACH + 9, 0):
        write_checkpoint(folder.parent, "recovery-point-offset-checkpoint", {"t-0": point})
        before = contents(folder)
        log = log_dir.read_partition(str(folder))
        assert ProblemKind.DAMAGED in kinds(log)
        log_dir.recover(str(folder))
        assert contents(folder) == before


def test_unreadable_recovery_point_is_ignored(folder: Path) -> None:
    (folder.parent / "recovery-point-offset-checkpoint").write_text("0\n1\nt 0 x\n")
    put_at(ACTIVE, END - 1, 65, b"\xff")(folder)
    log = log_dir.read_partition(str(folder))
    assert kinds(log) == {ProblemKind.RECOVERED} and log.end_offset == END - 1


# ---------------------------------------------------------------------- what is lost

LOST = [
    pytest.param(loss, point, id=f"{loss.name}, flushed to {point}")
    for loss in LOSSES
    for point in loss.recovery_points
]


@pytest.mark.parametrize(("loss", "recovery_point"), LOST)
def test_every_command_names_the_lost_offsets(
    tmp_path: Path, loss: Loss, recovery_point: int
) -> None:
    folder = left_by_crash(tmp_path / "root", loss, recovery_point)
    before = contents(folder)
    log = log_dir.read_partition(str(folder))
    (damage,) = [problem for problem in log.problems if problem.kind is ProblemKind.DAMAGED]
    if loss.missing is not None:
        assert f"offsets {loss.missing[0]} to {loss.missing[1]} are missing" in damage.message
    assert loss.says in damage.message
    assert (
        damage.path.endswith(".log")
        and damage.remedy is not None
        and "copy the folder" in damage.remedy
    )
    assert [segment.base_offset for segment in log.segments] == bases(folder) and not log.unseen, (
        "none is hidden"
    )

    config = {"cleanup.policy": "compact,delete", "retention.ms": 1, "min.cleanable.dirty.ratio": 0}
    for report in (
        lastwrite.inspect(str(folder), now_ms=LATER_MS),
        lastwrite.plan(str(folder), now_ms=LATER_MS, spark=INLINE),
        lastwrite.verify(str(folder), spark=INLINE),
        lastwrite.compact(
            str(folder), config=config, now_ms=LATER_MS, include_active=True, spark=INLINE
        ),
        lastwrite.compact(str(folder), to=str(tmp_path / "to"), now_ms=LATER_MS, spark=INLINE),
        lastwrite.explain(str(folder), now_ms=LATER_MS),
    ):
        assert report.exit_status == 3, report.to_dict()
        assert damage.message in json.dumps(report.to_dict(), ensure_ascii=False), report.to_dict()
    with pytest.raises(CorruptLog) as caught:
        lastwrite.latest(str(folder))
    rest = f"`lastwrite dump {folder}` prints the records that can be read"
    assert (caught.value.problem, caught.value.remedy) == (
        damage.message,
        f"{damage.remedy}; {rest}",
    )
    with pytest.raises(CorruptLog) as caught:
        list(lastwrite.dump(str(folder)))
    assert damage.message in caught.value.problem
    assert contents(folder) == before
    # The copy of a damaged log is damaged, too.
    assert lastwrite.verify(str(tmp_path / "to"), spark=INLINE).exit_status == 3


@pytest.mark.parametrize(
    "words", [words for words in WITNESSES if "producer" not in words and "recovery" not in words]
)
def test_file_that_ends_with_the_log_proves_no_loss(tmp_path: Path, words: str) -> None:
    """A torn tail that no other file refers to, whatever files a broker wrote before it."""
    state = State("", [TORN, *EARLIER])
    folder = left_by_crash(tmp_path / "root", state, ACTIVE + 8)
    log = log_dir.read_partition(str(folder))
    assert kinds(log) == {ProblemKind.RECOVERED} and log.end_offset == ACTIVE + 8
    WITNESSES[words](folder)
    assert ProblemKind.DAMAGED in kinds(log_dir.read_partition(str(folder)))


def test_broker_that_writes_during_the_read_causes_no_loss(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker appends and updates its checkpoints. They are read before the log, so they never
    exceed it.
    """
    listed = log_dir._names

    def names(of: str) -> list[str]:
        with open(folder / name(ACTIVE), "ab") as log_file:
            log_file.write(batch(END))
        write_checkpoint(folder.parent, "replication-offset-checkpoint", {"t-0": END + 1})
        monkeypatch.setattr(log_dir, "_names", listed)
        return listed(of)

    write_checkpoint(folder.parent, "replication-offset-checkpoint", {"t-0": END})
    monkeypatch.setattr(log_dir, "_names", names)
    log = log_dir.read_partition(str(folder))
    assert not log.problems and (log.end_offset, log.high_watermark) == (END + 1, END)


def test_indexes_of_the_last_segment_prove_no_loss_after_a_kill(folder: Path) -> None:
    """A broker that truncates a log leaves index entries in the file until it closes
    the segment.
    """
    marked(ACTIVE, 185, 195, 205, 215)(folder)
    os.truncate(folder / name(ACTIVE), 2 * 5074)
    log = log_dir.read_partition(str(folder))
    assert kinds(log) == {ProblemKind.RECOVERED} and log.end_offset == 196


def test_segment_end_removed_by_a_cleaner_is_no_loss(folder: Path) -> None:
    offsets = [offset for offset in range(EACH, EACH + 40) if offset % 20 < 17]
    write_segment(folder, EACH, [batch(offset) for offset in offsets], 4096)
    (folder / name(EACH, "txnindex")).unlink()
    write_segment(folder, 2 * EACH, [], 4096)
    (folder / name(2 * EACH, "txnindex")).unlink()
    for point in (0, END):
        write_checkpoint(folder.parent, "recovery-point-offset-checkpoint", {"t-0": point})
        log = log_dir.read_partition(str(folder))
        assert not log.problems and [one.base_offset for one in log.segments] == [
            0,
            EACH,
            2 * EACH,
            ACTIVE,
        ]


# ---------------------------------------------------------------------- after an orderly shutdown


@pytest.mark.parametrize("known", ["index", "timeindex"])
def test_closed_segment_truncated_between_batches_is_damage(folder: Path, known: str) -> None:
    """Only one of the segment's indexes reveals it."""
    (folder.parent / ".kafka_cleanshutdown").touch()
    marked(2 * EACH, 125, 135, 145, 155)(folder)
    (folder / name(2 * EACH, "txnindex")).unlink()
    os.truncate(folder / name(2 * EACH), 3 * 5074)
    for kind in ("index", "timeindex"):
        if kind != known:
            entry = 8 if kind == "index" else 12
            path = folder / name(2 * EACH, kind)
            path.write_bytes(path.read_bytes()[:entry])
        (folder / name(ACTIVE, kind)).write_bytes(b"")
    for report in (
        lastwrite.inspect(str(folder), now_ms=LATER_MS),
        lastwrite.plan(str(folder), now_ms=LATER_MS, spark=INLINE),
        lastwrite.verify(str(folder), spark=INLINE),
        lastwrite.explain(str(folder), now_ms=LATER_MS),
        lastwrite.compact(
            str(folder), config={"min.cleanable.dirty.ratio": 0}, now_ms=LATER_MS, spark=INLINE
        ),
    ):
        assert report.exit_status == 3, report.to_dict()
        problems = report.partitions[0].problems
        assert any(
            problem.remedy == RESTORE and "155" in problem.message for problem in problems
        ), problems


@pytest.mark.parametrize("base", [0, EACH, 2 * EACH])
def test_emptied_segment_is_damage_after_a_clean_shutdown(folder: Path, base: int) -> None:
    (folder.parent / ".kafka_cleanshutdown").touch()
    os.truncate(folder / name(base), 0)
    (damage,) = log_dir.read_partition(str(folder)).problems
    assert (damage.path, damage.position) == (str(folder / name(base)), 0)
    assert (
        f"the segment is empty: offsets {base} to {base + EACH - 1} are missing" in damage.message
    )
    assert lastwrite.compact(str(folder), now_ms=LATER_MS, spark=INLINE).exit_status == 3


@pytest.mark.parametrize("base", [0, EACH, 2 * EACH])
def test_indexes_of_a_missing_segment_are_kept(folder: Path, base: int) -> None:
    (folder.parent / ".kafka_cleanshutdown").touch()
    (folder / name(base)).unlink()
    before = contents(folder)
    (damage,) = log_dir.read_partition(str(folder)).problems
    assert (damage.path, damage.remedy) == (str(folder / name(base)), RESTORE)
    assert (
        f"the segment's file is missing: offsets {base} to {base + EACH - 1} are missing"
        in damage.message
    )
    log_dir.recover(str(folder))
    assert contents(folder) == before


def test_indexes_of_a_deleted_segment_are_removed_before_its_marker(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / name(0)).rename(folder / name(0, "log.deleted"))
    removed: list[str] = []
    unlink = files.unlink

    def seen(path: str) -> None:
        removed.append(os.path.basename(path))
        unlink(path)

    monkeypatch.setattr(files, "unlink", seen)
    log_dir.recover(str(folder))
    assert removed == [name(0, kind) for kind in ("index", "timeindex", "txnindex", "log.deleted")]


@pytest.mark.parametrize("words", WITNESSES)
def test_log_that_ends_too_early_is_damage_after_a_clean_shutdown(folder: Path, words: str) -> None:
    (folder.parent / ".kafka_cleanshutdown").touch()
    write_checkpoint(
        folder.parent,
        "recovery-point-offset-checkpoint",
        {"t-0": END if "recovery" in words else 0},
    )
    SHORT(folder)
    (folder / name(ACTIVE, "index")).write_bytes(b"")
    (folder / name(ACTIVE, "timeindex")).write_bytes(b"")
    WITNESSES[words](folder)
    (damage,) = log_dir.read_partition(str(folder)).problems
    assert "offsets 188 to 189 are missing" in damage.message and words in damage.message
    assert lastwrite.verify(str(folder), spark=INLINE).exit_status == 3


# ---------------------------------------------------------------------- what is not seen


def test_empty_segments_after_the_end_are_ignored(folder: Path) -> None:
    """They have no records, so a broker's start loses nothing when it removes them."""
    with open(folder / name(ACTIVE), "ab") as log_file:
        log_file.write(bytes(100))
    write_segment(folder, END, [])
    log = log_dir.read_partition(str(folder))
    assert kinds(log) == {ProblemKind.RECOVERED}
    assert log.end_offset == END and log.unseen == (name(END),)
    check_unchanged(log)
    config = {"cleanup.policy": "compact,delete", "retention.ms": 1, "min.cleanable.dirty.ratio": 0}
    report = lastwrite.compact(
        str(folder), config=config, now_ms=LATER_MS, include_active=True, spark=INLINE
    )
    assert report.exit_status == 0
    again = log_dir.read_partition(str(folder))
    assert (again.end_offset, again.unseen) == (log.end_offset, log.unseen)
    (folder / name(END + 1)).touch()
    with pytest.raises(CommitConflict, match="another program created the segment"):
        check_unchanged(again)


def test_output_that_replaces_a_truncated_segment_is_refused(folder: Path) -> None:
    cut(ACTIVE, ACTIVE + 8, 50)(folder)
    log = log_dir.read_partition(str(folder))
    staged = [
        str(folder / name(ACTIVE, f"{kind}.a.cleaned")) for kind in ("log", "index", "timeindex")
    ]
    for path in staged:
        Path(path).touch()
    with pytest.raises(LogError, match="a crash left incomplete"):
        check_outputs(log, [NewSegment(ACTIVE, log.segments[-1:], *staged)])


def test_copy_has_no_trace_of_the_kill(folder: Path, tmp_path: Path) -> None:
    cut(ACTIVE, ACTIVE + 8, 50)(folder)
    (folder / name(EACH, "timeindex")).unlink()
    (folder / name(2 * EACH, "index")).unlink()
    (folder / name(7, "index")).touch()
    before = contents(folder)
    report = lastwrite.compact(str(folder), to=str(tmp_path / "to"), now_ms=LATER_MS, spark=INLINE)
    assert report.exit_status == 0 and contents(folder) == before
    copied = log_dir.read_partition(str(tmp_path / "to" / "t-0"))
    assert not copied.problems and copied.end_offset == ACTIVE + 8
    assert read_segments(tmp_path / "to" / "t-0")[-1].batches[-1].base_offset == ACTIVE + 7


# ---------------------------------------------------------------------- indexes


def test_recovery_rebuilds_wrong_indexes(folder: Path) -> None:
    (folder / name(2 * EACH, "index")).write_bytes(b"\0\0\0\x05\0\0\0\x07")
    (folder / name(2 * EACH, "txnindex")).unlink()
    log = log_dir.read_partition(str(folder))
    segment = log.segments[2]
    assert not segment.is_indexed and not segment.is_abort_indexed
    assert (
        len(index_files.read_offset_index(segment)[0])
        == len(index_files.read_time_index(segment)[0])
        == 0
    )
    assert [entry.last_offset for entry in log.aborted] == [19, 59, 99, 139, 179]
    log_dir.recover(str(folder))
    check_indexes(folder, 2 * EACH)
    again = log_dir.read_partition(str(folder))
    assert not again.problems and again.aborted == log.aborted
    assert all(segment.is_indexed and segment.is_abort_indexed for segment in again.segments)


def test_recovery_keeps_correct_files(folder: Path) -> None:
    before = contents(folder)
    log_dir.recover(str(folder))
    assert contents(folder) == before
    (folder / name(2 * EACH, "timeindex")).unlink()
    log_dir.recover(str(folder))
    assert contents(folder) == before


def test_indexes_without_a_segment_are_ignored_and_removed(tmp_path: Path) -> None:
    folder = write_log(tmp_path / "root")
    (folder.parent / "meta.properties").unlink()  # makes the folder part of no log root
    for kind in ("index", "timeindex", "txnindex"):
        (folder / name(7, kind)).write_bytes(b"x")
    log = log_dir.read_partition(str(folder))
    assert kinds(log) == {ProblemKind.RECOVERED} and len(log.problems) == 3
    log_dir.recover(str(folder))
    assert not list(folder.glob(f"{7:020d}.*")) and not log_dir.read_partition(str(folder)).problems


def test_unreadable_snapshot_is_skipped(folder: Path) -> None:
    (folder / name(ACTIVE, "snapshot")).write_bytes(b"\0\1\0\0")
    log = log_dir.read_partition(str(folder))
    assert kinds(log) == {ProblemKind.RECOVERED} and log.end_offset == END


def test_offsets_out_of_order_are_damage(folder: Path) -> None:
    with open(folder / name(ACTIVE), "ab") as log_file:
        log_file.write(batch(ACTIVE + 1))
    log = log_dir.read_partition(str(folder))
    assert ProblemKind.DAMAGED in kinds(log)
    assert any("but the batch before it ends" in problem.message for problem in log.problems)


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.name)
def test_crash_state_is_not_damage_and_reading_changes_nothing(
    tmp_path: Path, state: State
) -> None:
    folder = left_by_crash(tmp_path / "root", state, state.recovery_points[0])
    before = contents(folder)
    log = log_dir.read_partition(str(folder))
    assert kinds(log) <= {ProblemKind.RECOVERED}
    assert lastwrite.inspect(str(folder), now_ms=LATER_MS).exit_status == 0
    assert lastwrite.plan(str(folder), now_ms=LATER_MS, spark=INLINE).exit_status == 0
    assert contents(folder) == before


# ---------------------------------------------------------------------- the walk


def plainly(data: bytes) -> tuple[list[tuple[int, int, int, int, int, int]], int]:
    """The walk in plain Python. Returns the rows and the position where it stops."""
    rows, at = [], 0
    while len(data) - at > 17:
        size = int.from_bytes(data[at + 8 : at + 12], "big", signed=True) + 12
        if size < 26 or at + size > len(data):
            break
        entry, magic = data[at : at + size], data[at + 16]
        if magic < 2 or magic > 127:
            is_true = zlib.crc32(entry[16:]) == int.from_bytes(entry[12:16], "big")
        else:
            crc = google_crc32c.value(entry[21:])
            is_true = size >= 61 and crc == int.from_bytes(entry[17:21], "big")
        if not is_true:
            break
        base = last = int.from_bytes(entry[:8], "big", signed=True)
        timestamp, control = -1, 0
        if 2 <= magic <= 127:
            last += int.from_bytes(entry[23:27], "big", signed=True)
            timestamp, control = (
                int.from_bytes(entry[35:43], "big", signed=True),
                entry[22] >> 5 & 1,
            )
        elif magic == 1:
            timestamp = int.from_bytes(entry[18:26], "big", signed=True)
        rows.append((at, size, base, last, timestamp, control))
        at += size
    return rows, at


def mixture(rng: random.Random) -> bytes:
    """Entries of all magics, some of them broken, followed by other bytes."""
    whole = bytearray()
    for offset in range(rng.randint(0, 9)):
        record = ModelRecord(offset, 1000 + offset, b"k", bytes(rng.randint(0, 200)))
        magic = rng.choice([0, 1, 2, 2])
        if magic == 2:
            whole += encode_batch([Record(offset, 1000 + offset, b"k", bytes(rng.randint(0, 200)))])
        else:
            record = replace(record, timestamp_ms=record.timestamp_ms if magic else -1)
            whole += encode_model(
                ModelBatch(offset, offset, (record,), magic=magic, max_timestamp_ms=1000 + offset)
            )
    if whole and rng.random() < 0.5:
        whole[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
    return bytes(whole) + rng.choice(
        [b"", bytes(rng.randint(1, 90)), rng.randbytes(rng.randint(1, 90))]
    )


@pytest.mark.parametrize("seed", range(40))
def test_walk_stops_where_the_slow_model_stops(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = mixture(random.Random(seed))
    rows = np.empty((100, proof_walk.COLUMNS), dtype=np.int64)
    filled, at, _, _ = proof_walk.walk_proven(np.frombuffer(data, dtype=np.uint8), len(data), rows)
    expected, end = plainly(data)
    assert ([tuple(row) for row in rows[:filled].tolist()], at) == (expected, end)
    # The result is the same with windows smaller than an entry and with checksums computed in
    # portions.
    path = tmp_path / "log"
    path.write_bytes(data)
    for window, large in ((64, 1 << 20), (64, 20)):
        monkeypatch.setattr(unclean_shutdown, "_WINDOW_BYTES", window)
        monkeypatch.setattr(unclean_shutdown, "_LARGE_BYTES", large)
        walk = unclean_shutdown._Entries(str(path), len(data))
        found = [tuple(row) for portion in walk for row in portion.tolist()]
        assert found == expected and (walk.error is None) == (end == len(data))
        assert walk.error is None or walk.error.at == end


def test_file_that_shrinks_during_the_walk_is_a_conflict(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(batch(0))
    with pytest.raises(CommitConflict, match="truncated the segment"):
        list(unclean_shutdown._Entries(str(path), 10_000))
