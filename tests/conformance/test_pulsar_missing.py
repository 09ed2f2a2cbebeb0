"""Tests of damaged or missing parts of a real cluster's files.

Every command reports the missing part. The intact rest is fetched and readable, and no command
reports the topic as complete.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import lastwrite
from lastwrite.cli import run
from lastwrite.model.log import ProblemKind
from lastwrite.pulsar.fetched import FetchedLedger, FetchMethod, FetchReport
from lastwrite.pulsar.format.managed_ledger import LedgerInfo, ManagedLedgerInfo
from lastwrite.pulsar.format.names import TopicName
from lastwrite.pulsar.store.known import read_facts
from lastwrite.pulsar.store.mirror import mirroring
from lastwrite.pulsar.store.objects import checked_index, read_entries
from lastwrite.spark.inline import INLINE
from lastwrite.storage import files
from tests.support.pulsar.commands import check_damaged, check_whole, files_of, said_of
from tests.support.pulsar.corpus import CORPUS, TOPICS, compacted_entries, raw_entries, unpack

OPEN = {"odd": 54, "shapes": 62, "files": 59}  # the ledger that was open when the files were copied


@pytest.fixture(scope="module")
def bookies(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = unpack("bookies", tmp_path_factory.mktemp("bookies"))
    for journal in folder.rglob("*.txn"):
        journal.unlink()
    return [folder / str(number) for number in range(3)]


def said(name: str, file: str = "stats-internal.json") -> str:
    return str(CORPUS / "topics" / name / "2" / file)


def never_compacted(name: str, folder: Path) -> str:
    """Write the topic's statistics without its compaction. Returns the path."""
    stats: dict[str, Any] = json.loads(Path(said(name)).read_text())
    del stats["cursors"]["__compaction"]
    stats.pop("compactedLedger", None)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(stats))
    return str(path)


def damaged_copies(bookies: list[Path], folder: Path, *entries: bytes) -> list[Path]:
    """Copies of the bookies' folders in which these entries have a wrong last byte."""
    found = [Path(shutil.copytree(bookie, folder / bookie.name)) for bookie in bookies]
    for log in sorted(folder.rglob("*.log")):
        data = bytearray(log.read_bytes())
        for entry in entries:
            at = data.find(entry)
            while at >= 0:
                data[at + len(entry) - 1] ^= 1
                at = data.find(entry, at + len(entry))
        log.write_bytes(data)
    return found


def fetch(
    sources: list[Path], archive: Path, name: str, metadata: str | None, **how: Any
) -> FetchReport:
    return lastwrite.fetch(
        [str(each) for each in sources], str(archive), topic=TOPICS[name], metadata=metadata, **how
    )


def brought(report: FetchReport) -> dict[tuple[int, int], bytes]:
    return {
        (ledger.ledger, entry): data
        for ledger in report.topics[0].ledgers
        if not ledger.is_compacted and ledger.path
        for entry, data in read_entries(ledger.path)
    }


def of(report: FetchReport, ledger: int) -> FetchedLedger:
    return next(each for each in report.topics[0].ledgers if each.ledger == ledger)


def folder_of(report: FetchReport) -> Path:
    return Path(report.topics[0].folder)


def ids(read: Any) -> list[tuple[int, int]]:
    found = []
    with pytest.raises(lastwrite.errors.CorruptLog):
        for row in read:
            found.append((row["ledger"], row["entry"]))
    return found


# ---------------------------------------------------------------------- the archive


@pytest.mark.parametrize("keeps_known", [False, True])
def test_ledger_known_only_from_the_archives_metadata_is_missing(
    tmp_path: Path, bookies: list[Path], keeps_known: bool
) -> None:
    """Earlier releases left no ``fetched.json``, this one does."""
    report = fetch(bookies, tmp_path, "odd", never_compacted("odd", tmp_path))
    folder = folder_of(report)
    for path in folder.glob("*-ledger-54*"):
        path.unlink()
    if not keeps_known:
        (folder / "fetched.json").unlink()
    check_damaged(folder, "ledger 54 of 2 entries is missing: entries 54:0 to 54:1 are missing")
    again = fetch(bookies, tmp_path, "odd", None)
    assert again.exit_status == 0
    check_whole(folder, has_table=False)


