"""``lastwrite send``: messages to a topic of a live RocketMQ cluster."""

from __future__ import annotations

import json as json_
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from lastwrite.cli.options import JsonOption, pairs
from lastwrite.cli.output import Output
from lastwrite.errors import InvalidConfig
from lastwrite.reports.document import Document


class SentMessage(Document):
    """A message that a broker has stored."""

    topic: str
    broker: str
    partition: int  # the queue
    offset: int  # in the queue
    message_id: str


class SendReport(Document):
    """What ``send`` sent, in order."""

    sent: list[SentMessage]


def send(
    context: typer.Context,
    name_server: Annotated[
        str,
        typer.Argument(
            metavar="HOST:PORT",
            help="The name server; several with semicolons.",
            show_default=False,
        ),
    ],
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", help="A topic that it knows.", show_default=False)
    ],
    key: Annotated[
        str | None, typer.Option("--key", metavar="TEXT", help="The message's key.")
    ] = None,
    body: Annotated[
        str | None, typer.Option("--body", metavar="TEXT", help="The message's body.")
    ] = None,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete the key: a message without a body.")
    ] = False,
    tag: Annotated[
        str | None, typer.Option("--tag", metavar="TEXT", help="The message's tag.")
    ] = None,
    properties: Annotated[
        list[str] | None,
        typer.Option("--property", metavar="NAME=VALUE", help="A property; may be repeated."),
    ] = None,
    lines: Annotated[
        str | None,
        typer.Option(
            "--lines",
            metavar="FILE",
            help='Many messages, one JSON object a line: {"key", "body" or "body_base64", "tag", "properties"}; a body '
            "of null deletes the key. - is standard input.",
        ),
    ] = None,
    compression: Annotated[
        str,
        typer.Option(
            "--compression", metavar="NAME", help="Of large bodies: zlib, lz4, zstd or none."
        ),
    ] = "zlib",
    compress_from: Annotated[
        int,
        typer.Option(
            "--compress-from",
            metavar="BYTES",
            min=1,
            help="Bodies of so many bytes are compressed.",
        ),
    ] = 4096,
    queue: Annotated[
        int | None,
        typer.Option(
            "--queue", metavar="NUMBER", min=0, help="All to this queue; else by the key's hash."
        ),
    ] = None,
    broker: Annotated[
        str | None, typer.Option("--broker", metavar="NAME", help="Only to queues of this broker.")
    ] = None,
    timeout: Annotated[
        float,
        typer.Option("--timeout", metavar="SECONDS", min=0.001, help="Of every single request."),
    ] = 30.0,
    json: JsonOption = False,
) -> int:
    """Send messages to a topic of a live RocketMQ cluster.

    Equal keys go to one queue, chosen as the stock client's hash selector does: compaction is by
    queue. A delete goes compressed, because brokers refuse a body of no bytes.
    """
    from lastwrite.rocketmq.format.record import Compression
    from lastwrite.rocketmq.network.outgoing import Outgoing
    from lastwrite.rocketmq.network.send import parse_message, send_each

    output: Output = context.obj
    try:
        chosen = Compression(compression)
    except ValueError as error:
        raise InvalidConfig(
            f"--compression {compression!r}", remedy="one of: zlib, lz4, zstd, none"
        ) from error
    single = body is not None or delete or key is not None or tag is not None or properties
    if lines is not None and single:
        raise InvalidConfig("--lines does not go with a message of its own")
    if lines is None and (body is None) != delete:
        raise InvalidConfig("give one of --body, --delete and --lines")

    def messages() -> Iterator[Outgoing]:
        if lines is None:
            text = None if body is None else body.encode("utf-8", "surrogateescape")
            yield Outgoing(key, text, tag, pairs("--property", properties), chosen, compress_from)
            return
        for number, line in _lines_of(lines):
            try:
                given = json_.loads(line)
                if not isinstance(given, dict):
                    raise InvalidConfig("not an object")
                yield parse_message(given, chosen, compress_from)
            except (ValueError, InvalidConfig) as error:
                problem = error.problem if isinstance(error, InvalidConfig) else str(error)
                raise InvalidConfig(f"line {number}: {problem}", path=lines) from error

    report = SendReport([])
    for stored in send_each(name_server, topic, messages(), queue, broker, timeout):
        place = stored.queue
        report.sent.append(
            SentMessage(topic, place.broker, place.queue, stored.offset, stored.message_id)
        )
        if not output.as_json:
            output.line(f"{topic}-{stored.queue.queue} @{stored.offset}  {stored.message_id}")
    if output.as_json:
        output.document(report.to_dict())
    return 0


def _lines_of(path: str) -> Iterator[tuple[int, str]]:
    """Lines that are not blank, with their numbers."""
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InvalidConfig(f"cannot read the messages: {reason}", path=path) from error
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            yield number, line
