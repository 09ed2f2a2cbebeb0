"""Batches of a log, prepared for a producer that sends them to another log.

The receiving broker assigns consecutive offsets, and rejects a batch with gaps in its offsets::

    before   7: a@0 b@1   COMMIT@2   c@5 · d@7 (6 was compacted away)   ABORT@9
    after       a@0 b@1              c@2 d@3

A batch without gaps is sent with its records unchanged, still compressed. Other batches are
rewritten, and several may be joined to one batch. In both cases timestamps, headers and codec stay.
Records with append time keep the time of the source's broker. ``transplant`` removes markers, and
records of aborted and open transactions.

Source: Kafka 4.4 ``LogValidator``, ``DefaultRecordBatch``; docs/formats/kafka.md, "Record batch".
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from lastwrite.encoding.compression import Codec, Codecs
from lastwrite.kafka.format import kernels, outgoing_kernels
from lastwrite.kafka.format.batch_layout import (
    APPEND_TIME_BIT,
    BATCH_HEADER,
    CODEC_BITS,
    LENGTH_END,
    MAGIC,
    BatchAttributes,
    BatchHeader,
)
from lastwrite.kafka.format.chunk import KafkaFormat, record_error
from lastwrite.kafka.format.transplant import Transplant
from lastwrite.model.columns import IS_OLD, BatchRun, BatchTable, ByteArray

_BEGIN = BATCH_HEADER.offset_of("base_offset")
_EPOCH = BATCH_HEADER.offset_of("partition_leader_epoch")
_ATTRIBUTES = BATCH_HEADER.offset_of("attributes")
_PRODUCER = BATCH_HEADER.offset_of("producer_id")
# Largest uncompressed size of a joined batch, unless one source batch is larger.
_MADE_BYTES = 1 << 19
_MOST_SEQUENCE = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class OutgoingBatch:
    """A batch to send, and the source offsets of its records."""

    data: ByteArray  # the encoded batch; ``signed`` sets its producer and its checksum
    offsets: Sequence[int]  # offsets of the records in the source, ascending

    @property
    def records(self) -> int:
        return len(self.offsets)

    @property
    def next_offset(self) -> int:
        """The source offset after the last record."""
        return self.offsets[-1] + 1

    def signed(self, producer_id: int, epoch: int, sequence: int) -> ByteArray:
        """The batch's bytes after setting its producer id, epoch and base sequence."""
        struct.pack_into(">qhi", self.data, _PRODUCER, producer_id, epoch, sequence)
        places = np.zeros(1, dtype=np.int64), np.array([len(self.data)], dtype=np.int64)
        kernels.reseal(self.data, *places)
        return self.data


def next_sequence(sequence: int, records: int) -> int:
    """The sequence number after ``records`` records. After 2^31 - 1 the numbers wrap to 0."""
    return (sequence + records) & _MOST_SEQUENCE


class Sender:
    """Creates outgoing batches. Holds reusable buffers, so each thread needs its own instance.

    Args:
        format: the instance that split the batches passed to ``batches``.
        transplant: the rules by which batches are skipped.
        first, end: the source offsets to send, end exclusive.
    """

    def __init__(self, format: KafkaFormat, transplant: Transplant, first: int, end: int) -> None:
        self._format = format
        self._transplant = transplant
        self._first, self._end = first, end
        self._codecs = Codecs()

    def batches(self, buffer: ByteArray, table: BatchTable) -> Iterator[OutgoingBatch]:
        """The outgoing batches for the batches of ``table``, in order.

        ``table`` and ``buffer`` are results of ``split``.

        Raises:
            CorruptLog: a batch that must be rewritten is malformed.
            OutOfMemoryBudget: a batch decompresses to more than the limit of ``format``.
        """
        within = (table["next_offset"] > self._first) & (table["base_offset"] < self._end)
        table = table[self._transplant.stays(table) & within & (table["records"] > 0)]
        is_whole = (
            (table["records"] == table["next_offset"] - table["base_offset"])
            & (table["base_offset"] >= self._first)
            & (table["next_offset"] <= self._end)
            & (table["flags"] & IS_OLD == 0)
            & (buffer[table["position"] + _ATTRIBUTES + 1] & APPEND_TIME_BIT == 0)
        )
        borders = [0, *(np.flatnonzero(np.diff(is_whole)) + 1).tolist(), len(table)]
        for first, last in pairwise(borders if len(table) else ()):
            part = table[first:last]
            yield from (
                self._copied(buffer, part)
                if is_whole[first]
                else self._encode_batches(buffer, part)
            )

    def _copied(self, buffer: ByteArray, table: BatchTable) -> Iterator[OutgoingBatch]:
        for row in table:
            at, base, behind = (
                int(row[name]) for name in ("position", "base_offset", "next_offset")
            )
            data = buffer[at : at + int(row["size"])].copy()
            struct.pack_into(">q", data, _BEGIN, 0)
            struct.pack_into(">i", data, _EPOCH, -1)
            struct.pack_into(">h", data, _ATTRIBUTES, data[_ATTRIBUTES + 1] & CODEC_BITS)
            yield OutgoingBatch(data, range(base, behind))

    def _encode_batches(self, buffer: ByteArray, table: BatchTable) -> Iterator[OutgoingBatch]:
        codecs = table["codec"]
        borders = [0, *(np.flatnonzero(np.diff(codecs)) + 1).tolist(), len(table)]
        for first, last in pairwise(borders):
            part = table[first:last]
            for run in self._format.opened(buffer, part):
                ends = np.cumsum(part["plain_end"] - part["plain_start"])
                at = run.first
                while at < run.last:
                    before = int(ends[at - 1]) if at else 0
                    until = int(np.searchsorted(ends, before + _MADE_BYTES, side="right"))
                    until = min(max(until, at + 1), run.last)
                    yield from self._one(buffer, part, BatchRun(at, until, run.plain))
                    at = until

    def _one(self, buffer: ByteArray, table: BatchTable, run: BatchRun) -> Iterator[OutgoingBatch]:
        """Yield one batch with the selected records of ``run``, or nothing if there are none."""
        part = table[run.first : run.last]
        records = int(part["records"].sum())
        need = int((part["plain_end"] - part["plain_start"]).sum())
        out = np.empty(need + outgoing_kernels.ROOM * records, dtype=np.uint8)
        offsets = np.empty(records, dtype=np.int64)
        size, kept, first_ms, largest_ms, code, at_fault, at = outgoing_kernels.renumber(
            run.plain, buffer, table, run.first, run.last, self._first, self._end, out, offsets
        )
        if code != kernels.OK:
            raise record_error(code, table[at_fault], at)
        if not kept:
            return
        codec = Codec(int(part["codec"][0]))
        packed = self._codecs.compress(codec, memoryview(out)[:size])
        header = BatchHeader(
            base_offset=0,
            batch_length=BATCH_HEADER.size - LENGTH_END + len(packed),
            partition_leader_epoch=-1,
            magic=MAGIC,
            crc=0,
            attributes=BatchAttributes(codec).bits,
            last_offset_delta=kept - 1,
            base_timestamp_ms=first_ms,
            max_timestamp_ms=largest_ms,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            record_count=kept,
        )
        data = np.frombuffer(bytearray(BATCH_HEADER.pack(*header) + packed), dtype=np.uint8)
        yield OutgoingBatch(data, offsets[:kept].tolist())
