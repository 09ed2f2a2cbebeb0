"""Writes large uncompressed logs fast, with keys and values that can be computed from the offsets.

    key number 7 at offset 12    the key is a 64-bit bijection of 7, the value repeats 12

A check can therefore turn every remaining record back into (number, offset), and compare it with
the last offset of each number. It shares no code with the engine. Keys look random and have 8
bytes, values are words of 8 bytes, and batches have 500 records. Indexes and producer snapshots are
those of a broker. One core makes about a gigabyte a second, without the disk.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lastwrite.encoding.checksum import crc32c
from lastwrite.encoding.intrinsics import load64, store16, store32, store64, swap16, swap32, swap64
from lastwrite.encoding.kernel import njit
from lastwrite.kafka.format.index import SegmentIndexer
from lastwrite.kafka.producers.snapshot import encode_snapshot

STAMP = 1_700_000_000_000  # timestamp of offset 0 in ms; it increases by 1 for every 1,000 records
A_BATCH = 500
_BATCH_BYTES = 500_000  # a batch of large records has fewer than 500
_ROUND_BATCHES = 400
_SCALE = 0x9E3779B97F4A7C15  # odd, so that the multiplication can be inverted
_UNSCALE = pow(_SCALE, -1, 1 << 64)

Bytes = npt.NDArray[np.uint8]
Int64s = npt.NDArray[np.int64]
Numbers = Callable[[int, int], Int64s]  # (first offset, end offset) -> key numbers


@njit(cache=True)
def _key(number: Any) -> Any:
    mixed = np.uint64(number) * np.uint64(_SCALE)
    mixed ^= mixed >> np.uint64(32)
    return mixed * np.uint64(_SCALE)


@njit(cache=True)
def _number(key: Any) -> Any:
    mixed = key * np.uint64(_UNSCALE)
    mixed ^= mixed >> np.uint64(32)
    return np.int64(mixed * np.uint64(_UNSCALE))


@njit(cache=True)
def _small_varint(out: Bytes, at: int, value: int) -> int:
    """Write a zig-zag varint from 0 to a million. Returns its end."""
    if value < 64:
        out[at] = np.uint8(value << 1)
        return at + 1
    out[at] = np.uint8((value << 1) & 127 | 128)
    if value < 8192:
        out[at + 1] = np.uint8(value >> 6)
        return at + 2
    out[at + 1] = np.uint8((value >> 6) & 127 | 128)
    out[at + 2] = np.uint8(value >> 13)
    return at + 3


@njit(cache=True)
def _varint_size(value: int) -> int:
    return 1 if value < 64 else 2 if value < 8192 else 3


@njit(cache=True)
def _read_small_varint(data: Bytes, at: int) -> Any:
    """(value, end) of a varint of at most two bytes."""
    first = np.int64(data[at])
    if first < 128:
        return first >> 1, at + 1
    return ((first & 127) | (np.int64(data[at + 1]) << 7)) >> 1, at + 2


@njit(cache=True)
def _digits(number: Any) -> Any:
    """The lower 32 bits as eight hexadecimal digits."""
    found = np.uint64(0)
    for n in range(8):
        digit = (number >> np.uint64(4 * n)) & np.uint64(15)
        digit += np.uint64(48) if digit < np.uint64(10) else np.uint64(87)
        found |= digit << np.uint64(8 * n)
    return found


@njit(cache=True)
def _write_batch(out: Bytes, base: int, numbers: Int64s, words: int, is_drawn: bool) -> int:
    """Write a batch with base offset ``base`` to ``out``. Returns its size."""
    at = 61
    count = len(numbers)
    value = 8 * words
    for i in range(count):
        size = 1 + 1 + _varint_size(i) + 1 + 8 + _varint_size(value) + value + 1
        at = _small_varint(out, at, size)
        out[at] = 0  # attributes
        out[at + 1] = 0  # timestamp delta
        at = _small_varint(out, at + 2, i)
        out[at] = 16  # 8 bytes of key
        store64(out, at + 1, swap64(_key(numbers[i])))
        at = _small_varint(out, at + 9, value)
        for k in range(words):
            word = np.uint64(base + i)
            store64(out, at + 8 * k, _digits(_key((base + i) * words + k)) if is_drawn else word)
        out[at + value] = 0  # no headers
        at += value + 1
    store64(out, 0, swap64(np.uint64(base)))
    store32(out, 8, swap32(np.uint64(at - 12)))
    store32(out, 12, swap32(np.uint64(0)))
    out[16] = 2
    store16(out, 21, swap16(np.uint64(0)))
    store32(out, 23, swap32(np.uint64(count - 1)))
    store64(out, 27, swap64(np.uint64(STAMP + base // 1000)))
    store64(out, 35, swap64(np.uint64(STAMP + base // 1000)))
    store64(out, 43, np.uint64(0xFFFFFFFFFFFFFFFF))
    store16(out, 51, np.uint64(0xFFFF))
    store32(out, 53, np.uint64(0xFFFFFFFF))
    store32(out, 57, swap32(np.uint64(count)))
    store32(out, 17, swap32(np.uint64(crc32c(out, 21, at))))
    return at


@njit(cache=True)
def _fill(
    out: Bytes,
    first: int,
    numbers: Int64s,
    words: int,
    batches: Int64s,
    batch_records: int,
    is_drawn: bool,
) -> Any:
    """Write batches of the offsets from ``first`` to ``out``. Returns (bytes, batches).

    Adds a row (position, size, last offset, timestamp) for each batch to ``batches``.
    """
    at = rows = done = 0
    while done < len(numbers):
        count = min(batch_records, len(numbers) - done)
        some = numbers[done : done + count]
        size = _write_batch(out[at:], first + done, some, words, is_drawn)
        batches[rows, 0], batches[rows, 1] = at, size
        batches[rows, 2], batches[rows, 3] = (
            first + done + count - 1,
            STAMP + (first + done) // 1000,
        )
        at += size
        rows += 1
        done += count
    return at, rows


def write_log(
    folder: Path,
    numbers: Numbers,
    first: int,
    end: int,
    words: int,
    segment_bytes: int,
    segment_records: int = 1 << 62,
    is_drawn: bool = False,
) -> dict[str, Any]:
    """Write the offsets ``first`` to ``end`` to ``folder``, and an empty active segment.

    ``words`` is a value's size in words of 8 bytes. A segment ends before it exceeds
    ``segment_bytes`` or has ``segment_records`` records, a multiple of a batch's. With
    ``is_drawn``, values are random hexadecimal digits, which compress to a half, and ``check``
    cannot check them. Returns ``records``, ``bytes``, ``segments``, ``log_end`` and ``seconds``.

    Raises:
        ValueError: ``segment_bytes`` is less than one batch, so that no segment could have a
            record.
    """
    begin = time.perf_counter()
    folder.mkdir(parents=True, exist_ok=True)
    batch_records = min(A_BATCH, max(1, _BATCH_BYTES // (20 + 8 * words)))
    batch_bytes = 61 + batch_records * (20 + 8 * words)
    round_batches = max(1, min(_ROUND_BATCHES, segment_bytes // batch_bytes // 2))
    out = np.empty(round_batches * batch_bytes, dtype=np.uint8)
    if segment_bytes < len(out):
        raise ValueError(
            f"segment_bytes is {segment_bytes}; with {words} words at least {len(out)}"
        )
    batches = np.empty((round_batches, 4), dtype=np.int64)
    total, segments, at = 0, 0, first
    while at < end:
        base, size = at, 0
        indexer = SegmentIndexer(base, 4096)
        with open(folder / f"{base:020d}.log", "wb", buffering=0) as log:
            while at < end and at - base < segment_records and size + len(out) <= segment_bytes:
                stop = min(at + round_batches * batch_records, end, base + segment_records)
                some = numbers(at, stop)
                filled, rows = _fill(out, at, some, words, batches, batch_records, is_drawn)
                log.write(out[:filled])
                found = batches[:rows]
                indexer.append(
                    found[:, 0] + size, found[:, 1].copy(), found[:, 2].copy(), found[:, 3].copy()
                )
                size, at = size + filled, stop
            os.fsync(log.fileno())
        offsets, times = indexer.finish()
        (folder / f"{base:020d}.index").write_bytes(offsets)
        (folder / f"{base:020d}.timeindex").write_bytes(times)
        # Without a snapshot, a reader would search the whole log for producers.
        (folder / f"{at:020d}.snapshot").write_bytes(encode_snapshot(()))
        total, segments = total + size, segments + 1
    (folder / f"{end:020d}.log").touch()
    (folder / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    return {
        "records": end - first,
        "bytes": total,
        "segments": segments + 1,
        "log_end": end,
        "seconds": round(time.perf_counter() - begin, 1),
    }


def drawn(keys: int, seed: int = 1, lowest: int = 0) -> Numbers:
    """Random key numbers from ``lowest`` to ``lowest + keys``.

    The number at an offset depends only on the offset and the seed.
    """

    def numbers(first: int, end: int) -> Int64s:
        found: Int64s = _draw(first, end, seed, lowest, keys)
        return found

    return numbers


@njit(cache=True)
def _draw(first: int, end: int, seed: int, lowest: int, keys: int) -> Int64s:
    """Random key numbers: SplitMix64 of each offset and the seed."""
    out = np.empty(end - first, dtype=np.int64)
    for i in range(end - first):
        mixed = np.uint64(first + i) + np.uint64(seed) * np.uint64(0xD1342543DE82EF95)
        mixed = (mixed + np.uint64(1)) * np.uint64(_SCALE)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
        out[i] = lowest + np.int64((mixed >> np.uint64(1)) % np.uint64(keys))
    return out


def counted(first: int, end: int) -> Int64s:
    """Key numbers that equal the offsets."""
    return np.arange(first, end, dtype=np.int64)


def last_offsets(numbers: Numbers, keys: int, end: int) -> Int64s:
    """The last offset below ``end`` of each key number below ``keys``. -1 means none."""
    last = np.full(keys, -1, dtype=np.int64)
    first = 0
    while first < end:
        stop = min(first + _ROUND_BATCHES * A_BATCH, end)
        # for equal numbers, NumPy keeps the last assignment
        last[numbers(first, stop)] = np.arange(first, stop)
        first = stop
    return last


@njit(cache=True)
def _tally(data: Bytes, last: Int64s, words: int, seen: Bytes) -> Any:
    """Count the records in ``data``. Returns (bytes read, records, keys at a wrong offset).

    ``seen`` counts the records of each key. A record that this module did not write ends the count.
    """
    at = records = wrong = 0
    value = 8 * words
    while at + 61 <= len(data):
        size: Any = np.int64(swap32(load64(data, at + 8))) + 12
        if at + size > len(data):
            break
        base = np.int64(swap64(load64(data, at)))
        count = np.int64(swap32(load64(data, at + 57)))
        place = at + 61
        for _ in range(count):
            _, place = _read_small_varint(data, place)
            delta, place = _read_small_varint(data, place + 2)  # attributes, timestamp delta
            if data[place] != 16:
                return at, records, wrong + 1
            number = _number(swap64(load64(data, place + 1)))
            found, place = _read_small_varint(data, place + 9)
            if found != value or data[place + value] != 0:
                return at, records, wrong + 1
            offset = base + delta
            if number < 0 or number >= len(last) or last[number] != offset:
                wrong += 1
            else:
                seen[number] += 1
            for k in range(words):
                wrong += load64(data, place + 8 * k) != np.uint64(offset)
            records += 1
            place += value + 1
        if place != at + size:
            return at, records, wrong + 1
        at += size
    return at, records, wrong


def check(folder: Path, last: Int64s, words: int) -> dict[str, int]:
    """Check what a compaction left: each key exactly once, at its offset in ``last``.

    Raises:
        SystemExit: A key is missing, duplicated or at a wrong offset.
    """
    keys = int(np.count_nonzero(last >= 0))
    seen = np.zeros(len(last), dtype=np.uint8)
    records = wrong = size = 0
    data: Bytes
    for log in sorted(folder.glob("*.log")):
        data = (
            np.memmap(log, dtype=np.uint8, mode="r")
            if log.stat().st_size
            else np.empty(0, dtype=np.uint8)
        )
        taken, found, bad = _tally(data, last, words, seen)
        records, wrong, size = records + int(found), wrong + int(bad), size + len(data)
        if taken != len(data):
            raise SystemExit(f"{log.name}: {len(data) - taken} bytes are no batches of ours")
    once = int(np.count_nonzero(seen == 1))
    if wrong or once != keys or records != keys:
        raise SystemExit(
            f"of {keys} keys {once} are there once; {records} records, {wrong} at a wrong place"
        )
    return {"records_left": records, "bytes_left": size, "keys_once_at_the_right_offset": once}
