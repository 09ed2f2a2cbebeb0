"""Store the results of a round's scans, so that a later round reads less of the log.

    round 1   plan ─ scan ─ elect ─ rewrite ─ swap ─ checkpoint ─ WRITE ─ delete ─ retain ─ PLACE

              Every segment is read. WRITE stores the entries of plain pieces in the remaining
              segments, before replaced segments are deleted. PLACE gives the cache files their
              final names, after all segments have theirs.

    round 2   plan ─ OPEN ─ scan …

              OPEN finds the cache files of unchanged segments. Their pieces are not read, and
              the election reads their entries from these files.

A piece is *plain* if all its records are plain: live, with a key, in no transaction, in no batch of
an old format. A round changes such a piece only if later records shadow some of its records. Time
and settings have no effect. A scan of it would therefore return only its entries, its position and
its counts.

A cache file is used only if the segment and its indexes are unchanged (size, both times and inode),
if it was written with the secret of this log, and if its checksums match. Otherwise the piece is
scanned normally. If a cache file cannot be written, the round continues.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import groupby

from lastwrite.encoding.fingerprint import SECRET_WORDS
from lastwrite.engine.context import Context
from lastwrite.engine.partition import RewrittenPartition
from lastwrite.engine.plan import new_secret
from lastwrite.engine.system import Decision
from lastwrite.errors import LogError
from lastwrite.model.log import KeptScan, PartitionLog
from lastwrite.model.policy import Strategy
from lastwrite.model.work import FailedUnit, PieceScan, ScanRange, SegmentOutput
from lastwrite.scan_cache import files, objects
from lastwrite.scan_cache.format import digest_of
from lastwrite.scan_cache.objects import CachedObject
from lastwrite.scan_cache.secret import partition_secret, secret_or_none
from lastwrite.scan_cache.segment import NOBODY, CachedPiece, CachedSegment, SegmentIdentity
from lastwrite.scan_cache.task import FileCachedScan, WriteUnit, write_object, write_segment
from lastwrite.spark.work import Runner

LEAST_SEGMENT_BYTES = 1 << 20  # smaller segments are not cached, because scanning them is cheaper
# A round uses cached scans that have up to 2 bucket bits too few. Their buckets are at most four
# times too large. A segment whose cached scan has fewer bits is scanned again.
_MOST_COARSE_BITS = 2
_AT_ONCE = 16  # requests in parallel, because each mostly waits for the store
# a scan in several blocks is cached only if its entries take at least this many times the bytes of
# the tables of bucket ends
_LEAST_FILLED = 4


@dataclass(slots=True)
class PartitionCache:
    """The stored scans of one partition, and the data for storing new scans after the round."""

    log: PartitionLog
    secret: bytes = field(repr=False)
    is_new: bool  # whether nothing is cached and the secret is new
    bits: int
    # identities of the segments that may be cached, by segment index
    before: dict[int, SegmentIdentity]
    # the cached scans, by segment index
    segments: dict[int, CachedSegment] = field(default_factory=dict)
    is_archived: bool = False  # whether scans are stored as objects that the manifest lists

    def cuts(self, segment: int) -> list[int] | None:
        """The file positions at which the segment must be split into pieces.

        None means that it may be split at any batch.
        """
        found = self.segments.get(segment)
        return None if found is None else [0, *(piece.end for piece in found.pieces)]

    def scan_of(
        self, segment: int, start: int, end_offset: int
    ) -> FileCachedScan | CachedObject | None:
        """The cached scan of the piece that begins at byte ``start``, or None."""
        found = self.segments.get(segment)
        if found is None:
            return None
        piece = next(each for each in found.pieces if each.start == start)
        if piece.records < 0 or piece.next_offset > end_offset:
            return None
        if found.kept is not None:
            return CachedObject(found.kept, found.bits, piece)
        return FileCachedScan(found.path, found.bits, found.identity, piece)


def open_log(log: PartitionLog, end: int, bits: int) -> PartitionCache | None:
    """The cached scans of the segments of ``log`` below offset ``end``.

    None if they are not worth reading.

    ``bits`` is the number of bucket bits that the round would choose without cached scans. The
    round must use the bits and the secret of the result.
    """
    before = {
        n: files.identity_of(segment.path)
        for n, segment in enumerate(log.segments)
        if segment.base_offset < end
        and segment.size_bytes >= LEAST_SEGMENT_BYTES
        and segment.is_indexed
        and not segment.torn_bytes
    }
    if not before:
        return None
    secret = files.read_secret(log.folder, 8 * SECRET_WORDS)
    found = {}
    if secret is not None:
        digest = digest_of(secret)
        for n, identity in before.items():
            listed = log.segments[n]
            segment = files.read_cached(listed.path, identity, digest)
            if identity.log[:2] != (listed.file_bytes, listed.mtime_ns):
                continue  # the segment changed after it was listed, which the commit will report
            if segment is not None and segment.bits >= bits - _MOST_COARSE_BITS:
                found[n] = segment
    if secret is None or not found:
        return PartitionCache(log, new_secret(), True, bits, before)
    bits = min(bits, *(segment.bits for segment in found.values()))
    return PartitionCache(log, secret, False, bits, before, found)


def open_archived(
    log: PartitionLog, end: int, bits: int, secret: bytes, *, is_same: bool
) -> PartitionCache | None:
    """The stored scans of a log, for a round that writes to an archive; see ``open_log``.

    ``is_same`` means that the round reads the log from the same archive.
    """
    before = {
        n: NOBODY
        for n, segment in enumerate(log.segments)
        if segment.base_offset < end and segment.size_bytes >= LEAST_SEGMENT_BYTES
    }
    if not before:
        return None
    digest = digest_of(secret)
    known = [n for n in before if log.segments[n].kept is not None] if is_same else []

    def read(n: int) -> CachedSegment | None:
        return objects.read_cached(log.segments[n], digest)

    # read in parallel, because a request mostly waits for the store
    with ThreadPoolExecutor(_AT_ONCE, "kept scans") as pool:
        found = dict(zip(known, pool.map(read, known), strict=True))
    segments = {
        n: replace(segment, kept=log.segments[n].kept)
        for n, segment in found.items()
        if segment is not None and segment.bits >= bits - _MOST_COARSE_BITS
    }
    bits = min([bits, *(segment.bits for segment in segments.values())])
    return PartitionCache(log, secret, False, bits, before, segments, is_archived=True)


class RoundScanCache:
    """The scan cache of one round; implements ``ScanCache``."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        # open caches, by the partition's number in its wave
        self._opened: dict[int, PartitionCache] = {}
        self._written: dict[int, list[tuple[WriteUnit, str | FailedUnit[WriteUnit]]]] = {}
        self._secrets: dict[str, bytes | None] = {}  # secrets of archives, by the archive's address

    def open(
        self, context: Context, number: int, log: PartitionLog, decision: Decision, bits: int
    ) -> PartitionCache | None:
        """The cached scans of a partition.

        Log directories are cached only with a scratch folder, through which workers read each
        other's entries.
        """
        self._opened.pop(number, None)
        options = context.options
        if not options.keep_scans or options.exact:
            return None
        if decision.policy.strategy is not Strategy.OFFSET:
            return None
        archive = context.system.archive_of(log.folder, options.to)
        if archive is not None:
            secret = self._secret_of(context, archive)
            if secret is None:
                return None
            secret = partition_secret(secret, context.system.name, log.name)
            is_same = options.to is None
            found = open_archived(log, decision.end, bits, secret, is_same=is_same)
        else:
            may_cache = context.is_in_place and context.exchange.scratch
            found = open_log(log, decision.end, bits) if may_cache else None
        if found is not None:
            self._opened[number] = found
        return found

    def _secret_of(self, context: Context, archive: str) -> bytes | None:
        if archive not in self._secrets:
            self._secrets[archive] = secret_or_none(archive, context.progress)
        return self._secrets[archive]

    def store(
        self, context: Context, partitions: Sequence[RewrittenPartition]
    ) -> list[dict[int, KeptScan | None]]:
        """Store the scans of archived partitions, before the commit that lists them."""
        units: list[WriteUnit] = []
        for each in partitions:
            cached = self._opened.get(each.plan.number)
            if cached is not None and cached.is_archived:
                units += self._object_units(context, each, cached)
        logs = {unit.partition for unit in units}
        begun = [each.plan.log for each in partitions if each.plan.number in logs]
        answers: Sequence[KeptScan | FailedUnit[WriteUnit]] = ()
        try:
            if units:
                context.system.begin_writing(begun, context.options.to)
                folders = {
                    each.plan.number: context.system.output_folder(
                        each.plan.log, context.options.to
                    )
                    for each in partitions
                    if each.plan.number in logs
                }
                units = [replace(unit, folder=folders[unit.partition]) for unit in units]
                answers = context.exchange.keep(units, write_object, context.progress)
        except LogError as error:
            context.progress.note(f"no scan was kept: {error}")
        kept: dict[int, dict[int, KeptScan | None]] = {}
        for each in partitions:
            kept[each.plan.number] = self._forgotten(each)
        for unit, answer in zip(units, answers, strict=False):
            if isinstance(answer, FailedUnit):
                context.progress.note(f"a scan was not cached: {answer.error}")
            else:
                kept[unit.partition][unit.segment.base_offset] = answer
        return [kept[each.plan.number] for each in partitions]

    def _forgotten(self, partition: RewrittenPartition) -> dict[int, KeptScan | None]:
        """The stored scans to remove from the manifest: damaged scans, or scans with another
        secret.
        """
        cached = self._opened.get(partition.plan.number)
        if cached is None or not cached.is_archived:
            return {}
        segments = partition.plan.log.segments
        return {
            segments[n].base_offset: None
            for n in cached.before
            if n not in cached.segments and n not in partition.replaced and segments[n].kept
        }

    def write(self, context: Context, partitions: Sequence[RewrittenPartition]) -> None:
        """Write cache files for later rounds, under temporary names."""
        self._written = {}
        units = [unit for each in partitions for unit in self._units(context, each)]
        if not units:
            return
        weights = [unit.entry_bytes for unit in units]
        try:
            answers = self._runner.run("keep", write_segment, units, weights, context.progress)
        except LogError as error:
            context.progress.note(f"no scan was kept: {error}")
            return
        for unit, answer in zip(units, answers, strict=True):
            self._written.setdefault(unit.partition, []).append((unit, answer))

    def install(self, context: Context, partition: RewrittenPartition) -> None:
        """Rename the written cache files to their final names, and delete outdated cache files."""
        number, log = partition.plan.number, partition.plan.log
        cached = self._opened.get(number)
        if cached is None or cached.is_archived:
            problems = _forget(log, partition.replaced)
        else:
            problems = _install(cached, partition.replaced, self._written.get(number, ()))
        for problem in problems:
            context.progress.note(f"{log.name}: a scan was not cached: {problem}")

    def _units(self, context: Context, partition: RewrittenPartition) -> Iterator[WriteUnit]:
        """The units of work for segments with new scans, which no cache file contains yet."""
        plan = partition.plan
        cached = self._opened.get(plan.number)
        if cached is None or cached.is_archived:
            return
        yield from _untouched_units(partition, cached)
        for each in partition.replacements:
            size = sum(part.bytes_written for part in each.parts)
            if size < LEAST_SEGMENT_BYTES or not all(part.rests for part in each.parts):
                continue
            path = context.system.segment_path(plan.log, each.parts[0].base_offset)
            place = path, plan.log.segments[each.places[0]].base_offset
            left = [*_as_left(each.parts, partition.scans)]
            known, scans = tuple(piece for piece, _ in left), tuple(scan for _, scan in left)
            yield from _unit(cached, plan.number, place, known, scans)

    def _object_units(
        self, context: Context, partition: RewrittenPartition, cached: PartitionCache
    ) -> Iterator[WriteUnit]:
        """The units of work that write cache objects to an archive.

        In an archive, each part of a rewritten segment is a separate segment.
        """
        units = [*_untouched_units(partition, cached)]
        for part in (part for each in partition.replacements for part in each.parts):
            if part.bytes_written < LEAST_SEGMENT_BYTES or not part.rests:
                continue
            left = [*_as_left((part,), partition.scans)]
            known, scans = tuple(piece for piece, _ in left), tuple(scan for _, scan in left)
            place = part.log_path, part.base_offset
            units += _unit(cached, partition.plan.number, place, known, scans)
        for unit in units:
            identity = objects.identity_of(unit.segment.pieces[-1].end)
            yield replace(
                unit,
                segment=replace(unit.segment, identity=identity),
                secret=cached.secret,
                stores=context.limits.stores,
            )


