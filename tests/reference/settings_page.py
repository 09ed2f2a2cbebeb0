"""docs/reference/settings.md: the declared settings with type, default and meaning, by system."""

from __future__ import annotations

import math
from pathlib import Path

from lastwrite.config.cleaner import CleanerConfig
from lastwrite.config.declaration import INT_MAX, Declaration, SettingsTable
from lastwrite.config.stores import StoreConfig
from lastwrite.kafka.rules.live_settings import KafkaClientConfig
from lastwrite.kafka.rules.serve_settings import ServeConfig
from lastwrite.kafka.rules.settings import KafkaTopicConfig
from lastwrite.model.policy import LONG_MAX, LONG_MIN
from lastwrite.pulsar.rules.settings import PulsarConfig
from lastwrite.rocketmq.rules.dispatch_settings import DispatchConfig
from lastwrite.rocketmq.rules.live_settings import RocketmqClientConfig
from lastwrite.rocketmq.rules.settings import RocketmqConfig
from tests.reference.page import comments_of, escaped

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "settings.md"
_HEAD = """# Settings

Settings have the names of the system that they configure. Give them as `--config NAME=VALUE`, in a
`--config-file`, or in Python as `config={...}`. An unknown name is an error, and a similar name is
suggested. `lastwrite settings PATH` shows the effective value of each topic and its source.

If a setting has several names, the first one takes precedence. A broker's own file can be given as
it is, because names without an effect are accepted.

This page is generated from the code: `python -m tests.reference --write`.
"""
_TABLES: tuple[tuple[str, str, type[SettingsTable]], ...] = (
    (
        "Kafka: topics",
        "For `compact`, `plan`, `clean`, `verify` and `explain`. `--topic-config` sets the values of "
        "one topic and overrides every other source. The cluster's own values override `--config`.",
        KafkaTopicConfig,
    ),
    (
        "Kafka: clients of a live cluster",
        "For `fetch`, `restore`, `groups` and `clean --source` with `kafka://HOST:PORT`.",
        KafkaClientConfig,
    ),
    ("Kafka: serve", "For the listener of `lastwrite serve`.", ServeConfig),
    ("RocketMQ: compaction", "For stores and archives of RocketMQ.", RocketmqConfig),
    (
        "RocketMQ: clients of a live cluster",
        "For commands with `rocketmq://HOST:PORT`, and for `send`.",
        RocketmqClientConfig,
    ),
    (
        "RocketMQ: dispatch",
        "For `dispatch` and `cut`. Without a default, the value of the existing files applies, "
        "otherwise the broker's default.",
        DispatchConfig,
    ),
    (
        "Pulsar",
        "For topic folders, archives and live topics. The guide of "
        "[live topics](../guide/pulsar-live.md) lists the addresses and credentials of a cluster.",
        PulsarConfig,
    ),
    ("Daemon", "For `clean`, with every system.", CleanerConfig),
    (
        "Object stores",
        "For archives in buckets, with every system. Credentials are not settings: they are found "
        "[as the provider's own tools find them](../guide/archives-in-buckets.md).",
        StoreConfig,
    ),
)


def current_settings_page() -> str:
    """The page as it should be."""
    return "\n".join([_HEAD, *(_section(*each) for each in _TABLES)])


def undocumented_settings() -> list[str]:
    """The declared fields without a comment, from which their meaning could be generated."""
    return [
        f"{table.__name__}.{name}"
        for _, _, table in _TABLES
        for name in table.table()
        if not comments_of(table).get(name)
    ]


def _section(title: str, purpose: str, table: type[SettingsTable]) -> str:
    meanings = comments_of(table)
    lines = [f"## {title}", "", *_wrapped(purpose), ""]
    lines += ["| Setting | Type | Default | Meaning |", "|---|---|---|---|"]
    for name, known in table.table().items():
        names = ", ".join(f"`{each}`" for each, _ in known.names)
        meaning = escaped(meanings.get(name, ""))
        lines.append(f"| {names} | {_kind(known)} | {_default(known)} | {meaning} |")
    return "\n".join(lines) + "\n"


def _wrapped(text: str) -> list[str]:
    lines = [""]
    for word in text.split(" "):
        if len(lines[-1]) + len(word) >= 100:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".lstrip()
    return lines


def _kind(known: Declaration) -> str:
    default = known.default
    if known.choices:
        values = ", ".join(f"`{choice}`" for choice in known.choices)
        return f"list of {values}" if isinstance(default, tuple) else values
    if isinstance(default, bool):
        return "`true`, `false`"
    if isinstance(default, tuple):
        return "list with commas"
    if isinstance(default, str):
        return "text"
    kind = "number" if isinstance(default, float) else "integer"
    low = None if known.low == LONG_MIN else f"at least {known.low:,}"
    high = None if known.high in (LONG_MAX, INT_MAX, math.inf) else f"at most {known.high:,}"
    unit = _unit(known.names[0][0])
    return ", ".join(part for part in (f"{kind}{unit and f' ({unit})'}", low, high) if part)


def _unit(name: str) -> str:
    """The unit of the first name, which the name contains."""
    lower = name.lower()
    for end, unit in (
        ("bytes.per.second", "bytes per second"),
        ("bytespersecond", "bytes per second"),
        ("bytes", "bytes"),
        ("filesize", "bytes"),
        ("consumequeue", "bytes"),
        ("minutes", "minutes"),
        ("inmb", "MB"),
        ("inseconds", "s"),
    ):
        if lower.endswith(end):
            return unit
    if lower.endswith((".ms", "ms")) and not lower.endswith("mechanisms"):
        return "ms"
    return "bytes" if lower in ("compactionthreshold", "sasl.server.max.receive.size") else ""


def _default(known: Declaration) -> str:
    value = known.default
    if value is None or value == math.inf or value in ("", ()):
        return ""
    if value == LONG_MAX:
        return "no limit"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`{','.join(value)}`"
    return f"`{value // known.names[0][1] if isinstance(value, int) else value}`"
