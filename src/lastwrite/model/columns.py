"""Columns: the form in which bytes, rules and Spark exchange many records at once.

A format decodes a chunk of a segment into a *batch table* (one row per batch) and one *state byte*
per record. The rules read both and return one action per batch and one keep byte per record, and
the format carries these out. Nothing here depends on the system that wrote the bytes.

An *ordinal* is a record's number in its piece, counted from 0 over all records that are present.
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
        ("position", np.int64),  # in the chunk's buffer
        # its start in the bytes that were split; differs from ``position`` only if it was converted
        ("origin", np.int64),
        ("origin_size", np.int64),  # its bytes there
        ("size", np.int64),  # bytes, including the header
        ("base_offset", np.int64),
        ("next_offset", np.int64),  # last offset + 1; stays when the records are dropped
        ("records", np.int64),  # present now
        ("max_timestamp", np.int64),
        ("horizon", np.int64),  # the delete horizon, or NO_HORIZON
        ("flags", np.int64),  # the bits below
        ("producer_id", np.int64),  # -1 if there is none
        ("producer_epoch", np.int64),
        ("codec", np.int64),  # the format's own number; 0 means not compressed
        ("plain_start", np.int64),  # the records' bytes, in the plain buffer
        ("plain_end", np.int64),
    ]
)

# Batch flags.
IS_CONTROL = 1
HAS_PRODUCER = 2
IS_TRANSACTIONAL = 4
# of an older format, converted when it was read: never copied unchanged; has no horizon and ages by
# its file
IS_OLD = 8
IS_ABORTED = 16  # data of an aborted transaction
# the converted batch keeps its last offset, because only that shows where the log ends
KEEPS_LAST = 32
BAD_HORIZON = 64  # its bytes contain a horizon below 0, which counts as none

# Record states, one byte per record: its kind, and the result of the election.
KEYLESS = 1
TOMBSTONE = 2
CONTROL = 4
SHADOWED = 8
ABORTED = 16  # on data: in an aborted transaction; with CONTROL: the marker of an abort
COMMITTED = 32  # with CONTROL: the marker of a commit
SPENT = 64  # with CONTROL: this round read no batch of the marker's transaction

# A record's version under EVENT_TIME: ``time << TIME_SHIFT | bits``, uint64.
TIME_SHIFT = 2
IS_SINGLE = 2  # not in a batch: at equal times it counts as newer
IS_DELETE = 1

# A record's version under GROUPS: an even number of the whole record, 0 for none, and this bit on
# all parts but the last.
IN_GROUP = 1

# Actions on a batch: the rules decide, the format carries them out.
COPY = 0  # byte for byte
REBUILD = 1  # some records removed, or a horizon stamped
EMPTY = 2  # only the header stays
DROP = 3


# The columns that ``rebuild`` fills for each batch that it keeps, all int64.
ROW_POSITION = 0  # in the output of ``rebuild``
ROW_SIZE = 1
ROW_NEXT_OFFSET = 2
ROW_MAX_TIMESTAMP = 3
ROW_BASE_OFFSET = 4
ROW_NUMBER = 5  # the format's own number, for its index
ROW_COLUMNS = 6


class BatchRun(NamedTuple):
    """Neighbouring batches of a table whose records are uncompressed in one buffer."""

    first: int
    last: int  # exclusive
    plain: ByteArray


# the start and length of each value; length -1 means null
Slices: TypeAlias = tuple[Int64Array, Int64Array]


class RecordColumns(NamedTuple):
    """Many records as columns: keys and values are slices of ``data``."""

    data: ByteArray
    offsets: Int64Array
    times_ms: Int64Array
    time_types: Int64Array  # 0: set by the producer, 1: by the broker, -1: none
    keys: Slices
    values: Slices
    # the start and number of each record's headers, or what else ``with_headers`` needs
    headers: Slices
    positions: Int64Array  # of the batch, in the file
    orders: Int64Array  # ascending in a segment; the offset, unless records share one
    # of all headers, one after another; None if headers were not decoded
    header_names: Slices | None = None
    header_values: Slices | None = None

    @property
    def rows(self) -> int:
        return len(self.offsets)

    def take(self, which: Int64Array) -> RecordColumns:
        """The records at these rows; only before headers are decoded."""
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
    """The positions of records with keys, as columns."""

    lanes: UInt64Array  # the first lane of the key's fingerprint
    other_lanes: npt.NDArray[np.uint32]  # the high half of the second
    # a segment's number in the caller's list; ascending in a partition
    segments: npt.NDArray[np.uint32]
    positions: Int64Array  # of the batch in the segment; inverted (~) if the record deletes its key
    orders: Int64Array  # as ``RecordColumns.orders``
    times_ms: Int64Array

    @classmethod
    def room(cls, rows: int) -> Places:
        """Uninitialised columns."""
        return cls._make(np.empty(rows, dtype=kind) for kind in PLACE_TYPES)

    def take(self, which: slice | Int64Array) -> Places:
        """The records at these rows."""
        return Places._make(column[which] for column in self)

    @property
    def rows(self) -> int:
        return len(self.lanes)


def batch_table(rows: int) -> BatchTable:
    """An uninitialised table of ``rows`` batches."""
    return np.empty(rows, dtype=BATCH)
