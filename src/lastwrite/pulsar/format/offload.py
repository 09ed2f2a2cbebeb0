"""An offloaded ledger: the data object and the index object of the object-store offloader.

A data object is a sequence of *blocks*; each was one part of the upload. A block has 128 bytes of
header, then entries, each ``i32 length, i64 entry id, bytes``. If the next entry does not fit, the
block is filled with copies of ``fedcdead``; the last copy may be incomplete. An entry never crosses
the end of a block. Padding read as a length is negative, so the sign alone identifies it.

The index has the position of each block and the ledger's bare metadata. To find entry e, take the
last block whose first entry is at most e and read on from its header.

Layout V2 (streaming, rare) has several ledgers in one object. The index shows the layout, and such
an object is refused.

The functions take bytes; files are opened elsewhere. Every length is checked against the bytes that
are present.

Source: Pulsar 4.2.4 ``DataBlockHeaderImpl``, ``BlockAwareSegmentInputStreamImpl``,
``OffloadIndexBlockImpl``, ``…V2Impl``; docs/formats/pulsar.md, "Offloaded ledger".
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, NamedTuple

from lastwrite.encoding.layout import I32, I64, U32, At, Buffer, layout
from lastwrite.errors import CorruptLog, TruncatedLog, UnsupportedFormat
from lastwrite.pulsar.format.ledger_metadata import LedgerMetadata
from lastwrite.pulsar.format.missing import MISSING, EntryRange, decode_ranges, entries_in

BLOCK_MAGIC = 0xFBDBABCB
INDEX_MAGIC = 0xDE47DE47
STREAMED_INDEX_MAGIC = 0x3D1FB0BC

BLOCK_HEADER_BYTES = 128
ENTRY_HEAD_BYTES = 12
PADDING = bytes.fromhex("fedcdead")
DEFAULT_BLOCK_BYTES = 64 << 20  # default of s3ManagedLedgerOffloadMaxBlockSizeInBytes
FIRST_PART = 1

_MAX_I32 = (1 << 31) - 1


class BlockHeader(NamedTuple):
    """The header of a block of a data object. Zeros follow up to byte 128."""

    # fmt: off
    magic:        Annotated[int, At(0,  U32)]
    header_bytes: Annotated[int, At(4,  I64)]  # always 128
    block_bytes:  Annotated[int, At(12, I64)]  # bytes of the block, header and padding included
    first_entry:  Annotated[int, At(20, I64)]
    # fmt: on


class EntryHead(NamedTuple):
    """The 12 bytes before an entry: its length and its id."""

    size: Annotated[int, At(0, I32)]  # bytes of the entry; negative in padding
    entry: Annotated[int, At(4, I64)]


class IndexHead(NamedTuple):
    """The head of an index object. The ledger's metadata follow, then the blocks' positions."""

    # fmt: off
    magic:          Annotated[int, At(0,  U32)]
    index_bytes:    Annotated[int, At(4,  I32)]  # bytes of the whole index object
    data_bytes:     Annotated[int, At(8,  I64)]  # bytes of the data object
    header_bytes:   Annotated[int, At(16, I64)]  # bytes of a block's header
    blocks:         Annotated[int, At(24, I32)]
    metadata_bytes: Annotated[int, At(28, I32)]
    # fmt: on


class OffloadIndexEntry(NamedTuple):
    """The index's row for one block: its first entry, and its position in the data object."""

    # fmt: off
    first_entry: Annotated[int, At(0,  I64)]
    part:        Annotated[int, At(8,  I32)]  # the block's number in the upload, from 1
    offset:      Annotated[int, At(12, I64)]  # position of the block's header in the data object
    # fmt: on


BLOCK = layout(BlockHeader, byte_order=">", size=28)
ENTRY_HEAD = layout(EntryHead, byte_order=">", size=ENTRY_HEAD_BYTES)
INDEX_HEAD = layout(IndexHead, byte_order=">", size=32)
INDEX_ENTRY = layout(OffloadIndexEntry, byte_order=">", size=20)


# ---------------------------------------------------------------- data objects


def block_header(block_bytes: int, first_entry: int) -> bytes:
    """The 128 bytes before a block's entries."""
    head = BLOCK.pack(BLOCK_MAGIC, BLOCK_HEADER_BYTES, block_bytes, first_entry)
    return head.ljust(BLOCK_HEADER_BYTES, b"\0")


