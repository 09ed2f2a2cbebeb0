"""Kill a server with SIGKILL while groups' offsets are committed: ``python -m tests.commits --seeds
1000``.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tests.commits.killed import live


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.commits", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    answered = 0
    for seed in range(given.first, given.first + given.seeds):
        with tempfile.TemporaryDirectory(prefix="lastwrite-commits-") as folder:
            answered += live(Path(folder) / "state", seed)
        if (seed + 1) % 100 == 0:
            print(f"{seed + 1} seeds, {answered:,} commits answered, none lost", flush=True)
    print(f"{given.seeds} seeds, {answered:,} commits answered, none lost")


main()
