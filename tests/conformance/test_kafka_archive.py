"""Tests of Kafka logs in an archive: ``fetch``, and rounds as on a log directory."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import google_crc32c
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lastwrite
from lastwrite import cli
from lastwrite.archive.partition_store import partition_store_at
from lastwrite.engine.system import CommitPlan
from lastwrite.kafka.format.batch import encode_batch
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.kafka.format.names import LEADER_EPOCHS, PARTITION_METADATA
from lastwrite.kafka.store.archived import ArchivedLog, contents_of
from lastwrite.kafka.store.archiving import KafkaRounds, successor
from lastwrite.kafka.store.log_dir import read_partition
from lastwrite.kafka.store.restoring import batches_above
from lastwrite.reports.fetching import FetchedLog
from lastwrite.spark.inline import INLINE
from tests.property.test_compaction import empty_root
from tests.support.engine import compact
from tests.support.files import contents
from tests.support.kafka.crashing import run_until
from tests.support.kafka.logs import (
    NAME,
    bases,
    check_indexes,
    decode_model,
    encode_aborted,
    has_hole_between_segments,
    headers_of,
    plain_index,
    read_aborted,
    read_checkpoint,
    write_checkpoint,
    write_segment,
)
from tests.support.kafka.producers import Known, write_snapshot
from tests.support.kafka.strategies import DAY_MS, START_MS, Life, append, lives
from tests.support.objects import BUCKET, S3

HIGH_WATERMARKS = "replication-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
SIDES = (".log", ".index", ".timeindex", ".txnindex")
CORPUS = Path(__file__).parent.parent / "corpus"
INDEXED = "lastwrite.kafka.store.archived_segment.LEAST_INDEXED_BYTES"
REAL = [
    *sorted((CORPUS / "kafka-4.4.0").glob("*/[!_]*-0")),
    *sorted((CORPUS / "old-formats").glob("**/*-0")),
    *sorted((CORPUS / "internal-topics").glob("__*-0")),
]


@pytest.fixture(scope="module", autouse=True)
def indexes_of_all_segments() -> Iterator[None]:
    """Give small segments index objects, too, so that these are checked."""
    with patch(INDEXED, -1):
        yield


# ---------------------------------------------------------------------- comparison


@dataclass(frozen=True)
class Archive:
    """One partition of an archive in a folder, read without the package."""

    to: Path
    name: str = NAME

    @property
    def folder(self) -> Path:
        return self.to / "kafka" / Path(*self.name.rsplit("-", 1))

    def manifest(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "manifest.json").read_bytes())
        return found

    def log(self) -> dict[str, Any]:
        found: dict[str, Any] = self.manifest()["log"]
        return found

    def segments(self) -> Iterator[tuple[int, Path]]:
        for segment in self.log()["segments"]:
            base = segment["base_offset"]
            yield base, self.folder / segment["folder"] / f"{base:020d}"

    def batches(self) -> list[bytes]:
        return [b for _, stem in self.segments() for b in split(stem.with_suffix(".log"))]

    def submit(self, root: Path) -> Path:
        """Write the archived log as a broker's log directory to ``root``.

        Returns the partition's folder.
        """
        shutil.rmtree(root, ignore_errors=True)
        folder = root / self.name
        folder.mkdir(parents=True)
        log = self.log()
        for (base, stem), said in zip(self.segments(), log["segments"], strict=True):
            named = {each["key"] for each in self.manifest()["objects"]}
            for side in SIDES:
                source, target = stem.with_suffix(side), folder / f"{base:020d}{side}"
                assert source.exists() == (str(source.relative_to(self.folder)) in named), source
                if source.exists():
                    target.write_bytes(source.read_bytes())
                    stat_ns = said["mtime_ms"] * 1_000_000
                    os.utime(target, ns=(stat_ns, stat_ns))
            if said.get("indexed") is False:
                _make_indexes(folder / f"{base:020d}", said)
            if (folder / f"{base:020d}.log").stat().st_size:
                check_indexes(folder, base)
        found = headers_of(folder / f"{bases(folder)[-1]:020d}.log") if log["segments"] else []
        # A manifest has the log end. In a directory, an empty segment shows it if no batch does.
        if not found or found[-1][1].next_offset < log["end_offset"]:
            (folder / f"{log['end_offset']:020d}.log").touch()
        if log["producers"]:
            write_snapshot(
                folder,
                log["end_offset"],
                {
                    id: Known(epoch, 0, last, 0, timestamp, 0, open_from)
                    for id, epoch, last, timestamp, open_from in log["producers"]
                },
            )
        write_checkpoint(root, HIGH_WATERMARKS, {self.name: log["end_offset"]})
        write_checkpoint(root, LOG_STARTS, {self.name: log["log_start"]})
        if log["checkpoint"] is not None:
            write_checkpoint(root, CLEANER_OFFSETS, {self.name: log["checkpoint"]})
        return folder


def _make_indexes(stem: Path, said: dict[str, Any]) -> None:
    """Write a small segment's indexes, with the sizes in the manifest."""
    sizes = (said.get("index_bytes", 0), said.get("time_index_bytes", 0))
    headers = [header for _, header in headers_of(stem.with_suffix(".log"))]
    # the manifest does not have the topic's interval
    intervals = (4096, 100, 1, 0, *range(2, 4096))
    made = (plain_index(said["base_offset"], headers, each) for each in intervals)
    found = next(each for each in made if (len(each[0]), len(each[1])) == sizes)
    for side, content in zip((".index", ".timeindex"), found, strict=True):
        stem.with_suffix(side).write_bytes(content)
        stat_ns = said["mtime_ms"] * 1_000_000
        os.utime(stem.with_suffix(side), ns=(stat_ns, stat_ns))


