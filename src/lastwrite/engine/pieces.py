"""Pieces: ranges of segments, split at batch borders, that a task scans or rewrites."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from lastwrite.engine.context import CachedLog
from lastwrite.engine.system import System
from lastwrite.model.log import PartitionLog
from lastwrite.model.work import Limits, ScanRange

_PIECE_BYTES = 32 << 20
_LEAST_PIECE_BYTES = 64 << 10
_LEAST_SHARED_BYTES = 4 << 20


def piece_bytes_of(limits: Limits, log_bytes: int, records: int) -> int:
    """The largest size of a piece, in bytes, for a log with about ``records`` records.

    Small or well compressed records get smaller pieces, because state arrays grow with the number
    of records.
    """
    return max(
        _LEAST_PIECE_BYTES,
        min(limits.piece_bytes, log_bytes * limits.piece_records // max(1, records)),
    )


def shared_piece_bytes(log_bytes: int, workers: int) -> int:
    """The largest size of a piece, in bytes, at which all ``workers`` get equal shares of a log."""
    return _PIECE_BYTES if workers == 1 else max(_LEAST_SHARED_BYTES, log_bytes // (32 * workers))


def cut_into_pieces(
    system: System,
    log: PartitionLog,
    end: int,
    cached: CachedLog | None = None,
    piece_bytes: int = _PIECE_BYTES,
) -> list[ScanRange]:
    """Split every segment at batch borders.

    Segments with a base offset of ``end`` or more are outside the round's range. Their pieces are
    only checked.
    """
    pieces: list[ScanRange] = []
    for n, segment in enumerate(log.segments):
        cuts = None if cached is None else cached.cuts(n)
        if cuts is None:
            cuts = system.cut(log, n, min(_PIECE_BYTES, piece_bytes))
        end_offset = log.segment_end(n)
        for start, stop in pairwise(cuts):
            pieces.append(
                ScanRange.of(
                    segment,
                    number=len(pieces),
                    place=n,
                    start=start,
                    end=stop,
                    end_offset=end_offset,
                    keyed=segment.base_offset < end,
                    cached=None if cached is None else cached.scan_of(n, start, end_offset),
                )
            )
    return pieces


def split_by_bytes(pieces: Sequence[ScanRange], target: int) -> Iterator[list[ScanRange]]:
    """Group neighbouring pieces into lists. Scanning a list reads about ``target`` bytes."""
    held: list[ScanRange] = []
    size = 0
    for piece in pieces:
        if held and size + piece.scan_bytes // 2 > target:
            yield held
            held, size = [], 0
        held.append(piece)
        size += piece.scan_bytes
    if held:
        yield held
