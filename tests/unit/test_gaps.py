"""Tests of ``fetch --accept-gap``.

The archive records what was lost between two fetches, and commands name the gap.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

import lastwrite
from lastwrite import cli
from lastwrite.archive.gaps import RecordsLost
from lastwrite.cleaner.events import DaemonNote, Event
from lastwrite.errors import InvalidConfig
from lastwrite.kafka.format.batch import encode_batch
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.reports.fetching import FetchedLog, HoldReason
from lastwrite.spark.inline import INLINE
from tests.conformance.test_kafka_restore import log_root
from tests.support.jars import free_ports
from tests.support.kafka.logs import write_segment

NOW_MS = 1_700_000_000_000
GAP = "offsets 4 to 8 were lost before they were fetched"


def write(root: Path, offsets: Sequence[int]) -> Path:
    batches = [
        encode_batch([Record(n, NOW_MS, b"k%d" % (n % 3), b"v%d" % n)], base_offset=n)
        for n in offsets
    ]
    write_segment(root / "t-0", offsets[0], batches, mtime_ms=NOW_MS)
    return root


def fetch(root: Path, archive: Path, **how: bool) -> FetchedLog:
    report = lastwrite.fetch([str(root)], str(archive), include_active=True, **how)
    (found,) = report.partitions
    assert isinstance(found, FetchedLog)
    return found


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """An archive of offsets 0 to 3 and 9 to 11."""
    to, root = tmp_path / "archive", tmp_path / "root"
    fetch(write(root, range(4)), to)
    shutil.rmtree(root)
    refused = fetch(write(root, range(9, 12)), to)
    assert refused.held is HoldReason.GAP
    assert refused.reason is not None and "--accept-gap" in refused.reason
    found = fetch(root, to, accepts_gap=True)
    assert (found.reason, found.first_offset, found.end_offset) == (None, 9, 12)
    return to


def said(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    capfd.readouterr()
    assert cli.run(list(arguments)) == 0
    out, err = capfd.readouterr()
    return out + err


@pytest.mark.parametrize(
    "command", [["inspect"], ["dump"], ["read", "--partition", "0"], ["explain"]]
)
@pytest.mark.parametrize("json", [False, True])
def test_commands_name_the_gap(
    archive: Path, capfd: pytest.CaptureFixture[str], command: list[str], json: bool
) -> None:
    name, *options = command
    more = ["--json"] if json else []
    assert GAP in said(capfd, name, str(archive), "--topic", "t", *options, *more)


def test_verify_names_the_gap(archive: Path) -> None:
    (found,) = lastwrite.verify(str(archive), spark=INLINE).partitions
    assert [GAP in each.message for each in found.problems] == [True]


def test_fetch_that_accepts_a_gap_names_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    root, to = tmp_path / "root", tmp_path / "archive"
    fetch(write(root, range(4)), to)
    shutil.rmtree(root)
    write(root, range(9, 12))
    options = ["--include-active", "--accept-gap", "--to", str(to)]
    assert GAP in said(capfd, "fetch", str(root), *options)
    assert GAP not in said(capfd, "fetch", str(root), *options)  # the gap was accepted before


def test_gap_at_the_end_of_the_log_is_recorded(tmp_path: Path) -> None:
    root, to = tmp_path / "root", tmp_path / "archive"
    fetch(write(root, range(4)), to)
    shutil.rmtree(root)
    write_segment(root / "t-0", 9, [], mtime_ms=NOW_MS)
    found = fetch(root, to, accepts_gap=True)
    assert found.gap is not None and GAP in found.gap
    assert (found.end_offset, fetch(root, to).reason) == (9, None)


def test_daemon_names_the_gap(archive: Path) -> None:
    events: list[Event] = []
    config = {"min.cleanable.dirty.ratio": 0, "cleanup.policy": "compact"}
    assert lastwrite.clean([str(archive)], config, once=True, spark=INLINE, tell=events.append) == 0
    named = [event.text for event in events if isinstance(event, DaemonNote) and GAP in event.text]
    assert len(named) == 1


def test_serve_names_the_gap_once(archive: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    where = f"127.0.0.1:{free_ports(1)[0]}"
    with lastwrite.serve(str(archive), listen=where, state=str(tmp_path / "s"), tell=lines.append):
        for to in ("one", "two"):
            found = lastwrite.fetch(f"kafka://{where}", str(tmp_path / to))
            assert found.exit_status == 0
    assert [GAP in line for line in lines].count(True) == 1


@pytest.mark.parametrize("json", [False, True])
def test_table_and_its_verification_name_the_gap(
    archive: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], json: bool
) -> None:
    more = ["--json"] if json else []
    to = str(tmp_path / "table")
    made = said(capfd, "table", str(archive), "--to", to, "--as", "parquet", *more)
    assert made.count(GAP) == 1
    assert said(capfd, "table", str(archive), "--verify", to, *more).count(GAP) == 1


def test_latest_and_follow_warn_of_the_gap(archive: Path) -> None:
    with pytest.warns(RecordsLost, match=GAP):
        found = lastwrite.latest(str(archive), "t")
    assert [GAP in note.message for note in found.notes] == [True]
    with pytest.warns(RecordsLost, match=GAP) as warned:
        table = lastwrite.table(str(archive), "t")
        assert list(table.follow(poll_s=None)) == []
        assert list(table.follow(poll_s=None)) == []
    assert (len(warned), len(table.notes)) == (1, 1)


def test_spark_source_warns_of_the_gap(archive: Path) -> None:
    pytest.importorskip("pyspark.sql.streaming.datasource", reason="limits came with PySpark 4.2")
    from lastwrite.source.reader import DefaultSource  # imported only if PySpark has its base class
    from tests.unit.test_source_filters import SCHEMA

    options = {"path": str(archive), "subscribe": "t", "startingOffsets": "earliest"}
    source = DefaultSource(options)
    reader = source.reader(SCHEMA)
    with pytest.warns(RecordsLost, match=GAP):
        assert reader.partitions()
    stream = source.streamReader(SCHEMA)
    with pytest.warns(RecordsLost, match=GAP) as warned:
        stream.initialOffset()
        stream.initialOffset()
    assert len(warned) == 1


def test_restore_names_the_gap(archive: Path, tmp_path: Path) -> None:
    root = log_root(tmp_path / "back")
    report = lastwrite.restore(str(archive), to=str(root))
    assert [GAP in note for note in report.notes].count(True) == 1


def test_later_fetch_and_copy_keep_the_gap(archive: Path, tmp_path: Path) -> None:
    write(tmp_path / "root", range(9, 15))
    assert fetch(tmp_path / "root", archive).end_offset == 15
    assert fetch(archive, tmp_path / "copy").end_offset == 15
    for place in (archive, tmp_path / "copy"):
        (found,) = lastwrite.inspect(str(place)).partitions
        assert [GAP in each.message for each in found.problems] == [True]


def test_fetch_from_an_archive_keeps_the_gaps_of_both(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    fetch(write(tmp_path / "old", range(4)), target)
    fetch(write(tmp_path / "new", range(9, 12)), source)
    assert fetch(source, target).held is HoldReason.GAP
    assert fetch(source, target, accepts_gap=True).end_offset == 12
    assert fetch(source, target).reason is None  # no new gap
    fetch(write(tmp_path / "newer", range(15, 17)), source, accepts_gap=True)
    assert fetch(source, target).end_offset == 17
    (found,) = lastwrite.inspect(str(target)).partitions
    named = [each.message for each in found.problems]
    assert [GAP in each for each in named].count(True) == 1
    assert ["offsets 12 to 14 were lost" in each for each in named].count(True) == 1


def test_accepted_gap_is_not_a_missing_segment(archive: Path) -> None:
    """A topic's policy without compaction normally makes a gap a missing segment."""
    report = lastwrite.verify(str(archive), config={"cleanup.policy": "delete"})
    assert report.exit_status == 0


def test_accept_gap_and_set_aside_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="exclude each other"):
        fetch(write(tmp_path, range(4)), tmp_path / "archive", accepts_gap=True, sets_aside=True)
