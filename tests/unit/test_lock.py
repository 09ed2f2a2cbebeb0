"""Tests of locks on partitions.

They cover several processes, one process, a broker, and unwritable folders.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lastwrite.errors import LogHeld
from lastwrite.kafka.format.names import CLEANER_OFFSETS
from lastwrite.kafka.store import lock
from lastwrite.kafka.store.checkpoints import read_offsets, write_offset, write_offsets
from lastwrite.model.log import TopicPartition

A, B, C = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b-c", 0)

_AS_A_BROKER = """
import fcntl, sys
file = open(sys.argv[1] + "/.lock", "a")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""

_AS_A_RUN = """
import sys
from lastwrite.kafka.store import lock
from lastwrite.model.log import TopicPartition
with lock.hold(sys.argv[1], [TopicPartition("a", 0)]):
    print("held", flush=True)
    sys.stdin.read()
"""

_TRY = """
import sys
from lastwrite.errors import LogHeld
from lastwrite.kafka.store import lock
from lastwrite.model.log import TopicPartition
try:
    with lock.hold(sys.argv[1], [TopicPartition("a", int(n)) for n in sys.argv[2:]]):
        print("got it")
except LogHeld as error:
    print(error)
"""

_COUNT = """
import sys
from lastwrite.kafka.store.checkpoints import write_offset
from lastwrite.model.log import TopicPartition
first = int(sys.argv[2])
for n in range(first, first + 40):
    write_offset(sys.argv[1], "recovery-point-offset-checkpoint", TopicPartition("a", n), n)
"""


