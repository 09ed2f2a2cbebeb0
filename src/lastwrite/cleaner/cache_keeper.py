"""A table is kept current: turn after turn, until somebody asks to stop."""

from __future__ import annotations

from collections.abc import Callable

from lastwrite.cleaner.pauses import Pauses
from lastwrite.errors import RemoteFailed
from lastwrite.reports.table_round import TableRound


class CacheKeeper:
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
        self._turn, self._told, self._note = turn, told, note
        self._pauses = Pauses(every_s)

    def request_stop(self) -> None:
        """Let the turn that runs be the last. May be called in a signal's handler."""
        self._pauses.request_stop()

    def run(self) -> None:
        """Take turns until somebody asks to stop.

        Raises:
            LogError: no other turn would fare better.
        """
        is_first = True
        while not self._pauses.is_stopping:
            try:
                report = self._turn()
            except RemoteFailed as error:
                self._note(f"tried again later: {error}")
                self._pauses.after(False)
            else:
                if is_first or report.how != "unchanged":
                    self._told(report)
                is_first = False
                self._pauses.after(True)
