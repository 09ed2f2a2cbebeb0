"""Where a cold start goes: a new process, step by step, median of some.

    python bench/start.py [REPEATS]

Steps: the interpreter with ``import lastwrite`` and the driver's modules; the JVM and its session; the
first job, of which the workers' start; what a worker imports; what loading the compiled kernels takes
there (they were compiled once before); a second job; stopping.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time

_CHILD = """
import json, os, sys, time
begin = float(sys.argv[1]); said = {}; last = begin
def step(name):
    global last
    now = time.time(); said[name] = now - last; last = now
step("interpreter")
import lastwrite
from lastwrite.pipeline import compact, session, memory
step("import lastwrite")
import lastwrite.pipeline.java as java
java.prepare_environment(); step("find Java")
import pyspark.sql
step("import pyspark")
def work(_):
    import time
    entered = time.time()
    import lastwrite.pipeline.exchange, lastwrite.pipeline.kafka
    imported = time.time()
    import numpy as np
    from lastwrite.compaction import election, verdict
    from lastwrite.formats.kafka.chunk import KafkaFormat
    from lastwrite.formats.fingerprint import SECRET_WORDS, secret_from
    from lastwrite.model.columns import BATCH
    from lastwrite.model.policy import Policy
    form = KafkaFormat(1 << 20); table = np.empty(0, dtype=BATCH); data = np.empty(64, dtype=np.uint8)
    states = np.empty(1, dtype=np.uint8); entries = np.empty((1, 2), dtype=np.uint64)
    form.split(data, 0, 0, 0)
    for run in form.opened(data, table):
        form.walk(run, table, secret_from(bytes(8 * SECRET_WORDS)), 0, states, entries, 0)
    policy = Policy(now_ms=0, tombstone_retention_ms=0)
    actions = np.empty(0, np.uint8); horizons = np.empty(0, np.int64)
    verdict.judge(table, states[:0], policy, 0, states, actions, horizons, np.zeros(len(verdict.Verdict), np.int64))
    election.partition(entries, 0, 1, entries, np.empty(2, np.uint32))
    form.rebuild(data, table, actions, horizons, states, data, np.empty((1, 5), np.int64))
    return entered, imported, time.time()
with session.spark_session("local[2]", memory.plan_memory(None, 2), {}) as spark:
    step("JVM and session")
    job = time.time()
    found = spark.sparkContext.parallelize([0, 1], 2).map(work).collect()
    step("first job")
    said["  of it until a worker runs"] = max(f[0] for f in found) - job
    said["  of it a worker's imports"] = max(f[1] - f[0] for f in found)
    said["  of it loading kernels"] = max(f[2] - f[1] for f in found)
    spark.sparkContext.parallelize([0, 1], 2).map(work).collect()
    step("second job")
step("stop")
print(json.dumps(said))
"""


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    runs: list[dict[str, float]] = []
    for repeat in range(-1, repeats):
        done = subprocess.run(
            [sys.executable, "-c", _CHILD, str(time.time())], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, check=True,
        )  # fmt: skip
        if repeat >= 0:  # the first filled the caches
            runs.append(json.loads(done.stdout.splitlines()[-1]))
    for name in runs[0]:
        found = [run[name] for run in runs]
        print(f"{name:30} {statistics.median(found):6.2f} s   (best {min(found):.2f})")
    whole = [sum(seconds for name, seconds in run.items() if not name.startswith(" ")) for run in runs]
    print(f"{'all':30} {statistics.median(whole):6.2f} s   (best {min(whole):.2f})")


if __name__ == "__main__":
    main()
