"""``fetch`` of live topics: fetches queues concurrently, by offset, from brokers into an archive.

    broker      0 ── 12 ─ ─ 590 ── 900 ── 1366           compacted up to 950
    archive     0 ───────────────── 900                   ends at 900
    fetched                         900 ── 1366, and deletes among the missing offsets

A broker's compaction drops a delete together with the messages that it deletes. So offsets missing
after the archive's end are searched in the commit log one by one, and deletes are fetched from
there. If the commit log no longer has them, the queue is not fetched. In a new archive a missing
delete is harmful only if a message that it deletes was fetched before compaction dropped both. So
if offsets are missing, the fetched offsets are pulled again and compared.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from hashlib import blake2b
from threading import Lock
from typing import TypeVar

import numpy as np
from msgspec import structs

from lastwrite.archive.following import FollowRequest
from lastwrite.archive.ingest import fetch_with_retry, hold_reason_of, max_parallel
from lastwrite.archive.layout import partition_address
from lastwrite.errors import InvalidConfig, LogError, NotALog, NotContinued, RemoteFailed
from lastwrite.model.columns import ByteArray
from lastwrite.model.log import TopicPartition
from lastwrite.model.progress import Progress
from lastwrite.model.work import Limits, Throttle
from lastwrite.reports.fetching import FetchedLog, HoldReason, LogsFetched
from lastwrite.reports.settings import Override
from lastwrite.rocketmq.format import names
from lastwrite.rocketmq.format.kernels import MessageTable
from lastwrite.rocketmq.format.sides import CLEANUP_POLICY, COMPACTION_POLICY, TopicConfig
from lastwrite.rocketmq.network.access import RequestCredentials
from lastwrite.rocketmq.network.client import RocketmqClient
from lastwrite.rocketmq.network.patience import Patience
from lastwrite.rocketmq.network.pulling import Puller, reject_reader_with_holes
from lastwrite.rocketmq.network.route import MessageQueue
from lastwrite.rocketmq.rules.live_settings import (
    SCHEME,
    ClusterAddress,
    RocketmqClientConfig,
    cluster_of,
    rules_of,
)
from lastwrite.rocketmq.rules.settings import RocketmqConfig
from lastwrite.rocketmq.store import fetching
from lastwrite.rocketmq.store.archive_writer import QueueArchiveWriter
from lastwrite.rocketmq.store.archived import SYSTEM, ArchivedQueue
from lastwrite.rocketmq.store.fetching import digest, is_delete
from lastwrite.storage.choice import Topics, check_there, choose, is_named, is_selected
from lastwrite.storage.objects.promises import reject_if_broken
from lastwrite.storage.throttle import Pacer

T = TypeVar("T")

_DECLARED = ("compact", COMPACTION_POLICY.lower())  # values of cleanup.policy that mean compaction
_OWN_TOPICS = ("RMQ_SYS_", "rmq_sys_", "%RETRY%", "%DLQ%", "TBW102", "SCHEDULE_TOPIC_XXXX")


@dataclass(frozen=True, slots=True)
class BrokerQueue:
    """A queue of a live broker to fetch."""

    queue: MessageQueue
    topic: TopicConfig | None
    is_compacted: bool  # whether the broker compacts the queue, so that offsets have gaps
    file_bytes: int  # size of a file of the queue's compaction log, if one exists

    @property
    def name(self) -> TopicPartition:
        return TopicPartition(self.queue.topic, self.queue.queue)


def fetch_live(request: FollowRequest) -> LogsFetched:
    """Fetch topics of a cluster into an archive, once.

    Each queue is fetched up to its end at the start of its fetch. A queue that is damaged, or that
    does not continue the archive, is skipped; the others are fetched. Without a topic name or with
    a pattern, only topics that brokers compact are fetched. The override ``cleanup.policy=compact``
    adds a topic that no broker compacts.

    Raises:
        NotALog: the topic does not exist, or no topic is compacted.
        InvalidConfig: a setting or the URL is invalid, or a topic is on several brokers.
        RemoteFailed: no name server answers, or a broker may skip messages.
    """
    if len(request.sources) > 1:
        raise InvalidConfig(
            "several sources were given, but one command fetches from one live cluster",
            remedy="run one command for each cluster",
        )
    address = cluster_of(request.sources[0])
    reject_if_broken(request.to)
    with closing(
        RocketmqSyncContext(
            address,
            request.config(),
            request.to,
            request.limits,
            request.progress,
            accepts_gap=request.accepts_gap,
        )
    ) as run:
        asked = (address, request.topic, request.partition, request.overrides)
        sources = run.call(lambda client: sources_of(client, *asked))
        request.progress.stage("fetch", 0)
        with ThreadPoolExecutor(max_parallel(), "fetch") as pool:
            coming = pool.map(run.fetch, sources)
            try:
                return LogsFetched(archive=request.to, partitions=tuple(coming))
            except BaseException:  # on Ctrl-C: discard what has arrived since the last commit
                run.stop()
                raise


# ---------------------------------------------------------------------- choosing queues


def sources_of(
    client: RocketmqClient,
    address: ClusterAddress,
    topic: Topics,
    partition: int | None,
    overrides: Sequence[Override],
) -> list[BrokerQueue]:
    """The queues that the user requested.

    Raises:
        NotALog, InvalidConfig, RemoteFailed: as in ``fetch_live``.
    """
    path = f"{SCHEME}{address}"
    known = topics_of(client, address)
    for text in [topic] if isinstance(topic, str) else topic or ():
        check_there(text, [(each,) for each in known], path)
    found: dict[str, BrokerQueue] = {}
    for name in known:
        if is_requested(name, topic):
            named = is_named(topic, (name,))
            for source in queues_of(client, address, name, named, overrides):
                found[str(source.name)] = source
    if not found:
        raise NotALog(
            "the cluster has no topic with cleanup.policy=COMPACTION",
            path=path,
            remedy="name a topic with --topic, and declare it as compacted with --topic-config "
            "TOPIC:cleanup.policy=compact",
        )
    listed = ((each.name, key) for key, each in found.items())
    return [found[key] for key in choose(listed, None, partition, path, unit="queue")]


def topics_of(client: RocketmqClient, address: ClusterAddress) -> list[str]:
    """The names of the cluster's topics.

    Raises:
        RemoteFailed: no server answers, or no broker is registered.
    """
    known = client.topics()
    if known:
        return known
    raise RemoteFailed(
        "no broker is registered with the name server yet",
        path=f"{SCHEME}{address}",
        remedy="check that a broker runs and is configured with this name server",
    )


def is_requested(name: str, topic: Topics) -> bool:
    """Whether the user requested a topic. RocketMQ's internal topics must be requested by name."""
    is_own = name.startswith(_OWN_TOPICS) and not is_named(topic, (name,))
    return not is_own and is_selected(topic, (name,))


