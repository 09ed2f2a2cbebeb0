"""Properties of every Kafka compaction, checked against a plain Python reference.

Each example is a log's history: it grows and is cleaned in turn, and the clock passes delete
horizons. The engine works on one copy of the folder, and the reference on another.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Set
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

from hypothesis import example, given
from hypothesis import strategies as st

from lastwrite.model.log import ProblemKind
from lastwrite.model.work import Limits
from tests.support.engine import compact
from tests.support.files import contents
from tests.support.kafka import reference
from tests.support.kafka.logs import (
    NAME,
    SCRATCH,
    bases,
    check_indexes,
    has_hole_between_segments,
    read_aborted,
    read_checkpoint,
    read_files,
    read_segments,
    write_checkpoint,
)
from tests.support.kafka.model import (
    ModelBatch,
    ModelRecord,
    ModelSegment,
    aborted_offsets,
    fold,
    readable,
    records_of,
)
from tests.support.kafka.producers import snapshots
from tests.support.kafka.strategies import DAY_MS, START_MS, Life, Phase, append, lives


@contextmanager
def empty_root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="lastwrite-life-", dir=SCRATCH) as folder:
        root = Path(folder) / "log"
        (root / NAME).mkdir(parents=True)
        yield root


def grow(root: Path, phase: Phase, life: Life) -> None:
    end = append(root / NAME, phase, life.interval_bytes)
    write_checkpoint(root, "replication-offset-checkpoint", {NAME: int(end * phase.replicated)})


def twin_of(root: Path) -> Path:
    twin = root.with_name("twin")
    shutil.rmtree(twin, ignore_errors=True)
    shutil.copytree(root, twin)
    return twin


def batches_of(segments: tuple[ModelSegment, ...], old: Set[int] = frozenset()) -> list[ModelBatch]:
    """All batches as readers see them. Base timestamps are dropped unless they are horizons.

    ``old`` has the base offsets of batches that still have an old format, because their segments
    were left alone. They are compared as if converted, without their delete horizons.
    """
    seen = []
    for batch in (batch for segment in segments for batch in segment.batches):
        horizon = None if batch.base_offset in old else batch.horizon_ms
        epoch = -1 if batch.base_offset in old else batch.leader_epoch
        seen.append(
            replace(
                batch,
                base_timestamp_ms=horizon or 0,
                horizon_ms=horizon,
                magic=2,
                leader_epoch=epoch,
            )
        )
    return seen


def assert_same_batches(root: Path, twin: Path) -> None:
    ours, wanted = read_segments(root / NAME), read_segments(twin / NAME)
    old = {batch.base_offset for segment in ours for batch in segment.batches if batch.magic < 2}
    assert batches_of(ours, old) == batches_of(wanted, old)
    # An unchanged segment keeps the index entries of transactions whose data is gone.
    entries = {entry for segment in ours for entry in segment.aborted}
    assert entries >= {entry for segment in wanted for entry in segment.aborted}


def life_of(*segments: tuple[ModelBatch, ...], replicated: float = 1.0) -> Life:
    """A log of these segments, cleaned once."""
    return Life(
        (Phase(segments, START_MS, replicated),),
        {"cleanup.policy": "compact", "index.interval.bytes": "0"},
    )


def wrapper(magic: int) -> ModelBatch:
    """An old batch in gzip: ``a`` at offset 0, then a keyless record, which a round removes."""
    records = (ModelRecord(0, -1, b"a", b"1"), ModelRecord(1, -1, None, b"1"))
    return ModelBatch(0, 1, records, codec=1, magic=magic)


def keyless(offset: int) -> ModelBatch:
    return ModelBatch(
        offset, offset, (ModelRecord(offset, START_MS, None, b"1"),), max_timestamp_ms=START_MS
    )


@given(lives(codecs=(0,)))
def test_like_broker_round_leaves_the_files_of_the_reference(life: Life) -> None:
    with empty_root() as root:
        for phase in life.phases:
            grow(root, phase, life)
            twin = twin_of(root)
            compact(root, life.config, phase.now_ms, like_broker=True)
            reference.compact(twin, life.config, phase.now_ms)
            assert bases(root / NAME) == bases(twin / NAME)
            for base in bases(root / NAME):
                assert read_files(root / NAME, base) == read_files(twin / NAME, base), base
                assert read_aborted(root / NAME, base) == read_aborted(twin / NAME, base), base
            assert snapshots(root / NAME) == snapshots(twin / NAME)
            file = "cleaner-offset-checkpoint"
            assert read_checkpoint(root, file) == read_checkpoint(twin, file)


@given(lives(), st.booleans())
def test_round_leaves_the_batches_of_the_reference(life: Life, like_broker: bool) -> None:
    with empty_root() as root:
        for phase in life.phases:
            grow(root, phase, life)
            twin = twin_of(root)
            compact(root, life.config, phase.now_ms, like_broker=like_broker)
            found = reference.compact(twin, life.config, phase.now_ms)
            assert_same_batches(root, twin)
            for base in bases(root / NAME):
                if base < found.first_uncleanable:
                    check_indexes(root / NAME, base)


# The log ends in an old batch whose last record is removed. If the active segment takes part, only
# the batch shows where the log ends.
@example(life=life_of((wrapper(0),)), like_broker=False)
@example(life=life_of((wrapper(1),)), like_broker=True)
@example(
    life=life_of((wrapper(0),), ()), like_broker=False
)  # here the active segment's name shows the log end
@example(
    life=life_of((keyless(0),), (keyless(1),), replicated=0.5), like_broker=False
)  # the high watermark is below the log end
@given(lives(), st.booleans())
def test_round_with_the_active_segment_leaves_the_batches_of_the_reference(
    life: Life, like_broker: bool
) -> None:
    with empty_root() as root:
        for phase in life.phases:
            grow(root, phase, life)
            twin, end = twin_of(root), reference.listed(root).end_offset
            compact(root, life.config, phase.now_ms, like_broker=like_broker, include_active=True)
            reference.compact(twin, life.config, phase.now_ms, include_active=True)
            assert_same_batches(root, twin)
            assert reference.listed(root).end_offset == reference.listed(twin).end_offset == end


@given(
    life=lives(),
    piece_bytes=st.sampled_from([1, 200, 1000]),
    part_bytes=st.sampled_from([1, 300]),
    bits=st.integers(0, 5),
    limits=st.builds(
        Limits,
        chunk_bytes=st.sampled_from([100, 500]),
        block_entries=st.integers(1, 9),
        slice_bytes=st.sampled_from([16, 100]),
    ),
    exact=st.booleans(),
    is_whole=st.booleans(),
)
def test_piece_sizes_do_not_change_the_files(
    life: Life,
    piece_bytes: int,
    part_bytes: int,
    bits: int,
    limits: Limits,
    exact: bool,
    is_whole: bool,
) -> None:
    with empty_root() as root:
        for phase in life.phases:
            grow(root, phase, life)
            twin = twin_of(root)
            gaps = [ProblemKind.GAP] * has_hole_between_segments(root / NAME)
            compact(twin, life.config, phase.now_ms, like_broker=True)
            with (
                patch("lastwrite.engine.pieces._PIECE_BYTES", piece_bytes),
                patch("lastwrite.engine.shares._LEAST_PART_BYTES", part_bytes),
                patch("lastwrite.spark.work.InlineRunner.workers", 3),
                patch("lastwrite.engine.plan.bucket_bits", lambda _: bits),
                patch("lastwrite.engine.round.fits_one_stage", lambda *_: is_whole),
                patch("lastwrite.spark.memory.MemoryPlan.limits", lambda _: limits),
            ):
                [told] = compact(
                    root, life.config, phase.now_ms, like_broker=True, exact=exact
                ).partitions
            assert [problem.kind for problem in told.problems] == gaps
            assert contents(root / NAME) == contents(twin / NAME)


@given(lives(), st.booleans())
def test_idle_log_loses_its_expired_tombstones(life: Life, include_active: bool) -> None:
    """Rounds without dirty records equal the plain model's, and keep the values by key."""
    with empty_root() as root:
        for phase in life.phases:
            grow(root, phase, life)
            compact(root, life.config, phase.now_ms, include_active=include_active)
        table = fold(readable(read_segments(root / NAME)))
        end = reference.listed(root).end_offset
        now_ms = life.phases[-1].now_ms
        for _ in range(3):
            twin = twin_of(root)
            for folder, round_of in ((root, compact), (twin, reference.compact)):
                round_of(
                    folder,
                    life.config,
                    now_ms,
                    include_active=include_active,
                    drop_expired_deletes=True,
                )
            assert_same_batches(root, twin)
            assert fold(readable(read_segments(root / NAME))) == table
            assert reference.listed(root).end_offset == end
            now_ms += 10 * DAY_MS


