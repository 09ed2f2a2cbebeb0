"""``lastwrite schema``: what the commands print under ``--json``, as JSON Schema."""

from __future__ import annotations

from typing import Annotated

import typer

from lastwrite.cli.documents import documents
from lastwrite.cli.output import Output
from lastwrite.errors import InvalidConfig
from lastwrite.reports import document


def schema(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]")] = None,
) -> int:
    """Print the JSON Schema of the document that command NAME prints; without NAME list the names.

    \b
      lastwrite schema
      lastwrite schema inspect
    """
    output: Output = context.obj
    known = documents()
    if name is None:
        output.text(known)
    elif name in known:
        output.document(document.schema(known[name]))
    else:
        raise InvalidConfig(
            f"no command prints a document {name}", remedy=f"one of {', '.join(known)}"
        )
    return 0
