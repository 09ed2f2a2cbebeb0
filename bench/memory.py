"""Compacts 100 million distinct keys within 2 GiB for all processes, and measures the peak.

    python -m bench.memory                              # about 5 minutes, 11 GB of disk meanwhile
    python -m bench.memory --keys 10000000 --memory 1g  # smaller

The log has the keys 0 to n - 1 in order, and then every tenth key once more. Of its 1.1 n records,
n must remain, at known offsets: key i at offset i, or at n + i / 10 if 10 divides i. The check
decodes the result key by key and offset by offset into one byte for each key, without code of the
engine (``generate.py``). The time for a record is compared with that of 4 million keys and the same
setting. Ends with status 1 if the peak exceeds the setting, or if a record takes more than twice as
long. Values have 24 bytes, segments 1 GiB.
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

from bench import generate
from bench.sampling import Sampler, machine

NOW_MS = 1_700_001_000_000
_BESIDE_KEYS = 4_000_000
_MOST_TIMES_AS_LONG = 2.0  # the limit of the time for a record with many keys, relative to few keys
_SEGMENT_BYTES = (1 << 30) - (1 << 20)
_WORDS = 3  # a value's size in words of 8 bytes


def write_log(folder: Path, keys: int) -> dict[str, Any]:
    """Write the log of the module's docstring. Returns its records, bytes and segments."""

    def numbers(first: int, end: int) -> generate.Int64s:
        offsets = np.arange(first, end, dtype=np.int64)
        return np.where(offsets < keys, offsets, 10 * (offsets - keys))

    return generate.write_log(folder, numbers, 0, keys + keys // 10, _WORDS, _SEGMENT_BYTES)


def check(folder: Path, keys: int) -> dict[str, int]:
    """Check what the compaction left.

    Raises:
        SystemExit: A key is missing, duplicated or at a wrong offset.
    """
    last = np.arange(keys, dtype=np.int64)
    last[::10] = np.arange(keys, keys + keys // 10)
    return generate.check(folder, last, _WORDS)


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Many distinct keys within a memory setting, proven."
    )
    parser.add_argument("--keys", type=int, default=100_000_000, help="a multiple of ten")
    parser.add_argument("--memory", default="2g")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument(
        "--work", type=Path, default=Path(os.environ.get("TMPDIR", "/tmp")) / "lastwrite-bench"
    )
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
    """Write the log of ``keys`` keys, compact it, check it and remove it."""
    shutil.rmtree(folder.parent, ignore_errors=True)
    try:
        begin = time.perf_counter()
        made = write_log(folder, keys)
        print(f"wrote {made} in {time.perf_counter() - begin:.1f} s", file=sys.stderr, flush=True)
        result = run(folder, memory, master)
        print(f"compacted in {result['seconds']:.1f} s", file=sys.stderr, flush=True)
        a_record = round(1e9 * result["busy_seconds"] / made["records"], 1)
        return {
            "keys": keys,
            "memory": memory,
            **made,
            **result,
            "nanoseconds_a_record": a_record,
            **check(folder, keys),
        }
    finally:
        shutil.rmtree(folder.parent, ignore_errors=True)


def parse_size(text: str) -> int:
    return int(float(text[:-1]) * {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}[text[-1].lower()])


def run(folder: Path, memory: str, master: str) -> dict[str, Any]:
    """Compact ``folder`` by the command line, and sample the memory of all its processes."""
    begin = time.perf_counter()
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "lastwrite.cli",
            "compact",
            str(folder),
            "--json",
            "--memory",
            memory,
            "--master",
            master,
            "--now",
            str(NOW_MS),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with Sampler(process.pid) as sampler:
        said, _ = process.communicate()
    seconds = time.perf_counter() - begin
    report = json.loads(said)
    totals = report["totals"]
    if totals["cleaned"] != 1:
        raise SystemExit(f"not cleaned: {report['partitions']}")
    # Only tasks and the commit. Starting Spark, which delays the first stage, takes the same time
    # for any log.
    busy = totals["stage_seconds"]["commit"] + sum(
        stage["task_seconds"] for stage in totals["profile"].values()
    )
    return {
        "seconds": round(seconds, 2),
        "busy_seconds": round(busy, 3),
        "stage_seconds": totals["stage_seconds"],
        "records_before": totals["records_before"],
        "records_after": totals["records_after"],
        "keys_counted": report["partitions"][0]["keys"],
        **sampler.peak.to_dict(),
    }


if __name__ == "__main__":
    sys.exit(main())
