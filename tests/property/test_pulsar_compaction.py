"""Properties of every compaction of Pulsar topics, checked against a plain Python model."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lastwrite
from lastwrite.model.work import Limits
from lastwrite.pulsar.format.names import INDEX_SUFFIX
from lastwrite.pulsar.format.position import Position
from lastwrite.pulsar.store.manifest import read_manifest
from lastwrite.reports.compaction import CompactionReport, Status
from lastwrite.spark.inline import INLINE
from tests.support.files import contents
from tests.support.kafka.logs import SCRATCH
from tests.support.pulsar.model import START_MS, Author, ModelTopic, Rules, content
from tests.support.pulsar.topics import put_ledger, read_compacted, topic_folder

TOPICS = ("persistent://public/default/t", "persistent://a/b/t-partition-3")
EVENT_TIME = "org.apache.pulsar.compaction.EventTimeCompactionServiceFactory"

seeds = st.integers(0, 1 << 30)


@st.composite
def rules(draw: st.DrawFn) -> Rules:
    return Rules(
        draw(st.booleans()),
        draw(st.sampled_from((False, False, True))),
        draw(st.booleans()),
        draw(st.booleans()),
    )


class Life:
    """A random topic that grows ledger by ledger."""

    def __init__(self, seed: int, archive: Path, entries: int = 25) -> None:
        self.draw = random.Random(seed)
        self.author = Author(seed)
        self.folder = topic_folder(archive, self.draw.choice(TOPICS))
        self.model = ModelTopic()
        self._ledger = self.draw.randrange(5)
        self._most = entries

    def grow(self) -> None:
        """Add one or two ledgers. Ledgers wholly below the horizon may be deleted."""
        for _ in range(self.draw.choice((1, 1, 2))):
            self._ledger += self.draw.choice((1, 2, 150))
            entries = self.author.entries(self.draw.randrange(1, self._most))
            if self.draw.random() < 0.3:
                entries += self.author.end_transactions()
            self.add(entries)
        if self.draw.random() < 0.5 and self.model.horizon is not None:
            for path in self.folder.glob(f"*-ledger-*{INDEX_SUFFIX}"):
                ledger = int(path.name.removesuffix(INDEX_SUFFIX).rpartition("-")[2])
                data = path.with_name(path.name.removesuffix(INDEX_SUFFIX))
                if ledger < self.model.horizon.ledger and data.name != self.compacted_object:
                    path.unlink()
                    data.unlink()
            self.model.raw = [
                each for each in self.model.raw if each[0].ledger >= self.model.horizon.ledger
            ]

    def add(self, entries: list[bytes]) -> None:
        put_ledger(
            self.folder,
            self._ledger,
            entries,
            self.draw.choice((600, 4000, 1 << 20)) + max(map(len, entries)),
        )
        self.model.raw += [(Position(self._ledger, n), entry) for n, entry in enumerate(entries)]

    @property
    def compacted_object(self) -> str:
        manifest = read_manifest(str(self.folder))
        return "" if manifest is None else manifest.object

    def check(self, moved: bool, report: CompactionReport, folder: Path | None = None) -> None:
        """Check that the folder agrees with the model after a round."""
        (told,) = report.partitions
        assert (told.status is Status.CLEANED) == moved, told.reason
        assert moved or told.status is Status.SKIPPED
        if self.model.horizon is None:
            assert read_manifest(str(self.folder)) is None
            return
        manifest = read_manifest(str(folder or self.folder))
        assert manifest is not None and manifest.horizon == self.model.horizon
        found = read_compacted(folder or self.folder)
        assert [content(*each) for each in found] == [
            content(*each) for each in self.model.compacted
        ]
        assert not moved or manifest.messages <= told.records_after


@contextmanager
def life(seed: int, entries: int = 25) -> Iterator[Life]:
    with tempfile.TemporaryDirectory(prefix="lastwrite-topic-", dir=SCRATCH) as folder:
        yield Life(seed, Path(folder) / "archive", entries)


def run(folder: Path, rules: Rules, **arguments: Any) -> CompactionReport:
    config = {
        "topicCompactionRetainNullKey": rules.retain,
        "exposingBrokerEntryMetadataToClientEnabled": rules.keeps_prefix,
        **({"compactionServiceFactoryClassName": EVENT_TIME} if rules.event_time else {}),
    }
    call = arguments.pop("call", lastwrite.compact)
    found: CompactionReport = call(
        str(folder),
        config=config,
        now_ms=START_MS,
        spark=INLINE,
        like_broker=rules.like_broker,
        **arguments,
    )
    return found


@given(seeds, rules(), st.integers(1, 4))
def test_surviving_messages_follow_the_rules(seed: int, rules: Rules, rounds: int) -> None:
    with life(seed) as topic:
        for _ in range(rounds):
            topic.grow()
            moved = topic.model.compact(rules)
            topic.check(moved, run(topic.folder, rules))


@given(
    seed=seeds,
    rules=rules(),
    piece_bytes=st.sampled_from([1, 500, 3000]),
    bits=st.integers(0, 5),
    limits=st.builds(
        Limits,
        chunk_bytes=st.sampled_from([100, 900]),
        block_entries=st.integers(1, 9),
        slice_bytes=st.sampled_from([16, 100]),
    ),
    exact=st.booleans(),
    block_bytes=st.sampled_from([200, 1500]),
)
def test_piece_sizes_do_not_change_the_result(
    seed: int,
    rules: Rules,
    piece_bytes: int,
    bits: int,
    limits: Limits,
    exact: bool,
    block_bytes: int,
) -> None:
    with life(seed) as topic:
        for _ in range(2):
            topic.grow()
            with (
                patch("lastwrite.engine.pieces._PIECE_BYTES", piece_bytes),
                patch("lastwrite.engine.pieces._LEAST_PIECE_BYTES", piece_bytes),
                patch("lastwrite.engine.shares._LEAST_PART_BYTES", 1),
                patch("lastwrite.spark.work.InlineRunner.workers", 3),
                patch("lastwrite.engine.plan.bucket_bits", lambda _: bits),
                patch("lastwrite.spark.memory.MemoryPlan.limits", lambda _: limits),
                patch("lastwrite.pulsar.store.survey._MARK_BYTES", 400),
                patch("lastwrite.pulsar.store.staging.BLOCK_BYTES", block_bytes),
            ):
                report = run(topic.folder, rules, exact=exact)
            topic.check(topic.model.compact(rules), report)


@given(seeds, rules())
def test_copy_equals_a_round_in_place(seed: int, rules: Rules) -> None:
    with life(seed) as topic:
        for _ in range(2):
            topic.grow()
            before = contents(topic.folder)
            target = topic.folder.parents[3].with_name("copy")
            shutil.rmtree(target, ignore_errors=True)
            copied = run(topic.folder, rules, to=str(target))
            assert contents(topic.folder) == before
            moved = topic.model.compact(rules)
            copy = target / topic.folder.relative_to(topic.folder.parents[3])
            if topic.model.horizon is not None:
                topic.check(moved, copied, copy)
            topic.check(moved, run(topic.folder, rules))
            # The copy can grow like the topic.
            again, second = run(copy, rules).partitions, run(topic.folder, rules).partitions
            assert [(each.status, each.reason) for each in again] == [
                (each.status, each.reason) for each in second
            ]


@given(seeds, rules())
def test_plan_predicts_the_round(seed: int, rules: Rules) -> None:
    with life(seed) as topic:
        topic.grow()
        before = contents(topic.folder)
        planned = run(topic.folder, rules, call=lastwrite.plan).partitions
        assert contents(topic.folder) == before
        done = run(topic.folder, rules).partitions
        for plan, report in zip(planned, done, strict=True):
            for name in (
                "status",
                "reason",
                "records_after",
                "bytes_after",
                "segments_after",
                "verdicts",
            ):
                assert getattr(plan, name) == getattr(report, name), name


@pytest.mark.parametrize("cut", [1, 3])
def test_incremental_rounds_equal_one_round(cut: int) -> None:
    for seed in range(8):
        results = []
        for parts in (1, cut + 1):
            with life(seed) as topic:
                author = Author(seed)
                entries = [*author.entries(60), *author.end_transactions()]
                size = -(-len(entries) // (cut + 1))
                for n in range(cut + 1):
                    put_ledger(topic.folder, 10 + n, entries[n * size : (n + 1) * size])
                    if parts > 1:
                        run(topic.folder, Rules(retain=bool(seed % 2)))
                if parts == 1:
                    run(topic.folder, Rules(retain=bool(seed % 2)))
                results.append([content(*each) for each in read_compacted(topic.folder)])
        assert results[0] == results[1]
