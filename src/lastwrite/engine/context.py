"""What all steps of a round share, and what none of them changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from lastwrite.engine.system import System
from lastwrite.model.progress import Progress
from lastwrite.model.scan_cache import KeepUnit, Kept
from lastwrite.model.work import (
    Elected,
    ElectUnit,
    Failed,
    Limits,
    PieceScan,
    RewriteUnit,
    ScanUnit,
    SegmentOutput,
)


class Exchange(Protocol):
    """Runs units of the three middle steps and carries entries and losers between them.

    It holds the entries of one call of ``scan``, the last.
    """

    @property
    def scratch(self) -> str: ...

    def scan(
        self, units: Sequence[ScanUnit], progress: Progress
    ) -> list[list[PieceScan] | Failed[ScanUnit]]: ...

    def elect(
        self, units: Sequence[ElectUnit], progress: Progress
    ) -> list[Elected | Failed[ElectUnit]]: ...

    def rewrite(
        self, units: Sequence[RewriteUnit], progress: Progress
    ) -> list[SegmentOutput | Failed[RewriteUnit]]: ...

    def keep(
        self, units: Sequence[KeepUnit], progress: Progress
    ) -> list[Kept | Failed[KeepUnit]]: ...


def _go_on() -> None:
    """Stop nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a caller asks of a compaction."""

    config: Mapping[str, object]
    now_ms: int
    exact: bool = False
    include_active: bool = False
    like_broker: bool = False
    dry_run: bool = False
    to: str | None = None
    keep_scans: bool = False  # see ``engine.scan_cache.use``
    # Raises where the work is to stop: nothing more is begun or swapped.
    check: Callable[[], None] = _go_on


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

    @property
    def is_in_place(self) -> bool:
        """Whether the round changes the log itself."""
        return not self.options.dry_run and self.options.to is None

    @property
    def keeps_scans(self) -> bool:
        """Whether what is scanned may be kept: without a scratch folder no worker sees another's
        entries.
        """
        may_keep = self.options.keep_scans and self.is_in_place and not self.options.exact
        return may_keep and bool(self.exchange.scratch)
