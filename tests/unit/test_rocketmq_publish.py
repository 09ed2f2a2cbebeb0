"""Tests of publications: refusals, copies, and the order of syncs.

For killed publications see ``tests/system/test_crash_rocketmq_publish.py``.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lastwrite.errors import CommitConflict, CorruptLog, InvalidConfig, LogError, LogHeld
from lastwrite.model.log import PartitionLog, Segment, TopicPartition
from lastwrite.rocketmq.format.names import file_name
from lastwrite.rocketmq.store import lock, publish
from lastwrite.rocketmq.store.publish import Pair, QueueChange
from lastwrite.rocketmq.store.topic_copies import copy_config
from lastwrite.storage import files
from lastwrite.storage.files import FaultPoints
from tests.support.rocketmq.trees import (
    INDEX_BYTES,
    LAYOUTS,
    LOG_BYTES,
    T0,
    T1,
    U0,
    changes,
    compact,
    contents,
    load_like_broker,
    pair_of,
    write_layout,
)

LAYOUT = LAYOUTS[1]  # two queues change, the third does not
FIRST, SECOND = file_name(0), file_name(LOG_BYTES)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_layout(tmp_path / "store", LAYOUT)


def without_staged(root: Path) -> dict[str, bytes | None]:
    return {name: file for name, file in contents(root).items() if "lastwrite-aside" not in name}


# ---------------------------------------------------------------------- what it leaves


def test_unchanged_files_are_hard_linked(root: Path) -> None:
    stays = [
        *Path(publish.queue_folders(str(root), U0)[0]).iterdir(),
        Path(publish.queue_folders(str(root), T0)[1], SECOND),
    ]
    seen = [path.stat().st_ino for path in stays]
    compact(root, LAYOUT)
    assert [path.stat().st_ino for path in stays] == seen
    assert load_like_broker(root) == (LAYOUT.new, LAYOUT.new_positions)
    assert sorted(path.name for path in root.iterdir()) == ["compaction", "lock"]
    assert not publish.leftovers(str(root))


def test_unchanged_files_are_copied_without_link_support(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    compact(root, LAYOUT)
    assert load_like_broker(root) == (LAYOUT.new, LAYOUT.new_positions)


def test_publication_keeps_file_modes(root: Path) -> None:
    log, _ = publish.queue_folders(str(root), T0)
    os.chmod(log, 0o750)
    for path in Path(log).iterdir():
        os.chmod(path, 0o640)
    compact(root, LAYOUT)
    assert stat.S_IMODE(os.stat(log).st_mode) == 0o750
    assert {stat.S_IMODE(path.stat().st_mode) for path in Path(log).iterdir()} == {0o640}


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may give a file away"
)
def test_publication_keeps_the_owner(root: Path) -> None:
    for path in [root / "compaction", *(root / "compaction").rglob("*")]:
        os.chown(path, 1234, 1235)
    compact(root, LAYOUT)
    found = {
        (path.stat().st_uid, path.stat().st_gid)
        for path in [root / "compaction", *(root / "compaction").rglob("*")]
    }
    assert found == {(1234, 1235)}


def test_symbolic_links_in_the_tree_are_kept(root: Path) -> None:
    (root / "far").mkdir()
    (root / "compaction" / "compactionLog" / "away").symlink_to(root / "far")
    compact(root, LAYOUT)
    assert os.readlink(root / "compaction" / "compactionLog" / "away") == str(root / "far")
    assert (root / "far").is_dir()


# ---------------------------------------------------------------------- what is refused


def marked(root: Path) -> None:
    path = Path(publish.queue_folders(str(root), T0)[0], FIRST)
    path.rename(f"{path}.delete")


def replicating(root: Path) -> None:
    folder = Path(publish.queue_folders(str(root), T0)[0], "replicating")
    folder.mkdir()
    (folder / FIRST).write_bytes(b"pulled")


def without_index(root: Path) -> None:
    Path(publish.queue_folders(str(root), T0)[1], SECOND).unlink()


@pytest.mark.parametrize(
    ("harm", "kind", "words"),
    [
        (marked, CorruptLog, "killed while it replaced"),
        (replicating, CorruptLog, "while it copied this queue"),
        (without_index, LogError, "would exist|another program deleted"),
    ],
)
def test_unfinished_queue_is_left_unchanged_and_the_others_are_published(
    root: Path, harm: Callable[[Path], None], kind: type[LogError], words: str
) -> None:
    harm(root)
    before = {name: file for name, file in contents(root).items() if "/t/0" in name}
    with lock.hold(str(root), LAYOUT.before):
        wave = changes(root, LAYOUT)
        first, second = publish.publish(str(root), wave)
        publish.delete_replaced(str(root), [T0, T1])
    assert isinstance(first, kind) and second is None
    with pytest.raises(kind, match=words):
        raise first
    assert first.path is not None and "/t/0" in first.path
    assert {name: file for name, file in contents(root).items() if "/t/0" in name} == before
    assert sorted(os.listdir(publish.queue_folders(str(root), T1)[0])) == [
        file_name(n * LOG_BYTES) for n in LAYOUT.after[T1]
    ]


def made(root: Path, place: int, offsets: list[int], name: str | None = None) -> Pair:
    folder = publish.staging_folder(str(root), T0)
    paths = [os.path.join(folder, f"{place}.{kind}") for kind in ("log", "index")]
    for path, content in zip(paths, pair_of(T0, place, offsets, is_closed=False), strict=True):
        Path(path).write_bytes(content)
    return Pair(name or file_name(place * LOG_BYTES), *paths)


def test_inconsistent_change_is_refused_before_the_store_changes(root: Path) -> None:
    old = without_staged(root)

    def change(*pairs: Pair, gone: tuple[str, ...] = ()) -> QueueChange:
        return QueueChange(name=T0, removed=gone, pairs=pairs)

    wrong = {
        "already exists and is not replaced": lambda: change(made(root, 0, [1])),
        "is not a valid file name": lambda: change(made(root, 0, [1], "0.log"), gone=(FIRST,)),
        "the file size": lambda: change(made(root, 0, [1], file_name(1000)), gone=(FIRST,)),
        "has no record": lambda: change(made(root, 0, []), gone=(FIRST,)),
        "offsets would begin at 0 again": lambda: change(gone=(FIRST, SECOND)),
        "the same name": lambda: change(made(root, 0, [1]), made(root, 0, [1]), gone=(FIRST,)),
        "the other files have": lambda: change(
            replace(made(root, 0, [1]), index_path=__file__), gone=(FIRST,)
        ),
        "another program deleted the file": lambda: change(gone=(file_name(9 * LOG_BYTES),)),
        "could not check the new file": lambda: change(
            Pair(FIRST, "nowhere", "nowhere"), gone=(FIRST,)
        ),
    }
    with lock.hold(str(root), [T0]):
        for words, make in wrong.items():
            (error,) = publish.publish(str(root), [make()])
            with pytest.raises(LogError, match=words):
                raise error or AssertionError(words)
            publish.recover(str(root), T0)
    assert contents(root) == old


def test_queue_changed_since_it_was_read_is_left_unchanged(root: Path) -> None:
    folder = publish.queue_folders(str(root), T0)[0]
    path = os.path.join(folder, FIRST)
    seen = os.stat(path)
    segment = Segment(0, path, seen.st_size, seen.st_mtime_ns, -1)
    log = PartitionLog(T0, folder, (segment,), 0, 3, 3, None)
    old = without_staged(root)
    with lock.hold(str(root), LAYOUT.before):
        wave = [
            replace(change, log=log) if change.name == T0 else change
            for change in changes(root, LAYOUT)
        ]
        os.utime(path)
        outcomes = publish.publish(str(root), wave[:1])
        assert (
            isinstance(outcomes[0], CommitConflict)
            and "another program changed" in outcomes[0].problem
        )
        for name in LAYOUT.before:
            publish.recover(str(root), name)
    assert contents(root) == old


def test_queue_outside_the_tree_is_refused(root: Path, tmp_path: Path) -> None:
    log, _ = publish.queue_folders(str(root), T0)
    os.rename(log, tmp_path / "away")
    os.symlink(tmp_path / "away", log)
    with lock.hold(str(root), [T0]):
        (error,) = publish.publish(str(root), changes(root, LAYOUT)[:1])
    assert isinstance(error, LogError) and "leads out of the tree" in error.problem


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOSYS, errno.EXDEV, errno.EBUSY])
def test_file_system_without_exchange_is_reported_before_a_round(
    root: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(one: bytes, other: bytes) -> int:
        ctypes.set_errno(number)
        return -1

    monkeypatch.setattr(files, "_swap_names", refuse)
    old = contents(root)
    with lock.hold(str(root), [T0]), pytest.raises(LogError) as raised:
        publish.staging_folder(str(root), T0)
    assert raised.value.remedy and "--to" in raised.value.remedy
    assert contents(root) == old


def test_only_remaining_tree_is_never_removed(root: Path) -> None:
    (root / "compaction").rename(root / "compaction.lastwrite")
    old = contents(root)
    with (
        lock.hold(str(root), [T0]),
        pytest.raises(CommitConflict, match="is missing, but the folder beside it"),
    ):
        publish.recover(str(root), T0)
    assert contents(root) == old


def test_store_without_a_tree_gets_one(tmp_path: Path) -> None:
    root = tmp_path / "store"
    (root / "config").mkdir(parents=True)
    with lock.hold(str(root), [T0]):
        wave = [QueueChange(name=T0, pairs=[made(root, 0, [0, 1])], position=1)]
        assert publish.publish(str(root), wave) == [None]
        publish.delete_replaced(str(root), [T0])
    assert load_like_broker(root) == ({T0: [0, 1]}, {T0: 1})
    assert sorted(path.name for path in root.iterdir()) == ["compaction", "config", "lock"]


# ---------------------------------------------------------------------- copies


def test_copy_omits_the_counts_of_delayed_messages(tmp_path: Path) -> None:
    """Otherwise a broker on the copy would skip as many new delayed messages."""
    source, target = tmp_path / "store", tmp_path / "copy"
    (source / "config").mkdir(parents=True)
    target.mkdir()
    for name in ("topics.json", "consumerOffset.json", "delayOffset.json", "timercheck"):
        (source / "config" / name).write_bytes(b"{}")
        (source / "config" / f"{name}.bak").write_bytes(b"{}")
    copy_config(str(source), str(target))
    assert sorted(path.name for path in (target / "config").iterdir()) == [
        "consumerOffset.json",
        "consumerOffset.json.bak",
        "topics.json",
        "topics.json.bak",
    ]


def test_copy_has_the_new_queue_and_the_original_is_unchanged(root: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    old = contents(root)
    wave = [
        replace(
            change,
            source=str(root),
            pairs=[_moved(target, change.name, pair) for pair in change.pairs],
        )
        for change in changes(root, LAYOUT)
    ]
    with lock.hold(str(root), LAYOUT.before):
        for name in LAYOUT.before:
            publish.recover(str(root), name)
    assert publish.publish_copies(str(target), wave[:1]) == [None]
    publish.delete_replaced(str(target), [T0])
    assert load_like_broker(target) == ({T0: LAYOUT.new[T0]}, {T0: 1})
    assert publish.publish_copies(
        str(target), [*wave[1:], QueueChange(name=U0, source=str(root))]
    ) == [
        None,
        None,
    ]
    publish.delete_replaced(str(target), [T1, U0])
    assert load_like_broker(target) == (LAYOUT.new, LAYOUT.new_positions)
    (error,) = publish.publish_copies(str(target), [QueueChange(name=U0, source=str(root))])
    assert isinstance(error, InvalidConfig)
    assert contents(root) == old
    assert sorted(path.name for path in target.iterdir()) == ["compaction", "lock"]
    log = Path(publish.queue_folders(str(target), U0)[0], FIRST)
    assert log.stat().st_nlink == 1 and log.stat().st_size == LOG_BYTES


def _moved(target: Path, name: TopicPartition, pair: Pair) -> Pair:
    folder = publish.staging_folder(str(target), name)
    paths = [
        os.path.join(folder, os.path.basename(path)) for path in (pair.log_path, pair.index_path)
    ]
    for old, new in zip((pair.log_path, pair.index_path), paths, strict=True):
        Path(new).write_bytes(Path(old).read_bytes())
    return Pair(pair.name, *paths)


def test_copy_to_a_locked_store_is_refused(root: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    target.mkdir()
    (target / "lock").touch()
    script = "import fcntl, sys; f = open(sys.argv[1], 'a'); fcntl.lockf(f, fcntl.LOCK_EX, 1); print(1, flush=True)"
    script += "; input()"
    arguments = [sys.executable, "-c", script, str(target / "lock")]
    with subprocess.Popen(
        arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as broker:
        assert broker.stdout is not None and broker.stdout.readline()
        (error,) = publish.publish_copies(str(target), [QueueChange(name=U0, source=str(root))])
        assert isinstance(error, LogHeld) and "a broker" in error.problem
        broker.communicate("\n")


def test_replaced_tree_is_tested_for_exchange_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = set()
    for _ in range(3):  # most file systems reuse the inode of the removed tree
        monkeypatch.setattr(files, "faults", FaultPoints(1 << 30))
        root = write_layout(tmp_path / "store", LAYOUT)
        files.faults.passed = 0
        publish.staging_folder(str(root), T0)
        passed.add(files.faults.passed)
        shutil.rmtree(root)
    assert len(passed) == 1


# ---------------------------------------------------------------------- what a loss of power needs


def test_all_files_are_synced_before_the_exchange_and_deleted_after_it(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[tuple[str, str]] = []

    class Listening(FaultPoints):
        def reach(self, operation: str, path: str) -> None:
            done.append((operation, path))

    listening = Listening(1 << 30)  # set up in advance, to record all operations
    monkeypatch.setattr(files, "faults", listening)
    compact(root, LAYOUT)
    exchanged = max(n for n, (operation, _) in enumerate(done) if operation == "exchange")
    next_tree = str(root / "compaction.lastwrite")
    begun = max(
        n for n, (operation, path) in enumerate(done) if operation == "mkdir" and path == next_tree
    )
    changed: dict[str, int] = {}
    synced: dict[str, int] = {}
    for n, (operation, path) in enumerate(done[begun:exchanged]):
        if operation in ("link", "rename", "write", "mkdir", "copy", "symlink"):
            changed[os.path.dirname(path)] = n
            if operation != "mkdir" and "/t/" in path.removeprefix(str(root)):
                changed[path] = n
            if operation == "mkdir":
                changed[path] = n
        elif operation in ("fsync", "fsync folder"):
            synced[path] = n
    late = {path: n for path, n in changed.items() if synced.get(path, -1) <= n}
    assert not late
    assert {path for path in changed if path.startswith(next_tree)}
    assert done[exchanged + 1] == ("fsync folder", str(root))
    assert all(operation not in ("unlink", "rmdir") for operation, _ in done[begun:exchanged])
    assert any(operation == "unlink" for operation, _ in done[exchanged:])


def test_file_sizes_of_the_tree_are_a_brokers() -> None:
    assert (LOG_BYTES, INDEX_BYTES) == (6072, 1012)
