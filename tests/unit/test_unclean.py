"""What a killed broker left, without Kafka's loader; with it: ``tests/conformance/test_crash_states``."""

from __future__ import annotations

import os
import random
import zlib
from dataclasses import replace
from pathlib import Path

import google_crc32c
import numpy as np
import pytest

import lastwrite
from lastwrite.errors import CommitConflict, LogError
from lastwrite.formats.kafka import proof_walk
from lastwrite.formats.kafka.batch import Record, encode_batch
from lastwrite.logstore import kafka, unclean
from lastwrite.logstore.outputs import Output, check_outputs, check_unchanged
from lastwrite.model.log import PartitionLog, ProblemKind
from lastwrite.pipeline.inline import INLINE
from tests.killed import (
    ACTIVE,
    EACH,
    END,
    LATER_MS,
    STATES,
    State,
    batch,
    cut,
    left_by_crash,
    name,
    put_at,
    write_log,
)
from tests.logs import check_indexes, encode_model, read_segments, write_checkpoint
from tests.model import ModelBatch, ModelRecord


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = write_log(tmp_path / "root")
    write_checkpoint(folder.parent, "recovery-point-offset-checkpoint", {"t-0": EACH + 10})
    return folder


def kinds(log: PartitionLog) -> set[ProblemKind]:
    return {problem.kind for problem in log.problems}


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


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
def test_only_the_root_of_a_broker_tells_of_a_kill(
    tmp_path: Path, files: list[str], was_killed: bool
) -> None:
    for file in files:
        (tmp_path / file).touch()
    assert unclean.was_killed(str(tmp_path)) is was_killed


def test_the_same_torn_tail_is_damage_where_nobody_was_killed(folder: Path) -> None:
    cut(ACTIVE, ACTIVE + 8, 50)(folder)
    log = kafka.read_partition(str(folder))
    assert kinds(log) == {ProblemKind.RECOVERED}
    assert (log.end_offset, log.segments[-1].torn_bytes, log.is_torn) == (ACTIVE + 8, 50, True)
    assert log.segments[-1].file_bytes == os.stat(folder / name(ACTIVE)).st_size
    (folder.parent / ".kafka_cleanshutdown").touch()
    assert kinds(kafka.read_partition(str(folder))) == {ProblemKind.DAMAGED}


def test_below_the_recovery_point_it_is_damage_and_nothing_is_mended(folder: Path) -> None:
    put_at(EACH, EACH + 9, 65, b"\xff")(folder)
    (folder / name(0, "index")).unlink()
    before = files_of(folder)
    log = kafka.read_partition(str(folder))
    assert ProblemKind.DAMAGED in kinds(log)
    kafka.recover(str(folder))
    assert files_of(folder) == before
    # One batch further on it is what the kill left.
    write_checkpoint(folder.parent, "recovery-point-offset-checkpoint", {"t-0": EACH + 9})
    assert kinds(kafka.read_partition(str(folder))) == {ProblemKind.RECOVERED}


def test_a_recovery_point_that_cannot_be_read_says_nothing(folder: Path) -> None:
    (folder.parent / "recovery-point-offset-checkpoint").write_text("0\n1\nt 0 x\n")
    put_at(0, 5, 65, b"\xff")(folder)
    log = kafka.read_partition(str(folder))
    assert kinds(log) == {ProblemKind.RECOVERED} and log.end_offset == 5


# ---------------------------------------------------------------------- what is not seen


def test_segments_behind_the_end_are_neither_seen_nor_touched(folder: Path, tmp_path: Path) -> None:
    cut(EACH, EACH + 30, 7)(folder)
    behind = {base: (folder / name(base)).read_bytes() for base in (EACH, 2 * EACH, ACTIVE)}
    log = kafka.read_partition(str(folder))
    assert [segment.base_offset for segment in log.segments] == [0, EACH]
    assert log.end_offset == EACH + 30 and log.unseen == (name(2 * EACH), name(ACTIVE))
    check_unchanged(log)
    config = {"cleanup.policy": "compact,delete", "retention.ms": 1, "min.cleanable.dirty.ratio": 0}
    report = lastwrite.compact(
        str(folder), config=config, now_ms=LATER_MS, include_active=True, spark=INLINE
    )
    assert report.exit_status == 0
    assert {base: (folder / name(base)).read_bytes() for base in behind} == behind
    again = kafka.read_partition(str(folder))
    assert (again.end_offset, again.unseen) == (log.end_offset, log.unseen)
    (folder / name(END)).touch()
    with pytest.raises(CommitConflict, match="the segment came"):
        check_unchanged(again)


def test_no_new_segment_replaces_one_that_was_cut_short(folder: Path) -> None:
    cut(ACTIVE, ACTIVE + 8, 50)(folder)
    log = kafka.read_partition(str(folder))
    aside = [
        str(folder / name(ACTIVE, f"{kind}.a.cleaned")) for kind in ("log", "index", "timeindex")
    ]
    for path in aside:
        Path(path).touch()
    with pytest.raises(LogError, match="a crash cut short"):
        check_outputs(log, [Output(ACTIVE, log.segments[-1:], *aside)])


def test_a_copy_has_no_trace_of_the_kill(folder: Path, tmp_path: Path) -> None:
    cut(ACTIVE, ACTIVE + 8, 50)(folder)
    (folder / name(EACH, "timeindex")).unlink()
    (folder / name(2 * EACH, "index")).unlink()
    (folder / name(7, "index")).touch()
    before = files_of(folder)
    report = lastwrite.compact(str(folder), to=str(tmp_path / "to"), now_ms=LATER_MS, spark=INLINE)
    assert report.exit_status == 0 and files_of(folder) == before
    copied = kafka.read_partition(str(tmp_path / "to" / "t-0"))
    assert not copied.problems and copied.end_offset == ACTIVE + 8
    assert read_segments(tmp_path / "to" / "t-0")[-1].batches[-1].base_offset == ACTIVE + 7


