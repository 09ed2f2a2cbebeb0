"""What ``explain`` answers, as values that print as JSON. Field names only grow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from lastwrite.model.log import Problem


class Rule(StrEnum):
    """What keeps a partition, or a part of it, from being cleaned; in the order in which it is asked."""

    POLICY = "cleanup.policy"
    CLEANER = "log.cleaner.enable"
    DAMAGE = "damage"
    SET_ASIDE = "set aside"
    HELD = "held"
    EMPTY = "empty"
    CLEAN = "clean"  # all was cleaned before
    ACTIVE_SEGMENT = "active segment"
    TRANSACTION = "open transaction"
    HIGH_WATERMARK = "high watermark"
    MIN_LAG = "min.compaction.lag.ms"
    DIRTY_RATIO = "min.cleanable.dirty.ratio"


@dataclass(frozen=True, slots=True)
class Reason:
    """One rule that applies now, with its figures, and what ends it."""

    rule: Rule
    message: str
    change: str  # what ends it; reads on from "it ends"
    at_ms: int | None = (
        None  # when the clock ends it, if nothing else does before; None: no clock does
    )
    from_offset: int | None = (
        None  # what it keeps out lies from here on; None: all of the partition
    )

    def to_dict(self) -> dict[str, Any]:
        return {
            "rule": str(self.rule),
            "message": self.message,
            "change": self.change,
            "at": self.at_ms,
            "from_offset": self.from_offset,
        }


class Part(StrEnum):
    """Where a record lies."""

    CLEAN = "clean"  # below the first dirty offset
    DIRTY = "dirty"
    ABOVE = "above"  # in a closed segment that the next round does not reach
    ACTIVE = "active"  # in the active segment


class Fate(StrEnum):
    """What becomes of a record."""

    STAYS = "stays"
    NEXT_ROUND = "goes with the next round"
    LATER = "goes later"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordExplanation:
    """One record of the key that was asked for, and why it is there."""

    offset: int
    timestamp_ms: int
    segment: int  # its base offset
    position: int  # of the record's batch
    value_bytes: int | None  # None: it deletes the key
    part: Part
    fate: Fate
    message: str
    change: str | None  # None: it stays
    at_ms: int | None  # not before then; None: that is not known

    def to_dict(self) -> dict[str, Any]:
        return {
            "offset": self.offset,
            "timestamp": self.timestamp_ms,
            "segment": self.segment,
            "position": self.position,
            "value_bytes": self.value_bytes,
            "part": str(self.part),
            "fate": str(self.fate),
            "message": self.message,
            "change": self.change,
            "at": self.at_ms,
        }


@dataclass(slots=True, kw_only=True)
class Waiting:
    """Records that compaction will take one day, counted by what they wait for."""

    superseded_next: int = 0  # a later write lies in the range: the next round takes them
    superseded_later: int = 0  # they, or their later writes, lie above the range
    aborted_next: int = 0  # of aborted transactions
    aborted_later: int = 0
    keyless_next: int = 0
    deletes_due: int = 0  # past their horizon: the next round takes them
    deletes_waiting: int = 0  # their horizon lies ahead
    deletes_unstamped: int = 0  # no round has kept them yet: the next one gives them a horizon
    deletes_old: int = 0  # of record formats v0 and v1, which age by their file
    deletes_above: int = 0  # above the range
    first_horizon_ms: int | None = None  # of those that wait
    last_horizon_ms: int | None = None
    markers_needed: int = 0  # of transactions of which something is still there
    markers_due: int = 0
    markers_waiting: int = 0
    markers_unstamped: int = 0

    def to_dict(self) -> dict[str, Any]:
        return {
            name.removesuffix("_ms") if name.endswith("horizon_ms") else name: getattr(self, name)
            for name in self.__slots__
        }


@dataclass(slots=True, kw_only=True)
class PartitionExplanation:
    """The answers for one partition; None where something could not be read."""

    topic: str
    partition: int
    folder: str
    is_due: bool = False  # by the rules; whoever holds it may do the round
    summary: str = ""
    first_dirty_offset: int | None = None
    first_uncleanable_offset: int | None = None
    end_offset: int | None = None
    clean_bytes: int | None = None
    cleanable_bytes: int | None = None
    dirty_ratio: float | None = None
    reasons: Sequence[Reason] = ()
    waiting: Waiting | None = None
    records: Sequence[RecordExplanation] | None = None  # of the key; None: no key was asked for
    problems: list[Problem] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        out = {name: getattr(self, name) for name in PartitionExplanation.__slots__}
        out["reasons"] = [reason.to_dict() for reason in self.reasons]
        out["waiting"] = None if self.waiting is None else self.waiting.to_dict()
        out["records"] = (
            None if self.records is None else [record.to_dict() for record in self.records]
        )
        out["problems"] = [problem.to_dict() for problem in self.problems]
        return out


@dataclass(slots=True, kw_only=True)
class ExplainReport:
    """The answers for all partitions at a path."""

    path: str
    now_ms: int
    partitions: list[PartitionExplanation] = field(default_factory=list)

    @property
    def exit_status(self) -> int:
        """0, or 3 where something was damaged."""
        return 3 if any(partition.problems for partition in self.partitions) else 0

    def to_dict(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "now_ms": self.now_ms,
            "partitions": [partition.to_dict() for partition in self.partitions],
            "exit_status": self.exit_status,
        }