def test_each_missing_ledger_of_an_archive_is_named(tmp_path: Path, bookies: list[Path]) -> None:
    report = fetch(bookies, tmp_path, "shapes", never_compacted("shapes", tmp_path))
    folder = folder_of(report)
    for ledger in (2, 16, 17, 19, 49, 62):
        hidden = tmp_path / "hidden"
        hidden.mkdir()
        for path in folder.glob(f"*-ledger-{ledger}*"):
            shutil.move(path, hidden)
        count = sum(place[0] == ledger for place in raw_entries("shapes"))
        check_damaged(folder, f"ledger {ledger} of {count} entr")
        for path in hidden.iterdir():
            shutil.move(path, folder)
        hidden.rmdir()


def test_bucket_without_confirmed_entries_is_incomplete(
    tmp_path: Path,
) -> None:
    report = fetch([CORPUS / "offloaded"], tmp_path / "a", "odd", never_compacted("odd", tmp_path))
    assert report.exit_status == 3
    assert "ledger 54 is in none of the sources" in str(report.topics[0].problems)
    check_damaged(folder_of(report), "54:0 to 54:1")


def test_bucket_is_complete_if_nothing_else_is_known(tmp_path: Path) -> None:
    """Covers an open ledger without a confirmed length, an unknown ledger, and a deleted ledger."""
    report = fetch([CORPUS / "offloaded"], tmp_path / "a", "odd", None)
    assert report.exit_status == 0
    check_whole(folder_of(report), has_table=False)
    report = fetch([CORPUS / "offloaded"], tmp_path / "b", "shapes", None)
    info = ManagedLedgerInfo(
        ledgers=(
            *(
                LedgerInfo(ledger=each.ledger, entries=each.entries, closed_ms=1)
                for each in report.topics[0].ledgers
            ),
            LedgerInfo(ledger=62),
        )
    )
    (tmp_path / "node").write_bytes(info.encode())
    report = fetch([CORPUS / "offloaded"], tmp_path / "b", "shapes", str(tmp_path / "node"))
    assert report.exit_status == 0
    (words,) = {str(problem.message) for problem in report.topics[0].problems}
    assert words == "ledger 62 is open, and only bookies have its entries"
    (tmp_path / "node").write_bytes(ManagedLedgerInfo(ledgers=info.ledgers[1:]).encode())
    report = fetch([CORPUS / "offloaded"], tmp_path / "b", "shapes", str(tmp_path / "node"))
    for path in folder_of(report).glob("*-ledger-2*"):
        path.unlink()
    assert report.exit_status == 0
    assert {status for _, (status, _) in said_of(folder_of(report), has_table=False)} == {0}


def test_ledgers_of_a_bucket_without_a_list_are_remembered(tmp_path: Path) -> None:
    report = fetch([CORPUS / "offloaded"], tmp_path, "shapes", None)
    for path in folder_of(report).glob("*-ledger-17*"):
        path.unlink()
    check_damaged(folder_of(report), "ledger 17 of 35 entries is missing")


def test_empty_current_ledger_causes_no_warning(tmp_path: Path, bookies: list[Path]) -> None:
    stats = json.loads(Path(never_compacted("odd", tmp_path)).read_text())
    stats["ledgers"][-1] |= {"entries": 2, "size": 100}
    stats["ledgers"].append({"ledgerId": 99, "entries": 0, "size": 0})
    (tmp_path / "stats.json").write_text(json.dumps(stats))
    report = fetch(bookies, tmp_path / "a", "odd", str(tmp_path / "stats.json"))
    assert (report.exit_status, report.topics[0].problems) == (0, ())
    assert lastwrite.inspect(str(folder_of(report))).partitions[0].problems == []
    check_whole(folder_of(report), has_table=False)


def test_topic_folder_without_ledgers_is_inspected(tmp_path: Path) -> None:
    folder = tmp_path / "public/default/persistent/t"
    folder.mkdir(parents=True)
    (folder / "managed-ledger").write_bytes(
        ManagedLedgerInfo(ledgers=(LedgerInfo(ledger=1),)).encode()
    )
    (found,) = lastwrite.inspect(str(folder)).partitions
    assert (found.is_due, found.reason) == (False, "the topic has no message")
    for command, (status, words) in said_of(folder):
        assert status == 0, (command, words)


