"""The scan cache on workers: check a piece's stored scan, and write a segment's cache file."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from lastwrite.encoding.checksum import crc32c
from lastwrite.engine.profile import step
from lastwrite.engine.scan import EntryBlock, scan
from lastwrite.errors import LogError
from lastwrite.model.columns import ByteArray
from lastwrite.model.log import KeptScan
from lastwrite.model.stores import StoreSettings
from lastwrite.model.work import Block, PieceScan, ScannedEntries, ScanRange, ScanUnit
from lastwrite.scan_cache.files import CacheWriter, identity_of
from lastwrite.scan_cache.format import block_bytes, digest_of, split_block
from lastwrite.scan_cache.objects import CacheObjectWriter, object_name
from lastwrite.scan_cache.objects import identity_of as identity_of_object
from lastwrite.scan_cache.segment import CachedPiece, CachedSegment, SegmentIdentity
from lastwrite.scan_cache.survivors import keep_entries, renumber
from lastwrite.storage.scratch import ScratchReader, read_states


@dataclass(frozen=True, slots=True)
class FileCachedScan:
    """A stored scan in a cache file.

    It replaces the scan of a piece if the file is valid and the segment unchanged.
    """

    path: str  # path of the cache file
    bits: int  # bucket bits of the file; at least as many as the round uses
    identity: SegmentIdentity
    piece: CachedPiece

    @property
    def read_bytes(self) -> int:
        return 16 * self.piece.records

    def scanned(self, unit: ScanUnit, piece: ScanRange, hand_on: object) -> PieceScan | None:
        """The scan result of the piece, without states. None if the piece must be scanned."""
        known = self.piece
        if known.first_offset < unit.first_dirty < known.next_offset:
            return None  # the piece is partly dirty: only a scan finds the first dirty record
        if not self.is_valid(piece.path):
            return None
        result = known.as_scan(unit, piece.number)
        result.blocks = [
            Block(piece.number, self.path, each.position, each.entries, finer=self.bits - unit.bits)
            for each in known.blocks
        ]
        return result

    def is_valid(self, log_path: str) -> bool:
        """Whether the segment is unchanged, and the piece's blocks match their checksums."""
        if identity_of(log_path) != self.identity:
            return False
        try:
            with contextlib.closing(ScratchReader(self.path)) as file:
                for block in self.piece.blocks:
                    data = np.empty(block_bytes(block.entries, self.bits), dtype=np.uint8)
                    file.read_into(data, block.position)
                    if int(crc32c(data, 0, len(data))) != block.crc:
                        return False
        except (OSError, EOFError):  # the file is missing or was truncated
            return False
        return identity_of(log_path) == self.identity


@dataclass(frozen=True, slots=True)
class WriteUnit:
    """A segment for which a task writes a cache file or object.

    ``segment`` is complete except for blocks, path and identity. ``scans`` has, for each piece, the
    scan with its entries, and with the states after the election.
    """

    partition: int
    log_path: str
    segment: CachedSegment
    scans: tuple[PieceScan, ...]
    folder: str = ""  # folder of the object, as returned by ``output_folder``
    secret: bytes = field(default=b"", repr=False)  # secret that encrypts the object
    stores: StoreSettings | None = None

    @property
    def entry_bytes(self) -> int:
        return 16 * sum(max(0, piece.records) for piece in self.segment.pieces)


def write_segment(unit: WriteUnit) -> str:
    """Write a segment's cache file, and return its temporary name.

    Raises:
        LogError, OSError: the file cannot be written, or the surviving records differ from those
        in the new segment.
    """
    with CacheWriter(unit.log_path) as writer:
        pieces = tuple(
            _write_piece(unit, piece, scan, writer)
            for piece, scan in zip(unit.segment.pieces, unit.scans, strict=True)
        )
        writer.finish(replace(unit.segment, pieces=pieces))
        return writer.path


def write_object(unit: WriteUnit, scanned: Mapping[int, ScannedEntries] | None = None) -> KeptScan:
    """Write a segment's cache object.

    ``scanned`` has the entries and states of each piece. None means that they are in scratch files.

    Raises:
        LogError, OSError: as ``write_segment``.
    """
    name = object_name(unit.folder, uuid.uuid4().hex[:12], unit.segment.base_offset)
    with CacheObjectWriter(name, unit.secret, unit.stores) as writer:
        pieces = tuple(
            _write_piece(unit, piece, scan, writer, scanned[scan.piece] if scanned else None)
            for piece, scan in zip(unit.segment.pieces, unit.scans, strict=True)
        )
        return writer.finish(replace(unit.segment, pieces=pieces))


