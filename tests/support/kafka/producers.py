"""The producer states of a partition, computed from its batches and snapshot files.

Source: docs/formats/kafka.md, "Indexes" and "Producer snapshot". Uses no code of the package,
except for the model.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import google_crc32c

from tests.support.kafka.model import LastBatch, ModelAborted, ModelBatch, ModelSegment

ENTRY = struct.Struct(">qhiqiqiq")
EXPIRATION_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Known:
    """One producer's state: an entry of a snapshot."""

    epoch: int = -1
    last_sequence: int = -1
    last_offset: int = -1
    offset_delta: int = 0
    timestamp_ms: int = -1
    coordinator_epoch: int = -1
    open_from: int = -1


State = dict[int, Known]


def apply(state: State, batch: ModelBatch) -> ModelAborted | None:
    """Update ``state`` with a batch.

    Returns the new entry of the transaction index if the batch aborts a transaction with data, else
    None.
    """
    producer = batch.producer_id
    if producer < 0 or (batch.control and not batch.records):
        return None
    known = state.get(producer, Known())
    if known.epoch != batch.producer_epoch:
        known = replace(
            known, epoch=batch.producer_epoch, last_sequence=-1, last_offset=-1, offset_delta=0
        )
    entry = None
    if batch.control:
        record = batch.records[0]
        assert record.value is not None
        if known.open_from >= 0 and batch.marker == "abort":
            others = [k.open_from for p, k in state.items() if p != producer and k.open_from >= 0]
            stable = min(others, default=batch.last_offset + 1)
            entry = ModelAborted(producer, known.open_from, batch.last_offset, stable)
        coordinator = int.from_bytes(record.value[2:6], "big")
        known = replace(
            known, timestamp_ms=record.timestamp_ms, coordinator_epoch=coordinator, open_from=-1
        )
    else:
        delta = batch.last_offset - batch.base_offset
        known = replace(
            known,
            last_sequence=(batch.base_sequence + delta) & 0x7FFFFFFF,
            last_offset=batch.last_offset,
            offset_delta=delta,
            timestamp_ms=batch.max_timestamp_ms,
        )
        if batch.transactional and known.open_from < 0:
            known = replace(known, open_from=batch.base_offset)
    state[producer] = known
    return entry


def active(state: State, now_ms: int) -> dict[int, LastBatch]:
    """The producers that have not expired, as a round needs them."""
    return {
        producer: LastBatch(known.epoch, known.last_offset)
        for producer, known in state.items()
        if known.open_from >= 0 or now_ms - known.timestamp_ms < EXPIRATION_MS
    }


def first_unstable(segments: Iterable[ModelSegment], high_watermark: int) -> int | None:
    """The first offset of the earliest transaction without a replicated marker. None without one."""
    open_: dict[int, int] = {}
    undecided = []
    for batch in (batch for segment in segments for batch in segment.batches):
        if batch.marker is not None:
            first = open_.pop(batch.producer_id, None)
            if first is not None and batch.last_offset >= high_watermark:
                undecided.append(first)
        elif batch.transactional and not batch.control:
            open_.setdefault(batch.producer_id, batch.base_offset)
    return min((*open_.values(), *undecided), default=None)


def snapshots(folder: Path) -> list[int]:
    return sorted(int(file.stem) for file in folder.glob("*.snapshot"))


def read_snapshot(folder: Path, offset: int) -> State:
    data = (folder / f"{offset:020d}.snapshot").read_bytes()
    version, crc, count = struct.unpack_from(">hIi", data)
    assert version == 1 and crc == google_crc32c.value(data[6:])
    assert len(data) == 10 + count * ENTRY.size
    return {producer: Known(*rest) for producer, *rest in ENTRY.iter_unpack(data[10:])}


def write_snapshot(folder: Path, offset: int, state: State) -> None:
    body = struct.pack(">i", len(state))
    for producer, known in state.items():
        body += ENTRY.pack(
            producer,
            known.epoch,
            known.last_sequence,
            known.last_offset,
            known.offset_delta,
            known.timestamp_ms,
            known.coordinator_epoch,
            known.open_from,
        )
    crc = int(google_crc32c.value(body))
    (folder / f"{offset:020d}.snapshot").write_bytes(struct.pack(">hI", 1, crc) + body)


def producers_of(folder: Path, segments: Iterable[ModelSegment]) -> State:
    """The state at the log end: the newest snapshot, updated with the later batches."""
    present = snapshots(folder)
    state = read_snapshot(folder, present[-1]) if present else {}
    for batch in (batch for segment in segments for batch in segment.batches):
        if not present or batch.base_offset >= present[-1]:
            apply(state, batch)
    return state