def split(log: Path) -> list[bytes]:
    data = log.read_bytes()
    return [data[at : at + header.size_bytes] for at, header in headers_of(log)]


def cut(root: Path, name: str, end: int) -> Path:
    """Truncate the log in ``root`` at the offset ``end``, where a batch begins."""
    folder = root / name
    for base in bases(folder):
        stem = folder / f"{base:020d}"
        if base >= end and base != bases(folder)[0]:
            for side in SIDES:
                stem.with_suffix(side).unlink(missing_ok=True)
            continue
        found = headers_of(stem.with_suffix(".log"))
        stay = [(at, header) for at, header in found if header.next_offset <= end]
        if len(stay) < len(found):
            data = stem.with_suffix(".log").read_bytes()
            times = stem.with_suffix(".log").stat()
            size = stay[-1][0] + stay[-1][1].size_bytes if stay else 0
            stem.with_suffix(".log").write_bytes(data[:size])
            offsets, timestamps = plain_index(base, [header for _, header in stay], 4096)
            stem.with_suffix(".index").write_bytes(offsets)
            stem.with_suffix(".timeindex").write_bytes(timestamps)
            entries = [entry for entry in read_aborted(folder, base) if entry.last_offset < end]
            stem.with_suffix(".txnindex").write_bytes(encode_aborted(entries))
            for side in SIDES:
                if stem.with_suffix(side).exists():
                    os.utime(stem.with_suffix(side), ns=(times.st_mtime_ns, times.st_mtime_ns))
    for snapshot in folder.glob("*.snapshot"):
        if int(snapshot.stem) > end:
            snapshot.unlink()
    write_checkpoint(root, HIGH_WATERMARKS, {name: end})
    return folder


def fetch(source: Path, to: Path, **options: Any) -> FetchedLog:
    """Fetch one partition. Returns its report."""
    report = lastwrite.fetch([str(source)], str(to), **options)
    (found,) = report.partitions
    assert isinstance(found, FetchedLog)
    assert report.exit_status == (found.reason and (3 if found.is_damaged else 1) or 0)
    return found


def brought(source: Path, to: Path, **options: Any) -> FetchedLog:
    found = fetch(source, to, **options)
    assert found.reason is None, found.reason
    return found


def check_as_cut(root: Path, archive: Archive, end: int, is_new: bool, exact: bool = True) -> None:
    """Check the archive against the log directory truncated at ``end``.

    ``is_new`` means the first fetch. ``exact`` means that nothing was compacted yet.
    """
    twin = root.with_name("cut")
    shutil.rmtree(twin, ignore_errors=True)
    shutil.copytree(root, twin)
    folder = cut(twin, archive.name, end)
    wanted, log = read_partition(str(folder)), read_partition(str(archive.folder))
    assert log.end_offset == log.high_watermark == end
    assert log.producers == wanted.producers
    first_unstable = wanted.first_unstable_offset
    if first_unstable is not None:  # retention may have removed the transaction's begin
        first_unstable = max(first_unstable, log.log_start)
    assert log.first_unstable_offset == first_unstable
    if exact:
        assert log.log_start == wanted.log_start
        assert log.aborted == wanted.aborted
        whole = [batch for base in bases(folder) for batch in split(folder / f"{base:020d}.log")]
        assert archive.batches() == whole

    filled = [s for s in wanted.segments if s.size_bytes]
    if is_new:
        assert [
            (s.base_offset, s.largest_timestamp_ms, s.first_batch_timestamp_ms, s.mtime_ms)
            for s in log.segments
        ] == [
            (s.base_offset, s.largest_timestamp_ms, s.first_batch_timestamp_ms, s.mtime_ms)
            for s in filled
        ]
    entries = [
        struct.unpack(">hqqqq", stem.with_suffix(".txnindex").read_bytes()[at : at + 34])[1:]
        for _, stem in archive.segments()
        if stem.with_suffix(".txnindex").exists()
        for at in range(0, stem.with_suffix(".txnindex").stat().st_size, 34)
    ]
    assert entries == [tuple(entry) for entry in archive.log()["aborted"]]
    laid = read_partition(str(archive.submit(root.with_name("laid"))))
    assert not laid.problems
    assert laid.aborted == log.aborted


def replicated(folder: Path, share: float) -> int:
    """The last batch end within the first ``share`` of the log's offsets."""
    ends = [
        h.next_offset for base in bases(folder) for _, h in headers_of(folder / f"{base:020d}.log")
    ]
    last = max(ends, default=bases(folder)[0])
    return max((end for end in ends if end <= last * share), default=bases(folder)[0])


def compare_rounds(archive: Archive, laid: Path, config: dict[str, str], now_ms: int) -> None:
    """Compare a round on the archive with a round on the same log as a directory."""
    folder = archive.submit(laid)
    was_cleaned = NAME in read_checkpoint(laid, CLEANER_OFFSETS)
    wanted = compact(laid, config, now_ms, include_active=True).partitions[0]
    report = compact(archive.to, config, now_ms).partitions[0]
    is_delete = config.get("cleanup.policy") == "delete"
    if is_delete and not was_cleaned and has_hole_between_segments(folder):
        # Only the manifest shows that no segment between two others is missing.
        assert (wanted.status, report.status == "damaged") == ("damaged", False)
        return
    if archive.log()["segments"] or report.status != "skipped":  # the log has segments
        assert report.status == wanted.status, (report, wanted)
    whole = [batch for base in bases(folder) for batch in split(folder / f"{base:020d}.log")]
    assert archive.batches() == whole
    ours, theirs = read_partition(str(archive.folder)), read_partition(str(folder))
    assert ours.checkpoint == theirs.checkpoint
    # A directory starts at its first segment. A manifest keeps the log start offset.
    assert ours.log_start <= theirs.log_start <= max(bases(folder)[0], ours.log_start)
    assert ours.end_offset == theirs.end_offset
    if theirs.log_start < theirs.end_offset:  # a loader ignores a snapshot at the log start
        assert ours.producers == theirs.producers
        assert ours.first_unstable_offset == theirs.first_unstable_offset
    assert ours.aborted == theirs.aborted
    assert report.bytes_after == wanted.bytes_after


