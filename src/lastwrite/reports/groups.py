"""Where consumer groups are, as values that print as JSON. Field names only grow."""

from __future__ import annotations

from typing import ClassVar

from lastwrite.reports.document import Document, FrozenDocument, figure


class GroupPosition(FrozenDocument, frozen=True, kw_only=True):
    """A group's position in one partition."""

    group: str
    topic: str
    partition: int
    position: int  # the offset that it wants next
    # of the partition, as readers see it; null: it is not there, or cannot be read
    end_offset: int | None
    metadata: str  # the group's own word
    committed_ms: int | None  # null: that is not known
    # offsets from the position to the end; of a compacted topic some of them are holes
    lag: ClassVar[int | None] = figure(lambda self: self.behind())

    def behind(self) -> int | None:
        """See ``lag``."""
        return None if self.end_offset is None else max(self.end_offset - self.position, 0)


class GroupsReport(Document, kw_only=True):
    """All positions that were found, by group, topic and partition."""

    positions: list[GroupPosition]
