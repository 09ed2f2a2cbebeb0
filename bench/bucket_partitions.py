"""Requests and seconds of a round for each of many small partitions in a bucket.

    python -m bench.bucket_partitions [--partitions 1000] [--kib 20] [--delay SECONDS]

Uses a real S3 server on this machine, and the peers' proxy, which delays each request by
``--delay`` (0.02 s). Each partition is one segment. Three of four records have keys that are
written again, so that a round reads the segment, rewrites it and commits. All requests of the
driver and the workers are counted. Ends with status 1 if there are more than 8 for a partition. A
second round has nothing to do.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import lastwrite
from bench import partitions
from bench.sampling import Sampler
from tests.support.objects import BUCKET, fault_proxy, s3_server

BAR = 8.0
_SETTINGS = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--partitions", type=int, default=1000)
    parser.add_argument("--kib", type=int, default=20)
    parser.add_argument("--delay", type=float, default=0.02)
    parser.add_argument("--json")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bucket-partitions-") as work:
        found = measure(Path(work), asked.partitions, asked.kib, asked.delay)
    print(json.dumps(found, indent=1))
    if asked.json:
        Path(asked.json).write_text(json.dumps(found, indent=1))
    return 0 if found["round"]["requests_a_partition"] <= BAR else 1


def measure(work: Path, count: int, kib: int, delay: float) -> dict[str, Any]:
    root = work / "root"
    partitions.write(root, kib * 10, 1)
    partitions.multiply(root, count)
    address = f"s3://{BUCKET}/many"
    with s3_server(work / "data") as server, fault_proxy(server.endpoint) as proxy:
        config = {**_SETTINGS, "storage.endpoint": proxy.endpoint, "storage.allowHttp": "true"}
        begin = time.perf_counter()
        lastwrite.fetch([str(root)], address, config=config)
        fetched = time.perf_counter() - begin
        lastwrite.plan(address, partition=0, config=config, master="local[2]")  # warm-up
        proxy.spoil({"do": "slow", "seconds": delay})
        first = one_round(address, config, count)
        again = one_round(address, config, count)
    if first["cleaned"] != count or again["cleaned"]:
        sys.exit(f"not every partition was cleaned, or some again: {first} {again}")
    return {
        "partitions": count,
        "delay": delay,
        "cores": os.cpu_count(),
        "fetch_seconds": round(fetched, 1),
        "round": first,
        "again": again,
    }


def one_round(address: str, config: dict[str, Any], count: int) -> dict[str, Any]:
    with Sampler(os.getpid(), every_seconds=0.5) as sampler:
        begin, used = time.perf_counter(), time.process_time()
        report = lastwrite.compact(address, config=config, master="local[2]")
        seconds, used = time.perf_counter() - begin, time.process_time() - used
    assert report.requests is not None
    asked = report.requests
    total = asked.gets + asked.puts + asked.lists + asked.deletes
    return {
        "cleaned": report.to_dict()["totals"]["cleaned"],
        "seconds": round(seconds, 1),
        "ms_a_partition": round(1000 * seconds / count, 1),
        "driver_processor_ms_a_partition": round(1000 * used / count, 2),
        "requests_a_partition": round(total / count, 2),
        "requests": report.requests.to_dict(),
        "stage_seconds": {name: round(s, 2) for name, s in report.stage_seconds.items()},
        **sampler.peak.to_dict(),
    }


if __name__ == "__main__":
    sys.exit(main())
