"""Tests of the command ``lastwrite fetch`` for Pulsar."""

from __future__ import annotations

from pathlib import Path

from tests.support.pulsar.corpus import CORPUS, TOPICS, horizon, unpack
from tests.system.test_cli import lastwrite, one_document, one_line


def test_fetch_of_a_bucket_prints_json(tmp_path: Path) -> None:
    done = lastwrite("fetch", CORPUS / "offloaded", "--to", tmp_path, "--topic", "shapes", "--json")
    assert done.returncode == 0, done.stderr
    [topic] = one_document(done)["topics"]
    assert topic["topic"] == TOPICS["shapes"]
    assert Path(topic["folder"]) == tmp_path / "public" / "default" / "persistent" / "shapes"
    assert len(topic["ledgers"]) == 5


def test_fetch_from_bookies_prints_text_and_one_bookie_is_not_enough(tmp_path: Path) -> None:
    folder = unpack("bookies", tmp_path / "bookies")
    for journal in folder.rglob("*.txn"):
        journal.unlink()
    bookies = [folder / str(number) for number in range(3)]
    stats = CORPUS / "topics" / "shapes" / "2" / "stats-internal.json"
    known = ("--topic", "shapes", "--metadata", stats)
    done = lastwrite("fetch", *bookies, "--to", tmp_path / "three", *known)
    assert done.returncode == 0, done.stderr
    place = horizon("shapes", 2)["horizon"]
    assert f"{TOPICS['shapes']}: compacted up to {place['ledger']}:{place['entry']}" in done.stdout
    done = lastwrite("fetch", bookies[0], "--to", tmp_path / "one", *known)
    assert done.returncode == 3
    assert "is in none of the sources" in done.stdout
    done = lastwrite("fetch", bookies[0], "--to", tmp_path / "two", "--topic", "shapes")
    assert done.returncode == 2
    assert "stats-internal" in one_line(done)
