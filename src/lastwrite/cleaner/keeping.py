"""A table is kept current: turn after turn, until somebody asks to stop."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable

from lastwrite.cleaner.follow import LONGEST_PAUSE_S
from lastwrite.cleaner.following import checked
from lastwrite.errors import RemoteFailed
from lastwrite.reports.table_round import TableRound


class Keeper:
    """See the module.

    Args:
        turn: brings the table up to date.
        every_s: seconds between two turns; longer ones, up to five minutes, while a store or a
            catalog does not answer.
        told: gets each report of a turn that changed something, and of the first.
        note: gets a sentence where a turn is to be tried again.

    Raises:
        InvalidConfig: no pause between turns.
    """

    def __init__(
        self,
        turn: Callable[[], TableRound],
        every_s: float,
        told: Callable[[TableRound], None],
        note: Callable[[str], None],
    ) -> None:
        self._turn, self._every_s = turn, checked(every_s)
        self._told, self._note = told, note
        self._woken: queue.SimpleQueue[None] = queue.SimpleQueue()  # a signal's handler may put
        self._is_stopping = False

    def ask_to_stop(self) -> None:
        """Let the turn that runs be the last. May be called in a signal's handler."""
        self._is_stopping = True
        self._woken.put(None)

    def run(self) -> None:
        """Take turns until somebody asks to stop.

        Raises:
            LogError: no other turn would fare better.
        """
        pause_s, is_first = self._every_s, True
        while not self._is_stopping:
            try:
                report = self._turn()
            except RemoteFailed as error:
                self._note(f"tried again later: {error}")
                pause_s = min(2 * max(pause_s, 1.0), max(LONGEST_PAUSE_S, self._every_s))
            else:
                pause_s = self._every_s
                if is_first or report.how != "unchanged":
                    self._told(report)
                is_first = False
            with contextlib.suppress(queue.Empty):
                if not self._is_stopping:
                    self._woken.get(timeout=max(pause_s, 0.001))
