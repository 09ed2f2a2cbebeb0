"""Tests of Kafka's logs of formats v0 and v1: Kafka's records, and the same bytes encoded."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lastwrite
from lastwrite.commands.inspect import inspect
from lastwrite.encoding.compression import Codec
from lastwrite.kafka.format.batch import decode_batch, iter_batches
from lastwrite.kafka.format.batch_layout import MAGIC, Batch
from lastwrite.kafka.format.chunk import KafkaFormat
from tests.support.kafka.old_entries import encode_message, encode_wrapper

CORPUS = Path(__file__).parent.parent / "corpus" / "old-formats"
SEEN: dict[str, list[dict[str, Any]]] = json.loads(
    gzip.decompress((CORPUS / "records.json.gz").read_bytes())
)


@pytest.fixture(params=sorted(SEEN))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def log_of(name: str) -> bytes:
    return (CORPUS / name / f"{0:020d}.log").read_bytes()


def unhex(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


def test_corpus_has_all_logs() -> None:
    assert len(SEEN) == 13


def test_records_equal_those_that_kafka_reads(name: str) -> None:
    found = list(iter_batches(log_of(name)))
    for (position, batch), said in zip(found, SEEN[name], strict=True):
        header = batch.header
        assert (position, header.size_bytes, header.magic) == (
            said["position"],
            said["size"],
            said["magic"],
        )
        assert (header.base_offset, header.last_offset, header.crc) == (
            said["base"],
            said["last"],
            said["crc"],
        )
        assert (batch.attributes.codec.label, header.max_timestamp_ms) == (
            said["codec"],
            said["max_ts"],
        )
        assert batch.attributes.append_time == (said["ts_type"] == "LogAppendTime")
        assert [(r.offset, r.timestamp_ms, r.key, r.value) for r in batch.records] == [
            (offset, time, unhex(key), unhex(value))
            for offset, time, key, value, *_ in said["records"]
        ]


def test_encoded_entries_equal_kafkas(name: str) -> None:
    """Uncompressed and gzip entries are equal byte for byte, others in header and messages."""
    data = log_of(name)
    for position, batch in iter_batches(data):
        if batch.header.magic == MAGIC:
            continue
        whole = data[position : position + batch.header.size_bytes]
        again = encoded_again(batch)
        if batch.attributes.codec in (Codec.NONE, Codec.GZIP):
            assert again == whole
        else:
            fields = slice(
                16, 30 if batch.header.magic else 22
            )  # up to the length of the key, which is null
            assert again[:8] == whole[:8] and again[fields] == whole[fields]
            assert decode_batch(again, 0).records == batch.records


def encoded_again(batch: Batch) -> bytes:
    header, attributes = batch.header, batch.attributes
    if attributes.codec is Codec.NONE:
        [record] = batch.records
        return encode_message(record, header.magic, append_time=attributes.append_time)
    append_ms = header.max_timestamp_ms if attributes.append_time else None
    return encode_wrapper(batch.records, header.magic, attributes.codec, append_time_ms=append_ms)


def test_converted_batches_equal_the_decoder(name: str) -> None:
    buffer = np.frombuffer(log_of(name), dtype=np.uint8).copy()
    format, at, floor = KafkaFormat(), 0, 0
    expected = [(position, batch) for position, batch in iter_batches(log_of(name))]
    while at < len(buffer):
        table, at, _, held = format.split(buffer, at, len(buffer), floor)
        floor = int(table["next_offset"][-1])
        runs = {b: run for run in format.opened(held, table) for b in range(run.first, run.last)}
        for b, row in enumerate(table):
            position, batch = expected.pop(0)
            assert (int(row["origin"]), int(row["origin_size"])) == (
                position,
                batch.header.size_bytes,
            )
            assert (int(row["base_offset"]), floor > int(row["base_offset"])) == (
                batch.header.base_offset,
                True,
            )
            assert int(row["records"]) == len(batch.records) and b in runs
    assert not expected


def test_inspect_counts_old_batches(name: str) -> None:
    [found] = inspect(str(CORPUS / name)).partitions
    said = SEEN[name]
    assert not found.problems
    assert found.contents.batches == len(said)
    assert found.contents.records == sum(len(batch["records"]) for batch in said)
    assert found.contents.formats == {
        f"v{magic}": count
        for magic in (0, 1, 2)
        if (count := sum(batch["magic"] == magic for batch in said))
    }


def test_dump_prints_old_records(name: str) -> None:
    rows = list(lastwrite.dump(str(CORPUS / name)))
    said = [(batch, record) for batch in SEEN[name] for record in batch["records"]]
    assert [(row["offset"], row["timestamp"]) for row in rows] == [
        (record[0], record[1]) for _, record in said
    ]
    types = ["none" if batch["magic"] == 0 else batch["ts_type"] for batch, _ in said]
    assert [row["timestamp_type"] for row in rows] == types
