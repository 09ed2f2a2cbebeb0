"""Tests of rounds on random Pulsar topics, killed at every operation, and on a failing disk.

The manifest names the old compacted ledger or the new one, which is complete, and raw ledgers are
unchanged. The next run leaves exactly the result of an undisturbed run.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lastwrite.storage import files
from lastwrite.storage.files import FaultPoints
from tests.support.files import contents
from tests.support.kafka.crashing import run_until
from tests.support.kafka.logs import SCRATCH
from tests.support.pulsar.rounds import compact, held, lay_out, raw_files, shape
from tests.support.pulsar.topics import topic_folder

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a child that was forked")

SEEDS = (2, 5)


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder in memory if there is one. Disk speed does not matter to these tests."""
    with tempfile.TemporaryDirectory(prefix="lastwrite-crash-", dir=SCRATCH) as folder:
        yield Path(folder)


def operations_of(archive: Path, **arguments: Any) -> int:
    files.faults = FaultPoints(1 << 30)
    try:
        assert compact(archive, **arguments) == 0
        return files.faults.passed
    finally:
        files.faults = FaultPoints()


def fresh(source: Path, target: Path) -> Path:
    shutil.rmtree(target, ignore_errors=True)
    return Path(shutil.copytree(source, target))


@pytest.mark.parametrize("seed", SEEDS)
def test_kill_at_any_operation_leaves_the_topic_old_or_new(place: Path, seed: int) -> None:
    old, new = lay_out(seed, place / "old")
    archive = fresh(place / "old", place / "new")
    operations = operations_of(archive)
    assert (held(place / "old"), held(archive)) == (old, new) and old != new
    raw, done = raw_files(place / "old"), shape(archive)
    assert raw == raw_files(archive) and len(raw) >= 6
    rng, sides = random.Random(seed), []
    for point in range(1, operations + 1):
        archive = fresh(place / "old", place / "killed")
        assert run_until(point, lambda archive=archive: compact(archive)), point  # type: ignore[misc]
        seen = held(archive)
        assert seen in (old, new), point
        sides.append(seen == new)
        if rng.random() < 0.3:
            run_until(rng.randint(1, operations), lambda archive=archive: compact(archive))  # type: ignore[misc]
            then = held(archive)
            assert then in (seen, new), point
        assert compact(archive) == 0
        assert (held(archive), shape(archive), raw_files(archive)) == (new, done, raw), point
    assert sides == sorted(sides) and not sides[0] and sides[-1]


@pytest.mark.parametrize("seed", SEEDS)
def test_failing_disk_leaves_the_topic_unchanged(place: Path, seed: int) -> None:
    old, new = lay_out(seed, place / "old")
    operations = operations_of(fresh(place / "old", place / "new"))
    raw, done = raw_files(place / "old"), shape(place / "new")
    for point in range(1, operations + 1):
        for once in (True, False):
            archive = fresh(place / "old", place / "failed")
            files.faults = FaultPoints(point, errno.ENOSPC, once=once)
            try:
                status = compact(archive)
            finally:
                files.faults = FaultPoints()
            seen = held(archive)
            assert seen in (old, new), point
            assert status or seen == new, point
            assert raw_files(archive) == raw
            assert compact(archive) == 0
            assert (held(archive), shape(archive), raw_files(archive)) == (new, done, raw), point


def test_kill_during_a_copy_leaves_the_topic_unchanged(place: Path) -> None:
    old, new = lay_out(SEEDS[1], place / "old")
    before = contents(topic_folder(place / "old"))
    operations = operations_of(place / "old", to=str(place / "copy"))
    assert held(place / "copy") == new
    for point in range(1, operations + 1):
        shutil.rmtree(place / "copy", ignore_errors=True)
        assert run_until(point, lambda: compact(place / "old", to=str(place / "copy"))), point
        assert contents(topic_folder(place / "old")) == before
        assert held(place / "copy") in ((None, []), new, old), point
    assert held(place / "old") == old
