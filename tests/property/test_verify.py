"""``verify`` agrees with every true compaction, and with none that lost a record."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

import lastwrite
from lastwrite.model.report import Status
from lastwrite.pipeline.inline import INLINE
from tests.engine import compact
from tests.logs import NAME, bases, encode_model, read_checkpoint, read_segments, write_checkpoint, write_segment
from tests.model import ModelSegment
from tests.strategies import Life, append, lives


@given(lives(), st.data())
def test_round_by_round(life: Life, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root, before = Path(folder) / "now", Path(folder) / "before"
        for phase in life.phases:
            end = append(root / NAME, phase, life.interval_bytes)
            write_checkpoint(root, "replication-offset-checkpoint", {NAME: int(end * phase.replicated)})
            shutil.rmtree(before, ignore_errors=True)
            shutil.copytree(root, before)
            round_ = compact(root, life.config, phase.now_ms).partitions[0]
            report = lastwrite.verify(str(root), before=str(before), now_ms=phase.now_ms, spark=INLINE)
            assert report.ok, report.problems
            comparison = report.partitions[0].comparison
            assert comparison is not None
            if round_.status is Status.CLEANED:
                assert comparison.records_before == round_.records_before
                assert comparison.records_after == round_.records_after == report.partitions[0].records
                assert comparison.keyless == round_.verdicts["keyless"]
                # A delete past its horizon may be superseded as well: each counts it by the rule it asks first.
                assert comparison.superseded + comparison.expired == (
                    round_.verdicts["shadowed"] + round_.verdicts["expired"]
                )
        _lose_one(root, before, life, data)


def _lose_one(root: Path, before: Path, life: Life, data: st.DataObject) -> None:
    """Take one record out of what remains; held against what remained, it is missing, or it was not needed."""
    shutil.rmtree(before)
    shutil.copytree(root, before)
    segments = read_segments(root / NAME)
    records = [record for segment in segments for batch in segment.batches for record in batch.records]
    if not records:
        return
    lost = data.draw(st.sampled_from(records))
    for segment in segments:
        if any(lost in batch.records for batch in segment.batches):
            write_segment(root / NAME, segment.base_offset, _without(segment, lost.offset), life.interval_bytes)
    assert bases(root / NAME) == bases(before / NAME)
    report = lastwrite.verify(str(root), before=str(before), spark=INLINE)
    watermark = _limit(before)
    later = any(r.key == lost.key and lost.offset < r.offset < watermark for r in records)
    expired = lost.value is None and any(
        lost in batch.records and batch.horizon_ms is not None for segment in segments for batch in segment.batches
    )
    older = any(r.key == lost.key and r.offset < lost.offset for r in records)
    may_go = lost.offset < watermark and (lost.key is None or later or (expired and not older))
    assert report.ok is may_go, report.problems
    assert may_go or lost.offset in {violation.offset for violation in report.violations} | {
        record.offset for record in records if record.key == lost.key
    }


def _without(segment: ModelSegment, offset: int) -> list[bytes]:
    """The segment's batches with one record fewer; a batch that had only that one stays as a shell."""
    encoded = []
    for batch in segment.batches:
        records = tuple(record for record in batch.records if record.offset != offset)
        if len(records) < len(batch.records) and records and not batch.append_time:
            batch = replace(batch, max_timestamp_ms=max(record.timestamp_ms for record in records))
        if not records:
            batch = replace(batch, codec=0, horizon_ms=None, base_timestamp_ms=-1)
        encoded.append(encode_model(replace(batch, records=records)))
    return encoded


def _limit(root: Path) -> int:
    """The high watermark, capped at the log's end."""
    segments = read_segments(root / NAME)
    last = segments[-1].batches
    end = last[-1].next_offset if last else segments[-1].base_offset
    return min(read_checkpoint(root, "replication-offset-checkpoint")[NAME], end)
