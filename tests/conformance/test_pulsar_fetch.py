"""Tests of fetching topics from files: objects, MapFiles, entry logs and journals."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lastwrite
from lastwrite.errors import InvalidConfig, LogError, NotALog
from lastwrite.model.log import ProblemKind
from lastwrite.pulsar.fetched import FetchedTopic, FetchMethod, FetchReport
from lastwrite.pulsar.format.compacted import decode_record
from lastwrite.pulsar.format.entry import decode_entry, messages_of
from lastwrite.pulsar.format.entry_log import encode_header, encode_record
from lastwrite.pulsar.format.names import TopicName
from lastwrite.pulsar.format.remedy import RESTORE
from lastwrite.pulsar.store.manifest import read_manifest
from lastwrite.pulsar.store.objects import OffloadWriter, checked_index, find_staged, read_entries
from lastwrite.spark.inline import INLINE
from lastwrite.storage import files
from tests.support.pulsar.corpus import (
    CORPUS,
    TOPICS,
    compacted_entries,
    horizon,
    raw_entries,
    unpack,
)

RAW_NAMES = ["shapes", "odd", "parts-partition-1", "files"]


@pytest.fixture(scope="module")
def bookies(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The folders of the three bookies, with unpacked entry logs and without journals."""
    folder = unpack("bookies", tmp_path_factory.mktemp("bookies"))
    for journal in folder.rglob("*.txn"):
        journal.unlink()
    return [str(folder / str(number)) for number in range(3)]


