"""Tests that ``docs/guide/decoding.md`` runs as written and prints what it shows."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from lastwrite.decoding.options import FORMATS, SPARK_NAMES, DecodingConfig

pytest.importorskip("pyarrow", reason="pip install 'lastwrite[frames]'")

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "decoding.md"
SNIPPET = re.compile(r"^```python\n(.*?)^```$\n\n^```\n(.*?)^```$", re.DOTALL | re.MULTILINE)
END = "-- end of a snippet --"


def test_guide_runs_and_prints_the_shown_output(tmp_path: Path) -> None:
    snippets = SNIPPET.findall(PAGE.read_text().replace("/tmp/", f"{tmp_path}/"))
    program = "".join(f"{code}\nprint({END!r})\n" for code, _ in snippets)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split(f"{END}\n") == [*(shown for _, shown in snippets), ""]


def test_guide_names_all_options_and_formats() -> None:
    page = PAGE.read_text()
    for each in fields(DecodingConfig):
        assert f"`{each.name}`" in page and f"`{SPARK_NAMES[each.name]}`" in page
    assert all(f"`{name}`" in page for name in FORMATS)
