"""``lastwrite plan``: shows what ``compact`` would do, with exact figures and reasons."""

from __future__ import annotations

import os
from collections.abc import Iterator

import typer

from lastwrite.cli import options
from lastwrite.cli.output import (
    Output,
    counted,
    format_size,
    in_local_time,
    in_stages,
    in_time,
    quantity,
)
from lastwrite.cli.problems import problem_lines, quarantine_lines, untouched_lines
from lastwrite.cli.settings import outvoted_lines
from lastwrite.pulsar.format.names import SCHEME
from lastwrite.pulsar.format.position import Position
from lastwrite.reports.compaction import CompactionReport, PartitionReport, Status

_MOST_EXPIRED = 10
_MOST_TOPICS = 5
_MOST_HELD = 20


EXAMPLES = """
lastwrite plan /var/lib/kafka
lastwrite plan /var/lib/kafka --topic orders --config cleanup.policy=compact
"""


def plan(
    context: typer.Context,
    paths: options.PathsArgument,
    system: options.System = None,
    topic: options.Topics = None,
    partition: options.Partition = None,
    config: options.Config = None,
    config_file: options.ConfigFile = None,
    topic_config: options.TopicConfig = None,
    topic_config_file: options.TopicConfigFile = None,
    metadata: options.Metadata = None,
    now: options.Now = None,
    exact: options.Exact = False,
    include_active: options.IncludeActive = False,
    like_broker: options.LikeBroker = False,
    unclean: options.Unclean = False,
    drop_keyless: options.DropKeyless = False,
    drop_expired_deletes: options.DropExpiredDeletes = False,
    keep_scans: options.KeepScans = False,
    archive: options.Archive = None,
    memory: options.Memory = None,
    master: options.Master = options.DEFAULT_MASTER,
    conf: options.Conf = None,
    json: options.Json = False,
) -> int:
    """Show what compact would do, and why.

    The figures are exact: everything is read and measured, and nothing is written.
    """
    output: Output = context.obj
    from lastwrite.spark.session import start_ahead

    spark_settings = options.pairs("--conf", conf)
    if all(os.path.exists(path) or path.startswith("persistent://") for path in paths):
        # Start Spark early, so that it starts while the other modules are imported.
        start_ahead(master, spark_settings, output.say, options.system_at(paths[0], system))
    import lastwrite

    report = lastwrite.plan(
        paths,
        system=system,
        topic=topic,
        partition=partition,
        config=options.settings(output, config, config_file, unclean),
        now_ms=now,
        exact=exact,
        include_active=include_active,
        like_broker=like_broker,
        memory=memory,
        master=master,
        conf=spark_settings,
        progress=output.progress(),
        archive=archive,
        topic_config=options.topic_settings(topic_config, topic_config_file),
        metadata=metadata,
        drop_keyless=drop_keyless,
        drop_expired_deletes=drop_expired_deletes,
        keep_scans=keep_scans,
    )
    show_compaction(output, report)
    return report.exit_status


def show_compaction(output: Output, report: CompactionReport) -> None:
    """Print a report of ``plan`` or ``compact``."""
    if output.as_json:
        output.document(report)
        return
    output.table(
        "partition | status | segments | records | size | >deletes dropped | >dirty | why",
        [
            (
                str(p.name),
                _outcome(report, p.status),
                _change(str(p.segments_before), str(p.segments_after)),
                _change(counted(p.records_before), counted(p.records_after))
                if p.records_before is not None
                else "",
                _change(format_size(p.bytes_before), format_size(p.bytes_after)),
                counted(p.tombstones_dropped) if p.tombstones_dropped else "",
                f"{p.dirty_ratio:.2f}",
                in_local_time(_reason(p)),
            )
            for p in report.partitions
        ],
    )
    output.text(["", *_summary(report)])
    output.text(_request_lines(report))
    output.text(_remedy_lines(report))
    output.text(_keyless_lines(report))
    output.text(_blocking_group_lines(report))
    output.text(_published_lines(report))
    output.text(_expired_lines(report))
    output.text(_backlog_lines(report))
    output.text(
        problem_lines(
            [problem for partition in report.partitions for problem in partition.problems]
        )
    )
    output.text(quarantine_lines(report.partitions))
    output.text(outvoted_lines(report.notes))
    output.text(untouched_lines(report.untouched, is_copy=report.is_copy))


def _reason(partition: PartitionReport) -> str:
    """The reason for a partition's status. The remedy and details follow below the table."""
    reason = (partition.reason or "").removesuffix(f"; {partition.remedy}")
    is_below = partition.status is Status.DAMAGED and partition.problems
    return reason.partition(" — ")[0] if is_below else reason


def _request_lines(report: CompactionReport) -> Iterator[str]:
    """Lines with the number of requests to an object store, by kind of request."""
    asked = report.requests
    if asked is not None:
        asks = "compact would send" if report.dry_run else "sent"
        yield (
            f"  {asks} the store {counted(asked.gets)} GET, {counted(asked.puts)} PUT, "
            f"{counted(asked.lists)} LIST, {counted(asked.deletes)} DELETE; "
            f"{format_size(asked.bytes_read)} read, {format_size(asked.bytes_written)} written"
        )


def _remedy_lines(report: CompactionReport) -> Iterator[str]:
    """Lines with the skipped topics, and the setting with which the first can be compacted."""
    remedies = {
        partition.topic: partition.remedy for partition in report.partitions if partition.remedy
    }
    if remedies:
        topics = list(remedies)
        more = (
            f" and {len(topics) - _MOST_TOPICS:,} more topics" if len(topics) > _MOST_TOPICS else ""
        )
        yield ""
        yield f"skipped: {', '.join(topics[:_MOST_TOPICS])}{more}: {remedies[topics[0]]}"


