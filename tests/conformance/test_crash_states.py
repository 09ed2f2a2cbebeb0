"""Tests of a killed broker's log in all states of docs/formats/kafka-cleaning.md, "Loading a log".

Kafka's loader opens a copy. Its log end, log start, segments, sizes and largest timestamps must
equal those that Lastwrite lists for the original. Then ``recover`` repairs another copy and
``compact`` cleans a third. The loader must accept both.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import lastwrite
from lastwrite.kafka.format.remedy import REBUILD, RESTORE
from lastwrite.kafka.recovery.lost_records import (
    recovery_checkpoint_offset,
    recovery_end_offset,
    recovery_truncation_offset,
)
from lastwrite.kafka.store import log_dir
from lastwrite.model.log import PartitionLog, ProblemKind
from lastwrite.spark.inline import INLINE
from tests.support.files import contents
from tests.support.kafka.killed import (
    ACTIVE,
    BASES,
    EACH,
    END,
    LATER_MS,
    LOSSES,
    STATES,
    TORN,
    Harm,
    Loss,
    State,
    left_by_crash,
    name,
    put,
    remove,
)
from tests.support.kafka.logs import bases, check_indexes, read_segments
from tests.support.kafka.model import records_of
from tests.support.kafka.oracle import Oracle


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    judge = Oracle()
    yield judge
    judge.close()


CASES = [
    pytest.param(s, point, id=f"{s.name}, flushed to {point}")
    for s in STATES
    for point in s.recovery_points
]


LOST = [
    pytest.param(s, point, id=f"{s.name}, flushed to {point}")
    for s in LOSSES
    for point in s.recovery_points
]


def loaded(oracle: Oracle, folder: Path, recovery_point: int) -> dict[str, object]:
    """Load the folder with Kafka's loader, which may change it.

    Returns the log's bounds and segments.
    """
    starts = folder.parent / "log-start-offset-checkpoint"
    start = int(starts.read_text().split()[-1]) if starts.exists() else 0
    answer = oracle.ask(
        "load",
        dir=str(folder),
        clean_shutdown=False,
        recovery_point=recovery_point,
        log_start=start,
    )
    return {key: answer[key] for key in ("log_start", "log_end")} | {
        "segments": [
            (one["base"], one["size"], one["largest_timestamp"]) for one in answer["segments"]
        ]
    }


def seen(log: PartitionLog) -> dict[str, object]:
    """The log's bounds and segments as Lastwrite lists them."""
    assert all(problem.kind is ProblemKind.RECOVERED for problem in log.problems), log.problems
    segments = [(one.base_offset, one.size_bytes, one.largest_timestamp_ms) for one in log.segments]
    # a broker creates a segment at the log start; its largest timestamp is the file's time
    if not segments:
        segments = [(log.log_start, 0, 0)]
    return {"log_start": log.log_start, "log_end": log.end_offset, "segments": segments}


def without_file_times(found: dict[str, object]) -> dict[str, object]:
    """The bounds with timestamp 0 for empty segments.

    For a segment without timestamps, Kafka takes the file's time, which changes when the loader
    truncates it.
    """
    segments = found["segments"]
    assert isinstance(segments, list)
    empty = {base for base, size, _ in segments if not size}
    return found | {
        "segments": [(b, size, 0 if b in empty else time) for b, size, time in segments]
    }


def table(folder: Path, log_start: int) -> dict[bytes | None, bytes | None]:
    """The last value of each key, without control records and aborted records."""
    found: dict[bytes | None, bytes | None] = {}
    for record in records_of(read_segments(folder)):
        is_data = (
            record.key is not None
            and record.key.startswith(b"k")
            and record.offset % 40 not in (17, 18)
        )
        if is_data and record.offset >= log_start:
            found[record.key] = record.value
    return found


