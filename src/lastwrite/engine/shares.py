"""How the work of rewriting is shared out to workers."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from lastwrite.model.work import Piece, PieceScan

_LEAST_PART_BYTES = 8 << 20
# How much longer than its share the busiest worker may work before a segment is cut: parts are read
# and written once more when they are joined, by one processor.
_UNEVEN = 1.1


def rewrite_cost(piece: Piece, scan: PieceScan) -> int:
    """What rewriting a piece costs, in bytes read: a byte that stays costs two and a half more than
    one that goes.

    It is compressed or written, and a batch of which nothing stays is not even decompressed. Later
    segments keep more.
    """
    left = scan.records - scan.losers
    return piece.bytes + piece.bytes * 5 * left // (2 * max(1, scan.records))


class Shares:
    """About equal shares of what rewriting costs, one a worker.

    ``costs``: of each new segment. Where whole segments make shares that are equal enough none is
    cut. Else shares are filled one after the other, and a segment that lies across the end of one
    is cut there, at the next piece; its parts have to be joined. What fills a share is the end of
    a segment: all but its first part are copied when they are joined.
    """

    def __init__(self, costs: Sequence[int], workers: int) -> None:
        self._share = max(1.0, sum(costs) / workers)
        self._cuts = _longest(costs, workers) > _UNEVEN * self._share
        self._filled = 0.0  # of the share that is being filled

    def take(self, costs: Mapping[Piece, int], may_cut: bool) -> list[list[Piece]]:
        """The pieces of the next new segment, of these costs, in one list a part."""
        may_cut = may_cut and self._cuts
        parts: list[list[Piece]] = [[]]
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
    """What the busiest of the workers does where each takes the costliest segment that is left."""
    loads = [0] * workers
    for cost in sorted(costs, reverse=True):
        heapq.heapreplace(loads, loads[0] + cost)
    return max(loads)
