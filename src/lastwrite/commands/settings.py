"""``settings``: the settings of each topic and where they come from, without reading a log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lastwrite.commands.selection import TopicConfig, find_partitions, overrides, paths_of
from lastwrite.config.system import SettingSources
from lastwrite.reports.settings import OverriddenSetting, Setting, SettingsReport, TopicSettings
from lastwrite.storage.choice import Topics


def settings(
    path: str | Sequence[str],
    *,
    system: str | None = None,
    topic: Topics = None,
    config: Mapping[str, object] | None = None,
    topic_config: TopicConfig | None = None,
    metadata: str | None = None,
) -> SettingsReport:
    """The settings that a compaction at ``path`` would use, by topic.

    Args:
        path, system, config, topic_config, metadata: as for ``compact``.
        topic: as for ``compact``, including the effect of naming a topic.

    Raises:
        NotALog, InvalidConfig: nothing was read.
        CorruptLog: the cluster's metadata is damaged.
    """
    sources = SettingSources(overrides=overrides(topic_config), metadata=metadata)
    found, folders = find_partitions(paths_of(path), system, topic, None, sources)
    stated = dict(config or {})
    found.check_config(stated)
    topics: dict[tuple[str, tuple[Setting, ...]], TopicSettings] = {}
    notes: dict[tuple[str, str], OverriddenSetting] = {}
    for folder in folders:
        name = found.name_of(folder)
        listed = found.settings_of(folder, stated)
        # Topics are grouped by name and settings: two clusters may have topics with the same name.
        place = (name.topic, listed)
        if place not in topics:
            alone = found.why_unmanaged(folder, stated)
            topics[place] = TopicSettings(name.topic, listed, None if alone is None else str(alone))
        topics[place].folders.append(folder)
        notes |= {(each.topic, each.name): each for each in found.outvoted(folder, stated)}
    return SettingsReport(
        found.name, [topics[place] for place in sorted(topics)], list(notes.values())
    )
