"""Dispatch of a commit log, compared with ``cp`` of the same bytes.

    python -m bench.rocketmq_dispatch              # one file of 1 GiB, 8 queues, Spark, 2 workers
    python -m bench.rocketmq_dispatch --inline     # without Spark, in this process, on one core
    python -m bench.rocketmq_dispatch --compacted  # also fills a compaction log with every record

Records have about 250 bytes, as a 5.5.0 broker stores single messages. Each round starts with only
the commit log, in the page cache, in a warm process and a warm Spark. Dispatch ends when its files
are synced. ``cp`` does not sync. The results are wall seconds, the best of several rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
from pyspark.sql import SparkSession

import lastwrite
from lastwrite.rocketmq.format.record import encode_message, make_message
from lastwrite.rocketmq.reports import DispatchReport
from lastwrite.spark.inline import INLINE, Inline
from lastwrite.spark.session import spark_session

_FILE_BYTES = 1 << 30
_START = 1_700_000_000_000
_TEMPLATES = 64
_QUEUES = 8
_TREES = ("consumequeue", "index", "compaction")


def write_store(root: Path, size: int, *, is_compacted: bool) -> int:
    """Write a store whose commit log is one full file of ``size`` bytes.

    Returns its record count.
    """
    attributes = {"cleanup.policy": "COMPACTION"} if is_compacted else {}
    (root / "config").mkdir(parents=True)
    topics = {"topicConfigTable": {"orders": {"topicName": "orders", "attributes": attributes}}}
    (root / "config" / "topics.json").write_text(json.dumps(topics))
    rng = np.random.default_rng(5)
    records = []
    for n in range(_TEMPLATES):
        found = {
            "KEYS": f"order-{n:04d}",
            "UNIQ_KEY": f"{n:032X}",
            "CLUSTER": "bench",
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
            "WAIT": "true",
        } | ({"TAGS": "Tag"} if n % 2 else {})
        message = make_message(
            "orders", rng.bytes(60), found, queue_id=n % _QUEUES, store_time_ms=_START
        )
        records.append(np.frombuffer(encode_message(message), np.uint8))
    # All templates in a row, repeated, with correct offsets and addresses.
    run = np.concatenate(records)
    starts = np.cumsum([0, *(len(record) for record in records[:-1])])
    count = (size - 8) // len(run)
    log = np.zeros(size, np.uint8)
    whole = log[: count * len(run)].reshape(count, len(run))
    whole[:] = run
    numbers = np.arange(count, dtype=np.int64)
    for n, start in enumerate(starts.tolist()):
        offsets = numbers * (_TEMPLATES // _QUEUES) + n // _QUEUES
        whole[:, start + 20 : start + 28] = offsets.astype(">i8").view(np.uint8).reshape(count, 8)
        addresses = numbers * len(run) + start
        whole[:, start + 28 : start + 36] = addresses.astype(">i8").view(np.uint8).reshape(count, 8)
    end = count * len(run)
    log[end : end + 8] = np.frombuffer(
        (size - end).to_bytes(4, "big") + bytes.fromhex("cbd43194"), np.uint8
    )
    (root / "commitlog").mkdir()
    log.tofile(root / "commitlog" / f"{0:020d}")
    return count * _TEMPLATES


def dispatch(
    root: Path, has_index: bool, spark: SparkSession | Inline
) -> tuple[float, DispatchReport]:
    for tree in _TREES:
        shutil.rmtree(root / tree, ignore_errors=True)
    os.sync()
    begin = time.perf_counter()
    report = lastwrite.dispatch(str(root), config={"messageIndexEnable": has_index}, spark=spark)
    seconds = time.perf_counter() - begin
    assert report.exit_status == 0
    return seconds, report


def copy(root: Path, target: Path) -> float:
    """Seconds of ``cp`` for the commit log, without a sync and without reflinks."""
    os.sync()
    begin = time.perf_counter()
    subprocess.run(
        ["cp", "--reflink=never", "-r", str(root / "commitlog"), str(target)], check=True
    )
    seconds = time.perf_counter() - begin
    shutil.rmtree(target)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--mib", type=int, default=_FILE_BYTES >> 20, help="of commit log")
    parser.add_argument("--inline", action="store_true")
    parser.add_argument("--compacted", action="store_true")
    given = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        root = Path(folder) / "store"
        size = given.mib << 20
        records = write_store(root, size, is_compacted=given.compacted)
        print(f"{size >> 20} MiB of commit log, {records:,} records")
        spark = stack.enter_context(
            contextlib.nullcontext(INLINE)
            if given.inline
            else spark_session(f"local[{given.workers}]", {})
        )
        best: dict[str, tuple[float, str]] = {}
        for repeat in range(given.rounds + 1):
            rows = {"cp": (copy(root, Path(folder) / "copy"), "")}
            for name, has_index in (
                ("dispatch to consume queues", False),
                ("dispatch, with the index", True),
            ):
                seconds, report = dispatch(root, has_index, spark)
                parts = report.stage_seconds.items()
                rows[name] = seconds, ", ".join(f"{stage} {taken:.2f} s" for stage, taken in parts)
            if repeat:  # the first round is a warm-up
                for name, row in rows.items():
                    best[name] = min(best.get(name, row), row)
        for name, (seconds, parts) in best.items():
            print(f"  {name:40} {seconds:6.2f} s {size / seconds / 1e9:6.2f} GB/s  {parts}")


if __name__ == "__main__":
    main()
