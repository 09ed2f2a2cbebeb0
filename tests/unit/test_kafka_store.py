"""Tests of finding and reading Kafka's log directories, and of problems reported by
file and byte.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import lastwrite
from lastwrite.encoding.compression import Codec
from lastwrite.errors import NotALog
from lastwrite.kafka.format.batch import encode_batch
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.kafka.store import index_files, log_dir, partitions, root_state
from lastwrite.model.log import PartitionLog, ProblemKind, TopicPartition
from lastwrite.reports.compaction import Status
from lastwrite.spark.inline import INLINE
from tests.support.kafka.crashing import (
    CLOCK_MS,
    INTERVAL_BYTES,
    Layout,
    batch,
    contents,
    write_layout,
)
from tests.support.kafka.logs import write_checkpoint, write_segment
from tests.support.kafka.old_entries import encode_message, encode_wrapper

LAYOUT = Layout(
    "", {0: range(20), 20: range(20, 30), 40: range(40, 45)}, [], set(), 0, snapshots=[20, 40, 45]
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_layout(tmp_path, LAYOUT)


# ---------------------------------------------------------------------- finding


def names(found: list[str]) -> list[str]:
    return [os.path.basename(folder) for folder in found]


def test_partitions_are_found_from_a_root_a_folder_and_a_file(folder: Path) -> None:
    root = folder.parent
    assert names(partitions.find_partitions(str(root))) == ["t-0", "u-3"]
    assert partitions.find_partitions(str(folder)) == [str(folder)]
    assert partitions.find_partitions(str(folder / f"{20:020d}.log")) == [str(folder)]
    assert partitions.find_partitions(os.path.relpath(folder)) == [str(folder)]


def test_topic_and_partition_narrow_the_selection(folder: Path) -> None:
    root = folder.parent
    for name in ("t-2", "t-10", "a-b.c-7"):
        write_segment(root / name, 0, [])
    assert names(partitions.find_partitions(str(root), "t")) == ["t-0", "t-2", "t-10"]
    assert names(partitions.find_partitions(str(root), "a-b.c")) == ["a-b.c-7"]
    assert names(partitions.find_partitions(str(root), "t", 2)) == ["t-2"]
    assert names(partitions.find_partitions(str(root), None, 3)) == ["u-3"]
    assert names(partitions.find_partitions(str(root), ["u", "a-b.*"])) == ["a-b.c-7", "u-3"]
    with pytest.raises(NotALog, match="t has no partition 9 — there are: 0, 2, 10"):
        partitions.find_partitions(str(root), "t", 9)
    with pytest.raises(NotALog, match="no topic 'x' — there are: a-b.c, t, u"):
        partitions.find_partitions(str(root), "x")


def test_folders_that_kafka_ignores_are_skipped(folder: Path) -> None:
    root = folder.parent
    drawn = "0123456789abcdef0123456789abcdef"
    for name in (
        f"t-1.{drawn}-delete",
        f"t-0.{drawn}-future",
        f"t-1.{drawn}-stray",
        "__cluster_metadata-0",
        "notes",
    ):
        write_segment(root / name, 0, [])
    (root / "remote-log-index-cache").mkdir()
    (root / "empty-0").mkdir()
    assert names(partitions.find_partitions(str(root))) == ["t-0", "u-3"]


def test_path_without_a_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotALog, match="no such file"):
        partitions.find_partitions(str(tmp_path / "nothing"))
    with pytest.raises(NotALog, match="no Kafka partition"):
        partitions.find_partitions(str(tmp_path))
    (tmp_path / "note.txt").touch()
    with pytest.raises(NotALog, match="the file is not a part of a Kafka log"):
        partitions.find_partitions(str(tmp_path / "note.txt"))
    write_segment(tmp_path / "segments", 0, [])
    with pytest.raises(NotALog, match="rename the folder"):
        partitions.find_partitions(str(tmp_path / "segments"))
    write_segment(tmp_path / "__cluster_metadata-0", 0, [])
    with pytest.raises(NotALog, match="compact by snapshots"):
        partitions.find_partitions(str(tmp_path / "__cluster_metadata-0"))


# ---------------------------------------------------------------------- reading


@pytest.mark.parametrize("state", ["delete", "stray", "future"])
def test_disowned_folder_is_read_without_the_live_ones_checkpoints(
    folder: Path, state: str
) -> None:
    other = folder.with_name(f"t-0.0123456789abcdef0123456789abcdef-{state}")
    shutil.copytree(folder, other)
    write_checkpoint(folder.parent, "cleaner-offset-checkpoint", {"t-0": 40})
    write_checkpoint(folder.parent, "log-start-offset-checkpoint", {"t-0": 20})
    assert log_dir.read_partition(str(folder)).log_start == 20
    log = log_dir.read_partition(str(other))
    assert (log.name, log.log_start, log.checkpoint) == (TopicPartition("t", 0), 0, None)
    assert not log.problems
    before = contents(folder.parent)
    [report] = lastwrite.compact(
        str(other), config={"cleanup.policy": "compact,delete"}, spark=INLINE
    ).partitions
    assert report.status is Status.FAILED and "the partition is not compacted" in str(report.reason)
    after = contents(folder.parent)
    assert {name: after[name] for name in before} == before


def test_stale_cleaner_checkpoint_is_named_with_its_line(folder: Path) -> None:
    write_checkpoint(folder.parent, "cleaner-offset-checkpoint", {"t-0": 99})
    [problem] = log_dir.read_partition(str(folder)).problems
    assert "(cleaner-offset-checkpoint, line 't 0 99')" in problem.message
    assert "stop the broker and remove the line" in str(problem.remedy)


def test_partition_is_read_without_changes_on_disk(folder: Path) -> None:
    before = contents(folder.parent)
    log = log_dir.read_partition(str(folder))
    assert log.name == TopicPartition("t", 0) and log.folder == str(folder)
    assert [segment.base_offset for segment in log.segments] == [0, 20, 40]
    assert (log.log_start, log.end_offset, log.high_watermark, log.checkpoint) == (0, 45, 45, 0)
    assert not log.problems
    first = log.segments[0]
    assert first.size_bytes == os.stat(first.path).st_size
    assert first.mtime_ms == CLOCK_MS
    assert first.largest_timestamp_ms == CLOCK_MS + 19
    assert first.first_batch_timestamp_ms == CLOCK_MS
    assert first.index_bytes == os.stat(folder / f"{0:020d}.index").st_size > 0
    assert first.time_index_bytes == os.stat(folder / f"{0:020d}.timeindex").st_size > 0
    assert contents(folder.parent) == before


def test_checkpoints_limit_the_log(folder: Path) -> None:
    root = folder.parent
    write_checkpoint(root, "replication-offset-checkpoint", {"t-0": 41})
    write_checkpoint(root, "log-start-offset-checkpoint", {"t-0": 12})
    write_checkpoint(root, "cleaner-offset-checkpoint", {"t-0": 20})
    log = log_dir.read_partition(str(folder))
    assert (log.log_start, log.end_offset, log.high_watermark, log.checkpoint) == (12, 45, 41, 20)
    write_checkpoint(root, "replication-offset-checkpoint", {"t-0": 99})
    assert log_dir.read_partition(str(folder)).high_watermark == 45
    for file in root.glob("*-checkpoint"):
        file.unlink()
    log = log_dir.read_partition(str(folder))
    assert (log.log_start, log.high_watermark, log.checkpoint) == (0, 45, None)


def test_active_segment_may_have_preallocated_or_missing_indexes(folder: Path) -> None:
    for kind, entry in ((".index", 8), (".timeindex", 12)):
        path = folder / f"{40:020d}{kind}"
        path.write_bytes(path.read_bytes().ljust(1000 * entry, b"\0"))
    log = log_dir.read_partition(str(folder))
    assert not log.problems and log.end_offset == 45
    assert (
        log.segments[-1].index_bytes < 100
        and log.segments[-1].largest_timestamp_ms == CLOCK_MS + 44
    )
    # A new time index without entries: the scan of the segment finds the largest timestamp.
    (folder / f"{40:020d}.timeindex").write_bytes(bytes(1200))
    assert log_dir.read_partition(str(folder)).segments[-1].largest_timestamp_ms == CLOCK_MS + 44


def test_empty_active_segment_needs_no_index(folder: Path) -> None:
    (folder / f"{60:020d}.log").touch()
    log = log_dir.read_partition(str(folder))
    assert not log.problems and log.end_offset == 60
    assert log.segments[-1].first_batch_timestamp_ms is None


def test_long_active_segment_is_walked_from_its_last_index_entry(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    write_segment(folder, 7, [batch(offset) for offset in range(7, 1007)], INTERVAL_BYTES)
    log = log_dir.read_partition(str(folder))
    assert log.end_offset == 1007 and not log.problems
    # A wrong index does not hide the end of the log.
    index = folder / f"{7:020d}.index"
    index.write_bytes(
        index.read_bytes()[:-8] + (3000).to_bytes(4, "big") + (100).to_bytes(4, "big")
    )
    assert log_dir.read_partition(str(folder)).end_offset == 1007


def test_no_file_is_opened_twice(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A root may have ten thousand partitions, so each open counts."""
    write_checkpoint(folder.parent, "replication-offset-checkpoint", {"t-0": 45})
    opened: list[str] = []
    system_open = os.open

    def counted(path: str, flags: int, mode: int = 0o777) -> int:
        opened.append(path)
        return system_open(path, flags, mode)

    monkeypatch.setattr(os, "open", counted)
    log = log_dir.read_partition(str(folder))
    assert log.end_offset == 45 and not log.problems
    assert f"{folder}/{40:020d}.log" in opened
    assert len(opened) == len({*opened})