def scan_into_object(unit: ScanUnit, address: str, base_offset: int) -> KeptScan | None:
    """Scan a segment that is copied to an archive, and write its cache object.

    The copy starts at the first piece.

    Returns None if no piece is plain.

    Raises:
        LogError, OSError: the object cannot be written, or the segment cannot be read.
    """
    held: list[tuple[ByteArray, int]] = []
    start, pieces = unit.pieces[0].start, []

    def hold(block: EntryBlock) -> None:
        if block.rows.nbytes + sum(len(data) for data, _ in held) <= unit.limits.slice_bytes:
            parts = block.ends.view(np.uint8), block.rows.reshape(-1).view(np.uint8)
            held.append((np.concatenate(parts), len(block.rows)))

    with CacheObjectWriter(address, unit.secret, unit.limits.stores) as writer:
        for piece, (found, _) in zip(unit.pieces, scan(unit, hold), strict=True):
            known = CachedPiece(piece.start - start, piece.end - start)
            is_held = sum(count for _, count in held) == found.records > 0
            if found.problem is None and found.is_plain and not found.losers and is_held:
                known = replace(
                    known,
                    records=found.records,
                    batches=found.batches,
                    first_offset=found.first_offset,
                    next_offset=found.next_offset,
                    blocks=tuple(writer.append(data, count) for data, count in held),
                )
            pieces.append(known)
            held.clear()
        if all(piece.records < 0 for piece in pieces):
            return None
        identity, digest = identity_of_object(pieces[-1].end), digest_of(unit.secret)
        return writer.finish(
            CachedSegment(address, base_offset, unit.bits, identity, digest, tuple(pieces))
        )


def _write_piece(
    unit: WriteUnit,
    piece: CachedPiece,
    scan: PieceScan,
    writer: CacheWriter | CacheObjectWriter,
    scanned: ScannedEntries | None = None,
) -> CachedPiece:
    if piece.records < 0:
        return piece
    states = ordinals = None
    if piece.records < scan.records:
        states = scanned.states if scanned else read_states(*scan.states_location)
        ordinals = np.empty(scan.records, dtype=np.uint32)
        if renumber(states, ordinals) != piece.records:
            raise LogError(
                "the remaining records differ from the written records", path=unit.log_path
            )
    bits = unit.segment.bits
    blocks = []
    for n, block in enumerate(scan.blocks):
        with step("read entries"):
            data = scanned.blocks[n] if scanned else _read_block(block, bits)
        count = block.count
        if states is not None or block.finer:
            with step("keep entries"):
                data, count = _thinned(data, block, bits, states, ordinals)
        if count:
            with step("write entries"):
                blocks.append(writer.append(data, count))
    if sum(block.entries for block in blocks) != piece.records:
        raise LogError("some remaining records have no cache entry", path=unit.log_path)
    return replace(piece, blocks=tuple(blocks))


def _read_block(block: Block, bits: int) -> ByteArray:
    data = np.empty(block_bytes(block.count, bits + block.finer), dtype=np.uint8)
    with contextlib.closing(ScratchReader(block.path)) as reader:
        reader.read_into(data, block.position)
    return data


def _thinned(
    data: ByteArray, block: Block, bits: int, states: ByteArray | None, ordinals: np.ndarray | None
) -> tuple[ByteArray, int]:
    """A block with only the surviving entries, in ``2**bits`` buckets.

    Returns the new block and its number of entries. Without ``states``, all entries survive.
    """
    ends, rows = split_block(data, bits + block.finer)
    if states is None or ordinals is None:
        coarse = np.ascontiguousarray(ends[(1 << block.finer) - 1 :: 1 << block.finer])
        return np.concatenate((coarse.view(np.uint8), rows.reshape(-1).view(np.uint8))), block.count
    left = np.empty(block_bytes(block.count, bits), dtype=np.uint8)
    new_ends, new_rows = split_block(left, bits)
    count = int(keep_entries(rows, ends, block.finer, states, ordinals, new_rows, new_ends))
    return left[: block_bytes(count, bits)], count
