"""100 million distinct keys within 2 GiB, all processes together: the proof, and its peak.

    python bench/memory.py                              # about 5 minutes, 11 GB of disk while it runs
    python bench/memory.py --keys 10000000 --memory 1g  # smaller

The log: key number 0 to n - 1, once each, in order; then every tenth key once more. So 1.1 n records come
in, n must stay, and for each of them we know where: key i at offset i, or at n + i / 10 if ten divides i.
The check decodes what compaction left, key by key and offset by offset, into one byte a key; it shares no
line with the engine. Beside it, with the same setting: 4 million keys, and how much longer a record takes here than
there. Ends with status 1 where the peak passes the setting, or a record takes twice as long.

Keys are 8 bytes, the number sent through a bijection of 64 bits, so that they look random and the check
can turn them back. Values are 24 bytes. Batches of 500, segments of 1 GiB, indexes as a broker's.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit
from sampling import Sampler, machine

from lastwrite.formats.checksum import crc32c
from lastwrite.formats.kafka.index import SegmentIndexer
from lastwrite.intrinsics import load64, store16, store32, store64, swap16, swap32, swap64

NOW_MS = 1_700_001_000_000
_STAMP = 1_700_000_000_000
_A_BATCH = 500
_MOST_BATCH_BYTES = 61 + _A_BATCH * 48
_BESIDE_KEYS = 4_000_000
_MOST_TIMES_AS_LONG = 2.0  # a record of many keys takes, beside one of few
_SEGMENT_BYTES = (1 << 30) - (1 << 20)
_SCALE = 0x9E3779B97F4A7C15  # odd, so that multiplying by it can be undone
_UNSCALE = pow(_SCALE, -1, 1 << 64)

Bytes = npt.NDArray[np.uint8]
Int64s = npt.NDArray[np.int64]


@njit(cache=True)  # type: ignore[untyped-decorator]
def _key(number: int) -> Any:
    mixed = np.uint64(number) * np.uint64(_SCALE)
    mixed ^= mixed >> np.uint64(32)
    return mixed * np.uint64(_SCALE)


@njit(cache=True)  # type: ignore[untyped-decorator]
def _number(key: Any) -> Any:
    mixed = key * np.uint64(_UNSCALE)
    mixed ^= mixed >> np.uint64(32)
    return np.int64(mixed * np.uint64(_UNSCALE))


@njit(cache=True)  # type: ignore[untyped-decorator]
def _small_varint(out: Bytes, at: int, value: int) -> int:
    """A zig-zag varint of 0 to 8191."""
    if value < 64:
        out[at] = np.uint8(value << 1)
        return at + 1
    out[at] = np.uint8((value << 1) & 127 | 128)
    out[at + 1] = np.uint8(value >> 6)
    return at + 2


@njit(cache=True)  # type: ignore[untyped-decorator]
def _write_batch(out: Bytes, base: int, count: int, keys: int) -> int:
    """The batch of offsets ``base`` to ``base + count`` into ``out``; returns its size."""
    at = 61
    for i in range(count):
        offset = base + i
        number = offset if offset < keys else (offset - keys) * 10
        size = 1 + 1 + (1 if i < 64 else 2) + 1 + 8 + 1 + 24 + 1
        at = _small_varint(out, at, size)
        out[at] = 0  # attributes
        out[at + 1] = 0  # timestamp delta
        at = _small_varint(out, at + 2, i)
        out[at] = 16  # 8 bytes of key
        store64(out, at + 1, swap64(_key(number)))
        out[at + 9] = 48  # 24 bytes of value
        for k in range(3):
            store64(out, at + 10 + 8 * k, np.uint64(offset))
        out[at + 34] = 0  # no headers
        at += 35
    store64(out, 0, swap64(np.uint64(base)))
    store32(out, 8, swap32(np.uint64(at - 12)))
    store32(out, 12, swap32(np.uint64(0)))
    out[16] = 2
    store16(out, 21, swap16(np.uint64(0)))
    store32(out, 23, swap32(np.uint64(count - 1)))
    store64(out, 27, swap64(np.uint64(_STAMP + base // 1000)))
    store64(out, 35, swap64(np.uint64(_STAMP + base // 1000)))
    store64(out, 43, np.uint64(0xFFFFFFFFFFFFFFFF))
    store16(out, 51, np.uint64(0xFFFF))
    store32(out, 53, np.uint64(0xFFFFFFFF))
    store32(out, 57, swap32(np.uint64(count)))
    store32(out, 17, swap32(np.uint64(crc32c(out, 21, at))))
    return at


@njit(cache=True)  # type: ignore[untyped-decorator]
def _fill(out: Bytes, first: int, end: int, keys: int, batches: Int64s) -> Any:
    """Whole batches of offsets ``first`` to ``end`` into ``out``; a row (position, size, last offset,
    timestamp) each to ``batches``. Returns (bytes, batches)."""
    at = rows = 0
    while first < end:
        count = min(_A_BATCH, end - first)
        size = _write_batch(out[at:], first, count, keys)
        batches[rows, 0], batches[rows, 1] = at, size
        batches[rows, 2], batches[rows, 3] = first + count - 1, _STAMP + first // 1000
        at += size
        rows += 1
        first += count
    return at, rows


def write_log(folder: Path, keys: int) -> dict[str, int]:
    """The log of the module's docstring into ``folder``; its records, bytes and segments."""
    folder.mkdir(parents=True)
    records = keys + keys // 10
    a_round = 2000 * _A_BATCH
    out = np.empty(2000 * _MOST_BATCH_BYTES, dtype=np.uint8)
    batches = np.empty((2000, 4), dtype=np.int64)
    total = segments = first = 0
    while first < records:
        base, size = first, 0
        indexer = SegmentIndexer(base, 4096)
        with open(folder / f"{base:020d}.log", "wb", buffering=0) as log:
            while first < records and size < _SEGMENT_BYTES - len(out):
                end = min(first + a_round, records)
                filled, rows = _fill(out, first, end, keys, batches)
                log.write(out[:filled])
                found = batches[:rows]
                indexer.append(found[:, 0] + size, found[:, 1].copy(), found[:, 2].copy(), found[:, 3].copy())
                size, first = size + filled, end
            os.fsync(log.fileno())
        offsets, times = indexer.finish()
        (folder / f"{base:020d}.index").write_bytes(offsets)
        (folder / f"{base:020d}.timeindex").write_bytes(times)
        total, segments = total + size, segments + 1
    (folder / f"{records:020d}.log").touch()
    return {"records": records, "bytes": total, "segments": segments + 1}


