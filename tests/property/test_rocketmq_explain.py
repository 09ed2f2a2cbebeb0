"""Properties of ``explain`` on RocketMQ: it predicts the next compaction of every key."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

import lastwrite
from lastwrite.reports.compaction import Status
from lastwrite.reports.explanation import PartitionExplanation, RecordOutcome
from tests.property.test_rocketmq_compaction import (
    RETENTION_MS,
    Life,
    empty_store,
    grow,
    lives,
    run,
)
from tests.support.rocketmq.model import ModelQueue
from tests.support.rocketmq.model import compact as model_compact


def explained(
    root: Path, now_ms: int, key: bytes | None, include_active: bool
) -> dict[int, PartitionExplanation]:
    """The explanations by queue."""
    report = lastwrite.explain(
        str(root),
        config={"delete.retention.ms": RETENTION_MS, "min.cleanable.dirty.ratio": 0},
        now_ms=now_ms,
        key=key,
        include_active=include_active,
    )
    assert all(found.problems == [] for found in report.partitions)
    return {found.partition: found for found in report.partitions}


def offsets_by_key(queue: ModelQueue) -> dict[bytes, list[int]]:
    found: dict[bytes, list[int]] = {}
    for each in queue.messages:
        assert each.key is not None
        found.setdefault(each.key.encode(), []).append(each.offset)
    return found


@given(lives(), st.booleans())
def test_explain_predicts_exactly_the_messages_that_the_next_round_removes(
    life: Life, include_active: bool
) -> None:
    queues = life.new_queues()
    with empty_store() as root:
        for phase in life.phases:
            live = grow(root, queues, phase)
            if not live:
                continue
            before = {queue.number: offsets_by_key(queue) for queue in live}
            keys = {key for found in before.values() for key in found}
            said = {key: explained(root, phase.now_ms, key, include_active) for key in keys}
            totals = explained(root, phase.now_ms, None, include_active)
            reports = run(root, phase.now_ms, include_active=include_active)
            for queue in live:
                report, total = reports[queue.number], totals[queue.number]
                moved = model_compact(
                    queue, phase.now_ms, RETENTION_MS, include_active=include_active
                )
                assert total.is_due == moved == (report.status is not Status.SKIPPED)
                assert total.is_due or total.reasons
                after = offsets_by_key(queue)
                for key, offsets in before[queue.number].items():
                    answer = said[key][queue.number]
                    assert answer.records is not None
                    assert [each.offset for each in answer.records] == offsets
                    gone = [offset for offset in offsets if offset not in after.get(key, [])]
                    going = [
                        each.offset
                        for each in answer.records
                        if each.fate is RecordOutcome.NEXT_ROUND
                    ]
                    assert not moved or going == gone
                    stays = [each for each in answer.records if each.fate is RecordOutcome.STAYS]
                    assert len(stays) <= 1
                    assert all(each.change is None for each in stays)
                if moved:
                    assert total.waiting is not None and report.verdicts is not None
                    assert total.waiting.superseded_next == report.verdicts["shadowed"]
                    assert total.waiting.keyless_next == report.verdicts["keyless"]
                    assert total.waiting.deletes_due == report.verdicts["expired"]
