"""Runs two writers at once, so that one of them loses the compare-and-swap."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import patch


def run_both(kind: Any, first: Callable[[], Any], second: Callable[[], Any]) -> list[Any]:
    """Run both functions at once, and return their results.

    ``kind.commit`` commits one partition or table. The first call of each waits until the other has
    read the version that it replaces, too.
    """
    commit, calls = kind.commit, itertools.count()
    both_have_read = threading.Barrier(2, timeout=120)

    def together(*given: Any, **named: Any) -> Any:
        if next(calls) < 2:
            both_have_read.wait()
        return commit(*given, **named)

    with patch.object(kind, "commit", together), ThreadPoolExecutor(2) as pool:
        return [each.result() for each in [pool.submit(first), pool.submit(second)]]
