"""Responses for administrators: log directories, producers, reassignments and ACLs.

Source: Kafka 4.4 ``KafkaApis``, ``ReplicaManager``; the responses of Kafka 4.4.0.
"""

from __future__ import annotations

import os
from collections import defaultdict
from contextlib import suppress
from typing import Any

from lastwrite.errors import CorruptLog, LogError
from lastwrite.server.acls import ANY_NAME, AclEntry, Operation
from lastwrite.server.authorized_catalog import AuthorizedCatalog
from lastwrite.server.catalog import ServedPartition, name_problem
from lastwrite.server.errors import Code
from lastwrite.server.handlers import NOT_HOSTED, ServerContext
from lastwrite.server.messages import ClientRequest, encode_answer, part


def describe_log_dirs(place: ServerContext, request: ClientRequest, body: Any) -> bytes:
    """The response with each folder's partitions and their sizes in bytes.

    Volume sizes are not reported. Partitions that cannot be read are omitted.
    """
    catalog = place.catalog
    if not catalog.of_cluster(Operation.DESCRIBE):
        return encode_answer(request, error_code=Code.CLUSTER_AUTHORIZATION_FAILED, results=())
    wanted = (
        {name: catalog.numbers(name) for name in catalog.names()}
        if body.topics is None
        else {each.topic: each.partitions for each in body.topics}
    )
    found: dict[str, dict[str, list[Any]]] = {
        folder: defaultdict(list) for folder in catalog.folders()
    }
    for name, numbers in wanted.items():
        topic = catalog.topic(name)
        if topic is not None:
            catalog.read_all([topic])
        for number in numbers:
            held = catalog.partition(topic, number)
            if held is not None:
                with suppress(LogError):
                    said = _size_of(request, held)
                    where = os.path.dirname(held.folder)
                    found.setdefault(where, defaultdict(list))[name].append(said)
    return encode_answer(
        request,
        error_code=Code.NONE,
        results=tuple(
            part(
                request,
                "DescribeLogDirsResult",
                error_code=Code.NONE,
                log_dir=folder,
                topics=tuple(
                    part(request, "DescribeLogDirsTopic", name=name, partitions=tuple(partitions))
                    for name, partitions in topics.items()
                ),
            )
            for folder, topics in sorted(found.items())
        ),
    )


def _size_of(request: ClientRequest, held: ServedPartition) -> Any:
    return part(
        request,
        "DescribeLogDirsPartition",
        partition_index=held.name.partition,
        partition_size=sum(each.size_bytes for each in held.current().log.segments),
        offset_lag=0,
        is_future_key=False,
    )


def describe_producers(place: ServerContext, request: ClientRequest, body: Any) -> bytes:
    """The response with the producers of partitions.

    For each producer it has the first offset of the producer's open transaction, if there is one.
    An unknown sequence number or coordinator epoch is -1, as on a broker.
    """
    return encode_answer(
        request,
        topics=tuple(
            part(
                request,
                "TopicResponse",
                name=topic.name,
                partitions=tuple(
                    _producers(place.catalog, request, topic.name, number)
                    for number in topic.partition_indexes
                ),
            )
            for topic in body.topics
        ),
    )


def _producers(catalog: AuthorizedCatalog, request: ClientRequest, name: str, number: int) -> Any:
    held = catalog.partition(catalog.topic(name), number)
    error: int = Code.NONE
    message: str | None = None
    found = []
    if held is None:
        message = name_problem(name) or None
        error = catalog.unknown(name, Code.INVALID_TOPIC) if message else catalog.unknown(name)
        if not message and catalog.topic(name) is None:
            message = NOT_HOSTED
        if error == Code.TOPIC_AUTHORIZATION_FAILED:
            message = None
    else:
        try:
            served = held.current()
            entries = served.producer_entries()
            found = [
                part(
                    request,
                    "ProducerState",
                    producer_id=each.producer_id,
                    producer_epoch=each.producer_epoch,
                    last_sequence=-1 if known is None else known.last_sequence,
                    last_timestamp=each.timestamp_ms,
                    coordinator_epoch=-1 if known is None else known.coordinator_epoch,
                    current_txn_start_offset=each.open_from,
                )
                for each in served.log.producers
                for known in (entries.get((each.producer_id, each.producer_epoch)),)
            ]
        except LogError as failed:
            error, message = Code.KAFKA_STORAGE_ERROR, str(failed)
    return part(
        request,
        "PartitionResponse",
        partition_index=number,
        error_code=error,
        error_message=message,
        active_producers=tuple(found),
    )


