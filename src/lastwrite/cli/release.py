"""``lastwrite release``: let the cleaner try partitions again that it has set aside."""

from __future__ import annotations

import typer

from lastwrite.cli.options import (
    JsonOption,
    PartitionOption,
    PathArgument,
    SystemOption,
    TopicOption,
)
from lastwrite.cli.output import Output


def release(
    context: typer.Context,
    path: PathArgument,
    system: SystemOption = None,
    topic: TopicOption = None,
    partition: PartitionOption = None,
    json: JsonOption = False,
) -> int:
    """Let the cleaner try partitions again that it has set aside.

    A partition whose round fails is set aside as uncleanable, with its reason (see inspect and
    plan), and tried again after a minute, then two, four, up to a day. Release it when you have
    seen to the reason: the next pass of "lastwrite clean" picks it like any other.
    """
    import lastwrite

    output: Output = context.obj
    released = lastwrite.release(path, system=system, topic=topic, partition=partition)
    if output.as_json:
        output.document(
            {
                "released": [
                    {"topic": name.topic, "partition": name.partition, **entry.to_dict()}
                    for name, entry in released.items()
                ]
            }
        )
    else:
        output.text(
            [f"released {name}: {entry.reason}" for name, entry in released.items()]
            or ["nothing is set aside"]
        )
    return 0
