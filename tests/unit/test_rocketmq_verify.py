"""Tests of ``verify`` on RocketMQ stores.

Every kind of damage is reported with file, byte and remedy, and every broken promise is found.
Stores that real brokers wrote or compacted pass.
"""

from __future__ import annotations

import json
import shutil
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import lastwrite
from lastwrite.errors import InvalidConfig, LogHeld, NotALog
from lastwrite.model.log import Problem, TopicPartition
from lastwrite.reports.verification import VerifyReport, VerifyStatus
from lastwrite.rocketmq.format.names import file_name
from lastwrite.rocketmq.format.record import RocketmqMessage, decode_message
from lastwrite.rocketmq.store import lock
from lastwrite.spark.inline import INLINE
from lastwrite.verification import logs as logs_module
from tests.support.engine import compact
from tests.support.rocketmq.model import START_MS as T
from tests.support.rocketmq.model import (
    ModelMessage,
    ModelPair,
    ModelQueue,
    compact_like_broker,
    message,
    write_store,
)
from tests.support.rocketmq.stores import StoreWriter, shop

CORPUS = Path(__file__).parents[1] / "corpus" / "rocketmq"
RETENTION_MS = 1000
NOW = T + 10_000
CONFIG = {"delete.retention.ms": RETENTION_MS}
LOG_BYTES, INDEX_BYTES = 46 * 8 * 6, 46 * 8


def m(offset: int, key: str | None, body: bytes = b"value", **more: Any) -> ModelMessage:
    store_ms = T + 9_000 + 50 * offset if offset >= 10 else T + 100 * offset
    return message(offset, key, body, store_ms, **more)


BEFORE = (
    (m(0, "a"), m(1, "b"), m(2, "c"), m(3, "d", tag="TagA"), m(4, "a"), m(5, "h", b"")),
    # e: its horizon has not passed
    (m(7, "b"), m(8, "c", b""), m(9, "f", compression="zlib"), m(10, "e", b"")),
    (m(12, "a"), m(13, "g")),  # the active file
)
SURVIVORS = (3, 4, 7, 9, 10, 12, 13)
POSITION = 10


def queue_of(pairs: Sequence[Sequence[ModelMessage]], position: int = -1) -> ModelQueue:
    made = [
        ModelPair(n * LOG_BYTES, tuple(messages), n + 1 < len(pairs))
        for n, messages in enumerate(pairs)
    ]
    return ModelQueue(LOG_BYTES, INDEX_BYTES, position=position, pairs=made)


def kept(*offsets: int, more: Sequence[ModelMessage] = ()) -> list[list[ModelMessage]]:
    """The messages at these offsets and ``more`` ones, each in its own file."""
    ends = (6, 11, 99)
    chosen = [one for pair in BEFORE for one in pair if one.offset in offsets] + [*more]
    chosen.sort(key=lambda one: one.offset)
    begins = (0, *ends)
    return [
        [one for one in chosen if begin <= one.offset < end]
        for begin, end in zip(begins, ends, strict=False)
    ]


def write(root: Path, pairs: Sequence[Sequence[ModelMessage]], position: int = POSITION) -> Path:
    write_store(root, [queue_of(pairs, position)])
    return root


def verify(root: Path, before: Path | None = None, **arguments: Any) -> VerifyReport:
    arguments = {"config": CONFIG, "now_ms": NOW, "spark": INLINE, **arguments}
    report = lastwrite.verify(str(root), before=before and str(before), **arguments)
    json.dumps(report.to_dict())
    return report


def found(report: VerifyReport) -> list[tuple[str, int | None]]:
    return [(violation.promise, violation.offset) for violation in report.violations]


@pytest.fixture
def before(tmp_path: Path) -> Path:
    return write(tmp_path / "before", BEFORE, -1)


# ---------------------------------------------------------------------- against what it was


