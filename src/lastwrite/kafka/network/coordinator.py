"""Requests to group and transaction coordinators. Retriable errors are retried."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

from lastwrite.errors import CommitConflict, RemoteFailed
from lastwrite.kafka.network.cluster import KafkaCluster, address_of
from lastwrite.kafka.network.messages import build_message
from lastwrite.model.log import TopicPartition

_GROUP, _TRANSACTIONS = 0, 1
_FENCED = (47, 90)  # error codes that mean that a producer with a later epoch exists
_HAS_MEMBERS = (22, 25, 27, 82, 113)
_RIGHTS = "docs/guide/restore.md lists them"
_TRANSACTION = timedelta(seconds=60)

Errors = Callable[[Any], Iterable[int]]
Values = Callable[[Any], Mapping[str, object]]


def _own(answer: Any) -> Iterable[int]:
    return (answer.error_code,)


def _of_offsets(answer: Any) -> Iterable[int]:
    return (part.error_code for topic in answer.topics for part in topic.partitions)


class _Coordinator:
    """Finds the coordinator of a group or transactional id, and sends requests to it."""

    def __init__(self, cluster: KafkaCluster, key: str, kind: int) -> None:
        self._cluster = cluster
        self._key, self._kind = key, kind
        self._address: str | None = None

    def request(self, name: str, doing: str, values: Values, errors: Errors = _own) -> Any:
        """Send a request to the current coordinator, and return the response.

        Raises:
            CommitConflict: a producer with a later epoch exists.
            RemoteFailed: the request is refused, or not answered within the timeout.
        """

        def asked() -> Any:
            address = self._address or self._found(doing)
            self._address = None  # look the coordinator up again unless this request succeeds
            with self._cluster.connection(address) as connection:
                said = values(connection.schema(name, doing))
                answer = connection.request(name, doing, **said)
            for error in errors(answer):
                if error in _FENCED:
                    raise CommitConflict(
                        f"could not {doing}: another restore of the same topic has started",
                        path=address,
                        remedy="wait until that restore has ended, then run the command again",
                    )
                if error in _HAS_MEMBERS:
                    raise RemoteFailed(
                        f"could not {doing}: the group has members",
                        path=address,
                        remedy="stop the group's consumers, and run the command again",
                    )
                self._cluster.check(error, doing, address, rights=_RIGHTS)
            self._address = address
            return answer

        return self._cluster.with_retries(asked)

    def _found(self, doing: str) -> str:
        answer = self._cluster.request_any(
            "find_coordinator", doing, key=self._key, key_type=self._kind
        )
        self._cluster.check(answer.error_code, doing, self._cluster.address, rights=_RIGHTS)
        return address_of(answer.host, answer.port)


class CommittedOffset(NamedTuple):
    """A group's committed offset in a partition."""

    offset: int
    metadata: str


class GroupClient:
    """Reads and commits the offsets of a consumer group without being a member of the group."""

    def __init__(self, cluster: KafkaCluster, name: str) -> None:
        self.name = name
        self._coordinator = _Coordinator(cluster, name, _GROUP)

    def position(self, name: TopicPartition) -> CommittedOffset | None:
        """The group's committed offset in a partition. None if the group has none.

        Waits for open transactions to end.

        Raises:
            RemoteFailed: the request is refused, or not answered within the timeout.
        """

        def values(module: Any) -> Mapping[str, object]:
            topic = module.OffsetFetchRequestTopic(
                name=name.topic, partition_indexes=(name.partition,)
            )
            return {"group_id": self.name, "topics": (topic,), "require_stable": True}

        doing = f"read the committed offsets of group {self.name}"
        answer = self._coordinator.request("offset_fetch", doing, values, _of_positions)
        for topic in answer.topics:
            for part in topic.partitions:
                if part.committed_offset >= 0:
                    return CommittedOffset(part.committed_offset, part.metadata or "")
        return None

    def commit(self, name: TopicPartition, offset: int, metadata: str) -> None:
        """Commit ``offset`` for the group in a partition.

        Raises:
            RemoteFailed: the group has members, the request is refused, or not answered within the
                timeout.
        """

        def values(module: Any) -> Mapping[str, object]:
            topics = _position(module, "OffsetCommitRequest", name, offset, metadata)
            return {
                "group_id": self.name,
                "generation_id": -1,
                "generation_id_or_member_epoch": -1,
                "member_id": "",
                "group_instance_id": None,
                "retention_time": timedelta(milliseconds=-1),
                "topics": topics,
            }

        doing = f"set group {self.name} to offset {offset} of {name}"
        self._coordinator.request("offset_commit", doing, values, _of_offsets)

    def commit_within(
        self, transactions: TransactionClient, name: TopicPartition, offset: int, metadata: str
    ) -> None:
        """Commit ``offset`` for the group in a partition, as part of the open transaction."""

        def values(module: Any) -> Mapping[str, object]:
            topics = _position(module, "TxnOffsetCommitRequest", name, offset, metadata)
            return {"group_id": self.name, "topics": topics, **transactions.identity_fields}

        doing = f"write the restore's progress for {name} to group {self.name}"
        self._coordinator.request("txn_offset_commit", doing, values, _of_offsets)


