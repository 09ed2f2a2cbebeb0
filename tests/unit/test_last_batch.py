"""Tests of recognising a live log by its last batch, also after its cleaner ran."""

from __future__ import annotations

import numpy as np
import pytest

from lastwrite.kafka.store.last_batch import batches_from, last_of
from lastwrite.model.columns import BATCH, IS_OLD, NO_HORIZON, BatchTable

DATA = np.arange(100, dtype=np.uint8)


def table(*rows: tuple[int, int, int], at: int = 0) -> BatchTable:
    """A table of batches of ten bytes each from byte ``at`` on: base offset, next
    offset, records.
    """
    found = np.zeros(len(rows), BATCH)
    found["horizon"] = NO_HORIZON
    for n, row in enumerate(rows):
        found[n]["origin"], found[n]["origin_size"] = at + 10 * n, 10
        found[n]["base_offset"], found[n]["next_offset"], found[n]["records"] = row
    return found


BEFORE = last_of(DATA, table((0, 5, 5), (5, 10, 5)))


def test_same_batch_is_skipped() -> None:
    left, is_another = batches_from(BEFORE, 10, DATA, table((5, 10, 5), (10, 12, 2), at=10), False)
    assert left["base_offset"].tolist() == [10] and not is_another
    left, is_another = batches_from(BEFORE, 10, DATA, table((10, 12, 2), at=20), False)
    assert len(left) == 1 and not is_another  # the batch may have been removed by a cleaner


@pytest.mark.parametrize(
    "row, compacts, is_another",
    [
        ((5, 10, 5), False, True),  # a different batch
        ((5, 10, 5), True, True),
        ((5, 10, 4), False, True),
        ((5, 10, 4), True, False),  # the cleaner removed a record
        ((6, 10, 4), True, True),
        ((5, 9, 4), True, True),  # another end offset
    ],
)
def test_other_batch_is_recognised(
    row: tuple[int, int, int], compacts: bool, is_another: bool
) -> None:
    assert batches_from(BEFORE, 10, DATA, table(row, at=50), compacts)[1] is is_another


def test_delete_horizon_marks_a_cleaned_batch() -> None:
    found = table((5, 10, 5), at=50)
    found["horizon"] = 7
    assert not batches_from(BEFORE, 10, DATA, found, True)[1]
    assert batches_from(BEFORE, 10, DATA, found, False)[1]


def test_older_formats_are_not_compared() -> None:
    found = table((5, 10, 5), at=50)
    found["flags"] = IS_OLD
    assert last_of(DATA, found) is None
    assert not batches_from(BEFORE, 10, DATA, found, False)[1]
    left, is_another = batches_from(None, 10, DATA, table((5, 10, 5), (10, 12, 2)), False)
    assert len(left) == 1 and not is_another
