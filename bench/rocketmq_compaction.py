"""RocketMQ's own compaction beside ours, in one run, on the same queues.

    python bench/rocketmq_compaction.py                  # both rows, five repeats: about six minutes, 5 GB of disk
    python bench/rocketmq_compaction.py queue --repeats 3 --json out.json

| row | the store |
|---|---|
| `queue` | one queue of 2,060,000 messages of 250 bytes, 500,000 keys at random, files of the default sizes |
| `queues` | the same in 16 queues, files of a tenth of the default sizes |

`rocketmq` is the real ``CompactionLog`` of 5.5.0, the run alone, in a JVM that has done it before; a broker on two
processors has two threads for its queues, so the sixteen are shared by two such JVMs. `lastwrite` is the whole call,
warm Spark on two workers; `like broker` the same with that option; `cp` copies the store's files, not synced. Each run
has a fresh copy of the store, synced, in the page cache. Needs the RocketMQ peer: ``LASTWRITE_PEERS``, and
``LASTWRITE_ROCKETMQ_HOME`` that its ``setup.sh`` has filled.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

REPOSITORY = Path(__file__).resolve().parents[1]
PEER = Path(os.environ.get("LASTWRITE_PEERS", REPOSITORY.parent / "shared" / "peers")) / "rocketmq"
MESSAGES, KEYS, BODY = 2_060_000, 500_000, 82
SMALL_FILES = {"compactionMappedFileSize": 10_485_760, "compactionCqMappedFileSize": 1_048_576}
ROWS: dict[str, tuple[int, dict[str, int]]] = {"queue": (1, {}), "queues": (16, SMALL_FILES)}
NOW_MS = 4_102_444_800_000  # far ahead: what may go by age goes


class Process:
    """A process that answers a line of JSON with one."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=REPOSITORY
        )

    @property
    def _streams(self) -> tuple[IO[str], IO[str]]:
        assert self._process.stdin is not None and self._process.stdout is not None
        return self._process.stdin, self._process.stdout

    def said(self) -> dict[str, Any]:
        for line in self._streams[1]:
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
        raise SystemExit("a side ended")

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        self._streams[0].write(json.dumps(request) + "\n")
        self._streams[0].flush()
        return self.said()

    def close(self) -> None:
        self._streams[0].close()
        self._process.wait(60)


def oracle() -> Process:
    home = os.environ.get("LASTWRITE_ROCKETMQ_HOME")
    if home is None or not (Path(home) / "classes" / "CompactionOracle.class").exists():
        raise SystemExit("LASTWRITE_ROCKETMQ_HOME names no folder that the peer's setup.sh has filled")
    return Process([str(PEER / "oracle.sh"), home])


class Row:
    def __init__(self, work: Path, name: str) -> None:
        self.queues, self.settings = ROWS[name]
        self.source, self._run = work / name, work / "run"

    def make(self) -> None:
        """Fill the store, once, by the broker's own append path."""
        if (self.source / "done").exists():
            return
        shutil.rmtree(self.source, ignore_errors=True)
        self.source.mkdir(parents=True)
        judge = oracle()
        for queue in range(self.queues):
            request = {
                "do": "fill", "store": str(self.source), "queue": queue, "config": self.settings, "seed": queue + 1,
                "count": MESSAGES // self.queues, "keys": KEYS // self.queues, "body": BODY,
            }  # fmt: skip
            answer = judge.ask(request)
            assert answer["ok"], answer
        judge.close()
        (self.source / "done").touch()

    def copy(self) -> Path:
        shutil.rmtree(self._run, ignore_errors=True)
        shutil.copytree(self.source, self._run, ignore=shutil.ignore_patterns("done"))
        for file in self._run.rglob("*"):
            if file.is_file():
                with open(file, "rb") as handle:
                    os.fsync(handle.fileno())
        return self._run


