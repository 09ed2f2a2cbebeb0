"""The time of a cluster for a round on an archive, computed from measurements on one machine.

    python -m bench.simulate [--terabytes 10] [--partitions 100000] [--cores 16 64 1000]

Nothing is run. Waves, units and tasks are cut as in the engine (``engine.round``, ``scan_step``,
``elect_step``, ``shares``). A task goes to the first free core, and a stage ends with its last
task. All partitions have the same size and one segment, with records of 98 bytes, a quarter of
which remain. ``MEASURED`` has the measurements and ``ASSUMED`` the assumptions.
docs/decisions/scale.md explains them.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MIB, GIB = 1 << 20, 1 << 30
MEASURED = {
    # processor time of a task that sends by Spark's shuffle, S3 client included
    "scan_ns_a_byte": 3.1,
    "elect_ns_a_record": 28,
    "rewrite_ns_a_byte": 3.2,  # for a byte that is read
    "record_bytes": 98,
    "stays": 0.25,
    # processor time of the driver's Python, for all steps and requests
    "driver_ms_a_partition": 4.1,
    "manifest_bytes": 1640,  # for one segment; 640 more for each further segment
    "driver_bytes_a_partition": 2400,  # report and names, kept until the end
    "driver_bytes_a_partition_of_a_wave": 18000,
}
ASSUMED = {
    "request_s": 0.02,
    "core_bytes_a_second": 150e6,  # a core's share of its machine's network
    "task_ms": 3,  # time of the driver's scheduler, for one task after the other
    "job_s": 0.5,  # three in a wave: closures go to executors, results to the driver
    "shuffle_ns_a_byte": 6,  # written, sent and read by JVMs
    "dollars": {"put": 5e-6, "get": 0.4e-6, "core_hour": 0.044, "gb_month": 0.023},
}
WAVE_PARTITIONS, DRIVER_REQUESTS, RANGE = 4096, 16, 8 * MIB
PIECE, LEAST_TASK, SMALL_ELECTION, ENTRY, TASK = 32 * MIB, 8 * MIB, 4 * MIB, 16, GIB
# of the driver, for a partition: manifest read, journal and manifest written
REQUESTS = {"get": 1, "put": 2}


def stage(units: Sequence[float], cores: int) -> float:
    """Seconds until the last of ``units`` has ended. The largest ones start first."""
    free = [0.0] * cores
    for seconds in sorted(units, reverse=True):
        heapq.heappush(free, heapq.heappop(free) + seconds)
    return max(free)


def cut(count: int, size: float, target: float, least: float) -> list[float]:
    """The sizes of the units of ``count`` equal partitions, none much larger than ``target``."""
    parts = max(1, min(math.floor(size / least) or 1, math.ceil(size / target)))
    return [size / parts] * (parts * count)


def wave(count: int, size: float, cores: int) -> dict[str, float]:
    """Seconds of each step, and the tasks, of a wave of ``count`` partitions of ``size`` bytes."""
    total = count * size
    share = total / (2 * cores)
    entries = size / MEASURED["record_bytes"] * ENTRY
    wait, line = ASSUMED["request_s"], ASSUMED["core_bytes_a_second"]

    def read(piece: float) -> float:
        return math.ceil(piece / RANGE) * wait + piece / line  # without read-ahead

    scans = cut(count, size, max(LEAST_TASK, share), PIECE)
    slice_bytes = entries if entries <= SMALL_ELECTION else max(1.0, count * entries / (2 * cores))
    elections = cut(count, entries, slice_bytes, 1)
    rewrites = cut(count, size, total / cores, LEAST_TASK)
    stays = MEASURED["stays"]
    puts = 3 * wait  # a segment beside its indexes, and the begin and end of a multipart upload
    found = {
        "scan": [
            read(u)
            + u * MEASURED["scan_ns_a_byte"] * 1e-9
            + u / MEASURED["record_bytes"] * ENTRY * ASSUMED["shuffle_ns_a_byte"] * 1e-9
            for u in scans
        ],
        "elect": [u / ENTRY * MEASURED["elect_ns_a_record"] * 1e-9 for u in elections],
        "rewrite": [
            read(u) + u * MEASURED["rewrite_ns_a_byte"] * 1e-9 + stays * u / line + puts
            for u in rewrites
        ],
    }
    seconds = {name: stage(units, cores) for name, units in found.items()}
    tasks = 3 * max(min(cores, count), math.ceil(total / TASK))
    seconds["spark"] = 3 * ASSUMED["job_s"] + tasks * ASSUMED["task_ms"] / 1000
    asked = sum(REQUESTS.values()) * count
    seconds["driver"] = max(
        count * MEASURED["driver_ms_a_partition"] / 1000, asked * wait / DRIVER_REQUESTS
    )
    return seconds


def simulate(total: float, partitions: int, cores: int) -> dict[str, Any]:
    size = total / partitions
    full = max(64 * GIB, cores * GIB)
    each = min(WAVE_PARTITIONS, max(1, math.ceil(full / size)))
    whole, rest = divmod(partitions, each)
    seconds: dict[str, float] = {}
    for count, times in ((each, whole), (rest, 1 if rest else 0)):
        for name, value in wave(count, size, cores).items() if times else ():
            seconds[name] = seconds.get(name, 0.0) + times * value
    wall = sum(seconds.values())
    serial = seconds["driver"] + seconds["spark"]
    gets = partitions * (REQUESTS["get"] + 2 * math.ceil(size / RANGE))
    parts = math.ceil(MEASURED["stays"] * size / RANGE)
    puts = partitions * (REQUESTS["put"] + (1 if parts == 1 else parts + 2) + 2)
    price = ASSUMED["dollars"]
    dollars = {
        "requests": gets * price["get"] + puts * price["put"],
        "cores": cores * wall / 3600 * price["core_hour"],
        "replaced, an hour": total / 1e9 * price["gb_month"] / 730,
    }
    return {
        "cores": cores,
        "waves": whole + bool(rest),
        "partitions_a_wave": each,
        "hours": round(wall / 3600, 2),
        "seconds": {name: round(value) for name, value in seconds.items()},
        "serial_share": round(serial / wall, 3),
        "gets": gets,
        "puts": puts,
        "dollars": {name: round(value, 2) for name, value in dollars.items()},
        "manifests_bytes": partitions * MEASURED["manifest_bytes"],
        "driver_mib": round(
            190
            + partitions * MEASURED["driver_bytes_a_partition"] / MIB
            + each * MEASURED["driver_bytes_a_partition_of_a_wave"] / MIB
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--terabytes", type=float, default=10)
    parser.add_argument("--partitions", type=int, default=100_000)
    parser.add_argument("--cores", type=int, nargs="+", default=[16, 64, 1000])
    parser.add_argument("--json")
    asked = parser.parse_args()
    found = [simulate(asked.terabytes * 1e12, asked.partitions, n) for n in asked.cores]
    print(json.dumps(found, indent=1))
    if asked.json:
        Path(asked.json).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