def queues_of(
    client: RocketmqClient,
    address: ClusterAddress,
    topic: str,
    is_named: bool,
    overrides: Sequence[Override],
) -> list[BrokerQueue]:
    """The queues of one topic; empty if no broker compacts it.

    Raises:
        NotALog, InvalidConfig, RemoteFailed: as in ``fetch_live``. A missing or uncompacted topic
            raises only if ``is_named``.
    """
    queues = _queues_of(client, address, topic)
    settings = client.topic_config(queues[0]) if queues else None
    is_compacted = settings is not None and settings.is_compacted
    if not queues or not (is_compacted or _is_declared(topic, overrides)):
        if is_named:
            raise _refusal(topic, f"{SCHEME}{address}", bool(queues))
        return []
    if settings is not None and settings.has_batch_queues:
        raise InvalidConfig(
            f"{topic} has batch consume queues, which fetch does not support",
            remedy="name the other topics with --topic",
        )
    broker = queues[0].broker
    if is_compacted:
        reject_reader_with_holes(client, broker)
    size = _file_bytes(client, broker)
    return [BrokerQueue(queue, settings, is_compacted, size) for queue in queues]


def _queues_of(client: RocketmqClient, address: ClusterAddress, topic: str) -> list[MessageQueue]:
    route = client.find_route(topic)
    readable = () if route is None else route.readable
    brokers = sorted({queue.broker for queue in readable})
    if address.broker is None and len(brokers) > 1:
        raise InvalidConfig(
            f"{topic} is on {len(brokers)} brokers, and their queues have the same numbers",
            path=f"{SCHEME}{address}",
            remedy=f"name one broker in the address: {SCHEME}{address}/{brokers[0]}; fetch each "
            f"broker into another --to; the brokers are {', '.join(brokers)}",
        )
    return [queue for queue in readable if address.broker in (None, queue.broker)]


