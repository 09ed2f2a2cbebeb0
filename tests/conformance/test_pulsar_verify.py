"""``verify`` finds nothing wrong in what a real cluster wrote, compacted ledgers too, nor in what we make of it."""

from __future__ import annotations

from pathlib import Path

import pytest

import lastwrite
from lastwrite.pipeline.inline import INLINE
from tests.pulsar_corpus import CORPUS, TOPICS, unpack


def test_what_was_offloaded_and_compacted_by_us(tmp_path: Path) -> None:
    lastwrite.fetch([str(CORPUS / "offloaded"), str(CORPUS / "filesystem")], str(tmp_path))
    report = lastwrite.verify(str(tmp_path))
    assert report.exit_status == 0 and len(report.partitions) == 4
    assert any(partition.transactions and partition.transactions.aborted for partition in report.partitions)
    compacted = lastwrite.compact(str(tmp_path), spark=INLINE)
    again = lastwrite.verify(str(tmp_path))
    assert again.exit_status == 0 and not any(partition.advice for partition in again.partitions)
    for was, now, done in zip(report.partitions, again.partitions, compacted.partitions, strict=True):
        assert now.segments == was.segments + 1 and now.records == was.records + (done.records_after or 0)


@pytest.mark.parametrize("name", ["shapes", "odd", "parts-partition-1", "files", "events"])
def test_a_ledger_that_the_real_compactor_wrote(tmp_path: Path, name: str) -> None:
    bookies = unpack("bookies", tmp_path / "bookies")
    said = CORPUS / "topics" / name / "2"
    lastwrite.fetch(
        [str(bookies / str(number)) for number in range(3)], str(tmp_path / "archive"), topic=TOPICS[name],
        metadata=str(said / "managed-ledger"), cursor=str(said / "cursor"), recover=True,
    )  # fmt: skip
    [found] = lastwrite.verify(str(tmp_path / "archive")).partitions
    assert str(found.status) == "verified", found.problems
    # This one was compacted with topicCompactionRetainNullKey, which no metadata say.
    assert [line for line in found.advice if "without a key" not in line] == [] and bool(found.advice) == (
        name == "events"
    )
