"""Tests of a round on an archive, through the driver."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import lastwrite
from lastwrite.archive import partition_store, rounds
from lastwrite.kafka.store import archiving
from lastwrite.model.progress import NoProgress
from lastwrite.reports.compaction import Status
from lastwrite.spark.inline import INLINE
from tests.support.pulsar.topics import put_ledger, topic_folder
from tests.unit.test_pulsar_cleaner import entries

CORPUS = Path(__file__).parents[1] / "corpus" / "kafka-4.4.0" / "stopped"
ROCKETMQ = CORPUS.parents[1] / "rocketmq" / "5.5.0"
NOW_MS = 1_800_000_000_000


def test_fetch_accepts_a_single_source_without_a_list(tmp_path: Path) -> None:
    report = lastwrite.fetch(str(CORPUS), str(tmp_path), topic="client-zstd")
    assert len(report.partitions) == 1


def test_journal_of_a_long_round_is_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "RENEW_EVERY_S", 0.01)
    monkeypatch.setattr(partition_store, "RENEW_MS", 0)
    report = lastwrite.fetch([str(CORPUS)], str(tmp_path), topic="client-zstd")
    folder = report.partitions[0].folder
    begun = archiving.KafkaRounds()
    begun.output_folder(begun.read(folder), None)
    where = partition_store.partition_store_at(folder)
    (journal,) = where.store.list(where.key(partition_store.ROUNDS))
    first = journal.version
    for _ in range(1000):
        (journal,) = where.store.list(where.key(partition_store.ROUNDS))
        if journal.version != first:
            return
        time.sleep(0.01)
    pytest.fail("the journal stays as it was")


def test_round_caches_only_a_few_manifests_of_a_large_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "_MOST_SEEN", 4)
    report = lastwrite.fetch([str(CORPUS)], str(tmp_path))
    folders = [each.folder for each in report.partitions]
    assert len(folders) > 8
    begun = archiving.KafkaRounds()
    begun.expect(folders)
    first = begun.read(folders[0])
    begun.output_folder(first, None)
    logs = [begun.read(folder) for folder in folders[1:]]
    assert [log.folder for log in logs] == folders[1:]
    assert len(begun._manifests) <= 5
    assert begun._rounds[folders[0]][1].replaced is begun.manifest_of(folders[0])


class _CompactsBefore(NoProgress):
    """Progress that runs another ``compact`` before each of the first ``times`` commits."""

    def __init__(self, archive: Path, times: int, **arguments: Any) -> None:
        self.notes: list[str] = []
        self.left = times
        self._archive, self._arguments = archive, arguments

    def stage(self, name: str, total_bytes: int) -> None:
        if name == "commit" and self.left:
            self.left -= 1
            lastwrite.compact(str(self._archive), spark=INLINE, now_ms=NOW_MS, **self._arguments)

    def note(self, text: str) -> None:
        self.notes.append(text)


def _archive_of(system: str, folder: Path) -> Path:
    """An archive of one small topic of the system."""
    if system == "pulsar":
        put_ledger(topic_folder(folder / "source"), 10, entries(20))
        lastwrite.fetch([str(folder / "source")], str(folder / "archive"))
    elif system == "rocketmq":
        lastwrite.fetch([str(ROCKETMQ)], str(folder / "archive"))
    else:
        lastwrite.fetch([str(CORPUS)], str(folder / "archive"), topic="client-zstd")
    return folder / "archive"


def _rows(archive: Path) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in row.items() if name not in ("path", "file")}
        for row in lastwrite.dump(str(archive))
    ]


@pytest.mark.parametrize("system", ["kafka", "rocketmq", "pulsar"])
def test_round_that_loses_its_commit_starts_from_the_newer_generation(
    tmp_path: Path, system: str
) -> None:
    alone = _archive_of(system, tmp_path / "alone")
    beside = _archive_of(system, tmp_path / "beside")
    expected = lastwrite.compact(str(alone), spark=INLINE, now_ms=NOW_MS)
    rival = _CompactsBefore(beside, 1)
    report = lastwrite.compact(str(beside), spark=INLINE, now_ms=NOW_MS, progress=rival)
    cleaned = [n for n, each in enumerate(expected.partitions) if each.status is Status.CLEANED]
    assert cleaned and not report.failed and not report.damaged
    assert {report.partitions[n].attempts for n in cleaned} == {2}
    assert "changed by another program during the command; attempt 2 of 5" in rival.notes[-1]
    assert _rows(beside) == _rows(alone)


def test_round_that_keeps_losing_fails_after_its_last_attempt(tmp_path: Path) -> None:
    archive = _archive_of("kafka", tmp_path)
    rewrites: dict[str, Any] = {"like_broker": True, "drop_expired_deletes": True}
    rival = _CompactsBefore(archive, 9, **rewrites)
    [report] = lastwrite.compact(
        str(archive), spark=INLINE, now_ms=NOW_MS, progress=rival, **rewrites
    ).partitions
    assert (report.status, report.attempts, rival.left) == (Status.FAILED, 5, 4)
    assert "run the command again" in str(report.reason)
