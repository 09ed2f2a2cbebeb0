"""``fetch`` of RocketMQ's stores: several queues at once, each by ``store.fetching``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Lock

from msgspec import structs

from lastwrite.archive.layout import partition_address
from lastwrite.errors import CommitConflict, CorruptLog, InvalidConfig, LogError
from lastwrite.model.log import PartitionLog, ProblemKind
from lastwrite.model.progress import NoProgress, Progress
from lastwrite.model.work import Limits
from lastwrite.reports.fetching import FetchedLog, LogsFetched
from lastwrite.rocketmq.format.sides import Topic
from lastwrite.rocketmq.rules.settings import RocketmqConfig
from lastwrite.rocketmq.store import fetching
from lastwrite.rocketmq.store.archived import SYSTEM, is_archived
from lastwrite.rocketmq.store.topics import read_topics
from lastwrite.rocketmq.system import ROCKETMQ
from lastwrite.spark.memory import plan_memory
from lastwrite.storage.machine import core_count
from lastwrite.storage.objects.promises import refuse_if_broken

_MOST_AT_ONCE = 4  # kernels and requests run beside each other, Python does not
_RETENTION = "delete.retention.ms"


def fetch_queues(
    folders: Sequence[str],
    to: str,
    config: Mapping[str, object],
    include_active: bool,
    memory: str | int | None,
    progress: Progress | None,
) -> LogsFetched:
    """Bring the queues in ``folders`` into the archive ``to``. One that is damaged, or does not
    continue what the archive has, is not touched; the others are brought.

    Raises:
        LogHeld: somebody who is no broker works on them, or a broker was killed.
        InvalidConfig: they are of an archive.
        CorruptLog: the store's topics cannot be understood.
    """
    ROCKETMQ.check_config(config)
    refuse_if_broken(to)
    topics: dict[str, dict[str, Topic]] = {}
    for folder in folders:
        if is_archived(folder):
            raise InvalidConfig(
                "an archive already", path=folder, remedy="lastwrite compact --to copies archives"
            )
        root = ROCKETMQ.root_of(folder)
        ROCKETMQ.refuse_if_held(root, [ROCKETMQ.name_of(folder)])
        if root not in topics:
            ROCKETMQ.refuse_unclean(root, config)
            topics[root] = read_topics(root)
    at_once = min(_MOST_AT_ONCE, core_count())
    limits = plan_memory(memory, at_once).limits()
    one = _Fetch(to, config, include_active, limits, topics)
    progress = progress or NoProgress()
    progress.stage("fetch", sum(map(one.bytes_of, folders)))
    turn = Lock()

    def advance(done_bytes: int) -> None:
        with turn:
            progress.advance(done_bytes)

    with ThreadPoolExecutor(at_once) as pool:
        found = pool.map(partial(one.fetch, advance=advance), folders)
        return LogsFetched(archive=to, partitions=tuple(found))


class _Fetch:
    """What all queues of a call share."""

    def __init__(
        self,
        to: str,
        config: Mapping[str, object],
        include_active: bool,
        limits: Limits,
        topics: Mapping[str, Mapping[str, Topic]],
    ) -> None:
        self._to = to
        self._include_active = include_active
        self._limits = limits
        self._topics = topics
        # A broker keeps no delete; whoever has a round that does states how long.
        kept_ms = RocketmqConfig.from_names(config).delete_retention_ms
        self._kept_deletes_ms = kept_ms if _RETENTION in config else 0

    def bytes_of(self, folder: str) -> int:
        """What of the log may travel at most."""
        try:
            segments = ROCKETMQ.read(folder).segments
        except (LogError, OSError):  # its report will say so
            return 0
        return sum(each.size_bytes for each in segments[: None if self._include_active else -1])

    def _address(self, folder: str) -> str:
        name = ROCKETMQ.name_of(folder)
        return partition_address(self._to, SYSTEM, name.topic, name.partition)

    def fetch(self, folder: str, advance: fetching.Advance) -> FetchedLog:
        """Bring one queue; anew, twice at most, where it or the archive changed meanwhile."""
        for tries_left in (2, 1, 0):
            try:
                # Listed just now: those before may have taken hours.
                return self._fetch(ROCKETMQ.read(folder), advance)
            except (LogError, OSError) as error:
                if not isinstance(error, CommitConflict) or not tries_left:
                    return self._failed(folder, error)
        raise AssertionError("the last try returns")

    def _failed(self, folder: str, error: LogError | OSError) -> FetchedLog:
        name = ROCKETMQ.name_of(folder)
        return FetchedLog(
            topic=name.topic,
            partition=name.partition,
            source=folder,
            folder=self._address(folder),
            reason=str(error),
            is_damaged=isinstance(error, CorruptLog),
        )

    def _fetch(self, log: PartitionLog, advance: fetching.Advance) -> FetchedLog:
        folder, to, name = log.folder, self._address(log.folder), log.name
        found = FetchedLog(topic=name.topic, partition=name.partition, source=folder, folder=to)
        damage = next((problem for problem in log.problems if not problem.is_note), None)
        if damage is not None:
            return structs.replace(
                found, reason=str(damage), is_damaged=damage.kind is ProblemKind.DAMAGED
            )
        root = ROCKETMQ.root_of(folder)
        done = fetching.fetch(
            log,
            to,
            topic=self._topics[root].get(name.topic),
            source=root,
            kept_deletes_ms=self._kept_deletes_ms,
            include_active=self._include_active,
            limits=self._limits,
            advance=advance,
        )
        return structs.replace(
            found,
            first_offset=done.first_offset,
            end_offset=done.end_offset,
            segments=done.segments,
            size_bytes=done.bytes,
            is_new=done.is_new,
        )
