"""Tests that every call in a sentence of a guide can be made as shown."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

import lastwrite

GUIDES = Path(__file__).parents[2] / "docs" / "guide"
BLOCK = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
SHOWN = re.compile(r"`(lastwrite\.\w+\([^`]*\))`")
OTHERS = re.compile(r"`((?:polars|pandas|duckdb|pyarrow)\.[^`]*\([^`]*\))`")


def prose() -> dict[str, str]:
    return {path.name: BLOCK.sub("", path.read_text()) for path in sorted(GUIDES.glob("*.md"))}


CALLS = [(name, call) for name, text in prose().items() for call in SHOWN.findall(text)]


@pytest.mark.parametrize(("page", "call"), CALLS, ids=[f"{page} {call}" for page, call in CALLS])
def test_call_in_a_guide_names_a_function_and_its_parameters(page: str, call: str) -> None:
    tree = ast.parse(call.replace("…", "..."), mode="eval").body
    assert isinstance(tree, ast.Call) and isinstance(tree.func, ast.Attribute)
    assert tree.func.attr in lastwrite.__all__
    parameters = inspect.signature(getattr(lastwrite, tree.func.attr))
    parameters.bind_partial(*tree.args, **{str(each.arg): each.value for each in tree.keywords})


def test_guides_contain_calls() -> None:
    assert len(CALLS) >= 3


def test_calls_of_other_libraries_are_in_tested_blocks() -> None:
    assert {
        name: OTHERS.findall(text) for name, text in prose().items() if OTHERS.search(text)
    } == {}
