"""Properties of ``verify``: it accepts every correct compaction, and no other."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

import lastwrite
from lastwrite.reports.compaction import Status
from lastwrite.reports.verification import VerifyReport
from lastwrite.spark.inline import INLINE
from tests.support.engine import compact
from tests.support.kafka.faults import FAULTS, Fault, Pair, read_pair, strike, without_record
from tests.support.kafka.logs import NAME, SCRATCH, read_segments, write_checkpoint
from tests.support.kafka.model import aborted_offsets
from tests.support.kafka.producers import active, producers_of
from tests.support.kafka.reference import listed
from tests.support.kafka.strategies import Life, append, lives


@given(lives(), st.data())
def test_each_round_is_verified_and_each_fault_is_found(life: Life, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        root, before, struck = (Path(folder) / name for name in ("now", "before", "struck"))
        for phase in life.phases:
            end = append(root / NAME, phase, life.interval_bytes)
            write_checkpoint(
                root, "replication-offset-checkpoint", {NAME: int(end * phase.replicated)}
            )
            shutil.rmtree(before, ignore_errors=True)
            shutil.copytree(root, before)
            round_ = compact(root, life.config, phase.now_ms).partitions[0]
            report = verified(root, before, life, phase.now_ms)
            assert report.ok, report.problems
            comparison = report.partitions[0].comparison
            assert comparison is not None
            if round_.status is Status.CLEANED:
                assert comparison.records_before == round_.records_before
                assert (
                    comparison.records_after == round_.records_after == report.partitions[0].records
                )
                missing = comparison.superseded + comparison.expired + comparison.keyless
                missing += comparison.aborted + comparison.markers
                assert comparison.records_before - comparison.records_after == missing
            pair = pair_of(before, root, phase.now_ms)
            for kind in FAULTS:
                places = list(kind(pair))
                if places:
                    fault = data.draw(st.sampled_from(places), kind.__name__)
                    strike(pair, fault, root, struck)
                    report = verified(struck, before, life, phase.now_ms)
                    found = {
                        (violation.promise, violation.offset) for violation in report.violations
                    }
                    assert (fault.promise, fault.offset) in found, (kind.__name__, report.problems)
        _lose_one(root, before, struck, life, data)


def verified(after: Path, before: Path, life: Life, now_ms: int | None) -> VerifyReport:
    return lastwrite.verify(
        str(after),
        before=str(before),
        config=life.config,
        now_ms=now_ms,
        spark=INLINE,
        drop_keyless=True,
    )


def pair_of(before: Path, after: Path, now_ms: int) -> Pair:
    log = listed(before)
    known = active(producers_of(before / NAME, read_segments(before / NAME)), now_ms)
    return read_pair(
        before,
        after,
        last_stable=log.last_stable_offset,
        log_start=log.log_start,
        now_ms=now_ms,
        last_batches=frozenset(
            last.last_offset for last in known.values() if last.last_offset >= 0
        ),
    )


def _lose_one(root: Path, before: Path, struck: Path, life: Life, data: st.DataObject) -> None:
    """Remove one record of the result and compare with the result itself as the state before.

    The record is then reported as missing, unless a round could have removed it.
    """
    shutil.rmtree(before)
    shutil.copytree(root, before)
    pair = pair_of(before, root, 0)
    places = [
        (batch, record)
        for segment in pair.after
        for batch in segment.batches
        if batch.magic == 2 and not batch.control
        for record in batch.records
    ]
    if not places:
        return
    batch, lost = data.draw(st.sampled_from(places))
    without = without_record(pair.now[batch.base_offset], lost.offset)
    strike(pair, Fault("", None, {batch.base_offset: without}), root, struck)
    report = verified(struck, before, life, None)
    hidden = aborted_offsets(pair.before)
    same = [
        record
        for segment in pair.before
        for other in segment.batches
        if not other.control
        for record in other.records
        if record.key == lost.key and record.offset not in hidden
    ]
    later = any(lost.offset < record.offset < pair.last_stable for record in same)
    expired = lost.value is None and batch.horizon_ms is not None
    older = any(record.offset < lost.offset for record in same)
    is_nobody = lost.key is None or lost.offset in hidden
    may_go = lost.offset < pair.last_stable and (is_nobody or later or (expired and not older))
    assert report.ok is may_go, report.problems
    assert may_go or {lost.offset, *(record.offset for record in same)} & {
        v.offset for v in report.violations
    }


@given(lives())
def test_each_round_by_timestamp_is_verified(life: Life) -> None:
    """With ``compaction.strategy`` timestamp, the order of writes differs, but not the promises."""
    by_time = replace(life, config={**life.config, "compaction.strategy": "timestamp"})
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        root, before = Path(folder) / "now", Path(folder) / "before"
        for phase in life.phases:
            end = append(root / NAME, phase, life.interval_bytes)
            write_checkpoint(
                root, "replication-offset-checkpoint", {NAME: int(end * phase.replicated)}
            )
            shutil.rmtree(before, ignore_errors=True)
            shutil.copytree(root, before)
            compact(root, by_time.config, phase.now_ms)
            report = verified(root, before, by_time, phase.now_ms)
            assert report.ok, report.problems
