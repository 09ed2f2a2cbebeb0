"""``python -m tests.golden --write`` writes the output of every command in ``commands``."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.golden.commands import HERE, results


def main() -> None:
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python -m tests.golden --write")
    with tempfile.TemporaryDirectory() as folder:
        written = {f"{name}.json": text for name, text in results(Path(folder).resolve())}
    for name, text in written.items():
        (HERE / name).write_text(text, encoding="utf-8")
    for stale in set(HERE.glob("*.json")) - {HERE / name for name in written}:
        stale.unlink()


main()
