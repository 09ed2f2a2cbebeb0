"""An index of the position of each key's last write, by key fingerprint, in bounded memory.

A record's position is its segment, the byte of its batch, and its *order*, a number that ascends
within the segment. Blocks of positions are added in any order, and divided into buckets by
fingerprint. Beyond a memory limit such *runs* are written to a scratch folder, with only the last
write of each key and partition. At the end the runs are merged, one bucket at a time. The result is
sorted by fingerprint, so a lookup takes about three probes.

    a=1@0 b=2@1   a=3@2   delete b@3   ──►   a: segment 0, batch at byte 68, order 2
                                             b: a delete, order 3

If a key was written to several partitions, the last write in each partition stays in the index, and
one of them *wins*. Deletes are treated alike. The index can therefore be updated: later positions
are stored in a second, small index, with all entries of their keys. If it exceeds an eighth of the
first, a new index must be built.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from lastwrite.model.columns import PLACE_TYPES, Int64Array, Places
from lastwrite.rows import place_kernels
from lastwrite.storage.run_folder import make_folder, remove_folder
from lastwrite.storage.scratch import ScratchMap, ScratchReader, ScratchWriter

PLACE_BYTES = 40
_BUCKETS = 256  # a bucket for each first byte of a fingerprint
_ROWS_AT_ONCE = 1 << 18
_STRETCH_BITS = 25  # log2 of 32 MiB, the ranges of a segment by which positions are sorted
_FEW = 1 << 16  # number of positions up to which all buckets are sorted together


class SegmentPartitions(NamedTuple):
    """The partition of each segment, and the segment's rank in it, by segment number.

    Within a partition, the write in the segment of the higher rank is later. Within a segment, the
    write of the larger order is later. Between partitions the later time decides, and at equal
    times the larger partition.
    """

    partitions: Int64Array
    ranks: Int64Array

    @classmethod
    def of(cls, partitions: Sequence[int], ranks: Sequence[int] | None = None) -> SegmentPartitions:
        """Build from the segments' partitions. By default a segment's rank is its number."""
        given = range(len(partitions)) if ranks is None else ranks
        return cls(np.array(partitions, np.int64), np.array(given, np.int64))


class SegmentSlice(NamedTuple):
    """A range of bytes in a segment; ``end`` is exclusive."""

    segment: int
    start: int
    end: int


class RecordPointer(NamedTuple):
    """The position of one last write: segment number, byte of the batch, and order."""

    segment: int
    position: int
    order: int


class _SortedPlaces:
    """Positions sorted by key fingerprint, and whether each is its key's last write."""

    def __init__(self, places: Places, sources: SegmentPartitions) -> None:
        self.places = places
        self.wins = np.ones(places.rows, dtype=np.bool_)
        self.live = int(  # number of keys that are not deleted
            place_kernels.flush(
                places.lanes,
                places.other_lanes,
                places.segments,
                places.positions,
                places.times_ms,
                sources.partitions,
                self.wins,
            )
        )

    def first(self, lane: int, other_lane: int) -> int:
        """The first row with a fingerprint, or -1 if there is none."""
        places = self.places
        return int(
            place_kernels.find(
                places.lanes, places.other_lanes, np.uint64(lane), np.uint32(other_lane)
            )
        )

    def winner(self, row: int) -> RecordPointer | None:
        """The position of a key's last write. None if the last write is a delete.

        ``row`` is the key's first row.
        """
        places = self.places
        other = places.other_lanes[row]
        while places.other_lanes[row] != other or not self.wins[row]:
            row += 1
        position = int(places.positions[row])
        if position < 0:
            return None
        return RecordPointer(int(places.segments[row]), position, int(places.orders[row]))

    def rows_of(self, asked: Places) -> Int64Array:
        """The rows with a fingerprint in ``asked``, each once. ``asked`` must be sorted."""
        given = self.places.lanes, self.places.other_lanes, asked.lanes, asked.other_lanes
        rows = np.empty(0, dtype=np.int64)
        count = int(place_kernels.rows_of(*given, rows))
        rows = np.empty(count, dtype=np.int64)
        place_kernels.rows_of(*given, rows)
        return rows

    def in_segment(self, segment: int, has_deletes: bool) -> Places:
        """The last writes that are in this segment."""
        rows = np.flatnonzero(self.places.segments == segment)
        wins = self.wins[rows]
        if not has_deletes:
            wins &= self.places.positions[rows] >= 0
        return self.places.take(rows[wins])


