"""The results of a plan or a compaction, as values that print as JSON.

The field names are a contract (docs/reference/documents.md): names may be added, never changed.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, ClassVar

from msgspec import field

from lastwrite.model.log import Problem, ProblemKind, TopicPartition
from lastwrite.reports.document import UNPRINTED, Document, FrozenDocument, JsonName, figure
from lastwrite.reports.holding import BlockingGroup
from lastwrite.reports.settings import OverriddenSetting, Setting, effective
from lastwrite.reports.untouched import UntouchedFile

# The stages of a round. ``compact`` is scan, elect and rewrite of small partitions in one stage.
STAGES = ("plan", "scan", "elect", "rewrite", "compact", "commit")


class Status(StrEnum):
    """The outcome of a partition in ``plan`` or ``compact``."""

    CLEANED = "cleaned"
    UNCHANGED = "unchanged"  # no record had to be dropped
    SKIPPED = "skipped"  # a rule prevents the round: see ``reason``
    DAMAGED = "damaged"  # the log is damaged and was left unchanged
    FAILED = "failed"


class RetentionRule(StrEnum):
    """The rule by which retention deletes a segment. Rules are checked in this order."""

    LOG_START = "log start"
    BYTES = "retention.bytes"
    AGE = "retention.ms"


class Expired(FrozenDocument, frozen=True):
    """A segment that retention deletes, and the rule."""

    base_offset: int
    size_bytes: int = field(name="bytes")
    rule: RetentionRule
    reason: str  # a sentence with the figures of the rule


class Backlog(FrozenDocument, frozen=True, kw_only=True):
    """The segments that compaction does not change, divided at the compaction horizon."""

    # segments entirely below the horizon, which readers of the compacted view do not need
    segments: int
    bytes: int
    segments_beyond: int  # the other segments, including the one that contains the horizon
    bytes_beyond: int
    # segments below the horizon that retention deletes once every subscription has read them; null
    # if the retention is unknown
    segments_free: int | None
    bytes_free: int | None
    # why retention keeps a segment below the horizon, for the first such segment; null if it keeps
    # none
    reason: str | None


class Quarantined(FrozenDocument, frozen=True, kw_only=True):
    """The failure of a partition's last round, and the time of the next attempt."""

    reason: str
    since_ms: int  # time of the first failure
    tries: int  # number of failed rounds
    next_try_ms: int


