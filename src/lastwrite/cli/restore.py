"""``lastwrite restore``: the old part of RocketMQ queues, from a live broker."""

from __future__ import annotations

from typing import Annotated

import typer

from lastwrite.cli.options import (
    DEFAULT_MASTER,
    ConfigFileOption,
    ConfigOption,
    ConfOption,
    JsonOption,
    MasterOption,
    MemoryOption,
    NowOption,
    PartitionOption,
    pairs,
    settings,
)
from lastwrite.cli.output import Output, counted
from lastwrite.cli.plan import show_compaction


def restore(
    context: typer.Context,
    path: Annotated[
        str,
        typer.Argument(
            metavar="STORE",
            help="A store (storePathRootDir) whose broker is stopped.",
            show_default=False,
        ),
    ],
    name_server: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="HOST:PORT",
            help="The live cluster's name server.",
            show_default=False,
        ),
    ],
    topic: Annotated[
        str,
        typer.Option("--topic", metavar="NAME", help="The topic to restore.", show_default=False),
    ],
    partition: PartitionOption = None,
    broker: Annotated[
        str | None,
        typer.Option(
            "--broker",
            metavar="NAME",
            help="Whose queues these are, where several brokers have the topic.",
        ),
    ] = None,
    config: ConfigOption = None,
    config_file: ConfigFileOption = None,
    now: NowOption = None,
    unclean: Annotated[
        bool, typer.Option("--unclean", help="Go on though the store's own broker was killed.")
    ] = False,
    trust_broker: Annotated[
        bool,
        typer.Option(
            "--trust-broker",
            help="Pull also from a broker that may skip messages since its restart.",
        ),
    ] = False,
    timeout: Annotated[
        float,
        typer.Option("--timeout", metavar="SECONDS", min=0.001, help="Of every single request."),
    ] = 30.0,
    memory: MemoryOption = None,
    master: MasterOption = DEFAULT_MASTER,
    conf: ConfOption = None,
    json: JsonOption = False,
) -> int:
    """Put before a store's queues what a live RocketMQ broker still has of them, then compact them.

    For a store whose commit log came back without its oldest files: what only the compaction log
    had is pulled from another broker, from offset 0 up to where the store begins. Run "lastwrite
    dispatch" first.
    """
    import lastwrite

    output: Output = context.obj
    done = lastwrite.restore(
        path,
        name_server,
        topic,
        partition=partition,
        broker=broker,
        config=settings(config, config_file),
        now_ms=now,
        unclean=unclean,
        trust_broker=trust_broker,
        timeout=timeout,
        memory=memory,
        master=master,
        conf=pairs("--conf", conf),
        progress=output.progress(),
    )
    if output.as_json:
        output.document(done.to_dict())
        return done.exit_status
    output.text(
        f"{queue.name}: {counted(queue.pulled)} messages from {queue.broker} below offset {queue.pulled_below}, "
        f"{counted(queue.kept)} of the store after them"
        for queue in done.queues
    )
    for note in done.notes:
        output.say(f"lastwrite: {note}")
    if done.compaction is not None:
        show_compaction(output, done.compaction)
    return done.exit_status
