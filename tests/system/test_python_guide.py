"""Tests that ``docs/guide/python.md`` runs as written and prints what it shows."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import lastwrite

pytestmark = pytest.mark.spark
pytest.importorskip("pyarrow", reason="pip install 'lastwrite[frames]'")
pytest.importorskip("pandas", reason="pip install 'lastwrite[frames]'")
pytest.importorskip("duckdb", reason="pip install 'lastwrite[test]'")
pytest.importorskip("polars", reason="pip install 'lastwrite[test]'")

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guide" / "python.md"
SNIPPET = re.compile(r"^```python\n(.*?)^```$(?:\n\n^```\n(.*?)^```$)?", re.DOTALL | re.MULTILINE)
END = "-- end of a snippet --"


def test_guide_runs_and_prints_the_shown_output(tmp_path: Path) -> None:
    page = PAGE.read_text().replace("/tmp/", f"{tmp_path}/")
    (source,) = re.findall(r"^cp -r (\S+) \S+/logs$", page, re.MULTILINE)
    shutil.copytree(ROOT / source, tmp_path / "logs")
    snippets = SNIPPET.findall(page)
    program = "".join(f"{code}\nprint({END!r})\n" for code, _ in snippets)
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SPARK_", "PYSPARK_"))}
    done = subprocess.run(
        [sys.executable, "-c", program], env=clean, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    printed = done.stdout.split(f"{END}\n")
    assert printed == [*(shown for _, shown in snippets), ""]


def test_guide_names_existing_functions() -> None:
    page = PAGE.read_text()
    assert set(re.findall(r"lastwrite\.([a-z]+)\(", page)) <= set(lastwrite.__all__)
