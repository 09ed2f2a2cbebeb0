"""Fuzz every reader of bytes:  python -m tests.fuzz --inputs 10000000 --seed 1

An input is a file or a part of one with damage: flipped bits, truncation, spliced parts or extreme
lengths, often with corrected checksums. It must be decoded, or rejected with an error of
``errors.py``. Everything else is a finding: another error, more than a second of processor time,
more than a GiB of memory, an access beyond the buffer (it ends at an unreadable page), or two
decoders that disagree. Inputs run in child processes, so that a crash is reported, too.
``tests.fuzz.covered`` lists what is covered.

The same seed makes the same inputs. A finding is printed and saved (``--save``). ``--replay FILE``
runs it again.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.fuzz.run import SYSTEMS, Run, replay


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--system", choices=[*SYSTEMS, "all"], default="all")
    parser.add_argument("--inputs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the number of the first input")
    parser.add_argument("--jobs", type=int, default=1, help="child processes")
    parser.add_argument("--target", help="only targets whose name has this in it")
    parser.add_argument(
        "--save", type=Path, default=Path("fuzz-findings"), help="the folder for findings"
    )
    parser.add_argument(
        "--replay", type=Path, metavar="FILE", help="a saved finding: run it again, in this process"
    )
    given = parser.parse_args()
    if given.replay:
        return replay(given.replay)
    run = Run(given.system, given.seed, given.save, given.target)
    run.through(given.first, given.inputs, given.jobs)
    print(run.summary())
    return 1 if run.findings else 0


if __name__ == "__main__":
    sys.exit(main())
