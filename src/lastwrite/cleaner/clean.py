"""``clean``: runs the cleaner on log roots."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from lastwrite.archive.layout import systems_at
from lastwrite.cleaner.daemon import DaemonServices
from lastwrite.cleaner.events import Event, Events
from lastwrite.cleaner.follow import ArchiveFollower
from lastwrite.cleaner.following import (
    Follow,
    Stoppable,
    follow_request,
    now_ms,
    run_both,
    system_of_follow,
)
from lastwrite.cleaner.following_metrics import FollowingMetrics
from lastwrite.cleaner.live import LiveCleaner, topics_in
from lastwrite.cleaner.loop import Cleaner
from lastwrite.cleaner.metrics import CleanerMetrics
from lastwrite.cleaner.rounds import RoundRunner
from lastwrite.cleaner.settings import SettingsSource
from lastwrite.cleaner.table_metrics import TableMetrics
from lastwrite.cleaner.tables import KeptTables, Tables
from lastwrite.commands.following import open_followed
from lastwrite.commands.metrics_page import serve_metrics
from lastwrite.commands.selection import TopicConfig, overrides
from lastwrite.commands.systems import KAFKA, PULSAR, ROCKETMQ, system_of_all
from lastwrite.config.keyless import may_drop, reject_elsewhere
from lastwrite.config.stores import store_settings
from lastwrite.config.system import SettingSources
from lastwrite.engine.system import System, system_named
from lastwrite.errors import InvalidConfig, LogError, NotALog
from lastwrite.kafka.rules import live_settings as of_kafka
from lastwrite.model.progress import NoProgress
from lastwrite.pulsar.rules import live_settings as of_pulsar
from lastwrite.pulsar.rules.live_settings import SCHEME, LiveConfig
from lastwrite.rocketmq.rules import live_settings as of_rocketmq
from lastwrite.storage.objects.address import is_address, real_path, use
from lastwrite.storage.ownership import reject_foreign

# default pause between checks of archives in a bucket; a check costs one request per partition
_LOOK_MS = 300_000

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lastwrite.spark.inline import Inline

# Functions that remove the settings of the network client, by system.
_WITHOUT_CLIENTS: dict[str, Callable[[Mapping[str, object]], Mapping[str, object]]] = {
    KAFKA: of_kafka.rules_of,
    ROCKETMQ: of_rocketmq.rules_of,
    PULSAR: of_pulsar.rules_of,
}


def clean(
    roots: Sequence[str],
    config: Mapping[str, object] | Callable[[], Mapping[str, object]] | None = None,
    *,
    config_file: str | None = None,
    once: bool = False,
    threads: int | None = None,
    memory: str | int | None = None,
    spark: SparkSession | Inline | None = None,
    master: str = "local[*]",
    conf: Mapping[str, str] | None = None,
    metrics_port: int | None = None,
    metrics_host: str = "127.0.0.1",
    tell: Callable[[Event], None] = lambda event: None,
    started: Callable[[Stoppable], None] = lambda cleaner: None,
    keep_scans: bool = False,
    system: str | None = None,
    archive: str | None = None,
    topic_config: TopicConfig | None = None,
    metadata: str | None = None,
    drop_keyless: bool = False,
    follow: Follow | None = None,
    tables: Tables | None = None,
) -> int:
    """Compact the log roots until a stop is requested, or with ``once`` until nothing is due.

    Args:
        roots: log roots, such as a broker's ``log.dirs``; or RocketMQ stores; or archives, in a
            folder or ``s3://bucket/prefix``; or topics of a live cluster, ``persistent://…``.
        system: the system of all roots. None means: detect it from the files.
        config: settings by upstream name, or a function that reads them.
        config_file: the file that ``config`` reads. ``config`` is called again when it changes.
        once: end when nothing is due, instead of waiting.
        threads: number of waves (groups of partitions) compacted at the same time. None means
            ``log.cleaner.threads``.
        memory, spark, master, conf: as for ``compact``. If Lastwrite creates the Spark session,
            it does so for the first round.
        metrics_port: the port of the metrics page. 0 means any free port, which a note reports.
        metrics_host: the address of the metrics page.
        tell: receives the events.
        keep_scans, archive, drop_keyless, topic_config, metadata: as for ``compact``. A topic
            without known settings is skipped, with a note.
        started: receives the cleaner before it starts. Its ``request_stop`` may be called from any
            thread.
        follow: the live cluster that the only root, an archive, follows at the same time. With
            ``once``, the archive is updated once, before cleaning.
        tables: tables of compacted topics. They are updated before rounds, and when logs grow.

    Returns:
        The exit status 0. With ``once`` also 1, 3 or 4, if partitions failed, are damaged, or are
        locked by another process.

    Raises:
        NotALog, InvalidConfig: nothing was done.
        RemoteFailed: a bucket is unavailable at the start. Later, the cleaner waits for it.
        EnvironmentUnfit: Java or Spark is missing, and a round is due.
    """
    if follow is not None:
        system = system_of_follow(follow, roots, system)
    live = [root for root in roots if root.startswith(SCHEME)]
    if live and (len(live) < len(roots) or system not in (None, "pulsar")):
        raise InvalidConfig(
            "topics of a live cluster and folders were given together",
            remedy="start one daemon for the topics and one for the folders",
        )
    if archive is not None and not live:
        raise InvalidConfig(
            "--archive is only for topics of a live cluster",
            remedy="leave out --archive, or give persistent://TENANT/NAMESPACE/TOPIC",
        )
    if tables is not None:
        if live:
            raise InvalidConfig(
                "tables cannot be kept of topics of a live cluster directly",
                remedy="fetch the topics continuously into an archive (--source, --to), and keep "
                "the tables of the archive",
            )
        tables.check()
    folders = topics_in(roots) if live else list(dict.fromkeys(map(real_path, roots)))
    sources = SettingSources(
        overrides=overrides(topic_config),
        roots=() if live else tuple(folders),
        metadata=metadata,
        are_archives=follow is not None,
    )
    given = config if callable(config) else lambda: config or {}
    use(store_settings(given()))
    if follow is not None:
        # In RocketMQ, the overrides only select the topics to fetch. Every fetched topic is
        # compacted.
        told = replace(sources, overrides=()) if system == ROCKETMQ else sources
        found, archives = system_named(system or "").with_sources(told), folders
    else:
        detected = system_named("pulsar") if live else _system_of(folders, system, metadata)
        found = detected.with_sources(sources)
        archives = (
            [] if live else [each for each in folders if is_address(each) or systems_at(each)]
        )

    def read() -> Mapping[str, object]:
        names = may_drop(given(), drop_keyless)
        reject_elsewhere(names, found.name, found.governs_keyless)
        return names

    look_ms = _LOOK_MS if any(map(is_address, folders)) else None
    rules = _WITHOUT_CLIENTS[found.name] if live or follow is not None else dict
    source = SettingsSource(found, read, config_file, rules, look_ms)
    if keep_scans and not found.keeps_scans:
        raise InvalidConfig(
            f"brokers of {found.name} allow no other files beside the logs",
            remedy="leave out --keep-scans",
        )
    if live:
        LiveConfig.from_names(source.current.configured)
    elif follow is None:  # no check with a follower, which fetches the topics' settings
        _check_roots(found, folders, archives, source.current.names)
    metrics = CleanerMetrics(folders, now_ms)
    events = Events(tell, now_ms)
    with ExitStack() as stack:
        serve_metrics(stack, metrics.registry, metrics_host, metrics_port, events.note)
        rounds = RoundRunner(found, spark, master, memory, conf or {}, NoProgress(), keep_scans)
        means = DaemonServices(source, rounds, metrics, events, now_ms)
        cleaner: Cleaner | LiveCleaner
        if live:
            cleaner = LiveCleaner(folders, means, archive)
        else:
            kept = None
            if tables is not None:
                in_page = TableMetrics(metrics.registry)
                kept = KeptTables(tables, lambda: source.current.configured, in_page, events.emit)
            cleaner = Cleaner(found, folders, means, threads, archives, kept)
        if follow is None:
            started(cleaner)
            return cleaner.run(once)
        wanted = follow_request(
            follow, folders[0], lambda: source.current.configured, sources, events, once
        )
        follower = ArchiveFollower(
            open_followed(wanted),
            follow.every_s,
            FollowingMetrics(metrics.registry, now_ms),
            events,
            now_ms,
            turned=cleaner.wake,
            failed=cleaner.request_stop,
        )
        return run_both(cleaner, follower, started, once)


def _system_of(roots: Sequence[str], name: str | None, metadata: str | None) -> System:
    """The system of all roots.

    Raises:
        NotALog: a root is not a folder.
        InvalidConfig: the roots are of several systems.
    """
    for root in roots:
        if not is_address(root) and not os.path.isdir(root):
            raise NotALog(
                "the path is not an existing folder",
                path=root,
                remedy="give a log root, which is a folder with <topic>-<partition> folders",
            )
    return system_of_all(name, roots, metadata)


def _check_roots(
    system: System, roots: Sequence[str], archives: Sequence[str], names: Mapping[str, object]
) -> None:
    """Reject paths that are not log roots. Reject all roots if no topic's cleanup policy is known.

    Raises:
        NotALog: a path is a partition's folder.
        InvalidConfig: no cleanup policy is known.
    """
    unknown, may_know = [], False
    for root in roots:
        try:
            partitions = system.find(root, None, None)
        except NotALog:
            may_know = True  # no error: an empty root may get topics later
            continue
        if partitions[0] == root != system.root_of(root) and root not in archives:
            raise NotALog(
                "the path is a partition's folder, not a log root",
                path=root,
                remedy=f"give {os.path.dirname(root)}",
            )
        system.reject_read_only(system.root_of(partitions[0]))
        reject_foreign(partitions)
        try:
            may_know = may_know or any(
                system.is_policy_known(folder, names) for folder in partitions
            )
        except LogError:
            may_know = True  # no error: the loop reports a damaged metadata log
        unknown.append(root)
    if not may_know:
        raise InvalidConfig(
            "Lastwrite cannot determine which of these topics are compacted",
            path=unknown[0],
            remedy=system.policy_remedy,
        )
