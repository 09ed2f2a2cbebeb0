"""Tests of the rows of a dump: their fields, their filters and their behaviour on damaged logs."""

from __future__ import annotations

import base64
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lastwrite
from lastwrite.demo.topic_writer import TopicWriter
from lastwrite.encoding.compression import Codec
from lastwrite.errors import CorruptLog, InvalidConfig, LogHeld, NotALog
from lastwrite.kafka.format.batch import ControlType, encode_batch, iter_batches
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.kafka.format.index import AbortedEntry, encode_transaction_index
from lastwrite.kafka.producers.snapshot import ProducerEntry, encode_snapshot
from lastwrite.kafka.store import lock
from lastwrite.model.log import TopicPartition
from tests.support.kafka.old_entries import encode_message, encode_wrapper
from tests.support.kafka.single import encode_control_record

FIELDS = [
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestamp_type",
    "key",
    "value",
    "headers",
    "producer_id",
    "producer_epoch",
    "sequence",
    "transactional",
    "control",
    "compression",
    "leader_epoch",
    "segment",
    "position",
]


def coded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def write(root: Path, count: int = 300, topic: str = "orders", codec: Codec = Codec.NONE) -> Path:
    """Write a partition of several segments and batches with repeated keys and some tombstones."""
    settings: dict[str, Any] = {
        "segment_bytes": 3000,
        "batch_bytes": 600,
        "index_interval_bytes": 500,
        "codec": codec,
    }
    with TopicWriter(str(root), TopicPartition(topic, 0), **settings) as writer:
        for n in range(count):
            writer.append(
                b"key-%d" % (n % 20),
                None if n % 9 == 4 else b"value-%d" % n,
                1000 + n,
                [(b"h", b"%d" % n)],
            )
    return root / f"{topic}-0"


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.log"))


def single(folder: Path, *batches: bytes) -> Path:
    """A partition with one segment of ``batches``."""
    folder.mkdir(parents=True)
    for ending in (".index", ".timeindex"):
        (folder / f"{0:020}{ending}").write_bytes(b"")
    path = folder / f"{0:020}.log"
    path.write_bytes(b"".join(batches))
    return path


def rows_and_error(path: Path, **options: Any) -> tuple[list[dict[str, Any]], CorruptLog | None]:
    rows = []
    try:
        for row in lastwrite.dump(str(path), **options):
            rows.append(row)
    except CorruptLog as error:
        return rows, error
    return rows, None


@pytest.mark.parametrize("codec", list(Codec))
def test_dump_yields_every_record_with_every_field(tmp_path: Path, codec: Codec) -> None:
    folder = write(tmp_path, codec=codec)
    rows = list(lastwrite.dump(str(tmp_path)))
    assert [row["offset"] for row in rows] == list(range(300))
    assert all(list(row) == FIELDS for row in rows)
    assert rows[4] | {"position": 0} == {
        "topic": "orders",
        "partition": 0,
        "offset": 4,
        "timestamp": 1004,
        "timestamp_type": "CreateTime",
        "key": coded(b"key-4"),
        "value": None,
        "headers": [["h", coded(b"4")]],
        "producer_id": -1,
        "producer_epoch": -1,
        "sequence": -1,
        "transactional": False,
        "control": None,
        "compression": codec.label,
        "leader_epoch": 0,
        "segment": 0,
        "position": 0,
    }
    filled = [int(path.stem) for path in segments(folder) if path.stat().st_size]
    assert sorted({row["segment"] for row in rows}) == filled
    assert rows == list(lastwrite.dump(str(folder)))


@pytest.mark.parametrize("offset", [0, 1, 57, 100, 299, 300, 10_000])
def test_dump_starts_at_an_offset(tmp_path: Path, offset: int) -> None:
    write(tmp_path)
    assert [row["offset"] for row in lastwrite.dump(str(tmp_path), offset=offset)] == list(
        range(offset, 300)
    )


