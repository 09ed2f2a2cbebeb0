"""Tests of ``read`` and ``latest`` on RocketMQ in special cases.

They cover refusals, damage, files that move during a read, and keys in several queues.
"""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest

import lastwrite
from lastwrite.cli import run
from lastwrite.demo.topic_writer import TopicWriter
from lastwrite.errors import CorruptLog, InvalidConfig, NotALog, OutOfMemoryBudget
from lastwrite.model.log import TopicPartition
from lastwrite.rocketmq.format.record import (
    INNER_BATCH,
    NEEDS_UNWRAP,
    encode_inner,
    encode_message,
    make_message,
)
from lastwrite.rocketmq.format.units import BATCH_UNIT
from lastwrite.rocketmq.rules.pull import PullStatus
from lastwrite.rocketmq.store.compacted import CompactedQueue
from tests.support.rocketmq.queues import (
    INDEX_BYTES,
    LOG_BYTES,
    TIME_MS,
    Sent,
    folded,
    paths_of,
    write_queue,
)

CORPUS = Path(__file__).parents[1] / "corpus" / "kafka-4.4.0" / "stopped"
FILES = [[Sent(2, "a", b"old"), Sent(3, "b", b"2")], [Sent(7, "a", b"1"), Sent(9, "c", b"")]]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    write_queue(tmp_path, "prices", 0, FILES)
    config = tmp_path / "config"
    config.mkdir()
    attributes = {"cleanup.policy": "COMPACTION"}
    topics: dict[str, Any] = {
        name: {
            "topicName": name,
            "readQueueNums": 2,
            "writeQueueNums": 2,
            "perm": 6,
            "attributes": kind,
        }
        for name, kind in (("prices", attributes), ("fresh", attributes), ("plain", {}))
    }
    (config / "topics.json").write_text(json.dumps({"topicConfigTable": topics}))
    return tmp_path


# ---------------------------------------------------------------------- read