@given(lives())
def test_reader_ends_with_the_same_table(life: Life) -> None:
    with empty_root() as root:
        written: list[ModelRecord] = []
        hidden: set[int] = set()
        for phase in life.phases:
            end = reference.listed(root).end_offset if bases(root / NAME) else 0
            grow(root, phase, life)
            before = read_segments(root / NAME)
            hidden |= aborted_offsets(before)
            written += [
                record
                for segment in before
                for batch in segment.batches
                if not batch.control
                for record in batch.records
                if record.offset >= end
            ]
            compact(root, life.config, phase.now_ms)
            committed = [record for record in written if record.offset not in hidden]
            assert fold(readable(read_segments(root / NAME))) == fold(committed)


@given(lives(), st.booleans())
def test_surviving_records_are_unchanged(life: Life, include_active: bool) -> None:
    with empty_root() as root:
        for phase in life.phases:
            grow(root, phase, life)
            segments, end = read_segments(root / NAME), reference.listed(root).end_offset
            before = records_of(segments)
            report = compact(root, life.config, phase.now_ms, include_active=include_active)
            after = records_of(read_segments(root / NAME))
            offsets = [record.offset for record in after]
            assert offsets == sorted(set(offsets))
            assert set(after) <= set(before)
            assert reference.listed(root).end_offset == end
            # The last committed write of a key is only removed if it is a tombstone.
            last = {record.key: record for record in readable(segments) if record.key is not None}
            assert all(record.value is None for record in last.values() if record not in after)
            [told] = report.partitions
            assert told.bytes_after == sum(
                len(read_files(root / NAME, base).log) for base in bases(root / NAME)
            )
            if told.records_after is not None:
                assert (told.records_before, told.records_after) == (len(before), len(after))