@pytest.mark.parametrize("time_ms", [0, 1000, 1001, 1057, 1299, 1300, 1 << 50])
def test_dump_starts_at_a_time(tmp_path: Path, time_ms: int) -> None:
    write(tmp_path)
    first = max(time_ms - 1000, 0)
    rows = lastwrite.dump(str(tmp_path), time_ms=time_ms)
    assert [row["offset"] for row in rows] == list(range(first, 300))
    batches = list(lastwrite.dump(str(tmp_path), time_ms=time_ms, batches=True))
    every = list(lastwrite.dump(str(tmp_path), batches=True))
    assert batches == [row for row in every if row["last_offset"] >= first]


def test_dump_by_time_finds_records_with_unordered_timestamps(tmp_path: Path) -> None:
    batches = [
        encode_batch([Record(n, time, b"k", b"v")], base_offset=n)
        for n, time in enumerate([5, 9, 3, 7])
    ]
    single(tmp_path / "t-0", *batches)
    assert [row["offset"] for row in lastwrite.dump(str(tmp_path), time_ms=6)] == [1, 2, 3]
    damaged = batches[1][:-1] + b"\xff"
    single(tmp_path / "u-0", batches[0], damaged, *batches[2:])
    rows, error = rows_and_error(tmp_path / "u-0", time_ms=6)
    assert [row["offset"] for row in rows] == [3] and error is not None
    assert error.at == len(batches[0])


@pytest.mark.parametrize("last", [1, 2, 57, 299, 300, 10_000])
def test_last_yields_the_last_records_of_each_partition(tmp_path: Path, last: int) -> None:
    write(tmp_path)
    write(tmp_path, count=40, topic="clicks")
    rows = [(row["topic"], row["offset"]) for row in lastwrite.dump(str(tmp_path), last=last)]
    assert rows == [
        *(("clicks", n) for n in range(max(40 - last, 0), 40)),
        *(("orders", n) for n in range(max(300 - last, 0), 300)),
    ]


def test_last_combines_with_other_filters(tmp_path: Path) -> None:
    folder = write(tmp_path)

    def offsets(path: Path = tmp_path, **options: Any) -> list[int]:
        return [row["offset"] for row in lastwrite.dump(str(path), **options)]

    assert offsets(last=2, key=b"key-3") == [263, 283]
    assert offsets(last=3, offset=299) == [299]
    assert offsets(last=3, time_ms=1298) == [298, 299]
    assert offsets(last=3, limit=2) == [297, 298]
    filled = [path for path in segments(folder) if path.stat().st_size]
    assert offsets(filled[0], last=1) == [int(filled[1].stem) - 1]
    (batch,) = lastwrite.dump(str(tmp_path), last=1, batches=True)
    assert batch["last_offset"] == 299
    for wrong in ({"last": 0}, {"last": 1, "index": True}, {"time_ms": 5, "index": True}):
        with pytest.raises(InvalidConfig):
            lastwrite.dump(str(tmp_path), **wrong)
    with pytest.raises(InvalidConfig):
        lastwrite.dump(str(tmp_path), time_ms=5, offset=3)


def test_dump_from_an_offset_does_not_trust_the_index(tmp_path: Path) -> None:
    folder = write(tmp_path)
    for index in folder.glob("*.index"):
        entries = bytearray(index.read_bytes())
        for at in range(7, len(entries), 8):
            entries[at] ^= 3
        index.write_bytes(bytes(entries))
    assert [row["offset"] for row in lastwrite.dump(str(tmp_path), offset=57)] == list(
        range(57, 300)
    )


def test_limit_and_key_narrow_the_rows(tmp_path: Path) -> None:
    write(tmp_path)
    assert [row["offset"] for row in lastwrite.dump(str(tmp_path), offset=250, limit=2)] == [
        250,
        251,
    ]
    assert list(lastwrite.dump(str(tmp_path), limit=0)) == []
    of_key = lastwrite.dump(str(tmp_path), key=b"key-7", offset=200)
    assert [row["offset"] for row in of_key] == [207, 227, 247, 267, 287]
    assert list(lastwrite.dump(str(tmp_path), key=b"")) == []


