"""What a small partition costs beyond its bytes: a root of many beside a root of one, by ``lastwrite clean --once``.

    python bench/partitions.py [--partitions 2000] [--kib 24] [--folder DIR] [--profile]

Both roots have the same records; in one they lie in a single partition. The difference of the two runs, divided by
the number of partitions, is what a partition costs: looking, planning, locking, its tasks, its files synced and
renamed, its checkpoint. Ends with status 1 above the bar of 20 ms. ``--profile`` runs the many once more without Spark,
in this process, and says where the driver's time goes.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import lastwrite
from lastwrite.logstore.writer import TopicWriter
from lastwrite.model.log import TopicPartition

BAR_MS = 20.0
_CHECKPOINTS = ("recovery-point-offset-checkpoint", "replication-offset-checkpoint")
_VALUE = b"v" * 80
_SETTINGS = ["--config", "cleanup.policy=compact", "--config", "min.cleanable.dirty.ratio=0"]


def write(root: Path, records: int, segments: int) -> None:
    """One partition, ``t-0``: ``segments`` closed ones, in which three of four records are of keys written again."""
    root.mkdir(parents=True)
    first_ms = time.time_ns() // 1_000_000 - 3_600_000
    with TopicWriter(str(root), TopicPartition("t", 0), batch_bytes=4096) as writer:
        for n in range(records):
            writer.append(b"only-%08d" % n if n % 4 == 0 else b"often-%08d" % (n % 7), _VALUE, first_ms + n)
            if (n + 1) % (records // segments) == 0:
                writer.roll()


def multiply(root: Path, partitions: int) -> None:
    """The same partition under other names, as a broker's checkpoints list them."""
    for n in range(1, partitions):
        shutil.copytree(root / "t-0", root / f"t-{n}")
    for name in _CHECKPOINTS:
        version, _, entry = (root / name).read_text().split("\n")[:3]
        offset = entry.split()[2]
        lines = [f"t {n} {offset}" for n in range(partitions)]
        (root / name).write_text("\n".join([version, str(partitions), *lines, ""]))


def clean(root: Path) -> tuple[float, list[dict[str, object]]]:
    """Seconds of the whole command, and its events."""
    command = [sys.executable, "-m", "lastwrite.cli", "clean", str(root), "--once", "--json", *_SETTINGS]
    os.sync()
    begin = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - begin
    if done.returncode:
        sys.exit(f"status {done.returncode}: {done.stderr}")
    return seconds, [json.loads(line) for line in done.stdout.splitlines()]


def profile(root: Path) -> None:
    from lastwrite.pipeline.inline import INLINE

    profiler = cProfile.Profile()
    begin = time.perf_counter()
    profiler.enable()
    report = lastwrite.compact(
        str(root), config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0}, spark=INLINE
    )
    profiler.disable()
    print(f"without Spark: {time.perf_counter() - begin:.2f} s; stages {report.stage_seconds}")
    pstats.Stats(profiler).sort_stats("tottime").print_stats(45)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--partitions", type=int, default=2000)
    parser.add_argument("--kib", type=int, default=24, help="of a partition")
    parser.add_argument("--folder", help="where the roots are made; default: the system's temporary folder")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    records = options.kib * 1024 // 100
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="lastwrite-partitions-") as folder:
        many, one, again = Path(folder, "many"), Path(folder, "one"), Path(folder, "again")
        write(many, records, 4)
        multiply(many, options.partitions)
        if options.profile:
            shutil.copytree(many, again)
        write(one, records * options.partitions, 4)
        alone, _ = clean(one)
        together, events = clean(many)
        if len(events) != options.partitions or any(event["status"] != "cleaned" for event in events):
            sys.exit(f"{len(events)} rounds: {events[:3]}")
        waves = {json.dumps(event["stage_seconds"]) for event in events}
        cost_ms = 1000 * (together - alone) / options.partitions
        print(json.dumps({
            "partitions": options.partitions, "kib_each": options.kib, "seconds_many": round(together, 2),
            "seconds_one": round(alone, 2), "ms_a_partition": round(cost_ms, 2), "bar_ms": BAR_MS,
            "waves": [json.loads(wave) for wave in waves],
        }, indent=2))  # fmt: skip
        if options.profile:
            profile(again)
    return 0 if cost_ms < BAR_MS else 1


if __name__ == "__main__":
    sys.exit(main())
