"""``lastwrite schema``: prints the JSON Schema of the documents of ``--json``."""

from __future__ import annotations

from typing import Annotated

import typer

from lastwrite.cli.documents import documents
from lastwrite.cli.output import Output
from lastwrite.errors import InvalidConfig
from lastwrite.reports import document

EXAMPLES = """
lastwrite schema
lastwrite schema inspect
"""


def schema(
    context: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="The command; without it, the names are listed."),
    ] = None,
) -> int:
    """Print the JSON Schema of what a command prints.

    It describes the documents of --json. Without NAME, the names are listed.
    """
    output: Output = context.obj
    known = documents()
    if name is None:
        output.text(known)
    elif name in known:
        output.document(document.schema(known[name]))
    else:
        raise InvalidConfig(
            f"no command prints a document named {name}", remedy=f"give one of: {', '.join(known)}"
        )
    return 0
