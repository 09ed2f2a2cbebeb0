"""The cost of a small partition beyond its bytes: ``lastwrite clean --once`` on many and on one.

    python -m bench.partitions [--partitions 2000] [--kib 24] [--kafka 200] [--many-only] [--folder
        DIR] [--profile]

Two log roots have the same records, one in many partitions, the other in a single one. The
difference of the two runs, divided by the number of partitions, is a partition's cost: listing,
planning, locking, its tasks, syncing and renaming its files, and its checkpoint. Ends with status 1
above 20 ms. ``--profile`` runs the many partitions again in this process, without Spark, and prints
where the driver's time goes.

With ``--kafka N``, the real cleaner also cleans N of them, one after the other, in a JVM that has
cleaned as many before, with the broker's default key map of 128 MiB. The bytes are compared. Its
seconds are its own for the rounds, without opening logs and writing checkpoints. Lastwrite's have
all five stages, from the first listing to the last removed file.
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
from bench import peer
from bench.sampling import Peak, Sampler
from lastwrite.demo.topic_writer import TopicWriter
from lastwrite.model.log import TopicPartition

BAR_MS = 20.0
_MAP_BYTES = 128 << 20
_CHECKPOINTS = ("recovery-point-offset-checkpoint", "replication-offset-checkpoint")
_VALUE = b"v" * 80
_SETTINGS = ["--config", "cleanup.policy=compact", "--config", "min.cleanable.dirty.ratio=0"]


def write(root: Path, records: int, segments: int) -> None:
    """Write the partition ``t-0`` with ``segments`` closed segments.

    Three of four records have keys that are written again.
    """
    root.mkdir(parents=True)
    first_ms = time.time_ns() // 1_000_000 - 3_600_000
    with TopicWriter(str(root), TopicPartition("t", 0), batch_bytes=4096) as writer:
        for n in range(records):
            writer.append(
                b"only-%08d" % n if n % 4 == 0 else b"often-%08d" % (n % 7), _VALUE, first_ms + n
            )
            if (n + 1) % (records // segments) == 0:
                writer.roll()


def multiply(root: Path, partitions: int) -> None:
    """Copy the partition under other names, and add these to the checkpoint files."""
    for n in range(1, partitions):
        shutil.copytree(root / "t-0", root / f"t-{n}")
    for name in _CHECKPOINTS:
        version, _, entry = (root / name).read_text().split("\n")[:3]
        offset = entry.split()[2]
        lines = [f"t {n} {offset}" for n in range(partitions)]
        (root / name).write_text("\n".join([version, str(partitions), *lines, ""]))


def clean(root: Path) -> tuple[float, list[dict[str, object]], Peak]:
    """Run the command. Returns its seconds, its events, and its peak memory, sampled rarely."""
    command = [
        sys.executable,
        "-m",
        "lastwrite.cli",
        "clean",
        str(root),
        "--once",
        "--json",
        *_SETTINGS,
    ]
    os.sync()
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with Sampler(process.pid, every_seconds=0.5) as sampler:
        said, complaint = process.communicate()
    seconds = time.perf_counter() - begin
    if process.returncode:
        sys.exit(f"status {process.returncode}: {complaint}")
    return seconds, [json.loads(line) for line in said.splitlines()], sampler.peak


def clean_with_kafka(root: Path, partitions: int) -> float:
    """Seconds of Kafka's cleaner for its rounds over the first ``partitions`` partitions."""
    spare = root.with_name("spare")
    cleaner = peer.WarmCleaner()
    try:
        for folder in (spare, root):
            seconds = 0.0
            for n in range(partitions):
                if folder is spare:
                    shutil.copytree(root / f"t-{n}", spare / f"t-{n}")
                answer = cleaner.clean(
                    folder / f"t-{n}",
                    {"min.cleanable.dirty.ratio": "0"},
                    time.time_ns() // 1_000_000,
                    _MAP_BYTES,
                )
                seconds += answer["seconds"]
        return seconds
    finally:
        cleaner.close()
        shutil.rmtree(spare, ignore_errors=True)


def check_equal(ours: Path, theirs: Path, partitions: int) -> None:
    """Compare all segments of both roots.

    Raises:
        SystemExit: A segment differs, so that the figures mean nothing.
    """
    for n in range(partitions):
        sides = [
            {log.name: log.read_bytes() for log in (root / f"t-{n}").glob("*.log")}
            for root in (ours, theirs)
        ]
        if sides[0] != sides[1]:
            sys.exit(
                f"t-{n} differs: {[{name: len(log) for name, log in side.items()} for side in sides]}"
            )


def profile(root: Path) -> None:
    from lastwrite.spark.inline import INLINE

    profiler = cProfile.Profile()
    begin = time.perf_counter()
    profiler.enable()
    report = lastwrite.compact(
        str(root),
        config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0},
        spark=INLINE,
    )
    profiler.disable()
    print(f"without Spark: {time.perf_counter() - begin:.2f} s; stages {report.stage_seconds}")
    pstats.Stats(profiler).sort_stats("tottime").print_stats(45)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--partitions", type=int, default=2000)
    parser.add_argument("--kib", type=int, default=24, help="of a partition")
    parser.add_argument(
        "--many-only", action="store_true", help="no root of one: nothing is held against the bar"
    )
    parser.add_argument(
        "--kafka", type=int, default=0, metavar="N", help="N of them by the real cleaner, too"
    )
    parser.add_argument(
        "--folder", help="where the roots are made; default: the system's temporary folder"
    )
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    records = options.kib * 1024 // 100
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="lastwrite-partitions-") as folder:
        many, one, again = Path(folder, "many"), Path(folder, "one"), Path(folder, "again")
        theirs = Path(folder, "kafka")
        write(many, records, 4)
        multiply(many, options.partitions)
        if options.profile:
            shutil.copytree(many, again)
        if options.kafka:
            theirs.mkdir()
            for n in range(options.kafka):
                shutil.copytree(many / f"t-{n}", theirs / f"t-{n}")
        alone = 0.0
        if not options.many_only:
            write(one, records * options.partitions, 4)
            alone, _, _ = clean(one)
        together, events, peak = clean(many)
        if len(events) != options.partitions or any(
            event["status"] != "cleaned" for event in events
        ):
            sys.exit(f"{len(events)} rounds: {events[:3]}")
        result: dict[str, object] = {}
        waves = {json.dumps(event["stage_seconds"]) for event in events}
        cost_ms = 0.0 if options.many_only else 1000 * (together - alone) / options.partitions
        if options.kafka:
            kafka_ms = 1000 * clean_with_kafka(theirs, options.kafka) / options.kafka
            check_equal(many, theirs, options.kafka)
            round_ms = (
                1000 * sum(sum(json.loads(wave).values()) for wave in waves) / options.partitions
            )
            result = {
                "kafka_round_ms_each": round(kafka_ms, 2),
                "round_ms_each": round(round_ms, 2),
                "times_as_fast": round(kafka_ms / round_ms, 2),
                "equal": True,
            }
        print(
            json.dumps(
                {
                    "partitions": options.partitions,
                    "kib_each": options.kib,
                    "seconds_many": round(together, 2),
                    "seconds_one": round(alone, 2),
                    "ms_a_partition": round(cost_ms, 2),
                    "bar_ms": BAR_MS,
                    "waves": [json.loads(wave) for wave in waves],
                    **result,
                    **peak.to_dict(),
                    "load_average": round(os.getloadavg()[0], 1),
                },
                indent=2,
            )
        )
        if options.profile:
            profile(again)
    return 0 if cost_ms < BAR_MS else 1


if __name__ == "__main__":
    sys.exit(main())
