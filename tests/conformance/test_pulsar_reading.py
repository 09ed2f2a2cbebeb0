"""Tests of ``read`` against a real Pulsar's Java reader, on the same bytes
(tests/corpus/pulsar).
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lastwrite
from lastwrite.pulsar.format.compacted import decode_record
from lastwrite.pulsar.format.entry import decode_entry
from lastwrite.pulsar.format.position import Position
from tests.support.pulsar.folders import write_compacted, write_ledger
from tests.support.pulsar.topics import topic_folder

TOPICS = Path(__file__).resolve().parents[1] / "corpus" / "pulsar" / "topics"
ROUNDS = sorted(folder.relative_to(TOPICS) for folder in TOPICS.glob("*/[0-9]"))

Row = dict[str, Any]


def lines(path: Path) -> Iterator[Row]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


def make_folder(archive: Path, name: str, round_: Path) -> Path:
    """The topic's folder as it was after that compaction."""
    folder = topic_folder(archive, f"persistent://public/default/{name}")
    stats = json.loads((round_ / "stats-internal.json").read_text())
    last = Position.parse(stats["lastConfirmedEntry"])
    raw: dict[int, list[bytes]] = {}
    for row in lines(round_.parent / "raw.jsonl.gz"):
        if Position(row["ledger"], row["entry"]) <= last:
            raw.setdefault(row["ledger"], []).append(base64.b64decode(row["bytes"]))
    for ledger, entries in raw.items():
        write_ledger(folder, ledger, entries, block_bytes=16384)
    said = json.loads((round_ / "horizon.json").read_text())
    records = [base64.b64decode(row["bytes"]) for row in lines(round_ / "compacted.jsonl.gz")]
    found = [(position, body) for position, _, body in map(decode_record, records)]
    horizon = Position(said["horizon"]["ledger"], said["horizon"]["entry"])
    write_compacted(folder, said["ledger"], found, horizon, block_bytes=16384, messages=0)
    return folder


def as_java_says(row: Row) -> Row:
    """A row of ``read`` in the format of the Java reader's program."""
    found = {
        "ledger": row["ledger"],
        "entry": row["entry"],
        "producer": row["producer"],
        "publishTime": row["publish_time"],
        "sequenceId": row["sequence_id"],
        "key": row["key"],
        "value": row["value"]
        if row["encryption"] is None or row["null_value"]
        else row["stored_value"],
    }
    given: Row = {
        "keyB64": row["key_b64_encoded"] or None,
        "eventTime": row["event_time"] or None,
        "orderingKey": row["ordering_key"],
        "properties": row["properties"] or None,
        "batchIndex": None if row["batch_index"] < 0 else row["batch_index"],
        "batchSize": None if row["batch_index"] < 0 else row["batch_size"],
        "encrypted": row["encryption"] is not None or None,
    }
    return found | {name: value for name, value in given.items() if value is not None}


@pytest.mark.parametrize("round_", ROUNDS, ids=str)
@pytest.mark.parametrize("reads_compacted", [False, True], ids=["backlog", "compacted"])
def test_read_equals_the_java_reader(round_: Path, reads_compacted: bool, tmp_path: Path) -> None:
    folder = make_folder(tmp_path, round_.parts[0], TOPICS / round_)
    file = TOPICS / round_ / ("read-compacted.jsonl.gz" if reads_compacted else "read.jsonl.gz")
    reading = lastwrite.read(str(folder), read_compacted=reads_compacted)
    rows, expected = list(reading), list(lines(file))
    if {
        "timeout": True
        # the Java reader stops at a message that it cannot decompress, such as one in "odd"
    } in expected:
        expected = expected[: expected.index({"timeout": True})]
        assert rows[len(expected)]["problem"] is not None
        rows = rows[: len(expected)]
    assert [as_java_says(row) for row in rows] == expected


@pytest.mark.parametrize("round_", ROUNDS, ids=str)
def test_inspect_reports_intact_topics(round_: Path, tmp_path: Path) -> None:
    folder = make_folder(tmp_path, round_.parts[0], TOPICS / round_)
    raw = list(lines(TOPICS / round_.parent / "raw.jsonl.gz"))
    (topic,) = lastwrite.inspect(str(folder)).to_dict()["partitions"]
    kept = [
        row
        for row in raw
        if topic["last_id"] is not None and _place(row) <= Position.parse(topic["last_id"])
    ]
    assert topic["entries"] == len(kept)
    markers = [decode_entry(base64.b64decode(row["bytes"]), *_place(row)).is_marker for row in kept]
    assert topic["markers"] == sum(markers)


def _place(row: Row) -> Position:
    return Position(row["ledger"], row["entry"])


BOOKIE_LOGS = [
    path
    for path in sorted((TOPICS.parent / "bookies").glob("*/current/*.log.gz"))
    if gzip.decompress(path.read_bytes())  # preallocated logs are empty
]


@pytest.mark.parametrize(
    "packed", BOOKIE_LOGS[:4], ids=lambda path: f"{path.parts[-3]}-{path.stem}"
)
def test_single_entry_log_is_dumped(packed: Path, tmp_path: Path) -> None:
    path = tmp_path / packed.stem
    path.write_bytes(gzip.decompress(packed.read_bytes()))
    rows = list(lastwrite.dump(str(path), batches=True))
    (file,) = lastwrite.inspect(str(path)).to_dict()["files"]
    assert (file["kind"], file["entries"], file["problems"]) == ("entry log", len(rows), [])
    raw = {
        (row["ledger"], row["entry"]): base64.b64decode(row["bytes"])
        for topic in TOPICS.glob("*/raw.jsonl.gz")
        for row in lines(topic)
    }
    data = path.read_bytes()
    for row in rows:
        if row["source"] == "backlog" and (row["ledger"], row["entry"]) in raw:
            assert data[row["position"] :][: row["size"]] == raw[row["ledger"], row["entry"]]


def test_single_objects_and_map_files_are_read(tmp_path: Path) -> None:
    corpus = TOPICS.parent
    data = next(
        path for path in sorted((corpus / "offloaded").iterdir()) if "-ledger-2" in path.name
    )
    rows = list(lastwrite.dump(str(data)))
    assert {row["ledger"] for row in rows} == {int(data.name.rpartition("-")[2])}
    assert lastwrite.inspect(str(data)).exit_status == 0
    assert [row["first_entry"] for row in lastwrite.dump(f"{data}-index")] == [0]
    for folder in sorted(
        (corpus / "filesystem" / "public" / "fs" / "persistent" / "files").iterdir()
    ):
        (file,) = lastwrite.inspect(str(folder / "data")).to_dict()["files"]
        assert (file["kind"], file["problems"]) == ("map file", [])
        assert list(file["ledgers"]) == [folder.name.partition("-")[0]]
