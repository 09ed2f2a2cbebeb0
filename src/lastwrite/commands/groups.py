"""``groups``: the committed offsets and the lag of Kafka consumer groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from lastwrite.archive.partition_store import read_versioned_manifest
from lastwrite.commands.selection import paths_of
from lastwrite.commands.systems import KAFKA, system_of_all
from lastwrite.config.stores import store_settings
from lastwrite.errors import InvalidConfig, LogError, NotALog
from lastwrite.kafka.cluster.commits import Commit, GroupPartition
from lastwrite.kafka.network.cluster import KafkaCluster
from lastwrite.kafka.network.live_log import LiveLog
from lastwrite.kafka.rules.live_settings import SCHEME, KafkaClientConfig, brokers_of
from lastwrite.kafka.store import archived, log_dir
from lastwrite.kafka.store.partitions import find_partitions, partition_name
from lastwrite.kafka.store.positions import positions_in
from lastwrite.model.log import TopicPartition
from lastwrite.reports.groups import GroupPosition, GroupsReport, UnreadPosition
from lastwrite.storage.choice import Topics, is_selected
from lastwrite.storage.objects.address import use


def groups(
    path: str | Sequence[str],
    *,
    group: str | Sequence[str] | None = None,
    topic: Topics = None,
    config: Mapping[str, object] | None = None,
) -> GroupsReport:
    """The committed offsets and the lag of consumer groups.

    Args:
        path: log directories, ``--state`` folders of ``serve`` and archives, in any mixture; or a
            live cluster, ``kafka://HOST:PORT[,HOST:PORT…]``.
        group: names of groups. None means all.
        topic: names of topics or shell patterns. None means all.
        config: settings of the connection to a cluster or a bucket.

    Raises:
        NotALog: there is no log, or no such topic.
        InvalidConfig: the logs are not Kafka's, or a setting is invalid.
        RemoteFailed: no broker answers.
    """
    paths = paths_of(path)
    wanted = {group} if isinstance(group, str) else set(group or ())
    found = _OffsetsAndEnds()
    if any(each.startswith(SCHEME) for each in paths):
        if len(paths) > 1:
            raise InvalidConfig(
                "several sources were given, but one command reads one live cluster",
                remedy="run one command for each cluster",
            )
        found.fetch(paths[0], config or {})
    else:
        use(store_settings(config))
        if system_of_all(None, paths).name != KAFKA:
            raise InvalidConfig(
                "Lastwrite can show only consumer groups of Kafka",
                path=paths[0],
                remedy="give a log root of Kafka, or kafka://HOST:PORT",
            )
        for each in paths:
            found.read(each)
    return GroupsReport(
        positions=[
            found.position(place)
            for place in sorted(found.offsets)
            if (not wanted or place.group in wanted) and is_selected(topic, (place.topic,))
        ],
        unread=[
            each
            for each in found.unread
            if (not wanted or each.group is None or each.group in wanted)
            and (each.topic is None or is_selected(topic, (each.topic,)))
        ],
    )


class _OffsetsAndEnds:
    """Committed offsets of groups, and the end offsets of the partitions."""

    def __init__(self) -> None:
        self.offsets: dict[GroupPartition, Commit] = {}
        self.unread: list[UnreadPosition] = []
        self._ends: dict[TopicPartition, int] = {}

    def position(self, place: GroupPartition) -> GroupPosition:
        commit = self.offsets[place]
        return GroupPosition(
            group=place.group,
            topic=place.topic,
            partition=place.partition,
            position=commit.offset,
            end_offset=self._ends.get(place.name),
            metadata=commit.metadata,
            committed_ms=None if commit.at_ms < 0 else commit.at_ms,
        )

    def read(self, path: str) -> None:
        """Read committed offsets and end offsets at a path.

        The ends are read last, so that no committed offset exceeds its end.
        """
        folders = {partition_name(folder): folder for folder in find_partitions(path)}
        logs = {each for each in folders.values() if archived.is_archived(each)}
        for name, folder in folders.items():
            if folder in logs:
                log = archived.contents_of(read_versioned_manifest(folder).manifest, folder)
                self._ends[name] = log.end_offset
                for group, offset, epoch, metadata in log.groups:
                    self.offsets[GroupPartition.of(group, name)] = Commit(offset, epoch, metadata)
        with suppress(NotALog):
            there = positions_in(path)
            self.offsets |= there.offsets
            self.unread += there.unread
        for name in {each.name for each in self.offsets}:
            if name in folders and name not in self._ends:
                # the end offset stays unknown; ``verify`` reports the damage
                with suppress(LogError):
                    self._ends[name] = log_dir.read_partition(folders[name]).high_watermark

    def fetch(self, url: str, config: Mapping[str, object]) -> None:
        """Request committed offsets and end offsets from a live cluster."""
        client = KafkaClientConfig.from_names(config)
        with KafkaCluster(brokers_of(url), client) as cluster:
            cluster.reach()
            by_partition, unread = cluster.positions()
            self.unread += unread
            for name, positions in by_partition.items():
                for each in positions:
                    at = Commit(each.offset, each.leader_epoch, each.metadata)
                    self.offsets[GroupPartition.of(each.group, name)] = at
                with suppress(NotALog):  # the topic is gone
                    log = LiveLog(cluster, name, client)
                    try:
                        self._ends[name] = log.bounds().high_watermark
                    finally:
                        log.close()
