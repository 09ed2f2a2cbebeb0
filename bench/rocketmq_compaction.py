"""RocketMQ's own compaction and Lastwrite's, on copies of the same compaction logs, in turn.

    python -m bench.rocketmq_compaction [--messages 2060000] [--keys 500000] [--repeats 5] [--json
        FILE]

There is one queue, and then 16 queues with as many messages in total, in files a sixteenth as
large, because a broker never compacts a queue of one file. A broker compacts queues in parallel, on
as many threads as the machine has processors. Here these are JVMs, each with a copy of its own.
Both sides are warm: each has done the same job once. RocketMQ's time is that of its run (map,
rewrite, replacement), without opening logs. Lastwrite's is the whole call. After each repeat the
remaining offsets of every queue are compared.

``LASTWRITE_PEERS`` names the folder of peers. ``LASTWRITE_ROCKETMQ_HOME`` names a folder that
RocketMQ's ``setup.sh`` has filled. Without it, Maven fills one in the user's cache.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from bench.peer import PEERS, peer_home
from bench.sampling import Sampler, machine

TOPIC = "ctopic"
_UNIT = 46
# ext4 checks every inode of a group that was removed in the last minute before it assigns one.
# After a repeat with some hundred removed files, this costs 0.5 ms for each new file.
_FORGOTTEN_SECONDS = 61
_CONFIG = {"delete.retention.ms": 0, "min.cleanable.dirty.ratio": 0}
_FILE_BYTES = {
    "compactionMappedFileSize": 100 << 20,
    "compactionCqMappedFileSize": 10 << 20,
}  # the broker's defaults
_MAP_BYTES = 1 << 30  # so large that the map is never full


class Asked:
    """A process that answers each line of JSON with a line of JSON."""

    def __init__(self, command: list[str], env: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
        )

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self.read()

    def read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.process.args!r} ended: status {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


class Broker:
    """RocketMQ's compaction classes in as many JVMs as the machine has processors."""

    def __init__(self) -> None:
        threads = len(os.sched_getaffinity(0))
        # A broker divides the map's bytes by its number of threads.
        self._map = {"maxOffsetMapSize": str(threads * _MAP_BYTES // 2)}
        env = {**os.environ, "ORACLE_HEAP": "3g"}
        command = [
            str(PEERS / "rocketmq" / "oracle.sh"),
            str(peer_home("RocketMQ", "CompactionOracle")),
        ]
        self._jvms = [Asked(command, env) for _ in range(threads)]

    def fill(
        self, store: Path, queues: int, queue: int, messages: int, keys: int, body: int
    ) -> None:
        filling = {"do": "fill", "store": str(store), "queue": queue, "seed": queue + 1}
        self._ask(0, queues, {**filling, "count": messages, "keys": keys, "body": body})

    def compact(self, source: Path, copies: Path, queues: int) -> tuple[float, list[Path]]:
        """Compact in all JVMs.

        Returns the slowest one's seconds without opening logs, and each queue's copy.
        """
        used = min(queues, len(self._jvms))
        stores = [fresh(source, copies.with_name(f"{copies.name}-{n}")) for n in range(used)]

        def run(n: int) -> float:
            asked = {"do": "compact", "store": str(stores[n]), "steps": True}
            return sum(
                self._ask(n, queues, {**asked, "queue": queue})["seconds"]
                for queue in range(n, queues, used)
            )

        with ThreadPoolExecutor(used) as pool:
            return max(pool.map(run, range(used))), [
                stores[queue % used] for queue in range(queues)
            ]

    def _ask(self, n: int, queues: int, request: dict[str, Any]) -> dict[str, Any]:
        config = {**self._map, **{name: str(size // queues) for name, size in _FILE_BYTES.items()}}
        answer = self._jvms[n].ask({**request, "topic": TOPIC, "config": config})
        if not answer["ok"]:
            raise SystemExit(f"RocketMQ: {answer['error']}")
        return answer

    def close(self) -> None:
        for jvm in self._jvms:
            jvm.close()


class Lastwrite:
    """``lastwrite.compact`` in a long-lived session."""

    def __init__(self, master: str) -> None:
        self.session = Asked([sys.executable, "-m", "bench.session", "lastwrite", master])
        self.session.read()

    def compact(self, store: Path) -> float:
        asked = {"path": str(store), "now_ms": time.time_ns() // 1_000_000, "config": _CONFIG}
        # Idle workers end after a minute, as after the wait for ext4. This starts them again.
        self.session.ask({**asked, "dry_run": True})
        answer = self.session.ask(asked)
        if set(answer["statuses"]) != {"cleaned"}:
            raise SystemExit(
                f"lastwrite: {answer['statuses']} {answer['reasons']} {answer['problems']}"
            )
        return float(answer["seconds"])


def offsets_of(store: Path, queue: int) -> np.ndarray:
    """The queue offsets in a queue's indexes, in ascending order."""
    found = [np.empty(0, dtype=">i8")]
    for path in sorted((store / "compaction" / "compactionCq" / TOPIC / str(queue)).iterdir()):
        data = np.fromfile(path, dtype=np.uint8)
        units = data[: len(data) // _UNIT * _UNIT].reshape(-1, _UNIT)
        sizes = np.ascontiguousarray(units[:, 8:12]).view(">i4").ravel()
        found.append(np.ascontiguousarray(units[:, 28:36]).view(">i8").ravel()[sizes > 0])
    return np.concatenate(found)


def fresh(source: Path, copy: Path) -> Path:
    shutil.rmtree(copy, ignore_errors=True)
    subprocess.run(["cp", "-r", "--sparse=always", str(source), str(copy)], check=True)
    os.sync()
    return copy


def row(queues: int, given: argparse.Namespace, broker: Broker, ours: Lastwrite) -> dict[str, Any]:
    source = given.work / f"filled-{queues}-{given.messages}-{given.keys}"
    if not source.exists():
        making = source.with_name("making")
        shutil.rmtree(making, ignore_errors=True)
        for queue in range(queues):
            broker.fill(
                making, queues, queue, given.messages // queues, given.keys // queues, given.body
            )
        making.rename(source)
    theirs_s: list[float] = []
    ours_s: list[float] = []
    for repeat in range(given.repeats + 1):
        for store in ("ours", *(f"theirs-{n}" for n in range(queues))):
            shutil.rmtree(given.work / store, ignore_errors=True)
        if queues > 1 and repeat:
            os.sync()
            time.sleep(_FORGOTTEN_SECONDS)
        theirs, theirs_in = broker.compact(source, given.work / "theirs", queues)
        copy = fresh(source, given.work / "ours")
        seconds = ours.compact(copy)
        kept = 0
        for queue in range(queues):
            sides = [offsets_of(store, queue) for store in (theirs_in[queue], copy)]
            if not np.array_equal(*sides):
                raise SystemExit(
                    f"queue {queue}: {len(sides[0])} messages are left by RocketMQ, {len(sides[1])} by us"
                )
            kept += len(sides[0])
        if repeat:
            theirs_s.append(theirs)
            ours_s.append(seconds)
            print(
                f"  {queues} queues, repeat {repeat}: rocketmq {theirs:.2f} s, lastwrite {seconds:.2f} s",
                flush=True,
            )
    with Sampler(ours.session.process.pid) as sampler:
        ours.compact(fresh(source, given.work / "ours"))
    logs = sum(
        f.stat().st_blocks * 512
        for f in (source / "compaction" / "compactionLog").rglob("*")
        if f.is_file()
    )
    for store in {copy, *theirs_in}:
        shutil.rmtree(store)
    return {
        "queues": queues,
        "messages": given.messages,
        "keys": given.keys,
        "bytes": logs,
        "left": kept,
        "rocketmq_seconds": statistics.median(theirs_s),
        "lastwrite_seconds": statistics.median(ours_s),
        "ratio": statistics.median(theirs_s) / statistics.median(ours_s),
        "peak_mib": sampler.peak.pss_bytes >> 20,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=2_060_000)
    parser.add_argument("--keys", type=int, default=500_000)
    parser.add_argument("--body", type=int, default=82, help="bytes; 82 make messages of about 250")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--queues", type=int, nargs="*", default=[1, 16])
    parser.add_argument("--master", default="local[2]")
    home = Path(os.environ.get("TMPDIR", "/tmp"))
    parser.add_argument("--work", type=Path, default=home / "lastwrite-bench-rocketmq")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    broker, ours = Broker(), Lastwrite(given.master)
    try:
        rows = [row(queues, given, broker, ours) for queues in given.queues]
    finally:
        ours.session.close()
        broker.close()
    for found in rows:
        print(
            f"{found['queues']} queues, {found['messages']} messages, {found['bytes'] / 1e6:.0f} MB, "
            f"{found['left']} left: rocketmq {found['rocketmq_seconds']:.2f} s, "
            f"lastwrite {found['lastwrite_seconds']:.2f} s, {found['ratio']:.1f} times as fast, "
            f"at most {found['peak_mib']} MiB"
        )
    if given.json:
        given.json.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
