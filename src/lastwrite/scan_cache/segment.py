"""What is known of one segment from an earlier scan; see ``scan_cache.format``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from lastwrite.model.log import KeptScan
from lastwrite.model.work import PieceScan, ScanUnit

# a file's size, mtime_ns, ctime_ns and inode; all -1: there is none
Stamp: TypeAlias = tuple[int, int, int, int]
NO_FILE: Stamp = (-1, -1, -1, -1)


class FileIdentity(NamedTuple):
    """A segment's files as they are: nobody changes one of them without changing this."""

    log: Stamp
    offset_index: Stamp
    time_index: Stamp

    def is_same_but_linked(self, other: FileIdentity) -> bool:
        """Whether only the inodes' own times differ, as they do once a file was renamed or linked."""
        return all(a[:2] == b[:2] and a[3] == b[3] for a, b in zip(self, other, strict=True))


NOBODY = FileIdentity(NO_FILE, NO_FILE, NO_FILE)


class CachedBlock(NamedTuple):
    """Where a block of entries lies in a cache file; its layout is that of a scratch file
    (``spark.folder_exchange``).
    """

    position: int
    entries: int
    crc: int  # of ends and entries


@dataclass(frozen=True, slots=True)
class CachedPiece:
    """A stretch of the segment, from one batch's begin to another's."""

    start: int
    end: int
    records: int = -1  # below 0: nothing is known of this piece
    batches: int = 0
    first_offset: int = -1
    next_offset: int = -1
    blocks: tuple[CachedBlock, ...] = ()

    def as_scan(self, unit: ScanUnit, number: int) -> PieceScan:
        """The result of a scan of the piece ``number``, but for states and blocks."""
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
    """A cache file, or object: what is known of one segment."""

    path: str
    base_offset: int
    bits: int  # its blocks are sorted by so many
    identity: FileIdentity  # the segment's, when this was known of it
    secret_digest: bytes  # 16 bytes: of what the fingerprints were made under
    pieces: tuple[CachedPiece, ...]  # one behind the other, all of the segment
    kept: KeptScan | None = None  # of an object
