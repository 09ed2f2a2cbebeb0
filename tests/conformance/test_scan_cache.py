"""Tests that Kafka's loader ignores stored scans in a partition's folder, and leaves them there."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from lastwrite.kafka.format.batch import encode_batch
from lastwrite.kafka.format.batch_layout import Record
from tests.support.engine import compact
from tests.support.kafka.logs import NAME, write_segment
from tests.support.kafka.oracle import Oracle

pytestmark = pytest.mark.oracle

NOW_MS = 1_700_000_000_000
EACH = 50


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    judge = Oracle()
    yield judge
    judge.close()


def kept_files(folder: Path) -> dict[str, bytes]:
    return {
        file.name: file.read_bytes()
        for file in sorted(folder.iterdir())
        if file.suffix == ".kept" or file.name == "lastwrite.secret"
    }


@pytest.mark.parametrize("clean_shutdown", [True, False])
def test_kafka_loads_a_folder_with_stored_scans(
    tmp_path: Path, oracle: Oracle, clean_shutdown: bool
) -> None:
    root = tmp_path / "log"
    for base in (0, EACH, 2 * EACH):
        records = [Record(base + n, NOW_MS, b"key %d" % (base + n), b"v" * 30) for n in range(EACH)]
        write_segment(root / NAME, base, [encode_batch(records)], mtime_ms=NOW_MS)
    write_segment(
        root / NAME,
        3 * EACH,
        [encode_batch([Record(3 * EACH, NOW_MS, b"key 7", b"")])],
        mtime_ms=NOW_MS,
    )
    with patch("lastwrite.scan_cache.cache.LEAST_SEGMENT_BYTES", 1):
        compact(root, {}, NOW_MS, keep_scans=True)
    kept = kept_files(root / NAME)
    assert len(kept) == 4
    (root / NAME / f"{0:020d}.kept.killed.tmp").write_bytes(b"half")
    bare = tmp_path / "bare"
    shutil.copytree(root, bare)
    for file in (bare / NAME).iterdir():
        if ".kept" in file.name or file.name == "lastwrite.secret":
            file.unlink()
    seen = oracle.ask("load", dir=str(root / NAME), clean_shutdown=clean_shutdown)
    wanted = oracle.ask("load", dir=str(bare / NAME), clean_shutdown=clean_shutdown)
    assert {**seen, "dir": "", "seconds": 0} == {**wanted, "dir": "", "seconds": 0}
    assert kept_files(root / NAME) == kept
