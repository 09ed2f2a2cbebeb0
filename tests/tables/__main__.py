"""Update tables of random topics; read them after each round:  python -m tests.tables --seeds 500

``tests/tables/rounds.py`` describes a seed. With ``--spark``, Spark reads the tables with Iceberg's
and Delta's own jars, instead of the other readers. ``--kills 1000 --as delta`` instead kills runs,
or loses the responses to their commits (``tests/tables/kills.py``). Seeds are independent:
``--start N --seeds 1`` plays a single one.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections import Counter

from tests.tables import kills

PROGRESS_S = 30


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.tables", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--seeds", type=int, default=500, help="how many")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--rounds", type=int, default=20, help="of each topic")
    parser.add_argument("--kills", type=int, default=0, help="so many kills instead")
    parser.add_argument("--as", dest="format", help="one format alone")
    parser.add_argument("--spark", action="store_true", help="let Spark read")
    arguments = parser.parse_args()
    met: Counter[str] = Counter()
    failed = []
    began = told = time.monotonic()
    seeds = -(-arguments.kills // kills.ROUNDS) or arguments.seeds
    with contextlib.ExitStack() as stack:
        spark = None
        if arguments.spark:
            from tests.support.tables.spark import SparkReader

            spark = stack.enter_context(SparkReader())
        if arguments.kills:
            kills.warm_up()
        for seed in range(arguments.start, arguments.start + seeds):
            try:
                if arguments.kills:
                    met += kills.play(seed, arguments.format or "delta")
                else:
                    from tests.tables import rounds

                    formats = [arguments.format] if arguments.format else rounds.FORMATS
                    met += rounds.play(seed, arguments.rounds, formats, spark)
            except Exception as error:
                failed.append(seed)
                print(f"{type(error).__name__}: {error}"[:1000], file=sys.stderr, flush=True)
            if time.monotonic() - told > PROGRESS_S:
                told = time.monotonic()
                print(f"seed {seed}, {len(failed)} failed, {told - began:.0f} s", flush=True)
    print(f"{seeds} seeds in {time.monotonic() - began:.0f} s; failed: {failed or 'none'}")
    for what, count in sorted(met.items()):
        print(f"{count:>10} {what}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
