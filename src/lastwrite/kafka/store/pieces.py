"""Splits segments into byte ranges (pieces), and estimates the number of records of a log."""

from __future__ import annotations

import numpy as np

from lastwrite.errors import LogError
from lastwrite.kafka.format.batch import decode_batch, decode_batch_header
from lastwrite.kafka.format.batch_layout import MAGIC
from lastwrite.kafka.store import index_files
from lastwrite.model.log import PartitionLog
from lastwrite.storage.reading import reader_of

_HEADER_BYTES = 61
_SAMPLES = 32
_SAMPLE_BYTES = 1 << 20
_SMALL_BYTES = 8 << 20


def cuts_of(log: PartitionLog, segment: int, piece_bytes: int) -> list[int]:
    """The byte positions at which a segment is split into pieces, including start and end.

    The positions are taken from the offset index, which the scan verifies. A segment without an
    index is one piece.
    """
    source = log.segments[segment]
    cuts = [0]
    if source.size_bytes > piece_bytes * 3 // 2:
        positions = np.asarray(index_files.read_offset_index(source)[1])
        count = -(-source.size_bytes // piece_bytes)
        for n in range(1, count):
            found = int(np.searchsorted(positions, source.size_bytes * n // count))
            if found < len(positions) and cuts[-1] < int(positions[found]) < source.size_bytes:
                cuts.append(int(positions[found]))
    if source.size_bytes:
        cuts.append(source.size_bytes)
    return cuts


def estimate_records(log: PartitionLog) -> int:
    """An estimate of the log's records, from the first batches of some segments.

    For a log below 8 MiB, only the largest segment is sampled.
    """
    filled = [segment for segment in log.segments if segment.size_bytes >= _HEADER_BYTES]
    if filled and log.size_bytes < _SMALL_BYTES:
        filled = [max(filled, key=lambda segment: segment.size_bytes)]
    step = max(1, len(filled) // _SAMPLES)
    records, sampled = 0.0, 0
    header = np.empty(_HEADER_BYTES, dtype=np.uint8)
    for segment in filled[::step]:
        with reader_of(segment) as reader:
            reader.read_into(header, 0)
            try:
                first = decode_batch_header(memoryview(header), 0)
                if first.magic < MAGIC and first.size_bytes <= min(
                    _SAMPLE_BYTES, segment.size_bytes
                ):
                    # Decode the entry: the header of a compressed entry of v0 or v1 has no count.
                    entry = np.empty(first.size_bytes, dtype=np.uint8)
                    reader.read_into(entry, 0)
                    first = decode_batch(memoryview(entry), 0, _SAMPLE_BYTES << 4).header
            except LogError:  # the scan will report the error
                continue
        records += segment.size_bytes * max(first.record_count, 1) / (first.batch_length + 12)
        sampled += segment.size_bytes
    total = log.size_bytes
    return int(records * total / sampled) if sampled else total // 64
