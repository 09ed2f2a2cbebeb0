"""Tests of ``fetch`` from folders whose ledger list is missing or disagrees with the ledgers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import lastwrite
from lastwrite.model.log import ProblemKind
from lastwrite.pulsar.format.entry_log import encode_header, encode_record
from lastwrite.pulsar.format.managed_ledger import (
    LedgerInfo,
    ManagedLedgerInfo,
    OffloadContext,
)
from lastwrite.pulsar.format.names import MANAGED_LEDGER, parse_object_name
from lastwrite.pulsar.store.folders import MANAGED_LEDGER_NAME
from lastwrite.pulsar.store.topic import list_topic
from lastwrite.spark.inline import INLINE
from tests.support.pulsar.folders import single
from tests.support.pulsar.topics import put_ledger, topic_folder

TOPIC = "persistent://public/default/t"
NAME = {MANAGED_LEDGER_NAME: b"public/default/persistent/t"}
OWN = "LedgerMetadata{{formatVersion=3, ensembleSize=1, writeQuorumSize=1, ackQuorumSize=1, "
OWN += "state=CLOSED, length=99, lastEntryId={}, digestType=CRC32C, password=OMITTED}}"


def stats(path: Path, last: int | None = None) -> str:
    """The output of ``stats-internal`` for ledger 10 with 2 entries and ledger 11 with 1.

    With ``last`` it has the form of ``--metadata``, where ledger 10's own metadata has that last
    entry.
    """
    ledgers = [
        {"ledgerId": 10, "entries": 2, "size": 9},
        {"ledgerId": 11, "entries": 1, "size": 9},
    ]
    if last is not None:
        ledgers[0]["metadata"] = OWN.format(last)
    document = {"state": "ClosedLedger", "ledgers": ledgers, "cursors": {}}
    path.write_text(json.dumps(document))
    return str(path)


def bookie(folder: Path, confirmed: int | None = None) -> str:
    """A bookie with three entries of ledger 10 and one of ledger 11. The third one
    deletes a key.
    """
    log = bytearray(encode_header())
    for entry, data in enumerate([single("a", "1"), single("b", "1"), single("a", None)]):
        log += encode_record(10, entry, data, last_confirmed=confirmed if entry == 2 else None)
    log += encode_record(11, 0, single("c", "1"))
    folder.mkdir()
    (folder / "0.log").write_bytes(log)
    return str(folder)


def keys(archive: Path) -> list[str]:
    """The keys that have a value at the end of the topic."""
    return sorted(map(str, lastwrite.latest(str(topic_folder(archive)))))


def test_offloaded_ledger_is_fetched_to_its_end_despite_the_list(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    entries = [single("a", "1"), single("b", "1"), single("a", None)]
    path = put_ledger(bucket, 10, entries, custom=NAME)
    put_ledger(bucket, 11, [single("c", "1")], custom=NAME)
    parsed = parse_object_name(path.name)
    assert parsed is not None
    listed = [
        LedgerInfo(ledger=10, entries=2, closed_ms=1, offload=OffloadContext.of_uuid(parsed[0])),
        LedgerInfo(ledger=11, entries=1, closed_ms=1),
    ]
    node = tmp_path / MANAGED_LEDGER
    node.write_bytes(ManagedLedgerInfo(ledgers=tuple(listed)).encode())
    for _ in range(2):  # the second fetch finds the ledger in the archive
        report = lastwrite.fetch(
            [str(bucket)], str(tmp_path / "archive"), topic=TOPIC, metadata=str(node)
        )
        assert report.exit_status == 0, report.topics[0].problems
        assert [each.entries for each in report.topics[0].ledgers] == [3, 1]
    [note] = list_topic(str(topic_folder(tmp_path / "archive"))).problems
    assert note.kind is ProblemKind.RECOVERED
    assert "3 entries, but the topic's ledger list states 2" in note.message
    assert keys(tmp_path / "archive") == ["b", "c"]


@pytest.mark.parametrize("confirmed", [2, None])
def test_confirmed_entries_on_bookies_are_fetched_beyond_the_list(
    tmp_path: Path, confirmed: int | None
) -> None:
    """A confirmed entry belongs to the ledger. For other entries the ledger's own
    metadata decides.
    """
    sources = [bookie(tmp_path / "bookie", confirmed)]
    archive = tmp_path / "archive"
    report = lastwrite.fetch(sources, str(archive), topic=TOPIC, metadata=stats(tmp_path / "stats"))
    if confirmed is not None:
        assert report.exit_status == 0
        assert keys(archive) == ["b", "c"]
        return
    assert report.exit_status == 3
    [problem] = report.topics[0].problems
    assert "entry 10:2" in problem.message and "--recover" in str(problem.remedy)
    [found] = lastwrite.compact(str(topic_folder(archive)), spark=INLINE).partitions
    assert found.status == "damaged" and "entry 10:2" in str(found.reason)
    # each remedy works in this folder
    shutil.copytree(archive, tmp_path / "other")
    report = lastwrite.fetch(
        sources, str(archive), topic=TOPIC, metadata=stats(tmp_path / "stats"), recover=True
    )
    assert report.exit_status == 0
    assert keys(archive) == ["b", "c"]
    for last, expected in ((1, ["a", "b", "c"]), (2, ["b", "c"])):
        to = tmp_path / str(last)
        shutil.copytree(tmp_path / "other", to)
        report = lastwrite.fetch(
            sources, str(to), topic=TOPIC, metadata=stats(tmp_path / "stats", last)
        )
        assert report.exit_status == 0
        assert keys(to) == expected


def test_fetch_of_a_recreated_topic_skips_the_old_ledgers(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    put_ledger(bucket, 51, [single("gone", "1"), single("k", "1")], custom=NAME)
    put_ledger(bucket, 54, [single("k", "2")], custom=NAME)
    node = tmp_path / MANAGED_LEDGER
    node.write_bytes(
        ManagedLedgerInfo(ledgers=(LedgerInfo(ledger=54, entries=1, closed_ms=1),)).encode()
    )
    without = tmp_path / "without"
    report = lastwrite.fetch([str(bucket)], str(without))
    [note] = report.topics[0].problems
    assert (
        report.exit_status == 0
        and "Each of the 2 ledgers with the topic's name counts" in note.message
    )
    assert list_topic(str(topic_folder(without))).problems == (note,)
    before = sorted(path.name for path in topic_folder(without).iterdir())
    # an archive that was created without a ledger list never uses one
    lastwrite.fetch([str(without)], str(tmp_path / "archive"))
    second = topic_folder(tmp_path / "second")
    put_ledger(second, 54, [single("k", "2")], custom=NAME)
    shutil.copy(node, second)
    held = lastwrite.fetch([str(tmp_path / "second")], str(tmp_path / "archive"))
    [problem] = held.topics[0].problems
    assert held.exit_status == 1 and "has ledger 51, which" in problem.message
    # with the list, into the same folder: the first ledger may be of the deleted topic
    refused = lastwrite.fetch([str(bucket)], str(without), topic=TOPIC, metadata=str(node))
    [problem] = refused.topics[0].problems
    assert refused.exit_status == 1 and "ledger 51 is in the folder" in problem.message
    assert problem.remedy == "fetch into a new folder (--to)"
    assert sorted(path.name for path in topic_folder(without).iterdir()) == before
    # the remedy works
    report = lastwrite.fetch([str(bucket)], str(tmp_path / "new"), topic=TOPIC, metadata=str(node))
    assert (report.exit_status, report.topics[0].problems) == (0, ())
    assert keys(tmp_path / "new") == ["k"]


def test_ledger_deleted_by_retention_is_reported(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    infos = [LedgerInfo(ledger=number, entries=1, closed_ms=1) for number in (10, 11, 12)]
    for info in infos:
        put_ledger(bucket, info.ledger, [single(f"k{info.ledger}", "1")], custom=NAME)
    node = tmp_path / MANAGED_LEDGER
    for listed in (infos[:2], infos[1:]):
        node.write_bytes(ManagedLedgerInfo(ledgers=tuple(listed)).encode())
        report = lastwrite.fetch(
            [str(bucket)], str(tmp_path / "archive"), topic=TOPIC, metadata=str(node)
        )
        assert report.exit_status == 0
    assert keys(tmp_path / "archive") == ["k10", "k11", "k12"]
    node.write_bytes(ManagedLedgerInfo(ledgers=(LedgerInfo(ledger=20),)).encode())
    report = lastwrite.fetch(
        [str(bucket)], str(tmp_path / "archive"), topic=TOPIC, metadata=str(node)
    )
    [problem] = report.topics[0].problems
    assert report.exit_status == 1 and "ledgers 10, 11, 12 are in the folder" in problem.message