@settings(max_examples=40)
@given(lives(), st.data())
def test_round_on_the_archive_equals_a_round_on_the_log(life: Life, data: st.DataObject) -> None:
    least = data.draw(st.sampled_from([-1, 1000, 1 << 20]), label="least indexed bytes")
    with empty_root() as root, patch(INDEXED, least):
        archive = Archive(root.with_name("archive"))
        compacted = False
        for phase in life.phases:
            append(root / NAME, phase, life.interval_bytes)
            write_checkpoint(
                root, HIGH_WATERMARKS, {NAME: replicated(root / NAME, phase.replicated)}
            )
            active = data.draw(st.booleans(), label="include_active")
            if not compacted and active and data.draw(st.booleans(), label="deleted"):
                high = read_checkpoint(root, HIGH_WATERMARKS)[NAME]
                at = read_checkpoint(root, LOG_STARTS).get(NAME, 0)
                at = data.draw(st.integers(at, high) if high > at else st.just(at))
                if not archive.to.exists():
                    write_checkpoint(root, LOG_STARTS, {NAME: at})
            found = brought(root, archive.to, include_active=active)
            assert found.end_offset is not None
            check_as_cut(root, archive, found.end_offset, found.is_new, not compacted)
            if data.draw(st.booleans(), label="compact"):
                with in_parts(data.draw(st.sampled_from([1 << 30, 100, 1]), label="part bytes")):
                    config = {**life.config, **data.draw(retentions, label="retention")}
                    compare_rounds(archive, root.with_name("laid"), config, phase.now_ms)
                compacted = True


retentions = st.sampled_from(
    [
        {},
        {},
        {"cleanup.policy": "compact,delete", "retention.ms": "1000", "retention.bytes": "-1"},
        {"cleanup.policy": "compact,delete", "retention.ms": "-1", "retention.bytes": "300"},
        {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "300"},
        {"cleanup.policy": "compact,delete", "retention.ms": "0", "retention.bytes": "0"},
    ]
)


@contextlib.contextmanager
def in_parts(part_bytes: int) -> Iterator[None]:
    """Split segments into parts of at least ``part_bytes`` bytes for five workers."""
    with (
        patch("lastwrite.engine.shares._LEAST_PART_BYTES", part_bytes),
        patch("lastwrite.engine.pieces._PIECE_BYTES", part_bytes),
        patch("lastwrite.spark.work.InlineRunner.workers", 5),
    ):
        yield


# ---------------------------------------------------------------------- real logs


def copy(folder: Path, to: Path) -> Path:
    """Copy a broker's partition to a new log root, without checkpoint files."""
    to.mkdir()
    shutil.copytree(folder, to / folder.name)
    return to


@pytest.mark.parametrize("folder", REAL, ids=lambda folder: f"{folder.parent.name}/{folder.name}")
def test_log_of_a_real_broker_is_fetched_and_compacted(tmp_path: Path, folder: Path) -> None:
    root = copy(folder, tmp_path / "log")
    archive = Archive(tmp_path / "archive", folder.name)
    found = brought(root, archive.to, include_active=True)
    assert found.end_offset is not None and found.is_new
    assert bool(found.segments) == (found.end_offset > 0)
    check_as_cut(root, archive, found.end_offset, True)
    log = archive.log()
    if (folder / PARTITION_METADATA).exists():
        assert f"topic_id: {log['topic_id']}" in (folder / PARTITION_METADATA).read_text()
    if (folder / LEADER_EPOCHS).exists():
        lines = (folder / LEADER_EPOCHS).read_text().splitlines()[2:]
        wanted = [[int(word) for word in line.split()] for line in lines]
        assert log["epochs"] == [each for each in wanted if each[1] < log["end_offset"]]
    ends = [s for s in folder.glob("*.snapshot") if int(s.stem) == log["end_offset"]]
    assert (log["snapshot"] is not None) == bool(ends)
    if ends:
        assert (archive.folder / log["snapshot"]).read_bytes() == ends[0].read_bytes()
    # tombstones expire in between
    for now_ms in (1_900_000_000_000, 1_900_000_000_000 + 2 * DAY_MS):
        compare_rounds(archive, tmp_path / "laid", {"cleanup.policy": "compact"}, now_ms)
    assert not brought(root, archive.to, include_active=True).segments


# ---------------------------------------------------------------------- repeated fetches


@settings(max_examples=12)
@given(lives(min_rounds=2, max_rounds=2), st.booleans(), st.booleans())
def test_two_fetches_equal_one_fetch(life: Life, compacted: bool, active: bool) -> None:
    with empty_root() as root:
        for phase in life.phases:
            append(root / NAME, phase, life.interval_bytes)
        folder, now_ms = root / NAME, life.phases[-1].now_ms
        stems = [folder / f"{base:020d}.log" for base in bases(folder)]
        ends = [header.next_offset for stem in stems for _, header in headers_of(stem)]
        whole = Archive(root.with_name("whole"))
        write_checkpoint(root, HIGH_WATERMARKS, {NAME: replicated(folder, 1)})
        brought(root, whole.to, include_active=active)
        log = whole.log()
        table = lastwrite.latest(str(whole.to))
        for number, end in enumerate(each for each in ends if each <= log["end_offset"]):
            archive = Archive(root.with_name(f"split-{number}"))
            write_checkpoint(root, HIGH_WATERMARKS, {NAME: end})
            assert brought(root, archive.to, include_active=True).end_offset == end
            if compacted:
                compact(archive.to, life.config, now_ms)
            write_checkpoint(root, HIGH_WATERMARKS, {NAME: replicated(folder, 1)})
            again = brought(root, archive.to, include_active=active)
            assert (again.first_offset, again.end_offset) == (end, log["end_offset"])
            if compacted:
                assert lastwrite.latest(str(archive.to)) == table
            else:
                assert archive.batches() == whole.batches()
                assert archive.log()["aborted"] == log["aborted"]
                archive.submit(root.with_name("laid"))
            for name in ("producers", "first_unstable", "epochs", "topic_id", "log_start"):
                assert archive.log()[name] == log[name], name
            compact(archive.to, life.config, now_ms + 1)
            assert lastwrite.latest(str(archive.to)) == table


