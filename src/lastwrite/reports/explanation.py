"""The result of ``explain``, as values that print as JSON. Field names are never changed."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import ClassVar

from msgspec import field

from lastwrite.model.log import Problem, any_damaged
from lastwrite.reports.document import Document, FrozenDocument, figure
from lastwrite.reports.holding import BlockingGroup


class Rule(StrEnum):
    """The rules that keep a partition, or part of it, from being cleaned, in the order of checking."""

    POLICY = "cleanup.policy"
    CLEANER = "log.cleaner.enable"
    DAMAGE = "damage"
    SET_ASIDE = "set aside"
    HELD = "held"
    EMPTY = "empty"
    CLEAN = "clean"  # everything is clean
    ACTIVE_SEGMENT = "active segment"
    TRANSACTION = "open transaction"
    HIGH_WATERMARK = "high watermark"
    MIN_LAG = "min.compaction.lag.ms"
    # a rule of Lastwrite: records without a key, which no option allows to drop
    KEYLESS = "max.keyless.ratio"
    DIRTY_RATIO = "min.cleanable.dirty.ratio"
    THRESHOLD = "compactionThreshold"  # only in Pulsar; a round on request runs all the same


class Reason(FrozenDocument, frozen=True):
    """One rule that applies now, with its figures, and what ends it."""

    rule: Rule
    message: str
    change: str  # what ends it; continues the words "it ends"
    # when time ends it, if nothing else does earlier; null if time does not
    at_ms: int | None = field(default=None, name="at")
    # it applies from this offset on; null if to the whole partition
    from_offset: int | None = None


class LogRegion(StrEnum):
    """The position of a record relative to the next round."""

    CLEAN = "clean"  # below the first dirty offset
    DIRTY = "dirty"
    ABOVE = "above"  # in a closed segment that the next round does not reach
    ACTIVE = "active"  # in the active segment


class RecordOutcome(StrEnum):
    """The fate of a record."""

    STAYS = "stays"
    NEXT_ROUND = "goes with the next round"
    LATER = "goes later"


class RecordExplanation(FrozenDocument, frozen=True, kw_only=True):
    """One record of the requested key, and why it is in the log."""

    offset: int
    timestamp_ms: int = field(name="timestamp")
    segment: int  # its base offset
    position: int  # of the record's batch
    value_bytes: int | None  # null if it deletes the key
    part: LogRegion
    fate: RecordOutcome
    message: str
    change: str | None  # null if it stays
    # not earlier than this; null if unknown
    at_ms: int | None = field(name="at")
    message_id: str | None = None  # of a message of Pulsar: LEDGER:ENTRY:PARTITION[:INDEX]


class Waiting(Document, kw_only=True):
    """Records that compaction will drop eventually, counted by what they wait for."""

    superseded_next: int = 0  # a later write is in the range: dropped by the next round
    superseded_later: int = 0  # they, or their later writes, are above the range
    aborted_next: int = 0  # of aborted transactions
    aborted_later: int = 0
    keyless_next: int = 0
    deletes_due: int = 0  # past their horizon: dropped by the next round
    deletes_waiting: int = 0  # their horizon is in the future
    deletes_held: int = 0  # past it, but held for consumer groups that have not read them
    deletes_unstamped: int = 0  # no round has kept them yet: the next one stamps a horizon
    deletes_never: int = 0  # they get no horizon: the retention reaches beyond the last moment
    # of all deletes: the batch has a horizon below 0, and a broker's own cleaner drops them
    deletes_bad_horizon: int = 0
    deletes_old: int = 0  # of record formats v0 and v1, which age by their file
    deletes_above: int = 0  # above the range
    # of the waiting deletes
    first_horizon_ms: int | None = field(default=None, name="first_horizon")
    last_horizon_ms: int | None = field(default=None, name="last_horizon")
    markers_needed: int = 0  # of transactions with remaining records
    markers_due: int = 0
    markers_waiting: int = 0
    markers_unstamped: int = 0
    markers_never: int = 0


class RangeInWords(FrozenDocument, frozen=True):
    """The range of the next round in the system's own notation, like ``10:5``."""

    first_dirty: str
    first_uncleanable: str
    end: str


class PartitionExplanation(Document, kw_only=True):
    """The explanation of one partition. null means that something could not be read."""

    topic: str
    partition: int
    folder: str
    is_due: bool = False  # by the rules; a process that holds the partition may run the round
    summary: str = ""
    first_dirty_offset: int | None = None
    first_uncleanable_offset: int | None = None
    end_offset: int | None = None
    clean_bytes: int | None = None
    cleanable_bytes: int | None = None
    dirty_ratio: float | None = None
    reasons: Sequence[Reason] = ()
    waiting: Waiting | None = None
    records: Sequence[RecordExplanation] | None = None  # of the key; null if no key was given
    problems: list[Problem] = []
    in_words: RangeInWords | None = None
    held_for: list[BlockingGroup] = []  # consumer groups for which deletes are held


class ExplainReport(Document, kw_only=True):
    """The explanations of all partitions at a path."""

    path: str
    now_ms: int
    system: str
    partitions: list[PartitionExplanation] = []
    # 0, or 3 if something is damaged, or 1 if something cannot be read
    exit_status: ClassVar[int] = figure(lambda self: self.worst())

    def worst(self) -> int:
        """The exit status for the worst problem."""
        problems = [problem for each in self.partitions for problem in each.problems]
        if any_damaged(problems):
            return 3
        return int(any(not problem.is_note for problem in problems))
