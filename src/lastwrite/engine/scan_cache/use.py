"""What a round keeps beside the log, so that a later one need not read all of it again.

    round 1   scan ─ elect ─ rewrite ─ commit ─ keep       every segment is read; of the quiet
                                                           pieces of those that
                                                           the round leaves, entries are kept
    round 2   plan finds what is kept of segments that     a kept piece is not read: its block is
                                                           elected where it lies
              are what they were

A piece is *quiet* whose records are all plain: live, with a key, in no transaction, in no batch of
an old format. What becomes of it depends on nothing but whether later records shadow its own: not
on the clock, not on settings. So its entries, its place and its counts are all that a scan could
tell of it.

Nothing kept is believed but of the very file that it was taken from (size, both times, inode, of
its indexes too), under the secret of this log, and with its checksums; a piece that fails is
scanned as if nothing were kept. What could not be kept is no failure of the round.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import starmap, zip_longest

import numpy as np

from lastwrite.encoding.fingerprint import SECRET_WORDS
from lastwrite.engine.profile import step
from lastwrite.engine.rules.survivors import keep_entries, renumber
from lastwrite.engine.scan_cache import files as store
from lastwrite.engine.scan_cache.format import block_bytes, digest_of
from lastwrite.errors import LogError
from lastwrite.model.columns import ByteArray
from lastwrite.model.log import PartitionLog
from lastwrite.model.scan_cache import (
    FileIdentity,
    KeepPiece,
    KeepUnit,
    Kept,
    KeptPiece,
    KeptScan,
    KeptSegment,
)
from lastwrite.model.work import Block, Piece, PieceScan, ScanUnit, SegmentOutput
from lastwrite.storage.scratch import ScratchReader, read_states

_LEAST_SEGMENT_BYTES = 1 << 20  # reading it costs less than a file beside it
# buckets may be four times as large as they should be, before all is scanned anew
_MOST_COARSE_BITS = 2
_LEAST_FILLED = 4  # entries are to take so many times the room of their buckets' ends


@dataclass(slots=True)
class KeptLog:
    """What is kept of one partition when a round begins, and what of it may be when it ends."""

    log: PartitionLog
    secret: bytes
    is_new: bool  # nothing is kept: the secret was drawn for this round
    bits: int
    # of the segments, by their place, of which something may be kept
    before: dict[int, FileIdentity]
    segments: dict[int, KeptSegment] = field(default_factory=dict)  # of which something is

    def cuts(self, segment: int) -> list[int] | None:
        """Where the segment is to be cut; None: anywhere."""
        found = self.segments.get(segment)
        return None if found is None else [0, *(piece.end for piece in found.pieces)]

    def scans(self, pieces: Sequence[Piece], elect_from: int) -> tuple[KeptScan | None, ...]:
        """What stands in for the scan of each piece."""
        return tuple(self._scan(piece, elect_from) for piece in pieces)

    def _scan(self, piece: Piece, elect_from: int) -> KeptScan | None:
        segment = self.segments.get(piece.segment)
        if segment is None or not piece.keyed:
            return None
        kept = next(
            (
                kept
                for kept in segment.pieces
                if kept.start == piece.start and kept.end == piece.end
            ),
            None,
        )
        if kept is None or kept.records < 0 or kept.next_offset > piece.end_offset:
            return None
        if kept.next_offset <= elect_from:
            dirty_from = kept.records
        elif kept.first_offset >= elect_from:
            dirty_from = 0
        else:
            return None
        return KeptScan(segment.path, segment.bits, segment.identity, dirty_from, kept)


def begin(log: PartitionLog, end: int, bits: int, new_secret: bytes) -> KeptLog | None:
    """What is kept of the segments of ``log`` below ``end``; None where it is not worth while.

    ``bits``: how many the round would choose; it must take those of the result. ``new_secret`` is
    taken where nothing is kept that could be used.
    """
    before = {
        n: store.identity_of(segment.path)
        for n, segment in enumerate(log.segments)
        if segment.base_offset < end
        and segment.size_bytes >= _LEAST_SEGMENT_BYTES
        and segment.is_indexed
        and not segment.torn_bytes
    }
    if not before:
        return None
    secret = store.read_secret(log.folder, 8 * SECRET_WORDS)
    found = {}
    if secret is not None:
        digest = digest_of(secret)
        for n, identity in before.items():
            listed = log.segments[n]
            segment = store.read_kept(listed.path, identity, digest)
            if identity.log[:2] != (listed.file_bytes, listed.mtime_ns):
                continue  # it changed since the log was listed: the commit will say so
            if segment is not None and segment.bits >= bits - _MOST_COARSE_BITS:
                found[n] = segment
    if secret is None or not found:
        return KeptLog(log, new_secret, True, bits, before)
    bits = min(bits, *(segment.bits for segment in found.values()))
    return KeptLog(log, secret, False, bits, before, found)


def stand_ins(
    kept: KeptLog | None, pieces: Sequence[Piece], elect_from: int
) -> tuple[KeptScan | None, ...]:
    """By piece, what stands in for its scan; None: nothing does."""
    return (None,) * len(pieces) if kept is None else kept.scans(pieces, elect_from)


def unit_weight(unit: ScanUnit) -> int:
    """About how many bytes a scan of the unit goes over."""
    return sum(starmap(scan_weight, zip_longest(unit.pieces, unit.kept)))


def scan_weight(piece: Piece, kept: KeptScan | None) -> int:
    """About how many bytes a scan of the piece goes over."""
    return piece.bytes if kept is None else 16 * kept.piece.records


# ---------------------------------------------------------------------- in a worker


def kept_scans(unit: ScanUnit) -> list[PieceScan]:
    """The results of those of the unit's pieces that need not be scanned: all but their states,
    which are all 0.
    """
    results = []
    for piece, scan in zip(unit.pieces, unit.kept, strict=False):
        if scan is None or not store.is_true(scan, piece.path):
            continue
        kept = scan.piece
        results.append(
            PieceScan(
                unit.partition,
                piece.number,
                records=kept.records,
                batches=kept.batches,
                keyed=kept.records,
                dirty_from=scan.dirty_from,
                first_offset=kept.first_offset,
                next_offset=kept.next_offset,
                blocks=[
                    Block(
                        piece.number,
                        scan.path,
                        block.position,
                        block.entries,
                        finer=scan.bits - unit.bits,
                    )
                    for block in kept.blocks
                ],
                is_quiet=True,
                is_kept=True,
            )
        )
    return results


def keep(unit: KeepUnit) -> Kept:
    """Write one segment's kept file aside."""
    try:
        with store.KeptWriter(unit.segment_path) as writer:
            pieces = [_keep_piece(unit, each, writer) for each in unit.pieces]
            writer.finish(
                KeptSegment(
                    writer.path,
                    unit.base_offset,
                    unit.bits,
                    store.NOBODY,
                    unit.secret_digest,
                    tuple(pieces),
                )
            )
            return Kept(writer.path)
    except (LogError, OSError) as error:
        return Kept(problem=str(error))


