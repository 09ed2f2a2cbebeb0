"""Prints the report of ``inspect`` on Pulsar topic folders."""

from __future__ import annotations

from collections.abc import Iterator

from lastwrite.cli.output import Output, counted, format_size, moment, quantity, shares
from lastwrite.model.log import Problem
from lastwrite.pulsar.look.inspection import (
    EntryCounts,
    LedgerInspection,
    PulsarFile,
    PulsarReport,
    TopicInspection,
)

_MOST_ROWS = 40


def show_topics(output: Output, report: PulsarReport, every: bool) -> list[Problem]:
    """Print the report on topic folders without its problems. Returns the problems.

    With ``every``, list all ledgers, not only the first ones.
    """
    for file in report.files:
        output.text(_file(file))
    if not report.partitions:
        return report.problems + [problem for file in report.files for problem in file.problems]
    output.table(
        "topic | status | >ledgers | >entries | >records | >tombstones | >keys | "
        ">size | >horizon | >beyond it | due",
        [
            (
                _name(topic),
                "damaged" if topic.is_damaged else "whole",
                len(topic.ledgers),
                counted(topic.contents.entries),
                counted(topic.contents.records),
                counted(topic.contents.tombstones),
                counted(topic.keys),
                format_size(topic.bytes),
                topic.horizon or "none",
                format_size(topic.dirty_bytes),
                {True: "yes", False: "no", None: "?"}[topic.is_due],
            )
            for topic in report.partitions
        ],
    )
    if len(report.partitions) == 1 or every:
        for topic in report.partitions:
            _details(output, topic, every)
    return report.problems + [problem for topic in report.partitions for problem in topic.problems]


def _name(topic: TopicInspection) -> str:
    name = topic.topic.removeprefix("persistent://")
    return name if topic.partition < 0 else f"{name}-partition-{topic.partition}"


def _details(output: Output, topic: TopicInspection, every: bool) -> None:
    output.text(
        ["", f"{_name(topic)} in {topic.folder}", *_bounds(topic), *_contents(topic.contents), ""]
    )
    shown = topic.ledgers if every else topic.ledgers[:_MOST_ROWS]
    rows = [(str(ledger.ledger), *_ledger_row(ledger)) for ledger in shown]
    if topic.compacted is not None:
        rows.append((f"{topic.compacted.ledger} compacted", *_ledger_row(topic.compacted)))
    output.table(
        "ledger | >size | >blocks | >entries | >records | >tombstones | >placeholders | published",
        rows,
    )
    if len(shown) < len(topic.ledgers):
        output.text([f"… and {len(topic.ledgers) - len(shown):,} more ledgers: see --segments"])


def _bounds(topic: TopicInspection) -> Iterator[str]:
    if topic.first_id is not None:
        yield (
            f"  backlog      {topic.first_id} to {topic.last_id}, last message "
            f"{_id(topic.last_message_id)}"
        )
    if topic.horizon is None:
        yield "  compacted    never"
    elif topic.manifest is not None:
        yield (
            f"  compacted    up to {topic.horizon} into ledger {topic.manifest['ledger']}: "
            f"{quantity(topic.manifest['entries'], 'entry')}, "
            f"{quantity(topic.manifest['messages'], 'message')}, in "
            f"{topic.manifest['order']} order; last message {_id(topic.last_compacted_message_id)}"
        )
        yield (
            f"               backlog below the horizon {format_size(topic.backlog_below_bytes)}, "
            "above it "
            f"{format_size(topic.dirty_bytes)}"
        )
    if topic.open_transactions or topic.aborted_transactions:
        below = "" if topic.read_below is None else f"; not readable from {topic.read_below} on"
        yield (
            f"  transactions {topic.open_transactions:,} open, "
            f"{topic.aborted_transactions:,} aborted{below}"
        )
    if topic.is_due is not None:
        yield f"  due          {'yes' if topic.is_due else f'no: {topic.reason}'}"
    for name in topic.other_files:
        yield f"  unreferenced {name}: a compacted ledger that no manifest names"


def _file(file: PulsarFile) -> Iterator[str]:
    what = "block" if file.contents is None else "entry"
    many = "blocks" if file.contents is None else "entries"
    count = (
        "" if file.entries is None else f", {file.entries:,} {what if file.entries == 1 else many}"
    )
    yield f"{file.file}: {file.kind}, {format_size(file.bytes)}{count}"
    if file.contents is not None:
        yield from _contents(file.contents)
        yield f"  ledgers      {shares(file.details['ledgers'])}"


def _id(found: dict[str, int] | None) -> str:
    if found is None:
        return "unknown"
    if found["ledger"] < 0:
        return "none"
    index = found["batch_index"]
    return f"{found['ledger']}:{found['entry']}" + ("" if index < 0 else f" [{index}]")


def _contents(found: EntryCounts) -> Iterator[str]:
    if not found.entries:
        return
    yield (
        f"  entries      {found.entries:,}, {format_size(found.bytes)}: "
        f"{quantity(found.batches, 'batch')}, {found.encrypted:,} encrypted, "
        f"{quantity(found.chunks, 'chunk')}, {found.transactional:,} transactional, "
        f"{quantity(found.markers, 'marker')}; {shares(+found.codecs)}; {shares(+found.formats)}"
    )
    yield (
        f"  records      {found.records:,}: {found.tombstones:,} without value, {found.keyless:,} "
        "without key; "
        f"{found.placeholders:,} placeholders; {found.unreadable:,} unreadable batches"
    )


def _ledger_row(ledger: LedgerInspection) -> tuple[str, ...]:
    found = ledger.contents
    published = ""
    if found.first_publish_time is not None and found.last_publish_time is not None:
        published = f"{moment(found.first_publish_time)} to {moment(found.last_publish_time)}"
    return (
        format_size(ledger.file_bytes),
        counted(ledger.blocks),
        counted(found.entries),
        counted(found.records),
        counted(found.tombstones),
        counted(found.placeholders),
        published,
    )
