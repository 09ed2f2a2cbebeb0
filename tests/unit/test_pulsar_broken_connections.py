"""Tests of reading live ledgers through connections that break after a number of bytes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from lastwrite.archive.following import FollowRequest
from lastwrite.errors import LogError, RemoteFailed
from lastwrite.model.progress import NoProgress
from lastwrite.model.work import Limits
from lastwrite.pulsar.following import PulsarFollowResult
from lastwrite.pulsar.format.names import TopicName
from lastwrite.pulsar.jobs import fetch
from lastwrite.pulsar.network.bookies import Bookies, LiveLedger
from lastwrite.pulsar.network.cluster import PulsarCluster
from lastwrite.pulsar.network.link import PulsarConnectionBroken
from lastwrite.pulsar.rules.live_settings import LiveConfig
from tests.support.breaking import BreakingProxy
from tests.unit import test_pulsar_bookies as served

LARGE = 7


def payload(entry: int, large_bytes: int) -> bytes:
    return bytes([entry]) * (large_bytes if entry == LARGE else 1_500)


@contextmanager
def broken(sizes: list[int], large_bytes: int = 1_500) -> Iterator[tuple[str, LiveLedger]]:
    """A bookie behind connections that break, and a ledger with 40 entries on it."""

    def answer(operation: int, ledger: int, entry: int) -> bytes:
        return served.answered(
            2, 0, ledger, entry, served.packet(entry, payload(entry, large_bytes))
        )

    proxy = BreakingProxy(sizes)
    with served.bookie(answer) as address, proxy.before(address):
        yield proxy.address, served.ledger(proxy.address)
        assert proxy.breaks


@pytest.mark.parametrize("sizes", [[2_000], [2_000, 40_000, 5_500], [39_000]])
def test_all_entries_arrive_through_broken_connections(sizes: list[int]) -> None:
    with (
        broken(sizes) as (address, ledger),
        Bookies(lambda _: address, 1.0, patience_s=5) as bookies,
    ):
        found = [data for _, data in bookies.read(ledger, 0, 39)]
    assert found == [payload(n, 1_500) for n in range(40)]


def test_entry_that_never_arrives_completely_is_named_within_the_timeout() -> None:
    begin = time.monotonic()
    with (
        broken([9_000, 30_000], large_bytes=100_000) as (address, ledger),
        Bookies(lambda _: address, 1.0, patience_s=1) as bookies,
    ):
        came = 0
        with pytest.raises(RemoteFailed, match=r"from entry 7 on for 1 s: ") as error:
            for _ in bookies.read(ledger, 0, 39):
                came += 1
    assert came == LARGE and "default.api.timeout.ms" in str(error.value)
    assert time.monotonic() - begin < 20


def test_stop_ends_the_retries_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every connection breaks, and the timeout is an hour."""

    def look(cluster: PulsarCluster, topic: TopicName) -> Iterator[None]:
        asked.set()
        raise PulsarConnectionBroken("the connection broke")

    asked, name = threading.Event(), TopicName.parse("persistent://public/default/t")
    monkeypatch.setattr(fetch, "temporary_subscription", contextmanager(look))
    monkeypatch.setattr(PulsarFollowResult, "_names", lambda self, cluster: [name])
    config = {"metadataStoreUrl": "zk:localhost:1", "default.api.timeout.ms": "3600000"}
    follow = PulsarFollowResult(
        FollowRequest(
            sources=[name.full],
            to=str(tmp_path / "archive"),
            topic=None,
            partition=None,
            config=lambda: config,
            overrides=(),
            limits=Limits(),
            progress=NoProgress(),
        )
    )
    with ThreadPoolExecutor(1) as pool:
        polled = pool.submit(follow.fetch)
        assert asked.wait(20)
        follow.stop()
        with pytest.raises(LogError, match="the command was stopped"):
            polled.result(5)


def test_stop_ends_the_retries_of_an_entry() -> None:
    tries = []

    def check() -> None:
        tries.append(1)
        if len(tries) > 3:
            raise LogError("the command was stopped")

    with (
        broken([9_000, 30_000], large_bytes=100_000) as (address, ledger),
        Bookies(lambda _: address, 1.0, patience_s=3600, check=check) as bookies,
        pytest.raises(LogError, match="the command was stopped"),
    ):
        list(bookies.read(ledger, 0, 39))


def test_timeout_is_a_setting() -> None:
    store = {"metadataStoreUrl": "zk:a:1"}
    assert LiveConfig.from_names(store).api_timeout_ms == 60_000
    assert LiveConfig.from_names({**store, "default.api.timeout.ms": "500"}).api_timeout_ms == 500