def test_correct_compaction_is_verified(tmp_path: Path, before: Path) -> None:
    """The compacted queue is hand-made, and the engine produces the same one."""
    after = write(tmp_path / "after", kept(*SURVIVORS))
    report = verify(after, before)
    assert report.exit_status == 0 and report.ok and report.problems == []
    (partition,) = report.partitions
    assert (partition.segments, partition.batches, partition.records) == (3, 7, 7)
    assert (partition.tombstones, partition.log_start_offset, partition.end_offset) == (1, 3, 14)
    told = partition.comparison
    assert told is not None
    assert (told.records_before, told.records_after, told.superseded, told.expired) == (12, 7, 3, 2)
    assert (told.keys, told.keys_alive, told.violation_count) == (8, 5, 0)
    compact(before, CONFIG, NOW)
    assert {path.name: path.read_bytes() for path in before.rglob("0" * 16 + "*")} == {
        path.name: path.read_bytes() for path in after.rglob("0" * 16 + "*")
    }


@pytest.mark.parametrize("lost", SURVIVORS)
def test_each_lost_record_is_found(tmp_path: Path, before: Path, lost: int) -> None:
    after = write(tmp_path / "after", kept(*(n for n in SURVIVORS if n != lost)))
    report = verify(after, before)
    promise = "lost_delete" if lost == 10 else "lost_tail" if lost > POSITION else "lost"
    assert (promise, lost) in found(report) and report.exit_status == 5
    assert set(found(report)) <= {(promise, lost), ("log_end", 13)}
    paths = {violation.path for violation in report.violations}
    assert all(path and Path(path).exists() for path in paths)


def test_added_changed_and_revived_records_are_found(tmp_path: Path, before: Path) -> None:
    def without(offset: int) -> list[int]:
        return [n for n in SURVIVORS if n != offset]

    def changed(offset: int, **fields: Any) -> list[list[ModelMessage]]:
        was = next(one for pair in BEFORE for one in pair if one.offset == offset)
        made = message(
            offset, **{"key": was.key, "body": was.body, "store_ms": was.store_ms, **fields}
        )
        return kept(*without(offset), more=[made])

    c, a = BEFORE[0][2], BEFORE[0][0]
    cases = {
        "back": (kept(*SURVIVORS, more=[c]), [("revived", 2)]),
        "new": (kept(*SURVIVORS, more=[m(6, "new")]), [("added", 6)]),
        "body": (changed(4, body=b"other"), [("changed", 4)]),
        "key": (changed(4, key="x"), [("lost", 4), ("added", 4)]),
        "host": (changed(7, v6=True), [("changed", 7)]),
        "alive": (kept(*without(10), more=[m(10, "e", b"x")]), [("changed", 10)]),
        "not yet gone": (kept(*SURVIVORS, more=[a]), []),  # a later round removes it
    }
    for name, (pairs, expected) in cases.items():
        assert found(verify(write(tmp_path / name, pairs), before)) == expected, name


def test_tombstone_must_stay_until_its_horizon(tmp_path: Path, before: Path) -> None:
    after = write(tmp_path / "after", kept(*SURVIVORS))
    assert verify(after, before, now_ms=T + 800 + RETENTION_MS).exit_status == 0
    early = verify(after, before, now_ms=T + 799 + RETENTION_MS)
    assert found(early) == [("lost_delete", 8)]
    assert "delete.retention.ms" in early.violations[0].message
    assert verify(after, before, now_ms=None).exit_status == 0
    assert found(verify(after, before, config={})) == [("lost_delete", 5), ("lost_delete", 8)]


def test_record_above_the_position_must_stay(tmp_path: Path, before: Path) -> None:
    after = write(tmp_path / "after", kept(*SURVIVORS), position=4)
    assert {("lost_tail", 5), ("lost_tail", 8)} <= set(found(verify(after, before)))
    # a12 has the same key as a4, but is above the position, so a4 should have been kept
    gone = write(tmp_path / "gone", kept(*(n for n in SURVIVORS if n != 4)))
    assert found(verify(gone, before)) == [("lost", 4)]
    assert found(verify(write(tmp_path / "all", kept(3, 7, 9, 10, 12, 13), 13), before)) == []


