"""``lastwrite fetch``: copies topics from files or a live cluster into an archive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar

import typer

from lastwrite.cli import options
from lastwrite.cli.clean import event_printer, stops_by_signals
from lastwrite.cli.output import Output, counted, format_size
from lastwrite.cli.problems import problem_lines
from lastwrite.errors import InvalidConfig
from lastwrite.kafka.restored import RestoredLog
from lastwrite.model.attempts import describe_attempts
from lastwrite.pulsar.fetched import FetchedLedger, FetchedTopic, FetchReport
from lastwrite.reports.fetching import BucketEnd, FetchedLog

LogT = TypeVar("LogT", FetchedLog, RestoredLog)


EXAMPLES = r"""
lastwrite fetch /var/lib/kafka --topic orders --to s3://backup/cluster1
lastwrite fetch kafka://localhost:9092 --topic orders --to DIR
lastwrite fetch /var/lib/rocketmq/store --topic prices --include-active --to DIR
lastwrite fetch rocketmq://localhost:9876 --topic prices --to DIR
lastwrite fetch persistent://public/default/orders --to DIR \
  --config metadataStoreUrl=zk:zoo1:2181
"""


def fetch(
    context: typer.Context,
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE…",
            help="Kafka: log roots, partition folders, a broker's tier, "
            "a bucket of AutoMQ, or a live cluster, "
            "kafka://HOST:PORT[,HOST:PORT]. RocketMQ: stores, compaction logs in them, "
            "or the name servers of a live cluster, "
            "rocketmq://HOST:PORT[,HOST:PORT][/BROKER]. Pulsar: a live topic, "
            "persistent://…; folders of a bucket's objects, of MapFiles, or a bookie's "
            "ledger or journal directory; or topic folders, to copy them to a bucket.",
        ),
    ],
    to: Annotated[
        str,
        options.option(
            "--to ARCHIVE", "The archive: a folder, or a bucket such as s3://bucket/prefix."
        ),
    ],
    topic: options.Topics = None,
    partition: options.Partition = None,
    system: options.System = None,
    metadata: Annotated[
        str | None,
        options.option(
            "--metadata PATH",
            "Kafka, AutoMQ: the cluster's metadata, as for compact. Pulsar folders: the topic's "
            "ledgers, as a node of the metadata store or as the output of pulsar-admin "
            "topics stats-internal or info-internal; a folder of such files for many "
            "topics.",
            options.SELECTION,
        ),
    ] = None,
    cursor: Annotated[
        str | None,
        options.option(
            "--cursor FILE",
            "The metadata node of the cursor __compaction, which contains the compaction horizon.",
            options.PULSAR,
        ),
    ] = None,
    copy: Annotated[
        bool,
        options.option(
            "--copy",
            "Copy the objects of a bucket instead of linking them. Kafka tiers: copy the "
            "segments instead of referring to them.",
        ),
    ] = False,
    recover: Annotated[
        bool,
        options.option(
            "--recover",
            "Include entries of an open ledger that no writer confirmed, as ledger "
            "recovery would. Live topic: fetch the intact entries around lost ones into a"
            " topic folder.",
            options.PULSAR,
        ),
    ] = False,
    include_active: Annotated[
        bool,
        options.option(
            "--include-active",
            "Kafka, RocketMQ: also fetch the active segment; Kafka: up to the high watermark. "
            "AutoMQ: also fetch what only write-ahead objects contain.",
            options.SELECTION,
        ),
    ] = False,
    keep_scans: Annotated[
        bool,
        options.option(
            "--keep-scans",
            "Store the scan of each segment in the archive, as compact --keep-scans does "
            "(16 bytes per record), so that even the first round need not read the "
            "fetched segments.",
            options.KAFKA,
        ),
    ] = False,
    unclean: options.Unclean = False,
    rate: options.Rate = None,
    follow: Annotated[
        bool,
        options.option(
            "--follow", "Live cluster: repeat the fetch until SIGTERM or Ctrl-C.", options.FOLLOWING
        ),
    ] = False,
    every: options.Every = None,
    set_aside: options.SetAside = False,
    accept_gap: options.AcceptGap = False,
    metrics_port: options.MetricsPort = None,
    memory: options.Memory = None,
    config: options.Config = None,
    config_file: options.ConfigFile = None,
    topic_config: options.TopicConfig = None,
    topic_config_file: options.TopicConfigFile = None,
    json: options.Json = False,
) -> int:
    """Fetch topics into an archive, or add what is new.

    Kafka: from log roots, the batches of closed segments unchanged, or from a live cluster up to
    its high watermark, to ARCHIVE/kafka/topic/partition.

    RocketMQ: the compaction logs of a store, or the messages of a live broker by queue offset, to
    ARCHIVE/rocketmq/topic/queue.

    Pulsar: from a live cluster to ARCHIVE/pulsar/tenant/namespace/persistent/name. From offloaded
    ledgers, MapFiles and entry logs of bookies to topic folders,
    ARCHIVE/tenant/namespace/persistent/name, and from topic folders to an archive. All commands
    read both.
    """
    import lastwrite

    output: Output = context.obj
    if follow:
        from lastwrite.cleaner.pauses import EVERY_S  # imported only if needed

        return lastwrite.follow(
            sources,
            to,
            topic=topic,
            partition=partition,
            every_s=EVERY_S if every is None else every,
            memory=memory,
            rate=rate,
            sets_aside=set_aside,
            accepts_gap=accept_gap,
            topic_config=options.topic_settings(topic_config, topic_config_file),
            config=options.settings(output, config, config_file, unclean),
            metrics_port=metrics_port,
            tell=event_printer(output),
            started=stops_by_signals,
        )
    if every is not None or metrics_port is not None:
        raise InvalidConfig(
            "--every and --metrics-port need --follow", remedy="add --follow, or remove them"
        )
    report = lastwrite.fetch(
        sources,
        to,
        topic=topic,
        partition=partition,
        include_active=include_active,
        keep_scans=keep_scans,
        memory=memory,
        rate=rate,
        sets_aside=set_aside,
        accepts_gap=accept_gap,
        topic_config=options.topic_settings(topic_config, topic_config_file),
        system=system,
        metadata=metadata,
        cursor=cursor,
        copies=copy,
        recover=recover,
        config=options.settings(output, config, config_file, unclean),
        progress=output.progress(),
    )
    if output.as_json:
        output.document(report)
    elif isinstance(report, FetchReport):
        _show(output, report)
    else:
        show_logs(output, report.partitions, _describe_log)
        for unread in report.unread_positions:
            output.say(f"lastwrite: {unread.message}")
    return report.exit_status


def show_logs(output: Output, logs: Sequence[LogT], what: Callable[[LogT], str]) -> None:
    """Print a table of fetched or restored partitions.

    ``what`` returns a partition's text in the last column.
    """
    output.table(
        "partition | >from offset | >to | >segments | >bytes | what",
        [
            (
                f"{each.topic}-{each.partition}",
                "" if each.first_offset is None else str(each.first_offset),
                "" if each.end_offset is None else str(each.end_offset),
                counted(each.segments),
                format_size(each.size_bytes),
                what(each),
            )
            for each in logs
        ],
    )


def _describe_log(log: FetchedLog) -> str:
    if log.reason is not None:
        part = "fetched in part" if log.end_offset is not None else "not fetched"
        return f"{'damaged' if log.is_damaged else part}: {log.reason}"
    if log.aside is not None:
        return f"added; archived records that the log does not have were set aside: {log.aside}"
    stay = f"; {format_size(log.foreign_bytes)} remain in the tier" if log.foreign_bytes else ""
    stay += "" if log.gap is None else f"; accepted: {log.gap}"
    stay += "" if log.objects is None else f"; {_describe_objects(log.objects, log.end_offset)}"
    stay += describe_attempts(log.attempts)
    if log.is_new:
        return f"new{stay}"
    return f"{'added' if log.segments else 'nothing new'}{stay}"


def _describe_objects(end: BucketEnd, fetched_end: int | None) -> str:
    if end.last_object is None and not end.write_ahead_records:
        return "no objects"
    text = "" if end.last_object is None else f"up to object {end.last_object}"
    if not end.write_ahead_records:
        return text
    records = f"{counted(end.write_ahead_records)} records that only write-ahead objects contain"
    if fetched_end is not None and fetched_end > end.uploaded_end:
        return f"up to position {end.write_ahead_end} of the write-ahead log, with {records}"
    return f"{text}, without {records}; add --include-active"


def _show(output: Output, report: FetchReport) -> None:
    output.table(
        "topic | >ledger | >entries | >bytes | how | from",
        [row for topic in report.topics for row in _rows(topic)],
    )
    for topic in report.topics:
        if topic.horizon is not None:
            output.text([f"{topic.topic}: compacted up to {topic.horizon}"])
        if topic.attempts > 1:
            output.text([f"{topic.topic}{describe_attempts(topic.attempts)}"])
    output.text(
        problem_lines(
            [*report.problems, *(problem for topic in report.topics for problem in topic.problems)]
        )
    )


def _rows(topic: FetchedTopic) -> list[tuple[str, ...]]:
    return [
        (
            topic.topic,
            str(each.ledger),
            counted(each.entries),
            format_size(each.size_bytes),
            f"{each.how}{', compacted' if each.is_compacted else ''}"
            f"{', open' if each.is_open else ''}"
            + (
                f", {counted(lacking)} missing" if (lacking := _lacking(each)) and each.path else ""
            ),
            each.source,
        )
        for each in topic.ledgers
    ]


def _lacking(ledger: FetchedLedger) -> int:
    return sum(last - first + 1 for first, last in ledger.missing)
