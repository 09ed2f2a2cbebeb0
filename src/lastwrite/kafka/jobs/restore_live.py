"""``restore`` into a running cluster: creates topics, and restores several partitions at once.

During a restore, a topic must not delete or compact records, and must accept any timestamp and
size. Therefore its settings are changed temporarily::

    cleanup.policy=compact  ──►  delete, retention.ms=-1, …  ──►  cleanup.policy=compact

The earlier settings are noted in the cluster, so that the run that finishes the restore can set
them again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import msgspec

from lastwrite.encoding.json_structs import decode_struct
from lastwrite.errors import CorruptLog, LogError
from lastwrite.kafka.cluster.internal_topics import GROUPS_TOPIC
from lastwrite.kafka.jobs.group_positions import set_archived_positions
from lastwrite.kafka.jobs.produce_restore import PartitionRestore, RestoreContext
from lastwrite.kafka.jobs.restorable import (
    OF_COORDINATORS,
    PREFIX,
    RestorablePartition,
    RestoreRequest,
    in_archive,
    locked_advance,
    max_parallel,
    until_of,
)
from lastwrite.kafka.network import topics
from lastwrite.kafka.network.cluster import KafkaCluster
from lastwrite.kafka.network.coordinator import TransactionClient
from lastwrite.kafka.network.producer import ProgressRecord
from lastwrite.kafka.network.topics import TopicSetting
from lastwrite.kafka.restored import LogGiven, LogsGiven
from lastwrite.kafka.rules.live_settings import KafkaClientConfig, brokers_of
from lastwrite.model.log import TopicPartition
from lastwrite.model.progress import NoProgress, Progress
from lastwrite.model.work import Limits, Throttle
from lastwrite.storage.throttle import Pacer

_LATEST = str((1 << 63) - 1)
# With these settings, brokers delete, reject and rewrite no records.
_MEANWHILE = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "max.message.bytes": str((1 << 31) - 1),
    "message.timestamp.type": "CreateTime",
    "message.timestamp.before.max.ms": _LATEST,
    "message.timestamp.after.max.ms": _LATEST,
    "message.timestamp.difference.max.ms": _LATEST,
    "compression.type": "producer",
}
_LIMITS = ("retention.ms", "retention.bytes")


class _SettingsBefore(msgspec.Struct, frozen=True):
    """A topic's settings before the restore changed them, stored as a note in the cluster."""

    topic_id: str | None
    own: dict[str, str | None]  # the topic's settings with names in ``_MEANWHILE``; null if not set
    held: dict[str, str | None]  # effective policy and retention, including defaults


@dataclass(frozen=True, slots=True)
class _Topic:
    """One topic of the cluster, prepared for a restore of its partitions."""

    name: str
    partitions: Sequence[RestorablePartition]
    ready: Mapping[TopicPartition, PartitionRestore | LogError]
    note: ProgressRecord
    transactions: TransactionClient
    before: _SettingsBefore | None  # None if no settings were changed


def restore_live(
    path: str,
    url: str,
    request: RestoreRequest,
    config: Mapping[str, object],
    replication: int,
    limits: Limits,
    progress: Progress | None,
) -> LogsGiven:
    """Restore topics of the archive at ``path`` to the running cluster at ``url``.

    Args:
        wanted: the selected partitions and the options of the restore.
        replication: replicas of new topics; -1 means the brokers' default.
        limits: the memory and rates that the restore may use.

    Raises:
        NotALog: there is no such archive or topic.
        InvalidConfig: a setting or the URL is invalid.
        RemoteFailed: no broker answers. Errors of single partitions are in the report.
    """
    client = KafkaClientConfig.from_names(config)
    brokers = brokers_of(url)
    progress = progress or NoProgress()
    found, notes = _without_internal(in_archive(path, request))
    notes += [note for each in found for note in each.notes]
    pacer = Pacer(limits.reading[0] if limits.reading else Throttle("", math.inf))
    with KafkaCluster(brokers, client) as cluster:
        cluster.reach()
        if request.groups:
            done = _restore_groups_only(found, request, cluster, client)
            return LogsGiven(path=url, partitions=tuple(done), notes=tuple(dict.fromkeys(notes)))
        progress.stage("restore", sum(each.bytes for each in found))
        shared = RestoreContext(
            cluster=cluster,
            client=client,
            limits=replace(limits, reading=()),  # the rate limit applies to sending, not to reading
            drop_open=request.drop_open,
            largest_request=topics.largest_request(cluster),
            throttle=pacer.throttle,
            advance=locked_advance(progress),
        )
        run = _LiveRestore(shared, request, replication)
        done = []
        made = [run.prepared(name, parts) for name, parts in _by_topic(found)]
        with ThreadPoolExecutor(max_parallel(), "restore") as pool:
            coming = pool.map(
                run.restore_partition,
                [(topic, part) for topic in made for part in topic.partitions],
            )
            try:
                done.extend(coming)
            except BaseException:  # Ctrl-C: the next run continues the restore
                pacer.stop()
                raise
        for topic in made:
            notes += run.finish(topic, [each for each in done if each.topic == topic.name])
    return LogsGiven(path=url, partitions=tuple(done), notes=tuple(dict.fromkeys(notes)))


