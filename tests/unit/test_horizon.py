"""Tests of reads around a horizon, case by case; see docs/formats/pulsar-compaction.md."""

from __future__ import annotations

import pytest

from lastwrite.pulsar.rules.horizon import (
    EARLIEST,
    NOT_BATCHED,
    LogPart,
    ReadStep,
    last_index,
    last_source,
    step,
)


def at(ledger: int, entry: int) -> int:
    return (ledger << 32) + entry


HORIZON, COMPACTED = at(10, 5), [at(10, 1), at(10, 3)]


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        (EARLIEST, ReadStep(LogPart.COMPACTED, EARLIEST, 0)),
        (at(10, 2), ReadStep(LogPart.COMPACTED, at(10, 2), 1)),
        (at(10, 3), ReadStep(LogPart.COMPACTED, at(10, 3), 1)),
        # no more messages: only removed ones up to the horizon
        (at(10, 4), ReadStep(LogPart.COMPACTED, at(10, 6))),
        # the entry at the horizon is compacted, too
        (at(10, 5), ReadStep(LogPart.COMPACTED, at(10, 6))),
        (at(10, 6), ReadStep(LogPart.BACKLOG, at(10, 6))),
        (at(11, 0), ReadStep(LogPart.BACKLOG, at(11, 0))),
    ],
)
def test_documented_example_gives_its_steps(position: int, expected: ReadStep) -> None:
    assert step(position, HORIZON, COMPACTED) == expected


def test_empty_compacted_part_continues_after_the_horizon() -> None:
    assert step(EARLIEST, HORIZON, []) == ReadStep(LogPart.COMPACTED, at(10, 6))


def test_log_without_a_horizon_reads_the_backlog() -> None:
    assert step(EARLIEST, None, []) == ReadStep(LogPart.BACKLOG, EARLIEST)


def test_horizon_before_the_first_entry_of_a_newer_ledger_is_reached() -> None:
    """After a topic reload the mark-delete position may be N:-1."""
    horizon = at(12, -1)
    assert step(at(10, 4), horizon, COMPACTED) == ReadStep(LogPart.COMPACTED, at(12, 0))
    assert step(at(12, 0), horizon, COMPACTED) == ReadStep(LogPart.BACKLOG, at(12, 0))


@pytest.mark.parametrize(
    ("last_readable", "horizon", "reads_compacted", "expected"),
    [
        (None, None, True, None),
        (None, HORIZON, True, LogPart.COMPACTED),
        (None, HORIZON, False, None),
        (at(10, 5), HORIZON, True, LogPart.COMPACTED),
        (at(10, 5), HORIZON, False, LogPart.BACKLOG),
        (at(10, 6), HORIZON, True, LogPart.BACKLOG),
        (at(10, 6), None, True, LogPart.BACKLOG),
    ],
)
def test_last_message_id_comes_from_the_right_part(
    last_readable: int | None, horizon: int | None, reads_compacted: bool, expected: LogPart | None
) -> None:
    assert last_source(last_readable, horizon, reads_compacted) == expected


@pytest.mark.parametrize(
    ("source", "count", "survivors", "removed", "expected"),
    [
        (LogPart.BACKLOG, None, [], [], NOT_BATCHED),
        (LogPart.BACKLOG, 1, [], [], 0),
        (LogPart.BACKLOG, 4, [], [], 3),
        (LogPart.COMPACTED, None, [], [], NOT_BATCHED),
        (
            LogPart.COMPACTED,
            1,
            [0],
            [False],
            NOT_BATCHED,
            # Unlike in the backlog, where it would be 0.
        ),
        (LogPart.COMPACTED, 4, [0, 2], [], 2),
        (
            LogPart.COMPACTED,
            4,
            [],
            [False, True, False, True],
            2,
            # Written by a release whose batches do not list the kept messages.
        ),
        (LogPart.COMPACTED, 4, [], [], 3),  # encrypted, so the batch cannot be read
    ],
)
def test_last_batch_index_skips_removed_messages(
    source: LogPart, count: int | None, survivors: list[int], removed: list[bool], expected: int
) -> None:
    assert last_index(source, count, survivors, removed) == expected
