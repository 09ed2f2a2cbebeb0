"""Files as Arrow record batches: what a task of ``latest(spark=...)`` makes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from lastwrite.errors import CommitConflict, CorruptLog
from lastwrite.kafka.store import log_dir as kafka_store
from lastwrite.kafka.store import partitions
from lastwrite.model.log import TopicPartition
from lastwrite.rocketmq.format.record import encode_message, make_message
from lastwrite.rocketmq.format.units import BATCH_UNIT
from lastwrite.rocketmq.store.compacted import CompactedQueue
from tests.support.rocketmq.queues import (
    INDEX_BYTES,
    LOG_BYTES,
    TIME_MS,
    Sent,
    paths_of,
    write_queue,
)

pytest.importorskip("pyarrow", reason="pip install 'lastwrite[frames]'")

from lastwrite.kafka.look.columns import row_units
from lastwrite.kafka.look.table import COLUMNS, kafka_batches
from lastwrite.rocketmq.look.table import LogFile, rocketmq_batches

NAME = TopicPartition("t", 0)
CORPUS = Path(__file__).parents[1] / "corpus" / "kafka-4.4.0" / "stopped"


def file_of(root: Path, number: int = 0) -> LogFile:
    queue = CompactedQueue(str(root), NAME)
    return LogFile(str(root), NAME, queue.pairs[number].log, queue.end_offset)


def rows_of(root: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for batch in rocketmq_batches(file_of(root)):
        batch.validate(full=True)
        rows += batch.to_pylist()
    return rows


@pytest.mark.parametrize("is_compressed", [False, True])
def test_messages_of_a_file(tmp_path: Path, is_compressed: bool) -> None:
    sents = [
        Sent(3, "a", b"1", tag="red"),
        Sent(5, "ключ", b"", is_compressed),
        Sent(8, None, b"3"),
        Sent(9, "a", b"4"),
    ]
    write_queue(tmp_path, "t", 0, [sents])
    assert rows_of(tmp_path) == [
        {
            "topic": "t",
            "queue": 0,
            "offset": sent.offset,
            "key": sent.key,
            "value": sent.body or None,
            "born_timestamp": TIME_MS + sent.offset - 7,
            "store_timestamp": TIME_MS + sent.offset,
            "properties": [("KEYS", sent.key)] + ([("TAGS", sent.tag)] if sent.tag else []),
        }
        for sent in sents
        if sent.key is not None
    ]


def test_broken_text_is_what_it_is_to_java(tmp_path: Path) -> None:
    data = encode_message(make_message("t", b"1", {"KEYS": "ab"}, queue_offset=4)).replace(
        b"ab\x02", b"\xff\xfe\x02"
    )
    log, index = paths_of(tmp_path, "t", 0, 0)
    for path in (log, index):
        path.parent.mkdir(parents=True)
    log.write_bytes(data.ljust(LOG_BYTES, b"\0"))
    index.write_bytes(BATCH_UNIT.pack(0, len(data), 0, 0, 4, 1, -1, 0).ljust(INDEX_BYTES, b"\0"))
    (row,) = rows_of(tmp_path)
    assert (row["key"], row["properties"]) == ("\ufffd\ufffd", [("KEYS", "\ufffd\ufffd")])


def test_a_file_that_changed(tmp_path: Path) -> None:
    write_queue(tmp_path, "t", 0, [[Sent(3, "a", b"1")]])
    file = file_of(tmp_path)
    os.utime(paths_of(tmp_path, "t", 0, 0)[0], ns=(1, 1))
    with pytest.raises(CommitConflict):
        list(rocketmq_batches(file))


def test_a_damaged_message(tmp_path: Path) -> None:
    write_queue(tmp_path, "t", 0, [[Sent(3, "a", b"1"), Sent(4, "b", b"2")]])
    path = paths_of(tmp_path, "t", 0, 0)[0]
    data = bytearray(path.read_bytes())
    data[88] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptLog, match="offset 3"):
        list(rocketmq_batches(file_of(tmp_path)))


def test_records_of_a_kafka_segment() -> None:
    (folder,) = partitions.find_partitions(str(CORPUS), "client-zstd")
    log = kafka_store.read_partition(folder)
    rows = [
        row
        for unit in row_units(log, COLUMNS, is_committed=True)
        for b in kafka_batches(unit)
        for row in b.to_pylist()
    ]
    assert len(rows) == 60 and {row["topic"] for row in rows} == {"client-zstd"}
    assert [row["offset"] for row in rows] == sorted(row["offset"] for row in rows)