def _untouched_units(partition: RewrittenPartition, cached: PartitionCache) -> Iterator[WriteUnit]:
    """The units of work for unchanged segments with newly scanned plain pieces."""
    plan = partition.plan
    by_segment = groupby(
        zip(plan.pieces, partition.scans, strict=True), key=lambda pair: pair[0].segment
    )
    for n, pairs in by_segment:
        pieces, scans = zip(*pairs, strict=True)
        if n not in cached.before or n in partition.replaced:
            continue
        if any(scan.is_plain and not scan.is_cached for scan in scans):
            segment = plan.log.segments[n]
            known = tuple(map(_as_scanned, pieces, scans))
            place = segment.path, segment.base_offset
            yield from _unit(cached, plan.number, place, known, scans)


def _as_scanned(piece: ScanRange, scan: PieceScan) -> CachedPiece:
    if not scan.is_plain or scan.losers:
        return CachedPiece(piece.start, piece.end)
    return CachedPiece(
        piece.start, piece.end, scan.records, scan.batches, scan.first_offset, scan.next_offset
    )


def _as_left(
    parts: Sequence[SegmentOutput], scans: Sequence[PieceScan]
) -> Iterator[tuple[CachedPiece, PieceScan]]:
    begin = 0
    for part in parts:
        for left in part.rests:
            if left.end == left.start:
                continue
            piece = CachedPiece(begin + left.start, begin + left.end)
            if left.is_plain and left.records:
                piece = CachedPiece(
                    piece.start,
                    piece.end,
                    left.records,
                    left.batches,
                    left.first_offset,
                    left.next_offset,
                )
            yield piece, scans[left.piece]
        begin += part.bytes_written