def _is_declared(topic: str, overrides: Sequence[Override]) -> bool:
    """Whether the user declares the topic as compacted with ``--topic-config``."""
    said = [each for each in overrides if each.name == CLEANUP_POLICY and each.covers(topic)]
    return bool(said) and str(said[-1].value).strip().lower() in _DECLARED


def _refusal(topic: str, path: str, has_queues: bool) -> LogError:
    if not has_queues:
        return NotALog(
            f"{topic} has no readable queue at this address",
            path=path,
            remedy="check the topic's perm and the broker name in the address",
        )
    return InvalidConfig(
        f"no broker compacts {topic}: its cleanup.policy is not COMPACTION",
        path=path,
        remedy="if only the last message of each key counts, give --topic-config "
        f"{topic}:cleanup.policy=compact",
    )


def _file_bytes(client: RocketmqClient, broker: str) -> int:
    """The size of a compaction log file, from the broker's settings, or else by default."""
    sizes = {
        "compactionMappedFileSize": names.DEFAULT_COMPACTION_LOG_BYTES,
        "compactionCqMappedFileSize": names.DEFAULT_COMPACTION_QUEUE_BYTES,
    }
    try:
        told = client.broker_config(broker)
        return names.log_sizes(*(int(told.get(name, size)) for name, size in sizes.items()))[0]
    except (RemoteFailed, ValueError):  # some brokers answer only authorized clients
        return names.log_sizes(*sizes.values())[0]


# ---------------------------------------------------------------------- fetching


class _QueueChanged(Exception):
    """Raised if the broker's compaction dropped fetched messages during the fetch."""


@dataclass(frozen=True, slots=True)
class QueueSyncState:
    """The state of a fetched queue: its end, and values that change with new messages."""

    end_offset: int
    asked_ms: int  # time of the request for the bounds; the archive has all earlier messages
    cluster_state: tuple[object, ...]


