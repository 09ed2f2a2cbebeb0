"""``lastwrite inspect``: counts what a log contains and reports damage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer

from lastwrite.cli import options
from lastwrite.cli.output import Output, counted, format_size, in_local_time, quantity, shares
from lastwrite.cli.problems import problem_lines, quarantine_lines
from lastwrite.cli.settings import outvoted_lines
from lastwrite.cli.store import show_store
from lastwrite.cli.topics import show_topics
from lastwrite.kafka.look.inspection import (
    FileInspection,
    InspectReport,
    PartitionInspection,
    SegmentInspection,
)
from lastwrite.model.log import Problem
from lastwrite.pulsar.look.inspection import PulsarReport
from lastwrite.rocketmq.look.inspection import StoreReport

_MOST_ROWS = 40  # maximum number of rows in a table of segments
_MOST_OPEN = 10  # maximum number of listed open transactions


EXAMPLES = """
lastwrite inspect /var/lib/kafka --topic orders --segments
lastwrite inspect /var/lib/rocketmq/store
"""


def inspect(
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
    memory: options.Memory = None,
    include_active: options.IncludeActive = False,
    segments: Annotated[
        bool, options.option("--segments", "List every segment, not only the first ones.")
    ] = False,
    json: options.Json = False,
) -> int:
    """Count what a log contains and report all damage.

    It prints partitions, segments, records, batches, dirty bytes, formats and codecs. Every batch
    is read and its checksum is computed. Nothing is changed.

    RocketMQ: the commit log, queues, compaction logs and index files of a store. Each index is
    compared with the records that it refers to. PATH can be the store, a folder of it, a topic, a
    queue, or one file of any kind.
    """
    import lastwrite

    output: Output = context.obj
    report = lastwrite.inspect(
        paths,
        system=system,
        topic=topic,
        partition=partition,
        config=options.settings(output, config, config_file),
        now_ms=now,
        memory=memory,
        include_active=include_active,
        progress=output.progress(),
        topic_config=options.topic_settings(topic_config, topic_config_file),
        metadata=metadata,
    )
    if output.as_json:
        output.document(report)
        return report.exit_status
    _SHOW[report.system](output, report, segments)
    return report.exit_status


def _show_topics(output: Output, report: PulsarReport, segments: bool) -> None:
    output.text(problem_lines(show_topics(output, report, segments)))
    output.text(quarantine_lines(report.partitions))


def _show_store(output: Output, report: StoreReport, segments: bool) -> None:
    output.text(problem_lines(show_store(output, report, segments)))


def _show_logs(output: Output, report: InspectReport, segments: bool) -> None:
    if report.partitions:
        _partitions(output, report)
        if len(report.partitions) == 1 or segments:
            for partition in report.partitions:
                if not partition.is_unread:
                    _details(output, partition, segments)
    for file in report.files:
        output.text(_file(file))
    output.text(problem_lines(_problems(report)))
    output.text(quarantine_lines(report.partitions))
    output.text(outvoted_lines(report.notes))


_SHOW: dict[str, Callable[[Output, Any, bool], None]] = {
    "kafka": _show_logs,
    "rocketmq": _show_store,
    "pulsar": _show_topics,
}


def _status(partition: PartitionInspection) -> str:
    if partition.is_damaged:
        return "damaged"
    if partition.is_unread:
        return "not read"
    return "unsupported" if partition.is_unsupported else "whole"


def _partitions(output: Output, report: InspectReport) -> None:
    output.table(
        "partition | status | >segments | >records | >keys | >tombstones | >size | "
        ">dirty | >ratio | offsets | codecs",
        [
            (
                f"{p.topic}-{p.partition}",
                _status(p),
                len(p.segments),
                counted(p.contents.records),
                "" if p.keys is None else counted(p.keys),
                counted(p.contents.tombstones),
                format_size(p.bytes),
                format_size(p.dirty_bytes),
                "?" if p.dirty_ratio is None else f"{p.dirty_ratio:.2f}",
                "?" if p.is_unread else f"{p.log_start}–{p.end_offset}",
                shares(p.contents.codecs),
            )
            for p in report.partitions
        ],
    )
    if len(report.partitions) > 1:
        totals = report.totals
        output.text(
            [
                "",
                f"{quantity(totals.partitions, 'partition')}, "
                f"{quantity(totals.segments, 'segment')}, "
                f"{quantity(totals.contents.records, 'record')}, "
                f"{format_size(totals.bytes)}, {format_size(totals.dirty_bytes)} of it dirty",
            ]
        )


def _details(output: Output, partition: PartitionInspection, every: bool) -> None:
    contents = partition.contents
    output.text(
        [
            "",
            f"{partition.topic}-{partition.partition} in {partition.folder}",
            f"  offsets      log start {partition.log_start}, last stable "
            f"{partition.last_stable_offset}, "
            f"high watermark {partition.high_watermark}, end {partition.end_offset}",
            f"  batches      {contents.batches:,}: {shares(contents.formats)}; "
            f"{shares(contents.codecs)}; "
            f"{contents.empty_batches:,} empty",
            f"  records      {contents.records:,}: {contents.tombstones:,} tombstones, "
            f"{contents.keyless:,} without key, {contents.control_records:,} control",
            f"  producers    {counted(partition.producers)} in {contents.producer_batches:,} "
            "batches, "
            f"{contents.transactional_batches:,} of them transactional; "
            f"{counted(partition.active_producers)} active, "
            f"{counted(partition.expired_producers)} expired",
            *_transactions(partition),
            f"  dirty        from offset {partition.first_dirty_offset}, cleanable up to "
            f"{partition.first_uncleanable_offset}: {format_size(partition.cleanable_bytes)}",
            *_settings(partition),
            "  due          "
            + ("yes" if partition.is_due else in_local_time(f"no: {partition.reason}")),
            "",
        ]
    )
    shown = partition.segments if every else partition.segments[:_MOST_ROWS]
    output.table(
        "segment | >size | >batches | >records | >tombstones | >first | >last | "
        ">index | >time index",
        [_segment_row(segment) for segment in shown],
    )
    if len(shown) < len(partition.segments):
        output.text(
            [f"… and {len(partition.segments) - len(shown):,} more segments: see --segments"]
        )


def _settings(partition: PartitionInspection) -> Iterator[str]:
    said = [
        f"{s.name}={'?' if s.value is None else s.value} ({s.source})"
        for s in partition.settings
        if s.is_said
    ]
    if said:
        yield f"  settings     {', '.join(said)}"


def _transactions(partition: PartitionInspection) -> Iterator[str]:
    found = partition.transactions
    if found is None or not partition.contents.transactional_batches:
        return
    yield (
        f"  transactions {found.committed:,} committed, {found.aborted:,} aborted with "
        f"{found.aborted_records:,} "
        f"records left, {found.open:,} open"
    )
    for transaction in partition.open_transactions[:_MOST_OPEN]:
        yield (
            f"               open: producer {transaction.producer_id} from offset "
            f"{transaction.first_offset}"
        )
    if found.open > _MOST_OPEN:
        yield f"               … and {found.open - _MOST_OPEN:,} more"


def _segment_row(segment: SegmentInspection) -> tuple[object, ...]:
    contents = segment.contents
    return (
        f"{segment.base_offset}{' active' if segment.is_active else ''}",
        format_size(segment.bytes),
        counted(contents.batches),
        counted(contents.records),
        counted(contents.tombstones),
        contents.first_offset,
        contents.last_offset,
        segment.index_entries,
        segment.time_index_entries,
    )


def _file(file: FileInspection) -> Iterator[str]:
    yield f"{file.file}: {file.kind}, {format_size(file.bytes)}"
    if file.entries is not None:
        yield f"  entries      {file.entries:,}"
    if file.segment is not None:
        contents = file.segment.contents
        yield f"  offsets      {contents.first_offset} to {contents.last_offset}"
        yield (
            f"  batches      {contents.batches:,}: {shares(contents.formats)}; "
            f"{shares(contents.codecs)}"
        )
        yield f"  records      {contents.records:,}: {contents.tombstones:,} tombstones"


def _problems(report: InspectReport) -> list[Problem]:
    found = list(report.problems)
    for partition in report.partitions:
        found += partition.problems
    for file in report.files:
        found += file.problems
    return found
