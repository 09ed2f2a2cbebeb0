"""Properties of ``verify`` on RocketMQ: it accepts every correct compaction, and no other."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

import lastwrite
from lastwrite.reports.verification import VerifyReport
from lastwrite.spark.inline import INLINE
from tests.property.test_rocketmq_compaction import (
    RETENTION_MS,
    Life,
    empty_store,
    grow,
    lives,
    run,
)
from tests.support.rocketmq.model import ModelMessage, ModelPair, ModelQueue, message, write_store
from tests.support.rocketmq.model import compact as model_compact
from tests.support.rocketmq.model import compact_like_broker as model_like_broker

WAYS = ("default", "include_active", "like_broker")


def verified(after: Path, before: Path, now_ms: int, retention_ms: int) -> VerifyReport:
    return lastwrite.verify(
        str(after),
        before=str(before),
        config={"delete.retention.ms": retention_ms},
        now_ms=now_ms,
        spark=INLINE,
    )


@given(lives(), st.sampled_from(WAYS), st.randoms(use_true_random=False))
def test_each_round_is_verified_and_each_fault_is_found(
    life: Life, way: str, rng: random.Random
) -> None:
    queues = life.new_queues()
    retention_ms = 0 if way == "like_broker" else RETENTION_MS
    with empty_store() as root:
        before, struck = root.with_name("before"), root.with_name("struck")
        for phase in life.phases:
            live = grow(root, queues, phase)
            if not live:
                continue
            shutil.rmtree(before, ignore_errors=True)
            shutil.copytree(root, before)
            earlier = {queue.number: queue.messages for queue in live}
            run(root, phase.now_ms, **({} if way == "default" else {way: True}))
            for queue in live:
                if way == "like_broker":
                    model_like_broker(queue)
                else:
                    is_whole = way == "include_active"
                    model_compact(queue, phase.now_ms, RETENTION_MS, include_active=is_whole)
            report = verified(root, before, phase.now_ms, retention_ms)
            assert report.exit_status == 0, report.problems
            for told in report.partitions:
                known = told.comparison
                assert known is not None
                assert known.records_before == len(earlier[told.partition])
                gone = known.superseded + known.expired + known.keyless
                assert known.records_before - known.records_after == gone
            queue = rng.choice(live)
            was, due_ms = earlier[queue.number], phase.now_ms - retention_ms
            for made, promise, offset in faults(queue, was, due_ms, rng):
                shutil.rmtree(struck, ignore_errors=True)
                shutil.copytree(root, struck)
                write_store(struck, [*(one for one in live if one is not queue), made])
                report = verified(struck, before, phase.now_ms, retention_ms)
                broken = {(one.promise, one.offset) for one in report.violations}
                if promise == "damaged":
                    assert report.exit_status == 3, (promise, report.problems)
                else:
                    # Without its last record a queue ends before its position, which is damage.
                    is_end = promise.startswith("lost") and offset == queue.end_offset - 1
                    assert (promise, offset) in broken or (
                        is_end and report.exit_status in (3, 5)
                    ), (
                        promise,
                        offset,
                        report.problems,
                    )


Fault = tuple[ModelQueue, str, int]


def faults(
    queue: ModelQueue, was: list[ModelMessage], due_ms: int, rng: random.Random
) -> Iterator[Fault]:
    """The queue after a round with one fault, the promise that it breaks, and the offset."""
    there = queue.messages
    compared = [one for one in was if one.offset <= queue.position]
    last = {one.key: one for one in compared}
    for one in rng.sample(there, min(3, len(there))):
        changed = without(queue, one)
        if one.offset > queue.position:
            yield changed, "lost_tail", one.offset
        elif last[one.key] is one and not one.is_delete:
            yield changed, "lost", one.offset
        elif last[one.key] is one and one.store_ms > due_ms:
            yield changed, "lost_delete", one.offset
        byte = rng.choice((16, 17, 40, 41))  # the application's flag and the client's timestamp
        content = bytearray(one.content)
        content[byte] ^= 1 << rng.randrange(8)
        yield swapped(queue, one, replace(one, content=bytes(content))), "changed", one.offset
    offsets = {one.offset for one in there}
    older = [
        one
        for one in compared
        if last[one.key].is_delete
        and last[one.key].offset not in offsets
        and one is not last[one.key]
    ]
    if older:
        back = rng.choice(older)
        yield with_message(queue, back), "revived", back.offset
    free = [n for n in range(was[0].offset, was[-1].offset) if n not in {one.offset for one in was}]
    if free:
        new = message(rng.choice(free), "a", b"new", was[0].store_ms, queue=queue.number)
        yield with_message(queue, new), "added", new.offset
    for n, pair in enumerate(queue.pairs):
        if len(pair.messages) > 1:
            mixed = replace(pair, messages=(*pair.messages[1:], pair.messages[0]))
            yield (
                replace(queue, pairs=[*queue.pairs[:n], mixed, *queue.pairs[n + 1 :]]),
                "damaged",
                0,
            )
            return


def without(queue: ModelQueue, lost: ModelMessage) -> ModelQueue:
    pairs = [
        replace(pair, messages=tuple(one for one in pair.messages if one is not lost))
        for pair in queue.pairs
    ]
    return replace(queue, pairs=[*(one for one in pairs[:-1] if one.messages), pairs[-1]])


def swapped(queue: ModelQueue, was: ModelMessage, new: ModelMessage) -> ModelQueue:
    pairs = [
        replace(pair, messages=tuple(new if one is was else one for one in pair.messages))
        for pair in queue.pairs
    ]
    return replace(queue, pairs=pairs)


def with_message(queue: ModelQueue, new: ModelMessage) -> ModelQueue:
    """The queue with one more message at its place, in one file that is large enough."""
    messages = sorted([*queue.messages, new], key=lambda one: one.offset)
    size = 46 * (len(messages) + 2)
    log_bytes = -(-(sum(one.size for one in messages) + 8) // size) * size
    return ModelQueue(
        log_bytes,
        size,
        queue.number,
        queue.topic,
        queue.position,
        [ModelPair(0, tuple(messages))],
    )