class RocketmqSyncContext:
    """The state that all queues of a fetch share. With ``follows``, all polls share it.

    ``levels`` has the state of each fetched queue; an unchanged queue is not fetched again.
    ``ends`` has the end offset of each queue at the last request.
    """

    def __init__(
        self,
        address: ClusterAddress,
        config: Mapping[str, object],
        to: str,
        limits: Limits,
        progress: Progress,
        follows: bool = False,
        accepts_gap: bool = False,
    ) -> None:
        self._address = address
        self._accepts_gap = accepts_gap
        self._config = RocketmqClientConfig.from_names(config)
        RocketmqConfig.from_names(rules_of(config))
        self._access = RequestCredentials(self._config)
        self._patience = Patience(self._config.api_timeout_ms / 1000)
        self._to = to
        self._pacer = Pacer(limits.reading[0] if limits.reading else Throttle("", math.inf))
        self._progress = progress
        self._follows = follows
        self._lock = Lock()
        self._clients: list[RocketmqClient] = []  # idle clients
        self.levels: dict[TopicPartition, QueueSyncState] = {}
        self.ends: dict[TopicPartition, int] = {}

    def call(self, ask: Callable[[RocketmqClient], T]) -> T:
        """Call ``ask``, which sends a request, until a server answers. Return the result.

        Raises:
            RemoteFailed: no server answers within the limit.
        """
        with self._client() as client:
            return self._patience.until_answered(lambda: ask(client), client.close_connections)

    @contextmanager
    def _client(self) -> Iterator[RocketmqClient]:
        """A client for one thread. Its connections are reused by later calls."""
        with self._lock:
            client = self._clients.pop() if self._clients else None
        if client is None:
            timeout = self._config.request_timeout_ms / 1000
            servers = self._address.name_servers
            client = RocketmqClient(servers, timeout, self._access, self._patience)
        try:
            yield client
        except BaseException:
            client.close()
            raise
        with self._lock:
            self._clients.append(client)

    def fetch(self, source: BrokerQueue) -> FetchedLog:
        """Fetch one queue. Retries if another command has changed the archive."""
        name = source.name
        found = FetchedLog(
            topic=name.topic,
            partition=name.partition,
            source=f"{SCHEME}{self._address}/{source.queue.broker}/{name}",
            folder=partition_address(self._to, SYSTEM, name.topic, name.partition),
        )
        return fetch_with_retry(found, lambda: self._fetch(source, found))

    def _fetch(self, source: BrokerQueue, found: FetchedLog) -> FetchedLog:
        name = source.name
        with self._client() as client:
            puller = Puller(client, source.queue, self._patience)
            asked_ms = time.time_ns() // 1_000_000
            bounds = puller.bounds()
            self.ends[name] = bounds[1]
            told = (bounds, puller.commit_bounds()[1], source.topic)
            level = self.levels.get(name)
            if level is not None and level.cluster_state == told:
                self.levels[name] = replace(level, asked_ms=asked_ms)
                end = level.end_offset
                return structs.replace(found, first_offset=end, end_offset=end)
            try:
                done = self._fetch_messages(source, puller, found, bounds, False)
            except _QueueChanged:
                done = self._fetch_messages(source, puller, found, bounds, True)
        if done.reason is not None:
            self.levels.pop(name, None)
            return done
        if self._follows:
            assert done.end_offset is not None
            self.levels[name] = QueueSyncState(done.end_offset, asked_ms, told)
        return done

    def _fetch_messages(
        self,
        source: BrokerQueue,
        puller: Puller,
        found: FetchedLog,
        bounds: tuple[int, int],
        looks_up: bool,
    ) -> FetchedLog:
        low, end = bounds
        walk = None
        intake = QueueArchiveWriter(
            found.folder, source.topic, found.source, source.file_bytes, self._follows
        )
        try:
            first = low if intake.is_new else intake.before.end_offset
            why = _find_divergence(puller, intake.before, end, source)
            if why is not None:
                words = f"{found.folder} cannot be continued: {why}"
                raise fetching.no_continuation(words, found.source, HoldReason.ANOTHER)
            looks_up = looks_up or not intake.is_new
            walk = _QueueWalk(source, puller, intake, first, looks_up, self._accepts_gap)
            for data, table in puller.records(first, end):
                walk.take(data, table)
                size = int(table["size"].sum())
                with self._lock:
                    self._progress.advance(size)
                self._pacer.throttle(size)
            walk.end(end)
            return intake.finish(max(end, first)).of(found)
        except RemoteFailed as error:
            part = intake.keep() if walk is not None and walk.may_stop else None
            if part is None:
                intake.abandon()
                raise
            return structs.replace(part.of(found), reason=str(error), held=hold_reason_of(error))
        except BaseException:
            intake.abandon()
            raise

    def forget(self, name: TopicPartition) -> None:
        """Remove the state of a queue that no longer exists."""
        self.levels.pop(name, None)
        self.ends.pop(name, None)

    def stop(self) -> None:
        """Stop all fetches at their next message, or during their wait for a broker."""
        self._pacer.stop()
        self._patience.stopped.set()

    def close(self) -> None:
        """Close all idle connections; the next request opens a new connection."""
        with self._lock:
            clients, self._clients = self._clients, []
        for client in clients:
            client.close()


