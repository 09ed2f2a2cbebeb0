"""A cluster: its brokers, topics, partition leaders, topic settings and committed offsets.

Leaders move and brokers restart. Read requests are retried at the new leader for up to
``default.api.timeout.ms``.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, NamedTuple, TypeVar

from lastwrite.errors import LogError, NotALog, RemoteFailed
from lastwrite.kafka.format.text import topic_id_text
from lastwrite.kafka.network.access import tls_context
from lastwrite.kafka.network.connection import ConnectionBroken, KafkaConnection, RetriableError
from lastwrite.kafka.rules.live_settings import KafkaClientConfig
from lastwrite.kafka.rules.topic_settings import TopicMetadata
from lastwrite.model.log import TopicPartition
from lastwrite.reports.groups import UnreadPosition, unread_because

# Retriable error codes: waiting, or another leader, may resolve them.
_PASSING = {
    3: "the broker does not have the topic",
    5: "the partition has no leader",
    6: "the broker is no longer the partition's leader",
    7: "the request timed out in the broker",
    9: "a replica is not available",
    13: "the broker lost its connection to another broker",
    14: "the coordinator is still loading its state",
    15: "the coordinator is not available",
    16: "the broker is no longer the coordinator",
    19: "fewer replicas are in sync than min.insync.replicas requires",
    20: "fewer replicas are in sync than min.insync.replicas requires",
    41: "the broker is not the controller",
    51: "the previous transaction is still being completed",
    56: "the broker's disk failed",
    74: "another leader was elected",
    75: "the broker has not yet received the partition's current leader epoch",
    78: "the leader cannot serve the offset yet",
    88: "a transaction that commits the group's offset is still open",
    100: "the broker does not have a topic with this id",
    103: "the topic has another id in the broker",
}
_REFUSED = {
    29: "access to the topic is refused",
    30: "access to the group is refused",
    31: "access to the cluster is refused",
    53: "access to the transactional id is refused",
}
_READING = "Read and DescribeConfigs of the topic"
_OF_GROUP = "Describe of the group"
_UNKNOWN_TOPIC = (3, 100)
_AGAIN_S = 0.2
_FIRST_AGAIN_S = 0.01
_SHORT_S = 2.0
_TOPIC = 2  # resource type of a topic in DescribeConfigs
_NO_ID = bytes(16)
# Config sources of DescribeConfigs.
_OF_TOPIC, _OF_BROKER, _OF_BROKERS, _OF_FILE = 1, 2, 3, 4
_WORDS = {_OF_BROKER: "broker", _OF_BROKERS: "brokers", _OF_FILE: "file"}

# Error codes that mean that a group has no committed offsets, because it was deleted or is of
# another type.
_NO_GROUP = (24, 69)
_SHARE = "share"

T = TypeVar("T")


class GroupOffset(NamedTuple):
    """A consumer group's committed offset in a partition."""

    group: str
    offset: int  # offset of the next record to read
    leader_epoch: int  # leader epoch of the last record read; -1 if the commit has none
    metadata: str  # text committed by the client


@dataclass(frozen=True, slots=True)
class LiveTopic:
    """A topic, from the cluster's metadata."""

    name: str
    id: bytes  # 16 bytes; all zero if the broker is too old for topic ids
    is_internal: bool
    # node id of the leader (-1: none) and leader epoch, by partition number
    partitions: Mapping[int, tuple[int, int]]

    @property
    def id_text(self) -> str | None:
        """The topic id in Kafka's notation. None if the topic has no id."""
        return topic_id_text(self.id) if any(self.id) else None


