"""Tests of batches for a producer, against the same records decoded one by one."""

from __future__ import annotations

import random
from pathlib import Path
from typing import NamedTuple

import pytest

from lastwrite.encoding.compression import Codec
from lastwrite.kafka.format.batch import decode_batch, encode_batch
from lastwrite.kafka.format.batch_layout import BatchAttributes, Record
from lastwrite.kafka.format.chunk import KafkaFormat
from lastwrite.kafka.format.outgoing import OutgoingBatch, Sender, next_sequence
from lastwrite.kafka.format.transplant import Transplant
from lastwrite.kafka.look.problems import whole_batches
from lastwrite.kafka.look.read import AbortedData
from lastwrite.kafka.store.log_dir import read_partition
from lastwrite.kafka.store.partitions import find_partitions
from lastwrite.kafka.store.restoring import chunks_of, open_transactions
from lastwrite.model.log import PartitionLog
from lastwrite.model.work import Limits
from lastwrite.storage.problems import BATCH_LIMIT_BYTES
from tests.support.kafka.logs import write_segment

CORPUS = Path(__file__).parents[1] / "corpus"
ROOTS = [CORPUS / "kafka-4.4.0" / "stopped", *sorted((CORPUS / "old-formats").iterdir())]
FOLDERS = [
    folder for root in ROOTS if root.is_dir() for folder in find_partitions(str(root), None, None)
]


class Plain(NamedTuple):
    """The parts of a record that are preserved."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: tuple[tuple[bytes, bytes | None], ...]

    @classmethod
    def of(cls, record: Record) -> Plain:
        return cls(record.key, record.value, record.timestamp_ms, record.headers)


def expected(log: PartitionLog, first: int, end: int) -> list[tuple[int, Plain]]:
    """A slow model: the records decoded one by one."""
    aborted, open_from, found = AbortedData(log), open_transactions(log, log.end_offset), []
    for segment in log.segments:
        for _, _, data in whole_batches(segment, lambda problem: None):
            batch = decode_batch(data, 0, BATCH_LIMIT_BYTES)
            header, attributes = batch.header, batch.attributes
            begun = open_from.get(header.producer_id, log.end_offset)
            is_open = attributes.transactional and header.base_offset >= begun
            if attributes.control or aborted.has(batch) or is_open:
                continue
            found += [
                (record.offset, Plain.of(record))
                for record in batch.records
                if first <= record.offset < end
            ]
    return found


def sent(log: PartitionLog, first: int, end: int) -> list[tuple[int, Plain]]:
    limits = Limits()
    format = KafkaFormat(limits.plain_bytes)
    transplant = Transplant(
        end_offset=log.end_offset,
        open_from=open_transactions(log, log.end_offset),
        aborted=log.aborted,
        leader_epoch=None,
    )
    sender = Sender(format, transplant, first, end)
    found, sequence, before = [], 7, 0
    for n, segment in enumerate(log.segments):
        for chunk in chunks_of(log, n, segment, limits, format):
            for batch in sender.batches(chunk.buffer, chunk.table):
                assert before <= batch.offsets[0] and batch.offsets[-1] < batch.next_offset <= end
                before = batch.next_offset
                found += records_of(batch, sequence)
                sequence = next_sequence(sequence, batch.records)
    return found


def records_of(batch: OutgoingBatch, sequence: int) -> list[tuple[int, Plain]]:
    """The records of a batch, after the checks of a broker."""
    data = batch.signed(5, 3, sequence).tobytes()
    made = decode_batch(data, 0)
    header = made.header
    assert header.size_bytes == len(data) and header.magic == 2
    assert (header.base_offset, header.partition_leader_epoch) == (0, -1)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 3, sequence)
    assert header.last_offset_delta + 1 == header.record_count == batch.records
    assert made.attributes == BatchAttributes(made.attributes.codec)
    assert [each.offset for each in made.records] == list(range(batch.records))
    return [
        (offset, Plain.of(record))
        for offset, record in zip(batch.offsets, made.records, strict=True)
    ]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: Path(folder).name)
def test_outgoing_batches_equal_the_log(folder: str) -> None:
    log = read_partition(folder)
    assert sent(log, 0, log.end_offset) == expected(log, 0, log.end_offset)


@pytest.mark.parametrize("seed", range(12))
def test_outgoing_batches_equal_random_logs(seed: int, tmp_path: Path) -> None:
    """Logs with gaps, cuts, every codec, append time, horizons, and batches without records."""
    rng = random.Random(seed)
    batches, base = [], 0
    for _ in range(40):
        count = rng.randrange(0, 12)
        last = base + max(count, 1) + rng.choice((-1, -1, 3))
        offsets = sorted(rng.sample(range(base, last + 1), min(count, last + 1 - base)))
        batches.append(
            encode_batch(
                [
                    Record(
                        offset,
                        rng.choice((0, -1, 1 << 40, rng.randrange(1 << 41))),
                        rng.choice((None, b"", b"k" * rng.randrange(200))),
                        rng.choice((None, b"", rng.randbytes(rng.randrange(300)))),
                        ((b"h", None), (b"", b"v" * rng.randrange(70)))[: rng.randrange(3)],
                    )
                    for offset in offsets
                ],
                base_offset=base,
                last_offset=last,
                codec=rng.choice(list(Codec)),
                append_time=rng.random() < 0.2,
                delete_horizon_ms=rng.choice((None, None, 1 << 41)) if offsets else None,
                producer_id=rng.choice((-1, 900)),
            )
        )
        base = last + 1 + rng.choice((0, 0, 5))
    write_segment(tmp_path / "t-0", 0, batches)
    log = read_partition(str(tmp_path / "t-0"))
    for first, end in ((0, log.end_offset), (base // 3, base // 2), (base // 2, base // 2 + 1)):
        assert sent(log, first, end) == expected(log, first, end)


def test_sequence_wraps_after_its_maximum() -> None:
    assert next_sequence((1 << 31) - 3, 2) == (1 << 31) - 1
    assert next_sequence((1 << 31) - 3, 3) == 0
