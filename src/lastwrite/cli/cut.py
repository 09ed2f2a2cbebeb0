"""``lastwrite cut``: truncates a RocketMQ commit log, or undoes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from lastwrite.cli import options
from lastwrite.cli.output import Output, counted, format_size, moment, quantity
from lastwrite.rocketmq.reports import CutReport, CutStatus

EXAMPLES = """
lastwrite cut /var/lib/rocketmq/store --at 1073741824 --dry-run
lastwrite cut /var/lib/rocketmq/store --at 1073741824
lastwrite cut /var/lib/rocketmq/store --undo
"""


def cut(
    context: typer.Context,
    store: Annotated[
        str,
        typer.Argument(
            metavar="STORE", show_default=False, help="The storePathRootDir of a RocketMQ broker."
        ),
    ],
    at: Annotated[
        int | None,
        options.option(
            "--at OFFSET",
            "The physical offset to cut at: this record and all later ones are removed.",
            options.ACTION,
            min=0,
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        options.option("--dry-run", "Change nothing; print what would be removed.", options.ACTION),
    ] = False,
    undo: Annotated[
        bool, options.option("--undo", "Restore what the last cut removed.", options.ACTION)
    ] = False,
    unclean: Annotated[
        bool,
        options.option("--unclean", "Continue although the broker was killed.", options.SETTINGS),
    ] = False,
    config: options.Config = None,
    config_file: options.ConfigFile = None,
    json: options.Json = False,
) -> int:
    """Truncate a RocketMQ commit log at an offset, or undo it.

    Use it if dispatch found damage in the commit log and no replica has the rest. Queues, index,
    compaction logs, consumer offsets and the timer are set back to the same position. The removed
    data stays in the store, under names that end with .before-cut, until you delete it. --undo
    restores it byte for byte.
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
        output.text(_result_lines(report, store))
    return report.exit_status


def _result_lines(report: CutReport, store: str) -> Iterator[str]:
    did = {
        CutStatus.PLANNED: "would remove",
        CutStatus.CUT: "removed",
        CutStatus.UNDONE: "restored",
    }[report.status]
    place = f"physical offset {report.at} ({report.file}, byte {report.position})"
    yield (
        f"{did} {counted(report.records)} whole records, {format_size(report.bytes)}, from {place}"
    )
    for one in report.queues:
        yield f"  {one.topic}-{one.queue}: queue offsets {one.first} to {one.last}"
    for one in report.compaction:
        yield f"  {one.topic}-{one.queue}: compaction log offsets {one.first} to {one.last}"
    if report.index_files:
        yield f"  index files rebuilt or removed: {', '.join(report.index_files)}"
    for group in report.consumers:
        yield (
            f"  group {group.group}: offset of {group.topic}-{group.queue} from {group.before} to "
            f"{group.after}"
        )
    for level in report.delays:
        yield f"  delay level {level.level}: delivered up to {level.after}, from {level.before}"
    timer = report.timer
    if timer is not None:
        before, after = map(moment, (timer.read_time_before_ms, timer.read_time_after_ms))
        yield (
            f"  timer: {quantity(timer.units_removed, 'unit')} of its log removed; next "
            f"queue offset from {timer.queue_offset_before} to {timer.queue_offset_after}; "
            f"delivered up to {after}, from {before}"
        )
    for left in report.untouched:
        yield f"  unchanged: {left.path}: {left.why}"
    for note in report.notes:
        yield f"note: {note}"
    if report.status is CutStatus.CUT:
        yield "the previous files are kept: " + ", ".join(report.aside)
        yield (
            f"to undo this, run: lastwrite cut {store} --undo; once the store works, delete these "
            "files and lastwrite-cut.json"
        )
