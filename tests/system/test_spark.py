"""Tests of the engine on a real Spark session, with both exchanges, exact keys and fingerprints."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

import lastwrite
from lastwrite.encoding.compression import Codec
from lastwrite.kafka.format.batch import ControlType, encode_batch
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.reports.compaction import Status
from lastwrite.spark.inline import INLINE
from lastwrite.spark.session import spark_session
from tests.support.files import contents
from tests.support.kafka.logs import read_files, write_segment
from tests.support.kafka.model import ModelAborted
from tests.support.kafka.single import encode_control_record

NOW = 1_700_000_100_000


@pytest.fixture(
    scope="module", params=["folder", pytest.param("shuffle", marks=pytest.mark.long), None]
)
def spark(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A session with a given exchange, or with the default, which is none for small partitions."""
    way = {"spark.lastwrite.exchange": request.param} if request.param else {}
    with spark_session("local[2]", way) as session:
        yield session


def make_root(root: Path, seed: int = 7, *, keyless: bool = False) -> Path:
    """Write three partitions with all codecs, tombstones, interleaved transactions and ``keyless``
    records.
    """
    for partition in range(3):
        rng = random.Random(seed + partition)
        offset = 0
        folder = root / f"t-{partition}"
        begun: dict[int, int] = {}
        for number in range(4):
            base, batches = offset, []
            aborted: list[ModelAborted] = []
            for _ in range(rng.randint(5, 20)):
                records = []
                for _ in range(rng.randint(1, 40)):
                    key = rng.choice(
                        [
                            None if keyless else b"solo",
                            b"",
                            b"k%d" % rng.randint(0, 150),
                            b"long key " * 4 + b"%d" % rng.randint(0, 50),
                        ]
                    )
                    value = rng.choice([None, b"v" * rng.randint(0, 50)])
                    records.append(Record(offset, NOW - 1000 + rng.randint(0, 9), key, value))
                    offset += rng.choice([1, 1, 3])
                producer = rng.choice([-1, -1, 1, 2, 3])
                first = records[0].offset
                fields = {"codec": rng.choice(list(Codec)), "last_offset": offset - 1}
                if producer > 0:
                    begun.setdefault(producer, first)
                    fields |= {"producer_id": producer, "producer_epoch": 0, "base_sequence": first}
                batches.append(encode_batch(records, transactional=producer > 0, **fields))
                is_last = number == 3 and len(batches) > 4
                for ended in [p for p in begun if is_last or rng.random() < 0.3]:
                    kind = rng.choice([ControlType.ABORT, ControlType.COMMIT])
                    if kind is ControlType.ABORT:
                        stable = min((begun[p] for p in begun if p != ended), default=offset + 1)
                        aborted.append(ModelAborted(ended, begun[ended], offset, stable))
                    del begun[ended]
                    marker = encode_control_record(offset, NOW - 1000, kind)
                    batches.append(
                        encode_batch(
                            [marker],
                            control=True,
                            transactional=True,
                            producer_id=ended,
                            producer_epoch=0,
                        )
                    )
                    offset += 1
            write_segment(folder, base, batches, interval_bytes=400, mtime_ms=NOW, aborted=aborted)
        write_segment(folder, offset, [], mtime_ms=NOW)
    return root


