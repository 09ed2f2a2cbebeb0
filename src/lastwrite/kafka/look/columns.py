"""The records of Kafka partitions as batches of Arrow, piece by piece: what a consumer gets of
them, with no Python statement a record.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from lastwrite.engine.chunks import Chunks
from lastwrite.engine.rules.transactions import aborted_table, flag_aborted
from lastwrite.errors import CorruptLog, LogError, OutOfMemoryBudget, located
from lastwrite.kafka.format.chunk import KafkaFormat
from lastwrite.kafka.format.gather import add_places, gather, with_headers
from lastwrite.kafka.look.problems import frame_bytes, loses_records
from lastwrite.kafka.look.stretch import stretch_of
from lastwrite.kafka.store import lock, log_dir, partitions
from lastwrite.kafka.store.index_files import index_path
from lastwrite.kafka.store.pieces import cuts_of
from lastwrite.model.columns import (
    IS_ABORTED,
    IS_CONTROL,
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
from lastwrite.model.work import Limits, Piece
from lastwrite.storage.choice import Topics
from lastwrite.storage.objects import address
from lastwrite.storage.objects.address import is_address
from lastwrite.storage.reading import SegmentReader, reader_of

if TYPE_CHECKING:
    import pyarrow as pa

PIECE_BYTES = 32 << 20
_GUESS_BYTES = 16 << 10  # that hold most batches
_GUESS_OF_BUCKET = 64 << 10  # a second request costs more than bytes
_MOST_OPEN = 256  # files of single records


class RowUnit(NamedTuple):
    """A stretch of a segment, and what of its records is asked for."""

    name: TopicPartition
    piece: Piece
    span: tuple[int, int]  # of offsets; the second exclusive
    aborted: Int64Array  # see ``aborted_table``; of no effect unless ``is_committed``
    is_committed: bool
    columns: tuple[str, ...]
    stores: StoreSettings
    # the offsets that are wanted, ascending, less the segment's lowest; None: all in ``span``
    wanted: npt.NDArray[np.uint32] | None = None

    def wanting(self, offsets: Int64Array) -> RowUnit:
        """The same of these records alone; ``offsets`` are ascending."""
        relative = (offsets - self.piece.lowest_offset).astype(np.uint32)
        return self._replace(wanted=relative)


def logs_of(
    path: str,
    topic: Topics = None,
    partition: int | None = None,
    wants: Callable[[TopicPartition], bool] | None = None,
) -> list[PartitionLog]:
    """The partitions at ``path``, each whole as far as listing tells; those that are not wanted are
    not looked at.

    Raises:
        NotALog, InvalidConfig, LogHeld, CorruptLog: one is not.
    """
    logs: list[PartitionLog] = []
    for folder in partitions.find_partitions(path, topic, partition):
        name = partitions.partition_name(folder)
        if wants is not None and not wants(name):
            continue
        lock.refuse_if_held(partitions.root_of(folder), [name])
        log = log_dir.read_partition(folder)
        for problem in log.problems:
            if loses_records(problem, log):  # damage of an offset or a time index does no harm
                raise CorruptLog(problem.message, problem.position, problem.path, problem.remedy)
        logs.append(log)
    return logs


def row_units(
    log: PartitionLog,
    columns: Sequence[str],
    *,
    is_committed: bool,
    first: int = 0,
    end: int | None = None,
    piece_bytes: int = PIECE_BYTES,
) -> list[RowUnit]:
    """The work of reading a log's records from offset ``first`` on, below ``end``.

    Never beyond the high watermark, or the last stable offset where ``is_committed``.
    """
    bound = log.last_stable_offset if is_committed else log.high_watermark
    span = max(first, log.log_start), bound if end is None else min(end, bound)
    suspects = {problem.path for problem in log.problems}
    units: list[RowUnit] = []
    for n, segment in enumerate(log.segments):
        until = log.segment_end(n)
        if until <= span[0] or segment.base_offset >= span[1] or not segment.size_bytes:
            continue
        cuts = [0, segment.size_bytes]
        if segment.is_indexed and index_path(segment.path) not in suspects:
            with suppress(LogError):  # of the index: one piece needs none
                cuts = cuts_of(log, n, piece_bytes)
        start, stop = stretch_of(segment, *span, until)
        cuts = [start, *(cut for cut in cuts if start < cut < stop), stop]
        aborted = aborted_table(log.aborted if is_committed else (), segment.base_offset, until)
        for begin, stop in zip(cuts, cuts[1:], strict=False):
            piece = Piece.of(
                segment,
                number=len(units),
                place=n,
                start=begin,
                end=stop,
                end_offset=until,
                keyed=False,
            )
            stores = address.used()
            units.append(
                RowUnit(log.name, piece, span, aborted, is_committed, tuple(columns), stores)
            )
    return units


def add_places_of(
    unit: RowUnit,
    segment: int,
    secret: UInt64Array,
    limits: Limits,
    add: Callable[[Places], None],
) -> None:
    """Hand on where the unit's records with keys lie, in blocks that are valid until ``add``
    returns. ``segment``: its number in the caller's list.

    Raises:
        CorruptLog, CommitConflict, OutOfMemoryBudget: as ``read_rows``.
    """
    address.use(unit.stores)
    format = KafkaFormat(limits.plain_bytes)
    places, filled = Places.room(limits.block_entries), 0
    for chunk in Chunks(limits).of(format, unit.piece):
        table = chunk.table
        if len(unit.aborted):
            flag_aborted(table, unit.aborted)
        with located(unit.piece.path, chunk.shift):
            for run in format.opened(chunk.buffer, table, _wanted(unit, table)):
                records = int(table["records"][run.first : run.last].sum())
                if filled + records > places.rows:
                    add(places.take(slice(0, filled)))
                    filled = 0
                    places = places if records <= places.rows else Places.room(records)
                source = segment, chunk.shift
                filled = add_places(
                    chunk.buffer, run, table, unit.span, secret, source, places, filled
                )
    if filled:
        add(places.take(slice(0, filled)))


def _wanted(unit: RowUnit, table: BatchTable) -> ByteArray | None:
    """A byte a batch, not 0 where records of it are asked for; None: of all of them."""
    passed = IS_CONTROL | (IS_ABORTED if unit.is_committed else 0)
    wanted = (table["next_offset"] > unit.span[0]) & (table["base_offset"] < unit.span[1])
    wanted &= table["flags"] & passed == 0
    return None if wanted.all() else wanted.astype(np.uint8)


def read_rows(unit: RowUnit, limits: Limits | None = None) -> Iterator[pa.RecordBatch]:
    """The records of ``read_records`` as batches of Arrow, which own their memory."""
    from lastwrite.rows.arrow import batches_of

    for records in read_records(unit, limits or Limits()):
        yield from batches_of(records, unit.name, unit.columns)


def read_records(unit: RowUnit, limits: Limits) -> Iterator[RecordColumns]:
    """The unit's records, in order. What comes is valid until the next is asked for.

    Raises:
        CorruptLog: a batch, or a record, contradicts the format.
        CommitConflict: it is not the file that was listed.
        OutOfMemoryBudget: a batch is larger than ``limits`` allow.
    """
    address.use(unit.stores)
    format = KafkaFormat(limits.plain_bytes)
    has_headers = "headers" in unit.columns
    wanted_offsets = None
    if unit.wanted is not None:
        wanted_offsets = unit.wanted.astype(np.int64) + unit.piece.lowest_offset
    for chunk in Chunks(limits).of(format, unit.piece):
        table = chunk.table
        if len(unit.aborted):
            flag_aborted(table, unit.aborted)
        wanted = _wanted(unit, table)
        if wanted is not None and not wanted.any():
            continue
        with located(unit.piece.path, chunk.shift):
            for run in format.opened(chunk.buffer, table, wanted):
                found = gather(chunk.buffer, run, table, unit.span, is_committed=unit.is_committed)
                if wanted_offsets is not None:
                    found = found.take(_are_in(wanted_offsets, found.offsets))
                if found.rows:
                    yield with_headers(found) if has_headers else found


def _are_in(some: Int64Array, offsets: Int64Array) -> Int64Array:
    """The places in ``offsets`` of those that are in ``some``, which is ascending, too."""
    if not len(some):
        return np.empty(0, np.int64)
    near = np.minimum(np.searchsorted(some, offsets), len(some) - 1)
    return np.flatnonzero(some[near] == offsets)


class RecordReader:
    """Reads single records of a log's segments; holds their files open."""

    def __init__(self, limits: Limits) -> None:
        self._format = KafkaFormat(limits.plain_bytes)
        self._limit = limits.plain_bytes
        self._readers: OrderedDict[str, SegmentReader] = OrderedDict()

    def record(
        self, segment: Segment, position: int, offset: int
    ) -> tuple[bytes | None, bytes | None] | None:
        """Key and value of the record ``offset``, in the batch at byte ``position``; None: it is
        not there.

        Raises:
            CorruptLog: the batch cannot be read.
            CommitConflict: it is not the file that was listed.
            OutOfMemoryBudget: it is larger than the limit.
        """
        buffer = self._batch(segment, position)
        with located(segment.path, position):
            table, _, _, held = self._format.split(buffer, 0, len(buffer), segment.base_offset)
            for run in self._format.opened(held, table):
                span = offset, offset + 1
                found = gather(held, run, table, span, is_committed=False)
                if found.rows:
                    return _slice(found, found.keys), _slice(found, found.values)
        return None

    def _batch(self, segment: Segment, position: int) -> ByteArray:
        reader = self._reader(segment)
        guess = _GUESS_OF_BUCKET if is_address(segment.path) else _GUESS_BYTES
        left = segment.size_bytes - position
        buffer = np.empty(min(guess, left), dtype=np.uint8)
        reader.read_into(buffer, position)
        size = frame_bytes(buffer)
        if not 0 < size <= left:
            raise CorruptLog("no batch begins here", position, segment.path)
        if size > self._limit:
            words = f"a batch of {size} bytes is larger than the {self._limit} that memory allows"
            raise OutOfMemoryBudget(words, position, segment.path, "raise memory")
        if size > len(buffer):
            whole = np.empty(size, dtype=np.uint8)
            whole[: len(buffer)] = buffer
            reader.read_into(whole[len(buffer) :], position + len(buffer))
            return whole
        return buffer[:size]

    def _reader(self, segment: Segment) -> SegmentReader:
        reader = self._readers.pop(segment.path, None) or reader_of(segment)
        self._readers[segment.path] = reader
        if len(self._readers) > _MOST_OPEN:
            self._readers.popitem(last=False)[1].close()
        return reader

    def close(self) -> None:
        while self._readers:
            self._readers.popitem()[1].close()


def _slice(records: RecordColumns, slices: Slices) -> bytes | None:
    start, length = int(slices[0][0]), int(slices[1][0])
    return None if length < 0 else records.data[start : start + length].tobytes()