@njit(cache=True)  # type: ignore[untyped-decorator]
def _tally(data: Bytes, keys: int, seen: Bytes) -> Any:
    """Count what lies in the whole batches of ``data``: (bytes taken, records, keys at a wrong offset).

    ``seen`` counts each key's records. A record that does not look like ours ends the tally.
    """
    at = records = wrong = 0
    while at + 61 <= len(data):
        size: Any = np.int64(swap32(load64(data, at + 8))) + 12
        if at + size > len(data):
            break
        base = np.int64(swap64(load64(data, at)))
        count = np.int64(swap32(load64(data, at + 57)))
        place = at + 61
        for _ in range(count):
            place += 1 + 2  # length (one byte), attributes, timestamp delta
            delta = np.int64(data[place])
            place += 1
            if delta >= 128:
                delta = (delta & 127) | (np.int64(data[place]) << 7)
                place += 1
            if data[place] != 16 or data[place + 9] != 48 or data[place + 34] != 0:
                return at, records, wrong + 1
            number = _number(swap64(load64(data, place + 1)))
            offset = base + (delta >> 1)
            right = keys + number // 10 if number % 10 == 0 else number
            if number < 0 or number >= keys or offset != right or load64(data, place + 10) != np.uint64(offset):
                wrong += 1
            else:
                seen[number] += 1
            records += 1
            place += 35
        if place != at + size:
            return at, records, wrong + 1
        at += size
    return at, records, wrong


