"""RocketMQ records, chunk by chunk: what the engine asks of a format.

A commit log record is a batch of one record: ``split`` cuts a chunk into them and proves each body
by its checksum, ``opened`` decompresses what is compressed, to know that it can be and which bodies
are empty (a delete), ``walk`` takes the keys, ``rebuild`` copies what stays. Nothing is thinned: a
record stays or goes whole. An inner batch counts as one record of one key, as a broker has it
(docs/formats/rocketmq-compaction.md, "Into the compaction log").

What ``split`` finds out of each record beyond a batch's columns stays in this instance until the
next ``split``; the other calls are about that table.

Source: RocketMQ 5.5.0 CompactionLog; docs/formats/rocketmq.md, "Record";
docs/formats/rocketmq-compaction.md, "Into the compaction log" and "A run".
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partialmethod
from itertools import pairwise

import numpy as np

from lastwrite.errors import CorruptLog, UnsupportedFormat
from lastwrite.model.columns import BatchTable, ByteArray, Int64Array, Run, UInt64Array, batch_table
from lastwrite.model.policy import Policy
from lastwrite.rocketmq.format import chunk_kernels, kernels
from lastwrite.rocketmq.format.names import RESTORE_QUEUE
from lastwrite.rocketmq.format.record import COMPRESSED, decompress_body

_ROWS = 4096  # of the tables, at first
_ROW_BYTES = 512  # of all of them
_KEEP = f"nothing was changed; {RESTORE_QUEUE}"
_UNDECODABLE = f"{_KEEP}, or keep the record as it is with --config undecodable.messages=keep"
_NO_KEYS = np.empty((0, 2), dtype=np.int64)


class RocketmqFormat:
    """Records of a compaction log. Holds reusable buffers: one instance a worker, no sharing.

    ``plain_limit`` bounds the decompressed bytes of one body. With ``keeps_undecodable`` a record
    whose body does not decompress is a write like any other, and ``kept`` tells of it.
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
        self._kept: list[tuple[int, str]] = []
        self._hold(_ROWS)

    def _hold(self, rows: int) -> None:
        """Make room for so many records at once."""
        self._messages = np.empty(rows, dtype=kernels.MESSAGE)
        self._table = batch_table(rows)
        self._deletes: ByteArray = np.zeros(rows, dtype=np.uint8)
        self._is_full = False

    @property
    def messages(self) -> kernels.MessageTable:
        """What each record is, row for row with the last table, and longer."""
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
        """Cut ``buffer[start:end]`` into whole records, each body proven by its CRC-32.

        Returns the table, valid until the next call; where its records end; how many bytes the
        record needs that is cut short there (0: not known, -1: none is); ``buffer``.

        Raises:
            CorruptLog: size, magic, lengths or a checksum contradict the format, or queue offsets
                do not rise.
        """
        self._kept = []
        if self._is_full:  # Python takes as long for a longer table
            self._hold(min(2 * len(self._messages), self._most_rows))
        rows, consumed, code, at, wanted = kernels.split(buffer, start, end, self._messages, proves)
        self._is_full = consumed < end and rows == len(self._messages) < self._most_rows
        framed = chunk_kernels.frame(self._messages, rows, lowest_offset, self._table)
        if framed < rows:
            bad = self._messages[framed]
            if not framed:
                offset = int(bad["queue_offset"])
                raise CorruptLog(
                    f"queue offset {offset} where the next is {lowest_offset} or more",
                    int(bad["position"]) + 20,
                    remedy=_KEEP,
                )
            return self._table[:framed], int(bad["position"]), -1, buffer
        if not rows and code not in (kernels.OK, kernels.NEED_MORE):
            # Up to where the index says that records end, there are nothing but records.
            raise CorruptLog(kernels.CODES[code], int(at), remedy=_KEEP)
        return (
            self._table[:rows],
            int(consumed),
            int(wanted) if code == kernels.NEED_MORE else -1,
            buffer,
        )

    # Where all were proven before, ``rebuild`` proves those that stay.
    split_proven = partialmethod(split, proves=False)

    def opened(
        self, buffer: ByteArray, table: BatchTable, wanted: ByteArray | None = None
    ) -> Iterator[Run]:
        """The records of ``table`` (those with a non-zero byte in ``wanted``) in runs.

        Raises:
            CorruptLog: a body does not decompress. A broker would drop it and the rest of its file.
            UnsupportedFormat: it is compressed in a way that no release knows.
            OutOfMemoryBudget: one decompresses to more than the limit.
        """
        if chunk_kernels.note_deletes(self._messages, len(table), self._deletes):
            self._try_packed(buffer, len(table), wanted)
        if wanted is None:
            if len(table):
                yield Run(0, len(table), buffer)
            return
        borders = [0, *(np.flatnonzero(np.diff(wanted != 0)) + 1).tolist(), len(table)]
        for first, last in pairwise(borders if len(table) else ()):
            if wanted[first]:
                yield Run(first, last, buffer)

    def _try_packed(self, buffer: ByteArray, rows: int, wanted: ByteArray | None) -> None:
        """Decompress what is compressed, to know that it can be and which bodies are empty."""
        messages, deletes = self._messages[:rows], self._deletes[:rows]
        chosen = (messages["sys_flag"] & COMPRESSED != 0) & (deletes == 0)
        if wanted is not None:
            chosen &= wanted != 0
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
                self._kept.append(
                    (int(messages["position"][i]), f"queue offset {offset}: {error.problem}")
                )

    def kept(self) -> list[tuple[int, str]]:
        """Of unreadable records that were kept: where each begins in the buffer, and why; once."""
        kept, self._kept = self._kept, []
        return kept

    def walk(
        self,
        run: Run,
        table: BatchTable,
        secret: UInt64Array,
        ordinal: int,
        states: ByteArray,
        entries: UInt64Array,
        filled: int,
        keys: Int64Array | None = None,
    ) -> int:
        """Visit the run's records: a byte of ``states`` each, a row of ``entries`` each that has a
        key.

        Returns the rows of ``entries`` that are filled now. ``keys`` takes (position in
        ``run.plain``, length) row for row with ``entries``.
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
        run: Run,
        table: BatchTable,
        policy: Policy,
        ordinal: int,
        entries: UInt64Array,
        start: int,
        filled: int,
    ) -> None:
        """There is no other strategy than the offset."""
        raise UnsupportedFormat("a RocketMQ queue is compacted by offset alone")

    def records_below(self, run: Run, row: np.void, offset: int) -> int:
        """How many records of one batch of ``run`` lie below ``offset``."""
        return int(row["base_offset"] < offset)

    def rebuilt_size(self, table: BatchTable, records: int) -> int:
        """Bytes that ``rebuild`` may need at most for ``table``."""
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
        """Copy the records that are not to be dropped to ``out``, from its begin, and a row each to
        ``rows``.

        The sixth number of a row is the tags code. Returns (``out``, bytes written, rows filled).

        Raises:
            CorruptLog: the body of one that stays is not what its checksum says.
        """
        size, filled, done = chunk_kernels.rebuild(
            buffer, self._messages, len(table), actions, out, rows
        )
        if done < len(table):
            at = int(self._messages["position"][done]) + 8
            raise CorruptLog(kernels.CODES[kernels.BAD_CRC], at, remedy=_KEEP)
        return out, int(size), int(filled)
