"""Tests of a cut and of its undo, killed before every file operation.

A broker finds the old store, the new one, or a guard file that prevents its start. An undo restores
the old store byte for byte.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import lastwrite
from lastwrite.rocketmq.store import cutting, lock
from lastwrite.storage import files
from lastwrite.storage.files import FaultPoints
from tests.support.rocketmq.dispatch import Files, write_files
from tests.unit.test_rocketmq_cut import everything, served, some, stored, timer_files


def killed_at(point: int, work: Callable[[], object]) -> bool:
    """Run ``work`` in a child process that kills itself before operation ``point``.

    Returns False if ``work`` ended before that operation.
    """
    child = os.fork()
    if child == 0:
        files.faults = FaultPoints(point)
        try:
            work()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory if there is one. Disk speed does not matter to these tests."""
    shm = Path("/dev/shm")
    if not os.access(shm, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="lastwrite-crash-", dir=shm) as folder:
        yield Path(folder)


def opened(root: Path) -> Files:
    """The files that a broker opens. Our own files beside them are left out."""
    return {name: data for name, data in served(root).items() if ".cut" not in name}


@pytest.mark.long
def test_kill_at_any_operation_of_a_cut_can_be_undone(place: Path) -> None:
    origin, cut, root = place / "origin", place / "cut", place / "run"
    whole = some(60)
    timer = timer_files(whole)[-1]
    at = whole.addresses[29]
    stored(origin, whole)
    write_files(origin, timer | {"timerwheel": b"wheel", "config/timercheck": b"\1" * 4096})
    (origin / "config" / "consumerOffset.json").write_bytes(b'{"offsetTable":{"plain@g":{0:999}}}')
    shutil.copytree(origin, cut)
    old = everything(origin)
    report = lastwrite.cut(str(cut), at=at)
    assert len(report.aside) == 9
    new = opened(cut)
    assert opened(origin) == old != new
    states = set()
    ends = (
        (origin, lambda: lastwrite.cut(str(root), at=at)),
        (cut, lambda: lastwrite.cut(str(root), undo=True)),
    )
    for begin, work in ends:
        point = 0
        while True:
            point += 1
            shutil.rmtree(root, ignore_errors=True)
            shutil.copytree(begin, root)
            if not killed_at(point, work):
                break
            told = f"{begin.name}, point {point}"
            if lock.has_stopped_cut(str(root)):
                states.add("stopped")
                lastwrite.cut(str(root), undo=True)
                assert everything(root) == old, told
            elif opened(root) == old:
                states.add("old")
                lastwrite.cut(str(root), at=at)
                assert opened(root) == new, told
                assert everything(root).keys() == everything(cut).keys(), told
            else:
                states.add("new")
                assert opened(root) == new, told
                assert (root / cutting.NOTE).exists(), told
                lastwrite.cut(str(root), undo=True)
                assert everything(root) == old, told
        assert point > 30
    assert states == {"old", "stopped", "new"}
