"""Whole rounds over random topics of Pulsar, killed at every operation, some of them twice; and on a disk that fails.

Wherever it happens, the manifest names the old compacted ledger or the new one, and that is whole; raw ledgers are as
they were; and the run that follows leaves what a run that nobody disturbed leaves, and nothing beside it.
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

import lastwrite
from lastwrite.formats.pulsar.names import INDEX_SUFFIX, MANIFEST, SURVEY_SUFFIX
from lastwrite.formats.pulsar.position import Position
from lastwrite.logstore import files
from lastwrite.logstore.files import FaultPoints
from lastwrite.logstore.pulsar import lock
from lastwrite.logstore.pulsar.manifest import read_manifest
from lastwrite.pipeline.inline import INLINE
from tests.crashing import run_until
from tests.logs import SCRATCH
from tests.pulsar_model import START_MS, Author, ModelTopic, Rules, content
from tests.pulsar_topics import put_ledger, read_compacted, topic_folder

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a child that was forked")

SEEDS = (2, 5)
Content = tuple[Position | None, list[tuple[object, ...]]]  # horizon, and what lies up to it


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder in memory where there is one: kills test the order of operations, not the disk's speed."""
    with tempfile.TemporaryDirectory(prefix="lastwrite-crash-", dir=SCRATCH) as folder:
        yield Path(folder)


def lay_out(seed: int, archive: Path) -> tuple[Content, Content]:
    """A topic of some ledgers, compacted before if the seed is odd; what it holds, and what a round makes of it."""
    rng, author, model = random.Random(seed), Author(seed), ModelTopic()
    folder = topic_folder(archive)
    for ledger in range(10, 10 + rng.randint(3, 4)):
        entries = author.entries(rng.randint(4, 12)) + author.end_transactions()
        put_ledger(folder, ledger, entries, 700 + max(map(len, entries)))
        model.raw += [(Position(ledger, n), entry) for n, entry in enumerate(entries)]
        if seed % 2 and ledger == 11:
            compact(archive)
            assert model.compact(Rules())
    before = model.horizon, [content(*each) for each in model.compacted]
    assert model.compact(Rules())
    return before, (model.horizon, [content(*each) for each in model.compacted])


def compact(archive: Path, **arguments: Any) -> int:
    return lastwrite.compact(
        str(archive), system="pulsar", now_ms=START_MS, spark=INLINE, **arguments
    ).exit_status


def held(archive: Path) -> Content:
    """What the manifest says that there is."""
    folder = topic_folder(archive)
    manifest = read_manifest(str(folder))
    if manifest is None:
        return None, []
    return manifest.horizon, [content(*each) for each in read_compacted(folder)]


def raw_files(archive: Path) -> dict[str, bytes]:
    found = {path.name: path for path in topic_folder(archive).iterdir()}
    return {
        name: path.read_bytes()
        for name, path in found.items()
        if b"compacted-ledger" not in _index_of(path)
        and name not in (MANIFEST, lock.FILE)
        and not name.endswith((SURVEY_SUFFIX, ".aside", f".aside{INDEX_SUFFIX}"))
    }


def _index_of(path: Path) -> bytes:
    index = path if path.name.endswith(INDEX_SUFFIX) else path.with_name(path.name + INDEX_SUFFIX)
    return index.read_bytes() if index.exists() else b""


def shape(archive: Path) -> tuple[int, set[str]]:
    """How many files there are, surveys left out, which need not be there; and what kinds of strange ones."""
    names = [
        path.name
        for path in topic_folder(archive).iterdir()
        if not path.name.endswith(SURVEY_SUFFIX)
    ]
    return len(names), {name.rpartition(".")[2] for name in names if ".aside" in name}


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
def test_wherever_it_is_killed_the_topic_is_old_or_new(place: Path, seed: int) -> None:
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
def test_a_disk_that_fails_leaves_the_topic_as_it_was(place: Path, seed: int) -> None:
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


def test_wherever_a_copy_is_killed_the_topic_is_as_it_was(place: Path) -> None:
    old, new = lay_out(SEEDS[1], place / "old")
    before = {path.name: path.read_bytes() for path in topic_folder(place / "old").iterdir()}
    operations = operations_of(place / "old", to=str(place / "copy"))
    assert held(place / "copy") == new
    for point in range(1, operations + 1):
        shutil.rmtree(place / "copy", ignore_errors=True)
        assert run_until(point, lambda: compact(place / "old", to=str(place / "copy"))), point
        assert {
            path.name: path.read_bytes() for path in topic_folder(place / "old").iterdir()
        } == before
        assert held(place / "copy") in ((None, []), new, old), point
    assert held(place / "old") == old
