"""Options that several commands share, each declared once."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, cast

import typer

from lastwrite.errors import InvalidConfig

if TYPE_CHECKING:
    from lastwrite.cli.output import Output
    from lastwrite.decoding.options import DecodingOptions


KAFKA, ROCKETMQ, PULSAR = "Kafka only", "RocketMQ only", "Pulsar only"


def option(usage: str, help: str, group: str | None = None, **more: Any) -> Any:
    """An option as its help shows it: ``--partition, --queue NUMBER``; ``more`` as Typer takes it.

    ``group``: under which it is listed, if it means something to one system only.
    """
    *names, last = usage.split(", ")
    name, _, metavar = last.partition(" ")
    return typer.Option(
        *names, name, metavar=metavar or None, help=help, rich_help_panel=group, **more
    )


PathArgument: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="PATH",
        help="A log root, a partition's folder, or one file; to compact, also persistent://…",
    ),
]
PathsArgument: TypeAlias = Annotated[
    list[str],
    typer.Argument(
        metavar="PATH…",
        help="Log roots, a partition's folder, or one file; to compact, also persistent://…",
    ),
]
Archive: TypeAlias = Annotated[
    str | None,
    option(
        "--archive DIR",
        "Of a live topic: keep the fetched ledgers there, for the next round.",
        PULSAR,
    ),
]
System: TypeAlias = Annotated[
    str | None,
    option("--system NAME", "The system that wrote it; default: found out from the files."),
]
Topic: TypeAlias = Annotated[str | None, option("--topic NAME", "Only this topic.")]
Topics: TypeAlias = Annotated[
    list[str] | None,
    option(
        "--topic NAME", "Only this topic, or those of a pattern as 'orders-*'; may be repeated."
    ),
]
Partition: TypeAlias = Annotated[
    int | None,
    option("--partition, --queue NUMBER", "Only this partition or queue of each topic.", min=0),
]
Rate: TypeAlias = Annotated[
    str | None, option("--rate SIZE", "Of a live cluster, at most so many bytes a second.")
]
Every: TypeAlias = Annotated[
    float | None,
    option("--every SECONDS", "The pause between two turns of following; default: 30."),
]
SetAside: TypeAlias = Annotated[
    bool,
    option(
        "--set-aside",
        "Of a log that does not go on where the archive ends: what it has not goes to "
        "ARCHIVE/_lastwrite/aside, and the rest is brought.",
        KAFKA,
    ),
]
AcceptGap: TypeAlias = Annotated[
    bool,
    option(
        "--accept-gap",
        "Of a log that begins behind the archive's end: go on, and note what lay between as lost. "
        "Commands that look at the archive name it.",
    ),
]
MetricsPort: TypeAlias = Annotated[
    int | None, option("--metrics-port PORT", "Answer GET /metrics there.", min=0, max=65535)
]
Config: TypeAlias = Annotated[
    list[str] | None,
    option(
        "--config NAME=VALUE",
        "A setting under the system's own name, where the topic's own is not known; may be repeated.",
    ),
]
ConfigFile: TypeAlias = Annotated[
    str | None,
    option("--config-file FILE", "Settings as a properties file; --config wins."),
]
TopicConfig: TypeAlias = Annotated[
    list[str] | None,
    option(
        "--topic-config TOPIC:NAME=VALUE",
        "A setting of one topic, or of those of a pattern as 'orders-*', whatever the cluster says; "
        "may be repeated.",
        KAFKA,
    ),
]
TopicConfigFile: TypeAlias = Annotated[
    str | None,
    option("--topic-config-file FILE", "Lines TOPIC:NAME=VALUE; --topic-config wins.", KAFKA),
]
Metadata: TypeAlias = Annotated[
    str | None,
    option(
        "--metadata PATH",
        "Where the cluster has its metadata: a log root, or __cluster_metadata-0, or a copy of either.",
        KAFKA,
    ),
]
Now: TypeAlias = Annotated[
    int | None,
    option("--now MILLIS", "The clock, ms since 1970; default: now.", min=0, max=2**63 - 1),
]
Master: TypeAlias = Annotated[
    str,
    option("--master URL", "Where Spark runs: local[2], spark://host:7077, yarn …"),
]
Conf: TypeAlias = Annotated[
    list[str] | None,
    option("--conf NAME=VALUE", "A setting of Spark; may be repeated."),
]
Json: TypeAlias = Annotated[bool, option("--json", "Print JSON, and nothing else, on stdout.")]
Memory: TypeAlias = Annotated[
    str | None,
    option("--memory SIZE", "For all processes, as 2g; on a cluster for an executor's Python."),
]
Exact: TypeAlias = Annotated[
    bool, option("--exact", "Compare whole keys, not 96-bit fingerprints alone.")
]
IncludeActive: TypeAlias = Annotated[
    bool,
    option(
        "--include-active", "Clean the active segment too: only where no broker appends any more."
    ),
]
Unclean: TypeAlias = Annotated[
    bool,
    option(
        "--unclean",
        "Go on where a broker was killed (RocketMQ) or lost its compacted ledger (Pulsar).",
    ),
]
DropKeyless: TypeAlias = Annotated[
    bool,
    option(
        "--drop-keyless",
        "Records without a key may go: without this a partition that holds one is left as it is.",
        KAFKA,
    ),
]
DropExpiredDeletes: TypeAlias = Annotated[
    bool,
    option(
        "--drop-expired-deletes",
        "A round also where nothing is dirty, so that deletes go whose delete.retention.ms has passed: of an archive, "
        "to which nobody writes any more.",
    ),
]
LikeBroker: TypeAlias = Annotated[
    bool,
    option("--like-broker", "Rewrite and merge every segment of the range, as the broker does."),
]
KeepScans: TypeAlias = Annotated[
    bool,
    option(
        "--keep-scans",
        "Keep beside the log, or in the archive, what need not be read again (16 bytes a record), "
        "and use what was kept: checksums of such segments are not proven again in that round.",
        KAFKA,
    ),
]
Key: TypeAlias = Annotated[
    str | None, option("--key TEXT", "Only records with this key, as UTF-8.")
]
KeyBase64: TypeAlias = Annotated[
    str | None,
    option("--key-base64 TEXT", "Only records with this key, as base64."),
]
KeyHex: TypeAlias = Annotated[
    str | None,
    option("--key-hex DIGITS", "Only records with this key, as hexadecimal digits."),
]

KeyFormat: TypeAlias = Annotated[
    str,
    option("--key-format NAME", "What keys are: raw, utf8, json, avro, protobuf or confluent."),
]
ValueFormat: TypeAlias = Annotated[
    str,
    option("--value-format NAME", "What values are: raw, utf8, json, avro, protobuf or confluent."),
]
KeySchema: TypeAlias = Annotated[
    str | None,
    option(
        "--key-schema FILE", "The schema of keys: .avsc, a JSON Schema as .json, .proto, .desc."
    ),
]
ValueSchema: TypeAlias = Annotated[
    str | None,
    option("--value-schema FILE", "The schema of values: the same."),
]
KeyMessage: TypeAlias = Annotated[
    str | None,
    option("--key-message NAME", "Of Protobuf: keys' message, where there are several."),
]
ValueMessage: TypeAlias = Annotated[
    str | None,
    option("--value-message NAME", "Of Protobuf: values' message, where there are several."),
]
SchemaRegistry: TypeAlias = Annotated[
    str | None,
    option("--schema-registry PLACE", "Of confluent: the registry's URL, or a folder of schemas."),
]
OnBad: TypeAlias = Annotated[
    str,
    option("--on-bad WORD", "A key or value that is bad: fail, or null with the reason."),
]

DEFAULT_MASTER = "local[*]"


def decoding(context: typer.Context, *, is_given: bool = False) -> DecodingOptions:
    """What keys and values are decoded from: those of a command's options that have these names.
    ``is_given``: only those that the user gave.
    """
    from lastwrite.decoding.options import DecodingOptions  # not before it is needed

    found = {
        name: context.params[name]
        for name in DecodingOptions.__annotations__
        if name in context.params and not (is_given and _is_default(context, name))
    }
    return cast(DecodingOptions, found)


def _is_default(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is None or source.name.startswith("DEFAULT")


def key_bytes(text: str | None, coded: str | None, digits: str | None) -> bytes | None:
    """The key that one of ``--key``, ``--key-base64`` and ``--key-hex`` gives; None: none of them
    was given.

    Raises:
        InvalidConfig: more than one, or neither base64 nor digits.
    """
    if sum(given is not None for given in (text, coded, digits)) > 1:
        raise InvalidConfig("--key, --key-base64 and --key-hex exclude each other")
    try:
        if coded is not None:
            return base64.b64decode(coded, validate=True)
        if digits is not None:
            return bytes.fromhex(digits)
    except ValueError as error:
        given = (
            f"--key-hex {digits!r} is not hexadecimal"
            if coded is None
            else f"--key-base64 {coded!r} is not base64"
        )
        raise InvalidConfig(f"{given}: {error}") from error
    return None if text is None else text.encode("utf-8", "surrogateescape")


def settings(
    output: Output, config: Sequence[str] | None, config_file: str | None, unclean: bool = False
) -> dict[str, object]:
    """The settings that ``--config-file`` and, stronger, ``--config`` give; their names are checked
    later. Names in a file that no system of ours knows are passed over, and ``output`` says which.

    ``unclean``: the setting of that name, from an option of its own.

    Raises:
        InvalidConfig: no ``=``, a name given twice, or a file that cannot be read.
    """
    found: dict[str, object] = {}
    if config_file is not None:
        from lastwrite.commands.config_file import known_and_passed_over
        from lastwrite.config.properties import decode_properties

        known, note = known_and_passed_over(decode_properties(_text_of(config_file)), config_file)
        found.update(known)
        if note is not None:
            output.say(f"lastwrite: {note}")
    found.update(pairs("--config", config))
    if unclean:
        found["unclean"] = True
    return found


def topic_settings(given: Sequence[str] | None, file: str | None) -> list[tuple[str, str, object]]:
    """The settings of single topics that ``--topic-config-file`` and, later and so stronger,
    ``--topic-config`` give.

    Raises:
        InvalidConfig: not ``TOPIC:NAME=VALUE``, or a file that cannot be read.
    """
    if not given and file is None:
        return []
    from lastwrite.kafka.rules.topic_settings import decode_overrides, decode_overrides_file

    try:
        found = () if file is None else decode_overrides_file(_text_of(file))
    except InvalidConfig as error:
        raise error.located(file or "") from error
    return [
        (each.pattern, each.name, each.value) for each in (*found, *decode_overrides(given or ()))
    ]


def _text_of(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InvalidConfig(f"cannot read the settings: {reason}", path=path) from error


def pairs(option: str, given: Sequence[str] | None) -> dict[str, str]:
    """``name=value`` texts as a dictionary.

    Raises:
        InvalidConfig: no ``=``, or a name given twice.
    """
    found: dict[str, str] = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise InvalidConfig(f"{option} {text!r} is not NAME=VALUE")
        if name.strip() in found:
            raise InvalidConfig(f"{option} gives {name.strip()} twice")
        found[name.strip()] = value.strip()
    return found


def system_at(path: str, system: str | None) -> Callable[[], str]:
    """Which system's logs the command is about, found out when that is asked."""

    def ask() -> str:
        from lastwrite.commands.systems import PULSAR, system_of

        return PULSAR if path.startswith("persistent://") else system_of(path, system)

    return ask
