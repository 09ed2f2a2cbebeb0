"""The records of Kafka partitions as batches of Arrow, piece by piece: what a consumer gets of
them, with no Python statement a record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lastwrite.engine.chunks import Chunks
from lastwrite.engine.rules.transactions import aborted_table, flag_aborted
from lastwrite.errors import CorruptLog, LogError, located
from lastwrite.kafka.format.chunk import KafkaFormat
from lastwrite.kafka.format.gather import gather
from lastwrite.kafka.look.problems import loses_records
from lastwrite.kafka.look.rows import position_of
from lastwrite.kafka.store.pieces import cuts_of
from lastwrite.model.columns import IS_ABORTED, IS_CONTROL, Int64Array
from lastwrite.model.log import PartitionLog, TopicPartition
from lastwrite.model.stores import StoreSettings
from lastwrite.model.work import Limits, Piece
from lastwrite.rows.arrow import HEADERS, batches_of
from lastwrite.storage.objects import address

if TYPE_CHECKING:
    import pyarrow as pa

PIECE_BYTES = 32 << 20


class RowUnit(NamedTuple):
    """A stretch of a segment, and what of its records is asked for."""

    name: TopicPartition
    piece: Piece
    span: tuple[int, int]  # of offsets; the second exclusive
    aborted: Int64Array  # see ``aborted_table``; of no effect unless ``is_committed``
    is_committed: bool
    columns: tuple[str, ...]
    stores: StoreSettings


def refuse_if_records_are_missing(log: PartitionLog) -> None:
    """
    Raises:
        CorruptLog: something is wrong of which records may be missing; damage of an offset or a
            time index does no harm here.
    """
    for problem in log.problems:
        if loses_records(problem, log):
            raise CorruptLog(problem.message, problem.position, problem.path, problem.remedy)


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
    units: list[RowUnit] = []
    for n, segment in enumerate(log.segments):
        until = log.segment_end(n)
        if until <= span[0] or segment.base_offset >= span[1] or not segment.size_bytes:
            continue
        try:
            cuts = cuts_of(log, n, piece_bytes)
        except LogError:  # of the index: one piece needs none
            cuts = [0, segment.size_bytes]
        start = position_of(segment, span[0])
        cuts = [start, *(cut for cut in cuts if cut > start)]
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


def read_rows(unit: RowUnit, limits: Limits | None = None) -> Iterator[pa.RecordBatch]:
    """The unit's records, in order.

    Raises:
        CorruptLog: a batch, or a record, contradicts the format.
        CommitConflict: it is not the file that was listed.
        OutOfMemoryBudget: a batch is larger than ``limits`` allow.
    """
    limits = limits or Limits()
    address.use(unit.stores)
    format, (low, high) = KafkaFormat(limits.plain_bytes), unit.span
    has_headers = HEADERS in unit.columns
    for chunk in Chunks(limits).of(format, unit.piece):
        table = chunk.table
        if len(unit.aborted):
            flag_aborted(table, unit.aborted)
        passed = IS_CONTROL | (IS_ABORTED if unit.is_committed else 0)
        wanted = (table["next_offset"] > low) & (table["base_offset"] < high)
        wanted &= table["flags"] & passed == 0
        if not wanted.any():
            continue
        some = None if wanted.all() else wanted.astype(np.uint8)
        with located(unit.piece.path, chunk.shift):
            for run in format.opened(chunk.buffer, table, some):
                found = gather(
                    chunk.buffer,
                    run,
                    table,
                    unit.span,
                    is_committed=unit.is_committed,
                    has_headers=has_headers,
                )
                yield from batches_of(found, unit.name, unit.columns)
