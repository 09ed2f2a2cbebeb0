"""Tests of a Pulsar topic folder as the engine reads it."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

import lastwrite
from lastwrite.commands.systems import system_at
from lastwrite.errors import CorruptLog, InvalidConfig, NotALog
from lastwrite.model.log import PartitionLog, ProblemKind
from lastwrite.pulsar.format.entry import Metadata, PulsarMessage, encode_entry, encode_single
from lastwrite.pulsar.format.managed_ledger import LedgerInfo, ManagedLedgerInfo, OffloadContext
from lastwrite.pulsar.format.names import (
    INDEX_SUFFIX,
    MANAGED_LEDGER,
    MANAGED_LEDGER_JSON,
    MANIFEST,
    SURVEY_SUFFIX,
)
from lastwrite.pulsar.format.position import Position
from lastwrite.pulsar.store import survey, topic_log
from lastwrite.pulsar.store.manifest import CompactionManifest, read_manifest, replace_manifest
from lastwrite.pulsar.store.place import locate
from lastwrite.pulsar.store.topic import find_topics, list_topic
from lastwrite.pulsar.system import PULSAR
from lastwrite.reports.compaction import PartitionReport, Status
from lastwrite.spark.inline import INLINE
from tests.support.pulsar.topics import TOPIC, put_ledger, read_compacted, topic_folder

MANIFEST_OF_13 = CompactionManifest(
    topic=TOPIC,
    ledger=13,
    object=f"{UUID(int=13)}-ledger-13",
    from_=Position(10, 1),
    to=Position(10, 4),
    horizon=Position(10, 5),
    entries=3,
    size_bytes=300,
    messages=4,
    read=9,
    ledgers=(8, 10),
)


def single(key: str | None, value: bytes = b"v", **changes: int) -> bytes:
    meta, payload = encode_single(
        PulsarMessage(key=None if key is None else key.encode(), value=value, publish_time=7)
    )
    return encode_entry(replace(meta, **changes), payload)


def data(key: str, transaction: int) -> bytes:
    return single(key, txnid_least_bits=transaction, txnid_most_bits=0)


def marker(kind: int, transaction: int | None = None) -> bytes:
    meta = Metadata(
        producer_name="pulsar.marker",
        sequence_id=0,
        publish_time=9,
        marker_type=kind,
        txnid_least_bits=transaction,
        txnid_most_bits=None if transaction is None else 0,
    )
    return encode_entry(meta)


COMMIT, ABORT, SNAPSHOT = 21, 22, 12


def compact(folder: Path, **config: object) -> PartitionReport:
    (report,) = lastwrite.compact(str(folder), config=config, now_ms=1, spark=INLINE).partitions
    return report


def positions(folder: Path) -> list[str]:
    return [str(position) for position, _ in read_compacted(folder)]


def problems(folder: Path) -> list[tuple[ProblemKind, str]]:
    return [(problem.kind, problem.message) for problem in list_topic(str(folder)).problems]


# ---------------------------------------------------------------------- where topics lie


def test_topics_are_found_by_their_folders(tmp_path: Path) -> None:
    names = [
        "persistent://a/b/t",
        "persistent://a/b/t-partition-0",
        "persistent://a/b/t-partition-10",
        TOPIC,
    ]
    folders = {
        name: topic_folder(tmp_path, name)
        for name in [*names, "persistent://a/b/grüße an/alle"][:4]
    }
    for folder in folders.values():
        put_ledger(folder, 1, [single("k")])
    (tmp_path / "a" / "b" / "persistent" / "empty").mkdir()
    assert find_topics(str(tmp_path)) == [str(folders[name]) for name in names]
    assert find_topics(str(tmp_path), "t", 10) == [str(folders[names[2]])]
    assert find_topics(str(tmp_path), names[1]) == [str(folders[names[1]])]
    assert len(find_topics(str(tmp_path), "a/b/t")) == 3
    assert find_topics(str(tmp_path / "a" / "b")) == [str(folders[name]) for name in names[:3]]
    folder = folders[TOPIC]
    for inside in (folder, next(folder.iterdir())):
        assert locate(str(inside)) == str(folder) and find_topics(str(inside)) == [str(folder)]
        assert system_at(str(inside)).name == "pulsar"
    with pytest.raises(NotALog, match="no topic 'other' — there are: t"):
        find_topics(str(tmp_path), "other")
    with pytest.raises(NotALog, match="did you mean a/b/t?"):
        find_topics(str(tmp_path), "a/b/tt")
    with pytest.raises(NotALog, match="persistent://a/b/t has no partition 3 — there are: 0, 10"):
        find_topics(str(tmp_path), "a/b/t", 3)
    assert find_topics(str(tmp_path), ["a/b/*"]) == [str(folders[name]) for name in names[:3]]
    assert find_topics(str(tmp_path), "t-partition-1*") == [str(folders[names[2]])]
    with pytest.raises(NotALog, match="no topic matches 'a\\*'"):
        # matches no topic, because a pattern does not match across a slash
        find_topics(str(tmp_path), "a*")
    with pytest.raises(NotALog, match="no such file"):
        find_topics(str(tmp_path / "missing"))


def test_kafka_folder_is_not_a_pulsar_archive(tmp_path: Path) -> None:
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / f"{0:020d}.log").write_bytes(b"")
    # The topic's name is unknown, as in a bucket's folder.
    put_ledger(tmp_path / "t-0", 1, [single("k")])
    assert locate(str(tmp_path)) is None and locate(str(tmp_path / "t-0")) is None
    assert system_at(str(tmp_path)).name == "kafka"


# ---------------------------------------------------------------------- the manifest


def test_manifest_round_trips(tmp_path: Path) -> None:
    assert read_manifest(str(tmp_path)) is None
    replace_manifest(str(tmp_path), MANIFEST_OF_13)
    assert read_manifest(str(tmp_path)) == MANIFEST_OF_13
    assert sorted(os.listdir(tmp_path)) == [MANIFEST]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"entries": 4}, "checksum"),
        ({"checksum": None}, "checksum"),
        ({"version": 2}, "by another release"),
    ],
)
def test_changed_manifest_is_refused(tmp_path: Path, change: dict[str, object], said: str) -> None:
    replace_manifest(str(tmp_path), MANIFEST_OF_13)
    path = tmp_path / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(CorruptLog, match=said) as caught:
        read_manifest(str(tmp_path))
    assert caught.value.path == str(path)


def test_every_byte_of_a_manifest_is_covered_by_its_checksum() -> None:
    encoded = MANIFEST_OF_13.encode()
    for at in range(len(encoded)):
        changed = bytearray(encoded)
        changed[at] ^= 1
        try:
            found = CompactionManifest.decode(bytes(changed))
        except CorruptLog:
            continue
        assert found == MANIFEST_OF_13 and chr(encoded[at]).isspace()


@pytest.mark.parametrize(
    "change",
    [
        {"object": "x"},
        {"ledger": 14},
        {"order": "alphabet"},
        {"entries": -1},
        {"horizon": Position(-1, 5)},
        {"from_": Position(1 << 40, 0)},
    ],
)
def test_inconsistent_manifest_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(CorruptLog):
        CompactionManifest.decode(replace(MANIFEST_OF_13, **change).encode())  # type: ignore[arg-type]


def test_manifest_of_another_topic_is_damage(tmp_path: Path) -> None:
    folder = topic_folder(tmp_path)
    put_ledger(folder, 10, [single("k")])
    assert compact(folder).status is Status.CLEANED
    other = folder.rename(folder.with_name("other"))
    report = compact(other)
    assert (
        report.status is Status.DAMAGED
        and "belongs to another topic, persistent://public/default/t" in str(report.reason)
    )


# ---------------------------------------------------------------------- ledgers


def test_topic_metadata_selects_one_of_two_objects(tmp_path: Path) -> None:
    folder = topic_folder(tmp_path)
    put_ledger(folder, 10, [single("k")], uuid=UUID(int=1))
    put_ledger(folder, 10, [single("k"), single("l")], uuid=UUID(int=2))
    ((kind, message),) = problems(folder)
    assert kind is ProblemKind.DAMAGED and "ledger 10 has several objects" in message
    assert compact(folder).status is Status.DAMAGED
    info = LedgerInfo(
        ledger=10, entries=2, closed_ms=1, offload=OffloadContext.of_uuid(UUID(int=2))
    )
    (folder / MANAGED_LEDGER).write_bytes(ManagedLedgerInfo(ledgers=(info,)).encode())
    assert not problems(folder)
    assert compact(folder).status is Status.CLEANED
    assert positions(folder) == ["10:0", "10:1"]


def test_missing_ledger_is_damage_unless_compacted(tmp_path: Path) -> None:
    folder = topic_folder(tmp_path)
    ledgers = [LedgerInfo(ledger=number, entries=1, closed_ms=1) for number in (10, 12, 15)]
    (folder / MANAGED_LEDGER).write_bytes(
        ManagedLedgerInfo(ledgers=(*ledgers, LedgerInfo(ledger=16))).encode()
    )
    put_ledger(folder, 10, [single("a")])
    path = put_ledger(folder, 15, [single("c")])
    report = compact(folder)
    assert report.status is Status.DAMAGED
    assert "ledger 12 of 1 entries is missing: entry 12:0 is missing" in str(report.reason)
    assert problems(folder)[-1] == (
        ProblemKind.RECOVERED,
        "ledger 16 is open and missing, and its size is unknown: the log ends before this ledger",
    )
    hidden = path.rename(path.with_name("hidden"))
    assert [kind for kind, _ in problems(folder)] == [
        ProblemKind.DAMAGED,
        ProblemKind.DAMAGED,
        ProblemKind.RECOVERED,
    ]
    # otherwise readers would take 10:0 for the topic's end
    assert compact(folder).status is Status.DAMAGED
    hidden.rename(path)
    assert compact(folder).status is Status.DAMAGED
    put_ledger(folder, 12, [single("b")])
    assert compact(folder).status is Status.CLEANED
    for old in folder.glob("*-ledger-10*"):
        old.unlink()  # removes a ledger below the horizon
    assert not [kind for kind, _ in problems(folder) if kind is ProblemKind.DAMAGED]
    assert positions(folder) == ["10:0", "12:0", "15:0"]


def test_json_metadata_is_accepted(tmp_path: Path) -> None:
    folder = topic_folder(tmp_path)
    put_ledger(folder, 10, [single("a")])
    put_ledger(folder, 15, [single("c")])
    listed = [
        {"ledgerId": number, "entries": 1, "size": 9, "timestamp": 1} for number in (10, 12, 15)
    ]
    (folder / MANAGED_LEDGER_JSON).write_text(json.dumps({"ledgerInfo": listed}))
    assert "ledger 12" in str(compact(folder).reason)
    (folder / MANAGED_LEDGER_JSON).write_text("{")
    assert compact(folder).status is Status.DAMAGED


def test_object_that_contradicts_its_index_is_damage(tmp_path: Path) -> None:
    folder = topic_folder(tmp_path)
    path = put_ledger(folder, 10, [single("a"), single("b")])
    whole, index = path.read_bytes(), path.with_name(path.name + INDEX_SUFFIX)
    told = index.read_bytes()
    index.unlink()
    assert problems(folder) == [
        (ProblemKind.RECOVERED, "the data object has no index: its offload was not finished")
    ]
    assert compact(folder).reason == "the log has no segment"
    index.write_bytes(told)
    path.write_bytes(whole[:-1])
    assert (
        "but its index states" in problems(folder)[0][1]
        and compact(folder).status is Status.DAMAGED
    )
    path.write_bytes(whole)
    index.write_bytes(told[:-1])
    assert compact(folder).status is Status.DAMAGED
    # The index has one entry more than the ledger.
    other = put_ledger(
        topic_folder(tmp_path / "other"), 10, [single("a"), single("b"), single("c")]
    )
    index.write_bytes(other.with_name(other.name + INDEX_SUFFIX).read_bytes())
    assert compact(folder).status is Status.DAMAGED


def test_folder_without_a_topic_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig):
        list_topic(str(tmp_path))


# ---------------------------------------------------------------------- horizons


def log_of(folder: Path, *ledgers: list[bytes]) -> PartitionLog:
    for number, entries in enumerate(ledgers):
        put_ledger(folder, 10 + number, entries)
    return topic_log.read_topic(str(folder))


def test_horizon_includes_markers_and_aborted_messages(tmp_path: Path) -> None:
    folder = topic_folder(tmp_path)
    log = log_of(
        folder,
        [single("a"), data("b", 1), data("c", 2), marker(COMMIT, 1)],
        [marker(ABORT, 2), single("d"), data("a", 3), marker(ABORT, 3), marker(SNAPSHOT)],
    )
    assert (log.high_watermark, log.first_unstable_offset) == (Position(11, 2).offset, None)
    assert [(entry.producer_id, entry.first_offset) for entry in log.aborted] == [
        (2, Position(10, 2).offset),
        (3, Position(11, 2).offset),
    ]
    assert [(segment.base_offset, segment.position > 0) for segment in log.segments] == [
        (Position(10, 0).offset, False),
        (Position(11, 0).offset, False),
        (Position(11, 2).offset, True),
    ]
    report = compact(folder)
    assert (report.status, report.verdicts["aborted"] if report.verdicts else 0) == (
        Status.CLEANED,
        1,
    )
    assert positions(folder) == ["10:0", "10:1", "11:1"]
    manifest = read_manifest(str(folder))
    assert manifest is not None and str(manifest.horizon) == "11:1"
    assert (manifest.messages, manifest.read, manifest.ledgers) == (3, 4, (10, 11))
    assert compact(folder).reason == "the topic has no message beyond the compaction horizon, 11:1"


def test_round_stops_before_an_open_transaction(tmp_path: Path) -> None:
    folder = topic_folder(tmp_path)
    put_ledger(folder, 10, [single("a"), data("b", 1), single("a"), marker(COMMIT, 9)])
    assert compact(folder).status is Status.CLEANED
    assert positions(folder) == ["10:0"]
    put_ledger(folder, 12, [single("c")])
    assert compact(folder).reason == "an open transaction begins at 10:1"
    put_ledger(folder, 14, [marker(COMMIT, 1)])
    assert compact(folder).status is Status.CLEANED
    assert positions(folder) == ["10:1", "10:2", "12:0"]


def test_topic_of_only_markers_is_not_compacted(tmp_path: Path) -> None:
    folder = topic_folder(tmp_path)
    put_ledger(folder, 10, [marker(SNAPSHOT), marker(COMMIT, 1)])
    assert compact(folder).reason == "the topic has no message"
    assert read_manifest(str(folder)) is None


def test_compacted_ledger_may_be_empty(tmp_path: Path) -> None:
    folder = topic_folder(tmp_path)
    put_ledger(folder, 10, [single("a"), single("a", b"")])
    for number, expected in ((11, []), (12, [])):
        report = compact(folder)
        assert report.status is Status.CLEANED and positions(folder) == expected
        put_ledger(folder, number, [single("a"), single("a", b"")])
    put_ledger(folder, 13, [single("b")])
    assert compact(folder).status is Status.CLEANED
    assert positions(folder) == ["13:0"]
    manifest = read_manifest(str(folder))
    assert manifest is not None and (manifest.messages, str(manifest.horizon)) == (1, "13:0")


def test_first_ledger_may_be_0(tmp_path: Path) -> None:
    """BookKeeper counts ledgers from 0. Entry 0:0 has offset 0 and is an ordinary raw entry."""
    folder = topic_folder(tmp_path)
    raw = put_ledger(folder, 0, [single("a"), single("b"), single("a", b"w")])
    log = topic_log.read_topic(str(folder))
    assert (log.log_start, [segment.base_offset for segment in log.segments]) == (0, [0])
    assert PULSAR.estimate_records(log) == 3
    report = compact(folder)
    assert report.status is Status.CLEANED and positions(folder) == ["0:1", "0:2"]
    manifest = read_manifest(str(folder))
    assert manifest is not None and (manifest.ledgers, str(manifest.horizon)) == ((0,), "0:2")
    assert raw.exists()
    former = folder / manifest.object
    # The compacted ledger has message 0:0, and the rest of ledger 0 is above the horizon.
    put_ledger(folder, 1, [single("b", b"")])
    assert compact(folder).status is Status.CLEANED and positions(folder) == ["0:2"]
    manifest = read_manifest(str(folder))
    assert manifest is not None and manifest.ledgers == (1,)
    assert raw.exists() and not former.exists()
    log = topic_log.read_topic(str(folder))
    assert PULSAR.estimate_records(log) == 1
    explained = lastwrite.explain(str(folder), key=b"a", now_ms=1).partitions[0]
    assert [record.message_id for record in explained.records or ()] == ["0:2:-1"]
    assert lastwrite.verify(str(folder), spark=INLINE).exit_status == 0


# ---------------------------------------------------------------------- what is left of rounds


def test_compacted_ledger_without_a_manifest_is_kept_if_nothing_else_exists(
    tmp_path: Path,
) -> None:
    folder = topic_folder(tmp_path)
    put_ledger(folder, 10, [single("a"), single("b")])
    assert compact(folder).status is Status.CLEANED
    put_ledger(folder, 12, [single("c")])
    (folder / MANIFEST).unlink()
    stray = list_topic(str(folder)).strays[0]
    for path in folder.glob("*-ledger-10*"):
        path.unlink()
    report = compact(folder)
    assert report.status is Status.DAMAGED and "no manifest names this compacted ledger" in str(
        report.reason
    )
    assert os.path.exists(stray.path)
    # With its raw ledgers the folder looks as after a crash of the first round.
    put_ledger(folder, 10, [single("a"), single("b")])
    assert compact(folder).status is Status.CLEANED
    assert not os.path.exists(stray.path) and positions(folder) == ["10:0", "10:1", "12:0"]


def test_compacted_ledger_of_a_broker_is_recognised(tmp_path: Path) -> None:
    folder = topic_folder(tmp_path)
    put_ledger(folder, 10, [single("a")])
    custom = {"component": b"compacted-ledger", "pulsar/compactedTopic": TOPIC.encode()}
    foreign = put_ledger(folder, 11, [b"\0\0\0\x04\x08\x0a\x10\0" + b"\0\0\0\1x"], custom=custom)
    assert not list_topic(str(folder)).ledgers[1:] and compact(folder).status is Status.CLEANED
    # an object of another program is not removed
    assert positions(folder) == ["10:0"] and foreign.exists()


# ---------------------------------------------------------------------- surveys


def test_survey_is_reused_until_its_object_changes(
    tmp_path: Path,
) -> None:
    folder = topic_folder(tmp_path)
    path = put_ledger(
        folder, 10, [single("a"), marker(COMMIT, 3), data("b", 3), data("c", 3), single("d")]
    )
    (ledger,) = list_topic(str(folder)).ledgers
    found = survey.keep_survey(ledger)
    assert (found.entries, found.messages, found.largest_publish_ms) == (5, 4, 9)
    assert found.runs.tolist() == [[1, 1, survey.COMMIT, 3], [2, 3, survey.DATA, 3]]
    kept = path.with_name(path.name + SURVEY_SUFFIX)
    encoded = kept.read_bytes()
    survey._made.clear()
    again = survey.survey_of(ledger)
    assert again is not found and again.runs.tolist() == found.runs.tolist()
    for damaged in (encoded[:-1], encoded[:70] + b"\1" + encoded[71:], b""):
        kept.write_bytes(damaged)
        survey._made.clear()
        assert survey.survey_of(ledger).runs.tolist() == found.runs.tolist()
    put_ledger(folder, 10, [single("x")])
    (other,) = list_topic(str(folder)).ledgers
    kept.write_bytes(encoded)
    assert survey.survey_of(other).entries == 1


def test_bytes_read_by_a_survey_are_counted(tmp_path: Path) -> None:
    folder = topic_folder(tmp_path)
    path = put_ledger(folder, 10, [single("a", b"v" * 1000) for _ in range(20)])
    spent: list[int] = []
    for expected in (path.stat().st_size, 0):
        spent.clear()
        assert PULSAR.read(str(folder), spent.append).segments
        assert sum(spent) == expected
