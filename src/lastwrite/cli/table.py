"""``lastwrite table``: creates, updates or verifies a table of a topic's last writes."""

from __future__ import annotations

import itertools
from typing import Annotated

import typer
from msgspec import structs

from lastwrite.cli import options
from lastwrite.cli.clean import stops_by_signals
from lastwrite.cli.output import Output, format_size, quantity
from lastwrite.cli.problems import problem_lines
from lastwrite.errors import InvalidConfig, VerificationFailed
from lastwrite.model.attempts import describe_attempts
from lastwrite.reports.table_proof import TableProof
from lastwrite.reports.table_round import TableRound

EXAMPLES = r"""
lastwrite table /var/lib/kafka --topic orders --to /data/orders
lastwrite table s3://backup/kafka --topic orders --to s3://lake/orders --as delta
lastwrite table /data/kafka --topic orders --to shop.orders \
  --catalog http://catalog:8181 --value-format avro --value-schema order.avsc
"""


def table(
    context: typer.Context,
    path: Annotated[
        str,
        typer.Argument(metavar="PATH", help="A log root, a store, or an archive of any system."),
    ],
    to: Annotated[
        str | None,
        options.option("--to PLACE", "The table: a folder, an address, or a name in --catalog."),
    ] = None,
    verify: Annotated[
        str | None,
        options.option(
            "--verify PLACE", "Check that this table equals the topic, instead of updating it."
        ),
    ] = None,
    topic: Annotated[
        str | None, options.option("--topic NAME", "The topic.", options.SELECTION)
    ] = None,
    format: Annotated[
        str | None,
        options.option(
            "--as FORMAT", "iceberg, delta or parquet; default: the table's format, or iceberg."
        ),
    ] = None,
    catalog: Annotated[
        str | None,
        options.option(
            "--catalog URI",
            "Iceberg: a catalog, or its name in .pyiceberg.yaml; default: SQLite in the "
            "table's folder.",
        ),
    ] = None,
    buckets: Annotated[
        int | None,
        options.option(
            "--buckets N",
            "Number of buckets of a new table, a power of two; default: buckets of 128 MiB.",
        ),
    ] = None,
    headers: Annotated[
        bool | None,
        options.option(
            "--headers/--no-headers",
            "Write a column with the records' headers, or leave the column out.",
        ),
    ] = None,
    vectors: Annotated[
        bool,
        options.option(
            "--vectors",
            "Iceberg (v3), Delta: delete rows with deletion vectors from now on; fewer "
            "readers support them.",
        ),
    ] = False,
    follow: Annotated[
        bool,
        options.option("--follow", "Keep the table up to date until Ctrl-C.", options.FOLLOWING),
    ] = False,
    every: options.Every = None,
    anew: Annotated[
        bool, options.option("--anew", "Write the entire table again instead of updating it.")
    ] = False,
    memory: Annotated[
        str,
        options.option(
            "--memory SIZE",
            "Memory to use; data beyond it is written to scratch files.",
            options.SETTINGS,
        ),
    ] = "512m",
    system: options.System = None,
    metadata: options.AutomqMetadata = None,
    config: options.Config = None,
    config_file: options.ConfigFile = None,
    key_format: options.KeyFormat = "raw",
    value_format: options.ValueFormat = "raw",
    key_schema: options.KeySchema = None,
    value_schema: options.ValueSchema = None,
    key_message: options.KeyMessage = None,
    value_message: options.ValueMessage = None,
    schema_registry: options.SchemaRegistry = None,
    on_bad: Annotated[
        str,
        options.option(
            "--on-bad WORD",
            "Action if a value cannot be decoded: fail, null (write null and the reason), or "
            "aside (write the record to --bad-to).",
            options.DECODING,
        ),
    ] = "fail",
    bad_to: Annotated[
        str | None,
        options.option(
            "--bad-to DIR", "With --on-bad aside: the folder for the bad records.", options.DECODING
        ),
    ] = None,
    json: options.Json = False,
) -> int:
    """Create or update a table of the last write of each key.

    The table has a row for each key whose last write is not a delete. A run reads what was
    written since the last run and applies it in one commit, which records the offsets that the
    table corresponds to. An interrupted run leaves the old table or the new one. No other job is
    needed to keep the table small and fast to read.

    With --follow, this is repeated every 30 seconds, or --every SECONDS, while the log or the
    archive grows. Each update prints a line. SIGTERM and Ctrl-C end it after the current turn.

    With --verify, the table is compared with the topic up to its offsets, by a different method
    than the one that wrote it. Keys that differ are reported, with exit status 5.
    """
    import lastwrite

    output: Output = context.obj
    if (to is None) == (verify is None):
        raise InvalidConfig("give either --to or --verify", remedy="see lastwrite table --help")
    if verify is not None:
        proof = lastwrite.verify_table(
            path,
            verify,
            topic=topic,
            format=format,
            catalog=catalog,
            memory=memory,
            metadata=metadata,
            config=options.settings(output, config, config_file),
            progress=output.progress(),
        )
        if output.as_json:
            output.document(proof)
        else:
            output.text(_proof_lines(proof))
        return 0 if proof.is_proven else VerificationFailed.exit_status
    assert to is not None
    settings = options.settings(output, config, config_file)
    # options that the user did not give stay as in the last run
    given = options.decoding(context, is_given=True)
    # only the first update may recreate the table
    anews = itertools.chain([anew], itertools.repeat(False))
    # Only the first update shows its progress. With --follow, the later updates are short.
    progresses = itertools.chain([output.progress()], itertools.repeat(None))

    def turn() -> TableRound:
        return lastwrite.table_to(
            path,
            topic,
            to=to,
            format=format,
            catalog=catalog,
            buckets=buckets,
            headers=headers,
            vectors=vectors,
            anew=next(anews),
            memory=memory,
            system=system,
            metadata=metadata,
            config=settings,
            progress=next(progresses),
            **given,
        )

    named: set[str] = set()

    def print_round(report: TableRound) -> None:
        new = [each for each in report.notes if str(each) not in named]
        named.update(map(str, new))
        report = structs.replace(report, notes=new)
        if output.as_json:
            output.document(report)
        else:
            output.text(_lines(report))

    if not follow:
        if every is not None:
            raise InvalidConfig("--every needs --follow", remedy="add --follow, or remove --every")
        print_round(turn())
        return 0
    from lastwrite.cleaner.cache_keeper import CacheKeeper
    from lastwrite.cleaner.pauses import EVERY_S  # imported only if needed

    output.lines = True
    keeper = CacheKeeper(turn, EVERY_S if every is None else every, print_round, output.say)
    stops_by_signals(keeper)
    keeper.run()
    return 0


