"""``restore`` into the log root of a stopped Kafka broker.

Checks partitions against the cluster's metadata, and restores several at once with
``store.restoring``.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from msgspec import structs

from lastwrite.config.stores import stated_stores
from lastwrite.config.system import SettingSources
from lastwrite.errors import CorruptLog, InvalidConfig, LogError, NotALog
from lastwrite.kafka.cluster.internal_topics import GROUPS_TOPIC
from lastwrite.kafka.cluster.metadata_log import (
    ClusterPartition,
    ClusterTopic,
    broker_addresses,
    cluster_topics,
)
from lastwrite.kafka.cluster.roots import META_PROPERTIES, MetadataLookup, read_meta_properties
from lastwrite.kafka.format.names import PARTITION_METADATA
from lastwrite.kafka.format.text import decode_partition_metadata
from lastwrite.kafka.jobs.group_positions import is_a_users
from lastwrite.kafka.jobs.restorable import (
    OF_COORDINATORS,
    RestorablePartition,
    RestoreRequest,
    Until,
    in_archive,
    locked_advance,
    max_parallel,
    settings_of,
    until_of,
)
from lastwrite.kafka.restored import LogsRestored, RestoredLog
from lastwrite.kafka.store import index_files, lock, restoring
from lastwrite.kafka.store.restoring import Target
from lastwrite.kafka.store.untouched import WRITTEN_BY_RESTORES, list_untouched
from lastwrite.kafka.system import KafkaSystem
from lastwrite.model.log import TopicPartition
from lastwrite.model.progress import NoProgress, Progress
from lastwrite.model.work import Limits
from lastwrite.spark.memory import plan_memory
from lastwrite.storage.objects.address import is_address
from lastwrite.storage.ownership import reject_foreign

_NO_DIRECTORY = 20 * "A"  # prefix of the directory ids UNASSIGNED, LOST and MIGRATING


def restore_logs(
    path: str,
    to: str,
    request: RestoreRequest,
    metadata: str | None,
    memory: str | int | None,
    config: Mapping[str, object] | None,
    progress: Progress | None,
) -> LogsRestored:
    """Restore archived partitions into ``to``, the log root of a stopped broker."""
    progress = progress or NoProgress()
    root = _root(to)
    found = in_archive(path, request)
    cluster = _Cluster(root, metadata)
    found, notes = cluster.taken(found)
    notes += [note for each in found for note in each.notes]
    progress.stage("restore", sum(each.bytes for each in found))
    limits = plan_memory(memory, max_parallel()).limits()
    one = _Restore(cluster, request, limits, locked_advance(progress))
    with lock.hold(root, [each.to for each in found]), ThreadPoolExecutor(max_parallel()) as pool:
        done = tuple(pool.map(one.restore, found))
    for each, log in zip(found, done, strict=True):
        notes += cluster.notes_on(each, log)
    return LogsRestored(
        path=root,
        partitions=done,
        notes=tuple(dict.fromkeys(notes)),
        groups_command=_groups_command(path, request, config or {}, cluster, found, done),
        untouched=tuple(list_untouched(root, WRITTEN_BY_RESTORES)),
    )


def _groups_command(
    path: str,
    request: RestoreRequest,
    config: Mapping[str, object],
    cluster: _Cluster,
    found: Sequence[RestorablePartition],
    done: Sequence[RestoredLog],
) -> str | None:
    """The shell command by which the user sets the groups' offsets once the broker runs.

    None if there are no groups, or if ``__consumer_offsets`` was restored, which has their offsets.
    """
    restored = [each for each, log in zip(found, done, strict=True) if log.reason is None]
    has_topic = any(each.name.topic == GROUPS_TOPIC for each in restored)
    if has_topic or not _has_groups(restored):
        return None
    words = ["lastwrite", "restore", path, "--to", f"kafka://{cluster.address}", "--groups"]
    topics = [request.topic] if isinstance(request.topic, str) else request.topic or ()
    for option, values in (
        ("--topic", topics),
        ("--partition", request.partitions or ()),
        ("--as", () if request.name is None else (request.name,)),
        ("--until", () if request.until is None else (_until_text(request.until),)),
        ("--config", [f"{name}={value}" for name, value in stated_stores(config).items()]),
    ):
        for value in values:
            words += [option, str(value)]
    return shlex.join(words)


def _has_groups(found: Sequence[RestorablePartition]) -> bool:
    return any(is_a_users(group[0]) for each in found for group in each.contents.groups)


def _until_text(until: Until) -> str:
    return str(until) if isinstance(until, int) else until.isoformat()


def _root(to: str) -> str:
    """Check the log root to restore to, and return its absolute path.

    Raises:
        InvalidConfig: ``to`` is an address.
        NotALog: ``to`` is not a broker's log root.
        LogHeld: the broker runs.
    """
    if is_address(to) or "://" in to:
        raise InvalidConfig(
            "--to is not a local folder; restore writes to the log root of a stopped broker",
            path=to,
            remedy="give one of the broker's log.dirs; to copy an archive, use lastwrite compact "
            "--to",
        )
    root = os.path.abspath(to)
    if not os.path.isfile(os.path.join(root, META_PROPERTIES)):
        raise NotALog(
            f"the folder is not a broker's log root: it has no {META_PROPERTIES}",
            path=root,
            remedy="give one of the broker's log.dirs; kafka-storage.sh format creates them",
        )
    broker = lock.broker_of(root)
    if broker is not None:
        raise broker
    reject_foreign([root])
    return root


class _Cluster:
    """The cluster of a log root: the topics to which partitions can be restored.

    Raises:
        CorruptLog, UnsupportedFormat, LogError: the metadata cannot be read.
    """

    def __init__(self, root: str, metadata: str | None) -> None:
        self.root = root
        self._identity = read_meta_properties(root)
        folder = MetadataLookup([root], metadata).metadata_for(root).folder
        self._topics = None if folder is None else cluster_topics(folder)
        node = self._identity.node
        addresses = {} if folder is None else broker_addresses(folder)
        # this broker's address for clients
        self.address = addresses.get(-1 if node is None else int(node), "HOST:PORT")
        self._system = KafkaSystem(SettingSources(roots=(root,), metadata=metadata))

    def taken(
        self, found: Sequence[RestorablePartition]
    ) -> tuple[list[RestorablePartition], list[str]]:
        """The partitions of ``found`` to restore, and a note for each partition that is left out.

        Raises:
            InvalidConfig: the cluster lacks a topic.
        """
        left, notes = [], []
        has_groups = _has_groups(found)
        for each in found:
            there = (self._topics or {}).get(each.to.topic)
            is_same = there is not None and there.topic_id == each.contents.topic_id
            if each.name.topic in OF_COORDINATORS and not is_same:
                notes.append(
                    f"{each.name.topic} was not restored: it contains the state of the source "
                    "cluster's brokers"
                )
            elif has_groups and self._lacks_groups_topic(each):
                notes.append(
                    f"{GROUPS_TOPIC} was not restored: the cluster does not have this topic yet; "
                    "set the groups' committed offsets after the broker has started"
                )
            else:
                left.append(each)
        topics = self._topics
        missing = {}
        if topics is not None:
            missing = {each.to.topic: each for each in left if each.to.topic not in topics}
        if missing:
            raise InvalidConfig(
                f"the cluster has no topic {', '.join(missing)}",
                path=self.root,
                remedy="start the broker, create the topics with these commands, stop the broker, "
                "and run the command again: " + "; ".join(map(self._making, missing.values())),
            )
        return left, notes

    def _lacks_groups_topic(self, found: RestorablePartition) -> bool:
        """Whether ``found`` is a partition of ``__consumer_offsets``, which the cluster lacks.

        A broker creates the topic for the cluster's first group.
        """
        topics = self._topics
        return topics is not None and found.to.topic == GROUPS_TOPIC and GROUPS_TOPIC not in topics

    def _making(self, found: RestorablePartition) -> str:
        """The shell command that creates a topic with its archived settings."""
        topic, known = found.to.topic, found.contents.known
        # A broker creates this topic itself, at the first request about a group.
        if topic == GROUPS_TOPIC:
            return "kafka-consumer-groups.sh --bootstrap-server HOST:PORT --describe --group any"
        words = ["--create", "--topic", topic, "--partitions", str(found.partitions)]
        for name, value in sorted((known.topic if known else {}).items()):
            if "throttled.replicas" not in name:  # lists ids of the old brokers, so leave it out
                words += ["--config", f"{name}={value}"]
        return f"kafka-topics.sh --bootstrap-server HOST:PORT {shlex.join(words)}"

    def target(self, found: RestorablePartition) -> Target:
        """The partition of the log root to which an archived partition is restored.

        Raises:
            LogError: the partition does not belong to this log root.
        """
        name, folder = found.to, os.path.join(self.root, str(found.to))
        if self._topics is None:
            content = index_files.side_file(folder, PARTITION_METADATA)
            if content is None:
                raise LogError(
                    f"the id of topic {name.topic} is unknown: the log root does not contain the "
                    "cluster's metadata",
                    path=self.root,
                    remedy="give the folder with the cluster's metadata, the first of the "
                    "broker's log.dirs, with --metadata PATH",
                )
            topic_id = decode_partition_metadata(content)
            return Target(root=self.root, name=name, topic_id=topic_id, leader_epoch=None)
        topic = self._topics[name.topic]
        there = topic.partitions.get(name.partition)
        if there is None or self._is_uneven(found, topic):
            raise LogError(
                f"{name.topic} has {len(topic.partitions)} partitions in the cluster, and "
                f"{found.partitions} in the archive",
                path=self.root,
                remedy="the partition was not restored. Create a topic of another name with "
                f"{found.partitions} partitions, and restore into it with --as. Or, if the "
                "topic's records are not needed, delete the topic, create it with that number "
                "of partitions, stop the broker, and run the command again",
            )
        self._reject_elsewhere(name, there)
        return Target(
            root=self.root,
            name=name,
            topic_id=topic.topic_id,
            leader_epoch=there.leader_epoch,
        )

    def _is_uneven(self, found: RestorablePartition, topic: ClusterTopic) -> bool:
        """Whether ``__consumer_offsets`` has different partition counts in cluster and archive."""
        number = len(topic.partitions)
        return found.name.topic == GROUPS_TOPIC and number != found.partitions

    def _reject_elsewhere(self, name: TopicPartition, there: ClusterPartition) -> None:
        node, directory = self._identity.node, self._identity.directory
        if node is None or int(node) not in there.replicas:
            brokers = ", ".join(map(str, there.replicas))
            raise LogError(
                f"the cluster has {name} on broker {brokers}, but this log root belongs to broker "
                f"{node}",
                path=self.root,
                remedy=f"restore {name} into a log root of broker {brokers}",
            )
        if there.directories and directory is not None:
            wanted = there.directories[there.replicas.index(int(node))]
            if wanted != directory and not wanted.startswith(_NO_DIRECTORY):
                raise LogError(
                    f"the broker has {name} in another one of its log.dirs",
                    path=self.root,
                    remedy=f"give the folder whose {META_PROPERTIES} contains "
                    f"directory.id={wanted}",
                )

    def notes_on(self, found: RestorablePartition, log: RestoredLog) -> Iterator[str]:
        """Notes about a restored partition that the user needs before starting the broker."""
        if log.reason is not None or log.end_offset is None:
            return
        topic = found.to.topic
        if log.is_other_topic and log.is_written:
            yield (
                f"{topic} has another topic id in this cluster: producer state, transaction "
                "markers and aborted records were not restored, and leader epochs start at 0"
            )
            if found.name.topic == GROUPS_TOPIC:
                yield f"{topic}: committed offsets were restored, group members were not"
        there = None if self._topics is None else self._topics.get(topic)
        if there is not None:
            if len(there.partitions) > found.partitions:
                yield (
                    f"{topic} has {len(there.partitions)} partitions in the cluster, and "
                    f"{found.partitions} in the archive: producers may write a key to another "
                    "partition than before"
                )
            if len(there.partitions[found.to.partition].replicas) > 1:
                yield (
                    f"{topic} has several replicas: before any of their brokers starts, restore "
                    "into the log root of each replica, or make sure that the other replicas are "
                    "empty"
                )
        folder = os.path.join(self.root, str(found.to))
        here, before = settings_of(topic, self._system.topic_metadata(folder)), found.settings
        if here is None:
            return
        if before is not None and set(here.cleanup_policy) != set(before.cleanup_policy):
            yield (
                f"{topic}: cleanup.policy is {','.join(here.cleanup_policy)} in the cluster, and "
                f"was {','.join(before.cleanup_policy)} when the topic was fetched"
            )
        until_ms = time.time_ns() // 1_000_000 - here.retention_ms
        if here.deletes and here.retention_ms >= 0:
            if any(each.largest_timestamp_ms < until_ms for each in found.contents.segments):
                yield (
                    f"{topic}: retention.ms is {here.retention_ms}, and some segments are older: "
                    "the broker deletes them a few minutes after its start. Raise retention.ms "
                    "within that time to keep them"
                )


@dataclass(frozen=True, slots=True)
class _Restore:
    """The parameters of one restore, which all its partitions share."""

    cluster: _Cluster
    request: RestoreRequest
    limits: Limits
    advance: restoring.Advance

    def restore(self, found: RestorablePartition) -> RestoredLog:
        """Restore one partition into the log root."""
        log = RestoredLog(
            topic=found.to.topic,
            partition=found.to.partition,
            source=found.address,
            folder=os.path.join(self.cluster.root, str(found.to)),
        )
        try:
            target = self.cluster.target(found)
            done = restoring.restore(
                found.address,
                target,
                until=until_of(found, self.request.until, self.limits),
                drop_open=self.request.drop_open,
                limits=self.limits,
                advance=self.advance,
            )
        except (LogError, OSError) as error:
            is_damaged = isinstance(error, CorruptLog)
            return structs.replace(log, reason=str(error), is_damaged=is_damaged)
        return structs.replace(
            log,
            first_offset=done.first_offset,
            end_offset=done.end_offset,
            is_written=done.is_written,
            segments=done.segments,
            size_bytes=done.bytes,
            is_other_topic=not done.is_same_topic,
        )
