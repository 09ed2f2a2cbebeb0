"""Keep an archive up to date with topics of a live RocketMQ cluster by polling.

Connections stay open between polls. A poll without new messages does not access the archive.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from lastwrite.archive.following import FollowRequest
from lastwrite.archive.ingest import max_parallel
from lastwrite.errors import InvalidConfig, LogError, NotALog
from lastwrite.model.log import TopicPartition
from lastwrite.reports.following import FollowedLog
from lastwrite.rocketmq.live import (
    BrokerQueue,
    RocketmqSyncContext,
    is_requested,
    queues_of,
    sources_of,
    topics_of,
)
from lastwrite.rocketmq.network.client import RocketmqClient
from lastwrite.rocketmq.network.connection import RequestRefused
from lastwrite.rocketmq.rules.live_settings import cluster_of
from lastwrite.storage.choice import is_named, is_selected
from lastwrite.storage.objects.promises import reject_if_broken

_LEARN_S = 60.0  # interval between reads of routes and settings


class RocketmqFollowResult:
    """Polls topics of a live cluster for an archive. See ``archive.following.FollowResult``."""

    def __init__(self, request: FollowRequest) -> None:
        if len(request.sources) > 1:
            raise InvalidConfig(
                "several sources were given, but one command follows one live cluster",
                remedy="run one command for each cluster",
            )
        (url,) = request.sources
        self._request = request
        self._address = cluster_of(url)
        self._run = RocketmqSyncContext(
            self._address,
            request.config(),
            request.to,
            request.limits,
            request.progress,
            follows=True,
            accepts_gap=request.accepts_gap,
        )
        self._is_stopped = False
        self._is_asked = False
        self._topics: frozenset[str] = frozenset()
        self._sources: list[BrokerQueue] = []
        self._learnt_s = -_LEARN_S

    def fetch(self) -> Sequence[FollowedLog]:
        if not self._is_asked:
            reject_if_broken(self._request.to)
            self._is_asked = True
        self._refresh()
        with ThreadPoolExecutor(max_parallel(), "fetch") as pool:
            try:
                found = list(pool.map(self._fetch, self._sources))
            except BaseException:
                self.stop()
                raise
        if self._is_stopped:
            raise LogError("the fetch was stopped", remedy="run the command again to continue")
        return found

    def _refresh(self) -> None:
        """Read queues and settings again if the interval is over or the list of topics has changed.

        Raises:
            RemoteFailed: no server answers.
        """
        wanted, now_s = self._request, time.monotonic()
        topics = frozenset(self._run.call(lambda client: topics_of(client, self._address)))
        if topics == self._topics and now_s - self._learnt_s < _LEARN_S:
            return
        self._run.close()  # a broker's address may have changed
        if wanted.is_once:
            asked = (self._address, wanted.topic, wanted.partition, wanted.overrides)
            sources = self._run.call(lambda client: sources_of(client, *asked))
        else:
            self._report_missing(topics)
            sources = self._run.call(lambda client: self._matching(client, topics))
        known: set[TopicPartition] = {each.name for each in self._sources}
        gone = known - {each.name for each in sources}
        for topic in sorted({name.topic for name in gone} - topics):
            wanted.progress.note(
                f"{topic} no longer exists in the cluster: its archive was kept, and is no "
                "longer updated"
            )
        for name in gone:
            self._run.forget(name)
        self._topics, self._sources, self._learnt_s = topics, sources, now_s

    def _report_missing(self, topics: frozenset[str]) -> None:
        """Report requested topics that do not exist yet. They may be created later."""
        asked = self._request.topic
        for text in (asked,) if isinstance(asked, str) else asked or ():
            if not any(is_selected(text, (name,)) for name in topics):
                note = f"waiting for {text}: the cluster has no such topic yet"
                self._request.progress.note(note)

    def _matching(self, client: RocketmqClient, topics: frozenset[str]) -> list[BrokerQueue]:
        """The existing queues that match the request. Reports topics that cannot be followed."""
        wanted, found = self._request, list[BrokerQueue]()
        for topic in sorted(topics):
            if not is_requested(topic, wanted.topic):
                continue
            asked = (topic, is_named(wanted.topic, (topic,)), wanted.overrides)
            try:
                found += queues_of(client, self._address, *asked)
            except (InvalidConfig, NotALog, RequestRefused) as error:
                wanted.progress.note(f"{topic} is not followed: {error}")
        return [each for each in found if wanted.partition in (None, each.name.partition)]

    def _fetch(self, source: BrokerQueue) -> FollowedLog:
        run, name = self._run, source.name
        log = run.fetch(source)
        level, end = run.levels.get(name), run.ends.get(name)
        behind = None
        if end is not None and level is not None:
            behind = max(end - level.end_offset, 0)
        return FollowedLog(
            log=log, lag_records=behind, level_ms=None if level is None else level.asked_ms
        )

    def stop(self) -> None:
        self._is_stopped = True
        self._run.stop()

    def close(self) -> None:
        self._run.close()
