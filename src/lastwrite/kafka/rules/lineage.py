"""Which segments of a tier count, by the leaders that wrote them.

A leader copies the segments that it has closed. Its successor rolls segments elsewhere, so copies
overlap; after an unclean election it has another history, and what its predecessor copied beyond
the fork counts no more::

    epoch 1   [0 ──── 60) [60 ──── 120) [120 ──── 180)
    epoch 2                        [100 ──── 150) [150 ──── 200)      began at offset 120

    counts    [0 ──── 60) [60 ── 100) [100 ──── 150) [150 ──── 200)

Histories fork once and never meet again, so what counts of a segment begins where it begins; where
the next one begins, the one before is cut.

Source: KIP-405; Kafka 4.4 ``RemoteLogManager``, ``RemoteLogSegmentMetadata.segmentLeaderEpochs``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

Epochs = Sequence[tuple[int, int]]  # leader epoch, first offset; both rise


class Copied(NamedTuple):
    """A segment in a tier."""

    base_offset: int
    end_offset: int
    epochs: Epochs  # up to its end
    finished_ms: int


class Chain(NamedTuple):
    """The segments that count."""

    parts: tuple[tuple[int, int], ...]  # which one, and the offset at which it ends
    gaps: tuple[tuple[int, int], ...]  # first offset that is in none, end


def lineage_of(copies: Sequence[Copied]) -> Epochs:
    """The leaders of the log as the newest segment knows them."""
    newest = max(copies, key=lambda each: (each.epochs[-1:], each.end_offset), default=None)
    return () if newest is None else newest.epochs


def chain(
    copies: Sequence[Copied], lineage: Epochs, log_start: int, end: int | None = None
) -> Chain:
    """Those that hold the offsets from ``log_start`` up to ``end``; None: as far as they go.

    Of two that begin alike the longer one counts, of copies of one segment the last.
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


def agree_until(copied: Copied, lineage: Epochs) -> int:
    """Up to which offset a segment's leaders are those of the lineage; its base where none is.

    Neither side knows what lies below its first entry, which moves when records are deleted.
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
