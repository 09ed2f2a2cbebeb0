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


# The groups of options, in the order of --help.
GROUPS = (
    SELECTION := "Selection",
    ACTION := "Action",
    RULES := "Rules",
    FOLLOWING := "Following",
    DECODING := "Keys and values",
    NETWORK := "Network",
    SETTINGS := "Settings and resources",
    OUTPUT := "Output",
    KAFKA := "Kafka only",
    PULSAR := "Pulsar only",
    ROCKETMQ := "RocketMQ only",
)


def option(usage: str, help: str, group: str = OUTPUT, **more: Any) -> Any:
    """Declare an option by its text in the help, such as ``--partition, --queue NUMBER``.

    Args:
        group: one of ``GROUPS``, under which the help lists the option.
        more: further arguments of ``typer.Option``.
    """
    *names, last = usage.split(", ")
    name, _, metavar = last.partition(" ")
    return typer.Option(
        *names, name, metavar=metavar or None, help=help, rich_help_panel=group, **more
    )


PathArgument: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="PATH", help="A log root, store, archive, partition folder or single file."
    ),
]
PathsArgument: TypeAlias = Annotated[
    list[str],
    typer.Argument(
        metavar="PATH…",
        help="Log roots, stores, archives, partition folders or single files; compact "
        "and plan also take persistent://…",
    ),
]
Archive: TypeAlias = Annotated[
    str | None,
    option(
        "--archive DIR", "Live topic: keep the fetched ledgers in DIR for the next round.", PULSAR
    ),
]
System: TypeAlias = Annotated[
    str | None,
    option(
        "--system NAME",
        "The system that wrote the files: kafka, rocketmq, pulsar or automq; default: detected, "
        "except for automq.",
        SELECTION,
    ),
]
Topic: TypeAlias = Annotated[str | None, option("--topic NAME", "Only this topic.", SELECTION)]
Topics: TypeAlias = Annotated[
    list[str] | None,
    option(
        "--topic NAME",
        "Only this topic, or all that match a pattern such as 'orders-*'; may be repeated.",
        SELECTION,
    ),
]
Partition: TypeAlias = Annotated[
    int | None,
    option(
        "--partition, --queue NUMBER",
        "Only this partition or queue of each topic.",
        SELECTION,
        min=0,
    ),
]
Rate: TypeAlias = Annotated[
    str | None,
    option("--rate SIZE", "Read at most this many bytes per second from a live cluster.", SETTINGS),
]
Every: TypeAlias = Annotated[
    float | None,
    option("--every SECONDS", "Pause between two updates when following; default: 30.", FOLLOWING),
]
SetAside: TypeAlias = Annotated[
    bool,
    option(
        "--set-aside",
        "If the log does not continue where the archive ends: move the archived records that the "
        "log does not have to ARCHIVE/_lastwrite/aside, then fetch the rest.",
        KAFKA,
    ),
]
AcceptGap: TypeAlias = Annotated[
    bool,
    option(
        "--accept-gap",
        "If the log begins after the end of the archive: continue, and record the "
        "offsets in between as lost. Commands that read the archive report the gap.",
        SETTINGS,
    ),
]
MetricsPort: TypeAlias = Annotated[
    int | None,
    option(
        "--metrics-port PORT",
        "Serve Prometheus metrics at /metrics on this port.",
        min=0,
        max=65535,
    ),
]
Config: TypeAlias = Annotated[
    list[str] | None,
    option(
        "--config NAME=VALUE",
        "A setting, under its name in the system; used where the topic's own value is unknown; "
        "may be repeated.",
        SETTINGS,
    ),
]
ConfigFile: TypeAlias = Annotated[
    str | None,
    option("--config-file FILE", "A properties file of settings; --config overrides it.", SETTINGS),
]
TopicConfig: TypeAlias = Annotated[
    list[str] | None,
    option(
        "--topic-config TOPIC:NAME=VALUE",
        "A setting of one topic, or of all that match a pattern such as 'orders-*'; "
        "it overrides the cluster's value; may be repeated.",
        KAFKA,
    ),
]
TopicConfigFile: TypeAlias = Annotated[
    str | None,
    option(
        "--topic-config-file FILE",
        "A file of lines TOPIC:NAME=VALUE; --topic-config overrides it.",
        KAFKA,
    ),
]
Metadata: TypeAlias = Annotated[
    str | None,
    option(
        "--metadata PATH",
        "The cluster's metadata: a log root, its folder __cluster_metadata-0, or a copy of one of "
        "them. AutoMQ needs it.",
        KAFKA,
    ),
]
AutomqMetadata: TypeAlias = Annotated[
    str | None,
    option(
        "--metadata PATH",
        "AutoMQ: the controllers' folder __cluster_metadata-0, or a copy of it.",
        KAFKA,
    ),
]
Now: TypeAlias = Annotated[
    int | None,
    option(
        "--now MILLIS",
        "The current time, in ms since 1970; default: the clock.",
        SETTINGS,
        min=0,
        max=2**63 - 1,
    ),
]
Master: TypeAlias = Annotated[
    str,
    option("--master URL", "The Spark master: local[2], spark://host:7077, yarn …", SETTINGS),
]
Conf: TypeAlias = Annotated[
    list[str] | None,
    option("--conf NAME=VALUE", "A setting of Spark; may be repeated.", SETTINGS),
]
Json: TypeAlias = Annotated[bool, option("--json", "Print only JSON on standard output.")]
Memory: TypeAlias = Annotated[
    str | None,
    option(
        "--memory SIZE",
        "Memory of all processes, such as 2g; on a cluster, of each executor's Python.",
        SETTINGS,
    ),
]
Exact: TypeAlias = Annotated[
    bool, option("--exact", "Compare whole keys, not only their 96-bit fingerprints.", RULES)
]
IncludeActive: TypeAlias = Annotated[
    bool,
    option(
        "--include-active",
        "Include the active segment. Use this only if no broker appends to the log any more.",
        RULES,
    ),
]
Unclean: TypeAlias = Annotated[
    bool,
    option(
        "--unclean",
        "Continue although the broker was killed (RocketMQ) or the topic's compacted ledger is "
        "lost (Pulsar).",
        SETTINGS,
    ),
]
DropKeyless: TypeAlias = Annotated[
    bool,
    option(
        "--drop-keyless",
        "Drop records without a key. By default, a partition that contains one is left unchanged.",
        KAFKA,
    ),
]
DropExpiredDeletes: TypeAlias = Annotated[
    bool,
    option(
        "--drop-expired-deletes",
        "Run a round even if nothing is dirty, to drop the tombstones whose "
        "delete.retention.ms has passed. Meant for archives, to which no producer "
        "writes.",
        RULES,
    ),
]
LikeBroker: TypeAlias = Annotated[
    bool,
    option(
        "--like-broker", "Rewrite and merge every segment of the range, as the broker does.", RULES
    ),
]
KeepScans: TypeAlias = Annotated[
    bool,
    option(
        "--keep-scans",
        "Store the scan of each segment (16 bytes per record) next to the log or in "
        "the archive, and use stored scans instead of reading again. A round does not"
        " check the checksums of segments whose scan is stored.",
        KAFKA,
    ),
]
Key: TypeAlias = Annotated[
    str | None, option("--key TEXT", "Only records with this key, given as UTF-8 text.", SELECTION)
]
KeyBase64: TypeAlias = Annotated[
    str | None,
    option("--key-base64 TEXT", "Only records with this key, given as base64.", SELECTION),
]
KeyHex: TypeAlias = Annotated[
    str | None,
    option(
        "--key-hex DIGITS", "Only records with this key, given as hexadecimal digits.", SELECTION
    ),
]

