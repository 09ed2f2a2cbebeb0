"""``lastwrite sweep``: free an archive of what counts no more."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from lastwrite.cli import options
from lastwrite.cli.output import Output, in_words
from lastwrite.errors import InvalidConfig
from lastwrite.model.attempts import attempts_in_words
from lastwrite.reports.sweeping import SweptPartition

_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def sweep(
    context: typer.Context,
    path: Annotated[
        str,
        typer.Argument(
            metavar="ADDRESS", help="An archive, a partition of it, or any folder between."
        ),
    ],
    older_than: Annotated[
        str,
        options.option(
            "--older-than TIME", "Of rounds that were last heard of so long ago: 90m, 24h, 2d."
        ),
    ] = "24h",
    everything: Annotated[
        bool,
        options.option("--all", "List all objects, too, for those that no journal tells of."),
    ] = False,
    dry_run: Annotated[
        bool, options.option("--dry-run", "Change nothing; say what would be removed.")
    ] = False,
    config: options.Config = None,
    config_file: options.ConfigFile = None,
    json: options.Json = False,
) -> int:
    """Remove from an archive what rounds left that ended without a commit, and what was replaced.

    What a manifest names is never removed. Objects that a round has replaced stay an hour for those
    who read by the manifest before; the next round removes them, or a sweep does. A round that died
    leaves its objects, which a sweep finds by the round's journal, a day later. Nothing is removed
    by age alone: where such a round could still commit, the manifest is replaced first, by one that
    says the same.
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
        lines.append(f"{verb} {in_words(report.bytes)} in {report.objects} objects")
        output.text(lines)
    if any(each.is_damaged for each in report.partitions):
        return 3
    return 1 if any(each.reason for each in report.partitions) else 0


def _line(swept: SweptPartition) -> str:
    if swept.reason:
        return f"{swept.address}: not swept: {swept.reason}"
    waits = "; more waits for a round that runs" if swept.is_waiting else ""
    words = f"{swept.objects} objects, {in_words(swept.bytes)}, of {swept.rounds} dead rounds"
    return f"{swept.address}: {words}{waits}{attempts_in_words(swept.attempts)}"


def _duration_ms(text: str) -> int:
    """
    Raises:
        InvalidConfig: it is no number with a unit.
    """
    found = re.fullmatch(r"(\d{1,9})([smhd])", text)
    if found is None:
        raise InvalidConfig(
            f"--older-than {text!r} is no time", remedy="write a number and s, m, h or d, as 24h"
        )
    return int(found[1]) * _UNITS_MS[found[2]]
