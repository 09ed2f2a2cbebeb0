"""``plan`` and ``compact``: a path and settings in, a report out.

    lastwrite.compact("/var/lib/kafka/orders-0", config={"delete.retention.ms": 0})

A Spark session is taken or started; a log that a broker or another run holds is refused, save that
``plan`` works beside a broker, and ``compact`` with ``to`` beside one of Kafka.
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
from lastwrite.storage.exports import naming_what_stays, reject_around, reject_inside
from lastwrite.storage.objects.address import asked as asked_of_buckets
from lastwrite.storage.objects.address import dry, is_address, use
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
    """Do to each partition at ``path`` what its system's cleaner would do at ``now_ms``.

    Args:
        path: a log root, a partition's folder, or one of its files; or several, as a broker's
            ``log.dirs``; or an archive of Kafka's or RocketMQ's topics, a folder or
            ``s3://bucket/prefix``.
        to: a folder for cleaned copies, or of Kafka and RocketMQ an archive in a bucket, as
            ``s3://bucket/prefix``; of an archive the copy is one, too. ``path`` is then left as it
            is.
        system: ``kafka``, ``rocketmq`` or ``pulsar``; None: what lies there.
        topic: the name of a topic, a shell pattern, or several of either; None: every topic.
        partition: only this partition, or queue, of each topic; None: all.
        config: settings under upstream's names, which hold where nobody else says otherwise; the
            rest are the system's defaults. Of Kafka's topics ``cleanup.policy`` is that of topics
            of which nothing is known.
        now_ms: the clock, milliseconds since 1970; None: now.
        exact: compare whole keys, not 96-bit fingerprints alone.
        include_active: clean the active segment too: for archives that nobody appends to.
        memory: of all processes together, in bytes or as ``"2g"``; None: a quarter of the
            machine's. On a cluster: of the Python of one executor; None: 384 MiB a core.
        spark: a session to use; None: one of our own on ``master`` with the settings ``conf``,
            which the next call takes again. It takes some 200 MB until the process ends, or ten
            minutes after the last call.
        master: where a session of our own runs, as Spark names it; ``local[*]`` is all cores here.
        conf: Spark's settings for that session.
        progress: is told of stages, bytes done and notes; None: nobody is.
        like_broker: rewrite and merge every segment of the range, changed or not, as the broker
            does.
        keep_scans: keep beside the log, about 16 bytes a record, what need not be read again as
            long as its segment is the same; use what earlier rounds kept. Such segments' checksums
            are not proven again in this round. Not with ``exact``; of a log directory not in a
            copy, and not on a cluster without a shared folder.
        archive: of a live Pulsar topic (``path`` is ``persistent://…``), where what is brought of
            it stays.
        drop_keyless: of a Kafka topic, records without a key may go; without it a partition that
            holds one is skipped.
        drop_expired_deletes: a round also where nothing is dirty, so that deletes go whose time
            has passed: of an archive, to which nobody will write. Not of Pulsar, whose compacted
            ledgers keep no delete.
        topic_config: settings of single topics of Kafka, whatever anybody else says of them: a
            dictionary by name or shell pattern, or triples of topic, name and value.
        metadata: where the metadata of Kafka's cluster lies: a log root, or the folder
            ``__cluster_metadata-0``, or a copy of either; None: in one of the roots, or nowhere.

    A topic of Kafka of which nothing is known, neither there nor by the caller, is skipped, unless
    ``topic`` or ``path`` names it; a pattern names none (docs/decisions/explicit-compact.md).

    Raises:
        NotALog, InvalidConfig: nothing was begun.
        LogHeld: a broker or another run holds the log; or a broker was killed on it, where that
            matters.
        EnvironmentUnfit: Java or Spark is missing.

    Damage and failures of single partitions do not raise: they stand in the report. A partition of
    an archive to which another writer commits first is compacted again, ``ATTEMPTS`` times at most; its
    report has the number of ``attempts``.
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
    """What ``compact`` would do, to the byte, writing nothing.

    Args:
        path, system, topic, partition, config, now_ms, exact, include_active, memory: as for
            ``compact``.
        spark, like_broker, master, conf, progress, archive, topic_config, metadata: as well.
        drop_keyless, drop_expired_deletes: as well.
        keep_scans: as well, of archives in a bucket; of others everything is read.

    Raises: what ``compact`` raises.
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
    """What one call asks for."""

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


def _run_anywhere(asked: _CompactRequest, archive: str | None) -> CompactionReport:
    """A round on what lies at some paths, or on a topic of a live cluster."""
    use(store_settings(asked.options.config))
    live = [path for path in asked.paths if path.startswith(SCHEME)]
    if not live:
        if archive is not None:
            raise InvalidConfig(
                "--archive is for topics of a live cluster",
                remedy="give persistent://… as the path",
            )
        return _run(asked)
    path = live[0]
    if len(asked.paths) > 1:
        raise InvalidConfig(
            "one topic of a live cluster at a time", path=path, remedy="name it alone"
        )
    reject_elsewhere(asked.options.config, "pulsar", system_named("pulsar").governs_keyless)
    if asked.system not in (None, "pulsar") or asked.topic is not None:
        raise InvalidConfig(
            f"{path} already names the system and the topic",
            remedy="leave out --system and --topic",
        )
    no_topics_of_kafka("a topic of Pulsar", asked.sources)
    if archive is not None and asked.options.to is not None:
        reject_inside(asked.options.to, [archive])
        reject_around(asked.options.to, [archive])
    if archive is None and asked.spark is None and local_workers(asked.master) is None:
        raise InvalidConfig(
            "workers on other machines cannot see a folder of this one",
            path=path,
            remedy="give --archive a folder that all of them have",
        )
    from lastwrite.pulsar.live import compact_live  # its network is for nobody else

    def run(folder: str, name: str, options: Options) -> CompactionReport:
        return _run(replace(asked, paths=[folder], system="pulsar", topic=name, options=options))

    return compact_live(path, asked.partition, asked.options, archive, run, asked.progress)


def _run(asked: _CompactRequest) -> CompactionReport:
    options, progress = asked.options, asked.progress
    before = asked_of_buckets()
    system, folders = find_partitions(
        asked.paths, asked.system, asked.topic, asked.partition, asked.sources
    )
    reject_elsewhere(options.config, system.name, system.governs_keyless)
    system.check_config(options.config)
    if options.drop_expired_deletes and system.no_deletes:
        raise InvalidConfig(system.no_deletes, remedy="leave out --drop-expired-deletes")
    if options.keep_scans and not system.keeps_scans:
        raise InvalidConfig(
            f"{system.name} allows no other files beside its logs", remedy="leave out --keep-scans"
        )
    cleaner = CleanerConfig.from_names(options.config)
    said = replaced_settings(options.config)
    if said is not None:
        progress.note(said)
    partitions: dict[str, list[TopicPartition]] = {}
    for folder in folders:
        partitions.setdefault(system.root_of(folder), []).append(system.name_of(folder))
    if options.to is not None:
        reject_inside(options.to, [*asked.paths, *folders])
        reject_around(options.to, [*asked.paths, *folders])
        _reject_log_root(system, folders, options.to)
        _reject_one_place_for_two(system, folders)
    tell_what_stays: Callable[[], None] | None = None
    with contextlib.ExitStack() as stack:
        if options.dry_run and all(is_address(system.archive_of(f) or "") for f in folders):
            stack.enter_context(dry())
            options = replace(options, is_counted=True)
        if options.to is not None:
            tell_what_stays = stack.enter_context(
                naming_what_stays(options.to, progress, "the copy")
            )
        elif not options.dry_run:
            reject_foreign(folders)
        _hold(system, partitions, options, stack)
        if not options.dry_run and options.to is None:
            # While they are held, and when Spark has ended.
            stack.push(partial(_recover, system, folders, options.config))
        where = asked.spark, asked.master, asked.memory, asked.conf
        runner, memory_plan = stack.enter_context(runner_for(*where, progress, system=system.name))
        check_workers(runner, _seen_by_all(system, folders, options.to), progress)
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


def _seen_by_all(system: System, folders: Sequence[str], to: str | None) -> list[str]:
    """What each worker of a cluster must see: of each root one partition, and where copies go."""
    firsts = {system.root_of(folder): folder for folder in reversed(folders)}
    return [*firsts.values(), *([to] if to is not None and os.path.isdir(to) else [])]


def _hold(
    system: System,
    partitions: Mapping[str, Sequence[TopicPartition]],
    options: Options,
    stack: contextlib.ExitStack,
) -> None:
    """Hold what the round changes until the ``stack`` ends; of what it only reads see that nobody
    else holds it. ``partitions``: by root.
    """
    for root, names in sorted(partitions.items()):
        system.refuse_unclean(root, options.config)
        if options.to is None and (options.is_counted or not options.dry_run):
            stack.enter_context(system.hold(root, names))
        else:
            _reject_copy(system, root, options)
            system.refuse_if_held(root, names)


def _reject_copy(system: System, root: str, options: Options) -> None:
    """
    Raises:
        LogHeld: a broker has the log, and of this system's no copy can be made then.
    """
    broker = None if options.to is None else system.broker_of(root)
    if broker is not None and not system.copies_beside_a_broker:
        raise LogHeld(
            f"{broker.problem}, and no copy of it can be made",
            path=broker.path,
            remedy="stop it first; or take a snapshot of the file system, and give that",
        )


def _add_figures(report: CompactionReport, before: Requests, runner: Runner) -> None:
    """Where the time went, and what this process has asked of buckets since ``before``, and the
    workers.
    """
    report.profile = {name: stage.figures() for name, stage in runner.profile.items()}
    found = asked_of_buckets() - before + runner.asked()
    report.requests = StoreRequests(**asdict(found)) if found != Requests() else None


def _account(context: Context, folders: Sequence[str], report: CompactionReport) -> None:
    """Add the files beside the logs, which the round left as they are or did not copy."""
    options = context.options
    if options.dry_run:
        return
    report.is_copy = options.to is not None
    try:
        report.untouched = context.system.untouched(folders, options.to)
    except LogError as error:
        context.progress.note(f"the files beside the logs are not named: {error}")


def _state(folder: str) -> tuple[int, int] | None:
    """When a file last came or went in the folder."""
    try:
        seen = os.stat(folder)
    except OSError:
        return None
    return seen.st_ino, seen.st_mtime_ns


def _run_rounds(context: Context, folders: Sequence[str]) -> CompactionReport:
    """Run a round, and repeat it for the partitions whose log changed under it, up to
    ``ATTEMPTS`` times in all: a lost compare-and-swap is normal in an archive, and so are files
    that a broker replaces while a plan or a copy reads them. Every attempt starts from the log as
    it is by then.
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
            f"{len(places)} of {len(folders)} partitions: another writer changed the log first; "
            f"attempt {attempt} of {ATTEMPTS} starts from the changed log"
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
    """Whether a partition failed because another writer changed its log, so that a round that
    starts from the changed log may succeed. ``before``: the folder's state before a round that
    writes elsewhere or nothing; a round in place is not judged by it.
    """
    if partition.lost_commit:
        return True
    system = context.system
    # A copy contains damaged partitions as they are, so they are not read again for it.
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
    """After partitions that failed, as on a full disk: remove what was written aside, or name it."""
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
    """After a round that was broken off: what its tasks had written aside nobody knows any more."""
    if kind is not None:
        for folder in folders:
            with contextlib.suppress(LogError, OSError):  # then the next round does it
                if system.why_unmanaged(folder, config) is None:
                    system.recover(folder)


def _reject_log_root(system: System, folders: Sequence[str], to: str) -> None:
    """
    Raises:
        InvalidConfig: of an archive the copy is one, which no broker would take there.
    """
    archives = (system.archive_of(folder) for folder in folders)
    archive = next((each for each in archives if each is not None), None)
    if archive is not None and os.path.isfile(os.path.join(to, META_PROPERTIES)):
        raise InvalidConfig(
            "a broker's log root, and the copy of an archive is an archive",
            path=to,
            remedy=f"to give it back: lastwrite restore {archive} --to {to}",
        )


def _reject_one_place_for_two(system: System, folders: Sequence[str]) -> None:
    """Copies of two partitions of one name would lie in one folder.

    Raises:
        InvalidConfig: there are two of one name, or stores of a system whose copies share files of
            settings.
    """
    seen: dict[TopicPartition, str] = {}
    for folder in folders:
        other = seen.setdefault(system.name_of(folder), folder)
        if other != folder:
            raise InvalidConfig(
                f"{system.name_of(folder)} lies in {system.root_of(other)} and in {system.root_of(folder)}: "
                "their copies would be one",
                remedy="copy one root at a time, each to a folder of its own",
            )
    if system.name == "rocketmq" and len({system.root_of(folder) for folder in folders}) > 1:
        raise InvalidConfig(
            "copies of several stores",
            remedy="copy one store at a time, each to a folder of its own",
        )


def _note_quarantine(
    system: System,
    folders: Sequence[str],
    report: CompactionReport,
    in_place: bool,
    progress: Progress,
) -> None:
    """Say of each partition whether the cleaner had set it aside; what was cleaned now is released."""
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
