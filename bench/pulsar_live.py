"""A round on a topic that a broker serves, compared with the broker's own compaction of that topic.

    python -m bench.pulsar_live [--messages 200000] [--repeats 3] [--json FILE]

The Java client produces single messages of about 150 bytes, with a quarter as many keys. Both sides
begin from scratch: the subscription ``__compaction`` is removed before each run. The broker reports
its own seconds. Lastwrite's are those of the whole call of ``lastwrite.compact`` in this process,
without Spark: it reads every entry from the bookie, and writes the compacted ledger to it. Both
ledgers are compared entry for entry.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

import lastwrite
from bench.pulsar_compaction import Row, Theirs, compare
from bench.sampling import machine
from lastwrite.spark.inline import INLINE
from tests.support.pulsar.broker import Unavailable


def compact(theirs: Theirs, row: Row) -> dict[str, float]:
    """Run Lastwrite's round. Returns wall and processor seconds."""
    theirs.forget_compaction(row)
    config = {"metadataStoreUrl": f"zk:{theirs.broker.metadata_store}"}
    begin, used = time.perf_counter(), time.process_time()
    report = lastwrite.compact(row.topic, config=config, spark=INLINE)
    told = {
        "seconds": time.perf_counter() - begin,
        "cpu_seconds": time.process_time() - used,
    }
    if report.exit_status:
        raise SystemExit(f"lastwrite: {report.to_dict()}")
    return told


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--value", type=int, default=120, help="bytes")
    parser.add_argument("--repeats", type=int, default=3)
    home = Path(os.environ.get("TMPDIR", "/tmp"))
    parser.add_argument("--work", type=Path, default=home / "lastwrite-bench-pulsar-live")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    given.keys = given.messages // 4
    given.work.mkdir(parents=True, exist_ok=True)
    row = Row("live", "NONE", 1)
    try:
        theirs = Theirs(given.work / "standalone")
    except Unavailable as reason:
        raise SystemExit(str(reason)) from reason
    runs: dict[str, list[dict[str, float]]] = {"pulsar": [], "lastwrite": []}
    left = 0
    try:
        theirs.produce(row, given)
        for repeat in range(given.repeats + 1):
            told = {"pulsar": theirs.compact(row)}
            expected = theirs.records(row)
            told["lastwrite"] = compact(theirs, row)
            left = compare(theirs.records(row), expected)
            if repeat:  # the first run is a warm-up of both
                for side, run in told.items():
                    runs[side].append(run)
                said = (f"{side} {run['seconds']:.2f} s" for side, run in told.items())
                print(f"  {', '.join(said)}", flush=True)
    finally:
        theirs.close()
    seconds = {
        side: statistics.median(run["seconds"] for run in made) for side, made in runs.items()
    }
    ratio = seconds["pulsar"] / seconds["lastwrite"]
    print(
        f"{given.messages} messages, {left} entries left: Pulsar {seconds['pulsar']:.2f} s, "
        f"Lastwrite {seconds['lastwrite']:.2f} s, {ratio:.1f} times as fast"
    )
    if given.json:
        found = {"machine": machine(), "entries_left": left, "times_as_fast": ratio, "runs": runs}
        given.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