def _keyless_lines(report: CompactionReport) -> Iterator[str]:
    """Warnings about partitions from which records without a key are dropped."""
    told = [
        line
        for line in (keyless_line(each, is_plan=report.dry_run) for each in report.partitions)
        if line
    ]
    if told:
        yield ""
    yield from told


def keyless_line(report: PartitionReport, *, is_plan: bool = False) -> str:
    """A warning about dropped records without a key, with the setting that causes it.

    Returns "" if no such record is dropped.
    """
    count = report.verdicts.get("keyless", 0)
    if not count or report.first_keyless_offset is None:
        return ""
    first: object = report.first_keyless_offset
    if report.topic.startswith(SCHEME):
        first = Position.of(report.first_keyless_offset)
    records = quantity(count, "record")
    goes = "would be dropped" if is_plan else "dropped"
    place = "at" if count == 1 else "the first at"
    return (
        f"{report.name}: WARNING: {records} without a key {goes}, {place} {first}, by "
        f"{report.keyless_setting}"
    )


def _blocking_group_lines(report: CompactionReport) -> Iterator[str]:
    """Lines with the consumer groups that block the removal of expired deletes."""
    held = [(each.name, group) for each in report.partitions for group in each.held_for]
    if held:
        yield ""
    for name, group in held[:_MOST_HELD]:
        yield in_local_time(f"{name}: deletes are {group.words()}")
    if len(held) > _MOST_HELD:
        yield f"{len(held) - _MOST_HELD:,} more groups hold back deletes; see --json"


def _published_lines(report: CompactionReport) -> Iterator[str]:
    """Lines with the compacted ledgers that Pulsar brokers serve after the compaction."""
    for partition in report.partitions:
        done = partition.published
        if done is not None:
            yield (
                f"{partition.name}: brokers serve compacted ledger {done['ledger']} up to "
                f"{done['horizon']}"
            )


def _expired_lines(report: CompactionReport) -> Iterator[str]:
    """Lines with the oldest expired segments of each partition, and why they expired."""
    if any(partition.retention for partition in report.partitions):
        yield ""
    goes = "would be deleted" if report.dry_run else "was deleted"
    for partition in report.partitions:
        name = partition.name
        for gone in partition.retention[:_MOST_EXPIRED]:
            place = f"segment {gone.base_offset} of {format_size(gone.size_bytes)}"
            yield f"{name}: {place} {goes} by {gone.rule}: {in_local_time(gone.reason)}"
        more = partition.retention[_MOST_EXPIRED:]
        if more:
            size = format_size(sum(gone.size_bytes for gone in more))
            verb = "would be deleted" if report.dry_run else "were deleted"
            yield f"{name}: {len(more):,} later segments of {size} {verb} too; see --json"
        if partition.retention and partition.log_start_before != partition.log_start_after:
            yield (
                f"{name}: the log start offset changes from {partition.log_start_before} to "
                f"{partition.log_start_after}"
            )


def _backlog_lines(report: CompactionReport) -> Iterator[str]:
    """Lines with the number of segments below the compaction horizon that may be deleted."""
    told = [
        (each.name, each.backlog)
        for each in report.partitions
        if each.backlog and each.backlog.segments
    ]
    if told:
        yield ""
    for name, found in told:
        line = (
            f"{name}: {format_size(found.bytes)} in "
            f"{quantity(found.segments, 'segment')} entirely below the horizon"
        )
        if found.segments_free:
            segments = quantity(found.segments_free, "segment")
            line += f"; {format_size(found.bytes_free)} in {segments} could be deleted"
        if found.segments_free is None:
            line += "; how much could be deleted is unknown without "
            line += "retentionTimeInMinutes or retentionSizeInMB"
        yield line + (f"; held by retention: {found.reason}" if found.reason is not None else "")


def _outcome(report: CompactionReport, status: Status) -> str:
    is_ahead = report.dry_run and status is Status.CLEANED
    return "would be cleaned" if is_ahead else str(status)


def _change(before: str, after: str) -> str:
    return before if before == after else f"{before} → {after}"


def _summary(report: CompactionReport) -> Iterator[str]:
    totals = report.to_dict()["totals"]
    freed = totals["bytes_before"] - totals["bytes_after"]
    counts = [
        f"{totals[str(status)]:,} {_outcome(report, status)}"
        for status in Status
        if totals[str(status)]
    ]
    would = "would free" if report.dry_run else "freed"
    text = f"{would} {format_size(freed)} of {format_size(totals['bytes_before'])}"
    if any(
        partition.backlog is not None for partition in report.partitions
    ):  # No bytes are freed if compaction leaves the raw log in place, for other consumers.
        would = "would leave" if report.dry_run else "left"
        after, before = format_size(totals["bytes_after"]), format_size(totals["bytes_before"])
        text = f"{would} {after} of {before} to read"
    yield f"{quantity(totals['partitions'], 'partition')}: {', '.join(counts) or 'none'}"
    yield (
        f"{text}, writing {format_size(totals['bytes_written'])}, "
        f"{quantity(totals['segments_untouched'], 'segment')} unchanged, "
        f"in {in_time(report.seconds)}"
    )
    if totals["segments_deleted"]:
        size = format_size(totals["bytes_deleted"])
        expired = f"{totals['segments_deleted']:,} expired segments of {size}"
        yield f"{expired} {'would be deleted' if report.dry_run else 'were deleted'}"
    if report.stage_seconds:
        yield f"  {in_stages(report.stage_seconds)}"
