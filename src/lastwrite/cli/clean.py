"""``lastwrite clean``: compacts logs continuously, as a daemon."""

from __future__ import annotations

import json as json_
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lastwrite.cli import options
from lastwrite.cli.output import (
    Output,
    format_size,
    in_stages,
    in_time,
    local_moment,
    moment,
    quantity,
)
from lastwrite.cli.plan import keyless_line
from lastwrite.cli.problems import untouched_lines
from lastwrite.errors import InvalidConfig
from lastwrite.model.attempts import describe_attempts
from lastwrite.pulsar.format.names import SCHEME
from lastwrite.pulsar.format.position import Position

if TYPE_CHECKING:
    from lastwrite.cleaner.events import (
        Event,
        FetchHeldBack,
        FollowerFetched,
        PartitionQuarantined,
        RoundEnded,
        TableFailed,
        TableUpdated,
    )
    from lastwrite.cleaner.following import Follow, Stoppable
    from lastwrite.cleaner.tables import Tables
    from lastwrite.reports.compaction import PartitionReport


EXAMPLES = r"""
lastwrite clean /var/lib/kafka --metrics-port 9400
lastwrite clean /archive --table 's3://lake/{topic}' --table-config '*:as=delta'
lastwrite clean --source kafka://broker:9092 --topic 'orders-*' --to /archive \
  --table 'shop.{topic}' --table-config '*:catalog=http://catalog:8181'
"""


def clean(
    context: typer.Context,
    roots: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ROOT…",
            help="Log roots, stores, archives or persistent://… topics; none with --source.",
        ),
    ] = None,
    source: Annotated[
        list[str] | None,
        options.option(
            "--source URL",
            "The live cluster that the archive of --to follows: "
            "kafka://HOST:PORT[,HOST:PORT…], rocketmq://… or persistent://…",
            options.FOLLOWING,
        ),
    ] = None,
    to: Annotated[
        str | None,
        options.option(
            "--to ARCHIVE", "With --source: the archive to update and to clean.", options.FOLLOWING
        ),
    ] = None,
    topic: options.Topics = None,
    partition: options.Partition = None,
    every: options.Every = None,
    rate: options.Rate = None,
    set_aside: options.SetAside = False,
    accept_gap: options.AcceptGap = False,
    threads: Annotated[
        int | None,
        options.option(
            "--threads N",
            "Number of rounds at the same time; default: log.cleaner.threads.",
            options.SETTINGS,
            min=1,
        ),
    ] = None,
    once: Annotated[
        bool,
        options.option(
            "--once", "Exit as soon as no round is due, for use with cron.", options.SETTINGS
        ),
    ] = False,
    config: options.Config = None,
    config_file: options.ConfigFile = None,
    topic_config: options.TopicConfig = None,
    topic_config_file: options.TopicConfigFile = None,
    metadata: options.Metadata = None,
    table: Annotated[
        str | None,
        options.option(
            "--table PLACE",
            "Maintain a table of each compacted topic at PLACE, where {topic} stands for the "
            "topic's name.",
        ),
    ] = None,
    table_config: Annotated[
        list[str] | None,
        options.option(
            "--table-config TOPIC:NAME=VALUE",
            'An option of "lastwrite table" for the table of a topic or pattern, such as '
            "'*:as=delta' or 'orders:to=/data/orders'; may be repeated.",
        ),
    ] = None,
    metrics_port: options.MetricsPort = None,
    metrics_host: Annotated[
        str, options.option("--metrics-host HOST", "The address of the metrics page.")
    ] = "127.0.0.1",
    keep_scans: options.KeepScans = False,
    drop_keyless: options.DropKeyless = False,
    system: options.System = None,
    archive: options.Archive = None,
    memory: options.Memory = None,
    master: options.Master = options.DEFAULT_MASTER,
    conf: options.Conf = None,
    json: options.Json = False,
) -> int:
    """Compact logs continuously, as a daemon.

    The cleaner picks the dirtiest partition, runs its round, deletes the segments that retention
    has expired, and starts again. If nothing is due, it sleeps for log.cleaner.backoff.ms. A
    round compacts one partition.

    Settings of a topic come from --topic-config, then from the cluster's metadata log (in one of
    the roots or at --metadata), then from --config. A topic without any known setting is skipped,
    with a note. The file of --config-file is read again when it changes. A Pulsar topic, in an
    archive or in a live cluster, is compacted as soon as more than --config
    compactionThreshold=SIZE is new.

    With --source, the archive of --to follows topics of a live cluster at the same time,
    including later topics that match --topic. With --once, they are fetched once, before
    cleaning.

    With --table, a table of each compacted topic is maintained. It is updated as "lastwrite
    table" does when its topic has grown, and before a round on the topic. A table that fails
    stops no round. The failure is reported, the update is tried again, and with --once the exit
    status is 1, 3 or 4.

    The cleaner examines an archive, in a folder or a bucket, by its manifests. Once a day it
    removes what interrupted rounds left there. If another process runs a round there, the cleaner
    waits.

    A root that a broker has open is skipped until the broker stops. A partition whose round fails
    is set aside, and tried again after increasing pauses. inspect and plan show it, and
    "lastwrite release" releases it. SIGTERM and Ctrl-C stop the cleaner at once, even during a
    round. The log is then unchanged and the exit status is 0.

    No round runs on a partition without dirty records, even if tombstones have expired. To drop
    them, run "lastwrite compact --drop-expired-deletes", which compares all keys of the log
    again.

    Standard output contains one line per round, or one object with --json. All other lines are
    written to standard error.
    """
    import lastwrite

    output: Output = context.obj
    flags = {"--set-aside": set_aside, "--accept-gap": accept_gap}
    follow, given = _follow(roots or (), source, to, topic, partition, every, rate, flags)
    return lastwrite.clean(
        given,
        config=lambda: options.settings(output, config, config_file),
        config_file=config_file,
        once=once,
        threads=threads,
        memory=memory,
        master=master,
        conf=options.pairs("--conf", conf),
        metrics_port=metrics_port,
        metrics_host=metrics_host,
        tell=event_printer(output),
        started=stops_by_signals,
        keep_scans=keep_scans,
        system=system,
        archive=archive,
        topic_config=options.topic_settings(topic_config, topic_config_file),
        metadata=metadata,
        drop_keyless=drop_keyless,
        follow=follow,
        tables=_tables(table, table_config),
    )


