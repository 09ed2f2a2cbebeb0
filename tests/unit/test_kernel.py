"""Tests of compiling kernels on their first call, from any thread."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from lastwrite.encoding import kernel


@kernel.njit()
def doubled(number: int) -> int:
    return 2 * number


@kernel.njit()
def doubled_and_one(number: int) -> int:
    return doubled(number) + 1


def test_second_thread_waits_for_a_kernel_under_compilation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise the thread would call it before the kernels that it calls are compiled."""
    is_made, goes_on = threading.Event(), threading.Event()
    known = kernel._for_numba

    def slowly(*arguments: Any) -> dict[str, Any]:
        is_made.set()
        assert goes_on.wait(60)
        return known(*arguments)

    monkeypatch.setattr(kernel, "_for_numba", slowly)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(doubled_and_one, 3)
        assert is_made.wait(60)
        second = pool.submit(doubled_and_one, 4)
        threading.Timer(0.5, goes_on.set).start()
        assert (first.result(60), second.result(60)) == (7, 9)
