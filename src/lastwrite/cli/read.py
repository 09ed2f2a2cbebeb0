"""``lastwrite read``: prints the messages that a consumer would receive."""

from __future__ import annotations

import json as json_
from typing import Annotated

import typer

from lastwrite.cli import options
from lastwrite.cli.dump import as_text
from lastwrite.cli.output import Output, quantity
from lastwrite.errors import LogError

EXAMPLES = """
lastwrite read STORE --topic orders --queue 3 --offset 4711
lastwrite read /var/lib/kafka/orders-0 --isolation-level read_committed
lastwrite read s3://backup/cluster1/kafka/orders/0 --limit 10
lastwrite read ARCHIVE --topic orders --read-compacted
lastwrite read ARCHIVE/public/default/persistent/orders --from 10:5 --limit 10
"""


def read(
    context: typer.Context,
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH",
            help="A store, a log root or an archive, or a queue, partition or topic in one.",
        ),
    ],
    topic: Annotated[
        str | None, options.option("--topic NAME", "The topic.", options.SELECTION)
    ] = None,
    queue: Annotated[
        int | None,
        options.option(
            "--queue, --partition NUMBER",
            "The queue or partition; default: the only one.",
            options.SELECTION,
            min=0,
        ),
    ] = None,
    offset: Annotated[
        int | None,
        options.option(
            "--offset N",
            "RocketMQ, Kafka: the offset of the first pull; default: the beginning.",
            options.SELECTION,
            min=0,
        ),
    ] = None,
    limit: Annotated[
        int | None,
        options.option("--limit N", "Print at most this many messages.", options.SELECTION, min=0),
    ] = None,
    key: options.Key = None,
    key_base64: options.KeyBase64 = None,
    key_hex: options.KeyHex = None,
    pull: Annotated[
        bool,
        options.option(
            "--pull",
            "Print the messages of one pull, as many as a broker returns.",
            options.ROCKETMQ,
        ),
    ] = False,
    start: Annotated[
        str | None,
        options.option(
            "--from ID",
            "Start at this message, or the next one that exists: "
            "LEDGER:ENTRY[:PARTITION[:INDEX]], earliest or latest.",
            options.PULSAR,
        ),
    ] = None,
    read_compacted: Annotated[
        bool,
        options.option(
            "--read-compacted", "Read from the compacted ledger up to the horizon.", options.PULSAR
        ),
    ] = False,
    time: Annotated[
        int | None,
        options.option(
            "--time MILLIS",
            "Start at the first record of this time or later.",
            options.KAFKA,
            show_default=False,
        ),
    ] = None,
    isolation_level: Annotated[
        str | None,
        options.option(
            "--isolation-level LEVEL",
            "read_uncommitted (the default) or read_committed.",
            options.KAFKA,
        ),
    ] = None,
    system: options.System = None,
    metadata: options.AutomqMetadata = None,
    config: options.Config = None,
    config_file: options.ConfigFile = None,
    key_format: options.KeyFormat = "raw",
    value_format: options.ValueFormat = "raw",
    key_schema: options.KeySchema = None,
    value_schema: options.ValueSchema = None,
    key_message: options.KeyMessage = None,
    value_message: options.ValueMessage = None,
    schema_registry: options.SchemaRegistry = None,
    on_bad: options.OnBad = "fail",
    json: options.Json = False,
) -> int:
    """Print the messages that a consumer would receive.

    Kafka: a partition, without control records. With --isolation-level read_committed, records of
    aborted transactions are omitted and reading ends at the last stable offset.

    RocketMQ: a queue of a compaction topic.

    Pulsar: the whole backlog of a topic, or with --read-compacted what a consumer with that
    setting receives.

    With --json, each line is one message. The last line describes the end: status, where to
    continue and, for Pulsar, the last message id as a broker reports it. Without --json, standard
    error contains this.
    """
    import lastwrite

    output: Output = context.obj
    wanted = options.key_bytes(key, key_base64, key_hex)
    reading = lastwrite.read(
        path,
        topic=topic,
        queue=queue,
        offset=offset,
        limit=limit,
        one_pull=pull,
        system=system,
        metadata=metadata,
        start=start,
        read_compacted=read_compacted,
        time_ms=time,
        key=wanted,
        isolation_level=isolation_level,
        config=options.settings(output, config, config_file),
        **options.decoding(context),
    )
    encode = json_.JSONEncoder(separators=(", ", ": "), check_circular=False).encode
    failed = ""
    try:
        for row in reading:
            if not output.line(encode(row) if output.as_json else as_text(row)):
                break
    except LogError as error:
        failed = str(error)
        raise
    finally:
        for note in reading.notes:
            # skip a note that repeats the error, because the caller prints the error
            if not failed.startswith(str(note)):
                output.say(f"lastwrite: {note}")
        end = reading.summary()
        # The status is None after an error, or if the reader has closed standard output.
        status = end["status"] or "ended early"
        messages = quantity(end["messages"], "message")
        if wanted is not None and end["messages"] == 0:
            output.say("lastwrite: no message has this key")
        if output.as_json:
            output.line(encode(end))
        elif "last_message_id" in end:
            last = end["last_message_id"]
            index = (
                "" if last["batch_index"] < 0 else f", message {last['batch_index']} of its batch"
            )
            horizon = "" if end["horizon"] is None else f"; horizon {end['horizon']}"
            output.say(
                f"{status}: {messages}, next {end['next']} (last message "
                f"{last['ledger']}:{last['entry']}{index}{horizon})"
            )
        elif "high_watermark" in end:
            output.say(
                f"{status}: {messages}, next offset {end['next_offset']} "
                f"(log start {end['log_start_offset']}, last stable offset "
                f"{end['last_stable_offset']}, high watermark {end['high_watermark']})"
            )
        else:
            output.say(
                f"{status}: {messages}, next offset {end['next_offset']} "
                f"(minimum {end['min_offset']}, maximum {end['max_offset']})"
            )
    return 0
