"""The broker's lock: seen from other processes, from this one, and from a folder that cannot be written."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lastwrite.errors import LogHeld
from lastwrite.logstore import lock

_HOLD = """
import fcntl, sys
file = open(sys.argv[1], "a")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""

_TRY = """
import sys
from lastwrite.errors import LogHeld
from lastwrite.logstore import lock
try:
    with lock.hold(sys.argv[1]):
        print("got it")
except LogHeld as error:
    print(error)
"""


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Path]:
    """A root whose lock another process holds, as a broker does."""
    arguments = [sys.executable, "-c", _HOLD, str(tmp_path / ".lock")]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as broker:
        assert broker.stdout is not None and broker.stdout.readline() == "held\n"
        yield tmp_path
        broker.communicate()


def attempt(root: Path) -> str:
    return subprocess.run([sys.executable, "-c", _TRY, str(root)], capture_output=True, text=True, check=True).stdout


def test_a_root_that_a_broker_holds_is_refused(held: Path) -> None:
    assert lock.is_held(str(held))
    with pytest.raises(LogHeld, match="stop it first") as raised, lock.hold(str(held)):
        pass
    assert raised.value.path == str(held / ".lock")
    with pytest.raises(LogHeld):
        lock.refuse_if_held(str(held))


def test_a_root_that_nobody_holds_is_free_and_the_file_says_nothing(tmp_path: Path) -> None:
    lock.refuse_if_held(str(tmp_path))
    assert not (tmp_path / ".lock").exists(), "looking makes no file"
    (tmp_path / ".lock").touch()
    assert not lock.is_held(str(tmp_path))


def test_what_we_hold_others_and_ourselves_cannot(tmp_path: Path) -> None:
    with lock.hold(str(tmp_path)):
        assert lock.holds(str(tmp_path)) and lock.is_held(str(tmp_path))
        with pytest.raises(LogHeld, match="in this process"), lock.hold(str(tmp_path / "." / "")):
            pass
        # Looking has not let go of it: to close any handle of the file would have.
        assert "a broker or another run" in attempt(tmp_path)
    assert not lock.is_held(str(tmp_path))
    assert attempt(tmp_path) == "got it\n"


def test_an_error_inside_lets_go(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), lock.hold(str(tmp_path)):
        raise RuntimeError
    with lock.hold(str(tmp_path)):
        pass


def test_two_roots_are_held_apart(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with lock.hold(str(tmp_path / "a")), lock.hold(str(tmp_path / "b")):
        assert lock.holds(str(tmp_path / "a")) and lock.holds(str(tmp_path / "b"))


def test_flock_would_not_do(tmp_path: Path) -> None:
    """Why it is a record lock: the other kind does not see it."""
    with lock.hold(str(tmp_path)), open(tmp_path / ".lock") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