@pytest.mark.parametrize("strategy", ["offset", "timestamp"])
@pytest.mark.parametrize("exact", [False, True])
def test_spark_leaves_the_bytes_of_the_inline_engine(
    tmp_path: Path, spark: Any, exact: bool, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # transactions that span pieces
    monkeypatch.setattr("lastwrite.engine.pieces._PIECE_BYTES", 1500)
    root = make_root(tmp_path / "spark", keyless=True)
    twin = tmp_path / "inline"
    shutil.copytree(root, twin)
    config = {"segment.bytes": 3000, "delete.retention.ms": 5, "compaction.strategy": strategy}
    for now_ms in (NOW, NOW + 6):  # the second round drops tombstones
        arguments = {
            "config": {**config, "min.cleanable.dirty.ratio": 0},
            "now_ms": now_ms,
            "exact": exact,
            "topic": "t",
            "drop_keyless": True,
        }
        planned = lastwrite.plan(str(root), spark=spark, **arguments)
        before = contents(root)
        report = lastwrite.compact(str(root), spark=spark, **arguments)
        again = lastwrite.compact(str(twin), spark=INLINE, **arguments)
        assert contents(root) == contents(twin)
        assert [p.status for p in report.partitions] == [p.status for p in planned.partitions]
        for one, other, third in zip(
            report.partitions, again.partitions, planned.partitions, strict=True
        ):
            assert (one.records_after, one.bytes_after, one.verdicts) == (
                other.records_after,
                other.bytes_after,
                other.verdicts,
            )
            assert (one.records_after, one.bytes_after, one.segments_after) == (
                third.records_after,
                third.bytes_after,
                third.segments_after,
            )
        if now_ms == NOW:
            assert before != contents(root) and all(
                p.status is Status.CLEANED for p in report.partitions
            )
            assert all(p.verdicts["aborted"] for p in report.partitions)
            for partition in range(3):  # append new records for the second round
                folder = root / f"t-{partition}"
                last = max(int(file.stem) for file in folder.glob("*.log"))
                for place in (root, twin):
                    write_segment(
                        place / f"t-{partition}",
                        last,
                        [encode_batch([Record(last, NOW, b"new", b"1")])],
                        mtime_ms=NOW,
                    )
                    write_segment(place / f"t-{partition}", last + 1, [], mtime_ms=NOW)


def test_damaged_partition_does_not_affect_the_others(tmp_path: Path, spark: Any) -> None:
    root = make_root(tmp_path / "log")
    victim = sorted((root / "t-1").glob("*.log"))[1]
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)
    before = contents(root / "t-1")
    report = lastwrite.compact(str(root), topic="t", spark=spark, now_ms=NOW)
    assert [p.status for p in report.partitions] == [Status.CLEANED, Status.DAMAGED, Status.CLEANED]
    assert victim.name in (report.partitions[1].reason or "") and report.exit_status == 3
    assert contents(root / "t-1") == before


def test_large_segment_is_rewritten_in_parts(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lastwrite.engine.pieces._PIECE_BYTES", 4096)
    monkeypatch.setattr("lastwrite.engine.shares._LEAST_PART_BYTES", 6000)
    root = make_root(tmp_path / "parts")
    twin = tmp_path / "whole"
    shutil.copytree(root, twin)
    lastwrite.compact(str(root), topic="t", spark=spark, now_ms=NOW)
    monkeypatch.undo()
    lastwrite.compact(str(twin), topic="t", spark=INLINE, now_ms=NOW)
    assert contents(root) == contents(twin)
    assert read_files(root / "t-0", 0) == read_files(twin / "t-0", 0)


def test_stored_scans_are_used_if_workers_share_a_folder(tmp_path: Path, spark: Any) -> None:
    """The second round leaves the same files with either exchange. Spark's shuffle
    stores no scans.
    """
    root = tmp_path / "log"
    for base in (0, 100, 200):
        batches = [
            encode_batch(
                [Record(n, NOW - 9, b"key %d" % n, b"v" * 20) for n in range(first, first + 20)]
            )
            for first in range(base, base + 100, 20)
        ]
        write_segment(root / "t-0", base, batches, 200, NOW)
    write_segment(root / "t-0", 300, [], 200, NOW)
    arguments: dict[str, Any] = {
        "config": {"min.cleanable.dirty.ratio": "0", "segment.bytes": "4000"},
        "now_ms": NOW,
        "spark": spark,
        "topic": "t",
    }
    with patch("lastwrite.scan_cache.cache.LEAST_SEGMENT_BYTES", 1):
        lastwrite.compact(str(root), keep_scans=True, **arguments)
        shares_a_folder = spark.sparkContext.getConf().get("spark.lastwrite.exchange") != "shuffle"
        assert len(list((root / "t-0").glob("*.kept"))) == (3 if shares_a_folder else 0)
        for file in (root / "t-0").glob(f"{300:020d}.*"):
            file.unlink()
        records = [
            Record(300 + n, NOW - 9, b"key %d" % (5 if n == 0 else 300 + n), b"w")
            for n in range(20)
        ]
        write_segment(root / "t-0", 300, [encode_batch(records)], 200, NOW)
        write_segment(root / "t-0", 320, [], 200, NOW)
        shutil.copytree(root, tmp_path / "plain")
        [kept] = lastwrite.compact(str(root), keep_scans=True, **arguments).partitions
        [plain] = lastwrite.compact(str(tmp_path / "plain"), **arguments).partitions
    assert kept.verdicts == plain.verdicts and kept.verdicts["shadowed"] == 1
    assert (
        (kept.bytes_read or 0) < (plain.bytes_read or 0)
        if shares_a_folder
        else kept.bytes_read == plain.bytes_read
    )
    left = sorted(int(file.name[:20]) for file in (root / "t-0").glob("*.log"))
    assert left == sorted(
        int(file.name[:20]) for file in (tmp_path / "plain" / "t-0").glob("*.log")
    )
    for base in left:
        assert read_files(root / "t-0", base) == read_files(tmp_path / "plain" / "t-0", base)