def test_batches_option_yields_batch_headers(tmp_path: Path) -> None:
    folder = write(tmp_path)
    rows = list(lastwrite.dump(str(tmp_path), batches=True))
    decoded = [
        batch.header
        for path in segments(folder)
        for _, batch in iter_batches(memoryview(path.read_bytes()))
    ]
    assert [(row["base_offset"], row["records"], row["crc"]) for row in rows] == [
        (header.base_offset, header.record_count, header.crc) for header in decoded
    ]
    assert rows[0]["bytes"] == decoded[0].size_bytes
    assert rows[0]["position"] == 0


def test_index_entries_point_at_batches(tmp_path: Path) -> None:
    write(tmp_path)
    rows = list(lastwrite.dump(str(tmp_path), index=True))
    batches = lastwrite.dump(str(tmp_path), batches=True)
    ends = {(row["segment"], row["position"]): row["last_offset"] for row in batches}
    by_offset = [row for row in rows if row["index"] == "offset"]
    assert len(by_offset) > 5
    assert all(ends[row["segment"], row["position"]] == row["offset"] for row in by_offset)
    assert [row for row in rows if row["index"] == "time"]
    assert all(
        row["offset"] >= 250 for row in lastwrite.dump(str(tmp_path), index=True, offset=250)
    )


def test_rows_show_producers_transactions_and_control_records(tmp_path: Path) -> None:
    data = encode_batch(
        [Record(0, 5, b"a", b"x"), Record(1, 6, None, b"")],
        producer_id=7,
        producer_epoch=2,
        base_sequence=2**31 - 1,
        transactional=True,
        leader_epoch=4,
        append_time=True,
        max_timestamp_ms=9,
    )
    marker = encode_batch(
        [encode_control_record(2, 10, ControlType.COMMIT)],
        producer_id=7,
        producer_epoch=2,
        transactional=True,
        control=True,
    )
    path = single(tmp_path / "t-0", data, marker)
    first, second, commit = lastwrite.dump(str(path))
    assert (first["timestamp"], first["timestamp_type"], first["leader_epoch"]) == (
        9,
        "LogAppendTime",
        4,
    )
    assert (first["sequence"], second["sequence"], commit["sequence"]) == (2**31 - 1, 0, -1)
    assert (second["key"], second["value"]) == (None, "")
    assert (first["control"], commit["control"]) == (None, "commit")
    assert commit["transactional"] and commit["producer_id"] == 7
    batches = list(lastwrite.dump(str(path), batches=True))
    assert [row["control"] for row in batches] == [False, True]
    assert batches[0]["last_sequence"] == 0


def test_header_name_that_is_not_utf8_is_escaped(tmp_path: Path) -> None:
    path = single(tmp_path / "t-0", encode_batch([Record(0, 5, b"a", b"x", ((b"\xff", None),))]))
    (row,) = lastwrite.dump(str(path))
    assert row["headers"] == [["\\xff", None]]


def test_flipped_byte_loses_only_its_batch(tmp_path: Path) -> None:
    folder = write(tmp_path)
    path = segments(folder)[1]
    data = bytearray(path.read_bytes())
    whole = list(iter_batches(memoryview(bytes(data))))
    at, hurt = whole[1]
    data[at + 70] ^= 1
    path.write_bytes(bytes(data))
    rows, error = rows_and_error(tmp_path)
    lost = {record.offset for record in hurt.records}
    assert [row["offset"] for row in rows] == [
        offset for offset in range(300) if offset not in lost
    ]
    assert (
        error is not None and (error.path, error.at) == (str(path), at) and "CRC" in error.problem
    )
    batches, error = rows_and_error(tmp_path, batches=True)
    assert (
        hurt.header.base_offset not in {row["base_offset"] for row in batches} and error is not None
    )


def test_lost_batch_length_loses_the_rest_of_its_segment(tmp_path: Path) -> None:
    folder = write(tmp_path)
    path = segments(folder)[1]
    data = bytearray(path.read_bytes())
    at = list(iter_batches(memoryview(bytes(data))))[1][0]
    data[at + 8 : at + 12] = b"\x00\x00\x00\x00"
    path.write_bytes(bytes(data))
    rows, error = rows_and_error(tmp_path)
    kept = [row["offset"] for row in rows]
    assert kept[-1] == 299 and len(kept) < 300
    assert error is not None and (error.path, error.at) == (str(path), at + 8)


