"""Tests of when the command line allows Python to collect garbage."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CORPUS = Path(__file__).parents[1] / "corpus/kafka-4.4.0/stopped"

_LOOK = """
import gc, sys
collected = []
gc.callbacks.append(lambda phase, found: collected.append(found["generation"]))
import lastwrite.cli
before = len(collected)
try:
    lastwrite.cli.main()
except SystemExit as end:
    assert end.code == 0
sys.exit(len(collected) - before)
"""

_LATER = """
import gc
from lastwrite import cli
usual = gc.get_threshold()
cli._collect_no_modules()
assert not gc.get_freeze_count()
held = [[] for _ in range(cli._LOADED_OBJECTS)]
assert gc.get_freeze_count() >= len(held)
assert (gc.get_threshold(), gc.callbacks) == (usual, [])
"""


def test_read_commands_do_not_collect_garbage() -> None:
    for look in (["--help"], ["inspect", str(CORPUS)], ["dump", "--limit", "1", str(CORPUS)]):
        command = [sys.executable, "-c", _LOOK, *look]
        assert subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode == 0


def test_loaded_modules_are_frozen_before_collection() -> None:
    subprocess.run([sys.executable, "-c", _LATER], check=True)