def test_read_command_prints_json_and_text(store: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert (
        run(["read", str(store), "--topic", "prices", "--queue", "0", "--offset", "3", "--json"])
        == 0
    )
    *rows, end = map(json.loads, capfd.readouterr().out.splitlines())
    assert [(row["queue_offset"], row["topic"], row["queue_id"]) for row in rows] == [
        (3, "prices", 0),
        (7, "prices", 0),
        (9, "prices", 0),
    ]
    assert [base64.b64decode(row["body"]) for row in rows] == [b"2", b"1", b""]
    assert (
        end["status"],
        end["code"],
        end["next_offset"],
        end["min_offset"],
        end["max_offset"],
        end["messages"],
    ) == (
        "OFFSET_OVERFLOW_ONE",
        19,
        10,
        2,
        10,
        3,
    )
    assert run(["read", str(store), "--topic", "prices", "--queue", "0", "--limit", "1"]) == 0
    said = capfd.readouterr()
    assert '"a" = "old"' in said.out and "FOUND: 1 message, next offset 3" in said.err


def test_rows_have_the_fields_of_dump(store: Path) -> None:
    row = next(lastwrite.read(str(store), topic="prices", queue=0))
    assert {
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
    } <= set(row)


def test_one_pull_reads_one_response(store: Path) -> None:
    reading = lastwrite.read(str(store), topic="prices", queue=0, offset=0, one_pull=True)
    # a pull returns messages of one file only
    assert [row["queue_offset"] for row in reading] == [2, 3]
    assert (reading.status, reading.next_offset, reading.code) == (PullStatus.FOUND, 4, 0)


def test_queue_folder_selects_topic_and_queue(store: Path) -> None:
    folder = store / "compaction" / "compactionLog" / "prices" / "0"
    assert [row["queue_offset"] for row in lastwrite.read(str(folder))] == [2, 3, 7, 9]


def test_queue_without_messages_gives_the_brokers_status(store: Path) -> None:
    reading = lastwrite.read(str(store), topic="fresh", queue=1, offset=5)
    assert not list(reading)
    assert (reading.status, reading.next_offset, reading.code) == (
        PullStatus.NO_MESSAGE_IN_QUEUE,
        0,
        21,
    )
    reading = lastwrite.read(str(store), topic="prices", queue=7)
    assert not list(reading)
    assert (reading.status, reading.next_offset, reading.code) == (
        PullStatus.NO_MATCHED_LOGIC_QUEUE,
        0,
        19,
    )


def test_invalid_arguments_and_paths_are_refused(store: Path, tmp_path: Path) -> None:
    with pytest.raises(NotALog, match="no topic nothing"):
        lastwrite.read(str(store), topic="nothing", queue=0)
    with pytest.raises(InvalidConfig, match="not compacted"):
        lastwrite.read(str(store), topic="plain", queue=0)
    with pytest.raises(InvalidConfig, match="no topic"):
        lastwrite.read(str(store))
    with pytest.raises(InvalidConfig, match="-1 is not a queue offset"):
        lastwrite.read(str(store), topic="prices", offset=-1)
    with pytest.raises(NotALog):
        lastwrite.read(str(store), topic="prices", system="kafka")
    write_queue(store, "prices", 1, FILES)
    with pytest.raises(InvalidConfig, match="2 queues"):
        lastwrite.read(str(store), topic="prices")
    with pytest.raises(NotALog):
        lastwrite.read(str(tmp_path / "nowhere"), topic="prices")


def test_emptied_file_pair_ends_a_consumers_read(store: Path) -> None:
    """A broker's consumer stops there. A table reads the messages after it nevertheless."""
    write_queue(store, "prices", 0, [FILES[0], [], FILES[1]])
    reading = lastwrite.read(str(store), topic="prices")
    assert [row["queue_offset"] for row in reading] == [2, 3]
    assert (reading.status, reading.next_offset) == (PullStatus.OFFSET_FOUND_NULL, 0)
    assert lastwrite.latest(str(store), topic="prices") == {"a": b"1", "b": b"2"}


def test_undecompressable_body_is_returned_with_its_problem(store: Path) -> None:
    log, _ = paths_of(store, "prices", 0, 0)
    data = bytearray(log.read_bytes())
    data[39] |= 1  # sysFlag: compressed
    log.write_bytes(data)
    reading = lastwrite.read(str(store), topic="prices")
    rows = []
    with pytest.raises(CorruptLog):
        for row in reading:
            rows.append(row)
    assert [row["body"] is None for row in rows] == [True, False, False, False]
    assert "zlib" in rows[0]["problem"]


def test_body_with_a_wrong_checksum_is_returned_with_its_problem(store: Path) -> None:
    log, _ = paths_of(store, "prices", 0, 1)
    data = bytearray(log.read_bytes())
    data[88] ^= 1
    log.write_bytes(data)
    reading = lastwrite.read(str(store), topic="prices")
    rows = []
    with pytest.raises(CorruptLog, match="the body has the checksum"):
        for row in reading:
            rows.append(row)
    assert [row["queue_offset"] for row in rows] == [2, 3, 7, 9] and rows[2]["problem"] is not None
    with pytest.raises(CorruptLog, match="byte 8: the body has a wrong checksum"):
        lastwrite.latest(str(store), topic="prices")


# ---------------------------------------------------------------------- files that move


def test_files_may_be_replaced_during_a_read(tmp_path: Path) -> None:
    many = [[Sent(100 * n + m, f"k{m}", b"%d" % n) for m in range(5)] for n in range(4)]
    write_queue(tmp_path, "t", 0, many)
    queue = CompactedQueue(str(tmp_path), TopicPartition("t", 0))
    found: list[int] = []
    for block in queue.blocks():
        found += block.table["queue_offset"].tolist()
        # a compaction by the broker merges the first three files and removes the others
        if len(found) == 5:
            for number in (1, 2):
                for path in paths_of(tmp_path, "t", 0, number):
                    path.unlink()
            write_queue(tmp_path, "t", 0, [[many[1][4], *many[2]]])
    assert found == [
        *(sent.offset for sent in many[0]),
        104,
        *(sent.offset for file in many[2:] for sent in file),
    ]


def test_exchanged_tree_is_read_on(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    write_queue(old, "t", 0, [[Sent(n, "k", b"old") for n in range(5)], [Sent(9, "k", b"last")]])
    write_queue(new, "t", 0, [[Sent(4, "k", b"new")], [Sent(9, "k", b"last")]])
    queue = CompactedQueue(str(old), TopicPartition("t", 0))
    assert queue.range_of(1) is not None
    os.rename(old / "compaction", tmp_path / "aside")
    os.rename(new / "compaction", old / "compaction")
    assert [int(o) for block in queue.blocks(2) for o in block.table["queue_offset"]] == [4, 9]
    assert not queue.notes


# ---------------------------------------------------------------------- latest


def test_later_message_of_two_queues_counts(tmp_path: Path) -> None:
    queues = [
        [
            Sent(0, "a", b"0", time_ms=TIME_MS + 5),
            Sent(1, "b", b"0", time_ms=TIME_MS),
            Sent(2, "c", b"0", time_ms=TIME_MS),
        ],
        [
            Sent(0, "a", b"1", time_ms=TIME_MS),
            Sent(1, "b", b"", time_ms=TIME_MS + 1),
            Sent(2, "c", b"1", time_ms=TIME_MS),
        ],
    ]
    for number, sents in enumerate(queues):
        write_queue(tmp_path, "t", number, [sents])
    assert lastwrite.latest(str(tmp_path), topic="t") == {"a": b"0", "c": b"1"} == folded(queues)


def test_table_beyond_its_memory_limit_is_refused(store: Path) -> None:
    with pytest.raises(OutOfMemoryBudget, match="use table()"):
        lastwrite.latest(str(store), topic="prices", limit_bytes=300)
    assert lastwrite.latest(str(store), topic="prices", limit_bytes=1000) == {"a": b"1", "b": b"2"}


def test_latest_needs_exactly_one_topic(store: Path) -> None:
    assert lastwrite.latest(str(store)) == {"a": b"1", "b": b"2"}  # the store has a single topic
    queue = store / "compaction" / "compactionLog" / "prices" / "0"  # and that topic a single queue
    assert lastwrite.latest(str(queue)) == {"a": b"1", "b": b"2"}
    with pytest.raises(InvalidConfig, match="topics, and none was chosen"):
        lastwrite.latest(str(CORPUS))
    assert lastwrite.latest(str(store / "compaction" / "compactionLog" / "prices")) == {
        "a": b"1",
        "b": b"2",
    }
    assert lastwrite.latest(str(store), topic="fresh") == {}
    assert lastwrite.latest(str(store), topic="fresh").end_offsets == {}
    assert lastwrite.latest(str(store), topic="prices").end_offsets == {0: 10}


def test_latest_refuses_one_partition_of_several(tmp_path: Path) -> None:
    for number in range(2):
        with TopicWriter(str(tmp_path), TopicPartition("orders", number)) as writer:
            writer.append(b"%d" % number, b"value", 1_700_000_000_000)
    assert lastwrite.latest(str(tmp_path), topic="orders") == {b"0": b"value", b"1": b"value"}
    with pytest.raises(InvalidConfig, match="needs all partitions of a topic"):
        lastwrite.latest(str(tmp_path / "orders-0"))


def test_inner_batch_is_split(tmp_path: Path) -> None:
    members = [
        (0, b"1", b"KEYS\x01a\x02"),
        (0, b"2", b"KEYS\x01b\x02"),
        (0, b"3", b"KEYS\x01a\x02"),
    ]
    data = encode_message(
        make_message(
            "t",
            encode_inner(members),
            {"INNER_NUM": "3", "INNER_BASE": "4", "KEYS": "a"},
            queue_offset=4,
            sys_flag=NEEDS_UNWRAP | INNER_BATCH,
        )
    )
    log, index = paths_of(tmp_path, "t", 0, 0)
    for path in (log, index):
        path.parent.mkdir(parents=True)
    log.write_bytes(data.ljust(LOG_BYTES, b"\0"))
    index.write_bytes(BATCH_UNIT.pack(0, len(data), 0, 0, 4, 1, -1, 0).ljust(INDEX_BYTES, b"\0"))
    assert lastwrite.latest(str(tmp_path), topic="t") == {"a": b"3", "b": b"2"}


@pytest.mark.parametrize(
    "topic", ["client-zstd", "transactional", "idempotent", "broker-gzip", "keyless", "empty"]
)
def test_latest_of_a_kafka_topic_equals_a_model(topic: str) -> None:
    rows = list(lastwrite.dump(str(CORPUS), topic=topic))
    model: dict[bytes, bytes | None] = {}
    open_rows: dict[int, list[dict[str, Any]]] = {}

    def put(row: dict[str, Any]) -> None:
        if row["key"] is not None:
            value = row["value"]
            model[base64.b64decode(row["key"])] = None if value is None else base64.b64decode(value)

    committed: list[dict[str, Any]] = []
    for row in rows:
        if row["control"] is not None:
            ended = open_rows.pop(row["producer_id"], [])
            committed += ended if row["control"] == "commit" else []
        elif row["transactional"]:
            open_rows.setdefault(row["producer_id"], []).append(row)
        else:
            committed.append(row)
    for row in sorted(committed, key=lambda row: int(row["offset"])):
        put(row)
    expected = {key: value for key, value in model.items() if value is not None}
    assert lastwrite.latest(str(CORPUS), topic=topic) == expected
    assert expected or topic in ("keyless", "empty")
