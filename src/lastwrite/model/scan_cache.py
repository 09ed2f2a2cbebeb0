"""What a round keeps beside a log, so that a later one need not read a segment again; see
``engine.scan_cache.format``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from lastwrite.model.work import Block

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


class KeptBlock(NamedTuple):
    """Where a block of entries lies in a kept file; its layout is that of a scratch file
    (``spark.folder_exchange``).
    """

    position: int
    entries: int
    crc: int  # of ends and entries


@dataclass(frozen=True, slots=True)
class KeptPiece:
    """A stretch of the segment, from one batch's begin to another's."""

    start: int
    end: int
    records: int  # below 0: nothing is kept of this piece
    batches: int
    first_offset: int
    next_offset: int
    blocks: tuple[KeptBlock, ...] = ()


@dataclass(frozen=True, slots=True)
class KeptSegment:
    """A kept file: what is known of one segment."""

    path: str  # of the kept file
    base_offset: int
    bits: int  # its blocks are sorted by so many
    identity: FileIdentity  # the segment's, when this was known of it
    secret_digest: bytes  # 16 bytes: of what the fingerprints were made under
    pieces: tuple[KeptPiece, ...]  # one behind the other, all of the segment


@dataclass(frozen=True, slots=True)
class KeptScan:
    """A piece that need not be scanned, if the kept file holds what it says and the segment is what
    it was.
    """

    path: str  # of the kept file
    bits: int  # its blocks are sorted by so many, no fewer than the round asks
    identity: FileIdentity
    dirty_from: int
    piece: KeptPiece


@dataclass(frozen=True, slots=True)
class KeepPiece:
    """A piece as it will stand in a kept file, and where its entries come from."""

    piece: KeptPiece  # but for its blocks
    blocks: tuple[Block, ...] = ()  # of the scan
    states: tuple[str, int, int] = (
        "",
        0,
        0,
    )  # as election left them: scratch file, position, records scanned


@dataclass(frozen=True, slots=True)
class KeepUnit:
    """One segment whose entries are to be kept: a task writes the file aside."""

    partition: int
    segment_path: str
    size_bytes: int  # of the segment
    base_offset: int
    bits: int
    secret_digest: bytes
    pieces: tuple[KeepPiece, ...]


@dataclass(frozen=True, slots=True)
class Kept:
    """A kept file that waits under a temporary name for its segment's identity; none: it could not
    be made.
    """

    path: str = ""
    problem: str = ""
