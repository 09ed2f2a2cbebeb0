"""Encode columns of records, of any system, as Kafka batches.

``a@3 b@4 c@900`` become one batch with base offset 3 and deltas 0, 1 and 897. A batch ends before
its uncompressed size exceeds the target, and before its last offset delta exceeds 31 bits. A record
larger than the target gets its own batch. Every record keeps its timestamp.

Source: Kafka 4.4 ``DefaultRecordBatch``, ``DefaultRecord``; docs/formats/kafka.md.
"""

from __future__ import annotations

import numpy as np

from lastwrite.encoding.compression import Codec, Codecs
from lastwrite.kafka.format import encoder_kernels, kernels
from lastwrite.kafka.format.batch_layout import (
    BATCH_HEADER,
    LENGTH_END,
    MAGIC,
    BatchAttributes,
    BatchHeader,
)
from lastwrite.model.columns import ByteArray, Int64Array, RecordColumns

BATCH_BYTES = 128 << 10  # uncompressed bytes of a batch; a larger record gets its own batch
_MOST_DELTA = (1 << 31) - 1


class BatchEncoder:
    """Encodes records as batches with one codec.

    Has reusable buffers, so each thread needs its own.
    """

    def __init__(self, codec: Codec, batch_bytes: int = BATCH_BYTES) -> None:
        self._codec = codec
        self._codecs = Codecs()
        self._batch_bytes = batch_bytes

    def batches(self, records: RecordColumns, offsets: Int64Array, leader_epoch: int) -> ByteArray:
        """Encode the records as consecutive batches. At least one record is required.

        ``records`` must have the positions of the record headers (``with_headers``). ``offsets``
        has one offset per record, ascending.

        Raises:
            ValueError: the offsets do not rise, or one is below 0.
        """
        if int(offsets[0]) < 0 or (np.diff(offsets) <= 0).any():
            raise ValueError(f"record offsets do not increase from {int(offsets[0])} on")
        assert records.header_names is not None and records.header_values is not None
        parts = np.stack((*records.keys, *records.values))
        headers = np.stack((*records.header_names, *records.header_values))
        header_ends = np.zeros(records.rows + 1, np.int64)
        np.cumsum(records.headers[1], out=header_ends[1:])
        room = _encoded_bounds(parts, headers, header_ends)
        times = np.ascontiguousarray(records.times_ms)
        offsets = np.ascontiguousarray(offsets)
        out = np.empty(0, np.uint8)
        made: list[bytes | memoryview] = []
        sizes: list[int] = []
        first = 0
        while first < records.rows:
            last = self._end_of(first, room, offsets)
            need = int(room[last] - room[first])
            out = out if need <= len(out) else np.empty(need, np.uint8)
            size, largest_ms = encoder_kernels.put_records(
                records.data, offsets, times, parts, headers, header_ends, first, last, out
            )
            payload = self._codecs.compress(self._codec, memoryview(out)[:size])
            header = BatchHeader(
                base_offset=int(offsets[first]),
                batch_length=BATCH_HEADER.size - LENGTH_END + len(payload),
                partition_leader_epoch=leader_epoch,
                magic=MAGIC,
                crc=0,
                attributes=BatchAttributes(self._codec).bits,
                last_offset_delta=int(offsets[last - 1] - offsets[first]),
                base_timestamp_ms=int(times[first]),
                max_timestamp_ms=int(largest_ms),
                producer_id=-1,
                producer_epoch=-1,
                base_sequence=-1,
                record_count=last - first,
            )
            made += [BATCH_HEADER.pack(*header), payload]
            sizes.append(BATCH_HEADER.size + len(payload))
            first = last
        data = np.frombuffer(bytearray(b"".join(made)), dtype=np.uint8)
        ends = np.cumsum(np.array(sizes, np.int64))
        kernels.reseal(data, ends - np.array(sizes, np.int64), np.array(sizes, np.int64))
        return data

    def _end_of(self, first: int, room: Int64Array, offsets: Int64Array) -> int:
        """The row after the last record of the batch that begins with row ``first``."""
        by_bytes = int(np.searchsorted(room, room[first] + self._batch_bytes, side="right")) - 1
        by_offsets = int(np.searchsorted(offsets, offsets[first] + _MOST_DELTA, side="right"))
        return max(first + 1, min(by_bytes, by_offsets))


def _encoded_bounds(parts: Int64Array, headers: Int64Array, header_ends: Int64Array) -> Int64Array:
    """For each row, an upper bound of the encoded bytes of all records before the row.

    The last element is for all records.
    """
    inside = np.maximum(headers[1], 0) + np.maximum(headers[3], 0) + encoder_kernels.HEADER_ROOM
    of_headers = np.zeros(headers.shape[1] + 1, np.int64)
    np.cumsum(inside, out=of_headers[1:])
    sizes = np.maximum(parts[1], 0) + np.maximum(parts[3], 0) + encoder_kernels.RECORD_ROOM
    sizes += of_headers[header_ends[1:]] - of_headers[header_ends[:-1]]
    room = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=room[1:])
    return room