def _unit(
    cached: PartitionCache,
    partition: int,
    place: tuple[str, int],
    pieces: tuple[CachedPiece, ...],
    scans: tuple[PieceScan, ...],
) -> Iterator[WriteUnit]:
    """Yield the unit of work for one segment's cache file.

    Yields none if there are no scans to cache, or if scanning is cheaper than caching.

    ``place`` is the segment's path and base offset.
    """
    path, base_offset = place
    known = [scan for piece, scan in zip(pieces, scans, strict=True) if piece.records >= 0]
    records = sum(max(0, piece.records) for piece in pieces)
    blocks = sum(len(scan.blocks) for scan in known)
    if records and (blocks == 1 or 16 * records >= _LEAST_FILLED * (blocks * 4 << cached.bits)):
        digest = digest_of(cached.secret)
        segment = CachedSegment("", base_offset, cached.bits, NOBODY, digest, pieces)
        yield WriteUnit(partition, path, segment, scans)


def _install(
    cached: PartitionCache,
    rewritten: Collection[int],
    written: Sequence[tuple[WriteUnit, str | FailedUnit[WriteUnit]]],
) -> Iterator[str]:
    """Give the ``written`` files the names of their segments, and delete outdated files.

    ``rewritten`` has the indexes of the segments that the round replaced. Yields error messages,
    which do not fail the round.
    """
    segments = cached.log.segments
    old = {segments[n].base_offset: n for n in cached.before if n not in rewritten}
    # The swap hard-links the untouched segments after the first replaced one, which changes their
    # change times. The change times of earlier segments stay the same.
    first = min((segments[n].base_offset for n in rewritten), default=None)
    current: set[int] = set()

    def is_as_before(n: int, now: SegmentIdentity) -> bool:
        linked = first is not None and segments[n].base_offset > first
        return now == cached.before[n] or (linked and now.is_same_but_linked(cached.before[n]))

    try:
        if cached.is_new and any(isinstance(answer, str) for _, answer in written):
            files.write_secret(cached.log.folder, cached.secret)
        for unit, answer in written:
            if isinstance(answer, FailedUnit):
                yield str(answer.error)
                continue
            base_offset = unit.segment.base_offset
            now = files.identity_of(unit.log_path)
            n = old.get(base_offset)
            is_whole = now.log[0] == unit.segment.pieces[-1].end
            if is_whole and (n is None or is_as_before(n, now)):
                files.install(answer, unit.log_path, now)
                current.add(base_offset)
        for n, segment in cached.segments.items():
            now = files.identity_of(segments[n].path)
            if n in rewritten or segment.base_offset in current or not is_as_before(n, now):
                continue
            if now != segment.identity:
                files.install(segment.path, segments[n].path, now)
            current.add(segment.base_offset)
    except (LogError, OSError) as error:
        yield str(error)
    yield from _sweep(cached.log, current, is_all=True)


def _forget(log: PartitionLog, rewritten: Collection[int]) -> Iterator[str]:
    """Delete the cache files of deleted and ``rewritten`` segments after a round without cache."""
    if not log.cached:
        return
    removed = {
        segment.base_offset
        for n, segment in enumerate(log.segments)
        if n in rewritten or not os.path.exists(segment.path)
    }
    bases = {int(name[:20]) for name in log.cached}
    lost = bases - {segment.base_offset for segment in log.segments}
    yield from _sweep(log, removed | lost)


def _sweep(log: PartitionLog, bases: Collection[int], *, is_all: bool = False) -> Iterator[str]:
    try:
        files.sweep(log.folder, bases, is_all=is_all)
    except (LogError, OSError) as error:
        yield str(error)