def _tables(to: str | None, config: Sequence[str] | None) -> Tables | None:
    """The tables to maintain. Returns None without ``--table`` and ``--table-config``."""
    if to is None and not config:
        return None
    from lastwrite.cleaner.tables import Tables
    from lastwrite.kafka.rules.topic_settings import decode_overrides

    found = decode_overrides(config or (), "--table-config")
    return Tables(to=to, config=[(each.pattern, each.name, each.value) for each in found])


def _follow(
    roots: Sequence[str],
    source: Sequence[str] | None,
    to: str | None,
    topic: Sequence[str] | None,
    partition: int | None,
    every: float | None,
    rate: str | None,
    flags: Mapping[str, bool],
) -> tuple[Follow | None, Sequence[str]]:
    """The sources to follow, and the roots to clean. The sources are None without ``--source``.

    ``flags`` are the options ``--set-aside`` and ``--accept-gap``.

    Raises:
        InvalidConfig: the options contradict each other.
    """
    if source:
        from lastwrite.cleaner.following import Follow
        from lastwrite.cleaner.pauses import EVERY_S

        if roots or to is None:
            raise InvalidConfig(
                "--source needs --to ARCHIVE, and excludes ROOT",
                remedy="add --to ARCHIVE and remove ROOT",
            )
        every_s = EVERY_S if every is None else every
        follow = Follow(
            sources=source,
            topic=topic,
            partition=partition,
            every_s=every_s,
            rate=rate,
            sets_aside=flags["--set-aside"],
            accepts_gap=flags["--accept-gap"],
        )
        return follow, [to]
    if not roots:
        raise InvalidConfig("no log is given", remedy="give a ROOT, or --source and --to")
    for name, value in (
        ("--to", to),
        ("--topic", topic),
        ("--partition", partition),
        ("--every", every),
        ("--rate", rate),
        *((name, is_given or None) for name, is_given in flags.items()),
    ):
        if value is not None:
            raise InvalidConfig(f"{name} needs --source", remedy="add --source, or remove {name}")
    return None, roots


