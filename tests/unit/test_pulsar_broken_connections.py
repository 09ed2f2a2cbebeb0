"""Tests of reading live ledgers through connections that break after a number of bytes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lastwrite.errors import RemoteFailed
from lastwrite.pulsar.network.bookies import Bookies, LiveLedger
from lastwrite.pulsar.rules.live_settings import LiveConfig
from tests.support.breaking import BreakingProxy
from tests.unit import test_pulsar_bookies as served

LARGE = 7


def payload(entry: int, large_bytes: int) -> bytes:
    return bytes([entry]) * (large_bytes if entry == LARGE else 1_500)


@contextmanager
def broken(sizes: list[int], large_bytes: int = 1_500) -> Iterator[tuple[str, LiveLedger]]:
    """A bookie behind connections that break, and a ledger of 40 entries on it."""

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


def test_timeout_is_a_setting() -> None:
    store = {"metadataStoreUrl": "zk:a:1"}
    assert LiveConfig.from_names(store).api_timeout_ms == 60_000
    assert LiveConfig.from_names({**store, "default.api.timeout.ms": "500"}).api_timeout_ms == 500
