"""What a command found or did, as values that print as JSON.

The field names are a contract (ARCHITECTURE.md, "The command line"); they only grow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from lastwrite.model.backlog import Backlog
from lastwrite.model.log import Problem, TopicPartition
from lastwrite.model.uncleanable import Uncleanable


class Status(StrEnum):
    """How a partition came out of ``plan`` or ``compact``."""

    CLEANED = "cleaned"
    UNCHANGED = "unchanged"  # nothing could go
    SKIPPED = "skipped"  # by a rule, named in the reason
    DAMAGED = "damaged"  # left exactly as it was
    FAILED = "failed"


@dataclass(slots=True, kw_only=True)
class PartitionReport:
    """One partition of a plan or a compaction. None: not known, because it was not read."""

    topic: str
    partition: int
    status: Status
    reason: str | None = None
    segments_before: int = 0
    segments_after: int = 0
    segments_untouched: int = 0
    records_before: int | None = None
    records_after: int | None = None
    bytes_before: int = 0
    bytes_after: int = 0
    bytes_read: int = 0  # by scan and rewrite
    bytes_written: int = 0
    segments_deleted: int = 0  # by retention, whole
    bytes_deleted: int = 0  # of these segments, as the round left them
    tombstones_dropped: int = 0  # past their delete horizon
    keys: int | None = None  # distinct keys in the cleaned range
    first_dirty_offset: int = 0
    first_uncleanable_offset: int = 0
    dirty_ratio: float = 0.0
    log_start_before: int | None = None
    log_start_after: int | None = None
    retention: list[dict[str, object]] = field(
        default_factory=list
    )  # base_offset, bytes, rule, reason of each
    verdicts: dict[str, int] = field(default_factory=dict)  # records by verdict
    problems: list[Problem] = field(default_factory=list)
    seconds: float = 0.0
    backlog: Backlog | None = None  # of a log that compaction leaves as it is, and copies from
    uncleanable: Uncleanable | None = None  # what the cleaner noted when it set the partition aside
    published: dict[str, object] | None = (
        None  # to a live cluster: ledger, horizon, removed_ledgers
    )

    @property
    def name(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def to_dict(self) -> dict[str, Any]:
        out = {name: getattr(self, name) for name in self.__slots__}
        out["status"] = str(self.status)
        out["problems"] = [problem.to_dict() for problem in self.problems]
        out["backlog"] = self.backlog and self.backlog.to_dict()
        out["uncleanable"] = self.uncleanable and self.uncleanable.to_dict()
        return out


@dataclass(slots=True, kw_only=True)
class CompactionReport:
    """What ``plan`` would do or ``compact`` did."""

    partitions: list[PartitionReport]
    dry_run: bool
    now_ms: int
    seconds: float = 0.0
    stage_seconds: dict[str, float] = field(default_factory=dict)
    profile: dict[str, dict[str, object]] = field(
        default_factory=dict
    )  # by stage: see pipeline.profile

    @property
    def damaged(self) -> bool:
        return any(p.status is Status.DAMAGED for p in self.partitions)

    @property
    def failed(self) -> bool:
        return any(p.status is Status.FAILED for p in self.partitions)

    @property
    def exit_status(self) -> int:
        return 1 if self.failed else 3 if self.damaged else 0

    def to_dict(self) -> dict[str, Any]:
        return {
            "partitions": [partition.to_dict() for partition in self.partitions],
            "totals": {
                "partitions": len(self.partitions),
                **{str(s): sum(p.status is s for p in self.partitions) for s in Status},
                **{
                    name: _total(self.partitions, name)
                    for name in (
                        "segments_before",
                        "segments_after",
                        "segments_untouched",
                        "records_before",
                        "records_after",
                        "bytes_before",
                        "bytes_after",
                        "bytes_read",
                        "bytes_written",
                        "segments_deleted",
                        "bytes_deleted",
                        "tombstones_dropped",
                    )
                },
                "seconds": self.seconds,
                "stage_seconds": self.stage_seconds,
                "profile": self.profile,
            },
            "dry_run": self.dry_run,
            "now_ms": self.now_ms,
        }


def _total(partitions: Sequence[PartitionReport], name: str) -> int:
    return sum(getattr(partition, name) or 0 for partition in partitions)
