"""A Kafka record batch as values: its header, attributes and records, for every magic.

``batch`` decodes and encodes these values; ``old_format.entries`` builds them from entries of magic
0 and 1.

Source: Kafka 4.4 ``DefaultRecordBatch``, ``DefaultRecord``; KIP-98; KIP-534 for attribute bit 6;
docs/formats/kafka.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from lastwrite.encoding.compression import Codec
from lastwrite.encoding.layout import I8, I16, I32, I64, U32, At, layout

MAGIC = 2
UNKNOWN_MAGIC = (
    "the magic of a record batch is not 0, 1 or 2: a newer release wrote it, or the byte is damaged"
)
LENGTH_END = 12  # batch_length counts the bytes from this position on
CRC_START = 21  # the first byte that the crc covers
SHORTEST_ENTRY_BYTES = 14  # smallest length field of an entry, for every magic
# One byte each for length, attributes, two deltas, null key, null value and header count.
SHORTEST_RECORD_BYTES = 7
DEFAULT_LIMIT_BYTES = 1 << 30  # largest decompressed size of one batch

_MAX_I32 = (1 << 31) - 1

CODEC_BITS = 0x07
APPEND_TIME_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40


class BatchHeader(NamedTuple):
    """The 61 bytes before the records of a Kafka record batch, magic 2."""

    # fmt: off
    #                                              offset  type
    base_offset:            Annotated[int, At(0,  I64)]  # offset of the original first record
    batch_length:           Annotated[int, At(8,  I32)]  # bytes after this field
    # the CRC does not cover the leader epoch, because brokers rewrite it; -1: unknown
    partition_leader_epoch: Annotated[int, At(12, I32)]
    magic:                  Annotated[int, At(16, I8)]   # always 2
    crc:                    Annotated[int, At(17, U32)]  # CRC-32C of byte 21 to the batch's end
    attributes:             Annotated[int, At(21, I16)]  # bits: see BatchAttributes
    # last minus base offset; compaction does not change it
    last_offset_delta:      Annotated[int, At(23, I32)]
    # the delete horizon if attribute bit 6 is set; -1 in a batch without records
    base_timestamp_ms:      Annotated[int, At(27, I64)]
    # the append time if attribute bit 3 is set; -1: no timestamp
    max_timestamp_ms:       Annotated[int, At(35, I64)]
    producer_id:            Annotated[int, At(43, I64)]  # -1: producer is not idempotent
    producer_epoch:         Annotated[int, At(51, I16)]  # -1 without a producer id
    # the first record's sequence number; -1 if there is none, as in control batches
    base_sequence:          Annotated[int, At(53, I32)]
    record_count:           Annotated[int, At(57, I32)]  # compaction lowers this count
    # fmt: on

    @property
    def size_bytes(self) -> int:
        """Size of the batch in bytes, header included."""
        return self.batch_length + LENGTH_END

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.last_offset + 1

    @property
    def delete_horizon_ms(self) -> int | None:
        """The time from which the batch's tombstones may be removed. None if not set."""
        return self.base_timestamp_ms if self.attributes & DELETE_HORIZON_BIT else None

    @property
    def last_sequence(self) -> int:
        """The producer's sequence number at the last offset, or -1 without a sequence."""
        return self.sequence_of(self.last_offset)

    def sequence_of(self, offset: int) -> int:
        """The producer's sequence number at ``offset``, or -1 if the batch has no sequence.

        After 2^31 - 1 the numbers wrap to 0.
        """
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + offset - self.base_offset) & _MAX_I32


BATCH_HEADER = layout(BatchHeader, byte_order=">", size=61)


class BatchAttributes(NamedTuple):
    """The bits of a header's ``attributes``.

    ====  ==========================================================
    0-2   codec
    3     timestamps: 0 as created, 1 as appended
    4     transactional
    5     control batch
    6     the base timestamp is the delete horizon of tombstones
    7-15  unused; Kafka reads the low byte only
    ====  ==========================================================
    """

    codec: Codec = Codec.NONE
    append_time: bool = False
    transactional: bool = False
    control: bool = False
    has_delete_horizon: bool = False

    @property
    def bits(self) -> int:
        return (
            self.codec
            | APPEND_TIME_BIT * self.append_time
            | TRANSACTIONAL_BIT * self.transactional
            | CONTROL_BIT * self.control
            | DELETE_HORIZON_BIT * self.has_delete_horizon
        )


@dataclass(frozen=True, slots=True)
class Record:
    """One record. None means a null key or value, which differs from an empty one.

    ``headers`` are pairs of name and value, in order. Names may repeat. By convention they
    are UTF-8, but this is not checked.
    """

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...] = ()


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch: its header as stored, its decoded attributes, its records in offset order."""

    header: BatchHeader
    attributes: BatchAttributes
    records: tuple[Record, ...]


def decode_attributes(bits: int, at: int | None = None) -> BatchAttributes:
    """Decode the attribute bits of a header; ``at`` is the batch's position, for the error.

    Raises:
        UnsupportedFormat: the codec is 5, 6 or 7.
    """
    return BatchAttributes(
        Codec.of(bits & CODEC_BITS, at),
        bool(bits & APPEND_TIME_BIT),
        bool(bits & TRANSACTIONAL_BIT),
        bool(bits & CONTROL_BIT),
        bool(bits & DELETE_HORIZON_BIT),
    )