def _lines(report: TableRound) -> list[str]:
    offsets = ", ".join(f"{number}: {offset}" for number, offset in sorted(report.offsets.items()))
    lines = [
        f"{report.path}: {report.how}, {quantity(report.rows, 'row')} of {report.topic} "
        f"up to {offsets}",
        f"+{report.added:,} -{report.removed:,} rows, {quantity(report.files, 'file')}, "
        f"{format_size(report.bytes_written)} written, head {report.head}"
        f"{describe_attempts(report.attempts)}",
    ]
    if report.first_odd_time is not None:
        first = report.first_odd_time
        lines.append(
            f"{quantity(report.odd_times, 'row')} without _timestamp, because the record's time is "
            f"before the year 1 or after 9999; the first is {report.topic}-{first.partition}, "
            f"offset {first.offset}, {first.timestamp_ms} ms"
        )
    lines += problem_lines(report.notes)
    if report.untidy:
        lines.append(f"old files could not be removed; the next run retries: {report.untidy}")
    return lines


def _proof_lines(proof: TableProof) -> list[str]:
    offsets = ", ".join(f"{number}: {offset}" for number, offset in sorted(proof.offsets.items()))
    what = "place and value" if proof.has_values else "place in the log, not the decoded value"
    lines = [
        f"{proof.path}: {proof.proven:,} of {quantity(proof.rows, 'row')} proven to be last writes "
        f"of {proof.topic} up to {offsets}: by key, {what}; "
        f"{quantity(proof.records, 'record')} read"
    ]
    if proof.unproven:
        lines.append(
            f"{quantity(proof.unproven, 'row')} cannot be checked: the key was written again "
            "later, and a compaction removed the earlier record; update the table, then verify "
            "it again"
        )
    if not proof.is_state_right:
        lines.append("the rows or their checksum differ from those of the table's last commit")
    lines += problem_lines(proof.notes)
    lines += [
        f"{quantity(count, 'key')} with a difference: {kind}"
        for kind, count in proof.counts.items()
    ]
    lines += [
        f"  {each.key!r} ({each.kind}): the table has offset {each.row_offset}, the log "
        f"{each.log_offset}, partition {each.partition}"
        for each in proof.differences
    ]
    return lines
