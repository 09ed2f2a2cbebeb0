"""``lastwrite verify``: structure, checksums, indexes; with BEFORE, that nothing was lost."""

from __future__ import annotations

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
from lastwrite.cli.output import Output, counted, in_time


def verify(
    context: typer.Context,
    path: PathArgument,
    before: Annotated[
        str | None,
        typer.Argument(metavar="[BEFORE]", help="The same log before it was compacted.", show_default=False),
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
    import lastwrite

    output: Output = context.obj
    report = lastwrite.verify(
        path, before=before, system=system, topic=topic, partition=partition, config=settings(config, config_file),
        now_ms=now, memory=memory, master=master, conf=pairs("--conf", conf), progress=output.progress(),
    )  # fmt: skip
    if output.as_json:
        output.document(report.to_dict())
        return report.exit_status
    output.table(
        ("partition", "status", "segments", "batches", "records", "what"),
        [
            (
                f"{p.topic}-{p.partition}", p.status, counted(p.segments), counted(p.batches), counted(p.records),
                p.reason,
            )
            for p in report.partitions
        ],
        right=("segments", "batches", "records"),
    )  # fmt: skip
    output.text(problem_lines([problem for partition_ in report.partitions for problem in partition_.problems]))
    verdict = {0: "verified", 3: "DAMAGED", 5: "VERIFICATION FAILED"}.get(report.exit_status, "FAILED")
    output.text(["", f"{verdict} in {in_time(report.seconds)}"])
    return report.exit_status
