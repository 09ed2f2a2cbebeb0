"""``lastwrite groups``: shows the committed offsets and the lag of consumer groups."""

from __future__ import annotations

from typing import Annotated

import typer

from lastwrite.cli import options
from lastwrite.cli.output import Output, counted, moment

EXAMPLES = """
lastwrite groups kafka://localhost:9092 --group billing
lastwrite groups s3://backup/cluster1 --topic 'orders-*' --json
"""


def groups(
    context: typer.Context,
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="ADDRESS…",
            help="Archives, log directories, --state folders of serve, or a live cluster, "
            "kafka://HOST:PORT.",
        ),
    ],
    group: Annotated[
        list[str] | None,
        options.option("--group NAME", "Only this group; may be repeated.", options.SELECTION),
    ] = None,
    topic: options.Topics = None,
    config: options.Config = None,
    config_file: options.ConfigFile = None,
    json: options.Json = False,
) -> int:
    """Show the offsets and the lag of Kafka consumer groups.

    Archives contain the committed offsets that "lastwrite fetch" stored. Log directories and the
    --state of "lastwrite serve" contain them in __consumer_offsets. To see the lag for a state,
    also give the addresses that are served. Nothing is changed.
    """
    import lastwrite

    output: Output = context.obj
    report = lastwrite.groups(
        paths,
        group=group,
        topic=topic,
        config=options.settings(output, config, config_file),
    )
    if output.as_json:
        output.document(report)
        return report.exit_status
    output.table(
        "group | partition | >position | >end | >lag | committed | metadata",
        [
            (
                each.group,
                f"{each.topic}-{each.partition}",
                counted(each.position),
                "" if each.end_offset is None else counted(each.end_offset),
                "" if each.lag is None else counted(each.lag),
                "" if each.committed_ms is None else moment(each.committed_ms),
                each.metadata,
            )
            for each in report.positions
        ],
    )
    for unread in report.unread:
        output.say(f"lastwrite: {unread.message}")
    return report.exit_status
