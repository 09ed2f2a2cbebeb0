"""Tests of a ledger written as a data object with an index, and read by entries."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastwrite.errors import CorruptLog, LogError
from lastwrite.pulsar.format.ledger_metadata import LedgerMetadata, LedgerState
from lastwrite.pulsar.format.names import parse_object_name
from lastwrite.pulsar.format.offload import ENTRY_HEAD
from lastwrite.pulsar.store.objects import OffloadWriter, checked_index, find_staged, read_entries
from lastwrite.storage import files

METADATA = LedgerMetadata(quorum=1, ensemble=1, length=0, state=LedgerState.CLOSED)


def write(
    folder: Path, entries: list[bytes], block_bytes: int = 1 << 20, framed: bool = False
) -> str:
    writer = OffloadWriter(str(folder), 10, block_bytes=block_bytes)
    if framed:
        sizes = np.array([len(entry) + ENTRY_HEAD.size for entry in entries], np.int64)
        data = b"".join(ENTRY_HEAD.pack(len(entry), n) + entry for n, entry in enumerate(entries))
        positions = np.cumsum(sizes) - sizes
        writer.append_framed(
            np.frombuffer(data, np.uint8), positions, np.arange(len(entries), dtype=np.int64)
        )
    else:
        for n, entry in enumerate(entries):
            writer.append(n, entry)
    return writer.finish(METADATA)


@given(
    entries=st.lists(st.binary(max_size=30), max_size=12),
    block_bytes=st.integers(128, 300),
    framed=st.booleans(),
    first=st.integers(0, 13),
    count=st.integers(0, 13),
)
def test_written_entries_are_read_back(
    tmp_path_factory: pytest.TempPathFactory,
    entries: list[bytes],
    block_bytes: int,
    framed: bool,
    first: int,
    count: int,
) -> None:
    path = write(tmp_path_factory.mktemp("ledger"), entries, block_bytes, framed)
    assert list(read_entries(path)) == list(enumerate(entries))
    expected = [(n, entry) for n, entry in enumerate(entries) if first <= n < first + count]
    assert list(read_entries(path, first, first + count - 1)) == expected


@pytest.mark.parametrize("framed", [False, True])
def test_index_describes_the_written_blocks(tmp_path: Path, framed: bool) -> None:
    path = write(tmp_path, [b"a" * 40, b"b" * 40, b"c" * 500, b"d"], 256, framed)
    index = checked_index(path)
    assert [block.first_entry for block in index.blocks] == [0, 2, 3]
    assert [block.part for block in index.blocks] == [1, 2, 3]
    assert index.data_bytes == Path(path).stat().st_size
    assert (index.metadata.last_entry, index.metadata.length) == (3, 581)
    assert parse_object_name(Path(path).name) is not None
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        Path(path).name,
        Path(path).name + "-index",
    ]


def test_empty_ledger_round_trips(tmp_path: Path) -> None:
    path = write(tmp_path, [])
    assert Path(path).stat().st_size == 0
    assert checked_index(path).metadata.last_entry == -1
    assert list(read_entries(path)) == []


def test_abandoned_writer_leaves_no_files(tmp_path: Path) -> None:
    writer = OffloadWriter(str(tmp_path), 10)
    writer.append(0, b"x" * (2 << 20))
    assert len(find_staged(str(tmp_path))) == 1
    writer.abandon()
    assert list(tmp_path.iterdir()) == []


def test_entry_ids_must_rise(tmp_path: Path) -> None:
    writer = OffloadWriter(str(tmp_path), 10)
    writer.append(3, b"")
    with pytest.raises(CorruptLog, match="entry 3 follows entry 3"):
        writer.append(3, b"")
    writer.abandon()


def test_truncated_object_and_damaged_block_are_named(tmp_path: Path) -> None:
    path = Path(write(tmp_path, [b"a" * 40, b"b" * 40], 200))
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(CorruptLog, match="its index states"):
        checked_index(str(path))
    path.write_bytes(whole[:180] + b"\x40" + whole[181:])
    with pytest.raises(CorruptLog) as caught:
        list(read_entries(str(path)))
    assert caught.value.path == str(path)
    assert caught.value.at == 180


def test_missing_object_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LogError):
        checked_index(str(tmp_path / "none"))


def test_crash_between_any_two_steps_leaves_no_partial_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "faults", files.FaultPoints(log=str(tmp_path / "faults")))
    (tmp_path / "whole").mkdir()
    write(tmp_path / "whole", [b"a" * 90, b"b" * 90], 200)
    steps = (tmp_path / "faults").read_text().count("\n")
    assert steps > 8
    for step in range(1, steps + 1):
        folder = tmp_path / str(step)
        folder.mkdir()
        monkeypatch.setattr(files, "faults", files.FaultPoints(point=step, error=5))
        with pytest.raises(LogError):
            write(folder, [b"a" * 90, b"b" * 90], 200)
        monkeypatch.setattr(files, "faults", files.FaultPoints())
        data = [p for p in folder.iterdir() if parse_object_name(p.name)]
        assert not data or list(read_entries(str(data[0]))) == [(0, b"a" * 90), (1, b"b" * 90)]
