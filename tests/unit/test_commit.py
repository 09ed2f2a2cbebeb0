"""Tests of refused commits and of cleaned copies.

For killed commits see ``tests/system/test_crash_commit.py``.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lastwrite.errors import CommitConflict, InvalidConfig, LogError, LogHeld
from lastwrite.kafka.format.names import decode_folder_name
from lastwrite.kafka.producers.history import decode_aborted
from lastwrite.kafka.recovery.unfinished_swap import Intent, decode_intent, encode_intents
from lastwrite.kafka.store import lock, log_dir
from lastwrite.kafka.store.commit import CommitNotes
from lastwrite.kafka.store.outputs import NewSegment
from lastwrite.kafka.store.publish import staging_folder
from lastwrite.kafka.store.staging import StagedSegment
from lastwrite.model.log import AbortedTransaction, PartitionLog, TopicPartition
from lastwrite.model.work import SegmentOutput
from lastwrite.storage import files
from tests.support.kafka.crashing import (
    LAYOUTS,
    Layout,
    batch,
    compact,
    compact_to,
    contents,
    offsets_seen,
    run_until,
    write_layout,
    write_staged,
)
from tests.support.kafka.logs import read_checkpoint, write_checkpoint
from tests.support.kafka.single import commit, publish_copy

LAYOUT = LAYOUTS[2]  # merged groups, and producer snapshots of removed base offsets


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_layout(tmp_path / "root", LAYOUT)


def begin(folder: Path, layout: Layout = LAYOUT) -> tuple[PartitionLog, list[NewSegment]]:
    log = log_dir.read_partition(str(folder))
    return log, write_staged(folder, layout, log)


def end(folder: Path, log: PartitionLog, outputs: list[NewSegment]) -> None:
    commit(log, outputs, LAYOUT.first_dirty, checkpoint_root=str(folder.parent))


# ---------------------------------------------------------------------- what changed under us


def grow(folder: Path) -> None:
    with open(folder / f"{50:020d}.log", "ab") as log:
        log.write(batch(52))


def touch(folder: Path) -> None:
    os.utime(folder / f"{10:020d}.log")


def vanish(folder: Path) -> None:
    (folder / f"{25:020d}.log").unlink()


def roll(folder: Path) -> None:
    (folder / f"{52:020d}.log").touch()


def swap(folder: Path) -> None:
    (folder / f"{0:020d}.log.swap").touch()


@pytest.mark.parametrize("change", [grow, touch, vanish, roll, swap])
def test_commit_refuses_a_log_that_changed(folder: Path, change: Callable[[Path], None]) -> None:
    log, outputs = begin(folder)
    all_staged = {
        str(Path(path).relative_to(folder.parent)) for output in outputs for path in output.paths
    }
    change(folder)
    changed = contents(folder.parent)
    with pytest.raises(CommitConflict, match="nothing was changed") as raised:
        end(folder, log, outputs)
    assert raised.value.path is not None and raised.value.path.startswith(str(folder))
    assert contents(folder.parent) == {
        name: file for name, file in changed.items() if name not in all_staged
    }


def test_commit_refuses_a_log_that_changes_during_the_sync(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, outputs = begin(folder)
    synced = files.fsync_dir

    def sync_and_grow(path: str) -> None:
        synced(path)
        grow(folder)
        monkeypatch.setattr(files, "fsync_dir", synced)

    monkeypatch.setattr(files, "fsync_dir", sync_and_grow)
    with pytest.raises(CommitConflict, match="another program changed the segment"):
        end(folder, log, outputs)
    assert offsets_seen(folder) == [*LAYOUT.old_offsets, 52]
    assert not [
        path for path in folder.iterdir() if path.name.endswith((".cleaned", ".swap", ".deleted"))
    ]


# ---------------------------------------------------------------------- our own mistakes


def test_commit_refuses_outputs_that_do_not_fit(folder: Path) -> None:
    old = contents(folder.parent)
    log, outputs = begin(folder)
    first = outputs[0]
    wrong = {
        "not consecutive": [replace(first, sources=(log.segments[0], log.segments[2]))],
        "does not begin where": [replace(first, base_offset=10)],
        "that it replaces end at 10": [replace(first, sources=log.segments[:1])],
        "that it replaces end at 52": [replace(outputs[1], sources=log.segments[2:])],
    }
    for words, made in wrong.items():
        log, _ = begin(folder)
        with pytest.raises(LogError, match=words):
            end(folder, log, made)
    log_dir.recover(str(folder))
    assert contents(folder.parent) == old


def test_commit_refuses_a_wrong_relative_offset(tmp_path: Path) -> None:
    layout = next(layout for layout in LAYOUTS if layout.further and len(layout.segments) == 3)
    folder = write_layout(tmp_path / "root", layout)
    old = contents(folder.parent)
    wrong: dict[str, Callable[[list[NewSegment]], list[NewSegment]]] = {
        "replaces no segment": lambda made: made[1:],
        # The batches of the second new segment in the first one.
        "too far above its base": lambda made: [replace(made[0], log_path=made[1].log_path)],
        "ends at offset": lambda made: [made[0], replace(made[1], base_offset=3)],
        "end at 2147483655": lambda made: [replace(made[0], sources=made[0].sources[:1]), made[1]],
    }
    for words, change in wrong.items():
        log = log_dir.read_partition(str(folder))
        with pytest.raises(LogError, match=words):
            commit(
                log,
                change(write_staged(folder, layout, log)),
                layout.first_dirty,
                checkpoint_root=str(tmp_path),
            )
        log_dir.recover(str(folder))
        assert contents(folder.parent) == old, words


def test_staged_segment_has_the_given_transaction_index(tmp_path: Path) -> None:
    entries = [AbortedTransaction(7, 1, 4, 3), AbortedTransaction(8, 3, 9, 10)]
    for given in ([], entries):
        staged, made = StagedSegment(0, str(tmp_path), 4096), SegmentOutput(0, 0, 0)
        staged.finish(made, 5_000_000, given)
        assert bool(made.transaction_index_path) == bool(given) and len(made.paths) == (
            4 if given else 3
        )
        for path in made.paths:
            assert path.endswith(".cleaned") and os.stat(path).st_mtime_ns == 5_000_000
    assert decode_aborted(Path(made.transaction_index_path).read_bytes(), 0) == tuple(entries)
    staged.abandon()
    assert not Path(made.transaction_index_path).exists()


def test_commit_without_outputs_moves_only_the_checkpoint(folder: Path) -> None:
    old = contents(folder)
    end(folder, log_dir.read_partition(str(folder)), [])
    assert contents(folder) == old
    assert read_checkpoint(folder.parent, "cleaner-offset-checkpoint") == {
        "u-3": 1,
        "t-0": LAYOUT.first_dirty,
    }


def test_commit_deletes_leftovers_of_other_attempts(folder: Path) -> None:
    """A ``.cleaned`` file at a low offset would make Kafka's loader delete our ``.swap`` files."""
    log, outputs = begin(folder)
    (folder / f"{0:020d}.log.a0.cleaned").write_bytes(b"half")
    (folder / f"{0:020d}.log.cleaned").write_bytes(b"half")
    (folder / f"{0:020d}.log.deleted").write_bytes(b"old")
    end(folder, log, outputs)
    assert offsets_seen(folder) == LAYOUT.new_offsets
    assert not [path for path in folder.iterdir() if path.name.endswith((".cleaned", ".deleted"))]


