"""Responses about the cluster: its quorum, quotas, resources with settings, transactions.

Their data comes from the files of a stopped broker. The server itself is the only node.

Source: Kafka 4.4 ``KafkaApis``, ``ClientQuotasImage``, ``TransactionStateManager``; the responses
of Kafka 4.4.0.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from lastwrite.errors import LogError
from lastwrite.kafka.cluster.cluster_state import BROKER, CLIENT_METRICS, GROUP, QuotaEntity
from lastwrite.kafka.cluster.internal_topics import TRANSACTION_STATES
from lastwrite.kafka.format.names import METADATA_TOPIC
from lastwrite.server.acls import Operation
from lastwrite.server.config_handlers import LOGGER, TOPIC
from lastwrite.server.errors import Code
from lastwrite.server.handlers import NODE, ServerContext
from lastwrite.server.messages import ClientRequest, encode_answer, part

_EXACT, _DEFAULT, _SPECIFIED = 0, 1, 2  # match types of a filter's component
_USER, _CLIENT, _IP = "user", "client-id", "ip"
_ALL_RESOURCES = (TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP)
_ONGOING, _DEAD, _FENCED = "Ongoing", "Dead", "PrepareEpochFence"
_KNOWN_STATES = tuple(each for each in TRANSACTION_STATES if each != _DEAD)


# ---------------------------------------------------------------------- the quorum


def describe_quorum(place: ServerContext, request: ClientRequest, body: Any) -> bytes:
    """The response with the metadata log's end offset. The server is the only voter."""
    if not place.catalog.of_cluster(Operation.DESCRIBE):
        return encode_answer(
            request,
            error_code=Code.CLUSTER_AUTHORIZATION_FAILED,
            error_message="Cluster authorization failed.",
            topics=(),
            nodes=(),
        )
    try:
        end = place.files.state().end
    except LogError as error:
        return encode_answer(
            request,
            error_code=Code.KAFKA_STORAGE_ERROR,
            error_message=str(error),
            topics=(),
            nodes=(),
        )
    voter = part(
        request,
        "ReplicaState",
        replica_id=NODE,
        replica_directory_id=None,
        log_end_offset=end.offset,
        last_fetch_timestamp=-1,
        last_caught_up_timestamp=time.time_ns() // 1_000_000,
    )

    def described(name: str, number: int) -> Any:
        is_there = (name, number) == (METADATA_TOPIC, 0)
        return part(
            request,
            "PartitionData",
            partition_index=number,
            error_code=Code.NONE if is_there else Code.UNKNOWN_TOPIC_OR_PARTITION,
            error_message=None,
            leader_id=NODE if is_there else 0,
            leader_epoch=end.leader_epoch if is_there else 0,
            high_watermark=end.offset if is_there else 0,
            current_voters=(voter,) if is_there else (),
            observers=(),
        )

    return encode_answer(
        request,
        error_code=Code.NONE,
        error_message="" if request.version >= 2 else None,
        topics=tuple(
            part(
                request,
                "TopicData",
                topic_name=topic.topic_name,
                partitions=tuple(
                    described(topic.topic_name, each.partition_index) for each in topic.partitions
                ),
            )
            for topic in body.topics
        ),
        nodes=(part(request, "Node", node_id=NODE, listeners=()),) if request.version >= 2 else (),
    )


# ---------------------------------------------------------------------- quotas


def describe_client_quotas(place: ServerContext, request: ClientRequest, body: Any) -> bytes:
    """The response with the quotas in the metadata log. The server does not enforce them."""
    error, message = _filter_error(body.components)
    entries: tuple[Any, ...] = ()
    if not place.catalog.of_cluster(Operation.DESCRIBE_CONFIGS):
        error, message = Code.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed."
    if not error:
        try:
            quotas = place.files.state().quotas
        except LogError as failed:
            error, message = Code.KAFKA_STORAGE_ERROR, str(failed)
        else:
            entries = tuple(
                _quota(request, entity, values)
                for entity, values in quotas.items()
                if _matches(entity, body)
            )
    return encode_answer(
        request, error_code=error, error_message=message, entries=None if error else entries
    )


def _quota(request: ClientRequest, entity: QuotaEntity, values: Mapping[str, float]) -> Any:
    return part(
        request,
        "EntryData",
        entity=tuple(
            part(request, "EntityData", entity_type=kind, entity_name=name) for kind, name in entity
        ),
        values=tuple(
            part(request, "ValueData", key=key, value=value) for key, value in values.items()
        ),
    )


