"""``lastwrite fetch``: Pulsar topics from where their ledgers lie into an archive that can be
compacted.
"""

from __future__ import annotations

from typing import Annotated

import typer

from lastwrite.cli import options
from lastwrite.cli.output import Output, counted, in_words
from lastwrite.cli.problems import problem_lines
from lastwrite.pulsar.fetched import FetchedLedger, FetchedTopic, FetchReport


def fetch(
    context: typer.Context,
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE…",
            help="Folders: of a bucket's objects, of MapFiles, a bookie's ledger or journal directory; or "
            "persistent://… of a live cluster.",
        ),
    ],
    to: Annotated[
        str,
        options.option("--to ARCHIVE", "Where topic folders are made."),
    ],
    topic: Annotated[
        str | None,
        options.option("--topic", "persistent://tenant/namespace/name, or a name; default: all."),
    ] = None,
    metadata: Annotated[
        str | None,
        options.option(
            "--metadata PATH",
            "The topic's ledgers: the metadata store's node, or what pulsar-admin topics stats-internal or "
            "info-internal printed; a folder: of many topics.",
        ),
    ] = None,
    cursor: Annotated[
        str | None,
        options.option(
            "--cursor FILE", "The node of the cursor __compaction: how far it is compacted."
        ),
    ] = None,
    copy: Annotated[
        bool, options.option("--copy", "Copy a bucket's objects instead of linking them.")
    ] = False,
    recover: Annotated[
        bool,
        options.option(
            "--recover",
            "Take entries of an open ledger that no writer had confirmed, as its recovery would.",
        ),
    ] = False,
    config: options.Config = None,
    config_file: options.ConfigFile = None,
    json: options.Json = False,
) -> int:
    """Bring Pulsar topics into an archive: from offloaded ledgers, MapFiles, bookies' entry logs,
    or a live cluster.

    A topic becomes a folder ARCHIVE/tenant/namespace/persistent/name that plan, compact, read,
    inspect and dump take. Fetching again adds what is new.
    """
    import lastwrite

    output: Output = context.obj
    report = lastwrite.fetch(
        sources,
        to,
        topic=topic,
        metadata=metadata,
        cursor=cursor,
        copies=copy,
        recover=recover,
        config=options.settings(output, config, config_file),
        progress=output.progress(),
    )
    if output.as_json:
        output.document(report.to_dict())
    else:
        _show(output, report)
    return report.exit_status


def _show(output: Output, report: FetchReport) -> None:
    output.table(
        "topic | >ledger | >entries | >bytes | how | from",
        [row for topic in report.topics for row in _rows(topic)],
    )
    for topic in report.topics:
        if topic.horizon is not None:
            output.text([f"{topic.topic}: compacted up to {topic.horizon}"])
    output.text(
        problem_lines(
            [*report.problems, *(problem for topic in report.topics for problem in topic.problems)]
        )
    )


def _rows(topic: FetchedTopic) -> list[tuple[str, ...]]:
    return [
        (
            topic.topic,
            str(each.ledger),
            counted(each.entries),
            in_words(each.size_bytes),
            f"{each.how}{', compacted' if each.is_compacted else ''}{', open' if each.is_open else ''}"
            f"{f', {counted(lacking)} missing' if (lacking := _lacking(each)) and each.path else ''}",
            each.source,
        )
        for each in topic.ledgers
    ]


def _lacking(ledger: FetchedLedger) -> int:
    return sum(last - first + 1 for first, last in ledger.missing)