# ---------------------------------------------------------------------- damaged copies


def test_intact_entries_around_a_damaged_one_are_fetched(
    tmp_path: Path, bookies: list[Path]
) -> None:
    raw = raw_entries("events")
    stats = json.loads(Path(never_compacted("events", tmp_path)).read_text())
    stats["ledgers"] = [{"ledgerId": 69, "entries": 0, "size": 0}]  # open, 17 entries confirmed
    (tmp_path / "stats.json").write_text(json.dumps(stats))
    bad = damaged_copies(bookies, tmp_path / "bad", raw[69, 3], raw[69, 8])
    report = fetch(bad, tmp_path / "a", "events", str(tmp_path / "stats.json"))
    assert report.exit_status == 3
    lost = {(69, 3), (69, 8)}
    assert brought(report) == {place: entry for place, entry in raw.items() if place not in lost}
    ledger = of(report, 69)
    assert (ledger.how, ledger.entries, ledger.missing) == (
        FetchMethod.WRITTEN,
        15,
        ((3, 3), (8, 8)),
    )
    assert "the other 15 of 17 entries were fetched" in str(report.topics[0].problems)
    folder = folder_of(report)
    check_damaged(folder, "entries 69:3 and 69:8, 2 in all are missing")
    whole = sorted(place for place in raw if place not in lost)
    assert sorted(set(ids(lastwrite.dump(str(folder))))) == whole
    assert sorted(set(ids(lastwrite.read(str(folder))))) == whole
    assert sorted(set(ids(lastwrite.read(str(folder), read_compacted=True)))) == whole
    # The same files change nothing. Then intact files complete the topic.
    again = fetch(bad, tmp_path / "a", "events", str(tmp_path / "stats.json"))
    assert (again.exit_status, of(again, 69).how, brought(again)) == (
        3,
        FetchMethod.PRESENT,
        brought(report),
    )
    again = fetch(bookies, tmp_path / "a", "events", str(tmp_path / "stats.json"))
    assert (again.exit_status, brought(again)) == (0, raw)
    check_whole(folder)


def test_entries_of_two_fetches_are_merged(tmp_path: Path, bookies: list[Path]) -> None:
    raw = raw_entries("shapes")
    one = damaged_copies(bookies, tmp_path / "one", raw[17, 0], raw[17, 5], raw[17, 6])
    two = damaged_copies(bookies, tmp_path / "two", raw[17, 6], raw[17, 20], raw[17, 34])
    metadata = never_compacted("shapes", tmp_path)
    report = fetch(one, tmp_path / "a", "shapes", metadata)
    assert of(report, 17).missing == ((0, 0), (5, 6))
    check_damaged(folder_of(report), "entries 17:0 and 17:5 to 17:6, 3 in all are missing")
    report = fetch(two, tmp_path / "a", "shapes", None)
    assert of(report, 17).missing == ((6, 6),)
    assert brought(report) == {place: entry for place, entry in raw.items() if place != (17, 6)}
    check_damaged(folder_of(report), "entry 17:6 is missing")
    report = fetch(one, tmp_path / "a", "shapes", None)
    assert (of(report, 17).how, of(report, 17).missing) == (FetchMethod.PRESENT, ((6, 6),))


def test_ledger_truncated_by_an_earlier_release_is_completed(
    tmp_path: Path, bookies: list[Path]
) -> None:
    """7 of the 35 entries are present, and nothing shows that there were more."""
    metadata = never_compacted("shapes", tmp_path)
    report = fetch(bookies, tmp_path / "a", "shapes", metadata)
    path = Path(of(report, 17).path)
    kept = dict(read_entries(str(path), 0, 6))
    index = checked_index(str(path))
    with mirroring(str(tmp_path / "a"), TopicName.parse(TOPICS["shapes"])) as mirror:
        mirror.fetch(17, index.metadata, kept.items())
    (folder_of(report) / "fetched.json").unlink()
    check_damaged(
        folder_of(report),
        "entries 17:7 to 17:34 are missing: the object ends with entry 6, but the "
        "ledger has 35 entries",
    )
    bad = damaged_copies(
        bookies, tmp_path / "bad", raw_entries("shapes")[17, 2], raw_entries("shapes")[17, 9]
    )
    report = fetch(bad, tmp_path / "a", "shapes", None)
    assert of(report, 17).missing == ((9, 9),)


