"""Tests of the model of a disk that loses power: which data it may lose and which it must keep."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lastwrite.storage import files
from tests.power.disk import PROFILES, Journal, record, record_killed

every_profile = pytest.mark.parametrize("profile", PROFILES)


def journal_of(
    tmp_path: Path, action: Callable[[Path], object], before: dict[str, bytes] | None = None
) -> Journal:
    disk = tmp_path / "disk"
    disk.mkdir()
    for name, data in (before or {}).items():
        (disk / name).parent.mkdir(exist_ok=True)
        (disk / name).write_bytes(data)
    journal = record(disk, lambda: action(disk))
    assert journal.strays == []
    return journal


def states(
    tmp_path: Path, journal: Journal, profile: str, cut: int | None = None, count: int = 200
) -> set[str]:
    """The possible contents of the disk after a power failure, as text."""
    found = set()
    for seed in range(count):
        rng = random.Random(seed)
        at = rng.randint(0, len(journal.events)) if cut is None else cut
        place = tmp_path / "state"
        shutil.rmtree(place, ignore_errors=True)
        journal.state(at, profile, rng).materialise(place)
        shown = {
            str(path.relative_to(place)): path.read_bytes()
            for path in place.rglob("*")
            if path.is_file()
        }
        found.add(
            " ".join(f"{name}={data.decode('latin-1')}" for name, data in sorted(shown.items()))
        )
    return found


@every_profile
def test_unsynced_file_may_be_missing_empty_or_complete(tmp_path: Path, profile: str) -> None:
    journal = journal_of(
        tmp_path, lambda disk: files.write(str(disk / "a"), b"new", is_synced=False)
    )
    found = states(tmp_path, journal, profile, len(journal.events))
    assert {"", "a=", "a=new"} <= found
    assert ("a=\0\0\0" in found) is (profile != "ext4")


@every_profile
def test_synced_file_survives(tmp_path: Path, profile: str) -> None:
    def action(disk: Path) -> None:
        files.write(str(disk / "a"), b"new")
        files.fsync_dir(str(disk))

    journal = journal_of(tmp_path, action)
    assert states(tmp_path, journal, profile, len(journal.events)) == {"a=new"}


@every_profile
def test_overwritten_file_is_torn_by_sectors(tmp_path: Path, profile: str) -> None:
    old, new = b"a" * 1024, b"b" * 1024

    def action(disk: Path) -> None:
        with open(disk / "f", "r+b") as file:
            file.write(new)

    journal = journal_of(tmp_path, action, {"f": old})
    found = states(tmp_path, journal, profile, len(journal.events))
    mixed = {"f=" + "a" * 512 + "b" * 512, "f=" + "b" * 512 + "a" * 512}
    assert {"f=" + old.decode(), "f=" + new.decode()} | mixed == found


@every_profile
def test_rename_of_an_unsynced_file_may_leave_it_empty(tmp_path: Path, profile: str) -> None:
    def action(disk: Path) -> None:
        files.write(str(disk / "f.tmp"), b"new", is_synced=False)
        files.rename(str(disk / "f.tmp"), str(disk / "f"))
        files.fsync_dir(str(disk))

    journal = journal_of(tmp_path, action, {"f": b"old"})
    assert "f=" in states(tmp_path, journal, profile, len(journal.events))


@every_profile
def test_renames_in_one_folder_keep_their_order(tmp_path: Path, profile: str) -> None:
    def action(disk: Path) -> None:
        files.rename(str(disk / "a"), str(disk / "c"))
        files.rename(str(disk / "b"), str(disk / "d"))

    journal = journal_of(tmp_path, action, {"a": b"1", "b": b"2"})
    found = states(tmp_path, journal, profile)
    in_order = {"a=1 b=2", "b=2 c=1", "c=1 d=2"}
    assert found == (in_order if profile != "loose" else in_order | {"a=1 d=2"})


@every_profile
def test_renames_in_two_folders_may_be_reordered(tmp_path: Path, profile: str) -> None:
    def action(disk: Path) -> None:
        files.rename(str(disk / "x/a"), str(disk / "x/b"))
        files.rename(str(disk / "y/a"), str(disk / "y/b"))
        files.fsync_dir(str(disk / "y"))

    journal = journal_of(tmp_path, action, {"x/a": b"1", "y/a": b"2"})
    found = states(tmp_path, journal, profile, len(journal.events))
    assert found == {"x/b=1 y/b=2"} | ({"x/a=1 y/b=2"} if profile in ("apfs", "loose") else set())


@every_profile
def test_name_of_a_folder_is_synced_by_its_parent(tmp_path: Path, profile: str) -> None:
    def action(disk: Path) -> None:
        files.make_folder(str(disk / "made"), is_synced=False)
        files.write(str(disk / "made/a"), b"1")
        files.fsync_dir(str(disk / "made"))

    journal = journal_of(tmp_path, action)
    found = states(tmp_path, journal, profile, len(journal.events))
    assert found == {"made/a=1"} | ({""} if profile in ("apfs", "loose") else set())


@every_profile
def test_exchange_is_atomic(tmp_path: Path, profile: str) -> None:
    journal = journal_of(
        tmp_path,
        lambda disk: files.exchange(str(disk / "x"), str(disk / "y")),
        {"x/a": b"1", "y/a": b"2"},
    )
    found = states(tmp_path, journal, profile, len(journal.events))
    assert found == {"x/a=1 y/a=2", "x/a=2 y/a=1"}


@every_profile
def test_state_at_a_cut_has_nothing_written_later(tmp_path: Path, profile: str) -> None:
    def action(disk: Path) -> None:
        for n in range(3):
            files.write(str(disk / "f"), b"%d" % n)

    journal = journal_of(tmp_path, action, {"f": b"-"})
    syncs = [place for place, event in enumerate(journal.events) if event.is_sync]
    assert states(tmp_path, journal, profile, syncs[0] + 1) == {"f=0"}
    assert states(tmp_path, journal, profile, 0) == {"f=-"}


def test_renames_outside_the_fault_points_are_reported(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()

    def action() -> None:
        files.write(str(disk / "a"), b"1")
        os.rename(disk / "a", disk / "b")

    assert len(record(disk, action).strays) == 1


def test_hard_and_symbolic_links_are_kept(tmp_path: Path) -> None:
    def action(disk: Path) -> None:
        files.link(str(disk / "a"), str(disk / "b"))
        os.symlink("a", disk / "elsewhere")

    disk = tmp_path / "disk"
    disk.mkdir()
    (disk / "a").write_bytes(b"1")
    journal = record(disk, lambda: action(disk))
    journal.state(len(journal.events), "loose", _Keep()).materialise(tmp_path / "state")
    assert (tmp_path / "state/a").samefile(tmp_path / "state/b")
    assert os.readlink(tmp_path / "state/elsewhere") == "a"


class _Keep(random.Random):
    """A random source that always takes the first choice: nothing is lost."""

    def choice(self, seq):  # type: ignore[no-untyped-def]
        return seq[0]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a child that was forked")
def test_unsynced_files_of_a_killed_run_are_lost_in_the_next(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()

    def action() -> None:
        if not (disk / "a").exists():
            files.write(str(disk / "a"), b"1")
        files.write(str(disk / "b"), b"2")
        files.fsync_file(str(disk / "b"))

    journal = record_killed(disk, action, 2)
    assert journal is not None and (disk / "a").exists()
    journal.least(len(journal.events), "apfs").materialise(tmp_path / "state")
    assert not list((tmp_path / "state").iterdir())
    assert record_killed(disk, action, 99) is None
