"""The time of a cold start, step by step, in wall and in processor seconds.

    python -m bench.start [REPEATS]

The steps are those of ``lastwrite compact`` around its work: start the interpreter and the command
line; start the JVM and meanwhile import everything, load the kernels (already compiled) and fork
the process that starts workers; wait for Spark's context; run a first job, timed until a worker
runs; run a second job; stop; leave the interpreter. Prints medians and the best. On a busy machine,
compare the processor seconds.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time

_CHILD = """
import sys, time
begin = float(sys.argv[1]); said = {}
import json, os
from bench import sampling
last = [begin, 0.0]
def step(name):
    now = [time.time(), sampling.cpu_seconds(os.getpid())]
    said[name] = [now[0] - last[0], now[1] - last[1]]; last[:] = now
import lastwrite.cli.app
step("the command line")
from lastwrite.spark.session import OwnSpark, start_ahead
start_ahead("local[2]", {}, print)
import lastwrite; lastwrite.compact
step("start Java; imports, kernels")
def entered(_):
    return time.time()
spark = OwnSpark("local[2]", {})
context = spark.context
step("until there is a context")
asked = time.time()
found = context.parallelize([0, 1], 2).map(entered).collect()
step("first job")
said["  of it until a worker runs"] = [max(found) - asked, 0.0]
context.parallelize([0, 1], 2).map(entered).collect()
step("second job")
spark.close()
step("stop")
said["left"] = time.time()
import gc
gc.freeze()
print(json.dumps(said))
"""


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    runs: list[dict[str, list[float]]] = []
    for repeat in range(-1, repeats):
        begin = time.time()
        done = subprocess.run(
            [sys.executable, "-c", _CHILD, str(begin)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            check=True,
        )
        end = time.time()
        said = json.loads(done.stdout.splitlines()[-1])
        said["leave the interpreter"] = [end - said.pop("left"), 0.0]
        said["all"] = [end - begin, sum(cpu for _, cpu in said.values())]
        if repeat >= 0:  # the first run fills the caches
            runs.append(said)
    print(f"{'':30} {'wall s':>8} {'best':>6} {'CPU s':>6} {'best':>6}")
    for name in runs[0]:
        wall, cpu = zip(*(run[name] for run in runs), strict=True)
        print(
            f"{name:30} {statistics.median(wall):8.2f} {min(wall):6.2f} {statistics.median(cpu):6.2f} {min(cpu):6.2f}"
        )


if __name__ == "__main__":
    main()
