"""Tests of a real broker's logs: a consumer's records, and the same bytes encoded."""

from __future__ import annotations

import base64
import gzip
import json
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from lastwrite.encoding.compression import Codec
from lastwrite.kafka.format.batch import encode_batch, iter_batches
from lastwrite.kafka.format.batch_layout import Batch, Record

CORPUS = Path(__file__).parent.parent / "corpus" / "kafka-4.4.0"
STATES = ("stopped", "crashed", "cleaned")
FOLDERS = [folder for state in STATES for folder in sorted((CORPUS / state).glob("[!_]*-0"))]


def name(folder: Path) -> str:
    return f"{folder.parent.name}/{folder.name}"


def batches_of(log: Path) -> Iterator[tuple[int, Batch]]:
    return iter_batches(log.read_bytes())


def consumed(folder: Path) -> list[tuple[object, ...]]:
    """The records that a consumer read: (offset, timestamp, type, key, value, headers)."""
    topic = folder.name.removesuffix("-0")

    def plain(text: str | None) -> bytes | None:
        return None if text is None else base64.b64decode(text)

    out: list[tuple[object, ...]] = []
    for line in gzip.decompress((folder.parent.with_suffix(".jsonl.gz")).read_bytes()).splitlines():
        seen = json.loads(line)
        if seen["topic"] == topic:
            headers = tuple((key.encode(), plain(value)) for key, value in seen["headers"])
            out.append(
                (
                    seen["offset"],
                    seen["timestamp"],
                    seen["timestamp_type"],
                    plain(seen["key"]),
                    plain(seen["value"]),
                    headers,
                )
            )
    return out


def test_corpus_has_partitions() -> None:
    assert len(FOLDERS) > 25


@pytest.mark.parametrize("folder", FOLDERS, ids=name)
def test_records_equal_those_of_a_consumer(folder: Path) -> None:
    found: list[tuple[object, ...]] = []
    for log in sorted(folder.glob("*.log")):
        for _, batch in batches_of(log):
            if not batch.attributes.control:
                kind = "append" if batch.attributes.append_time else "create"
                found += [
                    (r.offset, r.timestamp_ms, kind, r.key, r.value, r.headers)
                    for r in batch.records
                ]
    assert found == consumed(folder)


@pytest.mark.parametrize("folder", FOLDERS, ids=name)
def test_every_offset_index_entry_points_at_a_batch(folder: Path) -> None:
    for log in sorted(folder.glob("*.log")):
        last_offsets = {position: batch.header.last_offset for position, batch in batches_of(log)}
        index = log.with_suffix(".index")
        entries = list(struct.iter_unpack(">ii", index.read_bytes())) if index.exists() else []
        while entries and entries[-1] == (0, 0):  # preallocated entries
            entries.pop()
        for relative, position in entries:
            assert last_offsets[position] == int(log.stem) + relative


@pytest.mark.parametrize("folder", FOLDERS, ids=name)
def test_encoded_batches_equal_the_brokers_or_decode_alike(folder: Path) -> None:
    """Uncompressed batches are equal byte for byte.

    Other compressor versions may find other matches. A broker that sets its own timestamps changes
    only the header. The records keep the producer's deltas.
    """
    for log in sorted(folder.glob("*.log")):
        data = log.read_bytes()
        for position, batch in batches_of(log):
            if not batch.records:
                continue
            again = encoded(batch)
            whole = data[position : position + batch.header.size_bytes]
            if batch.attributes.codec is Codec.NONE and not batch.attributes.append_time:
                assert again == whole
            _, other = next(iter_batches(again))
            assert other.records == batch.records


def encoded(batch: Batch) -> bytes:
    header, bits = batch.header, batch.attributes
    records: tuple[Record, ...] = batch.records
    return encode_batch(
        records,
        base_offset=header.base_offset,
        codec=bits.codec,
        append_time=bits.append_time,
        transactional=bits.transactional,
        control=bits.control,
        delete_horizon_ms=header.delete_horizon_ms,
        leader_epoch=header.partition_leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        last_offset=header.last_offset,
        max_timestamp_ms=header.max_timestamp_ms,
    )
