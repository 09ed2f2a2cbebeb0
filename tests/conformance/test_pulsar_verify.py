"""Tests that ``verify`` accepts a real cluster's ledgers, its compaction, and Lastwrite's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import lastwrite
from lastwrite.pulsar.store.manifest import read_manifest, replace_manifest
from lastwrite.spark.inline import INLINE
from tests.support.pulsar.corpus import CORPUS, TOPICS, unpack


def test_offloaded_ledgers_compacted_by_us_are_verified(tmp_path: Path) -> None:
    lastwrite.fetch([str(CORPUS / "offloaded"), str(CORPUS / "filesystem")], str(tmp_path))
    report = lastwrite.verify(str(tmp_path))
    assert report.exit_status == 0 and len(report.partitions) == 4
    assert any(
        partition.transactions and partition.transactions.aborted for partition in report.partitions
    )
    compacted = lastwrite.compact(str(tmp_path), spark=INLINE)
    again = lastwrite.verify(str(tmp_path))
    assert again.exit_status == 0 and not any(partition.advice for partition in again.partitions)
    for was, now, done in zip(
        report.partitions, again.partitions, compacted.partitions, strict=True
    ):
        assert now.segments == was.segments + 1 and now.records == was.records + (
            done.records_after or 0
        )


NAMES = ["shapes", "odd", "parts-partition-1", "files", "events"]


@pytest.fixture(scope="module")
def bookies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack("bookies", tmp_path_factory.mktemp("bookies"))


@pytest.mark.parametrize("name", NAMES)
def test_ledger_of_the_real_compactor_is_verified(tmp_path: Path, bookies: Path, name: str) -> None:
    said = CORPUS / "topics" / name / "2"
    lastwrite.fetch(
        [str(bookies / str(number)) for number in range(3)],
        str(tmp_path / "archive"),
        topic=TOPICS[name],
        metadata=str(said / "managed-ledger"),
        cursor=str(said / "cursor"),
        recover=True,
    )
    [found] = lastwrite.verify(str(tmp_path / "archive")).partitions
    assert str(found.status) == "verified", found.problems
    # Compacted with topicCompactionRetainNullKey, which the metadata do not record.
    assert [line for line in found.advice if "without a key" not in line] == [] and bool(
        found.advice
    ) == (name == "events")


@pytest.mark.parametrize(
    "name", [*NAMES[:3], *(pytest.param(name, marks=pytest.mark.long) for name in NAMES[3:])]
)
def test_real_compaction_keeps_the_promises(tmp_path: Path, bookies: Path, name: str) -> None:
    """The real compacted ledger is checked against all raw ledgers."""
    said = CORPUS / "topics" / name / "2"
    sources = [str(bookies / str(number)) for number in range(3)]
    known: dict[str, Any] = {
        "topic": TOPICS[name],
        "metadata": str(said / "managed-ledger"),
        "recover": True,
    }
    lastwrite.fetch(sources, str(tmp_path / "before"), **known)
    [fetched] = lastwrite.fetch(
        sources, str(tmp_path / "after"), cursor=str(said / "cursor"), **known
    ).topics
    if name == "events":  # the metadata do not record a broker's compaction settings
        manifest = read_manifest(fetched.folder)
        assert manifest is not None
        replace_manifest(
            fetched.folder, replace(manifest, order="event-time", retain_null_key=True)
        )
    report = lastwrite.verify(str(tmp_path / "after"), before=str(tmp_path / "before"))
    # A broker drops unknown fields from the batches that it rewrites.
    assert {found.promise for found in report.violations} == (
        {"changed"} if name == "odd" else set()
    )
    [found] = report.partitions
    assert found.comparison is not None
    assert found.comparison.records_before > found.comparison.records_after > 0