def parse_block_header(data: Buffer, at: int, end: int) -> BlockHeader:
    """Decode the header of the V1 block at byte ``at``. The block must end at or before ``end``.

    Raises:
        TruncatedLog: the header or the block exceeds ``end``.
        CorruptLog: another magic, another header length, a block shorter than its header, or a
            first entry below 0.
    """
    if end - at < BLOCK_HEADER_BYTES:
        raise TruncatedLog(f"the object ends inside a block header, after {end - at} bytes", at)
    found = BlockHeader._make(BLOCK.unpack_from(data, at))
    if found.magic != BLOCK_MAGIC:
        raise CorruptLog(
            f"no block of an offloaded ledger begins here: the magic is {found.magic:08x}", at
        )
    if found.header_bytes != BLOCK_HEADER_BYTES:
        raise CorruptLog(
            f"the block header states its own size as {found.header_bytes} bytes, not "
            f"{BLOCK_HEADER_BYTES}",
            at + 4,
        )
    if found.block_bytes < BLOCK_HEADER_BYTES:
        raise CorruptLog(f"block of {found.block_bytes} bytes", at + 12)
    if found.block_bytes > end - at:
        raise TruncatedLog(
            f"the block length is {found.block_bytes} bytes, but only {end - at} bytes follow",
            at + 12,
        )
    if found.first_entry < 0:
        raise CorruptLog(f"the block has the invalid first entry {found.first_entry}", at + 20)
    return found