def test_entries_missing_on_one_of_three_bookies_are_named(
    tmp_path: Path, bookies: list[Path]
) -> None:
    raw = raw_entries("shapes")
    report = fetch(bookies[:1], tmp_path / "a", "shapes", never_compacted("shapes", tmp_path))
    found = brought(report)
    assert report.exit_status == 3 and found and found == {place: raw[place] for place in found}
    named = {
        (each.ledger, entry)
        for each in report.topics[0].ledgers
        for first, last in each.missing
        for entry in range(first, last + 1)
    }
    assert named == raw.keys() - found.keys()
    check_damaged(folder_of(report))
    report = fetch(bookies[1:2], tmp_path / "a", "shapes", None)
    assert (report.exit_status, brought(report)) == (0, raw)
    check_whole(folder_of(report), has_table=False)


def test_damaged_unconfirmed_last_entry_is_handled(tmp_path: Path, bookies: list[Path]) -> None:
    raw = raw_entries("odd")
    bad = damaged_copies(bookies, tmp_path / "bad", raw[54, 1])
    node = said("odd", "managed-ledger")
    report = fetch(bad, tmp_path / "a", "odd", node)
    assert report.exit_status == 3
    check_damaged(folder_of(report), "entry 54:1: the fetch found no intact copy")
    both = damaged_copies(bookies, tmp_path / "both", raw[54, 0], raw[54, 1])
    report = fetch(both, tmp_path / "b", "odd", node)
    assert report.exit_status == 3, "nothing at all is whole of it"
    check_damaged(folder_of(report), "entries 54:0 to 54:1: the fetch found no intact copy")
    report = fetch(bookies, tmp_path / "b", "odd", node, recover=True)
    assert report.exit_status == 0
    check_whole(folder_of(report), has_table=False)


def test_known_length_of_an_open_ledger_survives_a_smaller_fetch(
    tmp_path: Path, bookies: list[Path]
) -> None:
    report = fetch(bookies, tmp_path / "a", "odd", never_compacted("odd", tmp_path))
    folder = folder_of(report)
    for path in folder.glob("*-ledger-54*"):
        path.unlink()
    report = fetch([CORPUS / "offloaded"], tmp_path / "a", "odd", said("odd", "managed-ledger"))
    assert report.exit_status == 3
    check_damaged(folder, "54:0 to 54:1")
    known = read_facts(str(folder))
    assert known is not None and known.entries[54] == 2


# ---------------------------------------------------------------------- compaction


def test_hole_below_the_horizon_is_not_damage_but_noted(
    tmp_path: Path, bookies: list[Path]
) -> None:
    raw, records = raw_entries("shapes"), b"".join(compacted_entries("shapes", 2))
    lost = next(
        entry for ledger, entry in sorted(raw) if ledger == 17 and raw[17, entry] not in records
    )
    assert lost < 34
    bad = damaged_copies(bookies, tmp_path / "bad", raw[17, lost])
    report = fetch(bad, tmp_path / "a", "shapes", said("shapes"))
    folder = folder_of(report)
    horizon = report.topics[0].horizon
    assert horizon is not None and int(horizon.split(":")[0]) > 17
    assert all(
        problem.kind is not ProblemKind.DAMAGED
        for problem in lastwrite.inspect(str(folder)).partitions[0].problems
    )
    reading = lastwrite.read(str(folder))
    found = {(row["ledger"], row["entry"]) for row in reading}
    assert (
        f"entry 17:{lost};" in str(reading.notes)
        and (17, lost) not in found
        and (17, lost + 1) in found
    )
    reading = lastwrite.read(str(folder), read_compacted=True)
    assert list(reading) and not reading.notes and reading.status == "OPEN_TRANSACTION"
    assert lastwrite.verify(str(folder)).exit_status == 0
    assert {status for _, (status, _) in said_of(folder, has_table=False)} == {0}


