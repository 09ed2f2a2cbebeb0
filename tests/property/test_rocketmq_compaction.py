"""Properties of every compaction of RocketMQ queues, checked against a plain Python model."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from lastwrite.model.work import Limits
from lastwrite.reports.compaction import PartitionReport, Status
from lastwrite.rocketmq.format.sides import decode_positions
from tests.support.engine import compact
from tests.support.kafka.logs import SCRATCH
from tests.support.rocketmq.model import (
    COMPRESSIONS,
    START_MS,
    ModelMessage,
    ModelPair,
    ModelQueue,
    message,
    read_files,
    write_store,
)
from tests.support.rocketmq.model import compact as model_compact
from tests.support.rocketmq.model import compact_like_broker as model_like_broker
from tests.support.rocketmq.model import files_of as model_files

RETENTION_MS = 1000


@dataclass(frozen=True)
class Phase:
    messages: tuple[tuple[int, ModelMessage], ...]  # the queue's number and the message
    now_ms: int


@dataclass(frozen=True)
class Life:
    log_bytes: int
    index_bytes: int
    queues: int
    phases: tuple[Phase, ...]

    def new_queues(self) -> list[ModelQueue]:
        return [
            ModelQueue(self.log_bytes, self.index_bytes, number) for number in range(self.queues)
        ]


@st.composite
def lives(draw: st.DrawFn, min_rounds: int = 1) -> Life:
    queues = draw(st.integers(1, 2))
    index_bytes = 46 * draw(st.integers(3, 6))
    log_bytes = index_bytes * draw(st.integers(5, 9))
    clock, offsets = START_MS, [draw(st.integers(0, 5))] * queues
    phases = []
    for _ in range(draw(st.integers(min_rounds, 3))):
        sent = []
        for _ in range(draw(st.integers(0, 30))):
            queue = draw(st.integers(0, queues - 1))
            clock += draw(st.integers(0, 300))
            offsets[queue] += draw(st.sampled_from((1, 1, 1, 4)))
            sent.append((queue, _message(draw, offsets[queue], clock, queue, log_bytes)))
        phases.append(Phase(tuple(sent), clock + draw(st.integers(0, 3000))))
        clock = phases[-1].now_ms
    return Life(log_bytes, index_bytes, queues, tuple(phases))


def _message(
    draw: st.DrawFn, offset: int, store_ms: int, queue: int, log_bytes: int
) -> ModelMessage:
    made = message(
        offset,
        draw(st.sampled_from(("a", "b", "c", "d e", "ü", "a "))),
        draw(st.binary(max_size=40)),
        store_ms,
        queue=queue,
        tag=draw(st.sampled_from((None, "TagA", "täg"))),
        compression=draw(st.sampled_from([*COMPRESSIONS])),
        v6=draw(st.booleans()),
        closed=draw(st.booleans()),
    )
    assert made.size + 8 <= log_bytes
    return made


@contextmanager
def empty_store() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="lastwrite-life-", dir=SCRATCH) as folder:
        root = Path(folder) / "store"
        root.mkdir()
        yield root


def grow(root: Path, queues: list[ModelQueue], phase: Phase) -> list[ModelQueue]:
    """Append messages as a broker does. Returns the queues that have a file."""
    for number, each in phase.messages:
        queues[number].append(each)
    write_store(root, queues)
    return [queue for queue in queues if queue.pairs]


def run(root: Path, now_ms: int, **arguments: Any) -> dict[int, PartitionReport]:
    config = {"delete.retention.ms": RETENTION_MS, **arguments.pop("config", {})}
    return {told.partition: told for told in compact(root, config, now_ms, **arguments).partitions}


def all_files(queues: list[ModelQueue]) -> dict[str, bytes]:
    return {place: content for queue in queues for place, content in model_files(queue).items()}


def positions(root: Path) -> dict[str, int]:
    path = root / "compaction" / "position-checkpoint"
    return decode_positions(path.read_bytes()) if path.exists() else {}


def model_positions(queues: list[ModelQueue]) -> dict[str, int]:
    return {
        f"{queue.topic}_{queue.number}": queue.position for queue in queues if queue.position >= 0
    }


@given(lives())
def test_each_file_keeps_its_name_and_its_survivors(life: Life) -> None:
    queues = life.new_queues()
    with empty_store() as root:
        for phase in life.phases:
            live = grow(root, queues, phase)
            if not live:
                continue
            before = {queue.number: len(queue.messages) for queue in live}
            told = run(root, phase.now_ms)
            for queue in live:
                if model_compact(queue, phase.now_ms, RETENTION_MS):
                    report = told[queue.number]
                    assert report.status in (Status.CLEANED, Status.UNCHANGED), report.reason
                    assert (report.records_before, report.records_after) == (
                        before[queue.number],
                        len(queue.messages),
                    )
                    assert report.segments_after == len(queue.pairs)
                    assert report.bytes_after == sum(pair.size for pair in queue.pairs)
                else:
                    assert told[queue.number].status is Status.SKIPPED
            assert read_files(root) == all_files(queues)
            assert positions(root) == model_positions(queues)
            assert sorted(path.name for path in root.iterdir()) in (
                ["compaction"],
                ["compaction", "lock"],
            )


@given(lives())
def test_like_broker_round_rewrites_all_files(life: Life) -> None:
    queues = life.new_queues()
    with empty_store() as root:
        for phase in life.phases:
            live = grow(root, queues, phase)
            if not live:
                continue
            told = run(root, phase.now_ms, like_broker=True)
            for queue in live:
                was_done = model_like_broker(queue)
                assert (told[queue.number].status is Status.CLEANED) == was_done, told[
                    queue.number
                ].reason
            assert read_files(root) == all_files(queues)
            assert positions(root) == model_positions(queues)


@given(lives(), st.booleans())
def test_active_file_keeps_the_last_record(life: Life, keeps_keyless: bool) -> None:
    queues = life.new_queues()
    with empty_store() as root:
        for phase in life.phases:
            live = grow(root, queues, phase)
            # A writer other than a broker may append messages without a key or with a blank key.
            for queue in live:
                for key in (None, " \t"):
                    odd = message(queue.end_offset, key, b"x", phase.now_ms, queue=queue.number)
                    last = queue.pairs[-1]
                    if (
                        odd.size + 8 <= queue.log_bytes - last.size
                        and len(last.messages) + 1 < queue.index_bytes // 46
                    ):
                        queue.pairs[-1] = ModelPair(
                            last.start, (*last.messages, odd), last.is_closed
                        )
            write_store(root, queues)
            if not live:
                continue
            config = {"keyless.messages": "keep" if keeps_keyless else "drop"}
            run(root, phase.now_ms, include_active=True, config=config)
            for queue in live:
                end = queue.end_offset
                model_compact(
                    queue,
                    phase.now_ms,
                    RETENTION_MS,
                    keeps_keyless=keeps_keyless,
                    include_active=True,
                )
                assert queue.end_offset == end
            assert read_files(root) == all_files(queues)


@given(
    life=lives(),
    piece_bytes=st.sampled_from([1, 200, 1000]),
    bits=st.integers(0, 5),
    limits=st.builds(
        Limits,
        chunk_bytes=st.sampled_from([100, 500]),
        block_entries=st.integers(1, 9),
        slice_bytes=st.sampled_from([16, 100]),
    ),
    exact=st.booleans(),
    like_broker=st.booleans(),
)
def test_piece_sizes_do_not_change_the_files(
    life: Life, piece_bytes: int, bits: int, limits: Limits, exact: bool, like_broker: bool
) -> None:
    queues = life.new_queues()
    with empty_store() as root:
        for phase in life.phases:
            live = grow(root, queues, phase)
            if not live:
                continue
            with (
                patch("lastwrite.engine.pieces._PIECE_BYTES", piece_bytes),
                patch("lastwrite.engine.pieces._LEAST_PIECE_BYTES", piece_bytes),
                patch("lastwrite.engine.shares._LEAST_PART_BYTES", 1),
                patch("lastwrite.spark.work.InlineRunner.workers", 3),
                patch("lastwrite.engine.plan.bucket_bits", lambda _: bits),
                patch("lastwrite.spark.memory.MemoryPlan.limits", lambda _: limits),
            ):
                run(root, phase.now_ms, exact=exact, like_broker=like_broker)
            for queue in live:
                if like_broker:
                    model_like_broker(queue)
                else:
                    model_compact(queue, phase.now_ms, RETENTION_MS)
            assert read_files(root) == all_files(queues)


@given(lives(), st.booleans())
def test_copy_equals_a_round_in_place(life: Life, like_broker: bool) -> None:
    queues = life.new_queues()
    with empty_store() as root:
        (root / "config").mkdir()
        (root / "config" / "topics.json").write_text("{}")
        for phase in life.phases:
            live = grow(root, queues, phase)
            if not live:
                continue
            before, target = read_files(root), root.with_name("copy")
            known = positions(root)
            shutil.rmtree(target, ignore_errors=True)
            first = run(root, phase.now_ms, like_broker=like_broker, to=str(target))
            assert (read_files(root), positions(root)) == (before, known)
            second = run(root, phase.now_ms, like_broker=like_broker)
            assert {number: told.status for number, told in first.items()} == {
                number: told.status for number, told in second.items()
            }
            assert read_files(target) == read_files(root)
            assert positions(target) == positions(root)
            assert (target / "config" / "topics.json").read_text() == "{}"
            for queue in live:
                if like_broker:
                    model_like_broker(queue)
                else:
                    model_compact(queue, phase.now_ms, RETENTION_MS)


@given(lives(), st.booleans())
def test_second_round_changes_nothing(life: Life, like_broker: bool) -> None:
    queues = life.new_queues()
    with empty_store() as root:
        for phase in life.phases:
            if not grow(root, queues, phase):
                continue
            run(root, phase.now_ms, like_broker=like_broker)
            before = read_files(root)
            run(root, phase.now_ms + 10**12, like_broker=like_broker)
            assert read_files(root) == before
            return


@given(lives(), st.booleans(), st.booleans())
def test_plan_predicts_the_round(life: Life, like_broker: bool, include_active: bool) -> None:
    import lastwrite
    from lastwrite.spark.inline import INLINE

    queues = life.new_queues()
    with empty_store() as root:
        if not grow(root, queues, life.phases[0]):
            return
        before = read_files(root)
        config = {"delete.retention.ms": RETENTION_MS, "min.cleanable.dirty.ratio": 0}
        arguments: dict[str, Any] = {
            "config": config,
            "now_ms": life.phases[0].now_ms,
            "spark": INLINE,
            "like_broker": like_broker,
            "include_active": include_active and not like_broker,
        }
        planned = lastwrite.plan(str(root), **arguments).partitions
        assert read_files(root) == before
        done = lastwrite.compact(str(root), **arguments).partitions
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
