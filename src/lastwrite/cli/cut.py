"""``lastwrite cut``: end a RocketMQ commit log at an earlier place, and put back what that removed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from lastwrite.cli import options
from lastwrite.cli.output import Output, counted, in_words, moment
from lastwrite.rocketmq.reports import CutReport, CutStatus


def cut(
    context: typer.Context,
    store: Annotated[
        str,
        typer.Argument(
            metavar="STORE", help="A RocketMQ broker's storePathRootDir.", show_default=False
        ),
    ],
    at: Annotated[
        int | None,
        options.option("--at OFFSET", "The physical offset: all records from there on go.", min=0),
    ] = None,
    dry_run: Annotated[bool, options.option("--dry-run", "Only say what would go.")] = False,
    undo: Annotated[bool, options.option("--undo", "Put back what the last cut removed.")] = False,
    unclean: Annotated[
        bool, options.option("--unclean", "Go on where the broker was killed.")
    ] = False,
    config: options.Config = None,
    config_file: options.ConfigFile = None,
    json: options.Json = False,
) -> int:
    """End a RocketMQ commit log at an earlier place, where dispatch found it damaged and no replica
    has the rest.

    Queues, index, compaction logs, consumers' offsets and the timer go back to the same place. What
    is removed is kept in the store, under names that end with .before-cut, until you remove it;
    --undo puts it back byte for byte.
    """
    import lastwrite

    output: Output = context.obj
    report = lastwrite.cut(
        store,
        at=at,
        dry_run=dry_run,
        undo=undo,
        unclean=unclean,
        config=options.settings(output, config, config_file),
    )
    if output.as_json:
        output.document(report)
    else:
        output.text(_words(report, store))
    return report.exit_status


def _words(report: CutReport, store: str) -> Iterator[str]:
    will = {CutStatus.PLANNED: "would go", CutStatus.CUT: "went", CutStatus.UNDONE: "came back"}[
        report.status
    ]
    place = f"physical offset {report.at} ({report.file}, byte {report.position})"
    yield f"from {place} on {will} {counted(report.records)} whole records, {in_words(report.bytes)}"
    for one in report.queues:
        yield f"  {one.topic}-{one.queue}: queue offsets {one.first} to {one.last}"
    for one in report.compaction:
        yield f"  {one.topic}-{one.queue}: of its compaction log {one.first} to {one.last}"
    if report.index_files:
        yield f"  index files made anew or removed: {', '.join(report.index_files)}"
    for group in report.consumers:
        yield f"  group {group.group}: its offset of {group.topic}-{group.queue} from {group.before} to {group.after}"
    for level in report.delays:
        yield f"  delay level {level.level}: delivered up to {level.after}, from {level.before}"
    timer = report.timer
    if timer is not None:
        before, after = map(moment, (timer.read_time_before_ms, timer.read_time_after_ms))
        yield (
            f"  timer: {counted(timer.units_removed)} units of its log; next offset of its queue "
            f"from {timer.queue_offset_before} to {timer.queue_offset_after}; delivered up to "
            f"{after}, from {before}"
        )
    for left in report.untouched:
        yield f"  unchanged: {left.path}: {left.why}"
    for note in report.notes:
        yield f"note: {note}"
    if report.status is CutStatus.CUT:
        yield "what was there before is kept: " + ", ".join(report.aside)
        yield f"to undo it: lastwrite cut {store} --undo; when all is well remove those, and lastwrite-cut.json"
