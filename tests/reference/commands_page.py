"""docs/reference/commands.md: the commands with their options and examples, from the program."""

from __future__ import annotations

import inspect
import re
import textwrap
from pathlib import Path
from typing import Any

from lastwrite.cli.app import build_app
from lastwrite.cli.options import GROUPS, OUTPUT
from lastwrite.cli.output import Output
from tests.reference.page import escaped

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "commands.md"
_HEAD = """# Commands

`lastwrite COMMAND --help` prints the same text. A guide explains [the command
line](../guide/command-line.md): what a path can be, and how `dump` selects and formats records. The
[JSON documents](documents.md) and the [exit status](errors.md) have pages of their own.

This page is generated from the code: `python -m tests.reference --write`.

| Command | Purpose |
|---|---|
"""


def current_commands_page() -> str:
    """The page as it should be."""
    app = build_app(Output())
    sections = [_section(name, command) for name, command in app.commands.items()]
    rows = [
        f"| [`{name}`](#{name}) | {escaped(_paragraphs(command)[0])} |"
        for name, command in app.commands.items()
    ]
    return _HEAD + "\n".join(rows) + "\n\n" + "\n".join(sections)


def _section(name: str, command: Any) -> str:
    context = command.make_context(name, [], resilient_parsing=True)
    parts = [f"## {name}", *(textwrap.fill(escaped(each), 98) for each in _paragraphs(command))]
    arguments = [_argument(each) for each in command.params if each.param_type_name == "argument"]
    usage = " ".join(["lastwrite", name, *(argument for argument, _ in arguments), "[OPTIONS]"])
    parts.append(f"```text\n{usage}\n```")
    if arguments:
        rows = [f"| `{argument}` | {help} |" for argument, help in arguments]
        parts.append("\n".join(["| Argument | Meaning |", "|---|---|", *rows]))
    groups: dict[str, list[str]] = {group: [] for group in GROUPS}
    for each in command.params:
        record = each.get_help_record(context)
        if each.param_type_name != "argument" and record is not None:
            group = getattr(each, "rich_help_panel", None) or OUTPUT
            groups[group].append(f"| `{_usage(record[0])}` | {escaped(_plain(record[1]))} |")
    for group, rows in groups.items():
        if rows:
            parts.append("\n".join([f"| {group} | Meaning |", "|---|---|", *rows]))
    parts.append(f"```sh\n{(command.epilog or '').strip()}\n```")
    return "\n\n".join(parts) + "\n"


def _argument(parameter: Any) -> tuple[str, str]:
    metavar = parameter.metavar or parameter.name.upper()
    return metavar if parameter.required else f"[{metavar}]", escaped(parameter.help or "")


def _plain(help: str) -> str:
    """The help without a range; the default is part of the last sentence."""
    text = re.sub(r"  \[[^:]*\]$", "", help)
    return re.sub(r"\.?  \[(default: .*)\]$", r"; \1.", text)


def _usage(names: str) -> str:
    return names.replace("|", "\\|")


def _paragraphs(command: Any) -> list[str]:
    return [" ".join(each.split()) for each in inspect.cleandoc(command.help).split("\n\n")]
