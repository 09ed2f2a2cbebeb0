"""``lastwrite release``: releases partitions that the cleaner has quarantined."""

from __future__ import annotations

from typing import Annotated, ClassVar

import typer

from lastwrite.cli import options
from lastwrite.cli.output import Output
from lastwrite.model.log import TopicPartition
from lastwrite.reports.compaction import Quarantined
from lastwrite.reports.document import SPREAD, UNPRINTED, Document, figure


class Released(Document):
    """A released partition, and the reason why the cleaner had quarantined it."""

    name: Annotated[TopicPartition, UNPRINTED]
    topic: ClassVar[str] = figure(lambda self: self.name.topic)
    partition: ClassVar[int] = figure(lambda self: self.name.partition)
    entry: Annotated[Quarantined, SPREAD]


class ReleaseReport(Document):
    """The partitions that ``release`` released."""

    released: list[Released]


EXAMPLES = """
lastwrite release /var/lib/kafka
lastwrite release /var/lib/kafka --topic orders --partition 0
"""


def release(
    context: typer.Context,
    path: options.PathArgument,
    system: options.System = None,
    topic: options.Topics = None,
    partition: options.Partition = None,
    config: options.Config = None,
    config_file: options.ConfigFile = None,
    json: options.Json = False,
) -> int:
    """Release partitions that the cleaner has set aside.

    A partition whose round fails is set aside as uncleanable, with the reason; inspect and plan
    show it. The cleaner tries it again after one minute, then two, four, and so on up to a day.
    Release the partition once the cause is removed: the next pass of "lastwrite clean" treats it
    like any other.
    """
    import lastwrite

    output: Output = context.obj
    released = lastwrite.release(
        path,
        system=system,
        topic=topic,
        partition=partition,
        config=options.settings(output, config, config_file),
    )
    if output.as_json:
        report = ReleaseReport([Released(name, entry) for name, entry in released.items()])
        output.document(report)
    else:
        output.text(
            [f"released {name}: {entry.reason}" for name, entry in released.items()]
            or ["no partition is set aside"]
        )
    return 0
