"""Tests of the requests that ``serve`` sends to a bucket before a client gets its first byte.

A request to a distant bucket takes about 20 ms, so the tests count requests and measure no time.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import lastwrite
from lastwrite.archive.layout import systems_at
from lastwrite.engine.system import system_named
from lastwrite.kafka.format.batch import encode_batch
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.server.catalog import Catalog, ServedSource
from lastwrite.server.files import Files
from lastwrite.storage.objects.address import sent_requests, use
from tests.support.kafka.logs import write_segment
from tests.support.objects import S3, s3_server

pytestmark = [pytest.mark.broker, pytest.mark.slow]

BUCKET, TOPIC = "archive", "orders"
SEGMENTS, EACH = 12, 400
BLOCK = 1 << 20
MOST = 24  # at 20 ms each, half of the second within which a client must get its first byte


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    """An archive with large segments in a bucket."""
    folder = tmp_path_factory.mktemp("bucket")
    with s3_server(folder / "data", BUCKET) as server:
        for n in range(SEGMENTS):
            base = n * EACH
            made = [
                Record(base + i, 1_700_000_000_000 + i, b"k", b"v" * 8000, ()) for i in range(EACH)
            ]
            batches = [encode_batch(made[i : i + 10], leader_epoch=0) for i in range(0, EACH, 10)]
            write_segment(folder / "log" / f"{TOPIC}-0", base, batches, 4096)
        config = {**server.config, "segment.bytes": 3 << 20}
        lastwrite.fetch(
            [str(folder / "log")], to=f"s3://{BUCKET}/kafka", config=config, include_active=True
        )
        yield server


@pytest.mark.parametrize("offset", [0, SEGMENTS * EACH // 2 + 123, SEGMENTS * EACH - 1])
def test_first_byte_needs_few_requests(bucket: S3, offset: int) -> None:
    """The number of requests from the server's start to a fetch's first bytes does not depend on
    the archive's size.
    """
    use(bucket.settings)
    before = sent_requests()
    path = f"s3://{BUCKET}/kafka"
    files = Files(64 << 20)
    catalog = Catalog(
        [ServedSource(path, system_named(name)) for name in systems_at(path)], [], files
    )
    topic = catalog.topic(TOPIC)
    assert topic is not None
    log = topic.partitions[0].current()
    assert log.offset_at(-1, is_committed=False).offset == SEGMENTS * EACH
    found = log.stretch(offset, BLOCK, False, True)
    assert found is not None
    data = files.read(found.segment, found.position, min(found.size, 1024))
    files.close()
    catalog.close()
    spent = sent_requests() - before
    assert int.from_bytes(data[:8], "big") <= offset < int.from_bytes(data[:8], "big") + 10
    assert spent.gets + spent.lists <= MOST, spent
    assert spent.bytes_read <= 8 * BLOCK, spent
