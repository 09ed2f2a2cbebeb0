"""What a round of compaction has to leave behind, said in the plainest Python there is.

No speed, no bytes, no shared code with the engine: records are tuples, a key map is a dict. Read it beside
the rules: a round learns the last offset of every key in the dirty part ``[first_dirty, end)`` and then
judges every record of every segment below ``end``, the clean ones too.

Source: spec of Kafka 4.4.0's cleaner, sections 4, 7, 8, 9 and 20; without transactions and old formats.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

Headers = tuple[tuple[bytes, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class ModelRecord:
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class ModelBatch:
    """A record batch without its bytes. ``codec`` is 0 in an empty batch, whatever it was before."""

    base_offset: int
    last_offset: int
    records: tuple[ModelRecord, ...]
    codec: int = 0
    append_time: bool = False
    base_timestamp_ms: int = 0  # the horizon, if there is one
    max_timestamp_ms: int = -1
    horizon_ms: int | None = None
    leader_epoch: int = -1

    @property
    def next_offset(self) -> int:
        return self.last_offset + 1


@dataclass(frozen=True, slots=True)
class ModelSegment:
    base_offset: int
    batches: tuple[ModelBatch, ...]


@dataclass(slots=True)
class Outcome:
    """The batches that stay, and how many records went for which reason."""

    batches: list[ModelBatch]
    kept: int = 0
    keyless: int = 0
    shadowed: int = 0
    expired: int = 0


def last_offsets(batches: Iterable[ModelBatch], first_dirty: int, end: int) -> dict[bytes, int]:
    """The last offset of every key written in ``[first_dirty, end)``."""
    return {
        record.key: record.offset
        for batch in batches
        for record in batch.records
        if record.key is not None and first_dirty <= record.offset < end
    }


def clean(
    batches: Sequence[ModelBatch], *, first_dirty: int, end: int, high_watermark: int, now_ms: int, retention_ms: int
) -> Outcome:
    """One round over ``batches``, all those of the segments below ``end``, oldest first."""
    latest = last_offsets(batches, first_dirty, end)
    outcome = Outcome([])
    for batch in batches:
        kept = []
        for record in batch.records:
            due = batch.horizon_ms is not None and now_ms >= batch.horizon_ms
            if record.key is None:
                outcome.keyless += 1
            elif latest.get(record.key, -1) > record.offset:
                outcome.shadowed += 1
            elif record.value is None and due:
                outcome.expired += 1
            else:
                kept.append(record)
        outcome.kept += len(kept)
        if kept:
            outcome.batches.append(_rebuilt(batch, tuple(kept), now_ms + retention_ms))
        elif batch.next_offset == high_watermark:
            outcome.batches.append(_emptied(batch))
    return outcome


def _rebuilt(batch: ModelBatch, kept: tuple[ModelRecord, ...], new_horizon_ms: int) -> ModelBatch:
    stamp = batch.horizon_ms is None and any(record.value is None for record in kept)
    if len(kept) == len(batch.records) and not stamp:
        return batch
    horizon = new_horizon_ms if stamp else batch.horizon_ms
    if batch.append_time:
        first, largest = batch.max_timestamp_ms, batch.max_timestamp_ms
    else:
        first, largest = kept[0].timestamp_ms, max(record.timestamp_ms for record in kept)
    return replace(
        batch,
        records=kept,
        horizon_ms=horizon,
        base_timestamp_ms=first if horizon is None else horizon,
        max_timestamp_ms=largest,
    )


def _emptied(batch: ModelBatch) -> ModelBatch:
    if not batch.records:
        return batch  # copied: empty before
    return replace(batch, records=(), codec=0, horizon_ms=None, base_timestamp_ms=-1)


def clean_segments(
    segments: Sequence[ModelSegment],
    groups: Sequence[Sequence[int]],
    *,
    first_dirty: int,
    end: int,
    high_watermark: int,
    now_ms: int,
    retention_ms: int,
) -> tuple[ModelSegment, ...]:
    """The segments after a round that makes one segment of each group of ``groups``, given by their bases."""
    below = [batch for segment in segments if segment.base_offset < end for batch in segment.batches]
    left = clean(
        below, first_dirty=first_dirty, end=end, high_watermark=high_watermark, now_ms=now_ms, retention_ms=retention_ms
    ).batches
    starts = [group[0] for group in groups]
    bounds = [*starts[1:], end]
    cleaned = [
        ModelSegment(start, tuple(batch for batch in left if start <= batch.base_offset < bound))
        for start, bound in zip(starts, bounds, strict=True)
    ]
    return (*cleaned, *(segment for segment in segments if segment.base_offset >= end))


def records_of(segments: Iterable[ModelSegment]) -> list[ModelRecord]:
    return [record for segment in segments for batch in segment.batches for record in batch.records]


def fold(records: Iterable[ModelRecord]) -> Mapping[bytes, bytes]:
    """The table that a reader holds who has read ``records``: a tombstone deletes its key."""
    table: dict[bytes, bytes] = {}
    for record in records:
        if record.key is None:
            continue
        if record.value is None:
            table.pop(record.key, None)
        else:
            table[record.key] = record.value
    return table
