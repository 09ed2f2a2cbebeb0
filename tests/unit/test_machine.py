"""Tests that a container's limits are used as the machine's."""

from __future__ import annotations

from pathlib import Path

import pytest

from lastwrite.storage import machine


def group(monkeypatch: pytest.MonkeyPatch, folder: Path, files: dict[str, str]) -> None:
    """Put this process into the control group ``/a/b`` with these limit files."""
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


def test_lowest_limit_above_the_process_counts(
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


def test_part_of_a_core_counts_as_one_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group(monkeypatch, tmp_path, {"a/cpu.max": "5000 100000"})
    assert machine.core_count() == 1


def test_unlimited_group_has_the_limits_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlimited = machine.memory_bytes()
    group(monkeypatch, tmp_path, {"a/b/memory.max": "max", "a/b/cpu.max": "max 100000"})
    assert machine.memory_bytes() >= unlimited
    assert machine.core_count() >= 1


def test_spill_folders_and_their_free_space_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/nowhere")
    assert machine.spill_folders() == [str(tmp_path), "/nowhere"]
    assert (machine.free_bytes(str(tmp_path)) or 0) > 0
    assert machine.free_bytes("/nowhere/at/all") is None


V1 = "12:cpu,cpuacct:/x\n5:memory:/pods/one\n0::/\n"


@pytest.mark.parametrize(
    "groups, counter, before, after, limit, found",
    [
        (
            "0::/a/b\n",
            "a/b/memory.events",
            "low 0\noom 1\noom_kill 1\n",
            "low 0\noom 2\noom_kill 2\n",
            "a/memory.max",
            "the limit of this control group, 300 MiB ({limit})",
        ),
        (
            "0::/a/b\n",
            "a/b/memory.events",
            "oom_kill 1\n",
            "oom 9\noom_kill 1\n",
            "a/memory.max",
            None,
        ),
        (
            V1,
            "memory/pods/one/memory.oom_control",
            "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n",
            "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
            "memory/pods/one/memory.limit_in_bytes",
            "the limit of this control group, 300 MiB ({limit})",
        ),
        # a container whose own group is the root of its view, but whose path is the host's
        (
            V1,
            "memory/memory.oom_control",
            "oom_kill 0\n",
            "oom_kill 1\n",
            "memory/memory.limit_in_bytes",
            "the limit of this control group, 300 MiB ({limit})",
        ),
        (
            "",
            "../proc/vmstat",
            "oom_kill 4\n",
            "pgfault 9\noom_kill 5\n",
            None,
            "the memory of this machine, ",
        ),
    ],
)
def test_memory_kills_are_counted(
    groups: str,
    counter: str,
    before: str,
    after: str,
    limit: str | None,
    found: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From hand-made copies of the kernel's files for both versions of control groups."""
    monkeypatch.setattr(machine, "_CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr(machine, "_PROC", tmp_path / "proc")
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(groups)
    file = tmp_path / "cgroup" / counter
    for path, text in (
        (file, before),
        (tmp_path / "cgroup" / limit if limit else None, str(300 << 20)),
    ):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    counted = machine.memory_kills()
    assert machine.memory_kill_since(counted) is None
    file.write_text(after)
    said = machine.memory_kill_since(counted)
    if found is None:
        assert said is None
    else:
        assert said is not None
        assert said.startswith(found.format(limit=tmp_path / "cgroup" / limit if limit else ""))


def test_children_have_a_higher_kill_score_than_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_PROC", tmp_path)
    machine.raise_oom_score()  # has no effect without the kernel's file
    (tmp_path / "self").mkdir()
    for now, then in (("0\n", "250"), ("-500\n", "-250"), ("900\n", "1000")):
        (tmp_path / "self/oom_score_adj").write_text(now)
        machine.raise_oom_score()
        assert (tmp_path / "self/oom_score_adj").read_text() == then
