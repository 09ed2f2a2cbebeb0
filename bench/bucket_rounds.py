"""The share of a log in a bucket that a second round reads, with the first round's stored scans.

    python -m bench.bucket_rounds [--clean N] [--dirty N] [--words N] [--fetch-keeps] [--json FILE]

Uses a real S3 server on this machine. ``--clean`` records with distinct keys (16 M) are fetched and
compacted with ``--keep-scans``. Then ``--dirty`` records with new keys (1 M) are fetched. The
result is the number of bytes that the second round reads, predicted by ``plan`` and counted by
``compact``, as a share of the log. Without stored scans, ``plan`` predicts it. Byte counts do not
depend on the machine's load, but seconds do. With ``--fetch-keeps``, fetch stores scans, too, so
that new data are not read either. ``--words`` is a value's size in words of 8 bytes: 12 make a
record of 114 bytes, and 1,280 one of 10 KiB.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import lastwrite
from bench import generate
from lastwrite.reports.compaction import CompactionReport
from tests.support.kafka.logs import write_checkpoint
from tests.support.objects import BUCKET, s3_server

_SEGMENT_BYTES = 256 << 20
_POLICY = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
_ADDRESS = f"s3://{BUCKET}/log"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--clean", type=int, default=16_000_000)
    parser.add_argument("--dirty", type=int, default=1_000_000)
    parser.add_argument("--words", type=int, default=12)
    parser.add_argument("--fetch-keeps", action="store_true")
    parser.add_argument("--json")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bucket-rounds-") as work:
        found = measure(Path(work), asked.clean, asked.dirty, asked.words, asked.fetch_keeps)
    print(json.dumps(found, indent=1))
    if asked.json:
        Path(asked.json).write_text(json.dumps(found, indent=1))
    return 0


def measure(work: Path, clean: int, dirty: int, words: int, fetch_keeps: bool) -> dict[str, Any]:
    with s3_server(work / "data") as server:
        config = {**_POLICY, **server.config}
        bring(work / "clean", 0, clean, words, config, fetch_keeps)
        first = timed(lastwrite.compact, config, keep_scans=True)
        bring(work / "dirty", clean, clean + dirty, words, config, fetch_keeps)
        bare = timed(lastwrite.plan, config)
        plan = timed(lastwrite.plan, config, keep_scans=True)
        second = timed(lastwrite.compact, config, keep_scans=True)
    size = second["log_bytes"]
    return {
        "clean": clean,
        "dirty": dirty,
        "fetch_keeps": fetch_keeps,
        "record_bytes": round(size / (clean + dirty), 1),
        "log_bytes": size,
        "read_share": round(second["bytes_read"] / size, 4),
        "read_share_without": round(bare["bytes_read"] / size, 4),
        "first": first,
        "plan_without": bare,
        "plan": plan,
        "second": second,
    }


def bring(
    root: Path, first: int, end: int, words: int, config: dict[str, Any], keep_scans: bool
) -> None:
    """Fetch a log with the offsets ``first`` to ``end`` into the archive.

    Each record has its own key.
    """
    generate.write_log(root / "t-0", np.arange, first, end, words, _SEGMENT_BYTES)
    write_checkpoint(root, "replication-offset-checkpoint", {"t-0": end})
    report = lastwrite.fetch([str(root)], _ADDRESS, config=config, keep_scans=keep_scans)
    assert report.exit_status == 0, report


def timed(command: Any, config: dict[str, Any], **options: Any) -> dict[str, Any]:
    begin = time.perf_counter()
    report: CompactionReport = command(_ADDRESS, config=config, master="local[2]", **options)
    seconds = time.perf_counter() - begin
    assert report.exit_status == 0 and report.requests is not None, report
    found = {"seconds": round(seconds, 2), "log_bytes": report.partitions[0].bytes_before}
    return {**found, **msgspec.structs.asdict(report.requests)}


if __name__ == "__main__":
    sys.exit(main())
