"""Properties of random topics with damaged or missing parts, in bookie files or in an archive.

Every command reports exactly the missing part and reads the rest. An intact topic is reported as
intact.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lastwrite
from lastwrite.errors import CorruptLog
from lastwrite.pulsar.fetched import FetchReport
from lastwrite.pulsar.format.entry_log import encode_header, encode_record
from lastwrite.pulsar.format.ledger_metadata import Digest, LedgerMetadata, LedgerState
from lastwrite.pulsar.format.missing import (
    EntryRange,
    between,
    decode_ranges,
    describe_ids,
    encode_ranges,
    missing_in,
    ranges_of,
)
from lastwrite.pulsar.format.position import Position
from lastwrite.pulsar.store.known import TopicFacts
from lastwrite.pulsar.store.objects import OffloadWriter, read_entries, read_index
from lastwrite.pulsar.store.survey import survey_of
from lastwrite.pulsar.store.topic import list_topic
from tests.support.kafka.logs import SCRATCH
from tests.support.pulsar.commands import check_damaged, check_whole, files_of, said_of
from tests.support.pulsar.folders import single
from tests.support.pulsar.topics import topic_folder

COUNTS = {10: 9, 11: 1, 12: 14, 15: 0, 20: 6}  # ledger 20 is open

Place = tuple[int, int]


def entry_of(ledger: int, entry: int) -> bytes:
    return single(
        f"key {entry % 4}",
        f"{ledger}:{entry} " + "v" * (ledger * entry % 50),
        1000 * ledger + entry,
    )


ENTRIES = {
    (ledger, entry): entry_of(ledger, entry)
    for ledger, count in COUNTS.items()
    for entry in range(count)
}


def write_bookies(folder: Path, damaged: set[Place], absent: set[Place]) -> list[str]:
    """Write two bookies with all entries, except the absent ones.

    All copies of damaged entries are broken.
    """
    for number in range(2):
        log = bytearray(encode_header())
        for (ledger, entry), data in ENTRIES.items():
            if (ledger, entry) in absent:
                continue
            record = bytearray(encode_record(ledger, entry, data))
            if (ledger, entry) in damaged:
                record[-1 - entry % len(data)] ^= 1 << (ledger + number) % 8
            log += record
        (folder / str(number)).mkdir(parents=True)
        (folder / str(number) / "0.log").write_bytes(log)
    return [str(folder / str(number)) for number in range(2)]


@contextmanager
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="lastwrite-missing-", dir=SCRATCH) as place:
        path = Path(place)
        ledgers = [
            {"ledgerId": ledger, "entries": count, "size": 9} for ledger, count in COUNTS.items()
        ]
        ledgers[-1] |= {"entries": 0, "size": 0}
        told = {
            "state": "LedgerOpened",
            "lastConfirmedEntry": "20:5",
            "ledgers": ledgers,
            "cursors": {},
        }
        (path / "stats.json").write_text(json.dumps(told))
        yield path


def fetch(sources: list[str], path: Path) -> FetchReport:
    return lastwrite.fetch(
        sources,
        str(path / "archive"),
        topic="persistent://public/default/t",
        metadata=str(path / "stats.json"),
    )


def check_report(report: FetchReport, lost: set[Place]) -> None:
    (topic,) = report.topics
    here = {
        (ledger.ledger, entry): data
        for ledger in topic.ledgers
        if ledger.path
        for entry, data in read_entries(ledger.path)
    }
    named = {
        (ledger.ledger, entry)
        for ledger in topic.ledgers
        for first, last in ledger.missing
        for entry in range(first, last + 1)
    }
    assert here == {place: data for place, data in ENTRIES.items() if place not in lost}
    assert named == lost
    assert report.exit_status == (3 if lost else 0)
    assert all(
        ledger.entries == sum(place[0] == ledger.ledger for place in here)
        for ledger in topic.ledgers
        if ledger.path
    )


def names_of(lost: set[Place]) -> list[str]:
    """The text that every command prints for each ledger with lost entries."""
    found = []
    for ledger in sorted({ledger for ledger, _ in lost}):
        entries = sorted(entry for each, entry in lost if each == ledger)
        found.append(describe_ids(ledger, ranges_of(entries)))
    return found


@pytest.mark.parametrize("seed", range(10))
def test_entries_that_no_bookie_has_are_named_by_every_command(seed: int) -> None:
    rng = random.Random(seed)
    with scratch() as path:
        whole = write_bookies(path / "whole", set(), set())
        places = sorted(ENTRIES)
        if seed % 3 == 2:
            places = [place for place in places if place[0] == rng.choice([10, 11, 12, 20])]
        lost = set(rng.sample(places, min(len(places), rng.choice([1, 2, 5, 14]))))
        damaged = {place for place in lost if rng.random() < 0.5}
        report = fetch(write_bookies(path / "bad", damaged, lost - damaged), path)
        folder = Path(report.topics[0].folder)
        check_report(report, lost)
        check_names(folder, lost)
        before = files_of(folder)
        again = fetch([str(path / "bad" / "0")], path)
        assert files_of(folder) == before and again.exit_status == 3
        # Some of the lost entries are found, some still not. Then all are there, whatever happened
        # to the first bookies.
        found = {place for place in lost if rng.random() < 0.5}
        report = fetch(write_bookies(path / "some", lost - found, set(places) - lost - found), path)
        check_report(report, lost - found)
        report = fetch(whole, path)
        check_report(report, set())
        check_whole(folder)


def check_names(folder: Path, lost: set[Place]) -> None:
    check_damaged(folder)
    (found,) = lastwrite.inspect(str(folder)).partitions
    words = " ".join(problem.message for problem in found.problems)
    for name in names_of(lost):
        assert name in words
    rows = set()
    with pytest.raises(CorruptLog):
        for row in lastwrite.read(str(folder)):
            rows.add((row["ledger"], row["entry"]))
    assert rows == ENTRIES.keys() - lost


@pytest.mark.parametrize("seed", range(6))
def test_entries_missing_from_an_archive_are_named_by_every_command(seed: int) -> None:
    rng = random.Random(seed)
    with scratch() as path:
        report = fetch(write_bookies(path / "whole", set(), set()), path)
        folder = Path(report.topics[0].folder)
        (
            folder / rng.choice(["managed-ledger.json", "fetched.json"])
        ).unlink()  # each of the two files is enough
        gone = rng.sample([10, 11, 12, 20], rng.choice([1, 2]))
        for ledger in gone:
            for name in folder.glob(f"*-ledger-{ledger}"):
                for suffix in rng.choice([("", "-index"), ("-index",), ("",)]):
                    Path(f"{name}{suffix}").unlink()
        names = [
            f"ledger {ledger} of {COUNTS[ledger]} entries is missing" for ledger in sorted(gone)
        ]
        check_damaged(folder, names[0])
        words = str(lastwrite.inspect(str(folder)).partitions[0].problems)
        assert all(name in words for name in names)


def test_intact_topic_is_reported_as_intact() -> None:
    with scratch() as path:
        report = fetch(write_bookies(path / "whole", set(), set()), path)
        assert (report.exit_status, report.topics[0].problems) == (0, ())
        check_report(report, set())
        check_whole(Path(report.topics[0].folder))
        # After a compaction, the topic does not need raw ledgers below its horizon.
        for name in Path(report.topics[0].folder).glob("*-ledger-1[0-2]*"):
            name.unlink()
        folder = Path(report.topics[0].folder)
        assert {status for _, (status, _) in said_of(folder)} == {0}
        for reads_compacted in (True, False):
            reading = lastwrite.read(str(folder), read_compacted=reads_compacted)
            assert list(reading) and reading.status == "END_OF_TOPIC"
            assert reads_compacted is (
                "entries 10:0 to 10:8; compaction no longer needs" not in str(reading.notes)
            )


# ---------------------------------------------------------------------- single functions


@given(st.sets(st.integers(0, 40)), st.integers(0, 41))
def test_missing_ranges_round_trip(entries: set[int], end: int) -> None:
    found = missing_in(np.array(sorted(entries), np.int64), end)
    listed = [entry for each in found for entry in range(each.first, each.last + 1)]
    assert listed == [entry for entry in range(end) if entry not in entries]
    assert found == ranges_of(listed)
    if found:
        assert decode_ranges(encode_ranges(found)) == found
    inside = [entry for each in between(found, 5, 30) for entry in range(each.first, each.last + 1)]
    assert inside == [entry for entry in listed if 5 <= entry < 30]


@given(st.binary(max_size=12) | st.text("0123456789,-", max_size=12).map(str.encode))
def test_malformed_ranges_are_refused(text: bytes) -> None:
    try:
        found = decode_ranges(text)
    except CorruptLog:
        return
    assert all(a.last + 1 < b.first for a, b in zip(found, found[1:], strict=False))
    assert all(each.first <= each.last for each in found)


@given(
    entries=st.sets(st.integers(0, 60), min_size=1),
    block_bytes=st.sampled_from([200, 500, 1 << 20]),
    is_framed=st.booleans(),
)
def test_object_with_gaps_is_read_back(
    entries: set[int], block_bytes: int, is_framed: bool
) -> None:
    with tempfile.TemporaryDirectory(prefix="lastwrite-gaps-", dir=SCRATCH) as place:
        folder = topic_folder(Path(place))
        bodies = {entry: entry_of(10, entry) for entry in sorted(entries)}
        writer = OffloadWriter(str(folder), 10, block_bytes=block_bytes)
        if is_framed:
            framed = [
                len(data).to_bytes(4, "big") + entry.to_bytes(8, "big") + data
                for entry, data in bodies.items()
            ]
            sizes = np.cumsum([0, *map(len, framed)])
            writer.append_framed(
                np.frombuffer(b"".join(framed), np.uint8),
                sizes[:-1].astype(np.int64),
                np.array(list(bodies), np.int64),
            )
        else:
            for entry, data in bodies.items():
                writer.append(entry, data)
        path = writer.finish(
            LedgerMetadata(
                quorum=1, ensemble=1, length=0, state=LedgerState.CLOSED, digest=Digest.CRC32C
            )
        )
        assert dict(read_entries(path)) == bodies
        last = max(bodies)
        assert read_index(path).missing == ranges_of(
            [entry for entry in range(last) if entry not in bodies]
        )
        (ledger,) = list_topic(str(folder)).ledgers
        assert (ledger.entries, ledger.stored_entries) == (last + 1, len(bodies))
        assert [entry for first, end, *_ in ledger.runs() for entry in range(first, end)] == list(
            bodies
        )
        assert survey_of(ledger).messages == len(bodies)


@given(
    st.dictionaries(st.integers(0, 99), st.integers(0, 1 << 32)),
    st.none() | st.tuples(st.integers(0, 9), st.just(3)),
    st.none() | st.integers(0, 9),
    st.integers(0),
    st.integers(1, 255),
)
def test_topic_facts_round_trip_and_every_byte_is_covered(
    entries: dict[int, int],
    compacted: tuple[int, int] | None,
    cursor: int | None,
    where: int,
    bits: int,
) -> None:
    known = TopicFacts(
        topic="persistent://public/default/t",
        entries=entries,
        damaged={7: (EntryRange(3, 4), EntryRange(9, 9))},
        compacted=compacted and (compacted[0], Position(compacted[1], -1)),
        cursor=cursor,
    )
    data = bytearray(known.encode())
    assert TopicFacts.decode(bytes(data)) == known
    data[where % len(data)] ^= bits
    try:
        assert TopicFacts.decode(bytes(data)) == known  # one blank character became another
    except CorruptLog:
        pass