KeyFormat: TypeAlias = Annotated[
    str,
    option(
        "--key-format NAME",
        "The format of keys: raw, utf8, json, avro, protobuf or confluent.",
        DECODING,
    ),
]
ValueFormat: TypeAlias = Annotated[
    str,
    option(
        "--value-format NAME",
        "The format of values: raw, utf8, json, avro, protobuf or confluent.",
        DECODING,
    ),
]
KeySchema: TypeAlias = Annotated[
    str | None,
    option(
        "--key-schema FILE",
        "The schema of keys: .avsc, .json (JSON Schema), .proto or .desc.",
        DECODING,
    ),
]
ValueSchema: TypeAlias = Annotated[
    str | None,
    option("--value-schema FILE", "The schema of values, in the same file types.", DECODING),
]
KeyMessage: TypeAlias = Annotated[
    str | None,
    option(
        "--key-message NAME",
        "Protobuf: the message type of keys, if the schema has several.",
        DECODING,
    ),
]
ValueMessage: TypeAlias = Annotated[
    str | None,
    option(
        "--value-message NAME",
        "Protobuf: the message type of values, if the schema has several.",
        DECODING,
    ),
]
SchemaRegistry: TypeAlias = Annotated[
    str | None,
    option(
        "--schema-registry PLACE",
        "Format confluent: the URL of the registry, or a folder of schemas.",
        DECODING,
    ),
]
OnBad: TypeAlias = Annotated[
    str,
    option(
        "--on-bad WORD",
        "Action if a key or value cannot be decoded: fail, or null (write null and the reason).",
        DECODING,
    ),
]

