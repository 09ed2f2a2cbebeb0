"""Compares a segment's indexes with its batches, one range of bytes at a time."""

from __future__ import annotations

import numpy as np

from lastwrite.engine.system import IndexChecker
from lastwrite.errors import CorruptLog
from lastwrite.kafka.format.index import OFFSET_ENTRY, TIME_ENTRY
from lastwrite.kafka.format.remedy import REBUILD, RESTORE
from lastwrite.kafka.recovery import index_check
from lastwrite.kafka.recovery.lost_records import EndEvidence, missing
from lastwrite.kafka.store import index_files
from lastwrite.model.columns import BatchTable
from lastwrite.model.work import ScanRange


def index_checker(piece: ScanRange) -> IndexChecker:
    """Create the checker that compares indexes with batches in a byte range of a segment.

    Compaction does not use an archive's indexes, so to save requests it does not check them. Only
    ``verify`` checks them.
    """
    return _NoIndexChecker() if piece.etag else KafkaIndexChecker(piece)


class _NoIndexChecker:
    """An index checker that checks nothing."""

    def check(self, table: BatchTable, shift: int) -> None: ...
    def ends(self) -> None: ...


class KafkaIndexChecker:
    """Compares a segment's indexes with the batches in a byte range of the segment."""

    def __init__(self, piece: ScanRange) -> None:
        self._piece = piece
        offsets, positions = index_files.read_offset_index(piece)
        first, end = np.searchsorted(positions, [piece.start, piece.end]).tolist()
        self._first, self._offsets, self._positions = (
            first,
            offsets[first:end],
            positions[first:end],
        )
        self._times, self._time_offsets = index_files.read_time_index(piece)
        self._reached, self._last = index_check.NO_TIME, -1

    def check(self, table: BatchTable, shift: int) -> None:
        before = self._last if self._last >= 0 else int(table["next_offset"][0]) - 1
        entries = self._offsets, self._positions, self._times, self._time_offsets
        reached = index_check.time_if_true(*entries, table, shift, self._reached, before)
        if reached == index_check.NO_TIME:
            self._check_entries(table, shift, before)
        self._reached, self._last = reached, int(table["next_offset"][-1]) - 1

    def _check_entries(self, table: BatchTable, shift: int, before: int) -> None:
        begins = table["origin"] + shift
        end = int(begins[-1]) + int(table["origin_size"][-1])
        lie = index_check.false_offset_entry(
            self._offsets, self._positions, begins, end, table["base_offset"]
        )
        if lie is not None:
            place = (self._first + lie.row) * OFFSET_ENTRY.size
            path = index_files.index_path(self._piece.path)
            raise CorruptLog(lie.problem, place, path, REBUILD)
        last, times = table["next_offset"] - 1, table["max_timestamp"]
        lie = index_check.false_time_entry(
            self._times, self._time_offsets, last, times, self._reached, before
        )
        if lie is None:  # no wrong entry: the batches lack timestamps, hence NO_TIME
            return
        path = index_files.time_index_path(self._piece.path)
        raise CorruptLog(lie.problem, lie.row * TIME_ENTRY.size, path, REBUILD)

    def ends(self) -> None:
        piece, end_offset = self._piece, self._last + 1
        if piece.end < piece.size_bytes or not end_offset:
            return
        for named in (self._offsets, self._time_offsets):
            beyond = named[int(np.searchsorted(named, end_offset)) :][:1].tolist()
            # Never true in the log's last segment, whose records end at ``piece.end_offset``.
            if beyond and beyond[0] < piece.end_offset:
                words = (
                    f"the segment's indexes contain offset {beyond[0]}, and the next segment "
                    f"begins at offset {piece.end_offset}"
                )
                gone = missing(end_offset, EndEvidence(piece.end_offset, words))
                raise CorruptLog(
                    f"the segment ends at offset {end_offset}: {gone}",
                    piece.end,
                    piece.path,
                    RESTORE,
                )