class PartitionReport(Document, kw_only=True):
    """The report on one partition of a plan or a compaction.

    null means that a value is unknown, because it was not read.
    """

    topic: str
    partition: int
    status: Status
    reason: str | None = None
    # the end of ``reason``: what to configure so that the partition is cleaned
    remedy: str | None = None
    segments_before: int = 0
    segments_after: int = 0
    segments_untouched: int = 0
    records_before: int | None = None
    records_after: int | None = None
    bytes_before: int = 0
    bytes_after: int = 0
    bytes_read: int = 0  # bytes that scan and rewrite read
    bytes_written: int = 0  # bytes of new segments; in a plan, bytes that ``compact`` would write
    segments_deleted: int = 0  # segments that retention deletes
    bytes_deleted: int = 0  # bytes, after compaction, of the segments that retention deletes
    # tombstones that were dropped because they are past their delete horizon
    tombstones_dropped: int = 0
    keys: int | None = None  # distinct keys in the cleaned range
    first_dirty_offset: int = 0
    first_uncleanable_offset: int = 0
    dirty_ratio: float = 0.0
    log_start_before: int | None = None
    log_start_after: int | None = None
    retention: list[Expired] = []
    verdicts: dict[str, int] = {}  # number of records by verdict
    problems: list[Problem] = []
    seconds: float = 0.0
    # present only if compaction does not change the log but writes a compacted copy
    backlog: Backlog | None = None
    # why the daemon skips the partition; null if it does not skip it
    uncleanable: Quarantined | None = None
    # The settings that were used; empty if they could not be determined.
    settings: Annotated[tuple[Setting, ...], JsonName(effective)] = ()
    keyless_records: int = 0  # records without a key in the range; compaction drops them
    first_keyless_offset: int | None = None
    # the setting that decides whether records without a key are dropped
    keyless_setting: str | None = None
    # whether the round failed because a store is unavailable; a later round may succeed
    may_pass: Annotated[bool, UNPRINTED] = False
    # whether the round failed because another writer committed first; a new round may succeed
    lost_commit: Annotated[bool, UNPRINTED] = False
    attempts: int = 1  # number of rounds; more than 1 if another writer committed first
    # whether the partition is skipped because the user has not allowed dropping records without a
    # key
    is_keyless: bool = False
    held_for: list[BlockingGroup] = []  # consumer groups for which deletes are held
    # the compacted ledger published to a live cluster: ledger, horizon, removed_ledgers
    published: dict[str, Any] | None = None

    @property
    def name(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class StageFigures(FrozenDocument, frozen=True, kw_only=True):
    """The times of one stage, in seconds."""

    seconds: float
    tasks: int
    task_seconds: float
    task_cpu_seconds: float
    outside_seconds: float  # time of the workers while no task ran
    between_seconds: float  # time within tasks that belongs to no step
    steps: dict[str, float]


class CompactionTotals(Document, kw_only=True):
    """The sums over all partitions, and the number of partitions by status."""

    partitions: int
    cleaned: int
    unchanged: int
    skipped: int
    damaged: int
    failed: int
    segments_before: int
    segments_after: int
    segments_untouched: int
    records_before: int
    records_after: int
    bytes_before: int
    bytes_after: int
    bytes_read: int
    bytes_written: int
    segments_deleted: int
    bytes_deleted: int
    tombstones_dropped: int
    seconds: float
    stage_seconds: dict[str, float]
    profile: dict[str, StageFigures]


class StoreRequests(FrozenDocument, frozen=True, kw_only=True):
    """Object-store requests of all processes. A plan counts those that ``compact`` would send."""

    gets: int
    puts: int  # writes; each part of an upload counts as one
    lists: int
    deletes: int
    bytes_read: int
    bytes_written: int


class CompactionReport(Document, kw_only=True):
    """The result of ``plan`` or ``compact``."""

    partitions: list[PartitionReport]
    totals: ClassVar[CompactionTotals] = figure(lambda self: self.sums())
    notes: list[OverriddenSetting] = []  # defaults given by the user that a topic overrides
    # files next to the logs that the round did not change, or did not copy
    untouched: list[UntouchedFile] = []
    is_copy: Annotated[bool, UNPRINTED] = False
    requests: StoreRequests | None = None  # null without an archive in an object store
    dry_run: bool
    now_ms: int
    seconds: Annotated[float, UNPRINTED] = 0.0
    stage_seconds: Annotated[dict[str, float], UNPRINTED] = {}
    profile: Annotated[dict[str, StageFigures], UNPRINTED] = {}

    @property
    def damaged(self) -> bool:
        return any(p.status is Status.DAMAGED for p in self.partitions)

    @property
    def failed(self) -> bool:
        return any(p.status is Status.FAILED for p in self.partitions)

    @property
    def unsupported(self) -> bool:
        """Whether a partition was skipped because this release cannot read its format."""
        return any(
            problem.kind is ProblemKind.UNSUPPORTED
            for p in self.partitions
            for problem in p.problems
        )

    @property
    def exit_status(self) -> int:
        is_unread = any(held.reason is not None for p in self.partitions for held in p.held_for)
        if not self.failed and (self.damaged or is_unread):
            return 3
        return int(self.failed or self.unsupported)

    def add_times(self, repeated: CompactionReport) -> None:
        """Add the stage times of ``repeated``, a later round of some of the partitions."""
        self.seconds += repeated.seconds
        self.stage_seconds = {
            stage: seconds + repeated.stage_seconds.get(stage, 0.0)
            for stage, seconds in self.stage_seconds.items()
        }

    def sums(self) -> CompactionTotals:
        """The totals over all partitions. An unknown figure counts as 0."""
        return CompactionTotals(
            partitions=len(self.partitions),
            seconds=self.seconds,
            stage_seconds=self.stage_seconds,
            profile=self.profile,
            **{str(status): sum(p.status is status for p in self.partitions) for status in Status},
            **{name: sum(getattr(p, name) or 0 for p in self.partitions) for name in _SUMS},
        )


_SUMS = (
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
