"""Work that waits for the disk, in threads."""

from __future__ import annotations

import threading

import pytest

from lastwrite.logstore import files
from lastwrite.logstore.files import FaultPoints
from lastwrite.logstore.overlap import overlapped


def test_results_come_in_order_and_work_waits_together() -> None:
    everybody = threading.Barrier(8, timeout=10)

    def work(n: int) -> int:
        everybody.wait()
        return n * n

    assert list(overlapped(work, range(8))) == [n * n for n in range(8)]


def test_an_error_is_raised_where_its_result_would_be() -> None:
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


def test_armed_fault_points_see_one_operation_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "faults", FaultPoints(point=1000))
    threads = list(overlapped(lambda _: threading.current_thread(), range(4)))
    assert threads == [threading.main_thread()] * 4
