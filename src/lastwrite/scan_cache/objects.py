"""Cache objects of an archive: cache files that are encrypted, with the header at the end.

    blocks, pieces, blocks' rows, header      see ``scan_cache.format``

An object is written once, under a unique name, and the manifest lists it with its segment. The
segment's size and base offset are therefore enough as identity. A user who can read the bucket may
also be able to write keys to a topic. From visible fingerprints, this user could find colliding
keys. Each block is therefore masked by a separate key stream. A block's row has an authentication
tag instead of a checksum. An object that is missing, damaged, or written with another secret is
ignored.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b, shake_128
from typing import Any, Self

import numpy as np

from lastwrite.archive.partition_store import partition_store_at
from lastwrite.engine.scan import EntryBlock
from lastwrite.errors import CorruptLog, LogError
from lastwrite.model.columns import ByteArray
from lastwrite.model.log import KeptScan, Segment
from lastwrite.model.stores import StoreSettings
from lastwrite.model.work import Limits, PieceScan, ScanRange, ScanUnit
from lastwrite.scan_cache import format as layout
from lastwrite.scan_cache.segment import (
    NO_FILE,
    CachedBlock,
    CachedPiece,
    CachedSegment,
    SegmentIdentity,
)
from lastwrite.storage.objects.store import Writer
from lastwrite.storage.reading import SegmentReader, reader_at

_TAIL_BYTES = 16 << 10  # bytes of the first read at the end, enough for most tables and headers
_MOST_TABLE_BYTES = 64 << 20
_MASKED_AT_ONCE = 1 << 20


class _Seal:
    """Masks and authenticates the blocks of one cache object."""

    def __init__(self, secret: bytes, address: str) -> None:
        # the name relative to the partition, which does not change if the archive is copied
        name = address.rpartition("/data/")[2].encode()
        self._mask = blake2b(name, key=_key(secret, b"lw-mask"), digest_size=32).digest()
        self._tag = blake2b(name, key=_key(secret, b"lw-tag"), digest_size=32).digest()

    def mask(self, data: ByteArray, position: int) -> None:
        """Mask or unmask, in place, the bytes of the block at ``position``."""
        for at in range(0, len(data), _MASKED_AT_ONCE):
            part = data[at : at + _MASKED_AT_ONCE]
            place = (position + at).to_bytes(8, "little")
            stream = shake_128(self._mask + place).digest(len(part))
            np.bitwise_xor(part, np.frombuffer(stream, dtype=np.uint8), out=part)

    def tag(self, data: ByteArray, position: int) -> int:
        """The authentication tag of the masked block at ``position``."""
        found = blake2b(position.to_bytes(8, "little"), key=self._tag, digest_size=8)
        found.update(data)
        return int.from_bytes(found.digest(), "little", signed=True)


def _key(secret: bytes, use: bytes) -> bytes:
    return blake2b(secret, digest_size=32, person=use).digest()


def identity_of(log_bytes: int) -> SegmentIdentity:
    """The identity of an archived segment, which consists only of the segment's size."""
    return SegmentIdentity((log_bytes, -1, -1, -1), NO_FILE, NO_FILE)


# ---------------------------------------------------------------------- reading


def read_cached(segment: Segment, secret_digest: bytes) -> CachedSegment | None:
    """The stored scan of the segment. None if there is none, or it is invalid."""
    kept = segment.kept
    if kept is None or kept.size_bytes < layout.HEADER.size:
        return None
    size = kept.size_bytes
    try:
        with reader_at(kept.address, size, kept.etag) as reader:
            tail = _read(reader, max(0, size - _TAIL_BYTES), size)
            header = layout.decode_header(tail[-layout.HEADER.size :], kept.address)
            tables_end = size - layout.HEADER.size
            if not 0 <= header.tables_at <= tables_end <= header.tables_at + _MOST_TABLE_BYTES:
                return None
            missing = size - len(tail) - header.tables_at
            if missing > 0:
                tail = _read(reader, header.tables_at, size - len(tail)) + tail
        tables = tail[len(tail) - (size - header.tables_at) : -layout.HEADER.size]
        found = layout.decode_segment(header, tables, kept.address, first=0)
    except (LogError, OSError):
        return None
    is_of_it = (found.base_offset, found.identity) == (
        segment.base_offset,
        identity_of(segment.size_bytes),
    )
    return found if is_of_it and found.secret_digest == secret_digest else None


def _read(reader: SegmentReader, start: int, end: int) -> bytes:
    data = np.empty(end - start, dtype=np.uint8)
    reader.read_into(data, start)
    return data.tobytes()


