"""Tests of the checks of transactions, producers and converted batches, against plain models."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lastwrite.model.columns import NO_HORIZON, Int64Array
from lastwrite.verification.batch_invariants import (
    ChangedDecision,
    KnownProducer,
    Snapshot,
    history,
    owed_batches,
    redecided,
    thinned,
    unmarked,
    wrongly_converted,
)
from lastwrite.verification.rows import (
    ABORT_MARKER,
    COMMIT_MARKER,
    EMPTIED_MARKER,
    FACT_WORDS,
    IDEMPOTENT_DATA,
    OLD_DATA,
    SIMPLE_DATA,
    TRANSACTION_DATA,
)

DATA, ABORT, COMMIT, EMPTIED, PLAIN = (
    TRANSACTION_DATA,
    ABORT_MARKER,
    COMMIT_MARKER,
    EMPTIED_MARKER,
    IDEMPOTENT_DATA,
)


@dataclass(frozen=True)
class Fact:
    kind: int
    base: int
    last: int
    producer: int = 7
    epoch: int = 0
    time: int = 0
    present: int = 1
    shape: int = 0

    def row(self) -> list[int]:
        return [
            self.base,
            self.last,
            self.producer,
            self.epoch,
            self.kind,
            NO_HORIZON,
            self.time,
            self.present,
            self.shape,
        ]


def blocks(facts: Sequence[Fact], sizes: Iterable[int] = (3, 1, 4, 2, 5)) -> list[Int64Array]:
    """The facts in blocks of these sizes. The last block has the remaining facts."""
    rows = np.array([fact.row() for fact in facts], dtype=np.int64).reshape(-1, FACT_WORDS)
    return np.split(rows, np.cumsum(list(sizes)))


@st.composite
def lives(draw: st.DrawFn) -> list[Fact]:
    """Batches of a few producers in any order. Some span several offsets, and there are gaps."""
    facts, offset = [], 0
    for time in range(draw(st.integers(0, 25))):
        kind = draw(st.sampled_from([DATA, DATA, DATA, ABORT, COMMIT, EMPTIED, PLAIN]))
        last = offset + draw(st.integers(0, 2)) * (kind in (DATA, PLAIN))
        facts.append(
            Fact(
                kind,
                offset,
                last,
                draw(st.integers(1, 4)),
                draw(st.integers(0, 1)),
                time,
                0 if kind == EMPTIED else draw(st.integers(0, 3)),
            )
        )
        offset = last + 1 + draw(st.sampled_from([0, 0, 0, 5]))
    return facts


sizes = st.lists(st.integers(0, 6), max_size=8)


@given(lives(), sizes, st.integers(0, 40))
def test_next_marker_decides_a_transaction(
    facts: list[Fact], cuts: list[int], high_watermark: int
) -> None:
    found = history(blocks(facts, cuts))
    begun: dict[int, list[Fact]] = {}
    finished, aborted = [], set()
    for fact in facts:
        if fact.kind == DATA:
            begun.setdefault(fact.producer, []).append(fact)
        elif fact.kind in (ABORT, COMMIT):
            data = begun.pop(fact.producer, [])
            ends = (data[0].base, data[-1].last) if data else (-1, -1)
            finished.append(
                [
                    fact.last,
                    fact.producer,
                    fact.kind,
                    len(data),
                    *ends,
                    sum(d.present for d in data),
                ]
            )
            if fact.kind == ABORT:
                aborted |= {offset for d in data for offset in range(d.base, d.last + 1)}
    assert found.transactions.tolist() == finished
    assert {n for first, last in found.aborted.tolist() for n in range(first, last + 1)} == aborted
    assert (np.diff(found.aborted.ravel()) >= 0).all()
    left = sorted((fact for data in begun.values() for fact in data), key=lambda fact: fact.base)
    assert found.open.tolist() == [[fact.base, fact.last, fact.producer] for fact in left]
    firsts = sorted((data[0].base, producer) for producer, data in begun.items())
    assert found.open_transactions == [(producer, first) for first, producer in firsts]
    spent = {marker for marker, _, _, left_, *_ in finished if not left_}
    assert {
        n for first, last in found.discardable.tolist() for n in range(first, last + 1)
    } == aborted | spent
    unreplicated = [
        first for marker, _, _, left_, first, *_ in finished if left_ and marker >= high_watermark
    ]
    assert found.last_stable_offset(high_watermark) == min(
        [high_watermark, *unreplicated, *(f for f, _ in firsts)]
    )
    assert found.aborted_records == sum(row[6] for row in finished if row[2] == ABORT)
    assert found.count(COMMIT) == sum(row[2] == COMMIT for row in finished)


@given(lives(), sizes)
def test_removed_data_batches_do_not_change_the_history(facts: list[Fact], cuts: list[int]) -> None:
    whole = blocks(facts, cuts)
    thin = [thinned(block) for block in whole]
    assert history(thin).transactions.tolist() == history(whole).transactions.tolist()
    assert (
        owed_batches(thin, 0, None, 10, 8).tolist() == owed_batches(whole, 0, None, 10, 8).tolist()
    )
    for block in thin:
        plain = block[block[:, 4] == PLAIN, 2].tolist()
        assert len(plain) == len(set(plain))


def owed_twin(
    facts: list[Fact], first: int, known: Iterable[KnownProducer], clock: int, expiration: int
) -> set[int]:
    """A dictionary model: the base offsets of batches that must be kept for their producers."""
    state = {p.producer_id: [p.epoch, p.last_offset, p.base_offset, p.timestamp_ms] for p in known}
    for fact in facts:
        if fact.last < first or fact.kind == EMPTIED:
            continue
        old = state.get(fact.producer, [fact.epoch, -1, -1, 0])
        if fact.kind in (DATA, PLAIN):
            state[fact.producer] = [fact.epoch, fact.last, fact.base, fact.time]
        else:
            same = old[0] == fact.epoch
            state[fact.producer] = [
                fact.epoch,
                old[1] if same else -1,
                old[2] if same else -1,
                fact.time,
            ]
    owed = set()
    for producer, (epoch, last, base, time) in state.items():
        if clock - time >= expiration:
            continue
        if last >= 0:
            owed.add(base)
        else:
            owed |= {
                f.base
                for f in facts
                if f.producer == producer
                and f.epoch == epoch
                and f.kind in (ABORT, COMMIT, EMPTIED)
            }
    return owed


@given(lives(), sizes, st.data())
def test_last_batches_of_active_producers_are_required(
    facts: list[Fact], cuts: list[int], data: st.DataObject
) -> None:
    clock, expiration = data.draw(st.integers(0, 40)), data.draw(st.integers(1, 20))
    log_start = data.draw(st.integers(0, 20))
    found = owed_batches(blocks(facts, cuts), log_start, None, clock, expiration)
    assert found.tolist() == sorted(owed_twin(facts, log_start, (), clock, expiration))
    producers = [
        KnownProducer(
            producer, data.draw(st.integers(0, 1)), last, last, data.draw(st.integers(0, 20)), -1
        )
        for producer in data.draw(st.sets(st.integers(1, 6), max_size=3))
        for last in [data.draw(st.sampled_from([-1, -1, 3, 8]))]
    ]
    snapshot = Snapshot(data.draw(st.integers(0, 40)), tuple(producers))
    found = owed_batches(blocks(facts, cuts), log_start, snapshot, clock, expiration)
    assert found.tolist() == sorted(owed_twin(facts, snapshot.offset, producers, clock, expiration))


def test_batch_that_lost_its_marker_counts_as_a_changed_decision() -> None:
    """Aborted data without a marker belongs to the producer's next transaction, or to none."""
    facts = [
        Fact(DATA, 0, 1),
        Fact(DATA, 2, 3, 8),
        Fact(ABORT, 4, 4),
        Fact(COMMIT, 5, 5, 8),
        Fact(DATA, 6, 6),
        Fact(COMMIT, 7, 7),
        Fact(DATA, 8, 8),
    ]
    before = history(blocks(facts))

    def changes(left: list[Fact], log_start: int = 0) -> list[ChangedDecision]:
        return list(redecided(blocks(left), before, history(blocks(left)), log_start))

    assert changes(facts) == changes(facts[1:]) == changes([]) == []
    assert changes([fact for fact in facts if fact.base != 4]) == [
        ChangedDecision(0, 7, True, False)
    ]
    assert changes([fact for fact in facts if fact.base not in (4, 7)]) == [
        ChangedDecision(0, 7, True, True),
        ChangedDecision(6, 7, False, True),
    ]
    assert changes([fact for fact in facts if fact.base != 4], 1) == [
        ChangedDecision(0, 7, True, False)
    ]
    # no ``read_committed`` consumer needs the marker
    assert changes([fact for fact in facts if fact.base != 4], 2) == []
    assert changes([fact for fact in facts if fact.base != 5]) == [
        ChangedDecision(2, 8, False, True)
    ]


