"""Tests of reading segments from objects: the same bytes as from files, few requests, and never the
bytes of a replaced object.
"""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lastwrite.engine.chunks import BatchWindows
from lastwrite.errors import CommitConflict, LogError, RemoteFailed
from lastwrite.kafka.format.chunk import KafkaFormat
from lastwrite.model.log import Segment
from lastwrite.model.stores import StoreSettings
from lastwrite.model.work import Limits, ScanRange
from lastwrite.storage.objects import address
from lastwrite.storage.objects.bucket import BucketStore
from lastwrite.storage.reading import read_small, reader_of, reader_of_piece
from tests.support.objects import BUCKET, FaultProxy

pytestmark = pytest.mark.broker

MIB = 1 << 20
CORPUS = Path(__file__).parents[1] / "corpus" / "kafka-4.4.0" / "stopped"
CONTENT = np.random.default_rng(5).integers(0, 256, 5 * MIB + 13).astype(np.uint8)


@pytest.fixture
def settings(proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> StoreSettings:
    proxy.spoil()
    settings = StoreSettings(proxy.endpoint, allows_http=True, timeout_ms=5000)
    monkeypatch.setattr(address, "_settings", settings)
    return settings


@pytest.fixture
def segment(settings: StoreSettings, request: pytest.FixtureRequest) -> Segment:
    store = BucketStore(f"s3://{BUCKET}", settings)
    key = f"{request.node.originalname}/0.log"
    store.remove([key])
    version = store.create(key, CONTENT.tobytes())
    assert version is not None
    return Segment(0, f"s3://{BUCKET}/{key}", len(CONTENT), 0, 0, etag=version.etag)


def piece_of(segment: Segment, start: int = 0, end: int | None = None) -> ScanRange:
    size = segment.size_bytes
    end = size if end is None else end
    return ScanRange(0, 0, segment.path, start, end, size, 0, 0, 1, True, etag=segment.etag)


def gets(proxy: FaultProxy, count: int) -> list[str]:
    return [each["range"] for each in proxy.gets(count)]


@pytest.mark.parametrize("step", [1000, 65536, MIB, 3 * MIB])
def test_piece_is_read_in_ranges_each_once(segment: Segment, proxy: FaultProxy, step: int) -> None:
    start, end = 17, 4 * MIB + 5
    got = np.zeros(end - start, np.uint8)
    proxy.spoil()
    with reader_of_piece(piece_of(segment, start, end), Limits(ahead_bytes=MIB)) as reader:
        for at in range(0, len(got), step):
            reader.read_into(got[at : at + step], start + at)
        reader.check_unchanged()
    assert np.array_equal(got, CONTENT[start:end])
    edges = [*range(start, end, MIB), end]
    asked = [f"bytes={a}-{b - 1}" for a, b in zip(edges, edges[1:], strict=False)]
    assert sorted(gets(proxy, len(asked))) == sorted(asked)


def test_random_reads_request_little(segment: Segment, proxy: FaultProxy) -> None:
    proxy.spoil()
    with reader_of(segment) as reader:
        for at in (3 * MIB, 3 * MIB + 100, 10, 5 * MIB - 500, 10):
            header = np.zeros(61, np.uint8)
            reader.read_into(header, at)
            assert np.array_equal(header, CONTENT[at : at + 61])
    asked = gets(proxy, 4)
    assert len(asked) == 4
    assert asked[0] == f"bytes={3 * MIB}-{3 * MIB + 65535}"
    assert sum(each["bytes"] for each in proxy.gets(4)) < 300_000


def test_sequential_reads_start_to_read_ahead(segment: Segment, proxy: FaultProxy) -> None:
    proxy.spoil()
    got = np.zeros(len(CONTENT), np.uint8)
    with reader_of(segment) as reader:
        for at in range(0, len(got), 10_000):
            reader.read_into(got[at : at + 10_000], at)
    assert np.array_equal(got, CONTENT)
    assert len(gets(proxy, 2)) <= 3


def test_replaced_object_is_never_read(segment: Segment, settings: StoreSettings) -> None:
    store = BucketStore(f"s3://{BUCKET}", settings)
    key = segment.path.removeprefix(f"s3://{BUCKET}/")
    reader = reader_of_piece(piece_of(segment), Limits(ahead_bytes=MIB))
    head = np.zeros(100, np.uint8)
    reader.read_into(head, 0)
    store.remove([key])
    assert store.create(key, bytes(len(CONTENT))) is not None
    rest = np.zeros(len(CONTENT) - 100, np.uint8)
    with pytest.raises(CommitConflict, match="another program replaced"):
        reader.read_into(rest, 100)
    reader.close()
    store.remove([key])
    with pytest.raises(CommitConflict, match="another program deleted the object"):
        reader_of(segment).read_into(head, 0)
    with pytest.raises(CommitConflict, match="another program deleted"):
        reader_of(replace(segment, etag=""))


def test_size_is_checked_once_without_an_etag(segment: Segment) -> None:
    head = np.zeros(100, np.uint8)
    with reader_of(replace(segment, etag="")) as reader:
        reader.read_into(head, 5)
    assert np.array_equal(head, CONTENT[5:105])
    with pytest.raises(CommitConflict, match="changed"):
        reader_of(replace(segment, etag="", size_bytes=7))


@pytest.mark.parametrize("rule", [{"do": "drop", "times": 2}, {"do": "503", "times": 3}])
def test_network_faults_do_not_change_the_bytes(
    segment: Segment, proxy: FaultProxy, rule: dict[str, object]
) -> None:
    proxy.spoil({"method": "GET", "after": 1, **rule})
    got = np.zeros(len(CONTENT), np.uint8)
    with reader_of_piece(piece_of(segment), Limits(ahead_bytes=MIB)) as reader:
        for at in range(0, len(got), 100_000):
            reader.read_into(got[at : at + 100_000], at)
    assert np.array_equal(got, CONTENT)
    assert proxy.used()


def test_failed_read_ahead_raises_where_its_bytes_are_needed(
    segment: Segment, proxy: FaultProxy
) -> None:
    proxy.spoil({"method": "GET", "after": 1, "do": "503", "code": 403})
    reader = reader_of_piece(piece_of(segment), Limits(ahead_bytes=MIB))
    got = np.zeros(MIB, np.uint8)
    with pytest.raises(RemoteFailed, match="s3:GetObject is forbidden"):
        for at in range(0, 3 * MIB, MIB):
            reader.read_into(got, at)
    reader.close()


def test_small_object_is_read_completely(segment: Segment) -> None:
    assert read_small(segment.path) == CONTENT.tobytes()
    with pytest.raises(LogError, match="another program deleted"):
        read_small(segment.path + ".none")


@pytest.mark.parametrize("chunk_bytes", [1000, 1 << 18])
def test_batches_equal_those_of_the_file(settings: StoreSettings, chunk_bytes: int) -> None:
    file = max(CORPUS.rglob("*.log"), key=lambda path: path.stat().st_size)
    content, seen = file.read_bytes(), file.stat()
    store = BucketStore(f"s3://{BUCKET}", settings)
    store.remove(["batches/0.log"])
    version = store.create("batches/0.log", content)
    assert version is not None
    limits = Limits(chunk_bytes=chunk_bytes, ahead_bytes=4096)
    read = []
    for path, mtime_ns, etag in (
        (str(file), seen.st_mtime_ns, ""),
        (f"s3://{BUCKET}/batches/0.log", 0, version.etag),
    ):
        size = len(content)
        piece = ScanRange(0, 0, path, 0, size, size, mtime_ns, 0, 1 << 40, True, etag=etag)
        chunks = BatchWindows(limits).of(KafkaFormat(limits.plain_bytes), piece)
        read.append([(chunk.table.tobytes(), chunk.shift) for chunk in chunks])
    assert read[0] == read[1] != []


def test_storage_settings_are_passed_to_workers(
    segment: Segment, settings: StoreSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(address, "_settings", StoreSettings("http://127.0.0.1:1"))
    limits = pickle.loads(pickle.dumps(Limits(stores=settings)))
    head = np.zeros(10, np.uint8)
    with reader_of_piece(piece_of(segment), limits) as reader:
        reader.read_into(head, 0)
    assert np.array_equal(head, CONTENT[:10])
