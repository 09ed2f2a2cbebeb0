"""Tests of following transactions piece by piece, against a walk over the complete log."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lastwrite.engine.rules.transactions import (
    TransactionTracker,
    aborted_table,
    flag_aborted,
    merge,
)
from lastwrite.model.columns import (
    ABORTED,
    COMMITTED,
    CONTROL,
    IS_ABORTED,
    IS_CONTROL,
    IS_TRANSACTIONAL,
    NO_HORIZON,
    SPENT,
    BatchTable,
    batch_table,
)
from lastwrite.model.log import AbortedTransaction

# The event at an offset: a producer writes, commits or aborts, or a record is written without a
# transaction.
Step = tuple[str, int]
ACTS = ["data", "data", "commit", "abort", "plain"]
steps = st.lists(st.tuples(st.sampled_from(ACTS), st.integers(0, 40)), max_size=60)


def truth(history: list[Step]) -> tuple[list[AbortedTransaction], set[int], set[int], set[int]]:
    """The aborted transactions, and the offsets of their data, of spent markers and of abort
    markers with data.
    """
    entries, dead, spent, aborting = [], set(), set(), set()
    open_: dict[int, list[int]] = {}
    for offset, (what, pid) in enumerate(history):
        if what == "data":
            open_.setdefault(pid, []).append(offset)
        elif what in ("commit", "abort"):
            data = open_.pop(pid, [])
            if not data:
                spent.add(offset)
            elif what == "abort":
                entries.append(AbortedTransaction(pid, data[0], offset, offset + 1))
                dead.update(data)
                aborting.add(offset)
    return entries, dead, spent, aborting


def tables(history: list[Step], cuts: list[int]) -> list[tuple[BatchTable, np.ndarray]]:
    """Pieces of one-record batches, with the record states after a walk."""
    borders = sorted({0, len(history), *(cut for cut in cuts if cut <= len(history))})
    pieces = []
    for start, end in zip(borders, borders[1:], strict=False):
        table, states = batch_table(end - start), np.zeros(end - start, np.uint8)
        for row, offset in zip(table, range(start, end), strict=True):
            what, pid = history[offset]
            row["base_offset"], row["next_offset"], row["records"] = offset, offset + 1, 1
            row["producer_id"], row["horizon"] = (-1 if what == "plain" else pid), NO_HORIZON
            row["flags"] = 0 if what == "plain" else IS_TRANSACTIONAL
            if what in ("commit", "abort"):
                row["flags"] |= IS_CONTROL
                states[offset - start] = CONTROL | (ABORTED if what == "abort" else COMMITTED)
        pieces.append((table, states))
    return pieces


def follow(pieces: list[tuple[BatchTable, np.ndarray]], entries: list[AbortedTransaction]):  # type: ignore[no-untyped-def]
    found = []
    for table, states in pieces:
        flag_aborted(
            table,
            aborted_table(entries, int(table[0]["base_offset"]), int(table[-1]["next_offset"])),
        )
        follower = TransactionTracker()
        half = len(table) // 2
        follower.follow(table[:half], states[:half], 0)
        follower.follow(table[half:], states[half:], half)
        found.append(follower.result())
    return merge(found)


@given(steps, st.lists(st.integers(1, 60), max_size=6))
def test_pieces_together_equal_the_complete_log(history: list[Step], cuts: list[int]) -> None:
    entries, dead, spent, aborting = truth(history)
    pieces = tables(history, cuts)
    merged = follow(pieces, entries)
    assert merged.contradiction is None
    assert merged.aborting == aborting
    flagged = {
        int(row["base_offset"]) for table, _ in pieces for row in table if row["flags"] & IS_ABORTED
    }
    assert flagged == dead
    known = {
        int(row["base_offset"])
        for table, states in pieces
        for row, state in zip(table, states, strict=True)
        if state & SPENT
    }
    assert known | {marker.offset for some in merged.used_markers for marker in some} == spent
    for (table, _), some in zip(pieces, merged.used_markers, strict=True):
        assert all(int(table[marker.ordinal]["base_offset"]) == marker.offset for marker in some)


@given(steps, st.lists(st.integers(1, 60), max_size=6), st.data())
def test_wrong_index_is_found(history: list[Step], cuts: list[int], data: st.DataObject) -> None:
    entries, *_ = truth(history)
    if not entries:
        return
    gone = data.draw(st.integers(0, len(entries) - 1))
    merged = follow(tables(history, cuts), [entry for n, entry in enumerate(entries) if n != gone])
    assert merged.contradiction == entries[gone].last_offset


def test_piece_with_many_producers_is_followed() -> None:
    history = [("data", pid) for pid in range(1000)] + [("abort", pid) for pid in range(1000)]
    entries, _, _, aborting = truth(history)
    assert follow(tables(history, []), entries).aborting == aborting
    merged = follow(tables(history, [1000]), entries)
    assert merged.aborting == aborting
    assert merged.contradiction is None
