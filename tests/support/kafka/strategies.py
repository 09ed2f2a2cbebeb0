"""Hypothesis strategies: random logs and the rounds that clean them.

A ``Life`` is a log that grows and is cleaned in turn. Each ``Phase`` appends batches in one or more
segments, sets the clock and runs a round. Some batches have producers with sequence numbers, and
transactions that stay open over segments and rounds. Some have old formats. ``append`` writes a
phase after the existing log in a folder, with a broker's transaction indexes and snapshots.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from hypothesis import strategies as st

from tests.support.kafka.logs import (
    bases,
    encode_model,
    headers_of,
    read_aborted,
    read_segments,
    write_segment,
)
from tests.support.kafka.model import ModelBatch, ModelRecord
from tests.support.kafka.producers import apply, producers_of, snapshots, write_snapshot

START_MS = 1_700_000_000_000
CODECS = (0, 1, 2, 3, 4)
DAY_MS = 86_400_000
# Retentions that end at the largest timestamp, and beyond it.
NEVER_MS = (2**63 - 1 - START_MS, 2**63 - 1)


@dataclass(frozen=True, slots=True)
class Phase:
    """Batches by segment, with offsets from 0, and the time of the round that follows.

    The last of ``segments`` is the active one, and may be empty.
    """

    segments: tuple[tuple[ModelBatch, ...], ...]
    now_ms: int
    replicated: float  # the share of the log's offsets below the high watermark
    stopped: bool = True  # by a clean shutdown, which writes a snapshot at the log end

    @property
    def end_offset(self) -> int:
        return max((batch.next_offset for segment in self.segments for batch in segment), default=0)


@dataclass(frozen=True, slots=True)
class Life:
    """All phases of one log, and the settings of its topic."""

    phases: tuple[Phase, ...]
    config: dict[str, str]

    @property
    def interval_bytes(self) -> int:
        return int(self.config["index.interval.bytes"])


keys = st.sampled_from([b"", b"a", b"b", b"c", b"d", b"\x00", b"\xff\xfe", b"k" * 40])
values = st.none() | st.sampled_from([b"", b"v"]) | st.binary(max_size=30) | st.just(b"long" * 60)
header_lists = st.lists(
    st.tuples(st.sampled_from([b"", b"h", "é".encode()]), st.none() | st.binary(max_size=4)),
    max_size=2,
).map(tuple)


@st.composite
def record_bodies(draw: st.DrawFn, clock_ms: int) -> ModelRecord:
    """A record at offset 0. One in sixteen has no key."""
    return ModelRecord(
        0,
        draw(
            st.sampled_from(
                [clock_ms, clock_ms, clock_ms + 1, clock_ms - 500, -1, START_MS + 10**11]
            )
        ),
        None if draw(st.integers(0, 15)) == 0 else draw(keys),
        draw(values),
        draw(st.just(()) | header_lists),
    )


@st.composite
def batches(
    draw: st.DrawFn, base_offset: int, clock_ms: int, codecs: tuple[int, ...] = CODECS
) -> ModelBatch:
    """A batch as a producer or a broker writes it, or one with records removed by a compaction."""
    bodies = draw(st.lists(record_bodies(clock_ms), min_size=1, max_size=5))
    gaps = [draw(st.sampled_from([0, 0, 0, 0, 1, 3])) for _ in range(len(bodies) + 1)]
    records, offset = [], base_offset
    for body, gap in zip(bodies, gaps, strict=False):
        records.append(replace(body, offset=offset + gap))
        offset += gap + 1
    append_time = draw(st.integers(0, 7)) == 0
    if append_time:
        records = [replace(record, timestamp_ms=clock_ms) for record in records]
    return ModelBatch(
        base_offset,
        offset - 1 + gaps[-1],
        tuple(records),
        draw(st.sampled_from(codecs)),
        append_time,
        max_timestamp_ms=clock_ms
        if append_time
        else max(record.timestamp_ms for record in records),
        leader_epoch=draw(st.integers(-1, 2)),
    )


@dataclass(slots=True)
class Writer:
    """The state of a producer while batches are drawn."""

    producer_id: int
    transactional: bool
    epoch: int = 0
    sequence: int = 0
    is_open: bool = False


@st.composite
def written(draw: st.DrawFn, writer: Writer, plain: ModelBatch, bumps: bool) -> ModelBatch:
    """``plain`` as a batch of ``writer``, or in its place the marker that ends the transaction."""
    if writer.is_open and draw(st.integers(0, 2)) == 0:
        writer.is_open = False
        if bumps:  # transactions V2: each marker begins a new epoch
            writer.epoch, writer.sequence = writer.epoch + 1, 0
        key = draw(st.sampled_from([b"\0\0\0\0", b"\0\0\0\1"]))
        stamp = plain.records[0].timestamp_ms
        return ModelBatch(
            plain.base_offset,
            plain.base_offset,
            (ModelRecord(plain.base_offset, stamp, key, b"\0\0\0\0\0\7"),),
            max_timestamp_ms=stamp,
            leader_epoch=plain.leader_epoch,
            producer_id=writer.producer_id,
            producer_epoch=writer.epoch,
            transactional=True,
            control=True,
        )
    if not writer.is_open and draw(st.integers(0, 15)) == 0:
        writer.epoch, writer.sequence = writer.epoch + 1, 0
    sequence = writer.sequence
    writer.sequence += plain.next_offset - plain.base_offset
    writer.is_open = writer.transactional
    return replace(
        plain,
        producer_id=writer.producer_id,
        producer_epoch=writer.epoch,
        base_sequence=sequence,
        transactional=writer.transactional,
    )


@st.composite
def old_batches(draw: st.DrawFn, plain: ModelBatch) -> ModelBatch:
    """The records of ``plain`` in magic 0 or 1: in a wrapper, or only the first of them."""
    magic = draw(st.sampled_from([0, 1]))
    codec = 1 if plain.codec == 4 else plain.codec  # the old formats have no zstd
    records = plain.records if codec else plain.records[:1]
    append_time = plain.append_time and magic == 1
    records = tuple(
        replace(r, headers=(), timestamp_ms=r.timestamp_ms if magic else -1) for r in records
    )
    return ModelBatch(
        records[0].offset,
        records[-1].offset,
        records,
        codec,
        append_time,
        magic=magic,
        max_timestamp_ms=plain.max_timestamp_ms
        if append_time
        else max(r.timestamp_ms for r in records),
    )


@dataclass(slots=True)
class Cast:
    """The producers, codecs and formats of one log."""

    codecs: tuple[int, ...]
    writers: list[Writer]
    bumps: bool
    old: bool


@st.composite
def phases(draw: st.DrawFn, clock_ms: int, cast: Cast) -> Phase:
    segments: list[tuple[ModelBatch, ...]] = []
    offset = draw(st.sampled_from([0, 0, 7, 1000]))
    for _ in range(draw(st.integers(0, 5))):
        filled: list[ModelBatch] = []
        for _ in range(draw(st.integers(1, 4))):
            made = draw(batches(offset, clock_ms, cast.codecs))
            writer = draw(st.sampled_from([None, *cast.writers]))
            if writer is not None:
                made = draw(written(writer, made, cast.bumps))
            elif cast.old and draw(st.booleans()):
                made = draw(old_batches(made))
            filled.append(made)
            offset = made.next_offset + draw(st.sampled_from([0, 0, 0, 1, 50]))
        segments.append(tuple(filled))
    if not segments or draw(st.booleans()):
        segments.append(())  # a segment that was just rolled
    return Phase(
        tuple(segments),
        clock_ms + draw(st.sampled_from([0, 1, 999, 1000, 2000])),
        draw(st.sampled_from([1.0, 1.0, 1.0, 0.7, 0.3])),
        draw(st.integers(0, 3)) > 0,
    )


@st.composite
def lives(
    draw: st.DrawFn,
    codecs: tuple[int, ...] = CODECS,
    min_rounds: int = 1,
    max_rounds: int = 4,
    old: bool = True,
) -> Life:
    """Logs that grow and are cleaned up to ``max_rounds`` times.

    Their settings are small, so that small logs have many segments and expired records.
    """
    clock_ms = START_MS
    cast = Cast(
        codecs,
        [
            Writer(n, n >= 100)
            for n in draw(st.sampled_from([[], [7], [100], [7, 100], [100, 101, 102]]))
        ],
        draw(st.booleans()),
        old and draw(st.integers(0, 4)) == 0,
    )
    made = []
    for _ in range(draw(st.integers(min_rounds, max_rounds))):
        made.append(draw(phases(clock_ms, cast)))
        clock_ms = made[-1].now_ms + draw(st.sampled_from([0, 1, 10, DAY_MS]))
    config = {
        "cleanup.policy": "compact",
        "segment.bytes": str(draw(st.sampled_from([300, 1000, 4000, 2**20]))),
        "index.interval.bytes": str(draw(st.sampled_from([0, 1, 100, 4096]))),
        "segment.index.bytes": str(draw(st.sampled_from([100, 2**20]))),
        "delete.retention.ms": str(draw(st.sampled_from([0, 0, 1000, 1000, *NEVER_MS]))),
        "min.cleanable.dirty.ratio": "0",
    }
    return Life(tuple(made), config)


def shifted(batch: ModelBatch, offsets: int) -> ModelBatch:
    """``batch`` with all offsets increased by ``offsets``."""
    return replace(
        batch,
        base_offset=batch.base_offset + offsets,
        last_offset=batch.last_offset + offsets,
        records=tuple(replace(record, offset=record.offset + offsets) for record in batch.records),
    )


def append(folder: Path, phase: Phase, interval_bytes: int) -> int:
    """Write ``phase`` at the end of the log in ``folder``. Returns the new log end offset.

    The first segment's batches go to the active segment. Each further segment is named after its
    first batch, or after the log end if it is empty.
    """
    end = 0
    present = bases(folder)
    state = producers_of(folder, read_segments(folder)) if present else {}
    if present:
        last = headers_of(folder / f"{present[-1]:020d}.log")
        end = last[-1][1].next_offset if last else present[-1]
    shift = end
    for at, segment in enumerate(phase.segments):
        moved = [shifted(batch, shift) for batch in segment]
        new = [encode_model(batch) for batch in moved]
        aborted = []
        if at == 0 and present:
            base = present[-1]
            new = _split((folder / f"{base:020d}.log").read_bytes()) + new
            aborted = list(read_aborted(folder, base))
        elif at == 0:
            base = 0
        else:
            base = moved[0].base_offset if moved else end
            write_snapshot(folder, base, state)
        aborted += [entry for batch in moved if (entry := apply(state, batch)) is not None]
        write_segment(folder, base, new, interval_bytes, phase.now_ms, aborted)
        end = moved[-1].next_offset if moved else end
    for offset in snapshots(folder):
        if offset not in bases(folder):
            (folder / f"{offset:020d}.snapshot").unlink()
    # Without a snapshot, a broker assumes after a clean shutdown that there are no producers.
    if phase.stopped or not snapshots(folder):
        write_snapshot(folder, end, state)
    return end


def _split(data: bytes) -> list[bytes]:
    """The batches of a segment, as bytes."""
    found, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at + 8 : at + 12], "big") + 12
        found.append(data[at : at + size])
        at += size
    return found
