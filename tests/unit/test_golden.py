"""What every command prints as JSON, held against ``tests/golden``: names, order and values."""

from __future__ import annotations

import pytest

from tests.golden.commands import CASES, HERE, results


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return dict(results(tmp_path_factory.mktemp("golden").resolve()))


@pytest.mark.parametrize("name", CASES)
def test_a_command_prints_what_it_printed(name: str, printed: dict[str, str]) -> None:
    assert printed[name] == (HERE / f"{name}.json").read_text(encoding="utf-8")


def test_no_file_is_left_of_a_case_that_is_gone() -> None:
    assert {path.stem for path in HERE.glob("*.json")} == set(CASES)
