"""Which segments in tiered storage belong to the log, by the leader epochs that wrote them.

A leader copies the segments that it has closed to tiered storage. The next leader rolls segments at
other offsets, so the copies overlap. After an unclean election the new leader has other records
from some offset on. Copies of the old leader from that offset on no longer belong to the log::

    epoch 1   [0 ──── 60) [60 ──── 120) [120 ──── 180)
    epoch 2                        [100 ──── 150) [150 ──── 200)      began at offset 120

    log       [0 ──── 60) [60 ── 100) [100 ──── 150) [150 ──── 200)

Two histories that diverged never agree again. So a segment is used from its base offset up to the
base offset of the next segment.

Source: KIP-405; Kafka 4.4 ``RemoteLogManager``, ``RemoteLogSegmentMetadata.segmentLeaderEpochs``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

Epochs = Sequence[tuple[int, int]]  # (leader epoch, first offset), both ascending


class TieredSegment(NamedTuple):
    """A segment in tiered storage: its offsets and its leader epochs."""

    base_offset: int
    end_offset: int
    epochs: Epochs  # leader epochs of the log up to the segment's end
    finished_ms: int


class Chain(NamedTuple):
    """The segments that belong to the log, and the offsets that none of them contains."""

    parts: tuple[tuple[int, int], ...]  # (number of the segment, offset up to which it is used)
    gaps: tuple[tuple[int, int], ...]  # (first missing offset, end of the gap)


def lineage_of(copies: Sequence[TieredSegment]) -> Epochs:
    """The leader epochs of the log, according to the newest segment."""
    newest = max(copies, key=lambda each: (each.epochs[-1:], each.end_offset), default=None)
    return () if newest is None else newest.epochs


def chain(
    copies: Sequence[TieredSegment], lineage: Epochs, log_start: int, end: int | None = None
) -> Chain:
    """Select the segments of the log from offset ``log_start`` to ``end``.

    ``end`` None means the end of the last segment that belongs to the log.

    If two segments have the same base offset, the longer segment is used. If both are equally long,
    the segment that was finished last is used.
    """
    spans = []
    for place, each in enumerate(copies):
        ends = agree_until(each, lineage)
        if end is not None:
            ends = min(ends, end)
        if ends > max(each.base_offset, log_start):
            spans.append((each.base_offset, -ends, -each.finished_ms, place))
    parts: list[tuple[int, int]] = []
    gaps = []
    reach = None
    for base, minus_end, _, place in sorted(spans):
        ends = -minus_end
        if reach is not None and ends <= reach:
            continue
        if reach is not None and base < reach:
            parts[-1] = (parts[-1][0], base)
        elif base > (log_start if reach is None else reach):
            gaps.append((log_start if reach is None else reach, base))
        parts.append((place, ends))
        reach = ends
    if end is not None and (reach if reach is not None else log_start) < end:
        gaps.append((log_start if reach is None else reach, end))
    return Chain(tuple(parts), tuple(gaps))


def agree_until(copied: TieredSegment, lineage: Epochs) -> int:
    """The offset up to which a segment was written in the leader epochs of ``lineage``.

    The result is the base offset if no part of the segment was written in these epochs. Both lists
    of epochs may lack the epochs of deleted records, because Kafka removes these epochs and raises
    the start of the first epoch that remains.
    """
    base, end = copied.base_offset, copied.end_offset
    starts = {start for _, start in (*copied.epochs, *lineage) if base < start < end}
    for offset in (base, *sorted(starts)):
        here, there = _epoch_at(copied.epochs, offset), _epoch_at(lineage, offset)
        if None not in (here, there) and here != there:
            return offset
        if there is None and here is not None and lineage and here > lineage[0][0]:
            return offset
    return end


def _epoch_at(epochs: Epochs, offset: int) -> int | None:
    place = bisect_right(epochs, offset, key=lambda each: each[1]) - 1
    return None if place < 0 else epochs[place][0]
