"""``lastwrite dump``: prints records, batches or index entries, as text or JSON lines."""

from __future__ import annotations

import base64
import json as json_
import re
from collections.abc import Callable
from typing import Annotated, Any

import typer

from lastwrite.cli import options
from lastwrite.cli.line_format import line_format
from lastwrite.cli.output import Output, format_size, moment, quantity
from lastwrite.errors import InvalidConfig

_PLAIN = re.compile(r"[\w.@/+=-]+", re.ASCII)
_MOST_BYTES = 160  # maximum bytes of a key or value in a line of text; --json prints all bytes


EXAMPLES = r"""
lastwrite dump /var/lib/kafka --topic orders --offset 4711 --limit 1
lastwrite dump /var/lib/kafka/orders-0/00000000000000004711.snapshot
lastwrite dump /var/lib/kafka --topic orders --time 1700000000000 --last 10
lastwrite dump /var/lib/kafka --topic orders -f '%k\t%s\n' >orders.tsv
lastwrite dump /var/lib/kafka --topic __cluster_metadata --decode
lastwrite dump STORE --topic orders --queue 3 --offset 4711 --limit 1
lastwrite dump STORE --commit-log-offset 1073741824
lastwrite dump STORE --topic orders --key order-1
lastwrite dump STORE --message-id 7F00000100002A9F0000000000000000
lastwrite dump STORE --topic orders --compacted
lastwrite dump STORE --topic orders --to orders.parquet
lastwrite dump ARCHIVE/public/default/persistent/orders --from 10:5
lastwrite dump ARCHIVE --topic orders --compacted --json
"""


