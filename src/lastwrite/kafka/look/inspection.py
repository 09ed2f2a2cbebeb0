"""The report of ``inspect``, as values that print as JSON. Field names are only ever added.

None means unknown, because it was not or could not be read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Annotated, ClassVar

from msgspec import field
from msgspec.structs import fields

from lastwrite.model.log import Problem, ProblemKind, any_damaged
from lastwrite.reports.compaction import Quarantined
from lastwrite.reports.document import (
    SPREAD,
    UNPRINTED,
    Document,
    Flatten,
    FrozenDocument,
    JsonName,
    figure,
)
from lastwrite.reports.settings import OverriddenSetting, Setting, effective
from lastwrite.reports.verification import Transactions


class Contents(Document, kw_only=True):
    """Counts over the batches with correct checksums in one or more segments."""

    batches: int = 0
    records: int = 0
    tombstones: int = 0
    keyless: int = 0  # records without a key, other than control records
    control_records: int = 0
    empty_batches: int = 0
    transactional_batches: int = 0
    abort_markers: int = 0
    commit_markers: int = 0
    producer_batches: int = 0  # batches of idempotent or transactional producers
    horizon_batches: int = 0  # batches with a delete horizon
    bad_horizon_batches: int = 0  # batches with a delete horizon below 0, which is ignored
    # base offset of the first batch; compaction may have removed its first records
    first_offset: int | None = None
    last_offset: int | None = None
    max_timestamp: int | None = None
    earliest_horizon: int | None = None
    codecs: Counter[str] = field(default_factory=Counter)  # batches by codec
    formats: Counter[str] = field(default_factory=Counter)  # batches by format version

    def add(self, other: Contents) -> None:
        """Add the counts of the next segments in the log."""
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.codecs.update(other.codecs)
        self.formats.update(other.formats)
        if self.first_offset is None:
            self.first_offset = other.first_offset
        if other.last_offset is not None:
            self.last_offset = other.last_offset
        self.max_timestamp = max(
            _without_none(self.max_timestamp, other.max_timestamp), default=None
        )
        self.earliest_horizon = min(
            _without_none(self.earliest_horizon, other.earliest_horizon), default=None
        )


_SUMS = tuple(field.name for field in fields(Contents) if field.default == 0)


def _without_none(*values: int | None) -> Iterable[int]:
    return (value for value in values if value is not None)


class SegmentInspection(Document, kw_only=True):
    """The inspection of one segment: its file, its contents, and its indexes."""

    file: str
    base_offset: int
    bytes: int
    is_active: bool = False
    index_entries: int | None = None  # null if the file is missing or unreadable
    time_index_entries: int | None = None
    transaction_index_entries: int | None = None
    modified: int = 0  # modification time of the file, ms since 1970
    contents: Annotated[Contents, SPREAD] = field(default_factory=Contents)


class OpenTransaction(FrozenDocument, frozen=True):
    """An open transaction: no marker has ended it."""

    producer_id: int
    first_offset: int


class PartitionInspection(Document, kw_only=True):
    """The inspection of one partition: its bounds, segments, contents and problems."""

    topic: str
    partition: int
    folder: str
    bytes: int = 0
    keys: int | None = None  # distinct keys of records that were not aborted
    producers: int | None = None  # distinct producer ids in the batches, counted up to a million
    # producers that have not expired; compaction keeps their last batches
    active_producers: int | None = None
    expired_producers: int | None = None  # producers that have expired
    log_start: int | None = None
    high_watermark: int | None = None
    # records below this offset are replicated, and their transactions have ended
    last_stable_offset: int | None = None
    end_offset: int | None = None
    checkpoint: int | None = None  # the end of the last compaction; null if there was none
    first_dirty_offset: int | None = None
    first_uncleanable_offset: int | None = None
    # bytes from the segment with the first dirty offset to the log's end
    dirty_bytes: int | None = None
    cleanable_bytes: int | None = None  # dirty bytes that compaction may clean now
    dirty_ratio: float | None = None  # cleanable share of the log, as a broker computes it
    is_due: bool | None = None  # a broker would compact the partition now
    reason: str | None = None  # why a broker would not compact the partition
    uncleanable: Quarantined | None = None  # quarantine note, if the cleaner skips the partition
    problem_count: int = 0  # number of all problems; ``problems`` lists only the first problems
    # the effective settings; empty if they are unknown
    settings: Annotated[tuple[Setting, ...], JsonName(effective)] = ()
    contents: Annotated[Contents, SPREAD] = field(default_factory=Contents)
    transactions: Transactions | None = None
    open_transactions: list[OpenTransaction] = []  # by first offset
    status: ClassVar[str] = figure(lambda self: "damaged" if self.is_damaged else "whole")
    segments: list[SegmentInspection] = []
    problems: list[Problem] = []

    @property
    def is_unread(self) -> bool:
        """Whether the partition could not be read at all."""
        return self.end_offset is None

    @property
    def is_unsupported(self) -> bool:
        """Whether some batches or files have a format that this release cannot read."""
        return any(problem.kind is ProblemKind.UNSUPPORTED for problem in self.problems)

    @property
    def is_damaged(self) -> bool:
        return any_damaged(self.problems)


class FileInspection(Document, kw_only=True):
    """The inspection of a single file."""

    file: str
    kind: str  # "log", "index", "timeindex", "txnindex", "snapshot", "leader-epoch-checkpoint" …
    bytes: int
    topic: str | None = None
    partition: int | None = None
    entries: int | None = None  # number of entries of an index, a snapshot or a checkpoint
    segment: SegmentInspection | None = None  # null unless the file is a .log
    problems: list[Problem] = []
    status: ClassVar[str] = figure(lambda self: "damaged" if self.is_damaged else "whole")

    @property
    def is_damaged(self) -> bool:
        return any_damaged(self.problems)


class InspectTotals(Document, kw_only=True):
    """Sums over all inspected partitions."""

    partitions: int
    damaged: int  # damaged partitions and files
    segments: int
    bytes: int
    dirty_bytes: int
    keys: int | None  # null if unknown for a partition
    contents: Annotated[Contents, Flatten(but=("first_offset", "last_offset"))]
    seconds: float


class InspectReport(Document, kw_only=True):
    """The report of ``inspect`` on all partitions and files at a path."""

    path: str
    system: str
    partitions: list[PartitionInspection] = []
    files: list[FileInspection] = []
    problems: list[Problem] = []  # problems of the log root's checkpoints
    totals: ClassVar[InspectTotals] = figure(lambda self: self.sums())
    notes: list[OverriddenSetting] = []  # given defaults that other settings override
    now_ms: int
    seconds: Annotated[float, UNPRINTED] = 0.0

    @property
    def damaged(self) -> bool:
        lists = [
            self.problems,
            *(p.problems for p in self.partitions),
            *(f.problems for f in self.files),
        ]
        return any(map(any_damaged, lists))

    @property
    def exit_status(self) -> int:
        if self.damaged:
            return 3
        return int(any(each.is_unread or each.is_unsupported for each in self.partitions))

    def sums(self) -> InspectTotals:
        contents = Contents()
        for partition in self.partitions:
            contents.add(partition.contents)
        keys = [partition.keys for partition in self.partitions]
        return InspectTotals(
            partitions=len(self.partitions),
            damaged=sum(partition.is_damaged for partition in self.partitions)
            + sum(file.is_damaged for file in self.files),
            segments=sum(len(partition.segments) for partition in self.partitions),
            bytes=sum(partition.bytes for partition in self.partitions),
            dirty_bytes=sum(partition.dirty_bytes or 0 for partition in self.partitions),
            keys=None if None in keys else sum(key or 0 for key in keys),
            contents=contents,
            seconds=self.seconds,
        )
