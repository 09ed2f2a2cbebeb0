"""Kill rounds over random logs at random operations:  python -m tests.crash --seeds 10000

A seed is a log (``tests/crash/rounds.py``; 20 seeds share one) and an operation before which the
process kills itself by SIGKILL. In a third of the seeds the next run is killed, too. After each
kill every partition must have the batches of the old log or those of the new one, as our own code
reads it. In every ``--loader``-th seed Kafka's own loader must agree. The last run must end with
the bytes of an undisturbed run, and without a ``.cleaned``, ``.swap``, ``.deleted`` or ``.tmp``
file. Seeds are independent: ``--start N`` continues a stopped run, and ``--start N --seeds 1``
plays a single one.

``--loader`` above 0 needs the same as tests marked ``oracle``: Java 17, and the peer in
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

from tests.crash.rounds import prepare
from tests.crash.trial import KILLS_A_LOG, drawn, run_trial
from tests.support.kafka.logs import SCRATCH
from tests.support.kafka.oracle import Oracle

PROGRESS_SECONDS = 30


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.crash", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--seeds", type=int, default=10_000, help="how many kills")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument(
        "--loader", type=int, default=5, help="Kafka's loader judges every n-th seed; 0: none"
    )
    arguments = parser.parse_args()
    end = arguments.start + arguments.seeds
    met: Counter[str] = Counter()
    failed: list[int] = []
    oracle = Oracle() if arguments.loader else None
    began = told = time.monotonic()
    seed, held = arguments.start, -1
    place = Path(tempfile.mkdtemp(prefix="lastwrite-crash-", dir=SCRATCH))
    try:
        for seed in range(arguments.start, end):
            try:
                if seed // KILLS_A_LOG != held:
                    shutil.rmtree(place)
                    place.mkdir()
                    held = -1
                    round_ = prepare(seed // KILLS_A_LOG, place)
                    held = seed // KILLS_A_LOG
                    met["logs"] += 1
                judge = oracle if arguments.loader and seed % arguments.loader == 0 else None
                met += run_trial(round_, place, *drawn(round_, seed), judge)
            except Exception as error:
                failed.append(seed)
                print(f"seed {seed} FAILED: {type(error).__name__}: {str(error)[:500]}", flush=True)
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
        if oracle is not None:
            oracle.close()
        shutil.rmtree(place, ignore_errors=True)
    for what, count in sorted(met.items()):
        print(f"{count:8} {what}")
    print(
        f"{len(failed)} of {seed - arguments.start + 1} failed, {time.monotonic() - began:.0f} s",
        *failed,
    )
    print("0 records lost, 0 doubled, no odd suffix left" if not failed else "see above")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
