"""Tests of dividing the memory setting.

No stage of a worker may exceed its share.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lastwrite.encoding.compression import Codec
from lastwrite.errors import InvalidConfig
from lastwrite.kafka.format.batch import encode_batch
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.kafka.format.index import SegmentIndexer
from lastwrite.reports.compaction import Status
from lastwrite.spark.memory import LEAST_SHARE_BYTES, MIB, MemoryPlan, fixed_bytes, plan_memory
from tests.support.engine import compact

_STAMP_MS = 1_700_000_000_000
_NOW_MS = _STAMP_MS + 1_000_000
_SHARE = LEAST_SHARE_BYTES


def test_each_worker_gets_an_equal_share() -> None:
    plan = plan_memory(fixed_bytes(2) + 24 * MIB, 2)
    assert plan.worker_bytes == 12 * MIB
    assert plan_memory("1g", 2).worker_bytes == (1024 * MIB - fixed_bytes(2)) // 2


def test_session_started_by_spark_needs_more_memory() -> None:
    assert fixed_bytes(2, lean=False) > 2 * fixed_bytes(2)
    assert (
        plan_memory("2g", 2, lean=False).worker_bytes
        == (2048 * MIB - fixed_bytes(2, lean=False)) // 2
    )


def test_surplus_memory_is_for_scratch_files() -> None:
    assert plan_memory("1g", 2).scratch_bytes == 0
    plan = plan_memory("6g", 2)
    assert plan.worker_bytes > 512 * MIB
    assert plan.scratch_bytes > 3 * plan.worker_bytes // 2
    assert fixed_bytes(2) + 2 * plan.worker_bytes + plan.scratch_bytes <= 6 << 30


def test_too_little_memory_is_refused_with_the_minimum() -> None:
    least = fixed_bytes(2) + 2 * LEAST_SHARE_BYTES
    assert plan_memory(least, 2).worker_bytes == LEAST_SHARE_BYTES
    with pytest.raises(InvalidConfig) as raised:
        plan_memory(least - 1, 2)
    assert f"at least {least // MIB} MiB" in str(raised.value.remedy)


def test_small_machine_gives_the_minimum_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lastwrite.spark.memory.memory_bytes", lambda: 256 * MIB)
    assert plan_memory(None, 4).worker_bytes == LEAST_SHARE_BYTES


@pytest.mark.parametrize("share_mib", [12, 20, 64, 300, 4000])
def test_buffers_fit_in_the_share(share_mib: int) -> None:
    share = share_mib * MIB
    limits = MemoryPlan(0, share).limits()
    scan = limits.chunk_bytes + 100 * limits.block_entries + limits.piece_records
    rewrite = 3 * limits.chunk_bytes + 14 * limits.block_entries + 2 * limits.piece_records
    assert max(scan, rewrite, 2 * limits.slice_bytes, 3 * limits.plain_bytes) <= share


# ---------------------------------------------------------------------- what stages really take


def write(folder: Path, batch: bytes, count: int, records: int) -> None:
    """Write a closed segment of one repeated batch, and an empty segment.

    The CRC does not cover the base offset, so it can differ in each copy.
    """
    folder.mkdir(parents=True)
    one = np.frombuffer(batch, dtype=np.uint8)
    log = np.tile(one, (count, 1))
    log[:, :8] = (np.arange(count) * records).astype(">i8").view(np.uint8).reshape(count, 8)
    (folder / f"{0:020d}.log").write_bytes(log.tobytes())
    indexer = SegmentIndexer(0, 4096)
    places = np.arange(count, dtype=np.int64)
    last_offsets = (places + 1) * records - 1
    indexer.append(
        places * len(batch), np.full(count, len(batch)), last_offsets, np.full(count, _STAMP_MS)
    )
    offsets, times = indexer.finish()
    (folder / f"{0:020d}.index").write_bytes(offsets)
    (folder / f"{0:020d}.timeindex").write_bytes(times)
    (folder / f"{count * records:020d}.log").touch()


def batch_of(count: int, value: bytes, codec: Codec, keys: int) -> bytes:
    return encode_batch(
        [Record(i, _STAMP_MS, b"%x" % (i % keys), value) for i in range(count)], codec=codec
    )


@pytest.fixture
def traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The smallest share of a worker, with allocations of Python and NumPy traced."""
    monkeypatch.setattr("lastwrite.spark.use.plan_memory", lambda *_, **__: MemoryPlan(0, _SHARE))
    write(tmp_path / "warm" / "t-0", LOGS["a thousand bytes to one"][0], 4, 4000)
    for exact in (False, True):  # compiles kernels and imports modules
        compact(tmp_path / "warm", {"cleanup.policy": "compact"}, _NOW_MS, exact=exact)
    tracemalloc.start()
    yield
    tracemalloc.stop()


LOGS = {
    "one key, everywhere": (batch_of(500, b"v" * 20, Codec.NONE, 1), 1500, 500),
    "many small records": (batch_of(2000, b"", Codec.NONE, 2000), 1500, 2000),
    "a thousand bytes to one": (batch_of(4000, b"v" * 30, Codec.ZSTD, 4000), 1000, 4000),
    "large batches, compressed": (batch_of(40_000, b"v" * 40, Codec.LZ4, 40_000), 60, 40_000),
    "large batches": (batch_of(40_000, b"v" * 40, Codec.NONE, 40_000), 20, 40_000),
}


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("name", LOGS)
def test_worker_stays_within_its_share(name: str, exact: bool, tmp_path: Path) -> None:
    batch, count, records = LOGS[name]
    write(tmp_path / "root" / "t-0", batch, count, records)
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    report = compact(tmp_path / "root", {"cleanup.policy": "compact"}, _NOW_MS, exact=exact)
    taken = tracemalloc.get_traced_memory()[1] - before
    assert report.partitions[0].status is Status.CLEANED, report.partitions[0].reason
    assert taken <= _SHARE, f"{taken / MIB:.1f} MiB"
