"""Nanoseconds for a record in each kernel, on one core: the best of many runs over a chunk.

    python -m bench.kernels

The chunk has 1 MiB of uncompressed batches of 500 records of 107 bytes. Keys have 12 bytes, and
nine tenths of the records are superseded.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import numpy as np

from lastwrite.encoding.fingerprint import SECRET_WORDS, secret_from
from lastwrite.engine.rules import election, verdict
from lastwrite.kafka.format import kernels
from lastwrite.kafka.format.batch import encode_batch
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.kafka.format.chunk import KafkaFormat
from lastwrite.model.columns import SHADOWED
from lastwrite.model.policy import Policy

_RUNS = 200
_STAMP = 1_700_000_000_000


def chunk() -> bytes:
    """Complete batches of almost 1 MiB."""
    draw = np.random.default_rng(1)
    out = b""
    base = 0
    while len(out) < (1 << 20) - 60_000:
        keys = draw.integers(0, 4_000_000, 500)
        records = [
            Record(base + i, _STAMP + i // 100, b"key-%08d" % key, b"v" * 88, ())
            for i, key in enumerate(keys.tolist())
        ]
        out += encode_batch(records, base_offset=base)
        base += 500
    return out


def best(work: Callable[[], object], before: Callable[[], object] = lambda: None) -> float:
    """Seconds of the fastest run."""
    fastest = float("inf")
    for _ in range(_RUNS):
        before()
        begin = time.perf_counter()
        work()
        fastest = min(fastest, time.perf_counter() - begin)
    return fastest


def main() -> None:
    data = np.frombuffer(chunk(), dtype=np.uint8).copy()
    format = KafkaFormat()
    table = format.split(data, 0, len(data), 0).table.copy()
    records = int(table["records"].sum())
    secret = secret_from(os.urandom(8 * SECRET_WORDS))
    states = np.zeros(records, dtype=np.uint8)
    entries = np.empty((records, 2), dtype=np.uint64)
    rows = np.empty_like(entries)
    ends = np.empty(16, dtype=np.uint32)
    no_keys = np.empty((0, 2), dtype=np.int64)
    keep, actions = np.empty(records, np.uint8), np.empty(len(table), np.uint8)
    horizons, counts = np.empty(len(table), np.int64), np.zeros(len(verdict.Verdict), np.int64)
    policy = Policy(now_ms=_STAMP, tombstone_retention_ms=0)
    out, places = np.empty(2 * len(data), np.uint8), np.empty((len(table), 5), np.int64)
    no_offsets = np.empty(0, np.int64)

    def walk() -> None:
        kernels.walk(data, table, 0, len(table), secret, 0, states, entries, 0, no_keys)

    def partition() -> None:
        election.partition(entries, records, 4, rows, ends)

    def elect() -> None:
        losers[0] = 0
        election.elect(
            rows_at,
            2,
            ends.reshape(1, -1),
            np.zeros(1, np.int64),
            np.zeros(1, np.int64),
            lost,
            losers,
            slots,
            no_offsets,
            data[:0],
        )

    def judge() -> None:
        verdict.judge(table, states, policy, 0, keep, actions, horizons, counts)

    found = {
        "split (and CRC-32C)": best(lambda: format.split(data, 0, len(data), 0)),
        "walk (and fingerprints)": best(walk),
        "partition": best(partition),
    }
    slots = election.new_table(ends.reshape(1, -1), has_more=False)
    rows_at, lost, losers = (
        np.array([rows.ctypes.data]),
        np.empty(records, np.uint32),
        np.zeros(1, np.int64),
    )
    found["elect"] = best(elect)
    found["mark"] = best(lambda: election.mark(states, lost[: losers[0]]))
    states[:] = np.where(np.random.default_rng(2).random(records) < 0.9, SHADOWED, 0)
    found["judge"] = best(judge)
    found["rebuild (and CRC-32C)"] = best(
        lambda: kernels.rebuild(
            data, table, 0, len(table), actions, horizons, keep, 0, out, 0, places, 0
        )
    )
    for name, seconds in found.items():
        print(
            f"{name:26} {seconds / records * 1e9:6.2f} ns a record {len(data) / seconds / 1e9:7.2f} GB/s"
        )


if __name__ == "__main__":
    main()
