"""Simulate power failures in runs on a modelled disk:  python -m tests.power --seeds 10000

A seed is a run, a moment at which the power fails, and one of the states that the disk may then
have (``tests/power/disk.py``). ``SEEDS_A_PLACE`` seeds share one folder with several recorded runs.
In some seeds the run is killed first, which syncs nothing, and the power fails in the run after it.
In other seeds the power also fails in the next run.

The state is written out and checked. Everything must be as before the run or as after it, and
complete, as our own code reads it. In every ``--loader``-th seed the system's own code (Kafka's
loader, RocketMQ's compaction log) must agree. The result of a completed run must be kept. The next
run must end like an undisturbed one. Seeds are independent: ``--start N`` continues a stopped run,
and ``--start N --seeds 1`` plays a single one.

``--loader`` above 0 needs the same as tests marked ``oracle``: Java 17, and the peers in
``LASTWRITE_PEERS``.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

from tests.power.judges import Judges
from tests.power.places import SEEDS_A_PLACE, SYSTEMS, Places
from tests.support.kafka.logs import SCRATCH

PROGRESS_SECONDS = 30


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.power", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--seeds", type=int, default=10_000, help="how many power cuts")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument(
        "--system", choices=SYSTEMS, help="this one alone; default: all three, turn by turn"
    )
    parser.add_argument(
        "--loader",
        type=int,
        default=5,
        help="the system's own code judges every n-th seed; 0: none",
    )
    arguments = parser.parse_args()
    end = arguments.start + arguments.seeds
    met: Counter[str] = Counter()
    failed: list[int] = []
    judges = Judges()
    began = told = time.monotonic()
    seed = arguments.start
    folder = Path(tempfile.mkdtemp(prefix="lastwrite-power-", dir=SCRATCH))
    places = Places(folder, arguments.system)
    try:
        for seed in range(arguments.start, end):
            try:
                is_judged = arguments.loader > 0 and seed % arguments.loader == 0
                places.play(seed, judges.of if is_judged else judges.none, met)
            except Exception as error:
                failed.append(seed)
                where = "" if places.scene is None else f" ({places.scene.name})"
                print(
                    f"seed {seed}{where} FAILED: {type(error).__name__}: {str(error)[:500]}",
                    flush=True,
                )
                if arguments.seeds == 1:
                    traceback.print_exc()
            if time.monotonic() - told > PROGRESS_SECONDS:
                told = time.monotonic()
                print(
                    f"seed {seed} of {end - 1}, {len(failed)} failed, {told - began:.0f} s",
                    flush=True,
                )
    except KeyboardInterrupt:
        print(f"stopped; go on with --start {seed} --seeds {end - seed}")
    finally:
        judges.close()
        shutil.rmtree(folder, ignore_errors=True)
    for what, count in sorted(met.items()):
        print(f"{count:8} {what}")
    print(
        f"{len(failed)} of {seed - arguments.start + 1} failed, {time.monotonic() - began:.0f} s",
        *failed,
    )
    print(
        "nothing lost, nothing doubled"
        if not failed
        else f"see above; {SEEDS_A_PLACE} seeds share one place"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
