"""``lastwrite dispatch``: builds queues, index and compaction logs from a RocketMQ commit log."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Annotated

import typer

from lastwrite.cli import options
from lastwrite.cli.output import Output, counted, format_size, in_time, quantity
from lastwrite.cli.problems import problem_lines, untouched_lines
from lastwrite.rocketmq.reports import DispatchReport

EXAMPLES = """
lastwrite dispatch /var/lib/rocketmq/store
lastwrite dispatch /restored/store --whole-log --unclean
"""


def dispatch(
    context: typer.Context,
    store: Annotated[
        str,
        typer.Argument(
            metavar="STORE", show_default=False, help="The storePathRootDir of a RocketMQ broker."
        ),
    ],
    whole_log: Annotated[
        bool,
        options.option(
            "--whole-log",
            "Read the commit log from its beginning. Use this if single queues were lost.",
            options.SELECTION,
        ),
    ] = False,
    unclean: Annotated[
        bool,
        options.option("--unclean", "Continue although the broker was killed.", options.SETTINGS),
    ] = False,
    config: options.Config = None,
    config_file: options.ConfigFile = None,
    now: options.Now = None,
    memory: options.Memory = None,
    master: options.Master = options.DEFAULT_MASTER,
    conf: options.Conf = None,
    json: options.Json = False,
) -> int:
    """Build RocketMQ queues and indexes from the commit log.

    The consume queues, the index and the compaction logs are built as the broker would build
    them, byte for byte. Existing files are kept and continued. A store that a broker has open is
    refused.
    """
    output: Output = context.obj
    from lastwrite.spark.session import start_ahead

    spark_settings = options.pairs("--conf", conf)
    if os.path.exists(store):
        # Start Spark early, so that it starts while the other modules are imported.
        start_ahead(master, spark_settings, output.say)
    import lastwrite

    report = lastwrite.dispatch(
        store,
        config=options.settings(output, config, config_file),
        whole_log=whole_log,
        unclean=unclean,
        now_ms=now,
        memory=memory,
        master=master,
        conf=spark_settings,
        progress=output.progress(),
    )
    if output.as_json:
        output.document(report)
    else:
        _show(output, report)
    return report.exit_status


def _show(output: Output, report: DispatchReport) -> None:
    output.table(
        "tree | queue | status | >units added | >next offset | >files",
        [
            (
                str(queue.kind),
                f"{queue.topic}-{queue.queue}",
                str(queue.status),
                counted(queue.units_added),
                counted(queue.next_offset),
                counted(queue.files_written),
            )
            for queue in report.queues
        ],
    )
    output.text(["", *_summary(report)])
    output.text(problem_lines(report.problems))


def _summary(report: DispatchReport) -> Iterator[str]:
    read = (
        f"{format_size(report.bytes_read)} of the commit log"
        if report.bytes_read
        else "nothing new in the commit log"
    )
    records = quantity(report.records, "record")
    yield f"{read}, from {report.read_from} to {report.log_end}: {records}"
    if report.index_files:
        entries = quantity(report.index_entries, "entry")
        yield f"index: {entries}, in {', '.join(report.index_files)}"
    for count, what in (
        (report.total("records_passed"), "records that were already dispatched"),
        (report.total("records_keyless"), "records without a key, which compaction logs omit"),
    ):
        if count:
            yield f"skipped: {counted(count)} {what}"
    yield from untouched_lines(report.untouched)
    yield f"wrote files of {format_size(report.bytes_written)}, in {in_time(report.seconds)}"
