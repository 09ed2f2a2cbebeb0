"""What ``inspect`` finds, as values that print as JSON. Field names only grow.

None: not known, because it was not or could not be read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from lastwrite.model.log import Problem, ProblemKind
from lastwrite.model.uncleanable import Uncleanable
from lastwrite.model.verification import Transactions


@dataclass(slots=True, kw_only=True)
class Contents:
    """What the batches of a segment, or of several, hold. Every batch counted here has passed its checksum."""

    batches: int = 0
    records: int = 0
    tombstones: int = 0
    keyless: int = 0  # records without a key; control records are not among them
    control_records: int = 0
    empty_batches: int = 0
    transactional_batches: int = 0
    abort_markers: int = 0
    commit_markers: int = 0
    producer_batches: int = 0  # of idempotent or transactional producers
    horizon_batches: int = 0  # with a delete horizon
    first_offset: int | None = (
        None  # of the first batch: compaction may have taken its first records
    )
    last_offset: int | None = None
    max_timestamp: int | None = None
    earliest_horizon: int | None = None
    codecs: Counter[str] = field(default_factory=Counter)  # batches by codec
    formats: Counter[str] = field(default_factory=Counter)  # batches by format version

    def add(self, other: Contents) -> None:
        """Take in what follows in the log."""
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.codecs.update(other.codecs)
        self.formats.update(other.formats)
        if self.first_offset is None:
            self.first_offset = other.first_offset
        if other.last_offset is not None:
            self.last_offset = other.last_offset
        self.max_timestamp = max(_known(self.max_timestamp, other.max_timestamp), default=None)
        self.earliest_horizon = min(
            _known(self.earliest_horizon, other.earliest_horizon), default=None
        )

    def to_dict(self) -> dict[str, Any]:
        out = {name: getattr(self, name) for name in Contents.__slots__}
        out["codecs"], out["formats"] = dict(self.codecs), dict(self.formats)
        return out


_SUMS = (
    "batches",
    "records",
    "tombstones",
    "keyless",
    "control_records",
    "empty_batches",
    "transactional_batches",
    "abort_markers",
    "commit_markers",
    "producer_batches",
    "horizon_batches",
)


def _known(*values: int | None) -> Iterable[int]:
    return (value for value in values if value is not None)


@dataclass(slots=True, kw_only=True)
class SegmentInspection:
    """One segment: its file, what is in it, and its indexes."""

    file: str
    base_offset: int
    bytes: int
    is_active: bool = False
    contents: Contents = field(default_factory=Contents)
    index_entries: int | None = None  # None: no such file, or one that cannot be read
    time_index_entries: int | None = None
    transaction_index_entries: int | None = None
    modified: int = 0  # of the file, ms since 1970

    def to_dict(self) -> dict[str, Any]:
        own = {
            name: getattr(self, name) for name in SegmentInspection.__slots__ if name != "contents"
        }
        return {**own, **self.contents.to_dict()}


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction without a marker."""

    producer_id: int
    first_offset: int

    def to_dict(self) -> dict[str, int]:
        return {"producer_id": self.producer_id, "first_offset": self.first_offset}


