"""``lastwrite settings``: shows each topic's settings and where they come from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from lastwrite.cli import options
from lastwrite.cli.output import Output
from lastwrite.reports.settings import OverriddenSetting, Setting, TopicSettings

_MOST_TOPICS = 3  # maximum number of topics in a note


EXAMPLES = """
lastwrite settings /data/1/kafka /data/2/kafka
lastwrite settings /restored --metadata /data/1/kafka --topic orders --all
"""


def settings(
    context: typer.Context,
    paths: options.PathsArgument,
    system: options.System = None,
    topic: options.Topics = None,
    config: options.Config = None,
    config_file: options.ConfigFile = None,
    topic_config: options.TopicConfig = None,
    topic_config_file: options.TopicConfigFile = None,
    metadata: options.Metadata = None,
    every: Annotated[
        bool, options.option("--all", "Include settings that are not set anywhere.")
    ] = False,
    json: options.Json = False,
) -> int:
    """Show the settings of each topic and where they come from.

    As in kafka-configs --describe, it prints the effective value, its source, and all values that
    were given, the effective one first. It reads no log.
    """
    import lastwrite

    output: Output = context.obj
    report = lastwrite.settings(
        paths,
        system=system,
        topic=topic,
        config=options.settings(output, config, config_file),
        topic_config=options.topic_settings(topic_config, topic_config_file),
        metadata=metadata,
    )
    if output.as_json:
        output.document(report)
        return report.exit_status
    for found in report.topics:
        output.text(_topic(found, every))
    output.text(outvoted_lines(report.notes))
    return report.exit_status


def _topic(found: TopicSettings, every: bool) -> Iterator[str]:
    yield f"{'All configs' if every else 'Configs'} for topic '{found.topic}':"
    for setting in found.settings:
        if every or setting.is_said:
            value = "?" if setting.value is None else setting.value
            yield f"  {setting.name}={value}  {_source(setting)}"
    if found.reason is not None:
        yield f"  {found.reason}"


def _source(setting: Setting) -> str:
    text = ", ".join(f"{word.source}:{word.name}={word.value}" for word in setting.said)
    return f"source={setting.source}  synonyms={{{text}}}"


def outvoted_lines(notes: Sequence[OverriddenSetting]) -> Iterator[str]:
    """A line for each ``--config`` setting that topics override: the topics and a remedy."""
    if notes:
        yield ""
    groups: dict[tuple[str, str, str, str], list[OverriddenSetting]] = {}
    for note in notes:
        groups.setdefault((note.name, note.stated, note.value, note.source), []).append(note)
    for alike in groups.values():
        if len(alike) == 1:
            yield f"note: {alike[0].message}; {alike[0].remedy}"
            continue
        names = ", ".join(note.topic for note in alike[:_MOST_TOPICS])
        more = (
            f" and {len(alike) - _MOST_TOPICS:,} more topics" if len(alike) > _MOST_TOPICS else ""
        )
        yield f"note: {alike[0].message_for(names + more)}; {alike[0].remedy}"
