"""Joins the parts of a new segment that several workers wrote."""

from __future__ import annotations

import os

import numpy as np

from lastwrite.engine.chunks import BatchWindows
from lastwrite.engine.rewrite import fsync_outputs
from lastwrite.engine.system import SegmentParts
from lastwrite.kafka.format.chunk import KafkaFormat
from lastwrite.kafka.store.staging import StagedSegment
from lastwrite.model.work import ScanRange, SegmentOutput
from lastwrite.storage import files
from lastwrite.storage.staging import remove_staged

# The columns from ROW_SIZE to ROW_MAX_TIMESTAMP of a batch's row, in the same order.
_COLUMNS = (
    "size",
    "next_offset",
    "max_timestamp",
)


def join_parts(joined: SegmentParts) -> SegmentOutput:
    """Join the parts of a segment. A single part is returned unchanged.

    Parts contain whole batches, so the other parts are appended to the first one unchanged, and the
    first part's indexer is continued. The checksums of appended batches are verified again.
    """
    first, *others = joined.parts
    if not others:
        return first
    source = joined.sources[0].path
    whole = SegmentOutput(first.partition, first.group, 0, base_offset=joined.base_offset)
    appender = StagedSegment.continued(first, joined.folder, source)
    try:
        for part in others:
            for chunk in BatchWindows(joined.limits).of(
                KafkaFormat(joined.limits.plain_bytes), _as_piece(part.log_path, joined.base_offset)
            ):
                table = chunk.table
                begin, end = int(table["origin"][0]), int(table["origin"][-1] + table["size"][-1])
                columns = [table["origin"] - begin, *(table[name] for name in _COLUMNS)]
                appender.append(chunk.buffer[begin:end], np.stack(columns, axis=1).astype(np.int64))
            files.unlink(part.log_path)
        appender.finish(whole, joined.mtime_ns, joined.aborted)
    except BaseException:
        appender.abandon()
        for part in joined.parts:
            remove_staged(part.paths)
        raise
    fsync_outputs([whole])
    if whole.error is not None:
        raise whole.error
    return whole


def _as_piece(path: str, base_offset: int) -> ScanRange:
    """The whole segment file as one piece to read."""
    seen = os.stat(path)
    return ScanRange(
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
