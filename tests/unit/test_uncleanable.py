"""Tests of quarantined partitions.

The quarantine is stored beside the log, shown, retried with growing pauses, and released.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import lastwrite
from lastwrite.demo.topic_writer import TopicWriter
from lastwrite.errors import CorruptLog, NotALog
from lastwrite.kafka.store.watching import NOTES
from lastwrite.model.log import TopicPartition
from lastwrite.spark.inline import INLINE
from lastwrite.storage.quarantine import FILE, pause_ms, read_quarantine, record_failures, release

A, B = TopicPartition("a-b", 0), TopicPartition("c", 7)
NOW_MS = 1_700_000_000_000
MINUTE_MS = 60_000
COMPACT = {"cleanup.policy": "compact"}


def write(root: Path, name: TopicPartition) -> Path:
    with TopicWriter(str(root), name, segment_bytes=2000, batch_bytes=200) as writer:
        for n in range(100):
            writer.append(b"key-%d" % (n % 5), b"value-%d" % n, NOW_MS - 5000 + n)
    return Path(writer.folder)


def test_pauses_grow_to_a_day() -> None:
    assert [pause_ms(n) // MINUTE_MS for n in (1, 2, 3, 11, 12, 1000)] == [
        1,
        2,
        4,
        1024,
        1440,
        1440,
    ]


def test_quarantine_is_stored_and_released(tmp_path: Path) -> None:
    for name in (A, B):
        (tmp_path / str(name)).mkdir()
    assert read_quarantine(str(tmp_path), NOTES) == {} and release(str(tmp_path), [A], NOTES) == {}
    record_failures(str(tmp_path), {}, NOW_MS, NOTES)
    assert not (tmp_path / FILE).exists()
    record_failures(str(tmp_path), {A: "a torn batch — “ß”", B: "no memory"}, NOW_MS, NOTES)
    record_failures(str(tmp_path), {A: "still torn"}, NOW_MS + 70_000, NOTES)
    found = read_quarantine(str(tmp_path), NOTES)
    assert (found[A].reason, found[A].since_ms, found[A].tries) == ("still torn", NOW_MS, 2)
    assert found[A].next_try_ms == NOW_MS + 70_000 + 2 * MINUTE_MS
    assert found[B].next_try_ms == NOW_MS + MINUTE_MS
    assert release(str(tmp_path), [A, TopicPartition("z", 1)], NOTES) == {A: found[A]}
    assert list(read_quarantine(str(tmp_path), NOTES)) == [B]
    assert json.loads((tmp_path / FILE).read_text())["version"] == 1
    release(str(tmp_path), [B], NOTES)
    assert not (tmp_path / FILE).exists(), "an empty list is no file"


def test_deleted_partitions_are_forgotten(tmp_path: Path) -> None:
    (tmp_path / str(A)).mkdir()
    (tmp_path / str(B)).mkdir()
    record_failures(str(tmp_path), {A: "x", B: "y"}, NOW_MS, NOTES)
    (tmp_path / str(B)).rmdir()
    record_failures(str(tmp_path), {A: "x"}, NOW_MS, NOTES)
    assert list(read_quarantine(str(tmp_path), NOTES)) == [A]


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"version": 2}', '{"version": 1, "partitions": {"x": {}}}', "\xff"]
)
def test_damaged_quarantine_file_is_named_and_overwritten(tmp_path: Path, content: str) -> None:
    (tmp_path / str(A)).mkdir()
    (tmp_path / FILE).write_bytes(content.encode("latin-1"))
    with pytest.raises(CorruptLog, match="delete this file"):
        read_quarantine(str(tmp_path), NOTES)
    record_failures(str(tmp_path), {A: "x"}, NOW_MS, NOTES)
    assert list(read_quarantine(str(tmp_path), NOTES)) == [A]


def test_inspect_and_plan_show_the_quarantine_and_compact_clears_it(tmp_path: Path) -> None:
    for name in (A, B):
        write(tmp_path, name)
    record_failures(str(tmp_path), {A: "a torn batch"}, NOW_MS, NOTES)
    expected = {
        "reason": "a torn batch",
        "since_ms": NOW_MS,
        "tries": 1,
        "next_try_ms": NOW_MS + MINUTE_MS,
    }
    first, second = lastwrite.inspect(str(tmp_path)).to_dict()["partitions"]
    assert (first["uncleanable"], second["uncleanable"]) == (expected, None)
    first, second = lastwrite.plan(
        str(tmp_path), config=COMPACT, spark=INLINE, now_ms=NOW_MS
    ).to_dict()["partitions"]
    assert (first["uncleanable"], second["uncleanable"]) == (expected, None)
    assert (first["status"], second["status"]) == ("cleaned", "cleaned")
    lastwrite.compact(
        str(tmp_path), to=f"{tmp_path}.copy", config=COMPACT, spark=INLINE, now_ms=NOW_MS
    )
    assert list(read_quarantine(str(tmp_path), NOTES)) == [A], (
        "a copy proves nothing of the original's disk"
    )
    first, second = lastwrite.compact(
        str(tmp_path), config=COMPACT, spark=INLINE, now_ms=NOW_MS
    ).to_dict()["partitions"]
    assert (first["status"], first["uncleanable"]) == ("cleaned", None)
    assert read_quarantine(str(tmp_path), NOTES) == {}


def test_release_clears_the_quarantine(tmp_path: Path) -> None:
    folder = write(tmp_path, A)
    with pytest.raises(NotALog):
        lastwrite.release(str(tmp_path / "nothing"))
    assert lastwrite.release(str(tmp_path)) == {}
    record_failures(str(tmp_path), {A: "a torn batch"}, NOW_MS, NOTES)
    assert list(lastwrite.release(str(folder))) == [A]
    assert read_quarantine(str(tmp_path), NOTES) == {}