def by_rocketmq(judges: list[Process], row: Row) -> Callable[[], tuple[float, int]]:
    """Seconds of the runs alone, and messages left in the closed files."""

    def compact(judge: Process, folder: Path, queues: range) -> tuple[float, int]:
        seconds, left = 0.0, 0
        for queue in queues:
            answer = judge.ask(
                {"do": "compact", "store": str(folder), "queue": queue, "config": row.settings, "steps": True}
            )
            assert answer["ok"] and answer["compacted"], answer
            seconds += answer["seconds"]
            left += answer["messagesKept"] - answer["messagesRead"]
        return seconds, left

    def run() -> tuple[float, int]:
        folder, shares = row.copy(), min(len(judges), row.queues)
        with ThreadPoolExecutor(shares) as pool:
            parts = [range(n, row.queues, shares) for n in range(shares)]
            done = list(pool.map(lambda n: compact(judges[n], folder, parts[n]), range(shares)))
        return max(seconds for seconds, _ in done), MESSAGES // row.queues * row.queues + sum(left for _, left in done)

    return run


def by_us(session: Process, row: Row, like_broker: bool) -> Callable[[], tuple[float, int]]:
    def run() -> tuple[float, int]:
        answer = session.ask(
            {"path": str(row.copy()), "config": {"min.cleanable.dirty.ratio": "0", "delete.retention.ms": "0"},
             "now_ms": NOW_MS, "like_broker": like_broker}
        )  # fmt: skip
        assert set(answer["statuses"]) == {"cleaned"}, answer
        return answer["seconds"], answer["records_after"]

    return run


def by_cp(row: Row) -> Callable[[], tuple[float, int]]:
    def run() -> tuple[float, int]:
        folder = row.copy()
        target = folder.with_name("copy")
        shutil.rmtree(target, ignore_errors=True)
        begin = time.perf_counter()
        subprocess.run(["cp", "-r", str(folder), str(target)], check=True)
        seconds = time.perf_counter() - begin
        shutil.rmtree(target)
        return seconds, 0

    return run


def measure(name: str, work: Path, repeats: int, master: str) -> dict[str, Any]:
    row = Row(work, name)
    row.make()
    judges = [oracle(), oracle()]
    session = Process([sys.executable, "bench/session.py", "lastwrite", master])
    session.said()
    sides = {
        "rocketmq": by_rocketmq(judges, row), "lastwrite": by_us(session, row, False),
        "like broker": by_us(session, row, True), "cp": by_cp(row),
    }  # fmt: skip
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    try:
        for repeat in range(-1, repeats):  # the first warms up
            left = {}
            for side, run in sides.items():
                took, left[side] = run()
                if repeat >= 0:
                    seconds[side].append(took)
            if len({left[side] for side in sides if side != "cp"}) != 1:
                raise SystemExit(f"messages left differ: {left}")
            print(name, "warm-up" if repeat < 0 else f"repeat {repeat + 1}", file=sys.stderr)
    finally:
        for process in (*judges, session):
            process.close()
        shutil.rmtree(work / "run", ignore_errors=True)
    medians = {side: statistics.median(some) for side, some in seconds.items()}
    return {
        "row": name, "messages": MESSAGES, "left": left["lastwrite"], "seconds": seconds, "medians": medians,
        "times": {side: round(medians["rocketmq"] / medians[side], 2) for side in sides},
        "load_average": os.getloadavg()[0],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("rows", nargs="*", choices=[*ROWS, []], help="all, if none is named")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument(
        "--work", type=Path, default=Path(tempfile.gettempdir()) / "lastwrite-bench", help="the folder for stores"
    )
    parser.add_argument("--json", type=Path, help="where to write all figures")
    arguments = parser.parse_args()
    found = [
        measure(name, arguments.work.resolve() / "rocketmq", arguments.repeats, arguments.master)
        for name in arguments.rows or ROWS
    ]
    for each in found:
        for side, median in each["medians"].items():
            best = min(each["seconds"][side])
            print(f"{each['row']:8} {side:12} {median:7.2f} s  best {best:6.2f} s  {each['times'][side]:6.2f} x")
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