@pytest.mark.parametrize("cut", [1, 16, 40, 61, 100])
def test_torn_tail_is_reported_after_the_complete_rows(tmp_path: Path, cut: int) -> None:
    folder = write(tmp_path, 50)
    path = [path for path in segments(folder) if path.stat().st_size][-1]
    data = path.read_bytes()
    at, last = list(iter_batches(memoryview(data)))[-1]
    path.write_bytes(data[: min(at + cut, len(data) - 1)])
    rows, error = rows_and_error(path)
    assert [row["offset"] for row in rows][-1:] == ([last.header.base_offset - 1] if at else [])
    assert error is not None and error.at == at and "torn tail" in error.problem


def test_damaged_partition_does_not_affect_the_others(tmp_path: Path) -> None:
    write(tmp_path, 20, "a")
    write(tmp_path, 20, "b")
    segments(tmp_path / "a-0")[0].write_bytes(b"\xff" * 100)
    rows, error = rows_and_error(tmp_path)
    assert [(row["topic"], row["offset"]) for row in rows] == [("b", n) for n in range(20)]
    assert error is not None and "a-0" in str(error.path)


def test_old_formats_are_dumped(tmp_path: Path) -> None:
    records = [Record(offset, 7 + offset, b"a", b"x%d" % offset) for offset in range(6)]
    path = single(
        tmp_path / "t-0",
        encode_message(records[0], 0),
        encode_wrapper(records[1:3], 1, Codec.LZ4),
        encode_wrapper(records[3:5], 0, Codec.LZ4),
        encode_batch(records[5:]),
    )
    rows = list(lastwrite.dump(str(path)))
    assert [row["offset"] for row in rows] == [0, 1, 2, 3, 4, 5]
    assert [row["timestamp"] for row in rows] == [-1, 8, 9, -1, -1, 12]
    types = [row["timestamp_type"] for row in rows]
    assert types == ["none", "CreateTime", "CreateTime", "none", "none", "CreateTime"]
    assert [row["compression"] for row in rows] == ["none", "lz4", "lz4", "lz4", "lz4", "none"]
    assert {(row["producer_id"], row["sequence"], row["leader_epoch"]) for row in rows[:5]} == {
        (-1, -1, -1)
    }
    batches = list(lastwrite.dump(str(path), batches=True))
    assert [
        (row["magic"], row["base_offset"], row["last_offset"], row["records"]) for row in batches
    ] == [
        (0, 0, 0, 1),
        (1, 1, 2, 2),
        (0, 3, 4, 2),
        (2, 5, 5, 1),
    ]
    assert [row["max_timestamp"] for row in batches] == [-1, 9, -1, 12]
    assert [row["position"] for row in batches] == np.cumsum(
        [0, *(row["bytes"] for row in batches)]
    ).tolist()[:-1]
    assert [row["offset"] for row in lastwrite.dump(str(path), offset=2)] == [2, 3, 4, 5]
    data = bytearray(path.read_bytes())
    data[batches[1]["position"] + 40] ^= 1
    path.write_bytes(data)
    rows, error = rows_and_error(tmp_path)
    assert [row["offset"] for row in rows] == [0, 3, 4, 5]
    assert error is not None and error.at == batches[1]["position"] + 12


