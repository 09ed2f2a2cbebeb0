"""The topics of a store, from its settings file and its compaction logs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from lastwrite.errors import LogError
from lastwrite.model.log import Problem, TopicPartition
from lastwrite.rocketmq.format import names
from lastwrite.rocketmq.format.sides import TopicConfig, decode_topics
from lastwrite.rocketmq.store.live_files import settled
from lastwrite.rocketmq.store.reading import StoreFolder, list_queues
from lastwrite.storage.problems import problem_of
from lastwrite.storage.reading import read_small

MOST_QUEUES = 1 << 10  # largest number of queues that a topic's settings add


def read_topics(root: str) -> dict[str, TopicConfig]:
    """The settings of the topics in ``config/topics.json`` by name. Empty without a file.

    As in a broker, the ``.bak`` is used if the file is missing or damaged.

    Raises:
        CorruptLog: no file is valid, and at least one exists.
    """
    problem: LogError | None = None
    for path in (_path(root), _path(root) + names.BACKUP_SUFFIX):
        if os.path.isfile(path):
            try:
                return decode_topics(read_small(path))
            except LogError as error:
                problem = problem or error.located(path)
    if problem is not None:
        raise problem
    return {}


def topics_or_none(root: str | None, note: Callable[[Problem], None]) -> dict[str, TopicConfig]:
    """The topics of ``config/topics.json``, without its backup.

    If the file is damaged, returns no topics and calls ``note`` with the problem.
    """
    path = "" if root is None else _path(root)
    if os.path.isfile(path):
        try:
            return settled(root, lambda: decode_topics(read_small(path)))
        except LogError as error:
            note(problem_of(error, path))
    return {}


def all_queues(root: str, topics: Mapping[str, TopicConfig]) -> list[TopicPartition]:
    """The queues that have a folder of any kind, then the other queues of ``topics``."""
    parts = (
        StoreFolder.CONSUME_QUEUE,
        StoreFolder.BATCH_QUEUE,
        StoreFolder.EXTENSION,
        StoreFolder.COMPACTION_LOG,
        StoreFolder.COMPACTION_INDEX,
    )
    on_disk = {name for part in parts for name in list_queues(root, part)}
    set_up = {
        TopicPartition(name, queue)
        for name, topic in topics.items()
        for queue in range(min(max(topic.read_queues, topic.write_queues), MOST_QUEUES))
    }
    return [*sorted(on_disk), *sorted(set_up - on_disk)]


def _path(root: str) -> str:
    return os.path.join(root, names.CONFIG, names.TOPICS)


def compacted_queues(root: str, topic: str) -> list[int]:
    """The queues of a topic with a compaction log, ascending."""
    return [
        name.partition
        for name in list_queues(root, StoreFolder.COMPACTION_LOG)
        if name.topic == topic
    ]


def compacted_topics(root: str) -> list[str]:
    """The topics with a compaction log, sorted."""
    return sorted({name.topic for name in list_queues(root, StoreFolder.COMPACTION_LOG)})
