"""A cluster: its brokers, its topics, who leads which partition, and what is set for a topic.

Leaders move and brokers restart: what only reads is asked again, of the new leader, as long as
``default.api.timeout.ms`` allows.
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
from lastwrite.kafka.network.connection import Connection, ConnectionBroken, Passing
from lastwrite.kafka.rules.live_settings import KafkaClientConfig
from lastwrite.kafka.rules.topic_settings import Known
from lastwrite.model.log import TopicPartition
from lastwrite.reports.groups import UnreadPosition, unread_because

# What a while, or another leader, may mend.
_PASSING = {
    3: "the topic is not known there",
    5: "no leader is elected",
    6: "the broker does not lead the partition any more",
    7: "the broker ran out of time",
    9: "a replica is not available",
    13: "a broker was lost",
    14: "the coordinator is loading",
    15: "there is no coordinator yet",
    16: "the broker is not the coordinator any more",
    19: "fewer replicas are in sync than min.insync.replicas asks for",
    20: "fewer replicas are in sync than min.insync.replicas asks for",
    41: "the broker is not the controller",
    51: "the transaction before is still being ended",
    56: "the broker's disk failed",
    74: "another leader was elected",
    75: "the broker does not know yet that it leads",
    78: "the offset is not yet known to the leader",
    88: "a transaction that commits it is still open",
    100: "the topic's id is not known there",
    103: "the topic's id is another one",
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
_TOPIC = 2  # a kind of resource that has settings
_NO_ID = bytes(16)
# Who says a setting.
_OF_TOPIC, _OF_BROKER, _OF_BROKERS, _OF_FILE = 1, 2, 3, 4
_WORDS = {_OF_BROKER: "broker", _OF_BROKERS: "brokers", _OF_FILE: "file"}

# A group that was removed meanwhile, or is of a kind that has no offsets.
_NO_GROUP = (24, 69)
_SHARE = "share"

T = TypeVar("T")


class Position(NamedTuple):
    """Where a consumer group is in a partition."""

    group: str
    offset: int  # of the record that it wants next
    leader_epoch: int  # of the record before; -1: it has not said so
    metadata: str  # its own word


@dataclass(frozen=True, slots=True)
class LiveTopic:
    """A topic as the metadata have it."""

    name: str
    id: bytes  # 16 of them; all zero: the broker is too old to have ids
    is_internal: bool
    partitions: Mapping[int, tuple[int, int]]  # leader and its epoch, by number; -1: none

    @property
    def id_text(self) -> str | None:
        """The id as Kafka prints it."""
        return topic_id_text(self.id) if any(self.id) else None


class Cluster:
    """The cluster that the brokers at ``bootstrap`` belong to. Threads may share it."""

    def __init__(self, bootstrap: Sequence[str], config: KafkaClientConfig) -> None:
        self._bootstrap = list(bootstrap)
        self._config = config
        self._tls = tls_context(config)
        self._brokers: dict[int, str] = {}
        self._controller = -1
        self._topics: dict[str, LiveTopic] = {}
        self._idle: dict[str, list[Connection]] = {}
        self._busy: set[Connection] = set()
        self._is_stopped = False
        self._records_s, self._gave_up_s = 0.0, -1.0
        self._lock = Lock()
        self.address = ",".join(bootstrap)

    def close(self) -> None:
        with self._lock:
            for connection in (each for idle in self._idle.values() for each in idle):
                connection.close()
            self._idle.clear()

    def stop(self) -> None:
        """End all that is asked, in whichever thread; nothing can be asked any more."""
        self._is_stopped = True
        for connection in list(self._busy):
            connection.hang_up()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------ conversations

    @contextlib.contextmanager
    def connection(self, address: str) -> Iterator[Connection]:
        """A conversation for as long as the context lasts; it may go on from an earlier one."""
        with self._lock:
            idle = self._idle.setdefault(address, [])
            connection = idle.pop() if idle else Connection(address, self._config, self._tls)
            self._busy.add(connection)
        try:
            if self._is_stopped:
                raise LogError("the work was stopped", remedy="start again when you like")
            yield connection
        except BaseException:
            self._busy.discard(connection)
            connection.close()  # an answer may be under way
            raise
        with self._lock:
            self._busy.discard(connection)
            self._idle.setdefault(address, []).append(connection)

    def ask_any(self, name: str, doing: str, **values: object) -> Any:
        """What the first broker that answers says.

        Raises:
            RemoteFailed: none does.
        """
        last: RemoteFailed | None = None
        for address in dict.fromkeys([*self._brokers.values(), *self._bootstrap]):
            try:
                with self.connection(address) as connection:
                    return connection.ask(name, doing, **values)
            except RemoteFailed as error:
                last = error
        assert last is not None
        raise last

    @property
    def patience_s(self) -> float:
        """For how long work is tried again that does not advance. Once a fetch has given up and no
        record has come of any partition since, a few seconds.
        """
        full = self._config.api_timeout_ms / 1000
        return min(full, _SHORT_S) if self._gave_up_s > self._records_s else full

    def note_records(self) -> None:
        """Records came of a partition."""
        self._records_s = time.monotonic()

    def note_given_up(self) -> None:
        """A fetch gave up."""
        self._gave_up_s = time.monotonic()

    def patiently(
        self,
        work: Callable[[], T],
        since_s: float | None = None,
        advanced: Callable[[], int] = lambda: 0,
    ) -> T:
        """Do ``work`` again, with fresh metadata, while its trouble may pass.

        ``since_s``: when it last advanced, by the monotonic clock; None: now. ``advanced``: a
        number that grows where a try that fails has advanced.

        Raises:
            RemoteFailed: the trouble does not pass.
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
                if self._is_stopped or now_s >= until or not isinstance(error, Passing):
                    raise
                self.wait(until, tries if isinstance(error, ConnectionBroken) else None)
                tries += 1

    def reach(self) -> None:
        """Learn the cluster's brokers and topics, also where connections break amid the answer.

        Raises:
            RemoteFailed: no broker answers.
        """
        try:
            self.refresh()
        except ConnectionBroken:
            self.patiently(self.refresh)

    def wait(self, until: float, breaks: int | None = None) -> None:
        """A moment, and then fresh metadata. ``breaks``: how often a connection has broken before
        without an advance: first the moment is short, and leaders are where they were.
        """
        pause_s = _AGAIN_S if breaks is None else min(_FIRST_AGAIN_S * 2**breaks, _AGAIN_S)
        time.sleep(max(0.0, min(pause_s, until - time.monotonic())))
        if pause_s < _AGAIN_S:
            return
        with contextlib.suppress(RemoteFailed):  # the next try says so
            self.refresh()

    # ------------------------------------------------------------------ topics

    @property
    def topics(self) -> Mapping[str, LiveTopic]:
        """Every topic that we may see, by name, as ``refresh`` found them."""
        return self._topics

    def refresh(self) -> None:
        """Ask which brokers and topics there are, and who leads what.

        Raises:
            RemoteFailed: no broker answers.
        """
        doing = "ask for the cluster's topics"
        found = self.ask_any(
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
        """The brokers' addresses by node id, as ``refresh`` found them."""
        return self._brokers

    @property
    def controller(self) -> str:
        """The address of the broker that makes and changes topics, as ``refresh`` found it."""
        return self._brokers.get(self._controller) or self._bootstrap[0]

    def topic(self, name: str) -> LiveTopic:
        """
        Raises:
            Passing: it is not there now.
        """
        found = self._topics.get(name)
        if found is None:
            raise Passing(f"topic {name} is not there any more", path=self.address)
        return found

    def leader(self, topic: str, partition: int) -> tuple[str, int]:
        """The address of a partition's leader, and its epoch.

        Raises:
            Passing: nobody leads it now.
        """
        broker, epoch = self.topic(topic).partitions.get(partition, (-1, -1))
        address = self._brokers.get(broker)
        if address is None:
            raise Passing(
                f"nobody leads {topic}-{partition}",
                path=self.address,
                remedy="see to its brokers (kafka-topics --describe)",
            )
        return address, epoch

    def check(
        self, error: int, doing: str, address: str, said: str | None = None, rights: str = _READING
    ) -> None:
        """See to an answer's error; ``said``: the broker's own words; ``rights``: those needed.

        Raises:
            Passing, RemoteFailed: an answer's error is one.
        """
        if error in _PASSING:
            raise Passing(f"{doing}: {_PASSING[error]}", path=address, remedy="run again")
        if error in _REFUSED:
            raise RemoteFailed(
                f"{doing}: {_REFUSED[error]}",
                path=address,
                remedy=f"allow it (kafka-acls): {rights}",
            )
        if error:
            words = f": {said}" if said else ""
            raise RemoteFailed(f"{doing}: refused with error {int(error)}{words}", path=address)

    def settings(self, topics: Sequence[str]) -> dict[str, Known | LogError]:
        """What is set for each topic, by whom; or why that is not known.

        Raises:
            RemoteFailed: no broker answers.
        """
        doing = "ask for the topics' settings"
        address = next(iter(self._brokers.values()), self._bootstrap[0])
        with self.connection(address) as connection:
            module = connection.schema("describe_configs", doing)
            resources = tuple(
                module.DescribeConfigsResource(
                    resource_type=_TOPIC, resource_name=topic, configuration_keys=None
                )
                for topic in topics
            )
            answer = connection.ask(
                "describe_configs", doing, resources=resources, include_synonyms=True
            )
        found: dict[str, Known | LogError] = {}
        for each in answer.results:
            try:
                self.check(
                    each.error_code, f"ask for the settings of {each.resource_name}", address
                )
                found[each.resource_name] = _known(each.configs)
            except LogError as error:
                found[each.resource_name] = error
        missing = NotALog("no broker tells its settings", path=self.address)
        return {topic: found.get(topic, missing) for topic in topics}

    def positions(self) -> tuple[dict[TopicPartition, list[Position]], list[UnreadPosition]]:
        """The positions of consumer groups, by partition and sorted by group; and the groups of
        which the brokers refuse to tell.

        Raises:
            RemoteFailed: a broker does not answer, or refuses to list groups.
        """
        found: dict[TopicPartition, list[Position]] = {}
        unread: list[UnreadPosition] = []
        done: set[str] = set()  # so that a try goes on where the one before it broke off
        self.patiently(lambda: self._ask_positions(found, unread, done), None, lambda: len(done))
        return {name: sorted(each) for name, each in found.items()}, unread

    def _ask_positions(
        self,
        found: dict[TopicPartition, list[Position]],
        unread: list[UnreadPosition],
        done: set[str],
    ) -> None:
        doing = "ask for the groups' positions"
        for address in list(self._brokers.values()):  # each tells of the groups that it coordinates
            with self.connection(address) as connection:
                listed = connection.ask("list_groups", doing, states_filter=())
                self.check(listed.error_code, doing, address)
                for group in sorted(
                    each.group_id
                    for each in listed.groups
                    if each.protocol_type != _SHARE and each.group_id not in done
                ):
                    answer = connection.ask(
                        "offset_fetch", doing, group_id=group, topics=None, require_stable=False
                    )
                    try:
                        if answer.error_code not in _NO_GROUP:
                            self.check(answer.error_code, doing, address, rights=_OF_GROUP)
                    except Passing:
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
                        at = Position(group, part.committed_offset, epoch, part.metadata or "")
                        found.setdefault(name, []).append(at)


def _parts(answer: Any) -> Iterator[tuple[TopicPartition, Any]]:
    for topic in answer.topics:
        for part in topic.partitions:
            yield TopicPartition(topic.name, part.partition_index), part


def _known(configs: Sequence[Any]) -> Known:
    said: dict[str, dict[str, object]] = {"broker": {}, "brokers": {}, "file": {}}
    own: dict[str, object] = {}
    for each in configs:
        if each.config_source == _OF_TOPIC:
            own[each.name] = each.value
        for other in each.synonyms:
            if other.source in _WORDS:
                said[_WORDS[other.source]][other.name] = other.value
    return Known(topic=own, **said)


def address_of(host: str, port: int) -> str:
    """``HOST:PORT``."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
