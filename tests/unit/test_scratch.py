"""Tests of scratch files: in memory up to the allowance, then in the scratch folder."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lastwrite.errors import LogError
from lastwrite.reports.compaction import Status
from lastwrite.spark import folder_exchange
from lastwrite.spark.memory import MIB, MemoryPlan
from lastwrite.storage import scratch
from lastwrite.storage.scratch import ScratchFolders, ScratchReader, ScratchWriter
from tests.support.engine import compact
from tests.unit.test_memory import LOGS, write


@pytest.fixture
def folders(tmp_path: Path) -> tuple[str, str]:
    for name in ("disk", "memory"):
        (tmp_path / name).mkdir()
    return str(tmp_path / "disk"), str(tmp_path / "memory")


def read(path: str, position: int, count: int) -> list[int]:
    found = np.empty(count, dtype=np.int64)
    reader = ScratchReader(path)
    try:
        reader.read_into(found, position)
    finally:
        reader.close()
    return found.tolist()


def test_blocks_beyond_the_memory_allowance_go_to_the_folder(folders: tuple[str, str]) -> None:
    disk, memory = folders
    with ScratchWriter(disk, "entries") as writer:
        writer.allow(memory, 100)
        writer.allow(memory, 60)
        places = [writer.append(np.full(5, i), np.full(5, -i)) for i in range(4)]  # 80 bytes each
    assert [Path(path).parent.name for path, _ in places] == ["memory", "memory", "disk", "disk"]
    assert [position for _, position in places] == [0, 80, 0, 80]
    for i, place in enumerate(places):
        assert read(*place, 10) == [i] * 5 + [-i] * 5


def test_without_an_allowance_no_file_is_in_memory(folders: tuple[str, str]) -> None:
    disk, memory = folders
    with ScratchWriter(disk, "entries") as writer:
        writer.allow(memory, 0)
        writer.append(np.arange(3))
    assert not list(Path(memory).iterdir())
    assert len(list(Path(disk).iterdir())) == 1


def test_refused_memory_file_falls_back_to_the_folder(
    folders: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, memory = folders

    # bytes left by file handle, on a system whose memory ends after 60 bytes
    left: dict[int, int] = {}

    def opened(path: str, mode: str, buffering: int) -> io.FileIO:
        file = open(path, mode, buffering=buffering)
        left[file.fileno()] = 60 if path.startswith(memory) else 1 << 20
        return file

    def writev(handle: int, views: list[memoryview]) -> int:
        if not left[handle]:
            raise OSError(errno.ENOSPC, "No space left on device")
        n = os.write(handle, b"".join(views)[: left[handle]])
        left[handle] -= n
        return n

    monkeypatch.setattr(scratch, "open", opened, raising=False)
    monkeypatch.setattr(os, "writev", writev)
    with ScratchWriter(disk, "entries") as writer:
        writer.allow(memory, 1000)
        places = [writer.append(np.arange(i, i + 5)) for i in range(3)]
    assert [Path(path).parent.name for path, _ in places] == ["memory", "disk", "disk"]
    for i, place in enumerate(places):
        assert read(*place, 5) == list(range(i, i + 5))


def test_missing_parent_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="could not create a scratch folder") as caught:
        ScratchFolders(str(tmp_path / "nowhere"))
    assert caught.value.path == str(tmp_path / "nowhere")
    assert "spark.lastwrite.scratch" in str(caught.value.remedy)


def test_vanished_folder_is_named(tmp_path: Path) -> None:
    with (
        ScratchWriter(str(tmp_path / "gone"), "entries") as writer,
        pytest.raises(LogError, match="scratch file"),
    ):
        writer.append(np.arange(3))


def test_scratch_files_of_a_wave_are_deleted_before_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, _, records = LOGS["many small records"]
    held: list[int] = []
    remove = scratch.remove_folder

    def note(folder: Path) -> None:
        held.append(sum(file.stat().st_size for file in folder.glob("*.blocks")))
        remove(folder)

    monkeypatch.setattr("lastwrite.storage.scratch.remove_folder", note)
    monkeypatch.setattr(
        "lastwrite.spark.use.plan_memory", lambda *_, **__: MemoryPlan(0, 16 * MIB, 0)
    )
    for waves_of in (1, 4):
        monkeypatch.setattr("lastwrite.engine.round._WAVE_PARTITIONS", waves_of)
        root = tmp_path / f"root-{waves_of}"
        for n in range(4):
            write(root / f"t-{n}", batch, 20, records)
        report = compact(root, {"cleanup.policy": "compact"}, 1_700_001_000_000)
        assert {each.status for each in report.partitions} == {Status.CLEANED}
    assert 0 < 4 * held[0] == held[1]


def test_single_task_leaves_no_scratch_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "memory"
    home.mkdir()
    disk = tmp_path / "disk"
    disk.mkdir()
    share = scratch.ScratchShare(str(disk), str(home), 4 * MIB)
    seen: list[list[str]] = []

    def work(exchange: Any, plans: Sequence[Any]) -> list[Any]:
        with ScratchWriter(exchange.scratch, "entries") as writer:
            writer.allow(exchange._folders.memory, exchange._folders.memory_bytes)
            places = [writer.append(np.arange(3)), writer.append(np.zeros(5 * MIB, np.uint8))]
        seen.append([Path(path).parent.parent.name for path, _ in places])
        return []

    monkeypatch.setattr(folder_exchange, "_weight_of", lambda plan: 1)
    plans: list[Any] = [None]
    assert not list(folder_exchange._collect_one_stage(work, share, 1, plans))
    assert seen == [["memory", "disk"]]
    assert not list(disk.iterdir())
    assert not list(home.iterdir())


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("scratch_bytes", [0, 1 * MIB, 4 * MIB, 64 * MIB])
def test_place_of_scratch_files_does_not_change_the_result(
    scratch_bytes: int, exact: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, count, records = LOGS["many small records"]
    write(tmp_path / "root" / "t-0", batch, 100, records)
    home = tmp_path / "memory"
    home.mkdir()
    seen: list[int] = []
    monkeypatch.setattr("lastwrite.storage.scratch.memory_home", lambda: (home, 1 << 30))
    monkeypatch.setattr(
        "lastwrite.spark.use.plan_memory", lambda *_, **__: MemoryPlan(0, 16 * MIB, scratch_bytes)
    )
    remove = scratch.remove_folder

    def note(folder: Path) -> None:
        if folder.parent == home:
            seen.append(sum(file.stat().st_size for file in folder.iterdir()))
        remove(folder)

    monkeypatch.setattr("lastwrite.storage.scratch.remove_folder", note)
    report = compact(
        tmp_path / "root", {"cleanup.policy": "compact"}, 1_700_001_000_000, exact=exact
    )
    assert report.partitions[0].status is Status.CLEANED
    assert report.partitions[0].records_after == records
    assert not list(home.iterdir())
    if scratch_bytes:
        assert 0 < seen[0] <= scratch_bytes
    else:
        assert not seen
