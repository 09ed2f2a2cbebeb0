"""Properties of producers and transactions, compared with a batch-by-batch model."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from lastwrite.kafka.producers import history as producers
from lastwrite.kafka.producers.history import read_history
from lastwrite.kafka.rules.producers import active
from lastwrite.kafka.store import log_dir
from lastwrite.model.log import AbortedTransaction, ProducerState
from tests.support.kafka import producers as plain
from tests.support.kafka.logs import NAME, SCRATCH, read_segments, write_checkpoint
from tests.support.kafka.model import ModelSegment
from tests.support.kafka.strategies import Life, append, lives


def as_read(state: plain.State) -> tuple[ProducerState, ...]:
    return tuple(
        ProducerState(p, k.epoch, k.last_offset, k.timestamp_ms, k.open_from)
        for p, k in sorted(state.items())
    )


def fed(segments: tuple[ModelSegment, ...]) -> tuple[plain.State, list[AbortedTransaction]]:
    state: plain.State = {}
    aborted = []
    for batch in (batch for segment in segments for batch in segment.batches):
        entry = plain.apply(state, batch)
        if entry is not None:
            aborted.append(
                AbortedTransaction(
                    entry.producer_id,
                    entry.first_offset,
                    entry.last_offset,
                    entry.last_stable_offset,
                )
            )
    return state, aborted


@given(lives(max_rounds=3), st.data())
@settings(max_examples=60)
def test_producer_state_equals_the_fold_of_the_batches(life: Life, data: st.DataObject) -> None:
    root = Path(tempfile.mkdtemp(dir=SCRATCH))
    window, narrow, rows = producers._WINDOW_BYTES, producers._NARROW_BYTES, producers._ROWS
    try:
        folder, end = root / NAME, 0
        for phase in life.phases:
            end = append(folder, phase, life.interval_bytes)
        for offset in plain.snapshots(folder):
            if data.draw(st.booleans(), label=f"without the snapshot at {offset}"):
                (folder / f"{offset:020d}.snapshot").unlink()
        high_watermark = data.draw(st.integers(0, end))
        write_checkpoint(root, "replication-offset-checkpoint", {NAME: high_watermark})
        producers._WINDOW_BYTES = data.draw(st.sampled_from([200, 1000, window]))
        producers._NARROW_BYTES = data.draw(st.sampled_from([61, 100, 4096]))
        producers._ROWS = data.draw(st.sampled_from([1, 3, 4096]))

        segments = read_segments(folder)
        state, aborted = fed(segments)
        log = log_dir.read_partition(str(folder))
        assert log.producers == as_read(state)
        assert log.first_unstable_offset == plain.first_unstable(segments, high_watermark)
        assert log.aborted == tuple(aborted), "as the transaction indexes have them"
        history = read_history(log)
        assert (history.producers, history.aborted) == (log.producers, log.aborted)
        assert history.open == tuple(
            sorted(
                ((p, k.open_from) for p, k in state.items() if k.open_from >= 0),
                key=lambda one: one[1],
            )
        )
        now_ms = life.phases[-1].now_ms + data.draw(st.sampled_from([0, plain.EXPIRATION_MS]))
        kept = {
            producer.producer_id for producer in active(log.producers, now_ms, plain.EXPIRATION_MS)
        }
        assert kept == plain.active(state, now_ms).keys()
    finally:
        producers._WINDOW_BYTES, producers._NARROW_BYTES, producers._ROWS = window, narrow, rows
        shutil.rmtree(root)