DEFAULT_MASTER = "local[*]"


def decoding(context: typer.Context, *, is_given: bool = False) -> DecodingOptions:
    """The values of a command's options for decoding keys and values.

    With ``is_given``, only the options that the user gave.
    """
    # imported only when needed, so that --help is fast
    from lastwrite.decoding.options import DecodingOptions

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
    """The key of ``--key``, ``--key-base64`` or ``--key-hex``. Returns None without these options.

    Raises:
        InvalidConfig: several of them were given, or the text is not valid base64 or hexadecimal.
    """
    if sum(given is not None for given in (text, coded, digits)) > 1:
        raise InvalidConfig(
            "--key, --key-base64 and --key-hex exclude each other: give one of them"
        )
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
    """The settings of ``--config-file`` and ``--config``. ``--config`` overrides the file.

    Unknown names in a file are skipped, and reported in a note. Names of ``--config`` are checked
    later.

    Args:
        unclean: the setting ``unclean``, which has its own option.

    Raises:
        InvalidConfig: ``=`` is missing, a name appears twice, or the file cannot be read.
    """
    found: dict[str, object] = {}
    if config_file is not None:
        from lastwrite.commands.config_file import split_known_settings
        from lastwrite.config.properties import decode_properties

        known, note = split_known_settings(decode_properties(_text_of(config_file)), config_file)
        found.update(known)
        if note is not None:
            output.say(f"lastwrite: {note}")
    found.update(pairs("--config", config))
    if unclean:
        found["unclean"] = True
    return found


def topic_settings(given: Sequence[str] | None, file: str | None) -> list[tuple[str, str, object]]:
    """The settings of single topics as (pattern, name, value).

    Settings of ``--topic-config-file`` come first. Later settings override earlier ones.

    Raises:
        InvalidConfig: a text is not ``TOPIC:NAME=VALUE``, or the file cannot be read.
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
    """Parse texts of the form ``name=value`` to a dictionary.

    Raises:
        InvalidConfig: ``=`` is missing, or a name appears twice.
    """
    found: dict[str, str] = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise InvalidConfig(f"{option} {text!r} does not have the form NAME=VALUE")
        if name.strip() in found:
            raise InvalidConfig(f"{option} gives {name.strip()} twice")
        found[name.strip()] = value.strip()
    return found


def system_at(path: str, system: str | None) -> Callable[[], str]:
    """A function that detects the system (Kafka, RocketMQ or Pulsar) of the files at ``path``."""

    def ask() -> str:
        from lastwrite.commands.systems import AUTOMQ, KAFKA, PULSAR, system_of

        if system == AUTOMQ:
            return KAFKA
        return PULSAR if path.startswith("persistent://") else system_of(path, system)

    return ask
