"""``lastwrite read``: what a consumer would get from a queue of a RocketMQ compaction topic."""

from __future__ import annotations

import json as json_
from typing import Annotated

import typer

from lastwrite.cli.dump import as_text
from lastwrite.cli.options import JsonOption, SystemOption
from lastwrite.cli.output import Output


def read(
    context: typer.Context,
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="A store, or a queue's folder in one.", show_default=False)
    ],
    topic: Annotated[str | None, typer.Option("--topic", metavar="NAME", help="The topic.")] = None,
    queue: Annotated[
        int | None, typer.Option("--queue", metavar="NUMBER", min=0, help="The queue; default: the topic's only one.")
    ] = None,
    offset: Annotated[int, typer.Option("--offset", metavar="N", min=0, help="Where the first pull asks.")] = 0,
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", min=0, help="At most so many messages.", show_default=False)
    ] = None,
    pull: Annotated[bool, typer.Option("--pull", help="One answer of the broker, as large as it makes them.")] = False,
    system: SystemOption = None,
    json: JsonOption = False,
) -> int:
    """Print what a consumer would get from a queue of a RocketMQ compaction topic.

    With --json one object a message, and last one that says how it ended: status, code, next_offset. Without, that
    goes to standard error.
    """
    import lastwrite

    output: Output = context.obj
    reading = lastwrite.read(
        path, topic=topic, queue=queue, offset=offset, limit=limit, one_pull=pull, system=system
    )  # fmt: skip
    encode = json_.JSONEncoder(separators=(", ", ": "), check_circular=False).encode
    try:
        for row in reading:
            if not output.line(encode(row) if output.as_json else as_text(row)):
                break
    finally:
        for note in reading.notes:
            output.say(f"lastwrite: {note}")
        end = reading.summary()
        if output.as_json:
            output.line(encode(end))
        else:
            output.say(
                f"{end['status']}: {end['messages']} messages, next offset {end['next_offset']} (minimum "
                f"{end['min_offset']}, maximum {end['max_offset']})"
            )
    return 0
