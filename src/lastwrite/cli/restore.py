"""``lastwrite restore``: the old part of RocketMQ queues, from a live broker."""

from __future__ import annotations

from typing import Annotated

import typer

from lastwrite.cli import options
from lastwrite.cli.output import Output, counted
from lastwrite.cli.plan import show_compaction


def restore(
    context: typer.Context,
    path: Annotated[
        str,
        typer.Argument(
            metavar="STORE",
            help="A store (storePathRootDir) whose broker is stopped.",
        ),
    ],
    name_server: Annotated[
        str,
        options.option("--from HOST:PORT", "The live cluster's name server."),
    ],
    topic: Annotated[
        str,
        options.option("--topic NAME", "The topic to restore."),
    ],
    partition: options.Partition = None,
    broker: Annotated[
        str | None,
        options.option(
            "--broker NAME", "Whose queues these are, where several brokers have the topic."
        ),
    ] = None,
    config: options.Config = None,
    config_file: options.ConfigFile = None,
    now: options.Now = None,
    unclean: Annotated[
        bool, options.option("--unclean", "Go on though the store's own broker was killed.")
    ] = False,
    trust_broker: Annotated[
        bool,
        options.option(
            "--trust-broker", "Pull also from a broker that may skip messages since its restart."
        ),
    ] = False,
    timeout: Annotated[
        float,
        options.option("--timeout SECONDS", "Of every single request.", min=0.001),
    ] = 30.0,
    memory: options.Memory = None,
    master: options.Master = options.DEFAULT_MASTER,
    conf: options.Conf = None,
    json: options.Json = False,
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
        config=options.settings(output, config, config_file),
        now_ms=now,
        unclean=unclean,
        trust_broker=trust_broker,
        timeout=timeout,
        memory=memory,
        master=master,
        conf=options.pairs("--conf", conf),
        progress=output.progress(),
    )
    if output.as_json:
        output.document(done)
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
