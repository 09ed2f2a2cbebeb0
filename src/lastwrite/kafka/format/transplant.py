"""Batches of one log as another cluster may have them: at the same offsets, with the same records.

A cluster that is new gives out producer ids from 0 again. Where a log of the lost one still says
that producer 0 has sent up to sequence 899, a new producer 0 that begins with sequence 0 is refused
for ever. So of a topic of another cluster no batch keeps a producer::

    before   7: a@0 b@1   COMMIT@2   7: c@3   ABORT@4   d@5
    after       a@0 b@1                                 d@5

What a transaction had made visible is visible, what was aborted is gone, and nobody needs markers.
Leader epochs, which lie outside the checksum, must not be later than the partition's own.

Source: Kafka 4.4 ``ProducerStateManager``, ``DefaultRecordBatch``; docs/formats/kafka.md, "Record
batch".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from lastwrite.errors import UnsupportedFormat
from lastwrite.kafka.format import kernels
from lastwrite.kafka.format.batch import decode_batch, decode_batch_header, rebuild_batch
from lastwrite.kafka.format.batch_layout import BATCH_HEADER, TRANSACTIONAL_BIT, Record
from lastwrite.model.columns import (
    IS_CONTROL,
    IS_OLD,
    IS_TRANSACTIONAL,
    ROW_BASE_OFFSET,
    ROW_COLUMNS,
    ROW_MAX_TIMESTAMP,
    ROW_NEXT_OFFSET,
    ROW_POSITION,
    ROW_SIZE,
    BatchTable,
    ByteArray,
    Int64Array,
)
from lastwrite.model.log import AbortedTransaction

_EPOCH = BATCH_HEADER.offset_of("partition_leader_epoch")
_LOW_ATTRIBUTES = BATCH_HEADER.offset_of("attributes") + 1
# Id, epoch and sequence lie side by side; all bits set is -1 in each.
_PRODUCER = BATCH_HEADER.offset_of("producer_id"), BATCH_HEADER.offset_of("record_count")

Edit = Callable[[Sequence[Record]], Sequence[Record]]


class Transplant:
    """What becomes of batches.

    Args:
        end_offset: what lies there or above is left out; a batch across it is cut.
        open_from: by producer id, where a transaction begins that is left out.
        aborted: of another cluster's log, its aborted transactions; None: it is of the same one,
            and producers stay.
        leader_epoch: that every batch gets; None: batches keep theirs.
        edit: what becomes of the records of a batch; None: they stay.
    """

    def __init__(
        self,
        *,
        end_offset: int,
        open_from: Mapping[int, int],
        aborted: Sequence[AbortedTransaction] | None,
        leader_epoch: int | None,
        edit: Edit | None = None,
    ) -> None:
        self._end_offset = end_offset
        self._open_from = open_from
        self._keeps_producers = aborted is None
        self._leader_epoch = leader_epoch
        self._edit = edit
        spans = [(each.producer_id, each.first_offset, each.last_offset) for each in aborted or ()]
        self._aborted: Int64Array = np.array(spans, dtype=np.int64).reshape(-1, 3)

    def of(self, data: ByteArray, table: BatchTable) -> tuple[ByteArray, Int64Array, BatchTable]:
        """The batches of ``table``, whose origins are places in ``data``: their bytes, a row each
        as ``ROW_COLUMNS`` says, and what the table said of them.

        Raises:
            UnsupportedFormat: a batch of an older format would have to be cut or edited.
            CorruptLog: one that has to be opened.
        """
        table = table[self.stays(table)]
        starts, sizes = table["origin"], table["origin_size"].copy()
        is_old = bool((table["flags"] & IS_OLD).any())
        new = {} if is_old else self._rebuilt(data, table)
        is_cut = table["next_offset"] > self._end_offset
        if is_old and (self._edit is not None or bool(is_cut.any())):
            raise UnsupportedFormat("a batch of an older format cannot be cut or edited")
        largest = table["max_timestamp"].copy()
        for n, content in new.items():
            sizes[n] = len(content)
            largest[n] = decode_batch_header(content, 0).max_timestamp_ms if content else -1
        if len(table) and not new and int(sizes.sum()) == int(starts[-1] + sizes[-1] - starts[0]):
            made = data[int(starts[0]) : int(starts[-1] + sizes[-1])].copy()
        else:
            spans = zip(starts.tolist(), table["origin_size"].tolist(), strict=True)
            made = np.concatenate(
                [
                    np.frombuffer(new[n], dtype=np.uint8) if n in new else data[at : at + size]
                    for n, (at, size) in enumerate(spans)
                ]
                or [data[:0]]
            )
        is_there = sizes > 0
        rows = np.zeros((int(is_there.sum()), ROW_COLUMNS), dtype=np.int64)
        rows[:, ROW_POSITION] = (np.cumsum(sizes) - sizes)[is_there]
        rows[:, ROW_SIZE] = sizes[is_there]
        rows[:, ROW_NEXT_OFFSET] = np.minimum(table["next_offset"], self._end_offset)[is_there]
        rows[:, ROW_MAX_TIMESTAMP] = largest[is_there]
        rows[:, ROW_BASE_OFFSET] = table["base_offset"][is_there]
        if not is_old:
            self._dress(made, rows[:, ROW_POSITION], rows[:, ROW_SIZE], table[is_there])
        return made, rows, table[is_there]

    def stays(self, table: BatchTable) -> npt.NDArray[np.bool_]:
        """Which batches are not left out, whole or in part."""
        bases, producers = table["base_offset"], table["producer_id"]
        is_transactional = table["flags"] & IS_TRANSACTIONAL != 0
        # What lies across the end: of a transaction, none that had ended by then.
        stays: npt.NDArray[np.bool_] = (bases < self._end_offset) & ~(
            is_transactional & (table["next_offset"] > self._end_offset)
        )
        for producer, first in self._open_from.items():
            stays &= ~((producers == producer) & (bases >= first) & is_transactional)
        if self._keeps_producers or not len(table):
            return stays
        stays &= table["flags"] & IS_CONTROL == 0
        near = (self._aborted[:, 1] < int(table["next_offset"][-1])) & (
            self._aborted[:, 2] >= int(bases[0])
        )
        for producer, first, last in self._aborted[near].tolist():
            is_inside = (bases >= first) & (bases <= last)
            stays &= ~((producers == producer) & is_inside & is_transactional)
        return stays

    def _rebuilt(self, data: ByteArray, table: BatchTable) -> dict[int, bytes]:
        """The batches whose records change, by row; empty: nothing is left of one."""
        found = {}
        for n in range(len(table)) if self._edit is not None else self._cut(table):
            at = int(table["origin"][n])
            batch = decode_batch(data[at : at + int(table["origin_size"][n])].tobytes(), 0)
            kept = [each for each in batch.records if each.offset < self._end_offset]
            if self._edit is not None and not batch.attributes.control:
                kept = list(self._edit(kept))
            is_whole = batch.header.next_offset <= self._end_offset
            if is_whole and kept == list(batch.records):
                continue
            last = min(batch.header.last_offset, self._end_offset - 1)
            header = batch.header._replace(last_offset_delta=last - batch.header.base_offset)
            horizon_ms = batch.header.delete_horizon_ms
            found[n] = rebuild_batch(header, kept, delete_horizon_ms=horizon_ms) if kept else b""
        return found

    def _cut(self, table: BatchTable) -> list[int]:
        rows: list[int] = np.flatnonzero(table["next_offset"] > self._end_offset).tolist()
        return rows

    def _dress(
        self, made: ByteArray, positions: Int64Array, sizes: Int64Array, table: BatchTable
    ) -> None:
        """Give the batches that stay their leader epoch, and take their producers away."""
        if self._leader_epoch is not None:
            epoch = np.frombuffer(self._leader_epoch.to_bytes(4, "big", signed=True), np.uint8)
            made[positions[:, None] + np.arange(_EPOCH, _EPOCH + 4)] = epoch
        if not self._keeps_producers:
            chosen = table["producer_id"] >= 0
            places = positions[chosen]
            made[places[:, None] + np.arange(*_PRODUCER)] = 0xFF
            made[places + _LOW_ATTRIBUTES] &= 0xFF ^ TRANSACTIONAL_BIT
            kernels.reseal(made, places, np.ascontiguousarray(sizes[chosen]))
