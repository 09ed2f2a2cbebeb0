"""Properties of damaged Pulsar topics: damage is noticed, and the topic then stays unchanged.

A test changes a byte, or truncates or removes a file.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import lastwrite
from lastwrite.pulsar.format.managed_ledger import LedgerInfo, ManagedLedgerInfo
from lastwrite.pulsar.format.names import INDEX_SUFFIX, MANAGED_LEDGER, MANIFEST, SURVEY_SUFFIX
from lastwrite.pulsar.store import lock
from lastwrite.pulsar.store.manifest import read_manifest
from lastwrite.reports.compaction import PartitionReport, Status
from lastwrite.spark.inline import INLINE
from tests.support.kafka.logs import SCRATCH
from tests.support.pulsar.model import START_MS, Author, content
from tests.support.pulsar.topics import put_ledger, read_compacted, topic_folder


@contextmanager
def topic(seed: int) -> Iterator[Path]:
    """A topic that was compacted once and has grown. Every entry has a checksum."""
    with tempfile.TemporaryDirectory(prefix="lastwrite-damage-", dir=SCRATCH) as place:
        folder, author = topic_folder(Path(place)), Author(seed, is_checked=True)
        ledgers = []
        for ledger in (10, 11, 12):
            entries = author.entries(8) + author.end_transactions()
            put_ledger(folder, ledger, entries, 600 + max(map(len, entries)))
            ledgers.append(LedgerInfo(ledger=ledger, entries=len(entries), closed_ms=1))
            if ledger == 10:
                compact(folder)
        (folder / MANAGED_LEDGER).write_bytes(ManagedLedgerInfo(ledgers=tuple(ledgers)).encode())
        yield folder


def compact(folder: Path) -> PartitionReport:
    (report,) = lastwrite.compact(str(folder), now_ms=START_MS, spark=INLINE).partitions
    return report


def held(folder: Path) -> list[tuple[object, ...]]:
    return [content(*each) for each in read_compacted(folder)]


def files_of(folder: Path) -> dict[str, bytes]:
    """All files of the topic, without the lock and the surveys."""
    return {
        path.name: path.read_bytes()
        for path in folder.iterdir()
        if path.name != lock.FILE and not path.name.endswith(SURVEY_SUFFIX)
    }


def in_order(paths: Iterable[Path]) -> list[Path]:
    """Sort by the stable part of the names, without the random uuids."""
    return sorted(paths, key=lambda path: path.name[36:] or path.name)


def check(folder: Path, right: list[tuple[object, ...]]) -> None:
    """Check a round after damage: the result is right, or nothing changes."""
    before = files_of(folder)
    report = compact(folder)
    if report.status is Status.CLEANED:
        assert held(folder) == right
        return
    assert report.status in (Status.DAMAGED, Status.SKIPPED) and report.reason, report
    assert files_of(folder) == before
    if report.status is Status.DAMAGED:
        assert str(folder) in report.reason, report.reason


def _right(seed: int) -> list[tuple[object, ...]]:
    with topic(seed) as folder:
        assert compact(folder).status is Status.CLEANED
        return held(folder)


@pytest.mark.parametrize("seed", range(8))
def test_changed_byte_is_noticed_or_does_not_matter(seed: int) -> None:
    right, rng = _right(seed), random.Random(seed)
    for _ in range(6):
        with topic(seed) as folder:
            path = rng.choice(in_order(folder.iterdir()))
            manifest = read_manifest(str(folder))
            assert manifest is not None
            whole = bytearray(path.read_bytes())
            # Nothing protects the ids in a compacted ledger afterwards. The round checks them when
            # it writes it.
            if not whole or path.name == manifest.object or path.name == lock.FILE:
                continue
            whole[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
            path.write_bytes(bytes(whole))
            check(folder, right)


@pytest.mark.parametrize("seed", range(12))
def test_truncated_or_missing_file_is_noticed(seed: int) -> None:
    right, rng = _right(seed), random.Random(seed)
    for gone in (False, True):
        with topic(seed) as folder:
            manifest = read_manifest(str(folder))
            assert manifest is not None
            # Without the manifest, the first ledger's raw entries are used. Without the metadata, a
            # missing ledger is not noticed.
            path = rng.choice(
                in_order(
                    each for each in folder.iterdir() if each.name not in (MANIFEST, lock.FILE)
                )
            )
            if gone:
                if path.name in (MANAGED_LEDGER, f"{MANAGED_LEDGER}.json"):
                    continue
                path.unlink()
            else:
                path.write_bytes(path.read_bytes()[: rng.randrange(path.stat().st_size or 1)])
            is_last = "-ledger-12" in path.name
            first = "-ledger-10" in path.name and not path.name.endswith(SURVEY_SUFFIX)
            if gone and is_last and not path.name.endswith(SURVEY_SUFFIX):
                assert compact(folder).status is Status.DAMAGED
            elif not (first or path.name.endswith(SURVEY_SUFFIX)):
                report = compact(folder)
                assert report.status is Status.DAMAGED or held(folder) == right
            else:
                check(folder, right)


def test_damage_of_the_compacted_ledger_is_noticed() -> None:
    """The checksums of its entries are checked, and that its index agrees with its blocks."""
    noticed = 0
    for seed in range(20):
        with topic(seed) as folder:
            manifest, rng = read_manifest(str(folder)), random.Random(seed)
            assert manifest is not None
            path = folder / manifest.object
            whole = bytearray(path.read_bytes())
            if not whole:
                continue
            at = rng.randrange(len(whole))
            whole[at] ^= 0xFF
            path.write_bytes(bytes(whole))
            before = files_of(folder)
            report = compact(folder)
            if report.status is not Status.CLEANED:
                noticed += 1
                assert files_of(folder) == before
    assert noticed > 10
    with topic(1) as folder:
        manifest = read_manifest(str(folder))
        assert manifest is not None
        (folder / (manifest.object + INDEX_SUFFIX)).unlink()
        assert compact(folder).status is Status.DAMAGED
