"""Tests of delete horizons at the limits of a 64-bit integer.

They result from endless retention and from sums that overflow below 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

import lastwrite
from lastwrite.kafka.format.batch import iter_batches
from lastwrite.spark.inline import INLINE
from tests.support.engine import compact
from tests.support.kafka.logs import NAME
from tests.unit.test_dropped_tombstones import NOW_MS, batch, offsets, stamped, write

LONG_MAX = 2**63 - 1
NEVER = {"cleanup.policy": "compact", "delete.retention.ms": str(LONG_MAX)}
DAY = {"cleanup.policy": "compact", "delete.retention.ms": "86400000"}
WRAPPED_MS = NOW_MS + LONG_MAX - 2**64
DELETE, LATER = 1, 10 * 365 * 86_400_000


def horizons(root: Path) -> list[int | None]:
    return [
        found.header.delete_horizon_ms
        for file in sorted((root / NAME).glob("*.log"))
        for _, found in iter_batches(file.read_bytes())
    ]


def log(root: Path, horizon_ms: int | None = None) -> Path:
    """A log that ends at offset 6, with a delete of ``b`` at offset 1 and its optional horizon."""
    made = batch(0, "a=1", "b")
    if horizon_ms is not None:
        made = stamped(made, horizon_ms)
    return write(root, {0: [made], 2: [batch(2, "c=1", "a=2")], 4: [batch(4, "d=1", "e=1")]}, 2)


def verify(root: Path, before: Path | None = None, config: Mapping[str, str] = DAY) -> int:
    report = lastwrite.verify(
        str(root), before=None if before is None else str(before), config=config, spark=INLINE
    )
    return report.exit_status


@pytest.mark.parametrize("like_broker", [True, False])
@pytest.mark.parametrize("retention_ms", [LONG_MAX, LONG_MAX - NOW_MS + 1])
def test_tombstone_never_expires_under_a_retention_beyond_64_bits(
    tmp_path: Path, retention_ms: int, like_broker: bool
) -> None:
    root = log(tmp_path)
    config = {**NEVER, "delete.retention.ms": str(retention_ms)}
    for now_ms in (NOW_MS, NOW_MS + LATER):
        compact(root, config, now_ms, like_broker=like_broker, drop_expired_deletes=True)
        assert horizons(root) == [None] * len(horizons(root))
        assert DELETE in offsets(root)


def test_longest_retention_that_fits_sets_a_horizon(tmp_path: Path) -> None:
    root = log(tmp_path)
    compact(root, {**NEVER, "delete.retention.ms": str(LONG_MAX - NOW_MS)}, NOW_MS)
    assert horizons(root)[0] == LONG_MAX


def test_explain_names_an_endless_retention(tmp_path: Path) -> None:
    root = log(tmp_path)
    [found] = lastwrite.explain(str(root), config=NEVER, now_ms=NOW_MS).partitions
    assert found.waiting is not None
    assert (found.waiting.deletes_never, found.waiting.deletes_unstamped) == (1, 0)
    [found] = lastwrite.explain(str(root), config=NEVER, now_ms=NOW_MS, key=b"b").partitions
    [record] = found.records or ()
    assert "no round sets a delete horizon" in str(record.change) and record.at_ms is None


def test_blocked_tombstone_has_no_limit_under_an_endless_retention(tmp_path: Path) -> None:
    root = log(tmp_path)
    config = {**NEVER, "hold.tombstones.for.groups": "g"}
    [found] = lastwrite.explain(str(root), config=config, now_ms=NOW_MS).partitions
    assert [each.until_ms for each in found.held_for] == [None]
    [report] = compact(root, config, NOW_MS).partitions
    assert [each.until_ms for each in report.held_for] == [None]
    assert DELETE in offsets(root)


def test_limit_beyond_64_bits_is_none(tmp_path: Path) -> None:
    root = log(tmp_path, LONG_MAX - 5)
    config = {**DAY, "hold.tombstones.for.groups": "g", "hold.tombstones.max.ms": "6"}
    [report] = compact(root, config, NOW_MS).partitions
    assert [each.until_ms for each in report.held_for] == [None]


# ---------------------------------------------------------------------- below 0

BELOW_ZERO = [-1, WRAPPED_MS, -2, 1 - 2**63, -(2**63)]


@pytest.mark.parametrize("horizon_ms", BELOW_ZERO)
@pytest.mark.parametrize("like_broker", [True, False])
def test_round_keeps_the_tombstone_and_replaces_a_negative_horizon(
    tmp_path: Path, horizon_ms: int, like_broker: bool
) -> None:
    root, before = log(tmp_path / "log", horizon_ms), log(tmp_path / "before", horizon_ms)
    compact(root, DAY, NOW_MS, like_broker=like_broker)
    assert DELETE in offsets(root)
    assert horizons(root)[0] == NOW_MS + 86_400_000
    assert verify(root) == 0
    assert verify(root, before) == 0
    compact(root, DAY, NOW_MS + LATER, drop_expired_deletes=True)
    assert DELETE not in offsets(root)


def test_endless_retention_removes_a_negative_horizon(tmp_path: Path) -> None:
    root = log(tmp_path, WRAPPED_MS)
    compact(root, NEVER, NOW_MS)
    assert DELETE in offsets(root) and horizons(root)[0] is None
    assert verify(root) == 0


@pytest.mark.parametrize("horizon_ms", BELOW_ZERO)
def test_verify_names_a_negative_horizon_and_a_remedy_that_works(
    tmp_path: Path, horizon_ms: int
) -> None:
    root = log(tmp_path, horizon_ms)
    report = lastwrite.verify(str(root), config=DAY, spark=INLINE)
    assert report.exit_status == 3
    [problem] = report.partitions[0].problems
    assert "offset 0" in problem.message and "negative delete horizon" in problem.message
    assert (problem.position, "--drop-expired-deletes" in str(problem.remedy)) == (0, True)
    done = lastwrite.compact(  # the step in the remedy: at the default ratio nothing is dirty
        str(root), config=DAY, now_ms=NOW_MS, drop_expired_deletes=True, spark=INLINE
    )
    assert done.exit_status == 0
    assert DELETE in offsets(root) and verify(root) == 0


def test_verify_does_not_treat_a_negative_horizon_as_expired(tmp_path: Path) -> None:
    before = log(tmp_path / "before", WRAPPED_MS)
    lost = write(
        tmp_path / "after",
        {0: [batch(0, "a=1")], 2: [batch(2, "c=1", "a=2")], 4: [batch(4, "d=1", "e=1")]},
        2,
    )
    report = lastwrite.verify(str(lost), before=str(before), config=DAY, spark=INLINE)
    comparison = report.partitions[0].comparison
    assert comparison is not None
    assert "lost_delete" in {each.promise for each in comparison.violations}


def test_explain_names_a_negative_horizon(tmp_path: Path) -> None:
    root = log(tmp_path, WRAPPED_MS)
    [found] = lastwrite.explain(str(root), config=DAY, now_ms=NOW_MS).partitions
    assert found.waiting is not None
    assert (found.waiting.deletes_bad_horizon, found.waiting.deletes_unstamped) == (1, 1)
    assert found.waiting.deletes_due == 0
    [found] = lastwrite.explain(str(root), config=DAY, now_ms=NOW_MS, key=b"b").partitions
    [record] = found.records or ()
    assert "negative delete horizon" in record.message and record.at_ms == NOW_MS + 86_400_000


def test_inspect_counts_negative_horizons(tmp_path: Path) -> None:
    root = log(tmp_path, WRAPPED_MS)
    [found] = lastwrite.inspect(str(root)).partitions
    contents = found.contents
    assert contents is not None
    assert (contents.horizon_batches, contents.bad_horizon_batches) == (1, 1)
    assert contents.earliest_horizon is None
