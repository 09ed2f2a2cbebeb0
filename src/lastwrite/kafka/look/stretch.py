"""Which bytes of a segment hold a range of offsets, so that a small range of a large segment costs
little: a stream reads its end again and again.

    offsets    0    7    20    31    40 …        index: (6, byte 0), (19, 410), (30, 990), (39, 1500)
    bytes      0   410  990  1500               20 to 33: from byte 990 on; 7 to 20: to byte 990
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
    """Where the bytes begin and end that hold the offsets from ``first`` to below ``end``; with some
    more, and all of the segment where its index does not tell.

    An entry of the index counts where a batch begins that it fits. Of a segment that a broker
    appends to, whose index it is writing, the batch has to end at the very offset of the entry.
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
        """The header there; None: the entry does not fit."""
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
    # What lies at or behind a position has offsets above the entry before.
    row = int(np.searchsorted(index.offsets, end - 1)) + 1
    if end < segment_end and row < len(index):
        header = batch_at(row)
        if header is not None and header.base_offset >= end:
            stop = int(index.positions[row])
    return (begin, stop) if begin < stop else whole
