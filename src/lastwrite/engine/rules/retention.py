"""What retention takes from the old end of a log, as values; each system has its own rule."""

from __future__ import annotations

from dataclasses import dataclass

from lastwrite.reports.compaction import Expired


@dataclass(frozen=True, slots=True)
class Retention:
    """What goes from the old end of a log: a prefix of its segments, oldest first."""

    segments: tuple[Expired, ...]
    rolls: bool  # all go: an empty segment is made at the log's end first
    first_base: int  # of the first segment that is there afterwards
    log_start: int  # afterwards
    stays: str | None  # why the first of the others stays, with the figures; None: there is none

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)
