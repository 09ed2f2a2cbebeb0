"""Compaction of a topic in a bucket, compared with download, Kafka's cleaner and upload.

    python -m bench.buckets [--records N] [--repeats N] [--delay SECONDS] [--json FILE]

Uses a real S3 server on this machine, and the peers' proxy, which delays each request by
``--delay`` (0.02 s), like a nearby bucket. All sides use the same client, in turn:

    lastwrite    ``lastwrite.compact`` of the archive in the bucket, warm, two workers
    kafka        all segments are downloaded, Kafka's cleaner runs (warm: its own seconds for the
                 round), and the result is uploaded
    cp           the input is downloaded, and as many bytes as the output has are uploaded

The results are compared once, record for record (``lastwrite verify``).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import lastwrite
from bench import generate, peer
from bench.sampling import Sampler
from lastwrite.storage.objects.address import store_at
from lastwrite.storage.objects.store import ObjectStore
from tests.support.objects import BUCKET, fault_proxy, s3_server

_MAP_BYTES = 512 << 20
_SEGMENT_BYTES = 256 << 20
_BLOCK = 8 << 20
_POLICY = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}


def download(store: ObjectStore, prefix: str, folder: Path) -> int:
    """Download all objects below ``prefix`` to files. Returns the number of bytes."""
    folder.mkdir(parents=True)
    total = 0
    for found in list(store.list(prefix)):
        with open(folder / found.key.rpartition("/")[2], "wb") as file:
            for start in range(0, found.size_bytes, _BLOCK):
                block = bytearray(min(_BLOCK, found.size_bytes - start))
                store.read_into(found.key, memoryview(block), start)  # type: ignore[arg-type]
                file.write(block)
        total += found.size_bytes
    return total


def upload(store: ObjectStore, folder: Path, prefix: str, most: int | None = None) -> int:
    """Upload files of ``folder``, at most ``most`` bytes. Returns the number of bytes."""
    total = 0
    for path in sorted(folder.iterdir()):
        if path.is_file() and (most is None or total < most):
            writer = store.writer(prefix + path.name)
            with open(path, "rb") as file:
                while block := file.read(_BLOCK):
                    writer.write(block)
                    total += len(block)
                    if most is not None and total >= most:
                        break
            writer.close()
    return total


def by_us(address: str, config: dict[str, Any]) -> dict[str, Any]:
    with Sampler(os.getpid(), every_seconds=0.2) as sampler:
        begin = time.perf_counter()
        report = lastwrite.compact(address, config=config, master="local[2]")
        seconds = time.perf_counter() - begin
    assert report.exit_status == 0, report
    assert report.requests is not None
    peak = sampler.peak.pss_bytes
    return {"seconds": seconds, "peak": peak, **report.to_dict()["requests"]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--records", type=int, default=16_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--delay", type=float, default=0.02)
    parser.add_argument("--json")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="buckets-") as work:
        found = measure(Path(work), asked.records, asked.repeats, asked.delay)
    print(json.dumps(found, indent=1))
    if asked.json:
        Path(asked.json).write_text(json.dumps(found, indent=1))
    return 0


def measure(work: Path, records: int, repeats: int, delay: float) -> dict[str, Any]:
    log = work / "root" / "t-0"
    numbers = generate.drawn(records // 4)
    facts = generate.write_log(log, numbers, 0, records, 10, _SEGMENT_BYTES)
    with (
        s3_server(work / "data") as server,
        fault_proxy(server.endpoint) as proxy,
    ):
        proxy.spoil({"do": "slow", "seconds": delay})
        config = {**_POLICY, "storage.endpoint": proxy.endpoint, "storage.allowHttp": "true"}
        rows: dict[str, list[dict[str, Any]]] = {"lastwrite": [], "kafka": [], "cp": []}
        cleaner = peer.WarmCleaner()
        try:
            for repeat in range(-1, repeats):
                row = once(work, log, f"s3://{BUCKET}/{repeat + 1}", config, cleaner)
                if repeat >= 0:
                    for side, figures in row.items():
                        rows[side].append(figures)
                print(f"{repeat}: {row}", file=sys.stderr)
        finally:
            cleaner.close()
    seconds = {side: statistics.median(r["seconds"] for r in runs) for side, runs in rows.items()}
    return {
        "records": records,
        "bytes": facts["bytes"],
        "delay": delay,
        "cores": os.cpu_count(),
        "seconds": seconds,
        "times_faster_than_kafka": round(seconds["kafka"] / seconds["lastwrite"], 2),
        "times_cp": round(seconds["lastwrite"] / seconds["cp"], 2),
        "runs": rows,
    }


def once(
    work: Path, log: Path, address: str, config: dict[str, Any], cleaner: peer.WarmCleaner
) -> dict[str, dict[str, Any]]:
    begin = time.perf_counter()
    lastwrite.fetch([str(log.parent)], address, config=config)
    fetched = time.perf_counter() - begin
    store, prefix = store_at(f"{address}-raw/")
    upload(store, log, f"{prefix}/in/")
    ours = by_us(address, config)
    ours["fetched"] = fetched

    local = work / "local" / "t-0"
    begin = time.perf_counter()
    download(store, f"{prefix}/in/", local)
    downloaded = time.perf_counter() - begin
    answer = cleaner.clean(
        local, {"min.cleanable.dirty.ratio": "0"}, time.time_ns() // 1_000_000, _MAP_BYTES
    )
    begin = time.perf_counter()
    size = upload(store, local, f"{prefix}/out/")
    uploaded = time.perf_counter() - begin
    kafka = {
        "seconds": downloaded + answer["seconds"] + uploaded,
        "download": downloaded,
        "cleaner": answer["seconds"],
        "upload": uploaded,
    }
    begin = time.perf_counter()
    download(store, f"{prefix}/in/", work / "copy")
    upload(store, work / "copy", f"{prefix}/copy/", size)
    cp = {"seconds": time.perf_counter() - begin, "bytes": size}
    if address.endswith("/0"):
        proof = lastwrite.verify(address, str(log.parent), config=config)
        assert proof.exit_status == 0, proof
    shutil.rmtree(work / "local")
    shutil.rmtree(work / "copy")
    for below in (prefix, f"{prefix.removesuffix('-raw')}/"):
        store.remove([found.key for found in list(store.list(below))])
    return {"lastwrite": ours, "kafka": kafka, "cp": cp}


if __name__ == "__main__":
    sys.exit(main())