@pytest.mark.parametrize("has_producer", [False, True])
def test_producers_are_found_without_a_snapshot(tmp_path: Path, has_producer: bool) -> None:
    """The scan to the log end also finds the producers, so the segment is read only once."""
    producer = 7 if has_producer else -1
    sent = [
        encode_batch([Record(offset, CLOCK_MS, b"k", b"v")], producer_id=each)
        for offset, each in ((0, -1), (1, producer), (2, -1))
    ]
    write_segment(tmp_path / "t-0", 0, sent, 1 << 20)
    log = log_dir.read_partition(str(tmp_path / "t-0"))
    assert log.end_offset == 3 and not log.problems
    assert [each.producer_id for each in log.producers] == ([7] if has_producer else [])


def test_recent_checkpoints_of_a_root_are_reused_briefly(folder: Path) -> None:
    """Listing many partitions reads the root's checkpoints once. After a while they are
    read again.
    """
    root, path = str(folder.parent), str(folder)
    write_checkpoint(folder.parent, "replication-offset-checkpoint", {"t-0": 41})
    seen = root_state.RootState(root)
    assert log_dir.read_partition(path, root=seen).high_watermark == 41
    write_checkpoint(folder.parent, "replication-offset-checkpoint", {"t-0": 43})
    assert log_dir.read_partition(path, root=seen).high_watermark == 41
    recent = root_state.recent(root)
    assert log_dir.read_partition(path, root=recent).high_watermark == 43
    time.sleep(1.5 * root_state.RECENT_S)
    assert root_state.recent(root) is not recent


