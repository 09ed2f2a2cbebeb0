"""Tests of a recreated topic as a real offloader left it.

Ledger 51 belongs to the deleted topic, ledger 54 to the new one.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import lastwrite
from lastwrite.pulsar.fetched import FetchReport
from tests.support.files import unpack

CORPUS = Path(__file__).parents[1] / "corpus" / "pulsar"
TOPIC = "persistent://public/default/again"
NO_LIST = "an earlier topic of this name"
SECOND = {"new": b"life2", "both": b"life2"}


@pytest.fixture
def source(tmp_path: Path) -> str:
    unpack(CORPUS / "p2-two-lives.tgz", tmp_path)
    return str(tmp_path / "mix")


@pytest.fixture
def ledgers(tmp_path: Path) -> str:
    """The topic's ledger list, as ``topics stats-internal`` prints it."""
    listed = {"ledgerId": 54, "entries": 2, "size": 125}
    path = tmp_path / "stats.json"
    path.write_text(json.dumps({"state": "ClosedLedger", "ledgers": [listed], "cursors": {}}))
    return str(path)


def fetch(source: str, to: Path, ledgers: str | None = None) -> FetchReport:
    given = {} if ledgers is None else {"topic": TOPIC, "metadata": ledgers}
    report = lastwrite.fetch([source], str(to), **given)
    assert isinstance(report, FetchReport)
    return report


def lives(to: Path) -> list[str]:
    """The values of all messages, from ``read`` and from ``dump``."""
    found = [row["value"] for row in lastwrite.dump(str(to), topic=TOPIC)]
    assert [row["value"] for row in lastwrite.read(str(to), topic=TOPIC)] == found
    return found


def test_ledger_list_selects_the_recreated_topic(source: str, ledgers: str, tmp_path: Path) -> None:
    to = tmp_path / "archive"
    for _ in range(2):
        report = fetch(source, to, ledgers)
        assert report.exit_status == 0 and NO_LIST not in str(report.to_dict())
    assert len(set(lives(to))) == 1 and len(lives(to)) == 2
    assert dict(lastwrite.latest(str(to), TOPIC)) == SECOND
    assert lastwrite.verify(str(to)).exit_status == 0
    assert fetch(source, to).exit_status == 0  # the existing ledger list is used again
    assert dict(lastwrite.latest(str(to), TOPIC)) == SECOND


def test_ambiguity_is_named_without_a_ledger_list(
    source: str, ledgers: str, tmp_path: Path
) -> None:
    to = tmp_path / "archive"
    for _ in range(2):
        report = fetch(source, to)
        assert report.exit_status == 0 and NO_LIST in str(report.to_dict())
    reading = lastwrite.read(str(to), topic=TOPIC)
    assert len(list(reading)) == 4 == len(lives(to))
    assert [NO_LIST in note.message for note in reading.notes] == [True]
    assert NO_LIST in str(lastwrite.inspect(str(to)).to_dict())
    # a list that lacks an existing ledger is refused, and the remedy of the note helps
    assert fetch(source, to, ledgers).exit_status == 1
    assert len(lives(to)) == 4
    assert "fetch into a new folder with --topic, and with --metadata" in str(
        reading.notes[0].remedy
    )
    assert fetch(source, tmp_path / "new", ledgers).exit_status == 0
    assert dict(lastwrite.latest(str(tmp_path / "new"), TOPIC)) == SECOND
