"""Writes a new compaction log from records, like a broker.

Records are appended in order of their queue offsets, each with a unit in the index file of the same
name. A new pair of log and index files begins if a record would leave no room for a blank record of
8 bytes, or if its unit would fill the last slot of the index. The previous pair is closed with a
blank record and an end unit. The bytes of a record are unchanged except for the address, which is
its new position.

The last pair stays open: zeros follow its records, and a broker can append to it.

Source: RocketMQ 5.5.0 ``CompactionLog``, ``SparseConsumeQueue``;
docs/formats/rocketmq-compaction.md, "Into the compaction log" and "Files and their sizes".
"""

from __future__ import annotations

import os

import numpy as np

from lastwrite.errors import InvalidConfig
from lastwrite.model.columns import ROW_COLUMNS, ByteArray, Int64Array
from lastwrite.rocketmq.format.kernels import MessageTable
from lastwrite.rocketmq.format.names import file_name
from lastwrite.rocketmq.store.publish import Pair
from lastwrite.rocketmq.store.staging import NewPair, PairWriter


class QueueWriter(PairWriter):
    """Appends records to new log and index files in ``folder``, from address 0 on.

    The files are not synced.

    ``log_bytes`` and ``index_bytes`` are the file sizes, as returned by ``names.log_sizes``. The
    units of one file are kept in memory.
    """

    def __init__(self, folder: str, log_bytes: int, index_bytes: int) -> None:
        super().__init__()
        self.end_offset = 0  # queue offset after the last record
        self.records = 0
        self._folder = folder
        self._log_bytes, self._index_bytes = log_bytes, index_bytes

    def append(self, data: ByteArray, table: MessageTable) -> int:
        """Append the records of ``table``, whose bytes are in ``data``.

        Returns the number of appended records.

        As in a broker, a record is skipped if it has no key, or if its offset is not above all
        earlier offsets. Sets the records' addresses in ``data``.

        Raises:
            InvalidConfig: a record is larger than a file.
            LogError: a file cannot be written.
        """
        offsets = table["queue_offset"]
        highest = np.maximum.accumulate(np.concatenate((np.array([self.end_offset - 1]), offsets)))
        taken = np.flatnonzero((table["key_length"] >= 0) & (offsets > highest[:-1]))
        rows: Int64Array = np.zeros((len(taken), ROW_COLUMNS), np.int64)
        for column, name in enumerate(
            ("position", "size", "queue_offset", "store_time", "queue_offset", "tags_code")
        ):
            rows[:, column] = table[name][taken]
        rows[:, 2] += 1
        # Write each run of adjacent records, without the skipped records between two runs.
        starts = np.flatnonzero(rows[1:, 0] != rows[:-1, 0] + rows[:-1, 1]) + 1
        for run in np.split(rows, starts):
            self._append(data, run)
        if len(rows):
            self.end_offset = int(rows[-1, 2])
        self.records += len(rows)
        return len(rows)

    def finish(self) -> list[Pair]:
        """Extend the files to their full size. Returns the pairs of log and index files, in order.

        The last pair stays open for more records.
        """
        if self._pairs:
            self._pairs[-1].close(is_marked=False)
        return [
            Pair(file_name(number * self._log_bytes), file.path, file.index_path)
            for number, file in enumerate(self._pairs)
            if file.path is not None
        ]

    def _check_next(self, size: int) -> None:
        if not self._pairs[-1].count:
            raise InvalidConfig(
                f"a record of {size:,} bytes does not fit into a file of {self._log_bytes:,} bytes",
                path=self._folder,
                remedy="set compactionMappedFileSize and compactionCqMappedFileSize to the "
                "broker's values",
            )

    def _next(self) -> NewPair:
        start = len(self._pairs) * self._log_bytes
        path = os.path.join(self._folder, file_name(start))
        return NewPair(path, start, self._log_bytes, self._index_bytes, keeps_last_slot=True)
