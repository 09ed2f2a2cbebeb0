"""Tests of keeping a table up to date: reports, retries and shutdown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import lastwrite
from lastwrite.cleaner.cache_keeper import CacheKeeper
from lastwrite.errors import CommitConflict, InvalidConfig, RemoteFailed
from lastwrite.reports.table_round import TableRound
from tests.support.kafka.growing import GrowingLog

QUICK_S = 0.001


def _round(how: str, rows: int = 1) -> TableRound:
    return TableRound(
        path="t", format="delta", head="1", how=how, topic="t", offsets={0: 1}, rows=rows, buckets=1
    )


def _kept(turns: list[Callable[[], TableRound]]) -> tuple[list[TableRound], list[str]]:
    """The reports and notes of a keeper during ``turns``. It is stopped after the last one."""
    told: list[TableRound] = []
    notes: list[str] = []
    left = iter(turns)

    def turn() -> TableRound:
        found = next(left)
        if found is turns[-1]:
            keeper.request_stop()
        return found()

    keeper = CacheKeeper(turn, QUICK_S, told.append, notes.append)
    keeper.run()
    return told, notes


def test_first_round_and_changed_rounds_are_reported() -> None:
    hows = ["unchanged", "unchanged", "updated", "unchanged", "compared"]
    told, notes = _kept([lambda how=how: _round(how) for how in hows])  # type: ignore[misc]
    assert [each.how for each in told] == ["unchanged", "updated", "compared"]
    assert not notes


def test_keeper_retries_when_the_store_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lastwrite.cleaner.pauses.LONGEST_S", QUICK_S)

    def silent() -> TableRound:
        raise RemoteFailed("no answer", path="s3://lake/orders", remedy="wait")

    told, notes = _kept([silent, silent, lambda: _round("updated")])
    assert [each.how for each in told] == ["updated"]
    assert len(notes) == 2 and all("no answer" in each for each in notes)


def test_permanent_error_ends_the_keeper() -> None:
    def gone() -> TableRound:
        raise CommitConflict("the log begins at offset 9", path="t-0", remedy="--anew")

    with pytest.raises(CommitConflict):
        _kept([gone, lambda: _round("updated")])
    with pytest.raises(InvalidConfig):
        CacheKeeper(gone, 0, print, print)


def test_table_follows_a_growing_log(tmp_path: Path) -> None:
    pytest.importorskip("deltalake")
    log, table = GrowingLog(tmp_path / "log"), str(tmp_path / "table")
    log.append([(b"a", b"1", 1), (b"b", b"2", 2)])

    def turn() -> TableRound:
        return lastwrite.table_to(str(log.root), "t", to=table, format="delta")

    def grown() -> TableRound:
        log.append([(b"a", None, 3), (b"c", b"3", 4)])
        return turn()

    told, _ = _kept([turn, lambda: turn(), grown, lambda: turn()])
    assert [each.how for each in told] == ["made", "updated"]
    assert [each.offsets for each in told] == [{0: 2}, {0: 4}]
    assert lastwrite.verify_table(str(log.root), table, topic="t").is_proven
