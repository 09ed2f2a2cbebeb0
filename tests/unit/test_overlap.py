"""Tests of running tasks that wait for the disk in several threads."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from lastwrite.storage import files
from lastwrite.storage.files import FaultPoints
from lastwrite.storage.parallel_sync import (
    DiskWork,
    Steps,
    overlapped,
    run_parallel,
    run_steps_serially,
    side_by_side,
)


def test_results_come_in_order_and_work_runs_concurrently() -> None:
    everybody = threading.Barrier(8, timeout=60)

    def work(n: int) -> int:
        everybody.wait()
        return n * n

    assert list(overlapped(work, range(8))) == [n * n for n in range(8)]


def test_error_is_raised_in_the_place_of_its_result() -> None:
    done = []

    def work(n: int) -> int:
        if n == 2:
            raise OSError("disk")
        done.append(n)
        return n

    results = overlapped(work, range(100))
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(OSError, match="disk"):
        next(results)
    assert 2 not in done


def test_armed_fault_points_serialise_the_operations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(files, "faults", FaultPoints(point=1000))
    threads = list(overlapped(lambda _: threading.current_thread(), range(4)))
    assert threads == [threading.main_thread()] * 4


def failing(error: Exception) -> DiskWork:
    def sync() -> None:
        raise error

    return sync


def test_syncs_run_concurrently() -> None:
    everybody = threading.Barrier(16, timeout=60)
    # each of the 16 threads runs four tasks
    assert run_parallel([everybody.wait] * 64) == [None] * 64


def test_each_sync_has_its_own_error() -> None:
    errors = [OSError(n) if n % 3 == 0 else None for n in range(50)]
    assert run_parallel([failing(error) if error else lambda: None for error in errors]) == errors


def test_failing_work_does_not_stop_the_steps_of_the_others() -> None:
    done: list[str] = []

    def work(name: str, steps: int, sync: Callable[[int], list[DiskWork]]) -> Steps:
        for step in range(steps):
            done.append(f"{name}{step}")
            yield sync(step)
        done.append(f"{name} ends")

    lost = OSError("disk")
    found = side_by_side(
        [
            work("a", 2, lambda _: [lambda: done.append("sync")]),
            work("b", 3, lambda step: [failing(lost)] if step == 1 else []),
            work("c", 0, lambda _: []),
        ]
    )
    assert found == [None, lost, None]
    assert done == ["a0", "b0", "c ends", "sync", "a1", "b1", "sync", "a ends"]


def test_sync_error_is_raised_inside_the_work_that_waits_for_it() -> None:
    undone = []

    def work() -> Steps:
        try:
            yield [failing(OSError("disk"))]
        except OSError:
            undone.append(True)
            raise

    with pytest.raises(OSError, match="disk"):
        run_steps_serially(work())
    assert undone
