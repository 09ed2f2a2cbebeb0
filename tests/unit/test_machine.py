"""Limits of containers count as the machine's."""

from __future__ import annotations

from pathlib import Path

import pytest

from lastwrite.pipeline import machine


def group(monkeypatch: pytest.MonkeyPatch, folder: Path, files: dict[str, str]) -> None:
    """Let this process be in the control group ``/a/b`` with these limit files."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    read = machine._read
    monkeypatch.setattr(machine, "_CGROUP", folder)
    monkeypatch.setattr(
        machine,
        "_read",
        lambda file: "0::/a/b\n" if str(file) == "/proc/self/cgroup" else read(file),
    )


def test_the_lowest_limit_above_the_process_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {
        "a/memory.max": "1000000\n",
        "a/b/memory.max": "max\n",
        "a/b/cpu.max": "100000 100000",
    }
    group(monkeypatch, tmp_path, limits)
    assert machine.memory_bytes() == 1_000_000
    assert machine.available_bytes() <= 1_000_000
    assert machine.core_count() == 1


def test_part_of_a_core_is_a_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group(monkeypatch, tmp_path, {"a/cpu.max": "5000 100000"})
    assert machine.core_count() == 1


def test_no_limit_is_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unlimited = machine.memory_bytes()
    group(monkeypatch, tmp_path, {"a/b/memory.max": "max", "a/b/cpu.max": "max 100000"})
    assert machine.memory_bytes() >= unlimited
    assert machine.core_count() >= 1


def test_spill_folders_and_their_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/nowhere")
    assert machine.spill_folders() == [str(tmp_path), "/nowhere"]
    assert (machine.free_bytes(str(tmp_path)) or 0) > 0
    assert machine.free_bytes("/nowhere/at/all") is None