def _filter_error(components: Any) -> tuple[int, str]:
    """The error code and message for a quota filter. NONE and an empty text for a valid filter."""
    kinds: set[str] = set()
    for each in components:
        kind, match = each.entity_type, each.match_type
        if not kind:
            return Code.INVALID_REQUEST, "Invalid empty entity type."
        if kind in kinds:
            text = f"Entity type {kind} cannot appear more than once in the filter."
            return Code.INVALID_REQUEST, text
        if kind not in (_USER, _CLIENT, _IP):
            return Code.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}"
        if match not in (_EXACT, _DEFAULT, _SPECIFIED):
            return Code.INVALID_REQUEST, f"Unknown match type {match}"
        if match == _EXACT and each.match is None:
            text = "Request specified MATCH_TYPE_EXACT, but set match string to null."
            return Code.INVALID_REQUEST, text
        if match != _EXACT and each.match is not None:
            name = "DEFAULT" if match == _DEFAULT else "SPECIFIED"
            text = f"Request specified MATCH_TYPE_{name}, but also specified a match string."
            return Code.INVALID_REQUEST, text
        kinds.add(kind)
    if _IP in kinds and len(kinds) > 1:
        text = "Invalid entity filter component combination. IP filter component should not be "
        return Code.INVALID_REQUEST, text + "used with user or clientId filter component."
    return Code.NONE, ""


def _matches(entity: QuotaEntity, body: Any) -> bool:
    if body.strict and len(entity) != len(body.components):
        return False
    names = dict(entity)
    return all(
        each.entity_type in names
        and (each.match_type == _SPECIFIED or names[each.entity_type] == each.match)
        for each in body.components
    )


def describe_user_scram_credentials(
    place: ServerContext, request: ClientRequest, body: Any
) -> bytes:
    """The response with the SCRAM iteration counts of the stopped cluster's users.

    These users cannot log in to this server.
    """
    error, message = Code.NONE, ""
    credentials: Mapping[str, Mapping[int, int]] = {}
    if not place.catalog.of_cluster(Operation.DESCRIBE):
        error, message = Code.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed."
    else:
        try:
            credentials = place.files.state().scram
        except LogError as failed:
            error, message = Code.KAFKA_STORAGE_ERROR, str(failed)
    asked = [each.name for each in body.users or ()] or sorted(credentials)
    return encode_answer(
        request,
        error_code=error,
        error_message=message,
        results=()
        if error
        else tuple(
            _credentials(request, name, credentials.get(name), asked.count(name) > 1)
            for name in dict.fromkeys(asked)
        ),
    )


def _credentials(
    request: ClientRequest, name: str, found: Mapping[int, int] | None, is_double: bool
) -> Any:
    error, message = Code.NONE, ""
    if is_double:
        error = Code.DUPLICATE_RESOURCE
        message = "Cannot describe SCRAM credentials for the same user twice in a single request: "
        message += name
    elif found is None:
        error = Code.RESOURCE_NOT_FOUND
        message = f"Attempt to describe a user credential that does not exist: {name}"
    return part(
        request,
        "DescribeUserScramCredentialsResult",
        user=name,
        error_code=error,
        error_message=message,
        credential_infos=()
        if error or found is None
        else tuple(
            part(request, "CredentialInfo", mechanism=mechanism, iterations=iterations)
            for mechanism, iterations in sorted(found.items())
        ),
    )


# ---------------------------------------------------------------------- resources with settings


def list_config_resources(place: ServerContext, request: ClientRequest, body: Any) -> bytes:
    """The response with the names of resources that have settings."""
    asked = getattr(body, "resource_types", (CLIENT_METRICS,)) or _ALL_RESOURCES
    error: int = Code.NONE
    found: list[tuple[int, str]] = []
    if not place.catalog.of_cluster(Operation.DESCRIBE_CONFIGS):
        error = Code.CLUSTER_AUTHORIZATION_FAILED
    elif not set(asked) <= set(_ALL_RESOURCES):
        error = Code.UNSUPPORTED_VERSION
    else:
        try:
            configs = place.files.state().configs
        except LogError:
            error, configs = Code.KAFKA_STORAGE_ERROR, {}
        for kind in () if error else asked:
            if kind == TOPIC:
                names = place.catalog.names()
            elif kind in (BROKER, LOGGER):
                names = [str(NODE)]
            else:
                names = sorted(name for of, name in configs if of == kind)
            found += [(kind, name) for name in names]
    return encode_answer(
        request,
        error_code=error,
        config_resources=tuple(
            part(request, "ConfigResource", resource_type=kind, resource_name=name)
            for kind, name in found
        ),
    )


