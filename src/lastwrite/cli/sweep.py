"""``lastwrite sweep``: removes unused objects from an archive."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from lastwrite.cli import options
from lastwrite.cli.output import Output, format_size, quantity
from lastwrite.errors import InvalidConfig
from lastwrite.model.attempts import describe_attempts
from lastwrite.reports.sweeping import SweptPartition

_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


EXAMPLES = """
lastwrite sweep s3://backup/cluster1 --dry-run
lastwrite sweep /archive --older-than 2d --all
"""


def sweep(
    context: typer.Context,
    path: Annotated[
        str,
        typer.Argument(
            metavar="ADDRESS", help="An archive, a partition of it, or a folder in between."
        ),
    ],
    older_than: Annotated[
        str,
        options.option(
            "--older-than TIME",
            "Remove objects of rounds that showed no activity for this long: 90m, 24h, 2d.",
            options.SELECTION,
        ),
    ] = "24h",
    everything: Annotated[
        bool,
        options.option(
            "--all",
            "Also list all objects, to find objects that no journal lists.",
            options.SELECTION,
        ),
    ] = False,
    dry_run: Annotated[
        bool, options.option("--dry-run", "Change nothing; print what would be removed.")
    ] = False,
    config: options.Config = None,
    config_file: options.ConfigFile = None,
    json: options.Json = False,
) -> int:
    """Remove unused objects from an archive.

    Unused are the objects of rounds that ended without a commit, and objects that later rounds
    replaced. An object that a manifest names is never removed.

    Replaced objects stay for an hour, for readers that use the earlier manifest. The next round
    or a sweep removes them. A sweep finds the objects of an interrupted round by the round's
    journal, a day later. Age alone is never a reason: if an interrupted round could still commit,
    its commit is prevented first, by replacing the manifest with an equal one.
    """
    import lastwrite

    output: Output = context.obj
    report = lastwrite.sweep(
        path,
        older_than_ms=_duration_ms(older_than),
        everything=everything,
        dry_run=dry_run,
        config=options.settings(output, config, config_file),
    )
    if output.as_json:
        output.document(report)
    else:
        lines = [_line(each) for each in report.partitions]
        verb = "would free" if dry_run else "freed"
        lines.append(f"{verb} {format_size(report.bytes)} in {quantity(report.objects, 'object')}")
        output.text(lines)
    if any(each.is_damaged for each in report.partitions):
        return 3
    return 1 if any(each.reason for each in report.partitions) else 0


def _line(swept: SweptPartition) -> str:
    if swept.reason:
        return f"{swept.address}: not swept: {swept.reason}"
    waits = "; the rest waits for a running round" if swept.is_waiting else ""
    words = (
        f"{quantity(swept.objects, 'object')}, {format_size(swept.bytes)}, of "
        f"{quantity(swept.rounds, 'interrupted round')}"
    )
    return f"{swept.address}: {words}{waits}{describe_attempts(swept.attempts)}"


def _duration_ms(text: str) -> int:
    """Parse a duration such as ``7d``, in milliseconds.

    Raises:
        InvalidConfig: the text is not a number with a unit.
    """
    found = re.fullmatch(r"(\d{1,9})([smhd])", text)
    if found is None:
        raise InvalidConfig(
            f"--older-than {text!r} is not a duration",
            remedy="write a number and a unit (s, m, h or d), such as 24h",
        )
    return int(found[1]) * _UNITS_MS[found[2]]
