"""Tests of the positions of queues: the file, its backup, and which of them a broker uses."""

from __future__ import annotations

from pathlib import Path

import pytest

from lastwrite.errors import CorruptLog, LogError
from lastwrite.model.log import TopicPartition
from lastwrite.rocketmq.format.sides import decode_positions, encode_positions
from lastwrite.rocketmq.store.positions import (
    UNKNOWN,
    read_positions,
    replace_positions,
    write_new_positions,
)

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u_1", 0)
FILE, BACKUP = "position-checkpoint", "position-checkpoint.bak"


def test_backup_is_used_if_the_file_is_missing(tmp_path: Path) -> None:
    assert read_positions(str(tmp_path)).of(T0) == UNKNOWN
    (tmp_path / BACKUP).write_bytes(encode_positions({"t_0": 3}))
    assert read_positions(str(tmp_path)).of(T0) == 3
    (tmp_path / FILE).write_bytes(b"")
    assert read_positions(str(tmp_path)).of(T0) == 3
    (tmp_path / FILE).write_bytes(encode_positions({"t_0": 8, "u_1_0": 5}))
    found = read_positions(str(tmp_path))
    assert (found.of(T0), found.of(T1), found.of(U0), found.problem) == (8, UNKNOWN, 5, None)


@pytest.mark.parametrize(
    "content", [b"{", b"[]", b'{"queueOffsetMap":{"t_0":"x"}}', b"\xff" * 9, b"[" * 100_000]
)
def test_damaged_file_is_reported_and_its_backup_used(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    found = read_positions(str(tmp_path))
    assert not found.offsets and isinstance(found.problem, CorruptLog)
    assert found.problem.path == str(tmp_path / FILE)
    (tmp_path / BACKUP).write_bytes(encode_positions({"t_0": 3}))
    found = read_positions(str(tmp_path))
    assert found.of(T0) == 3 and found.problem is not None
    (tmp_path / BACKUP).write_bytes(content)
    assert not read_positions(str(tmp_path)).offsets


def test_oversized_file_is_not_read(tmp_path: Path) -> None:
    with open(tmp_path / FILE, "wb") as file:
        file.truncate(1 << 40)
    found = read_positions(str(tmp_path))
    assert (
        not found.offsets
        and isinstance(found.problem, LogError)
        and "too large" in found.problem.problem
    )


def test_entries_of_other_queues_are_kept(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b'{\n\t"queueOffsetMap":{"no queue":1,\n"t_0" : 3}, "other":[]}')
    offsets = read_positions(str(tmp_path)).changed({T0: 9})
    replace_positions(str(tmp_path), offsets)
    assert decode_positions((tmp_path / FILE).read_bytes()) == {"no queue": 1, "t_0": 9}
    assert decode_positions((tmp_path / BACKUP).read_bytes()) == {"no queue": 1, "t_0": 3}
    replace_positions(str(tmp_path), {"ctopic_0": 83})
    assert (
        tmp_path / FILE
    ).read_bytes() == b'{\n\t"empty":false,\n\t"queueOffsetMap":{\n\t\t"ctopic_0":83\n\t}\n}'
    assert sorted(path.name for path in tmp_path.iterdir()) == [FILE, BACKUP]


def test_new_tree_has_the_old_file_as_its_backup(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    new.mkdir()
    (old / BACKUP).write_bytes(encode_positions({"t_0": 1}))
    write_new_positions(str(new), {"t_0": 2}, str(old))
    assert decode_positions((new / BACKUP).read_bytes()) == {"t_0": 1}
    (new / BACKUP).unlink()
    (old / FILE).write_bytes(encode_positions({"t_0": 2}))
    write_new_positions(str(new), {"t_0": 3}, str(old))
    assert decode_positions((new / BACKUP).read_bytes()) == {"t_0": 2}
    assert read_positions(str(new)).of(T0) == 3
