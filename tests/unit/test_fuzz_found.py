"""Tests of inputs that the fuzzer found, each reduced.

Each must end in a result or a LogError.
"""

from __future__ import annotations

import json
import resource
from pathlib import Path

import numpy as np
import pytest
import zstandard

import lastwrite
from lastwrite.errors import CorruptLog, LogError
from lastwrite.kafka.recovery.unfinished_swap import decode_intent
from lastwrite.kafka.store.watching import NOTES
from lastwrite.pulsar.format.codecs import PulsarCodec, PulsarCodecs
from lastwrite.pulsar.store.exported_metadata import read_exported
from lastwrite.pulsar.store.manifest import MANIFEST, checksum_of, read_manifest
from lastwrite.rocketmq.format.sides import lower_consumer_offsets
from lastwrite.rocketmq.network.route import decode_route
from lastwrite.rocketmq.store.reading import read_commit_log, read_file
from lastwrite.storage.chunked import SegmentChunks, decode_manifest
from lastwrite.storage.quarantine import FILE, read_quarantine
from tests.support.rocketmq.stores import shop

DEEP = b"[" * 100_000


def test_export_that_is_not_utf8_is_read(tmp_path: Path) -> None:
    (tmp_path / "stats.json").write_bytes(b'{"ledgers": [], "state": "\xf6"}')
    assert read_exported(str(tmp_path / "stats.json")).info.ledgers == ()


@pytest.mark.parametrize("number", ["1e999", "NaN"])
def test_quarantine_file_with_a_non_finite_time_is_refused(tmp_path: Path, number: str) -> None:
    entry = {"reason": "x", "since_ms": 7777, "tries": 1, "next_try_ms": 1}
    text = json.dumps({"version": 1, "partitions": {"t-0": entry}}).replace("7777", number)
    (tmp_path / FILE).write_text(text)
    with pytest.raises(CorruptLog):
        read_quarantine(str(tmp_path), NOTES)


def test_deeply_nested_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(DEEP)
    with pytest.raises(CorruptLog):
        read_quarantine(str(tmp_path), NOTES)
    assert decode_intent(DEEP, "t-0") is None
    root = shop(tmp_path / "store", 5).write()
    (root / "config" / "delayOffset.json").write_bytes(DEEP)
    with pytest.raises(LogError):
        list(lastwrite.dump(str(root / "config" / "delayOffset.json")))


def test_commit_note_with_an_infinite_offset_is_ignored() -> None:
    note = {"version": 3, "folders": {"t-0": {"first_dirty_offset": float("inf")}}}
    assert decode_intent(json.dumps(note).encode(), "t-0") is None


def test_ledger_manifest_with_an_infinite_id_is_refused(tmp_path: Path) -> None:
    place = dict.fromkeys(("from", "to", "horizon"), "7:3")
    counts = dict.fromkeys(("entries", "bytes", "messages", "read"), 1)
    content = {
        "version": 1,
        "topic": "persistent://a/b/c",
        "ledger": 9,
        "order": "publishing",
        "retain_null_key": False,
        "object": "00000000-0000-0000-0000-000000000007-ledger-9",
        "ledgers": [float("inf")],
        **place,
        **counts,
    }
    (tmp_path / MANIFEST).write_text(json.dumps({**content, "checksum": checksum_of(content)}))
    with pytest.raises(CorruptLog):
        read_manifest(str(tmp_path))


@pytest.mark.parametrize("queue", ["²", "9" * 5000, ""])
def test_compaction_position_with_an_invalid_queue_number_is_refused(
    tmp_path: Path, queue: str
) -> None:
    root = shop(tmp_path / "store", 30)
    root.write_compaction("orders", 0, position=20)
    path = root.write() / "compaction" / "position-checkpoint"
    path.write_text(json.dumps({"queueOffsetMap": {f"orders_{queue}": 5}}))
    with pytest.raises(CorruptLog, match="belongs to no queue"):
        list(lastwrite.dump(str(path)))


