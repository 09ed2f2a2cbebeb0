"""Which segments of a tier count, by the leaders that wrote them.

A leader copies the segments that it has closed. Its successor rolls segments at other offsets, so
copies overlap. After an unclean election the successor has another history, and the copies of its
predecessor beyond the fork no longer count::

    epoch 1   [0 ──── 60) [60 ──── 120) [120 ──── 180)
    epoch 2                        [100 ──── 150) [150 ──── 200)      began at offset 120

    counts    [0 ──── 60) [60 ── 100) [100 ──── 150) [150 ──── 200)

Histories fork once and never join again. So a segment counts from its own base offset, and up to
the base offset of the next one.

Source: KIP-405; Kafka 4.4 ``RemoteLogManager``, ``RemoteLogSegmentMetadata.segmentLeaderEpochs``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

Epochs = Sequence[tuple[int, int]]  # leader epoch, first offset; both rise


class TieredSegment(NamedTuple):
    """A segment in a tier."""

    base_offset: int
    end_offset: int
    epochs: Epochs  # up to its end
    finished_ms: int


class Chain(NamedTuple):
    """The segments that count, and the offsets that none of them covers."""

    parts: tuple[tuple[int, int], ...]  # index of the segment, offset at which it is cut
    gaps: tuple[tuple[int, int], ...]  # first missing offset, end


def lineage_of(copies: Sequence[TieredSegment]) -> Epochs:
    """The leader epochs of the log, taken from the newest segment."""
    newest = max(copies, key=lambda each: (each.epochs[-1:], each.end_offset), default=None)
    return () if newest is None else newest.epochs


def chain(
    copies: Sequence[TieredSegment], lineage: Epochs, log_start: int, end: int | None = None
) -> Chain:
    """The segments for the offsets from ``log_start`` to ``end``. None means as far as they reach.

    Of two with the same base offset the longer one counts, and of equal copies the last finished.
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
    """The offset up to which a segment has the leaders of the lineage; its base if none matches.

    Both lack the epochs below their first entry, which moves up when records are deleted.
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
