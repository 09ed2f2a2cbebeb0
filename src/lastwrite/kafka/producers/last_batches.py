"""A broker's state of each producer at a log's end, computed from the batches.

The smallest case: producer 7 writes sequences 0 to 4 at offsets 0 to 4, and commits at 5. Its
snapshot entry has last sequence 4, last offset 4, and the time and coordinator epoch of the marker.
Only the last batch and the last marker of each producer matter, so only a few of a table's
thousands of batches are decoded.

Source: Kafka 4.4 ``ProducerAppendInfo``, ``ProducerStateEntry``; docs/formats/kafka.md, "Producer
snapshot".
"""

from __future__ import annotations

import numpy as np

from lastwrite.kafka.format.batch import decode_batch, decode_batch_header, decode_control_record
from lastwrite.kafka.producers.snapshot import ProducerEntry
from lastwrite.model.columns import (
    IS_CONTROL,
    BatchTable,
    ByteArray,
    Int64Array,
)

_NONE = -1


class LastBatches:
    """The snapshot entry of each producer, collected from batch tables in the log's order.

    All transactions in the tables must have ended.
    """

    def __init__(self) -> None:
        self._last: dict[int, ProducerEntry] = {}

    @property
    def entries(self) -> tuple[ProducerEntry, ...]:
        """The entries by producer id, including expired ones, because expiry needs a clock."""
        return tuple(entry for _, entry in sorted(self._last.items()))

    def add(self, data: ByteArray, positions: Int64Array, table: BatchTable) -> None:
        """Add the batches of ``table``, all of magic 2, at ``positions`` in ``data``."""
        has_producer = table["producer_id"] >= 0
        is_control = table["flags"] & IS_CONTROL != 0
        is_marker = is_control & (table["records"] > 0)  # an empty control batch has no marker
        chosen = [has_producer & ~is_control, has_producer & is_marker]
        for row in sorted(row for each in chosen for row in _last_of_each(table, each)):
            at = int(positions[row])
            (self._marker if is_control[row] else self._data)(memoryview(data)[at:])

    def _data(self, batch: memoryview) -> None:
        header = decode_batch_header(batch, 0)
        before = self._last.get(header.producer_id)
        self._last[header.producer_id] = ProducerEntry(
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            last_sequence=header.last_sequence,
            last_offset=header.last_offset,
            offset_delta=header.last_offset_delta,
            timestamp_ms=header.max_timestamp_ms,
            coordinator_epoch=_NONE if before is None else before.coordinator_epoch,
            current_txn_first_offset=_NONE,
        )

    def _marker(self, batch: memoryview) -> None:
        found = decode_batch(batch, 0)
        header, (marker, *_) = found.header, found.records
        said = decode_control_record(marker)
        if said.coordinator_epoch is None:  # other control records do not change producers
            return
        before = self._last.get(header.producer_id)
        if before is None or before.producer_epoch != header.producer_epoch:
            before = ProducerEntry(header.producer_id, 0, _NONE, _NONE, 0, _NONE, _NONE, _NONE)
        self._last[header.producer_id] = before._replace(
            producer_epoch=header.producer_epoch,
            timestamp_ms=marker.timestamp_ms,
            coordinator_epoch=said.coordinator_epoch,
        )


def _last_of_each(table: BatchTable, chosen: np.ndarray) -> list[int]:
    """The last row of each producer among the selected rows."""
    rows = np.flatnonzero(chosen)[::-1]
    _, first = np.unique(table["producer_id"][rows], return_index=True)
    found: list[int] = rows[first].tolist()
    return found
