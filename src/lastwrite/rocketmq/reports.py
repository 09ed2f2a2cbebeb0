"""What ``dispatch``, ``cut`` and ``restore`` did, or would do, as values that print as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, ClassVar

from lastwrite.model.log import Problem, TopicPartition, any_damaged
from lastwrite.reports.compaction import CompactionReport
from lastwrite.reports.document import UNPRINTED, Document, FrozenDocument, figure
from lastwrite.reports.untouched import UntouchedFile


class QueueKind(StrEnum):
    """What a queue is dispatched to; the value is the tree below the store."""

    ORDINARY = "consumequeue"
    BATCH = "batchconsumequeue"
    COMPACTION = "compaction"


class OffsetRange(FrozenDocument, frozen=True):
    """Queue offsets of one queue, from ``first`` to ``last``, both included."""

    topic: str
    queue: int
    first: int
    last: int
    source: str  # what tells so: "consume queue", or "records"


class LogDamage(FrozenDocument, frozen=True, kw_only=True):
    """The place of the commit log at which a dispatch stopped, and what is known of what lies there
    and beyond.

    ``lost``: offsets whose records are not whole, or not there; empty: nothing tells. ``beyond``:
    of whole records after that place, which a cut there would lose as well.
    """

    physical_offset: int  # of the record's first byte; all before it is whole
    path: str
    position: int | None  # the same in its file
    resumes_at: int | None  # address of the first whole record beyond; None: there is none
    records_beyond: int
    bytes_beyond: int
    lost: list[OffsetRange]
    beyond: list[OffsetRange]


class DispatchStatus(StrEnum):
    """How a queue came out."""

    DISPATCHED = "dispatched"
    UNCHANGED = "unchanged"  # it had everything
    DAMAGED = "damaged"  # left as it was


class QueueReport(Document, kw_only=True):
    """One consume queue, batch consume queue or compaction log."""

    kind: QueueKind
    topic: str
    queue: int
    status: DispatchStatus
    units_added: int = 0
    # of a consume queue; of a compaction log the highest one in it and one
    next_offset: int | None = None
    files_written: int = 0
    records_passed: int = 0  # their offset was there, or is below 0
    records_keyless: int = 0  # which no compaction log takes
    records_too_large: int = 0  # for the compaction log's files
    is_anew: bool = False  # its topic was deleted and made again


class IndexFigures(Document):
    """What a dispatch added to the index."""

    entries_added: int
    files: list[str]  # made or added to


class DispatchTotals(Document, kw_only=True):
    """The sums over all queues; the number of queues by status."""

    log_start: int  # addresses of the commit log
    log_end: int
    read_from: int
    bytes_read: int
    bytes_written: int
    records: int  # read
    queues: int
    dispatched: int
    unchanged: int
    damaged: int
    units_added: int
    files_written: int
    records_passed: int
    records_keyless: int
    records_too_large: int
    seconds: float
    stage_seconds: dict[str, float]


class DispatchReport(Document, kw_only=True):
    """What ``dispatch`` did. ``untouched``: what it left as it is."""

    path: str
    now_ms: int
    queues: list[QueueReport] = []
    index: ClassVar[IndexFigures] = figure(
        lambda self: IndexFigures(self.index_entries, self.index_files)
    )
    problems: list[Problem] = []
    damage: LogDamage | None = None  # None: the commit log is whole
    untouched: list[UntouchedFile] = []
    totals: ClassVar[DispatchTotals] = figure(lambda self: self.sums())
    log_start: Annotated[int, UNPRINTED] = 0  # addresses of the commit log
    log_end: Annotated[int, UNPRINTED] = 0
    read_from: Annotated[int, UNPRINTED] = 0
    bytes_read: Annotated[int, UNPRINTED] = 0
    bytes_written: Annotated[int, UNPRINTED] = 0
    records: Annotated[int, UNPRINTED] = 0  # read
    index_entries: Annotated[int, UNPRINTED] = 0
    index_files: Annotated[list[str], UNPRINTED] = []  # made or added to
    seconds: Annotated[float, UNPRINTED] = 0.0
    stage_seconds: Annotated[dict[str, float], UNPRINTED] = {}

    @property
    def is_damaged(self) -> bool:
        return any_damaged(self.problems)

    @property
    def exit_status(self) -> int:
        return 3 if self.is_damaged else 0

    def total(self, name: str, queues: Sequence[QueueReport] | None = None) -> int:
        """The sum of a figure of the queues."""
        return sum(getattr(queue, name) for queue in (self.queues if queues is None else queues))

    def sums(self) -> DispatchTotals:
        own = ("log_start", "log_end", "read_from", "bytes_read", "bytes_written", "records")
        of_queues = (
            "units_added",
            "files_written",
            "records_passed",
            "records_keyless",
            "records_too_large",
        )
        return DispatchTotals(
            queues=len(self.queues),
            seconds=self.seconds,
            stage_seconds=self.stage_seconds,
            **{name: getattr(self, name) for name in own},
            **{str(each): sum(q.status is each for q in self.queues) for each in DispatchStatus},
            **{name: self.total(name) for name in of_queues},
        )


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


class LoweredDelay(FrozenDocument, frozen=True):
    """How far the delayed messages of a level count as delivered, by
    ``config/delayOffset.json``.
    """

    level: int
    before: int
    after: int


class TimerChange(FrozenDocument, frozen=True, kw_only=True):
    """What becomes of the timer's files: its log, and how far its service has come."""

    units_removed: int  # of the timer log
    queue_offset_before: int  # next one of the timer's consume queue
    queue_offset_after: int
    read_time_before_ms: int  # messages that were due before are delivered
    read_time_after_ms: int