def key_batch(offset: int, epoch: int = 0, count: int = 1) -> bytes:
    records = [
        Record(offset + n, START_MS, b"key %d" % ((offset + n) % 7), b"value") for n in range(count)
    ]
    return encode_batch(records, leader_epoch=epoch)


def write_log(root: Path, layout: dict[int, range], epochs: dict[int, int], id: str = "A") -> None:
    """Write a log with one record in each batch, and with leader epochs from ``epochs``."""
    shutil.rmtree(root, ignore_errors=True)
    folder = root / NAME
    for base, offsets in layout.items():
        of = [
            key_batch(offset, max((e for e, start in epochs.items() if start <= offset), default=0))
            for offset in offsets
        ]
        write_segment(folder, base, of, mtime_ms=START_MS)
    lines = [f"{epoch} {start}" for epoch, start in epochs.items()]
    (folder / LEADER_EPOCHS).write_text("\n".join(["0", str(len(lines)), *lines, ""]))
    topic_id = f"{id}{'Q' * 20}A"
    (folder / PARTITION_METADATA).write_text(f"version: 0\ntopic_id: {topic_id}")


def changed_epochs(root: Path) -> None:
    write_log(
        root, {0: range(10), 10: range(10, 15), 15: range(15, 40), 40: range(40, 40)}, {0: 0, 2: 15}
    )


def made_anew(root: Path) -> None:
    write_log(root, {0: range(30), 30: range(30, 40)}, {0: 0, 1: 10}, "B")


def moved_on(root: Path) -> None:
    write_log(root, {25: range(25, 40), 40: range(40, 41)}, {1: 25})


def older_copy(root: Path) -> None:
    write_log(root, {0: range(30), 30: range(30, 40)}, {0: 0})


def across(root: Path) -> None:
    write_log(root, {0: range(18), 30: range(30, 40)}, {0: 0, 1: 10})
    batches = [key_batch(offset) for offset in range(18)] + [key_batch(18, 1, 5)]
    write_segment(root / NAME, 0, batches, mtime_ms=START_MS)


def damaged(root: Path) -> None:
    write_log(root, {0: range(20), 20: range(20, 30), 30: range(30, 31)}, {0: 0, 1: 10})
    path = root / NAME / f"{20:020d}.log"
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)


def too_late(root: Path) -> None:
    write_log(root, {0: range(20), 20: range(20, 30), 30: range(30, 31)}, {0: 0, 1: 10})
    write_checkpoint(root, CLEANER_OFFSETS, {NAME: 30})


@pytest.mark.parametrize(
    "change, status, words",
    [
        (made_anew, 1, "the topic was deleted and created again: its id is"),
        (
            moved_on,
            1,
            "starts at offset 25, and the archive ends at offset 20: the 5 offsets between them are lost",
        ),
        (
            changed_epochs,
            1,
            "offsets 15 to 20 have leader epoch 1 in the archive, and a later epoch in the log",
        ),
        (
            older_copy,
            1,
            "ends at offset 30 in leader epoch 0, and the archive at offset 20 in the later epoch 1",
        ),
        (across, 1, "the batch with offsets 18 to 22 crosses offset 20, where the archive ends"),
        (damaged, 3, "checksum"),
        (too_late, 1, "tombstones are kept for 86400000 ms (delete.retention.ms)"),
    ],
)
def test_log_that_does_not_continue_the_archive_is_refused(
    tmp_path: Path, change: Callable[[Path], None], status: int, words: str
) -> None:
    root, archive = tmp_path / "log", Archive(tmp_path / "archive")
    write_log(root, {0: range(20), 20: range(20, 21)}, {0: 0, 1: 10})
    assert brought(root, archive.to).end_offset == 20
    days = 2 if change is too_late else 0
    before = contents(archive.to)
    change(root)
    with patch("time.time_ns", lambda now=time.time_ns: now() + days * DAY_MS * 1_000_000):
        found = fetch(root, archive.to)
    assert found.reason is not None and words in found.reason
    assert found.is_damaged == (status == 3)
    assert status == 3 or " — " in found.reason  # the reason ends with a remedy
    assert contents(archive.to) == before
    if change in (across, damaged):
        return
    old = archive.batches()
    with patch("time.time_ns", lambda now=time.time_ns: now() + days * DAY_MS * 1_000_000):
        done = brought(root, archive.to, sets_aside=True)
    assert done.aside is not None and Archive(Path(done.aside)).batches() == old
    anew = Archive(tmp_path / "anew")
    assert done.end_offset == brought(root, anew.to).end_offset
    assert archive.batches() == anew.batches()
    for name in ("epochs", "topic_id", "log_start", "end_offset", "aborted"):
        assert archive.log()[name] == anew.log()[name]


