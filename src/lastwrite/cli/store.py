"""Prints the report of ``inspect`` on a RocketMQ store."""

from __future__ import annotations

from collections.abc import Iterator

from lastwrite.cli.output import Output, counted, format_size, moment, quantity, shares
from lastwrite.model.log import Problem
from lastwrite.rocketmq.look.inspection import (
    FileOfLog,
    IndexOfQueue,
    Messages,
    QueueInspection,
    StoreReport,
)

_MOST_ROWS = 40
_BROKERS = {"closed": "5.2.0 or newer", "open": "a broker before 5.2.0"}


def show_store(output: Output, report: StoreReport, every: bool) -> list[Problem]:
    """Print a store's report without its problems. Returns the problems.

    With ``every``, list all files, not only the first ones.
    """
    output.text(_head(report))
    if report.partitions and (
        report.what == "store" or len(report.partitions) > 1 or report.commit_log is not None
    ):
        _queues(output, report.partitions)
    if any(queue.compaction is not None for queue in report.partitions):
        output.text([""])
        _compactions(output, report.partitions)
    if len(report.partitions) == 1 or every:
        for queue in report.partitions:
            output.text(_details(queue))
    files = [] if report.commit_log is None else report.commit_log.files
    if files and (every or report.what != "store" or len(files) <= _MOST_ROWS):
        output.text([""])
        _files(output, "commit log file", files)
    elif files:
        output.text([f"… {quantity(len(files), 'file')} of the commit log: see --segments"])
    if report.index_files:
        output.text([""])
        _index_files(output, report.index_files)
    if report.files and report.what == "store":
        output.text([""])
    for file in report.files:
        output.text(_file(file))
    return report.problems + [problem for queue in report.partitions for problem in queue.problems]


def _head(report: StoreReport) -> Iterator[str]:
    stopped = {True: ", shut down cleanly", False: ", not shut down cleanly", None: ""}[
        report.stopped_in_order
    ]
    yield f"{report.path}: RocketMQ {report.what}{stopped}"
    log = report.commit_log
    if log is not None:
        folders = "" if len(log.folders) == 1 else f" in {len(log.folders)} folders"
        end = "" if log.end is None else f" to {log.end}"
        yield (
            f"  commit log   {quantity(len(log.files), 'file')} of "
            f"{format_size(log.file_size)}{folders}, addresses {log.start}{end}"
        )
        yield from _contents(log.contents)
    yield ""


def _contents(found: Messages) -> Iterator[str]:
    if not found.records:
        return
    yield (
        f"  records      {found.records:,}, {format_size(found.bytes)}: "
        f"{shares(found.formats) or 'none'}; "
        f"{shares(found.codecs) or 'none'}; written by {_brokers(found)}"
    )
    yield (
        f"               {found.tombstones:,} with an empty body, {found.keyless:,} without key, "
        f"{found.inner_batches:,} inner batches, {found.delayed:,} delayed, {found.prepared:,} "
        "prepared and "
        f"{found.rolled_back:,} rolled back"
    )
    if found.first_timestamp is not None and found.last_timestamp is not None:
        yield f"  stored       {moment(found.first_timestamp)} to {moment(found.last_timestamp)}"


def _brokers(found: Messages) -> str:
    return " and ".join(_BROKERS[ending] for ending in sorted(found.endings)) or "?"


def _queues(output: Output, queues: list[QueueInspection]) -> None:
    output.table(
        "queue | status | >records | >size | >tombstones | offsets | >units | "
        "unit offsets | >lacking | >wrong | policy",
        [
            (
                f"{queue.topic}-{queue.partition}",
                "damaged" if queue.is_damaged else "whole",
                counted(queue.contents.records),
                format_size(queue.contents.bytes),
                counted(queue.contents.tombstones),
                _range(queue.contents.first_offset, queue.contents.last_offset),
                *_units(queue),
                queue.cleanup_policy or "",
            )
            for queue in queues
        ],
    )