def _keep_piece(unit: KeepUnit, wanted: KeepPiece, writer: store.KeptWriter) -> KeptPiece:
    piece = wanted.piece
    if piece.records < 0:
        return piece
    scanned = wanted.states[2]
    states = ordinals = None
    if piece.records < scanned:
        states, ordinals = read_states(*wanted.states), np.empty(scanned, dtype=np.uint32)
        if renumber(states, ordinals) != piece.records:
            raise LogError("the survivors are not those that were written", path=unit.segment_path)
    blocks = []
    for block in wanted.blocks:
        with step("read entries"):
            data = _read_block(block, unit.bits)
        count = block.count
        if states is not None or block.finer:
            with step("keep entries"):
                data, count = _thinned(data, block, unit.bits, states, ordinals)
        if count:
            with step("write entries"):
                blocks.append(writer.append(data, count))
    if sum(block.entries for block in blocks) != piece.records:
        raise LogError("not every survivor has an entry", path=unit.segment_path)
    return replace(piece, blocks=tuple(blocks))


def _read_block(block: Block, bits: int) -> ByteArray:
    data = np.empty(block_bytes(block.count, bits + block.finer), dtype=np.uint8)
    reader = ScratchReader(block.path)
    try:
        reader.read_into(data, block.position)
    finally:
        reader.close()
    return data


def _thinned(
    data: ByteArray, block: Block, bits: int, states: ByteArray | None, ordinals: np.ndarray | None
) -> tuple[ByteArray, int]:
    """The block of the entries that stay (without ``states`` all), by ``2**bits`` buckets, and how
    many they are.
    """
    ends, rows = _split(data, bits + block.finer)
    if states is None or ordinals is None:
        new_ends = np.ascontiguousarray(ends[(1 << block.finer) - 1 :: 1 << block.finer])
        return np.concatenate(
            (new_ends.view(np.uint8), rows.reshape(-1).view(np.uint8))
        ), block.count
    left = np.empty(block_bytes(block.count, bits), dtype=np.uint8)
    new_ends, new_rows = _split(left, bits)
    count = int(keep_entries(rows, ends, block.finer, states, ordinals, new_rows, new_ends))
    return left[: block_bytes(count, bits)], count


