"""A stored scan of one segment; see ``scan_cache.format``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from lastwrite.model.log import KeptScan
from lastwrite.model.work import PieceScan, ScanUnit

# size, mtime_ns, ctime_ns and inode of a file; all -1 if there is no file
Stamp: TypeAlias = tuple[int, int, int, int]
NO_FILE: Stamp = (-1, -1, -1, -1)


class SegmentIdentity(NamedTuple):
    """The state of a segment's files, by which a change of a file is detected."""

    log: Stamp
    offset_index: Stamp
    time_index: Stamp

    def is_same_but_linked(self, other: SegmentIdentity) -> bool:
        """Whether only the change times (ctime) differ, as after a rename or link."""
        return all(a[:2] == b[:2] and a[3] == b[3] for a, b in zip(self, other, strict=True))


NOBODY = SegmentIdentity(NO_FILE, NO_FILE, NO_FILE)


class CachedBlock(NamedTuple):
    """A block of entries in a cache file, with the layout of a scratch file.

    See ``spark.folder_exchange``.
    """

    position: int
    entries: int
    crc: int  # CRC-32C of bucket ends and entries; in an object the authentication tag


@dataclass(frozen=True, slots=True)
class CachedPiece:
    """A piece of a stored scan: a range of the segment between two batch borders."""

    start: int
    end: int
    records: int = -1  # number of records; -1 if the piece is not cached
    batches: int = 0
    first_offset: int = -1
    next_offset: int = -1
    blocks: tuple[CachedBlock, ...] = ()

    def as_scan(self, unit: ScanUnit, number: int) -> PieceScan:
        """The scan result of the piece, without states and blocks.

        ``number`` identifies the piece in this round.
        """
        return PieceScan(
            unit.partition,
            number,
            records=self.records,
            batches=self.batches,
            keyed=self.records,
            dirty_from=self.records if self.next_offset <= unit.first_dirty else 0,
            first_offset=self.first_offset,
            next_offset=self.next_offset,
            is_plain=True,
            is_cached=True,
        )


@dataclass(frozen=True, slots=True)
class CachedSegment:
    """A stored scan of one segment, read from a cache file or object."""

    path: str
    base_offset: int
    bits: int  # number of bucket bits by which the blocks are sorted
    identity: SegmentIdentity  # state of the segment's files when it was scanned
    secret_digest: bytes  # 16 bytes that identify the secret of the fingerprints
    pieces: tuple[CachedPiece, ...]  # consecutive pieces that cover the segment
    kept: KeptScan | None = None  # the stored object; None for a cache file
