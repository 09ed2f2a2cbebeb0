"""``release``: let the cleaner try partitions again that it has set aside."""

from __future__ import annotations

import os
from collections.abc import Mapping

from lastwrite.commands.systems import system_at
from lastwrite.config.stores import store_settings
from lastwrite.errors import NotALog
from lastwrite.model.log import TopicPartition
from lastwrite.reports.compaction import Quarantined
from lastwrite.storage import quarantine
from lastwrite.storage.choice import Topics, is_asked
from lastwrite.storage.objects.address import use


def release(
    path: str,
    *,
    system: str | None = None,
    topic: Topics = None,
    partition: int | None = None,
    config: Mapping[str, object] | None = None,
) -> dict[TopicPartition, Quarantined]:
    """Forget that rounds of the partitions at ``path`` failed: the daemon picks them like any
    other.

    Args:
        path: a log root, a partition's folder, or one of its files; or an archive's address.
        system: ``kafka``, ``rocketmq`` or ``pulsar``; None: what lies there.
        topic, partition: which of what lies there, as for ``compact``; None: all.
        config: ``storage.*``, how the store is reached.

    Returns:
        What was released, with the reason it was set aside for.

    Raises:
        NotALog: no log lies there.
        LogHeld: a broker holds the root.
        RemoteFailed: the store does not answer.
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
        # Nothing of it is left but the note.
        roots[str(path)] = {
            name
            for name in quarantine.read_quarantine(str(path), found.notes)
            if is_asked(topic, found.topic_names(name)) and partition in (None, name.partition)
        }
    released = {}
    for root, names in sorted(roots.items()):
        released.update(quarantine.release(root, names, found.notes))
    return released