def test_folder_without_segments_is_an_empty_log(tmp_path: Path) -> None:
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / "leader-epoch-checkpoint").write_text("0\n0\n")
    write_checkpoint(tmp_path, "log-start-offset-checkpoint", {"t-0": 9})
    log = log_dir.read_partition(str(tmp_path / "t-0"))
    assert (log.segments, log.log_start, log.end_offset, log.problems) == ((), 9, 9, ())


def test_indexes_of_a_segment_are_read(folder: Path) -> None:
    segment = log_dir.read_partition(str(folder)).segments[0]
    offsets, positions = index_files.read_offset_index(segment)
    assert len(offsets) == len(positions) == segment.index_bytes // 8 and offsets[0] > 0
    times, ends = index_files.read_time_index(segment)
    assert times[-1] == CLOCK_MS + 19 and ends[-1] == 19
    assert index_files.index_path("/a/00000000000000000000.log") == "/a/00000000000000000000.index"
    assert (
        index_files.time_index_path("/a/00000000000000000000.log.swap")
        == "/a/00000000000000000000.timeindex.swap"
    )
    os.unlink(folder / f"{0:020d}.index")
    assert len(index_files.read_offset_index(segment)[0]) == 0


# ---------------------------------------------------------------------- damage


def cut(name: str, count: int) -> Callable[[Path], None]:
    def harm(folder: Path) -> None:
        os.truncate(folder / name, os.stat(folder / name).st_size - count)

    return harm


