"""The last batch that an archive fetched from a live log, used to recognise the log again.

Leader epochs show elections. They do not show that a lone broker lost the end of its log in a crash
and continued in the same epoch, as one with ZooKeeper does. Nor do they show that a topic without
an id was recreated. So the last batch is requested again together with those that follow it.
"""

from __future__ import annotations

import zlib

import msgspec
import numpy as np

from lastwrite.model.columns import IS_OLD, NO_HORIZON, BatchTable, ByteArray


class LastBatch(msgspec.Struct, frozen=True, array_like=True):
    """Identifies the batch."""

    base_offset: int
    next_offset: int  # the last offset + 1
    records: int
    crc: int  # CRC-32 of all of its bytes


def last_of(data: ByteArray, table: BatchTable) -> LastBatch | None:
    """The last batch of the table. None if it has an older format, which no cleaner leaves."""
    row = table[-1]
    return None if row["flags"] & IS_OLD else _known(data, row)


def behind(
    before: LastBatch | None, end: int, data: ByteArray, table: BatchTable, compacts: bool
) -> tuple[BatchTable, bool]:
    """The batches that follow offset ``end``, and whether those below it contradict ``before``.

    Changes that a cleaner may have made are no contradiction: it removes a batch or some of its
    records, or sets its delete horizon. The batch's end stays.
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
