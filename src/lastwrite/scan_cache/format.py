"""The format of a cache file, which has the result of scanning a segment.

    header                          this table, 152 bytes
    blocks                          each at a multiple of 64: uint32 per bucket (its end,
                                    in entries), then 16 bytes per entry: see
                                    ``engine.rules.election``
    pieces, blocks                  the tables ``PieceRow`` and ``BlockRow``

Integers are little-endian. The header has its own checksum and that of the tables. A block's row
has the checksum of the block. Each part is thus verified separately. If an unchanged segment was
linked, only the header is rewritten.

Only pieces whose records are all plain are cached: live, with a key, in no transaction, in no batch
of an old format. Whatever the time and the settings, such a piece changes only if a later record
shadows one of its records.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import numpy as np

from lastwrite.encoding.checksum import crc32c
from lastwrite.encoding.layout import I64, U32, U64, At, layout
from lastwrite.errors import CorruptLog
from lastwrite.model.columns import ByteArray
from lastwrite.scan_cache.segment import CachedBlock, CachedPiece, CachedSegment, SegmentIdentity

MAGIC = int.from_bytes(b"lw-kept\x01", "little")
ALIGNMENT = 64
_MOST_BITS = 24
_REMEDY = "Lastwrite ignores this cache file; you can delete it"


class CacheHeader(NamedTuple):
    """The header of a cache file."""

    # fmt: off
    # the text "lw-kept", then the version, which is 1
    magic:           Annotated[int, At(0,   U64)]
    base_offset:     Annotated[int, At(8,   I64)]  # base offset of the segment
    # the segment's identity: size, times and inode of .log, .index and .timeindex
    log_size:        Annotated[int, At(16,  I64)]
    log_mtime_ns:    Annotated[int, At(24,  I64)]
    log_ctime_ns:    Annotated[int, At(32,  I64)]  # change time, which programs cannot set
    log_inode:       Annotated[int, At(40,  I64)]
    index_size:      Annotated[int, At(48,  I64)]
    index_mtime_ns:  Annotated[int, At(56,  I64)]
    index_ctime_ns:  Annotated[int, At(64,  I64)]
    index_inode:     Annotated[int, At(72,  I64)]
    times_size:      Annotated[int, At(80,  I64)]
    times_mtime_ns:  Annotated[int, At(88,  I64)]
    times_ctime_ns:  Annotated[int, At(96,  I64)]
    times_inode:     Annotated[int, At(104, I64)]
    # digest of the secret of the fingerprints
    secret_one:      Annotated[int, At(112, U64)]
    secret_two:      Annotated[int, At(120, U64)]
    # position of the two tables, which extend to the file's end
    tables_at:       Annotated[int, At(128, I64)]
    bits:            Annotated[int, At(136, U32)]  # 2^bits buckets per block
    piece_count:     Annotated[int, At(140, U32)]
    tables_crc:      Annotated[int, At(144, U32)]  # CRC-32C of the two tables
    header_crc:      Annotated[int, At(148, U32)]  # CRC-32C of the first 148 bytes
    # fmt: on


class PieceRow(NamedTuple):
    """The table row of one piece of the segment."""

    # fmt: off
    start:           Annotated[int, At(0,  I64)]  # first byte in the segment
    end:             Annotated[int, At(8,  I64)]
    records:         Annotated[int, At(16, I64)]  # number of records; -1 if the piece is not cached
    batches:         Annotated[int, At(24, I64)]
    first_offset:    Annotated[int, At(32, I64)]  # base offset of the first batch
    next_offset:     Annotated[int, At(40, I64)]  # end offset of the last batch
    # number of the piece's block rows, which are in piece order
    blocks:          Annotated[int, At(48, I64)]
    # fmt: on


class BlockRow(NamedTuple):
    """The table row of one block of entries."""

    # fmt: off
    position:        Annotated[int, At(0,  I64)]  # first byte in the cache file
    entries:         Annotated[int, At(8,  I64)]
    crc:             Annotated[int, At(16, I64)]  # CRC-32C of the block
    # fmt: on


HEADER = layout(CacheHeader, byte_order="<", size=152)
PIECE = layout(PieceRow, byte_order="<", size=56)
BLOCK = layout(BlockRow, byte_order="<", size=24)


def digest_of(secret: bytes) -> bytes:
    """A digest of 16 bytes that identifies a secret without revealing it."""
    return hashlib.blake2b(secret, digest_size=16, person=b"lw-kept").digest()


def block_bytes(entries: int, bits: int) -> int:
    """The size in bytes of a block with this number of entries."""
    return (4 << bits) + 16 * entries


def split_block(data: ByteArray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """The bucket ends and the entries of a block, as views."""
    return data[: 4 << bits].view(np.uint32), data[4 << bits :].view(np.uint64).reshape(-1, 2)


def checksum(data: bytes | memoryview) -> int:
    """The CRC-32C of the data."""
    return int(crc32c(np.frombuffer(data, dtype=np.uint8), 0, len(data)))


def encode_tables(pieces: Sequence[CachedPiece]) -> bytes:
    """Encode the tables of pieces and blocks."""
    rows = [
        PIECE.pack(
            piece.start,
            piece.end,
            piece.records,
            piece.batches,
            piece.first_offset,
            piece.next_offset,
            len(piece.blocks),
        )
        for piece in pieces
    ]
    return b"".join([*rows, *(BLOCK.pack(*block) for piece in pieces for block in piece.blocks)])


def header_of(segment: CachedSegment, tables_at: int, tables: bytes) -> CacheHeader:
    """The header for a file with ``tables`` at byte ``tables_at``.

    The header's own checksum is still 0.
    """
    one, two = (
        int.from_bytes(half, "little")
        for half in (segment.secret_digest[:8], segment.secret_digest[8:])
    )
    identity = (*segment.identity.log, *segment.identity.offset_index, *segment.identity.time_index)
    return CacheHeader(
        MAGIC,
        segment.base_offset,
        *identity,
        one,
        two,
        tables_at,
        segment.bits,
        len(segment.pieces),
        checksum(tables),
        0,
    )


def with_identity(header: CacheHeader, identity: SegmentIdentity) -> CacheHeader:
    """A copy of the header with another segment identity."""
    return CacheHeader._make(
        (*header[:2], *identity.log, *identity.offset_index, *identity.time_index, *header[14:])
    )


def encode_header(header: CacheHeader) -> bytes:
    """Encode the header, and fill in its checksum."""
    head = HEADER.pack(*header)[:-4]
    return head + checksum(head).to_bytes(4, "little")


def decode_header(data: bytes, path: str) -> CacheHeader:
    """Decode the header from the first bytes of a file.

    Raises:
        CorruptLog: the bytes are not a valid header.
    """
    if len(data) < HEADER.size:
        raise CorruptLog("the cache file is truncated", 0, path, _REMEDY)
    header = CacheHeader._make(HEADER.unpack_from(data))
    if header.magic != MAGIC:
        raise CorruptLog("the cache file has another version", 0, path, _REMEDY)
    if header.header_crc != checksum(data[: HEADER.size - 4]):
        raise CorruptLog(
            "the header of the cache file does not match its checksum", 0, path, _REMEDY
        )
    return header


def decode_segment(
    header: CacheHeader, tables: bytes, path: str, first: int = HEADER.size
) -> CachedSegment:
    """Decode the tables of a file. ``tables`` are all bytes from ``header.tables_at`` on.

    No block may begin before byte ``first``.

    Raises:
        CorruptLog: the tables do not match the header, or are inconsistent.
    """
    at = header.tables_at
    if header.tables_crc != checksum(tables):
        raise CorruptLog(
            "the tables of the cache file do not match their checksum", at, path, _REMEDY
        )
    rows_end = header.piece_count * PIECE.size
    if header.bits > _MOST_BITS or rows_end > len(tables) or (len(tables) - rows_end) % BLOCK.size:
        raise CorruptLog("the tables of the cache file do not fit its size", at, path, _REMEDY)
    blocks = [CachedBlock._make(row) for row in BLOCK.iter_unpack(tables[rows_end:])]
    pieces = []
    position = taken = 0
    for row in map(PieceRow._make, PIECE.iter_unpack(tables[:rows_end])):
        own = blocks[taken : taken + row.blocks] if row.blocks > 0 else []
        taken += len(own)
        fits = all(
            first <= block.position
            and 0 <= block.entries
            and block.position + block_bytes(block.entries, header.bits) <= at
            for block in own
        )
        counted = row.records < 0 or sum(block.entries for block in own) == row.records > 0
        if (
            row.start != position
            or row.end <= row.start
            or len(own) != row.blocks
            or not fits
            or not counted
        ):
            raise CorruptLog(
                "the tables of the cache file contradict each other", at, path, _REMEDY
            )
        position = row.end
        pieces.append(
            CachedPiece(
                row.start,
                row.end,
                row.records,
                row.batches,
                row.first_offset,
                row.next_offset,
                tuple(own),
            )
        )
    if position != header.log_size or taken != len(blocks):
        raise CorruptLog("the pieces of the cache file do not match the segment", at, path, _REMEDY)
    halves = (header.secret_one, header.secret_two)
    return CachedSegment(
        path=path,
        base_offset=header.base_offset,
        bits=header.bits,
        identity=identity_of(header),
        secret_digest=b"".join(half.to_bytes(8, "little") for half in halves),
        pieces=tuple(pieces),
    )


def identity_of(header: CacheHeader) -> SegmentIdentity:
    """The segment identity that the header contains."""
    fields = header[2:14]
    return SegmentIdentity(fields[0:4], fields[4:8], fields[8:12])


def encode_secret(secret: bytes) -> bytes:
    """Encode a secret for its file: the secret and its CRC-32C."""
    return secret + checksum(secret).to_bytes(4, "little")


def decode_secret(data: bytes, size: int) -> bytes | None:
    """Decode a secret of ``size`` bytes. None if the file is incomplete."""
    if len(data) != size + 4 or checksum(data[:size]) != int.from_bytes(data[size:], "little"):
        return None
    return data[:size]
