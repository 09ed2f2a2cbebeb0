"""The result of ``verify``, as values that print as JSON. Field names are a contract."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from msgspec import field

from lastwrite.model.log import Problem, TopicPartition
from lastwrite.reports.document import SPREAD, UNPRINTED, Document, FrozenDocument, figure


class VerifyStatus(StrEnum):
    """The outcome of ``verify`` for a partition. If several apply, the worst is reported."""

    VERIFIED = "verified"
    # no damage was found, but this release cannot check the format
    UNSUPPORTED = "unsupported"
    FAILED = "failed"  # not checked completely, because of an error outside the log
    DAMAGED = "damaged"  # bytes violate their format: see ``problems``
    BROKEN = "broken"  # a guarantee of compaction is violated: see ``violations``

    def is_worse_than(self, other: VerifyStatus) -> bool:
        order = list(VerifyStatus)
        return order.index(self) > order.index(other)


class Violation(FrozenDocument, frozen=True):
    """A violated guarantee of compaction, with the offset and the file."""

    promise: str  # stable label of the guarantee: "lost", "changed", …
    message: str
    offset: int | None = None
    path: str | None = None

    def __str__(self) -> str:
        place = "" if self.path is None else f"{self.path}: "
        return place + ("" if self.offset is None else f"offset {self.offset}: ") + self.message


class Transactions(FrozenDocument, frozen=True, kw_only=True):
    """The transactions of a log, according to its markers."""

    open: int = 0  # transactions without a marker
    aborted: int = 0  # abort markers
    committed: int = 0  # commit markers
    aborted_records: int = 0  # records of aborted transactions in the log


class Comparison(Document, kw_only=True):
    """The comparison of a partition with its state before compaction.

    Numbers count records, unless a comment names something else.
    """

    folder: str
    records_before: int = 0
    records_after: int = 0
    superseded: int = 0  # records that are missing because a later record has the key
    expired: int = 0  # deletes that are missing because they were past their horizon
    keyless: int = 0  # records that are missing because they have no key
    # first offset of a record that is missing because it has no key
    first_keyless_offset: int | None = None
    aborted: int = 0  # records that are missing because their transaction was aborted
    markers: int = 0  # markers that are missing because their transaction has no remaining batch
    below_start: int = 0  # records that are missing because they are below the log start
    keys: int = 0  # distinct keys before compaction
    keys_alive: int = 0  # keys whose last record is not a delete
    violation_count: int = 0
    violations: list[Violation] = []  # the first violations of each kind


class PartitionVerification(Document, kw_only=True):
    """The result of verifying one partition by reading all of its records."""

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
    old_batches: int = 0  # batches in record formats v0 and v1
    transactions: Transactions | None = None  # null if the log could not be read to its end
    bytes: int = 0
    log_start_offset: int = 0
    end_offset: int = 0
    problems: list[Problem] = []
    advice: list[str] = []  # possible improvements, although nothing is wrong
    # null if there was no earlier state to compare with, or one of the two is damaged
    comparison: Comparison | None = None

    @property
    def name(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def raise_status(self, status: VerifyStatus, reason: str) -> None:
        """Set ``status``, unless the current one is worse."""
        if status.is_worse_than(self.status):
            self.status, self.reason = status, reason


class VerifiedTotals(Document, kw_only=True):
    """The sums over all partitions, and the number of partitions by status."""

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
    """The sums over all partitions and, if there are any, over all comparisons."""

    sums: Annotated[VerifiedTotals, SPREAD]
    compared: Annotated[ComparedTotals | None, SPREAD]  # null if nothing was compared


class Checked(Document, kw_only=True):
    """The amount of data that was checked."""

    records: int = 0
    files: int = 0  # number of segments, queue and index files, objects or ledgers
    bytes: int = 0  # bytes of records


class StoreVerification(Document, kw_only=True):
    """The verification of data outside the partitions.

    This data is the commit log and the index files of a RocketMQ store.
    """

    path: str
    status: VerifyStatus = VerifyStatus.VERIFIED
    reason: str | None = None
    segments: int = 0  # number of files of the commit log
    records: int = 0
    bytes: int = 0
    index_files: int = 0
    checked: Annotated[Checked, UNPRINTED] = field(
        default_factory=Checked
    )  # all checked data, including the store's compaction logs
    problems: list[Problem] = []

    def raise_status(self, status: VerifyStatus, reason: str) -> None:
        """Set ``status``, unless the current one is worse."""
        if status.is_worse_than(self.status):
            self.status, self.reason = status, reason


class BesidePartitions(Document):
    """The part of the output for data outside the partitions."""

    store: StoreVerification


class VerifyReport(Document, kw_only=True):
    """The result of ``verify`` for each partition."""

    partitions: list[PartitionVerification]
    # null if the system has no data outside its partitions
    store: Annotated[StoreVerification | None, UNPRINTED] = None
    beside: ClassVar[Annotated[BesidePartitions | None, SPREAD]] = figure(
        lambda self: None if self.store is None else BesidePartitions(self.store)
    )
    # the option that allows dropping records without a key
    keyless_option: Annotated[str, UNPRINTED] = "--drop-keyless"
    totals: ClassVar[VerifyTotals] = figure(lambda self: self.sums())
    checked: ClassVar[Checked] = figure(lambda self: self.sum_checked())
    seconds: float = 0.0
    # 5 if a guarantee is violated, else 3 if a partition is damaged, else 1 if one was not checked,
    # else 0
    exit_status: ClassVar[int] = figure(lambda self: self.worst())

    def worst(self) -> int:
        """The exit status, which follows from the worst status."""
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
        """All violations and problems, violations first. A failed partition has only a reason."""
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
        """The amount of data that was checked at the path. Each record counts once."""
        if self.store is not None:
            return self.store.checked
        return Checked(
            records=sum(partition.records for partition in self.partitions),
            files=sum(partition.segments for partition in self.partitions),
            bytes=sum(partition.bytes for partition in self.partitions),
        )

    def sums(self) -> VerifyTotals:
        """The totals over all partitions, and over all comparisons if there are any."""
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
