"""Tests of the lock of a RocketMQ store, beside a broker's first byte, and of the file ``abort``."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import lastwrite
from lastwrite.errors import InvalidConfig, LogHeld
from lastwrite.model.log import TopicPartition
from lastwrite.rocketmq.store import lock
from lastwrite.spark.inline import INLINE
from lastwrite.storage import lock as locking
from tests.support.rocketmq.model import START_MS, ModelQueue, message, read_files, write_store

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)

# Java: ``FileChannel.tryLock(0, 1, false)``, which locks the first byte exclusively.
_BROKER = """
import fcntl, sys
file = open(sys.argv[1] + "/lock", "r+b")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
print("held", flush=True)
sys.stdin.read()
"""

_OPENED = """
import sys
file = open(sys.argv[1] + "/lock", "r+b")
print("held", flush=True)
sys.stdin.read()
"""

_RUN = """
import sys
from lastwrite.rocketmq.store import lock
from lastwrite.model.log import TopicPartition
with lock.hold(sys.argv[1], [TopicPartition("t", 0)]):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "lock").write_bytes(b"lock")
    return tmp_path


@contextmanager
def other_process(script: str, root: Path) -> Iterator[subprocess.Popen[str]]:
    arguments = [sys.executable, "-c", script, str(root)]
    with subprocess.Popen(
        arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        yield process
        process.communicate()


def test_store_served_by_a_broker_is_refused_to_writers(root: Path) -> None:
    with other_process(_BROKER, root) as broker:
        for names in ([T0], None):
            lock.reject_if_locked(str(root), names)  # reading is allowed
        with pytest.raises(LogHeld, match="the store is locked by"), lock.hold(str(root), [T0]):
            pass
        with pytest.raises(LogHeld), lock.exclusive(str(root)):
            pass
        with lock.try_lock(str(root), [T0, T1]) as got:
            assert not got
        assert str(lock.broker_of(str(root))) == (
            f"{root}/lock: the store is locked by a broker (process {broker.pid}) — stop the broker first [LW-401]"
        )
    assert lock.broker_of(str(root)) is None
    with lock.hold(str(root), [T0]):
        assert lock.holds(str(root), T0) and not lock.holds(str(root), T1)


IN_PLACE: dict[str, Callable[[str], object]] = {
    "compact": lambda root: lastwrite.compact(root, spark=INLINE),
    "dispatch": lambda root: lastwrite.dispatch(root, spark=INLINE),
    "cut": lambda root: lastwrite.cut(root, at=0, dry_run=True),
    "restore": lambda root: lastwrite.restore(root, topic="t", name_server="127.0.0.1:1"),
}
COMMANDS = {
    **IN_PLACE,
    "plan": lambda root: lastwrite.plan(root, spark=INLINE),
    "compact --to": lambda root: lastwrite.compact(root, to=f"{root}.copy", spark=INLINE),
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    queue = ModelQueue(5 * 276, 276)
    for n in range(30):
        queue.append(message(n, "k", b"", START_MS))
    root = tmp_path_factory.mktemp("blamed") / "store"
    write_store(root, [queue])
    (root / "commitlog").mkdir(exist_ok=True)
    (root / "lock").write_bytes(b"lock")
    (root / "abort").write_text("4711")
    return root


@pytest.mark.parametrize("command", IN_PLACE)
def test_every_command_names_a_live_brokers_lock(store: Path, command: str) -> None:
    with other_process(_BROKER, store) as broker, pytest.raises(LogHeld) as told:
        COMMANDS[command](str(store))
    said = f"{store}/lock: the store is locked by a broker (process {broker.pid}) — stop the broker first [LW-401]"
    assert str(told.value) == said


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_names_abort_after_a_kill(store: Path, command: str) -> None:
    with pytest.raises(LogHeld) as told:
        COMMANDS[command](str(store))
    assert str(told.value).startswith(
        f"{store}/abort: the store's broker (process 4711) was killed, or is running and its lock"
    )


def test_daemon_uses_the_same_messages(store: Path) -> None:
    said: list[str] = []
    for script in (_BROKER, _OPENED):
        with other_process(script, store):
            lastwrite.clean(
                [str(store)], once=True, spark=INLINE, tell=lambda e: said.append(e.text)
            )
    live, killed = said
    assert "— stop the broker first [LW-401]; nothing is compacted there until then" in live
    assert killed.startswith(f"{store}/abort: the store's broker (process 4711) was killed")


def test_round_blocks_a_broker_but_not_rounds_on_other_queues(root: Path) -> None:
    with other_process(_RUN, root) as run:
        refused = subprocess.run(
            [sys.executable, "-c", _BROKER, str(root)], capture_output=True, text=True, check=False
        )
        assert refused.returncode == 1 and "BlockingIOError" in refused.stderr
        with lock.hold(str(root), [T1]), lock.exclusive(str(root)):
            assert lock.broker_of(str(root)) is None
        with (
            pytest.raises(LogHeld, match=rf"t-0 is locked by another run \(process {run.pid}\)"),
            lock.hold(str(root), [T0, T1]),
        ):
            pass
        with pytest.raises(LogHeld):
            lock.reject_if_locked(str(root))
        lock.reject_if_locked(str(root), [T1])
        assert lock.broker_of(str(root)) is None
    with other_process(_BROKER, root):
        pass
    assert (root / "lock").read_bytes() == b"lock"


def test_two_rounds_of_one_process_take_turns(root: Path) -> None:
    inside, order = threading.Event(), []

    def other() -> None:
        with lock.hold(str(root), [T1]), lock.exclusive(str(root)):
            order.append("other")

    with lock.hold(str(root), [T0]), lock.exclusive(str(root)):
        thread = threading.Thread(target=other)
        thread.start()
        inside.wait(0.1)
        order.append("first")
    thread.join()
    assert order == ["first", "other"]


@pytest.mark.skipif(not hasattr(fcntl, "F_SETLEASE"), reason="only Linux says who has a file open")
def test_starting_broker_is_recognised_by_its_open_file(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locking, "_OPEN_S", 0.1)
    with lock.hold(str(root), [T0]), lock.exclusive(str(root)):
        with lock.unopened(str(root)):
            pass
        with other_process(_OPENED, root):
            with (
                pytest.raises(LogHeld, match="it may be a broker that is starting"),
                lock.unopened(str(root)),
            ):
                pass
        with lock.unopened(str(root)):
            # A process that opens the file now waits, and our process continues.
            opening = subprocess.Popen(
                [sys.executable, "-c", _OPENED, str(root)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            waited = threading.Event()
            assert not waited.wait(0.5)
        assert opening.stdout is not None and opening.stdout.readline() == "held\n"
        opening.communicate()


def test_other_round_with_the_file_open_is_not_a_broker(root: Path) -> None:
    with (
        other_process(_RUN, root),
        lock.hold(str(root), [T1]),
        lock.exclusive(str(root)),
        lock.unopened(str(root)),
    ):
        pass


def test_unclean_store_is_refused_without_the_option(root: Path) -> None:
    lock.reject_unclean(str(root), goes_on=False)
    (root / "abort").touch()
    with pytest.raises(LogHeld, match="killed.*--unclean"):
        lock.reject_unclean(str(root), goes_on=False)
    (root / "abort").write_bytes(b"4711")
    with pytest.raises(LogHeld, match=r"process 4711\) was killed"):
        lock.reject_unclean(str(root), goes_on=False)
    lock.reject_unclean(str(root), goes_on=True)
    assert lock.was_killed(str(root))
    with other_process(_BROKER, root):  # a broker runs
        lock.reject_unclean(str(root), goes_on=False)


def test_lock_file_is_created_only_for_a_round(tmp_path: Path) -> None:
    lock.reject_if_locked(str(tmp_path))
    assert not os.listdir(tmp_path)
    with lock.hold(str(tmp_path), [T0]):
        assert os.listdir(tmp_path) == ["lock"]


def test_lock_byte_of_a_queue_differs_from_the_reserved_bytes() -> None:
    bytes_ = {lock.PLACE.byte_of(TopicPartition("t", n)) for n in range(500)}
    assert len(bytes_) == 500 and min(bytes_) > 1 and max(bytes_) < 2**63 - 1


# ---------------------------------------------------------------------- links


def compacted_store(folder: Path) -> Path:
    """A store that a broker has used, with a queue of ``ctopic`` that a round would compact."""
    queue = ModelQueue(5 * 276, 276)
    for n in range(23):
        queue.append(message(n, f"k{n % 7}", b"body", START_MS + n))
    write_store(folder, [queue])
    (folder / "config").mkdir()
    (folder / "config" / "topics.json").write_text("{}")
    (folder / "checkpoint").write_bytes(bytes(4096))
    (folder / "lock").write_bytes(b"lock")
    return folder


def test_symbolic_link_does_not_bypass_the_brokers_lock(tmp_path: Path) -> None:
    """By any path, the lock is taken in the store that has the files."""
    store = compacted_store(tmp_path / "store")
    before = read_files(store)
    beside = tmp_path / "beside"
    beside.mkdir()
    (beside / "compaction").symlink_to(store / "compaction")
    (tmp_path / "whole").symlink_to(store)
    (tmp_path / "queue").symlink_to(store / "compaction" / "compactionLog" / "ctopic" / "0")
    (tmp_path / "mount").mkdir()
    (tmp_path / "mount" / "compaction").mkdir()
    (tmp_path / "mount" / "compaction" / "compactionLog").symlink_to(
        store / "compaction" / "compactionLog"
    )
    (tmp_path / "mount" / "compaction" / "compactionCq").symlink_to(
        store / "compaction" / "compactionCq"
    )
    ways = (
        beside,
        beside / "compaction",
        tmp_path / "whole",
        tmp_path / "queue",
        tmp_path / "mount",
    )
    with other_process(_BROKER, store):
        for way in ways:
            with pytest.raises(LogHeld):
                lastwrite.compact(str(way), now_ms=START_MS, spark=INLINE)
            assert read_files(store) == before, way
    assert not (beside / "lock").exists()
    report = lastwrite.compact(str(beside), now_ms=START_MS, spark=INLINE)
    assert report.partitions[0].status == "cleaned" and read_files(store) != before
    assert (beside / "compaction").is_symlink()


def test_store_with_a_part_of_another_store_is_refused(tmp_path: Path) -> None:
    store, other = compacted_store(tmp_path / "store"), compacted_store(tmp_path / "other")
    shutil.rmtree(other / "compaction")
    (other / "compaction").symlink_to(store / "compaction")
    before = read_files(store)
    for work in (lastwrite.compact, lastwrite.dispatch):
        with pytest.raises(InvalidConfig, match="leads from here into the store"):
            work(str(other), spark=INLINE)
    assert read_files(store) == before


def test_tree_on_another_disk_belongs_to_the_store(tmp_path: Path) -> None:
    store = compacted_store(tmp_path / "store")
    (tmp_path / "disk2").mkdir()
    (store / "compaction").rename(tmp_path / "disk2" / "compaction")
    (store / "compaction").symlink_to(tmp_path / "disk2" / "compaction")
    with other_process(_BROKER, store), pytest.raises(LogHeld):
        lastwrite.compact(str(store), now_ms=START_MS, spark=INLINE)
    assert (
        lastwrite.compact(str(store), now_ms=START_MS, spark=INLINE).partitions[0].status
        == "cleaned"
    )
