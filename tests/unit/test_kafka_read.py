"""Tests of ``read`` on Kafka: what a consumer gets, by offset and time, in both isolation levels."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import lastwrite
from lastwrite.cli import run
from lastwrite.encoding.compression import Codec
from lastwrite.errors import CorruptLog, InvalidConfig, LogHeld, NotALog, OutOfMemoryBudget
from lastwrite.kafka.format.batch import ControlType, encode_batch
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.kafka.store import lock
from lastwrite.model.log import TopicPartition
from tests.support.kafka.logs import NAME, write_checkpoint, write_segment
from tests.support.kafka.model import ModelAborted
from tests.support.kafka.single import data_batch, marker_batch

CORPUS = Path(__file__).parents[1] / "corpus"
KAFKA = CORPUS / "kafka-4.4.0"
TOPICS = [
    (kind, folder.name[:-2])
    for kind in ("stopped", "cleaned")
    for folder in sorted((KAFKA / kind).glob("[!_]*-0"))
]
T = 1_700_000_000_000


def data(producer: int, *records: Record) -> bytes:
    return data_batch(records, producer)


def marker(producer: int, offset: int, kind: ControlType) -> bytes:
    return marker_batch(producer, offset, T + offset, kind)


def R(offset: int, key: str, time_ms: int | None = None) -> Record:
    return Record(offset, T + offset if time_ms is None else time_ms, key.encode(), b"v%d" % offset)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A log with transactions of three producers.

    Producer 1 aborts offsets 0 and 3 by marker 4, producer 2 commits 1 by marker 5, and producer 3
    has 7 open. Offsets 2, 6 and 8 are not transactional.
    """
    write_segment(
        tmp_path / NAME,
        0,
        [data(1, R(0, "a")), data(2, R(1, "b")), data(-1, R(2, "c")), data(1, R(3, "a"))],
    )
    write_segment(
        tmp_path / NAME,
        4,
        [
            marker(1, 4, ControlType.ABORT),
            marker(2, 5, ControlType.COMMIT),
            data(-1, R(6, "c", T - 50)),
            data(3, R(7, "d")),
            data(-1, R(8, "e")),
            data(3, R(9, "f")),
        ],
        aborted=[ModelAborted(1, 0, 4, 1)],
    )
    write_checkpoint(tmp_path, "replication-offset-checkpoint", {NAME: 9})
    return tmp_path


def offsets(root: Path, **arguments: Any) -> tuple[list[int], str, int]:
    reading = lastwrite.read(str(root), **arguments)
    found = [row["offset"] for row in reading]
    end = reading.summary()
    assert end["messages"] == len(found)
    return found, end["status"], end["next_offset"]


COMMITTED = {"isolation_level": "read_committed"}


def test_read_honours_the_isolation_level(root: Path) -> None:
    assert offsets(root) == ([0, 1, 2, 3, 6, 7, 8], "END_OF_PARTITION", 9)
    assert offsets(root, isolation_level="read_uncommitted")[0] == [0, 1, 2, 3, 6, 7, 8]
    assert offsets(root, **COMMITTED) == ([1, 2, 6], "OPEN_TRANSACTION", 7)


def test_read_starts_at_an_offset(root: Path) -> None:
    assert offsets(root, offset=4) == ([6, 7, 8], "END_OF_PARTITION", 9)
    assert offsets(root, offset=9) == ([], "END_OF_PARTITION", 9)
    assert offsets(root, offset=10) == ([], "END_OF_PARTITION", 10)  # not replicated yet
    assert offsets(root, offset=11) == ([], "OFFSET_OUT_OF_RANGE", 11)
    assert offsets(root, offset=8, **COMMITTED) == ([], "OPEN_TRANSACTION", 8)
    assert offsets(root, offset=1, limit=2) == ([1, 2], "LIMIT", 3)
    assert offsets(root, limit=0) == ([], "LIMIT", 0)


def test_read_starts_at_a_time(root: Path) -> None:
    assert offsets(root, time_ms=T)[0][0] == 0
    assert offsets(root, time_ms=T + 2, limit=2)[0] == [2, 3]
    # Offset 5 is a marker.
    assert offsets(root, time_ms=T + 5, **COMMITTED) == (
        [6],
        "OPEN_TRANSACTION",
        7,
    )
    assert offsets(root, time_ms=T + 9) == ([], "END_OF_PARTITION", 9)  # not replicated yet
    assert offsets(root, time_ms=T + 8, **COMMITTED) == ([], "OPEN_TRANSACTION", 7)


def test_read_starts_at_the_log_start(root: Path) -> None:
    write_checkpoint(root, "log-start-offset-checkpoint", {NAME: 2})
    assert offsets(root) == ([2, 3, 6, 7, 8], "END_OF_PARTITION", 9)
    reading = lastwrite.read(str(root), offset=1)
    assert next(reading)["offset"] == 2
    assert "the log starts at offset 2" in str(reading.notes[0])
    assert offsets(root, time_ms=0)[0][0] == 2