def event_printer(output: Output) -> Callable[[Event], None]:
    """A function that prints events.

    An event is a line on standard output, a note is a line on standard error. With ``--json``,
    events and notes are JSON objects on standard output.
    """
    output.lines = True

    def print_event(event: Event) -> None:
        if output.as_json:
            output.text([json_.dumps(event.to_dict())])
        elif hasattr(event, "text"):
            output.say(f"{moment(event.time_ms)} {event.text}")
        elif _LINES[event.event](event):
            output.text([event_line(event)])

    return print_event


def stops_by_signals(what: Stoppable) -> None:
    """Install signal handlers, so that SIGTERM and Ctrl-C request ``what`` to stop."""
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: what.request_stop())


def event_line(event: Event) -> str:
    """An event as a line of text."""
    return f"{moment(event.time_ms)} {_LINES[event.event](event)}"


def _quarantined_line(event: PartitionQuarantined) -> str:
    entry = event.entry
    return (
        f"{event.name}: set aside as uncleanable after try {entry.tries:,}, next try at "
        f"{local_moment(entry.next_try_ms)}: {entry.reason}"
    )


def _round(event: RoundEnded) -> str:
    report = event.report
    said = []
    if report.bytes_read:
        said.append(
            f"{_range(report)}, "
            f"read {format_size(report.bytes_read)}, wrote {format_size(report.bytes_written)} "
            f"in {_seconds(event)}"
        )
        records = (
            f", {report.records_before:,} → {quantity(report.records_after, 'record')}"
            if report.records_after
            else ""
        )
        said.append(
            f"{format_size(report.bytes_before)} → {format_size(report.bytes_after)}{records} "
            f"({event.saved():.1f} % saved)"
        )
    if report.segments_deleted:
        said.append(
            f"retention deleted {quantity(report.segments_deleted, 'segment')} of "
            f"{format_size(report.bytes_deleted)}, "
            f"the log starts at {report.log_start_after}"
        )
    if event.keyless:
        said.append(keyless_line(report).partition(": ")[2])
    return f"[{event.thread}] {report.name}: {'; '.join(said) or 'nothing could be removed'}"


def _fetched_line(event: FollowerFetched) -> str:
    held = f", {event.held:,} held back" if event.held else ""
    behind = f", {quantity(event.lag_records, 'record')} behind" if event.lag_records else ""
    return (
        f"fetched {format_size(event.bytes)} of {quantity(event.partitions, 'partition')} in "
        f"{in_time(event.seconds)}{behind}{held}{describe_attempts(event.attempts)}"
    )


def _held_back_line(event: FetchHeldBack) -> str:
    log = event.log.log
    name = log.topic if log.partition < 0 else f"{log.topic}-{log.partition}"
    return f"{name}: held back ({log.held}): {log.reason}"


def _table(event: TableUpdated) -> str:
    report = event.report
    return (
        f"table of {report.topic}: {report.how} in {in_time(event.seconds)}, "
        f"{quantity(report.rows, 'row')} (+{report.added:,} -{report.removed:,}), "
        f"{format_size(report.bytes_written)} written: {report.path}"
        f"{describe_attempts(report.attempts)}"
    )


def _table_failed(event: TableFailed) -> str:
    again = "" if event.next_try_ms is None else f", next try at {local_moment(event.next_try_ms)}"
    return f"table of {event.topic}: unchanged after try {event.tries:,}{again}: {event.reason}"


# Functions that convert an event to a line of text, by the event's name in JSON.
_LINES: dict[str, Callable[[Any], str]] = {
    "note": lambda event: event.text,
    "untouched": lambda event: " ".join(untouched_lines(event.untouched)),
    "uncleanable": _quarantined_line,
    "round": _round,
    "brought": _fetched_line,
    "held": _held_back_line,
    "table": _table,
    "table_failed": _table_failed,
}


def _range(report: PartitionReport) -> str:
    if not report.topic.startswith(SCHEME):
        return f"offsets {report.first_dirty_offset} to {report.first_uncleanable_offset}"
    last = Position.of(report.first_uncleanable_offset - 1)
    return f"entries {Position.of(report.first_dirty_offset)} to {last}"


def _seconds(event: RoundEnded) -> str:
    if event.wave_partitions > 1:
        return f"{in_time(event.seconds)} with {event.wave_partitions - 1:,} others"
    return f"{in_time(event.seconds)} ({in_stages(event.stage_seconds)})"
