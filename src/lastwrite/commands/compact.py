"""``plan`` and ``compact``: compact the partitions at a path, or report what this would do.

    lastwrite.compact("/var/lib/kafka/orders-0", config={"delete.retention.ms": 0})

Both commands use a Spark session or start one. A log that a broker or another run has locked causes
an error. Two commands also work while a broker runs: ``plan``, and for Kafka ``compact`` with
``to``.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from msgspec import structs

from lastwrite.commands.selection import TopicConfig, find_partitions, overrides, paths_of
from lastwrite.config.cleaner import CleanerConfig, replaced_settings
from lastwrite.config.keyless import may_drop, reject_elsewhere
from lastwrite.config.stores import store_settings
from lastwrite.config.system import SettingSources, no_topics_of_kafka
from lastwrite.engine.context import Context, Options
from lastwrite.engine.round import run_round
from lastwrite.engine.system import System, system_named
from lastwrite.errors import CorruptLog, InvalidConfig, LogError, LogHeld
from lastwrite.kafka.cluster.roots import META_PROPERTIES
from lastwrite.model.attempts import ATTEMPTS
from lastwrite.model.log import TopicPartition
from lastwrite.model.progress import NoProgress, Progress
from lastwrite.pulsar.rules.live_settings import SCHEME
from lastwrite.reports.compaction import (
    CompactionReport,
    PartitionReport,
    Status,
    StoreRequests,
)
from lastwrite.scan_cache.cache import RoundScanCache
from lastwrite.spark.inline import Inline
from lastwrite.spark.session import local_workers
from lastwrite.spark.use import exchange_for, runner_for
from lastwrite.spark.work import Runner
from lastwrite.spark.worker_check import check_workers
from lastwrite.storage.choice import Topics
from lastwrite.storage.exports import reject_around, reject_inside, reporting_leftovers
from lastwrite.storage.objects.address import dry, is_address, use
from lastwrite.storage.objects.address import sent_requests as asked_of_buckets
from lastwrite.storage.objects.store import Requests
from lastwrite.storage.ownership import reject_foreign
from lastwrite.storage.quarantine import read_quarantine, release
from lastwrite.storage.throttle import Throttles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def compact(
    path: str | Sequence[str],
    *,
    to: str | None = None,
    system: str | None = None,
    topic: Topics = None,
    partition: int | None = None,
    config: Mapping[str, object] | None = None,
    now_ms: int | None = None,
    exact: bool = False,
    include_active: bool = False,
    memory: str | int | None = None,
    spark: SparkSession | Inline | None = None,
    like_broker: bool = False,
    master: str = "local[*]",
    conf: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    keep_scans: bool = False,
    archive: str | None = None,
    topic_config: TopicConfig | None = None,
    metadata: str | None = None,
    drop_keyless: bool = False,
    drop_expired_deletes: bool = False,
) -> CompactionReport:
    """Compact each partition at ``path`` as its system's cleaner would at ``now_ms``.

    Args:
        path: a log root, a partition's folder, or one file of a partition; or a list of these, such
            as a broker's ``log.dirs``. Or an archive of Kafka or RocketMQ topics: its folder or its
            address, ``s3://bucket/prefix``.
        to: a folder for cleaned copies, or for Kafka and RocketMQ an archive in a bucket,
            ``s3://bucket/prefix``. The copy of an archive is an archive. ``path`` is not changed.
        system: ``kafka``, ``rocketmq`` or ``pulsar``. None means: detect it from the files.
        topic: the name of a topic, a shell pattern, or several of either. None means all topics.
        partition: only this partition or queue of each topic. None means all.
        config: settings by upstream's names. They apply if the topic's own value is unknown; other
            settings have the system's defaults. For Kafka, ``cleanup.policy`` applies to topics
            whose settings are unknown.
        now_ms: the current time, in milliseconds since 1970. None means the clock.
        exact: compare whole keys, not only their 96-bit fingerprints.
        include_active: also clean the active segment. For archives without writers.
        memory: memory of all processes, in bytes or as ``"2g"``. None means a quarter of the
            machine's. On a cluster: memory of one executor's Python; None means 384 MiB per core.
        spark: the session to use. None means a session that Lastwrite starts on ``master`` with
            ``conf``, and reuses in the next call. This session takes about 200 MB until the
            process ends, or until ten minutes after the last call.
        master: the Spark master of that session; ``local[*]`` means all cores of this machine.
        conf: Spark settings of that session.
        progress: receives stages, bytes done and notes.
        like_broker: rewrite and merge every segment of the range, changed or not, as the broker
            does.
        keep_scans: store the scan of each segment next to the log, about 16 bytes per record, and
            use stored scans while their segment is unchanged. Such a segment's checksums are not
            checked again in this round. Not with ``exact``. For a log directory, not with ``to``,
            and not on a cluster without a shared folder.
        archive: for a live Pulsar topic (``path`` is ``persistent://…``), the folder that keeps
            the fetched ledgers.
        drop_keyless: Kafka: drop records without a key. Otherwise, a partition that contains one
            is skipped.
        drop_expired_deletes: compact even if nothing is dirty, to remove tombstones that have
            expired. For archives without writers. Not for Pulsar, whose compacted ledgers contain
            no deletes.
        topic_config: settings of single Kafka topics, which override all other sources: a
            dictionary by name or shell pattern, or triples of topic, name and value.
        metadata: the metadata of the Kafka cluster: a log root, its ``__cluster_metadata-0``, or a
            copy of either. None means: use the one in the roots, if there is one.

    A Kafka topic without known settings is skipped, unless ``topic`` or ``path`` names it. A
    pattern does not name it (docs/decisions/explicit-compact.md).

    Raises:
        NotALog, InvalidConfig: nothing was done.
        LogHeld: a broker or another run has locked the log; or, for some systems, the log's
            broker was killed.
        EnvironmentUnfit: Java or Spark is missing.

    Damage and failures of single partitions do not raise. The report contains them. If another
    writer commits to an archive's partition first, the partition is compacted again, at most
    ``ATTEMPTS`` times; the report contains the number of ``attempts``.
    """
    options = Options(
        config=may_drop(config, drop_keyless),
        now_ms=_now() if now_ms is None else now_ms,
        exact=exact,
        include_active=include_active,
        like_broker=like_broker,
        drop_expired_deletes=drop_expired_deletes,
        to=to,
        keep_scans=keep_scans,
    )
    asked = _CompactRequest(
        paths=paths_of(path),
        system=system,
        topic=topic,
        partition=partition,
        options=options,
        sources=SettingSources(overrides=overrides(topic_config), metadata=metadata),
        memory=memory,
        spark=spark,
        master=master,
        conf=conf or {},
        progress=progress or NoProgress(),
    )
    return _run_anywhere(asked, archive)


def plan(
    path: str | Sequence[str],
    *,
    system: str | None = None,
    topic: Topics = None,
    partition: int | None = None,
    config: Mapping[str, object] | None = None,
    now_ms: int | None = None,
    exact: bool = False,
    include_active: bool = False,
    memory: str | int | None = None,
    spark: SparkSession | Inline | None = None,
    like_broker: bool = False,
    master: str = "local[*]",
    conf: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    archive: str | None = None,
    topic_config: TopicConfig | None = None,
    metadata: str | None = None,
    drop_keyless: bool = False,
    drop_expired_deletes: bool = False,
    keep_scans: bool = False,
) -> CompactionReport:
    """Report exactly what ``compact`` would do, without writing.

    Args:
        path, system, topic, partition, config, now_ms, exact, include_active: as for ``compact``.
        spark, like_broker, master, conf, progress, archive, topic_config, metadata: as for
            ``compact``.
        memory, drop_keyless, drop_expired_deletes: as for ``compact``.
        keep_scans: as for ``compact``, but only for archives in a bucket; other logs are read
            completely.

    Raises: as ``compact``.
    """
    options = Options(
        config=may_drop(config, drop_keyless),
        now_ms=_now() if now_ms is None else now_ms,
        exact=exact,
        include_active=include_active,
        like_broker=like_broker,
        drop_expired_deletes=drop_expired_deletes,
        dry_run=True,
        keep_scans=keep_scans,
    )
    asked = _CompactRequest(
        paths=paths_of(path),
        system=system,
        topic=topic,
        partition=partition,
        options=options,
        sources=SettingSources(overrides=overrides(topic_config), metadata=metadata),
        memory=memory,
        spark=spark,
        master=master,
        conf=conf or {},
        progress=progress or NoProgress(),
    )
    return _run_anywhere(asked, archive)


def _now() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _CompactRequest:
    """The arguments of one call of ``compact`` or ``plan``."""

    paths: Sequence[str]
    system: str | None
    topic: Topics
    partition: int | None
    options: Options
    sources: SettingSources
    memory: str | int | None
    spark: SparkSession | Inline | None
    master: str
    conf: Mapping[str, str]
    progress: Progress


def _run_anywhere(request: _CompactRequest, archive: str | None) -> CompactionReport:
    """Compact the logs at some paths, or a topic of a live cluster. Returns the report."""
    use(store_settings(request.options.config))
    live = [path for path in request.paths if path.startswith(SCHEME)]
    if not live:
        if archive is not None:
            raise InvalidConfig(
                "--archive is only for topics of a live cluster",
                remedy="leave out --archive, or give persistent://TENANT/NAMESPACE/TOPIC as the "
                "path",
            )
        return _run(request)
    path = live[0]
    if len(request.paths) > 1:
        raise InvalidConfig(
            "several paths were given, but one command compacts one topic of a live cluster",
            path=path,
            remedy="run one command for each topic",
        )
    reject_elsewhere(request.options.config, "pulsar", system_named("pulsar").governs_keyless)
    if request.system not in (None, "pulsar") or request.topic is not None:
        raise InvalidConfig(
            f"{path} already names the system and the topic",
            remedy="leave out --system and --topic",
        )
    no_topics_of_kafka("a topic of Pulsar", request.sources)
    if archive is not None and request.options.to is not None:
        reject_inside(request.options.to, [archive])
        reject_around(request.options.to, [archive])
    if archive is None and request.spark is None and local_workers(request.master) is None:
        raise InvalidConfig(
            "the archive's folder on this machine is not visible to workers on other machines",
            path=path,
            remedy="give --archive a folder that all workers can reach",
        )
    from lastwrite.pulsar.live import compact_live  # imports network modules

    def run(folder: str, name: str, options: Options) -> CompactionReport:
        return _run(replace(request, paths=[folder], system="pulsar", topic=name, options=options))

    return compact_live(path, request.partition, request.options, archive, run, request.progress)


def _run(request: _CompactRequest) -> CompactionReport:
    options, progress = request.options, request.progress
    before = asked_of_buckets()
    system, folders = find_partitions(
        request.paths, request.system, request.topic, request.partition, request.sources
    )
    reject_elsewhere(options.config, system.name, system.governs_keyless)
    system.check_config(options.config)
    if options.drop_expired_deletes and system.no_deletes:
        raise InvalidConfig(system.no_deletes, remedy="leave out --drop-expired-deletes")
    if options.keep_scans and not system.keeps_scans:
        raise InvalidConfig(
            f"brokers of {system.name} allow no other files beside the logs",
            remedy="leave out --keep-scans",
        )
    cleaner = CleanerConfig.from_names(options.config)
    said = replaced_settings(options.config)
    if said is not None:
        progress.note(said)
    partitions: dict[str, list[TopicPartition]] = {}
    for folder in folders:
        partitions.setdefault(system.root_of(folder), []).append(system.name_of(folder))
    if options.to is not None:
        reject_inside(options.to, [*request.paths, *folders])
        reject_around(options.to, [*request.paths, *folders])
        _reject_log_root(system, folders, options.to)
        _reject_shared_targets(system, folders)
    tell_what_stays: Callable[[], None] | None = None
    with contextlib.ExitStack() as stack:
        if options.dry_run and all(is_address(system.archive_of(f) or "") for f in folders):
            stack.enter_context(dry())
            options = replace(options, is_counted=True)
        if options.to is not None:
            tell_what_stays = stack.enter_context(
                reporting_leftovers(options.to, progress, "the copy")
            )
        elif not options.dry_run:
            reject_foreign(folders)
        _hold(system, partitions, options, stack)
        if not options.dry_run and options.to is None:
            # This clean-up runs after Spark has ended, while the partitions are still locked.
            stack.push(partial(_recover, system, folders, options.config))
        where = request.spark, request.master, request.memory, request.conf
        runner, memory_plan = stack.enter_context(runner_for(*where, progress, system=system.name))
        check_workers(runner, _worker_folders(system, folders, options.to), progress)
        exchange = exchange_for(runner, memory_plan.scratch_bytes)
        stack.callback(exchange.close)
        limits = memory_plan.limits()
        if any(map(math.isfinite, cleaner.rates)):
            limits = Throttles(exchange.scratch, cleaner.rates, runner.workers).on(limits)
        context = Context(
            system, exchange, runner.workers, limits, options, progress, RoundScanCache(runner)
        )
        report = _run_rounds(context, folders)
        _account(context, folders, report)
        _clear_up(context, folders, report, tell_what_stays)
        _note_quarantine(
            system, folders, report, not options.dry_run and options.to is None, progress
        )
        _add_figures(report, before, runner)
        return report


def _worker_folders(system: System, folders: Sequence[str], to: str | None) -> list[str]:
    """The folders that each worker of a cluster must be able to read: each root, and ``to``."""
    firsts = {system.root_of(folder): folder for folder in reversed(folders)}
    return [*firsts.values(), *([to] if to is not None and os.path.isdir(to) else [])]


def _hold(
    system: System,
    partitions: Mapping[str, Sequence[TopicPartition]],
    options: Options,
    stack: contextlib.ExitStack,
) -> None:
    """Lock the partitions that the compaction changes, until ``stack`` is closed.

    Partitions that are only read must not be locked by another process. ``partitions`` contains
    the partitions of each root.

    Raises:
        LogHeld: another process has locked a partition.
    """
    for root, names in sorted(partitions.items()):
        system.reject_unclean(root, options.config)
        if options.to is None and (options.is_counted or not options.dry_run):
            stack.enter_context(system.hold(root, names))
        else:
            _reject_copy(system, root, options)
            system.reject_if_locked(root, names)


def _reject_copy(system: System, root: str, options: Options) -> None:
    """Check that no broker has a copied log open, unless the system allows such copies.

    Raises:
        LogHeld: a broker has the log open.
    """
    broker = None if options.to is None else system.broker_of(root)
    if broker is not None and not system.copies_beside_a_broker:
        raise LogHeld(
            f"{broker.problem}, so Lastwrite cannot copy the log",
            path=broker.path,
            remedy="stop the broker; or take a snapshot of the file system, and give the path of "
            "the snapshot",
        )


def _add_figures(report: CompactionReport, before: Requests, runner: Runner) -> None:
    """Add the time of each stage and the number of object-store requests to the report.

    ``before`` has this process's requests before the compaction, which are subtracted. Requests of
    workers are included.
    """
    report.profile = {name: stage.figures() for name, stage in runner.profile.items()}
    found = asked_of_buckets() - before + runner.sent_requests()
    report.requests = StoreRequests(**asdict(found)) if found != Requests() else None


def _account(context: Context, folders: Sequence[str], report: CompactionReport) -> None:
    """List in the report the files that are not part of a log, and were not changed or copied."""
    options = context.options
    if options.dry_run:
        return
    report.is_copy = options.to is not None
    try:
        report.untouched = context.system.untouched(folders, options.to)
    except LogError as error:
        context.progress.note(f"the report does not list the files beside the logs: {error}")


def _state(folder: str) -> tuple[int, int] | None:
    """A value that changes when a folder's content changes: its inode and modification time.

    None if the folder cannot be read.
    """
    try:
        seen = os.stat(folder)
    except OSError:
        return None
    return seen.st_ino, seen.st_mtime_ns


def _run_rounds(context: Context, folders: Sequence[str]) -> CompactionReport:
    """Compact the partitions. Repeat this for partitions whose log changed meanwhile.

    There are at most ``ATTEMPTS`` attempts.

    Such changes are normal: another writer may commit to an archive first, or a broker may replace
    files that a plan or a copy reads. Every attempt starts from the current log.
    """
    before = {} if context.is_in_place else {folder: _state(folder) for folder in folders}
    report = run_round(context, folders)
    for attempt in range(2, ATTEMPTS + 1):
        places = [
            place
            for place, folder in enumerate(folders)
            if _has_changed(context, folder, report.partitions[place], before.get(folder))
        ]
        if not places:
            break
        context.progress.note(
            f"{len(places)} of {len(folders)} partitions were changed by another program during "
            f"the command; attempt {attempt} of {ATTEMPTS} reads them again"
        )
        again = [folders[place] for place in places]
        before.update((folder, _state(folder)) for folder in again if folder in before)
        repeated = run_round(context, again)
        for place, partition in zip(places, repeated.partitions, strict=True):
            report.partitions[place] = structs.replace(partition, attempts=attempt)
        report.add_times(repeated)
    return report


def _has_changed(
    context: Context, folder: str, partition: PartitionReport, before: tuple[int, int] | None
) -> bool:
    """Whether a partition failed because another writer changed its log. A retry may then work.

    ``before`` is the folder's state at the start, which is only used for copies.
    """
    if partition.lost_commit:
        return True
    system = context.system
    # A copy contains damaged partitions unchanged, so there is no retry for them.
    stopped = {Status.FAILED} if context.options.to is not None else {Status.FAILED, Status.DAMAGED}
    return (
        not context.is_in_place
        and partition.status in stopped
        and _state(folder) != before
        and system.broker_of(system.root_of(folder)) is not None
    )


def _clear_up(
    context: Context,
    folders: Sequence[str],
    report: CompactionReport,
    tell_what_stays: Callable[[], None] | None,
) -> None:
    """Delete unfinished files after failures, such as a full disk, or report these files."""
    failed = [
        folder
        for folder, each in zip(folders, report.partitions, strict=True)
        if each.status is Status.FAILED
    ]
    if failed and tell_what_stays is not None:
        tell_what_stays()
    elif failed and context.is_in_place and not context.system.recover_finishes:
        _recover(context.system, failed, context.options.config, LogError)


def _recover(
    system: System,
    folders: Sequence[str],
    config: Mapping[str, object],
    kind: type[BaseException] | None,
    *_: object,
) -> None:
    """Delete the unfinished files of tasks after an interrupted compaction."""
    if kind is not None:
        for folder in folders:
            # the next compaction deletes the files that remain
            with contextlib.suppress(LogError, OSError):
                if system.why_unmanaged(folder, config) is None:
                    system.recover(folder)


def _reject_log_root(system: System, folders: Sequence[str], to: str) -> None:
    """Reject copying an archive into a log root: the copy would be an archive, not a log.

    Raises:
        InvalidConfig: ``to`` is a log root, and a folder is in an archive.
    """
    archives = (system.archive_of(folder) for folder in folders)
    archive = next((each for each in archives if each is not None), None)
    if archive is not None and os.path.isfile(os.path.join(to, META_PROPERTIES)):
        raise InvalidConfig(
            "the destination is a broker's log root, but a copy of an archive is an archive",
            path=to,
            remedy=f"to restore the archive as logs, run lastwrite restore {archive} --to {to}",
        )


def _reject_shared_targets(system: System, folders: Sequence[str]) -> None:
    """Reject partitions whose copies would be in the same folder.

    Raises:
        InvalidConfig: two partitions have the same name; or there are several RocketMQ stores,
            whose copies would share settings files.
    """
    seen: dict[TopicPartition, str] = {}
    for folder in folders:
        other = seen.setdefault(system.name_of(folder), folder)
        if other != folder:
            raise InvalidConfig(
                f"{system.name_of(folder)} is in {system.root_of(other)} and in "
                f"{system.root_of(folder)}, so both copies would be in one folder",
                remedy="copy one root at a time, each with another --to",
            )
    if system.name == "rocketmq" and len({system.root_of(folder) for folder in folders}) > 1:
        raise InvalidConfig(
            "several stores were given, so their copies would be in one folder",
            remedy="copy one store at a time, each with another --to",
        )


def _note_quarantine(
    system: System,
    folders: Sequence[str],
    report: CompactionReport,
    in_place: bool,
    progress: Progress,
) -> None:
    """Report the partitions that the cleaner has quarantined.

    Release the partitions that were cleaned.
    """
    by_root: dict[str, dict[TopicPartition, PartitionReport]] = {}
    for folder, each in zip(folders, report.partitions, strict=True):
        by_root.setdefault(system.root_of(folder), {})[each.name] = each
    for root, found in by_root.items():
        try:
            entries = read_quarantine(root, system.notes)
        except CorruptLog as error:
            progress.note(str(error))
            continue
        for name in entries.keys() & found.keys():
            found[name].uncleanable = entries[name]
        succeeded = [
            name for name in found if found[name].status in (Status.CLEANED, Status.UNCHANGED)
        ]
        if in_place and entries:
            for name in release(root, succeeded, system.notes):
                found[name].uncleanable = None
