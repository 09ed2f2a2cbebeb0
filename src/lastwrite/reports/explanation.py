"""The result of ``explain``, as values that print as JSON. Field names are a contract."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import ClassVar

from msgspec import field

from lastwrite.model.log import Problem, any_damaged
from lastwrite.reports.document import Document, FrozenDocument, figure
from lastwrite.reports.holding import BlockingGroup


class Rule(StrEnum):
    """The rules that prevent the cleaning of a partition or a part of it, in order of checking."""

    POLICY = "cleanup.policy"
    CLEANER = "log.cleaner.enable"
    DAMAGE = "damage"
    SET_ASIDE = "set aside"
    HELD = "held"
    EMPTY = "empty"
    CLEAN = "clean"  # all records are already clean
    ACTIVE_SEGMENT = "active segment"
    TRANSACTION = "open transaction"
    HIGH_WATERMARK = "high watermark"
    MIN_LAG = "min.compaction.lag.ms"
    # a rule of Lastwrite: more records have no key than the user allowed to drop
    KEYLESS = "max.keyless.ratio"
    DIRTY_RATIO = "min.cleanable.dirty.ratio"
    THRESHOLD = "compactionThreshold"  # only in Pulsar; a compaction on request ignores it


class Reason(FrozenDocument, frozen=True):
    """One rule that applies now, with its figures, and the change that ends it."""

    rule: Rule
    message: str
    change: str  # what ends the rule, as the end of a sentence that begins with "it ends"
    # time at which the rule ends by itself; null if something else ends it
    at_ms: int | None = field(default=None, name="at")
    # first offset that the rule applies to; null if it applies to the whole partition
    from_offset: int | None = None


class LogRegion(StrEnum):
    """The position of a record relative to the range of the next round."""

    CLEAN = "clean"  # the record is below the first dirty offset
    DIRTY = "dirty"
    ABOVE = "above"  # the record is in a closed segment above the range
    ACTIVE = "active"  # the record is in the active segment


class RecordOutcome(StrEnum):
    """Whether, and when, compaction drops a record."""

    STAYS = "stays"
    NEXT_ROUND = "goes with the next round"
    LATER = "goes later"


class RecordExplanation(FrozenDocument, frozen=True, kw_only=True):
    """One record of the requested key, and why it is still in the log."""

    offset: int
    timestamp_ms: int = field(name="timestamp")
    segment: int  # base offset of the record's segment
    position: int  # byte of the record's batch in the segment
    value_bytes: int | None  # null if the record deletes the key
    part: LogRegion
    fate: RecordOutcome
    message: str
    change: str | None  # what ends the wait; null if the record stays
    # earliest time at which the record is dropped; null if unknown
    at_ms: int | None = field(name="at")
    message_id: str | None = None  # only in Pulsar: LEDGER:ENTRY:PARTITION[:INDEX]


class Waiting(Document, kw_only=True):
    """The number of records that compaction will drop, by the condition that they wait for."""

    # superseded records that the next round drops: a later record of the key is in its range
    superseded_next: int = 0
    # superseded records that a later round drops: the record, or the one that supersedes it, is
    # above the range of the next round
    superseded_later: int = 0
    aborted_next: int = 0  # records of aborted transactions that the next round drops
    aborted_later: int = 0
    keyless_next: int = 0
    deletes_due: int = 0  # deletes past their horizon: dropped by the next round
    deletes_waiting: int = 0  # deletes whose horizon is in the future
    # deletes past their horizon, held for consumer groups that have not read them
    deletes_held: int = 0
    # deletes without a horizon, because no round has kept them yet; the next round sets it
    deletes_unstamped: int = 0
    deletes_never: int = 0  # deletes that get no horizon, because it would exceed a 64-bit integer
    # deletes in batches with a horizon below 0; a broker's own cleaner drops these deletes
    deletes_bad_horizon: int = 0
    # deletes in record formats v0 and v1; they expire by the modification time of their file
    deletes_old: int = 0
    deletes_above: int = 0  # deletes above the range
    # earliest horizon of the waiting deletes
    first_horizon_ms: int | None = field(default=None, name="first_horizon")
    # latest horizon of the waiting deletes
    last_horizon_ms: int | None = field(default=None, name="last_horizon")
    markers_needed: int = 0  # transaction markers whose transactions have remaining records
    markers_due: int = 0
    markers_waiting: int = 0
    markers_unstamped: int = 0
    markers_never: int = 0


class RangeInWords(FrozenDocument, frozen=True):
    """The range of the next round as positions of the system, such as ``10:5`` in Pulsar."""

    first_dirty: str
    first_uncleanable: str
    end: str


class PartitionExplanation(Document, kw_only=True):
    """The explanation of one partition. null means that the value could not be read."""

    topic: str
    partition: int
    folder: str
    is_due: bool = False  # whether the rules allow a round now
    summary: str = ""
    first_dirty_offset: int | None = None
    first_uncleanable_offset: int | None = None
    end_offset: int | None = None
    clean_bytes: int | None = None
    cleanable_bytes: int | None = None
    dirty_ratio: float | None = None
    reasons: Sequence[Reason] = ()
    waiting: Waiting | None = None
    # records of the requested key; null if no key was given
    records: Sequence[RecordExplanation] | None = None
    problems: list[Problem] = []
    in_words: RangeInWords | None = None
    held_for: list[BlockingGroup] = []  # consumer groups for which deletes are held


class ExplainReport(Document, kw_only=True):
    """The explanations of all partitions at a path."""

    path: str
    now_ms: int
    system: str
    partitions: list[PartitionExplanation] = []
    # 3 if a partition is damaged, else 1 if one cannot be read, else 0
    exit_status: ClassVar[int] = figure(lambda self: self.worst())

    def worst(self) -> int:
        """The exit status, which follows from the worst problem."""
        problems = [problem for each in self.partitions for problem in each.problems]
        if any_damaged(problems):
            return 3
        return int(any(not problem.is_note for problem in problems))