def _restore_groups_only(
    found: Iterable[RestorablePartition],
    request: RestoreRequest,
    cluster: KafkaCluster,
    client: KafkaClientConfig,
) -> list[LogGiven]:
    """Set only the groups' committed offsets (``--groups``).

    Returns a report for each partition.
    """

    def one(each: RestorablePartition) -> LogGiven:
        try:
            return set_archived_positions(each, cluster, client, request.until)
        except LogError as error:
            return LogGiven(
                topic=each.to.topic,
                partition=each.to.partition,
                source=each.address,
                folder=f"kafka://{cluster.address}/{each.to}",
                is_groups_alone=True,
                reason=str(error),
                is_damaged=isinstance(error, CorruptLog),
            )

    with ThreadPoolExecutor(max_parallel(), "restore") as pool:
        return list(pool.map(one, (each for each in found if each.contents.groups)))


def _without_internal(
    found: Iterable[RestorablePartition],
) -> tuple[list[RestorablePartition], list[str]]:
    left, notes = [], []
    for each in found:
        if each.name.topic == GROUPS_TOPIC:
            notes.append(
                f"{GROUPS_TOPIC} was not restored: groups are set by the committed offsets that "
                "the archive has for each partition"
            )
        elif each.name.topic in OF_COORDINATORS:
            notes.append(
                f"{each.name.topic} was not restored: it contains the state of the source "
                "cluster's brokers"
            )
        else:
            left.append(each)
    return left, notes


def _by_topic(found: Iterable[RestorablePartition]) -> list[tuple[str, list[RestorablePartition]]]:
    topics: dict[str, list[RestorablePartition]] = {}
    for each in found:
        topics.setdefault(each.to.topic, []).append(each)
    return list(topics.items())