def test_compaction_by_a_broker_is_verified(tmp_path: Path, before: Path) -> None:
    queue = queue_of(BEFORE)
    assert compact_like_broker(queue)
    write_store(tmp_path / "after", [queue])
    assert found(verify(tmp_path / "after", before)) == [("lost_delete", 10)]
    at_once = {"config": {"delete.retention.ms": 0}, "now_ms": NOW + 1000}
    assert verify(tmp_path / "after", before, **at_once).exit_status == 0


def test_keyless_records_follow_the_setting(tmp_path: Path) -> None:
    pairs = [[m(0, "a"), m(1, None), m(2, " \t")], [m(3, "b")]]
    before = write(tmp_path / "before", pairs, -1)
    after = write(tmp_path / "after", [[m(0, "a")], [m(3, "b")]], 2)
    report = verify(after, before)
    (partition,) = report.partitions
    assert report.exit_status == 0 and partition.comparison is not None
    assert (partition.comparison.keyless, partition.comparison.first_keyless_offset) == (2, 1)
    keeps = verify(after, before, config={**CONFIG, "keyless.messages": "keep"})
    assert found(keeps) == [("keyless", 1)] and keeps.exit_status == 5
    assert keeps.keyless_option == "--config keyless.messages=drop"
    with pytest.raises(InvalidConfig, match="only for topics of Kafka"):
        verify(after, before, drop_keyless=True)


def test_queues_are_matched_by_name(tmp_path: Path) -> None:
    roots = [tmp_path / "before", tmp_path / "after"]
    for root, numbers in zip(roots, ((0, 1, 2), (0, 2)), strict=True):
        queues = [replace(queue_of(kept(*SURVIVORS), POSITION), number=n) for n in numbers]
        for queue in queues:
            queue.pairs = [
                replace(
                    pair,
                    messages=tuple(
                        m(one.offset, one.key, queue=queue.number) for one in pair.messages
                    ),
                )
                for pair in queue.pairs
            ]
        write_store(root, queues)
    before, after = roots
    report = verify(after, before)
    assert found(report) == [
        ("partition", None)
    ] and "the queue is missing, although it existed before" in str(report.violations)
    assert [str(one.status) for one in report.partitions] == ["verified", "broken", "verified"]
    one = after / "compaction" / "compactionLog" / "ctopic" / "2"
    assert [p.partition for p in verify(one, before).partitions] == [2]
    assert verify(one, before).exit_status == 0
    assert verify(after, before, partition=2).exit_status == 0


