"""The cached scan of one segment; see ``scan_cache.format``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from lastwrite.model.log import KeptScan
from lastwrite.model.work import PieceScan, ScanUnit

# a file's size, mtime_ns, ctime_ns and inode; all -1 if there is none
Stamp: TypeAlias = tuple[int, int, int, int]
NO_FILE: Stamp = (-1, -1, -1, -1)


class SegmentIdentity(NamedTuple):
    """The state of a segment's files: any change of them changes this."""

    log: Stamp
    offset_index: Stamp
    time_index: Stamp

    def is_same_but_linked(self, other: SegmentIdentity) -> bool:
        """Whether only the inodes' own times differ, as after a rename or link."""
        return all(a[:2] == b[:2] and a[3] == b[3] for a, b in zip(self, other, strict=True))


NOBODY = SegmentIdentity(NO_FILE, NO_FILE, NO_FILE)


class CachedBlock(NamedTuple):
    """A block of entries in a cache file; its layout is as in a scratch file.

    See ``spark.folder_exchange``.
    """

    position: int
    entries: int
    crc: int  # of ends and entries


@dataclass(frozen=True, slots=True)
class CachedPiece:
    """A range of the segment, from the start of one batch to the start of another."""

    start: int
    end: int
    records: int = -1  # negative if this piece is not cached
    batches: int = 0
    first_offset: int = -1
    next_offset: int = -1
    blocks: tuple[CachedBlock, ...] = ()

    def as_scan(self, unit: ScanUnit, number: int) -> PieceScan:
        """The result of a scan of the piece ``number``, without states and blocks."""
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
    """The cached scan of one segment, from a cache file or object."""

    path: str
    base_offset: int
    bits: int  # the bits by which its blocks are sorted
    identity: SegmentIdentity  # the segment's, when it was scanned
    secret_digest: bytes  # 16 bytes: digest of the secret of the fingerprints
    pieces: tuple[CachedPiece, ...]  # consecutive; they cover the whole segment
    kept: KeptScan | None = None  # only for an object