# ---------------------------------------------------------------------- indexes


def test_nobody_looks_into_an_index_that_lies_and_recovery_makes_it_anew(folder: Path) -> None:
    (folder / name(2 * EACH, "index")).write_bytes(b"\0\0\0\x05\0\0\0\x07")
    (folder / name(2 * EACH, "txnindex")).unlink()
    log = kafka.read_partition(str(folder))
    segment = log.segments[2]
    assert not segment.is_indexed and not segment.is_abort_indexed
    assert len(kafka.read_offset_index(segment)[0]) == len(kafka.read_time_index(segment)[0]) == 0
    assert [entry.last_offset for entry in log.aborted] == [19, 59, 99, 139, 179]
    kafka.recover(str(folder))
    check_indexes(folder, 2 * EACH)
    again = kafka.read_partition(str(folder))
    assert not again.problems and again.aborted == log.aborted
    assert all(segment.is_indexed and segment.is_abort_indexed for segment in again.segments)


def test_recovery_leaves_what_is_true(folder: Path) -> None:
    before = files_of(folder)
    kafka.recover(str(folder))
    assert files_of(folder) == before
    (folder / name(2 * EACH, "timeindex")).unlink()
    kafka.recover(str(folder))
    assert files_of(folder) == before


def test_indexes_without_their_segment_never_count_and_are_removed(tmp_path: Path) -> None:
    folder = write_log(tmp_path / "root")
    (folder.parent / "meta.properties").unlink()  # nobody's root
    for kind in ("index", "timeindex", "txnindex"):
        (folder / name(7, kind)).write_bytes(b"x")
    log = kafka.read_partition(str(folder))
    assert kinds(log) == {ProblemKind.RECOVERED} and len(log.problems) == 3
    kafka.recover(str(folder))
    assert not list(folder.glob(f"{7:020d}.*")) and not kafka.read_partition(str(folder)).problems


def test_a_snapshot_that_cannot_be_read_is_passed_over(folder: Path) -> None:
    (folder / name(ACTIVE, "snapshot")).write_bytes(b"\0\1\0\0")
    log = kafka.read_partition(str(folder))
    assert kinds(log) == {ProblemKind.RECOVERED} and log.end_offset == END


def test_a_log_that_ends_before_its_start_is_empty_and_stays_as_it_is(folder: Path) -> None:
    write_checkpoint(folder.parent, "log-start-offset-checkpoint", {"t-0": END + 5})
    before = files_of(folder)
    log = kafka.read_partition(str(folder))
    assert (log.segments, log.log_start, log.end_offset) == ((), END + 5, END + 5)
    report = lastwrite.compact(str(folder), now_ms=LATER_MS, spark=INLINE)
    assert report.exit_status == 0 and files_of(folder) == before
    assert "t 0" in (folder.parent / "log-start-offset-checkpoint").read_text()


def test_out_of_order_where_a_broker_notices_nothing_is_damage(folder: Path) -> None:
    with open(folder / name(ACTIVE), "ab") as log_file:
        log_file.write(batch(ACTIVE + 1))
    log = kafka.read_partition(str(folder))
    assert ProblemKind.DAMAGED in kinds(log)
    assert any("comes after" in problem.message for problem in log.problems)


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.name)
def test_no_state_is_damage_and_looking_changes_nothing(tmp_path: Path, state: State) -> None:
    folder = left_by_crash(tmp_path / "root", state, state.recovery_points[0])
    before = files_of(folder)
    log = kafka.read_partition(str(folder))
    assert kinds(log) <= {ProblemKind.RECOVERED}
    assert lastwrite.inspect(str(folder), now_ms=LATER_MS).exit_status == 0
    assert lastwrite.plan(str(folder), now_ms=LATER_MS, spark=INLINE).exit_status == 0
    assert files_of(folder) == before


# ---------------------------------------------------------------------- the walk


def plainly(data: bytes) -> tuple[list[tuple[int, int, int, int, int, int]], int]:
    """The walk in plain Python: rows, and the position where it stops."""
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
    """Entries of all magics, some of them broken, and something behind."""
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
def test_the_walk_stops_where_its_slow_twin_does(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = mixture(random.Random(seed))
    rows = np.empty((100, proof_walk.COLUMNS), dtype=np.int64)
    filled, at, _, _ = proof_walk.walk_proven(np.frombuffer(data, dtype=np.uint8), len(data), rows)
    expected, end = plainly(data)
    assert ([tuple(row) for row in rows[:filled].tolist()], at) == (expected, end)
    # Through windows that hold no entry, and with checksums taken in portions, it is the same.
    path = tmp_path / "log"
    path.write_bytes(data)
    for window, large in ((64, 1 << 20), (64, 20)):
        monkeypatch.setattr(unclean, "_WINDOW_BYTES", window)
        monkeypatch.setattr(unclean, "_LARGE_BYTES", large)
        walk = unclean._Entries(str(path), len(data))
        found = [tuple(row) for portion in walk for row in portion.tolist()]
        assert found == expected and (walk.error is None) == (end == len(data))
        assert walk.error is None or walk.error.at == end


def test_a_file_that_shrinks_under_the_walk_is_a_conflict(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(batch(0))
    with pytest.raises(CommitConflict, match="shrank"):
        list(unclean._Entries(str(path), 10_000))
