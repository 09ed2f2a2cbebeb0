"""Read the records that a consumer would receive: ranges of a segment, or single records.

Records are read as columns. When a range is read, no Python statement runs per record.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lastwrite.engine.chunks import BatchWindow, BatchWindows
from lastwrite.engine.rules.transactions import aborted_table, flag_aborted
from lastwrite.errors import CommitConflict, CorruptLog, OutOfMemoryBudget, located
from lastwrite.model.columns import (
    IS_ABORTED,
    IS_CONTROL,
    IS_OLD,
    BatchTable,
    ByteArray,
    Int64Array,
    Places,
    RecordColumns,
    Slices,
    UInt64Array,
)
from lastwrite.model.log import PartitionLog, Segment, TopicPartition
from lastwrite.model.stores import StoreSettings
from lastwrite.model.work import Limits, ScanRange
from lastwrite.rows import place_kernels
from lastwrite.rows.system import RowReader, RowSystem, rows_of
from lastwrite.storage.objects import address
from lastwrite.storage.objects.address import is_address
from lastwrite.storage.reading import SegmentReader, reader_of

if TYPE_CHECKING:
    import pyarrow as pa

PIECE_BYTES = 32 << 20
_GUESS_BYTES = 16 << 10  # bytes of the first read of a batch from a file; enough for most batches
# bytes of the first read of a batch from an object: many, because a second request is expensive
_GUESS_OF_BUCKET = 64 << 10
_MOST_OPEN = 256  # most files that stay open for reading single records
_EVERYTHING = -(1 << 62), 1 << 62


class RowUnit(NamedTuple):
    """A range of a segment, and the records and columns to read from it."""

    system: str
    name: TopicPartition
    piece: ScanRange
    span: tuple[int, int]  # the offsets to read; the end is exclusive
    aborted: Int64Array  # aborted transactions: see ``aborted_table``; used if ``is_committed``
    is_committed: bool
    columns: tuple[str, ...]
    stores: StoreSettings
    extra: Any = None  # system-specific data, see ``RowSystem.extra_of``
    raw_keys: bool = False  # Pulsar: do not decode keys that were sent as Base64
    # the requested records by their order in the segment, minus ``lowest``, ascending; None means
    # all records in ``span``
    orders: npt.NDArray[Any] | None = None
    lowest: int = 0
    keys: frozenset[bytes] | None = None  # the requested keys; None means all
    # Kafka: skip batches whose records are all older than this time; None means no limit
    least_ms: int | None = None

    def limit_to(self, orders: Int64Array) -> RowUnit:
        """A copy of the unit that reads only the records with these orders.

        ``orders`` must be ascending and not empty.
        """
        lowest = int(orders[0])
        relative = orders - lowest
        kind = np.uint32 if relative[-1] < 1 << 32 else np.int64
        return self._replace(orders=relative.astype(kind), lowest=lowest)

    def reader(self, limits: Limits) -> RowReader:
        """A row reader for the unit's system."""
        system = rows_of(self.system)
        return system.reader(limits.plain_bytes, self.extra, raw_keys=self.raw_keys)


def row_units(
    system: RowSystem,
    log: PartitionLog,
    columns: Sequence[str],
    *,
    is_committed: bool,
    first: int = 0,
    end: int | None = None,
    piece_bytes: int = PIECE_BYTES,
) -> list[RowUnit]:
    """Units that cover the offsets that consumers receive, from ``first`` to below ``end``."""
    bound = system.end_of(log, is_committed)
    span = max(first, log.log_start), bound if end is None else min(end, bound)
    extra = system.extra_of(log)
    units: list[RowUnit] = []
    for n, segment in enumerate(log.segments):
        until = log.segment_end(n)
        if until <= span[0] or segment.base_offset >= span[1] or not segment.size_bytes:
            continue
        cuts = system.cuts(log, n, span, piece_bytes)
        aborted = aborted_table(log.aborted if is_committed else (), segment.base_offset, until)
        for start, stop in zip(cuts, cuts[1:], strict=False):
            piece = ScanRange.of(
                segment,
                number=len(units),
                place=n,
                start=start,
                end=stop,
                end_offset=until,
                keyed=False,
            )
            unit = RowUnit(
                system.name,
                log.name,
                piece,
                span,
                aborted,
                is_committed,
                tuple(columns),
                address.used(),
                extra,
            )
            units.append(unit)
    return units


