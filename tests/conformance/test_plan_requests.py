"""Tests that ``plan`` predicts the number of requests that ``compact`` sends to a bucket."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

import lastwrite
from lastwrite.archive.rounds import ArchiveRounds
from lastwrite.kafka.format.batch import encode_batch
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.spark.inline import INLINE
from lastwrite.storage.objects.address import store_at, use
from tests.property.test_scan_cache import told
from tests.support.kafka.logs import write_checkpoint, write_segment
from tests.support.objects import BUCKET, S3
from tests.support.pulsar.topics import put_ledger, topic_folder
from tests.unit.test_pulsar_topic import single

pytestmark = pytest.mark.broker

NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000
LARGE = 10_000  # value size in bytes with which a segment is written in parts


def grow(root: Path, partition: int, base: int, numbers: range, value: bytes | None) -> None:
    """Write the next segment of a partition."""
    batches = [
        encode_batch([Record(base + n, NOW_MS, b"key %d" % numbers[n], value)])
        for n in range(len(numbers))
    ]
    write_segment(root / f"t-{partition}", base, batches, mtime_ms=NOW_MS)


def test_round_over_small_pulsar_partitions_needs_few_requests(s3: S3, tmp_path: Path) -> None:
    """The target is 8 requests for a partition.

    An additional ledger needs two more for its data.
    """
    count, to = 16, f"s3://{BUCKET}/{tmp_path.name}"
    config = {**s3.config, "storage.keepReplacedMs": str(DAY_MS)}
    asked: list[int] = []
    for step in range(3):
        for number in range(count):
            folder = topic_folder(tmp_path, f"persistent://public/default/t{number}")
            put_ledger(folder, 10 + step, [single(f"k{n % 5}") for n in range(20)])
        lastwrite.fetch([str(tmp_path)], to, config=config)
        if step == 2:  # this round also deletes the objects that the second one replaced
            config["storage.keepReplacedMs"] = "0"
        options: dict[str, Any] = {"config": config, "spark": INLINE}
        plan, made = lastwrite.plan(to, **options), lastwrite.compact(to, **options)
        assert made.exit_status == 0, made
        assert plan.requests == made.requests is not None
        found = made.requests
        asked.append(found.gets + found.puts + found.lists + found.deletes)
    few = 14  # for the whole round: listings, the probe of the store, one deletion of journals
    assert asked[0] <= 7 * count + few  # 7.35 requests a partition with 40 partitions
    assert asked[1] <= 9 * count + few
    assert asked[2] <= 9 * count + few


@pytest.mark.parametrize("keep_scans", [False, True])
def test_plan_predicts_the_exact_number_of_requests(
    s3: S3, tmp_path: Path, keep_scans: bool
) -> None:
    """Covers multipart uploads, expiring tombstones and objects unused for long.

    One partition is not due, and one loses all its records.
    """
    root, to = tmp_path / "log", f"s3://{BUCKET}/{tmp_path.name}"
    config = {
        **s3.config,
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0",
        "segment.bytes": "1000",
    }
    use(s3.settings)
    store, prefix = store_at(to)
    ends = [0, 0, 0]
    written = 0
    for step in range(4):
        sizes = ((1200 if step == 0 else 30, LARGE), (50, 700), (20 if step == 0 else 0, 40))
        for partition, (count, size) in enumerate(sizes):
            numbers = range(step * 40, step * 40 + count)
            value = None if step == 2 and partition == 1 else b"v" * size
            if count:
                grow(root, partition, ends[partition], numbers, value)
            ends[partition] += count
        write_checkpoint(
            root, "replication-offset-checkpoint", {f"t-{n}": end for n, end in enumerate(ends)}
        )
        lastwrite.fetch([str(root)], to, config=config, include_active=True)
        now_ms = NOW_MS + step * 2 * DAY_MS
        options: dict[str, Any] = {
            "config": config,
            "now_ms": now_ms,
            "spark": INLINE,
            "keep_scans": keep_scans,
            "drop_expired_deletes": step == 3,
        }
        with (
            patch.object(ArchiveRounds.__init__, "__defaults__", (0,)),
            patch("lastwrite.scan_cache.cache.LEAST_SEGMENT_BYTES", 1),
        ):
            if step == 0:  # the first round probes the store's guarantees
                lastwrite.compact(to, **{**options, "keep_scans": False})
                grow(root, 0, ends[0], range(7), b"v")
                ends[0] += 7
                write_checkpoint(root, "replication-offset-checkpoint", {"t-0": ends[0]})
                lastwrite.fetch([str(root)], to, topic="t", config=config, include_active=True)
            time.sleep(1.1)  # stores date objects by the second, and the grace period is 0
            before = {found.key: found.version for found in store.list(prefix)}
            plan = lastwrite.plan(to, **options)
            assert {found.key: found.version for found in store.list(prefix)} == before
            again = lastwrite.plan(to, **options)
            made = lastwrite.compact(to, **options)
        assert plan.dry_run and not made.dry_run
        assert made.exit_status == 0, made
        assert told(plan) == told(again) == told(made)
        assert plan.requests == again.requests == made.requests, (plan.requests, made.requests)
        assert made.requests is not None
        written += made.requests.bytes_written
    assert written > 10_000_000
