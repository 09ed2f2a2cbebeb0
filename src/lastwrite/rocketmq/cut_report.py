"""What a cut of a commit log removes, or removed."""

from __future__ import annotations

from enum import StrEnum

from lastwrite.reports.document import Document, FrozenDocument
from lastwrite.rocketmq.dispatch_work import OffsetRange


class CutStatus(StrEnum):
    """How a cut ended."""

    PLANNED = "planned"  # nothing was changed
    CUT = "cut"
    UNDONE = "undone"  # the store is as it was before the cut


class LoweredOffset(FrozenDocument, frozen=True):
    """A consumer group's offset that pointed beyond a queue's new end."""

    topic: str
    group: str
    queue: int
    before: int
    after: int


class CutReport(Document, kw_only=True):
    """What goes from the physical offset ``at`` on. ``queues``: the queue offsets that go, by topic
    and queue.

    ``compaction``: those that go from compaction logs, too. ``aside``: where what was there lies
    now.
    """

    path: str
    at: int
    status: CutStatus = CutStatus.PLANNED
    file: str = ""
    position: int = 0
    records: int = 0  # whole ones
    bytes: int = 0  # from ``at`` to the end of the last whole record
    log_end: int = 0  # behind the last whole record, before the cut
    queues: list[OffsetRange] = []
    compaction: list[OffsetRange] = []
    index_files: list[str] = []  # made anew without what goes, or removed
    consumers: list[LoweredOffset] = []
    files_removed: list[str] = []  # of the commit log
    aside: list[str] = []
    notes: list[str] = []

    @property
    def exit_status(self) -> int:
        return 0
