"""A plain model of one compaction round, to compare the engine with.

It is slow, has no bytes and shares no code with the engine: records are tuples, and the key map is
a dict. A round collects the last offset of every key in the dirty range ``[first_dirty, end)``.
Then it judges every record of every segment below ``end``, also the clean ones.

There are three complications. *Transactions*: one pass over the batches finds the batches of
aborted transactions and the markers that are no longer needed. *Producers*: the last batch of each
producer stays, empty if need be. *Old formats*: what remains of them is converted to magic 2.

Source: docs/formats/kafka-cleaning.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

Headers = tuple[tuple[bytes, bytes | None], ...]
MARKERS = {
    b"\0\0\0\0": "abort",
    b"\0\0\0\1": "commit",
}  # the key of a control record: version 0 and a type


@dataclass(frozen=True, slots=True)
class ModelRecord:
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class ModelBatch:
    """A record batch without its bytes. ``codec`` is 0 in an empty batch."""

    base_offset: int
    last_offset: int
    records: tuple[ModelRecord, ...]
    codec: int = 0
    append_time: bool = False
    base_timestamp_ms: int = 0  # the delete horizon, if there is one
    max_timestamp_ms: int = -1
    horizon_ms: int | None = None
    leader_epoch: int = -1
    magic: int = 2
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    transactional: bool = False
    control: bool = False
    file_ms: int = field(default=0, compare=False)  # modification time of the batch's file

    @property
    def next_offset(self) -> int:
        return self.last_offset + 1

    @property
    def marker(self) -> str | None:
        """``commit`` or ``abort``. None for data, and for a marker without its record."""
        key = self.records[0].key if self.control and self.records else None
        return None if key is None else MARKERS.get(key[:4])


@dataclass(frozen=True, slots=True)
class ModelAborted:
    """An entry of a transaction index."""

    producer_id: int
    first_offset: int
    last_offset: int  # offset of the marker
    last_stable_offset: int


@dataclass(frozen=True, slots=True)
class ModelSegment:
    base_offset: int
    batches: tuple[ModelBatch, ...]
    aborted: tuple[ModelAborted, ...] = ()


@dataclass(frozen=True, slots=True)
class LastBatch:
    """The state of an active producer: its epoch, and the last offset of its last data batch.

    ``last_offset`` is -1 if the producer wrote no data in that epoch.
    """

    epoch: int
    last_offset: int


@dataclass(frozen=True, slots=True)
class Held:
    """Tombstones that are kept longer by ``longer_ms``: in batches that end at or above
    ``from_offset``.

    ``from_offset`` None means that no tombstones are kept longer.
    """

    from_offset: int | None = None
    longer_ms: int = 0

    def keeps(self, batch: ModelBatch, now_ms: int, old_until_ms: int) -> bool:
        """Whether an expired tombstone of the batch is still kept."""
        if self.from_offset is None or batch.last_offset < self.from_offset:
            return False
        if batch.magic < 2:
            return old_until_ms - batch.file_ms < self.longer_ms
        horizon_ms = usable(batch.horizon_ms)
        return horizon_ms is not None and now_ms - horizon_ms < self.longer_ms


NOT_HELD = Held()


@dataclass(slots=True)
class Outcome:
    """The remaining batches and index entries, and the removed records by reason."""

    batches: list[ModelBatch]
    aborted_entries: list[ModelAborted]
    kept: int = 0
    keyless: int = 0
    shadowed: int = 0
    expired: int = 0
    aborted: int = 0
    spent: int = 0


def usable(horizon_ms: int | None) -> int | None:
    """The delete horizon if a batch can store it, else None.

    It must be at least 0 and fit in 63 bits.
    """
    return horizon_ms if horizon_ms is not None and 0 <= horizon_ms < 2**63 else None


def last_offsets(batches: Iterable[ModelBatch], first_dirty: int, end: int) -> dict[bytes, int]:
    """The last offset of every key written in ``[first_dirty, end)``."""
    return {
        record.key: record.offset
        for batch in batches
        for record in batch.records
        if record.key is not None and first_dirty <= record.offset < end
    }


def discardable(
    batches: Iterable[ModelBatch], aborted: Iterable[ModelAborted]
) -> tuple[list[bool], list[ModelAborted]]:
    """Whether each batch can be dropped, and the index entries that stay.

    A batch can be dropped if it is data of an aborted transaction, or a marker of a transaction
    without remaining data. An index entry stays if its transaction had data before the round.
    """
    coming = sorted(aborted, key=lambda entry: entry.first_offset)
    begun: dict[int, ModelAborted] = {}  # by producer
    seen_aborted: set[int] = set()
    seen_committed: set[int] = set()
    found, stay = [], []
    for batch in batches:
        producer = batch.producer_id
        while coming and coming[0].first_offset <= batch.last_offset:
            entry = coming.pop(0)
            begun.setdefault(entry.producer_id, entry)
        if batch.marker == "abort":
            aborting = begun.pop(producer, None)
            spent = aborting is None or producer not in seen_aborted
            if aborting is not None and not spent:
                stay.append(aborting)
            seen_aborted.discard(producer)
        elif batch.marker == "commit":
            spent = producer not in seen_committed
            seen_committed.discard(producer)
        elif batch.control:
            spent = not batch.records
        elif not batch.transactional:
            spent = False
        else:
            spent = producer in begun
            (seen_aborted if spent else seen_committed).add(producer)
        found.append(spent)
    return found, stay


def clean(
    batches: Sequence[ModelBatch],
    *,
    first_dirty: int,
    end: int,
    high_watermark: int,
    now_ms: int,
    retention_ms: int,
    aborted: Iterable[ModelAborted] = (),
    producers: Mapping[int, LastBatch] | None = None,
    old_until_ms: int = 0,
    log_end: int = -1,
    held: Held = NOT_HELD,
) -> Outcome:
    """Run one round over ``batches``: all batches of the segments below ``end``, oldest first.

    Args:
        aborted: All entries of all transaction indexes.
        producers: The active producers by id.
        old_until_ms: A tombstone of an old format expires if its file was last changed by this
            time.
        log_end: The batch that ends there keeps its last offset when it is converted, because no
            later
            batch shows where the log ends. -1 means that the active segment is not in the round.
        held: Tombstones that are kept longer.
    """
    discards, entries = discardable(batches, aborted)
    data = [
        batch
        for batch, discard in zip(batches, discards, strict=True)
        if not discard and not batch.control
    ]
    latest = last_offsets(data, first_dirty, end)
    outcome = Outcome([], entries)
    for batch, discard in zip(batches, discards, strict=True):
        horizon_ms = usable(batch.horizon_ms)
        due = horizon_ms is not None and now_ms >= horizon_ms
        if batch.magic < 2:
            due = batch.file_ms <= old_until_ms
        goes = due and not held.keeps(batch, now_ms, old_until_ms)
        kept = []
        for record in batch.records:
            if batch.control:
                if discard and due:
                    outcome.spent += 1
                else:
                    kept.append(record)
            elif discard:
                outcome.aborted += 1
            elif record.key is None:
                outcome.keyless += 1
            elif latest.get(record.key, -1) > record.offset:
                outcome.shadowed += 1
            elif record.value is None and goes:
                outcome.expired += 1
            else:
                kept.append(record)
        outcome.kept += len(kept)
        if kept:
            stamps = discard if batch.control else any(record.value is None for record in kept)
            last = (
                batch.last_offset
                if batch.magic == 2 or batch.next_offset == log_end
                else kept[-1].offset
            )
            outcome.batches.append(
                _rebuilt(batch, tuple(kept), last, now_ms + retention_ms if stamps else None)
            )
        elif _is_last_of_producer(batch, producers or {}) or batch.next_offset == high_watermark:
            outcome.batches.append(_emptied(batch))
    return outcome


def _is_last_of_producer(batch: ModelBatch, producers: Mapping[int, LastBatch]) -> bool:
    last = producers.get(batch.producer_id)
    if last is None:
        return False
    if last.last_offset >= 0:
        return batch.last_offset == last.last_offset
    return batch.control and batch.producer_epoch == last.epoch


def _rebuilt(
    batch: ModelBatch, kept: tuple[ModelRecord, ...], last_offset: int, new_horizon_ms: int | None
) -> ModelBatch:
    horizon = usable(batch.horizon_ms)
    needs_one = horizon is None and new_horizon_ms is not None
    if needs_one:
        horizon = usable(new_horizon_ms)
    if batch.magic < 2:  # converted, also if all records remain
        batch = replace(
            batch, magic=2, base_offset=kept[0].offset, last_offset=last_offset, leader_epoch=-1
        )
    elif len(kept) == len(batch.records) and horizon == batch.horizon_ms and not needs_one:
        return batch
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
        return batch  # copied: it was empty before
    if batch.magic < 2:  # Kafka fails here. Magic 2 has empty batches.
        batch = replace(batch, magic=2, leader_epoch=-1)
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
    producers: Mapping[int, LastBatch] | None = None,
    old_until_ms: int = 0,
    forgotten_below: int = 0,
    held: Held = NOT_HELD,
) -> tuple[ModelSegment, ...]:
    """The segments after a round that merges each group of ``groups`` into one segment.

    A group is a list of base offsets. Transactions whose ABORT marker is below ``forgotten_below``
    are forgotten. For Kafka this is the log start: the data of such a transaction, which can no
    longer be read, stays as if it were committed. Lastwrite forgets no transaction.
    """
    below = [
        batch for segment in segments if segment.base_offset < end for batch in segment.batches
    ]
    # If the active segment is in the round, no later segment's name shows where the log ends.
    log_end = below[-1].next_offset if below and segments[-1].base_offset < end else -1
    entries = [
        entry
        for segment in segments
        for entry in segment.aborted
        if entry.last_offset >= forgotten_below
    ]
    left = clean(
        below,
        first_dirty=first_dirty,
        end=end,
        high_watermark=high_watermark,
        now_ms=now_ms,
        retention_ms=retention_ms,
        aborted=entries,
        producers=producers,
        old_until_ms=old_until_ms,
        log_end=log_end,
        held=held,
    )
    starts = [group[0] for group in groups]
    bounds = [*starts[1:], end]
    cleaned = [
        ModelSegment(
            start,
            tuple(batch for batch in left.batches if start <= batch.base_offset < bound),
            tuple(entry for entry in left.aborted_entries if start <= entry.last_offset < bound),
        )
        for start, bound in zip(starts, bounds, strict=True)
    ]
    return (*cleaned, *(segment for segment in segments if segment.base_offset >= end))


# ---------------------------------------------------------------------- what readers see


def records_of(segments: Iterable[ModelSegment]) -> list[ModelRecord]:
    """All records, also markers and those of aborted transactions."""
    return [record for segment in segments for batch in segment.batches for record in batch.records]


def aborted_offsets(segments: Iterable[ModelSegment]) -> set[int]:
    """The offsets of data whose producer's next marker is an ABORT. Uses no transaction index."""
    found: set[int] = set()
    open_: dict[int, set[int]] = {}
    for batch in (batch for segment in segments for batch in segment.batches):
        data = open_.setdefault(batch.producer_id, set())
        if batch.marker is not None:
            found |= data if batch.marker == "abort" else set()
            data.clear()
        elif batch.transactional and not batch.control:
            data.update(record.offset for record in batch.records)
    return found


def readable(segments: Sequence[ModelSegment]) -> list[ModelRecord]:
    """The records that applications read, without those of aborted transactions."""
    hidden = aborted_offsets(segments)
    return [
        record
        for segment in segments
        for batch in segment.batches
        if not batch.control
        for record in batch.records
        if record.offset not in hidden
    ]


def fold(records: Iterable[ModelRecord]) -> Mapping[bytes, bytes]:
    """The values by key after ``records`` have been read. A tombstone deletes its key."""
    table: dict[bytes, bytes] = {}
    for record in records:
        if record.key is None:
            continue
        if record.value is None:
            table.pop(record.key, None)
        else:
            table[record.key] = record.value
    return table