class CutReport(Document, kw_only=True):
    """What goes from the physical offset ``at`` on. ``queues``: the queue offsets that go, by topic
    and queue.

    ``compaction``: those that go from compaction logs, too. ``aside``: where what was there lies
    now. ``untouched``: what else lies in the store.
    """

    path: str
    at: int
    status: CutStatus = CutStatus.PLANNED
    file: str = ""
    position: int = 0
    records: int = 0  # whole ones
    bytes: int = 0  # from ``at`` to the end of the last whole record
    log_end: int = 0  # after the last whole record, before the cut
    queues: list[OffsetRange] = []
    compaction: list[OffsetRange] = []
    index_files: list[str] = []  # rebuilt without what goes, or removed
    consumers: list[LoweredOffset] = []
    delays: list[LoweredDelay] = []
    timer: TimerChange | None = None  # None: nothing of it changes
    files_removed: list[str] = []  # of the commit log
    aside: list[str] = []
    untouched: list[UntouchedFile] = []
    notes: list[str] = []

    @property
    def exit_status(self) -> int:
        return 0


class RestoredQueue(FrozenDocument, frozen=True, kw_only=True):
    """One queue: what came from the broker, and what the store had."""

    name: Annotated[TopicPartition, UNPRINTED]
    topic: ClassVar[str] = figure(lambda self: self.name.topic)
    partition: ClassVar[int] = figure(lambda self: self.name.partition)
    broker: str
    pulled: int  # messages from the broker
    pulled_below: int  # they lie below this queue offset
    kept: int  # messages of the store that were put together with them; 0 where nothing came
    notes: tuple[str, ...] = ()


class Restoration(FrozenDocument, frozen=True, kw_only=True):
    """All queues, and the compaction that followed; None where there was nothing to compact."""

    queues: tuple[RestoredQueue, ...]
    compaction: CompactionReport | None = None
    notes: tuple[str, ...] = ()
    untouched: tuple[UntouchedFile, ...] = ()  # of the store, which the restore left as it is

    @property
    def exit_status(self) -> int:
        return 0 if self.compaction is None else self.compaction.exit_status
