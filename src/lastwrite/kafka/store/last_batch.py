"""The last batch that an archive took from a live log: by it the log is known again.

Leader epochs tell of elections. They do not tell of a broker that was alone, lost the end of its
log in a crash and went on in the same epoch, as one beside ZooKeeper does, nor of a topic that was
made anew where topics have no ids. The batch is asked for once more with those that follow it.
"""

from __future__ import annotations

import zlib

import msgspec
import numpy as np

from lastwrite.model.columns import IS_OLD, NO_HORIZON, BatchTable, ByteArray


class LastBatch(msgspec.Struct, frozen=True, array_like=True):
    """What is known of it."""

    base_offset: int
    next_offset: int  # its last + 1
    records: int
    crc: int  # CRC-32 of all of its bytes


def last_of(data: ByteArray, table: BatchTable) -> LastBatch | None:
    """The last one of the table; None: it is of an older format, and no cleaner leaves those."""
    row = table[-1]
    return None if row["flags"] & IS_OLD else _known(data, row)


def behind(
    before: LastBatch | None, end: int, data: ByteArray, table: BatchTable, compacts: bool
) -> tuple[BatchTable, bool]:
    """The batches that follow offset ``end``, and whether those below it contradict ``before``.

    What a cleaner may have done contradicts nothing: it removes a batch, or records of one, or
    stamps it with a delete horizon; where it ends stays.
    """
    overlap = table[table["next_offset"] <= end]
    left = table[len(overlap) :]
    if before is None or not len(overlap):
        return left, False
    found = overlap[overlap["next_offset"] == before.next_offset]
    if not len(found):
        return left, True
    row = found[0]
    now = before if row["flags"] & IS_OLD else _known(data, row)
    if now == before:
        return left, False
    may_be_cleaned = compacts and (now.records < before.records or row["horizon"] != NO_HORIZON)
    return left, not may_be_cleaned or now.base_offset != before.base_offset


def _known(data: ByteArray, row: np.void) -> LastBatch:
    begin, size = int(row["origin"]), int(row["origin_size"])
    crc = zlib.crc32(data[begin : begin + size])
    return LastBatch(int(row["base_offset"]), int(row["next_offset"]), int(row["records"]), crc)
