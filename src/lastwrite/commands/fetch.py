"""``fetch``: copies topics from files or live clusters into an archive.

For Pulsar, folders are read first, and only missing ledgers are requested from a live cluster. For
example, offloaded ledgers are read from a copy of the bucket, the other ledgers from the bookies.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from msgspec import structs

from lastwrite.archive.following import FollowRequest
from lastwrite.archive.layout import systems_at
from lastwrite.commands.following import fetch_once, limits_of
from lastwrite.commands.selection import TopicConfig, find_partitions, overrides, paths_of
from lastwrite.commands.systems import AUTOMQ, KAFKA, PULSAR, ROCKETMQ, reject_server, system_of
from lastwrite.config.stores import store_settings
from lastwrite.config.system import SettingSources
from lastwrite.engine.system import system_named
from lastwrite.errors import InvalidConfig, NotALog
from lastwrite.kafka.rules.live_settings import SCHEME as KAFKA_SCHEME
from lastwrite.kafka.store.partitions import log_roots_below
from lastwrite.model.progress import NoProgress, Progress
from lastwrite.pulsar.fetched import FetchedTopic, FetchReport
from lastwrite.pulsar.format.names import TopicName
from lastwrite.pulsar.rules.live_settings import SCHEME
from lastwrite.pulsar.store import fetching
from lastwrite.pulsar.store.exported_metadata import ExportedMetadata
from lastwrite.pulsar.store.place import locate, topics_below
from lastwrite.pulsar.store.topic import find_topics
from lastwrite.reports.fetching import LogsFetched
from lastwrite.rocketmq.rules.live_settings import SCHEME as ROCKETMQ_SCHEME
from lastwrite.storage.choice import Topics
from lastwrite.storage.exports import reject_inside, reporting_leftovers
from lastwrite.storage.objects import address
from lastwrite.storage.objects.address import is_address, real_path

if TYPE_CHECKING:
    from lastwrite.kafka.system import KafkaSystem


def fetch(
    sources: str | Sequence[str],
    to: str,
    *,
    topic: Topics = None,
    partition: int | None = None,
    system: str | None = None,
    metadata: str | None = None,
    cursor: str | None = None,
    copies: bool = False,
    recover: bool = False,
    include_active: bool = False,
    keep_scans: bool = False,
    memory: str | int | None = None,
    topic_config: TopicConfig | None = None,
    config: Mapping[str, object] | None = None,
    rate: str | int | None = None,
    sets_aside: bool = False,
    accepts_gap: bool = False,
    progress: Progress | None = None,
) -> FetchReport | LogsFetched:
    """Copy topics into the archive ``to``. Fetching again adds new records.

    Args:
        sources: Kafka: log roots, partition folders, or copies of them, even while a broker runs;
            a broker's tier (KIP-405), or a bucket of AutoMQ; or one live cluster,
            ``kafka://HOST:PORT[,HOST:PORT…]``.
            RocketMQ: stores, or compaction logs in them; or the name servers of a live cluster,
            ``rocketmq://HOST:PORT[,HOST:PORT…][/BROKER]``. Pulsar: folders of a bucket's objects,
            of MapFiles, or of bookies (entry logs, journals), which become topic folders; or
            ``persistent://…``, a topic of a live cluster, with all partitions unless the name has
            one; or topic folders or an archive, which become an archive like Kafka's. A live
            topic alone is written to such an archive, unless ``to`` contains topic folders.
        to: the archive: a folder, which is created if needed. For Kafka, RocketMQ, and Pulsar's
            topic folders and live topics also the address of a bucket, ``s3://bucket/prefix``.
        topic: only this topic of the folders, with all its partitions if it names none. Kafka and
            RocketMQ: also a shell pattern, or several of either.
        partition: Kafka, RocketMQ: only this partition or queue of each topic.
        system: ``automq`` if the source is a bucket of AutoMQ, which needs ``metadata``. None
            means: detect it from the files.
        metadata: Kafka: the metadata of the cluster, as for ``compact``.
        metadata, cursor: Pulsar folders: the exported metadata of the topic's ledgers and of its
            compaction, see ``pulsar.store.exported_metadata``. ``metadata`` may be a folder for
            many topics.
        copies: copy the objects of a bucket instead of linking them. Kafka tiers: copy the
            segments instead of referring to them.
        recover: include entries of an open ledger in bookies' files that no writer confirmed. Live
            Pulsar topic: fetch the intact entries around lost ones into a topic folder.
        include_active: Kafka: also the active segment, up to the high watermark. AutoMQ: also the
            records that only write-ahead objects contain. RocketMQ: also the active file.
        keep_scans: Kafka log directories: store the scan of each segment in the archive, as
            ``compact`` does. The log is read twice for this.
        memory: Kafka, RocketMQ: memory of this process, in bytes or as ``"2g"``. None means a
            quarter of the machine's.
        topic_config: Kafka: settings of single topics, as for ``compact``. Live RocketMQ cluster:
            ``cleanup.policy=compact`` for a topic that no broker compacts.
        config: Pulsar: the address of the cluster, by the names of ``broker.conf``. Kafka: as for
            ``compact``. RocketMQ: ``delete.retention.ms``, the time for which the compactor of
            the store keeps deletes; a broker does not keep them. Live clusters: the settings of a
            client, by its names.
        rate: live cluster (Pulsar: into an archive): maximum bytes per second, such as ``"50m"``.
            None means no limit.
        sets_aside: Kafka: applies if the log does not continue where the archive ends. True
            means: set aside the archived records that the log lacks (log directory: all
            archived records), and continue. False means: refuse the partition.
        accepts_gap: if a log begins after the end of the archive, continue and record the offsets
            in between as lost. The manifest contains the gap, and commands report it.
        progress: receives stages, bytes done and notes.

    Raises:
        NotALog: a source contains no log, or the cluster has no such topic.
        EnvironmentUnfit: kio, the client library for a live Kafka cluster, is not installed.
        InvalidConfig: the ledgers or the address of the cluster are not given.
        LogHeld: another run works on a topic's folder.
        RemoteFailed: the cluster does not answer.
        LogError: a file cannot be read or written. Damage and missing data do not raise; the
            report contains them.
    """
    address.use(store_settings(config))
    sources = paths_of(sources)
    progress = progress or NoProgress()
    is_live = any(source.startswith((KAFKA_SCHEME, ROCKETMQ_SCHEME, SCHEME)) for source in sources)
    for source in sources:
        if not source.startswith((KAFKA_SCHEME, ROCKETMQ_SCHEME)):
            reject_server(source, is_fetched=True)
    if system is not None and is_live:
        raise InvalidConfig(
            "--system (system) is only for folders and buckets", remedy="leave out --system"
        )
    if system == AUTOMQ:
        for source in sources:
            system = system_of(source, AUTOMQ, metadata)
    if keep_scans and (is_live or _system_at(sources[0], system) != KAFKA):
        raise InvalidConfig(
            "only log directories of Kafka can keep scan results", remedy="leave out --keep-scans"
        )
    if is_live and not any(source.startswith(SCHEME) for source in sources):
        live = FollowRequest(
            sources=tuple(sources),
            to=to,
            topic=topic,
            partition=partition,
            config=lambda: config or {},
            overrides=overrides(topic_config),
            limits=limits_of(memory, rate),
            progress=progress,
            sets_aside=sets_aside,
            accepts_gap=accepts_gap,
            is_once=True,
        )
        return fetch_once(live)
    if accepts_gap and sets_aside:
        raise InvalidConfig(
            "--accept-gap (accepts_gap) and --set-aside (sets_aside) exclude each other",
            remedy="give only one of them",
        )
    if sets_aside and (is_live or _system_at(sources[0], system) != KAFKA):
        raise InvalidConfig(
            "--set-aside (sets_aside) is only for topics of Kafka", remedy="leave out --set-aside"
        )
    urls = [source for source in sources if source.startswith(SCHEME)]
    is_old = not is_address(to) and next(topics_below(os.path.abspath(to)), None) is not None
    goes_straight = len(urls) == len(sources) and not recover and not is_old
    if rate is not None and not goes_straight:
        raise InvalidConfig("--rate is only for a live cluster", remedy="leave out --rate")
    whose = None if urls else _system_at(sources[0], system)
    if whose is not None:
        reject_inside(to, sources)
        told_by = SettingSources(overrides=overrides(topic_config), metadata=metadata)
        told, logs = find_partitions(sources, whose, topic, partition, told_by)
        stated = dict(config or {})
        if whose == ROCKETMQ:
            if keep_scans:
                raise InvalidConfig(
                    "--keep-scans (keep_scans) is only for Kafka", remedy="leave out --keep-scans"
                )
            from lastwrite.rocketmq.jobs.fetch import fetch_queues  # imported only if needed

            return fetch_queues(logs, to, stated, include_active, memory, progress, accepts_gap)
        from lastwrite.kafka.jobs import fetch as from_logs  # imported only if needed

        wanted = from_logs.FetchRequest(
            include_active=include_active,
            copies=copies,
            sets_aside=sets_aside,
            accepts_gap=accepts_gap,
            keep_scans=keep_scans,
        )
        kafka = cast("KafkaSystem", told)
        return from_logs.fetch_logs(kafka, logs, to, stated, wanted, memory, progress)
    if topic is not None and not isinstance(topic, str):
        if len(topic) > 1:
            raise InvalidConfig(
                "several topics were given, but one command fetches one topic of Pulsar",
                remedy="run one command for each topic",
            )
        topic = next(iter(topic), None)
    folders = [source for source in sources if source not in urls]
    reject_inside(to, folders)
    if urls and (topic is not None or metadata is not None or cursor is not None):
        raise InvalidConfig(
            "--topic, --metadata and --cursor are for folders, but the source is a topic of a "
            "live cluster",
            remedy="leave out --topic, --metadata and --cursor",
        )
    if not urls and _are_topics(folders):
        return _into_archive(folders, to, topic, partition, progress, accepts_gap)
    if goes_straight:
        from lastwrite.pulsar.live import fetch_live as fetch_topics  # imports network modules

        reading = limits_of(memory, rate).reading
        where = real_path(to)
        return fetch_topics(urls, config or {}, where, reading, progress, accepts_gap)
    if accepts_gap:
        raise InvalidConfig(
            "--accept-gap (accepts_gap) is only for a fetch into an archive",
            remedy="leave out --accept-gap",
        )
    if is_address(to) or PULSAR in systems_at(to):
        raise InvalidConfig(
            "these sources of Pulsar cannot be fetched into an archive directly",
            path=to,
            remedy="first run lastwrite fetch … --to FOLDER, then lastwrite fetch FOLDER --to "
            + to,
        )
    for folder in folders:
        _reject_nothing_at(folder)
    with reporting_leftovers(to, progress, "the fetched topics"):
        if not urls:
            return fetching.fetch(folders, to, topic, metadata, cursor, copies, recover)
        return _with_live(urls, folders, os.path.abspath(to), copies, config or {}, progress)


def _reject_nothing_at(folder: str) -> None:
    """Raise an error if the path is a file, a missing folder, or a folder above log roots.

    Raises:
        NotALog: the path is one of these. The remedy states which path to give instead.
    """
    if os.path.exists(folder) and not os.path.isdir(folder):
        raise NotALog(
            "the path is a file, but fetch reads folders",
            path=folder,
            remedy="give the log root that contains the file",
        )
    if not os.path.isdir(folder):
        raise NotALog("no such file or folder", path=folder, remedy="check the path")
    if below := log_roots_below(folder):
        raise NotALog(
            "this folder has no Kafka log, RocketMQ store or Pulsar ledger",
            path=folder,
            remedy=f"give the Kafka log root below this folder: {' or '.join(below)}",
        )


def _system_at(source: str, system: str | None) -> str | None:
    """The system of the logs at ``source``, Kafka or RocketMQ. ``system`` is the stated system.

    Returns None for any other folder. Such a folder may have ledgers of Pulsar, whose files can
    have any name.

    Raises:
        NotALog: a RocketMQ store has no compaction log.
    """
    found = system_of(source, system)
    if found == ROCKETMQ:
        return found
    try:
        return KAFKA if found == KAFKA and system_named(KAFKA).find(source, None, None) else None
    except NotALog:
        return None


def _are_topics(sources: Sequence[str]) -> bool:
    """Whether all ``sources`` are Pulsar topic folders, or archives of Pulsar topics."""
    return all(PULSAR in systems_at(source) or locate(source) is not None for source in sources)


def _into_archive(
    sources: Sequence[str],
    to: str,
    topic: Topics,
    partition: int | None,
    progress: Progress,
    accepts_gap: bool,
) -> FetchReport:
    """Fetch topics from topic folders or from another archive."""
    from lastwrite.pulsar.store import archiving  # imported only if needed

    if not is_address(to) and next(topics_below(os.path.abspath(to)), None) is not None:
        raise InvalidConfig(
            "the destination has topic folders of an earlier format",
            path=to,
            remedy="give --to another folder; when the fetch has succeeded, the earlier topic "
            "folders are no longer needed",
        )
    found = [folder for path in sources for folder in find_topics(path, topic, partition)]
    return archiving.fetch(found, to, progress, accepts_gap)


def _with_live(
    urls: Sequence[str],
    folders: Sequence[str],
    archive: str,
    copies: bool,
    config: Mapping[str, object],
    progress: Progress,
) -> FetchReport:
    """Fetch topics of live Pulsar clusters. Ledgers in ``folders`` are copied from there first."""
    from lastwrite.pulsar.live import fetch_into_archive, lists_of  # imports network modules

    topics: list[FetchedTopic] = []
    for url in urls:
        known = {
            ledger.path: ledger
            for each in _from_folders(folders, archive, url, copies, lists_of(url, config))
            for ledger in each.ledgers
        }
        before = fetching.objects_of(archive, TopicName.parse(url))
        for name in fetch_into_archive(url, config, archive, progress):
            found = fetching.describe(archive, name, url, before)
            topics.append(
                structs.replace(
                    found, ledgers=tuple(known.get(each.path, each) for each in found.ledgers)
                )
            )
    return FetchReport(archive=archive, topics=tuple(topics))


def _from_folders(
    folders: Sequence[str],
    archive: str,
    url: str,
    copies: bool,
    lists: Mapping[TopicName, ExportedMetadata],
) -> tuple[FetchedTopic, ...]:
    """Fetch a topic's ledgers from the folders.

    The cluster's ledger lists identify the ledgers.
    """
    try:
        return (
            fetching.fetch(folders, archive, url, copies=copies, lists=lists).topics
            if folders
            else ()
        )
    except NotALog:
        return ()