def test_only_a_snapshot_proves_that_no_transaction_is_open() -> None:
    found = history(blocks([Fact(DATA, 0, 1), Fact(DATA, 2, 2, 8), Fact(DATA, 5, 6, 9)]))

    def lost(*known: KnownProducer, offset: int = 5) -> list[int]:
        return [int(first) for first, *_ in unmarked(found, Snapshot(offset, known))]

    def known(producer: int, open_from: int) -> KnownProducer:
        return KnownProducer(producer, 0, -1, -1, 0, open_from)

    assert unmarked(found, None).tolist() == []
    assert lost() == [0, 2]
    assert lost(known(7, 0), known(8, 2)) == []
    assert lost(known(7, 0), known(8, -1)) == [2]
    # The transaction began after the batch, so the batch belongs to another one.
    assert lost(known(7, 1), known(8, 1)) == [0]
    assert lost(offset=9) == [0, 2, 5]


def old(base: int, last: int, shape: int = 1) -> Fact:
    return Fact(OLD_DATA, base, last, -1, -1, shape=shape)


def simple(base: int, last: int, shape: int = 1, present: int = 1) -> Fact:
    return Fact(SIMPLE_DATA, base, last, -1, -1, shape=shape, present=present)


def test_wrongly_converted_old_batches_are_found() -> None:
    before = [
        old(0, 9),
        simple(10, 12),
        old(13, 13, 0),
        old(14, 20, 9),
        old(30, 40),
        simple(50, 55),
    ]

    def wrong(*after: Fact, cuts: Sequence[int] = (1, 1, 1, 1, 1)) -> list[int]:
        found = [
            list(wrongly_converted(blocks(before, some), blocks(after, cuts)))
            for some in ((), (1,) * 6, (4, 2))
        ]
        assert found[0] == found[1] == found[2]
        return found[0]

    assert wrong() == wrong(*before) == []
    assert (
        wrong(simple(0, 9), simple(10, 12), simple(13, 13, 0), simple(14, 20, 9), simple(30, 40))
        == []
    )
    assert (
        wrong(simple(3, 4), old(13, 13, 0), simple(16, 16, 9), simple(40, 40), simple(50, 55)) == []
    )
    assert wrong(simple(9, 10)) == [9]  # extends beyond the original batch
    assert wrong(simple(3, 4, 2)) == [3]  # a different codec
    assert wrong(simple(3, 4, 0)) == [3]
    assert wrong(simple(3, 4, 0, present=0)) == []  # a batch without records has no codec
    assert wrong(simple(15, 16, 1)) == [15]  # append time is lost
    assert wrong(simple(3, 4), simple(6, 7)) == [6]  # one batch must not become two
    assert wrong(simple(3, 4), simple(6, 7), cuts=()) == [6]
    assert wrong(simple(25, 25), simple(45, 45), simple(60, 60)) == [25, 45, 60]
    assert list(wrongly_converted(blocks([]), blocks([simple(3, 4)]))) == [3]
