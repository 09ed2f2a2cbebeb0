"""Tests of the demo's proof, which must report any difference."""

from __future__ import annotations

from pathlib import Path

import pytest

from lastwrite.demo.proof import ReplayedTable, prove, read_table
from lastwrite.demo.topic_writer import TopicWriter
from lastwrite.errors import CorruptLog, VerificationFailed
from lastwrite.model.log import TopicPartition

TREE = {b"a": b"100644 1", b"b": b"100644 2"}


def table(live: dict[bytes, bytes], repeated: tuple[bytes, ...] = ()) -> ReplayedTable:
    return ReplayedTable(live, len(live), 0, len(live), repeated, 0, 1)


def test_equal_tables_pass() -> None:
    prove(table(dict(TREE)), TREE)


@pytest.mark.parametrize(
    ("live", "said"),
    [
        ({b"a": b"100644 1"}, "1 expected keys are not in the topic: 'b'"),
        ({**TREE, b"\xff": b"100644 3"}, r"1 keys of the topic are not expected: '\\xff'"),
        ({**TREE, b"b": b"100755 2"}, "1 keys have another value than expected: 'b'"),
        ({}, "2 expected keys are not in the topic: 'a', 'b'"),
        (
            {**TREE, **{b"%d" % n: b"" for n in range(9)}},
            "9 keys of the topic are not expected: '0', '1', '2', …",
        ),
    ],
)
def test_difference_is_named(live: dict[bytes, bytes], said: str) -> None:
    with pytest.raises(VerificationFailed, match=said) as caught:
        prove(table(live), TREE)
    assert caught.value.exit_status == 5


def test_repeated_key_is_refused() -> None:
    with pytest.raises(VerificationFailed, match="1 keys occur more than once in the table: 'a'"):
        prove(table(dict(TREE), repeated=(b"a",)), TREE)


def write(root: Path) -> Path:
    with TopicWriter(
        str(root), TopicPartition("t", 0), segment_bytes=150, batch_bytes=50
    ) as writer:
        for key, value in (
            (b"a", b"1"),
            (b"b", b"1"),
            (b"a", b"2"),
            (b"b", None),
            (b"c", None),
            (b"c", b"3"),
        ):
            writer.append(key, value, 1)
    return root / "t-0"


def test_last_record_of_a_key_counts(tmp_path: Path) -> None:
    folder = write(tmp_path)
    read = read_table(str(folder))
    assert read.live == {b"a": b"2", b"c": b"3"}
    assert (read.records, read.tombstones, read.keys, read.repeated) == (
        6,
        2,
        3,
        (b"a", b"b", b"c"),
    )
    assert read.segments == len(list(folder.glob("*.log"))) > 1
    assert read.bytes == sum(path.stat().st_size for path in folder.glob("*.log"))


def test_flipped_bit_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path) / f"{0:020}.log"
    content = bytearray(path.read_bytes())
    content[70] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptLog, match="log, byte 0"):
        read_table(str(path.parent))
