"""``lastwrite verify``: structure, checksums, indexes; with BEFORE, that nothing was lost."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from lastwrite.cli.inspect import problem_lines
from lastwrite.cli.options import (
    DEFAULT_MASTER,
    ConfigFileOption,
    ConfigOption,
    ConfOption,
    JsonOption,
    MasterOption,
    MemoryOption,
    NowOption,
    PartitionOption,
    PathArgument,
    SystemOption,
    TopicOption,
    pairs,
    settings,
)
from lastwrite.cli.output import Output, counted, in_time, in_words
from lastwrite.model.verification import VerifyReport


def verify(
    context: typer.Context,
    path: PathArgument,
    before: Annotated[
        str | None,
        typer.Argument(
            metavar="[BEFORE]", help="The same log before it was compacted.", show_default=False
        ),
    ] = None,
    system: SystemOption = None,
    topic: TopicOption = None,
    partition: PartitionOption = None,
    config: ConfigOption = None,
    config_file: ConfigFileOption = None,
    now: NowOption = None,
    memory: MemoryOption = None,
    master: MasterOption = DEFAULT_MASTER,
    conf: ConfOption = None,
    json: JsonOption = False,
) -> int:
    """Prove that a log is whole, and that nothing was lost.

    Structure, checksums and indexes of PATH; with BEFORE also that only what compaction may remove is gone.
    """
    from lastwrite.pipeline.session import start_ahead

    spark_settings = pairs("--conf", conf)
    if os.path.exists(path):
        start_ahead(master, spark_settings)  # it comes up while all else is imported
    import lastwrite

    output: Output = context.obj
    report = lastwrite.verify(
        path,
        before=before,
        system=system,
        topic=topic,
        partition=partition,
        config=settings(config, config_file),
        now_ms=now,
        memory=memory,
        master=master,
        conf=spark_settings,
        progress=output.progress(),
    )
    if output.as_json:
        output.document(report.to_dict())
        return report.exit_status
    _show(output, report)
    return report.exit_status


def _show(output: Output, report: VerifyReport) -> None:
    output.table(
        ("partition", "status", "segments", "batches", "records", "size", "why"),
        [
            (
                str(p.name),
                p.status,
                counted(p.segments),
                counted(p.batches),
                counted(p.records),
                in_words(p.bytes),
                p.reason,
            )
            for p in report.partitions
        ],
        right=("segments", "batches", "records", "size"),
    )
    compared = [(p, p.comparison) for p in report.partitions if p.comparison is not None]
    if compared:
        output.text([""])
        output.table(
            (
                "against",
                "before",
                "after",
                "superseded",
                "deletes due",
                "keyless",
                "aborted",
                "keys",
                "alive",
                "broken promises",
            ),
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
            right=(
                "before",
                "after",
                "superseded",
                "deletes due",
                "keyless",
                "aborted",
                "keys",
                "alive",
                "broken promises",
            ),
        )
    if report.violations:
        output.text(["", *(f"broken: {violation}" for violation in report.violations)])
    output.text(
        problem_lines(
            [problem for partition in report.partitions for problem in partition.problems]
        )
    )
    advice = [line for partition in report.partitions for line in partition.advice]
    if advice:
        output.text(["", *(f"advice: {line}" for line in advice)])
    output.text(["", f"{_VERDICTS[report.exit_status]}, in {in_time(report.seconds)}"])


_VERDICTS = {
    0: "All is as it should be",
    1: "Not everything could be checked",
    3: "Something is damaged",
    5: "A promise of compaction is broken: keep both logs, and report it",
}