# ---------------------------------------------------------------------- transactions


def list_transactions(place: ServerContext, request: ClientRequest, body: Any) -> bytes:
    """The response with the transactional ids and the states of their transactions."""
    unknown = tuple(each for each in body.state_filters if each not in _KNOWN_STATES)
    error: int = Code.NONE
    found: Mapping[str, Mapping[str, Any]] = {}
    longer_ms = getattr(body, "duration_filter", -1)
    pattern = getattr(body, "transactional_id_pattern", None)
    now_ms = time.time_ns() // 1_000_000
    is_asked: re.Pattern[str] | None = None
    try:
        is_asked = re.compile(pattern) if pattern else None
        found = place.files.transactions()
    except re.error:
        error = Code.INVALID_REGULAR_EXPRESSION
    except LogError:
        error = Code.KAFKA_STORAGE_ERROR
    states = set(body.state_filters)
    listed = tuple(
        part(
            request,
            "TransactionState",
            transactional_id=name,
            producer_id=each["producerId"],
            transaction_state=_state(each),
        )
        for name, each in sorted(found.items())
        if _state(each) != _DEAD
        and place.catalog.may_describe_transaction(name)
        and (not states or _state(each) in states)
        and (not body.producer_id_filters or each["producerId"] in body.producer_id_filters)
        and (longer_ms < 0 or now_ms - each["transactionStartTimestampMs"] > longer_ms)
        and (is_asked is None or is_asked.fullmatch(name))
    )
    is_none = not error and bool(unknown) and len(unknown) == len(states)
    return encode_answer(
        request,
        error_code=error,
        unknown_state_filters=unknown,
        transaction_states=() if error or is_none else listed,
    )


def describe_transactions(place: ServerContext, request: ClientRequest, body: Any) -> bytes:
    """The response with the states of transactions, and the partitions of open ones."""
    found: Mapping[str, Mapping[str, Any]] = {}
    error: int = Code.NONE
    try:
        found = place.files.transactions()
    except LogError:
        error = Code.KAFKA_STORAGE_ERROR
    return encode_answer(
        request,
        transaction_states=tuple(
            _described(place, request, name, found.get(name), error)
            for name in body.transactional_ids
        ),
    )


def _described(
    place: ServerContext,
    request: ClientRequest,
    name: str,
    state: Mapping[str, Any] | None,
    error: int,
) -> Any:
    if not name:
        error = Code.INVALID_REQUEST
    elif not place.catalog.may_describe_transaction(name):
        error = Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    elif not error and (state is None or _state(state) == _DEAD):
        error = Code.TRANSACTIONAL_ID_NOT_FOUND
    shown: Mapping[str, Any] = {} if error or state is None else state
    started_ms = shown.get("transactionStartTimestampMs", 0)
    return part(
        request,
        "TransactionState",
        error_code=error,
        transactional_id=name,
        transaction_state=_state(shown) if shown else "",
        transaction_timeout=timedelta(milliseconds=shown.get("transactionTimeoutMs", 0)),
        transaction_start_time=datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=started_ms),
        producer_id=shown.get("producerId", 0),
        producer_epoch=shown.get("producerEpoch", 0),
        topics=tuple(
            part(request, "TopicData", topic=each["topic"], partitions=tuple(each["partitionIds"]))
            for each in shown.get("transactionPartitions") or ()
            if place.catalog.may(each["topic"])
        ),
    )


def _state(fields: Mapping[str, Any]) -> str:
    return TRANSACTION_STATES[fields["transactionStatus"]]


CLUSTER_HANDLERS = {
    "describe_quorum": describe_quorum,
    "describe_client_quotas": describe_client_quotas,
    "describe_user_scram_credentials": describe_user_scram_credentials,
    "list_config_resources": list_config_resources,
    "list_transactions": list_transactions,
    "describe_transactions": describe_transactions,
}