def test_single_files_are_dumped(tmp_path: Path) -> None:
    folder = write(tmp_path)
    (name,) = [path for path in folder.glob("*.index") if path.stat().st_size][:1]
    assert {row["index"] for row in lastwrite.dump(str(name))} == {"offset"}
    entry = ProducerEntry(7, 1, 4, 8, 0, 1700, -1, -1)
    snapshot = folder / f"{300:020}.snapshot"
    snapshot.write_bytes(encode_snapshot([entry]))
    (row,) = lastwrite.dump(str(snapshot))
    assert (row["producer_id"], row["timestamp"], row["snapshot"]) == (7, 1700, 300)
    checkpoint = tmp_path / "cleaner-offset-checkpoint"
    checkpoint.write_text("0\n2\norders 0 4711\na-b 1 5\n")
    assert list(lastwrite.dump(str(checkpoint))) == [
        {"topic": "orders", "partition": 0, "offset": 4711},
        {"topic": "a-b", "partition": 1, "offset": 5},
    ]
    (topic_id,) = lastwrite.dump(str(folder / "partition.metadata"))
    assert len(topic_id["topic_id"]) == 22
    (folder / "leader-epoch-checkpoint").write_text("0\n2\n0 0\n3 120\n")
    assert list(lastwrite.dump(str(folder / "leader-epoch-checkpoint"))) == [
        {"topic": "orders", "partition": 0, "leader_epoch": 0, "start_offset": 0},
        {"topic": "orders", "partition": 0, "leader_epoch": 3, "start_offset": 120},
    ]
    (tmp_path / "meta.properties").write_text("#\nnode.id=1\ncluster.id=c\nversion=1\n")
    assert list(lastwrite.dump(str(tmp_path / "meta.properties"))) == [
        {"version": "1", "cluster_id": "c", "node_id": "1", "directory_id": None}
    ]
    renamed = segments(folder)[0].rename(folder / (segments(folder)[0].name + ".deleted"))
    assert next(iter(lastwrite.dump(str(renamed))))["offset"] == 0


SNAPSHOT = encode_snapshot([ProducerEntry(7, 1, 4, 8, 0, 1700, -1, -1)])


@pytest.mark.parametrize(
    ("name", "content", "at"),
    [
        ("cleaner-offset-checkpoint", b"0\n2\norders 0 4711\n", 18),
        ("recovery-point-offset-checkpoint", b"0\n1\norders 0 -1\n", 4),
        ("log-start-offset-checkpoint", b"0\n2\norders 0 1\norders 0 2\n", 15),
        ("replication-offset-checkpoint", b"zero\n", 0),
        ("meta.properties", b"version=1\ncluster.id=\xff\n", 21),
        ("orders-0/leader-epoch-checkpoint", b"0\n2\n3 120\n0 0\n", 10),
        ("orders-0/partition.metadata", b"version: 0\ntopic_id: none\n", 11),
        (f"orders-0/{9:020}.snapshot", SNAPSHOT[:-1], 6),
        (f"orders-0/{9:020}.snapshot", SNAPSHOT + b"\0", len(SNAPSHOT)),
        (f"orders-0/{9:020}.snapshot", SNAPSHOT[:-1] + b"\0", 2),
    ],
)
def test_damaged_side_file_is_named_with_the_byte(
    tmp_path: Path, name: str, content: bytes, at: int
) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    rows, error = rows_and_error(path)
    assert rows == [] and error is not None and (error.path, error.at) == (str(path), at)


def test_transaction_index_yields_entries_before_its_damage(tmp_path: Path) -> None:
    path = tmp_path / f"{0:020}.txnindex"
    entries = [AbortedEntry(0, 7, 1, 4, 5), AbortedEntry(0, 8, 2, 9, 10)]
    path.write_bytes(encode_transaction_index(entries)[:-3])
    rows, error = rows_and_error(path)
    assert [(row["producer_id"], row["last_offset"]) for row in rows] == [(7, 4)]
    assert error is not None and (error.path, error.at) == (str(path), 34)


def test_dump_refuses_before_the_first_row(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(NotALog):
        lastwrite.dump(str(tmp_path / "missing"))
    (tmp_path / "readme.txt").write_text("hello")
    with pytest.raises(NotALog):
        lastwrite.dump(str(tmp_path / "readme.txt"))
    with pytest.raises(InvalidConfig):
        lastwrite.dump(str(tmp_path), batches=True, index=True)
    with pytest.raises(InvalidConfig):
        lastwrite.dump(str(tmp_path), system="fluvio")
    with lock.hold(str(tmp_path), [TopicPartition("orders", 0)]):
        for path in (tmp_path, tmp_path / "orders-0", segments(tmp_path / "orders-0")[0]):
            with pytest.raises(LogHeld):
                lastwrite.dump(str(path))


def test_dump_streams_its_rows(tmp_path: Path) -> None:
    write(tmp_path)
    rows = lastwrite.dump(str(tmp_path))
    assert [row["offset"] for row in itertools.islice(rows, 3)] == [0, 1, 2]
