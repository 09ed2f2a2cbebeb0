"""``lastwrite send``: sends messages to a topic of a live RocketMQ cluster."""

from __future__ import annotations

import json as json_
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from lastwrite.cli import options
from lastwrite.cli.output import Output
from lastwrite.errors import InvalidConfig
from lastwrite.reports.document import Document


class SentMessage(Document):
    """A message that a broker has stored."""

    topic: str
    broker: str
    partition: int  # number of the queue
    offset: int  # offset of the message in the queue
    message_id: str


class SendReport(Document):
    """The messages that ``send`` sent, in order."""

    sent: list[SentMessage]


EXAMPLES = """
lastwrite send localhost:9876 prices --key apple --body 3
lastwrite send localhost:9876 prices --key apple --delete
lastwrite send localhost:9876 prices --lines messages.jsonl
"""


def send(
    context: typer.Context,
    name_server: Annotated[
        str,
        typer.Argument(
            metavar="HOST:PORT", help="The name server; separate several by semicolons."
        ),
    ],
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="An existing topic.")],
    key: Annotated[
        str | None, options.option("--key TEXT", "The key of the message.", options.SELECTION)
    ] = None,
    body: Annotated[
        str | None, options.option("--body TEXT", "The body of the message.", options.SELECTION)
    ] = None,
    delete: Annotated[
        bool,
        options.option(
            "--delete", "Delete the key by a message without a body.", options.SELECTION
        ),
    ] = False,
    tag: Annotated[
        str | None, options.option("--tag TEXT", "The tag of the message.", options.SELECTION)
    ] = None,
    properties: Annotated[
        list[str] | None,
        options.option(
            "--property NAME=VALUE",
            "A property of the message; may be repeated.",
            options.SELECTION,
        ),
    ] = None,
    lines: Annotated[
        str | None,
        options.option(
            "--lines FILE",
            'Send many messages, one JSON object per line: {"key", "body" or '
            '"body_base64", "tag", "properties"}. A body of null deletes the key. - means'
            " standard input.",
            options.SELECTION,
        ),
    ] = None,
    compression: Annotated[
        str,
        options.option(
            "--compression NAME",
            "Compression of large bodies: zlib, lz4, zstd or none.",
            options.NETWORK,
        ),
    ] = "zlib",
    compress_from: Annotated[
        int,
        options.option(
            "--compress-from BYTES",
            "Compress bodies of at least this many bytes.",
            options.NETWORK,
            min=1,
        ),
    ] = 4096,
    queue: Annotated[
        int | None,
        options.option(
            "--queue NUMBER",
            "Send all messages to this queue; default: by the hash of the key.",
            options.NETWORK,
            min=0,
        ),
    ] = None,
    broker: Annotated[
        str | None,
        options.option("--broker NAME", "Send only to queues of this broker.", options.NETWORK),
    ] = None,
    timeout: Annotated[
        float,
        options.option(
            "--timeout SECONDS", "Time limit of each request.", options.NETWORK, min=0.001
        ),
    ] = 30.0,
    json: options.Json = False,
) -> int:
    """Send messages to a topic of a RocketMQ cluster.

    Messages with equal keys go to the same queue, chosen by the hash selector of the stock
    client, because compaction works per queue. A delete is sent compressed, because brokers
    refuse an empty body.
    """
    from lastwrite.rocketmq.format.record import Compression
    from lastwrite.rocketmq.network.outgoing import OutgoingMessage
    from lastwrite.rocketmq.network.send import parse_message, send_each

    output: Output = context.obj
    try:
        chosen = Compression(compression)
    except ValueError as error:
        raise InvalidConfig(
            f"--compression {compression!r} is not supported",
            remedy="give one of: zlib, lz4, zstd, none",
        ) from error
    single = body is not None or delete or key is not None or tag is not None or properties
    if lines is not None and single:
        raise InvalidConfig(
            "--lines excludes --key, --body, --delete, --tag and --property",
            remedy="put these into the lines of the file",
        )
    if lines is None and (body is None) != delete:
        raise InvalidConfig(
            "give exactly one of --body, --delete and --lines", remedy="see lastwrite send --help"
        )

    def messages() -> Iterator[OutgoingMessage]:
        if lines is None:
            text = None if body is None else body.encode("utf-8", "surrogateescape")
            yield OutgoingMessage(
                key, text, tag, options.pairs("--property", properties), chosen, compress_from
            )
            return
        for number, line in _lines_of(lines):
            try:
                given = json_.loads(line)
                if not isinstance(given, dict):
                    raise InvalidConfig("the line is not a JSON object")
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
        output.document(report)
    return 0


def _lines_of(path: str) -> Iterator[tuple[int, str]]:
    """The lines of the input that are not blank, each with its number."""
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InvalidConfig(f"cannot read the messages: {reason}", path=path) from error
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            yield number, line