@pytest.fixture(scope="module")
def journals(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The folders of the three bookies, with journals only."""
    folder = unpack("bookies", tmp_path_factory.mktemp("journals"))
    for log in folder.rglob("*.log"):
        log.unlink()
    return [str(folder / str(number)) for number in range(3)]


def said(name: str, number: int, file: str) -> str:
    return str(CORPUS / "topics" / name / str(number) / file)


def entries_of(topic: FetchedTopic, is_compacted: bool = False) -> dict[tuple[int, int], bytes]:
    return {
        (ledger.ledger, entry): data
        for ledger in topic.ledgers
        if ledger.is_compacted is is_compacted and ledger.path
        for entry, data in read_entries(ledger.path)
    }


def messages_left(record: bytes) -> int:
    """The number of messages in a compacted ledger's entry. An encrypted entry counts as one."""
    position, _, body = decode_record(record)
    entry = decode_entry(body, *position)
    return (
        1
        if entry.is_encrypted
        else sum(not message.compacted_out for message in messages_of(entry))
    )


def damaged(report: FetchReport) -> list[str]:
    every = [*report.problems, *(problem for topic in report.topics for problem in topic.problems)]
    return [problem.message for problem in every if problem.kind is ProblemKind.DAMAGED]


@pytest.mark.parametrize("copies", [False, True])
def test_objects_of_a_bucket_name_their_topics(tmp_path: Path, copies: bool) -> None:
    report = lastwrite.fetch([str(CORPUS / "offloaded")], str(tmp_path), copies=copies)
    assert [topic.topic for topic in report.topics] == sorted(
        TOPICS[name] for name in RAW_NAMES[:3]
    )
    assert report.exit_status == 0
    for topic in report.topics:
        raw = raw_entries(TopicName.parse(topic.topic).managed_ledger.rpartition("/")[2])
        found = entries_of(topic)
        assert found == {
            place: data for place, data in raw.items() if place[0] in {one for one, _ in found}
        }
        assert {ledger.how for ledger in topic.ledgers} <= {FetchMethod.COPIED, FetchMethod.LINKED}
        assert not copies or {ledger.how for ledger in topic.ledgers} == {FetchMethod.COPIED}
    again = lastwrite.fetch([str(CORPUS / "offloaded")], str(tmp_path))
    assert {ledger.how for topic in again.topics for ledger in topic.ledgers} == {
        FetchMethod.PRESENT
    }


def test_object_of_two_blocks_is_fetched(tmp_path: Path) -> None:
    unpack("blocks", tmp_path / "bucket")
    report = lastwrite.fetch([str(tmp_path / "bucket")], str(tmp_path / "archive"))
    [ledger] = report.topics[0].ledgers
    assert len(checked_index(ledger.path).blocks) == 2
    read = dict(read_entries(ledger.path))
    assert list(read) == list(range(9))
    assert dict(read_entries(ledger.path, 7, 7)) == {7: read[7]}
    assert dict(read_entries(ledger.path, 6, 7)) == {6: read[6], 7: read[7]}


def test_map_files_become_objects(tmp_path: Path) -> None:
    report = lastwrite.fetch([str(CORPUS / "filesystem")], str(tmp_path))
    [topic] = report.topics
    assert topic.topic == TOPICS["files"]
    assert report.exit_status == 0
    found, raw = entries_of(topic), raw_entries("files")
    assert found == {
        place: data for place, data in raw.items() if place[0] in {one for one, _ in found}
    }
    assert len({one for one, _ in found}) >= 2
    assert {ledger.how for ledger in topic.ledgers} == {FetchMethod.WRITTEN}


@pytest.mark.parametrize("name", [*RAW_NAMES, "events"])
@pytest.mark.parametrize("form", ["node", "json"])
def test_bookies_provide_all_raw_entries_and_the_compacted_ledger(
    tmp_path: Path, bookies: list[str], name: str, form: str
) -> None:
    file = "managed-ledger" if form == "node" else "stats-internal.json"
    cursor = said(name, 2, "cursor") if form == "node" else None
    report = lastwrite.fetch(
        bookies,
        str(tmp_path),
        topic=TOPICS[name],
        metadata=said(name, 2, file),
        cursor=cursor,
        recover=True,
    )
    assert damaged(report) == []
    [topic] = report.topics
    assert entries_of(topic) == raw_entries(name)
    told = horizon(name, 2)
    place = f"{told['horizon']['ledger']}:{told['horizon']['entry']}"
    assert topic.horizon == place
    assert list(entries_of(topic, is_compacted=True).values()) == compacted_entries(name, 2)
    manifest = read_manifest(topic.folder)
    assert manifest is not None
    assert (str(manifest.horizon), manifest.ledger, manifest.entries) == (
        place,
        int(told["ledger"]),
        told["entries"],
    )
    assert manifest.size_bytes == told["size"]
    assert manifest.messages == sum(messages_left(record) for record in compacted_entries(name, 2))
    assert (
        Path(topic.folder) / ("managed-ledger" if form == "node" else "managed-ledger.json")
    ).exists()


def test_journals_provide_the_same_entries(tmp_path: Path, journals: list[str]) -> None:
    report = lastwrite.fetch(
        journals,
        str(tmp_path),
        topic=TOPICS["shapes"],
        metadata=said("shapes", 2, "stats-internal.json"),
    )
    assert damaged(report) == []
    assert entries_of(report.topics[0]) == raw_entries("shapes")


def test_entry_log_written_with_direct_io_is_fetched(tmp_path: Path) -> None:
    folder = unpack("direct", tmp_path / "direct")
    for journal in folder.rglob("*.txn"):
        journal.unlink()
    report = lastwrite.fetch(
        [str(folder / "0")],
        str(tmp_path / "archive"),
        topic="direct",
        metadata=said("direct", 1, "stats-internal.json"),
    )
    assert damaged(report) == []
    assert entries_of(report.topics[0]) == raw_entries("direct")
    assert list(entries_of(report.topics[0], is_compacted=True).values()) == compacted_entries(
        "direct", 1
    )


def test_entries_of_a_killed_bookie_are_fetched_from_its_journal(tmp_path: Path) -> None:
    folder = unpack("killed", tmp_path / "killed")
    report = lastwrite.fetch(
        [str(folder / "0")],
        str(tmp_path / "archive"),
        topic="killed",
        metadata=str(folder / "managed-ledger"),
    )
    [ledger] = report.topics[0].ledgers
    assert ledger.is_open
    assert ledger.entries == 5  # no entry after the sixth confirms it
    assert "the last add confirmed" in report.topics[0].problems[0].message
    report = lastwrite.fetch(
        [str(folder / "0")],
        str(tmp_path / "archive"),
        topic="killed",
        metadata=str(folder / "managed-ledger"),
        recover=True,
    )
    [ledger] = report.topics[0].ledgers
    assert (ledger.how, ledger.entries) == (FetchMethod.WRITTEN, 6)
    assert len(list(Path(report.topics[0].folder).glob("*-ledger-*-index"))) == 1


def test_offloaded_ledgers_are_preferred_to_bookies(tmp_path: Path, bookies: list[str]) -> None:
    sources = [str(CORPUS / "offloaded"), *bookies]
    report = lastwrite.fetch(
        sources,
        str(tmp_path),
        topic=TOPICS["shapes"],
        metadata=said("shapes", 2, "stats-internal.json"),
    )
    assert damaged(report) == []
    how = [ledger.how for ledger in report.topics[0].ledgers]
    assert how.count(FetchMethod.WRITTEN) == 2  # the open ledger and the compacted one
    assert entries_of(report.topics[0]) == raw_entries("shapes")


def test_later_fetch_adds_new_ledgers(tmp_path: Path, bookies: list[str]) -> None:
    first = lastwrite.fetch(
        bookies,
        str(tmp_path),
        topic=TOPICS["files"],
        metadata=said("files", 2, "stats-internal.json"),
    )
    assert first.exit_status == 0
    folder = Path(first.topics[0].folder)
    open_ledger = next(ledger for ledger in first.topics[0].ledgers if ledger.is_open)
    writer_left = folder / "something.0123456789ab.aside"
    writer_left.write_bytes(b"of a fetch that was killed")
    (folder / "managed-ledger.json").unlink()
    for path in (open_ledger.path, open_ledger.path + "-index"):
        Path(path).unlink()
    again = lastwrite.fetch(
        bookies,
        str(tmp_path),
        topic=TOPICS["files"],
        metadata=said("files", 2, "managed-ledger"),
        cursor=said("files", 2, "cursor"),
        recover=True,
    )
    how = {ledger.ledger: ledger.how for ledger in again.topics[0].ledgers}
    assert how.pop(open_ledger.ledger) is FetchMethod.WRITTEN
    assert set(how.values()) == {FetchMethod.PRESENT}
    assert not writer_left.exists()
    assert entries_of(again.topics[0]) == raw_entries("files")


def test_two_of_three_bookies_suffice_and_one_does_not(tmp_path: Path, bookies: list[str]) -> None:
    metadata = said("shapes", 2, "stats-internal.json")
    report = lastwrite.fetch(
        bookies[:2], str(tmp_path / "two"), topic=TOPICS["shapes"], metadata=metadata
    )
    assert damaged(report) == []
    assert entries_of(report.topics[0]) == raw_entries("shapes")
    report = lastwrite.fetch(
        bookies[:1], str(tmp_path / "one"), topic=TOPICS["shapes"], metadata=metadata
    )
    assert report.exit_status == 3
    assert any("is in none of the sources" in message for message in damaged(report))
    assert any("compacted ledger" in message for message in damaged(report))
    assert read_manifest(report.topics[0].folder) is None


def test_damaged_copy_is_replaced_by_another_and_two_are_named(
    tmp_path: Path, bookies: list[str]
) -> None:
    entry = raw_entries("odd")[min(raw_entries("odd"))]
    folders = [str(shutil.copytree(bookie, tmp_path / Path(bookie).name)) for bookie in bookies]
    metadata = said("odd", 2, "stats-internal.json")
    for count, status in ((1, 0), (2, 3)):
        hit = 0
        for log in sorted(tmp_path.rglob("*.log")):
            data = log.read_bytes()
            if entry in data and hit < 1:
                at = data.index(entry) + len(entry) - 1
                log.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
                hit += 1
        assert hit == 1
        report = lastwrite.fetch(
            folders, str(tmp_path / f"archive{count}"), topic=TOPICS["odd"], metadata=metadata
        )
        assert report.exit_status == status
        messages = [problem.message for problem in report.topics[0].problems]
        assert any("digest" in message for message in messages)
        assert (entries_of(report.topics[0]) == raw_entries("odd")) is (status == 0)


def test_damaged_entries_are_counted_and_unknown_digests_named(tmp_path: Path) -> None:
    (tmp_path / "bookie").mkdir()
    records = [encode_record(7, n, b"entry") for n in range(9)]
    broken = [record[:-1] + b"!" for record in records]
    metadata = {
        "state": "x",
        "ledgers": [{"ledgerId": 7, "entries": 9, "size": 45}, {"ledgerId": 9, "entries": 0}],
    }
    (tmp_path / "stats.json").write_text(json.dumps(metadata))
    for content, expected in (
        (broken, ["no entry of ledger 7 has a matching digest, neither CRC-32C nor CRC-32"]),
        (
            [*broken[:8], records[8]],
            [
                *(f"the digest of entry 7:{n} does not match" for n in range(5)),
                "3 more entries of ledger 7 have no matching digest",
            ],
        ),
    ):
        (tmp_path / "bookie" / "0.log").write_bytes(encode_header() + b"".join(content))
        report = lastwrite.fetch(
            [str(tmp_path / "bookie")],
            str(tmp_path / "archive"),
            topic="x",
            metadata=str(tmp_path / "stats.json"),
        )
        assert damaged(report)[: len(expected)] == expected
        assert report.exit_status == 3


def test_truncated_or_foreign_log_is_named(tmp_path: Path, bookies: list[str]) -> None:
    folder = Path(shutil.copytree(bookies[0], tmp_path / "bookie"))
    log = folder / "current" / "0.log"
    log.write_bytes(log.read_bytes()[:5000])
    (folder / "current" / "7.log").write_bytes(b"no entry log")
    report = lastwrite.fetch(
        [str(folder), *bookies[1:]],
        str(tmp_path / "archive"),
        topic=TOPICS["shapes"],
        metadata=said("shapes", 2, "stats-internal.json"),
    )
    assert entries_of(report.topics[0]) == raw_entries("shapes")
    assert {Path(problem.path).name for problem in report.problems} == {"0.log", "7.log"}
    assert report.exit_status == 3


def test_folder_may_contain_metadata_of_many_topics(tmp_path: Path, bookies: list[str]) -> None:
    for name in ("odd", "events"):
        folder = tmp_path / "metadata" / TopicName.parse(TOPICS[name]).managed_ledger
        folder.mkdir(parents=True)
        shutil.copy(said(name, 2, "managed-ledger"), folder / "managed-ledger")
        shutil.copy(said(name, 2, "cursor"), folder / "__compaction")
    report = lastwrite.fetch(
        bookies, str(tmp_path / "archive"), metadata=str(tmp_path / "metadata"), recover=True
    )
    assert damaged(report) == []
    assert [topic.topic for topic in report.topics] == [TOPICS["events"], TOPICS["odd"]]
    for topic, name in zip(report.topics, ("events", "odd"), strict=True):
        assert entries_of(topic) == raw_entries(name)
        assert list(entries_of(topic, is_compacted=True).values()) == compacted_entries(name, 2)


def test_empty_compacted_ledger_is_fetched(tmp_path: Path, bookies: list[str]) -> None:
    stats = json.loads(Path(said("odd", 2, "stats-internal.json")).read_text())
    stats["compactedLedger"] |= {"ledgerId": 12345, "entries": 0, "size": 0}
    stats["cursors"]["__compaction"]["properties"]["CompactedTopicLedger"] = 12345
    (tmp_path / "stats.json").write_text(json.dumps(stats))
    report = lastwrite.fetch(
        bookies,
        str(tmp_path / "archive"),
        topic=TOPICS["odd"],
        metadata=str(tmp_path / "stats.json"),
    )
    assert report.exit_status == 0
    manifest = read_manifest(report.topics[0].folder)
    assert manifest is not None
    assert (manifest.ledger, manifest.entries) == (12345, 0)
    assert str(manifest.horizon) == stats["cursors"]["__compaction"]["markDeletePosition"]


def test_ledgers_below_the_horizon_may_be_missing(tmp_path: Path, bookies: list[str]) -> None:
    stats = json.loads(Path(said("odd", 2, "stats-internal.json")).read_text())
    stats["ledgers"].insert(0, {"ledgerId": 0, "entries": 7, "size": 9, "offloaded": True})
    (tmp_path / "stats.json").write_text(json.dumps(stats))
    report = lastwrite.fetch(
        bookies,
        str(tmp_path / "archive"),
        topic=TOPICS["odd"],
        metadata=str(tmp_path / "stats.json"),
    )
    assert report.exit_status == 0
    assert [ledger.how for ledger in report.topics[0].ledgers][0] is FetchMethod.MISSING
    assert "compaction no longer needs the entries" in report.topics[0].problems[0].message


def test_further_compacted_archive_is_not_set_back(tmp_path: Path, bookies: list[str]) -> None:
    for number in (2, 1):
        report = lastwrite.fetch(
            bookies,
            str(tmp_path),
            topic=TOPICS["odd"],
            metadata=said("odd", 2, "managed-ledger"),
            cursor=said("odd", number, "cursor"),
        )
        manifest = read_manifest(report.topics[0].folder)
        assert manifest is not None
        assert manifest.ledger == int(horizon("odd", 2)["ledger"])


def test_missing_index_or_object_is_named(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    shutil.copytree(CORPUS / "offloaded", bucket)
    indexes = sorted(bucket.glob("*-index"))
    indexes[0].unlink()
    indexes[1].write_bytes(indexes[1].read_bytes()[:-3])
    report = lastwrite.fetch([str(bucket)], str(tmp_path / "archive"))
    assert report.exit_status == 3
    assert sorted(Path(problem.path).name for problem in report.problems) == sorted(
        [indexes[0].name.removesuffix("-index"), indexes[1].name]
    )


def test_missing_paths_and_ambiguous_topics_are_refused(tmp_path: Path, bookies: list[str]) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotALog, match="no such file or folder"):
        lastwrite.fetch([str(tmp_path / "none")], str(tmp_path))
    with pytest.raises(NotALog, match="or Pulsar ledger"):
        lastwrite.fetch([str(tmp_path / "empty")], str(tmp_path))
    with pytest.raises(InvalidConfig, match="the topic's ledger list"):
        lastwrite.fetch(bookies, str(tmp_path), topic="odd")
    with pytest.raises(InvalidConfig, match="given without a topic"):
        lastwrite.fetch(bookies, str(tmp_path), metadata=said("odd", 2, "managed-ledger"))
    with pytest.raises(NotALog, match="contain no ledger of"):
        lastwrite.fetch([str(CORPUS / "offloaded")], str(tmp_path), topic="others")


@pytest.mark.parametrize("is_killed", [False, True])
def test_failed_fetch_is_completed_by_the_next(
    tmp_path: Path, bookies: list[str], monkeypatch: pytest.MonkeyPatch, is_killed: bool
) -> None:
    if is_killed:  # a killed process does not remove its unfinished files
        monkeypatch.setattr(OffloadWriter, "abandon", lambda writer: None)

    def bring(archive: Path) -> FetchReport:
        return lastwrite.fetch(
            [str(CORPUS / "offloaded"), *bookies],
            str(archive),
            topic=TOPICS["odd"],
            metadata=said("odd", 2, "stats-internal.json"),
        )

    monkeypatch.setattr(files, "faults", files.FaultPoints(log=str(tmp_path / "steps")))
    bring(tmp_path / "whole")
    steps = (tmp_path / "steps").read_text().count("\n")
    assert steps > 15
    for step in range(1, steps + 1):
        archive = tmp_path / str(step)
        monkeypatch.setattr(files, "faults", files.FaultPoints(point=step, error=errno.EIO))
        with pytest.raises(LogError):
            bring(archive)
        monkeypatch.setattr(files, "faults", files.FaultPoints())
        report = bring(archive)
        assert damaged(report) == []
        assert entries_of(report.topics[0]) == raw_entries("odd")
        assert list(entries_of(report.topics[0], is_compacted=True).values()) == compacted_entries(
            "odd", 2
        )
        assert find_staged(report.topics[0].folder) == []


@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(where=st.integers(0), bits=st.integers(1, 255), size=st.integers(1, 9))
def test_damage_on_one_bookie_does_not_change_the_result(
    tmp_path_factory: pytest.TempPathFactory, bookies: list[str], where: int, bits: int, size: int
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    bad = Path(shutil.copytree(bookies[where % 3], folder / "bookie"))
    log = max((bad / "current").glob("*.log"), key=lambda path: path.stat().st_size)
    data = bytearray(log.read_bytes())
    at = where % len(data)
    data[at : at + size] = bytes(byte ^ bits for byte in data[at : at + size])
    log.write_bytes(bytes(data))
    sources = [str(bad), *(bookie for bookie in bookies if bookie != bookies[where % 3])]
    report = lastwrite.fetch(
        sources,
        str(folder / "archive"),
        topic=TOPICS["shapes"],
        metadata=said("shapes", 2, "stats-internal.json"),
    )
    assert entries_of(report.topics[0]) == raw_entries("shapes")
    assert list(entries_of(report.topics[0], is_compacted=True).values()) == compacted_entries(
        "shapes", 2
    )


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(where=st.integers(0), bits=st.integers(1, 255), cut=st.booleans())
def test_intact_entries_of_a_damaged_map_file_are_fetched(
    tmp_path_factory: pytest.TempPathFactory, where: int, bits: int, cut: bool
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    shutil.copytree(CORPUS / "filesystem", folder / "files")
    member = sorted((folder / "files").rglob("data"))[where % 2]
    data = member.read_bytes()
    at = where % len(data)
    member.write_bytes(data[:at] if cut else data[:at] + bytes([data[at] ^ bits]) + data[at + 1 :])
    try:
        report = lastwrite.fetch([str(folder / "files")], str(folder / "archive"))
    except NotALog:  # the damaged file is the only one that states the topic
        return
    raw = raw_entries("files")
    for topic in report.topics:
        found = entries_of(topic)
        assert found == {place: raw[place] for place in found}
        named = {
            (ledger.ledger, entry)
            for ledger in topic.ledgers
            for first, last in ledger.missing
            for entry in range(first, last + 1)
        }
        here = {ledger.ledger for ledger in topic.ledgers}
        assert found.keys() | named == {place for place in raw if place[0] in here}
        assert not named & found.keys()
        assert (len(here) >= 2 and not named) or report.exit_status != 0


@pytest.mark.parametrize("suffix, at", [("", 700), ("-index", 40)])
def test_fetch_replaces_a_deleted_damaged_object(tmp_path: Path, suffix: str, at: int) -> None:
    """Every command that finds the damage gives this remedy, so it must work."""
    archive = str(tmp_path / "archive")

    def fetch() -> list[FetchMethod]:
        report = lastwrite.fetch([str(CORPUS / "offloaded")], archive, topic="shapes", copies=True)
        return [each.how for each in report.topics[0].ledgers]

    assert set(fetch()) == {FetchMethod.COPIED}
    (folder,) = Path(archive).glob("*/*/*/shapes")
    (path,) = folder.glob("a4109e24*-ledger-2")
    broken = path.with_name(path.name + suffix)
    data = bytearray(broken.read_bytes())
    data[at] ^= 0xFF
    broken.write_bytes(data)

    (inspected,) = lastwrite.inspect(archive, spark=INLINE).partitions
    (planned,) = lastwrite.plan(archive, spark=INLINE).partitions
    (verified,) = lastwrite.verify(archive, spark=INLINE).partitions
    with pytest.raises(LogError) as dumped:
        list(lastwrite.dump(archive))
    told = [
        *(
            each.remedy
            for each in (*inspected.problems, *planned.problems, *verified.problems)
            if each.kind is ProblemKind.DAMAGED
        ),
        dumped.value.remedy,
    ]
    assert len(told) >= 4 and set(told) == {RESTORE}

    broken.unlink()
    assert FetchMethod.COPIED in fetch()
    assert lastwrite.verify(archive, spark=INLINE).exit_status == 0
    assert path.read_bytes() == (CORPUS / "offloaded" / path.name).read_bytes()
