"""``fetch`` from RocketMQ stores: fetches several queues concurrently with ``store.fetching``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lastwrite.archive.ingest import (
    Advance,
    fetch_all,
    fetch_with_retry,
    max_parallel,
    rejected_report,
)
from lastwrite.archive.layout import partition_address
from lastwrite.errors import InvalidConfig, LogError
from lastwrite.model.log import PartitionLog
from lastwrite.model.progress import NoProgress, Progress
from lastwrite.model.work import Limits
from lastwrite.reports.fetching import FetchedLog, LogsFetched
from lastwrite.rocketmq.format.sides import TopicConfig
from lastwrite.rocketmq.rules.settings import RocketmqConfig
from lastwrite.rocketmq.store import fetching
from lastwrite.rocketmq.store.archived import SYSTEM, is_archived
from lastwrite.rocketmq.store.topics import read_topics
from lastwrite.rocketmq.system import ROCKETMQ
from lastwrite.spark.memory import plan_memory
from lastwrite.storage.objects.promises import reject_if_broken

_RETENTION = "delete.retention.ms"


def fetch_queues(
    folders: Sequence[str],
    to: str,
    config: Mapping[str, object],
    include_active: bool,
    memory: str | int | None,
    progress: Progress | None,
    accepts_gap: bool = False,
) -> LogsFetched:
    """Fetch the queues in ``folders`` into the archive ``to``.

    A queue that is damaged, or that does not continue the archive, is skipped; the others are
    fetched.

    Raises:
        LogHeld: another command has locked the queues, or a broker was killed.
        InvalidConfig: the queues are in an archive.
        CorruptLog: the store's topics cannot be read.
    """
    ROCKETMQ.check_config(config)
    reject_if_broken(to)
    topics: dict[str, dict[str, TopicConfig]] = {}
    for folder in folders:
        if is_archived(folder):
            raise InvalidConfig(
                "the source is already an archive",
                path=folder,
                remedy="to copy an archive, run lastwrite compact --to",
            )
        root = ROCKETMQ.root_of(folder)
        ROCKETMQ.reject_if_locked(root, [ROCKETMQ.name_of(folder)])
        if root not in topics:
            ROCKETMQ.reject_unclean(root, config)
            topics[root] = read_topics(root)
    limits = plan_memory(memory, max_parallel()).limits()
    one = _RocketmqFetch(to, config, include_active, limits, topics, accepts_gap)
    progress = progress or NoProgress()
    progress.stage("fetch", sum(map(one.bytes_of, folders)))
    return fetch_all(folders, to, one.fetch, progress)


class _RocketmqFetch:
    """Fetches queues one by one. Has the arguments that all queues of a call share."""

    def __init__(
        self,
        to: str,
        config: Mapping[str, object],
        include_active: bool,
        limits: Limits,
        topics: Mapping[str, Mapping[str, TopicConfig]],
        accepts_gap: bool,
    ) -> None:
        self._to = to
        self._include_active = include_active
        self._limits = limits
        self._topics = topics
        self._accepts_gap = accepts_gap
        # The default is 0, because a broker's compaction keeps no deletes. If Lastwrite compacts
        # the store, the user gives the retention of the deletes.
        kept_ms = RocketmqConfig.from_names(config).delete_retention_ms
        self._kept_deletes_ms = kept_ms if _RETENTION in config else 0

    def bytes_of(self, folder: str) -> int:
        """The largest number of bytes of a queue's log that its fetch may copy."""
        try:
            segments = ROCKETMQ.read(folder).segments
        except (LogError, OSError):  # the fetch of the queue reports the error
            return 0
        return sum(each.size_bytes for each in segments[: None if self._include_active else -1])

    def fetch(self, folder: str, advance: Advance) -> FetchedLog:
        """Fetch one queue."""
        name = ROCKETMQ.name_of(folder)
        found = FetchedLog(
            topic=name.topic,
            partition=name.partition,
            source=folder,
            folder=partition_address(self._to, SYSTEM, name.topic, name.partition),
        )
        # List the files again, because fetching the previous queues may have taken hours.
        return fetch_with_retry(found, lambda: self._fetch(ROCKETMQ.read(folder), found, advance))

    def _fetch(self, log: PartitionLog, found: FetchedLog, advance: Advance) -> FetchedLog:
        wrong = rejected_report(found, log)
        if wrong is not None:
            return wrong
        name, root = log.name, ROCKETMQ.root_of(log.folder)
        done = fetching.fetch(
            log,
            found.folder,
            topic=self._topics[root].get(name.topic),
            source=root,
            kept_deletes_ms=self._kept_deletes_ms,
            include_active=self._include_active,
            limits=self._limits,
            advance=advance,
            accepts_gap=self._accepts_gap,
        )
        return done.of(found)
