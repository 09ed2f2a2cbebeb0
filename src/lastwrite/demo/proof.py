"""Compare the compacted topic, as a consumer reads it, with its known last writes.

The reader shares no code with the engine's compaction. It decodes each batch in plain Python,
verifies its checksum, and fills a dictionary, like any consumer that builds a table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from lastwrite.errors import VerificationFailed, located
from lastwrite.kafka.format.batch import iter_batches
from lastwrite.kafka.store.log_dir import read_partition
from lastwrite.storage.reading import reader_of

_SHOWN = 3


@dataclass(frozen=True, slots=True)
class ReplayedTable:
    """The table of last writes that a consumer builds from a topic's start."""

    live: Mapping[bytes, bytes]  # the last value of each key that was not deleted
    records: int
    tombstones: int
    keys: int
    repeated: tuple[bytes, ...]  # keys that have more than one record
    bytes: int
    segments: int


def read_table(folder: str) -> ReplayedTable:
    """The table of the partition in ``folder``, built by reading all its records.

    One segment and the table are in memory.

    Raises:
        CorruptLog: a batch is damaged.
    """
    log = read_partition(folder)
    latest: dict[bytes | None, bytes | None] = {}
    repeated: list[bytes] = []
    records = tombstones = 0
    for segment in log.segments:
        data = np.empty(segment.size_bytes, np.uint8)
        with reader_of(segment) as reader:
            reader.read_into(data, 0)
        with located(segment.path):
            for _, batch in iter_batches(memoryview(data)):
                for record in batch.records:
                    if record.key in latest:
                        repeated.append(record.key or b"")
                    latest[record.key] = record.value
                    records += 1
                    tombstones += record.value is None
    live = {key: value for key, value in latest.items() if key is not None and value is not None}
    return ReplayedTable(
        live, records, tombstones, len(latest), tuple(repeated), log.size_bytes, len(log.segments)
    )


def prove(table: ReplayedTable, expected: Mapping[bytes, bytes]) -> None:
    """Compare a compacted topic with the expected last writes, key by key and value by value.

    Raises:
        VerificationFailed: they differ, or a key occurs twice; the error names the first few.
    """
    if table.repeated:
        raise VerificationFailed(
            f"{len(table.repeated)} keys occur more than once in the table: {_some(table.repeated)}"
        )
    if table.live == expected:
        return
    missing = sorted(expected.keys() - table.live.keys())
    unexpected = sorted(table.live.keys() - expected.keys())
    changed = sorted(
        key for key in expected.keys() & table.live.keys() if expected[key] != table.live[key]
    )
    problems = [
        f"{len(keys)} {words}: {_some(keys)}"
        for keys, words in (
            (missing, "expected keys are not in the topic"),
            (unexpected, "keys of the topic are not expected"),
            (changed, "keys have another value than expected"),
        )
        if keys
    ]
    raise VerificationFailed("; ".join(problems))


def _some(keys: tuple[bytes, ...] | list[bytes]) -> str:
    shown = ", ".join(repr(key)[1:] for key in keys[:_SHOWN])
    return shown + (", …" if len(keys) > _SHOWN else "")
