"""The immutable context that all steps of a compaction round share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from lastwrite.engine.system import Decision, System
from lastwrite.errors import InvalidConfig
from lastwrite.model.log import KeptScan, PartitionLog
from lastwrite.model.policy import LONG_MAX, LONG_MIN
from lastwrite.model.progress import Progress
from lastwrite.model.work import (
    CachedScan,
    CacheUnit,
    ElectionResult,
    ElectUnit,
    FailedUnit,
    Limits,
    PendingResult,
    PieceScan,
    RewriteUnit,
    ScanUnit,
    SegmentOutput,
)

if TYPE_CHECKING:
    from lastwrite.engine.partition import FinishedPartition, PartitionPlan, RewrittenPartition


class Exchange(Protocol):
    """Runs the scan, elect and rewrite tasks, and moves entries and losers between them.

    An entry describes one record with a key. A loser is a record with a later write of its key.

    ``elect`` and ``rewrite`` process the results of the last call of ``scan``.
    """

    @property
    def scratch(self) -> str: ...

    @property
    def one_stage_bytes(self) -> int:
        """The largest size in bytes at which a partition is best processed in one task.

        Dividing a smaller partition among workers costs two more stages, which take longer than the
        division saves. 0 means that every partition is divided.
        """
        ...

    def clear(self) -> None:
        """Delete the entries and record states of partitions that are processed completely."""

    def scan(
        self, units: Sequence[ScanUnit], progress: Progress
    ) -> list[list[PieceScan] | FailedUnit[ScanUnit]]: ...

    def elect(
        self, units: Sequence[ElectUnit], progress: Progress
    ) -> list[ElectionResult | FailedUnit[ElectUnit]]: ...

    def rewrite(
        self, units: Sequence[RewriteUnit], progress: Progress
    ) -> list[SegmentOutput | FailedUnit[RewriteUnit]]: ...

    def begin_one_stage(
        self,
        plans: Sequence[PartitionPlan],
        work: WholeWork,
        progress: Progress,
    ) -> PendingResult[list[RewrittenPartition | FinishedPartition | FailedUnit[PartitionPlan]]]:
        """Start a job that runs scan, elect and rewrite for each partition in one task.

        Workers call ``work`` with their own exchange and the plans of their task.
        """
        ...

    def keep(
        self,
        units: Sequence[CacheUnit],
        work: Callable[..., KeptScan],
        progress: Progress,
    ) -> list[KeptScan | FailedUnit[Any]]:
        """Store the scan results of ``units``, so that later rounds can skip these scans.

        Workers call ``work`` with a unit and the scan result of each piece (``ScannedEntries``). A
        result that is in a scratch file is not passed.
        """
        ...


class WholeWork(Protocol):
    """The work of a task that scans, elects and rewrites whole partitions."""

    def __call__(
        self, exchange: Exchange, plans: Sequence[PartitionPlan], /
    ) -> list[RewrittenPartition | FinishedPartition]: ...


class CachedLog(Protocol):
    """The stored scan results of a partition's segments."""

    secret: bytes  # fingerprint secret of the cached scans; the round must use the same secret
    bits: int  # number of bucket bits of the cached scans; the round must use the same number

    def cuts(self, segment: int) -> list[int] | None:
        """The file positions at which the segment must be split into pieces.

        None means that it may be split at any batch.
        """
        ...

    def scan_of(self, segment: int, start: int, end_offset: int) -> CachedScan | None:
        """The stored scan of a piece, a range of a segment that begins at byte ``start``.

        None if there is none.
        """
        ...


class ScanCache(Protocol):
    """Stores scan results, so that later rounds scan less; see ``scan_cache``."""

    def open(
        self, context: Context, number: int, log: PartitionLog, decision: Decision, bits: int
    ) -> CachedLog | None:
        """The stored scans of partition ``number``.

        None means that all its segments are scanned.
        """
        ...

    def store(
        self, context: Context, partitions: Sequence[RewrittenPartition]
    ) -> Sequence[Mapping[int, KeptScan | None]]:
        """Store the scans of archived partitions before the commit.

        Returns, for each partition, the scans to list in its manifest.

        See ``CommitPlan.scans``.
        """
        ...

    def write(self, context: Context, partitions: Sequence[RewrittenPartition]) -> None:
        """Write the scans of local segments, after the swap and before the old segments are
        deleted.
        """
        ...

    def install(self, context: Context, partition: RewrittenPartition) -> None:
        """Rename the written scans to their final names, after the segments were renamed."""
        ...


def never_stop() -> None:
    """The default of ``Options.check``: the work is never stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of a compaction."""

    config: Mapping[str, object]
    now_ms: int
    exact: bool = False
    include_active: bool = False
    like_broker: bool = False
    drop_expired_deletes: bool = False  # whether a log without dirty records is cleaned too
    dry_run: bool = False
    # whether a dry run runs every step, with stores that count writes instead of performing them
    is_counted: bool = False
    to: str | None = None
    keep_scans: bool = False  # whether scan results are stored: see ``scan_cache``
    # raises if the work must stop; no further step or swap is then started
    check: Callable[[], None] = never_stop

    def __post_init__(self) -> None:
        if not LONG_MIN <= self.now_ms <= LONG_MAX:
            raise InvalidConfig(
                f"now_ms is {self.now_ms}, but must be at least {LONG_MIN} and at most {LONG_MAX}"
            )


# default values for commands that run no round
LOOKING = Options(config={}, now_ms=0, dry_run=True)


@dataclass(frozen=True, slots=True)
class Context:
    """The system, the workers and the options of one round."""

    system: System
    exchange: Exchange
    workers: int
    limits: Limits
    options: Options
    progress: Progress
    scan_cache: ScanCache | None = None

    @property
    def is_in_place(self) -> bool:
        """Whether the round changes the log itself, not a copy.

        Also true for the dry run of such a round.
        """
        return self.writes and self.options.to is None

    @property
    def writes(self) -> bool:
        """Whether the round writes new segments, or is a dry run that counts these writes."""
        return not self.options.dry_run or self.options.is_counted
