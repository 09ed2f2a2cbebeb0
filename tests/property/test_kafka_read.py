"""Properties of ``read`` on Kafka logs with transactions, compared with a plain Python consumer."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

import lastwrite
from tests.property.test_compaction import empty_root, grow
from tests.support.engine import compact
from tests.support.kafka.logs import NAME, read_checkpoint, read_segments, write_checkpoint
from tests.support.kafka.model import ModelBatch, ModelRecord
from tests.support.kafka.strategies import Life, lives

HIGH_WATERMARKS = "replication-offset-checkpoint"


def committed(batches: Iterable[ModelBatch], end: int) -> tuple[list[ModelRecord], int]:
    """The records outside transactions and in committed ones, and the last stable offset."""
    batches = list(batches)
    open_from: dict[int, int] = {}
    pending: dict[int, set[int]] = {}
    aborted: set[int] = set()
    for batch in batches:
        if not batch.transactional or batch.base_offset >= end:
            continue
        if batch.control:
            mine = pending.pop(batch.producer_id, set())
            open_from.pop(batch.producer_id, None)
            aborted |= mine if batch.marker == "abort" else set()
        else:
            open_from.setdefault(batch.producer_id, batch.base_offset)
            pending.setdefault(batch.producer_id, set()).add(batch.base_offset)
    stable = min([end, *open_from.values()])
    data = [batch for batch in batches if not batch.control and batch.base_offset not in aborted]
    return [r for batch in data for r in batch.records if r.offset < stable], stable


@settings(max_examples=40)
@given(lives(), st.data())
def test_read_equals_the_model_of_a_consumer(life: Life, data: st.DataObject) -> None:
    with empty_root() as root:
        replicated = 0
        for phase in life.phases:
            grow(root, phase, life)
            # The model does not know transactions whose data were below an earlier, higher
            # watermark.
            replicated = max(replicated, read_checkpoint(root, HIGH_WATERMARKS).get(NAME, 0))
            write_checkpoint(root, HIGH_WATERMARKS, {NAME: replicated})
            check(root, data)
            compact(root, life.config, phase.now_ms)
            check(root, data)


def check(root: Path, data: st.DataObject) -> None:
    log = lastwrite.read(str(root)).summary()
    high = log["high_watermark"]
    batches = [batch for segment in read_segments(root / NAME) for batch in segment.batches]
    everything = [
        r for batch in batches if not batch.control for r in batch.records if r.offset < high
    ]
    stable_records, stable = committed(batches, high)
    assert log["last_stable_offset"] == stable
    offset = data.draw(st.integers(0, high), label="offset")
    times = sorted({r.timestamp_ms for batch in batches for r in batch.records})
    time_ms = data.draw(st.sampled_from(times or [0]), label="time")
    for level, records, end in (
        ("read_uncommitted", everything, high),
        ("read_committed", stable_records, stable),
    ):
        reading = lastwrite.read(str(root), offset=offset, isolation_level=level)
        assert [(row["offset"], row["timestamp"]) for row in reading] == [
            (r.offset, r.timestamp_ms) for r in records if r.offset >= offset
        ]
        assert reading.summary()["next_offset"] == max(offset, end)
        first = next(
            (
                r.offset
                for batch in batches
                for r in batch.records
                if r.timestamp_ms >= time_ms and r.offset < end
            ),
            end,
        )
        found = [
            row["offset"]
            for row in lastwrite.read(str(root), time_ms=time_ms, isolation_level=level)
        ]
        assert found == [r.offset for r in records if r.offset >= first]
    table = lastwrite.latest(str(root))
    model = {r.key: r.value for r in stable_records if r.key is not None}
    assert table == {key: value for key, value in model.items() if value is not None}
    assert table.end_offsets == {0: stable}
