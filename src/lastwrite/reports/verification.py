"""What ``verify`` found, as values that print as JSON. The field names only grow."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from msgspec import field

from lastwrite.model.log import Problem, TopicPartition
from lastwrite.reports.document import SPREAD, UNPRINTED, Document, FrozenDocument, figure


class VerifyStatus(StrEnum):
    """How a partition came out of ``verify``, the worst that holds."""

    VERIFIED = "verified"
    # well formed as far as was read; not of a format that this release checks
    UNSUPPORTED = "unsupported"
    FAILED = "failed"  # not checked to the end, for a reason that is not the log's
    DAMAGED = "damaged"  # bytes contradict their format: see problems
    BROKEN = "broken"  # a promise of compaction does not hold: see violations

    def is_worse_than(self, other: VerifyStatus) -> bool:
        order = list(VerifyStatus)
        return order.index(self) > order.index(other)


class Violation(FrozenDocument, frozen=True):
    """A promise that does not hold: which, where, and in which file to look."""

    promise: str  # a label, stable: "lost", "changed", …
    message: str
    offset: int | None = None
    path: str | None = None

    def __str__(self) -> str:
        place = "" if self.path is None else f"{self.path}: "
        return place + ("" if self.offset is None else f"offset {self.offset}: ") + self.message


class Transactions(FrozenDocument, frozen=True, kw_only=True):
    """The transactions of a log, as its own markers tell them."""

    open: int = 0  # without a marker
    aborted: int = 0  # markers
    committed: int = 0  # markers
    aborted_records: int = 0  # that are still there


class Comparison(Document, kw_only=True):
    """A partition held against what it was before compaction; counts of records, save for the keys."""

    folder: str
    records_before: int = 0
    records_after: int = 0
    superseded: int = 0  # missing, as a later record has the key
    expired: int = 0  # missing deletes past their horizon
    keyless: int = 0  # missing for want of a key
    first_keyless_offset: int | None = None  # of those
    aborted: int = 0  # missing, as their transaction was aborted
    markers: int = 0  # missing, of transactions without a batch left
    below_start: int = 0  # missing below the log's start
    keys: int = 0  # distinct, before
    keys_alive: int = 0  # whose last record now is no delete
    violation_count: int = 0
    violations: list[Violation] = []  # the first of each kind


class PartitionVerification(Document, kw_only=True):
    """One partition, as it was read whole."""

    topic: str
    partition: int
    status: VerifyStatus = VerifyStatus.VERIFIED
    reason: str | None = None
    segments: int = 0
    batches: int = 0
    records: int = 0
    tombstones: int = 0
    keyless_records: int = 0
    control_records: int = 0
    empty_batches: int = 0
    old_batches: int = 0  # of formats v0 and v1
    transactions: Transactions | None = None  # None: the log could not be read whole
    bytes: int = 0
    log_start_offset: int = 0
    end_offset: int = 0
    problems: list[Problem] = []
    advice: list[str] = []  # nothing is wrong, but could be better
    # None: there was nothing to compare with, or one of both is damaged
    comparison: Comparison | None = None

    @property
    def name(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def worsen(self, status: VerifyStatus, reason: str) -> None:
        """Give it ``status``, unless it has a worse one."""
        if status.is_worse_than(self.status):
            self.status, self.reason = status, reason


class VerifiedTotals(Document, kw_only=True):
    """The sums over all partitions; the number of partitions by status."""

    partitions: int
    verified: int
    unsupported: int
    failed: int
    damaged: int
    broken: int
    segments: int
    batches: int
    records: int
    bytes: int


class ComparedTotals(Document, kw_only=True):
    """The sums over all comparisons."""

    records_before: int
    records_after: int
    superseded: int
    expired: int
    keyless: int
    aborted: int
    markers: int
    below_start: int
    keys: int
    keys_alive: int
    violation_count: int


class VerifyTotals(Document):
    """The sums over all partitions, and over all comparisons where there are any."""

    sums: Annotated[VerifiedTotals, SPREAD]
    compared: Annotated[ComparedTotals | None, SPREAD]  # None: nothing was compared


class Checked(Document, kw_only=True):
    """How much was read and checked."""

    records: int = 0
    files: int = 0  # of records, queues and indexes that are files of their own; objects, ledgers
    bytes: int = 0  # of records


class StoreVerification(Document, kw_only=True):
    """What lies beside the partitions: of a RocketMQ store its commit log and its index files."""

    path: str
    status: VerifyStatus = VerifyStatus.VERIFIED
    reason: str | None = None
    segments: int = 0  # files of the commit log
    records: int = 0
    bytes: int = 0
    index_files: int = 0
    checked: Annotated[Checked, UNPRINTED] = field(
        default_factory=Checked
    )  # with its compaction logs
    problems: list[Problem] = []

    def worsen(self, status: VerifyStatus, reason: str) -> None:
        """Give it ``status``, unless it has a worse one."""
        if status.is_worse_than(self.status):
            self.status, self.reason = status, reason


class BesidePartitions(Document):
    """What ``verify`` prints of a system that has something beside its partitions."""

    store: StoreVerification


class VerifyReport(Document, kw_only=True):
    """What ``verify`` found in each partition."""

    partitions: list[PartitionVerification]
    # None: the system has nothing beside its partitions
    store: Annotated[StoreVerification | None, UNPRINTED] = None
    beside: ClassVar[Annotated[BesidePartitions | None, SPREAD]] = figure(
        lambda self: None if self.store is None else BesidePartitions(self.store)
    )
    keyless_option: Annotated[str, UNPRINTED] = "--drop-keyless"  # says that keyless records may go
    totals: ClassVar[VerifyTotals] = figure(lambda self: self.sums())
    checked: ClassVar[Checked] = figure(lambda self: self.sum_checked())
    seconds: float = 0.0
    # 0 all is well, 5 a promise is broken, else 3 something is damaged, else 1 something was not
    # checked
    exit_status: ClassVar[int] = figure(lambda self: self.worst())

    def worst(self) -> int:
        """The exit status of the worst that a partition has come out with."""
        found = {partition.status for partition in self.partitions}
        found |= set() if self.store is None else {self.store.status}
        for status, number in (
            (VerifyStatus.BROKEN, 5),
            (VerifyStatus.DAMAGED, 3),
            (VerifyStatus.FAILED, 1),
            (VerifyStatus.UNSUPPORTED, 1),
        ):
            if status in found:
                return number
        return 0

    @property
    def ok(self) -> bool:
        return self.exit_status == 0

    @property
    def problems(self) -> list[Violation | Problem]:
        """All that is wrong, broken promises first; a partition that failed has its reason only."""
        return [
            *self.violations,
            *(() if self.store is None else self.store.problems),
            *(problem for partition in self.partitions for problem in partition.problems),
        ]

    @property
    def violations(self) -> list[Violation]:
        return [v for comparison in self._comparisons for v in comparison.violations]

    @property
    def _comparisons(self) -> list[Comparison]:
        return [p.comparison for p in self.partitions if p.comparison is not None]

    def sum_checked(self) -> Checked:
        """Everything that was read at the path, each record once."""
        if self.store is not None:
            return self.store.checked
        return Checked(
            records=sum(partition.records for partition in self.partitions),
            files=sum(partition.segments for partition in self.partitions),
            bytes=sum(partition.bytes for partition in self.partitions),
        )

    def sums(self) -> VerifyTotals:
        """The totals; those of comparisons where there are any."""
        figures = ("segments", "batches", "records", "bytes")
        sums = VerifiedTotals(
            partitions=len(self.partitions),
            **{str(each): sum(p.status is each for p in self.partitions) for each in VerifyStatus},
            **{name: sum(getattr(p, name) for p in self.partitions) for name in figures},
        )
        if not self._comparisons:
            return VerifyTotals(sums, None)
        names = ComparedTotals.__struct_fields__
        compared = {name: sum(getattr(c, name) for c in self._comparisons) for name in names}
        return VerifyTotals(sums, ComparedTotals(**compared))