def test_replica_with_deleted_or_lost_epochs_continues_the_archive(tmp_path: Path) -> None:
    """The archive's epochs remain, although the replica's have other start offsets.

    Retention raises the start of the first epoch. A replica that was created again has later starts
    in a compacted log.
    """
    root, archive = tmp_path / "log", Archive(tmp_path / "archive")
    write_log(root, {0: range(20), 20: range(20, 21)}, {0: 0, 1: 10})
    brought(root, archive.to)
    write_log(root, {15: range(15, 30), 30: range(30, 31)}, {1: 15, 4: 25})
    assert brought(root, archive.to).end_offset == 30
    assert archive.log()["epochs"] == [[0, 0], [1, 10], [4, 25]]
    write_log(root, {0: range(40), 40: range(40, 41)}, {1: 12, 4: 25, 5: 35})
    assert brought(root, archive.to).end_offset == 40
    assert archive.log()["epochs"] == [[0, 0], [1, 10], [4, 25], [5, 35]]
    offsets = [decode_model(batch, 0)[0].base_offset for batch in archive.batches()]
    assert offsets == list(range(40))


def test_fetch_without_new_records_confirms_that_no_delete_was_lost(tmp_path: Path) -> None:
    root, archive = tmp_path / "log", Archive(tmp_path / "archive")
    write_log(root, {0: range(20), 20: range(20, 30)}, {0: 0})
    brought(root, archive.to)
    now_ns = time.time_ns
    for hours in (20, 40, 60):
        with patch("time.time_ns", lambda ahead=hours: now_ns() + ahead * 3_600_000_000_000):
            assert not brought(root, archive.to).segments
    write_log(root, {0: range(20), 20: range(20, 30), 30: range(30, 31)}, {0: 0})
    write_checkpoint(root, CLEANER_OFFSETS, {NAME: 30})
    with patch("time.time_ns", lambda: now_ns() + 70 * 3_600_000_000_000):
        assert brought(root, archive.to).end_offset == 30


def test_unreplicated_records_are_not_fetched(tmp_path: Path) -> None:
    root, archive = tmp_path / "log", Archive(tmp_path / "archive")
    write_log(root, {0: range(20), 20: range(20, 30), 30: range(30, 31)}, {0: 0})
    write_checkpoint(root, HIGH_WATERMARKS, {NAME: 13})
    assert brought(root, archive.to).end_offset == 13
    write_checkpoint(root, HIGH_WATERMARKS, {NAME: 27})
    assert brought(root, archive.to, include_active=True).end_offset == 27
    write_checkpoint(root, HIGH_WATERMARKS, {NAME: 31})
    assert brought(root, archive.to).end_offset == 30
    assert len(archive.batches()) == 30


def test_archive_is_fetched_into_another_archive(tmp_path: Path) -> None:
    root = tmp_path / "log"
    write_log(root, {0: range(20), 20: range(20, 30)}, {0: 0, 1: 10})
    first, second = Archive(tmp_path / "first"), Archive(tmp_path / "second")
    brought(root, first.to)
    assert brought(first.to, second.to).end_offset == 20
    assert second.batches() == first.batches()
    for name in ("epochs", "topic_id", "producers", "log_start"):
        assert second.log()[name] == first.log()[name]
    brought(root, first.to, include_active=True)
    assert brought(first.to, second.to).end_offset == 30
    assert second.batches() == first.batches()
    third = Archive(tmp_path / "third")
    compact(first.to, {}, START_MS, to=str(third.to))  # an unchanged segment is copied
    assert lastwrite.latest(str(third.to)) == lastwrite.latest(str(root))
    for name in ("epochs", "topic_id", "producers", "end_offset"):
        assert third.log()[name] == first.log()[name]


def test_cluster_metadata_is_copied_with_an_archive(tmp_path: Path) -> None:
    """The groups' offsets, and the time since when tombstones may have expired, are copied, too."""
    root = tmp_path / "log"
    write_log(root, {0: range(20), 20: range(20, 30)}, {0: 0, 1: 10})
    first = Archive(tmp_path / "first")
    brought(root, first.to)
    said = {"groups": [["g", 7, 0, "here"]], "brought_ms": 5, "last_batch": [10, 20, 10, 1]}
    place = partition_store_at(str(first.folder))

    def say(**fields: Any) -> None:
        seen = place.read()
        assert seen is not None
        log = contents_of(seen.manifest, str(first.folder))
        log = msgspec.convert({**msgspec.to_builtins(log), **fields}, ArchivedLog)
        place.commit(place.begin(seen), successor(seen.manifest, log))

    say(**said)
    second, third = Archive(tmp_path / "second"), Archive(tmp_path / "third")
    compact(first.to, {}, START_MS, to=str(second.to))
    brought(first.to, third.to)
    for copy in (second, third):
        assert {name: copy.log()[name] for name in said} == said
    say(groups=[["g", 9, 0, "on"]])
    assert brought(first.to, third.to).segments == 0
    assert third.log()["groups"] == [["g", 9, 0, "on"]]
    brought(root, third.to, include_active=True)
    say(groups=[])
    brought(first.to, third.to)  # the first archive's groups are older
    assert third.log()["groups"] == [["g", 9, 0, "on"]] and third.log()["brought_ms"] > 5


