"""The figures of a rewritten partition, computed from the verdict counts of the workers."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from lastwrite.engine.partition import RewrittenPartition
from lastwrite.engine.rules.verdict import Verdict
from lastwrite.model.work import SegmentOutput
from lastwrite.reports.compaction import PartitionReport, Status


def account_round(partition: RewrittenPartition) -> PartitionReport:
    """A partition's report with the bytes and records that the round read, wrote and dropped.

    A dry run reports the figures that the same round would have.
    """
    before, plan = partition.report, partition.plan
    written = [*partition.written]
    counts = [
        sum(of_verdict) for of_verdict in zip(*(part.counts for part in written), strict=True)
    ]
    counts = counts or [0] * len(Verdict)
    scans = zip(plan.pieces, partition.scans, strict=True)
    scanned = sum(piece.bytes for piece, scan in scans if not scan.is_cached)
    bytes_written = sum(new.bytes_written for part in written for new in (part, *part.more_outputs))
    made = sum(_segments_of(each.parts) for each in partition.replacements)
    segments = plan.log.segments
    sources = [segments[place] for each in partition.replacements for place in each.places]
    records_after = (before.records_before or 0) - sum(counts) + counts[Verdict.KEEP]
    verdicts = {verdict.label: counts[verdict] for verdict in Verdict}
    report = structs.replace(
        before,
        bytes_read=scanned + sum(part.bytes_read for part in written),
        bytes_written=bytes_written,
        segments_after=before.segments_before - len(sources) + made,
        segments_untouched=before.segments_before - len(sources),
        records_after=records_after,
        bytes_after=before.bytes_before
        - sum(segment.size_bytes for segment in sources)
        + bytes_written,
        tombstones_dropped=counts[Verdict.EXPIRED],
        verdicts={**verdicts, Verdict.KEEP.label: records_after},
        keys=partition.winners,
    )
    if not partition.replacements:
        report.status, report.reason = Status.UNCHANGED, "compaction removes no record"
    return report


def _segments_of(parts: Sequence[SegmentOutput]) -> int:
    """The number of new segments that replace a run of old segments.

    ``parts`` are the staged parts of these new segments.
    """
    further = sum(len(part.more_outputs) for part in parts)
    # in an archive, each part stays a separate segment
    if any(part.stored is not None for part in parts):
        return further + sum(not part.is_deleted for part in parts)
    return further + (not all(part.is_deleted for part in parts))


def records_by_segment(partition: RewrittenPartition) -> list[int]:
    """The number of records of each segment before the round."""
    records = [0] * len(partition.plan.log.segments)
    for piece, scan in zip(partition.plan.pieces, partition.scans, strict=True):
        records[piece.segment] += scan.records
    return records
