"""The topics and groups that a client may access in one request.

A request without permission is refused before its topic or group is looked up. The response
therefore does not reveal whether the topic or group exists. The handler checks the permission of a
request that names no topic and no group.

Source: Kafka 4.4 ``KafkaApis``, ``AuthHelper``; the responses of Kafka 4.4.0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lastwrite.server.acls import (
    CLUSTER,
    EVERYBODY,
    AclEntry,
    ClientIdentity,
    Operation,
    ResourceType,
)
from lastwrite.server.catalog import Catalog, ServedPartition, ServedTopic
from lastwrite.server.errors import Code


class RequiredAccess(NamedTuple):
    """The operations that a request needs on each topic and each group that it names."""

    topic: Operation = Operation.DESCRIBE
    group: Operation = Operation.DESCRIBE


_LOOKS = RequiredAccess()
_MEMBER = RequiredAccess(group=Operation.READ)
NEEDS: Mapping[str, RequiredAccess] = {
    "produce": RequiredAccess(Operation.WRITE),
    "fetch": RequiredAccess(Operation.READ),
    "list_offsets": RequiredAccess(),
    "metadata": RequiredAccess(),
    "offset_commit": RequiredAccess(Operation.READ, Operation.READ),
    "offset_fetch": RequiredAccess(),
    "find_coordinator": RequiredAccess(),
    "join_group": _MEMBER,
    "heartbeat": _MEMBER,
    "leave_group": _MEMBER,
    "sync_group": _MEMBER,
    "describe_groups": RequiredAccess(),
    "list_groups": RequiredAccess(),
    "offset_for_leader_epoch": RequiredAccess(),
    "describe_configs": RequiredAccess(Operation.DESCRIBE_CONFIGS),
    "describe_cluster": RequiredAccess(),
    "consumer_group_heartbeat": _MEMBER,
    "consumer_group_describe": RequiredAccess(),
    "describe_topic_partitions": RequiredAccess(),
    # Each request that has a handler needs an entry in this table. Otherwise the request fails.
    "delete_groups": RequiredAccess(group=Operation.DELETE),
    "offset_delete": RequiredAccess(Operation.READ, Operation.DELETE),
    "init_producer_id": RequiredAccess(),
    "describe_acls": RequiredAccess(),
    "describe_log_dirs": RequiredAccess(),
    "describe_producers": RequiredAccess(Operation.READ),
    "list_partition_reassignments": RequiredAccess(),
    "describe_quorum": RequiredAccess(),
    "describe_client_quotas": RequiredAccess(),
    "describe_user_scram_credentials": RequiredAccess(),
    "list_config_resources": RequiredAccess(),
    "list_transactions": RequiredAccess(),
    "describe_transactions": RequiredAccess(),
    # requests that are refused to all clients, regardless of their permissions
    "create_topics": RequiredAccess(),
    "delete_topics": RequiredAccess(),
    "delete_records": RequiredAccess(),
    "create_acls": RequiredAccess(),
    "delete_acls": RequiredAccess(),
    "alter_configs": RequiredAccess(),
    "create_partitions": RequiredAccess(),
    "elect_leaders": RequiredAccess(),
    "incremental_alter_configs": RequiredAccess(),
    "alter_partition_reassignments": RequiredAccess(),
    "alter_client_quotas": RequiredAccess(),
    "alter_user_scram_credentials": RequiredAccess(),
    "update_features": RequiredAccess(),
}
_OF_TOPICS = (Operation.READ, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS)
_OF_GROUPS = (Operation.READ, Operation.DELETE, Operation.DESCRIBE)
_OF_CLUSTER = (Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS)
_OPERATIONS = {
    ResourceType.TOPIC: _OF_TOPICS,
    ResourceType.GROUP: _OF_GROUPS,
    ResourceType.CLUSTER: _OF_CLUSTER,
}


class AuthorizedCatalog:
    """``Catalog``, restricted to the topics and groups that the client may access."""

    def __init__(
        self, catalog: Catalog, client: ClientIdentity = EVERYBODY, need: RequiredAccess = _LOOKS
    ) -> None:
        self._catalog = catalog
        self._client = client
        self._need = need

    def for_(self, client: ClientIdentity, request: str) -> AuthorizedCatalog:
        """The catalog with only the topics and groups that the request of ``client`` may access."""
        return AuthorizedCatalog(self._catalog, client, NEEDS[request])

    # ------------------------------------------------------------------ topics

    def may(self, name: str) -> bool:
        return self._client.may(self._need.topic, ResourceType.TOPIC, name)

    def names(self) -> list[str]:
        return [name for name in self._catalog.names() if self.may(name)]

    def topic(self, name: str) -> ServedTopic | None:
        return self._catalog.topic(name) if self.may(name) else None

    def numbers(self, name: str) -> list[int]:
        return self._catalog.numbers(name) if self.may(name) else []

    def of_id(self, id: bytes) -> ServedTopic | None:
        found = self._catalog.of_id(id)
        return found if found is not None and self.may(found.name) else None

    def unknown(self, name: str, code: int = Code.UNKNOWN_TOPIC_OR_PARTITION) -> int:
        """The error code for a topic or partition that is missing or may not be accessed.

        This is ``code`` if the client may access the topic, else TOPIC_AUTHORIZATION_FAILED.
        """
        return code if self.may(name) else Code.TOPIC_AUTHORIZATION_FAILED

    def unknown_id(self, id: bytes) -> int:
        """The error code for a topic id that was not found or may not be accessed.

        The code reveals whether the id exists, even to a client without permission.
        """
        found = self._catalog.of_id(id)
        return Code.UNKNOWN_TOPIC_ID if found is None else self.unknown(found.name)

    def read_all(self, topics: Sequence[ServedTopic]) -> None:
        self._catalog.read_all(topics)

    def folders(self) -> set[str]:
        return self._catalog.folders()

    @staticmethod
    def partition(topic: ServedTopic | None, number: int) -> ServedPartition | None:
        return Catalog.partition(topic, number)

    # ------------------------------------------------------------------ groups, and the cluster

    def group_error(self, name: str) -> int:
        """The error code if the client may not do the request's operation on a group, else NONE."""
        may = self._client.may(self._need.group, ResourceType.GROUP, name)
        return Code.NONE if may else Code.GROUP_AUTHORIZATION_FAILED

    def may_describe_group_settings(self, name: str) -> bool:
        return self._client.may(Operation.DESCRIBE_CONFIGS, ResourceType.GROUP, name)

    def may_describe_transaction(self, transactional_id: str) -> bool:
        return self._client.may(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transactional_id)

    def of_cluster(self, operation: Operation) -> bool:
        """Whether the client may do ``operation`` on the cluster itself."""
        return self._client.may(operation, ResourceType.CLUSTER, CLUSTER)

    def rules(self) -> Sequence[AclEntry] | None:
        """All ACLs. None if there is no authorization."""
        rights = self._client.rights
        return None if rights is None else rights.rules

    def operations(self, kind: ResourceType, name: str) -> int:
        """The supported operations that the client may do, as a bit field by ``Operation``."""
        return sum(1 << each for each in _OPERATIONS[kind] if self._client.may(each, kind, name))