class _QueueWalk:
    """Writes the messages of one queue to the archive, and checks missing offsets.

    With ``looks_up``, missing offsets are searched in the commit log. Otherwise ``end`` checks that
    they were missing before the first message arrived. With ``accepts_gap``, the archive records a
    gap for offsets that no log has.
    """

    def __init__(
        self,
        source: BrokerQueue,
        puller: Puller,
        intake: QueueArchiveWriter,
        first: int,
        looks_up: bool,
        accepts_gap: bool,
    ) -> None:
        self._source = source
        self._puller = puller
        self._intake = intake
        self._first = self._at = first
        self._looks_up = looks_up
        self._accepts_gap = accepts_gap
        self._offsets = blake2b(digest_size=16)  # digest of all fetched offsets
        # (end of the last gap, digest of the offsets before the gap)
        self._missing: tuple[int, str] | None = None

    @property
    def may_stop(self) -> bool:
        """Whether an incomplete fetch may be committed, so that the next fetch continues it.

        The next fetch searches missing offsets in the commit log, which may lack offsets of a
        compacted queue. So the first fetch of a compacted queue must be complete. Missing offsets
        may be lost messages until ``end`` has checked them.
        """
        return self._looks_up or not (self._source.is_compacted or self._missing)

    def take(self, data: ByteArray, table: MessageTable) -> None:
        """Write messages, with missing messages from the commit log inserted in offset order."""
        offsets = table["queue_offset"]
        expected = np.concatenate(([self._at], offsets[:-1] + 1))
        begin = 0
        for place in np.flatnonzero(offsets != expected).tolist():
            self._append(data, table[begin:place])
            begin = place
            # Without ``looks_up``, offsets missing before the first message are ignored, because a
            # delete there cannot apply to a fetched message.
            if self._looks_up or self._at > self._first:
                self._pass_over(int(offsets[place]), _record_of(data, table[place]))
        self._append(data, table[begin:])
        if self._looks_up:
            self._intake.commit_if_due()

    def end(self, end: int) -> None:
        """Handle offsets missing at the end of the queue.

        Raises:
            _QueueChanged: compaction dropped messages during the fetch.
            NotContinued: missing offsets may be deletes that the commit log no longer has.
        """
        if self._at < end and (self._looks_up or self._at > self._first):
            self._pass_over(end, None)
        if self._missing is None:
            return
        until, known = self._missing
        again = blake2b(digest_size=16)
        for _, table in self._puller.records(self._first, until):
            again.update(table["queue_offset"].tobytes())
        if again.hexdigest() != known:
            raise _QueueChanged

    def _append(self, data: ByteArray, table: MessageTable) -> None:
        if len(table):
            self._intake.append(data, table)
            self._at = int(table["queue_offset"][-1]) + 1
            self._offsets.update(table["queue_offset"].tobytes())

    def _pass_over(self, until: int, following: bytes | None) -> None:
        """Handle the missing offsets before ``until``, the offset of the record ``following``."""
        if not self._looks_up:
            self._missing = until, self._offsets.hexdigest()
            return
        first, is_proven = self._at, False
        offset = first - 1
        while (offset := offset + 1) < until:
            found = self._puller.original(offset, until - offset + 1)
            if found is None:
                if not self._accepts_gap:
                    raise self._lost(first, until, offset)
                end = min(until, max(offset + 1, self._puller.commit_bounds()[0]))
                self._intake.note_gap(offset, end)
                offset = end - 1
                continue
            message, record = found
            if self._source.is_compacted and not is_delete(message):
                continue
            if not is_proven and following is not None:
                self._prove_same(until, following)
                is_proven = True
            self._intake.append_record(record)
            self._at = offset + 1

    def _prove_same(self, offset: int, record: bytes) -> None:
        """Check that the commit log has the pulled message.

        A re-created topic may have another message at the same offset.
        """
        found = self._puller.original(offset)
        if found is None or digest(found[1]) != digest(record):
            words = (
                "the topic was deleted and created again: the commit log has another message "
                f"at queue offset {offset}"
            )
            raise fetching.no_continuation(words, self._puller.path, HoldReason.ANOTHER)

    def _lost(self, first: int, until: int, offset: int) -> NotContinued:
        if not self._source.is_compacted:
            words = (
                f"the broker no longer has the message of queue offset {offset}, and may have "
                f"lost others below {until}"
            )
            return fetching.no_continuation(words, self._puller.path, HoldReason.GAP, fetching.GAP)
        words = (
            f"the broker compacted queue offsets {first} to {until - 1}, and the commit log no "
            f"longer has offset {offset}: deletes that the archive needs may be lost"
        )
        return fetching.no_continuation(words, self._puller.path, HoldReason.DELETES, fetching.GAP)


