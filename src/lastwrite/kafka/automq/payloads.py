"""The payloads of a run of stream records.

A segment's file is the concatenation of the payloads of its runs. Each payload has whole batches.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lastwrite.errors import CorruptLog, UnsupportedFormat
from lastwrite.kafka.automq import stream_kernels
from lastwrite.kafka.automq.partition import StoredRun
from lastwrite.kafka.automq.stored_objects import (
    BLOCK_HEADER,
    RECORD_HEADER,
    StreamBlockHeader,
    StreamRecordHeader,
)
from lastwrite.kafka.automq.stream_kernels import WAL_GAP_BYTES, copy_payloads
from lastwrite.model.columns import ByteArray

_REMEDY = (
    "nothing was changed; restore the object from the bucket's versions, or copy the bucket and "
    "the metadata log again"
)
_PROBLEMS = {
    stream_kernels.BLOCK_SIZE: "a data block exceeds its index entry",
    stream_kernels.BLOCK_COUNT: "the data block states another number of records",
    stream_kernels.RECORD_SIZE: "a stream record exceeds its data block",
    stream_kernels.OTHER_STREAM: "a stream record belongs to another stream",
    stream_kernels.NOT_CONTINUED: "a stream record does not continue the record before it",
}
_UNSUPPORTED = {
    stream_kernels.BLOCK_MAGIC: "the data block has an unknown magic",
    stream_kernels.BLOCK_FLAGS: "the data block has unknown flags",
    stream_kernels.RECORD_MAGIC: "the stream record has an unknown magic",
    stream_kernels.IS_LINK: "the stream record is a link record",
}


def strip_run(raw: ByteArray, run: StoredRun) -> ByteArray:
    """The payloads of a run, one after another, from its bytes ``raw``.

    Raises:
        CorruptLog, UnsupportedFormat: the bytes do not decode; the position is in the object.
    """
    target = np.empty(len(raw), np.uint8)
    state = np.zeros(stream_kernels.STATE_WORDS, np.int64)
    state[stream_kernels.STREAM], state[stream_kernels.NEXT] = run.stream_id, run.stream_offset
    state[stream_kernels.FIRST], state[stream_kernels.STOP] = run.first, run.stop
    gap = WAL_GAP_BYTES if run.is_in_wal else 0
    records, at, code = copy_payloads(raw, 0, len(raw), gap, state, target)
    where = (
        f"stream {run.stream_id} from stream offset {int(state[stream_kernels.NEXT])}, offsets "
        f"{run.start_offset} to {run.end_offset - 1}"
    )
    if code in _UNSUPPORTED:
        raise UnsupportedFormat(
            f"{_UNSUPPORTED[code]}, in {where}", run.position + at, remedy=_REMEDY
        )
    if code in _PROBLEMS:
        raise CorruptLog(f"{_PROBLEMS[code]}, in {where}", run.position + at, remedy=_REMEDY)
    if records != run.records or state[stream_kernels.NEXT] != run.stream_end:
        raise CorruptLog(
            f"the run has {records} stream records, and its index entry states {run.records}, in "
            f"{where}",
            run.position,
            remedy=_REMEDY,
        )
    return target[: state[stream_kernels.FILLED]]


def payloads(raw: ByteArray, run: StoredRun) -> Iterator[tuple[int, ByteArray]]:
    """The payloads of a run with the stream offset of each. For small streams.

    Raises:
        CorruptLog, UnsupportedFormat: the bytes do not decode.
    """
    strip_run(raw, run)  # checks everything
    view, at, left = memoryview(raw), 0, 0
    while at < len(raw):
        if not run.is_in_wal and not left:
            left = StreamBlockHeader._make(BLOCK_HEADER.unpack_from(view, at)).record_count
            at += BLOCK_HEADER.size
            continue
        record = StreamRecordHeader._make(RECORD_HEADER.unpack_from(view, at))
        body = at + RECORD_HEADER.size
        if record.base_offset + record.offset_count > run.first and record.base_offset < run.stop:
            yield record.base_offset, raw[body : body + record.payload_bytes]
        at, left = body + record.payload_bytes, left - 1
        if run.is_in_wal:
            at += WAL_GAP_BYTES
