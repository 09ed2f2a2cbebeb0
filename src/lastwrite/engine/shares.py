"""The distribution of rewriting over the workers."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from lastwrite.model.work import PieceScan, ScanRange

_LEAST_PART_BYTES = 8 << 20
# How far the busiest worker may exceed its share before a segment is cut. Cutting costs something
# too: one processor reads and writes the parts once more to join them.
_UNEVEN = 1.1


def rewrite_cost(piece: ScanRange, scan: PieceScan) -> int:
    """The cost of rewriting a piece, in bytes read.

    A byte that stays costs two and a half bytes more than one that is dropped. It is compressed or
    written, while a batch that is dropped whole is not even decompressed. Later segments keep more.
    """
    left = scan.records - scan.losers
    return piece.bytes + piece.bytes * 5 * left // (2 * max(1, scan.records))


class Shares:
    """Shares of about equal rewriting cost, one per worker.

    ``costs`` has the cost of each new segment. If whole segments give shares that are equal enough,
    none is cut. Otherwise shares are filled one after the other. A segment across the end of a
    share is cut there, at the next piece, and its parts are joined later. The end of a segment
    fills up a share, since all but its first part are copied when they are joined.
    """

    def __init__(self, costs: Sequence[int], workers: int) -> None:
        self._share = max(1.0, sum(costs) / workers)
        self._cuts = _longest(costs, workers) > _UNEVEN * self._share
        self._filled = 0.0  # of the current share

    def take(self, costs: Mapping[ScanRange, int], may_cut: bool) -> list[list[ScanRange]]:
        """The pieces of the next new segment, whose costs are given, in one list per part."""
        may_cut = may_cut and self._cuts
        parts: list[list[ScanRange]] = [[]]
        left = sum(piece.bytes for piece in costs)
        part = 0
        for piece, cost in reversed(list(costs.items())):
            may_cut = may_cut and left >= _LEAST_PART_BYTES
            is_small = 0 < part < _LEAST_PART_BYTES
            if self._filled + cost / 2 > self._share and not (may_cut and is_small):
                if may_cut and part:
                    parts.append([])
                    part = 0
                self._filled -= self._share
            parts[-1].append(piece)
            self._filled += cost
            part += piece.bytes
            left -= piece.bytes
        return [part[::-1] for part in reversed(parts)]


def _longest(costs: Sequence[int], workers: int) -> int:
    """The load of the busiest worker if each takes the costliest segment that is left."""
    loads = [0] * workers
    for cost in sorted(costs, reverse=True):
        heapq.heapreplace(loads, loads[0] + cost)
    return max(loads)
