"""A long-lived Spark session that compacts on request, for warm runs.

    python -m bench.session lastwrite local[2]      # then one line of JSON for each request and
    answer
    python -m bench.session naive local[2]
    python -m bench.session inline -                # without Spark, on one core

It is a process of its own, so that its tree's memory and processor seconds are only its own. Its
first line tells that it is ready, and its memory setting for requests without one (0 means no
setting). A request: {"path": …, "now_ms": …, "config": {…}, "memory": …, "dry_run": true}.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import ExitStack
from functools import partial
from typing import Any

import lastwrite
from bench.peer import REPOSITORY
from lastwrite.spark.inline import INLINE
from lastwrite.spark.memory import plan_memory
from lastwrite.spark.session import local_workers


def compact(how: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    """Compact as requested. ``how`` has the arguments of ``lastwrite.compact`` for the session."""
    begin = time.perf_counter()
    run = lastwrite.plan if request.get("dry_run") else lastwrite.compact
    report = run(
        request["path"],
        config=request["config"],
        now_ms=request["now_ms"],
        memory=request.get("memory"),
        keep_scans=request.get("keep_scans", False),
        **how,
    )
    seconds = time.perf_counter() - begin
    return {
        **report.to_dict()["totals"],
        "seconds": seconds,
        "statuses": [str(p.status) for p in report.partitions],
        "reasons": [p.reason for p in report.partitions],
        "problems": [str(problem) for p in report.partitions for problem in p.problems],
        "keys": [p.keys for p in report.partitions],
    }


def main() -> None:
    kind, master = sys.argv[1:3]
    answers = os.fdopen(os.dup(1), "w")  # Spark's output must not be among the answers
    os.dup2(2, 1)
    # Workers import these modules, too.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    memory_bytes = 0
    with ExitStack() as held:
        if kind == "naive":
            from bench import naive  # imports Arrow, which would count as Lastwrite's memory

            session = naive.session(master)
            held.callback(session.stop)
            serve = partial(naive.compact, session)
        elif kind == "inline":
            serve = partial(compact, {"spark": INLINE})
        else:
            workers = local_workers(master)
            assert workers, "a peer cleans on this machine"
            memory_bytes = plan_memory(None, workers).total_bytes
            serve = partial(compact, {"master": master})
        print(json.dumps({"memory_bytes": memory_bytes}), file=answers, flush=True)
        for line in sys.stdin:
            print(json.dumps(serve(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
