"""``fetch --follow``: runs a follower of a live cluster.

``clean --source`` uses parts of it, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol

from prometheus_client import CollectorRegistry

from lastwrite.archive.following import FollowRequest
from lastwrite.cleaner.events import Event, Events
from lastwrite.cleaner.follow import ArchiveFollower
from lastwrite.cleaner.following_metrics import FollowingMetrics
from lastwrite.cleaner.live import LiveCleaner
from lastwrite.cleaner.loop import Cleaner
from lastwrite.cleaner.pauses import EVERY_S, checked
from lastwrite.commands.following import limits_of, open_followed, system_of_sources
from lastwrite.commands.metrics_page import serve_metrics
from lastwrite.commands.selection import TopicConfig, overrides
from lastwrite.config.stores import store_settings
from lastwrite.config.system import SettingSources
from lastwrite.errors import InvalidConfig
from lastwrite.model.progress import NoProgress
from lastwrite.storage.choice import Topics
from lastwrite.storage.objects.address import real_path, use


class Stoppable(Protocol):
    """A task that runs until a stop is requested."""

    def request_stop(self) -> None:
        """Request a stop. May be called in a signal handler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Follow:
    """The sources that ``clean`` follows, and the options.

    The fields are the arguments of ``follow``.

    ``memory`` is for fetching, in addition to the memory of rounds.
    """

    sources: Sequence[str]
    topic: Topics = None
    partition: int | None = None
    every_s: float = EVERY_S
    rate: str | int | None = None
    memory: str | int | None = None
    sets_aside: bool = False
    accepts_gap: bool = False


def follow(
    sources: Sequence[str],
    to: str,
    *,
    topic: Topics = None,
    partition: int | None = None,
    every_s: float = EVERY_S,
    memory: str | int | None = None,
    rate: str | int | None = None,
    sets_aside: bool = False,
    accepts_gap: bool = False,
    topic_config: TopicConfig | None = None,
    config: Mapping[str, object] | None = None,
    metrics_port: int | None = None,
    metrics_host: str = "127.0.0.1",
    tell: Callable[[Event], None] = lambda event: None,
    started: Callable[[ArchiveFollower], None] = lambda follower: None,
) -> int:
    """Let the archive ``to`` follow topics of a live cluster until a stop is requested.

    Args:
        sources: urls of one cluster, ``kafka://HOST:PORT[,HOST:PORT…]``.
        to: the archive, a folder or ``s3://bucket/prefix``.
        topic, partition, memory, rate, sets_aside, accepts_gap, topic_config, config: as for
            ``fetch``. Matching topics that are created later are included in the next fetch.
        every_s: seconds between two fetches; up to five minutes while the cluster is unavailable.
        metrics_port, metrics_host, tell: as for ``clean``.
        started: receives the follower before it starts. Its ``request_stop`` may be called from
            any thread.

    Returns:
        The exit status: 0.

    Raises:
        InvalidConfig, EnvironmentUnfit: nothing was fetched.
        LogError: an error that another fetch would not resolve.
    """
    events = Events(tell, now_ms)
    use(store_settings(config))
    registry = CollectorRegistry()
    what = Follow(
        sources=sources,
        topic=topic,
        partition=partition,
        every_s=checked(every_s),
        rate=rate,
        memory=memory,
        sets_aside=sets_aside,
        accepts_gap=accepts_gap,
    )
    told = SettingSources(overrides=overrides(topic_config))
    wanted = follow_request(what, real_path(to), lambda: config or {}, told, events, False)
    with ExitStack() as stack:
        metrics = FollowingMetrics(registry, now_ms)
        serve_metrics(stack, registry, metrics_host, metrics_port, events.note)
        follower = ArchiveFollower(open_followed(wanted), every_s, metrics, events, now_ms)
        started(follower)
        follower.run()
    return 0


def system_of_follow(follow: Follow, roots: Sequence[str], system: str | None) -> str:
    """The system of the sources that ``clean`` follows.

    Raises:
        InvalidConfig: ``system`` is another system, or ``roots`` is not exactly one archive.
    """
    found = system_of_sources(follow.sources)
    checked(follow.every_s)
    if system not in (None, found):
        raise InvalidConfig(
            f"the source belongs to {found}, but --system is {system}", remedy="leave out --system"
        )
    if len(roots) != 1:
        raise InvalidConfig(
            "the followed topics need exactly one archive", remedy="give --to ARCHIVE"
        )
    return found


def follow_request(
    follow: Follow,
    to: str,
    config: Callable[[], Mapping[str, object]],
    sources: SettingSources,
    events: Events,
    is_once: bool,
) -> FollowRequest:
    """A request to follow these sources."""
    return FollowRequest(
        sources=tuple(follow.sources),
        to=to,
        topic=follow.topic,
        partition=follow.partition,
        config=config,
        overrides=sources.overrides,
        limits=limits_of(follow.memory, follow.rate),
        sets_aside=follow.sets_aside,
        accepts_gap=follow.accepts_gap,
        progress=Notes(events),
        is_once=is_once,
    )


class _Both:
    def __init__(self, *each: Stoppable) -> None:
        self._each = each

    def request_stop(self) -> None:
        for each in self._each:
            each.request_stop()


def run_both(
    cleaner: Cleaner | LiveCleaner,
    follower: ArchiveFollower,
    started: Callable[[Stoppable], None],
    once: bool,
) -> int:
    """Run the follower in a thread and the cleaner in this thread.

    With ``once``, fetch once, then run the rounds that are due.

    Returns:
        The exit status.

    Raises:
        LogError: as ``Cleaner.run`` and ``ArchiveFollower.stop``.
    """
    started(_Both(cleaner, follower))
    if once:
        status = follower.once()
        return cleaner.run(True) or status
    follower.start()
    try:
        return cleaner.run(False)
    finally:
        follower.stop()


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Notes(NoProgress):
    """A progress display that passes the notes of fetches to the events.

    A text is passed only once.
    """

    def __init__(self, events: Events) -> None:
        self._events = events

    def note(self, text: str) -> None:
        self._events.report_once(text, text)
