"""RocketMQ's implementation of ``engine.system.Format``, which processes records in chunks.

A commit log record is a batch of one record:

- ``split`` splits a chunk into records and verifies each body's checksum.
- ``opened`` decompresses bodies, to detect broken and empty bodies. An empty body is a delete.
- ``walk`` fingerprints the keys.
- ``rebuild`` copies the records that are kept.

A record is kept or dropped whole. An inner batch counts as one record with one key, as in a broker
(docs/formats/rocketmq-compaction.md, "Into the compaction log").

``split`` also fills a table of MESSAGE rows, which the instance keeps until the next ``split``. The
other methods use that table.

Source: RocketMQ 5.5.0 CompactionLog; docs/formats/rocketmq.md, "Record";
docs/formats/rocketmq-compaction.md, "Into the compaction log" and "A run".
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partialmethod
from itertools import pairwise

import numpy as np

from lastwrite.errors import CorruptLog, UnsupportedFormat
from lastwrite.model.columns import (
    BatchRun,
    BatchTable,
    ByteArray,
    Int64Array,
    UInt64Array,
    batch_table,
)
from lastwrite.model.policy import Policy
from lastwrite.rocketmq.format import chunk_kernels, kernels
from lastwrite.rocketmq.format.names import RESTORE_QUEUE
from lastwrite.rocketmq.format.record import COMPRESSED, decompress_body

_ROWS = 4096  # initial rows of each table
_ROW_BYTES = 512  # memory for one row in all tables
_KEEP = f"nothing was changed; {RESTORE_QUEUE}"
_UNDECODABLE = (
    f"{_KEEP}, or keep the undecodable record unchanged with --config undecodable.messages=keep"
)
_NO_KEYS = np.empty((0, 2), dtype=np.int64)


class RocketmqFormat:
    """Reads and rebuilds the records of a compaction log.

    Each worker needs its own instance, which reuses buffers.

    ``plain_limit`` bounds the decompressed bytes of one body. With ``keeps_undecodable`` a record
    whose body does not decompress counts as an ordinary write, and ``kept`` lists it.
    """

    name = "rocketmq"
    damage_remedy = _KEEP
    cut_remedy = (
        "nothing was changed; restore the log file and its index from a replica or a backup"
    )

    def __init__(self, plain_limit: int = 64 << 20, *, keeps_undecodable: bool = False) -> None:
        self._limit = plain_limit
        self._most_rows = max(_ROWS, plain_limit // _ROW_BYTES)
        self._keeps_undecodable = keeps_undecodable
        self._notes: list[tuple[int, str]] = []
        self._reserve(_ROWS)

    def _reserve(self, rows: int) -> None:
        self._messages = np.empty(rows, dtype=kernels.MESSAGE)
        self._table = batch_table(rows)
        self._deletes: ByteArray = np.zeros(rows, dtype=np.uint8)
        self._is_full = False

    @property
    def messages(self) -> kernels.MessageTable:
        """A row of layout MESSAGE for each record of the last ``split``, in order.

        Further rows are unused.
        """
        return self._messages

    def split(
        self,
        buffer: ByteArray,
        start: int,
        end: int,
        lowest_offset: int,
        *,
        proves: bool = True,
    ) -> tuple[BatchTable, int, int, ByteArray]:
        """Split ``buffer[start:end]`` into whole records and verify each body's CRC-32.

        Returns four values: the table, which is valid until the next call; the position after the
        last whole record; the size of the partial record at that position; and ``buffer``. The size
        is 0 if unknown, and -1 if no partial record follows.

        Raises:
            CorruptLog: a size, magic, length or checksum is invalid, or queue offsets do not rise.
        """
        self._notes = []
        # Double the table if it was too small for the last call. A larger table needs fewer calls,
        # and each call has the same Python overhead.
        if self._is_full:
            self._reserve(min(2 * len(self._messages), self._most_rows))
        rows, consumed, code, at, wanted = kernels.split(buffer, start, end, self._messages, proves)
        self._is_full = consumed < end and rows == len(self._messages) < self._most_rows
        framed = chunk_kernels.frame(self._messages, rows, lowest_offset, self._table)
        if framed < rows:
            bad = self._messages[framed]
            if not framed:
                offset = int(bad["queue_offset"])
                raise CorruptLog(
                    f"the record has queue offset {offset}, but {lowest_offset} or more is "
                    "expected",
                    int(bad["position"]) + 20,
                    remedy=_KEEP,
                )
            return self._table[:framed], int(bad["position"]), -1, buffer
        if not rows and code not in (kernels.OK, kernels.NEED_MORE):
            # ``end`` is the end of the records according to the index, so every byte before it
            # belongs to a record.
            raise CorruptLog(kernels.CODES[code], int(at), remedy=_KEEP)
        return (
            self._table[:rows],
            int(consumed),
            int(wanted) if code == kernels.NEED_MORE else -1,
            buffer,
        )

    # ``split`` without checksums, for chunks that were verified before. ``rebuild`` verifies the
    # records that it copies.
    split_proven = partialmethod(split, proves=False)

    def opened(
        self, buffer: ByteArray, table: BatchTable, selected: ByteArray | None = None
    ) -> Iterator[BatchRun]:
        """The records of ``table`` in runs, with decompressed bodies.

        ``wanted`` has a byte per record; a byte other than 0 selects the record.

        Raises:
            CorruptLog: a body does not decompress. A broker would drop the record and the rest of
                its file.
            UnsupportedFormat: no release uses this compression type.
            OutOfMemoryBudget: a body decompresses to more than the limit.
        """
        if chunk_kernels.note_deletes(self._messages, len(table), self._deletes):
            self._try_packed(buffer, len(table), selected)
        if selected is None:
            if len(table):
                yield BatchRun(0, len(table), buffer)
            return
        borders = [0, *(np.flatnonzero(np.diff(selected != 0)) + 1).tolist(), len(table)]
        for first, last in pairwise(borders if len(table) else ()):
            if selected[first]:
                yield BatchRun(first, last, buffer)

    def _try_packed(self, buffer: ByteArray, rows: int, selected: ByteArray | None) -> None:
        """Decompress the compressed bodies, to detect broken and empty bodies."""
        messages, deletes = self._messages[:rows], self._deletes[:rows]
        chosen = (messages["sys_flag"] & COMPRESSED != 0) & (deletes == 0)
        if selected is not None:
            chosen &= selected != 0
        for i in np.flatnonzero(chosen).tolist():
            at, length = int(messages["body_at"][i]), int(messages["body_length"][i])
            body = buffer[at : at + length].tobytes()
            try:
                deletes[i] = not decompress_body(
                    body, int(messages["sys_flag"][i]), at, self._limit
                )
            except (CorruptLog, UnsupportedFormat) as error:
                if not self._keeps_undecodable:
                    raise type(error)(error.problem, error.at, remedy=_UNDECODABLE) from error
                offset = int(messages["queue_offset"][i])
                self._notes.append(
                    (int(messages["position"][i]), f"queue offset {offset}: {error.problem}")
                )

    def take_problems(self) -> list[tuple[int, str]]:
        """The undecodable records that were kept since the last call of this method.

        Each has its position in the buffer and the reason.
        """
        kept, self._notes = self._notes, []
        return kept

    def walk(
        self,
        run: BatchRun,
        table: BatchTable,
        secret: UInt64Array,
        ordinal: int,
        states: ByteArray,
        entries: UInt64Array,
        filled: int,
        keys: Int64Array | None = None,
    ) -> int:
        """Write the state of each record to ``states``, and each key's fingerprint to ``entries``.

        If ``keys`` is given, receives each key's position in ``run.plain`` and its length. Returns
        the number of rows of ``entries`` in use.
        """
        return int(
            chunk_kernels.walk(
                run.plain,
                self._messages,
                run.first,
                run.last,
                self._deletes,
                secret,
                ordinal,
                states,
                entries,
                filled,
                _NO_KEYS if keys is None else keys,
            )
        )

    def add_versions(
        self,
        buffer: ByteArray,
        run: BatchRun,
        table: BatchTable,
        policy: Policy,
        ordinal: int,
        entries: UInt64Array,
        start: int,
        filled: int,
    ) -> None:
        """Always raises UnsupportedFormat: a RocketMQ queue is compacted by offset only."""
        raise UnsupportedFormat("a RocketMQ queue is compacted by offset only")

    def records_below(self, run: BatchRun, row: np.void, offset: int) -> int:
        """The number of records of the batch below ``offset``: 1 or 0."""
        return int(row["base_offset"] < offset)

    def rebuilt_size(self, table: BatchTable, records: int) -> int:
        """The largest number of bytes that ``rebuild`` may write for ``table``."""
        return int(table["size"].sum())

    def rebuild(
        self,
        buffer: ByteArray,
        table: BatchTable,
        actions: ByteArray,
        horizons: Int64Array,
        keep: ByteArray,
        out: ByteArray,
        rows: Int64Array,
    ) -> tuple[ByteArray, int, int]:
        """Copy the records that are not dropped to the start of ``out``.

        Writes a row for each record to ``rows``, with the tags code as the row's sixth number.
        Returns (``out``, bytes written, rows filled).

        Raises:
            CorruptLog: a copied record's body does not match its checksum.
        """
        size, filled, done = chunk_kernels.rebuild(
            buffer, self._messages, len(table), actions, out, rows
        )
        if done < len(table):
            at = int(self._messages["position"][done]) + 8
            raise CorruptLog(kernels.CODES[kernels.BAD_CRC], at, remedy=_KEEP)
        return out, int(size), int(filled)
