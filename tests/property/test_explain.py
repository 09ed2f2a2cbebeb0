"""Properties of ``explain``: it predicts the next compaction for every record of every key."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

import lastwrite
from lastwrite.engine.rules.ranges import Hold, Range
from lastwrite.explanation.range_reasons import dirty_bytes_missing
from lastwrite.model.log import ProblemKind
from lastwrite.reports.explanation import PartitionExplanation, RecordOutcome
from tests.property.test_compaction import empty_root, grow
from tests.support.engine import compact
from tests.support.kafka.logs import NAME, has_hole_between_segments, read_segments
from tests.support.kafka.strategies import Life, lives


def explained(
    root: Path, life: Life, now_ms: int, key: bytes | None, include_active: bool
) -> PartitionExplanation:
    report = lastwrite.explain(
        str(root),
        config=life.config,
        now_ms=now_ms,
        key=key,
        include_active=include_active,
        drop_keyless=True,
    )
    (found,) = report.partitions
    gaps = [ProblemKind.GAP] * has_hole_between_segments(root / NAME)
    assert [problem.kind for problem in found.problems] == gaps
    return found


def offsets_by_key(root: Path) -> dict[bytes, list[int]]:
    found: dict[bytes, list[int]] = {}
    for segment in read_segments(root / NAME):
        for batch in segment.batches:
            for record in batch.records:
                if record.key is not None and not batch.control:
                    found.setdefault(record.key, []).append(record.offset)
    return found


@given(lives(), st.booleans())
def test_explain_predicts_exactly_the_records_that_the_next_round_removes(
    life: Life, include_active: bool
) -> None:
    with empty_root() as root:
        for phase in life.phases:
            grow(root, phase, life)
            before = offsets_by_key(root)
            said = {key: explained(root, life, phase.now_ms, key, include_active) for key in before}
            total = explained(root, life, phase.now_ms, None, include_active)
            (report,) = compact(
                root, life.config, phase.now_ms, include_active=include_active
            ).partitions
            after = offsets_by_key(root)
            for key, answer in said.items():
                assert answer.records is not None
                assert [record.offset for record in answer.records] == before[key]
                assert answer.is_due == (str(report.status) in ("cleaned", "unchanged"))
                gone = [offset for offset in before[key] if offset not in after.get(key, [])]
                if answer.is_due:
                    assert [
                        r.offset for r in answer.records if r.fate is RecordOutcome.NEXT_ROUND
                    ] == gone
                else:
                    assert gone == []
                    assert answer.reasons
                stays = [
                    record.offset for record in answer.records if record.fate is RecordOutcome.STAYS
                ]
                assert len(stays) <= 1
                assert all(
                    record.change is None
                    for record in answer.records
                    if record.fate is RecordOutcome.STAYS
                )
            assert total.records is None
            if total.is_due:
                waiting = total.waiting
                assert waiting is not None
                assert report.verdicts is not None
                assert waiting.superseded_next == report.verdicts["shadowed"]
                assert waiting.aborted_next == report.verdicts["aborted"]
                assert waiting.keyless_next == report.verdicts["keyless"]
                assert waiting.deletes_due == report.verdicts["expired"]
                assert waiting.markers_due == report.verdicts["marker"]


@given(st.integers(0, 10**12), st.integers(0, 10**12), st.floats(0, 1, exclude_max=True))
def test_missing_dirty_bytes_are_the_fewest_that_make_a_round_due(
    clean: int, cleanable: int, threshold: float
) -> None:
    def ratio(more: int) -> float:
        return Range(
            first_dirty=0,
            first_uncleanable=1,
            clean_bytes=clean,
            cleanable_bytes=cleanable + more,
            overdue_ms=0,
            held_by=Hold.ACTIVE_SEGMENT,
            checkpoint_corrected=False,
            eligible=False,
            reason="",
        ).ratio

    found = Range(
        first_dirty=0,
        first_uncleanable=1,
        clean_bytes=clean,
        cleanable_bytes=cleanable,
        overdue_ms=0,
        held_by=Hold.ACTIVE_SEGMENT,
        checkpoint_corrected=False,
        eligible=False,
        reason="",
    )
    missing = dirty_bytes_missing(found, threshold)
    assert missing is not None
    assert ratio(missing) > threshold
    assert missing == 0 or ratio(missing - 1) <= threshold
