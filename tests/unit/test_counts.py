"""Tests that no count of requests and system calls grows; see bench/counts.py."""

import json
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
# Tolerance: some counts vary with the lengths of random names and times.
_MORE = 1.01
_REMEDY = "if that is meant, say why in the commit that records it: python -m bench.counts --write"


def test_no_count_grows() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench.counts"], cwd=REPOSITORY, stdout=subprocess.PIPE, check=True
    )
    found = json.loads(done.stdout)
    recorded = json.loads((REPOSITORY / "bench/counts.json").read_text())
    assert found.keys() == recorded.keys(), _REMEDY
    grown = [
        f"{row}: {name} was {recorded[row].get(name, 0)}, is {count}"
        for row, counts in found.items()
        for name, count in counts.items()
        if count > recorded[row].get(name, 0) * _MORE
    ]
    assert not grown, "\n".join([*grown, _REMEDY])