def test_group_offsets_are_read_from_the_offsets_topic(tmp_path: Path) -> None:
    """The result equals a live broker's: aborted transactions and deleted offsets do not count."""
    root, archive = tmp_path / "log", Archive(tmp_path / "archive", "orders-0")
    groups = root / "__consumer_offsets-0"
    shutil.copytree(CORPUS / "internal-topics" / groups.name, groups)
    write_segment(root / "orders-0", 0, [key_batch(offset, 0) for offset in range(40)])

    def fetch_orders() -> list[Any]:
        report = lastwrite.fetch([str(root)], str(archive.to), topic="orders", include_active=True)
        assert report.exit_status == 0
        found: list[Any] = archive.log()["groups"]
        return found

    before = [
        ["classic", 30, -1, ""],
        ["new", 11, -1, ""],
        ["pattern", 21, -1, ""],
        ["static", 1, -1, ""],
    ]
    assert fetch_orders() == before
    log = read_partition(str(groups))
    key = struct.pack(">hh6sh6si", 1, 6, b"static", 6, b"orders", 0)
    moved = struct.pack(">hqihq", 3, 35, 4, 0, START_MS)  # offset, epoch, empty metadata, time
    gone = struct.pack(">hh3sh6si", 1, 3, b"new", 6, b"orders", 0)
    batch = [
        Record(log.end_offset, START_MS, key, moved),
        Record(log.end_offset + 1, START_MS, gone, None),
    ]
    with open(log.segments[-1].path, "ab") as file:
        file.write(encode_batch(batch))
    after = [before[0], before[2], ["static", 35, 4, ""]]
    assert fetch_orders() == after  # changed offsets are enough for a new manifest
    shutil.rmtree(groups)
    assert fetch_orders() == after  # groups with other coordinators keep their offsets


# ---------------------------------------------------------------------- refused fetches


def spoil_manifest(archive: Archive, change: Callable[[bytes], bytes]) -> Path:
    path = archive.folder / "manifest.json"
    path.write_bytes(change(path.read_bytes()))
    return path


def newer(manifest: bytes) -> bytes:
    text = manifest[: manifest.rindex(b',"checksum"')].replace(b'"version":2', b'"version":3')
    return text + b',"checksum":"%08x"}' % google_crc32c.value(text)


