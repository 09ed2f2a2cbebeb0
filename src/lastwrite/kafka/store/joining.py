"""Joins the parts of a new segment that several workers wrote."""

from __future__ import annotations

import os

import numpy as np

from lastwrite.engine.chunks import Chunks
from lastwrite.engine.rewrite import fsync_outputs
from lastwrite.engine.system import Parts
from lastwrite.kafka.format.chunk import KafkaFormat
from lastwrite.kafka.store.staging import StagedSegment
from lastwrite.model.work import Piece, SegmentOutput
from lastwrite.storage.staging import remove_staged


def join_parts(joined: Parts) -> SegmentOutput:
    """One segment of its parts; a single part is the segment already.

    The parts are whole batches, so their bytes are joined as they are; the indexes come of a
    walk over the whole, which proves every batch by its checksum once more.
    """
    parts = joined.parts
    if len(parts) == 1:
        return parts[0]
    base_offset, interval = joined.base_offset, joined.index_interval_bytes
    appender = StagedSegment(base_offset, joined.folder, interval, joined.sources[0].path)
    whole = SegmentOutput(parts[0].partition, parts[0].group, 0, base_offset=base_offset)
    try:
        piece = _as_piece(appender.take_parts([part.log_path for part in parts]), base_offset)
        limits = joined.limits
        for chunk in Chunks(limits).of(KafkaFormat(limits.plain_bytes), piece):
            columns = [
                chunk.table[name] for name in ("origin", "size", "next_offset", "max_timestamp")
            ]
            appender.index(np.stack(columns, axis=1).astype(np.int64), chunk.shift)
        appender.finish(whole, joined.mtime_ns, joined.aborted)
    except BaseException:
        appender.abandon()
        for part in parts:
            remove_staged(part.paths)
        raise
    fsync_outputs([whole])
    if whole.error is not None:
        raise whole.error
    return whole


def _as_piece(path: str, base_offset: int) -> Piece:
    """The whole file."""
    seen = os.stat(path)
    return Piece(
        number=0,
        segment=0,
        path=path,
        start=0,
        end=seen.st_size,
        size_bytes=seen.st_size,
        mtime_ns=seen.st_mtime_ns,
        lowest_offset=base_offset,
        end_offset=2**63 - 1,
        keyed=True,
    )
