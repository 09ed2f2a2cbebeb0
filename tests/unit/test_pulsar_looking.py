"""Tests of ``read``, ``dump``, ``inspect`` and ``latest`` on unusual Pulsar topic folders."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

import lastwrite
from lastwrite.cli import run
from lastwrite.errors import (
    CorruptLog,
    InvalidConfig,
    NotALog,
    OutOfMemoryBudget,
    UnsupportedFormat,
)
from lastwrite.pulsar.format.codecs import PulsarCodec
from lastwrite.pulsar.format.entry import EncryptionKey, Metadata, encode_entry
from lastwrite.pulsar.format.position import Position
from lastwrite.pulsar.look import reader
from lastwrite.pulsar.look.chunks import MOST_GROUPS, ChunkGroups
from lastwrite.pulsar.look.read import TopicReading
from lastwrite.pulsar.store.reading import LedgerMoved
from lastwrite.pulsar.store.view import read_view
from lastwrite.spark.inline import INLINE
from tests.support.pulsar.folders import START_MS, batch, single, write_compacted, write_ledger
from tests.support.pulsar.topics import topic_folder

TOPIC = "persistent://public/default/orders"
ENTRIES = [
    single("a", "1", 0, properties=(("colour", "red"),)),
    batch([("b", "2"), ("a", "3"), (None, "keyless")], 1, codec=PulsarCodec.LZ4),
    single("b", None, 4),
    single("c", "4", 5, event_time=77),
]


def marker(kind: int, transaction: int | None = None) -> bytes:
    most = None if transaction is None else 0
    return encode_entry(
        Metadata(
            producer_name="pulsar.marker",
            sequence_id=0,
            publish_time=START_MS,
            marker_type=kind,
            txnid_least_bits=transaction,
            txnid_most_bits=most,
        )
    )


def of_transaction(key: str, value: str, transaction: int) -> bytes:
    return encode_entry(
        Metadata(
            producer_name="p-1",
            sequence_id=9,
            publish_time=START_MS,
            partition_key=key.encode(),
            uncompressed_size=len(value),
            txnid_least_bits=transaction,
            txnid_most_bits=0,
        ),
        value.encode(),
    )


def chunk(uuid: str, number: int, count: int, payload: bytes, key: str = "big") -> bytes:
    return encode_entry(
        Metadata(
            producer_name="p-1",
            sequence_id=3,
            publish_time=START_MS,
            partition_key=key.encode(),
            uuid=uuid,
            chunk_id=number,
            num_chunks_from_msg=count,
            total_chunk_msg_size=100,
        ),
        payload,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two raw ledgers, compacted up to 10:2."""
    found = topic_folder(tmp_path, TOPIC)
    write_ledger(found, 10, ENTRIES[:3], block_bytes=200)
    write_ledger(found, 12, ENTRIES[3:])
    kept = batch([("gone", None), ("a", "3"), ("gone", None)], 1)
    write_compacted(found, 13, [(Position(10, 1), kept)], Position(10, 2))
    return found


def rows_of(capfd: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capfd.readouterr().out.splitlines()]


def value_of(row: dict[str, Any]) -> bytes | None:
    return None if row["value"] is None else base64.b64decode(row["value"])


def reading_of(path: Path, **how: Any) -> TopicReading:
    found = lastwrite.read(str(path), **how)
    assert isinstance(found, TopicReading)
    return found


# ---------------------------------------------------------------------- read


def test_read_command_reads_the_compacted_ledger(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["read", str(folder), "--read-compacted", "--json"]) == 0
    *rows, end = rows_of(capfd)
    assert [(row["message_id"], row["key"], value_of(row), row["source"]) for row in rows] == [
        ("10:1:-1:1", "a", b"3", "compacted"),
        ("12:0:-1", "c", b"4", "backlog"),
    ]
    assert (rows[1]["topic"], rows[1]["partition"], rows[1]["producer"]) == (TOPIC, -1, "p-1")
    assert (rows[1]["event_time"], rows[1]["publish_time"], rows[1]["sequence_id"]) == (
        77,
        START_MS + 5,
        5,
    )
    assert end == {
        "status": "END_OF_TOPIC",
        "topic": TOPIC,
        "partition": -1,
        "read_compacted": True,
        "from": "earliest",
        "next": "12:1",
        "messages": 2,
        "horizon": "10:2",
        "compacted_ledger": 13,
        "horizons_read": ["10:2"],
        "last_message_id": {"ledger": 12, "entry": 0, "batch_index": -1},
        "incomplete_chunks": 0,
        "notes": [],
    }