@pytest.mark.parametrize(("state", "recovery_point"), CASES)
def test_log_equals_the_result_of_kafkas_loader(
    tmp_path: Path, oracle: Oracle, state: State, recovery_point: int
) -> None:
    folder = left_by_crash(tmp_path / "root", state, recovery_point)
    before = contents(folder)
    log = log_dir.read_partition(str(folder))
    assert contents(folder) == before, "looking changes nothing"

    shutil.copytree(folder.parent, tmp_path / "kafkas")
    theirs = loaded(oracle, tmp_path / "kafkas" / "t-0", recovery_point)
    assert without_file_times(seen(log)) == without_file_times(theirs)

    shutil.copytree(folder.parent, tmp_path / "recovered")
    log_dir.recover(str(tmp_path / "recovered" / "t-0"))
    again = log_dir.read_partition(str(tmp_path / "recovered" / "t-0"))
    assert seen(again) == seen(log)
    for segment in again.segments[:-1]:
        assert segment.is_indexed
        if "no time index" not in state.name or segment.base_offset + EACH > recovery_point:
            check_indexes(tmp_path / "recovered" / "t-0", segment.base_offset)
    put_in_order = loaded(oracle, tmp_path / "recovered" / "t-0", recovery_point)
    assert without_file_times(put_in_order) == without_file_times(theirs)

    for report in (
        lastwrite.plan(str(folder), now_ms=LATER_MS, spark=INLINE),
        lastwrite.inspect(str(folder), now_ms=LATER_MS),
        lastwrite.verify(str(folder), spark=INLINE),
        lastwrite.compact(str(folder), to=str(tmp_path / "to"), now_ms=LATER_MS, spark=INLINE),
    ):
        assert report.exit_status == 0, report.to_dict()
    copied = log_dir.read_partition(str(tmp_path / "to" / "t-0"))
    assert all("snapshot" in problem.path for problem in copied.problems), copied.problems
    assert lastwrite.verify(str(tmp_path / "to" / "t-0"), spark=INLINE).exit_status == 0
    assert (copied.log_start, copied.end_offset) == (log.log_start, log.end_offset)
    assert contents(folder) == before

    shutil.copytree(folder.parent, tmp_path / "compacted")
    report = lastwrite.compact(
        str(tmp_path / "compacted"), topic="t", now_ms=LATER_MS, spark=INLINE
    )
    assert report.exit_status == 0, report.partitions[0].reason
    ours = loaded(oracle, tmp_path / "compacted" / "t-0", recovery_point)
    assert (ours["log_start"], ours["log_end"]) == (theirs["log_start"], theirs["log_end"])
    start = log.log_start
    assert table(tmp_path / "compacted" / "t-0", start) == table(tmp_path / "kafkas" / "t-0", start)
    assert bases(tmp_path / "compacted" / "t-0")[-1] == bases(tmp_path / "kafkas" / "t-0")[-1]


@pytest.mark.parametrize(("loss", "recovery_point"), LOST)
def test_remedy_states_the_truncation_of_kafkas_loader(
    tmp_path: Path, oracle: Oracle, loss: Loss, recovery_point: int
) -> None:
    folder = left_by_crash(tmp_path / "root", loss, recovery_point)
    before = bases(folder)
    (damage,) = [
        p for p in log_dir.read_partition(str(folder)).problems if p.kind is ProblemKind.DAMAGED
    ]
    theirs = loaded(oracle, folder, recovery_point)
    assert isinstance(theirs["segments"], list) and damage.remedy is not None
    left = [base for base, _, _ in theirs["segments"]]
    removed = [base for base in before if base not in left]
    starts = folder.parent / "log-start-offset-checkpoint"
    log_start = int(starts.read_text().split()[-1]) if starts.exists() else 0
    if loss.ends is None:
        assert (left, theirs["log_end"]) == (before, before[-1] + END - ACTIVE)
        assert damage.remedy == RESTORE
        return
    assert (theirs["log_end"], len(removed)) == (loss.ends, loss.removed)
    offset = loss.missing[0] if loss.missing else loss.ends
    remedy = damage.remedy.partition("; if that line is older than this log")[0]
    assert remedy in (
        recovery_truncation_offset(offset, removed, log_start),
        recovery_end_offset(offset, log_start),
    )
    assert f"offset {loss.ends}" in remedy


