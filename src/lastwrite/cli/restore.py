"""``lastwrite restore``: restores Kafka topics from an archive, RocketMQ queues from a broker."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from lastwrite.cli import options
from lastwrite.cli.fetch import show_logs
from lastwrite.cli.output import Output, counted, format_size, quantity
from lastwrite.cli.plan import show_compaction
from lastwrite.cli.problems import untouched_lines
from lastwrite.errors import InvalidConfig
from lastwrite.kafka.restored import LogGiven, LogsGiven, LogsRestored, RestoredLog
from lastwrite.rocketmq.reports import Restoration

EXAMPLES = """
lastwrite restore s3://backup/cluster1 --topic orders --to /var/lib/kafka
lastwrite restore s3://backup/cluster1 --topic orders --to kafka://broker1:9092
lastwrite restore s3://backup/cluster1 --to kafka://broker1:9092 --groups
lastwrite restore /var/lib/rocketmq/store --topic prices --from localhost:9876
"""


def restore(
    context: typer.Context,
    path: Annotated[
        str,
        typer.Argument(
            metavar="ARCHIVE|STORE",
            help="Kafka: an archive, a folder or s3://bucket/prefix. RocketMQ: a store "
            "(storePathRootDir) whose broker is stopped.",
        ),
    ],
    to: Annotated[
        str | None,
        options.option(
            "--to LOGROOT|URL",
            "One of the log.dirs of a stopped broker, or a running cluster, "
            "kafka://HOST:PORT[,HOST:PORT].",
            options.KAFKA,
        ),
    ] = None,
    name_server: Annotated[
        str | None,
        options.option(
            "--from HOST:PORT", "The name server of the live cluster.", options.ROCKETMQ
        ),
    ] = None,
    topic: options.Topics = None,
    partition: Annotated[
        list[int] | None,
        options.option(
            "--partition, --queue NUMBER",
            "Only this partition or queue of each topic; Kafka: may be repeated.",
            options.SELECTION,
            min=0,
        ),
    ] = None,
    name: Annotated[
        str | None,
        options.option(
            "--as NAME", "Restore the topic under this name; select one topic.", options.KAFKA
        ),
    ] = None,
    until: Annotated[
        str | None,
        options.option(
            "--until OFFSET|TIME",
            "Omit records at this offset or above, or of this time (2026-11-23T08:00) or later.",
            options.KAFKA,
        ),
    ] = None,
    drop_open: Annotated[
        bool,
        options.option(
            "--drop-open",
            "Omit the records of transactions that are open at the end of the archive.",
            options.KAFKA,
        ),
    ] = False,
    groups: Annotated[
        bool,
        options.option(
            "--groups",
            "Running cluster: set only the groups' committed offsets, to the archive's values. "
            "For topics that were restored with their offsets.",
            options.KAFKA,
        ),
    ] = False,
    replication_factor: Annotated[
        int,
        options.option(
            "--replication-factor NUMBER",
            "Running cluster: replication factor of created topics; -1 means the brokers' default.",
            options.KAFKA,
            min=-1,
        ),
    ] = -1,
    rate: Annotated[
        str | None,
        options.option(
            "--rate SIZE",
            "Running cluster: write at most this many bytes per second.",
            options.KAFKA,
        ),
    ] = None,
    metadata: options.Metadata = None,
    broker: Annotated[
        str | None,
        options.option(
            "--broker NAME",
            "The broker whose queues the store contains, if several brokers have the topic.",
            options.ROCKETMQ,
        ),
    ] = None,
    config: options.Config = None,
    config_file: options.ConfigFile = None,
    now: options.Now = None,
    unclean: Annotated[
        bool,
        options.option(
            "--unclean", "Continue although the store's own broker was killed.", options.ROCKETMQ
        ),
    ] = False,
    trust_broker: Annotated[
        bool,
        options.option(
            "--trust-broker",
            "Also pull from a broker that may skip messages since its restart.",
            options.ROCKETMQ,
        ),
    ] = False,
    timeout: Annotated[
        float,
        options.option(
            "--timeout SECONDS", "Time limit of each request.", options.ROCKETMQ, min=0.001
        ),
    ] = 30.0,
    memory: options.Memory = None,
    master: options.Master = options.DEFAULT_MASTER,
    conf: options.Conf = None,
    json: options.Json = False,
) -> int:
    """Restore topics from an archive or a RocketMQ broker.

    Kafka, stopped broker: writes the archived topics to a log root at the same offsets. The
    cluster must already have the topics, without records.

    Kafka, running cluster: creates the topics and writes the records at new offsets. Committed
    offsets of groups are moved to the records that the groups would read next.

    RocketMQ (--from): fetches from a live broker the beginning of queues that the store has lost,
    and compacts them. Use it for a store whose commit log was recovered without its oldest files.
    Messages that only the compaction log had are pulled from offset 0 up to where the store
    begins. Run "lastwrite dispatch" first.
    """
    import lastwrite

    output: Output = context.obj
    done = lastwrite.restore(
        path,
        topic,
        name_server=name_server,
        to=to,
        partition=partition,
        name=name,
        until=None if until is None else _offset_or_time(until),
        drop_open=drop_open,
        groups=groups,
        replication_factor=replication_factor,
        rate=rate,
        metadata=metadata,
        broker=broker,
        config=options.settings(output, config, config_file),
        now_ms=now,
        unclean=unclean,
        trust_broker=trust_broker,
        timeout=timeout,
        memory=memory,
        master=master,
        conf=options.pairs("--conf", conf),
        progress=output.progress(),
    )
    if output.as_json:
        output.document(done)
    elif isinstance(done, LogsRestored):
        _show_logs(output, done)
    elif isinstance(done, LogsGiven):
        _show_live_restore(output, done)
    else:
        _show_queues(output, done)
    return done.exit_status


def _offset_or_time(text: str) -> int | datetime:
    """Parse an offset or a time.

    Raises:
        InvalidConfig: the text is neither an offset nor a time.
    """
    if text.isdecimal():
        return int(text)
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise InvalidConfig(
            f"--until {text!r} is neither an offset nor a time",
            remedy="write a time as 2026-11-23T08:00 (local time) or 2026-11-23T07:00Z (UTC)",
        ) from None


def _show_logs(output: Output, done: LogsRestored) -> None:
    show_logs(output, done.partitions, _describe_log)
    output.text(untouched_lines(done.untouched))
    for note in done.notes:
        output.say(f"lastwrite: {note}")
    if done.groups_command is not None:
        output.text(
            ["start the broker, then set the offsets of groups:", f"  {done.groups_command}"]
        )


def _describe_log(log: RestoredLog) -> str:
    if log.reason is not None:
        return f"{'damaged' if log.is_damaged else 'not restored'}: {log.reason}"
    return "restored" if log.is_written else "was there" if log.end_offset else "empty"


def _show_live_restore(output: Output, done: LogsGiven) -> None:
    output.table(
        "partition | >at offset | >to | >records | >bytes | groups | what",
        [
            (
                f"{each.topic}-{each.partition}",
                "" if each.first_offset is None else str(each.first_offset),
                "" if each.end_offset is None else str(each.end_offset),
                counted(each.records),
                format_size(each.size_bytes),
                f"{sum(group.is_set for group in each.groups)} of {len(each.groups)}",
                _describe_produced(each),
            )
            for each in done.partitions
        ],
    )
    for log in done.partitions:
        for group in log.groups:
            if group.reason is not None:
                output.say(
                    f"lastwrite: offsets of group {group.group} were not set: {group.reason}"
                )
    for note in done.notes:
        output.say(f"lastwrite: {note}")


def _describe_produced(log: LogGiven) -> str:
    if log.reason is not None:
        return f"{'damaged' if log.is_damaged else 'not restored'}: {log.reason}"
    if log.is_groups_alone:
        return "groups only"
    return "restored" if log.is_written else "was there" if log.end_offset else "empty"


def _show_queues(output: Output, done: Restoration) -> None:
    output.text(
        f"{queue.name}: {quantity(queue.pulled, 'message')} from {queue.broker} below offset "
        f"{queue.pulled_below}, then {counted(queue.kept)} from the store"
        for queue in done.queues
    )
    if done.compaction is None:  # the report of a compaction already lists the untouched files
        output.text(untouched_lines(done.untouched))
    for note in done.notes:
        output.say(f"lastwrite: {note}")
    if done.compaction is not None:
        show_compaction(output, done.compaction)
