"""Nanoseconds for a RocketMQ record in each kernel, on one core: the best of many runs.

    python -m bench.rocketmq_kernels

The chunk has 1 MiB of records of 290 bytes, as a 5.5.0 broker stores single messages: a body of 60
bytes, KEYS of 8 to 10 bytes, UNIQ_KEY, CLUSTER, MSG_REGION, TRACE_ON and WAIT, and TAGS in every
second record.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from lastwrite.rocketmq.format import index_file, kernels
from lastwrite.rocketmq.format.record import Host, encode_message, make_message

_RUNS = 200
_STAMP = 1_700_000_000_000
_HOST = Host(bytes([127, 0, 0, 1]), 54321)


def chunk() -> bytes:
    """Complete records of almost 1 MiB."""
    draw = np.random.default_rng(1)
    parts, size = [], 0
    while size < (1 << 20) - 1000:
        offset = len(parts)
        properties = {
            "KEYS": f"key-{draw.integers(0, 500_000)}",
            "MSG_REGION": "DefaultRegion",
            "UNIQ_KEY": f"7F0000010A1B{offset:020X}",
            "CLUSTER": "peer",
            "WAIT": "true",
            "TRACE_ON": "true",
        }
        if offset % 2:
            properties["TAGS"] = "TagA"
        message = make_message(
            "ctopic",
            b"v" * 60,
            properties,
            queue_offset=offset,
            physical_offset=size,
            born_time_ms=_STAMP,
            born_host=_HOST,
            store_time_ms=_STAMP + offset // 10,
        )
        parts.append(encode_message(message))
        size += len(parts[-1])
    return b"".join(parts)


def best(work: Callable[[], object]) -> float:
    """Seconds of the fastest run."""
    fastest = float("inf")
    for _ in range(_RUNS):
        begin = time.perf_counter()
        work()
        fastest = min(fastest, time.perf_counter() - begin)
    return fastest


def main() -> None:
    data = np.frombuffer(chunk(), dtype=np.uint8).copy()
    table = np.zeros(len(data) // 91 + 1, kernels.MESSAGE)
    records = kernels.split(data, 0, len(data), table, True)[0]
    rows = table[:records].copy()
    hashes, places, times = (np.zeros(4 * records, np.int64) for _ in range(3))
    entries, _ = kernels.index_keys(data, rows, 0, records, hashes, places, times)
    index = index_file.new_index_file(500_000, 4 * records)
    fresh = index.copy()

    def enter() -> None:
        index[:40] = fresh[:40]
        index_file.build(index, 500_000, hashes[:entries], places[:entries], times[:entries])

    found = {
        "split": best(lambda: kernels.split(data, 0, len(data), table, False)),
        "split and CRC-32 of bodies": best(lambda: kernels.split(data, 0, len(data), table, True)),
        "index keys": best(
            lambda: kernels.index_keys(data, rows, 0, records, hashes, places, times)
        ),
        "enter index keys": best(enter),
    }
    print(f"{records} records of {len(data) / records:.0f} bytes")
    for name, seconds in found.items():
        print(
            f"{name:28} {seconds / records * 1e9:6.2f} ns a record {len(data) / seconds / 1e9:7.2f} GB/s of log"
        )


if __name__ == "__main__":
    main()
