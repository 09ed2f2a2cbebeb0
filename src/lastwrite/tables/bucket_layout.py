"""Distribute rows over buckets. Rows beyond a memory limit are in scratch files."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import pyarrow as pa

from lastwrite.storage.run_folder import make_folder, remove_folder
from lastwrite.tables.buckets import buckets_of, by_bucket
from lastwrite.tables.columns import as_bytes

_FEW = 1 << 10  # a bucket's batches are merged if they have fewer rows than this on average


class BucketedRows:
    """Batches of rows of one schema, distributed over buckets by the column ``identity``.

    Attributes:
        counts: the number of rows, by bucket.
        bytes: size of all rows if they were in memory.
    """

    def __init__(self, identity: str, memory_bytes: int) -> None:
        self.counts: dict[int, int] = {}
        self.bytes = 0
        self._identity, self._limit = identity, memory_bytes
        self._layouts: list[_BucketLayout] = []
        self._held_bytes = 0
        self._spilt: list[_SpilledRows] = []
        self._folder: Path | None = None

    def add(self, rows: pa.RecordBatch, buckets: int) -> None:
        """Distribute rows over this number of buckets, and add them."""
        laid = _BucketLayout.of(rows, self._identity, buckets)
        for bucket, (first, end) in laid.places.items():
            self.counts[bucket] = self.counts.get(bucket, 0) + end - first
        self._layouts.append(laid)
        self._held_bytes += laid.rows.nbytes
        self.bytes += laid.rows.nbytes
        if self._held_bytes > self._limit:
            self._spill()

    def settle(self) -> None:
        """Finish adding rows. If there are scratch files, all remaining rows are written to them.

        This frees memory for processing the buckets.
        """
        if self._spilt:
            self._spill()

    def _spill(self) -> None:
        if self._layouts:
            self._folder = self._folder or make_folder()
            self._spilt.append(_SpilledRows.of(self._folder, self._layouts))
            self._layouts, self._held_bytes = [], 0

    def of(self, bucket: int) -> list[pa.RecordBatch]:
        """The rows of one bucket, in any order."""
        found = [part for each in self._spilt for part in each.of_bucket(bucket)]
        return found + [part for each in self._layouts for part in each.of_bucket(bucket)]

    def close(self) -> None:
        """Remove the scratch files."""
        folder, self._folder = self._folder, None
        if folder is not None:
            remove_folder(folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _BucketLayout(NamedTuple):
    """Rows in memory, sorted by bucket, and the range of each bucket."""

    rows: pa.RecordBatch
    places: Mapping[int, tuple[int, int]]

    @classmethod
    def of(cls, rows: pa.RecordBatch, identity: str, buckets: int) -> Self:
        found = buckets_of(as_bytes(rows.column(identity)), buckets)
        order = by_bucket(found, buckets)
        if order is not None:
            found, rows = found[order], rows.take(pa.array(order))
        starts = np.flatnonzero(np.diff(found, prepend=-1))
        ends = [*starts[1:].tolist(), len(found)]
        places = zip(starts.tolist(), ends, strict=True)
        return cls(rows, dict(zip(found[starts].tolist(), places, strict=True)))

    def of_bucket(self, bucket: int) -> list[pa.RecordBatch]:
        first, end = self.places.get(bucket, (0, 0))
        return [self.rows.slice(first, end - first)] if first < end else []


class _SpilledRows:
    """Rows sorted by bucket in an Arrow scratch file."""

    def __init__(self, path: str, numbers: Mapping[int, range]) -> None:
        self._path, self._numbers = path, numbers

    @classmethod
    def of(cls, folder: Path, held: Sequence[_BucketLayout]) -> Self:
        path = os.path.join(folder, f"rows-{uuid.uuid4().hex[:12]}")
        numbers, number = {}, 0
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, held[0].rows.schema) as file:
            for bucket in sorted({bucket for each in held for bucket in each.places}):
                batches = [batch for each in held for batch in each.of_bucket(bucket)]
                if sum(map(len, batches)) < _FEW * len(batches):
                    batches = [pa.concat_batches(batches)]
                for batch in batches:
                    file.write_batch(batch)
                numbers[bucket] = range(number, number + len(batches))
                number += len(batches)
        return cls(path, numbers)

    def of_bucket(self, bucket: int) -> list[pa.RecordBatch]:
        """The rows of a bucket, as views of the memory-mapped file."""
        numbers = self._numbers.get(bucket)
        if numbers is None:
            return []
        file = pa.ipc.open_file(pa.memory_map(self._path))
        return [file.get_batch(number) for number in numbers]
