"""Rewrite batches of one log for another cluster: the same records at the same offsets.

A new cluster assigns producer ids from 0 again. Suppose that a restored log still has a batch of
producer 0 with sequence 899. The broker would then reject a new producer 0, which begins with
sequence 0, for ever. So the producer is removed from batches of another cluster::

    before   7: a@0 b@1   COMMIT@2   7: c@3   ABORT@4   d@5
    after       a@0 b@1                                 d@5

Committed records become non-transactional records. Aborted records and all markers are dropped.
The leader epoch of a batch must not exceed the partition's leader epoch. The checksum does not
cover it, so it can be set without a new checksum.

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
# The header's producer id, epoch and base sequence are adjacent. A field with all bits set is -1.
_PRODUCER = BATCH_HEADER.offset_of("producer_id"), BATCH_HEADER.offset_of("record_count")

Edit = Callable[[Sequence[Record]], Sequence[Record]]


class Transplant:
    """Rewrites the batches of one log so that they can be written to another log.

    Args:
        end_offset: records from this offset on are dropped, also from a batch that spans it.
        open_from: first offsets of open transactions by producer id. Records of these transactions
            are dropped.
        aborted: the aborted transactions, if the log comes from another cluster. None means that
            the cluster is the same, and producers stay.
        leader_epoch: the leader epoch to set in every batch. None leaves it unchanged.
        edit: changes the records of a batch. None means no change.
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
        """Rewrite the batches of ``table``, which are in ``data``.

        Returns (bytes of the batches, a row per batch as in ``ROW_COLUMNS``, their rows of
        ``table``).

        Raises:
            UnsupportedFormat: a batch of an older format spans the end offset or must be edited.
            CorruptLog: a batch that must be decoded is damaged.
        """
        table = table[self.stays(table)]
        starts, sizes = table["origin"], table["origin_size"].copy()
        is_old = bool((table["flags"] & IS_OLD).any())
        new = {} if is_old else self._rebuilt(data, table)
        is_cut = table["next_offset"] > self._end_offset
        if is_old and (self._edit is not None or bool(is_cut.any())):
            raise UnsupportedFormat("a batch of format v0 or v1 cannot be truncated or edited")
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
            self._rewrite_headers(made, rows[:, ROW_POSITION], rows[:, ROW_SIZE], table[is_there])
        return made, rows, table[is_there]

    def stays(self, table: BatchTable) -> npt.NDArray[np.bool_]:
        """An array with True for each batch that stays, completely or in part."""
        bases, producers = table["base_offset"], table["producer_id"]
        is_transactional = table["flags"] & IS_TRANSACTIONAL != 0
        # If a transactional batch spans the end offset, its transaction is open at that offset.
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
        """The bytes of each changed batch, by its row in ``table``. Empty if no record is left."""
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

    def _rewrite_headers(
        self, made: ByteArray, positions: Int64Array, sizes: Int64Array, table: BatchTable
    ) -> None:
        """Set the leader epoch of the batches that stay, and remove their producer fields."""
        if self._leader_epoch is not None:
            epoch = np.frombuffer(self._leader_epoch.to_bytes(4, "big", signed=True), np.uint8)
            made[positions[:, None] + np.arange(_EPOCH, _EPOCH + 4)] = epoch
        if not self._keeps_producers:
            chosen = table["producer_id"] >= 0
            places = positions[chosen]
            made[places[:, None] + np.arange(*_PRODUCER)] = 0xFF
            made[places + _LOW_ATTRIBUTES] &= 0xFF ^ TRANSACTIONAL_BIT
            kernels.reseal(made, places, np.ascontiguousarray(sizes[chosen]))
