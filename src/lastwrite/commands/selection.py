"""Evaluate the arguments that most commands share: paths, topics and settings.

This module does not import Spark, so that commands which only read start fast.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from lastwrite.commands.systems import system_of_all
from lastwrite.config.system import SettingSources
from lastwrite.engine.system import System
from lastwrite.errors import InvalidConfig, NotALog
from lastwrite.kafka.cluster.metadata_log import FOLDER as METADATA_FOLDER
from lastwrite.kafka.cluster.roots import META_PROPERTIES
from lastwrite.reports.settings import Override
from lastwrite.storage.choice import Topics, is_named
from lastwrite.storage.objects.address import real_path

TopicConfig: TypeAlias = Mapping[str, Mapping[str, object]] | Sequence[tuple[str, str, object]]


def paths_of(path: str | Sequence[str]) -> list[str]:
    """One or several paths as a list of texts without duplicates.

    Raises:
        InvalidConfig: no path was given.
    """
    given = [path] if isinstance(path, str | os.PathLike) else path
    paths = list(dict.fromkeys(map(str, given)))
    if not paths:
        raise InvalidConfig(
            "no path was given", remedy="give a log root, a partition's folder, or one of its files"
        )
    return paths


def overrides(topic_config: TopicConfig | None) -> tuple[Override, ...]:
    """The settings of single topics, in the order in which they were given.

    Raises:
        InvalidConfig: ``topic_config`` has neither form of ``TopicConfig``.
    """
    if isinstance(topic_config, Mapping):
        return tuple(
            Override(topic, name, v)
            for topic, inside in topic_config.items()
            for name, v in inside.items()
        )
    for each in topic_config or ():
        if isinstance(each, str) or len(each) != 3:
            raise InvalidConfig(
                f"topic_config contains {each!r}, which is not a setting of a topic",
                remedy="give {'orders': {'cleanup.policy': 'compact'}}, or triples such as "
                "('orders', 'cleanup.policy', 'compact')",
            )
    return tuple(Override(*each) for each in topic_config or ())


def find_partitions(
    paths: Sequence[str],
    system_name: str | None,
    topic: Topics,
    partition: int | None,
    sources: SettingSources,
) -> tuple[System, list[str]]:
    """The system of the files at ``paths``, with ``sources``, and the folders of the partitions.

    A partition counts as named if ``topic`` contains the name of its topic, or if a path is its
    folder or one of its files. A matching pattern is not enough.

    Raises:
        NotALog: there is no log at a path, or no path has the topic or the partition.
        InvalidConfig: the paths have files of several systems.
        CorruptLog: the metadata of the cluster is damaged, which affects all partitions.
    """
    system = system_of_all(system_name, paths, sources.metadata)
    found: dict[str, None] = {}
    named: set[str] = set()
    missing: NotALog | None = None
    for path in paths:
        try:
            here = system.find(path, None, None)
        except NotALog as error:
            is_root = any(
                os.path.exists(os.path.join(path, name))
                for name in (META_PROPERTIES, METADATA_FOLDER)
            )
            if len(paths) == 1 or not is_root:
                raise
            # no error yet: a log root without partitions may be one of several paths
            missing = error
            continue
        found |= dict.fromkeys(here)
        given = real_path(path)
        if len(here) == 1 and real_path(here[0]) in (given, os.path.dirname(given)):
            named.update(here)
    if not found and missing is not None:
        raise missing
    folders = system.choose(list(found), topic, partition, ", ".join(paths))
    named.update(
        folder for folder in folders if is_named(topic, system.topic_names(system.name_of(folder)))
    )
    roots = dict.fromkeys(map(system.root_of, folders)) | dict.fromkeys(
        map(os.path.realpath, filter(os.path.isdir, paths))
    )
    told = system.with_sources(replace(sources, roots=tuple(roots), named=frozenset(named)))
    folders = told.merge_tiers(folders)
    told.check_sources(folders)
    return told, folders