def list_partition_reassignments(place: ServerContext, request: ClientRequest, body: Any) -> bytes:
    """The response with an empty list, because this server never reassigns partitions."""
    error = Code.NONE
    if not place.catalog.of_cluster(Operation.DESCRIBE):
        error = Code.CLUSTER_AUTHORIZATION_FAILED
    return encode_answer(request, error_code=error, error_message=None, topics=())


# Values of ACL filters. Source: Kafka 4.4 ``ResourcePatternFilter``, ``AccessControlEntryFilter``.
_UNKNOWN, _ANY = 0, 1
# Pattern types of an ACL. In a filter, MATCH selects all ACLs that apply to a name.
_MATCH, _LITERAL, _PREFIXED = 2, 3, 4
_DENY, _ALLOW = 2, 3


def describe_acls(place: ServerContext, request: ClientRequest, body: Any) -> bytes:
    """The response with the ACLs that match a filter, grouped by resource.

    Raises:
        CorruptLog: a filter field is UNKNOWN. A broker rejects such a request, too.
    """
    kinds = body.resource_type_filter, body.operation, body.permission_type
    if _UNKNOWN in (*kinds, body.pattern_type_filter):
        raise CorruptLog("describe_acls with a filter of kind UNKNOWN", 0)
    rules = place.catalog.rules()
    error, message = Code.NONE, ""
    if rules is None:
        error, message = Code.SECURITY_DISABLED, "No Authorizer is configured on the broker"
    elif not place.catalog.of_cluster(Operation.DESCRIBE):
        error, message = Code.CLUSTER_AUTHORIZATION_FAILED, "The request needs DESCRIBE permission."
    found: dict[tuple[int, str, int], list[Any]] = defaultdict(list)
    for rule in () if error or rules is None else rules:
        if _is_requested(rule, body):
            said = part(
                request,
                "AclDescription",
                principal=rule.principal,
                host=rule.host,
                operation=rule.operation,
                permission_type=_ALLOW if rule.allows else _DENY,
            )
            found[rule.kind, rule.name, _pattern(rule)].append(said)
    return encode_answer(
        request,
        error_code=error,
        error_message=message,
        resources=tuple(
            part(
                request,
                "DescribeAclsResource",
                resource_type=kind,
                resource_name=name,
                pattern_type=pattern,
                acls=tuple(of_it),
            )
            for (kind, name, pattern), of_it in sorted(found.items())
        ),
    )


def _pattern(rule: AclEntry) -> int:
    return _PREFIXED if rule.is_prefix else _LITERAL


def _is_requested(rule: AclEntry, body: Any) -> bool:
    return (
        body.resource_type_filter in (_ANY, rule.kind)
        and body.operation in (_ANY, rule.operation)
        and body.permission_type in (_ANY, _ALLOW if rule.allows else _DENY)
        and body.principal_filter in (None, rule.principal)
        and body.host_filter in (None, rule.host)
        and _is_of_name(rule, body.pattern_type_filter, body.resource_name_filter)
    )


def _is_of_name(rule: AclEntry, pattern: int, name: str | None) -> bool:
    if pattern not in (_ANY, _MATCH, _pattern(rule)):
        return False
    if name is None or name == rule.name:
        return True
    return pattern == _MATCH and (
        name.startswith(rule.name) if rule.is_prefix else rule.name == ANY_NAME
    )


ADMIN_HANDLERS = {
    "describe_acls": describe_acls,
    "describe_log_dirs": describe_log_dirs,
    "describe_producers": describe_producers,
    "list_partition_reassignments": list_partition_reassignments,
}
