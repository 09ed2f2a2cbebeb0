"""The part of a backlog below the compaction horizon, and which ledgers of it expire.

The smallest case: ledgers 10 (2 MB), 12 (3 MB), and 15, which is still written; the horizon is the
last entry of 12. Both 10 and 12 are below it. Retention goes from the oldest ledger up. A ledger
expires by *either* of two rules: by its age, or if the younger ledgers together have at least the
retention size. With a retention of 4 MB, ledger 10 stays while 15 is empty and expires once 15 has
1 MB. At the first ledger that does not expire the walk ends: all younger ledgers stay too. A
negative limit switches its rule off. A limit of 0 retains nothing.

Source: Pulsar 4.2.4 ManagedLedgerImpl.internalTrimLedgers, hasLedgerRetentionExpired,
isLedgerRetentionOverSizeQuota; docs/formats/pulsar-compaction.md, "Retention and thresholds".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lastwrite.reports.compaction import Backlog


class RawSegment(NamedTuple):
    """A raw ledger of a topic, as input for the backlog rules."""

    name: str
    end_offset: int  # offset after the last entry
    size_bytes: int
    closed_ms: int | None  # time at which the ledger was closed; None if unknown
    is_open: bool = False  # whether the segment is still being written


def backlog_of(
    segments: Sequence[RawSegment],
    horizon_end: int,
    retention_ms: int,
    retention_bytes: int,
    now_ms: int,
) -> Backlog:
    """The backlog's sizes, for a compaction up to offset ``horizon_end``.

    ``segments`` begin with the oldest.
    """
    below = 0
    for segment in segments:
        if segment.is_open or segment.end_offset > horizon_end:
            break
        below += 1
    total = sum(segment.size_bytes for segment in segments)
    free = passed = 0
    reason = None
    for segment in segments[:below]:
        reason = _retention_reason(
            segment, total - passed - segment.size_bytes, retention_ms, retention_bytes, now_ms
        )
        if reason is not None:
            break
        free += 1
        passed += segment.size_bytes
    bytes_below = sum(segment.size_bytes for segment in segments[:below])
    return Backlog(
        segments=below,
        bytes=bytes_below,
        segments_beyond=len(segments) - below,
        bytes_beyond=total - bytes_below,
        segments_free=free,
        bytes_free=passed,
        reason=reason,
    )


def _retention_reason(
    segment: RawSegment, bytes_left: int, retention_ms: int, retention_bytes: int, now_ms: int
) -> str | None:
    """The reason why retention keeps the segment, or None if it expires.

    ``bytes_left`` are the bytes of the younger segments.
    """
    if retention_bytes >= 0 and bytes_left >= retention_bytes:
        return None
    reasons = []
    if retention_ms >= 0:
        age_ms = None if segment.closed_ms is None else now_ms - segment.closed_ms
        if age_ms is not None and age_ms > retention_ms:
            return None
        known = (
            "the close time of the ledger is unknown"
            if age_ms is None
            else (f"the ledger was closed {age_ms} ms ago")
        )
        reasons.append(f"{known}, and the retention time is {retention_ms} ms")
    if retention_bytes >= 0:
        reasons.append(
            f"without the ledger {bytes_left} bytes remain, and the retention size is "
            f"{retention_bytes} bytes"
        )
    return f"{segment.name}: {'; '.join(reasons) or 'retention has no limit'}"
