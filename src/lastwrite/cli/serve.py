"""``lastwrite serve``: serves stored topics to Kafka clients."""

from __future__ import annotations

import signal
from typing import Annotated

import typer

from lastwrite.cli import options
from lastwrite.cli.output import Output, quantity

EXAMPLES = r"""
lastwrite serve s3://backup/cluster1
lastwrite serve /var/lib/kafka --topic orders --compacted
lastwrite serve /archive --listen 0.0.0.0:9092 --users /etc/lastwrite/users \
  --config ssl.certificate.location=cert.pem --config ssl.key.location=key.pem
"""


def serve(
    context: typer.Context,
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="ADDRESS…", help="Log directories, stores, topic folders or archives."
        ),
    ],
    topic: options.Topics = None,
    listen: Annotated[
        str,
        options.option(
            "--listen HOST:PORT",
            "The address to listen on; port 0 selects a free one.",
            options.NETWORK,
        ),
    ] = "127.0.0.1:9092",
    advertise: Annotated[
        str | None,
        options.option(
            "--advertise HOST:PORT",
            "The address that clients connect to, if it differs from --listen.",
            options.NETWORK,
        ),
    ] = None,
    is_open: Annotated[
        bool,
        options.option(
            "--open",
            "Listen on other addresses than localhost without TLS and users: anyone can read.",
            options.NETWORK,
        ),
    ] = False,
    users: Annotated[
        str | None,
        options.option(
            "--users FILE",
            'Permissions of users, a file that "lastwrite users" writes; default: anyone can read.',
            options.NETWORK,
        ),
    ] = None,
    state: Annotated[
        str | None,
        options.option(
            "--state DIR",
            "Folder of committed offsets and copies; default: one below $XDG_STATE_HOME/lastwrite.",
            options.SETTINGS,
        ),
    ] = None,
    cache: Annotated[
        str | None,
        options.option(
            "--cache SIZE", "Memory for the bytes of a bucket; default: 128m.", options.SETTINGS
        ),
    ] = None,
    is_compacted: Annotated[
        bool,
        options.option(
            "--compacted",
            "Serve topics that were never compacted as if they were compacted.",
            options.SELECTION,
        ),
    ] = False,
    copies: Annotated[
        str | None,
        options.option(
            "--copies SIZE",
            "Disk space for the copies that are made to serve topics; default: 10g.",
            options.SETTINGS,
        ),
    ] = None,
    compression: Annotated[
        str,
        options.option(
            "--compression CODEC",
            "Compression of topics of RocketMQ and Pulsar: none or lz4.",
            options.SETTINGS,
        ),
    ] = "none",
    metrics_port: options.MetricsPort = None,
    metrics_host: Annotated[
        str, options.option("--metrics-host HOST", "The address of the metrics page.")
    ] = "127.0.0.1",
    config: options.Config = None,
    config_file: options.ConfigFile = None,
    system: options.System = None,
    metadata: options.Metadata = None,
    json: options.Json = False,
) -> int:
    """Serve stored topics to Kafka clients.

    Sources are the disk of a stopped broker, archives, RocketMQ stores and Pulsar topics. Clients
    see one broker that leads all partitions. They receive the stored bytes with the original
    offsets, transactions and timestamps, and new records as they arrive. Rounds, fetches and
    retention can run at the same time. Writes are refused.

    Topics of RocketMQ and Pulsar are converted when a client first requests them; --state
    contains the copies. With --compacted, a topic that was never compacted is served as a
    compacted copy followed by its tail.

    Consumer groups work. Their offsets are stored in --state. The initial offsets are the ones that
    "lastwrite fetch" stored in an archive.

    With --users, clients authenticate with SASL (PLAIN or SCRAM) or a certificate, and have the
    permissions of the file. To enable TLS, set --config ssl.certificate.location=FILE and
    ssl.key.location=FILE. Without both, the server listens on this machine only, unless --open is
    given. Ctrl-C or SIGTERM stops it.
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
        system=system,
        metadata=metadata,
        tell=output.say,
    )
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: serving.close())
    if output.as_json:
        output.document({"address": serving.address, "topics": serving.topics})
    else:
        some = ", ".join(serving.topics[:10]) + (", …" if len(serving.topics) > 10 else "")
        topics = quantity(len(serving.topics), "topic")
        output.text([f"serving {topics} at {serving.address}: {some}"])
    serving.run()
    return 0
