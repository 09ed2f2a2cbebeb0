"""Tests that Kafka's loader opens what a killed commit left, with all old or all new records."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from lastwrite.storage import files
from lastwrite.storage.files import FaultPoints
from tests.support.kafka.crashing import (
    LAYOUTS,
    Layout,
    compact,
    offsets_seen,
    run_until,
    transaction_indexes_at,
    transaction_indexes_seen,
    write_layout,
)
from tests.support.kafka.logs import bases, check_indexes, headers_of
from tests.support.kafka.oracle import Oracle
from tests.support.sample import some


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    judge = Oracle()
    yield judge
    judge.close()


@pytest.mark.parametrize("layout", some(LAYOUTS, 5))
def test_kafka_loads_the_log_of_a_killed_commit(
    tmp_path: Path, oracle: Oracle, layout: Layout
) -> None:
    write_layout(tmp_path / "old", layout)
    files.faults = FaultPoints(1 << 30)
    try:
        shutil.copytree(tmp_path / "old", tmp_path / "counted")
        compact(tmp_path / "counted" / "t-0", layout)
        count = files.faults.passed
    finally:
        files.faults = FaultPoints()
    end = max(layout.old_offsets) + 1
    for point in range(1, count + 1):
        root = tmp_path / "killed"
        shutil.copytree(tmp_path / "old", root)
        folder = root / "t-0"
        assert run_until(point, lambda folder=folder: compact(folder, layout))
        seen, indexed = offsets_seen(folder), transaction_indexes_seen(folder)
        # Without a clean shutdown, the loader also checks every CRC and rebuilds every index.
        answer = oracle.ask("load", dir=str(folder), clean_shutdown=bool(point % 2))
        assert answer["log_end"] == end, (point, answer)
        loaded = [
            h.base_offset
            for base in bases(folder)
            for _, h in headers_of(folder / f"{base:020d}.log")
        ]
        assert loaded == seen, point
        assert seen in (layout.old_offsets, layout.new_offsets), point
        if point % 2:  # otherwise the loader rebuilt them from the producers that it knew
            assert transaction_indexes_at(folder) == indexed, point
        for base in bases(folder)[:-1]:
            if seen == layout.new_offsets or not layout.outgrows_its_indexes:
                check_indexes(folder, base)
        assert not [
            path for path in folder.iterdir() if path.name.endswith((".swap", ".cleaned"))
        ], point
        shutil.rmtree(root)
