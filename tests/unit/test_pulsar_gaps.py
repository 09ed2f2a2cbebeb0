"""Tests of ``fetch --accept-gap`` on Pulsar: missing ledgers are recorded, and commands name the
gap.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import lastwrite
from lastwrite import cli
from lastwrite.archive.gaps import RecordsLost
from lastwrite.cleaner.events import DaemonNote, Event
from lastwrite.pulsar.fetched import FetchedTopic, FetchReport
from lastwrite.spark.inline import INLINE
from tests.support.jars import free_ports
from tests.support.pulsar.folders import single, write_ledger
from tests.support.pulsar.topics import topic_folder

TOPIC = "persistent://public/default/orders"
GAP = "entries 5:4 to before 9:0 were lost before they were fetched"


def write(root: Path, *ledgers: int) -> Path:
    """Write a topic folder with these raw ledgers of four entries each."""
    folder = topic_folder(root, TOPIC)
    for ledger in ledgers:
        entries = [single(f"k{n % 3}", f"v{ledger}.{n}", ledger * 10 + n) for n in range(4)]
        write_ledger(folder, ledger, entries)
    return folder


def fetch(root: Path, archive: Path, **how: bool) -> FetchedTopic:
    report = lastwrite.fetch([str(root)], str(archive), **how)
    assert isinstance(report, FetchReport)
    (found,) = report.topics
    return found


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive of ledgers 5 and 9, with an accepted gap between them."""
    base = tmp_path_factory.mktemp("pulsar")
    write(base / "before", 5)
    write(base / "after", 9)
    fetch(base / "before", base / "archive")
    (problem,) = fetch(base / "after", base / "archive").problems
    assert problem.remedy is not None and "--accept-gap" in problem.remedy
    found = fetch(base / "after", base / "archive", accepts_gap=True)
    assert [GAP in each.message for each in found.problems] == [True]
    assert [each.ledger for each in found.ledgers] == [5, 9]
    assert not fetch(base / "after", base / "archive").problems  # the gap was accepted before
    return base / "archive"


@pytest.fixture
def archive(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "archive"))


def said(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    capfd.readouterr()
    assert cli.run(list(arguments)) == 0
    out, err = capfd.readouterr()
    return out + err


@pytest.mark.parametrize("command", [["inspect"], ["dump"], ["read"], ["explain"]])
@pytest.mark.parametrize("json", [False, True])
def test_commands_name_the_gap(
    archive: Path, capfd: pytest.CaptureFixture[str], command: list[str], json: bool
) -> None:
    name, *options = command
    more = ["--json"] if json else []
    assert GAP in said(capfd, name, str(archive), "--topic", "orders", *options, *more)


@pytest.mark.parametrize("json", [False, True])
def test_tables_name_the_gap(
    archive: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], json: bool
) -> None:
    more = ["--json"] if json else []
    to = str(tmp_path / "table")
    assert said(capfd, "table", str(archive), "--to", to, "--as", "parquet", *more).count(GAP) == 1
    assert said(capfd, "table", str(archive), "--verify", to, *more).count(GAP) == 1


def test_latest_and_table_warn_of_the_gap(archive: Path) -> None:
    with pytest.warns(RecordsLost, match=GAP):
        found = lastwrite.latest(str(archive))
    assert [GAP in each.message for each in found.notes] == [True]
    with pytest.warns(RecordsLost, match=GAP):
        assert len(lastwrite.table(str(archive)).notes) == 1


def test_serve_names_the_gap_once(archive: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    where = f"127.0.0.1:{free_ports(1)[0]}"
    with lastwrite.serve(str(archive), listen=where, state=str(tmp_path / "s"), tell=lines.append):
        for to in ("one", "two"):
            assert lastwrite.fetch(f"kafka://{where}", str(tmp_path / to)).exit_status == 0
    assert [GAP in line for line in lines].count(True) == 1


def test_verify_and_rounds_name_the_gap(archive: Path) -> None:
    (found,) = lastwrite.verify(str(archive), spark=INLINE).partitions
    assert [GAP in each.message for each in found.problems] == [True]
    events: list[Event] = []
    config = {"compactionThreshold": "1"}
    status = lastwrite.clean([str(archive)], config, once=True, spark=INLINE, tell=events.append)
    assert status == 0
    assert [GAP in event.text for event in events if isinstance(event, DaemonNote)] == [True]


def test_round_and_copies_keep_the_gap(archive: Path, tmp_path: Path) -> None:
    lastwrite.compact(str(archive), to=str(tmp_path / "copy"), spark=INLINE)
    fetch(archive, tmp_path / "other")
    for place in (tmp_path / "copy", tmp_path / "other"):
        (found,) = lastwrite.inspect(str(place)).partitions
        assert [GAP in each.message for each in found.problems] == [True]


def test_round_over_the_gap_does_not_claim_the_lost_values(archive: Path, tmp_path: Path) -> None:
    """The compacted ledger is built from the archive, which lacks the entries. Copies also report
    the gap.
    """
    lastwrite.compact(str(archive), to=str(tmp_path / "copy"), spark=INLINE)
    lastwrite.compact(str(archive), spark=INLINE)
    write(tmp_path / "after", 12)
    fetch(tmp_path / "after", archive)
    lastwrite.compact(str(archive), spark=INLINE)
    fetch(archive, tmp_path / "other")
    fetch(tmp_path / "copy", tmp_path / "third")
    for place in (archive, *(tmp_path / name for name in ("copy", "other", "third"))):
        (found,) = lastwrite.inspect(str(place)).partitions
        assert found.horizon is not None
        (words,) = [each.message for each in found.problems]
        assert GAP in words and "has the last write" not in words


@pytest.mark.parametrize(
    "present, expected",
    [
        ((), [("5:4", "9:0")]),
        ((5, 7, 9), []),
        ((5, 7), [("7:4", "9:0")]),
        ((7,), [("5:4", "7:0"), ("7:4", "9:0")]),
        ((7, 9), [("5:4", "7:0")]),
        ((9,), [("5:4", "9:0")]),
        ((5, 7, 9, 12), []),
    ],
)
def test_fetch_from_an_archive_takes_only_gaps_that_the_archive_has_too(
    made: Path, tmp_path: Path, present: tuple[int, ...], expected: list[tuple[str, str]]
) -> None:
    if present:
        write(tmp_path / "before", *present)
        fetch(tmp_path / "before", tmp_path / "archive")
    found_there = fetch(made, tmp_path / "archive", accepts_gap=True).problems
    assert all(each.is_note for each in found_there)
    (found,) = lastwrite.inspect(str(tmp_path / "archive")).partitions
    words = [f"the entries {first} to before {end} were lost" for first, end in expected]
    assert [each.message.partition(" before they")[0] for each in found.problems] == words


def test_compacted_ledger_beyond_the_gap_keeps_the_latest_values(tmp_path: Path) -> None:
    write(tmp_path / "before", 5)
    folder = write(tmp_path / "after", 9)
    rounds = lastwrite.compact(str(tmp_path / "after"), spark=INLINE)
    assert rounds.exit_status == 0 and folder.exists()
    fetch(tmp_path / "before", tmp_path / "archive")
    (note,) = fetch(tmp_path / "after", tmp_path / "archive", accepts_gap=True).problems
    assert GAP in note.message and "has the last write of each key in them" in note.message