def read_rows(unit: RowUnit, limits: Limits | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the unit's records, in order, as Arrow batches, which own their memory."""
    from lastwrite.rows.arrow import batches_of

    for records in read_records(unit, limits or Limits()):
        yield from batches_of(records, unit.name, unit.columns)


def read_records(unit: RowUnit, limits: Limits) -> Iterator[RecordColumns]:
    """Yield the unit's records, in order. Each result is valid until the next is requested.

    Raises:
        CorruptLog: a batch or a record does not conform to the format.
        UnsupportedFormat: a batch or a record has a format that cannot be decoded.
        CommitConflict: the file is not the one that was listed.
        OutOfMemoryBudget: a batch is larger than ``limits`` allow.
    """
    reader = unit.reader(limits)
    has_headers = "headers" in unit.columns
    wanted = None if unit.orders is None else unit.orders.astype(np.int64) + unit.lowest
    missing = 0 if wanted is None else len(wanted)
    for chunk, found in _found(unit, reader, limits):
        if wanted is not None:
            which = _are_in(wanted, found.orders)
            found = found if len(which) == found.rows else found.take(which)
            missing -= len(which)
        if unit.keys is not None:
            found = found.take(_have_keys(found, unit.keys))
        if found.rows and has_headers:
            with located(unit.piece.path, chunk.shift):
                found = reader.with_headers(found)
        if found.rows:
            yield found
    first, end = unit.span
    is_whole = first <= unit.piece.lowest_offset and unit.piece.end_offset <= end
    if missing and is_whole and unit.least_ms is None:  # no filter excludes records
        raise CommitConflict(
            f"{missing} records are no longer at their positions", unit.piece.start, unit.piece.path
        )


def add_places_of(
    unit: RowUnit,
    segment: int,
    secret: UInt64Array,
    limits: Limits,
    add: Callable[[Places], None],
) -> None:
    """Pass the positions of the unit's records with keys to ``add``, in blocks.

    A block is valid until ``add`` returns. ``segment`` is the segment's number in the caller's
    list.

    Raises:
        CorruptLog, UnsupportedFormat, CommitConflict, OutOfMemoryBudget: as ``read_records``.
    """
    places, filled = Places.room(limits.block_entries), 0
    shortest = 1 if rows_of(unit.system).is_empty_delete else 0
    for _, found in _found(unit, unit.reader(limits), limits):
        if filled + found.rows > places.rows:
            add(places.take(slice(0, filled)))
            filled = 0
            places = places if found.rows <= places.rows else Places.room(found.rows)
        filled = put_places(found, segment, secret, shortest, places, filled)
    if filled:
        add(places.take(slice(0, filled)))


def put_places(
    records: RecordColumns,
    segment: int,
    secret: UInt64Array,
    shortest: int,
    places: Places,
    filled: int,
) -> int:
    """Write the position of each record that has a key to ``places``, from row ``filled`` on.

    Returns the row after the last position. ``shortest`` is the length of the shortest value that
    does not delete its key.
    """
    return int(
        place_kernels.put(
            records.data,
            *records.keys,
            records.values[1],
            shortest,
            records.positions,
            records.orders,
            records.times_ms,
            secret,
            segment,
            *places,
            filled,
        )
    )


def _found(
    unit: RowUnit, reader: RowReader, limits: Limits
) -> Iterator[tuple[BatchWindow, RecordColumns]]:
    """Yield all records in the unit's span, in blocks, each with its chunk."""
    address.use(unit.stores)
    for chunk in BatchWindows(limits).of(reader.format, unit.piece):
        if len(unit.aborted):
            flag_aborted(chunk.table, unit.aborted)
        wanted = _requested_batches(unit, chunk.table)
        if wanted is not None and not wanted.any():
            continue
        with located(unit.piece.path, chunk.shift):
            blocks = reader.records(chunk, wanted, unit.span, is_committed=unit.is_committed)
            for found in blocks:
                yield chunk, found


def _requested_batches(unit: RowUnit, table: BatchTable) -> ByteArray | None:
    """A byte for each batch: 1 if its records are requested. None if all batches are requested."""
    passed = IS_CONTROL | (IS_ABORTED if unit.is_committed else 0)
    wanted = (table["next_offset"] > unit.span[0]) & (table["base_offset"] < unit.span[1])
    wanted &= table["flags"] & passed == 0
    if unit.least_ms is not None:  # headers of old formats have no largest timestamp
        wanted &= (table["max_timestamp"] >= unit.least_ms) | (table["flags"] & IS_OLD != 0)
    return None if wanted.all() else wanted.astype(np.uint8)


def _are_in(some: Int64Array, orders: Int64Array) -> Int64Array:
    """The indexes of the values in ``orders`` that are also in ``some``. Both are ascending."""
    if not len(some):
        return np.empty(0, np.int64)
    near = np.minimum(np.searchsorted(some, orders), len(some) - 1)
    return np.flatnonzero(some[near] == orders)


def _have_keys(records: RecordColumns, keys: Iterable[bytes]) -> Int64Array:
    """The ascending rows whose records have one of a few keys."""
    starts, lengths = records.keys
    found = [np.empty(0, np.int64)]
    for key in keys:
        rows = np.flatnonzero(lengths == len(key))
        for at in reversed(range(len(key))):  # keys differ more often at their ends
            rows = rows[records.data[starts[rows] + at] == key[at]]
        found.append(rows)
    return np.sort(np.concatenate(found))


class SegmentRecordReader:
    """Reads single records of segments, and keeps their files open."""

    def __init__(self, reader: RowReader, plain_bytes: int) -> None:
        self._reader = reader
        self._limit = plain_bytes
        self._files: OrderedDict[str, SegmentReader] = OrderedDict()

    def record(
        self, segment: Segment, position: int, order: int, *, has_headers: bool = False
    ) -> tuple[bytes | None, bytes | None, RecordColumns] | None:
        """Key, value and columns of a record in the batch at byte ``position``.

        The columns include headers if requested. Returns None if the batch has no such record.

        Raises:
            CorruptLog, UnsupportedFormat: the batch cannot be read.
            CommitConflict: the file is not the one that was listed.
            OutOfMemoryBudget: the batch is larger than the limit.
        """
        with located(segment.path, position):
            chunk = self._batch(segment, position)
            for found in self._reader.records(chunk, None, _EVERYTHING, is_committed=False):
                (at,) = np.nonzero(found.orders == order)
                if len(at):
                    one = found.take(at[:1])
                    one = self._reader.with_headers(one) if has_headers else one
                    return _slice(one, one.keys, 0), _slice(one, one.values, 0), one
        return None

    def open(self, segment: Segment) -> None:
        """Open the segment's file, unless too many are open already.

        Raises:
            CommitConflict: the file is not the one that was listed.
        """
        if len(self._files) < _MOST_OPEN:
            self._file(segment)

    def _batch(self, segment: Segment, position: int) -> BatchWindow:
        """A window that contains only the batch at byte ``position``."""
        file, format = self._file(segment), self._reader.format
        left = segment.position + segment.size_bytes - position
        buffer: ByteArray = np.empty(0, np.uint8)
        wanted = _GUESS_OF_BUCKET if is_address(segment.path) else _GUESS_BYTES
        while len(buffer) < left:
            if wanted > max(self._limit, _GUESS_OF_BUCKET):
                words = (
                    f"a batch of {wanted} bytes is larger than the {self._limit} bytes that the "
                    "memory allows"
                )
                raise OutOfMemoryBudget(words, 0, remedy="raise --memory")
            whole = np.empty(min(wanted, left), dtype=np.uint8)
            whole[: len(buffer)] = buffer
            file.read_into(whole[len(buffer) :], position + len(buffer))
            buffer = whole
            table, _, wanted, held = format.split(buffer, 0, len(buffer), segment.base_offset)
            if len(table):
                return BatchWindow.of(held, table[:1], position)
            wanted = wanted if wanted > len(buffer) else 2 * len(buffer)
        raise CorruptLog("no batch begins here", 0)

    def _file(self, segment: Segment) -> SegmentReader:
        file = self._files.pop(segment.path, None) or reader_of(segment)
        self._files[segment.path] = file
        if len(self._files) > _MOST_OPEN:
            self._files.popitem(last=False)[1].close()
        return file

    def close(self) -> None:
        while self._files:
            self._files.popitem()[1].close()


def _slice(records: RecordColumns, slices: Slices, row: int) -> bytes | None:
    start, length = int(slices[0][row]), int(slices[1][row])
    return None if length < 0 else records.data[start : start + length].tobytes()