def test_consumer_offsets_that_overflow_stay_unchanged() -> None:
    data = b'{"offsetTable":{"t@g":{0:%s,1:9,"2":9}}}' % (b"1" * 5000)
    found, lowered = lower_consumer_offsets(data, {("t", 0): 3, ("t", 1): 3, ("t", 2): 4})
    assert found == data.replace(b"1:9", b"1:3").replace(b'"2":9', b'"2":4')
    assert lowered == [("t", "g", 1, 9, 3), ("t", "g", 2, 9, 4)]


def test_queue_order_with_a_count_of_5000_digits_is_refused() -> None:
    known = {"brokerDatas": [], "queueDatas": [], "orderTopicConf": "a:" + "1" * 5000}
    with pytest.raises(CorruptLog):
        decode_route("t", json.dumps(known).encode())


@pytest.mark.parametrize("room", [100, 270, 5000])
def test_zstd_frame_with_a_wrong_size_is_refused_for_any_buffer(room: int) -> None:
    """A frame with one block of 270 bytes and a stated size of 4,095. Only small buffers rejected
    it.
    """
    frame = bytes.fromhex("28b52ffd60ff0e55000018616263010008aa6e08")
    with pytest.raises(CorruptLog):
        PulsarCodecs().open_into(PulsarCodec.ZSTD, frame, 270, np.empty(room, np.uint8))


def test_zstd_frame_without_a_size_needs_a_large_enough_buffer() -> None:
    frame = zstandard.ZstdCompressor(write_content_size=False).compress(b"abc" * 90)
    assert not PulsarCodecs().open_into(PulsarCodec.ZSTD, frame, 270, np.empty(100, np.uint8))
    assert PulsarCodecs().open_into(PulsarCodec.ZSTD, frame, 270, np.empty(270, np.uint8))


def test_small_index_file_needs_little_memory_for_a_large_size(tmp_path: Path) -> None:
    (file,) = read_commit_log(str(shop(tmp_path / "store", 5, log_bytes=1 << 14).write())).files
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size + (512 << 20), limit[1]))
    try:
        assert len(read_file(file, 1 << 30)) == 1 << 14
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limit)


@pytest.mark.parametrize("room", [100, 270, 5000])
def test_zstd_frame_without_its_last_block_is_refused_for_any_buffer(room: int) -> None:
    unended = bytes.fromhex("28b52ffd600e0054000018616263010008aa6e08")
    with pytest.raises(CorruptLog):
        PulsarCodecs().open_into(PulsarCodec.ZSTD, unended, 270, np.empty(room, np.uint8))
    with pytest.raises(CorruptLog):
        PulsarCodecs().decompress(PulsarCodec.ZSTD, unended, 270, 1 << 20)


def test_unended_zstd_frame_without_a_size_is_refused() -> None:
    silent = zstandard.ZstdCompressor(write_content_size=False).compress(b"abc" * 90)
    assert PulsarCodecs().decompress(PulsarCodec.ZSTD, silent, 270, 1 << 20) == b"abc" * 90
    flushed = zstandard.ZstdCompressor().compressobj()
    unended = flushed.compress(b"abc" * 90) + flushed.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    with pytest.raises(CorruptLog):
        PulsarCodecs().decompress(PulsarCodec.ZSTD, unended, 270, 1 << 20)


@pytest.mark.parametrize(
    "index",
    [
        b'"type":"fixed","transformedChunkSize":9,"finalTransformedChunkSize":9,'
        b'"originalFileSize":4611686018427387904',  # would need a list of as many chunk sizes
        b'"type":"vari\x80ble","originalFileSize":9',
        b'"type":"variable","originalFileSize":9,"transformedChunks":"\xc3\xa9"',
        b'"type":"fixed","originalFileSize":9,"other":' + DEEP,
    ],
)
def test_malformed_manifest_of_a_chunked_segment_is_refused(index: bytes) -> None:
    lies = b",".join(
        b'"%s":{"position":0,"size":0}' % name
        for name in (b"offset", b"timestamp", b"producerSnapshot", b"leaderEpoch")
    )
    data = (
        b'{"version":"1","compression":true,"chunkIndex":{"originalChunkSize":9,%s},'
        b'"segmentIndexes":{%s}}' % (index, lies)
    )
    with pytest.raises(LogError):
        SegmentChunks(decode_manifest(data, "m"), None)
