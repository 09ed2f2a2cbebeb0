"""Run the cases in text files:  python -m tests.cases [--write] [FILE …]

Prints each case whose result is wrong. With --write the actual result replaces the expected one.
If the engine and the plain model disagree, nothing is written.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.support.cases import CASES, play, rewritten


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cases", description=__doc__)
    parser.add_argument("--write", action="store_true", help="rewrite what cases expect")
    parser.add_argument("files", nargs="*", type=Path, help="default: all")
    arguments = parser.parse_args()
    wrong = 0
    for path in arguments.files or sorted(CASES.glob("*/*.txt")):
        wrong += not settle(path.resolve(), arguments.write)
    return 1 if wrong else 0


def settle(path: Path, write: bool) -> bool:
    """Compare the case with the engine and the model. Returns whether it holds, or was
    rewritten.
    """
    with tempfile.TemporaryDirectory() as place:
        by_engine = play(path, Path(place, "engine"), by_model=False)
        by_model = play(path, Path(place, "model"), by_model=True)
    for number, (ours, plain) in enumerate(zip(by_engine, by_model, strict=True), 1):
        if ours[1] != plain[1]:
            print(f"{path}: round {number}: the engine leaves {ours[1]}, the model {plain[1]}")
            return False
    if all(expected == left for expected, left in by_engine):
        return True
    if write:
        path.write_text(rewritten(path.read_text(), by_engine))
        print(f"{path}: rewritten")
        return True
    for number, (expected, left) in enumerate(by_engine, 1):
        if expected != left:
            print(f"{path}: round {number}: expected {expected}, left {left}")
    return False


if __name__ == "__main__":
    sys.exit(main())
