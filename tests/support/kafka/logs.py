"""Partition folders for tests: written from batches, read back into the model, indexes checked.

The code is slow and uses no ``store`` module of the package, so that it checks what they write
independently.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from lastwrite.encoding.compression import Codec
from lastwrite.kafka.format.batch import decode_batch, encode_batch
from lastwrite.kafka.format.batch_layout import BatchHeader, Record
from tests.support.kafka.model import ModelAborted, ModelBatch, ModelRecord, ModelSegment
from tests.support.kafka.old_formats import decode_old, encode_old

NAME = "t-0"
ABORTED = struct.Struct(">hqqqq")

# Tests sync thousands of small files, so they use a folder in memory if there is one.
SCRATCH = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


# ---------------------------------------------------------------------- writing


def write_segment(
    folder: Path,
    base_offset: int,
    batches: Sequence[bytes],
    interval_bytes: int = 4096,
    mtime_ms: int | None = None,
    aborted: Sequence[ModelAborted] = (),
) -> None:
    """Write a closed segment as a broker leaves it.

    All files get the modification time ``mtime_ms``. The files are ``.log``, ``.index`` and
    ``.timeindex``, and ``.txnindex`` if there are ``aborted`` transactions.
    """
    folder.mkdir(parents=True, exist_ok=True)
    headers = [header_at(batch, 0) for batch in batches]
    offsets, times = plain_index(base_offset, headers, interval_bytes)
    stem = folder / f"{base_offset:020d}"
    contents = {".log": b"".join(batches), ".index": offsets, ".timeindex": times}
    if aborted:
        contents[".txnindex"] = encode_aborted(aborted)
    for suffix, content in contents.items():
        stem.with_suffix(suffix).write_bytes(content)
        if mtime_ms is not None:
            os.utime(stem.with_suffix(suffix), ns=(mtime_ms * 1_000_000, mtime_ms * 1_000_000))


def plain_index(
    base_offset: int, headers: Iterable[BatchHeader], interval_bytes: int
) -> tuple[bytes, bytes]:
    """The offset index and the time index of a closed segment, built batch by batch."""
    offsets, times = bytearray(), bytearray()
    position = since_entry = 0
    largest, largest_offset, last_time = -1, base_offset, -1

    def add_time() -> None:
        nonlocal last_time
        if largest > last_time:
            times.extend(
                largest.to_bytes(8, "big", signed=True)
                + (largest_offset - base_offset).to_bytes(4, "big")
            )
            last_time = largest

    for header in headers:
        if header.max_timestamp_ms > largest:
            largest, largest_offset = header.max_timestamp_ms, header.last_offset
        if since_entry > interval_bytes:
            offsets.extend(
                (header.last_offset - base_offset).to_bytes(4, "big") + position.to_bytes(4, "big")
            )
            add_time()
            since_entry = 0
        since_entry += header.size_bytes
        position += header.size_bytes
    add_time()
    return bytes(offsets), bytes(times)


def encode_aborted(entries: Iterable[ModelAborted]) -> bytes:
    """The bytes of a transaction index."""
    return b"".join(
        ABORTED.pack(0, e.producer_id, e.first_offset, e.last_offset, e.last_stable_offset)
        for e in entries
    )


def write_checkpoint(root: Path, file: str, entries: Mapping[str, int]) -> None:
    """Write an offset checkpoint file of ``root``.

    ``entries`` are by folder name, such as ``t-0``.
    """
    lines = [" ".join([*name.rsplit("-", 1), str(offset)]) for name, offset in entries.items()]
    (root / file).write_text("\n".join(["0", str(len(lines)), *lines, ""]))


def read_checkpoint(root: Path, file: str) -> dict[str, int]:
    """The entries of an offset checkpoint file by folder name. Empty if there is no file."""
    if not (root / file).exists():
        return {}
    version, count, *lines = (root / file).read_text().splitlines()
    assert version == "0" and int(count) == len(lines), (version, count, lines)
    return {
        f"{topic}-{partition}": int(offset) for topic, partition, offset in map(str.split, lines)
    }


# ---------------------------------------------------------------------- reading


def bases(folder: Path) -> list[int]:
    return sorted(int(file.stem) for file in folder.glob("*.log"))


def header_at(data: bytes, at: int) -> BatchHeader:
    """The header of the batch at ``at``.

    For magic 0 and 1 it is made up from the message. Fields that these formats lack are -1 or 0.
    """
    if data[at + 16] == 2:
        return decode_batch(data, at).header
    batch, size = decode_old(data, at)
    delta = batch.last_offset - batch.base_offset
    return BatchHeader(
        batch.base_offset,
        size - 12,
        -1,
        batch.magic,
        0,
        batch.codec,
        delta,
        -1,
        batch.max_timestamp_ms,
        -1,
        -1,
        -1,
        len(batch.records),
    )


def headers_of(file: Path) -> list[tuple[int, BatchHeader]]:
    """Every batch header of a segment with its position."""
    data = file.read_bytes()
    found, at = [], 0
    while at < len(data):
        header = header_at(data, at)
        found.append((at, header))
        at += header.size_bytes
    return found


def has_hole_between_segments(folder: Path) -> bool:
    """Whether offsets above log start and cleaner checkpoint are missing between segments."""
    starts = [
        read_checkpoint(folder.parent, name).get(folder.name, 0)
        for name in ("cleaner-offset-checkpoint", "log-start-offset-checkpoint")
    ]
    for base, following in pairwise(bases(folder)):
        headers = headers_of(folder / f"{base:020d}.log")
        if headers and headers[-1][1].next_offset < following and following > max(starts):
            return True
    return False


def read_segments(folder: Path) -> tuple[ModelSegment, ...]:
    """All segments of a partition folder. Checks every CRC."""
    segments = []
    for base in bases(folder):
        file = folder / f"{base:020d}.log"
        data, file_ms = file.read_bytes(), file.stat().st_mtime_ns // 1_000_000
        batches, at = [], 0
        while at < len(data):
            batch, size = decode_model(data, at)
            batches.append(replace(batch, file_ms=file_ms))
            at += size
        segments.append(ModelSegment(base, tuple(batches), read_aborted(folder, base)))
    return tuple(segments)


def decode_model(data: bytes, at: int) -> tuple[ModelBatch, int]:
    """The batch at ``at`` as a model batch, and its size in bytes."""
    if data[at + 16] < 2:
        return decode_old(data, at)
    batch = decode_batch(data, at)
    header, attributes = batch.header, batch.attributes
    return (
        ModelBatch(
            header.base_offset,
            header.last_offset,
            tuple(
                ModelRecord(r.offset, r.timestamp_ms, r.key, r.value, r.headers)
                for r in batch.records
            ),
            int(attributes.codec),
            attributes.append_time,
            header.base_timestamp_ms,
            header.max_timestamp_ms,
            header.delete_horizon_ms,
            header.partition_leader_epoch,
            header.magic,
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            attributes.transactional,
            attributes.control,
        ),
        header.size_bytes,
    )


def read_aborted(folder: Path, base_offset: int) -> tuple[ModelAborted, ...]:
    """The transaction index of a segment. Empty if there is no file."""
    file = folder / f"{base_offset:020d}.txnindex"
    if not file.exists():
        return ()
    entries = list(ABORTED.iter_unpack(file.read_bytes()))
    assert all(version == 0 for version, *_ in entries)
    return tuple(ModelAborted(*fields) for _, *fields in entries)


@dataclass(frozen=True, slots=True)
class Files:
    """The contents of a segment's files, and the modification time of its log file."""

    log: bytes
    index: bytes
    time_index: bytes
    mtime_ms: int