@pytest.mark.parametrize(
    "change, status, words",
    [
        (lambda content: content[:200], 3, "the manifest is truncated"),
        (lambda content: content.replace(b"aborted", b"abortee"), 3, "checksum does not match"),
        (lambda content: b"", 3, "the manifest is truncated"),
        (newer, 1, "the manifest has version 3, but this release supports only version 2"),
    ],
    ids=["cut", "garbled", "empty", "newer"],
)
def test_damaged_manifest_is_named_and_nothing_changes(
    tmp_path: Path,
    change: Callable[[bytes], bytes],
    status: int,
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    root, archive = tmp_path / "log", Archive(tmp_path / "archive")
    write_log(root, {0: range(20), 20: range(20, 21)}, {0: 0})
    brought(root, archive.to)
    path = spoil_manifest(archive, change)
    before = contents(archive.to)
    for command in ("inspect", "dump", "read", "explain"):
        assert cli.run([command, str(archive.folder)]) == status, command
        said = "".join(capsys.readouterr())
        assert "None" not in said
        assert words in said and str(path) in said and " — " in said, (command, said)
        assert "broker" not in said and "log root" not in said
    report = compact(archive.to, {}, START_MS)
    planned = lastwrite.plan(str(archive.to), config={"cleanup.policy": "compact"}, spark=INLINE)
    verified = lastwrite.verify(str(archive.to), spark=INLINE)
    for found in (report, planned, verified):
        assert found.exit_status == status
        assert words in str(found.partitions[0].reason)
    assert report.partitions[0].status == ("damaged" if status == 3 else "failed")
    found = fetch(root, archive.to, include_active=True)
    assert words in str(found.reason)
    assert contents(archive.to) == before


def test_topic_id_in_another_notation_is_the_same(tmp_path: Path) -> None:
    root, archive = tmp_path / "log", Archive(tmp_path / "archive")
    write_log(root, {0: range(20), 20: range(20, 21)}, {0: 0})
    said = root / NAME / PARTITION_METADATA
    said.write_text("version: 0\ntopic_id: lC3CICZpQfG2AZG8odZnXA\n")
    brought(root, archive.to, include_active=True)
    said.write_text("version: 0\ntopic_id: lC3CICZpQfG2AZG8odZnXA")
    assert lastwrite.verify(str(archive.to), str(root), spark=INLINE).exit_status == 0
    said.write_text("version: 0\ntopic_id: mC3CICZpQfG2AZG8odZnXA\n")
    [other] = lastwrite.verify(str(archive.to), str(root), spark=INLINE).partitions
    assert "the topic's id" in str(other)


def test_indexes_of_a_cut_segment_follow_the_index_interval(tmp_path: Path) -> None:
    root, found = tmp_path / "log", {}
    write_log(root, {0: range(100)}, {0: 0})
    write_checkpoint(root, HIGH_WATERMARKS, {NAME: 90})
    for interval in ("1", "4096"):
        archive = Archive(tmp_path / interval)
        config = {"index.interval.bytes": interval}
        brought(root, archive.to, include_active=True, config=config)
        [(_, stem)] = archive.segments()
        found[interval] = stem.with_suffix(".index").stat().st_size
    assert found["1"] > found["4096"]


def test_small_segment_without_index_objects_reads_the_same(tmp_path: Path) -> None:
    root, found = tmp_path / "log", {}
    write_log(root, {0: range(200), 200: range(200, 201)}, {0: 0})
    for least in (-1, 1 << 20):
        archive = Archive(tmp_path / str(least))
        with patch(INDEXED, least):
            config = {"index.interval.bytes": "1"}
            brought(root, archive.to, include_active=True, config=config)
            compact(archive.to, config, START_MS)
        [entry, *_] = archive.log()["segments"]
        names = {Path(name).suffix for name in contents(archive.folder)}
        assert (".index" in names) == (".timeindex" in names) == (least < 0)
        assert entry["index_bytes"] and entry.get("indexed", True) == (least < 0)
        assert bool(list(lastwrite.dump(str(archive.to), index=True))) == (least < 0)
        assert lastwrite.verify(str(archive.to), spark=INLINE).exit_status == 0
        rows = [
            {name: row[name] for name in ("offset", "key", "value")}
            for row in lastwrite.dump(str(archive.to), offset=150)
        ]
        wide = [at for at, _ in batches_above(read_partition(str(archive.folder)), 50)]
        found[least] = (rows, wide, lastwrite.latest(str(archive.to)))
    assert found[-1] == found[1 << 20]
    assert all(found[-1])


@pytest.mark.parametrize("change", ["missing", "cut", "flipped"])
def test_damaged_object_is_named_with_a_remedy(
    tmp_path: Path, change: str, capsys: pytest.CaptureFixture[str]
) -> None:
    root, archive = tmp_path / "log", Archive(tmp_path / "archive")
    write_log(root, {0: range(20), 20: range(20, 40), 40: range(40, 41)}, {0: 0})
    brought(root, archive.to)
    path = [stem for _, stem in archive.segments()][1].with_suffix(".log")
    if change == "missing":
        path.unlink()
    elif change == "cut":
        path.write_bytes(path.read_bytes()[:-7])
    else:
        data = bytearray(path.read_bytes())
        data[-4] ^= 1
        path.write_bytes(data)
    before = contents(archive.to)
    for command in ("inspect", "dump", "read"):
        status = cli.run([command, str(archive.folder)])
        said = "".join(capsys.readouterr())
        is_damage = change != "cut" or command == "inspect"
        assert status == (3 if is_damage else 1), (command, said)
        assert str(path) in said, (command, said)
        assert "copy of the archive" in said, (command, said)
        assert "broker" not in said and "replica" not in said and "log root" not in said
    [partition] = compact(archive.to, {}, START_MS).partitions
    assert partition.status == ("failed" if change == "cut" else "damaged")
    assert str(path) in str(partition.reason)
    assert "copy of the archive" in str(partition.reason)
    verified = lastwrite.verify(str(archive.to), spark=INLINE)
    assert verified.exit_status == (1 if change == "cut" else 3)
    assert "copy of the archive" in str(verified)
    assert contents(archive.to) == before
    again = brought(root, Archive(tmp_path / "other").to)  # as the remedy says
    assert again.segments == 2


def test_archive_is_read_from_each_address(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    root, archive = tmp_path / "log", Archive(tmp_path / "archive")
    write_log(root, {0: range(20), 20: range(20, 40), 40: range(40, 41)}, {0: 0})
    brought(root, archive.to, include_active=True)
    brought_as = tmp_path / "brought"
    shutil.copytree(archive.to, brought_as)
    compact(archive.to, {}, START_MS)
    places = (archive.folder, archive.folder.parent, archive.to / "kafka", archive.to)
    for command in (["dump", "--batches"], ["dump", "--index"], ["dump"], ["read"]):
        seen = set()
        for place in places:
            assert cli.run([*command, str(place), "--json"]) == 0
            seen.add(capfd.readouterr().out)
        assert len(seen) == 1 and all(seen), command
    for place in places:
        for name in ("inspect", "settings", "explain"):
            assert cli.run([name, str(place)]) == 0
            said = capfd.readouterr().out
            assert "t-0" in said or "topic 't'" in said
    for before in (brought_as, root):
        assert lastwrite.verify(str(archive.to), str(before), spark=INLINE).exit_status == 0
    assert lastwrite.latest(str(archive.folder)) == lastwrite.latest(str(root))
    for level in ("read_committed", "read_uncommitted"):
        rows = list(lastwrite.read(str(archive.to), isolation_level=level))
        assert [row["offset"] for row in rows] == list(range(34, 41))


def test_address_without_an_archive_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, archive = tmp_path / "log", Archive(tmp_path / "archive")
    write_log(root, {0: range(20), 20: range(20, 21)}, {0: 0})
    brought(root, archive.to)
    for wrong in (
        archive.to / "none",
        archive.to / "kafka" / "u",
        archive.to / "kafka" / "t" / "1",
    ):
        for command in ("inspect", "read", "dump", "explain"):
            assert cli.run([command, str(wrong)]) == 2
            assert f"{wrong}: no such file or folder" in "".join(capsys.readouterr())


# ---------------------------------------------------------------------- kills and concurrency


def check_no_waste(archive: Archive) -> None:
    """Check that a sweep leaves only objects that the manifest lists as used or unused."""
    report = lastwrite.sweep(str(archive.to), older_than_ms=0, everything=True)
    assert [each.reason for each in report.partitions] == [""]
    found = {name for name in contents(archive.folder) if not name.endswith(".lock")}
    manifest = archive.manifest()
    kept = {each["key"] for each in (*manifest["objects"], *manifest.get("unused", ()))}
    assert found == {"manifest.json", *kept}


def all_killed(work: Callable[[], None], start: Callable[[], None]) -> Iterator[int]:
    """Call ``start``, then ``work``, killed before each of its file system changes.

    At last, not killed.
    """
    for point in itertools.count(1):
        start()
        was_killed = run_until(point, work)
        yield point
        if not was_killed:
            assert point > 5
            return


def test_round_killed_at_any_point_leaves_the_old_log_or_the_new(tmp_path: Path) -> None:
    root, archive = tmp_path / "log", Archive(tmp_path / "archive")
    write_log(root, {0: range(20), 20: range(20, 40), 40: range(40, 41)}, {0: 0})
    brought(root, archive.to, include_active=True)
    shutil.copytree(archive.to, tmp_path / "begin")
    old, table = archive.batches(), lastwrite.latest(str(archive.to))
    compact(archive.to, {}, START_MS)
    new = archive.batches()

    def start() -> None:
        shutil.rmtree(archive.to)
        shutil.copytree(tmp_path / "begin", archive.to)

    seen = set()
    for point in all_killed(lambda: void(compact(archive.to, {}, START_MS)), start):
        batches = archive.batches()
        assert batches in (old, new), point
        seen.add(batches == new)
        assert lastwrite.latest(str(archive.to)) == table, point
        if point % 2:
            check_no_waste(archive)
        compact(archive.to, {}, START_MS)
        assert archive.batches() == new, point
        check_no_waste(archive)
    assert seen == {False, True}


def test_fetch_killed_at_any_point_can_be_repeated(tmp_path: Path) -> None:
    root, archive = tmp_path / "log", Archive(tmp_path / "archive")
    write_log(root, {0: range(20), 20: range(20, 40), 40: range(40, 41)}, {0: 0})
    write_checkpoint(root, HIGH_WATERMARKS, {NAME: 25})
    brought(root, archive.to)
    shutil.copytree(archive.to, tmp_path / "begin")
    old = archive.batches()
    write_checkpoint(root, HIGH_WATERMARKS, {NAME: 41})

    def start() -> None:
        shutil.rmtree(archive.to)
        shutil.copytree(tmp_path / "begin", archive.to)

    for point in all_killed(lambda: void(brought(root, archive.to)), start):
        batches = archive.batches()
        assert batches == old or len(batches) == 40, point
        if point % 2:
            check_no_waste(archive)
        assert brought(root, archive.to).end_offset == 40
        assert len(archive.batches()) == 40
        check_no_waste(archive)


def void(_: object) -> None:
    """Ignore the result."""


def test_one_of_two_concurrent_rounds_wins_and_the_other_is_repeated(tmp_path: Path) -> None:
    root, archive = tmp_path / "log", Archive(tmp_path / "archive")
    write_log(root, {0: range(20), 20: range(20, 40), 40: range(40, 41)}, {0: 0})
    brought(root, archive.to, include_active=True)
    commit = KafkaRounds.swap
    inside = []

    def late(rounds: KafkaRounds, wave: Sequence[CommitPlan]) -> list[Any]:
        if not inside:
            inside.append(True)
            inside.append(compact(archive.to, {}, START_MS))
        return commit(rounds, wave)

    with patch.object(KafkaRounds, "swap", late):
        lost = compact(archive.to, {}, START_MS)
    won = inside[1]
    assert won.exit_status == 0 and won.partitions[0].status == "cleaned"
    assert lost.exit_status == 0 and lost.partitions[0].attempts == 2
    names = set(contents(archive.folder))
    manifest = archive.manifest()
    kept = {each["key"] for each in (*manifest["objects"], *manifest["unused"])}
    assert {name for name in names if name.startswith("data/")} == kept
    assert not [name for name in names if name.startswith("rounds/")]
    assert lastwrite.latest(str(archive.to)) == lastwrite.latest(str(root))


# ---------------------------------------------------------------------- in a bucket


@pytest.mark.broker
@pytest.mark.parametrize("name", ["transactional-0", "client-zstd-0"])
def test_archive_in_a_bucket_equals_one_in_a_folder(tmp_path: Path, s3: S3, name: str) -> None:
    folder = CORPUS / "kafka-4.4.0" / "stopped" / name
    root = copy(folder, tmp_path / "log")
    here = Archive(tmp_path / "archive", name)
    address, there = f"s3://{BUCKET}/of/{name}", Archive(s3.data / BUCKET / "of" / name, name)
    for active in (False, True):
        brought(root, here.to, include_active=active)
        report = lastwrite.fetch([str(root)], address, include_active=active, config=s3.config)
        assert report.exit_status == 0
        assert there.batches() == here.batches()
    now_ms = 1_900_000_000_000
    for ms in (now_ms, now_ms + 2 * DAY_MS):
        compact(here.to, {}, ms)
        config = {**s3.config, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
        place = f"{address}/kafka/{name.removesuffix('-0')}"
        [done] = lastwrite.compact(
            address, config=config, now_ms=ms, spark=INLINE, drop_keyless=True
        ).partitions
        assert done.status in ("cleaned", "unchanged", "skipped"), done.reason
        assert there.batches() == here.batches()
    same = ("end_offset", "aborted", "producers", "epochs", "first_unstable", "checkpoint")
    assert [there.log()[each] for each in same] == [here.log()[each] for each in same]
    wanted = [row["offset"] for row in lastwrite.dump(str(here.to))]
    table, offset = lastwrite.latest(str(root)), itemgetter("offset")
    read_here = list(map(offset, lastwrite.read(str(here.to))))
    for path in (address, place, f"{place}/0"):
        rows = lastwrite.dump(path, config=s3.config)
        assert [row["offset"] for row in rows] == wanted
        assert lastwrite.latest(path, config=s3.config) == table
        assert list(map(offset, lastwrite.read(path, config=s3.config))) == read_here
    again = lastwrite.verify(address, str(root), config=s3.config, spark=INLINE)
    assert again.exit_status == 0


@pytest.mark.broker
@pytest.mark.parametrize(
    "address, endpoint",
    [("s3://nowhere/x", None), (f"s3://{BUCKET}/nowhere", None), (f"s3://{BUCKET}/x", "off")],
)
def test_wrong_bucket_address_is_named(
    s3: S3, address: str, endpoint: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    config = dict(s3.config)
    if endpoint is not None:
        config |= {"storage.endpoint": "http://127.0.0.1:9", "storage.timeoutMs": "1000"}
    settings = [word for name, value in config.items() for word in ("--config", f"{name}={value}")]
    for command in ("inspect", "dump", "compact", "plan", "verify", "explain", "settings"):
        status = cli.run([command, address, *settings])
        said = "".join(capsys.readouterr())
        assert status in (1, 2), (command, said)
        assert address.rsplit("/", 1)[0] in said and " — " in said, (command, said)
        assert "broker" not in said and "log root" not in said, (command, said)