def test_missing_or_damaged_compacted_ledger_is_named_by_every_command(
    tmp_path: Path, bookies: list[Path]
) -> None:
    told = json.loads(Path(said("odd")).read_text())["compactedLedger"]["ledgerId"]
    report = fetch([CORPUS / "offloaded"], tmp_path / "a", "odd", said("odd"))
    check_damaged(folder_of(report), f"the compacted ledger {told}")
    whole = fetch(bookies, tmp_path / "b", "odd", said("odd"))
    record = dict(read_entries(of(whole, told).path))[1]
    bad = damaged_copies(bookies, tmp_path / "bad", record)
    report = fetch(bad, tmp_path / "c", "odd", said("odd"))
    assert report.exit_status == 3
    assert of(report, told).missing == ((1, 1),)
    assert not (folder_of(report) / "compacted.json").exists()
    check_damaged(folder_of(report), f"the compacted ledger {told}")
    report = fetch(bookies, tmp_path / "c", "odd", None, cursor=said("odd"))
    assert report.exit_status == 0
    check_whole(folder_of(report), has_table=False)


def test_unreadable_cursor_is_remembered(tmp_path: Path, bookies: list[Path]) -> None:
    report = fetch(
        [CORPUS / "offloaded"],
        tmp_path / "a",
        "odd",
        said("odd", "managed-ledger"),
        cursor=said("odd", "cursor"),
    )
    assert report.exit_status == 3
    check_damaged(folder_of(report), "which contains the compaction horizon")
    report = fetch(
        bookies,
        tmp_path / "a",
        "odd",
        said("odd", "managed-ledger"),
        cursor=said("odd", "cursor"),
        recover=True,
    )
    assert report.exit_status == 0
    check_whole(folder_of(report), has_table=False)


def test_copy_of_a_damaged_topic_is_complete(tmp_path: Path, bookies: list[Path]) -> None:
    bad = damaged_copies(bookies, tmp_path / "bad", raw_entries("odd")[4, 2])
    folder = folder_of(fetch(bad, tmp_path / "a", "odd", never_compacted("odd", tmp_path)))
    (path,) = folder.glob("*-ledger-54")
    for suffix in ("", "-index"):  # two objects of one ledger, and an index that cannot be decoded
        shutil.copy(f"{path}{suffix}", folder / f"{uuid4()}-ledger-54{suffix}")
        shutil.copy(f"{path}", folder / f"{uuid4()}-ledger-60{suffix}")
    report = lastwrite.compact(str(folder), to=str(tmp_path / "copy"), spark=INLINE)
    assert report.exit_status == 3
    copy = tmp_path / "copy" / folder.relative_to(tmp_path / "a")
    assert files_of(copy) == files_of(folder)


# ---------------------------------------------------------------------- crashes


@pytest.mark.parametrize("is_bad", [False, True])
def test_fetch_killed_at_any_step_keeps_the_known_facts(
    tmp_path: Path, bookies: list[Path], monkeypatch: pytest.MonkeyPatch, is_bad: bool
) -> None:
    raw = raw_entries("odd")
    metadata = never_compacted("odd", tmp_path)
    sources = damaged_copies(bookies, tmp_path / "bad", raw[4, 2]) if is_bad else bookies
    before = damaged_copies(bookies, tmp_path / "before", raw[4, 5])

    def bring(archive: Path) -> FetchReport:
        if is_bad:  # an earlier fetch missed another entry
            fetch(before, archive, "odd", metadata)
        return fetch(sources, archive, "odd", metadata)

    monkeypatch.setattr(files, "faults", files.FaultPoints(log=str(tmp_path / "steps")))
    bring(tmp_path / "whole")
    steps = (tmp_path / "steps").read_text().count("\n")
    monkeypatch.setattr("lastwrite.pulsar.store.objects.OffloadWriter.abandon", lambda writer: None)
    for step in range(1, steps + 1):
        archive = tmp_path / str(step)
        monkeypatch.setattr(files, "faults", files.FaultPoints(point=step, error=5))
        with pytest.raises(lastwrite.errors.LogError):
            bring(archive)
        monkeypatch.setattr(files, "faults", files.FaultPoints())
        folder = archive / "public/default/persistent/odd"
        if (folder / "managed-ledger.json").exists():
            found = lastwrite.inspect(str(folder)).partitions[0]
            assert found.is_damaged or found.contents.entries == 9
        report = bring(archive)
        assert (report.exit_status, brought(report)) == (0, raw)
        assert len(list(folder.glob("*-ledger-4"))) == 1


# ---------------------------------------------------------------------- the command line