@dataclass(frozen=True, slots=True)
class CachedObject:
    """A stored scan in a cache object. It replaces the scan of a piece if the object is valid."""

    kept: KeptScan
    bits: int  # the object has 2**bits buckets, at least as many as the round
    piece: CachedPiece

    @property
    def read_bytes(self) -> int:
        return 16 * self.piece.records

    def scanned(self, unit: ScanUnit, piece: ScanRange, hand_on: Any) -> PieceScan | None:
        """The stored scan result of the piece.

        Its blocks of entries are passed to ``hand_on`` before.

        None means that the piece must be scanned.
        """
        if self.piece.first_offset < unit.first_dirty < self.piece.next_offset:
            return None  # the piece is partly dirty: only a scan finds the first dirty record
        blocks: Iterable[ByteArray] = self._blocks(unit.secret, unit.limits)
        try:
            if self.read_bytes <= unit.limits.slice_bytes:
                blocks = list(blocks)
            else:  # all blocks are verified before the first is passed on
                for _ in blocks:
                    pass
                blocks = self._blocks(unit.secret, unit.limits)
        except (LogError, OSError):
            return None
        finer = self.bits - unit.bits
        for data in blocks:
            ends, rows = layout.split_block(data, self.bits)
            coarse = np.ascontiguousarray(ends[(1 << finer) - 1 :: 1 << finer])
            hand_on(EntryBlock(piece.number, rows, coarse, None, None))
        return self.piece.as_scan(unit, piece.number)

    def _blocks(self, secret: bytes, limits: Limits) -> Iterator[ByteArray]:
        """Read the blocks of the cache object, verify and unmask them.

        Raises:
            CorruptLog: a block differs from what was written. The store may raise other errors.
        """
        known, kept = self.piece.blocks, self.kept
        seal = _Seal(secret, kept.address)
        sizes = [layout.block_bytes(each.entries, self.bits) for each in known]
        if not known:
            return
        end = known[-1].position + sizes[-1]
        with reader_at(
            *(kept.address, kept.size_bytes, kept.etag),
            start=known[0].position,
            end=end,
            limits=limits,
        ) as reader:
            for each, size in zip(known, sizes, strict=True):
                data = np.empty(size, dtype=np.uint8)
                reader.read_into(data, each.position)
                if seal.tag(data, each.position) != each.crc:
                    raise CorruptLog(
                        "the cached block is not the block that was written",
                        each.position,
                        kept.address,
                    )
                seal.mask(data, each.position)
                yield data


# ---------------------------------------------------------------------- writing


class CacheObjectWriter:
    """Writes a cache object at ``address``.

    When used as a context manager, it removes an unfinished object.

    Raises:
        LogError: the object cannot be written, here and in all methods.
    """

    def __init__(self, address: str, secret: bytes, stores: StoreSettings | None) -> None:
        self.path = address
        folder, _, name = address.rpartition("/")
        place = partition_store_at(folder, stores)
        self._seal = _Seal(secret, address)
        self._writer: Writer | None = place.store.writer(place.key(name))
        self._at = 0

    def append(self, block: ByteArray, entries: int) -> CachedBlock:
        """Mask ``block`` in place, and write it to the object.

        ``entries`` is the number of entries in the block.
        """
        self._write(np.zeros(-self._at % layout.ALIGNMENT, dtype=np.uint8))
        position = self._at
        self._seal.mask(block, position)
        self._write(block)
        return CachedBlock(position, entries, self._seal.tag(block, position))

    def finish(self, segment: CachedSegment) -> KeptScan:
        """Write the tables and the header, and complete the cache object."""
        tables = layout.encode_tables(segment.pieces)
        header = layout.encode_header(layout.header_of(segment, self._at, tables))
        self._write(np.frombuffer(tables + header, dtype=np.uint8))
        assert self._writer is not None
        writer, self._writer = self._writer, None
        found = writer.close()
        return KeptScan(self.path, self._at, found.version.etag)

    def _write(self, data: ByteArray) -> None:
        assert self._writer is not None
        if len(data):
            self._writer.write(data)
        self._at += len(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            with contextlib.suppress(LogError, OSError):
                self._writer.abandon()


def object_name(folder: str, attempt: str, base_offset: int) -> str:
    """A unique address for a new cache object. ``attempt`` makes the name unique.

    ``folder`` is a result of ``output_folder``.
    """
    return f"{folder}{attempt}/{base_offset:020d}.kept"