def is_padding(data: Buffer, at: int, end: int) -> bool:
    """Whether the bytes are a block's padding: copies of a pattern, the last may be incomplete."""
    found = bytes(data[at:end])
    return found == (PADDING * (len(found) // len(PADDING) + 1))[: len(found)]


def walk_data(data: Buffer, has_gaps: bool = False) -> Iterator[tuple[int, int, int]]:
    """The entries of a V1 data object, or of some of its blocks: entry id, first byte, size.

    Ids rise by 1, within a block and from block to block. With ``has_gaps``, a block may begin with
    a later id.

    Raises:
        TruncatedLog, CorruptLog: as ``parse_block_header``; also an entry that exceeds its block, a
            wrong id, or a block's end that is not padding. Positions are bytes of ``data``.
    """
    at = 0
    expected: int | None = None
    while at < len(data):
        header = parse_block_header(data, at, len(data))
        first = header.first_entry
        if expected is not None and (first < expected or (first > expected and not has_gaps)):
            raise CorruptLog(
                f"the block begins with entry {first}, not with entry {expected}", at + 20
            )
        expected = first
        for entry, begin, size in block_entries(data, at, header.block_bytes, expected):
            yield entry, begin, size
            expected = entry + 1
        at += header.block_bytes


def block_entries(
    data: Buffer, block: int, block_bytes: int, expected: int
) -> Iterator[tuple[int, int, int]]:
    """The entries of the block at byte ``block``, from id ``expected`` on.

    The block's header is not checked.

    Results and errors are as in ``walk_data``.
    """
    at, end = block + BLOCK_HEADER_BYTES, block + block_bytes
    while end - at >= ENTRY_HEAD_BYTES:
        head = EntryHead._make(ENTRY_HEAD.unpack_from(data, at))
        if head.size < 0:
            break
        left = end - at - ENTRY_HEAD_BYTES
        if head.size > left:
            raise CorruptLog(
                f"the entry length is {head.size} bytes, but its block has only {left} more bytes",
                at,
            )
        if head.entry != expected:
            raise CorruptLog(
                f"the block has entry {head.entry} in the place of entry {expected}", at + 4
            )
        yield head.entry, at + ENTRY_HEAD_BYTES, head.size
        at += ENTRY_HEAD_BYTES + head.size
        expected += 1
    if not is_padding(data, at, end):
        raise CorruptLog("no entry and no padding of the block begins at this byte", at)


# ---------------------------------------------------------------- index objects


@dataclass(frozen=True, slots=True)
class IndexObject:
    """The index of a V1 data object: the ledger's encoded metadata, and the blocks' positions."""

    data_bytes: int
    metadata_bytes: bytes
    blocks: tuple[OffloadIndexEntry, ...]

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata.

        Raises:
            CorruptLog: the metadata are broken; or the blocks, the size of the data or the missing
                entries do not match the last entry.
        """
        found = LedgerMetadata.decode(self.metadata_bytes)
        last = -1 if found.last_entry is None else found.last_entry
        missing = () if MISSING not in found.custom else decode_ranges(found.custom[MISSING])
        most = self.data_bytes // ENTRY_HEAD_BYTES + entries_in(missing)
        words, begins = (
            f"the index describes a ledger up to entry {last}",
            [b.first_entry for b in self.blocks],
        )
        if not -1 <= last < most or (last >= 0) != (len(begins) > 0):
            raise CorruptLog(f"{words}, with {len(begins)} blocks and {self.data_bytes} bytes")
        behind = {each.last + 1 for each in missing}
        if missing and (missing[-1].last >= last or not behind.issubset(begins)):
            raise CorruptLog(f"{words}; its blocks contradict its list of missing entries")
        first = missing[0].last + 1 if missing and not missing[0].first else 0
        if begins and (begins[0] != first or begins[-1] > last):
            words += f"; its blocks begin with the entries {begins[0]} to {begins[-1]}"
            raise CorruptLog(words)
        return found

    @property
    def missing(self) -> tuple[EntryRange, ...]:
        """The ranges of entries below the last entry that the data object lacks.

        Errors as ``metadata``.
        """
        text = self.metadata.custom.get(MISSING)
        return () if text is None else decode_ranges(text)

    def block_of(self, entry: int) -> OffloadIndexEntry | None:
        """The only block that can have ``entry``. None for an entry below the first block."""
        n = bisect_right(self.blocks, entry, key=lambda block: block.first_entry)
        return self.blocks[n - 1] if n else None

    def block_end(self, block: OffloadIndexEntry) -> int:
        """The byte of the data object where the block ends."""
        n = bisect_right(self.blocks, block.offset, key=lambda other: other.offset)
        return self.blocks[n].offset if n < len(self.blocks) else self.data_bytes

    @classmethod
    def decode(cls, data: Buffer) -> IndexObject:
        """Decode a whole index object.

        Raises:
            TruncatedLog: fewer bytes than the stated length.
            CorruptLog: another magic, lengths that do not add up, or blocks that do not ascend or
                are outside the data.
            UnsupportedFormat: an index of layout V2.
        """
        if len(data) < INDEX_HEAD.size:
            raise TruncatedLog(f"index of {len(data)} bytes", 0)
        head = IndexHead._make(INDEX_HEAD.unpack_from(data))
        if head.magic == STREAMED_INDEX_MAGIC:
            raise UnsupportedFormat("the index has layout V2, which is not supported", 0)
        if head.magic != INDEX_MAGIC:
            raise CorruptLog(
                f"the file is not the index of an offloaded ledger: its magic is {head.magic:08x}",
                0,
            )
        if head.index_bytes != len(data):
            kind = TruncatedLog if head.index_bytes > len(data) else CorruptLog
            raise kind(
                f"the index states a size of {head.index_bytes} bytes, but the file has "
                f"{len(data)}",
                4,
            )
        if head.data_bytes < 0:
            raise CorruptLog(f"the index states the invalid data size {head.data_bytes}", 8)
        if head.header_bytes != BLOCK_HEADER_BYTES:
            raise CorruptLog(
                f"the index states block headers of {head.header_bytes} bytes, not "
                f"{BLOCK_HEADER_BYTES}",
                16,
            )
        blocks_at = INDEX_HEAD.size + head.metadata_bytes
        has_room = blocks_at + head.blocks * INDEX_ENTRY.size == len(data)
        if head.blocks < 0 or head.metadata_bytes < 0 or not has_room:
            words = f"{head.metadata_bytes} bytes of metadata and {head.blocks} blocks"
            raise CorruptLog(f"the index of {len(data)} bytes has an invalid header: {words}", 24)
        return cls(
            data_bytes=head.data_bytes,
            metadata_bytes=bytes(data[INDEX_HEAD.size : blocks_at]),
            blocks=_blocks(data, blocks_at, head.blocks, head.data_bytes),
        )

    def encode(self) -> bytes:
        """The bytes of the index object."""
        size = INDEX_HEAD.size + len(self.metadata_bytes) + len(self.blocks) * INDEX_ENTRY.size
        if size > _MAX_I32:
            raise ValueError(f"the index would have {size} bytes, more than its format allows")
        counts = len(self.blocks), len(self.metadata_bytes)
        head = INDEX_HEAD.pack(INDEX_MAGIC, size, self.data_bytes, BLOCK_HEADER_BYTES, *counts)
        blocks = b"".join(INDEX_ENTRY.pack(*block) for block in self.blocks)
        return head + self.metadata_bytes + blocks


def _blocks(data: Buffer, at: int, count: int, data_bytes: int) -> tuple[OffloadIndexEntry, ...]:
    """Decode the positions of the blocks, which begin at byte ``at`` of the index.

    The caller has checked that these bytes are present.
    """
    found = bytes(data[at : at + count * INDEX_ENTRY.size])
    blocks = tuple(OffloadIndexEntry._make(values) for values in INDEX_ENTRY.iter_unpack(found))
    for n, block in enumerate(blocks):
        if block.first_entry < 0 or not 0 <= block.offset < data_bytes:
            words = (
                f"the index places the block of entry {block.first_entry} at byte {block.offset}, "
                f"outside the object's {data_bytes} bytes"
            )
            raise CorruptLog(words, at + 20 * n)
    for n, (low, high) in enumerate(pairwise(blocks)):
        if low.first_entry >= high.first_entry or low.offset >= high.offset:
            words = (
                f"the index lists the blocks of the entries {low.first_entry} and "
                f"{high.first_entry} in the wrong order"
            )
            raise CorruptLog(words, at + 20 * n)
    return blocks
