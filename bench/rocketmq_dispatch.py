"""Dispatch of a commit log beside ``cp`` of the same bytes, in one run.

    python -m bench.rocketmq_dispatch              # one file of 1 GiB, a topic of 8 queues, on
                                                   Spark, two workers
    python -m bench.rocketmq_dispatch --inline     # without Spark, in this process, on one core
    python -m bench.rocketmq_dispatch --compacted  # and a compaction log of every record

Records are about 250 bytes, as a 5.5.0 broker stores single messages. Each round starts from the
commit log alone, in the page cache, in a process and a Spark that have done it once; dispatch ends
when its files are synced, ``cp`` is not synced. Best of some rounds, seconds of the wall clock.
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
    """A store whose commit log is one file of ``size`` bytes, full; returns its records."""
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
    # A run of all templates again and again, with its offsets and addresses made true.
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
    """``cp`` of the commit log, not synced; without reflinks, which copy nothing."""
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
            if repeat:  # the first one warms up
                for name, row in rows.items():
                    best[name] = min(best.get(name, row), row)
        for name, (seconds, parts) in best.items():
            print(f"  {name:40} {seconds:6.2f} s {size / seconds / 1e9:6.2f} GB/s  {parts}")


if __name__ == "__main__":
    main()
