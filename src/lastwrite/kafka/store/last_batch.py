"""The last batch that an archive fetched from a live log, to detect that the log was replaced.

Leader epochs reveal only elections. But a single broker under ZooKeeper may lose the end of its log
in a crash and continue in the same epoch, and a topic without an id may be recreated. Therefore
each fetch requests the last batch again, together with the batches after it.
"""

from __future__ import annotations

import zlib

import msgspec
import numpy as np

from lastwrite.model.columns import IS_OLD, NO_HORIZON, BatchTable, ByteArray


class LastBatch(msgspec.Struct, frozen=True, array_like=True):
    """The last batch that was fetched: the fields that identify it."""

    base_offset: int
    next_offset: int  # last offset of the batch + 1
    records: int
    crc: int  # CRC-32 of all bytes of the batch


def last_of(data: ByteArray, table: BatchTable) -> LastBatch | None:
    """The identity of a table's last batch. None if it is of v0 or v1, which a cleaner rewrites."""
    row = table[-1]
    return None if row["flags"] & IS_OLD else _last_batch_at(data, row)


def batches_from(
    before: LastBatch | None, end: int, data: ByteArray, table: BatchTable, compacts: bool
) -> tuple[BatchTable, bool]:
    """The batches from offset ``end`` on, and whether the log was replaced since the last fetch.

    ``before`` is the last batch that was fetched. The log was replaced if it has another batch
    there. A cleaner may remove a batch or some of its records, or set its delete horizon, but keeps
    the batch's end offset. Such changes do not count.
    """
    overlap = table[table["next_offset"] <= end]
    left = table[len(overlap) :]
    if before is None or not len(overlap):
        return left, False
    found = overlap[overlap["next_offset"] == before.next_offset]
    if not len(found):
        return left, True
    row = found[0]
    now = before if row["flags"] & IS_OLD else _last_batch_at(data, row)
    if now == before:
        return left, False
    may_be_cleaned = compacts and (now.records < before.records or row["horizon"] != NO_HORIZON)
    return left, not may_be_cleaned or now.base_offset != before.base_offset


def _last_batch_at(data: ByteArray, row: np.void) -> LastBatch:
    begin, size = int(row["origin"]), int(row["origin_size"])
    crc = zlib.crc32(data[begin : begin + size])
    return LastBatch(int(row["base_offset"]), int(row["next_offset"]), int(row["records"]), crc)
