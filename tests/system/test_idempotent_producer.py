"""Tests that a broker recognises a producer's last batch after compaction removed its records.

Two idempotent producers write the same keys. Of the first one's batches only the last remains, and
it is empty. The original of that batch is sent again, as after a lost response. The broker must
answer with the first offset and store nothing.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lastwrite.kafka.format.batch import decode_batch_header, encode_batch
from lastwrite.kafka.format.batch_layout import BatchHeader, Record
from lastwrite.reports.compaction import Status
from tests.support.engine import compact
from tests.support.kafka.broker import Broker, Unavailable, kafka_home
from tests.support.kafka.clients import Sent, bounds, consume, create_topic, produce
from tests.support.kafka.logs import headers_of
from tests.support.kafka.wire import OUT_OF_ORDER_SEQUENCE_NUMBER, Answer, Wire

pytestmark = [pytest.mark.broker, pytest.mark.slow]

TOPIC = "t"
SETTINGS = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "1000",
    "segment.index.bytes": "1024",
}
CONFIG = {"internal.segment.bytes": 1000, "delete.retention.ms": 0}
HOUR_MS, DAY_MS = 3_600_000, 86_400_000


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    try:
        made = Broker(kafka_home(), tmp_path / "data")
    except Unavailable as reason:
        pytest.skip(str(reason))
    try:
        yield made
    finally:
        made.kill()


def folder_of(broker: Broker) -> Path:
    return broker.data / f"{TOPIC}-0"


def batches(broker: Broker) -> list[tuple[BatchHeader, bytes]]:
    """All batches in the topic's segments, by offset."""
    return [
        (header, file.read_bytes()[position : position + header.size_bytes])
        for file in sorted(folder_of(broker).glob("*.log"))
        for position, header in headers_of(file)
    ]


def of_producer(broker: Broker, producer_id: int) -> list[BatchHeader]:
    return [header for header, _ in batches(broker) if header.producer_id == producer_id]


def write(broker: Broker, word: str, count: int) -> None:
    """Updates of ten keys by a new idempotent producer, at most five records a batch."""
    now_ms = int(time.time() * 1000)
    sent = [Sent(b"key-%d" % (n % 10), f"{word}-{n}".encode(), now_ms) for n in range(count)]
    produce(broker, TOPIC, sent, settings={"enable.idempotence": True})


def following(header: BatchHeader, skip: int = 0) -> bytes:
    """A batch of one record by the producer of ``header``, after ``skip`` missing records."""
    record = Record(0, int(time.time() * 1000), b"key-0", f"{header.last_sequence}+{skip}".encode())
    return encode_batch(
        [record],
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.last_sequence + 1 + skip,
    )


def forget(broker: Broker) -> None:
    """Remove the producer snapshots and the clean-shutdown file, as a crash may.

    The broker must then rebuild the producers from the log.
    """
    (broker.data / ".kafka_cleanshutdown").unlink()
    for file in folder_of(broker).glob("*.snapshot"):
        file.unlink()


def compacted(broker: Broker, now_ms: int) -> None:
    [report] = compact(broker.data, CONFIG, now_ms, topic=TOPIC).partitions
    assert report.status is Status.CLEANED, report.reason


def test_duplicate_of_an_emptied_batch_is_recognised(broker: Broker, tmp_path: Path) -> None:
    broker.start()
    create_topic(broker, TOPIC, SETTINGS)
    write(broker, "first", 20)
    write(broker, "second", 60)
    whole = batches(broker)
    first, sent = next(
        (header, data) for header, data in reversed(whole) if header.last_offset == 19
    )
    second, sent_second = whole[-1]
    assert 0 <= first.producer_id != second.producer_id >= 0
    assert len(of_producer(broker, first.producer_id)) >= 4
    with Wire(broker.address) as wire:  # a broker does so on the uncompacted log
        assert wire.produce(TOPIC, sent) == Answer(0, first.base_offset)
    assert bounds(broker, TOPIC) == (0, 80)
    broker.stop()

    now_ms = int(time.time() * 1000) + HOUR_MS
    spare = Broker(broker.home, tmp_path / "spare")
    shutil.copytree(broker.data, spare.data)
    compacted(broker, now_ms)
    [shell] = of_producer(broker, first.producer_id)
    assert (shell.record_count, shell.base_sequence) == (0, first.base_sequence)
    assert (shell.base_offset, shell.last_offset) == (first.base_offset, 19)

    def judge() -> None:
        """The broker recognises both producers' last batches, and rejects a sequence gap."""
        with Wire(broker.address) as wire:
            assert wire.produce(TOPIC, sent) == Answer(0, first.base_offset)
            assert wire.produce(TOPIC, sent_second) == Answer(0, second.base_offset)
            assert (
                wire.produce(TOPIC, following(first, skip=7)).error_code
                == OUT_OF_ORDER_SEQUENCE_NUMBER
            )
        assert bounds(broker, TOPIC) == (0, 80), "nothing was stored"
        assert consume(broker, TOPIC)[-1].value == b"second-59"

    broker.start()
    judge()
    broker.stop()
    forget(broker)
    broker.start()
    judge()
    with Wire(broker.address) as wire:  # the producer continues
        newest = following(first)
        for offset in range(80, 109):
            assert wire.produce(TOPIC, newest) == Answer(0, offset)
            newest = following(decode_batch_header(newest, 0))
        assert wire.produce(TOPIC, newest) == Answer(0, 109)
    broker.stop()

    # The producer has written again, so compaction removes its empty batch, and its newest batch
    # counts.
    compacted(broker, now_ms)
    assert of_producer(broker, first.producer_id)[0].base_offset >= 80
    forget(broker)
    broker.start()
    with Wire(broker.address) as wire:
        assert wire.produce(TOPIC, newest) == Answer(0, 109)
    broker.stop()

    # A day later the first producer has expired. Without the empty batch the broker stores the
    # duplicate as new.
    compacted(spare, now_ms + DAY_MS)
    assert of_producer(spare, first.producer_id) == []
    forget(spare)
    with spare, Wire(spare.address) as wire:
        assert wire.produce(TOPIC, sent) == Answer(0, 80)
