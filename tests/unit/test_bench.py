"""Tests that the commands in bench/README.md find their imports."""

import re
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def test_bench_commands_find_their_imports() -> None:
    named = set(re.findall(r"python -m (bench\.\w+)", (REPOSITORY / "bench/README.md").read_text()))
    assert len(named) > 10
    subprocess.run(
        [sys.executable, "-c", f"import {', '.join(sorted(named))}"], cwd=REPOSITORY, check=True
    )
