"""The catalog and the groups as one client may see them for one request.

An operation without permission is refused before its target is looked up, so that the response does
not reveal whether it exists. Requests without topics and groups need no permission here; their
handlers check it.

Source: Kafka 4.4 ``KafkaApis``, ``AuthHelper``; the responses of Kafka 4.4.0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lastwrite.server.catalog import Catalog, Partition, Topic
from lastwrite.server.errors import Code
from lastwrite.server.rights import CLUSTER, EVERYBODY, Client, Kind, Operation, Rule


class Need(NamedTuple):
    """The operations that a request needs on each topic and each group that it names."""

    topic: Operation = Operation.DESCRIBE
    group: Operation = Operation.DESCRIBE


_LOOKS = Need()
_MEMBER = Need(group=Operation.READ)
NEEDS: Mapping[str, Need] = {
    "produce": Need(Operation.WRITE),
    "fetch": Need(Operation.READ),
    "list_offsets": Need(),
    "metadata": Need(),
    "offset_commit": Need(Operation.READ, Operation.READ),
    "offset_fetch": Need(),
    "find_coordinator": Need(),
    "join_group": _MEMBER,
    "heartbeat": _MEMBER,
    "leave_group": _MEMBER,
    "sync_group": _MEMBER,
    "describe_groups": Need(),
    "list_groups": Need(),
    "offset_for_leader_epoch": Need(),
    "describe_configs": Need(Operation.DESCRIBE_CONFIGS),
    "describe_cluster": Need(),
    "consumer_group_heartbeat": _MEMBER,
    "consumer_group_describe": Need(),
    "describe_topic_partitions": Need(),
    # a request of other modules is answered only if it has an entry here
    "delete_groups": Need(group=Operation.DELETE),
    "offset_delete": Need(Operation.READ, Operation.DELETE),
    "init_producer_id": Need(),
    "describe_acls": Need(),
    "describe_log_dirs": Need(),
    "describe_producers": Need(Operation.READ),
    "list_partition_reassignments": Need(),
    "describe_quorum": Need(),
    "describe_client_quotas": Need(),
    "describe_user_scram_credentials": Need(),
    "list_config_resources": Need(),
    "list_transactions": Need(),
    "describe_transactions": Need(),
    # refused to all clients, so that the need does not matter
    "create_topics": Need(),
    "delete_topics": Need(),
    "delete_records": Need(),
    "create_acls": Need(),
    "delete_acls": Need(),
    "alter_configs": Need(),
    "create_partitions": Need(),
    "elect_leaders": Need(),
    "incremental_alter_configs": Need(),
    "alter_partition_reassignments": Need(),
    "alter_client_quotas": Need(),
    "alter_user_scram_credentials": Need(),
    "update_features": Need(),
}
_OF_TOPICS = (Operation.READ, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS)
_OF_GROUPS = (Operation.READ, Operation.DELETE, Operation.DESCRIBE)
_OF_CLUSTER = (Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS)
_OPERATIONS = {Kind.TOPIC: _OF_TOPICS, Kind.GROUP: _OF_GROUPS, Kind.CLUSTER: _OF_CLUSTER}


class Allowed:
    """``Catalog``, restricted to what the client may see for this request."""

    def __init__(self, catalog: Catalog, client: Client = EVERYBODY, need: Need = _LOOKS) -> None:
        self._catalog = catalog
        self._client = client
        self._need = need

    def for_(self, client: Client, request: str) -> Allowed:
        """The same catalog for another client and a request of that name."""
        return Allowed(self._catalog, client, NEEDS[request])

    # ------------------------------------------------------------------ topics

    def may(self, name: str) -> bool:
        return self._client.may(self._need.topic, Kind.TOPIC, name)

    def names(self) -> list[str]:
        return [name for name in self._catalog.names() if self.may(name)]

    def topic(self, name: str) -> Topic | None:
        return self._catalog.topic(name) if self.may(name) else None

    def numbers(self, name: str) -> list[int]:
        return self._catalog.numbers(name) if self.may(name) else []

    def of_id(self, id: bytes) -> Topic | None:
        found = self._catalog.of_id(id)
        return found if found is not None and self.may(found.name) else None

    def unknown(self, name: str, code: int = Code.UNKNOWN_TOPIC_OR_PARTITION) -> int:
        """The error code for a topic, or a partition of it, that ``topic`` does not return."""
        return code if self.may(name) else Code.TOPIC_AUTHORIZATION_FAILED

    def unknown_id(self, id: bytes) -> int:
        """The error code for a topic requested by its id. Whether an id exists is no secret."""
        found = self._catalog.of_id(id)
        return Code.UNKNOWN_TOPIC_ID if found is None else self.unknown(found.name)

    def read_all(self, topics: Sequence[Topic]) -> None:
        self._catalog.read_all(topics)

    def folders(self) -> set[str]:
        return self._catalog.folders()

    @staticmethod
    def partition(topic: Topic | None, number: int) -> Partition | None:
        return Catalog.partition(topic, number)

    # ------------------------------------------------------------------ groups, and the cluster

    def group_error(self, name: str) -> int:
        """The error code of the request's operation on a group."""
        may = self._client.may(self._need.group, Kind.GROUP, name)
        return Code.NONE if may else Code.GROUP_AUTHORIZATION_FAILED

    def may_describe_group_settings(self, name: str) -> bool:
        return self._client.may(Operation.DESCRIBE_CONFIGS, Kind.GROUP, name)

    def may_describe_transaction(self, transactional_id: str) -> bool:
        return self._client.may(Operation.DESCRIBE, Kind.TRANSACTIONAL_ID, transactional_id)

    def of_cluster(self, operation: Operation) -> bool:
        """Whether the client may do ``operation`` on the cluster."""
        return self._client.may(operation, Kind.CLUSTER, CLUSTER)

    def rules(self) -> Sequence[Rule] | None:
        """All ACLs. None if there is no authorization."""
        rights = self._client.rights
        return None if rights is None else rights.rules

    def operations(self, kind: Kind, name: str) -> int:
        """The client's permitted operations among the supported ones, as a bit field by number."""
        return sum(1 << each for each in _OPERATIONS[kind] if self._client.may(each, kind, name))
