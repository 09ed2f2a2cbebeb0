"""The commands that bench/README.md names find what they import: four of them once did not."""

import re
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def test_commands_of_the_bench_find_what_they_import() -> None:
    named = set(re.findall(r"python -m (bench\.\w+)", (REPOSITORY / "bench/README.md").read_text()))
    assert len(named) > 10
    subprocess.run(
        [sys.executable, "-c", f"import {', '.join(sorted(named))}"], cwd=REPOSITORY, check=True
    )
