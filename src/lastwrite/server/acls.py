"""Kafka's ACLs as values.

A rule allows or denies one operation on a topic, a group or the cluster, by name or by prefix of
the name. A matching denial overrides all rules that allow; without a matching rule the operation is
denied. Permission to read, write, delete or alter implies permission to describe.

Source: Kafka 4.4 ``StandardAuthorizerData``, ``AclEntry``; KIP-11, KIP-290.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

ANYBODY, ANYWHERE, ANY_NAME = "User:*", "*", "*"
ANONYMOUS = "User:ANONYMOUS"
_MOST_KNOWN = 100_000  # maximum number of decisions in the cache of an ``AclTable``


class Operation(IntEnum):
    """An operation that an ACL allows or denies. The values are from Kafka's protocol."""

    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11


class ResourceType(IntEnum):
    """The type of a resource. The values are from Kafka's protocol."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5


CLUSTER = "kafka-cluster"  # the only resource of type CLUSTER
_IMPLYING = {
    Operation.DESCRIBE: (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER),
    Operation.DESCRIBE_CONFIGS: (Operation.ALTER_CONFIGS,),
}


class AclEntry(NamedTuple):
    """One ACL. ``principal`` is ``User:NAME``; ``host`` is an address in text form."""

    principal: str
    operation: Operation
    kind: ResourceType
    name: str
    is_prefix: bool = False
    allows: bool = True
    host: str = ANYWHERE

    def is_about(self, principal: str, host: str, kind: ResourceType, name: str) -> bool:
        if self.kind is not kind or self.principal not in (principal, ANYBODY):
            return False
        if self.host not in (host, ANYWHERE):
            return False
        if self.is_prefix:
            return name.startswith(self.name)
        return self.name in (name, ANY_NAME)


class AclTable:
    """The ACLs of a server.

    Decides whether a client may do an operation, and caches the decisions.
    """

    def __init__(self, rules: Iterable[AclEntry]) -> None:
        self.rules = tuple(rules)
        self._decisions: dict[tuple[str, str, Operation, ResourceType, str], bool] = {}

    def may(
        self, principal: str, host: str, operation: Operation, kind: ResourceType, name: str
    ) -> bool:
        asked = principal, host, operation, kind, name
        found = self._decisions.get(asked)
        if found is None:
            if len(self._decisions) >= _MOST_KNOWN:
                self._decisions.clear()
            found = self._decisions[asked] = self._judge(*asked)
        return found

    def _judge(
        self, principal: str, host: str, operation: Operation, kind: ResourceType, name: str
    ) -> bool:
        about = [each for each in self.rules if each.is_about(principal, host, kind, name)]
        same = (operation, Operation.ALL)
        if any(not each.allows and each.operation in same for each in about):
            return False
        wide = (*same, *_IMPLYING.get(operation, ()))
        return any(each.allows and each.operation in wide for each in about)


class ClientIdentity(NamedTuple):
    """A client: its principal, address and ACLs.

    If ``rights`` is None, the client may do all operations.
    """

    principal: str
    host: str
    rights: AclTable | None

    def may(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        return self.rights is None or self.rights.may(
            self.principal, self.host, operation, kind, name
        )


EVERYBODY = ClientIdentity(ANONYMOUS, "", None)
