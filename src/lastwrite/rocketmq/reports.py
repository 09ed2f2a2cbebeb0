"""Results of ``dispatch``, ``cut`` and ``restore`` as values that print as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, ClassVar

from lastwrite.model.log import Problem, TopicPartition, any_damaged
from lastwrite.reports.compaction import CompactionReport
from lastwrite.reports.document import UNPRINTED, Document, FrozenDocument, figure
from lastwrite.reports.untouched import UntouchedFile


class QueueKind(StrEnum):
    """The kind of a dispatched queue. The value is the name of its folder in the store."""

    ORDINARY = "consumequeue"
    BATCH = "batchconsumequeue"
    COMPACTION = "compaction"


class OffsetRange(FrozenDocument, frozen=True):
    """Queue offsets of one queue, from ``first`` to ``last``, both included."""

    topic: str
    queue: int
    first: int
    last: int
    source: str  # source of the offsets: "consume queue", "records" or "compaction log"


class LogDamage(FrozenDocument, frozen=True, kw_only=True):
    """The damage of the commit log at which a dispatch stopped, and the records after it.

    ``lost`` has the offsets of partial or missing records; empty means unknown. ``beyond`` has the
    offsets of whole records after the damage, which a cut at the damage would also remove.
    """

    physical_offset: int  # address of the damaged record; all earlier records are whole
    path: str
    position: int | None  # position of the damaged record in its file
    resumes_at: int | None  # address of the first whole record after the damage; null: none
    records_beyond: int
    bytes_beyond: int
    lost: list[OffsetRange]
    beyond: list[OffsetRange]


class DispatchStatus(StrEnum):
    """The outcome of a dispatch for one queue."""

    DISPATCHED = "dispatched"
    UNCHANGED = "unchanged"  # the queue was complete
    DAMAGED = "damaged"  # the log is damaged; the queue was not changed


class QueueReport(Document, kw_only=True):
    """The result of a dispatch for one consume queue, batch consume queue or compaction log."""

    kind: QueueKind
    topic: str
    queue: int
    status: DispatchStatus
    units_added: int = 0
    # next queue offset; for a compaction log, its highest offset plus one
    next_offset: int | None = None
    files_written: int = 0
    records_passed: int = 0  # records skipped because their offset exists or is negative
    records_keyless: int = 0  # records without a key, which a compaction log does not have
    records_too_large: int = 0  # records larger than a compaction log file
    is_anew: bool = False  # the topic was deleted and created again


class IndexFigures(Document):
    """What a dispatch added to the index: the number of entries, and the files."""

    entries_added: int
    files: list[str]  # names of new or extended index files


class DispatchTotals(Document, kw_only=True):
    """The sums over all queues, and the number of queues by status."""

    log_start: int  # first address of the commit log
    log_end: int  # address up to which the commit log was dispatched
    read_from: int  # address from which the commit log was read
    bytes_read: int
    bytes_written: int
    records: int  # records read from the commit log
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
    """The result of ``dispatch``. ``untouched`` lists the files that were not changed."""

    path: str
    now_ms: int
    queues: list[QueueReport] = []
    index: ClassVar[IndexFigures] = figure(
        lambda self: IndexFigures(self.index_entries, self.index_files)
    )
    problems: list[Problem] = []
    damage: LogDamage | None = None  # null if the commit log is whole
    untouched: list[UntouchedFile] = []
    totals: ClassVar[DispatchTotals] = figure(lambda self: self.sums())
    log_start: Annotated[int, UNPRINTED] = 0  # see ``DispatchTotals``
    log_end: Annotated[int, UNPRINTED] = 0
    read_from: Annotated[int, UNPRINTED] = 0
    bytes_read: Annotated[int, UNPRINTED] = 0
    bytes_written: Annotated[int, UNPRINTED] = 0
    records: Annotated[int, UNPRINTED] = 0  # records read
    index_entries: Annotated[int, UNPRINTED] = 0
    index_files: Annotated[list[str], UNPRINTED] = []  # new or extended index files
    seconds: Annotated[float, UNPRINTED] = 0.0
    stage_seconds: Annotated[dict[str, float], UNPRINTED] = {}

    @property
    def is_damaged(self) -> bool:
        return any_damaged(self.problems)

    @property
    def exit_status(self) -> int:
        return 3 if self.is_damaged else 0

    def total(self, name: str, queues: Sequence[QueueReport] | None = None) -> int:
        """The sum of the field ``name`` over the queues."""
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
    """The outcome of a cut."""

    PLANNED = "planned"  # nothing was changed
    CUT = "cut"
    UNDONE = "undone"  # the store is as it was before the cut


class LoweredOffset(FrozenDocument, frozen=True):
    """A consumer group's committed offset that a cut lowered to a queue's new end."""

    topic: str
    group: str
    queue: int
    before: int
    after: int


class LoweredDelay(FrozenDocument, frozen=True):
    """A delay level's offset in ``config/delayOffset.json`` that a cut lowered."""

    level: int
    before: int
    after: int


class TimerChange(FrozenDocument, frozen=True, kw_only=True):
    """The changes that a cut made to the timer log and the timer's checkpoint."""

    units_removed: int  # units removed from the timer log
    queue_offset_before: int  # before the cut: next offset of the timer's consume queue
    queue_offset_after: int
    read_time_before_ms: int  # before the cut: messages due earlier were delivered
    read_time_after_ms: int


class CutReport(Document, kw_only=True):
    """The result of a cut at the physical offset ``at``, or the plan of one.

    ``queues`` has the removed queue offsets by topic and queue. ``compaction`` has the offsets
    removed from compaction logs. ``aside`` has the paths of the old files. ``untouched`` lists the
    other files of the store.
    """

    path: str
    at: int
    status: CutStatus = CutStatus.PLANNED
    file: str = ""
    position: int = 0
    records: int = 0  # number of removed whole records
    bytes: int = 0  # bytes from ``at`` to the end of the last whole record
    log_end: int = 0  # address after the last whole record, before the cut
    queues: list[OffsetRange] = []
    compaction: list[OffsetRange] = []
    index_files: list[str] = []  # index files rebuilt without removed records, or deleted
    consumers: list[LoweredOffset] = []
    delays: list[LoweredDelay] = []
    timer: TimerChange | None = None  # null if the timer's files do not change
    files_removed: list[str] = []  # removed commit log files
    aside: list[str] = []
    untouched: list[UntouchedFile] = []
    notes: list[str] = []

    @property
    def exit_status(self) -> int:
        return 0


class RestoredQueue(FrozenDocument, frozen=True, kw_only=True):
    """One restored queue: the broker's messages, merged with the store's messages."""

    name: Annotated[TopicPartition, UNPRINTED]
    topic: ClassVar[str] = figure(lambda self: self.name.topic)
    partition: ClassVar[int] = figure(lambda self: self.name.partition)
    broker: str
    pulled: int  # messages from the broker
    pulled_below: int  # all pulled messages are below this queue offset
    kept: int  # messages of the store that were merged; 0 if none were pulled
    notes: tuple[str, ...] = ()


class Restoration(FrozenDocument, frozen=True, kw_only=True):
    """The result of a restore: the restored queues.

    ``compaction`` is null if there was nothing to compact.
    """

    queues: tuple[RestoredQueue, ...]
    compaction: CompactionReport | None = None
    notes: tuple[str, ...] = ()
    untouched: tuple[UntouchedFile, ...] = ()  # files of the store that the restore did not change

    @property
    def exit_status(self) -> int:
        return 0 if self.compaction is None else self.compaction.exit_status
