"""A checksum over the records of a log, independent of its batches and segments.

Two cleaners may merge other segments and compress differently, and still leave the same records. A
record is hashed from (offset, timestamp, key, value and headers as encoded). A log's checksum is
the sum of all hashes and their number. Libraries decompress the batches, and a kernel of this
module walks the records, without code of the engine.

Supports v2 batches without delete horizons, which all logs of the benchmarks have.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cramjam
import numpy as np
import numpy.typing as npt

from lastwrite.encoding.intrinsics import load64, swap32, swap64
from lastwrite.encoding.kernel import njit

Bytes = npt.NDArray[np.uint8]
_DECOMPRESS = {3: cramjam.lz4.decompress, 4: cramjam.zstd.decompress}
_HEADER = 61


@dataclass(frozen=True, slots=True)
class Contents:
    """The number of records of a log, and the sum of their hashes."""

    records: int
    sum: int

    def to_dict(self) -> dict[str, object]:
        return {"records": self.records, "sum": f"{self.sum:016x}"}


@njit(cache=True)
def _varint(data: Bytes, at: int) -> Any:
    """(value, end) of a zig-zag varint at ``at``."""
    raw = np.uint64(0)
    shift = np.uint64(0)
    while True:
        byte = np.uint64(data[at])
        at += 1
        raw |= (byte & np.uint64(127)) << shift
        if byte < 128:
            return np.int64(raw >> np.uint64(1)) ^ -np.int64(raw & np.uint64(1)), at
        shift += np.uint64(7)


@njit(cache=True)
def _mixed(state: Any, word: Any) -> Any:
    state = (state ^ word) * np.uint64(0x9FB21C651E98DF25)
    return state ^ (state >> np.uint64(35))


@njit(cache=True)
def _records(data: Bytes, at: int, count: int, base: int, stamp: int) -> Any:
    """(sum, end) of ``count`` records from ``at``."""
    total = np.uint64(0)
    for _ in range(count):
        size, at = _varint(data, at)
        end = at + size
        ahead, at = _varint(data, at + 1)
        delta, at = _varint(data, at)
        state = _mixed(
            _mixed(np.uint64(0x2545F4914F6CDD1D), np.uint64(base + delta)), np.uint64(stamp + ahead)
        )
        while at + 8 <= end:
            state = _mixed(state, load64(data, at))
            at += 8
        while at < end:
            state = _mixed(state, np.uint64(data[at]))
            at += 1
        total += state
    return total, at


@njit(cache=True)
def _header(data: Bytes, at: int) -> Any:
    """(end, codec, count, base offset, base timestamp) of the batch at ``at``."""
    end = at + 12 + np.int64(swap32(load64(data, at + 8)))
    count = np.int64(swap32(load64(data, at + 57)))
    base = np.int64(swap64(load64(data, at)))
    return end, np.int64(data[at + 22]) & 7, count, base, np.int64(swap64(load64(data, at + 27)))


@njit(cache=True)
def _plain(data: Bytes, at: int) -> Any:
    """(sum, records, end, ok) of the batches before the first compressed one."""
    total, records = np.uint64(0), 0
    while at < len(data):
        end, codec, count, base, stamp = _header(data, at)
        if end > len(data):
            return total, records, at, False
        if codec:
            break
        found, place = _records(data, at + _HEADER, count, base, stamp)
        if place != end:
            return total, records, at, False
        total, records, at = total + found, records + count, end
    return total, records, at, True


def contents_of(folder: Path) -> Contents:
    """The contents of all segments in a partition's folder.

    Raises:
        SystemExit: A batch is not complete.
    """
    total = records = 0
    for log in sorted(folder.glob("*.log")):
        # 8 bytes longer than the file, because the kernel reads whole words.
        data = np.zeros(log.stat().st_size + 8, dtype=np.uint8)[:-8]
        with open(log, "rb") as file:
            file.readinto(data.data)
        at = 0
        while at < len(data):
            found, count, at, is_whole = _plain(data, at)
            if is_whole and at < len(data):
                more, more_records, at = _compressed(data, at)
                total, records = total + more, records + more_records
            elif not is_whole:
                raise SystemExit(f"{log}: no whole batch at byte {at}")
            total, records = total + int(found), records + int(count)
    return Contents(records, total % (1 << 64))


def _compressed(data: Bytes, at: int) -> tuple[int, int, int]:
    """(sum, records, end) of the compressed batch at ``at``."""
    end, codec, count, base, stamp = _header(data, at)
    if not count:
        return 0, 0, int(end)
    plain = bytes(_DECOMPRESS[int(codec)](data[at + _HEADER : end].tobytes())) + bytes(8)
    found, place = _records(np.frombuffer(plain, dtype=np.uint8), 0, count, base, stamp)
    if place != len(plain) - 8:
        raise SystemExit(f"the batch of offset {base} does not end with its records")
    return int(found), int(count), int(end)