def test_read_continues_at_the_returned_offset(root: Path) -> None:
    for level in ("read_uncommitted", "read_committed"):
        found: list[int] = []
        status, offset = "LIMIT", 0
        while status == "LIMIT":
            some, status, offset = offsets(root, offset=offset, limit=1, isolation_level=level)
            found += some
        assert found == offsets(root, isolation_level=level)[0]


def test_damage_is_reported_after_the_complete_records(root: Path) -> None:
    segment = root / NAME / f"{0:020d}.log"
    bytes_ = bytearray(segment.read_bytes())
    size = len(data(1, R(0, "a")))
    bytes_[size + 65] ^= 1  # in the batch at offset 1
    segment.write_bytes(bytes_)
    reading = lastwrite.read(str(root))
    found = []
    with pytest.raises(CorruptLog, match="CRC"):
        found += [row["offset"] for row in iter(lambda: next(reading), None)]
    assert reading.summary()["status"] == "DAMAGED"
    assert reading.summary()["messages"] == 6
    with pytest.raises(CorruptLog):
        lastwrite.latest(str(root))


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_batch_beyond_the_memory_limit_is_refused(
    tmp_path: Path, codec: Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the limit on disk, or only when decompressed."""
    monkeypatch.setattr("lastwrite.kafka.look.read.BATCH_LIMIT_BYTES", 1 << 20)
    large = Record(0, T, b"a", bytes(5 << 20))
    write_segment(tmp_path / NAME, 0, [encode_batch([large], leader_epoch=0, codec=codec)])
    with pytest.raises(OutOfMemoryBudget, match=str(1 << 20)):
        list(lastwrite.read(str(tmp_path)))


def test_invalid_arguments_and_paths_are_refused(root: Path, tmp_path: Path) -> None:
    for wrong in (
        {"isolation_level": "serializable"},
        {"offset": 1, "time_ms": 1},
        {"offset": -1},
        {"one_pull": True},
        {"start": "earliest"},
        {"read_compacted": True},
    ):
        with pytest.raises(InvalidConfig):
            lastwrite.read(str(root), **wrong)
    with pytest.raises(InvalidConfig, match="are only for Kafka"):
        lastwrite.read(str(CORPUS / "pulsar" / "topics"), system="pulsar", time_ms=1)
    with pytest.raises(InvalidConfig, match="and read needs one"):
        lastwrite.read(str(KAFKA / "stopped"))
    with pytest.raises(NotALog):
        lastwrite.read(str(tmp_path / "nowhere"))
    with lock.hold(str(root), [TopicPartition("t", 0)]), pytest.raises(LogHeld):
        lastwrite.read(str(root))


def test_read_command_prints_json_and_text(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    command = ["read", str(root / NAME), "--isolation-level", "read_committed"]
    assert run([*command, "--json"]) == 0
    *rows, end = map(json.loads, capfd.readouterr().out.splitlines())
    assert [row["offset"] for row in rows] == [1, 2, 6]
    assert end == {
        "status": "OPEN_TRANSACTION",
        "topic": "t",
        "partition": 0,
        "isolation_level": "read_committed",
        "offset": 0,
        "next_offset": 7,
        "log_start_offset": 0,
        "last_stable_offset": 7,
        "high_watermark": 9,
        "messages": 3,
        "notes": [],
    }
    assert run([*command, "--time", str(T + 2)]) == 0
    said = capfd.readouterr()
    assert [line.split()[1] for line in said.out.splitlines()] == ["@2", "@6"]
    assert "OPEN_TRANSACTION: 2 messages, next offset 7" in said.err


@pytest.mark.parametrize(("kind", "topic"), TOPICS)
def test_read_equals_a_real_consumer(kind: str, topic: str) -> None:
    with gzip.open(KAFKA / f"{kind}.jsonl.gz", "rt") as file:
        seen = [row for row in map(json.loads, file) if row["topic"] == topic]
    reading = lastwrite.read(str(KAFKA / kind), topic=topic, isolation_level="read_committed")
    ours = [
        (row["offset"], row["timestamp"], row["key"], row["value"], row["headers"])
        for row in reading
    ]
    assert ours == [
        (row["offset"], row["timestamp"], row["key"], row["value"], row["headers"]) for row in seen
    ]
    assert ours or topic == "empty"


@pytest.mark.parametrize(
    "folder", sorted((CORPUS / "old-formats").glob("*-0")), ids=lambda f: f.name
)
def test_old_formats_are_read(folder: Path) -> None:
    rows = list(lastwrite.dump(str(folder)))
    assert list(lastwrite.read(str(folder), isolation_level="read_committed")) == rows
    middle = rows[len(rows) // 2]["offset"]
    assert [row["offset"] for row in lastwrite.read(str(folder), offset=middle)] == [
        row["offset"] for row in rows if row["offset"] >= middle
    ]


def test_latest_stops_at_its_end_offsets(root: Path) -> None:
    table = lastwrite.latest(str(root))
    assert table == {b"b": b"v1", b"c": b"v6"}
    assert table.end_offsets == {0: 7}
    write_checkpoint(root, "replication-offset-checkpoint", {NAME: 2})
    assert lastwrite.latest(str(root)).end_offsets == {0: 0}
