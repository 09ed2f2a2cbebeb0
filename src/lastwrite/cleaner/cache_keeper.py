"""Updates a table repeatedly until a stop is requested."""

from __future__ import annotations

from collections.abc import Callable

from lastwrite.cleaner.pauses import Pauses
from lastwrite.errors import RemoteFailed
from lastwrite.reports.table_round import TableRound


class CacheKeeper:
    """Updates a table repeatedly.

    Args:
        turn: updates the table once.
        every_s: seconds between two updates. The pauses grow to at most five minutes while a store
            or catalog is unavailable.
        on_round: receives the report of the first update, and of each update that changed the
            table.
        note: receives a sentence if an update failed and will be retried.

    Raises:
        InvalidConfig: the pause is not positive.
    """

    def __init__(
        self,
        turn: Callable[[], TableRound],
        every_s: float,
        on_round: Callable[[TableRound], None],
        note: Callable[[str], None],
    ) -> None:
        self._turn, self._told, self._note = turn, on_round, note
        self._pauses = Pauses(every_s)

    def request_stop(self) -> None:
        """Stop after the current update. May be called in a signal handler."""
        self._pauses.request_stop()

    def run(self) -> None:
        """Update the table repeatedly until a stop is requested.

        Raises:
            LogError: an update failed, and a retry would not help.
        """
        is_first = True
        while not self._pauses.is_stopping:
            try:
                report = self._turn()
            except RemoteFailed as error:
                self._note(f"the update is tried again later: {error}")
                self._pauses.after(False)
            else:
                if is_first or report.how != "unchanged":
                    self._told(report)
                is_first = False
                self._pauses.after(True)
