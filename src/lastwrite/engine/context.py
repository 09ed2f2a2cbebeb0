"""What all steps of a round share, and what none of them changes."""

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
    Begun,
    CachedScan,
    Elected,
    ElectUnit,
    Failed,
    KeepUnit,
    Limits,
    PieceScan,
    RewriteUnit,
    ScanUnit,
    SegmentOutput,
)

if TYPE_CHECKING:
    from lastwrite.engine.partition import Ended, PartitionPlan, RewrittenPartition


class Exchange(Protocol):
    """Runs units of the three middle steps and carries entries and losers between them.

    ``elect`` and ``rewrite`` are of the last call of ``scan``.
    """

    @property
    def scratch(self) -> str: ...

    @property
    def whole_bytes(self) -> int:
        """A partition of no more is better taken whole: two stages cost what sharing it would
        spare. 0: none is taken so.
        """
        ...

    def clear(self) -> None:
        """Let go of what waves left that are through."""

    def scan(
        self, units: Sequence[ScanUnit], progress: Progress
    ) -> list[list[PieceScan] | Failed[ScanUnit]]: ...

    def elect(
        self, units: Sequence[ElectUnit], progress: Progress
    ) -> list[Elected | Failed[ElectUnit]]: ...

    def rewrite(
        self, units: Sequence[RewriteUnit], progress: Progress
    ) -> list[SegmentOutput | Failed[RewriteUnit]]: ...

    def begin_whole(
        self,
        plans: Sequence[PartitionPlan],
        work: WholeWork,
        progress: Progress,
    ) -> Begun[list[RewrittenPartition | Ended | Failed[PartitionPlan]]]:
        """Begin to take each partition through the three steps in one task. ``work`` goes to the
        workers, and is given an exchange of that worker alone, and the plans of a task.
        """
        ...

    def keep(
        self,
        units: Sequence[KeepUnit],
        work: Callable[..., KeptScan],
        progress: Progress,
    ) -> list[KeptScan | Failed[Any]]:
        """Write what is kept of scans. ``work`` is given a unit, and by piece what its scan found
        (``ScannedEntries``), unless that lies where the results say.
        """
        ...


class WholeWork(Protocol):
    """What a task does that takes its partitions through the three steps."""

    def __call__(
        self, exchange: Exchange, plans: Sequence[PartitionPlan], /
    ) -> list[RewrittenPartition | Ended]: ...


class CachedLog(Protocol):
    """What is known of a partition's segments from earlier scans."""

    secret: bytes  # the round takes this secret, and as many bits
    bits: int

    def cuts(self, segment: int) -> list[int] | None:
        """Where the segment is to be cut; None: anywhere."""
        ...

    def scan_of(self, segment: int, start: int, end_offset: int) -> CachedScan | None:
        """What stands in for the scan of the piece that begins at ``start``."""
        ...


class ScanCache(Protocol):
    """What rounds leave for later ones, so that these need not scan all again: ``scan_cache``."""

    def open(
        self, context: Context, number: int, log: PartitionLog, decision: Decision, bits: int
    ) -> CachedLog | None:
        """What is known of the partition ``number``; None: it is read as if nothing were."""
        ...

    def keep(
        self, context: Context, partitions: Sequence[RewrittenPartition]
    ) -> Sequence[Mapping[int, KeptScan | None]]:
        """Of archives, before the commit: for each partition what its manifest shall name; see
        ``CommitPlan.kept``.
        """
        ...

    def write(self, context: Context, partitions: Sequence[RewrittenPartition]) -> None:
        """Of files, after the swap, and before the old segments go."""
        ...

    def place(self, context: Context, partition: RewrittenPartition) -> None:
        """Once nothing renames or links a segment any more."""
        ...


def go_on() -> None:
    """Stop nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a caller asks of a compaction."""

    config: Mapping[str, object]
    now_ms: int
    exact: bool = False
    include_active: bool = False
    like_broker: bool = False
    drop_expired_deletes: bool = False  # in a log of which nothing is dirty, too
    dry_run: bool = False
    # of a dry run: it takes every step, on stores that only count what would be written
    is_counted: bool = False
    to: str | None = None
    keep_scans: bool = False  # see ``scan_cache``
    # Raises where the work is to stop: nothing more is begun or swapped.
    check: Callable[[], None] = go_on

    def __post_init__(self) -> None:
        if not LONG_MIN <= self.now_ms <= LONG_MAX:
            raise InvalidConfig(
                f"now_ms is {self.now_ms}; it has to be at least {LONG_MIN} and at most {LONG_MAX}"
            )


LOOKING = Options(config={}, now_ms=0, dry_run=True)  # of a command that runs no round


@dataclass(frozen=True, slots=True)
class Context:
    """The system, the workers and the options of a round."""

    system: System
    exchange: Exchange
    workers: int
    limits: Limits
    options: Options
    progress: Progress
    scan_cache: ScanCache | None = None

    @property
    def is_in_place(self) -> bool:
        """Whether the round changes the log itself, or would."""
        return self.writes and self.options.to is None

    @property
    def writes(self) -> bool:
        """Whether new segments are written, be it that they are only counted."""
        return not self.options.dry_run or self.options.is_counted