@dataclass(slots=True, kw_only=True)
class PartitionInspection:
    """One partition: its bounds, its segments, what they hold, and what is wrong."""

    topic: str
    partition: int
    folder: str
    segments: list[SegmentInspection] = field(default_factory=list)
    contents: Contents = field(default_factory=Contents)
    bytes: int = 0
    keys: int | None = None  # distinct keys of records that were not aborted
    producers: int | None = None  # distinct producer ids of its batches; counted up to a million
    active_producers: int | None = None  # that a broker knows; their last batches stay
    expired_producers: int | None = None  # that it knew, and has forgotten by now
    transactions: Transactions | None = None
    open_transactions: list[OpenTransaction] = field(default_factory=list)  # by first offset
    log_start: int | None = None
    high_watermark: int | None = None
    last_stable_offset: int | None = None  # below it all is replicated, and of decided transactions
    end_offset: int | None = None
    checkpoint: int | None = None  # where the last round ended; None: there was none
    first_dirty_offset: int | None = None
    first_uncleanable_offset: int | None = None
    dirty_bytes: int | None = (
        None  # from the segment that holds the first dirty offset to the log's end
    )
    cleanable_bytes: int | None = None  # the part of them that a round may clean now
    dirty_ratio: float | None = None  # the cleanable share, as the broker computes it
    is_due: bool | None = None  # a broker would run a round now
    reason: str | None = None  # why it would not
    uncleanable: Uncleanable | None = None  # what the cleaner noted when it set the partition aside
    problems: list[Problem] = field(default_factory=list)
    problem_count: int = 0  # all; ``problems`` names the first of them

    @property
    def is_damaged(self) -> bool:
        return any(problem.kind is ProblemKind.DAMAGED for problem in self.problems)

    def to_dict(self) -> dict[str, Any]:
        apart = ("contents", "segments", "problems", "transactions", "open_transactions")
        own = {
            name: getattr(self, name) for name in PartitionInspection.__slots__ if name not in apart
        }
        return {
            **own,
            **self.contents.to_dict(),
            "transactions": None if self.transactions is None else self.transactions.to_dict(),
            "open_transactions": [transaction.to_dict() for transaction in self.open_transactions],
            "status": "damaged" if self.is_damaged else "whole",
            "segments": [segment.to_dict() for segment in self.segments],
            "problems": [problem.to_dict() for problem in self.problems],
            "uncleanable": self.uncleanable and self.uncleanable.to_dict(),
        }


@dataclass(slots=True, kw_only=True)
class FileInspection:
    """One file that was asked for by itself."""

    file: str
    kind: str  # "log", "index", "timeindex", "txnindex", "snapshot", "leader-epoch-checkpoint" …
    bytes: int
    topic: str | None = None
    partition: int | None = None
    entries: int | None = None  # of an index, a snapshot or a checkpoint
    segment: SegmentInspection | None = None  # of a .log
    problems: list[Problem] = field(default_factory=list)

    @property
    def is_damaged(self) -> bool:
        return any(problem.kind is ProblemKind.DAMAGED for problem in self.problems)

    def to_dict(self) -> dict[str, Any]:
        out = {name: getattr(self, name) for name in FileInspection.__slots__}
        out["status"] = "damaged" if self.is_damaged else "whole"
        out["segment"] = self.segment.to_dict() if self.segment else None
        out["problems"] = [problem.to_dict() for problem in self.problems]
        return out


@dataclass(slots=True, kw_only=True)
class InspectReport:
    """Everything at a path."""

    path: str
    system: str
    now_ms: int
    partitions: list[PartitionInspection] = field(default_factory=list)
    files: list[FileInspection] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)  # of the log root itself
    seconds: float = 0.0

    @property
    def damaged(self) -> bool:
        lists = [
            self.problems,
            *(p.problems for p in self.partitions),
            *(f.problems for f in self.files),
        ]
        return any(
            problem.kind is ProblemKind.DAMAGED for problems in lists for problem in problems
        )

    @property
    def exit_status(self) -> int:
        return 3 if self.damaged else 0

    def to_dict(self) -> dict[str, Any]:
        contents = Contents()
        for partition in self.partitions:
            contents.add(partition.contents)
        keys = [partition.keys for partition in self.partitions]
        counted = contents.to_dict()
        for meaningless in ("first_offset", "last_offset"):  # across partitions
            del counted[meaningless]
        return {
            "path": self.path,
            "system": self.system,
            "partitions": [partition.to_dict() for partition in self.partitions],
            "files": [file.to_dict() for file in self.files],
            "problems": [problem.to_dict() for problem in self.problems],
            "totals": {
                "partitions": len(self.partitions),
                "damaged": sum(p.is_damaged for p in self.partitions)
                + sum(f.is_damaged for f in self.files),
                "segments": sum(len(partition.segments) for partition in self.partitions),
                "bytes": sum(partition.bytes for partition in self.partitions),
                "dirty_bytes": sum(partition.dirty_bytes or 0 for partition in self.partitions),
                "keys": None if None in keys else sum(key or 0 for key in keys),
                **counted,
                "seconds": self.seconds,
            },
            "now_ms": self.now_ms,
        }
