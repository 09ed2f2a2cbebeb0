"""Where the last write of each key lies: an index of fingerprints, in bounded memory.

Blocks of places come in any order. Each is sorted by fingerprint, and of each partition's writes of
a key the last one stays; beyond a limit such *runs* go to a scratch folder. At the end the runs
meet, a bucket of fingerprints at a time: the last write of every key is one of them, or its delete.
What is left is sorted by fingerprint, so that a key is found by about three looks.

    a=1@0 b=2@1   a=3@2   delete b@3   ──►   a: segment 0, batch at byte 68, offset 2
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lastwrite.model.columns import PLACE_TYPES, Int64Array, Places
from lastwrite.rows import place_kernels
from lastwrite.storage.run_folder import make_folder, remove_folder
from lastwrite.storage.scratch import ScratchMap, ScratchReader, ScratchWriter

PLACE_BYTES = 40
_BUCKETS = 256  # of the last meeting, each sorted by itself


class PlaceIndex:
    """The last writes. Closing it removes its scratch folder, if it has one."""

    def __init__(self, places: Places, folder: Path | None) -> None:
        self.places = places
        self._folder = folder

    def __len__(self) -> int:
        return self.places.rows

    def find(self, lane: int, other_lane: int) -> int:
        """The row of the key with this fingerprint; -1: there is none."""
        return int(
            place_kernels.find(
                self.places.lanes, self.places.other_lanes, np.uint64(lane), np.uint32(other_lane)
            )
        )

    def offsets_in(self, segment: int) -> tuple[Int64Array, Int64Array]:
        """The offsets of the last writes that lie in this segment, ascending, and where the batch of
        each is.
        """
        rows = np.flatnonzero(self.places.segments == segment)
        rows = rows[np.argsort(self.places.offsets[rows])]
        return self.places.offsets[rows], self.places.positions[rows]

    def close(self) -> None:
        """Remove its files; nothing can be looked up any more."""
        folder, self._folder = self._folder, None
        if folder is not None:
            remove_folder(folder)


class PlaceIndexBuilder:
    """Takes blocks of places, from any thread; ``finish`` makes the index of them.

    Args:
        partitions: the partition of each segment, by its number. Within a partition the larger
            offset is the later write; between partitions the later time, and of equal ones the
            larger partition.
        memory_bytes: what runs may take before they go to a scratch folder.
    """

    def __init__(self, partitions: Sequence[int], memory_bytes: int) -> None:
        self._partitions = np.array(partitions, dtype=np.int64)
        self._limit = memory_bytes
        self._held: list[Places] = []  # runs, each by fingerprint
        self._held_bytes = 0
        self._spilt: list[_Spilt] = []
        self._folder: Path | None = None
        self._turn = threading.Lock()

    def add(self, block: Places) -> None:
        """Take a block, whose columns the caller may fill anew afterwards."""
        run = _reduced(block, self._partitions, False)
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
        """The last writes, without what was deleted."""
        if self._spilt and self._held:
            self._spill()
        cuts = [_cuts(run) for run in self._held]
        folder = make_folder() if self._spilt else None
        out = _Out(folder, sum(run.rows for run in self._held))
        for n in range(_BUCKETS):
            parts = [_bucket(run, cut, n) for run, cut in zip(self._held, cuts, strict=True)]
            parts += [spilt.bucket(n) for spilt in self._spilt]
            out.append(_reduced(_joined(parts), self._partitions, True))
        for spilt in self._spilt:
            spilt.close()
        self._held = []
        self.abandon()
        return PlaceIndex(out.finish(), folder)

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


def _reduced(block: Places, partitions: Int64Array, is_last: bool) -> Places:
    """The block by fingerprint, without what a later write of the same partition supersedes; at the
    last meeting, of any partition, and without deletes.
    """
    order = np.argsort(block.lanes)
    found = block.take(order)
    stays = np.ones(found.rows, dtype=np.bool_)
    place_kernels.reduce(*found, partitions, is_last, stays)
    return found.take(np.flatnonzero(stays))
