"""Run rounds, sweeps and readers on one archive:  python -m tests.archives --seeds 10000

``tests/archives/model.py`` describes a seed. Seeds are independent and deterministic:
``--start N --seeds 1`` plays a single one.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.archives.commits import commit_under_faults
from tests.archives.model import play
from tests.support.objects import fault_proxy, s3_server


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.archives", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--seeds", type=int, default=10_000, help="how many")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--commits", type=int, default=0, help="commits to a real server instead")
    arguments = parser.parse_args()
    if arguments.commits:
        return commit(arguments.commits)
    met: Counter[str] = Counter()
    failed = []
    began = time.monotonic()
    for seed in range(arguments.start, arguments.start + arguments.seeds):
        try:
            met += play(seed)
        except AssertionError as error:
            failed.append(seed)
            print(error, file=sys.stderr)
    print(
        f"{arguments.seeds} seeds in {time.monotonic() - began:.0f} s; failed: {failed or 'none'}"
    )
    for what, count in sorted(met.items()):
        print(f"{count:>10} {what}")
    return 1 if failed else 0


def commit(commits: int) -> int:
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory() as folder,
        s3_server(Path(folder) / "data") as server,
        fault_proxy(server.endpoint) as proxy,
    ):
        met = commit_under_faults(server, proxy, "kafka/orders/0", max(1, commits // 4))
    print(f"{commits} commits in {time.monotonic() - began:.0f} s")
    for what, count in sorted(met.items()):
        print(f"{count:>10} {what}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
