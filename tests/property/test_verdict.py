"""Properties of the verdict kernel: the plain model's records, batch actions and counts."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lastwrite.engine.rules.verdict import Verdict, judge
from lastwrite.model.columns import (
    BAD_HORIZON,
    COPY,
    DROP,
    EMPTY,
    KEYLESS,
    NO_HORIZON,
    REBUILD,
    SHADOWED,
    TOMBSTONE,
    batch_table,
)
from lastwrite.model.policy import Policy
from tests.support.kafka.model import ModelBatch, ModelRecord, clean, usable

LONG_MAX = 2**63 - 1
# Kafka's default, values that operators use for "never", and sums near the largest number.
RETENTIONS = [0, 1, 7, 2**31 - 1, 2**53, LONG_MAX - 101, LONG_MAX - 100, LONG_MAX - 99, LONG_MAX]
KEYS = st.none() | st.sampled_from([b"a", b"b", b"c", b""])
VALUES = st.none() | st.just(b"v")


@st.composite
def runs_of_batches(draw: st.DrawFn) -> list[ModelBatch]:
    """Batches as rounds leave them, with horizons around the clock, which is 100."""
    found, offset = [], 0
    for _ in range(draw(st.integers(0, 6))):
        size = draw(st.integers(1, 4))
        places = sorted(draw(st.sets(st.integers(0, size - 1))))
        records = tuple(ModelRecord(offset + at, 5, draw(KEYS), draw(VALUES)) for at in places)
        horizon = draw(st.sampled_from([None, None, 0, 99, 100, 101, LONG_MAX, -1, -2, -LONG_MAX]))
        found.append(
            ModelBatch(
                offset,
                offset + size - 1,
                records,
                base_timestamp_ms=5 if horizon is None else horizon,
                max_timestamp_ms=5,
                horizon_ms=horizon if records else None,
            )
        )
        offset += size + draw(st.sampled_from([0, 0, 2]))
    return found


@given(runs_of_batches(), st.integers(0, 20), st.integers(0, 25), st.sampled_from(RETENTIONS))
def test_verdicts_equal_the_model(
    run: list[ModelBatch], first_dirty: int, shell: int, retention_ms: int
) -> None:
    end = run[-1].next_offset if run else 0
    expected = clean(
        run,
        first_dirty=first_dirty,
        end=end,
        high_watermark=shell,
        now_ms=100,
        retention_ms=retention_ms,
    )
    latest = {
        record.key: record.offset
        for batch in run
        for record in batch.records
        if record.key is not None and record.offset >= first_dirty
    }
    table = batch_table(len(run))
    states = []
    for row, batch in zip(table, run, strict=True):
        row["next_offset"], row["records"] = batch.next_offset, len(batch.records)
        horizon_ms = usable(batch.horizon_ms)
        row["horizon"] = NO_HORIZON if horizon_ms is None else horizon_ms
        row["flags"] = 0 if horizon_ms == batch.horizon_ms else BAD_HORIZON
        for record in batch.records:
            shadowed = record.key is not None and latest.get(record.key, -1) > record.offset
            states.append(
                KEYLESS * (record.key is None)
                | TOMBSTONE * (record.value is None)
                | SHADOWED * shadowed
            )
    keep, actions = np.full(len(states), 9, np.uint8), np.full(len(run), 9, np.uint8)
    horizons, counts = np.zeros(len(run), np.int64), np.zeros(len(Verdict), np.int64)

    policy = Policy(now_ms=100, tombstone_retention_ms=retention_ms, shell_offset=shell)
    changed = judge(table, np.array(states, np.uint8), policy, 0, keep, actions, horizons, counts)

    left = {batch.base_offset: batch for batch in expected.batches}
    at = 0
    for batch, action, horizon in zip(run, actions, horizons, strict=True):
        stays = left.get(batch.base_offset)
        kept = [bool(k) for k in keep[at : at + len(batch.records)]]
        at += len(batch.records)
        if stays is None:
            assert action == DROP and not any(kept)
            continue
        assert kept == [record in stays.records for record in batch.records]
        if stays == batch:
            gets_none = batch.horizon_ms is None and usable(100 + retention_ms) is None
            is_deleting = any(record.value is None for record in batch.records)
            assert action == (REBUILD if gets_none and is_deleting else COPY)
        elif not stays.records:
            assert action == EMPTY
        else:
            assert action == REBUILD
            assert horizon == (NO_HORIZON if stays.horizon_ms is None else stays.horizon_ms)
    assert changed == sum(left.get(batch.base_offset) != batch for batch in run)
    assert counts[Verdict.KEEP] == expected.kept
    assert counts[Verdict.KEYLESS] == expected.keyless
    assert counts[Verdict.SHADOWED] == expected.shadowed
    assert counts[Verdict.EXPIRED] == expected.expired


@given(
    st.lists(
        st.tuples(
            st.sampled_from([0, KEYLESS, TOMBSTONE, SHADOWED, SHADOWED | TOMBSTONE]),
            st.integers(80, 101),
        )
    ),
    st.sampled_from(RETENTIONS),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_tombstones_expire_by_their_own_timestamps(
    records: list[tuple[int, int]],
    retention_ms: int,
    keeps_keyless: bool,
    keeps_end: bool,
    contradictions: bool,
) -> None:
    """Batches of one record each, whose horizon is their write time.

    With ``keeps_end``, the batch at the log end stays.
    """
    table = batch_table(len(records))
    for n, (row, (_, written_ms)) in enumerate(zip(table, records, strict=True)):
        row["next_offset"], row["records"], row["flags"] = n + 1, 1, 0
        row["horizon"] = 2**63 - 1 if contradictions else written_ms
    states = np.array([state for state, _ in records], np.uint8)
    keep, actions = np.full(len(records), 9, np.uint8), np.full(len(records), 9, np.uint8)
    horizons, counts = np.zeros(len(records), np.int64), np.zeros(len(Verdict), np.int64)
    policy = Policy(
        now_ms=100,
        tombstone_retention_ms=retention_ms,
        keep_keyless=keeps_keyless,
        ages_by_write_time=True,
        kept_end_offset=len(records) if keeps_end else -1,
    )
    changed = judge(table, states, policy, 0, keep, actions, horizons, counts)
    for n, (state, written_ms) in enumerate(records):
        is_end = keeps_end and n + 1 == len(records)
        if is_end and state & SHADOWED:
            continue  # the record at the log's end is not counted as superseded
        if is_end:
            stays = True
        elif state & SHADOWED:
            stays = False
        elif state == KEYLESS:
            stays = keeps_keyless
        elif state == TOMBSTONE:
            stays = contradictions or 100 - retention_ms < written_ms
        else:
            stays = True
        assert bool(keep[n]) == stays
        assert actions[n] == (COPY if stays else DROP)
    assert changed == sum(1 for action in actions if action != COPY)
    assert (horizons == table["horizon"]).all()
