"""Distribute the rewriting of segments over the workers."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from lastwrite.model.work import PieceScan, ScanRange

_LEAST_PART_BYTES = 8 << 20
# A segment is split if the busiest worker's load exceeds its share by this factor. Splitting has a
# cost: one process reads and writes the parts again to join them.
_UNEVEN = 1.1


def rewrite_cost(piece: ScanRange, scan: PieceScan) -> int:
    """The cost of rewriting a piece, in bytes read.

    A byte that is dropped costs 1, a byte that stays costs 3.5. Bytes that stay are compressed and
    written, while a batch that loses all records is not even decompressed.
    """
    left = scan.records - scan.losers
    return piece.bytes + piece.bytes * 5 * left // (2 * max(1, scan.records))


class Shares:
    """Shares of about equal rewriting cost, one per worker.

    ``costs`` has the cost of each new segment. If whole segments give nearly equal shares, none is
    split. Otherwise shares are filled one after another. A segment that crosses the end of a share
    is split there, between two pieces, and its parts are joined later. Shares are filled from a
    segment's end, because joining copies all parts except the first.
    """

    def __init__(self, costs: Sequence[int], workers: int) -> None:
        self._share = max(1.0, sum(costs) / workers)
        self._cuts = _longest(costs, workers) > _UNEVEN * self._share
        self._filled = 0.0  # cost in the current share so far

    def take(self, costs: Mapping[ScanRange, int], may_cut: bool) -> list[list[ScanRange]]:
        """Divide the pieces of the next new segment into parts.

        ``costs`` has the cost of each piece.
        """
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
    """The busiest worker's load, if a free worker always gets the costliest remaining segment."""
    loads = [0] * workers
    for cost in sorted(costs, reverse=True):
        heapq.heapreplace(loads, loads[0] + cost)
    return max(loads)
