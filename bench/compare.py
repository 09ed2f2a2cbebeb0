"""Processor seconds of two commits on the same logs, with a confidence interval.

    python -m bench.compare HEAD~5 HEAD                  # the rows that are one warm round of ours
    python -m bench.compare main . --rows none-warm --repeats 9   # . is the working tree

Each commit's package runs in a session of its own, warm. The two take turns, and each time the
other one is first, so that the machine's load affects both. The result is the median ratio of B's
seconds to A's over all pairs, with its 95 % interval by resampling. Below 1, B is faster. Kernels
that are not in a commit's cache are compiled in a first run, which is not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from bench.logs import Logs
from bench.peer import REPOSITORY
from bench.rows import ROWS
from bench.sides import WarmLastwrite

_ROWS = ("none-warm", "lz4-warm", "zstd-warm", "large-none", "large-zstd", "second-spread")


def compared(
    name: str, logs: Logs, sources: Sequence[Path], master: str, repeats: int
) -> dict[str, Any]:
    """Run a row with ``repeats`` pairs of runs.

    Raises:
        SystemExit: The two commits left different bytes.
    """
    spec = ROWS[name].spec
    source, facts = logs.source(spec)
    found: list[list[tuple[float, float]]] = [[], []]
    left: list[set[int]] = [set(), set()]
    with ExitStack() as stack:
        sides = []
        for each in sources:
            os.environ["PYTHONPATH"] = str(each)  # inherited by the session that starts next
            sides.append(stack.enter_context(closing(WarmLastwrite(master, spec.config))))
        for repeat in range(-1, repeats):
            for side in (0, 1) if repeat % 2 else (1, 0):
                folder = logs.copy(source)
                outcome, cpu = sides[side].run(folder, None)
                left[side].add(sum(hash(f.read_bytes()) for f in folder.glob("*.log")))
                if repeat >= 0:
                    found[side].append((sum(cpu.values()), outcome.seconds))
            print(f"{name}: {repeat + 1} of {repeats}", file=sys.stderr, flush=True)
    return {
        "row": name,
        "records": facts["records"],
        "bytes": facts["bytes"],
        "same_bytes": left[0] == left[1] and len(left[0]) == 1,
        "processor": ratio_of([cpu for cpu, _ in found[0]], [cpu for cpu, _ in found[1]]),
        "wall": ratio_of([wall for _, wall in found[0]], [wall for _, wall in found[1]]),
    }


def ratio_of(before: Sequence[float], after: Sequence[float]) -> dict[str, float]:
    """Both medians in seconds, the median ratio of the pairs, and its resampled 95 % interval."""
    pairs = [b / a for a, b in zip(before, after, strict=True)]
    drawing = random.Random(1)
    medians = sorted(statistics.median(drawing.choices(pairs, k=len(pairs))) for _ in range(2_000))
    return {
        "a_seconds": round(statistics.median(before), 3),
        "b_seconds": round(statistics.median(after), 3),
        "ratio": round(statistics.median(pairs), 3),
        "low": round(medians[49], 3),
        "high": round(medians[-50], 3),
    }


def _source(commit: str, stack: ExitStack) -> Path:
    """The package's source folder at a commit. ``.`` means the working tree."""
    if commit == ".":
        return REPOSITORY / "src"
    git = ["git", "-C", str(REPOSITORY), "worktree"]
    place = stack.enter_context(tempfile.TemporaryDirectory(prefix="lastwrite-compare-"))
    folder = os.path.join(place, "tree")
    subprocess.run([*git, "add", "-q", "--detach", folder, commit], check=True)
    stack.callback(subprocess.run, [*git, "remove", "--force", folder], check=False)
    return Path(folder) / "src"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commits", nargs=2, metavar="COMMIT", help="A and B; . is the working tree")
    parser.add_argument("--rows", nargs="+", choices=sorted(ROWS), default=_ROWS, metavar="ROW")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--master", default="local[2]")
    home = Path(os.environ.get("TMPDIR", "/tmp"))
    parser.add_argument("--work", type=Path, default=home / "lastwrite-bench")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    logs, rows = Logs(given.work), []
    with ExitStack() as stack:
        stack.callback(logs.clear)
        sources = [_source(commit, stack) for commit in given.commits]
        for name in given.rows:
            rows.append(compared(name, logs, sources, given.master, given.repeats))
            for kind in ("processor", "wall"):
                figure = rows[-1][kind]
                print(
                    f"{name:16} {kind:10} {figure['a_seconds']:8.3f} s {figure['b_seconds']:8.3f} s"
                    f"   x{figure['ratio']:.3f} ({figure['low']:.3f} to {figure['high']:.3f})"
                    f"{'' if rows[-1]['same_bytes'] else '   OTHER BYTES'}",
                    flush=True,
                )
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