@contextmanager
def other_process(script: str, root: Path) -> Iterator[subprocess.Popen[str]]:
    arguments = [sys.executable, "-c", script, str(root)]
    with subprocess.Popen(
        arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        yield process
        process.communicate()


def attempt(root: Path, *partitions: int) -> str:
    arguments = [sys.executable, "-c", _TRY, str(root), *map(str, partitions)]
    return subprocess.run(arguments, capture_output=True, text=True, check=True).stdout.strip()


def test_root_locked_by_a_broker_is_refused(tmp_path: Path) -> None:
    with other_process(_AS_A_BROKER, tmp_path) as broker:
        assert lock.is_locked(str(tmp_path)) and lock.is_locked(str(tmp_path), [C])
        with (
            pytest.raises(LogHeld, match="stop the broker first") as raised,
            lock.hold(str(tmp_path), [A]),
        ):
            pass
        assert raised.value.path == str(tmp_path / ".lock")
        assert f"the log root is locked by a broker (process {broker.pid})" in str(raised.value)
        with pytest.raises(LogHeld):
            lock.reject_if_locked(str(tmp_path))
        with pytest.raises(LogHeld), lock.root_turn(str(tmp_path)):
            pass
        with lock.try_lock(str(tmp_path), [A, B]) as got:
            assert got == set()
        assert str(lock.broker_of(str(tmp_path))) == str(raised.value)
    assert lock.broker_of(str(tmp_path)) is None


def test_another_process_locks_only_its_partitions(tmp_path: Path) -> None:
    with other_process(_AS_A_RUN, tmp_path) as run:
        assert lock.is_locked(str(tmp_path), [A]) and not lock.is_locked(str(tmp_path), [B, C])
        assert lock.is_locked(str(tmp_path)), "some of it is"
        assert lock.broker_of(str(tmp_path)) is None
        with pytest.raises(LogHeld, match=rf"a-0 is locked by another run \(process {run.pid}\)"):
            lock.reject_if_locked(str(tmp_path), [B, A])
        with lock.hold(str(tmp_path), [B, C]):
            assert attempt(tmp_path, 0).count(f"process {run.pid}") == 1
            assert f"process {os.getpid()}" in attempt(tmp_path, 1)
        with lock.try_lock(str(tmp_path), [A, B, C]) as got:
            assert got == {B, C}


def test_lock_of_several_partitions_is_all_or_nothing(tmp_path: Path) -> None:
    with other_process(_AS_A_RUN, tmp_path):
        with pytest.raises(LogHeld), lock.hold(str(tmp_path), [A, B, C]):
            pass
        assert not lock.is_locked(str(tmp_path), [B, C])
        assert attempt(tmp_path, 1) == "got it"


def test_killed_process_releases_its_locks(tmp_path: Path) -> None:
    with other_process(_AS_A_RUN, tmp_path) as run:
        assert lock.is_locked(str(tmp_path), [A])
        os.kill(run.pid, signal.SIGKILL)
        run.wait()
        with lock.hold(str(tmp_path), [A]):
            pass


def test_lock_on_one_partition_prevents_a_broker_start(tmp_path: Path) -> None:
    script = "import fcntl, sys\nfcntl.lockf(open(sys.argv[1] + '/.lock', 'a'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    start = [sys.executable, "-c", script, str(tmp_path)]
    with lock.hold(str(tmp_path), [C]):
        refused = subprocess.run(start, capture_output=True, text=True, check=False)
        assert refused.returncode == 1 and "BlockingIOError" in refused.stderr
    assert subprocess.run(start, check=False).returncode == 0


def test_check_of_an_unlocked_root_creates_no_file(tmp_path: Path) -> None:
    lock.reject_if_locked(str(tmp_path))
    assert not (tmp_path / ".lock").exists(), "looking makes no file"
    (tmp_path / ".lock").touch()
    assert not lock.is_locked(str(tmp_path)) and not lock.is_locked(str(tmp_path), [A])


def test_own_lock_excludes_other_processes_and_the_same_process(tmp_path: Path) -> None:
    with lock.hold(str(tmp_path), [A]):
        assert lock.holds(str(tmp_path), A) and not lock.holds(str(tmp_path), B)
        assert lock.is_locked(str(tmp_path)) and lock.is_locked(str(tmp_path), [A])
        with (
            pytest.raises(LogHeld, match="in this process"),
            lock.hold(str(tmp_path / "." / ""), [B, A]),
        ):
            pass
        with lock.hold(str(tmp_path), [B]):
            pass
        # The first lock is still held. Closing any handle of the lock file would have released it.
        assert "another run" in attempt(tmp_path, 0)
        assert attempt(tmp_path, 1) == "got it"
    assert not lock.is_locked(str(tmp_path))
    assert attempt(tmp_path, 0, 1) == "got it"


def test_error_inside_the_lock_releases_it(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), lock.hold(str(tmp_path), [A]):
        raise RuntimeError
    with lock.hold(str(tmp_path), [A]):
        pass


def test_locks_of_two_roots_are_independent(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with lock.hold(str(tmp_path / "a"), [A]), lock.hold(str(tmp_path / "b"), [A]):
        assert lock.holds(str(tmp_path / "a"), A) and lock.holds(str(tmp_path / "b"), A)


def test_root_turn_waits_but_locks_no_partition(tmp_path: Path) -> None:
    order = []

    def second() -> None:
        with lock.root_turn(str(tmp_path)):
            order.append("second")

    with lock.root_turn(str(tmp_path)):
        other = threading.Thread(target=second)
        other.start()
        assert attempt(tmp_path, 0) == "got it"
        assert not lock.is_locked(str(tmp_path))
        time.sleep(0.05)
        order.append("first")
    other.join()
    assert order == ["first", "second"]


def test_concurrent_checkpoint_writers_lose_no_entry(tmp_path: Path) -> None:
    runs = [
        subprocess.Popen([sys.executable, "-c", _COUNT, str(tmp_path), str(first)])
        for first in (100, 200, 300)
    ]
    for n in range(40):
        write_offset(str(tmp_path), "recovery-point-offset-checkpoint", TopicPartition("a", n), n)
    assert [run.wait() for run in runs] == [0, 0, 0]
    found = read_offsets(str(tmp_path), "recovery-point-offset-checkpoint")
    assert sorted(name.partition for name in found) == [
        n for first in (0, 100, 200, 300) for n in range(first, first + 40)
    ]
    assert not read_offsets(str(tmp_path), CLEANER_OFFSETS)


def test_several_checkpoint_entries_change_at_once(tmp_path: Path) -> None:
    a, b, c, gone = (TopicPartition("a", n) for n in range(4))
    for name in (a, b, c):
        (tmp_path / str(name)).mkdir()
    write_offsets(str(tmp_path), CLEANER_OFFSETS, {a: 1, b: 2, gone: 9})
    assert dict(read_offsets(str(tmp_path), CLEANER_OFFSETS)) == {a: 1, b: 2, gone: 9}
    write_offsets(str(tmp_path), CLEANER_OFFSETS, {a: None, b: 3, c: 4})
    # The folder of partition a no longer exists.
    assert dict(read_offsets(str(tmp_path), CLEANER_OFFSETS)) == {
        b: 3,
        c: 4,
    }


def test_every_partition_has_its_own_lock_byte(tmp_path: Path) -> None:
    bytes_ = {
        lock.byte_of(TopicPartition(topic, n)) for topic in ("a", "a-1", "1") for n in range(500)
    }
    assert len(bytes_) == 1500 and min(bytes_) > 0 and max(bytes_) < 2**63 - 1


def test_forked_child_has_no_locks(tmp_path: Path) -> None:
    with lock.hold(str(tmp_path), [A]):
        child = os.fork()
        if not child:
            with lock.try_lock(str(tmp_path), [A, B]) as got:
                os._exit(0 if got == {B} and not lock.holds(str(tmp_path), A) else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert "another run" in attempt(tmp_path, 0)


def test_flock_does_not_see_the_record_lock(tmp_path: Path) -> None:
    """A record lock is used, because ``flock`` does not conflict with it."""
    with lock.hold(str(tmp_path), [A]), open(tmp_path / ".lock") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
