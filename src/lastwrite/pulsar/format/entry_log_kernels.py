"""Kernels over a bookie's files: find the records of some ledgers, and frame their entries.

An entry log mixes all ledgers of all topics. Only the first 16 bytes of a record are read unless
its ledger is wanted. ``tests/unit/test_pulsar_entry_log_kernels.py`` compares the kernels with the
slow reader in ``entry_log``. The layout of a record:

    0 size i32 · then: 0 ledger i64 · 8 entry i64 · 16 last add confirmed i64 · 24 length i64 · 32
    digest · payload

Source: BookKeeper 4.17.3 ``DefaultEntryLogger``, ``DirectEntryLogger``, ``Journal``;
docs/formats/pulsar.md, "Entry log".
"""
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import numpy as np

from lastwrite.encoding.big_endian import i32, i64, u32
from lastwrite.encoding.checksum import crc32, crc32c
from lastwrite.encoding.intrinsics import (
    address,
    copy_bytes,
    load8,
    store32,
    store64,
    swap32,
    swap64,
)
from lastwrite.encoding.kernel import njit

STORED = np.dtype(
    [
        ("ledger", np.int64),
        ("entry", np.int64),
        # last entry that was confirmed when this entry was written; -1: none
        ("confirmed", np.int64),
        ("length", np.int64),  # payload bytes of the ledger, up to and including this entry
        ("at", np.int64),  # position of the payload in the file
        ("size", np.int64),
        ("digest", np.int64),  # digest that matched: one of ``…_HELD``
        ("file", np.int64),  # number of the file, which the caller assigns
    ]
)

# Digests.
NO_DIGEST_HELD = 0
CRC32C_HELD = 1
CRC32_HELD = 2

# Why ``walk`` stopped.
AT_END = 0
TABLE_FULL = 1  # ``table`` is full: call again from the returned position
SCRATCH_FULL = 2  # the scratch is too small for the next record
TORN = 3  # the size exceeds the file, or is impossible for a record
WRITTEN_END = 4  # the written records of the journal end here

FRAME_BYTES = 12  # size of the frame before an entry in a data object: its size and its id
_HEAD_BYTES = 32  # size of a record's head, which the digest covers besides the payload
# Bytes of ledger id and entry id. A bookie's own record may end there; a smaller size is padding.
_SMALLEST_BYTES = 16
_PADDING_BYTE = 0xF0  # the direct I/O writer's fill byte, up to the next multiple of the alignment
_ALIGNMENT = 4096
_MOST_TO_PROVE = 64 << 20
_PADDING_MARK = -256  # value of the size field that marks padding in a journal


# The loop is one long function, because each part would need as many parameters as the whole.
@njit(cache=True, nogil=True)
def walk(data, at, must_prove, wanted, is_journal, table, scratch):
    """Find records of the ``wanted`` ledgers from byte ``at`` on, and fill ``table`` (STORED).

    ``wanted`` must ascend. With ``must_prove``, the next record is only accepted if its digest
    matches. Pass false at the start of a log; the kernel sets it after a gap that no writer leaves.

    Returns the number of filled rows, the position reached, ``must_prove`` at that position, and
    the code of the reason to stop.
    """
    rows = 0
    end = len(data)
    where = address(data)
    while at + 4 <= end:
        size = i32(where, at)
        body = at + 4
        if is_journal:
            if size == 0:
                return rows, at, must_prove, WRITTEN_END
            if size == _PADDING_MARK:
                if at + 8 > end or i32(where, body) < 0:
                    return rows, at, must_prove, TORN
                at += 8 + i32(where, body)
                continue
            if size < _SMALLEST_BYTES or size > end - body:
                return rows, at, must_prove, TORN
        elif size < _SMALLEST_BYTES:
            if load8(where, at) == _PADDING_BYTE:
                at += _ALIGNMENT - at % _ALIGNMENT
            else:
                at += 1
                must_prove = True
            continue
        elif size > end - body:
            if not must_prove:
                return rows, at, must_prove, TORN
            at += 1
            continue
        ledger = i64(where, body)
        entry = i64(where, body + 8)
        if must_prove and (ledger < 0 or entry < 0 or size > _MOST_TO_PROVE):
            at += 1
            continue
        is_wanted = False
        if ledger >= 0 and entry >= 0:
            place = np.searchsorted(wanted, ledger)
            is_wanted = place < len(wanted) and wanted[place] == ledger
        if is_wanted or must_prove:
            if rows == len(table):
                return rows, at, must_prove, TABLE_FULL
            if size > len(scratch):
                return rows, at, must_prove, SCRATCH_FULL
            digest, payload, payload_size = _digest(where, body, size, scratch)
            if must_prove and digest == NO_DIGEST_HELD:
                at += 1
                continue
            must_prove = False
            if is_wanted:
                row = table[rows]
                rows += 1
                row["ledger"] = ledger
                row["entry"] = entry
                row["confirmed"] = i64(where, body + 16) if size >= _HEAD_BYTES else -1
                row["length"] = i64(where, body + 24) if size >= _HEAD_BYTES else 0
                row["digest"] = digest
                row["at"] = payload
                row["size"] = payload_size
        at = body + size
    return rows, min(at, end), must_prove, AT_END


@njit(cache=True, nogil=True)
def _digest(where, body, size, scratch):
    """The kind of a record's digest, and the position of the payload.

    A record does not state the kind, so each kind is computed and compared.
    """
    if size >= _HEAD_BYTES + 4:
        payload = size - _HEAD_BYTES - 4
        copy_bytes(scratch, 0, where, body, _HEAD_BYTES)
        copy_bytes(scratch, _HEAD_BYTES, where, body + _HEAD_BYTES + 4, payload)
        if u32(where, body + _HEAD_BYTES) == np.int64(crc32c(scratch, 0, _HEAD_BYTES + payload)):
            return CRC32C_HELD, body + _HEAD_BYTES + 4, payload
    if size >= _HEAD_BYTES + 8:
        payload = size - _HEAD_BYTES - 8
        copy_bytes(scratch, _HEAD_BYTES, where, body + _HEAD_BYTES + 8, payload)
        if i64(where, body + _HEAD_BYTES) == np.int64(crc32(scratch, 0, _HEAD_BYTES + payload)):
            return CRC32_HELD, body + _HEAD_BYTES + 8, payload
    return NO_DIGEST_HELD, body + min(size, _HEAD_BYTES), max(size - _HEAD_BYTES, 0)


@njit(cache=True, nogil=True)
def frame(data, rows, places, out):
    """Write the entries of ``rows`` (STORED) from ``data`` to ``out`` as a data object frames them.

    Each is written at its position in ``places``, as int32 size, int64 entry id and bytes. The
    caller ensures that the entries fit.
    """
    where, target = address(data), address(out)
    for n in range(len(rows)):
        size, at, to = rows[n]["size"], rows[n]["at"], places[n]
        store32(target, to, swap32(np.uint64(size)))
        store64(target, to + 4, swap64(np.uint64(rows[n]["entry"])))
        copy_bytes(target, to + 12, where, at, size)