def put(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(content) and None


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def overwrite(name: str, at: int, content: bytes) -> Callable[[Path], None]:
    def harm(folder: Path) -> None:
        data = bytearray((folder / name).read_bytes())
        data[at : at + len(content)] = content
        (folder / name).write_bytes(data)

    return harm


LAST, FIRST = f"{40:020d}", f"{0:020d}"
ONE_BATCH = len(batch(40))


@pytest.mark.parametrize(
    ("harm", "file", "position", "words"),
    [
        (cut(f"{LAST}.log", 3), f"{LAST}.log", 4 * ONE_BATCH, "truncated"),
        (put(f"{LAST}.log", batch(40) + b"xyz"), f"{LAST}.log", ONE_BATCH, "truncated"),
        (
            overwrite(f"{LAST}.log", ONE_BATCH + 8, bytes(4)),
            f"{LAST}.log",
            ONE_BATCH + 8,
            "length 0",
        ),
        (
            overwrite(f"{LAST}.log", ONE_BATCH + 16, b"\x09"),
            f"{LAST}.log",
            ONE_BATCH + 16,
            "magic 9",
        ),
        (
            put(f"{LAST}.log", batch(40) + batch(40)),
            f"{LAST}.log",
            ONE_BATCH,
            "not after the batch before it",
        ),
        (overwrite(f"{FIRST}.log", 16, b"\x05"), f"{FIRST}.log", 16, "magic 5"),
        (put(f"{20:020d}.log", batch(19)), f"{20:020d}.log", 0, "base offset 19, below"),
        (cut(f"{FIRST}.index", 3), f"{FIRST}.index", None, "not a multiple of 8"),
        (cut(f"{FIRST}.timeindex", 5), f"{FIRST}.timeindex", None, "not a multiple of 12"),
        (remove(f"{FIRST}.index"), f"{FIRST}.index", None, "is missing"),
        (remove(f"{FIRST}.timeindex"), f"{FIRST}.timeindex", None, "is missing"),
        (
            put(f"{20:020d}.index", b"\0\0\0\1\0\1\0\0"),
            f"{20:020d}.index",
            0,
            "points to byte 65536",
        ),
        (put(f"{LAST}.index", b"\0\0\0\1\0\1\0\0"), f"{LAST}.index", 0, "points to byte 65536"),
        (put("notes.txt", b"hello"), "notes.txt", None, "not a part of a Kafka log"),
        (put("5.log", b""), "5.log", None, "not a part of a Kafka log"),
        (lambda folder: (folder / "folder").mkdir(), "folder", None, "not a part of a Kafka log"),
        (
            put("leader-epoch-checkpoint", b"0\n2\n0 0\n"),
            "leader-epoch-checkpoint",
            8,
            "number of entries is 2",
        ),
        (
            put("partition.metadata", b"version: 0\ntopic_id: x"),
            "partition.metadata",
            11,
            "is not a topic id",
        ),
        (
            put("../cleaner-offset-checkpoint", b"0\n1\nt 0 x\n"),
            "../cleaner-offset-checkpoint",
            4,
            "not a number",
        ),
        (
            put("../replication-offset-checkpoint", b"0\n1\n"),
            "../replication-offset-checkpoint",
            4,
            "number of entries is 1",
        ),
        (
            put("../log-start-offset-checkpoint", b"\xff\n"),
            "../log-start-offset-checkpoint",
            0,
            "not a number",
        ),
    ],
)
def test_damage_is_named_by_file_and_byte(
    folder: Path, harm: Callable[[Path], None], file: str, position: int | None, words: str
) -> None:
    harm(folder)
    problems = log_dir.read_partition(str(folder)).problems
    assert problems, "nothing was noticed"
    is_damage = not words.startswith("magic")
    kind = ProblemKind.DAMAGED if is_damage else ProblemKind.UNSUPPORTED
    assert {problem.kind for problem in problems} == {kind}
    found = [problem for problem in problems if words in problem.message]
    assert found and os.path.normpath(found[0].path) == os.path.normpath(folder / file), problems
    assert position is None or found[0].position == position, found
    assert found[0].remedy is not None or found[0].position is not None


def kinds(log: PartitionLog) -> set[ProblemKind]:
    return {problem.kind for problem in log.problems}


def test_segments_of_old_formats_are_listed(tmp_path: Path) -> None:
    records = [Record(offset, 100 + offset, b"k", b"v") for offset in range(5)]
    write_segment(tmp_path / "t-0", 0, [])
    write_segment(tmp_path / "t-0", 1, [])
    (tmp_path / "t-0" / f"{0:020d}.log").write_bytes(encode_message(records[0], 1))
    entries = [
        encode_wrapper(records[1:3], 1, Codec.LZ4),
        encode_batch(records[3:4]),
        encode_message(records[4], 0),
    ]
    (tmp_path / "t-0" / f"{1:020d}.log").write_bytes(b"".join(entries))
    log = log_dir.read_partition(str(tmp_path / "t-0"))
    assert not log.problems and log.end_offset == 5
    assert [segment.first_batch_timestamp_ms for segment in log.segments] == [100, 102]
    assert log.segments[1].largest_timestamp_ms == 103
    (tmp_path / "t-0" / f"{1:020d}.log").write_bytes(b"".join(entries)[:-1])
    assert log_dir.read_partition(str(tmp_path / "t-0")).end_offset == 4


def test_half_finished_swap_of_a_broker_is_read_as_its_loader_reads_it(folder: Path) -> None:
    """``commit`` leaves a note during its swap. A broker leaves none."""
    for kind in ("log", "index", "timeindex"):
        (folder / f"{0:020d}.{kind}.swap").write_bytes((folder / f"{20:020d}.{kind}").read_bytes())
        (folder / f"{40:020d}.{kind}.cleaned").write_bytes(b"half")
    before = contents(folder)
    log = log_dir.read_partition(str(folder))
    assert kinds(log) == {ProblemKind.RECOVERED}
    assert [segment.base_offset for segment in log.segments] == [0, 40]
    assert log.segments[0].path.endswith(".log.swap")
    assert contents(folder) == before
    log_dir.recover(str(folder))
    again = log_dir.read_partition(str(folder))
    assert [segment.size_bytes for segment in again.segments] == [
        segment.size_bytes for segment in log.segments
    ]
    assert {path.name for path in folder.iterdir() if path.name[0].isdigit()} == {
        f"{base:020d}.{kind}" for base in (0, 40) for kind in ("log", "index", "timeindex")
    } | {f"{base:020d}.snapshot" for base in (40, 45)}
