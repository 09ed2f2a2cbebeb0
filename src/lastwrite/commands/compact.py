"""``plan`` and ``compact``: a path and settings in, a report out.

    lastwrite.compact("/var/lib/kafka/orders-0", config={"delete.retention.ms": 0})

A Spark session is taken or started; a log that a broker or another run holds is refused.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from lastwrite.compaction.cleaner_settings import CleanerConfig
from lastwrite.compaction.pulsar_live_settings import SCHEME
from lastwrite.errors import CorruptLog, EnvironmentUnfit, InvalidConfig
from lastwrite.logstore.throttle import Throttles
from lastwrite.logstore.uncleanable import read_uncleanable, release
from lastwrite.model.log import TopicPartition
from lastwrite.model.progress import NoProgress, Progress
from lastwrite.model.report import CompactionReport, Status
from lastwrite.pipeline.engine import Engine, Options
from lastwrite.pipeline.exchange import FolderExchange
from lastwrite.pipeline.inline import Inline
from lastwrite.pipeline.memory import MemoryPlan, plan_memory
from lastwrite.pipeline.runner import InlineRunner, Runner, SparkRunner
from lastwrite.pipeline.session import GivenSpark, OwnSpark, local_workers
from lastwrite.pipeline.shuffle import ShuffleExchange
from lastwrite.pipeline.system import System, system_named

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def compact(
    path: str,
    to: str | None = None,
    system: str | None = None,
    topic: str | None = None,
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
) -> CompactionReport:
    """Do to each partition at ``path`` what its system's cleaner would do at ``now_ms``.

    Args:
        path: a log root, a partition's folder, or one of its files.
        to: a folder for cleaned copies; ``path`` is then left as it is.
        config: settings under upstream's names; the rest are the system's defaults.
        now_ms: the clock, milliseconds since 1970; None: now.
        exact: compare whole keys, not 96-bit fingerprints alone.
        include_active: clean the active segment too: for archives that nobody appends to.
        memory: of all processes together, in bytes or as ``"2g"``; None: a quarter of the machine's.
        spark: a session to use; None: one is started on ``master`` with the settings ``conf``.
        like_broker: rewrite and merge every segment of the range, changed or not, as the broker does.
        keep_scans: keep beside the log, about 16 bytes a record, what need not be read again as long as its segment is
            the same; use what earlier rounds kept. Such segments' checksums are not proven again in this round. In
            place only, not with ``exact``, and not on a cluster without a shared folder.
        archive: of a live Pulsar topic (``path`` is ``persistent://…``), where what is brought of it stays.

    Raises:
        NotALog, InvalidConfig: nothing was begun.
        LogHeld: a broker or another run holds the log; or a broker was killed on it, where that matters.
        EnvironmentUnfit: Java or Spark is missing.

    Damage and failures of single partitions do not raise: they stand in the report.
    """
    options = Options(
        config=dict(config or {}),
        now_ms=_now() if now_ms is None else now_ms,
        exact=exact,
        include_active=include_active,
        like_broker=like_broker,
        to=to,
        keep_scans=keep_scans,
    )
    return _run_anywhere(
        path, system, topic, partition, options, memory, spark, master, conf, progress, archive
    )


def plan(
    path: str,
    system: str | None = None,
    topic: str | None = None,
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
) -> CompactionReport:
    """What ``compact`` would do, to the byte, writing nothing. Arguments and errors are those of ``compact``."""
    options = Options(
        config=dict(config or {}),
        now_ms=_now() if now_ms is None else now_ms,
        exact=exact,
        include_active=include_active,
        like_broker=like_broker,
        dry_run=True,
    )
    return _run_anywhere(
        path, system, topic, partition, options, memory, spark, master, conf, progress, archive
    )


def _now() -> int:
    return time.time_ns() // 1_000_000


def _run_anywhere(
    path: str,
    system: str | None,
    topic: str | None,
    partition: int | None,
    options: Options,
    memory: str | int | None,
    spark: SparkSession | Inline | None,
    master: str,
    conf: Mapping[str, str] | None,
    progress: Progress | None,
    archive: str | None,
) -> CompactionReport:
    """A round on what lies at a path, or on a topic of a live cluster."""
    if not str(path).startswith(SCHEME):
        if archive is not None:
            raise InvalidConfig(
                "--archive is for topics of a live cluster",
                remedy="give persistent://… as the path",
            )
        return _run(path, system, topic, partition, options, memory, spark, master, conf, progress)
    if system not in (None, "pulsar") or topic is not None:
        raise InvalidConfig(
            f"{path} says system and topic already", remedy="leave out --system and --topic"
        )

    if archive is None and spark is None and local_workers(master) is None:
        raise InvalidConfig(
            "workers on other machines cannot see a folder of this one",
            path=path,
            remedy="give --archive a folder that all of them have",
        )
    from lastwrite.pipeline.pulsar_live import compact_live  # its network is for nobody else

    def run(folder: str, name: str, options: Options) -> CompactionReport:
        return _run(
            folder, "pulsar", name, partition, options, memory, spark, master, conf, progress
        )

    return compact_live(path, partition, options, archive, run, progress)


def _run(
    path: str,
    system_name: str | None,
    topic: str | None,
    partition: int | None,
    options: Options,
    memory: str | int | None,
    spark: SparkSession | Inline | None,
    master: str,
    conf: Mapping[str, str] | None,
    progress: Progress | None,
) -> CompactionReport:
    system = system_named(system_name, str(path))
    system.check_config(options.config)
    if options.keep_scans and not system.keeps_scans:
        raise InvalidConfig(
            f"{system.name} suffers no file of ours beside its own", remedy="leave out --keep-scans"
        )
    cleaner = CleanerConfig.from_names(options.config)
    folders = system.find(str(path), topic, partition)
    progress = progress or NoProgress()
    partitions: dict[str, list[TopicPartition]] = {}
    for folder in folders:
        partitions.setdefault(system.root_of(folder), []).append(system.name_of(folder))
    with contextlib.ExitStack() as stack:
        for root, names in sorted(partitions.items()):
            system.refuse_unclean(root, options.config)
            if options.dry_run or options.to is not None:
                system.refuse_if_held(root, names)
            else:
                stack.enter_context(system.hold(root, names))
        runner, memory_plan = stack.enter_context(
            runner_for(spark, master, memory, conf or {}, progress)
        )
        exchange = exchange_for(runner, memory_plan.scratch_bytes)
        stack.callback(exchange.close)
        limits = memory_plan.limits()
        if any(map(math.isfinite, cleaner.rates)):
            limits = Throttles(exchange.scratch, cleaner.rates, runner.workers).on(limits)
        engine = Engine(system, exchange, runner.workers, limits, options, progress)
        report = engine.compact(folders)
        report.profile = {name: stage.to_dict() for name, stage in runner.profile.items()}
        _note_uncleanable(
            system, partitions, report, not options.dry_run and options.to is None, progress
        )
        return report


def _note_uncleanable(
    system: System,
    partitions: Mapping[str, Sequence[TopicPartition]],
    report: CompactionReport,
    in_place: bool,
    progress: Progress,
) -> None:
    """Say of each partition whether the cleaner had set it aside; what was cleaned now is released."""
    found = {TopicPartition(each.topic, each.partition): each for each in report.partitions}
    for root, names in partitions.items():
        try:
            entries = read_uncleanable(root, system.notes)
        except CorruptLog as error:
            progress.note(str(error))
            continue
        for name in entries.keys() & set(names):
            found[name].uncleanable = entries[name]
        succeeded = [
            name for name in names if found[name].status in (Status.CLEANED, Status.UNCHANGED)
        ]
        if in_place:
            for name in release(root, succeeded, system.notes):
                found[name].uncleanable = None


def exchange_for(runner: Runner, memory_bytes: int = 0) -> FolderExchange | ShuffleExchange:
    """Scratch files where all workers are on this machine, Spark's shuffle otherwise.

    The Spark setting ``spark.lastwrite.exchange`` (``folder`` or ``shuffle``) decides otherwise: a folder that
    all executors share may be as good, and tests hold the two against each other. ``memory_bytes``: what scratch files
    may take of this machine's memory, unless a folder is named for them.
    """
    if not isinstance(runner, SparkRunner):
        return FolderExchange(runner, memory_bytes=memory_bytes)
    usual = "folder" if local_workers(runner.spark.master) else "shuffle"
    chosen = runner.spark.setting("spark.lastwrite.exchange") or usual
    if chosen == "shuffle":
        return ShuffleExchange(runner)
    if chosen == "folder":
        folder = runner.spark.setting("spark.lastwrite.scratch")
        is_here = folder is None and local_workers(runner.spark.master) is not None
        return FolderExchange(runner, folder, memory_bytes if is_here else 0)
    raise InvalidConfig(f"spark.lastwrite.exchange is {chosen!r}", remedy="folder or shuffle")


@contextlib.contextmanager
def runner_for(
    spark: SparkSession | Inline | None,
    master: str,
    memory: str | int | None,
    conf: Mapping[str, str],
    progress: Progress,
) -> Iterator[tuple[Runner, MemoryPlan]]:
    """A runner on ``spark``, or on a session started on ``master`` and stopped at the end."""
    if isinstance(spark, Inline):
        yield InlineRunner(), plan_memory(memory, 1)
        return
    if spark is not None:
        if not hasattr(spark, "_jsc") and not hasattr(type(spark), "sparkContext"):
            raise EnvironmentUnfit(
                "a Spark Connect session cannot run this", remedy="pass a classic session"
            )
        given = GivenSpark(spark)
        workers = local_workers(given.master) or given.context.defaultParallelism
        yield SparkRunner(given, workers), plan_memory(memory, workers, lean=given.is_lean)
        return
    workers = local_workers(master) or 0
    plan_memory(memory, workers or 1)  # before anything is started
    progress.note("starting Spark")
    with contextlib.closing(OwnSpark(master, conf)) as own:
        memory_plan = plan_memory(memory, workers or 1, lean=own.is_lean)
        yield SparkRunner(own, workers or own.context.defaultParallelism), memory_plan
