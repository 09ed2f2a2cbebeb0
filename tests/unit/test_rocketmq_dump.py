"""Tests of the rows of a dump of a RocketMQ store: their fields, lookups and behaviour on damage."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

import lastwrite
from lastwrite.cli import run
from lastwrite.errors import CorruptLog, InvalidConfig, LogHeld, NotALog
from lastwrite.model.log import TopicPartition
from lastwrite.rocketmq.format import properties, record, sides
from lastwrite.rocketmq.format.record import (
    MAGIC_V2,
    RocketmqMessage,
    body_of,
    encode_blank,
    encode_message,
    split_inner,
)
from lastwrite.rocketmq.store import lock
from tests.support.rocketmq.stores import BORN, StoreWriter, shop

FIELDS = [
    "topic",
    "queue_id",
    "queue_offset",
    "physical_offset",
    "size",
    "magic",
    "body_crc",
    "flag",
    "sys_flag",
    "born_timestamp",
    "born_host",
    "store_timestamp",
    "store_host",
    "reconsume_times",
    "prepared_transaction_offset",
    "properties",
    "body",
    "stored_body",
    "compression",
    "file",
    "position",
    "message_id",
    "transaction",
    "batch_index",
    "properties_raw",
    "found_by",
    "problem",
]

Row = dict[str, Any]


def coded(data: bytes) -> str:
    return base64.b64encode(data).decode()


class Heard(list[str]):
    """The notes and warnings of a dump."""

    def any(self, *words: str) -> bool:
        return any(all(word in line for word in words) for line in self)


def dumped(path: Path, **options: Any) -> tuple[list[Row], Heard]:
    heard = Heard()
    return list(lastwrite.dump(str(path), say=heard.append, **options)), heard


def damaged(path: Path, **options: Any) -> tuple[list[Row], CorruptLog, Heard]:
    heard, rows = Heard(), []
    with pytest.raises(CorruptLog) as caught:
        for row in lastwrite.dump(str(path), say=heard.append, **options):
            rows.append(row)
    return rows, caught.value, heard


def addresses(rows: list[Row]) -> list[int]:
    return [row["physical_offset"] for row in rows]


def sent_to(writer: StoreWriter, topic: str, queue: int) -> list[RocketmqMessage]:
    return [
        message
        for message in writer.sent
        if (message.topic, message.queue_id) == (topic, queue)
        and message.sys_flag & record.TRANSACTION_MASK != record.TRANSACTION_ROLLBACK
    ]


@pytest.fixture
def writer(tmp_path: Path) -> StoreWriter:
    writer = shop(tmp_path / "store")
    writer.write()
    return writer


# ---------------------------------------------------------------------- every record, every field


def test_dump_yields_every_record_with_every_field(writer: StoreWriter) -> None:
    rows, heard = dumped(writer.root)
    assert addresses(rows) == [message.physical_offset for message in writer.sent]
    assert all(list(row) == FIELDS for row in rows)
    for row, message in zip(rows, writer.sent, strict=True):
        assert (
            row["properties"] == message.properties and row["queue_offset"] == message.queue_offset
        )
        assert row["body"] == coded(body_of(message)) and row["stored_body"] == coded(message.body)
    assert rows[1] == {
        "topic": "orders",
        "queue_id": 1,
        "queue_offset": 0,
        "physical_offset": 240,
        "size": 216,
        "magic": record.MAGIC_V1,
        "body_crc": record.body_crc(b"value 1 " * 7),
        "flag": 0,
        "sys_flag": 0,
        "born_timestamp": BORN + 10,
        "born_host": "127.0.0.1:54321",
        "store_timestamp": BORN + 11,
        "store_host": "127.0.0.1:10911",
        "reconsume_times": 0,
        "prepared_transaction_offset": 0,
        "properties": {"KEYS": "key-1", "UNIQ_KEY": f"{1:032X}", "TAGS": "tag1"},
        "body": coded(b"value 1 " * 7),
        "stored_body": coded(b"value 1 " * 7),
        "compression": "none",
        "file": str(writer.root / "commitlog" / f"{0:020}"),
        "position": 240,
        "message_id": "7F00000100002A9F00000000000000F0",
        "transaction": None,
        "batch_index": None,
        "properties_raw": None,
        "found_by": "commit log",
        "problem": None,
    }
    assert {row["compression"] for row in rows} == {"none", "zlib", "lz4", "zstd"}
    assert {row["transaction"] for row in rows} == {None, "rollback"}
    assert any(row["born_host"] == "[::1]:54321" for row in rows)
    assert not heard


def test_dump_of_a_folder_and_of_files_are_the_same(writer: StoreWriter) -> None:
    rows, _ = dumped(writer.root)
    assert dumped(writer.root / "commitlog")[0] == rows
    files = sorted((writer.root / "commitlog").iterdir())
    assert [row for file in files for row in dumped(file)[0]] == rows
    alone = writer.root.parent / files[1].name  # outside the store no folder shows what the file is
    shutil.copy(files[1], alone)
    assert addresses(dumped(alone)[0]) == [
        row["physical_offset"] for row in rows if row["file"] == str(files[1])
    ]


def test_unusual_magics_and_properties_are_shown(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path)
    writer.send("t" * 200, b"x", {"KEYS": "a"}, magic=MAGIC_V2)
    writer.send("t", b"x", {"KEYS": "a", "TAGS": "b"}, closed=False)
    writer.write()
    data = bytearray((tmp_path / "commitlog" / f"{0:020}").read_bytes())
    at = data.rindex(b"KEYS\x01a")
    data[at + 5] = 0xFF  # not UTF-8
    (tmp_path / "commitlog" / f"{0:020}").write_bytes(bytes(data))
    wide, old = dumped(tmp_path)[0]
    assert wide["topic"] == "t" * 200 and wide["magic"] == MAGIC_V2
    assert old["properties"] == {"KEYS": "\ufffd", "TAGS": "b"}
    assert old["properties_raw"] == coded(b"KEYS\x01\xff\x02TAGS\x01b")


def test_members_of_inner_batches_are_dumped(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path)
    pairs = [properties.build({"KEYS": f"k{n}"}) for n in range(3)]
    writer.send("b", inner=[(n, b"body %d" % n, pairs[n]) for n in range(3)])
    batch = writer.send("b", inner=[(0, b"", pairs[0]), (0, b"z", pairs[1])])
    writer.write()
    rows, _ = dumped(tmp_path)
    assert [(row["queue_offset"], row["batch_index"], row["flag"]) for row in rows] == [
        (0, 0, 0),
        (1, 1, 1),
        (2, 2, 2),
        (3, 0, 0),
        (4, 1, 0),
    ]
    assert [row["body"] for row in rows[3:]] == ["", coded(b"z")]
    assert [inner.properties for inner in split_inner(batch)] == [
        row["properties"] for row in rows[3:]
    ]
    whole, _ = dumped(tmp_path, batches=True)
    assert [row["body"] for row in whole] == [coded(message.body) for message in writer.sent]
    found, heard = dumped(tmp_path, topic="b", partition=0, offset=1)
    assert [row["queue_offset"] for row in found] == [1, 2, 3, 4]
    assert {row["found_by"] for row in found} == {"batch consume queue"} and not heard
    shutil.rmtree(tmp_path / "batchconsumequeue")
    assert [
        row["queue_offset"] for row in dumped(tmp_path, topic="b", partition=0, offset=4)[0]
    ] == [4]


# ---------------------------------------------------------------------- by queue offset


@pytest.mark.parametrize("offset", [0, 1, 9, 10, 37, 38, 1000])
def test_offset_is_found_through_the_consume_queue(writer: StoreWriter, offset: int) -> None:
    wanted = [
        message.physical_offset
        for message in sent_to(writer, "orders", 1)
        if message.queue_offset >= offset
    ]
    rows, heard = dumped(writer.root, topic="orders", partition=1, offset=offset)
    assert addresses(rows) == wanted
    assert all(row["found_by"] == "consume queue" for row in rows) and not heard
    assert (
        addresses(dumped(writer.root, topic="orders", partition=1, offset=offset, limit=1)[0])
        == wanted[:1]
    )


def test_topic_is_dumped_queue_by_queue(writer: StoreWriter) -> None:
    rows, _ = dumped(writer.root, topic="orders")
    wanted = [
        message.physical_offset for queue in (0, 1) for message in sent_to(writer, "orders", queue)
    ]
    assert addresses(rows) == wanted


def test_missing_consume_queue_is_rebuilt_in_memory(writer: StoreWriter) -> None:
    rows, _ = dumped(writer.root, topic="orders")
    shutil.rmtree(writer.root / "consumequeue" / "orders" / "1")
    again, heard = dumped(writer.root, topic="orders")
    assert addresses(again) == addresses(rows)
    assert heard.any("orders-1", "rebuilt in memory")
    assert {row["found_by"] for row in again if row["queue_id"] == 1} == {"commit log (no index)"}
    shutil.rmtree(writer.root / "consumequeue")
    assert addresses(dumped(writer.root, topic="orders")[0]) == addresses(rows)


@pytest.mark.parametrize("at", [0, 7, 8, 11, 12])
@pytest.mark.parametrize("unit", [0, 5, 19, 37])
def test_wrong_consume_queue_unit_is_corrected(writer: StoreWriter, unit: int, at: int) -> None:
    wanted = [message.physical_offset for message in sent_to(writer, "orders", 1)]
    path = writer.root / "consumequeue" / "orders" / "1" / f"{unit * 20 // 200 * 200:020}"
    data = bytearray(path.read_bytes())
    data[unit * 20 % 200 + at] ^= 0x01
    path.write_bytes(bytes(data))
    rows, heard = dumped(writer.root, topic="orders", partition=1)
    assert addresses(rows) == wanted
    assert bool(heard) == (at < 12)  # only a wrong tags code does not affect the lookup
    for offset in range(max(unit - 1, 0), unit + 1):
        one, _ = dumped(writer.root, topic="orders", partition=1, offset=offset, limit=1)
        assert addresses(one) == [wanted[offset]]


@pytest.mark.parametrize("lost", [0, 200, 400, 600])
def test_missing_consume_queue_file_is_replaced_by_the_commit_log(
    writer: StoreWriter, lost: int
) -> None:
    (writer.root / "consumequeue" / "orders" / "1" / f"{lost:020}").unlink()
    rows, heard = dumped(writer.root, topic="orders", partition=1)
    assert addresses(rows) == [message.physical_offset for message in sent_to(writer, "orders", 1)]
    assert heard


def test_undispatched_messages_are_found_in_the_commit_log(writer: StoreWriter) -> None:
    path = sorted((writer.root / "consumequeue" / "orders" / "1").iterdir())[-1]
    path.write_bytes(path.read_bytes()[:20].ljust(200, b"\0"))
    rows, heard = dumped(writer.root, topic="orders", partition=1, offset=30)
    assert [row["queue_offset"] for row in rows] == list(range(30, 38))
    assert [row["found_by"] for row in rows] == ["consume queue"] + ["commit log (no index)"] * 7
    assert heard.any("ends before queue offset 31")


def test_fillers_and_expired_units_are_skipped(tmp_path: Path) -> None:
    writer = shop(tmp_path)
    writer.write(first_file=3)
    start = 3 * writer.log_bytes
    wanted = [
        message for message in sent_to(writer, "orders", 0) if message.physical_offset >= start
    ]
    rows, heard = dumped(tmp_path, topic="orders", partition=0)
    assert addresses(rows) == [message.physical_offset for message in wanted]
    assert heard.any("no longer has")
    # A broker that lost the start of the queue fills its first file with blank units.
    first = wanted[0].queue_offset
    for n, path in enumerate(sorted((tmp_path / "consumequeue" / "orders" / "0").iterdir())):
        data = bytearray(path.read_bytes())
        for unit in range(n * 10, min(n * 10 + 10, first)):
            data[unit % 10 * 20 : unit % 10 * 20 + 20] = bytes(8) + b"\x7f\xff\xff\xff" + bytes(8)
        path.write_bytes(bytes(data))
    rows, heard = dumped(tmp_path, topic="orders", partition=0)
    assert addresses(rows) == [message.physical_offset for message in wanted]
    assert dumped(tmp_path, topic="orders", partition=0, index=True)[0][0]["queue_offset"] == first


def test_message_is_found_in_each_light_queue(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path)
    pairs = {"INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b", "INNER_MULTI_QUEUE_OFFSET": "4,9"}
    message = writer.send("parent", b"x", pairs)
    writer.write()
    for topic, offset in (("%LMQ%a", 4), ("%LMQ%b", 9)):
        rows, _ = dumped(tmp_path, topic=topic, partition=0, offset=offset)
        assert addresses(rows) == [message.physical_offset]
        assert dumped(tmp_path, topic=topic, partition=0, offset=offset + 1)[0] == []


# ---------------------------------------------------------------------- by address and id


def test_message_is_found_by_address_and_message_id(writer: StoreWriter) -> None:
    for message in writer.sent[::13]:
        rows, heard = dumped(writer.root, commit_log_offset=message.physical_offset)
        assert (
            addresses(rows) == [message.physical_offset]
            and rows[0]["found_by"] == "address"
            and not heard
        )
        again, _ = dumped(writer.root, message_id=rows[0]["message_id"])
        assert again == rows


def test_address_inside_or_outside_a_record_is_explained(writer: StoreWriter) -> None:
    message = writer.sent[50]
    rows, heard = dumped(writer.root, commit_log_offset=message.physical_offset + 17)
    assert addresses(rows) == [message.physical_offset] and heard.any("byte 17 of the record at")
    # within the padding at the file's end
    rows, heard = dumped(writer.root, commit_log_offset=3995)
    assert rows == [] and heard.any("no record at")
    rows, heard = dumped(writer.root, commit_log_offset=10**9)
    assert rows == [] and heard.any("no file")


def test_message_id_may_be_a_unique_key(writer: StoreWriter) -> None:
    rows, heard = dumped(writer.root, message_id=f"{77:032X}")
    assert addresses(rows) == [writer.sent[77].physical_offset] and heard.any(
        "searched for it as a unique key"
    )
    with pytest.raises(InvalidConfig):
        dumped(writer.root, message_id="xyz")
    assert dumped(writer.root, message_id="F" * 32)[0] == []


# ---------------------------------------------------------------------- by key


def of_key(writer: StoreWriter, topic: str | None, key: str) -> list[int]:
    return [
        message.physical_offset
        for message in writer.sent
        if topic in (None, message.topic)
        and key in (message.keys or "").split(" ")
        and message.sys_flag & record.TRANSACTION_MASK != record.TRANSACTION_ROLLBACK
    ]


@pytest.mark.parametrize("topic", ["orders", "invoices", None])
@pytest.mark.parametrize("key", [*(f"key-{n}" for n in range(11)), "extra"])
def test_key_is_found_through_the_index_files(
    writer: StoreWriter, topic: str | None, key: str
) -> None:
    rows, heard = dumped(writer.root, topic=topic, key=key.encode())
    assert addresses(rows) == of_key(writer, topic, key)
    assert {row["found_by"] for row in rows} <= {"index file"} and not heard


def test_key_is_found_with_missing_index_files(writer: StoreWriter) -> None:
    rows, _ = dumped(writer.root, topic="orders", key=b"key-3")
    files = sorted((writer.root / "index").iterdir())
    for lost in files:
        kept = lost.read_bytes()
        lost.unlink()
        again, heard = dumped(writer.root, topic="orders", key=b"key-3")
        assert set(addresses(again)) == set(addresses(rows))
        lost.write_bytes(kept)
    shutil.rmtree(writer.root / "index")
    again, heard = dumped(writer.root, topic="orders", key=b"key-3")
    assert set(addresses(rows)) <= set(addresses(again)) and heard.any("rebuilt in memory")
    assert {row["found_by"] for row in again} == {"commit log (no index)"}


@pytest.mark.parametrize("at", [40, 44, 60, 68 + 20, 68 + 24 + 7, 68 + 36 + 3, 32, 36, 39])
def test_wrong_index_file_does_not_change_the_result(writer: StoreWriter, at: int) -> None:
    wanted = {key: of_key(writer, "orders", key) for key in ("key-1", "key-2", "key-8")}
    path = sorted((writer.root / "index").iterdir())[0]
    whole = path.read_bytes()
    for bit in (0, 3):
        data = bytearray(whole)
        data[at] ^= 1 << bit
        path.write_bytes(bytes(data))
        for key, where in wanted.items():
            rows, _ = dumped(writer.root, topic="orders", key=key.encode())
            found = [row["physical_offset"] for row in rows if row["transaction"] is None]
            assert found == where, (at, bit, key)


def test_missing_key_is_reported(writer: StoreWriter) -> None:
    rows, heard = dumped(writer.root, topic="orders", key=b"nobody")
    assert rows == [] and heard.any("no message matches")


def test_message_is_found_by_its_unique_key(writer: StoreWriter) -> None:
    rows, heard = dumped(writer.root, unique_key=f"{31:032X}")
    assert addresses(rows) == [writer.sent[31].physical_offset] and not heard
    assert dumped(writer.root, unique_key="key-1")[0] == []


# ---------------------------------------------------------------------- by time


@pytest.mark.parametrize(
    "wanted", [0, BORN, BORN + 1, BORN + 2, BORN + 555, BORN + 1191, BORN + 1192, 1 << 50]
)
def test_dump_starts_at_a_time(writer: StoreWriter, wanted: int) -> None:
    rows, heard = dumped(writer.root, time_ms=wanted)
    assert addresses(rows) == [m.physical_offset for m in writer.sent if m.store_time_ms >= wanted]
    rows, heard = dumped(writer.root, time_ms=wanted, topic="orders", partition=1)
    in_queue = [
        m.physical_offset for m in sent_to(writer, "orders", 1) if m.store_time_ms >= wanted
    ]
    assert addresses(rows) == in_queue and not heard
    shutil.rmtree(writer.root / "consumequeue")
    rows, heard = dumped(writer.root, time_ms=wanted, topic="orders", partition=1)
    assert addresses(rows) == in_queue and heard


def test_dump_prints_messages_by_a_format(
    writer: StoreWriter, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    words = r"%t %p %o %T %k %s %S\n"
    assert run(["dump", str(writer.root), "--topic", "orders", "--queue", "1", "-f", words]) == 0
    expected = b""
    for row in dumped(writer.root, topic="orders", partition=1)[0]:
        body = base64.b64decode(row["body"])
        said = f"orders 1 {row['queue_offset']} {row['store_timestamp']} "
        said += row["properties"].get("KEYS", "")
        expected += said.encode() + b" %b %d\n" % (body, len(body))
    assert expected.count(b"\n") > 5 and capfdbinary.readouterr().out == expected


def test_last_yields_the_last_messages_of_each_queue(writer: StoreWriter) -> None:
    last = [
        each.physical_offset for queue in (0, 1) for each in sent_to(writer, "orders", queue)[-2:]
    ]
    assert addresses(dumped(writer.root, topic="orders", last=2)[0]) == last
    found = dumped(writer.root, last=2)[0]
    assert sorted(addresses([row for row in found if row["topic"] == "orders"])) == sorted(last)
    queues = {(message.topic, message.queue_id) for message in writer.sent}
    assert len(queues) > 2 and {(row["topic"], row["queue_id"]) for row in found} == queues
    with pytest.raises(InvalidConfig):
        dumped(writer.root, index=True, last=2)


# ---------------------------------------------------------------------- compaction logs


def test_compaction_log_is_dumped(writer: StoreWriter) -> None:
    writer.write_compaction("orders", 0)
    wanted = [message.queue_offset for message in sent_to(writer, "orders", 0)]
    rows, heard = dumped(writer.root, topic="orders", compacted=True)
    assert [row["queue_offset"] for row in rows] == wanted and not heard
    assert {row["found_by"] for row in rows} == {"compaction index"} and {
        row["message_id"] for row in rows
    } == {None}
    assert (
        dumped(writer.root / "compaction")[0]
        == dumped(writer.root / "compaction" / "compactionLog" / "orders")[0]
    )
    assert dumped(writer.root / "compaction")[0] == rows
    files = sorted((writer.root / "compaction" / "compactionLog" / "orders" / "0").iterdir())
    assert [row for file in files for row in dumped(file)[0]] == rows
    assert [
        row["queue_offset"] for row in dumped(writer.root, compacted=True, offset=25)[0]
    ] == wanted[25:]
    assert [
        row["queue_offset"] for row in dumped(writer.root, compacted=True, key=b"key-4")[0]
    ] == [
        m.queue_offset
        for m in sent_to(writer, "orders", 0)
        if m.properties["KEYS"].split(" ")[0] == "key-4"
    ]
    assert len(dumped(writer.root, compacted=True, index=True)[0]) == len(rows)


def test_wrong_or_missing_compaction_index_is_rebuilt_in_memory(writer: StoreWriter) -> None:
    writer.write_compaction("orders", 0)
    rows, _ = dumped(writer.root, compacted=True)
    path = sorted((writer.root / "compaction" / "compactionCq" / "orders" / "0").iterdir())[0]
    data = bytearray(path.read_bytes())
    data[46 * 3 + 7] ^= 1
    path.write_bytes(bytes(data))
    again, heard = dumped(writer.root, compacted=True)
    assert addresses(again) == addresses(rows) and heard.any(
        "rebuilt in memory from the compaction log"
    )
    path.unlink()
    assert addresses(dumped(writer.root, compacted=True)[0]) == addresses(rows)


def test_expired_message_is_found_in_the_compaction_log(tmp_path: Path) -> None:
    writer = shop(tmp_path)
    writer.write(first_file=4)
    writer.write_compaction("orders", 0)
    rows, heard = dumped(tmp_path, topic="orders", partition=0)
    assert [row["queue_offset"] for row in rows] == [
        m.queue_offset for m in sent_to(writer, "orders", 0)
    ]
    assert heard.any("Lastwrite reads them from the compaction log")
    assert {row["found_by"] for row in rows} == {"compaction index", "consume queue"}
    shutil.rmtree(tmp_path / "commitlog")
    shutil.rmtree(tmp_path / "consumequeue")
    shutil.rmtree(tmp_path / "index")
    (tmp_path / "checkpoint").unlink()
    rows, heard = dumped(tmp_path)
    assert [row["queue_offset"] for row in rows] == [
        m.queue_offset for m in sent_to(writer, "orders", 0)
    ]


# ---------------------------------------------------------------------- indexes and small files


def test_index_option_yields_index_entries(writer: StoreWriter) -> None:
    rows, _ = dumped(writer.root, index=True)
    units = [row for row in rows if row["index"] == "consumequeue"]
    assert len(units) == sum(
        len(sent_to(writer, topic, queue)) for topic in writer.topics for queue in (0, 1)
    )
    keys = [row for row in rows if row["index"] == "index"]
    assert {row["physical_offset"] for row in keys} <= {
        message.physical_offset for message in writer.sent
    }
    assert all(row["previous"] < row["entry"] for row in keys)
    one = dumped(writer.root / "consumequeue" / "orders" / "1" / f"{200:020}")[0]
    assert [row["queue_offset"] for row in one] == list(range(10, 20))
    assert len(dumped(writer.root / "index")[0]) == len(keys)


def test_small_files_are_dumped(writer: StoreWriter) -> None:
    (writer.root / "abort").write_text("4711")
    writer.write_compaction("orders", 0, position=17)
    rows = {
        name: dumped(writer.root / name)[0]
        for name in (
            "checkpoint",
            "lock",
            "abort",
            "config/topics.json",
            "config/consumerOffset.json",
            "compaction/position-checkpoint",
        )
    }
    assert (
        rows["checkpoint"][0]["consume_queue_offset"] == 99
        and rows["checkpoint"][0]["commit_log_timestamp"] == BORN
    )
    assert rows["lock"] == [{"lock": "lock"}] and rows["abort"] == [
        {"abort": True, "process": 4711}
    ]
    assert {row["topic"] for row in rows["config/topics.json"]} == {"orders", "invoices"}
    assert rows["config/consumerOffset.json"] == [
        {"topic": "orders", "group": "readers", "queue_id": queue, "offset": offset}
        for queue, offset in ((0, 3), (1, 5))
    ]
    assert rows["compaction/position-checkpoint"] == [
        {"topic": "orders", "queue_id": 0, "position": 17}
    ]
    assert (
        dumped(writer.root / "config")[0]
        == rows["config/topics.json"] + rows["config/consumerOffset.json"]
    )
    (writer.root / "config" / "topics.json").write_text("{")
    assert damaged(writer.root / "config" / "topics.json")[0] == []


# -------------------------------------------------------------------- several folders, ends, damage


def test_several_commit_log_folders_are_dumped(tmp_path: Path) -> None:
    writer = shop(tmp_path / "store")
    writer.write()
    rows, _ = dumped(writer.root)
    shutil.rmtree(writer.root / "commitlog")
    writer.write_commit_log(folders=("disk1", "disk2"))
    config = {
        "storePathCommitLog": f"{writer.root}/disk1",
        "readOnlyCommitLogStorePaths": f"{writer.root}/disk2",
    }
    again, _ = dumped(writer.root, config=config)
    assert addresses(again) == addresses(rows)
    both = {"storePathCommitLog": f"{writer.root}/disk1,{writer.root}/disk2"}
    assert addresses(dumped(writer.root, config=both, topic="orders", key=b"key-1")[0]) == of_key(
        writer, "orders", "key-1"
    )
    alone, error, _ = damaged(writer.root / "disk1")  # one of the two folders has half of the files
    assert 0 < len(alone) < len(rows) and "the file is missing" in error.problem


def test_preallocated_file_and_stale_bytes_are_ignored(writer: StoreWriter) -> None:
    rows, _ = dumped(writer.root)
    (writer.root / "commitlog" / f"{7 * 4000:020}").write_bytes(bytes(4000))
    assert dumped(writer.root) == (rows, [])
    last = writer.root / "commitlog" / f"{6 * 4000:020}"
    data = bytearray(last.read_bytes())
    end = data.rstrip(b"\0").__len__()
    stale = encode_message(writer.sent[3])
    data[end : end + len(stale)] = stale
    last.write_bytes(bytes(data))
    again, heard = dumped(writer.root)
    assert again == rows and heard.any("stale bytes")


@pytest.mark.parametrize("cut", [1, 8, 40, 100])
def test_torn_tail_is_reported(writer: StoreWriter, cut: int) -> None:
    rows, _ = dumped(writer.root)
    last = writer.root / "commitlog" / f"{6 * 4000:020}"
    data = bytearray(last.read_bytes())
    end = rows[-1]["position"] + rows[-1]["size"]
    data[end - cut : end] = bytes(cut)
    last.write_bytes(bytes(data))
    if cut == 1:  # the last byte of the properties, which no checksum covers
        assert addresses(dumped(writer.root)[0]) == addresses(rows)
        return
    again, heard = dumped(writer.root)
    assert addresses(again) in (addresses(rows)[:-1], addresses(rows))
    assert len(again) == len(rows) or heard.any("the last record is incomplete")


def test_records_after_damage_are_dumped(writer: StoreWriter) -> None:
    rows, _ = dumped(writer.root)
    path = writer.root / "commitlog" / f"{4000:020}"
    inside = [row for row in rows if row["file"] == str(path)]
    data = bytearray(path.read_bytes())
    data[inside[4]["position"] + 5] ^= 0xFF  # its magic
    data[inside[9]["position"] + 2] ^= 0x40  # its size
    path.write_bytes(bytes(data))
    again, error, _ = damaged(writer.root)
    lost = {inside[4]["physical_offset"], inside[9]["physical_offset"]}
    assert addresses(again) == [at for at in addresses(rows) if at not in lost]
    assert (
        error.path == str(path) and error.at == inside[4]["position"] and "1 more" in error.problem
    )


def test_body_with_a_wrong_checksum_is_shown_and_named(writer: StoreWriter) -> None:
    rows, _ = dumped(writer.root)
    bad = rows[3]
    path = Path(bad["file"])
    data = bytearray(path.read_bytes())
    data[bad["position"] + 90] ^= 0x20
    path.write_bytes(bytes(data))
    again, error, _ = damaged(writer.root)
    assert (
        len(again) == len(rows)
        and "checksum" in again[3]["problem"]
        and "checksum" in error.problem
    )
    assert (
        damaged(writer.root, commit_log_offset=bad["physical_offset"])[0][0]["problem"]
        == again[3]["problem"]
    )


def test_any_wrong_byte_of_a_record_hides_only_that_record(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path)
    for n in range(4):
        writer.send("t", b"body %d" % n, {"KEYS": f"k{n}"})
    writer.write()
    path = tmp_path / "commitlog" / f"{0:020}"
    whole = path.read_bytes()
    start, end = writer.sent[1].physical_offset, writer.sent[2].physical_offset
    for at in range(start, end):
        for value in (0x00, 0x7F, 0x80, 0xFF):
            data = bytearray(whole)
            data[at] = value
            path.write_bytes(bytes(data))
            rows = []
            try:
                for row in lastwrite.dump(str(tmp_path)):
                    rows.append(row)
            except CorruptLog:
                pass
            kept = [row["physical_offset"] for row in rows if row["physical_offset"] != start]
            assert kept[0] == 0 and kept[-1] == writer.sent[3].physical_offset, (at, value)


def test_missing_middle_file_is_named(writer: StoreWriter) -> None:
    rows, _ = dumped(writer.root)
    (writer.root / "commitlog" / f"{8000:020}").unlink()
    again, error, _ = damaged(writer.root)
    assert addresses(again) == [at for at in addresses(rows) if not 8000 <= at < 12000]
    assert error.path == str(writer.root / "commitlog" / f"{8000:020}")
    assert "the file is missing, and the log continues at 12000" in error.problem


# ---------------------------------------------------------------------- wrong use, and who holds it


def test_incompatible_options_are_refused(writer: StoreWriter, tmp_path: Path) -> None:
    for options in (
        {"key": b"a", "commit_log_offset": 1},
        {"index": True, "key": b"a"},
        {"offset": 1, "time_ms": 5},
        {"index": True, "batches": True},
    ):
        with pytest.raises(InvalidConfig):
            dumped(writer.root, **options)
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotALog):
        dumped(tmp_path / "empty", system="rocketmq")
    with pytest.raises(NotALog):
        dumped(tmp_path / "nowhere", system="rocketmq")
    with pytest.raises(InvalidConfig):
        dumped(tmp_path / "empty", system="rabbit")


def test_locked_store_is_refused(writer: StoreWriter) -> None:
    with lock.hold(str(writer.root), [TopicPartition("orders", 0)]), pytest.raises(LogHeld):
        dumped(writer.root)


# ---------------------------------------------------------------------- at the command line


def test_dump_command_prints_json_and_text(
    writer: StoreWriter, capfd: pytest.CaptureFixture[str]
) -> None:
    status = run(
        [
            "dump",
            str(writer.root),
            "--topic",
            "orders",
            "--queue",
            "1",
            "--offset",
            "3",
            "--limit",
            "1",
            "--json",
        ]
    )
    out = capfd.readouterr()
    row = json.loads(out.out)
    assert status == 0 and row["queue_offset"] == 3 and list(row) == FIELDS
    shutil.rmtree(writer.root / "consumequeue")
    assert (
        run(
            [
                "dump",
                str(writer.root),
                "--topic",
                "orders",
                "--queue",
                "1",
                "--offset",
                "3",
                "--limit",
                "1",
            ]
        )
        == 0
    )
    out = capfd.readouterr()
    assert out.out.startswith('orders-1 @3  2023-11-14T22:13:20.111Z  "key-0" = "value 11')
    assert "commit log (no index)" in out.out and "rebuilt in memory" in out.err
    assert run(["dump", str(writer.root), "--index", "--limit", "1"]) == 0
    assert capfd.readouterr().out.startswith("index index  entry 1  slot")
    assert run(["dump", str(writer.root / "checkpoint")]) == 0
    assert "consume_queue_offset 99" in capfd.readouterr().out
    assert run(["dump", "--help"]) == 0
    assert "--commit-log-offset" in capfd.readouterr().out


def test_wrong_blank_record_is_named(writer: StoreWriter) -> None:
    path = writer.root / "commitlog" / f"{0:020}"
    data = bytearray(path.read_bytes())
    at = data.index(encode_blank(4000 - data.index(bytes.fromhex("cbd43194")) + 4))
    data[at : at + 4] = (77).to_bytes(4, "big")
    path.write_bytes(bytes(data))
    rows, error, _ = damaged(writer.root)
    assert (
        len(rows) == len(writer.sent) and error.at == at and "a size of 77 bytes" in error.problem
    )


def test_topics_file_gives_the_number_of_queues(writer: StoreWriter) -> None:
    assert (
        sides.decode_topics((writer.root / "config" / "topics.json").read_bytes())[
            "orders"
        ].write_queues
        == 2
    )


def test_record_checksum_is_verified(tmp_path: Path) -> None:
    message = record.make_message("t", b"body", {"KEYS": "k"}, flag=7)
    data = encode_message(message, record_crc=True)
    folder = tmp_path / "commitlog"
    folder.mkdir()
    path = folder / f"{0:020}"
    path.write_bytes(data.ljust(1000, b"\0"))
    (row,) = dumped(tmp_path)[0]
    assert row["problem"] is None and len(row["properties"]["__CRC32#"]) == 10
    assert lastwrite.inspect(str(tmp_path)).exit_status == 0
    # Not covered by the body's checksum.
    path.write_bytes(data.replace(b"KEYS\x01k", b"KEYS\x01x").ljust(1000, b"\0"))
    rows, error, _ = damaged(tmp_path)
    assert rows[0]["problem"] == "the record has a wrong checksum" and error.at == 0
    assert lastwrite.inspect(str(tmp_path)).exit_status == 3


GOLDEN = Path(__file__).with_name("golden")


def test_output_equals_the_golden_files(
    writer: StoreWriter, capfd: pytest.CaptureFixture[str]
) -> None:
    """Programs parse this output, so a change of any byte breaks them."""
    writer.write_compaction("orders", 0, position=20)
    for name, arguments in {
        "dump.jsonl": ["dump", "--limit", "9", "--json"],
        "dump.txt": ["dump", "--topic", "orders", "--limit", "30"],
        "dump-index.jsonl": ["dump", "--index", "--topic", "orders", "--queue", "0", "--json"],
        "inspect.json": ["inspect", "--now", str(BORN), "--json"],
    }.items():
        assert run([arguments[0], str(writer.root), *arguments[1:]]) == 0
        said = capfd.readouterr().out.replace(str(writer.root), "STORE")
        said = re.sub(r'"seconds": [0-9.]+', '"seconds": 0', said)
        path = GOLDEN / f"rocketmq-{name}"
        if os.environ.get("LASTWRITE_GOLDEN") == "write":
            path.write_text(said, encoding="utf-8")
        assert said == path.read_text(encoding="utf-8"), name


def test_missing_queue_or_topic_is_named(writer: StoreWriter) -> None:
    for options, said in (
        ({"topic": "orders", "partition": 9}, "orders has no queue 9 — there are: 0-"),
        (
            {"topic": "orders", "partition": 9, "index": True},
            "orders has no queue 9 — there are: 0",
        ),
        ({"topic": "ordrs"}, "no topic 'ordrs' — did you mean orders?"),
        ({"topic": "ordrs", "key": b"k"}, "no topic 'ordrs' — did you mean orders?"),
    ):
        with pytest.raises(NotALog) as caught:
            dumped(writer.root, **options)
        assert said in str(caught.value)


def test_small_files_of_a_broker_are_decoded(tmp_path: Path) -> None:
    """Names may be unquoted numbers, and light queues have one offset each."""
    writer = StoreWriter(tmp_path)
    writer.send("parent", b"x")
    writer.write()
    config = tmp_path / "config"
    config.mkdir(exist_ok=True)
    (config / "delayOffset.json").write_text(
        '{"dataVersion":{"counter":0},"offsetTable":{3:2,18:7}}'
    )
    (config / "lmqConsumerOffset.json").write_text(
        '{"lmqOffsetTable":{"%LMQ%a@%LMQ%c":5},"offsetTable":{"parent@g":{0:1}},"pullOffsetTable":{}}'
    )
    (config / "timercheck").write_bytes(
        struct.pack(">7q", 1000, 312, 6, 5, 0, 0, 0).ljust(4096, b"\0")
    )
    (config / "timermetrics").write_text('{"timingCount":{"timed":{"count":3}}}')
    assert dumped(config / "delayOffset.json")[0] == [
        {"level": 3, "offset": 2},
        {"level": 18, "offset": 7},
    ]
    assert dumped(config / "lmqConsumerOffset.json")[0] == [
        {"topic": "parent", "group": "g", "queue_id": 0, "offset": 1},
        {"topic": "%LMQ%a", "group": "%LMQ%c", "queue_id": 0, "offset": 5},
    ]
    (row,) = dumped(config / "timercheck")[0]
    assert (row["read_timestamp"], row["queue_offset"], row["master_queue_offset"]) == (1000, 6, 5)
    (row,) = dumped(config / "timermetrics")[0]
    assert row["content"] == {"timingCount": {"timed": {"count": 3}}}
    report = lastwrite.inspect(str(tmp_path))
    assert not report.problems


@pytest.mark.parametrize("name", ["timerwheel", "timerlog", "timerlog/00000000000000000000", "odd"])
def test_unsupported_file_of_a_store_is_named(tmp_path: Path, name: str) -> None:
    writer = StoreWriter(tmp_path)
    writer.send("parent", b"x")
    writer.write()
    (tmp_path / "timerlog").mkdir()
    for file in ("timerwheel", "timerlog/00000000000000000000", "odd"):
        (tmp_path / file).write_bytes(b"\xff" * 100)
    for command in (lambda path: list(lastwrite.dump(path)), lastwrite.inspect):
        with pytest.raises(
            NotALog, match="Lastwrite does not read this file or folder of a RocketMQ store"
        ):
            command(str(tmp_path / name))


def test_damaged_json_is_named_by_its_byte(tmp_path: Path) -> None:
    """Unquoted names and multi-byte characters do not shift the reported position."""
    path = tmp_path / "store" / "config" / "delayOffset.json"
    path.parent.mkdir(parents=True)
    (path.parent / "topics.json").write_text("{}")
    text = '{"ö":1,"offsetTable":{3:2,18:7,4:x}}'
    path.write_text(text)
    with pytest.raises(CorruptLog) as raised:
        list(lastwrite.dump(str(path)))
    assert raised.value.at == text.encode().index(b"x")
    assert "delayOffset.json" in str(raised.value.path) and ".bak" in str(raised.value.remedy)
