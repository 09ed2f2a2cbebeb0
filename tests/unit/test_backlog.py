"""Tests of the backlog below the horizon and of what retention can free, with figures computed by
hand.
"""

from __future__ import annotations

import pytest

from lastwrite.pulsar.rules.backlog import RawSegment, backlog_of

MB = 1 << 20
NOW = 1_000_000
LEDGERS = (
    RawSegment("ledger 10", 100, 2 * MB, NOW - 5000),
    RawSegment("ledger 12", 200, 3 * MB, NOW - 1000),
    RawSegment("ledger 15", 250, MB, None, is_open=True),
)


@pytest.mark.parametrize(
    ("horizon", "below", "bytes_below"),
    [(0, 0, 0), (99, 0, 0), (100, 1, 2), (199, 1, 2), (200, 2, 5), (250, 2, 5)],
)
def test_backlog_counts_closed_ledgers_below_the_horizon(
    horizon: int, below: int, bytes_below: int
) -> None:
    """The open ledger is never counted."""
    found = backlog_of(LEDGERS, horizon, 0, 0, NOW)
    assert (found.segments, found.bytes) == (below, bytes_below * MB)
    assert (found.segments_beyond, found.bytes_beyond) == (3 - below, (6 - bytes_below) * MB)
    assert (found.segments_free, found.bytes_free, found.reason) == (below, bytes_below * MB, None)


@pytest.mark.parametrize(
    ("retention_ms", "retention_mb", "free", "why"),
    [
        (0, 0, 2, None),
        (-1, -1, 0, "ledger 10: retention has no limit"),
        (
            4999,
            -1,
            1,
            "ledger 12: the ledger was closed 1000 ms ago, and the retention time is 4999 ms",
        ),
        (
            5000,
            -1,
            0,
            "ledger 10: the ledger was closed 5000 ms ago, and the retention time is 5000 ms",
        ),
        (999, -1, 2, None),
        (
            -1,
            4,
            1,
            "ledger 12: without the ledger 1048576 bytes remain, and the retention size is 4194304 bytes",
        ),
        (
            -1,
            5,
            0,
            "ledger 10: without the ledger 4194304 bytes remain, and the retention size is 5242880 bytes",
        ),
        (-1, 1, 2, None),
        (
            10_000,
            4,
            1,
            "ledger 12: the ledger was closed 1000 ms ago, and the retention time is 10000 ms; "
            "without the ledger 1048576 bytes",
        ),
        (4000, 9, 1, "ledger 12: the ledger was closed 1000 ms ago"),
        (10_000, 0, 2, None),
    ],
)
def test_either_retention_rule_frees_a_ledger(
    retention_ms: int, retention_mb: int, free: int, why: str | None
) -> None:
    retention_bytes = retention_mb * MB if retention_mb >= 0 else -1
    found = backlog_of(LEDGERS, 200, retention_ms, retention_bytes, NOW)
    assert found.segments_free == free and found.bytes_free == [0, 2 * MB, 5 * MB][free]
    assert (found.reason or "").startswith(why or "") and (found.reason is None) == (why is None)


def test_ledger_without_a_close_time_is_not_freed() -> None:
    found = backlog_of([LEDGERS[0]._replace(closed_ms=None), *LEDGERS[1:]], 200, 10, -1, NOW)
    assert (
        found.segments_free == 0
        and found.reason is not None
        and "the close time of the ledger is unknown" in found.reason
    )


def test_backlog_without_segments_is_zero() -> None:
    assert backlog_of([], 7, 0, 0, NOW).to_dict() == {
        "segments": 0,
        "bytes": 0,
        "segments_beyond": 0,
        "bytes_beyond": 0,
        "segments_free": 0,
        "bytes_free": 0,
        "reason": None,
    }