def test_read_command_reads_the_backlog(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert (
        run(
            [
                "read",
                str(folder.parents[3]),
                "--topic",
                "orders",
                "--from",
                "10:1:-1:1",
                "--limit",
                "3",
            ]
        )
        == 0
    )
    out, err = capfd.readouterr()
    first, second, third = out.splitlines()
    assert (
        first.startswith("public/default/orders 10:1:-1:1  ")
        and '"a" = "3"' in first
        and "LZ4" in first
    )
    assert "no key = " in second and '"b" = null' in third
    assert "LIMIT: 3 messages, next 10:3 (last message 12:0; horizon 10:2)" in err


def test_start_positions_are_accepted_or_refused(folder: Path) -> None:
    def ids(start: str) -> list[str]:
        return [row["message_id"] for row in reading_of(folder, read_compacted=True, start=start)]

    assert ids("10:0") == ids("earliest") == ["10:1:-1:1", "12:0:-1"]
    assert ids("10:2") == ids("11:7") == ids("10:2:-1") == ["12:0:-1"]
    assert ids("12:1") == ids("latest") == ids("2000000000:0") == []
    with pytest.raises(InvalidConfig, match="not a start position in a topic"):
        lastwrite.read(str(folder), start="yesterday")
    with pytest.raises(UnsupportedFormat):
        lastwrite.read(str(folder), start="9999999999:0")


def test_options_of_other_systems_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="RocketMQ"):
        lastwrite.read(str(folder), offset=3)
    with pytest.raises(InvalidConfig, match="for Pulsar"):
        lastwrite.read(str(tmp_path), system="rocketmq", read_compacted=True)
    topic_folder(tmp_path, TOPIC + "-2")
    write_ledger(topic_folder(tmp_path, TOPIC + "-2"), 3, ENTRIES)
    with pytest.raises(InvalidConfig, match="2 topics"):
        lastwrite.read(str(tmp_path), system="pulsar")
    with pytest.raises(NotALog):
        lastwrite.read(str(tmp_path), topic="absent", system="pulsar")


def test_markers_aborted_and_open_transactions_are_skipped(tmp_path: Path) -> None:
    folder = topic_folder(tmp_path, TOPIC)
    write_ledger(
        folder,
        10,
        [
            of_transaction("a", "kept", 1),
            of_transaction("a", "aborted", 2),
            marker(21, 1),
            marker(22, 2),
        ],
    )
    write_ledger(
        folder,
        11,
        [single("b", "1"), marker(10), of_transaction("c", "open", 3), single("d", "behind it")],
    )
    reading = reading_of(folder)
    assert [(row["message_id"], value_of(row)) for row in reading] == [
        ("10:0:-1", b"kept"),
        ("11:0:-1", b"1"),
    ]
    assert (reading.status, reading.next_id) == ("OPEN_TRANSACTION", "11:2")
    assert reading.summary()["last_message_id"] == {"ledger": 11, "entry": 0, "batch_index": -1}
    write_ledger(folder, 12, [marker(22, 3)])
    assert [row["key"] for row in reading_of(folder)] == ["a", "b", "d"]


def test_chunks_are_joined_into_messages(tmp_path: Path) -> None:
    folder = topic_folder(tmp_path, TOPIC)
    parts = [
        chunk("u", 0, 2, b"one "),
        chunk("v", 0, 3, b"x"),
        chunk("u", 1, 2, b"two"),
        chunk("w", 1, 2, b"late"),
    ]
    write_ledger(folder, 10, parts)
    reading = reading_of(folder)
    (row,) = reading
    assert (row["message_id"], value_of(row), row["chunk"]["uuid"]) == ("10:2:-1", b"one two", "u")
    assert reading.summary()["incomplete_chunks"] == 1


