"""Consumer groups that block the removal of tombstones (``hold.tombstones.for.groups``)."""

from __future__ import annotations

from typing import ClassVar

from lastwrite.reports.document import FrozenDocument, figure


class BlockingGroup(FrozenDocument, frozen=True, kw_only=True):
    """A group for which tombstones are kept, because it has not read the partition to its end."""

    group: str
    position: int | None  # next offset that the group reads; null if unknown
    behind: int | None  # offsets from the position to the log's end; null if unknown
    # latest time at which a held delete is dropped, even if the group has not read it; null if no
    # delete is held, the records were not read, or there is no limit
    until_ms: int | None = None
    # the error of a record or file that may contain the unknown position; null if there is none
    reason: str | None = None
    message: ClassVar[str] = figure(lambda self: self.words())

    def words(self) -> str:
        """The end of a sentence, such as "held for group billing, 12 behind"."""
        where = (
            "whose committed offset is unknown"
            if self.behind is None
            else f"{self.behind:,} behind"
        )
        where += "" if self.reason is None else f" ({self.reason})"
        until = "" if self.until_ms is None else f", at most until time {self.until_ms}"
        return f"held for group {self.group}, {where}{until}"
