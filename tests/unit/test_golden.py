"""Tests of each command's JSON output against ``tests/golden``: names, order and values."""

from __future__ import annotations

import pytest

from tests.golden.commands import CASES, HERE, results


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return dict(results(tmp_path_factory.mktemp("golden").resolve()))


@pytest.mark.parametrize("name", CASES)
def test_command_output_equals_its_golden_file(name: str, printed: dict[str, str]) -> None:
    assert printed[name] == (HERE / f"{name}.json").read_text(encoding="utf-8")


def test_every_golden_file_has_a_case() -> None:
    assert {path.stem for path in HERE.glob("*.json")} == set(CASES)
