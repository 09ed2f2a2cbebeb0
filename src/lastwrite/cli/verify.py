"""``lastwrite verify``: checks that a log is intact and, with BEFORE, that nothing was lost."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Annotated

import typer

from lastwrite.cli import options
from lastwrite.cli.output import Output, counted, format_size, in_time, quantity
from lastwrite.cli.problems import problem_lines
from lastwrite.pulsar.format.names import SCHEME
from lastwrite.pulsar.format.position import Position
from lastwrite.reports.verification import VerifyReport

EXAMPLES = """
lastwrite verify /var/lib/kafka --topic orders
lastwrite verify /backup/after /backup/before --now 1700000000000
"""


def verify(
    context: typer.Context,
    path: options.PathArgument,
    before: Annotated[
        str | None,
        typer.Argument(
            metavar="[BEFORE]", show_default=False, help="The same log before it was compacted."
        ),
    ] = None,
    system: options.System = None,
    metadata: options.AutomqMetadata = None,
    topic: options.Topics = None,
    partition: options.Partition = None,
    config: options.Config = None,
    config_file: options.ConfigFile = None,
    now: options.Now = None,
    drop_keyless: options.DropKeyless = False,
    memory: options.Memory = None,
    master: options.Master = options.DEFAULT_MASTER,
    conf: options.Conf = None,
    json: options.Json = False,
) -> int:
    """Check that a log is intact and that no record was lost.

    It checks structure, checksums and indexes. PATH is a Kafka log root or a partition in it, a
    RocketMQ store (with its commit log, consume queues and index files) or a part of one, or a
    Pulsar topic folder. With BEFORE, it also checks that only records that compaction may remove
    are gone.

    Give the same --config and --now as for the compaction, because they decide which deletes may
    be gone. After --like-broker on RocketMQ, add --config delete.retention.ms=0.
    """
    output: Output = context.obj
    from lastwrite.spark.session import start_ahead

    spark_settings = options.pairs("--conf", conf)
    if os.path.exists(path):
        # Start Spark early, so that it starts while the other modules are imported.
        start_ahead(master, spark_settings, output.say, options.system_at(path, system))
    import lastwrite

    report = lastwrite.verify(
        path,
        before=before,
        system=system,
        metadata=metadata,
        topic=topic,
        partition=partition,
        config=options.settings(output, config, config_file),
        now_ms=now,
        memory=memory,
        master=master,
        conf=spark_settings,
        progress=output.progress(),
        drop_keyless=drop_keyless,
    )
    if output.as_json:
        output.document(report)
        return report.exit_status
    _show(output, report)
    return report.exit_status


def _show(output: Output, report: VerifyReport) -> None:
    output.table(
        "partition | status | >segments | >batches | >records | >size | why",
        [
            (
                str(p.name),
                p.status,
                counted(p.segments),
                counted(p.batches),
                counted(p.records),
                format_size(p.bytes),
                p.reason,
            )
            for p in report.partitions
        ],
    )
    compared = [(p, p.comparison) for p in report.partitions if p.comparison is not None]
    if compared:
        output.text([""])
        output.table(
            "against | >before | >after | >superseded | >deletes due | >keyless | "
            ">aborted | >keys | >alive | >broken promises",
            [
                (
                    str(p.name),
                    counted(c.records_before),
                    counted(c.records_after),
                    counted(c.superseded),
                    counted(c.expired),
                    counted(c.keyless),
                    counted(c.aborted + c.markers),
                    counted(c.keys),
                    counted(c.keys_alive),
                    counted(c.violation_count),
                )
                for p, c in compared
            ],
        )
    output.text(_keyless_lines(report))
    if report.violations:
        output.text(["", *(f"broken: {violation}" for violation in report.violations)])
    beside = [] if report.store is None else report.store.problems
    inside = [problem for partition in report.partitions for problem in partition.problems]
    output.text(problem_lines([*beside, *inside]))
    advice = [line for partition in report.partitions for line in partition.advice]
    if advice:
        output.text(["", *(f"advice: {line}" for line in advice)])
    checked = report.checked
    amount = f"{_many(checked.records, 'record')} in {_many(checked.files, 'file')}"
    output.text(
        [
            "",
            f"{_verdict(report)}; {amount}, {format_size(checked.bytes)}, checked "
            f"in {in_time(report.seconds)}",
        ]
    )


def _keyless_lines(report: VerifyReport) -> Iterator[str]:
    """Lines with the number of removed records without a key, for each such partition."""
    for partition in report.partitions:
        found = partition.comparison
        if found is not None and found.keyless:
            first: object = found.first_keyless_offset
            if partition.topic.startswith(SCHEME):
                first = Position.of(found.first_keyless_offset or 0)
            records = quantity(found.keyless, "record")
            yield ""
            yield f"keyless: {partition.name}: {records} without a key gone, the first at {first}"


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def _verdict(report: VerifyReport) -> str:
    """The last sentence of the report. It always mentions dropped records without a key."""
    is_keyless = any(
        one.comparison is not None and one.comparison.keyless for one in report.partitions
    )
    if report.violations and all(violation.promise == "keyless" for violation in report.violations):
        option = report.keyless_option
        return f"Records without a key are gone: keep both logs, or allow this with {option}"
    if report.exit_status == 0 and not report.checked.records:
        return "Nothing is wrong, and the log has no records"
    if report.exit_status == 0 and is_keyless:
        return "Everything is correct, except that records without a key are gone"
    return _VERDICTS[report.exit_status]


_VERDICTS = {
    0: "Everything is correct",
    1: "Not everything could be checked",
    3: "Something is damaged",
    5: "A promise of compaction is broken: keep both logs, and report it",
}