# ---------------------------------------------------------------------- other remedies


def after_an_orderly_shutdown(root: Path, state: State) -> Path:
    folder = left_by_crash(root, state, END)
    (root / ".kafka_cleanshutdown").touch()
    for kind in ("index", "timeindex"):  # a clean shutdown trims them to their entries
        (folder / name(ACTIVE, kind)).write_bytes(b"")
    return folder


def test_broker_truncates_a_torn_tail_only_after_an_unclean_shutdown(
    tmp_path: Path, oracle: Oracle
) -> None:
    folder = after_an_orderly_shutdown(tmp_path / "root", State("", [TORN]))
    shutil.copytree(tmp_path / "root", tmp_path / "copy")
    (damage,) = log_dir.read_partition(str(folder)).problems
    assert damage.remedy == recovery_checkpoint_offset(ACTIVE + 8)
    size = (folder / name(ACTIVE)).stat().st_size
    answer = oracle.ask("load", dir=str(folder), clean_shutdown=True, recovery_point=END)
    assert (answer["log_end"], answer["segments"][-1]["size"]) == (ACTIVE + 8, size), (
        "it writes behind what is torn"
    )
    # As the remedy says: without the clean-shutdown file, Kafka truncates the log there, and no
    # more.
    answer = oracle.ask(
        "load", dir=str(tmp_path / "copy" / "t-0"), clean_shutdown=False, recovery_point=END
    )
    assert (answer["log_end"], answer["segments"][-1]["size"]) == (ACTIVE + 8, size - 50)
    assert [one["base"] for one in answer["segments"]] == bases(tmp_path / "copy" / "t-0") == BASES


@pytest.mark.parametrize(
    "harm",
    [
        put(name(2 * EACH, "index"), b"\0\0\0\x05\0\0\0\x07"),
        put(name(2 * EACH, "timeindex"), bytes(11) + b"\x20"),
        put(name(2 * EACH, "txnindex"), bytes(34)),
        remove(name(2 * EACH, "index")),
        remove(name(2 * EACH, "timeindex")),
    ],
    ids=["offset index", "time index", "transaction index", "no offset index", "no time index"],
)
def test_broker_rebuilds_missing_indexes(tmp_path: Path, oracle: Oracle, harm: Harm) -> None:
    whole = after_an_orderly_shutdown(tmp_path / "whole", State("", []))
    folder = after_an_orderly_shutdown(tmp_path / "root", State("", [harm]))
    report = lastwrite.verify(str(folder), spark=INLINE)
    assert report.exit_status == 3
    assert {problem.remedy for problem in report.partitions[0].problems} == {REBUILD}
    for kind in ("index", "timeindex", "txnindex"):
        (folder / name(2 * EACH, kind)).unlink(missing_ok=True)
    answer = oracle.ask("load", dir=str(folder), clean_shutdown=True, recovery_point=END)
    assert answer["log_end"] == END
    for kind in ("log", "txnindex"):
        assert (folder / name(2 * EACH, kind)).read_bytes() == (
            whole / name(2 * EACH, kind)
        ).read_bytes()
    check_indexes(folder, 2 * EACH)
    assert lastwrite.verify(str(folder), spark=INLINE).exit_status == 0


def test_broker_replaces_a_missing_time_index_by_an_empty_one(
    tmp_path: Path, oracle: Oracle
) -> None:
    """Retention would then use the file's time."""
    folder = after_an_orderly_shutdown(
        tmp_path / "root", State("", [remove(name(2 * EACH, "timeindex"))])
    )
    oracle.ask("load", dir=str(folder), clean_shutdown=True, recovery_point=END)
    assert (folder / name(2 * EACH, "timeindex")).read_bytes() == b""
