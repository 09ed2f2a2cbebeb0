"""A round on an archive, as the driver sees it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import lastwrite
from lastwrite.archive import place
from lastwrite.kafka.store import archived, archiving

CORPUS = Path(__file__).parents[1] / "corpus" / "kafka-4.4.0" / "stopped"


def test_the_journal_of_a_round_that_lasts_is_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archiving, "RENEW_EVERY_S", 0.01)
    monkeypatch.setattr(place, "RENEW_MS", 0)
    report = lastwrite.fetch([str(CORPUS)], str(tmp_path), topic="client-zstd")
    folder = report.partitions[0].folder
    rounds = archiving.Rounds()
    rounds.output_folder(rounds.read(folder), None)
    where = archived.place_of(folder)
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
    monkeypatch.setattr(archiving, "_MOST_SEEN", 4)
    report = lastwrite.fetch([str(CORPUS)], str(tmp_path))
    folders = [each.folder for each in report.partitions]
    assert len(folders) > 8
    rounds = archiving.Rounds()
    rounds.expect(folders)
    first = rounds.read(folders[0])
    rounds.output_folder(first, None)
    logs = [rounds.read(folder) for folder in folders[1:]]
    assert [log.folder for log in logs] == folders[1:]
    assert len(rounds._seen) <= 5
    assert rounds._rounds[folders[0]][1].seen is rounds.seen(folders[0])
