"""What ``explain`` answers, as values that print as JSON. Field names only grow."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import ClassVar

from msgspec import field

from lastwrite.model.log import Problem, any_damaged
from lastwrite.reports.document import Document, FrozenDocument, figure
from lastwrite.reports.holding import HeldFor


class Rule(StrEnum):
    """What keeps a partition, or a part of it, from being cleaned; in the order in which it is
    asked.
    """

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
    KEYLESS = "max.keyless.ratio"  # ours: records without a key, and no option allows to drop them
    DIRTY_RATIO = "min.cleanable.dirty.ratio"
    THRESHOLD = "compactionThreshold"  # of Pulsar; a round that somebody asks for runs all the same


class Reason(FrozenDocument, frozen=True):
    """One rule that applies now, with its figures, and what ends it."""

    rule: Rule
    message: str
    change: str  # what ends it; reads on from "it ends"
    # when the clock ends it, if nothing else does before; None: no clock does
    at_ms: int | None = field(default=None, name="at")
    # what it keeps out lies from here on; None: all of the partition
    from_offset: int | None = None


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


class RecordExplanation(FrozenDocument, frozen=True, kw_only=True):
    """One record of the key that was asked for, and why it is there."""

    offset: int
    timestamp_ms: int = field(name="timestamp")
    segment: int  # its base offset
    position: int  # of the record's batch
    value_bytes: int | None  # None: it deletes the key
    part: Part
    fate: Fate
    message: str
    change: str | None  # None: it stays
    # not before then; None: that is not known
    at_ms: int | None = field(name="at")
    message_id: str | None = None  # of a message of Pulsar: LEDGER:ENTRY:PARTITION[:INDEX]


class Waiting(Document, kw_only=True):
    """Records that compaction will take one day, counted by what they wait for."""

    superseded_next: int = 0  # a later write lies in the range: the next round takes them
    superseded_later: int = 0  # they, or their later writes, lie above the range
    aborted_next: int = 0  # of aborted transactions
    aborted_later: int = 0
    keyless_next: int = 0
    deletes_due: int = 0  # past their horizon: the next round takes them
    deletes_waiting: int = 0  # their horizon lies ahead
    deletes_held: int = 0  # past it, and held for consumer groups that have not come so far
    deletes_unstamped: int = 0  # no round has kept them yet: the next one gives them a horizon
    deletes_never: int = 0  # none gives them one: the retention reaches beyond the last moment
    # of both: their batch has a horizon below 0, by which a broker's own cleaner drops them
    deletes_bad_horizon: int = 0
    deletes_old: int = 0  # of record formats v0 and v1, which age by their file
    deletes_above: int = 0  # above the range
    # of those that wait
    first_horizon_ms: int | None = field(default=None, name="first_horizon")
    last_horizon_ms: int | None = field(default=None, name="last_horizon")
    markers_needed: int = 0  # of transactions of which something is still there
    markers_due: int = 0
    markers_waiting: int = 0
    markers_unstamped: int = 0
    markers_never: int = 0


class RangeInWords(FrozenDocument, frozen=True):
    """Where the range of the next round lies, in the system's own words, like ``10:5``."""

    first_dirty: str
    first_uncleanable: str
    end: str


class PartitionExplanation(Document, kw_only=True):
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
    problems: list[Problem] = []
    in_words: RangeInWords | None = None
    held_for: list[HeldFor] = []  # consumer groups for whom deletes stay that might go


class ExplainReport(Document, kw_only=True):
    """The answers for all partitions at a path."""

    path: str
    now_ms: int
    system: str
    partitions: list[PartitionExplanation] = []
    # 0, or 3 where something is damaged, or 1 where something cannot be read
    exit_status: ClassVar[int] = figure(lambda self: self.worst())

    def worst(self) -> int:
        """The exit status of the worst that was found."""
        problems = [problem for each in self.partitions for problem in each.problems]
        if any_damaged(problems):
            return 3
        return int(any(not problem.is_note for problem in problems))
