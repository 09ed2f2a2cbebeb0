"""``fetch`` of live topics: several partitions at once, each from its leader into the archive."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock

from msgspec import structs

from lastwrite.archive.following import FollowRequest
from lastwrite.archive.ingest import fetch_with_retry, hold_reason_of, max_parallel
from lastwrite.archive.layout import partition_address
from lastwrite.errors import InvalidConfig, LogError, RemoteFailed
from lastwrite.kafka.format.chunk import KafkaFormat
from lastwrite.kafka.network.cluster import GroupOffset, KafkaCluster
from lastwrite.kafka.network.connection import ConnectionBroken, RetriableError
from lastwrite.kafka.network.live_log import LiveLog
from lastwrite.kafka.rules import topic_settings
from lastwrite.kafka.rules.live_settings import KafkaClientConfig, brokers_of, rules_of
from lastwrite.kafka.rules.settings import KafkaTopicConfig
from lastwrite.kafka.rules.topic_settings import resolve
from lastwrite.kafka.store.archive_writer import Groups, KafkaArchiveWriter, LiveSource
from lastwrite.kafka.store.archived import SYSTEM, ArchivedLog, ArchivedMetadata
from lastwrite.kafka.store.divergence import fetch_or_set_aside, set_aside
from lastwrite.model.log import TopicPartition
from lastwrite.model.progress import Progress
from lastwrite.model.work import Limits, Throttle
from lastwrite.reports.fetching import FetchedLog, HoldReason, LogsFetched
from lastwrite.reports.groups import UnreadPosition, unread_because
from lastwrite.reports.settings import Override
from lastwrite.storage.choice import Topics, choose, is_named
from lastwrite.storage.objects.promises import reject_if_broken
from lastwrite.storage.throttle import Pacer

_SETTINGS_AT_ONCE = 500  # most topics in one request for settings


def fetch_live(request: FollowRequest) -> LogsFetched:
    """Fetch topics of a cluster into an archive, up to each partition's high watermark.

    A partition that is damaged, or does not continue the archived log, is skipped; the others are
    fetched. With ``sets_aside``, archived records that the log lacks are set aside instead.
    Internal topics are fetched only if they are named.

    Raises:
        NotALog: there is no such topic.
        InvalidConfig: a setting or the url is invalid.
        RemoteFailed: no broker answers.
    """
    url, to, topic = request.sources[0], request.to, request.topic
    if len(request.sources) > 1:
        raise InvalidConfig(
            "the command fetches from one live cluster at a time",
            remedy="run the command once for each cluster",
        )
    config, progress = request.config(), request.progress
    client = KafkaClientConfig.from_names(config)
    rules = rules_of(config)
    KafkaTopicConfig.from_names(rules)
    topic_settings.check_overrides(request.overrides)
    reject_if_broken(to)
    with KafkaCluster(brokers_of(url), client) as cluster:
        cluster.reach()
        names = chosen(cluster, topic, request.partition, url)
        run = KafkaSyncContext(
            cluster,
            client,
            to,
            request.limits,
            progress,
            sets_aside=request.sets_aside,
            accepts_gap=request.accepts_gap,
        )
        run.fetch_positions()
        run.fetch_settings(names, topic, request.overrides, rules)
        progress.stage("fetch", 0)
        with ThreadPoolExecutor(max_parallel(), "fetch") as pool:
            coming = pool.map(run.fetch, names)
            try:
                partitions = tuple(coming)
            except BaseException:  # Ctrl-C: records fetched since the last commit are dropped
                run.stop()
                raise
        unread = run.unread_positions
        return LogsFetched(archive=to, partitions=partitions, unread_positions=unread)


def chosen(
    cluster: KafkaCluster, topic: Topics, partition: int | None, url: str
) -> list[TopicPartition]:
    """The selected partitions of the cluster. Internal topics are selected only by their names.

    Raises:
        NotALog: no partition matches.
    """
    there = {
        f"{name}": name
        for each in sorted(cluster.topics.values(), key=lambda each: each.name)
        if not each.is_internal or is_named(topic, (each.name,))
        for name in (TopicPartition(each.name, number) for number in sorted(each.partitions))
    }
    listed = ((name, key) for key, name in there.items())
    return [there[key] for key in choose(listed, topic, partition, url)]


@dataclass(frozen=True, slots=True)
class PartitionSyncState:
    """The state of a partition after a fetch, by which a later poll detects changes."""

    end_offset: int
    # time of the request for the log's bounds; the archive has all records up to then
    asked_ms: int
    fetched_ms: int  # time of the last fetch, from the manifest
    cluster_state: tuple[object, ...]  # log bounds, leader epoch, topic id, settings and groups


class KafkaSyncContext:
    """Fetches partitions, and keeps the state that they share.

    A follower's polls share the state, too. ``levels`` contains the state of each fetched
    partition. A partition is not fetched again while its state is unchanged. ``ends`` contains the
    last known high watermarks.
    """

    def __init__(
        self,
        cluster: KafkaCluster,
        client: KafkaClientConfig,
        to: str,
        limits: Limits,
        progress: Progress,
        *,
        follows: bool = False,
        sets_aside: bool = False,
        accepts_gap: bool = False,
    ) -> None:
        unhindered = Throttle("", math.inf)
        self._pacer = Pacer(limits.reading[0] if limits.reading else unhindered)
        self._cluster = cluster
        self._client = client
        self._to = to
        self._plain_bytes = limits.plain_bytes
        self._progress = progress
        self._follows, self._sets_aside = follows, sets_aside
        self._accepts_gap = accepts_gap
        self._lock = Lock()
        self._positions: dict[TopicPartition, list[GroupOffset]] | None = None
        self.unread_positions: tuple[UnreadPosition, ...] = ()
        self._settings: dict[str, tuple[topic_settings.TopicMetadata | None, KafkaTopicConfig]] = {}
        self.levels: dict[TopicPartition, PartitionSyncState] = {}
        self.ends: dict[TopicPartition, int] = {}

    def fetch_positions(self) -> None:
        """Fetch the committed offsets of all consumer groups.

        Call this before the end of any log is requested. Otherwise an offset may be beyond the
        fetched records.
        """
        try:
            positions, unread = self._cluster.positions()
        except LogError as error:
            self._positions = None
            self.unread_positions = (unread_because(error, f"kafka://{self._cluster.address}"),)
        else:
            self._positions, self.unread_positions = positions, tuple(unread)

    def fetch_settings(
        self,
        names: Sequence[TopicPartition],
        topic: Topics,
        overrides: Sequence[Override],
        rules: Mapping[str, object],
    ) -> None:
        """Fetch the settings of the topics to which these partitions belong.

        Raises:
            RemoteFailed: no broker answers.
        """
        topics = list(dict.fromkeys(name.topic for name in names))
        for begin in range(0, len(topics), _SETTINGS_AT_ONCE):
            some = topics[begin : begin + _SETTINGS_AT_ONCE]
            told = self._settings_of(some)
            for each, said in told.items():
                known = None if isinstance(said, LogError) else said
                if known is None:
                    self._progress.note(f"{said}; the settings given with --config are used")
                found = resolve(each, overrides, known, rules, is_named(topic, (each,)))
                self._settings[each] = known, found.config

    def _settings_of(
        self, topics: Sequence[str]
    ) -> dict[str, topic_settings.TopicMetadata | LogError]:
        """The topics' settings. If the connection breaks, requests each half of them separately."""
        try:
            return self._cluster.settings(topics)
        except ConnectionBroken:
            if len(topics) > 1:
                half = len(topics) // 2
                return self._settings_of(topics[:half]) | self._settings_of(topics[half:])
        except RetriableError:
            pass
        return self._cluster.with_retries(partial(self._cluster.settings, topics))

    def fetch(self, name: TopicPartition) -> FetchedLog:
        """Fetch one partition into the archive.

        Retries twice if the log or the archive changes meanwhile.
        """
        folder = partition_address(self._to, SYSTEM, name.topic, name.partition)
        found = FetchedLog(
            topic=name.topic,
            partition=name.partition,
            source=f"kafka://{self._cluster.address}/{name}",
            folder=folder,
        )
        asides: list[str] = []

        def fetch_once() -> FetchedLog:
            if not self._sets_aside:
                return self._fetch(name, found)
            aside = partial(self._set_aside, name, folder)
            return fetch_or_set_aside(folder, partial(self._fetch, name, found), aside, asides)

        done = fetch_with_retry(found, fetch_once)
        return structs.replace(done, aside=asides[-1]) if asides else done

    def _set_aside(
        self, name: TopicPartition, folder: str, before: ArchivedLog, reason: HoldReason
    ) -> str:
        """Set aside the archived records that the log lacks. Returns their address."""
        log = LiveLog(self._cluster, name, self._client)
        try:
            bounds, cut = log.bounds(), None
            if reason is HoldReason.FORK:
                cut = log.common_end(before.epochs, before.end_offset)
                # The leader epochs agree up to the archive's end. So it is unknown where log and
                # archive diverge.
                if cut == before.end_offset:
                    cut = None
            return set_aside(self._to, folder, cut, bounds.log_start)
        finally:
            log.close()
            self.levels.pop(name, None)

    def _fetch(self, name: TopicPartition, found: FetchedLog) -> FetchedLog:
        known, config = self._settings[name.topic]
        log = LiveLog(self._cluster, name, self._client)
        try:
            asked_ms = time.time_ns() // 1_000_000
            bounds = log.bounds()
            self.ends[name] = bounds.high_watermark
            groups = self._groups_of(name)
            _, epoch = self._cluster.leader(name.topic, name.partition)
            told = (bounds, epoch, log.topic_id, known, groups)
            level = self.levels.get(name)
            if level is not None and level.cluster_state == told:
                if asked_ms - level.fetched_ms <= config.delete_retention_ms // 2:
                    self.levels[name] = replace(level, asked_ms=asked_ms)
                    end = level.end_offset
                    return structs.replace(found, first_offset=end, end_offset=end)
            source = LiveSource(
                path=log.path,
                log_start=bounds.log_start,
                end=bounds.high_watermark,
                topic_id=self._cluster.topic(name.topic).id_text,
                lineage=partial(log.lineage, log_start=bounds.log_start),
                metadata=None if known is None else ArchivedMetadata.of(known),
                groups=groups,
                unread_groups=frozenset(
                    each.group for each in self.unread_positions if each.group is not None
                ),
                config=config,
                asked_ms=asked_ms,
                accepts_gap=self._accepts_gap,
                follows=self._follows,
                level_ms=0 if level is None else level.asked_ms,
            )
            intake = KafkaArchiveWriter(source, found.folder)
            try:
                self._fetch_batches(log, intake)
            except RemoteFailed as error:
                if not intake.commit_partial():
                    raise
                self.levels.pop(name, None)
                part = intake.finished.of(found)
                return structs.replace(part, reason=str(error), held=hold_reason_of(error))
        finally:
            log.close()
        done = intake.finished
        if self._follows:
            self.levels[name] = PartitionSyncState(
                done.end_offset, asked_ms, intake.fetched_ms, told
            )
        return done.of(found)

    def _fetch_batches(self, log: LiveLog, intake: KafkaArchiveWriter) -> None:
        """Fetch the batches from ``intake.since`` to ``intake.end``, and commit them.

        Raises:
            RemoteFailed: some batches did not arrive. ``intake.commit_partial`` commits the others.
                After any other error, batches since the last commit are dropped.
        """
        try:
            format = KafkaFormat(self._plain_bytes)
            for data, table in log.batches(intake.since, intake.end, format, intake.epoch):
                intake.append(data, table)
                size = int(table["origin_size"].sum())
                self._advance(size)
                self._pacer.throttle(size)
            intake.finish()
        except RemoteFailed:
            raise
        except BaseException:
            intake.abandon()
            raise

    def _groups_of(self, name: TopicPartition) -> Groups | None:
        if self._positions is None:
            return None
        found = self._positions.get(name, ())
        return tuple((each.group, each.offset, each.leader_epoch, each.metadata) for each in found)

    def forget(self, name: TopicPartition) -> None:
        """Discard the state of a partition that no longer exists."""
        self.levels.pop(name, None)
        self.ends.pop(name, None)

    def stop(self) -> None:
        """Stop all fetches, at their next batch or while they wait for a broker."""
        self._pacer.stop()
        self._cluster.stop()

    def _advance(self, done_bytes: int) -> None:
        with self._lock:
            self._progress.advance(done_bytes)
