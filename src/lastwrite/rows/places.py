"""Where the last write of each key lies: an index of fingerprints, in bounded memory.

Blocks of places come in any order. Each is sorted by fingerprint, and of each partition's writes of
a key the last one stays; beyond a limit such *runs* go to a scratch folder. At the end the runs
meet, a bucket of fingerprints at a time. What is left is sorted by fingerprint, so that a key is
found by about three looks.

    a=1@0 b=2@1   a=3@2   delete b@3   ──►   a: segment 0, batch at byte 68, order 2
                                             b: a delete, order 3

Of a key that was written to several partitions the last write of each stays, and one of them
*wins*; so do deletes. Therefore the index can be brought up to date: what comes later is held
beside the rest, with all that is known of its keys, until it is an eighth of it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lastwrite.model.columns import PLACE_TYPES, Int64Array, Places
from lastwrite.rows import place_kernels
from lastwrite.storage.run_folder import make_folder, remove_folder
from lastwrite.storage.scratch import ScratchMap, ScratchReader, ScratchWriter

PLACE_BYTES = 40
_BUCKETS = 256  # of the last meeting, each sorted by itself
_ROWS_AT_ONCE = 1 << 18
_FEW = 1 << 16  # places that are no matter to sort


class Sources(NamedTuple):
    """Of each segment, by its number: the partition, and which of its segments is the later one.

    Within a partition the write of the later segment is the later one, and in a segment that of the
    larger order; between partitions that of the later time, and of equal ones of the larger
    partition.
    """

    partitions: Int64Array
    ranks: Int64Array

    @classmethod
    def of(cls, partitions: Sequence[int], ranks: Sequence[int] | None = None) -> Sources:
        """Sources whose segments follow each other as they are numbered, unless ``ranks`` say
        otherwise.
        """
        given = range(len(partitions)) if ranks is None else ranks
        return cls(np.array(partitions, np.int64), np.array(given, np.int64))


class Place(NamedTuple):
    """Where one last write lies."""

    segment: int
    position: int
    order: int


class _Sorted:
    """Places by fingerprint, and which of them win."""

    def __init__(self, places: Places, sources: Sources) -> None:
        self.places = places
        self.wins = np.ones(places.rows, dtype=np.bool_)
        place_kernels.settle(
            places.lanes,
            places.other_lanes,
            places.segments,
            places.times_ms,
            sources.partitions,
            self.wins,
        )
        self.live = 0  # keys that are not deleted
        for start in range(0, places.rows, _ROWS_AT_ONCE):
            some = slice(start, start + _ROWS_AT_ONCE)
            self.live += int(np.count_nonzero(self.wins[some] & (places.positions[some] >= 0)))

    def first(self, lane: int, other_lane: int) -> int:
        """The first row of a fingerprint, or -1."""
        places = self.places
        return int(
            place_kernels.find(
                places.lanes, places.other_lanes, np.uint64(lane), np.uint32(other_lane)
            )
        )

    def winner(self, row: int) -> Place | None:
        """The winner of the key whose first row this is; None: a delete."""
        places = self.places
        other = places.other_lanes[row]
        while places.other_lanes[row] != other or not self.wins[row]:
            row += 1
        position = int(places.positions[row])
        if position < 0:
            return None
        return Place(int(places.segments[row]), position, int(places.orders[row]))

    def rows_of(self, asked: Places) -> Int64Array:
        """The rows of the keys of ``asked``, which is sorted; each once."""
        given = self.places.lanes, self.places.other_lanes, asked.lanes, asked.other_lanes
        rows = np.empty(0, dtype=np.int64)
        count = int(place_kernels.rows_of(*given, rows))
        rows = np.empty(count, dtype=np.int64)
        place_kernels.rows_of(*given, rows)
        return rows

    def in_segment(self, segment: int, has_deletes: bool) -> Places:
        """The winners that lie in this segment."""
        rows = np.flatnonzero(self.places.segments == segment)
        wins = self.wins[rows]
        if not has_deletes:
            wins &= self.places.positions[rows] >= 0
        return self.places.take(rows[wins])


class PlaceIndex:
    """The last writes. Closing it removes its scratch folder, if it has one."""

    def __init__(self, places: Places, sources: Sources, folder: Path | None) -> None:
        self._rest = _Sorted(places, sources)
        self._recent = _Sorted(Places.room(0), sources)  # all that is known of its keys
        self._folder = folder

    def __len__(self) -> int:
        return self._rest.live + self._recent.live

    @property
    def has_moved_keys(self) -> bool:
        """Whether a key has a last write, or a delete, in several partitions."""
        return not all(part.wins.all() for part in self._parts)

    @property
    def _parts(self) -> tuple[_Sorted, _Sorted]:
        return self._rest, self._recent

    def find(self, lane: int, other_lane: int) -> Place | None:
        """Where the last write of the key with this fingerprint lies; None: there is none."""
        for part in (self._recent, self._rest):
            row = part.first(lane, other_lane)
            if row >= 0:
                return part.winner(row)
        return None

    def in_segment(self, segment: int, *, has_deletes: bool = False) -> Places:
        """The last writes that lie in this segment, by their order, and deletes if they are asked
        for.
        """
        found = _joined([part.in_segment(segment, has_deletes) for part in self._parts])
        return found.take(np.argsort(found.orders))

    def unknown(self, asked: Places, sources: Sources) -> npt.NDArray[np.int64]:
        """The rows of ``asked`` of whose keys nothing is known in the same partition."""
        is_known = np.zeros(asked.rows, dtype=np.bool_)
        for part in self._parts:
            places = part.places
            place_kernels.know(
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
        """All places that it holds, some at a time."""
        for part in self._parts:
            for start in range(0, part.places.rows, _ROWS_AT_ONCE):
                yield part.places.take(slice(start, start + _ROWS_AT_ONCE))

    def take_in(self, later: Places, sources: Sources) -> bool:
        """Bring it up to date with places that have become known; False: there are too many of
        them, and a new one is to be made of all.
        """
        later = _reduced(later, sources)
        if self._recent.places.rows + later.rows > max(_FEW, self._rest.places.rows // 8):
            return False
        rest = self._rest
        rows = rest.rows_of(later)
        fresh = rows[rest.wins[rows]]  # of keys that only the rest knew
        rest.live -= int(np.count_nonzero(rest.places.positions[fresh] >= 0))
        rest.wins[rows] = False
        known = [self._recent.places, later, rest.places.take(rows)]
        self._recent = _Sorted(_reduced(_joined(known), sources), sources)
        return True

    def close(self) -> None:
        """Remove its files; nothing can be looked up any more."""
        folder, self._folder = self._folder, None
        if folder is not None:
            remove_folder(folder)


class PlaceIndexBuilder:
    """Takes blocks of places, from any thread; ``finish`` makes the index of them.

    Args:
        sources: of the segments that places name.
        memory_bytes: what runs may take before they go to a scratch folder.
    """

    def __init__(self, sources: Sources, memory_bytes: int) -> None:
        self._sources = sources
        self._limit = memory_bytes
        self._held: list[Places] = []  # runs, each by fingerprint
        self._held_bytes = 0
        self._spilt: list[_Spilt] = []
        self._folder: Path | None = None
        self._turn = threading.Lock()

    def add(self, block: Places) -> None:
        """Take a block, whose columns the caller may fill anew afterwards."""
        run = _reduced(block, self._sources)
        with self._turn:
            self._held.append(run)
            self._held_bytes += PLACE_BYTES * run.rows
            if self._held_bytes > self._limit:
                self._spill()

    def _spill(self) -> None:
        """Let the runs that are held lie in one file, bucket by bucket."""
        if self._folder is None:
            self._folder = make_folder()
        cuts = [_cuts(run) for run in self._held]
        path, rows = "", []
        with ScratchWriter(str(self._folder), "places") as writer:
            for n in range(_BUCKETS):
                parts = [_bucket(run, cut, n) for run, cut in zip(self._held, cuts, strict=True)]
                for columns in zip(*parts, strict=True):
                    path, _ = writer.append(*columns)
                rows.append(sum(part.rows for part in parts))
        self._spilt.append(_Spilt(path, rows))
        self._held, self._held_bytes = [], 0

    def finish(self) -> PlaceIndex:
        """The index of all that was added."""
        if self._spilt and self._held:
            self._spill()
        cuts = [_cuts(run) for run in self._held]
        folder = make_folder() if self._spilt else None
        out = _Out(folder, sum(run.rows for run in self._held))
        for n in range(_BUCKETS):
            parts = [_bucket(run, cut, n) for run, cut in zip(self._held, cuts, strict=True)]
            parts += [spilt.bucket(n) for spilt in self._spilt]
            out.append(_reduced(_joined(parts), self._sources))
        for spilt in self._spilt:
            spilt.close()
        self._held = []
        self.abandon()
        return PlaceIndex(out.finish(), self._sources, folder)

    def abandon(self) -> None:
        """Remove what was written aside."""
        folder, self._folder = self._folder, None
        if folder is not None:
            remove_folder(folder)


class _Spilt:
    """Runs in a scratch file: of each bucket the six columns, one behind another."""

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


class _Out:
    """The index, as it comes: in memory, or in files of ``folder``, one a column."""

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


def _cuts(run: Places) -> Int64Array:
    """Where each bucket begins in a run, and where the last one ends."""
    borders = np.array([(n << 64) // _BUCKETS for n in range(1, _BUCKETS)], dtype=np.uint64)
    return np.concatenate(([0], np.searchsorted(run.lanes, borders), [run.rows]))


def _bucket(run: Places, cuts: Int64Array, n: int) -> Places:
    return run.take(slice(int(cuts[n]), int(cuts[n + 1])))


def _joined(runs: Sequence[Places]) -> Places:
    if not runs:
        return Places.room(0)
    return Places._make(np.concatenate(columns) for columns in zip(*runs, strict=True))


def _reduced(block: Places, sources: Sources) -> Places:
    """The block by fingerprint, without what a later write of the same partition supersedes."""
    found = block.take(np.argsort(block.lanes))
    stays = np.ones(found.rows, dtype=np.bool_)
    place_kernels.reduce(*found, *sources, stays)
    return found.take(np.flatnonzero(stays))
