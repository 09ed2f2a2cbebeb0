"""Retry a commit if another writer commits first, and a request if its connection breaks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from lastwrite.errors import CommitConflict, LogError

ATTEMPTS = 5  # attempts for one partition, topic or table, including the first

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 0.1

T = TypeVar("T")


class Attempts:
    """Repeats work if another writer committed first. ``count`` is the number of attempts so far.

    A failed compare-and-swap is normal if several writers share an archive or a table. Each attempt
    must read the other writer's commit first.
    """

    def __init__(self) -> None:
        self.count = 0

    def run(self, work: Callable[[], T], lost: type[LogError] = CommitConflict) -> T:
        """Call ``work`` and return its result.

        Calls it again if it raises ``lost``, at most ``ATTEMPTS`` times in all.

        Raises:
            LogError: the last attempt raised ``lost``, or an attempt raised another error.
        """
        while True:
            self.count += 1
            try:
                return work()
            except lost:
                if self.count == ATTEMPTS:
                    raise


def pause_s(breaks: int) -> float:
    """The seconds to wait before a request is repeated, after ``breaks`` earlier repetitions."""
    return min(_FIRST_PAUSE_S * (1 << min(breaks, 10)), _LONGEST_PAUSE_S)


def describe_attempts(count: int) -> str:
    """The end of a message about work that needed ``count`` attempts. Empty for one attempt."""
    if count < 2:
        return ""
    return f"; attempt {count} of {ATTEMPTS}, because another program changed it first"
