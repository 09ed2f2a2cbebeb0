"""A folder like a killed broker left it: we see the log that Kafka's own loader ends with, in every state of S.17.

For each state Kafka's loader opens a copy. Its log end, log start, segments, their sizes and largest timestamps are
those that we list for the original. Then ``recover`` puts another copy in order, and ``compact`` cleans a third: the
loader still comes to the same end, and to the same last value of each key.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import lastwrite
from lastwrite.logstore import kafka
from lastwrite.model.log import PartitionLog, ProblemKind
from lastwrite.pipeline.inline import INLINE
from tests.conformance.oracle import Oracle
from tests.killed import EACH, LATER_MS, STATES, State, left_by_crash
from tests.logs import bases, check_indexes, read_segments
from tests.model import records_of


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


def loaded(oracle: Oracle, folder: Path, recovery_point: int) -> dict[str, object]:
    """What Kafka's loader makes of the folder, which it changes."""
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
    """The same of our listing."""
    assert all(problem.kind is ProblemKind.RECOVERED for problem in log.problems), log.problems
    segments = [(one.base_offset, one.size_bytes, one.largest_timestamp_ms) for one in log.segments]
    if not segments:  # a broker makes one where the log starts; its file is as old as it is
        segments = [(log.log_start, 0, 0)]
    return {"log_start": log.log_start, "log_end": log.end_offset, "segments": segments}


def without_file_times(found: dict[str, object]) -> dict[str, object]:
    """The largest timestamp of a segment without timestamps is its file's, which a loader touches where it cuts."""
    segments = found["segments"]
    assert isinstance(segments, list)
    empty = {base for base, size, _ in segments if not size}
    return found | {
        "segments": [(b, size, 0 if b in empty else time) for b, size, time in segments]
    }


def table(folder: Path, log_start: int) -> dict[bytes | None, bytes | None]:
    """The last value of each key, control records and aborted ones aside."""
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
def test_we_see_what_kafkas_loader_ends_with(
    tmp_path: Path, oracle: Oracle, state: State, recovery_point: int
) -> None:
    folder = left_by_crash(tmp_path / "root", state, recovery_point)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    log = kafka.read_partition(str(folder))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before, (
        "looking changes nothing"
    )

    shutil.copytree(folder.parent, tmp_path / "kafkas")
    theirs = loaded(oracle, tmp_path / "kafkas" / "t-0", recovery_point)
    assert without_file_times(seen(log)) == without_file_times(theirs)

    shutil.copytree(folder.parent, tmp_path / "recovered")
    kafka.recover(str(tmp_path / "recovered" / "t-0"))
    again = kafka.read_partition(str(tmp_path / "recovered" / "t-0"))
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
    copied = kafka.read_partition(str(tmp_path / "to" / "t-0"))
    assert all("snapshot" in problem.path for problem in copied.problems), copied.problems
    assert lastwrite.verify(str(tmp_path / "to" / "t-0"), spark=INLINE).exit_status == 0
    assert (copied.log_start, copied.end_offset) == (log.log_start, log.end_offset)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before

    shutil.copytree(folder.parent, tmp_path / "compacted")
    report = lastwrite.compact(str(tmp_path / "compacted"), now_ms=LATER_MS, spark=INLINE)
    assert report.exit_status == 0, report.partitions[0].reason
    ours = loaded(oracle, tmp_path / "compacted" / "t-0", recovery_point)
    assert (ours["log_start"], ours["log_end"]) == (theirs["log_start"], theirs["log_end"])
    start = log.log_start
    assert table(tmp_path / "compacted" / "t-0", start) == table(tmp_path / "kafkas" / "t-0", start)
    assert bases(tmp_path / "compacted" / "t-0")[-1] == bases(tmp_path / "kafkas" / "t-0")[-1]