def test_piece_sizes_do_not_change_the_result(
    tmp_path: Path, before: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roots = [
        write(tmp_path / "true", kept(*SURVIVORS)),
        write(tmp_path / "lost", kept(3, 4, 9, 10, 12, 13)),
        write(tmp_path / "revived", kept(*SURVIVORS, more=[BEFORE[0][2]])),
    ]
    expected = [verify(root, before).to_dict()["partitions"] for root in roots]
    monkeypatch.setattr(logs_module, "_PIECE_BYTES", 150)
    monkeypatch.setattr(logs_module, "_UNIT_BYTES", 200)
    usual = logs_module._Verifier.__init__

    def small(self: Any, *arguments: Any) -> None:
        usual(self, *arguments)
        self._most_rows = 3

    monkeypatch.setattr(logs_module._Verifier, "__init__", small)
    for bits in (0, 4):
        monkeypatch.setattr(logs_module, "bucket_bits", lambda rows, _: bits)  # noqa: B023
        for root, wanted in zip(roots, expected, strict=True):
            assert verify(root, before).to_dict()["partitions"] == wanted


# ---------------------------------------------------------------------- what brokers wrote


@pytest.mark.parametrize("name", ["4.9.3", "5.5.0", "5.5.0-ipv6", "5.5.0-compacted"])
def test_stores_of_real_brokers_are_verified(tmp_path: Path, name: str) -> None:
    root = shutil.copytree(CORPUS / name, tmp_path / "store")
    report = verify(root)
    assert report.problems == [] and report.exit_status == 0
    assert report.store is not None and (report.store.records > 0) == (name != "5.5.0-compacted")
    assert all(one.status is VerifyStatus.VERIFIED and one.records for one in report.partitions)


def test_compaction_by_a_real_broker_keeps_every_last_write() -> None:
    report = verify(
        CORPUS / "5.5.0-compacted", CORPUS / "5.5.0", config={"delete.retention.ms": 0}, now_ms=None
    )
    assert report.exit_status == 0
    for partition in report.partitions:
        told = partition.comparison
        assert told is not None and told.records_after < told.records_before
        assert told.superseded == told.records_before - told.records_after


def test_own_compaction_of_a_real_store_is_verified(tmp_path: Path) -> None:
    root = shutil.copytree(CORPUS / "5.5.0", tmp_path / "store")
    compact(root, {}, 1_795_300_000_000)
    report = verify(root, CORPUS / "5.5.0", config={}, now_ms=1_795_300_000_000)
    assert report.exit_status == 0 and len(report.partitions) == 7
    compared = [one.comparison for one in report.partitions if one.comparison is not None]
    assert len(compared) == 2 and all(one.records_after < one.records_before for one in compared)


# ---------------------------------------------------------------------- structure


@pytest.fixture
def writer(tmp_path: Path) -> StoreWriter:
    """A store with commit log, consume queues and index files. Queue 0 of ``orders`` is compacted
    up to offset 20.
    """
    writer = shop(tmp_path / "store")
    writer.write_compaction("orders", 0, position=20)
    writer.write()
    return writer


LOG, INDEX = "compaction/compactionLog/orders/0", "compaction/compactionCq/orders/0"
FIRST, SECOND = file_name(0), file_name(5060)


def poke(root: Path, place: str, position: int, data: bytes) -> None:
    path = root / place
    content = bytearray(path.read_bytes())
    assert content[position : position + len(data)] != data
    content[position : position + len(data)] = data
    path.write_bytes(content)


def record_with_body(root: Path) -> tuple[int, RocketmqMessage]:
    """Position and content of the second or a later record with a body in the first file."""
    data = (root / LOG / FIRST).read_bytes()
    at = decode_message(data, 0, len(data)).size
    while not (found := decode_message(data, at, len(data))).body:
        at += found.size
    return at, found


def damage(report: VerifyReport) -> list[Problem]:
    return [problem for problem in report.problems if isinstance(problem, Problem)]


def test_intact_store_is_verified(writer: StoreWriter) -> None:
    report = verify(writer.root)
    assert report.exit_status == 0 and report.problems == []
    by_name = {str(one.name): one for one in report.partitions}
    assert sorted(by_name) == ["invoices-0", "invoices-1", "orders-0", "orders-1"]
    sent = [one for one in writer.sent if (one.topic, one.queue_id) == ("orders", 1)]
    assert by_name["orders-1"].batches == len(sent)
    store = report.to_dict()["store"]
    assert (store["records"], store["status"]) == (len(writer.sent), "verified")
    assert store["segments"] == len(list((writer.root / "commitlog").iterdir()))
    assert store["index_files"] == len(list((writer.root / "index").iterdir()))


UNIT_FIELDS = {
    "address": (0, 8),
    "size": (8, 4),
    "tags code": (12, 8),
    "store time": (20, 8),
    "queue offset": (28, 8),
    "compacted offset": (38, 4),
    "reserved": (42, 4),
}


@pytest.mark.parametrize("name", UNIT_FIELDS)
def test_wrong_field_of_a_unit_is_named(writer: StoreWriter, name: str) -> None:
    at, size = UNIT_FIELDS[name]
    place = 46 * 2 + at
    was = int.from_bytes((writer.root / INDEX / FIRST).read_bytes()[place : place + size], "big")
    poke(writer.root, f"{INDEX}/{FIRST}", place, (was ^ 1).to_bytes(size, "big"))
    report = verify(writer.root)
    assert report.exit_status == 3
    (problem,) = damage(report)
    # A wrong size or offset may only be detected at the next unit, which does not follow then.
    number = problem.position // 46 if problem.position is not None else -1
    assert problem.path.endswith(f"{INDEX}/{FIRST}") and problem.position == 46 * number
    assert number == 2 or (number == 3 and name in ("size", "queue offset"))
    assert problem.remedy is not None and f"unit {number}" in problem.message


RECORD_DAMAGE: dict[str, tuple[int, bytes, int, str]] = {
    # offset in the record, new byte, offset in the reported position, and message
    "magic": (4, b"\0", 0, "the record's magic is wrong"),
    "queue": (15, b"\7", 0, "the compaction log of orders-0 has a record of orders queue 7"),
    "body": (-1, b"?", 0, "the body has a wrong checksum"),
    "size": (0, b"\x7f", 0, "before the next undamaged record are lost"),
}


@pytest.mark.parametrize("name", RECORD_DAMAGE)
def test_wrong_byte_of_a_record_is_named(writer: StoreWriter, name: str) -> None:
    at, data, named, words = RECORD_DAMAGE[name]
    begin, struck = record_with_body(writer.root)
    at = struck.body_at if at < 0 else at
    poke(writer.root, f"{LOG}/{FIRST}", begin + at, data)
    report = verify(writer.root)
    assert report.exit_status == 3
    path = str(writer.root / LOG / FIRST)
    hits = [one for one in damage(report) if one.path == path and one.position == begin + named]
    assert any(words in one.message for one in hits), report.problems
    assert all(one.remedy for one in hits)
    assert [str(one.name) for one in report.partitions if one.status is VerifyStatus.DAMAGED] == [
        "orders-0"
    ]


def test_undecompressable_body_is_damage_unless_configured(tmp_path: Path) -> None:
    pairs = [[m(0, "a"), m(1, "b", b"x" * 50, compression="lz4")], [m(2, "a")]]
    root = write(tmp_path / "store", pairs, -1)
    path = root / "compaction" / "compactionLog" / "ctopic" / "0" / FIRST
    data = bytearray(path.read_bytes())
    at = int.from_bytes(data[:4], "big")
    (length,) = struct.unpack_from(">i", data, at + 84)
    data[at + 88 : at + 92] = b"junk"
    crc = zlib.crc32(data[at + 88 : at + 88 + length]) & 0x7FFFFFFF
    struct.pack_into(">i", data, at + 8, crc)
    path.write_bytes(data)
    report = verify(root)
    (problem,) = damage(report)
    assert (problem.path, problem.position) == (str(path), at) and report.exit_status == 3
    assert "undecodable.messages=keep" in str(problem.remedy)
    keep = {**CONFIG, "undecodable.messages": "keep"}
    keeps = verify(root, config=keep)
    assert keeps.exit_status == 0 and [one.kind for one in damage(keeps)] == ["kept"]
    before = shutil.copytree(root, tmp_path / "before")
    compact(root, keep, NOW)
    told = verify(root, before, config=keep).partitions[0].comparison
    assert told is not None and (told.records_before, told.violation_count) == (3, 0)


def test_offsets_that_do_not_rise_are_damage(tmp_path: Path) -> None:
    """The records and their units are reordered."""
    root = write(tmp_path / "store", [[m(0, "a"), m(2, "c"), m(1, "b")], [m(3, "d")]], -1)
    report = verify(root)
    assert report.exit_status == 3 and damage(report)[0].position == 46 * 2


def test_wrong_first_byte_of_a_file_is_damage(tmp_path: Path) -> None:
    """If no complete record follows, a plain scan would take the byte for the end of the written
    data.
    """
    root = write(tmp_path / "store", BEFORE, -1)
    for path in sorted(root.rglob("compactionLog/*/*/*")):
        data = path.read_bytes()
        for at, byte in ((0, b"\xff"), (0, b"\0\0\0\0"), (4, b"\0")):
            path.write_bytes(data[:at] + byte + data[at + len(byte) :])
            report = verify(root)
            assert report.exit_status == 3, (path, at, byte)
            assert (str(path), 0) in {(one.path, one.position) for one in damage(report)}
        path.write_bytes(data)
    one = write(tmp_path / "one", [[m(0, "a")], [m(3, "b")]], -1)
    (path,) = one.rglob("compactionLog/*/*/*" + FIRST)
    path.write_bytes(b"\xff" + path.read_bytes()[1:])
    report = verify(one)
    assert report.exit_status == 3 and damage(report)[0].position == 0


Act = Callable[[Path], object]
FILE_DAMAGE: dict[str, tuple[Act, str, int | None]] = {
    "log file gone": (lambda root: (root / LOG / FIRST).unlink(), f"{INDEX}/{FIRST}", None),
    "index gone": (lambda root: (root / INDEX / FIRST).unlink(), f"{LOG}/{FIRST}", None),
    "stranger": (lambda root: (root / LOG / "x").write_bytes(b"x"), f"{LOG}/x", None),
    "name": (
        lambda root: [
            (root / part / FIRST).rename(root / part / file_name(7)) for part in (LOG, INDEX)
        ],
        f"{LOG}/{file_name(7)}",
        None,
    ),
    "cut short": (
        lambda root: (root / LOG / SECOND).write_bytes((root / LOG / SECOND).read_bytes()[:-1]),
        f"{LOG}/{SECOND}",
        None,
    ),
    "consume queue": (
        lambda root: poke(root, f"consumequeue/orders/1/{FIRST}", 20 * 3 + 7, b"\1"),
        f"consumequeue/orders/1/{FIRST}",
        60,
    ),
    "commit log": (
        lambda root: poke(root, f"commitlog/{FIRST}", 88, b"?"),
        f"commitlog/{FIRST}",
        8,
    ),
    "index file": (
        lambda root: poke(root, "index/20231114221320000", 40 + 28 + 20 * 5, b"\x7f"),
        "index/20231114221320000",
        40 + 28 + 20 * 5,
    ),
    "positions": (
        lambda root: (root / "compaction/position-checkpoint").write_bytes(b"{junk"),
        "compaction/position-checkpoint",
        None,
    ),
    "topics": (
        lambda root: (root / "config/topics.json").write_bytes(b"{junk"),
        "config/topics.json",
        None,
    ),
}


@pytest.mark.parametrize("name", FILE_DAMAGE)
def test_damaged_file_is_named_with_a_remedy(writer: StoreWriter, name: str) -> None:
    act, path, position = FILE_DAMAGE[name]
    act(writer.root)
    report = verify(writer.root)
    assert report.exit_status == 3, report.problems
    hits = [one for one in damage(report) if one.path == str(writer.root / path)]
    assert hits and all(one.remedy for one in hits), report.problems
    assert position is None or position in {one.position for one in hits}


def test_part_of_a_store_is_verified_alone(writer: StoreWriter) -> None:
    poke(writer.root, f"commitlog/{FIRST}", 88, b"?")
    assert verify(writer.root / "compaction").exit_status == 0
    assert verify(writer.root / "commitlog").exit_status == 3
    (one,) = verify(writer.root / LOG).partitions
    assert str(one.name) == "orders-0"
    shutil.rmtree(writer.root / "compaction")
    report = verify(writer.root, topic="orders", partition=1)
    assert [str(one.name) for one in report.partitions] == ["orders-1"]
    with pytest.raises(NotALog):
        verify(writer.root, topic="none")
    with pytest.raises(NotALog):
        verify(writer.root, writer.root)  # this store has no compacted queue


def test_locked_store_is_refused(writer: StoreWriter) -> None:
    with lock.hold(str(writer.root), [TopicPartition("orders", 0)]), pytest.raises(LogHeld):
        lastwrite.verify(str(writer.root), spark=INLINE)
