"""The result of a retention rule, as a value; each system has its own rule."""

from __future__ import annotations

from dataclasses import dataclass

from lastwrite.reports.compaction import Expired


@dataclass(frozen=True, slots=True)
class Retention:
    """The segments that retention deletes: a prefix of the log, oldest first."""

    segments: tuple[Expired, ...]
    rolls: bool  # retention deletes every segment, after an empty one is created at the log's end
    first_base: int  # base of the first segment that remains
    log_start: int  # afterwards
    # why the first remaining segment stays, with the figures; None if none remains
    stays: str | None

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)
