"""Retention after a round: the new log, its expired segments, and their figures.

The log after a round can be computed before the commit, from the segments that were staged or
measured. ``plan`` and ``compact`` therefore use the same code.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from lastwrite.engine.rules.retention import Retention
from lastwrite.engine.system import System
from lastwrite.model.log import AbortedTransaction, PartitionLog, Segment
from lastwrite.model.work import SegmentOutput
from lastwrite.reports.compaction import PartitionReport, Status


@dataclass(frozen=True, slots=True)
class Replacement:
    """A run of neighbouring segments, and the parts of the segment that replaces them."""

    places: tuple[int, ...]
    parts: tuple[SegmentOutput, ...]
    aborted: tuple[AbortedTransaction, ...] = ()  # entries of the new segment's transaction index


def after_round(
    system: System, log: PartitionLog, replacements: Sequence[Replacement]
) -> PartitionLog:
    """The log as it will be after ``replacements``. New segments have their final names."""
    if not replacements:
        return log
    by_place = {replacement.places[0]: replacement for replacement in replacements}
    removed = {place for replacement in replacements for place in replacement.places}
    segments: list[Segment] = []
    for place, segment in enumerate(log.segments):
        if place in by_place:
            segments += _new_segments(system, log, by_place[place])
        elif place not in removed:
            segments.append(segment)
    return replace(log, segments=tuple(segments))


def _new_segments(system: System, log: PartitionLog, replacement: Replacement) -> Iterator[Segment]:
    base_offset = log.segments[replacement.places[0]].base_offset
    # A new segment gets the modification time of its last source. Retention uses that time if no
    # record has a timestamp.
    mtime_ns = log.segments[replacement.places[-1]].mtime_ns
    sizes = {base_offset: sum(part.bytes_written for part in replacement.parts)}
    stamps = {
        base_offset: max((part.largest_timestamp_ms for part in replacement.parts), default=-1)
    }
    for further in (further for part in replacement.parts for further in part.more_outputs):
        sizes[further.base_offset] = further.bytes_written
        stamps[further.base_offset] = further.largest_timestamp_ms
    for base, size in sizes.items():
        if base == base_offset and all(part.is_deleted for part in replacement.parts):
            continue
        stamp = stamps[base] if stamps[base] >= 0 else mtime_ns // 1_000_000
        yield Segment(base, system.segment_path(log, base), size, mtime_ns, stamp)


def account_retention(
    report: PartitionReport,
    log: PartitionLog,
    retention: Retention,
    replacements: Sequence[Replacement] = (),
    records: Sequence[int] = (),
) -> None:
    """Add the effect of retention to the report of a round that made ``replacements``.

    ``records`` has the record count of each segment of ``log`` before the round. ``records`` is
    empty if there was no round.
    """
    report.log_start_before, report.log_start_after = log.log_start, retention.log_start
    if not retention.segments:
        return
    if report.status is Status.UNCHANGED:
        report.status, report.reason = Status.CLEANED, None
    removed = [segment.base_offset for segment in retention.segments]
    replaced = {place for replacement in replacements for place in replacement.places}
    untouched = {
        segment.base_offset: place
        for place, segment in enumerate(log.segments)
        if place not in replaced
    }
    report.retention = list(retention.segments)
    report.segments_deleted = len(removed)
    report.bytes_deleted = retention.size_bytes
    report.segments_after += retention.rolls - len(removed)
    report.segments_untouched -= len(untouched.keys() & removed)
    report.bytes_after -= retention.size_bytes
    if report.records_after is None:
        return
    counts: dict[int, int | None] = {base: records[place] for base, place in untouched.items()}
    for replacement in replacements:
        further = [new.base_offset for part in replacement.parts for new in part.more_outputs]
        whole = sum(part.records for part in replacement.parts)
        # If a run was replaced by several new segments, only the sum of their record counts is
        # known.
        counts[log.segments[replacement.places[0]].base_offset] = None if further else whole
        counts |= dict.fromkeys(further)
    lost = [counts[base] for base in removed]
    known = [count for count in lost if count is not None]
    report.records_after = report.records_after - sum(known) if len(known) == len(lost) else None


def end_without_round(
    report: PartitionReport, retention: Retention, compacts: bool, reason: str | None
) -> None:
    """Set the status of a partition without a round, where only retention can change the log.

    ``compacts`` is whether the policy includes compaction. ``reason`` is why there was no round.
    """
    if retention.segments:
        report.status = Status.CLEANED
        report.reason = f"compaction is not due: {reason}" if compacts else None
    elif not compacts:
        report.status = Status.UNCHANGED
        report.reason = f"{reason}; retention keeps the oldest segment: {retention.stays}"
