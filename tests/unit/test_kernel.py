"""Tests of compiling kernels on their first call, from any thread."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from lastwrite.encoding import kernel
from lastwrite.errors import EnvironmentUnfit


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


def test_kernel_that_cannot_be_stored_is_a_clear_error() -> None:
    """Numba stores no code of a function without a source file, as where no folder is writable."""
    known: dict[str, Any] = {"__name__": "nowhere"}
    exec("def count():\n    return 1", known)
    with pytest.raises(EnvironmentUnfit, match="set NUMBA_CACHE_DIR or XDG_CACHE_HOME"):
        kernel.njit(cache=True)(known["count"]).for_numba  # noqa: B018