def _record_of(data: ByteArray, row: np.void) -> bytes:
    return data[int(row["position"]) : int(row["position"] + row["size"])].tobytes()


# ---------------------------------------------------------------------- refused fetches


def _find_divergence(
    puller: Puller, before: ArchivedQueue, end: int, source: BrokerQueue
) -> str | None:
    """The reason why the broker's queue does not continue the archive. Returns None if it does."""
    queue, known = source.queue, _broker_of(before.source)
    if known not in (None, queue.broker):
        return (
            f"the archive has the queue of broker {known}, and the source is the queue of "
            f"broker {queue.broker}"
        )
    if end < before.end_offset:
        where = f"the broker's queue ends at offset {end}, and the archive at {before.end_offset}"
        return (
            f"{where}: the queue was truncated, the broker lags behind, or the topic was "
            "deleted and created again"
        )
    if source.is_compacted and (ends := puller.commit_bounds()[1]) < end:
        return (
            f"the broker's compaction log ends at queue offset {end}, and its consume queue at "
            f"{ends}: the topic was deleted and created again, or its newest messages were "
            f"lost. Until the consume queue passes offset {end}, the broker serves old messages "
            "instead of new ones"
        )
    if not before.end_offset:
        return None
    return _last_differs(puller, before, source.is_compacted)


def _last_differs(puller: Puller, before: ArchivedQueue, is_compacted: bool) -> str | None:
    """Why the archive's last message differs from the broker's. None if they are equal."""
    end = before.end_offset
    last = puller.last_before(end)
    found = None
    if last is not None:
        row = last[1][-1]
        offset, stored_ms = int(row["queue_offset"]), int(row["store_time"])
        if stored_ms > before.last_stored_ms:
            return (
                f"the topic was deleted and created again: the message at queue offset {offset} "
                f"was stored at time {stored_ms}, and the archive had all messages below offset "
                f"{end} by time {before.last_stored_ms}"
            )
        pulled = digest(_record_of(last[0], row))
        # Compare with the commit log too, because a broker keeps the compaction log of a deleted
        # topic, and serves it for a new topic of the same name.
        original = puller.original(offset) if is_compacted else None
        if original is not None and digest(original[1]) != pulled:
            return (
                "the topic was deleted and created again: the commit log has another message "
                f"at queue offset {offset}. The broker serves messages of the old topic instead "
                "of new ones"
            )
        found = pulled if offset == end - 1 else None
    if before.last_message is None:
        return None
    if found is None:
        original = puller.original(end - 1)
        found = None if original is None else digest(original[1])
    if found not in (None, before.last_message):
        return (
            "the topic was deleted and created again: the archive has another message at queue "
            f"offset {end - 1}"
        )
    return None


def _broker_of(source: str) -> str | None:
    """The broker name in ``source`` of a manifest. None if the source is a store."""
    return source.rsplit("/", 2)[1] if source.startswith(SCHEME) else None