@given(lives(min_rounds=2), st.booleans())
def test_second_round_changes_nothing(life: Life, like_broker: bool) -> None:
    with empty_root() as root:
        for phase in life.phases:
            grow(root, phase, life)
            compact(root, life.config, phase.now_ms, like_broker=like_broker)
            before = contents(root / NAME)
            compact(root, life.config, phase.now_ms + 10**12, like_broker=like_broker)
            assert contents(root / NAME) == before


@given(lives())
def test_exact_keys_and_fingerprints_leave_the_same_files(life: Life) -> None:
    with empty_root() as root:
        for phase in life.phases:
            grow(root, phase, life)
            twin = twin_of(root)
            compact(root, life.config, phase.now_ms, like_broker=True)
            compact(twin, life.config, phase.now_ms, like_broker=True, exact=True)
            assert contents(root / NAME) == contents(twin / NAME)


@given(lives(), st.booleans())
def test_copy_equals_a_round_in_place(life: Life, like_broker: bool) -> None:
    with empty_root() as root:
        for phase in life.phases:
            grow(root, phase, life)
            before, target = contents(root / NAME), root.with_name("copy")
            shutil.rmtree(target, ignore_errors=True)
            compact(root, life.config, phase.now_ms, like_broker=like_broker, to=str(target))
            assert contents(root / NAME) == before
            compact(root, life.config, phase.now_ms, like_broker=like_broker)
            assert contents(target / NAME) == contents(root / NAME)
