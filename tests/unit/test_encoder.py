"""Tests of encoding batches from columns, against the same records encoded one by one."""

from __future__ import annotations

import random

import numpy as np
import pytest

from lastwrite.encoding.compression import Codec
from lastwrite.kafka.format.batch import encode_batch, iter_batches
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.kafka.format.encoder import BatchEncoder
from lastwrite.model.columns import Int64Array, RecordColumns, Slices

_FAR = 1 << 31


class Data:
    """Column data with other bytes between the values."""

    def __init__(self) -> None:
        self.bytes = bytearray(b"...")

    def slices(self, parts: list[bytes | None]) -> Slices:
        starts = []
        for part in parts:
            starts.append(len(self.bytes))
            self.bytes += (part or b"") + b"."
        lengths = [-1 if part is None else len(part) for part in parts]
        return np.array(starts, np.int64), np.array(lengths, np.int64)


def columns(records: list[Record]) -> tuple[RecordColumns, Int64Array]:
    data, count = Data(), len(records)
    keys = data.slices([each.key for each in records])
    values = data.slices([each.value for each in records])
    headers = [header for each in records for header in each.headers]
    names = data.slices([name for name, _ in headers])
    contents = data.slices([content for _, content in headers])
    offsets = np.array([each.offset for each in records], np.int64)
    found = RecordColumns(
        data=np.frombuffer(bytes(data.bytes), np.uint8),
        offsets=offsets,
        times_ms=np.array([each.timestamp_ms for each in records], np.int64),
        time_types=np.zeros(count, np.int64),
        keys=keys,
        values=values,
        headers=(np.zeros(count, np.int64), np.array([len(e.headers) for e in records], np.int64)),
        positions=np.zeros(count, np.int64),
        orders=offsets,
        header_names=names,
        header_values=contents,
    )
    return found, offsets


def drawn(seed: int) -> list[Record]:
    draw, offset, found = random.Random(seed), 0, []

    def some(most: int) -> bytes | None:
        return None if draw.random() < 0.2 else draw.randbytes(draw.randrange(most))

    for _ in range(draw.randint(1, 60)):
        offset += draw.choice((1, 1, 1, 2, 300, _FAR - 1, _FAR, 1 << 40))
        headers = tuple(
            (draw.randbytes(draw.randrange(5)), some(90)) for _ in range(draw.choice((0, 0, 1, 3)))
        )
        stamp = draw.choice((-1, 0, 1_700_000_000_000)) + draw.randrange(-1 << 20, 1 << 20)
        value = some(draw.choice((10, 300, 5000)))
        found.append(Record(offset, max(stamp, -1), some(40), value, headers))
    return found


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize("seed", range(30))
def test_encoder_equals_batches_encoded_one_by_one(seed: int, codec: Codec) -> None:
    records = drawn(seed)
    made = BatchEncoder(codec, batch_bytes=4000).batches(*columns(records), leader_epoch=7)
    at, seen = 0, 0
    for position, batch in iter_batches(made.tobytes()):
        assert position == at
        count = len(batch.records)
        mine = records[seen : seen + count]
        assert made[at : at + batch.header.size_bytes].tobytes() == encode_batch(
            mine, codec=codec, leader_epoch=7
        )
        at, seen = at + batch.header.size_bytes, seen + count
        is_far = seen < len(records) and records[seen].offset - mine[0].offset >= _FAR
        plain = sum(
            len(each.key or b"") + len(each.value or b"") for each in records[seen - count : seen]
        )
        assert count == 1 or plain <= 4000
        assert is_far or seen == len(records) or count == 1 or plain > 0
    assert seen == len(records) and at == len(made)


def test_offsets_that_do_not_rise_are_refused() -> None:
    found, offsets = columns([Record(3, 0, b"a", b"b", ()), Record(4, 0, b"a", b"b", ())])
    with pytest.raises(ValueError, match="do not increase"):
        BatchEncoder(Codec.NONE).batches(found, offsets[::-1].copy(), 0)
