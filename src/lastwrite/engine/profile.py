"""Measure the time of a task's steps, in seconds.

Workers measure each chunk or block, never a single record. The times return with the task's results
(``spark.profile``)::

    with step("walk"):
        ...

Time outside of all steps is spent in Python. Steps do not nest.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

taken: dict[str, float] = {}  # seconds by step, for the current task of this process


class _Step:
    __slots__ = ("_begin", "_name")

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        self._begin = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        seconds = time.perf_counter() - self._begin
        taken[self._name] = taken.get(self._name, 0.0) + seconds


_known: dict[str, _Step] = {}


def step(name: str) -> _Step:
    """A context that adds its duration to the step ``name``. Only for the task's main thread."""
    found = _known.get(name)
    if found is None:
        found = _known[name] = _Step(name)
    return found


def steps(name: str, items: Iterable[T]) -> Iterator[T]:
    """Yield the items of ``items``. The time to produce an item is added to the step ``name``."""
    source = iter(items)
    while True:
        with step(name):
            try:
                item = next(source)
            except StopIteration:
                return
        yield item