def _split(data: ByteArray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """A block's ends and rows, where they lie."""
    return data[: 4 << bits].view(np.uint32), data[4 << bits :].view(np.uint64).reshape(-1, 2)


# ---------------------------------------------------------------------- behind the swap


@dataclass(frozen=True, slots=True)
class NewSegment:
    """A segment that the round made, of which something may be kept."""

    path: str
    base_offset: int
    parts: Sequence[SegmentOutput]


def units_of(
    partition: int,
    kept: KeptLog,
    pieces: Sequence[Piece],
    scans: Sequence[PieceScan],
    rewritten: set[int],
    made: Sequence[NewSegment],
) -> Iterator[KeepUnit]:
    """The segments, as the round leaves them, whose kept files are to be written.

    ``rewritten``: the places of the segments that ``made`` replaces. One that was left alone, and
    of which no more can be kept than there is, needs none.
    """
    by_segment: dict[int, list[KeepPiece]] = {}
    is_news: set[int] = set()
    for piece, scan in zip(pieces, scans, strict=True):
        if piece.segment not in kept.before or piece.segment in rewritten:
            continue
        by_segment.setdefault(piece.segment, []).append(_as_scanned(piece, scan))
        if scan.is_quiet and not scan.is_kept:
            is_news.add(piece.segment)
    for n in sorted(is_news):
        segment = kept.log.segments[n]
        yield from _unit(partition, kept, segment.path, segment.base_offset, by_segment[n])
    for new in made:
        size = sum(part.bytes_written for part in new.parts)
        if size >= _LEAST_SEGMENT_BYTES and all(part.left for part in new.parts):
            yield from _unit(
                partition, kept, new.path, new.base_offset, list(_as_left(new.parts, scans))
            )


def _as_scanned(piece: Piece, scan: PieceScan) -> KeepPiece:
    if not scan.is_quiet or scan.losers:
        return KeepPiece(KeptPiece(piece.start, piece.end, -1, 0, -1, -1))
    return KeepPiece(
        KeptPiece(
            piece.start, piece.end, scan.records, scan.batches, scan.first_offset, scan.next_offset
        ),
        tuple(scan.blocks),
        scan.place_of_states,
    )


def _as_left(parts: Sequence[SegmentOutput], scans: Sequence[PieceScan]) -> Iterator[KeepPiece]:
    begin = 0
    for part in parts:
        for left in part.left:
            if left.end == left.start:
                continue
            scan = scans[left.piece]
            start, end = begin + left.start, begin + left.end
            if left.is_quiet and left.records:
                yield KeepPiece(
                    KeptPiece(
                        start, end, left.records, left.batches, left.first_offset, left.next_offset
                    ),
                    tuple(scan.blocks),
                    scan.place_of_states,
                )
            else:
                yield KeepPiece(KeptPiece(start, end, -1, 0, -1, -1))
        begin += part.bytes_written


def _unit(
    partition: int, kept: KeptLog, path: str, base: int, pieces: Sequence[KeepPiece]
) -> Iterator[KeepUnit]:
    """A unit, unless there is nothing to keep, or so little a block that the next round should
    rather scan it.
    """
    records = sum(each.piece.records for each in pieces if each.blocks)
    blocks = sum(len(each.blocks) for each in pieces)
    if records and (blocks == 1 or 16 * records >= _LEAST_FILLED * (blocks * 4 << kept.bits)):
        yield KeepUnit(
            partition=partition,
            segment_path=path,
            size_bytes=pieces[-1].piece.end,
            base_offset=base,
            bits=kept.bits,
            secret_digest=digest_of(kept.secret),
            pieces=tuple(pieces),
        )


def finish(
    kept: KeptLog, rewritten: Collection[int], written: Sequence[tuple[KeepUnit, Kept]]
) -> Iterator[str]:
    """Give the files that were ``written`` their places, once the segments have theirs for good;
    sweep what is stale.

    ``rewritten``: the places of the segments that the round replaced. Yields what went wrong, in
    words: the round is none the worse.
    """
    segments = kept.log.segments
    old = {segments[n].base_offset: n for n in kept.before if n not in rewritten}
    # The swap links untouched segments between those that it replaces; the others keep even their
    # inodes' times.
    first = min((segments[n].base_offset for n in rewritten), default=None)
    current: set[int] = set()

    def is_as_before(n: int, now: FileIdentity) -> bool:
        linked = first is not None and segments[n].base_offset > first
        return now == kept.before[n] or (linked and now.is_same_but_linked(kept.before[n]))

    try:
        if kept.is_new and any(done.path for _, done in written):
            store.write_secret(kept.log.folder, kept.secret)
        for unit, done in written:
            if done.problem:
                yield done.problem
                continue
            now = store.identity_of(unit.segment_path)
            n = old.get(unit.base_offset)
            if now.log[0] == unit.size_bytes and (n is None or is_as_before(n, now)):
                store.put_in_place(done.path, unit.segment_path, now)
                current.add(unit.base_offset)
        for n, segment in kept.segments.items():
            now = store.identity_of(segments[n].path)
            if n in rewritten or segment.base_offset in current or not is_as_before(n, now):
                continue
            if now != segment.identity:
                store.put_in_place(segment.path, segments[n].path, now)
            current.add(segment.base_offset)
    except (LogError, OSError) as error:
        yield str(error)
    try:
        store.sweep(kept.log.folder, current, is_all=True)
    except (LogError, OSError) as error:
        yield str(error)


def forget(log: PartitionLog, rewritten: Collection[int]) -> Iterator[str]:
    """After a round that keeps nothing: remove what is kept of segments that are gone, of
    ``rewritten`` ones too.
    """
    if not log.kept:
        return
    gone = {
        segment.base_offset
        for n, segment in enumerate(log.segments)
        if n in rewritten or not os.path.exists(segment.path)
    }
    lost = {int(name[:20]) for name in log.kept} - {segment.base_offset for segment in log.segments}
    try:
        store.sweep(log.folder, gone | lost)
    except (LogError, OSError) as error:
        yield str(error)
