"""A topic read from AutoMQ's bucket, beside a plain download of the same objects.

    python -m bench.automq [--megabytes N] [--repeats N] [--delay SECONDS] [--json FILE]

A real S3 server on this machine, by way of the peers' proxy, which holds each request back for
``--delay`` (0.02 s). The bucket is written as AutoMQ writes it: stream set objects of 64 MiB, in
blocks of 512 KiB; then the same records in stream objects, after a compaction. Both sides in turn:

    lastwrite    ``lastwrite.fetch`` of the topic into a folder: each checksum is verified
    download     the data objects as files, by the same client in requests of 8 MiB
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import lastwrite
from bench.buckets import download
from lastwrite.reports.fetching import LogsFetched
from lastwrite.storage.objects.address import store_at
from tests.support.kafka.automq import Cluster
from tests.support.objects import BUCKET, fault_proxy, s3_server

_VALUE_BYTES = 500 << 10  # of a batch: AutoMQ begins a block after 512 KiB
_OBJECT_BYTES = 64 << 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--delay", type=float, default=0.02)
    parser.add_argument("--json")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="automq-") as work:
        found = measure(Path(work), asked.megabytes, asked.repeats, asked.delay)
    print(json.dumps(found, indent=1))
    if asked.json:
        Path(asked.json).write_text(json.dumps(found, indent=1))
    return 0


def write_bucket(folder: Path, megabytes: int, *, is_compacted: bool) -> Cluster:
    """A bucket with one topic of one partition."""
    cluster = Cluster(folder, segment_records=256)
    cluster.topic("large")
    cluster.has_snapshots = True
    cluster.records_per_block, cluster.blocks_per_run = 1, 2 if is_compacted else 1
    draw = random.Random(1)
    left, inside = megabytes << 20, 0
    while left > 0:
        cluster.append("large", 0, draw.randbytes(_VALUE_BYTES))
        left, inside = left - _VALUE_BYTES, inside + _VALUE_BYTES
        if inside >= _OBJECT_BYTES or left <= 0:
            found = cluster.upload()
            if is_compacted and found is not None:
                cluster.split(found)
            inside = 0
    cluster.write_metadata()
    return cluster


def measure(work: Path, megabytes: int, repeats: int, delay: float) -> dict[str, Any]:
    found: dict[str, Any] = {"megabytes": megabytes, "delay": delay, "cores": os.cpu_count()}
    for name, is_compacted in (("uploaded", False), ("compacted", True)):
        cluster = write_bucket(work / name, megabytes, is_compacted=is_compacted)
        with s3_server(work / f"{name}-s3") as server, fault_proxy(server.endpoint) as proxy:
            target = next((work / f"{name}-s3").rglob(BUCKET))
            shutil.copytree(cluster.bucket, target, dirs_exist_ok=True)
            proxy.spoil({"do": "slow", "seconds": delay})
            config = {"storage.endpoint": proxy.endpoint, "storage.allowHttp": "true"}
            runs = [once(work, cluster, config) for _ in range(repeats + 1)][1:]
        seconds = {side: statistics.median(run[side] for run in runs) for side in runs[0]}
        times = round(seconds["lastwrite"] / seconds["download"], 2)
        found[name] = {"seconds": seconds, "times_download": times, "runs": runs}
    return found


def once(work: Path, cluster: Cluster, config: dict[str, str]) -> dict[str, float]:
    begin = time.perf_counter()
    report = lastwrite.fetch(
        f"s3://{BUCKET}",
        str(work / "archive"),
        topic="large",
        system="automq",
        metadata=str(cluster.metadata),
        config=config,
    )
    ours = time.perf_counter() - begin
    assert isinstance(report, LogsFetched) and report.exit_status == 0, report
    store, _ = store_at(f"s3://{BUCKET}")
    begin = time.perf_counter()
    for number, path in enumerate(cluster.object_paths()):
        key = path.relative_to(cluster.bucket).as_posix()
        download(store, key, work / "copy" / str(number))
    theirs = time.perf_counter() - begin
    shutil.rmtree(work / "archive")
    shutil.rmtree(work / "copy")
    return {"lastwrite": ours, "download": theirs}


if __name__ == "__main__":
    sys.exit(main())