class _LiveRestore:
    """The parameters of one restore, which all its topics share."""

    def __init__(self, shared: RestoreContext, request: RestoreRequest, replication: int) -> None:
        self._shared, self._cluster = shared, shared.cluster
        self._request = request
        self._replication = replication

    # ------------------------------------------------------------------ before

    def prepared(self, name: str, parts: Sequence[RestorablePartition]) -> _Topic:
        """Prepare a topic for the restore. Errors are in ``_Topic.ready``, by partition."""
        note = ProgressRecord(self._cluster, f"{PREFIX}{name}.settings", TopicPartition(name, 0))
        transactions = TransactionClient(self._cluster, f"{PREFIX}{name}")
        ready: dict[TopicPartition, PartitionRestore | LogError] = {}
        before = None
        try:
            self._make(name, parts)
            has_more = False
            for each in parts:
                ready[each.to], is_coming = self._ready(each)
                has_more |= is_coming
            transactions.begin()
            before = self._noted(name, note)
            if has_more:
                before = self._set_aside(name, before, note, transactions)
        except LogError as error:
            ready = {each.to: error for each in parts}
        return _Topic(name, parts, ready, note, transactions, before)

    def _make(self, name: str, parts: Sequence[RestorablePartition]) -> None:
        if name not in self._cluster.topics:
            known = parts[0].contents.known
            own = {
                key: value
                for key, value in sorted((known.topic if known else {}).items())
                if value is not None
                and "throttled.replicas" not in key  # lists ids of the old brokers, so leave it out
            }
            topics.create(self._cluster, name, parts[0].partitions, self._replication, own)

    def _ready(self, found: RestorablePartition) -> tuple[PartitionRestore | LogError, bool]:
        """The restore of a partition, and whether records remain to be restored.

        If the partition cannot be restored, the first value is the error.
        """
        try:
            there = self._cluster.topic(found.to.topic).partitions
            if found.to.partition not in there:
                raise LogError(
                    f"{found.to.topic} has {len(there)} partitions in the cluster, and "
                    f"{found.partitions} in the archive",
                    path=found.address,
                    remedy="add partitions with kafka-topics.sh --alter and run the command again; "
                    "or restore under another name with --as",
                )
            until = until_of(found, self._request.until, self._shared.limits)
            partition = PartitionRestore(found, self._shared, until)
            return partition, partition.has_more()
        except LogError as error:
            return error, False
        except OSError as error:
            return LogError(str(error), path=found.address), False

    def _noted(self, name: str, note: ProgressRecord) -> _SettingsBefore | None:
        """The settings in the note of an earlier run. None if there is no note about this topic."""
        text = note.read()
        if not text:
            return None
        try:
            before = decode_struct(text, _SettingsBefore)
        except msgspec.MsgspecError as error:
            raise CorruptLog(
                f"the restore's note of the topic's settings cannot be decoded: {error}", 0
            ) from error
        return before if before.topic_id == self._cluster.topic(name).id_text else None

    def _set_aside(
        self,
        name: str,
        before: _SettingsBefore | None,
        note: ProgressRecord,
        transactions: TransactionClient,
    ) -> _SettingsBefore:
        """Note the topic's settings and change them, so that the topic accepts the records.

        Raises:
            RemoteFailed: a request is refused.
        """
        if before is None:
            now = topics.settings(self._cluster, name)
            own = {
                key: _own(now[key])
                for key, value in _MEANWHILE.items()
                if key in now and now[key].value != value
            }
            held = {key: now[key].value for key in ("cleanup.policy", *_LIMITS) if key in now}
            before = _SettingsBefore(self._cluster.topic(name).id_text, own, held)
            note.write(msgspec.json.encode(before).decode(), transactions)
        if before.own:
            topics.alter(self._cluster, name, {key: _MEANWHILE[key] for key in before.own})
        return before

    # ------------------------------------------------------------------ one partition

    def restore_partition(self, what: tuple[_Topic, RestorablePartition]) -> LogGiven:
        """Restore one partition. An error is part of the returned report."""
        topic, found = what
        log = LogGiven(
            topic=found.to.topic,
            partition=found.to.partition,
            source=found.address,
            folder=f"kafka://{self._cluster.address}/{found.to}",
        )
        ready = topic.ready[found.to]
        try:
            if isinstance(ready, LogError):
                raise ready
            return ready.restore()
        except (LogError, OSError) as error:
            is_damaged = isinstance(error, CorruptLog)
            return msgspec.structs.replace(log, reason=str(error), is_damaged=is_damaged)

    # ------------------------------------------------------------------ after

    def finish(self, topic: _Topic, done: Sequence[LogGiven]) -> Iterator[str]:
        """Set the topic's settings back to the values before the restore.

        Yields notes for the user.
        """
        there = self._cluster.topics.get(topic.name)
        count = topic.partitions[0].partitions
        if there is not None and len(there.partitions) > count:
            yield (
                f"{topic.name} has {len(there.partitions)} partitions in the cluster, and {count} "
                "in the archive: producers may write a key to another partition than before"
            )
        if topic.before is None:
            return
        if any(each.reason is not None for each in done):
            yield (
                f"retention and compaction of {topic.name} stay switched off until the restore is "
                "complete; run the command again to complete it"
            )
            return
        own = dict(topic.before.own)
        for name, words in self._too_old(topic):
            if name in own:
                value = own.pop(name)
                how = f"--delete-config {name}" if value is None else f"--add-config {name}={value}"
                yield (
                    f"{topic.name}: {words}. {name} stays -1, so that the broker does not delete "
                    "restored records. To set it as before: kafka-configs.sh --bootstrap-server "
                    f"HOST:PORT --alter --entity-type topics --entity-name {topic.name} {how}"
                )
        try:
            if own:
                topics.alter(self._cluster, topic.name, own)
            topic.note.write("", topic.transactions)
        except LogError as error:
            why = (
                f"retention and compaction of {topic.name} stay switched off until its settings "
                "are set again: run the command again"
            )
            yield f"{error}; {why}"

    def _too_old(self, topic: _Topic) -> Iterator[tuple[str, str]]:
        """Yield each retention setting that would delete restored records, with the reason."""
        assert topic.before is not None
        held = topic.before.held
        if "delete" not in (held.get("cleanup.policy") or "delete"):
            return
        logs = [each.contents for each in topic.partitions]
        age_ms, size = (int(held.get(name) or -1) for name in _LIMITS)
        since_ms = time.time_ns() // 1_000_000 - age_ms
        times = (segment.largest_timestamp_ms for log in logs for segment in log.segments)
        if age_ms >= 0 and any(each < since_ms for each in times):
            yield _LIMITS[0], f"retention.ms was {age_ms}, and some restored records are older"
        if size >= 0 and any(sum(each.bytes for each in log.segments) > size for log in logs):
            yield _LIMITS[1], f"retention.bytes was {size}, and a restored partition is larger"


def _own(setting: TopicSetting) -> str | None:
    return setting.value if setting.is_own else None
