"""Columns: how bytes, rules and Spark speak of many records at once.

A format decodes a chunk of a segment into a *batch table* (one row a batch) and a *state byte* a
record; the rules read both and answer with an action a batch and a keep byte a record; the format
obeys. Nothing here knows which system wrote the bytes.

An *ordinal* is a record's place in its piece, counted from 0 over all records that are present.
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
        ("position", np.int64),  # of the batch, in the chunk's buffer
        # where it began in the bytes that were split: the same, unless it was converted
        ("origin", np.int64),
        ("origin_size", np.int64),  # bytes it took there
        ("size", np.int64),  # bytes, header included
        ("base_offset", np.int64),
        ("next_offset", np.int64),  # last offset + 1; outlives the records
        ("records", np.int64),  # present now
        ("max_timestamp", np.int64),
        ("horizon", np.int64),  # delete horizon, or NO_HORIZON
        ("flags", np.int64),  # the bits below
        ("producer_id", np.int64),  # -1: none
        ("producer_epoch", np.int64),
        ("codec", np.int64),  # the format's own number; 0: plain
        ("plain_start", np.int64),  # the records' bytes, in the plain buffer
        ("plain_end", np.int64),
    ]
)

# Batch flags.
IS_CONTROL = 1
HAS_PRODUCER = 2
IS_TRANSACTIONAL = 4
# of an older format, converted as it was read: never copied as it is; has no horizon, ages by its
# file
IS_OLD = 8
IS_ABORTED = 16  # data of an aborted transaction
KEEPS_LAST = 32  # converted, it still ends where it ended: nothing else tells where the log does
BAD_HORIZON = 64  # its bytes have a horizon below 0, which counts as none

# Record states, one byte a record: what the record is, and what election found.
KEYLESS = 1
TOMBSTONE = 2
CONTROL = 4
SHADOWED = 8
ABORTED = 16  # on data: of an aborted transaction; with CONTROL: the marker that aborts one
COMMITTED = 32  # with CONTROL: the marker that commits a transaction
SPENT = 64  # with CONTROL: a marker of whose transaction no batch was left when this round read it

# A record's version where event times decide: ``time << TIME_SHIFT | bits``, uint64.
TIME_SHIFT = 2
IS_SINGLE = 2  # no member of a batch: of equal times it is the newer one
IS_DELETE = 1

# A record's version where some are parts of a larger one: a number of the whole, even and 0 for
# none, and this bit on all parts but the last.
IN_GROUP = 1

# Actions on a batch, decided by the rules, carried out by the format.
COPY = 0  # byte for byte
REBUILD = 1  # thinned, or stamped with a horizon
EMPTY = 2  # the header stays, with no record
DROP = 3


# What ``rebuild`` says of each batch that it leaves: an int64 each, in this order.
ROW_POSITION = 0  # in its output
ROW_SIZE = 1
ROW_NEXT_OFFSET = 2
ROW_MAX_TIMESTAMP = 3
ROW_BASE_OFFSET = 4
ROW_NUMBER = 5  # a number of the format's own, for its index
ROW_COLUMNS = 6


class Run(NamedTuple):
    """Neighbouring batches of a table whose records lie in the clear in one buffer."""

    first: int
    last: int  # exclusive
    plain: ByteArray


Slices: TypeAlias = tuple[Int64Array, Int64Array]  # where each begins, and its length; -1: null


class RecordColumns(NamedTuple):
    """Many records, a place in each column a record: keys and values as slices of ``data``."""

    data: ByteArray
    offsets: Int64Array
    times_ms: Int64Array
    time_types: Int64Array  # 0: of the producer, 1: of the broker, -1: none
    keys: Slices
    values: Slices
    # where those of each begin, and how many there are, or what else ``with_headers`` needs
    headers: Slices
    positions: Int64Array  # in the file, of the batch
    orders: Int64Array  # rise through a segment; the offset, unless records share one
    header_names: Slices | None = None  # of all headers, one behind another; None: not looked for
    header_values: Slices | None = None

    @property
    def rows(self) -> int:
        return len(self.offsets)

    def take(self, which: Int64Array) -> RecordColumns:
        """Some of them, before headers are looked for."""
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
    """Where records with keys lie: a place in each column a record."""

    lanes: UInt64Array  # of the key's fingerprint, the first
    other_lanes: npt.NDArray[np.uint32]  # the high half of the second
    # the number of a segment, in a list of the caller's; they rise through a partition
    segments: npt.NDArray[np.uint32]
    positions: Int64Array  # of the batch in it; inverted (~): the record deletes its key
    orders: Int64Array  # as ``RecordColumns.orders``
    times_ms: Int64Array

    @classmethod
    def room(cls, rows: int) -> Places:
        """Uninitialised columns."""
        return cls._make(np.empty(rows, dtype=kind) for kind in PLACE_TYPES)

    def take(self, which: slice | Int64Array) -> Places:
        """Some of them."""
        return Places._make(column[which] for column in self)

    @property
    def rows(self) -> int:
        return len(self.lanes)


def batch_table(rows: int) -> BatchTable:
    """An uninitialised table of ``rows`` batches."""
    return np.empty(rows, dtype=BATCH)
