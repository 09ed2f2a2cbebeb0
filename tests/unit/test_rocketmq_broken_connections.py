"""Tests of fetching a live queue over broken connections, and from a broker that disappears."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

import lastwrite
from lastwrite.errors import RemoteFailed
from lastwrite.reports.fetching import FetchedLog, HoldReason
from lastwrite.rocketmq.format.sides import CLEANUP_POLICY, COMPACTION_POLICY
from lastwrite.rocketmq.network.patience import Patience
from lastwrite.rocketmq.reports import Restoration
from lastwrite.spark.inline import INLINE
from tests.support.breaking import BreakingProxy
from tests.support.files import contents
from tests.support.rocketmq.live import messages_in
from tests.support.rocketmq.served import TOPIC, ServedQueue, serving
from tests.support.rocketmq.stores import StoreWriter

_RANDOM = Random(40)
DECLARED = [(TOPIC, "cleanup.policy", "compact")]
SHORT = {"default.api.timeout.ms": 1_500, "request.timeout.ms": 1_000}


@contextmanager
def broken(queue: ServedQueue, sizes: list[int]) -> Iterator[str]:
    """A name server and a broker behind connections that break."""
    proxy = BreakingProxy(sizes)
    queue.address = proxy.address
    with serving(queue) as address, proxy.before(address):
        yield f"rocketmq://{proxy.address}"
        assert proxy.breaks


def fetch(url: str, archive: Path, **config: object) -> FetchedLog:
    report = lastwrite.fetch([url], str(archive), topic=TOPIC, topic_config=DECLARED, config=config)
    (found,) = report.partitions
    assert isinstance(found, FetchedLog)
    return found


def fill(queue: ServedQueue, *sizes: int) -> None:
    for n, size in enumerate(sizes):
        queue.add(f"k{n % 7}", _RANDOM.randbytes(size))


def records(archive: Path) -> list[bytes]:
    return [message.body for message, _ in messages_in(archive, TOPIC, 0)]


@pytest.mark.parametrize("most", [6_000, 40_000])
@pytest.mark.parametrize("is_compacted", [False, True])
def test_fetch_completes_through_broken_connections(
    tmp_path: Path, most: int, is_compacted: bool
) -> None:
    queue, archive = ServedQueue(is_compacted=is_compacted), tmp_path / "archive"
    fill(queue, *[1_500] * 60)
    if is_compacted:
        queue.compact(5, 17)
    random = Random(1)
    with broken(queue, [random.randint(2_000, most) for _ in range(50)]) as url:
        found = fetch(url, archive)
    assert (found.reason, len(records(archive))) == (None, len(queue.messages))


@pytest.mark.parametrize("most", [6_000, 40_000])
def test_restore_through_breaking_connections_is_complete(tmp_path: Path, most: int) -> None:
    queue, store = ServedQueue(is_compacted=True), tmp_path / "store"
    fill(queue, *[1_500] * 60)
    queue.compact(3, 30)
    writer = StoreWriter(store)
    writer.topics[TOPIC] = {CLEANUP_POLICY: COMPACTION_POLICY}
    writer.send("other", b"1", {"KEYS": "a"})
    writer.write()
    random = Random(1)
    with broken(queue, [random.randint(2_000, most) for _ in range(50)]) as url:
        address = url.removeprefix("rocketmq://")
        found = lastwrite.restore(str(store), name_server=address, topic=TOPIC, spark=INLINE)
    assert isinstance(found, Restoration) and [each.pulled for each in found.queues] == [58]
    last = {f"k{n % 7}": n for n in queue.messages}
    assert lastwrite.latest(str(store), TOPIC).keys() == last.keys()
    files = {*store.iterdir(), *(store / "config").iterdir()} - {store / "config"}
    assert {each.path for each in found.untouched} == {*map(str, files)} - {f"{store}/compaction"}


def test_restore_keeps_the_store_if_a_message_never_arrives(tmp_path: Path) -> None:
    queue, store = ServedQueue(is_compacted=True), tmp_path / "store"
    fill(queue, *[1_500] * 20, 100_000)
    StoreWriter(store).write()
    before = contents(store)
    with broken(queue, [40_000, 9_000]) as url, pytest.raises(RemoteFailed) as failure:
        address = url.removeprefix("rocketmq://")
        lastwrite.restore(str(store), name_server=address, topic=TOPIC, timeout=1.5, spark=INLINE)
    assert "from offset 20 on" in str(failure.value)
    assert contents(store) == before


def test_fetch_keeps_messages_before_an_incomplete_one(tmp_path: Path) -> None:
    queue, archive = ServedQueue(), tmp_path / "archive"
    fill(queue, *[1_500] * 20, 100_000, *[1_500] * 20)
    with broken(queue, [40_000, 9_000, 30_000]) as url:
        found = fetch(url, archive, **SHORT)
    assert (found.first_offset, found.end_offset, found.held) == (0, 20, HoldReason.WAITING)
    assert found.reason is not None and "no message from offset 20 on arrived for" in found.reason
    assert "default.api.timeout.ms" in found.reason
    assert len(records(archive)) == 20
    with broken(queue, [150_000]) as url:  # a second run of the command continues there
        again = fetch(url, archive)
    assert (again.reason, again.first_offset, len(records(archive))) == (None, 20, 41)


def test_vanished_broker_ends_the_fetch_and_the_next_continues(tmp_path: Path) -> None:
    queue, archive = ServedQueue(), tmp_path / "archive"
    fill(queue, *[1_500] * 100)
    queue.is_silent = lambda asked: asked > 2
    with serving(queue) as address:
        begin = time.monotonic()
        found = fetch(f"rocketmq://{address}", archive, **SHORT)
        assert time.monotonic() - begin < 30
        assert found.held is HoldReason.WAITING and found.end_offset == len(records(archive)) > 0
        assert found.reason is not None and f"from offset {found.end_offset} on" in found.reason
        queue.is_silent = lambda asked: False
        again = fetch(f"rocketmq://{address}", archive)
    assert (again.reason, again.first_offset) == (None, found.end_offset)
    assert len(records(archive)) == 100


def test_first_fetch_of_a_compacted_queue_starts_again(tmp_path: Path) -> None:
    queue, archive = ServedQueue(is_compacted=True), tmp_path / "archive"
    fill(queue, *[1_500] * 100)
    queue.compact(50)
    queue.expire(90)  # the broker could not look up the compacted messages
    queue.is_silent = lambda asked: asked > 2
    with serving(queue) as address:
        assert fetch(f"rocketmq://{address}", archive, **SHORT).held is HoldReason.WAITING
        queue.is_silent = lambda asked: False
        assert fetch(f"rocketmq://{address}", archive).reason is None
    assert len(records(archive)) == 99


def test_partial_fetch_is_discarded_if_messages_expired_during_it(tmp_path: Path) -> None:
    queue, archive = ServedQueue(), tmp_path / "archive"
    fill(queue, *[1_500] * 200)

    def is_silent(asked: int) -> bool:
        if asked == 3:
            queue.expire(70)
        return asked > 4

    queue.is_silent = is_silent
    with serving(queue) as address:
        found = fetch(f"rocketmq://{address}", archive, **SHORT)
        assert found.held is HoldReason.WAITING
        queue.is_silent = lambda asked: False
        again = fetch(f"rocketmq://{address}", archive)
    assert (again.reason, again.first_offset, again.end_offset) == (None, 70, 200)
    assert len(records(archive)) == 130


def test_abandoned_queue_shortens_the_patience_until_messages_arrive() -> None:
    patience = Patience(60)
    assert patience.now_s == 60
    patience.note_abandoned()
    assert patience.now_s == 2
    patience.note_records()
    assert patience.now_s == 60