class KafkaCluster:
    """The cluster that the brokers at ``bootstrap`` belong to. Safe to share between threads."""

    def __init__(self, bootstrap: Sequence[str], config: KafkaClientConfig) -> None:
        self._bootstrap = list(bootstrap)
        self._config = config
        self._tls = tls_context(config)
        self._brokers: dict[int, str] = {}
        self._controller = -1
        self._topics: dict[str, LiveTopic] = {}
        self._idle: dict[str, list[KafkaConnection]] = {}
        self._busy: set[KafkaConnection] = set()
        self._is_stopped = False
        self._records_s, self._failed_s = 0.0, -1.0
        self._lock = Lock()
        self.address = ",".join(bootstrap)

    def close(self) -> None:
        with self._lock:
            for connection in (each for idle in self._idle.values() for each in idle):
                connection.close()
            self._idle.clear()

    def stop(self) -> None:
        """Abort the requests of all threads. Later requests fail."""
        self._is_stopped = True
        for connection in list(self._busy):
            connection.shutdown()

    def __enter__(self) -> KafkaCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------ connections

    @contextlib.contextmanager
    def connection(self, address: str) -> Iterator[KafkaConnection]:
        """A connection to the broker for exclusive use. Reuses an idle connection if possible."""
        with self._lock:
            idle = self._idle.setdefault(address, [])
            connection = idle.pop() if idle else KafkaConnection(address, self._config, self._tls)
            self._busy.add(connection)
        try:
            if self._is_stopped:
                raise LogError(
                    "the command was stopped", remedy="run the command again to continue"
                )
            yield connection
        except BaseException:
            self._busy.discard(connection)
            connection.close()  # it is not reused, because an unread response may still arrive
            raise
        with self._lock:
            self._busy.discard(connection)
            self._idle.setdefault(address, []).append(connection)

    def request_any(self, name: str, doing: str, **values: object) -> Any:
        """Send a request to one broker after another. Returns the first response.

        Raises:
            RemoteFailed: no broker answers.
        """
        last: RemoteFailed | None = None
        for address in dict.fromkeys([*self._brokers.values(), *self._bootstrap]):
            try:
                with self.connection(address) as connection:
                    return connection.request(name, doing, **values)
            except RemoteFailed as error:
                last = error
        assert last is not None
        raise last

    @property
    def patience_s(self) -> float:
        """The number of seconds for which a request without progress is retried.

        Normally this is the full timeout. After a failed fetch it is at most ``_SHORT_S``, until a
        record of any partition arrives.
        """
        full = self._config.api_timeout_ms / 1000
        return min(full, _SHORT_S) if self._failed_s > self._records_s else full

    def note_records(self) -> None:
        """Note that records of a partition arrived.

        ``patience_s`` then returns the full timeout.
        """
        self._records_s = time.monotonic()

    def note_abandoned(self) -> None:
        """Note that a fetch failed after its last retry.

        ``patience_s`` then returns a short time.
        """
        self._failed_s = time.monotonic()

    def with_retries(
        self,
        work: Callable[[], T],
        since_s: float | None = None,
        advanced: Callable[[], int] = lambda: 0,
    ) -> T:
        """Call ``work``, and retry it with fresh metadata while its error is retriable.

        ``since_s`` is the monotonic time of the last progress; None means now. ``advanced`` returns
        a number that grows if a failed attempt has made progress.

        Raises:
            RemoteFailed: the error is not retriable, or ``patience_s`` has passed without progress.
        """
        begin_s = time.monotonic() if since_s is None else since_s
        far, tries = advanced(), 0
        while True:
            try:
                return work()
            except RemoteFailed as error:
                now_s, here = time.monotonic(), advanced()
                if here > far:
                    begin_s, far, tries = now_s, here, 0
                until = begin_s + self.patience_s
                if self._is_stopped or now_s >= until or not isinstance(error, RetriableError):
                    raise
                self.wait(until, tries if isinstance(error, ConnectionBroken) else None)
                tries += 1

    def reach(self) -> None:
        """Fetch the cluster's brokers and topics. Retries if connections break during the response.

        Raises:
            RemoteFailed: no broker answers.
        """
        try:
            self.refresh()
        except ConnectionBroken:
            self.with_retries(self.refresh)

    def wait(self, until: float, breaks: int | None = None) -> None:
        """Pause, then refresh the metadata.

        ``until`` is the latest monotonic time at which the pause may end. ``breaks`` is the number
        of earlier connections that broke without progress. None means that the connection did not
        break. While ``breaks`` is small, the pause is short and the metadata is not refreshed,
        because a broken connection does not show that a leader has moved.
        """
        pause_s = _AGAIN_S if breaks is None else min(_FIRST_AGAIN_S * 2**breaks, _AGAIN_S)
        time.sleep(max(0.0, min(pause_s, until - time.monotonic())))
        if pause_s < _AGAIN_S:
            return
        with contextlib.suppress(RemoteFailed):  # the next attempt reports the error
            self.refresh()

    # ------------------------------------------------------------------ topics

    @property
    def topics(self) -> Mapping[str, LiveTopic]:
        """Every topic that the user may see, by name, as of the last ``refresh``."""
        return self._topics

    def refresh(self) -> None:
        """Fetch the brokers, the topics and the partition leaders.

        Raises:
            RemoteFailed: no broker answers.
        """
        doing = "list the cluster's topics"
        found = self.request_any(
            "metadata",
            doing,
            topics=None,
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )
        topics = {}
        for each in found.topics:
            if each.name is None or each.error_code in _UNKNOWN_TOPIC:
                continue
            id = getattr(each, "topic_id", None)
            topics[each.name] = LiveTopic(
                each.name,
                _NO_ID if id is None else id.bytes,
                each.is_internal,
                {
                    part.partition_index: (part.leader_id, getattr(part, "leader_epoch", -1))
                    for part in each.partitions
                },
            )
        with self._lock:
            self._brokers = {
                each.node_id: address_of(each.host, each.port) for each in found.brokers
            }
            self._topics = topics
            self._controller = found.controller_id

    @property
    def brokers(self) -> Mapping[int, str]:
        """The brokers' addresses by node id, as of the last ``refresh``."""
        return self._brokers

    @property
    def controller(self) -> str:
        """The address of the broker that creates and alters topics, as of the last ``refresh``."""
        return self._brokers.get(self._controller) or self._bootstrap[0]

    def topic(self, name: str) -> LiveTopic:
        """The topic with this name.

        Raises:
            RetriableError: the topic does not exist now.
        """
        found = self._topics.get(name)
        if found is None:
            raise RetriableError(f"the cluster has no topic {name}", path=self.address)
        return found

    def leader(self, topic: str, partition: int) -> tuple[str, int]:
        """The address of a partition's leader, and the leader epoch.

        Raises:
            RetriableError: the partition has no leader now.
        """
        broker, epoch = self.topic(topic).partitions.get(partition, (-1, -1))
        address = self._brokers.get(broker)
        if address is None:
            raise RetriableError(
                f"partition {topic}-{partition} has no leader",
                path=self.address,
                remedy="start the brokers of its replicas, which kafka-topics.sh --describe lists",
            )
        return address, epoch

    def check(
        self, error: int, doing: str, address: str, said: str | None = None, rights: str = _READING
    ) -> None:
        """Raise an exception for the error code of a response. Code 0 means no error.

        ``said`` is the error message in the response. ``rights`` are the ACLs that the request
        needs.

        Raises:
            RetriableError: the error is retriable.
            RemoteFailed: any other error.
        """
        if error in _PASSING:
            raise RetriableError(
                f"could not {doing}: {_PASSING[error]}",
                path=address,
                remedy="run the command again",
            )
        if error in _REFUSED:
            raise RemoteFailed(
                f"could not {doing}: {_REFUSED[error]}",
                path=address,
                remedy=f"grant these permissions with kafka-acls.sh: {rights}",
            )
        if error:
            words = f": {said}" if said else ""
            raise RemoteFailed(
                f"could not {doing}: the broker refused the request with error code "
                f"{int(error)}{words}",
                path=address,
            )

    def settings(self, topics: Sequence[str]) -> dict[str, TopicMetadata | LogError]:
        """The settings of each topic with their sources, or the error if they cannot be read.

        Raises:
            RemoteFailed: no broker answers.
        """
        doing = "read the topics' settings"
        address = next(iter(self._brokers.values()), self._bootstrap[0])
        with self.connection(address) as connection:
            module = connection.schema("describe_configs", doing)
            resources = tuple(
                module.DescribeConfigsResource(
                    resource_type=_TOPIC, resource_name=topic, configuration_keys=None
                )
                for topic in topics
            )
            answer = connection.request(
                "describe_configs", doing, resources=resources, include_synonyms=True
            )
        found: dict[str, TopicMetadata | LogError] = {}
        for each in answer.results:
            try:
                self.check(
                    each.error_code, f"read the settings of topic {each.resource_name}", address
                )
                found[each.resource_name] = _topic_metadata(each.configs)
            except LogError as error:
                found[each.resource_name] = error
        missing = NotALog("no broker returned the topic's settings", path=self.address)
        return {topic: found.get(topic, missing) for topic in topics}

    def positions(self) -> tuple[dict[TopicPartition, list[GroupOffset]], list[UnreadPosition]]:
        """The committed offsets by partition, sorted by group, and the unreadable groups.

        Raises:
            RemoteFailed: a broker does not answer, or rejects the request to list groups.
        """
        found: dict[TopicPartition, list[GroupOffset]] = {}
        unread: list[UnreadPosition] = []
        done: set[str] = set()  # a retry skips the groups that are done
        self.with_retries(
            lambda: self._request_positions(found, unread, done), None, lambda: len(done)
        )
        return {name: sorted(each) for name, each in found.items()}, unread

    def _request_positions(
        self,
        found: dict[TopicPartition, list[GroupOffset]],
        unread: list[UnreadPosition],
        done: set[str],
    ) -> None:
        doing = "read the groups' committed offsets"
        # ask every broker, because a broker lists only the groups that it coordinates
        for address in list(self._brokers.values()):
            with self.connection(address) as connection:
                listed = connection.request("list_groups", doing, states_filter=())
                self.check(listed.error_code, doing, address)
                for group in sorted(
                    each.group_id
                    for each in listed.groups
                    if each.protocol_type != _SHARE and each.group_id not in done
                ):
                    answer = connection.request(
                        "offset_fetch", doing, group_id=group, topics=None, require_stable=False
                    )
                    try:
                        if answer.error_code not in _NO_GROUP:
                            self.check(answer.error_code, doing, address, rights=_OF_GROUP)
                    except RetriableError:
                        raise
                    except RemoteFailed as error:
                        unread.append(unread_because(error, address, group))
                        done.add(group)
                        continue
                    done.add(group)
                    for name, part in _parts(answer):
                        if part.error_code or part.committed_offset < 0:
                            continue
                        epoch = getattr(part, "committed_leader_epoch", -1)
                        at = GroupOffset(group, part.committed_offset, epoch, part.metadata or "")
                        found.setdefault(name, []).append(at)


def _parts(answer: Any) -> Iterator[tuple[TopicPartition, Any]]:
    for topic in answer.topics:
        for part in topic.partitions:
            yield TopicPartition(topic.name, part.partition_index), part


def _topic_metadata(configs: Sequence[Any]) -> TopicMetadata:
    said: dict[str, dict[str, object]] = {"broker": {}, "brokers": {}, "file": {}}
    own: dict[str, object] = {}
    for each in configs:
        if each.config_source == _OF_TOPIC:
            own[each.name] = each.value
        for other in each.synonyms:
            if other.source in _WORDS:
                said[_WORDS[other.source]][other.name] = other.value
    return TopicMetadata(topic=own, **said)


def address_of(host: str, port: int) -> str:
    """``HOST:PORT``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
