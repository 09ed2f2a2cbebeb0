"""Properties of ``inspect`` and ``verify``: counts of transactions, producers, keys and formats.

The counts are compared with the plain model.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

from hypothesis import given

import lastwrite
from lastwrite.model.log import ProblemKind
from lastwrite.spark.inline import INLINE
from tests.support.kafka.logs import (
    NAME,
    SCRATCH,
    has_hole_between_segments,
    read_segments,
    write_checkpoint,
)
from tests.support.kafka.model import aborted_offsets
from tests.support.kafka.producers import EXPIRATION_MS, producers_of
from tests.support.kafka.reference import listed
from tests.support.kafka.strategies import Life, append, lives


@given(lives(max_rounds=2))
def test_counts_equal_the_model(life: Life) -> None:
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        root = Path(folder)
        for phase in life.phases:
            end = append(root / NAME, phase, life.interval_bytes)
            write_checkpoint(
                root, "replication-offset-checkpoint", {NAME: int(end * phase.replicated)}
            )
        segments = read_segments(root / NAME)
        batches = [batch for segment in segments for batch in segment.batches]
        hidden = aborted_offsets(segments)
        [found] = lastwrite.inspect(
            str(root), config=life.config, now_ms=phase.now_ms, spark=INLINE
        ).partitions
        gaps = [ProblemKind.GAP] * has_hole_between_segments(root / NAME)
        assert [problem.kind for problem in found.problems] == gaps
        data = [record for batch in batches if not batch.control for record in batch.records]
        assert found.keys == len(
            {r.key for r in data if r.key is not None and r.offset not in hidden}
        )
        assert found.contents.formats == Counter(f"v{batch.magic}" for batch in batches)
        begun: dict[int, int] = {}
        for batch in batches:
            if batch.marker is not None:
                begun.pop(batch.producer_id, None)
            elif batch.transactional and not batch.control:
                begun.setdefault(batch.producer_id, batch.base_offset)
        assert [(t.producer_id, t.first_offset) for t in found.open_transactions] == sorted(
            begun.items(), key=lambda item: item[1]
        )
        markers = Counter(batch.marker for batch in batches)
        assert (found.contents.abort_markers, found.contents.commit_markers) == (
            markers["abort"],
            markers["commit"],
        )
        assert found.transactions is not None
        assert found.transactions.to_dict() == {
            "open": len(begun),
            "aborted": markers["abort"],
            "committed": markers["commit"],
            "aborted_records": len(hidden),
        }
        assert found.last_stable_offset == listed(root).last_stable_offset
        known = producers_of(root / NAME, segments).values()
        active = sum(
            k.open_from >= 0 or phase.now_ms - k.timestamp_ms < EXPIRATION_MS for k in known
        )
        assert (found.active_producers, found.expired_producers) == (active, len(known) - active)
        [checked] = lastwrite.verify(str(root), config=life.config, spark=INLINE).partitions
        assert checked.transactions == found.transactions
        assert checked.old_batches == sum(batch.magic < 2 for batch in batches)
