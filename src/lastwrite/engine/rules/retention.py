"""The result of a retention rule. Each system implements its own rules."""

from __future__ import annotations

from dataclasses import dataclass

from lastwrite.reports.compaction import Expired


@dataclass(frozen=True, slots=True)
class Retention:
    """The segments that retention deletes, oldest first. They are the start of the log."""

    segments: tuple[Expired, ...]
    # whether all segments are deleted; an empty segment is created at the log's end before that
    rolls: bool
    first_base: int  # base offset of the first remaining segment
    log_start: int  # log start offset after the deletion
    # the reason with figures why the first remaining segment stays; None if no segment remains
    stays: str | None

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)
