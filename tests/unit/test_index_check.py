"""Tests of finding the first wrong entry of an index."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastwrite.kafka.recovery import index_check
from lastwrite.kafka.recovery.index_check import NO_TIME, BadIndexEntry, TransactionIndexCheck
from lastwrite.model.columns import BATCH
from lastwrite.verification.rows import ABORT_MARKER, COMMIT_MARKER


def column(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


# Four batches at bytes 0, 100, 250 and 300, ending at 400. Offsets 10-19, 20-24, 30-39 and 40-40,
# largest timestamps 5, 9, 7 and 9.
BEGINS, TIMES = column(0, 100, 250, 300), column(5, 9, 7, 9)
BASES, LASTS = column(10, 20, 30, 40), column(19, 24, 39, 40)
END = 400


@pytest.mark.parametrize(
    ("entry", "is_true"),
    [
        ((24, 100), True),
        ((39, 250), True),
        ((24, 0), True),  # the first batch's position: a reader scans more bytes and misses nothing
        ((30, 250), True),
        (
            (29, 250),
            False,
            # a search for 29 would find 30, but no batch ends at 29
        ),
        ((24, 250), False),  # the batch with offset 24 is before byte 250
        ((24, 101), False),
        ((24, 399), False),
        ((99, 400), True),  # belongs to the next piece
    ],
)
def test_false_offset_entry_is_found(entry: tuple[int, int], is_true: bool) -> None:
    offsets, positions = column(19, entry[0]), column(0, entry[1])
    contradiction = index_check.false_offset_entry(offsets, positions, BEGINS, END, BASES)
    assert (contradiction is None) is is_true
    assert contradiction is None or contradiction.row == 1


@pytest.mark.parametrize(
    ("entry", "is_true"),
    [
        ((5, 19), True),
        ((9, 24), True),
        ((8, 24), False),
        ((8, 23), True),  # within the batch that ends at 24: the entry covers the batches before it
        ((9, 39), False),  # the timestamp of this batch is 7
        ((9, 38), True),
        ((8, 30), False),
        ((9, 40), True),
        ((10, 40), False),
        (
            (10, 31),
            True,
            # points to no batch, but there is no record with a timestamp of 10 or later
        ),
        ((7, 41), True),  # belongs to the next piece
    ],
)
def test_false_time_entry_is_found(entry: tuple[int, int], is_true: bool) -> None:
    times, offsets = column(entry[0]), column(entry[1])
    contradiction = index_check.false_time_entry(times, offsets, LASTS, TIMES, NO_TIME, 19)
    assert (contradiction is None) is is_true


@settings(max_examples=2000)
@given(st.data())
def test_kernel_agrees_with_both_checks(data: st.DataObject) -> None:
    rows = data.draw(st.integers(1, 5))
    table = np.zeros(rows, BATCH)
    table["origin_size"] = data.draw(st.lists(st.integers(1, 4), min_size=rows, max_size=rows))
    table["origin"] = 3 + np.cumsum(table["origin_size"]) - table["origin_size"]
    lengths = column(*data.draw(st.lists(st.integers(1, 4), min_size=rows, max_size=rows)))
    table["next_offset"] = 10 + np.cumsum(lengths)
    table["base_offset"] = table["next_offset"] - lengths
    table["max_timestamp"] = data.draw(st.lists(st.integers(0, 5), min_size=rows, max_size=rows))
    shift = data.draw(st.integers(0, 2))
    begins, last = table["origin"] + shift, table["next_offset"] - 1

    def named(true: np.ndarray) -> np.ndarray:
        """Some positions or offsets of a correct index, and wrong ones."""
        some = data.draw(st.lists(st.sampled_from([*true.tolist(), 4, 12]), max_size=5))
        return column(*sorted(some))

    positions, time_offsets = named(begins), named(last)
    batch = np.searchsorted(begins, positions, side="right") - 1
    offsets = table["base_offset"][batch] + np.resize(
        data.draw(st.sampled_from([[0], [0, -1], [0, 0, 1]])), len(positions)
    )
    largest = np.maximum.accumulate(np.append(0, table["max_timestamp"]))
    times = largest[np.searchsorted(last, time_offsets, side="right")] + np.resize(
        data.draw(st.sampled_from([[0], [0, 1], [0, 0, -1]])), len(time_offsets)
    )
    reached, before = data.draw(st.sampled_from([NO_TIME, 0, 3])), data.draw(st.integers(8, 13))
    end = int(begins[-1] + table["origin_size"][-1])
    lies = (
        index_check.false_offset_entry(offsets, positions, begins, end, table["base_offset"]),
        index_check.false_time_entry(
            times, time_offsets, last, table["max_timestamp"], reached, before
        ),
    )
    then = index_check.time_if_true(
        offsets, positions, times, time_offsets, table, shift, reached, before
    )
    are_true = lies == (None, None)
    assert then == (max(reached, int(table["max_timestamp"].max())) if are_true else NO_TIME)


def test_time_entry_covers_the_batches_before_it() -> None:
    assert index_check.false_time_entry(column(9), column(24), LASTS, TIMES, 9, 9) is None
    contradiction = index_check.false_time_entry(column(9, 10), column(24, 40), LASTS, TIMES, 11, 9)
    assert (
        contradiction is not None
        and contradiction.row == 0
        and "a record there has time 11" in contradiction.problem
    )
    assert index_check.hidden_from_time_entry(column(5, 9), column(19, 24), 20, 5) is None
    contradiction = index_check.hidden_from_time_entry(column(5, 9), column(19, 24), 20, 6)
    assert contradiction is not None and contradiction.row == 0
    contradiction = index_check.hidden_from_time_entry(column(5, 9), column(19, 24), 21, 10)
    assert contradiction is not None and contradiction.row == 1
    assert index_check.hidden_from_time_entry(column(5, 9), column(19, 24), 26, 10) is None


def test_entry_beyond_the_end_is_found() -> None:
    assert index_check.entry_beyond(column(24, 40), column(100, 300), END, 41) is None
    for offset, position in ((41, 300), (40, 400)):
        contradiction = index_check.entry_beyond(column(24, offset), column(100, position), END, 41)
        assert contradiction is not None and contradiction.row == 1


def test_last_time_entry_equals_the_largest_timestamp() -> None:
    assert index_check.wrong_last_time(column(), column(), 41, 9) is None
    assert index_check.wrong_last_time(column(5, 9), column(19, 24), 41, 9) is None
    for time, offset in ((8, 24), (10, 24), (9, 41)):
        contradiction = index_check.wrong_last_time(column(5, time), column(19, offset), 41, 9)
        assert contradiction is not None and contradiction.row == 1


def test_widest_gap_includes_both_ends() -> None:
    assert index_check.widest_gap(column(), 400) == 400
    assert index_check.widest_gap(column(100, 300), 400) == 200
    assert index_check.widest_gap(column(300), 400) == 300


# Producer 7 commits 0-9 (marker 10) and aborts 12-19 (marker 25). Producer 8 aborts 20-24 (marker
# 30) and has 33 open.
TRANSACTIONS = np.array(
    [
        [10, 7, COMMIT_MARKER, 2, 0, 9, 5],
        [25, 7, ABORT_MARKER, 2, 12, 19, 5],
        [27, 9, ABORT_MARKER, 0, -1, -1, 0],  # no data of the transaction is left
        [30, 8, ABORT_MARKER, 1, 20, 24, 5],
    ],
    dtype=np.int64,
)
RIGHT = [(7, 12, 25, 20), (8, 20, 30, 31)]


def first_lie(
    entries: list[tuple[int, int, int, int]],
    base: int = 0,
    end: int = 99,
    first_open: int | None = 33,
) -> BadIndexEntry | None:
    return TransactionIndexCheck(TRANSACTIONS, first_open).first_bad_entry(entries, base, end)


def test_correct_transaction_index_passes() -> None:
    assert first_lie(RIGHT) is None
    # More entries than necessary.
    assert first_lie([(7, 11, 25, 20), (9, 26, 27, 20), (8, 19, 30, 31)]) is None
    # a wider range only makes a reader search longer
    assert first_lie([(7, 12, 25, 3), (8, 20, 30, 31)]) is None
    assert first_lie(RIGHT[:1], 0, 30) is None and first_lie(RIGHT[1:], 30) is None
    assert first_lie([], 0, 25) is None and first_lie([], 31) is None
    assert TransactionIndexCheck(TRANSACTIONS[:0], None).first_bad_entry([], 0, 99) is None


@pytest.mark.parametrize(
    ("entries", "row", "words"),
    [
        ([], 0, "no entry for the transaction of producer 7"),
        (RIGHT[:1], 1, "no entry for the transaction of producer 8"),
        (RIGHT[1:], 0, "no entry for the transaction of producer 7"),
        (
            [(7, 13, 25, 20), RIGHT[1]],
            0,
            "begins after the first record of its transaction, at offset 12",
        ),
        (
            [(7, 9, 25, 20), RIGHT[1]],
            0,
            "covers committed records, up to offset 9",
        ),
        ([(8, 12, 25, 20), RIGHT[1]], 0, "points to an abort marker that does not exist"),
        (
            [(7, 0, 10, 11), *RIGHT],
            0,
            "points to an abort marker that does not exist",
            # The transaction was committed.
        ),
        ([(7, 12, 26, 20), RIGHT[1]], 0, "points to an abort marker that does not exist"),
        ([*RIGHT, (8, 31, 99, 32)], 2, "is beyond its segment"),
        (
            [(7, 12, 25, 21), RIGHT[1]],
            0,
            "has last stable offset 21, but the largest allowed one is 20",
        ),
        (
            [RIGHT[0], (8, 20, 30, 32)],
            1,
            "has last stable offset 32, but the largest allowed one is 31",
        ),
    ],
)
def test_wrong_transaction_index_is_named(
    entries: list[tuple[int, int, int, int]], row: int, words: str
) -> None:
    contradiction = first_lie(entries)
    assert contradiction is not None and contradiction.row == row
    assert words in contradiction.problem


def test_entries_below_the_log_start_are_ignored() -> None:
    def contradiction(
        entries: list[tuple[int, int, int, int]], log_start: int
    ) -> BadIndexEntry | None:
        return TransactionIndexCheck(TRANSACTIONS, None, log_start).first_bad_entry(entries, 0, 99)

    assert contradiction(RIGHT[1:], 19) is not None and contradiction(RIGHT[1:], 20) is None
    assert (
        contradiction([(7, 9, 25, 20), RIGHT[1]], 9) is not None
        and contradiction([(7, 9, 25, 20), RIGHT[1]], 10) is None
    )
    assert (
        contradiction([(7, 13, 25, 20), RIGHT[1]], 25) is not None
        and contradiction([(7, 13, 25, 20), RIGHT[1]], 26) is None
    )


def test_open_transaction_limits_the_stable_offset() -> None:
    words = (
        "the entry (producer 8, offsets 20 to 30) has last stable offset 31, but the largest "
        "allowed one is 26"
    )
    assert first_lie(RIGHT, first_open=26) == BadIndexEntry(1, words)
    assert first_lie([RIGHT[0], (8, 20, 30, 26)], first_open=26) is None
