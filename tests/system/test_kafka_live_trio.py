"""Tests of ``fetch`` from three live brokers: leaders move and die, and an election loses
records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import lastwrite
from lastwrite.kafka.network import live_log
from lastwrite.kafka.store.archive_writer import KafkaArchiveWriter
from lastwrite.reports.fetching import FetchedLog
from tests.conformance.test_kafka_archive import Archive
from tests.support.kafka.broker import Unavailable, kafka_home
from tests.support.kafka.trio import Trio, wait_for
from tests.system.test_kafka_live import SMALL, check_same, refused, write_plain

pytest.importorskip("kio")
pytestmark = [pytest.mark.broker, pytest.mark.long]


@pytest.fixture
def trio(tmp_path: Path) -> Iterator[Trio]:
    try:
        made = Trio(kafka_home(), tmp_path)
    except Unavailable as reason:
        pytest.skip(str(reason))
    with made:
        yield made


def one(trio: Trio, to: Path, topic: str) -> FetchedLog:
    (found,) = lastwrite.fetch([f"kafka://{trio.address}"], str(to), topic=topic).partitions
    assert isinstance(found, FetchedLog)
    return found


def amid_a_fetch(patch: pytest.MonkeyPatch, *happens: tuple[int, Callable[[], object]]) -> None:
    """During a fetch, call each function once the batches up to its offset have been appended."""
    real, left = KafkaArchiveWriter.append, list(happens)

    def append(self: KafkaArchiveWriter, data: Any, table: Any) -> None:
        real(self, data, table)
        while left and int(table["next_offset"][-1]) >= left[0][0]:
            left.pop(0)[1]()

    patch.setattr(KafkaArchiveWriter, "append", append)
    patch.setattr(live_log, "_FETCH_BYTES", 2000)


def test_fetch_follows_moving_and_dying_leaders(
    trio: Trio, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trio.create_topic("moves", [1, 2, 3], SMALL)
    write_plain(trio.broker_of("moves"), "moves", 400)
    archive = Archive(tmp_path / "archive", "moves-0")

    def another_leads() -> None:
        before, replicas = trio.leader("moves"), trio.in_sync("moves")
        trio.brokers[before].kill()
        wait_for(lambda: trio.leader("moves") not in (-1, before))
        trio.brokers[before].start()
        wait_for(lambda: trio.in_sync("moves") == replicas)

    amid_a_fetch(
        monkeypatch,
        (50, another_leads),
        (150, lambda: trio.move("moves", [1])),
        (250, lambda: trio.move("moves", [3, 2])),
        (300, another_leads),
    )
    found = one(trio, archive.to, "moves")

    assert found.reason is None and found.end_offset == 400
    check_same(trio.broker_of("moves"), archive)
    write_plain(trio.broker_of("moves"), "moves", 50)
    assert one(trio, archive.to, "moves").end_offset == 450
    check_same(trio.broker_of("moves"), archive)
    assert len(archive.log()["epochs"]) >= 2


UNCLEAN = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}


def let_one_lag(trio: Trio, topic: str) -> None:
    """Broker 3 stops with 100 records, while broker 2 has 150."""
    trio.create_topic(topic, [2, 3], UNCLEAN)
    write_plain(trio.brokers[2], topic, 100)
    trio.brokers[3].kill()
    wait_for(lambda: trio.in_sync(topic) == {2})
    write_plain(trio.brokers[2], topic, 50)


def let_it_lead(trio: Trio, topic: str) -> None:
    """Stop broker 2, so that broker 3, which has fewer records, becomes the leader."""
    trio.brokers[2].kill()
    trio.brokers[3].start()
    wait_for(lambda: trio.leader(topic) == 3)


def test_unclean_election_is_refused(trio: Trio, tmp_path: Path) -> None:
    let_one_lag(trio, "cut")
    archive = Archive(tmp_path / "archive", "cut-0")
    assert one(trio, archive.to, "cut").end_offset == 150
    before = (archive.folder / "manifest.json").read_bytes()
    let_it_lead(trio, "cut")
    for more in (0, 20, 100):  # the new end is below, at and beyond the archive's end
        write_plain(trio.brokers[3], "cut", more, "w")
        why = refused(one(trio, archive.to, "cut"), archive, before)
        assert (
            "offsets 100 to 150 have leader epoch" in why
            and "a leader election truncated the log" in why
        )
    trio.brokers[2].start()  # truncates its own log
    wait_for(lambda: trio.in_sync("cut") == {2, 3})
    assert "a leader election truncated the log" in refused(
        one(trio, archive.to, "cut"), archive, before
    )
    elsewhere = Archive(tmp_path / "elsewhere", "cut-0")
    assert one(trio, elsewhere.to, "cut").end_offset == 220
    check_same(trio.brokers[3], elsewhere)


def test_unclean_election_during_a_fetch_mixes_no_histories(
    trio: Trio, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The archive never has the beginning of one history and the end of the other."""
    let_one_lag(trio, "amid")
    archive = Archive(tmp_path / "archive", "amid-0")

    def elect() -> None:
        let_it_lead(trio, "amid")
        write_plain(trio.brokers[3], "amid", 100, "w")

    amid_a_fetch(monkeypatch, (110, elect))
    found = one(trio, archive.to, "amid")
    assert found.reason is None and found.end_offset == 200
    check_same(trio.brokers[3], archive)