class PlaceIndex:
    """An index of the positions of last writes. ``close`` removes its scratch folder, if any."""

    def __init__(self, places: Places, sources: SegmentPartitions, folder: Path | None) -> None:
        self._sources = sources
        self._rest = _SortedPlaces(places, sources)
        self._recent = _SortedPlaces(Places.room(0), sources)  # index of positions added later
        self._folder = folder
        self._seen: tuple[tuple[int, bool], Places] = (-1, False), Places.room(0)

    def __len__(self) -> int:
        return self._rest.live + self._recent.live

    @property
    def has_moved_keys(self) -> bool:
        """Whether a key has a last write, or a delete, in several partitions."""
        return not all(part.wins.all() for part in self._parts)

    @property
    def _parts(self) -> tuple[_SortedPlaces, _SortedPlaces]:
        return self._rest, self._recent

    def find(self, lane: int, other_lane: int) -> RecordPointer | None:
        """The position of a key's last write. None if the key is unknown or deleted."""
        for part in (self._recent, self._rest):
            row = part.first(lane, other_lane)
            if row >= 0:
                return part.winner(row)
        return None

    def in_segment(self, segment: int, *, has_deletes: bool = False) -> Places:
        """The last writes in this segment, sorted by order, with deletes if requested."""
        found = _joined([part.in_segment(segment, has_deletes) for part in self._parts])
        return found.take(np.argsort(found.orders))

    def orders_in(self, stretch: SegmentSlice, *, has_deletes: bool) -> Int64Array:
        """The orders (numbers in the segment) of the last writes in a byte range, ascending."""
        asked = stretch.segment, has_deletes
        if self._seen[0] != asked:
            self._seen = asked, self.in_segment(stretch.segment, has_deletes=has_deletes)
        places = self._seen[1]
        positions = np.where(places.positions < 0, ~places.positions, places.positions)
        first, end = np.searchsorted(positions, [stretch.start, stretch.end])
        return places.orders[first:end]

    def last_deletes(self) -> dict[int, int]:
        """The latest timestamp, in ms, of a delete that is its key's last write, by partition.

        Partitions without such a delete are left out.
        """
        found: dict[int, int] = {}
        for block in self.blocks():
            _note_deletes(block, self._sources, found)
        return found

    def unknown(self, asked: Places, sources: SegmentPartitions) -> npt.NDArray[np.int64]:
        """The rows of ``asked`` whose key has no entry for the same partition in the index."""
        is_known = np.zeros(asked.rows, dtype=np.bool_)
        for part in self._parts:
            places = part.places
            place_kernels.mark_known(
                places.lanes,
                places.other_lanes,
                places.segments,
                asked.lanes,
                asked.other_lanes,
                asked.segments,
                sources.partitions,
                is_known,
            )
        return np.flatnonzero(~is_known)

    def blocks(self) -> Iterator[Places]:
        """Yield all positions in the index, block by block."""
        for part in self._parts:
            for start in range(0, part.places.rows, _ROWS_AT_ONCE):
                yield part.places.take(slice(start, start + _ROWS_AT_ONCE))

    def take_in(self, later: Places, sources: SegmentPartitions) -> bool:
        """Add positions of later records.

        Returns False, without adding them, if there are too many. A new index must then be built.
        """
        later = _reduced(later, sources)
        if self._recent.places.rows + later.rows > max(_FEW, self._rest.places.rows // 8):
            return False
        rest = self._rest
        rows = rest.rows_of(later)
        fresh = rows[rest.wins[rows]]  # rows of keys that were not in ``_recent`` before
        rest.live -= int(np.count_nonzero(rest.places.positions[fresh] >= 0))
        rest.wins[rows] = False
        known = [self._recent.places, later, rest.places.take(rows)]
        self._recent = _SortedPlaces(_reduced(_joined(known), sources), sources)
        self._sources, self._seen = sources, ((-1, False), Places.room(0))
        return True

    def close(self) -> None:
        """Remove the index's files. The index must not be used afterwards."""
        folder, self._folder = self._folder, None
        if folder is not None:
            remove_folder(folder)


class _SliceOrder(NamedTuple):
    """A block of record orders and byte positions, sorted by the 32 MiB ranges of segments."""

    places: tuple[Int64Array, Int64Array] | int  # orders and positions, or their byte in the file
    names: Int64Array  # numbers of the 32 MiB ranges in which the block has rows
    bounds: Int64Array  # first row of each 32 MiB range, and the end of the last range


class PlacesInOrder:
    """The positions of last writes in the order of their segments.

    This index supports iteration, but no lookups by key. ``close`` removes its scratch folder, if
    there is one.

    Each block has a range of fingerprints. Its rows are sorted by *stretch*, a 32 MiB range of a
    segment: ``segment << 32 | position / 32 MiB``. The rows of a range of bytes are therefore found
    without reading all rows.
    """

    def __init__(self, sources: SegmentPartitions, folder: Path | None) -> None:
        self._sources, self._folder = sources, folder
        self._writer = None if folder is None else ScratchWriter(str(folder), "order")
        self._reader: ScratchReader | None = None
        self._blocks: list[_SliceOrder] = []
        self._live = 0
        self._deletes: dict[int, int] = {}
        self.has_moved_keys = False

    def __len__(self) -> int:
        return self._live

    def append(self, some: Places) -> None:
        """Add all positions of a range of fingerprints, sorted by fingerprint."""
        found = _SortedPlaces(some, self._sources)
        self._live += found.live
        _note_deletes(some, self._sources, self._deletes)
        if not found.wins.all():
            self.has_moved_keys = True
            some = some.take(np.flatnonzero(found.wins))
        positions = some.positions
        stretches = np.where(positions < 0, ~positions, positions) >> _STRETCH_BITS
        stretches |= some.segments.astype(np.int64) << 32
        order = np.argsort(stretches)
        stretches = stretches[order]
        starts = np.flatnonzero(np.diff(stretches, prepend=-1))
        names, bounds = stretches[starts], np.append(starts, len(order))
        columns = some.orders[order], positions[order]
        places: tuple[Int64Array, Int64Array] | int = columns
        if self._writer is not None:
            path, places = self._writer.append(*columns)
            self._reader = self._reader or ScratchReader(path)
        self._blocks.append(_SliceOrder(places, names, bounds))

    def orders_in(self, stretch: SegmentSlice, *, has_deletes: bool) -> Int64Array:
        """The orders of last writes in a range of bytes; see ``PlaceIndex.orders_in``."""
        segment = stretch.segment << 32
        wanted = [
            segment | stretch.start >> _STRETCH_BITS,
            (segment | (stretch.end - 1) >> _STRETCH_BITS) + 1,
        ]
        there = [
            (block, *block.bounds[np.searchsorted(block.names, wanted)]) for block in self._blocks
        ]
        found = np.empty(int(sum(end - first for _, first, end in there)), np.int64)
        filled = 0
        for block, first, end in there:
            if first < end:
                places = self._read(block, int(first), int(end))
                filled = place_kernels.pick(
                    *places, stretch.start, stretch.end, has_deletes, found, filled
                )
        found = found[:filled]
        found.sort()
        return found

    def _read(self, block: _SliceOrder, first: int, end: int) -> tuple[Int64Array, Int64Array]:
        if not isinstance(block.places, int):
            return block.places[0][first:end], block.places[1][first:end]
        assert self._reader is not None
        columns = np.empty((2, end - first), np.int64)
        for n in range(2):
            position = block.places + 8 * (n * int(block.bounds[-1]) + first)
            self._reader.read_into(columns[n], position)
        return columns[0], columns[1]

    def last_deletes(self) -> dict[int, int]:
        """The latest delete of each partition; see ``PlaceIndex.last_deletes``."""
        return self._deletes

    def close(self) -> None:
        """Remove the files, and free the memory. The object must not be used afterwards."""
        for file in (self._writer, self._reader):
            if file is not None:
                file.close()
        self._writer = self._reader = None
        self._blocks = []
        folder, self._folder = self._folder, None
        if folder is not None:
            remove_folder(folder)


class PlaceIndexBuilder:
    """Collects blocks of positions from any thread, and builds an index of them.

    Args:
        sources: the partitions of the segments.
        memory_bytes: memory for runs. Further runs are written to a scratch folder.
    """

    def __init__(self, sources: SegmentPartitions, memory_bytes: int) -> None:
        self._sources = sources
        self._limit = memory_bytes
        self.rows = 0  # number of added positions
        self._runs: list[_SortedRun] = []
        self._held_bytes = 0
        self._spilt: list[_SpilledRuns] = []
        self._folder: Path | None = None
        self._lock = threading.Lock()

    def add(self, block: Places) -> None:
        """Add a block of positions. Its columns are copied, so the caller may reuse them."""
        run = _SortedRun.of(block)
        with self._lock:
            self.rows += block.rows
            self._runs.append(run)
            self._held_bytes += PLACE_BYTES * block.rows
            if self._held_bytes > self._limit:
                self._spill()

    def _spill(self) -> None:
        """Write the runs in memory to one scratch file, bucket by bucket."""
        if self._folder is None:
            self._folder = make_folder()
        path, rows = "", []
        with ScratchWriter(str(self._folder), "places") as writer:
            for n in range(_BUCKETS):
                some = _reduced(_joined([run.bucket(n) for run in self._runs]), self._sources)
                path, _ = writer.append(*some)
                rows.append(some.rows)
        self._spilt.append(_SpilledRuns(path, rows))
        self._runs, self._held_bytes = [], 0

    def finish(self) -> PlaceIndex:
        """Build the index of all added positions."""
        folder = self._out_folder()
        out = _IndexWriter(folder, sum(run.places.rows for run in self._runs))
        for some in self._merge_buckets():
            out.append(some)
        return PlaceIndex(out.finish(), self._sources, folder)

    def finish_in_order(self) -> PlacesInOrder:
        """Build a ``PlacesInOrder`` of all added positions, which supports no lookups."""
        found = PlacesInOrder(self._sources, self._out_folder())
        try:
            for some in self._merge_buckets():
                found.append(some)
        except BaseException:
            found.close()
            raise
        return found

    def _out_folder(self) -> Path | None:
        if self._spilt and self._runs:
            self._spill()
        return make_folder() if self._spilt else None

    def _merge_buckets(self) -> Iterator[Places]:
        """Yield the merged positions of each bucket, and free its runs.

        Few positions are merged as one bucket, because 256 calls would take most of the time.
        """
        if not self._spilt and sum(run.places.rows for run in self._runs) <= _FEW:
            yield _reduced(_joined([run.places for run in self._runs]), self._sources)
        else:
            for n in range(_BUCKETS):
                parts = [run.bucket(n) for run in self._runs]
                parts += [spilt.bucket(n) for spilt in self._spilt]
                yield _reduced(_joined(parts), self._sources)
        for spilt in self._spilt:
            spilt.close()
        self._runs = []
        self.abandon()

    def abandon(self) -> None:
        """Remove the scratch files."""
        folder, self._folder = self._folder, None
        if folder is not None:
            remove_folder(folder)


class _SortedRun(NamedTuple):
    """Positions sorted by bucket.

    ``cuts`` has the start of each bucket, and the end of the last.
    """

    places: Places
    cuts: Int64Array

    @classmethod
    def of(cls, block: Places) -> Self:
        buckets = (block.lanes >> np.uint64(56)).astype(np.uint8)
        cuts = np.concatenate(([0], np.cumsum(np.bincount(buckets, minlength=_BUCKETS))))
        return cls(block.take(np.argsort(buckets, kind="stable")), cuts)

    def bucket(self, n: int) -> Places:
        return self.places.take(slice(int(self.cuts[n]), int(self.cuts[n + 1])))


class _SpilledRuns:
    """Runs of positions in a scratch file.

    The file has, for each bucket, the six columns of ``Places``, one after another.
    """

    def __init__(self, path: str, rows: Sequence[int]) -> None:
        self._reader = ScratchReader(path)
        self._rows = rows
        self._starts = np.cumsum([0, *rows]) * PLACE_BYTES

    def bucket(self, n: int) -> Places:
        found, position = Places.room(self._rows[n]), int(self._starts[n])
        columns: Iterable[npt.NDArray[Any]] = found
        for column in columns:
            self._reader.read_into(column, position)
            position += column.nbytes
        return found

    def close(self) -> None:
        self._reader.close()


class _IndexWriter:
    """Writes an index to memory, or to files of ``folder``, one per column."""

    def __init__(self, folder: Path | None, rows: int) -> None:
        self._places = Places.room(rows if folder is None else 0)
        self._writers = (
            []
            if folder is None
            else [ScratchWriter(str(folder), f"index-{name}") for name in Places._fields]
        )
        self._paths = [""] * len(self._writers)
        self._rows = 0

    def append(self, some: Places) -> None:
        columns: Iterable[tuple[npt.NDArray[Any], npt.NDArray[Any]]] = zip(
            self._places, some, strict=True
        )
        for n, (target, column) in enumerate(columns):
            if self._writers:
                self._paths[n], _ = self._writers[n].append(column)
            else:
                target[self._rows : self._rows + some.rows] = column
        self._rows += some.rows

    def finish(self) -> Places:
        if not self._writers or not self._rows:
            return self._places.take(slice(0, self._rows))
        for writer in self._writers:
            writer.close()
        maps = [ScratchMap(path) for path in self._paths]
        return Places._make(
            each.bytes.view(kind) for each, kind in zip(maps, PLACE_TYPES, strict=True)
        )


def _note_deletes(block: Places, sources: SegmentPartitions, found: dict[int, int]) -> None:
    deletes = block.take(np.flatnonzero(block.positions < 0))
    partitions = sources.partitions[deletes.segments]
    for partition in np.unique(partitions).tolist():
        latest = int(deletes.times_ms[partitions == partition].max())
        found[partition] = max(found.get(partition, latest), latest)


def _joined(runs: Sequence[Places]) -> Places:
    if not runs:
        return Places.room(0)
    return Places._make(np.concatenate(columns) for columns in zip(*runs, strict=True))


def _reduced(block: Places, sources: SegmentPartitions) -> Places:
    """Sort a block of positions by fingerprint, and remove writes superseded in their partition."""
    order = np.argsort(block.lanes)
    return block.take(order[: int(place_kernels.reduce(*block, *sources, order))])
