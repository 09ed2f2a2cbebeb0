"""Tests of a follower's rounds with a scripted plan: events, retries and shutdown."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from unittest.mock import patch

import pytest
from prometheus_client import CollectorRegistry

from lastwrite.cleaner.events import Event, Events
from lastwrite.cleaner.follow import ArchiveFollower
from lastwrite.cleaner.following import Follow, system_of_follow
from lastwrite.cleaner.following_metrics import FollowingMetrics
from lastwrite.cleaner.pauses import Pauses, checked
from lastwrite.commands.metrics_page import page_of
from lastwrite.errors import InvalidConfig, LogError, RemoteFailed
from lastwrite.reports.fetching import FetchedLog, HoldReason
from lastwrite.reports.following import FollowedLog

SILENT = RemoteFailed("does not answer", path="here:1")


def log(held: HoldReason | None = None, size: int = 0, partition: int = 0) -> FollowedLog:
    reason = None if held is None else f"because of {held}"
    found = FetchedLog(
        topic="t",
        partition=partition,
        source="kafka://here:1",
        folder=f"/archive/kafka/t/{partition}",
        size_bytes=size,
        reason=reason,
        held=held,
    )
    return FollowedLog(log=found, lag_records=3 if held else 0, level_ms=None if held else 1_000)


class Planned:
    """A source that returns one round after another, then waits to be stopped."""

    def __init__(self, *turns: Sequence[FollowedLog] | LogError) -> None:
        self._turns = list(turns)
        self.is_over = threading.Event()
        self._stopped = threading.Event()
        self.is_closed = False

    def fetch(self) -> Sequence[FollowedLog]:
        if not self._turns:
            self.is_over.set()
            self._stopped.wait(60)
            raise LogError("stopped")
        found = self._turns.pop(0)
        if isinstance(found, LogError):
            raise found
        return found

    def stop(self) -> None:
        self._stopped.set()

    def close(self) -> None:
        self.is_closed = True


def run(planned: Planned) -> tuple[list[Event], list[float], str]:
    """Run the follower through all rounds. Returns its events, its waits in seconds, and its
    metrics.
    """
    told: list[Event] = []
    rests: list[float] = []
    registry = CollectorRegistry()
    metrics = FollowingMetrics(registry, lambda: 5_000)

    events = Events(told.append, lambda: 5_000)
    follower = ArchiveFollower(planned, 2.0, metrics, events, lambda: 5_000)
    with patch.object(Pauses, "wait", lambda self, seconds: rests.append(seconds)):
        follower.start()
        assert planned.is_over.wait(30)
        page = page_of(registry).decode()
        follower.stop()
    assert planned.is_closed
    return told, rests, page


def test_silence_is_reported_once_and_retried_with_growing_pauses() -> None:
    told, rests, page = run(Planned(SILENT, SILENT, SILENT, [log(size=9)], SILENT, *[SILENT] * 9))

    assert [each.event for each in told] == ["note", "brought", "note"]
    assert rests == [4, 8, 16, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]
    assert 'lastwrite_follower_turns_total{status="failed"} 13.0' in page
    assert 'lastwrite_follower_turns_total{status="done"} 1.0' in page


def test_blocked_partition_is_reported_once_and_its_lag_is_measured() -> None:
    told, rests, page = run(
        Planned(
            [log(size=5), log(HoldReason.FORK, partition=1)],
            [log(), log(HoldReason.FORK, partition=1)],
            [log(), log(HoldReason.DELETES, partition=1)],
        )
    )
    assert [each.event for each in told] == ["held", "brought", "held"]
    assert told[0].to_dict()["held"] == "fork" and told[0].to_dict()["partition"] == 1
    assert rests == [2, 2, 2]
    assert 'lastwrite_follower_held{partition="1",topic="t",why="deletes"} 1.0' in page
    assert 'why="fork"} 1.0' not in page
    assert 'lastwrite_follower_lag_seconds{partition="0",topic="t"} 4.0' in page
    assert 'lastwrite_follower_lag_seconds{partition="1",topic="t"} NaN' in page
    assert 'lastwrite_follower_lag_records{partition="1",topic="t"} 3.0' in page


def test_store_silent_for_all_partitions_is_retried_less_often() -> None:
    waiting = [log(HoldReason.WAITING), log(HoldReason.WAITING, partition=1)]
    _, rests, _ = run(Planned(waiting, waiting, [log(), waiting[1]], []))
    assert rests == [4, 8, 2, 2]


def test_permanent_error_ends_the_follower() -> None:
    ended: queue.SimpleQueue[None] = queue.SimpleQueue()
    registry = CollectorRegistry()
    follower = ArchiveFollower(
        Planned(InvalidConfig("no such thing")),
        1.0,
        FollowingMetrics(registry, lambda: 0),
        Events(lambda event: None, lambda: 0),
        lambda: 0,
        failed=lambda: ended.put(None),
    )
    follower.start()
    ended.get(timeout=30)
    with pytest.raises(InvalidConfig, match="no such thing"):
        follower.stop()


def test_single_round_has_an_exit_status() -> None:
    def once(*logs: FollowedLog) -> int:
        metrics = FollowingMetrics(CollectorRegistry(), lambda: 0)
        events = Events(lambda event: None, lambda: 0)
        return ArchiveFollower(Planned(logs), 1.0, metrics, events, lambda: 0).once()

    assert once(log()) == 0
    assert once(log(), log(HoldReason.FORK)) == 1
    with pytest.raises(RemoteFailed):
        follower = Planned(SILENT)
        metrics = FollowingMetrics(CollectorRegistry(), lambda: 0)
        ArchiveFollower(
            follower, 1.0, metrics, Events(lambda event: None, lambda: 0), lambda: 0
        ).once()


def test_unsuitable_sources_and_pauses_are_refused() -> None:
    with pytest.raises(InvalidConfig, match="is not the address of a live cluster"):
        system_of_follow(Follow(sources=["http://here"]), ["/archive"], None)
    with pytest.raises(InvalidConfig, match="--system is pulsar"):
        system_of_follow(Follow(sources=["kafka://here:1"]), ["/archive"], "pulsar")
    with pytest.raises(InvalidConfig, match="one archive"):
        system_of_follow(Follow(sources=["kafka://here:1"]), [], None)
    assert system_of_follow(Follow(sources=["kafka://here:1"]), ["/archive"], None) == "kafka"
    for pause in (0, -1, float("nan")):
        with pytest.raises(InvalidConfig, match="pause"):
            checked(pause)
