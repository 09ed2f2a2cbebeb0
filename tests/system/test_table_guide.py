"""Tests that ``docs/guide/lookup-service.md`` runs as written, on a growing log."""

from __future__ import annotations

import re
import shutil
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pip install 'lastwrite[frames]'")

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guide" / "lookup-service.md"
CORPUS = ROOT / "tests" / "corpus" / "kafka-4.4.0" / "stopped"


def snippet(number: int, tmp_path: Path) -> str:
    shutil.copytree(CORPUS, tmp_path / "kafka")
    code: str = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)[
        number
    ]
    return re.sub("/(data|tmp)/", f"{tmp_path}/", code)


def test_http_service_of_the_guide_runs(tmp_path: Path) -> None:
    found: dict[str, Any] = {}
    exec(snippet(0, tmp_path).replace("8080", "0"), found)
    service = found["service"]
    thread = threading.Thread(target=service.serve_forever)
    thread.start()
    try:
        address = f"http://127.0.0.1:{service.server_port}"
        with urllib.request.urlopen(f"{address}/user-0", timeout=60) as answer:
            assert answer.read() == b"epsilon epsilon"
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{address}/nobody", timeout=60)
    finally:
        service.shutdown()
        thread.join()
        service.server_close()


def test_dimension_table_of_the_guide_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("duckdb")
    exec(snippet(1, tmp_path), {})
    assert "('user-0', 3, 'epsilon epsilon')" in capsys.readouterr().out


def test_search_index_of_the_guide_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found: dict[str, Any] = {}
    exec(snippet(2, tmp_path), found)
    assert capsys.readouterr().out == "True\n"
    (count,) = found["index"].execute("select count(*) from words").fetchone()
    assert count == len(found["topic"])