def test_commands_name_a_gap_in_text(
    tmp_path: Path, bookies: list[Path], capfd: pytest.CaptureFixture[str]
) -> None:
    raw = raw_entries("events")
    bad = damaged_copies(bookies, tmp_path / "bad", raw[69, 3], raw[69, 8])
    metadata, archive = never_compacted("events", tmp_path), str(tmp_path / "a")
    asked = [
        "fetch",
        *map(str, bad),
        "--to",
        archive,
        "--topic",
        TOPICS["events"],
        "--metadata",
        metadata,
    ]
    assert run(asked) == 3
    words = capfd.readouterr().out
    assert "written, 2 missing" in words
    assert (
        "entries 69:3 and 69:8, 2 in all are in none of the sources; the other 15 of 17 entries were fetched"
        in words
    )
    for command in (["inspect"], ["verify"], ["dump"], ["read", "--read-compacted"]):
        assert run([command[0], archive, *command[1:]]) == 3, command
        said = capfd.readouterr()
        assert "entries 69:3 and 69:8, 2 in all are missing" in said.out + said.err, command
        assert "END_OF_TOPIC" not in said.out + said.err
    assert run(["read", archive, "--json"]) == 3
    rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    (end,) = (row for row in rows if "status" in row)
    assert end["status"] == "DAMAGED" and "entries 69:3 and 69:8" in str(end["notes"])
    assert run(["fetch", *map(str, bookies), "--to", archive, "--topic", TOPICS["events"]]) == 0
    for command in (["inspect"], ["verify"], ["read", "--read-compacted"]):
        assert run([command[0], archive, *command[1:]]) == 0, command


# ---------------------------------------------------------------------- a bucket


@pytest.mark.parametrize("is_listed", [False, True])
def test_intact_entries_of_a_truncated_object_are_fetched(
    tmp_path: Path, bookies: list[Path], is_listed: bool
) -> None:
    raw = raw_entries("shapes")
    bucket = Path(shutil.copytree(CORPUS / "offloaded", tmp_path / "bucket"))
    (path,) = bucket.glob("*-ledger-17")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    metadata = None
    if is_listed:
        infos = [
            LedgerInfo(ledger=n, entries=sum(p[0] == n for p in raw), closed_ms=1)
            for n in (2, 16, 17, 19, 49)
        ]
        metadata = str(tmp_path / "node")
        Path(metadata).write_bytes(ManagedLedgerInfo(ledgers=tuple(infos)).encode())
    report = fetch([bucket], tmp_path / "a", "shapes", metadata)
    assert report.exit_status == 3
    ((first, last),) = of(report, 17).missing
    assert 0 < first < last == 34
    found = brought(report)
    assert (
        found == {place: raw[place] for place in found}
        and max(e for n, e in found if n == 17) == first - 1
    )
    check_damaged(folder_of(report), f"entries 17:{first} to 17:34 are missing")
    report = fetch(
        bookies if is_listed else [CORPUS / "offloaded"], tmp_path / "a", "shapes", metadata
    )
    assert (report.exit_status, of(report, 17).missing) == (0, ())
    assert {status for _, (status, _) in said_of(folder_of(report), has_table=False)} == {0}


@pytest.mark.parametrize("source", ["offloaded", "filesystem"])
def test_unreadable_ledger_of_a_source_is_remembered(tmp_path: Path, source: str) -> None:
    bucket = Path(shutil.copytree(CORPUS / source, tmp_path / "bucket"))
    if source == "offloaded":  # the object's metadata in the bucket states the topic
        name, ledger, (path,) = "shapes", 17, bucket.glob("*-ledger-17-index")
    else:
        name, ledger, (path,) = "files", 9, bucket.rglob("9-*/data")
    path.write_bytes(path.read_bytes()[:60])
    report = lastwrite.fetch([str(bucket)], str(tmp_path / "a"))
    assert report.exit_status == 3
    folder = next(Path(topic.folder) for topic in report.topics if topic.topic == TOPICS[name])
    check_damaged(folder, f"entry {ledger}:0: the fetch found no intact copy")
    report = lastwrite.fetch([str(CORPUS / source)], str(tmp_path / "a"), topic=TOPICS[name])
    assert report.exit_status == 0
    assert {status for _, (status, _) in said_of(folder, has_table=False)} == {0}
