"""Where a task's time goes: seconds by step.

Steps are taken in the task's worker, by chunk or block and never by record, and travel back with
its results (``spark.profile``)::

    with step("walk"):
        ...

What a task did not spend in steps is Python between them. Steps do not nest.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

taken: dict[str, float] = {}  # seconds by step, of the task that this process works at


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
    """A context whose time counts as ``name``; for the thread that does the task's work."""
    found = _known.get(name)
    if found is None:
        found = _known[name] = _Step(name)
    return found


def steps(name: str, items: Iterable[T]) -> Iterator[T]:
    """The items; the time in which each is made counts as ``name``."""
    source = iter(items)
    while True:
        with step(name):
            try:
                item = next(source)
            except StopIteration:
                return
        yield item
