"""Tests that every corpus file, which a real broker wrote, survives decoding and encoding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lastwrite.encoding.compression import Codec, compress, decompress
from lastwrite.kafka.format.batch import (
    decode_batch,
    encode_records,
    iter_batches,
    rebuild_batch,
)
from lastwrite.kafka.format.batch_layout import BATCH_HEADER, decode_attributes
from lastwrite.kafka.format.index import (
    SegmentIndexer,
    decode_offset_index,
    decode_time_index,
    encode_offset_index,
    encode_time_index,
)
from lastwrite.kafka.format.names import (
    CLEAN_SHUTDOWN,
    KafkaFileKind,
    Suffix,
    classify,
    decode_folder_name,
)
from lastwrite.kafka.format.text import (
    decode_clean_shutdown,
    decode_leader_epochs,
    decode_offset_checkpoint,
    decode_partition_metadata,
    encode_leader_epochs,
    encode_offset_checkpoint,
    encode_partition_metadata,
)
from lastwrite.kafka.producers.snapshot import decode_snapshot, encode_snapshot

CORPUS = Path(__file__).parent.parent / "corpus"
# Tiered segments have other names: tests/conformance/test_kafka_tier.py.
LOGS = [log for log in sorted(CORPUS.glob("*/*/*/*.log")) if "tiered" not in log.parts]
# The corpus has no indexes of the metadata log.
STOPPED = [
    log for log in LOGS if "stopped" in log.parts and "__cluster_metadata-0" not in log.parts
]
INDEX_INTERVAL_BYTES = 200  # the settings of the topics in tests/corpus/make.py


def name(path: Path) -> str:
    return str(path.relative_to(CORPUS))


def test_corpus_has_logs() -> None:
    assert len(LOGS) > 10


@pytest.mark.parametrize("log", LOGS, ids=name)
def test_batches_round_trip(log: Path) -> None:
    segment = log.read_bytes()
    for at, batch in iter_batches(segment):
        header, attributes = batch.header, batch.attributes
        original = segment[at : at + header.size_bytes]
        payload = original[BATCH_HEADER.size :]
        plain = encode_records(batch.records, header.base_offset, header.base_timestamp_ms)
        # with append time the records do not contain their own timestamps
        if not attributes.append_time:
            assert (
                bytes(decompress(attributes.codec, payload, 1 << 24)) == plain
                if batch.records
                else not payload
            )
            rebuilt = rebuild_batch(
                header, batch.records, delete_horizon_ms=header.delete_horizon_ms
            )
            if attributes.codec is Codec.NONE:
                assert rebuilt == original
            else:
                again = decode_batch(rebuilt, 0)
                assert again.records == batch.records
                assert again.header._replace(crc=0, batch_length=0) == header._replace(
                    crc=0, batch_length=0
                )
        assert decode_attributes(attributes.bits) == attributes


def columns(log: Path) -> list[np.ndarray]:
    """Position, size, last offset and largest timestamp of every batch."""
    rows = [
        (at, batch.header.size_bytes, batch.header.last_offset, batch.header.max_timestamp_ms)
        for at, batch in iter_batches(log.read_bytes())
    ]
    return [np.ascontiguousarray(column) for column in np.array(rows, np.int64).reshape(-1, 4).T]


@pytest.mark.parametrize("log", STOPPED, ids=name)
def test_indexes_of_one_session_equal_the_brokers(log: Path) -> None:
    base_offset = int(log.stem)
    indexer = SegmentIndexer(base_offset, interval_bytes=INDEX_INTERVAL_BYTES)
    indexer.append(*columns(log))
    stored = [log.with_suffix(suffix) for suffix in (".index", ".timeindex")]
    ours = indexer.finish()
    assert ours == tuple(path.read_bytes() if path.exists() else b"" for path in stored)
    assert encode_offset_index(decode_offset_index(ours[0], base_offset)) == ours[0]
    assert encode_time_index(decode_time_index(ours[1], base_offset)) == ours[1]


@pytest.mark.parametrize("log", LOGS, ids=name)
def test_indexes_of_any_session_point_at_the_right_batches(log: Path) -> None:
    """After a restart a broker counts the bytes to the next entry from 0, so it has fewer entries
    than we.
    """
    positions, _, last_offsets, timestamps_ms = columns(log)
    largest_ms = np.maximum.accumulate(timestamps_ms)
    index_file, time_file = log.with_suffix(".index"), log.with_suffix(".timeindex")
    if index_file.exists():
        index = decode_offset_index(index_file.read_bytes(), int(log.stem))
        rows = np.searchsorted(positions, index.positions)
        assert (positions[rows] == index.positions).all()
        assert (last_offsets[rows] == index.offsets).all()
    if time_file.exists():
        times = decode_time_index(time_file.read_bytes(), int(log.stem))
        # the first batch with the largest timestamp
        rows = np.searchsorted(largest_ms, times.timestamps_ms)
        assert (largest_ms[rows] == times.timestamps_ms).all()
        assert (last_offsets[rows] == times.offsets).all()


def test_every_file_name_is_recognised() -> None:
    for folder in {log.parent for log in LOGS}:
        assert decode_folder_name(folder.name) is not None, folder
        for path in folder.iterdir():
            assert not classify(path.name).is_foreign, path


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*/*/*/*.snapshot")), ids=name)
def test_snapshots_round_trip(path: Path) -> None:
    assert classify(path.name).suffix is Suffix.LIVE
    assert encode_snapshot(decode_snapshot(path.read_bytes())) == path.read_bytes()


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*/*/*-offset-checkpoint")), ids=name)
def test_checkpoints_round_trip(path: Path) -> None:
    text = path.read_bytes()
    assert not text or encode_offset_checkpoint(decode_offset_checkpoint(text)) == text


def test_text_files_round_trip() -> None:
    epochs = sorted(CORPUS.glob(f"*/*/*/{KafkaFileKind.LEADER_EPOCHS}"))
    metadata = sorted(CORPUS.glob(f"*/*/*/{KafkaFileKind.PARTITION_METADATA}"))
    assert epochs and metadata
    for path in epochs:
        assert encode_leader_epochs(decode_leader_epochs(path.read_bytes())) == path.read_bytes()
    for path in metadata:
        assert (
            encode_partition_metadata(decode_partition_metadata(path.read_bytes()))
            == path.read_bytes()
        )
    for path in CORPUS.glob(f"*/*/{CLEAN_SHUTDOWN}"):
        assert decode_clean_shutdown(path.read_bytes()) is not None


@pytest.mark.parametrize("log", [log for log in LOGS if "broker-gzip" in str(log)], ids=name)
def test_gzip_output_equals_the_brokers(log: Path) -> None:
    segment = log.read_bytes()
    for at, batch in iter_batches(segment):
        payload = segment[at + BATCH_HEADER.size : at + batch.header.size_bytes]
        assert compress(Codec.GZIP, decompress(Codec.GZIP, payload, 1 << 24)) == payload