def _of_positions(answer: Any) -> Iterable[int]:
    yield getattr(answer, "error_code", 0)
    yield from _of_offsets(answer)


def _position(
    module: Any, of: str, name: TopicPartition, offset: int, metadata: str
) -> tuple[Any, ...]:
    part = build_message(
        module,
        f"{of}Partition",
        partition_index=name.partition,
        committed_offset=offset,
        committed_leader_epoch=-1,
        committed_metadata=metadata,
    )
    return (build_message(module, f"{of}Topic", name=name.topic, partitions=(part,)),)


class TransactionClient:
    """Runs transactions, one after another, as the producer with the transactional id ``id``."""

    def __init__(self, cluster: KafkaCluster, id: str) -> None:
        self._id = id
        self._coordinator = _Coordinator(cluster, id, _TRANSACTIONS)
        self.producer_id = self.epoch = -1

    @property
    def identity_fields(self) -> Mapping[str, object]:
        """The fields that identify this producer in requests."""
        return {
            "transactional_id": self._id,
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
            # the client is not a group member
            "generation_id": -1,
            "member_id": "",
            "group_instance_id": None,
        }

    def begin(self) -> None:
        """Fence earlier producers with this id.

        When this returns, an open transaction of an earlier producer is aborted. Coordinators
        reject later requests of earlier producers.

        Raises:
            RemoteFailed: the request is refused, or not answered within the timeout.
        """
        asked = {
            "transactional_id": self._id,
            "transaction_timeout": _TRANSACTION,
            "producer_id": -1,
            "producer_epoch": -1,
        }
        doing = f"initialize the transactional producer {self._id}"
        answer = self._coordinator.request("init_producer_id", doing, lambda module: asked)
        self.producer_id, self.epoch = int(answer.producer_id), int(answer.producer_epoch)

    def add_partition(self, name: TopicPartition) -> None:
        """Add the partition to the transaction. The partition then receives its marker."""

        def values(module: Any) -> Mapping[str, object]:
            topic = module.AddPartitionsToTxnTopic(name=name.topic, partitions=(name.partition,))
            found = {**self.identity_fields, "topics": (topic,)}
            return {f"v3_and_below_{key}": each for key, each in found.items()}

        doing = f"add {name} to a transaction"
        self._coordinator.request("add_partitions_to_txn", doing, values, _of_partitions)

    def add_group(self, group: str) -> None:
        """Add the group's offset commits to the transaction."""
        doing = f"add group {group} to a transaction"
        asked = {**self.identity_fields, "group_id": group}
        self._coordinator.request("add_offsets_to_txn", doing, lambda module: asked)

    def end(self, committed: bool) -> None:
        """Commit or abort the transaction.

        When this returns, the outcome is final, but the markers may not yet be written.
        """
        asked = {**self.identity_fields, "committed": committed}
        self._coordinator.request("end_txn", "end a transaction", lambda module: asked)


def _of_partitions(answer: Any) -> Iterable[int]:
    for topic in answer.results_by_topic_v3_and_below:
        for part in topic.results_by_partition:
            yield part.partition_error_code
