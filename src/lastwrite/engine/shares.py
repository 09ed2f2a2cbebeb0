"""How the work of rewriting is shared out to workers."""

from __future__ import annotations

from collections.abc import Mapping

from lastwrite.model.work import Piece, PieceScan

_LEAST_PART_BYTES = 8 << 20


def rewrite_cost(piece: Piece, scan: PieceScan) -> int:
    """What rewriting a piece costs, in bytes read: a byte that stays costs two and a half more than
    one that goes.

    It is compressed or written, and a batch of which nothing stays is not even decompressed. Later
    segments keep more.
    """
    left = scan.records - scan.losers
    return piece.bytes + piece.bytes * 5 * left // (2 * max(1, scan.records))


class Shares:
    """Equal shares of what rewriting costs, one a worker: filled one after the other, so that few
    segments are cut.

    A segment that lies across the end of a share is cut there, at the next piece: of two workers'
    seven segments one. The parts of a cut segment have to be joined; those of all others are whole.
    """

    def __init__(self, total: int, workers: int) -> None:
        self._share = max(1.0, total / workers)
        self._filled = 0.0  # of the share that is being filled

    def take(self, costs: Mapping[Piece, int], may_cut: bool) -> list[list[Piece]]:
        """The pieces of the next new segment, of these costs, in one list a part."""
        parts: list[list[Piece]] = [[]]
        left = sum(piece.bytes for piece in costs)
        part = 0
        for piece, cost in costs.items():
            over = self._filled + cost / 2 > self._share
            if over and may_cut and min(part, left) >= _LEAST_PART_BYTES:
                parts.append([])
                part = 0
            if over:
                self._filled -= self._share
            parts[-1].append(piece)
            self._filled += cost
            part += piece.bytes
            left -= piece.bytes
        return parts