def dump(
    context: typer.Context,
    path: options.PathArgument,
    system: options.System = None,
    metadata: options.AutomqMetadata = None,
    topic: options.Topic = None,
    partition: options.Partition = None,
    batches: Annotated[bool, options.option("--batches", "Print one line per batch.")] = False,
    index: Annotated[bool, options.option("--index", "Print one line per index entry.")] = False,
    offset: Annotated[
        int | None,
        options.option(
            "--offset N",
            "Start at this offset; add --limit 1 for this record only.",
            options.SELECTION,
            min=0,
            show_default=False,
        ),
    ] = None,
    limit: Annotated[
        int | None,
        options.option("--limit N", "Print at most this many lines.", options.SELECTION, min=0),
    ] = None,
    line: Annotated[
        str | None,
        options.option(
            "-f FORMAT",
            r"Format of a record, as in kcat: '%t [%p] %o %k = %s\n'. An unknown letter "
            "prints the list of letters.",
        ),
    ] = None,
    null: Annotated[
        bool, options.option("-Z", "With -f: print NULL for a key or value that is null.")
    ] = False,
    start: Annotated[
        str | None,
        options.option("--from ID", "Start at message LEDGER:ENTRY.", options.PULSAR),
    ] = None,
    key: options.Key = None,
    key_base64: options.KeyBase64 = None,
    key_hex: options.KeyHex = None,
    decode: Annotated[
        bool,
        options.option(
            "--decode",
            "Decode the records of Kafka's internal topics: offsets, groups, "
            "transactions, metadata.",
        ),
    ] = False,
    commit_log_offset: Annotated[
        int | None,
        options.option(
            "--commit-log-offset P", "The message at this physical offset.", options.ROCKETMQ, min=0
        ),
    ] = None,
    unique_key: Annotated[
        str | None,
        options.option(
            "--unique-key TEXT",
            "Messages with this unique key, which the client generated.",
            options.ROCKETMQ,
        ),
    ] = None,
    message_id: Annotated[
        str | None,
        options.option(
            "--message-id ID", "RocketMQ, Pulsar: the message with this id.", options.SELECTION
        ),
    ] = None,
    time: Annotated[
        int | None,
        options.option(
            "--time MILLIS",
            "Start at the first record of this time or later: record timestamp (Kafka), "
            "store time (RocketMQ) or publish time (Pulsar).",
            options.SELECTION,
        ),
    ] = None,
    last: Annotated[
        int | None,
        options.option(
            "--last N",
            "Only the last N selected records of each partition.",
            options.SELECTION,
            min=1,
        ),
    ] = None,
    compacted: Annotated[
        bool,
        options.option(
            "--compacted",
            "RocketMQ: read the compaction logs instead of the commit log. Pulsar: read "
            "the compacted ledger.",
            options.SELECTION,
        ),
    ] = False,
    to: Annotated[
        str | None,
        options.option(
            "--to DIR",
            "Write all messages of the commit log, or of --topic, to DIR.",
            options.ROCKETMQ,
        ),
    ] = None,
    format: Annotated[
        str,
        options.option("--format NAME", "File format of --to: parquet or json.", options.ROCKETMQ),
    ] = "parquet",
    master: options.Master = options.DEFAULT_MASTER,
    conf: options.Conf = None,
    memory: options.Memory = None,
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
    """Print records, batches or index entries, or find a message.

    With --json, each line is one object. Damage does not end the dump: it is reported after
    everything intact has been printed. PATH can also be a single file of a log, such as an index,
    a snapshot or a checkpoint.

    RocketMQ: PATH is a store, or a folder or file in it. Messages are in the order of the commit
    log, or with --topic in the order of its queues. --index prints index entries. Messages are
    looked up as a broker would. If an index is missing or wrong, the commit log is searched;
    standard error and the field found_by report this.

    Pulsar: PATH is a topic folder, or a folder above several. The messages of the raw ledgers are
    printed, including placeholders and markers. --batches prints one line per entry, --index one
    line per block.
    """
    import lastwrite

    output: Output = context.obj
    if to is not None:
        ways = (
            index,
            offset,
            limit,
            start,
            key,
            key_base64,
            key_hex,
            commit_log_offset,
            unique_key,
            message_id,
            time,
            last,
            line,
        )
        if (
            compacted
            or batches
            or decode
            or any(way is not None and way is not False for way in ways)
        ):
            raise InvalidConfig(
                "--to can be combined only with --topic and --queue",
                remedy="remove the other selections",
            )
        report = lastwrite.export(
            path,
            to,
            format=format,
            topic=topic,
            partition=partition,
            config=options.settings(output, config, config_file),
            memory=memory,
            master=master,
            conf=options.pairs("--conf", conf),
            progress=output.progress(),
        )
        if output.as_json:
            output.document(report)
        else:
            size = f"{quantity(report.parts, 'file')}, {format_size(report.bytes)}"
            done = f"{quantity(report.messages, 'message')} in {size}, in {report.to}"
            output.text([done, *map(str, report.problems)])
        return report.exit_status
    formatted = None
    if line is not None:
        if output.as_json or batches or index or decode:
            raise InvalidConfig("-f excludes --json, --batches, --index and --decode")
        formatted = line_format(line, b"NULL" if null else b"")
    elif null:
        raise InvalidConfig("-Z needs -f")
    rows = lastwrite.dump(
        path,
        system=system,
        metadata=metadata,
        topic=topic,
        partition=partition,
        batches=batches,
        index=index,
        offset=offset,
        limit=limit,
        key=options.key_bytes(key, key_base64, key_hex),
        decode=decode,
        commit_log_offset=commit_log_offset,
        unique_key=unique_key,
        message_id=message_id,
        time_ms=time,
        compacted=compacted,
        config=options.settings(output, config, config_file),
        say=lambda text: output.say(f"lastwrite: {text}"),
        start=start,
        last=last,
        **options.decoding(context),
    )
    encode = json_.JSONEncoder(separators=(", ", ": "), check_circular=False).encode
    show: Callable[[dict[str, Any]], str] = encode if output.as_json else as_text
    for row in rows:
        going = output.line(show(row)) if formatted is None else output.raw(formatted(row))
        if not going:
            break
    return 0


def as_text(row: dict[str, Any]) -> str:
    """A row of the dump as text: a record or message in its own form, others by fields."""
    if "message_id" in row and "producer" in row:
        return pulsar_message(row)
    if "stored_body" in row:
        return _message(row)
    if "partition" not in row:
        return _fields_of(row)
    place = "" if row["topic"] is None else f"{row['topic']}-{row['partition']} "
    if "headers" in row:
        return place + _record(row)
    if "base_offset" in row:
        return place + _batch(row)
    rest = {name: value for name, value in row.items() if name not in ("topic", "partition")}
    return place + "  ".join(
        f"{name} {moment(value) if name == 'timestamp' else value}" for name, value in rest.items()
    )


def _message(row: dict[str, Any]) -> str:
    """The line of text for a RocketMQ message."""
    properties = dict(row["properties"])
    key = properties.pop("KEYS", None)
    text = f"{row['topic']}-{row['queue_id']} @{row['queue_offset']}"
    if row["batch_index"] is not None:
        text += f" [{row['batch_index']}]"
    text += f"  {moment(row['store_timestamp'])}  "
    shown = "no key" if key is None else json_.dumps(key, ensure_ascii=False)
    text += f"{_meant(row, 'key', shown)} = {_meant(row, 'value', _shown(row['body']))}"
    if properties:
        text += f"  {_fields(properties)}"
    text += f"  at {row['physical_offset']}, {row['size']:,} bytes"
    if row["compression"] != "none":
        text += f", {row['compression']}"
    if row["transaction"] is not None:
        text += f", transaction {row['transaction']}"
    text += f", from {row['born_host']}"
    if row["found_by"].endswith("(no index)"):
        text += f", found in the {row['found_by']}"
    return text if row["problem"] is None else f"{text}  DAMAGED: {row['problem']}"


def pulsar_message(row: dict[str, Any]) -> str:
    """The line of text for a Pulsar message."""
    topic = "" if row["topic"] is None else row["topic"].removeprefix("persistent://") + " "
    text = f"{topic}{row['message_id']}  {moment(row['publish_time'])}  "
    if row["marker"] is not None:
        return f"{text}marker: {row['marker']}"
    if row["compacted_out"]:
        return f"{text}compacted out"
    key = "no key" if row["key"] is None else json_.dumps(row["key"], ensure_ascii=False)
    value = _shown(row["value"] if row["encryption"] is None else row["stored_value"])
    text += f"{_meant(row, 'key', key)} = {_meant(row, 'value', value)}"
    if row["encryption"] is not None:
        text += f" encrypted {_encryption(row['encryption'])}"
    if row["properties"]:
        text += f"  {_fields(row['properties'])}"
    text += f"  {row['producer']} #{row['sequence_id']}"
    if row["event_time"]:
        text += f", event {moment(row['event_time'])}"
    if row["compression"] != "NONE":
        text += f", {row['compression']}"
    if row["transaction"] is not None:
        text += ", transactional"
    if row["chunk"] is not None:
        text += f", part {row['chunk']['id'] + 1} of {row['chunk']['count']}"
    return text if row["problem"] is None else f"{text}  DAMAGED: {row['problem']}"


def _encryption(found: dict[str, Any]) -> str:
    """The encryption of a Pulsar message as text: recipients with data keys, algorithm, IV."""
    keys = (f"{_fields(each['name'])} (key {each['value']})" for each in found["wrapped_keys"])
    text = f"for {', '.join(keys)}"
    text += "" if found["algorithm"] is None else f" by {found['algorithm']}"
    return text if found["param"] is None else f"{text} with IV {found['param']}"


def _fields_of(row: dict[str, Any]) -> str:
    """The names and values of a row as text, with timestamps as dates."""
    place = ""
    if row.get("topic") is not None:
        place = row["topic"] + ("" if row.get("queue_id") is None else f"-{row['queue_id']}") + " "
    return place + "  ".join(
        f"{name} {moment(value) if name.endswith('timestamp') and value else _fields(value)}"
        for name, value in row.items()
        if name not in ("topic", "queue_id")
    )


def _record(row: dict[str, Any]) -> str:
    text = f"@{row['offset']}  {moment(row['timestamp'])}  "
    if row["control"] is not None:
        text += f"control: {row['control']}"
    else:
        meaning = row.get("decoded")
        if meaning is not None and "type" in meaning:
            text += _meaning(meaning, row)
        else:  # ``_shown`` prints a key or value as text if possible
            text += f"{_meant(row, 'key', _shown(row['key']))} = "
            text += _meant(row, "value", _shown(row["value"]))
    if row["headers"]:
        text += (
            "  {" + ", ".join(f"{name}: {_shown(value)}" for name, value in row["headers"]) + "}"
        )
    if row["producer_id"] >= 0:
        text += f"  producer {row['producer_id']}/{row['producer_epoch']} #{row['sequence']}"
    return text + ("  transactional" if row["transactional"] and row["control"] is None else "")


def _meant(row: dict[str, Any], which: str, shown: str) -> str:
    """The text of a record's key or value: its decoded fields, or else ``shown`` and the reason."""
    meaning = row.get("decoded") or {}
    if "problem" not in meaning or which not in meaning:
        return shown
    if meaning["problem"] is not None and meaning[which] is None:
        return f"{shown} ({meaning['problem']})"
    return _fields(meaning[which])


def _meaning(decoded: dict[str, Any], row: dict[str, Any]) -> str:
    """A decoded record as text, such as ``OffsetCommit {group: laws, …} = v3 {offset: 5, …}``."""
    name = decoded["name"] or f"type {decoded['type']}"
    key = _shown(row["key"]) if decoded["key"] is None else _fields(decoded["key"])
    value = (
        _shown(row["value"]) if decoded["value"] is None else _fields(_with_state(decoded["value"]))
    )
    if decoded["value_version"] is not None:
        value = f"v{decoded['value_version']} {value}"
    text = f"{name} {value}" if row["key"] is None else f"{name} {key} = {value}"
    return text if decoded["problem"] is None else f"{text}  ({decoded['problem']})"


def _with_state(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a decoded value. The state of a transaction is replaced by its name."""
    from lastwrite.kafka.cluster.internal_topics import (
        TRANSACTION_STATES,
    )  # imported only here, because this module loads numpy

    number = fields.get("transactionStatus", -1)
    return (
        fields | {"transactionStatus": TRANSACTION_STATES[number]} if number in range(8) else fields
    )


def _fields(value: Any) -> str:
    """Nested data as ``{name: value, ...}``, with quotes only where they are needed."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_fields(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_fields, value)) + "]"
    if isinstance(value, str):
        return value if _PLAIN.fullmatch(value) else json_.dumps(value, ensure_ascii=False)
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else str(value)


def _batch(row: dict[str, Any]) -> str:
    text = (
        f"@{row['base_offset']}–{row['last_offset']}  {quantity(row['records'], 'record')}, "
        f"{row['bytes']:,} bytes, "
        f"{row['compression']}, magic {row['magic']}, up to {moment(row['max_timestamp'])}, "
        f"epoch {row['leader_epoch']}, segment {row['segment']} byte {row['position']}"
    )
    if row["producer_id"] >= 0:
        text += f", producer {row['producer_id']}/{row['producer_epoch']}"
        text += f" #{row['base_sequence']}–{row['last_sequence']}"
    if row["delete_horizon"] is not None:
        horizon_ms = row["delete_horizon"]
        text += (
            f", delete horizon {moment(horizon_ms)}"
            if horizon_ms >= 0
            else f", bad delete horizon {horizon_ms}, treated as none"
        )
    return (
        text
        + (", transactional" if row["transactional"] else "")
        + (", control" if row["control"] else "")
    )


def _shown(coded: str | None) -> str:
    """Bytes, given in Base64, as text: in quotes if they are printable, otherwise in hexadecimal.

    None is shown as ``null``.
    """
    if coded is None:
        return "null"
    raw = base64.b64decode(coded)
    cut = raw[:_MOST_BYTES]
    try:
        text = cut.decode("utf-8") if len(cut) == len(raw) else cut.decode("utf-8", "ignore")
        said = json_.dumps(text, ensure_ascii=False) if text.isprintable() else f"0x{cut.hex()}"
    except UnicodeDecodeError:
        said = f"0x{cut.hex()}"
    return said if len(cut) == len(raw) else f"{said}… ({len(raw):,} bytes)"