def test_number_of_incomplete_chunk_groups_is_limited() -> None:
    from lastwrite.pulsar.format.entry import decode_entry

    groups = ChunkGroups(1000)
    for number in range(MOST_GROUPS + 1):
        assert groups.add(decode_entry(chunk(f"u{number}", 0, 2, b"x"), 10, number)) is None
    assert groups.add(decode_entry(chunk("u0", 1, 2, b"y"), 10, 90)) is None
    whole = groups.add(decode_entry(chunk("u1", 1, 2, b"y"), 10, 91))
    assert whole is not None and whole.payload == b"xy"
    with pytest.raises(OutOfMemoryBudget):
        groups.add(decode_entry(chunk("u2", 1, 3, b"y" * 1000), 10, 92))


# ---------------------------------------------------------------------- a newer horizon


def test_reader_moves_to_a_newer_compacted_ledger(folder: Path) -> None:
    """Entries below the new horizon are in the newer ledger, and the reader continues there."""
    entries = [single(f"k{number % 50}", str(number), number) for number in range(400)]
    write_ledger(folder, 20, entries)
    reading = reading_of(folder, read_compacted=True)
    got = [next(reading) for _ in range(150)]
    assert lastwrite.compact(str(folder), spark=INLINE).exit_status == 0
    got += list(reading)
    ids = [(row["ledger"], row["entry"], row["batch_index"]) for row in got]
    assert ids == sorted(set(ids))
    assert reading.horizons == ["10:2", "20:399"]
    assert [row["source"] for row in got[-50:]] == ["compacted"] * 50
    assert [value_of(row) for row in got[-50:]] == [
        str(number).encode() for number in range(350, 400)
    ]
    assert len(got) < 402