def check(folder: Path, keys: int) -> dict[str, int]:
    """What compaction left, against what must be left.

    Raises:
        SystemExit: a key is missing, doubled or at a wrong offset.
    """
    seen = np.zeros(keys, dtype=np.uint8)
    records = wrong = size = 0
    data: Bytes
    for log in sorted(folder.glob("*.log")):
        data = np.memmap(log, dtype=np.uint8, mode="r") if log.stat().st_size else np.empty(0, dtype=np.uint8)
        taken, found, bad = _tally(data, keys, seen)
        records, wrong, size = records + int(found), wrong + int(bad), size + len(data)
        if taken != len(data):
            raise SystemExit(f"{log.name}: {len(data) - taken} bytes are no batches of ours")
    once = int(np.count_nonzero(seen == 1))
    if wrong or once != keys or records != keys:
        raise SystemExit(f"of {keys} keys {once} are there once; {records} records, {wrong} at a wrong place")
    return {"records_left": records, "bytes_left": size, "keys_once_at_the_right_offset": once}


def main() -> int:
    parser = argparse.ArgumentParser(description="Many distinct keys within a memory setting, proven.")
    parser.add_argument("--keys", type=int, default=100_000_000, help="a multiple of ten")
    parser.add_argument("--memory", default="2g")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--work", type=Path, default=Path(os.environ.get("TMPDIR", "/tmp")) / "lastwrite-bench")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    folder = given.work / "memory" / "keys-0"
    beside = prove(folder, _BESIDE_KEYS, given.memory, given.master)
    result = prove(folder, given.keys, given.memory, given.master)
    ratio = result["nanoseconds_a_record"] / beside["nanoseconds_a_record"]
    result |= {"machine": machine(), "beside": beside, "times_as_long_a_record": round(ratio, 2)}
    text = json.dumps(result, indent=1)
    print(text)
    if given.json:
        given.json.write_text(text + "\n")
    limit = parse_size(given.memory)
    return 0 if int(result["peak_pss_mib"]) << 20 <= limit and ratio < _MOST_TIMES_AS_LONG else 1


def prove(folder: Path, keys: int, memory: str, master: str) -> dict[str, Any]:
    """Write the log of ``keys``, compact it, check it, remove it."""
    shutil.rmtree(folder.parent, ignore_errors=True)
    try:
        begin = time.perf_counter()
        made = write_log(folder, keys)
        print(f"wrote {made} in {time.perf_counter() - begin:.1f} s", file=sys.stderr, flush=True)
        result = run(folder, memory, master)
        print(f"compacted in {result['seconds']:.1f} s", file=sys.stderr, flush=True)
        a_record = round(1e9 * result["busy_seconds"] / made["records"], 1)
        return {"keys": keys, "memory": memory, **made, **result, "nanoseconds_a_record": a_record,
                **check(folder, keys)}  # fmt: skip
    finally:
        shutil.rmtree(folder.parent, ignore_errors=True)


def parse_size(text: str) -> int:
    return int(float(text[:-1]) * {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}[text[-1].lower()])


def run(folder: Path, memory: str, master: str) -> dict[str, Any]:
    """Compact ``folder`` from the shell, sampling the whole tree of processes."""
    begin = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "lastwrite.cli", "compact", str(folder), "--json", "--memory", memory, "--master",
         master, "--now", str(NOW_MS)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    with Sampler(process.pid) as sampler:
        said, _ = process.communicate()
    seconds = time.perf_counter() - begin
    report = json.loads(said)
    totals = report["totals"]
    if totals["cleaned"] != 1:
        raise SystemExit(f"not cleaned: {report['partitions']}")
    # Tasks and commit; not Spark's start, for which the first stage waits, and which is the same for any log.
    busy = totals["stage_seconds"]["commit"] + sum(stage["task_seconds"] for stage in totals["profile"].values())
    return {
        "seconds": round(seconds, 2), "busy_seconds": round(busy, 3), "stage_seconds": totals["stage_seconds"],
        "records_before": totals["records_before"], "records_after": totals["records_after"],
        "keys_counted": report["partitions"][0]["keys"], **sampler.peak.to_dict(),
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
