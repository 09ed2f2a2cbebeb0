"""Faulty compactions: each changes one thing in a correctly compacted log.

A fault function takes the log before and after, and yields each place where the fault can occur,
with the promise that it breaks. ``strike`` writes the log with one fault. The module uses only the
models and the bytes, not the code under test.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from lastwrite.kafka.format.batch import decode_batch, rebuild_batch
from tests.support.kafka.logs import (
    NAME,
    bases,
    decode_model,
    header_at,
    read_segments,
    write_segment,
)
from tests.support.kafka.model import ModelAborted, ModelBatch, ModelSegment, aborted_offsets

Batches = dict[int, bytes]  # by base offset


@dataclass(frozen=True)
class Fault:
    """One fault: changed batches by base offset (None means removed), and changed index entries.

    ``aborted`` maps each entry of the transaction indexes to its replacement. None removes the
    entry.
    """

    promise: str  # the promise that the fault breaks
    offset: int | None  # where the fault is
    batches: Mapping[int, bytes | None]
    aborted: Callable[[ModelAborted], ModelAborted | None] = lambda entry: entry

    def __repr__(self) -> str:
        return f"Fault({self.promise!r}, {self.offset}, {list(self.batches)})"


@dataclass(frozen=True)
class Pair:
    """A log before and after a correct compaction, with the bounds of the round."""

    before: tuple[ModelSegment, ...]
    after: tuple[ModelSegment, ...]
    was: Batches
    now: Batches
    last_stable: int
    log_start: int
    now_ms: int
    last_batches: frozenset[int]  # last offsets of the active producers' last batches


def read_pair(
    before: Path,
    after: Path,
    *,
    last_stable: int,
    log_start: int,
    now_ms: int,
    last_batches: frozenset[int],
) -> Pair:
    was, now = read_segments(before / NAME), read_segments(after / NAME)
    return Pair(
        was,
        now,
        _bytes(before / NAME),
        _bytes(after / NAME),
        last_stable,
        max(log_start, now[0].base_offset if now else 0),
        now_ms,
        last_batches,
    )


def _bytes(folder: Path) -> Batches:
    found = {}
    for base in bases(folder):
        data, at = (folder / f"{base:020d}.log").read_bytes(), 0
        while at < len(data):
            size = header_at(data, at).size_bytes
            found[decode_model(data, at)[0].base_offset] = data[at : at + size]
            at += size
    return found


def _all(segments: tuple[ModelSegment, ...]) -> list[ModelBatch]:
    return [batch for segment in segments for batch in segment.batches]


def without_record(batch: bytes, offset: int) -> bytes:
    """The batch without one record. If it had no other, the result is an empty batch."""
    whole = decode_batch(batch, 0)
    left = [record for record in whole.records if record.offset != offset]
    return rebuild_batch(
        whole.header, left, delete_horizon_ms=whole.header.delete_horizon_ms if left else None
    )


def committed_record_lost(pair: Pair) -> Iterator[Fault]:
    """Remove the last write of a key."""
    hidden = aborted_offsets(pair.before)
    latest = {
        record.key: record.offset
        for batch in _all(pair.before)
        if not batch.control
        for record in batch.records
        if record.key is not None
        and record.offset not in hidden
        and pair.log_start <= record.offset < pair.last_stable
    }
    for batch in _all(pair.after):
        for record in batch.records:
            is_last = latest.get(record.key or b"", -1) == record.offset and record.key is not None
            if batch.magic == 2 and not batch.control and is_last and record.value is not None:
                without = without_record(pair.now[batch.base_offset], record.offset)
                yield Fault("lost", record.offset, {batch.base_offset: without})


def tail_lost(pair: Pair) -> Iterator[Fault]:
    """Remove a record of an open transaction, or a record after the begin of one."""
    for batch in _all(pair.after):
        for record in batch.records:
            if record.offset >= max(pair.last_stable, pair.log_start) and batch.magic == 2:
                without = without_record(pair.now[batch.base_offset], record.offset)
                yield Fault("lost_tail", record.offset, {batch.base_offset: without})


def aborted_record_revived(pair: Pair) -> Iterator[Fault]:
    """Restore removed data of an aborted transaction as non-transactional data."""
    hidden = aborted_offsets(pair.before)
    for batch in _all(pair.before):
        if (
            batch.base_offset not in pair.now
            and pair.log_start <= batch.base_offset
            and not batch.control
        ):
            for record in batch.records:
                # Aborted records may remain. Restored data must not become committed data.
                if record.offset in hidden and batch.transactional:
                    header = decode_batch(pair.was[batch.base_offset], 0).header
                    plain = header._replace(attributes=header.attributes & ~16)
                    back = rebuild_batch(
                        plain, decode_batch(pair.was[batch.base_offset], 0).records
                    )
                    yield Fault("batch_changed", batch.base_offset, {batch.base_offset: back})
                    break


def marker_dropped(pair: Pair) -> Iterator[Fault]:
    """Remove a marker that the round must keep.

    Its transaction had data before the round, or its delete horizon has not passed.
    """
    begun: set[int] = set()
    for batch in _all(pair.before):
        if batch.marker is None:
            if batch.transactional and not batch.control:
                begun.add(batch.producer_id)
            continue
        early = batch.horizon_ms is None or batch.horizon_ms > pair.now_ms
        is_needed = batch.producer_id in begun or early
        begun.discard(batch.producer_id)
        stable = pair.log_start <= batch.base_offset < pair.last_stable and not _ends(pair, batch)
        if (
            is_needed
            and stable
            and batch.base_offset in pair.now
            and decode_batch(pair.now[batch.base_offset], 0).records
        ):
            yield Fault("lost_control", batch.base_offset, {batch.base_offset: None})


def marker_dropped_while_data_remains(pair: Pair) -> Iterator[Fault]:
    """Remove an ABORT marker, but not its data and its index entry."""
    begun: dict[int, int] = {}
    for batch in _all(pair.after):
        if batch.marker is None and batch.transactional and not batch.control:
            begun.setdefault(batch.producer_id, batch.base_offset)
        elif batch.marker is not None:
            first = begun.pop(batch.producer_id, None)
            if (
                batch.marker == "abort"
                and first is not None
                and first >= pair.log_start
                and not _ends(pair, batch)
            ):
                if (
                    _next_marker(pair, batch) == "abort"
                ):  # the next transaction takes over the data, which stays aborted
                    promise = (
                        "lost_control" if batch.base_offset < pair.last_stable else "lost_tail"
                    )
                    yield Fault(promise, batch.base_offset, {batch.base_offset: None})
                else:
                    yield Fault("redecided", first, {batch.base_offset: None})


def _next_marker(pair: Pair, marker: ModelBatch) -> str | None:
    following = (
        b.marker
        for b in _all(pair.after)
        if b.base_offset > marker.base_offset and _is_same(b, marker)
    )
    return next((kind for kind in following if kind is not None), None)


def _is_same(batch: ModelBatch, other: ModelBatch) -> bool:
    return batch.producer_id == other.producer_id


def _ends(pair: Pair, batch: ModelBatch) -> bool:
    """Whether the log, and with it the replicated part, ends earlier without this batch."""
    return batch.base_offset == max(pair.now)


def shell_dropped(pair: Pair) -> Iterator[Fault]:
    """Remove the last batch of an active producer if it has no records."""
    for batch in _all(pair.after):
        if (
            batch.last_offset in pair.last_batches
            and not batch.records
            and batch.base_offset >= pair.log_start
        ):
            yield Fault("batch_lost", batch.base_offset, {batch.base_offset: None})


def sequence_changed(pair: Pair) -> Iterator[Fault]:
    for batch in _all(pair.after):
        if batch.base_sequence >= 0:
            whole = decode_batch(pair.now[batch.base_offset], 0)
            header = whole.header._replace(base_sequence=batch.base_sequence + 1)
            other = rebuild_batch(header, whole.records, delete_horizon_ms=header.delete_horizon_ms)
            yield Fault("batch_changed", batch.base_offset, {batch.base_offset: other})


def _aborted_with_data(pair: Pair) -> Iterator[tuple[ModelAborted, int]]:
    """The index entries of transactions that still have data, with the last offset of the data."""
    data = {
        (batch.producer_id, batch.last_offset)
        for batch in _all(pair.after)
        if batch.transactional and not batch.control
    }
    for segment in pair.after:
        for entry in segment.aborted:
            mine = [last for producer, last in data if producer == entry.producer_id]
            inside = [last for last in mine if entry.first_offset <= last < entry.last_offset]
            if inside and max(inside) >= pair.log_start:
                yield entry, max(inside)


def index_entry_dropped(pair: Pair) -> Iterator[Fault]:
    for lost, _ in _aborted_with_data(pair):
        yield Fault(
            "transaction_index", None, {}, lambda entry, lost=lost: None if entry == lost else entry
        )  # type: ignore[misc]


def index_entry_begins_late(pair: Pair) -> Iterator[Fault]:
    for found, last in _aborted_with_data(pair):
        late = replace(found, first_offset=last + 1)
        yield Fault(
            "transaction_index",
            None,
            {},
            lambda entry, found=found, late=late: late if entry == found else entry,
        )  # type: ignore[misc]


FAULTS: tuple[Callable[[Pair], Iterator[Fault]], ...] = (
    committed_record_lost,
    tail_lost,
    aborted_record_revived,
    marker_dropped,
    marker_dropped_while_data_remains,
    shell_dropped,
    sequence_changed,
    index_entry_dropped,
    index_entry_begins_late,
)


def strike(pair: Pair, fault: Fault, after: Path, target: Path) -> None:
    """Write the log of ``after`` with one fault to ``target``."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(after, target)
    batches: dict[int, bytes | None] = {**pair.now, **fault.batches}
    starts = [segment.base_offset for segment in pair.after]
    for segment, end in zip(pair.after, [*starts[1:], 1 << 62], strict=True):
        inside = {base for base in fault.batches if segment.base_offset <= base < end}
        entries = [fault.aborted(entry) for entry in segment.aborted]
        if inside or entries != list(segment.aborted):
            index = target / NAME / f"{segment.base_offset:020d}.txnindex"
            index.unlink(missing_ok=True)
            write_segment(
                target / NAME,
                segment.base_offset,
                [
                    b
                    for base, b in sorted(batches.items())
                    if segment.base_offset <= base < end and b is not None
                ],
                aborted=[entry for entry in entries if entry is not None],
            )