def test_reader_retries_if_the_compacted_ledger_vanishes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each of the first reads of the manifest a newer compacted ledger replaces the one just
    read.
    """
    newer = iter(((14, Position(10, 2)), (15, Position(12, 0)), (16, Position(12, 0))))

    def and_then_a_newer_one(*given: Any) -> Any:
        seen = read_view(*given)
        for ledger, horizon in newer:
            write_compacted(
                folder, ledger, [(Position(10, 1), single("a", f"of {ledger}"))], horizon
            )
            break
        return seen

    monkeypatch.setattr(reader, "read_view", and_then_a_newer_one)
    reading = reading_of(folder, read_compacted=True)
    assert [value_of(row) for row in reading] == [b"of 16"]
    assert reading.horizons[-1] == "12:0"


def test_reader_skips_deleted_ledgers_and_reads_new_ones(folder: Path) -> None:
    """Trimmed ledgers are skipped, and newly fetched ones are read."""
    write_ledger(folder, 11, [single("t", str(number), number) for number in range(150)])
    reading = reading_of(folder)
    first = [next(reading)["message_id"] for _ in range(6)]
    assert first[-1] == "11:0:-1"
    for path in folder.glob("*-ledger-11*"):
        path.unlink()
    write_ledger(folder, 20, [single("z", "last", 9)])
    rest = [row["message_id"] for row in reading]
    # The reader reads 100 entries at a time.
    assert rest == [
        *(f"11:{number}:-1" for number in range(1, 100)),
        "12:0:-1",
        "20:0:-1",
    ]


def test_reader_gives_up_on_a_folder_that_keeps_changing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*given: Any) -> Any:
        raise LedgerMoved

    monkeypatch.setattr(reader, "read_view", never)
    with pytest.raises(CorruptLog, match="replaced faster"):
        list(reading_of(folder, read_compacted=True))


def test_missing_compacted_ledger_is_damage(folder: Path) -> None:
    next(folder.glob("*-ledger-13")).unlink()
    with pytest.raises(CorruptLog, match="the manifest names this object"):
        list(reading_of(folder, read_compacted=True))
    (folder / "compacted.json").write_text("{}")
    with pytest.raises(CorruptLog):
        list(reading_of(folder, read_compacted=True))


# ---------------------------------------------------------------------- dump


def test_dump_yields_every_message_with_its_position(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["dump", str(folder), "--json"]) == 0
    rows = rows_of(capfd)
    assert [row["message_id"] for row in rows] == [
        "10:0:-1",
        *(f"10:1:-1:{n}" for n in range(3)),
        "10:2:-1",
        "12:0:-1",
    ]
    assert rows[0]["properties"] == {"colour": "red"}
    assert run(["dump", str(folder), "--compacted", "--json"]) == 0
    rows = rows_of(capfd)
    assert [(row["batch_index"], row["compacted_out"], row["key"]) for row in rows] == [
        (0, True, None),
        (1, False, "a"),
        (2, True, None),
    ]
    for row in rows:
        data = Path(row["file"]).read_bytes()
        assert data[row["position"] :][:2] == b"\x0e\x01"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--from", "10:2"], ["10:2:-1", "12:0:-1"]),
        (["--message-id", "10:1:-1:2"], ["10:1:-1:2"]),
        (["--message-id", "10:1"], ["10:1:-1:0", "10:1:-1:1", "10:1:-1:2"]),
        (["--key", "a"], ["10:0:-1", "10:1:-1:1"]),
        (["--time", str(START_MS + 4)], ["10:2:-1", "12:0:-1"]),
        (["--last", "1"], ["12:0:-1"]),
        (["--last", "3"], ["10:1:-1:2", "10:2:-1", "12:0:-1"]),
        (["--last", "99", "--limit", "2"], ["10:0:-1", "10:1:-1:0"]),
        (["--last", "1", "--key", "a"], ["10:1:-1:1"]),
        (["--limit", "2"], ["10:0:-1", "10:1:-1:0"]),
    ],
)
def test_dump_filters_messages(
    folder: Path, options: list[str], expected: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["dump", str(folder), "--json", *options]) == 0
    assert [row["message_id"] for row in rows_of(capfd)] == expected


def test_dump_prints_messages_by_a_format(
    folder: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert run(["dump", str(folder), "-Z", "-f", r"%t %p %o %k=%s {%h} %T\n"]) == 0
    first = f"{TOPIC} -1 10:0:-1 a=1 {{colour=red}} {START_MS}".encode()
    lines = capfdbinary.readouterr().out.splitlines()
    assert lines[0] == first and len(lines) == 6
    assert [line.split()[3] for line in lines[1:]] == [
        b"b=2",
        b"a=3",
        b"NULL=keyless",
        b"b=NULL",
        b"c=4",
    ]
    assert run(["dump", str(folder), "--compacted", "-f", "%k;"]) == 0
    assert capfdbinary.readouterr().out == b"a;", "and nothing of what was compacted out"


def test_dump_prints_entries_blocks_and_files(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["dump", str(folder), "--batches", "--json"]) == 0
    assert [
        (row["ledger"], row["entry"], row["records"], row["compression"]) for row in rows_of(capfd)
    ] == [
        (10, 0, 1, "NONE"),
        (10, 1, 3, "LZ4"),
        (10, 2, 1, "NONE"),
        (12, 0, 1, "NONE"),
    ]
    assert run(["dump", str(folder), "--index", "--json"]) == 0
    blocks = rows_of(capfd)
    assert [row["first_entry"] for row in blocks if row["ledger"] == 12] == [0]
    assert len([row for row in blocks if row["ledger"] == 10]) > 1
    assert run(["dump", str(folder / "compacted.json"), "--json"]) == 0
    assert [(row["horizon"], row["ledger"]) for row in rows_of(capfd)] == [("10:2", 13)]
    assert run(["dump", str(next(folder.glob("*-ledger-12"))), "--json"]) == 0
    assert [row["message_id"] for row in rows_of(capfd)] == ["12:0:-1"]
    assert run(["dump", str(folder), "--batches", "--last", "2", "--json"]) == 0
    assert [(row["ledger"], row["entry"]) for row in rows_of(capfd)] == [(10, 2), (12, 0)]
    assert run(["dump", str(folder), "--message-id", "x"]) == 2
    assert run(["dump", str(folder), "--index", "--last", "1"]) == 2
    assert run(["dump", str(folder), "--unique-key", "x"]) == 2


def test_damage_is_named_and_skipped(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = next(folder.glob("*-ledger-12"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert run(["dump", str(folder), "--json"]) == 3
    rows = rows_of(capfd)
    assert [row["problem"] is None for row in rows[:-1] if "problem" in row] == [True] * 5
    assert "does not match" in json.dumps(rows[-1])
    assert run(["read", str(folder), "--json"]) == 3
    assert lastwrite.inspect(str(folder)).exit_status == 3
    path.write_bytes(data[:-1])
    assert run(["inspect", str(folder)]) == 3
    assert "bytes" in capfd.readouterr().out


# ---------------------------------------------------------------------- inspect


def test_inspect_counts_ledgers_and_messages(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["inspect", str(folder.parents[3]), "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    (topic,) = document["partitions"]
    expected = {
        "topic": TOPIC,
        "partition": -1,
        "status": "whole",
        "entries": 4,
        "records": 6,
        "batches": 1,
        "tombstones": 1,
        "keyless": 1,
        "keys": 2,
        "horizon": "10:2",
        "first_id": "10:0",
        "last_id": "12:0",
        "is_due": True,
        "reason": None,
        "last_message_id": {"ledger": 12, "entry": 0, "batch_index": -1},
        "placeholders": 0,
        "dirty_bytes": len(ENTRIES[3]),
        "backlog_below_bytes": sum(map(len, ENTRIES[:3])),
    }
    assert {name: topic[name] for name in expected} == expected
    assert (topic["compacted"]["records"], topic["compacted"]["placeholders"]) == (1, 2)
    assert topic["manifest"]["horizon"] == "10:2"
    assert document["system"] == "pulsar" and document["totals"]["records"] == 6
    assert run(["inspect", str(folder)]) == 0
    out = capfd.readouterr().out
    assert "13 compacted" in out and "compacted    up to 10:2 into ledger 13" in out


def test_inspect_compares_the_compacted_ledger_with_its_manifest(folder: Path) -> None:
    write_compacted(folder, 14, [(Position(10, 2), single("x", "1"))], Position(10, 2), messages=7)
    (topic,) = lastwrite.inspect(str(folder)).to_dict()["partitions"]
    assert topic["status"] == "damaged"
    assert "the manifest states 7" in topic["problems"][0]["message"]


# ---------------------------------------------------------------------- latest


def test_latest_gives_the_last_value_of_each_key(folder: Path) -> None:
    assert lastwrite.latest(str(folder)) == {"a": b"3", "c": b"4"}
    end = lastwrite.read(str(folder), start="latest").summary()["next"]
    assert lastwrite.latest(str(folder)).end_offsets == {-1: end}
    write_ledger(folder, 30, [single("c", "", 8), single("é", "5", 9)])
    assert lastwrite.latest(str(folder.parents[3]), "orders") == {"a": b"3", "é": b"5"}
    with pytest.raises(OutOfMemoryBudget):
        lastwrite.latest(str(folder), limit_bytes=300)
    keys = (EncryptionKey(key="k", value=b"wrapped").encode(),)
    secret = Metadata(
        producer_name="p", sequence_id=1, publish_time=1, partition_key=b"s", encryption_keys=keys
    )
    write_ledger(folder, 31, [encode_entry(secret, b"ciphertext")])
    with pytest.raises(UnsupportedFormat, match="encrypted"):
        lastwrite.latest(str(folder))


def test_latest_merges_partitions(tmp_path: Path) -> None:
    for number in range(2):
        write_ledger(
            topic_folder(tmp_path, f"{TOPIC}-partition-{number}"),
            10 + number,
            [single("moved", f"in {number}", 5 - number), single(f"only {number}", "x", 1)],
        )
    assert lastwrite.latest(str(tmp_path), "orders") == {
        "moved": b"in 0",
        "only 0": b"x",
        "only 1": b"x",
    }
    with pytest.raises(InvalidConfig, match="needs all partitions of a topic"):
        lastwrite.latest(str(topic_folder(tmp_path, f"{TOPIC}-partition-1")))
