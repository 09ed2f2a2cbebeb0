"""``release``: releases partitions that the cleaner has quarantined after a failure."""

from __future__ import annotations

import os
from collections.abc import Mapping

from lastwrite.commands.systems import system_at
from lastwrite.config.stores import store_settings
from lastwrite.errors import NotALog
from lastwrite.model.log import TopicPartition
from lastwrite.reports.compaction import Quarantined
from lastwrite.storage import quarantine
from lastwrite.storage.choice import Topics, is_selected
from lastwrite.storage.objects.address import use


def release(
    path: str,
    *,
    system: str | None = None,
    topic: Topics = None,
    partition: int | None = None,
    config: Mapping[str, object] | None = None,
) -> dict[TopicPartition, Quarantined]:
    """Release quarantined partitions, so that the daemon compacts them like any other partitions.

    Args:
        path: a log root, a partition's folder, one of its files, or the address of an archive.
        system: ``kafka``, ``rocketmq`` or ``pulsar``. None means: detect it from the files.
        topic, partition: selection as for ``compact``. None means all.
        config: settings ``storage.*`` of the object store.

    Returns:
        The released partitions, each with its entry, which describes the failure.

    Raises:
        NotALog: there is no log at ``path``.
        LogHeld: a broker has the root open.
        RemoteFailed: the object store does not answer.
    """
    use(store_settings(config))
    found = system_at(str(path), system)
    roots: dict[str, set[TopicPartition]] = {}
    try:
        for folder in found.find(str(path), topic, partition):
            roots.setdefault(found.root_of(folder), set()).add(found.name_of(folder))
    except NotALog:
        if not os.path.exists(os.path.join(path, quarantine.FILE)):
            raise
        # The partitions were deleted, but the quarantine list still has entries for them.
        roots[str(path)] = {
            name
            for name in quarantine.read_quarantine(str(path), found.notes)
            if is_selected(topic, found.topic_names(name)) and partition in (None, name.partition)
        }
    released = {}
    for root, names in sorted(roots.items()):
        released.update(quarantine.release(root, names, found.notes))
    return released
