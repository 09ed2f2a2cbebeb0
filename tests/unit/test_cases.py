"""Tests of the compaction examples in tests/cases, whose README describes their format."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cases import CASES, SYSTEMS, play, rewritten

FILES = sorted(CASES.glob("*/*.txt"))


def test_each_system_has_cases() -> None:
    assert {path.parent.name for path in FILES} == SYSTEMS.keys()


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
@pytest.mark.parametrize("by_model", [False, True], ids=["engine", "model"])
def test_compaction_leaves_the_records_of_the_case(
    path: Path, by_model: bool, tmp_path: Path
) -> None:
    played = play(path, tmp_path / "log", by_model)
    assert played and all(expected == left for expected, left in played), played


def test_wrong_case_is_rewritten_and_correct_lines_keep_their_comments(tmp_path: Path) -> None:
    case = (CASES / "kafka" / "tombstones.txt").read_text()
    wrong = tmp_path / "kafka" / "wrong.txt"
    wrong.parent.mkdir()
    wrong.write_text(case.replace("2..4 until 6000: a=~ c=1 _\n", "2..4: c=1\n"))
    played = play(wrong, tmp_path / "log", by_model=False)
    assert any(expected != left for expected, left in played)
    assert rewritten(wrong.read_text(), played) == case
    assert rewritten(case, played) == case
