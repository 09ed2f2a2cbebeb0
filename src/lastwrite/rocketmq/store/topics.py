"""A store's topics: those that its settings name, and those that have compaction logs."""

from __future__ import annotations

import os

from lastwrite.errors import LogError
from lastwrite.rocketmq.format import names
from lastwrite.rocketmq.format.sides import Topic, decode_topics
from lastwrite.rocketmq.store.reading import Part, list_queues
from lastwrite.storage.reading import read_small


def read_topics(root: str) -> dict[str, Topic]:
    """The topics of ``config/topics.json`` by name, of its ``.bak`` where it is missing or empty,
    as a broker does; none where there is neither.

    Raises:
        CorruptLog: it is no such file.
    """
    path = os.path.join(root, names.CONFIG, names.TOPICS)
    for candidate in (path, path + names.BACKUP_SUFFIX):
        if os.path.isfile(candidate):
            data = read_small(candidate)
            if data.strip():
                try:
                    return decode_topics(data)
                except LogError as error:
                    raise error.located(candidate) from error
    return {}


def compacted_queues(root: str, topic: str) -> list[int]:
    """The queues of a topic that have a compaction log, ascending."""
    return [
        name.partition for name in list_queues(root, Part.COMPACTION_LOG) if name.topic == topic
    ]


def compacted_topics(root: str) -> list[str]:
    """The topics that have a compaction log, sorted."""
    return sorted({name.topic for name in list_queues(root, Part.COMPACTION_LOG)})