def _units(queue: QueueInspection) -> tuple[str, str, str, str]:
    index: IndexOfQueue | None = queue.consume_queue or queue.batch_consume_queue
    if index is None:
        return "none", "", "", ""
    last = None if index.end_offset is None else index.end_offset - 1
    known = [("" if value is None else counted(value)) for value in (index.lacking, index.wrong)]
    return counted(index.units), _range(index.first_offset, last), known[0], known[1]


def _range(first: int | None, last: int | None) -> str:
    return "" if first is None or last is None else f"{first}–{last}"


def _compactions(output: Output, queues: list[QueueInspection]) -> None:
    output.table(
        "compaction log | >files | >records | >keys | >tombstones | >size | >dirty | "
        "offsets | >position",
        [
            (
                f"{queue.topic}-{queue.partition}",
                sum(file.kind == "compaction log" for file in found.files),
                counted(found.contents.records),
                counted(found.keys),
                counted(found.contents.tombstones),
                format_size(found.contents.bytes),
                format_size(found.dirty_bytes),
                _range(found.contents.first_offset, found.contents.last_offset),
                "none" if found.position is None else found.position,
            )
            for queue in queues
            if (found := queue.compaction) is not None
        ],
    )


def _details(queue: QueueInspection) -> Iterator[str]:
    yield ""
    yield f"{queue.topic}-{queue.partition}"
    yield from _contents(queue.contents)
    for index in (queue.consume_queue, queue.batch_consume_queue, queue.extension):
        if index is not None:
            yield (
                f"  {index.kind}: {quantity(len(index.files), 'file')} of "
                f"{format_size(index.file_size)}, {quantity(index.units, 'unit')}, "
                f"{quantity(index.fillers, 'filler')}, {index.expired:,} of expired records"
            )
    found = queue.compaction
    if found is not None:
        yield (
            f"  compaction log: files of {counted(found.file_size)} bytes, indexes of "
            f"{counted(found.index_file_size)}; "
            f"{quantity(found.unindexed, 'record')} after the last unit"
        )
        if found.is_due is not None:
            yield f"  due          {'yes' if found.is_due else f'no: {found.reason}'}"
        yield from _contents(found.contents)
        for file in found.files:
            yield "    " + next(_file(file))


def _files(output: Output, title: str, files: list[FileOfLog]) -> None:
    output.table(
        f"{title} | >from | >size | >records | >ends at | how",
        [
            (
                file.file,
                file.start,
                format_size(file.bytes),
                counted(file.entries),
                file.end_position,
                file.ending,
            )
            for file in files
        ],
    )


def _index_files(output: Output, files: list[FileOfLog]) -> None:
    output.table(
        "index file | >size | >entries | >slots | addresses | stored",
        [
            (
                file.file,
                format_size(file.bytes),
                counted(file.entries),
                counted(file.details.get("slots")),
                _range(
                    file.details.get("first_physical_offset"),
                    file.details.get("last_physical_offset"),
                ),
                f"{moment(file.details['first_timestamp'])} to "
                f"{moment(file.details['last_timestamp'])}"
                if file.details and file.entries
                else "",
            )
            for file in files
        ],
    )


def _file(file: FileOfLog) -> Iterator[str]:
    text = f"{file.file}: {file.kind}, {format_size(file.bytes)}"
    if file.entries is not None:
        text += f", {file.entries:,} {'entry' if file.entries == 1 else 'entries'}"
    if file.first_offset is not None:
        text += f", offsets {_range(file.first_offset, file.last_offset)}"
    if file.ending is not None:
        text += f", ends at {file.end_position} ({file.ending})"
    yield text
    if file.details:
        parts = [f"{name} {_format_value(name, value)}" for name, value in file.details.items()]
        for first in range(0, len(parts), 4):
            yield "  " + "  ".join(parts[first : first + 4])


def _format_value(name: str, value: object) -> object:
    if isinstance(value, dict):
        return shares(value) or "none"
    return (
        moment(value) if name.endswith("timestamp") and isinstance(value, int) and value else value
    )
