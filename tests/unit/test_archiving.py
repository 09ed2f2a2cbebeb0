"""A round on an archive, as the driver sees it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import lastwrite
from lastwrite.archive import place, rounds
from lastwrite.kafka.store import archiving

CORPUS = Path(__file__).parents[1] / "corpus" / "kafka-4.4.0" / "stopped"


def test_one_source_needs_no_list(tmp_path: Path) -> None:
    report = lastwrite.fetch(str(CORPUS), str(tmp_path), topic="client-zstd")
    assert len(report.partitions) == 1


def test_the_journal_of_a_round_that_lasts_is_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "RENEW_EVERY_S", 0.01)
    monkeypatch.setattr(place, "RENEW_MS", 0)
    report = lastwrite.fetch([str(CORPUS)], str(tmp_path), topic="client-zstd")
    folder = report.partitions[0].folder
    begun = archiving.KafkaRounds()
    begun.output_folder(begun.read(folder), None)
    where = place.place_at(folder)
    (journal,) = where.store.list(where.key(place.ROUNDS))
    first = journal.version
    for _ in range(1000):
        (journal,) = where.store.list(where.key(place.ROUNDS))
        if journal.version != first:
            return
        time.sleep(0.01)
    pytest.fail("the journal stays as it was")


def test_not_all_manifests_of_a_large_archive_are_held(
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
    assert len(begun._seen) <= 5
    assert begun._rounds[folders[0]][1].seen is begun.seen(folders[0])
