"""An archive that follows topics of a live Kafka cluster.

It polls the cluster, over one connection to each broker. A poll that finds nothing new sends no
request to the archive's store.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from lastwrite.archive.following import FollowRequest
from lastwrite.archive.ingest import max_parallel
from lastwrite.errors import InvalidConfig, LogError, RemoteFailed
from lastwrite.kafka.live import KafkaSyncContext, chosen
from lastwrite.kafka.network.cluster import KafkaCluster
from lastwrite.kafka.rules import topic_settings
from lastwrite.kafka.rules.live_settings import KafkaClientConfig, brokers_of, rules_of
from lastwrite.kafka.rules.settings import KafkaTopicConfig
from lastwrite.model.log import TopicPartition
from lastwrite.reports.following import FollowedLog
from lastwrite.storage.choice import is_named, is_selected
from lastwrite.storage.objects.promises import reject_if_broken

_API_MS = 5_000  # default timeout of requests; short, because the next poll retries
_LEARN_S = 60.0  # interval between fetches of topic settings and committed offsets


class KafkaFollowResult:
    """Polls topics of a live Kafka cluster, and fetches new records into an archive."""

    def __init__(self, request: FollowRequest) -> None:
        if len(request.sources) > 1:
            raise InvalidConfig(
                "the command fetches from one live cluster at a time",
                remedy="start one command for each cluster",
            )
        (self._url,) = request.sources
        self._request = request
        config = request.config()
        client = KafkaClientConfig.from_names({"default.api.timeout.ms": _API_MS, **config})
        KafkaTopicConfig.from_names(rules_of(config))
        topic_settings.check_overrides(request.overrides)
        self._cluster = KafkaCluster(brokers_of(self._url), client)
        self._run = KafkaSyncContext(
            self._cluster,
            client,
            request.to,
            request.limits,
            request.progress,
            follows=True,
            sets_aside=request.sets_aside,
            accepts_gap=request.accepts_gap,
        )
        self._is_stopped = False
        self._is_asked = False
        self._followed_names: frozenset[TopicPartition] = frozenset()
        self._learnt_s = -_LEARN_S

    def fetch(self) -> Sequence[FollowedLog]:
        if not self._is_asked:
            reject_if_broken(self._request.to)
            self._is_asked = True
        names = self._names()
        self._refresh(names)
        with ThreadPoolExecutor(max_parallel(), "fetch") as pool:
            try:
                found = list(pool.map(self._fetch, names))
            except BaseException:
                self.stop()
                raise
        if self._is_stopped:
            raise LogError("the fetch was stopped", remedy="run the command again to continue")
        return found

    def _names(self) -> list[TopicPartition]:
        """The selected partitions that now exist in the cluster."""
        wanted = self._request
        try:
            self._cluster.refresh()
        except RemoteFailed:  # connect again: a restart of the cluster breaks old connections
            self._cluster.close()
            self._cluster.refresh()
        if wanted.is_once:
            names = chosen(self._cluster, wanted.topic, wanted.partition, self._url)
        else:
            names = self._matching()
        gone = self._followed_names - set(names)
        for topic in sorted({name.topic for name in gone}):
            wanted.progress.note(f"{topic} was deleted from the cluster; its archive is kept")
        for name in gone:
            self._run.forget(name)
        return names

    def _matching(self) -> list[TopicPartition]:
        """The existing partitions that match the selection.

        A name or pattern without a match is accepted, because the topic may be created later.
        """
        wanted, topics = self._request, self._cluster.topics
        texts = (wanted.topic,) if isinstance(wanted.topic, str) else wanted.topic or ()
        for text in texts:
            if not any(is_selected(text, (name,)) for name in topics):
                wanted.progress.note(
                    f"waiting for topic {text}, which the cluster does not have yet"
                )
        return [
            TopicPartition(topic, number)
            for topic, found in sorted(topics.items())
            if is_selected(wanted.topic, (topic,))
            and (not found.is_internal or is_named(wanted.topic, (topic,)))
            for number in sorted(found.partitions)
            if wanted.partition in (None, number)
        ]

    def _refresh(self, names: Sequence[TopicPartition]) -> None:
        """Fetch topic settings and committed offsets if they are old, or if partitions are new."""
        now_s = time.monotonic()
        if set(names) <= self._followed_names and now_s - self._learnt_s < _LEARN_S:
            self._followed_names = frozenset(names)
            return
        wanted = self._request
        self._run.fetch_positions()
        for unread in self._run.unread_positions:
            wanted.progress.note(unread.message)
        rules = rules_of(wanted.config())
        self._run.fetch_settings(names, wanted.topic, wanted.overrides, rules)
        self._followed_names, self._learnt_s = frozenset(names), now_s

    def _fetch(self, name: TopicPartition) -> FollowedLog:
        run = self._run
        log = run.fetch(name)
        if log.aside is not None:
            self._request.progress.note(
                f"{name}: the archive's records that the log does not have were set aside: "
                f"{log.aside}"
            )
        level = run.levels.get(name)
        end, behind = run.ends.get(name), None
        if end is not None and level is not None:
            behind = max(end - level.end_offset, 0)
        return FollowedLog(
            log=log,
            lag_records=behind,
            level_ms=None if level is None else level.asked_ms,
        )

    def stop(self) -> None:
        self._is_stopped = True
        self._run.stop()

    def close(self) -> None:
        self._cluster.close()
