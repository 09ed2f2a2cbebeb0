"""The results of ``inspect`` for a RocketMQ store, which print as JSON.

Field names are never removed or renamed.

None means that the value was not or could not be read. Times are milliseconds since 1970.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, ClassVar

from msgspec import field

from lastwrite.model.log import Problem, TopicPartition, any_damaged
from lastwrite.reports.document import SPREAD, UNPRINTED, Document, Flatten, JsonName, figure
from lastwrite.reports.settings import Setting, effective


class Messages(Document, kw_only=True):
    """Counts of the records of a log, or of one queue in it."""

    records: int = 0
    messages: int = 0  # number of messages, including those in inner batches
    tombstones: int = 0  # messages whose body is empty, perhaps after decompression
    keyless: int = 0
    inner_batches: int = 0
    delayed: int = 0
    prepared: int = 0  # prepared messages of transactions
    rolled_back: int = 0
    bytes: int = 0
    first_offset: int | None = None  # first queue offset; null for several queues
    last_offset: int | None = None
    first_timestamp: int | None = None  # store time of the first message
    last_timestamp: int | None = None
    formats: Counter[str] = field(default_factory=Counter)  # records by magic: "v1", "v2"
    codecs: Counter[str] = field(default_factory=Counter)  # records by compression
    # records by whether their properties end with byte 2, which old brokers do not write
    endings: Counter[str] = field(default_factory=Counter)

    def add(self, other: Messages) -> None:
        """Add the counts of other records of the same log, but not their offsets."""
        for name in self.__struct_fields__:
            mine, more = getattr(self, name), getattr(other, name)
            if isinstance(mine, Counter):
                mine.update(more)
            elif name in ("first_timestamp", "last_timestamp"):
                known = [time for time in (mine, more) if time is not None]
                best = min if name == "first_timestamp" else max
                setattr(self, name, best(known, default=None))
            elif name not in ("first_offset", "last_offset"):
                setattr(self, name, mine + more)

    def widen(self, first: int, last: int) -> None:
        """Extend the offsets to include ``first`` to ``last``."""
        self.first_offset = first if self.first_offset is None else min(self.first_offset, first)
        self.last_offset = last if self.last_offset is None else max(self.last_offset, last)


class FileOfLog(Document, kw_only=True):
    """The inspection of one file of a log, a queue or an index."""

    file: str
    kind: str
    bytes: int
    start: int | None = None  # address of the first byte, from the file's name
    end_position: int | None = None  # position after the last record or unit
    ending: str | None = None  # "blank", "open", "never written", "damaged", "full"
    entries: int | None = None  # number of records, units or index entries
    first_offset: int | None = None
    last_offset: int | None = None
    # the header of an index file, or the content of a small file
    details: Annotated[dict[str, Any], SPREAD] = {}


class LogInspection(Document, kw_only=True):
    """The inspection of the commit log."""

    folders: list[str]
    file_size: int | None = None  # bytes of each file
    start: int = 0  # the first address
    end: int | None = None  # the address after the last record
    bytes: int = 0
    contents: Annotated[Messages, Flatten(but=("bytes",))] = field(default_factory=Messages)
    files: list[FileOfLog] = []


class IndexOfQueue(Document, kw_only=True):
    """The inspection of a queue's consume queue, batch consume queue or extension."""

    kind: str
    file_size: int | None = None
    units: int = 0  # number of units, without fillers
    fillers: int = 0
    first_offset: int | None = None
    end_offset: int | None = None  # queue offset after the last unit
    expired: int = 0  # units whose records are no longer in the commit log
    lacking: int | None = None  # records of the commit log without a unit
    wrong: int | None = None  # units that do not point to their record
    files: list[FileOfLog] = []


class CompactionInspection(Document, kw_only=True):
    """The inspection of a queue's compaction log and its index."""

    contents: Annotated[Messages, SPREAD] = field(default_factory=Messages)
    file_size: int | None = None
    index_file_size: int | None = None
    bytes: int = 0
    keys: int | None = None
    unindexed: int = 0  # records without a unit, which a broker does not serve
    position: int | None = None  # the highest queue offset compacted by an earlier run
    first_dirty_offset: int = 0
    dirty_bytes: int = 0  # bytes of records above the position, in closed files
    cleanable_bytes: int | None = None  # bytes of records that compaction would process now
    dirty_ratio: float | None = None
    is_due: bool | None = None  # whether compaction is due; null if the queue cannot be read
    reason: str | None = None  # why compaction is not due
    settings: Annotated[tuple[Setting, ...], JsonName(effective)] = ()
    files: list[FileOfLog] = []
    log_bytes: ClassVar[int] = figure(lambda self: self.contents.bytes)  # bytes of records


class QueueInspection(Document, kw_only=True):
    """The inspection of one queue of a topic, in all parts of the store."""

    topic: str
    partition: int
    queue_id: ClassVar[int] = figure(lambda self: self.partition)
    status: ClassVar[str] = figure(lambda self: "damaged" if self.is_damaged else "whole")
    cleanup_policy: str | None = None  # policy in the topic's settings
    # records in the commit log
    contents: Annotated[Messages, SPREAD] = field(default_factory=Messages)
    consume_queue: IndexOfQueue | None = None
    batch_consume_queue: IndexOfQueue | None = None
    extension: IndexOfQueue | None = None
    compaction: CompactionInspection | None = None
    problems: list[Problem] = []
    problem_count: int = 0

    @property
    def name(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def is_damaged(self) -> bool:
        return any_damaged(self.problems)


class StoreTotals(Document, kw_only=True):
    """The sums over all queues."""

    partitions: int
    damaged: int
    records: int | None  # records in the commit log; null if it was not read
    bytes: int | None
    compacted_records: int
    compacted_bytes: int
    dirty_bytes: int
    seconds: float


class StoreReport(Document, kw_only=True):
    """The report on a path: all logs, queues and files there of a RocketMQ store."""

    path: str
    system: str = "rocketmq"
    what: str  # description of the path, such as "store"
    root: str | None = None
    stopped_in_order: bool | None = None  # true if the file ``abort`` does not exist
    commit_log: LogInspection | None = None
    partitions: list[QueueInspection] = []
    index_files: list[FileOfLog] = []
    files: list[FileOfLog] = []  # small files, or the requested file
    problems: list[Problem] = []
    totals: ClassVar[StoreTotals] = figure(lambda self: self.sums())
    now_ms: int
    seconds: Annotated[float, UNPRINTED] = 0.0

    @property
    def damaged(self) -> bool:
        lists = [self.problems, *(queue.problems for queue in self.partitions)]
        return any(map(any_damaged, lists))

    @property
    def exit_status(self) -> int:
        return 3 if self.damaged else 0

    def sums(self) -> StoreTotals:
        log = self.commit_log
        compacted = [queue.compaction for queue in self.partitions if queue.compaction is not None]
        return StoreTotals(
            partitions=len(self.partitions),
            damaged=sum(queue.is_damaged for queue in self.partitions),
            records=None if log is None else log.contents.records,
            bytes=None if log is None else log.contents.bytes,
            compacted_records=sum(part.contents.records for part in compacted),
            compacted_bytes=sum(part.contents.bytes for part in compacted),
            dirty_bytes=sum(part.dirty_bytes for part in compacted),
            seconds=self.seconds,
        )
