"""Finds the bytes of a segment that contain a range of offsets.

This makes it cheap to read a small range of a large segment. For example, a stream repeatedly reads
the end of the active segment.

    batch at offset    0    7   20    31   40 …
    batch at byte      0  410  990  1500
    index              (6, byte 0), (19, 410), (30, 990), (39, 1500)
    offsets 20 to 33   byte 990 to the segment's end
    offsets 7 to 20    byte 0 to 990
"""

from __future__ import annotations

import numpy as np

from lastwrite.errors import LogError
from lastwrite.kafka.format.batch_layout import BatchHeader
from lastwrite.kafka.format.index import decode_offset_index
from lastwrite.kafka.look.problems import whole_batches
from lastwrite.kafka.store import index_files
from lastwrite.model.log import Problem, Segment
from lastwrite.storage.reading import read_small


def stretch_of(segment: Segment, first: int, end: int, segment_end: int) -> tuple[int, int]:
    """A byte range with all offsets from ``first`` to below ``end``, and possibly other offsets.

    The range is the complete segment if the index does not help. An index entry is used only if a
    batch that matches the entry begins at its position. While a broker appends to the segment and
    its index, the batch must end at exactly the entry's offset.
    """
    whole = 0, segment.size_bytes
    is_hint = not segment.is_indexed
    if (first <= segment.base_offset and end >= segment_end) or (is_hint and not segment.growing):
        return whole
    try:
        index = decode_offset_index(
            read_small(index_files.index_path(segment.path)), segment.base_offset
        )
    except LogError:
        return whole

    def batch_at(row: int) -> BatchHeader | None:
        """The batch header at an index entry's position. None if the entry does not fit."""
        position = int(index.positions[row])
        if not 0 < position < segment.size_bytes:
            return None
        problems: list[Problem] = []
        found = next(whole_batches(segment, problems.append, position), None)
        if found is None or (is_hint and found[1].next_offset != int(index.offsets[row]) + 1):
            return None
        return found[1]

    begin, stop = whole
    row = int(np.searchsorted(index.offsets, first, side="right")) - 1
    if first > segment.base_offset and row >= 0:
        header = batch_at(row)
        if header is not None and header.base_offset <= first:
            begin = int(index.positions[row])
    # Batches from an entry's position on have offsets above the offset of the previous entry.
    row = int(np.searchsorted(index.offsets, end - 1)) + 1
    if end < segment_end and row < len(index):
        header = batch_at(row)
        if header is not None and header.base_offset >= end:
            stop = int(index.positions[row])
    return (begin, stop) if begin < stop else whole
