"""Attempts at a commit by compare-and-swap, which another writer may win."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from lastwrite.errors import CommitConflict, LogError

ATTEMPTS = 5  # of one partition, topic or table, the first included

T = TypeVar("T")


class Attempts:
    """Repeats work whose commit another writer won; ``count`` is the number of attempts so far.

    A lost compare-and-swap is normal where several writers share an archive or a table. Each
    attempt has to read what the other writer left.
    """

    def __init__(self) -> None:
        self.count = 0

    def run(self, work: Callable[[], T], lost: type[LogError] = CommitConflict) -> T:
        """The result of ``work``, which is called until it is not ``lost``, ``ATTEMPTS`` times at
        most.

        Raises:
            LogError: the last attempt was ``lost``, or an attempt raised another error.
        """
        while True:
            self.count += 1
            try:
                return work()
            except lost:
                if self.count == ATTEMPTS:
                    raise


def attempts_in_words(count: int) -> str:
    """The end of a line about work that took ``count`` attempts; empty for one."""
    if count < 2:
        return ""
    return f"; attempt {count} of {ATTEMPTS}, after another writer changed it first"
