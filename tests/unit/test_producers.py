"""Tests of the batches that a log keeps for its producers, and of the last stable offset."""

from __future__ import annotations

from lastwrite.kafka.rules.producers import ProducerStates, active, required_batches
from lastwrite.model.log import AbortedTransaction, ProducerState

DAY_MS = 86_400_000
ABORTS, COMMITS = True, False


def test_last_batch_of_a_producer_is_remembered() -> None:
    states = ProducerStates()
    states.data(7, 0, 0, 3, 100, False)
    states.data(7, 0, 4, 5, 90, False)
    assert states.producers == (ProducerState(7, 0, 5, 90),), (
        "its timestamp is the last batch's, not the largest"
    )


def test_new_epoch_replaces_the_producer_state() -> None:
    states = ProducerStates([ProducerState(7, 0, 5, 90)])
    states.data(7, 1, 6, 6, 100, False)
    states.data(3, 0, 7, 7, 101, False)
    assert states.producers == (ProducerState(3, 0, 7, 101), ProducerState(7, 1, 6, 100)), "by id"


def test_transaction_is_open_from_its_first_batch_to_its_marker() -> None:
    states = ProducerStates()
    states.data(7, 0, 10, 11, 1, True)
    states.data(7, 0, 12, 13, 2, True)
    assert states.producers == (ProducerState(7, 0, 13, 2, open_from=10),)
    assert (states.open, states.first_unstable_offset) == (((7, 10),), 10)
    states.marker(7, 0, 14, 3, COMMITS)
    assert states.producers == (ProducerState(7, 0, 13, 3),)
    assert not states.open and not states.aborted


def test_marker_of_a_higher_epoch_replaces_the_data_state() -> None:
    states = ProducerStates()
    states.data(7, 0, 10, 11, 1, True)
    states.marker(7, 1, 12, 2, COMMITS)
    states.marker(8, 4, 13, 3, COMMITS)  # a marker of an unknown producer
    assert states.producers == (ProducerState(7, 1, -1, 2), ProducerState(8, 4, -1, 3))


def test_unreplicated_marker_leaves_its_transaction_unstable() -> None:
    for high_watermark, unstable in ((13, 10), (14, 10), (15, None)):
        states = ProducerStates(high_watermark=high_watermark)
        states.data(7, 0, 10, 11, 1, True)
        states.marker(7, 0, 14, 2, COMMITS)
        assert states.first_unstable_offset == unstable, high_watermark
        states.data(7, 0, 15, 15, 3, True)
        assert states.first_unstable_offset == (unstable or 15)


def test_abort_adds_an_index_entry() -> None:
    states = ProducerStates([ProducerState(9, 0, 1, 0, open_from=1)])
    states.data(7, 0, 10, 11, 1, True)
    states.data(8, 0, 12, 12, 1, True)
    states.marker(7, 0, 13, 2, ABORTS)
    states.marker(9, 0, 14, 2, COMMITS)
    states.marker(8, 0, 15, 2, ABORTS)
    states.marker(8, 0, 16, 2, ABORTS)  # a transaction without data has no entry
    first, second = states.aborted
    assert first == AbortedTransaction(7, 10, 13, 1), "9's was open since before"
    assert second == AbortedTransaction(8, 12, 15, 16), "no other one was open"


def test_open_transactions_are_ordered_by_first_offset() -> None:
    states = ProducerStates(
        [ProducerState(1, 0, 30, 0, open_from=20), ProducerState(2, 0, 9, 0, open_from=5)]
    )
    assert states.open == ((2, 5), (1, 20)) and states.first_unstable_offset == 5
    states.marker(2, 0, 31, 0, COMMITS)
    states.data(2, 0, 32, 32, 0, True)
    assert states.open == ((1, 20), (2, 32))


def test_idle_producer_expires_unless_its_transaction_is_open() -> None:
    young, old, undecided = (
        ProducerState(1, 0, 1, 1001),
        ProducerState(2, 0, 2, 1000),
        ProducerState(3, 0, 3, 0, open_from=3),
    )
    assert active((young, old, undecided), 1000 + DAY_MS, DAY_MS) == (young, undecided)
    assert active((young, old, undecided), 999 + DAY_MS, DAY_MS) == (young, old, undecided)


def test_last_batch_and_last_marker_of_each_producer_are_kept() -> None:
    data, marker = ProducerState(9, 2, 4, 0), ProducerState(5, 3, -1, 0)
    offsets, markers = required_batches(
        (data, marker, ProducerState(1, 0, 700, 0), ProducerState(2, 1, -1, 0))
    )
    assert (offsets.tolist(), markers.tolist()) == ([4, 700], [[2, 1], [5, 3]])
    offsets, markers = required_batches(())
    assert (offsets.shape, markers.shape, markers.dtype.name) == ((0,), (0, 2), "int64")