def read_files(folder: Path, base_offset: int) -> Files:
    stem = folder / f"{base_offset:020d}"
    index, time_index = stem.with_suffix(".index"), stem.with_suffix(".timeindex")
    return Files(
        stem.with_suffix(".log").read_bytes(),
        # A broker creates the indexes of a new segment with its first entry.
        index.read_bytes() if index.exists() else b"",
        time_index.read_bytes() if time_index.exists() else b"",
        stem.with_suffix(".log").stat().st_mtime_ns // 1_000_000,
    )


def check_indexes(folder: Path, base_offset: int) -> None:
    """Assert that every index entry of a closed segment is correct, and that the last ones exist.

    An offset entry has a batch's last offset and start position. A time entry (t, o) promises that
    all records later than t have offsets above o. The last time entry has the segment's largest
    timestamp.
    """
    stem = folder / f"{base_offset:020d}"
    batches = headers_of(stem.with_suffix(".log"))
    ends = {position: header.last_offset for position, header in batches}
    index, times = (
        stem.with_suffix(".index").read_bytes(),
        stem.with_suffix(".timeindex").read_bytes(),
    )
    assert len(index) % 8 == 0 and len(times) % 12 == 0, stem
    before = (-1, -1)
    for at in range(0, len(index), 8):
        offset = base_offset + int.from_bytes(index[at : at + 4], "big")
        position = int.from_bytes(index[at + 4 : at + 8], "big")
        assert ends.get(position) == offset, (
            f"{stem}.index, entry {at // 8}: no batch ends at {offset}, {position}"
        )
        assert offset > before[0] and position > before[1], (
            f"{stem}.index, entry {at // 8} does not rise"
        )
        before = (offset, position)
    largest = max((header.max_timestamp_ms for _, header in batches), default=-1)
    time_before, offset_before = -1, -1
    for at in range(0, len(times), 12):
        time = int.from_bytes(times[at : at + 8], "big", signed=True)
        offset = base_offset + int.from_bytes(times[at + 8 : at + 12], "big")
        assert time > time_before and offset >= offset_before, (
            f"{stem}.timeindex, entry {at // 12} does not rise"
        )
        late = [h for _, h in batches if h.max_timestamp_ms > time and h.last_offset <= offset]
        assert not late, f"{stem}.timeindex, entry {at // 12}: ({time}, {offset}) hides {late[0]}"
        assert any(h.last_offset == offset and h.max_timestamp_ms == time for _, h in batches), (
            stem,
            at // 12,
        )
        time_before, offset_before = time, offset
    assert time_before == largest, (
        f"{stem}.timeindex ends at {time_before}, the segment at {largest}"
    )


# ---------------------------------------------------------------------- from the model


def encode_model(batch: ModelBatch) -> bytes:
    """A batch of the model as bytes."""
    if batch.magic < 2:
        return encode_old(batch)
    records = [Record(r.offset, r.timestamp_ms, r.key, r.value, r.headers) for r in batch.records]
    return encode_batch(
        records,
        base_offset=batch.base_offset,
        last_offset=batch.last_offset,
        codec=Codec(batch.codec),
        append_time=batch.append_time,
        transactional=batch.transactional,
        control=batch.control,
        delete_horizon_ms=batch.horizon_ms,
        leader_epoch=batch.leader_epoch,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        max_timestamp_ms=batch.max_timestamp_ms if batch.append_time or not records else None,
    )