# ---------------------------------------------------------------------- what the system refuses


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        pytest.skip(f"mounting a small disk needs rights: {made.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_full_disk_leaves_the_old_log(small_disk: Path) -> None:
    folder = write_layout(small_disk / "root", LAYOUT)
    old = contents(folder.parent)
    log, outputs = begin(folder)
    with open(small_disk / "filler", "wb", buffering=0) as filler:
        try:
            while True:
                filler.write(bytes(4096))
        except OSError:
            pass
    with pytest.raises(LogError, match="the disk is full — free some space"):
        end(folder, log, outputs)
    assert contents(folder.parent) == old
    (small_disk / "filler").unlink()
    compact(folder, LAYOUT)
    assert offsets_seen(folder) == LAYOUT.new_offsets


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become somebody who must not write")
def test_unwritable_folder_leaves_the_old_log(folder: Path) -> None:
    log, outputs = begin(folder)
    old = contents(folder.parent)
    for path in (folder, *folder.parents):  # up to the first folder that everybody may write to
        if path.stat().st_mode & 0o1000:
            break
        os.chmod(path, 0o755)

    def as_nobody() -> None:
        os.setuid(65534)
        with pytest.raises(LogError, match="not permitted|denied") as raised:
            end(folder, log, outputs)
        assert raised.value.remedy is not None and "--to" in raised.value.remedy
        with (
            pytest.raises(LogError, match="denied"),
            lock.hold(str(folder.parent), [TopicPartition("t", 0)]),
        ):
            pass

    assert not run_until(0, as_nobody)
    assert contents(folder.parent) == old


# ---------------------------------------------------------------------- the note


NOTE = Intent(
    first_dirty_offset=9, outputs=(0,), sources=(0, 5), kept=(), swaps=("a", "b"), stand_ins=("b",)
)


def test_commit_note_round_trips_and_truncated_notes_are_ignored() -> None:
    other = dataclasses.replace(NOTE, first_dirty_offset=10)
    encoded = encode_intents({"t-0": NOTE, "t-1": other})
    assert [decode_intent(encoded, name) for name in ("t-0", "t-1", "t-2")] == [NOTE, other, None]
    for cut in range(len(encoded)):
        assert decode_intent(encoded[:cut], "t-0") is None
    for text in (
        b"[]",
        b'{"version": 3}',
        b'{"version": 4, "folders": {"t-0": {}}}',
        b'{"version": 3, "folders": []}',
    ):
        assert decode_intent(text, "t-0") is None


def test_concurrent_commits_share_a_note_and_each_removes_only_its_own_entry(
    tmp_path: Path,
) -> None:
    notes, name = CommitNotes(), f"{0:020d}.commit.deleted"
    folders = [tmp_path / f"t-{n}" for n in range(3)]
    for n, folder in enumerate(folders):
        folder.mkdir()
        notes.announce(str(folder), dataclasses.replace(NOTE, first_dirty_offset=n))
    notes.leave(str(folders[0]))
    notes.leave(str(folders[1]))
    assert (folders[0] / name).samefile(folders[1] / name)
    (folders[0] / name).unlink()
    notes.leave(str(folders[2]))
    for n, folder in enumerate(folders[1:], start=1):
        found = decode_intent((folder / name).read_bytes(), folder.name)
        assert found is not None and found.first_dirty_offset == n


def test_note_of_an_earlier_release_is_decoded() -> None:
    encoded = json.dumps({"version": 2, **dataclasses.asdict(NOTE)}).encode()
    assert decode_intent(encoded, "t-0") == NOTE


# ---------------------------------------------------------------------- copies


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_copy_equals_the_result_of_cleaning_in_place(tmp_path: Path, layout: Layout) -> None:
    folder = write_layout(tmp_path / "root", layout)
    write_checkpoint(folder.parent, "log-start-offset-checkpoint", {"t-0": 1, "u-3": 0})
    old = contents(folder.parent)
    compact_to(folder, tmp_path / "to" / "deep" / "t-0", layout)
    assert contents(folder.parent) == old
    compact(folder, layout)
    assert contents(tmp_path / "to" / "deep" / "t-0") == contents(folder)
    root = tmp_path / "to" / "deep"
    assert read_checkpoint(root, "cleaner-offset-checkpoint") == {"t-0": layout.first_dirty}
    assert read_checkpoint(root, "replication-offset-checkpoint") == {
        "t-0": max(layout.old_offsets) + 1
    }
    assert read_checkpoint(root, "log-start-offset-checkpoint") == {"t-0": 1}
    assert sorted(path.name for path in root.iterdir() if path.is_dir()) == ["t-0"]


def test_copy_without_outputs_equals_the_log(folder: Path, tmp_path: Path) -> None:
    (folder / "notes.txt").write_text("not a file of the log")
    (folder / f"{0:020d}.log.a0.cleaned").write_text("half")
    publish_copy(log_dir.read_partition(str(folder)), (), str(tmp_path / "to" / "t-0"), None)
    copied = contents(tmp_path / "to" / "t-0")
    assert copied == {
        name: file
        for name, file in contents(folder).items()
        if not name.endswith((".txt", ".cleaned"))
    }
    assert read_checkpoint(tmp_path / "to", "cleaner-offset-checkpoint") == {"t-0": 0}


def test_copy_refuses_an_existing_partition(folder: Path, tmp_path: Path) -> None:
    old = contents(folder.parent)
    for target in (folder, folder.parent / "u-3"):
        with pytest.raises(InvalidConfig, match="the partition already exists in the target"):
            staging_folder(str(target))
        with pytest.raises(InvalidConfig, match="the partition already exists in the target"):
            publish_copy(log_dir.read_partition(str(folder)), (), str(target), None)
    assert contents(folder.parent) == old


def test_copy_refuses_a_root_that_a_broker_has_locked(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "to" / "t-0"
    log = log_dir.read_partition(str(folder))
    with lock.hold(str(folder.parent), [TopicPartition("t", 0)]):
        # our own lock on the source does not prevent the copy
        publish_copy(log, (), str(target), None)
    shutil.rmtree(target)

    def elsewhere() -> None:
        with pytest.raises(LogHeld):
            publish_copy(log, (), str(target), None)

    with lock.hold(str(tmp_path / "to"), [TopicPartition("t", 0)]):
        assert not run_until(0, elsewhere)
    assert not target.exists()


def test_staging_folder_has_a_name_that_a_broker_deletes(tmp_path: Path) -> None:
    for topic in ("t", "x" * 249):
        name = os.path.basename(staging_folder(str(tmp_path / f"{topic}-12")))
        decoded = decode_folder_name(name)
        assert decoded is not None and decoded.state == "delete" and len(name) <= 255
    assert staging_folder(str(tmp_path / "t-12")) == staging_folder(str(tmp_path / "t-12"))


def test_copy_of_a_half_swapped_log_is_recovered(tmp_path: Path) -> None:
    """The source must not be recovered, but the copy must be."""
    layout = LAYOUTS[7]
    folder = write_layout(tmp_path / "old", layout)
    shutil.copytree(tmp_path / "old", tmp_path / "root")
    folder = tmp_path / "root" / "t-0"
    assert run_until(60, lambda: compact(folder, layout))
    assert [path for path in folder.iterdir() if path.suffix == ".swap"]
    before = contents(folder.parent)
    seen = offsets_seen(folder)
    publish_copy(log_dir.read_partition(str(folder)), (), str(tmp_path / "to" / "t-0"), None)
    assert contents(folder.parent) == before
    assert offsets_seen(tmp_path / "to" / "t-0") == seen
