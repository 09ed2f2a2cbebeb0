"""``lastwrite serve``: topics as they lie, for any client of Kafka."""

from __future__ import annotations

import signal
from typing import Annotated

import typer

from lastwrite.cli import options
from lastwrite.cli.output import Output


def serve(
    context: typer.Context,
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="ADDRESS…", help="Log directories, stores, topic folders, archives."
        ),
    ],
    topic: options.Topics = None,
    listen: Annotated[
        str, options.option("--listen HOST:PORT", "Where to answer; port 0: a free one.")
    ] = "127.0.0.1:9092",
    advertise: Annotated[
        str | None,
        options.option("--advertise HOST:PORT", "What clients dial, where it is another address."),
    ] = None,
    is_open: Annotated[
        bool,
        options.option(
            "--open", "Listen beyond this machine without TLS and users: let anybody read."
        ),
    ] = False,
    users: Annotated[
        str | None,
        options.option(
            "--users FILE", "Who may read what, as lastwrite users writes it; default: anybody."
        ),
    ] = None,
    state: Annotated[
        str | None,
        options.option(
            "--state DIR", "For groups' positions; default: one below $XDG_STATE_HOME/lastwrite."
        ),
    ] = None,
    cache: Annotated[
        str | None,
        options.option("--cache SIZE", "Of a bucket's bytes in memory; default: 128m."),
    ] = None,
    is_compacted: Annotated[
        bool, options.option("--compacted", "Serve what nobody compacted as if somebody had.")
    ] = False,
    copies: Annotated[
        str | None,
        options.option("--copies SIZE", "Of copies that are made to be served; default: 10g."),
    ] = None,
    compression: Annotated[
        str,
        options.option("--compression CODEC", "Of topics of other systems: none or lz4."),
    ] = "none",
    metrics_port: options.MetricsPort = None,
    metrics_host: Annotated[
        str, options.option("--metrics-host HOST", "The address to answer on.")
    ] = "127.0.0.1",
    config: options.Config = None,
    config_file: options.ConfigFile = None,
    metadata: options.Metadata = None,
    json: options.Json = False,
) -> int:
    """Serve topics to any client of Kafka: a stopped broker's disk, an archive, a RocketMQ store,
    a Pulsar topic.

    Clients see one broker that leads all partitions. They get the stored bytes, with offsets,
    transactions and timestamps as they are, and what is added to a topic as it comes; rounds,
    fetches and retention may go on meanwhile. Writing is refused.

    Topics of RocketMQ and Pulsar are made Kafka's when a client first asks for one, in --state;
    with --compacted so is a compacted copy of a topic that nobody compacted, in front of its tail.

    Consumer groups work, and their positions are kept in --state; those that "lastwrite fetch"
    brought with an archive are where they start.

    With --users clients show who they are (SASL's PLAIN and SCRAM, or a certificate), and may what
    the file says; TLS is by --config ssl.certificate.location=FILE, ssl.key.location=FILE. Without
    both the server answers this machine alone, but for --open. It ends with Ctrl-C or SIGTERM.
    """
    import lastwrite

    output: Output = context.obj
    output.lines = True
    serving = lastwrite.serve(
        paths,
        topic=topic,
        listen=listen,
        advertise=advertise,
        users=users,
        is_open=is_open,
        state=state,
        cache=cache,
        copies=copies,
        compression=compression,
        is_compacted=is_compacted,
        metrics_port=metrics_port,
        metrics_host=metrics_host,
        config=options.settings(output, config, config_file),
        metadata=metadata,
        tell=output.say,
    )
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: serving.close())
    if output.as_json:
        output.document({"address": serving.address, "topics": serving.topics})
    else:
        some = ", ".join(serving.topics[:10]) + (", …" if len(serving.topics) > 10 else "")
        output.text([f"serving {len(serving.topics):,} topics at {serving.address}: {some}"])
    serving.run()
    return 0
