"""What ``verify`` found, as values that print as JSON. The field names only grow."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from lastwrite.model.log import Problem, TopicPartition


class VerifyStatus(StrEnum):
    """How a partition came out of ``verify``, the worst that holds."""

    VERIFIED = "verified"
    UNSUPPORTED = (
        "unsupported"  # well formed as far as was read; not of a format that this release checks
    )
    FAILED = "failed"  # not checked to the end, for a reason that is not the log's
    DAMAGED = "damaged"  # bytes contradict their format: see problems
    BROKEN = "broken"  # a promise of compaction does not hold: see violations


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that does not hold: which, where, and in which file to look."""

    promise: str  # a label, stable: "lost", "changed", …
    message: str
    offset: int | None = None
    path: str | None = None

    def __str__(self) -> str:
        place = "" if self.path is None else f"{self.path}: "
        return place + ("" if self.offset is None else f"offset {self.offset}: ") + self.message

    def to_dict(self) -> dict[str, Any]:
        return {
            "promise": self.promise,
            "message": self.message,
            "offset": self.offset,
            "path": self.path,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Transactions:
    """The transactions of a log, as its own markers tell them."""

    open: int = 0  # without a marker
    aborted: int = 0  # markers
    committed: int = 0  # markers
    aborted_records: int = 0  # that are still there

    def to_dict(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True, kw_only=True)
class Comparison:
    """A partition held against what it was before compaction; counts of records, save for the keys."""

    folder: str
    records_before: int = 0
    records_after: int = 0
    superseded: int = 0  # missing, as a later record has the key
    expired: int = 0  # missing deletes past their horizon
    keyless: int = 0  # missing for want of a key
    aborted: int = 0  # missing, as their transaction was aborted
    markers: int = 0  # missing, of transactions without a batch left
    below_start: int = 0  # missing below the log's start
    keys: int = 0  # distinct, before
    keys_alive: int = 0  # whose last record now is no delete
    violation_count: int = 0
    violations: list[Violation] = field(default_factory=list)  # the first of each kind

    def to_dict(self) -> dict[str, Any]:
        out: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        out["violations"] = [violation.to_dict() for violation in self.violations]
        return out


@dataclass(slots=True, kw_only=True)
class PartitionVerification:
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
    problems: list[Problem] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)  # nothing is wrong, but could be better
    comparison: Comparison | None = (
        None  # None: there was nothing to compare with, or one of both is damaged
    )

    @property
    def name(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def worsen(self, status: VerifyStatus, reason: str) -> None:
        """Give it ``status``, unless it has a worse one."""
        order = list(VerifyStatus)
        if order.index(status) > order.index(self.status):
            self.status, self.reason = status, reason

    def to_dict(self) -> dict[str, Any]:
        out: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        out["status"] = str(self.status)
        out["transactions"] = None if self.transactions is None else self.transactions.to_dict()
        out["problems"] = [problem.to_dict() for problem in self.problems]
        out["comparison"] = None if self.comparison is None else self.comparison.to_dict()
        return out


@dataclass(slots=True, kw_only=True)
class VerifyReport:
    """What ``verify`` found in each partition."""

    partitions: list[PartitionVerification]
    seconds: float = 0.0

    @property
    def exit_status(self) -> int:
        """0 all is well, 5 a promise is broken, else 3 something is damaged, else 1 something was not checked."""
        found = {partition.status for partition in self.partitions}
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
            *(problem for partition in self.partitions for problem in partition.problems),
        ]

    @property
    def violations(self) -> list[Violation]:
        return [
            v for p in self.partitions if p.comparison is not None for v in p.comparison.violations
        ]

    def to_dict(self) -> dict[str, Any]:
        partitions = [partition.to_dict() for partition in self.partitions]
        compared = [
            partition.comparison
            for partition in self.partitions
            if partition.comparison is not None
        ]
        totals: dict[str, Any] = {"partitions": len(partitions)}
        totals |= {
            str(status): sum(p.status is status for p in self.partitions) for status in VerifyStatus
        }
        totals |= {
            name: sum(p[name] for p in partitions)
            for name in ("segments", "batches", "records", "bytes")
        }
        if compared:
            totals |= _sums(
                compared,
                (
                    "records_before",
                    "records_after",
                    "superseded",
                    "expired",
                    "keyless",
                    "aborted",
                    "markers",
                    "below_start",
                    "keys",
                    "keys_alive",
                    "violation_count",
                ),
            )
        return {
            "partitions": partitions,
            "totals": totals,
            "seconds": self.seconds,
            "exit_status": self.exit_status,
        }


def _sums(compared: Iterable[Comparison], names: Iterable[str]) -> dict[str, int]:
    held = list(compared)
    return {name: sum(getattr(comparison, name) for comparison in held) for name in names}
