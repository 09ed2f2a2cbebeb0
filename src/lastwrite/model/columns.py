"""Columns: many records at once, as formats, rules and Spark exchange them.

A format decodes a chunk of a segment into a *batch table* (one row per batch) and one *state byte*
per record. The rules read both. They return one action per batch and one keep byte per record,
which the format applies. Nothing here depends on the system that wrote the bytes.

An *ordinal* is a record's number in its piece, counted from 0 over all records in the piece.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

ByteArray: TypeAlias = npt.NDArray[np.uint8]
Int64Array: TypeAlias = npt.NDArray[np.int64]
UInt64Array: TypeAlias = npt.NDArray[np.uint64]
BatchTable: TypeAlias = npt.NDArray[np.void]

NO_HORIZON = np.iinfo(np.int64).min

BATCH = np.dtype(
    [
        ("position", np.int64),  # first byte of the batch in the chunk's buffer
        # first byte of the original batch; differs from ``position`` only for a converted batch
        ("origin", np.int64),
        ("origin_size", np.int64),  # bytes of the original batch
        ("size", np.int64),  # bytes of the batch, including the header
        ("base_offset", np.int64),
        ("next_offset", np.int64),  # last offset + 1; unchanged when records are dropped
        ("records", np.int64),  # number of records in the batch
        ("max_timestamp", np.int64),
        ("horizon", np.int64),  # delete horizon, or NO_HORIZON
        ("flags", np.int64),  # the batch flags below
        ("producer_id", np.int64),  # the producer's id; -1 if the batch has no producer
        ("producer_epoch", np.int64),
        ("codec", np.int64),  # the format's codec number; 0 means not compressed
        ("plain_start", np.int64),  # start of the uncompressed records in the plain buffer
        ("plain_end", np.int64),
    ]
)

# Batch flags.
IS_CONTROL = 1
HAS_PRODUCER = 2
IS_TRANSACTIONAL = 4
# The batch was converted from an older format when it was read. It is never copied unchanged. It
# has no horizon, so its tombstones age by the file's modification time.
IS_OLD = 8
IS_ABORTED = 16  # the batch has data of an aborted transaction
# conversion must keep the batch's last offset, because only it shows where the log ends
KEEPS_LAST = 32
BAD_HORIZON = 64  # the batch has a horizon below 0, which counts as none

# Record states, one byte per record: the record's kind, and whether it lost the election.
KEYLESS = 1
TOMBSTONE = 2
CONTROL = 4
SHADOWED = 8
ABORTED = 16  # without CONTROL, data of an aborted transaction; with CONTROL, an abort marker
COMMITTED = 32  # with CONTROL, a commit marker
SPENT = 64  # with CONTROL, a marker whose transaction has no batch in this round

# A record's version under EVENT_TIME: ``time << TIME_SHIFT | bits``, uint64.
TIME_SHIFT = 2
IS_SINGLE = 2  # the record is not in a batch: at equal times it counts as newer
IS_DELETE = 1

# Under GROUPS, a record's version is an even number that identifies its larger record, or 0 if it
# is in none. All parts of a larger record except the last add this bit.
IN_GROUP = 1

# Actions on a batch, chosen by the rules and applied by the format.
COPY = 0  # the batch is copied unchanged
REBUILD = 1  # records are removed, or a horizon is stamped
EMPTY = 2  # all records are removed, and the header stays
DROP = 3


# The columns that ``rebuild`` fills for each batch that it keeps, all int64.
ROW_POSITION = 0  # first byte of the batch in the output
ROW_SIZE = 1
ROW_NEXT_OFFSET = 2
ROW_MAX_TIMESTAMP = 3
ROW_BASE_OFFSET = 4
ROW_NUMBER = 5  # a number for the index (in RocketMQ: the tags code)
ROW_COLUMNS = 6


class BatchRun(NamedTuple):
    """Neighbouring batches of a table, with their decompressed records in one buffer."""

    first: int
    last: int  # number of the batch after the last, exclusive
    plain: ByteArray


# start and length of each value; length -1 means null
Slices: TypeAlias = tuple[Int64Array, Int64Array]


class RecordColumns(NamedTuple):
    """Many records as columns: keys and values are slices of ``data``."""

    data: ByteArray
    offsets: Int64Array
    times_ms: Int64Array
    time_types: Int64Array  # 0 if the producer set the time, 1 if the broker did, -1 for no time
    keys: Slices
    values: Slices
    # start and number of each record's headers, or other input of the format's ``with_headers``
    headers: Slices
    positions: Int64Array  # byte of the record's batch in the file
    # sort key, ascending in a segment; the offset, unless several records have the same offset
    orders: Int64Array
    # names of all headers, record by record; None if headers were not decoded
    header_names: Slices | None = None
    header_values: Slices | None = None

    @property
    def rows(self) -> int:
        return len(self.offsets)

    def take(self, which: Int64Array) -> RecordColumns:
        """The records in these rows. Must not be called after headers were decoded."""
        assert self.header_names is None
        return self._replace(
            offsets=self.offsets[which],
            times_ms=self.times_ms[which],
            time_types=self.time_types[which],
            keys=(self.keys[0][which], self.keys[1][which]),
            values=(self.values[0][which], self.values[1][which]),
            headers=(self.headers[0][which], self.headers[1][which]),
            positions=self.positions[which],
            orders=self.orders[which],
        )


PLACE_TYPES = np.uint64, np.uint32, np.uint32, np.int64, np.int64, np.int64


class Places(NamedTuple):
    """The positions of records in segments, with their key fingerprints, as columns."""

    lanes: UInt64Array  # first number of the key's fingerprint
    other_lanes: npt.NDArray[np.uint32]  # high half of the fingerprint's second number
    # index of the record's segment in the caller's list; ascending in a partition
    segments: npt.NDArray[np.uint32]
    # byte of the record's batch in the segment; inverted (~) if the record deletes its key
    positions: Int64Array
    orders: Int64Array  # number of the record in its segment, as in ``RecordColumns.orders``
    times_ms: Int64Array

    @classmethod
    def room(cls, rows: int) -> Places:
        """Uninitialized columns with this number of rows."""
        return cls._make(np.empty(rows, dtype=kind) for kind in PLACE_TYPES)

    def take(self, which: slice | Int64Array) -> Places:
        """The positions in these rows."""
        return Places._make(column[which] for column in self)

    @property
    def rows(self) -> int:
        return len(self.lanes)


def batch_table(rows: int) -> BatchTable:
    """An uninitialised table of ``rows`` batches."""
    return np.empty(rows, dtype=BATCH)
