"""Responses to all requests except Fetch, groups and administration.

The server acts as one broker that leads all partitions and is the controller. It refuses writes
with an authorization error.

Source: Kafka 4.4 ``KafkaApis``; the responses of Kafka 4.4.0.
"""

from __future__ import annotations

import re
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from lastwrite.errors import LogError
from lastwrite.kafka.look.served import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
)
from lastwrite.kafka.system import KafkaSystem
from lastwrite.server.acls import CLUSTER, Operation, ResourceType
from lastwrite.server.authorized_catalog import AuthorizedCatalog
from lastwrite.server.catalog import ServedPartition, ServedTopic, is_name
from lastwrite.server.cluster_files import ClusterFiles
from lastwrite.server.errors import Code
from lastwrite.server.fetch import epoch_error
from lastwrite.server.messages import APIS, ClientRequest, decode_body, encode_answer, part

NODE = 1
READ_ONLY = "This server is read-only: lastwrite serve accepts no changes."
_PRODUCERS = count()  # the next producer id; no record is ever written with these ids
UNASKED = -(1 << 31)
_BROKERS, _CONTROLLERS = 1, 2  # types of endpoints in DescribeCluster
_BY_ID = 12  # first version of the Metadata request in which topics have ids
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")
# For each special timestamp, the version of ListOffsets that added it.
_SINCE = {EARLIEST: 1, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING: 11}
_NEVER = 1 << 15
NOT_HOSTED = "This server does not host this topic-partition."
MALFORMED = (  # Kafka's message for the error INVALID_REQUEST
    "This most likely occurs because of a request being malformed by the client library or the "
    "message was sent to an incompatible broker. See the broker logs for more details."
)


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """The server's identity for clients: its address and the cluster's id."""

    host: str
    port: int
    cluster_id: str


@dataclass(frozen=True, slots=True)
class ServerContext:
    """The state of the server that responses need.

    ``system`` finds the settings of topics. ``files`` are the cluster's own logs. ``broker_file``
    contains the settings of the stopped broker's properties file, if it was given.
    """

    catalog: AuthorizedCatalog
    identity: ServerIdentity
    system: KafkaSystem
    files: ClusterFiles
    broker_file: Mapping[str, str] = field(default_factory=dict)


# ---------------------------------------------------------------------- versions


def versions_error(place: ServerContext, request: ClientRequest) -> int:
    """The error code of an ApiVersions request.

    A request may state the client's software, and the cluster and node that the client expects.

    Source: Kafka 4.4 ``ApiVersionsRequest.isValid``; KIP-511, KIP-1242; the responses of 4.4.0.
    """
    if not 3 <= request.version <= APIS["api_versions"].newest:
        return Code.NONE
    body = decode_body(request)
    if not all(map(_SOFTWARE.fullmatch, (body.client_software_name, body.client_software_version))):
        return Code.INVALID_REQUEST
    cluster, node = getattr(body, "cluster_id", None), getattr(body, "node_id", -1)
    if (cluster is None) != (node == -1):
        return Code.INVALID_REQUEST
    if cluster is None or (cluster, node) == (place.identity.cluster_id, NODE):
        return Code.NONE
    return Code.REBOOTSTRAP_REQUIRED


# ---------------------------------------------------------------------- topics


def metadata(place: ServerContext, request: ClientRequest, body: Any) -> bytes:
    """The Metadata response: the brokers, and the requested topics or all topics."""
    catalog, who = place.catalog, place.identity
    if request.version < _BY_ID and any(map(_is_by_id, body.topics or ())):
        return _no_metadata(request, body.topics)
    wants_all = body.topics is None or (request.version == 0 and not body.topics)
    if wants_all:
        listed = [catalog.topic(name) for name in catalog.names()]
        there = [each for each in listed if each is not None]
        catalog.read_all(there)
        topics = [_described(request, each, "MetadataResponse") for each in there]
    else:
        by_id = [each for each in body.topics if getattr(each, "topic_id", None) is not None]
        asked = {
            (getattr(each, "topic_id", None), each.name): each for each in by_id or body.topics
        }
        topics = [_requested_topics(catalog, request, each) for each in asked.values()]
    told = getattr(body, "include_topic_authorized_operations", False)
    of_cluster = getattr(body, "include_cluster_authorized_operations", False)
    broker = part(
        request, "MetadataResponseBroker", node_id=NODE, host=who.host, port=who.port, rack=None
    )
    return encode_answer(
        request,
        brokers=(broker,),
        cluster_id=who.cluster_id,
        controller_id=NODE,
        topics=tuple(
            part(
                request,
                "MetadataResponseTopic",
                **each,
                topic_authorized_operations=_operations(catalog, each) if told else UNASKED,
            )
            for each in topics
        ),
        cluster_authorized_operations=_of_cluster(catalog) if of_cluster else UNASKED,
        error_code=Code.NONE,
    )


def _is_by_id(asked: Any) -> bool:
    return asked.name is None or getattr(asked, "topic_id", None) is not None


def _no_metadata(request: ClientRequest, topics: Any) -> bytes:
    """The Metadata response to a request with topic ids, in a version that does not support them.

    Each topic has the error INVALID_REQUEST.
    """
    return encode_answer(
        request,
        brokers=(),
        cluster_id=None,
        controller_id=-1,
        topics=tuple(
            part(
                request,
                "MetadataResponseTopic",
                **_missing(Code.INVALID_REQUEST, each.name or "", each.topic_id),
            )
            for each in topics
        ),
    )


def _operations(catalog: AuthorizedCatalog, topic: dict[str, Any]) -> int:
    if topic["error_code"] == Code.TOPIC_AUTHORIZATION_FAILED:
        return UNASKED
    return catalog.operations(ResourceType.TOPIC, topic["name"] or "")


def _of_cluster(catalog: AuthorizedCatalog) -> int:
    if not catalog.of_cluster(Operation.DESCRIBE):
        return 0
    return catalog.operations(ResourceType.CLUSTER, CLUSTER)


def _requested_topics(
    catalog: AuthorizedCatalog, request: ClientRequest, asked: Any
) -> dict[str, Any]:
    id = getattr(asked, "topic_id", None)
    if asked.name is None or id is not None:
        topic = None if id is None else catalog.of_id(id.bytes)
        if topic is None:
            nameless = None if request.version >= 12 else ""
            code = Code.UNKNOWN_TOPIC_ID if id is None else catalog.unknown_id(id.bytes)
            return _missing(code, nameless, id)
    else:
        topic = catalog.topic(asked.name)
        if topic is None:
            known = is_name(asked.name)
            code = Code.UNKNOWN_TOPIC_OR_PARTITION if known else Code.INVALID_TOPIC
            return _missing(catalog.unknown(asked.name, code), asked.name, None)
        catalog.read_all([topic])
    return _described(request, topic, "MetadataResponse")


def _missing(code: int, name: str | None, id: uuid.UUID | None) -> dict[str, Any]:
    return {"error_code": code, "name": name, "topic_id": id, "partitions": ()}


def _described(request: ClientRequest, topic: ServedTopic, prefix: str) -> dict[str, Any]:
    """The fields that describe a topic in a response.

    ``prefix`` is the start of the name of kio's class for partitions.
    """
    try:
        id = uuid.UUID(bytes=topic.id)
    except LogError:  # the error is reported with each partition, so the topic has a derived id
        id = topic.derived_id
    return {
        "error_code": Code.NONE,
        "name": topic.name,
        "topic_id": id,
        "is_internal": topic.name.startswith("__"),
        "partitions": tuple(
            _partition(request, prefix, each) for _, each in sorted(topic.partitions.items())
        ),
    }


def _partition(request: ClientRequest, prefix: str, found: ServedPartition) -> Any:
    epoch, error = 0, Code.NONE
    try:
        epoch = found.epoch
    except LogError:
        error = Code.KAFKA_STORAGE_ERROR
    return part(
        request,
        f"{prefix}Partition",
        error_code=error,
        partition_index=found.name.partition,
        leader_id=NODE,
        leader_epoch=epoch,
        replica_nodes=(NODE,),
        isr_nodes=(NODE,),
        offline_replicas=(),
        eligible_leader_replicas=(),  # not null, which crashes Java clients of version 3.9
        last_known_elr=(),
    )


def describe_topic_partitions(place: ServerContext, request: ClientRequest, body: Any) -> bytes:
    """The response with the next topics from the request's cursor on.

    The response is limited to a number of partitions.
    """
    names = sorted({each.name for each in body.topics}) or place.catalog.names()
    wrong = body.cursor is not None and (
        body.cursor.partition_index < 0
        or (bool(body.topics) and body.cursor.topic_name not in names)
    )
    at = (body.cursor.topic_name, body.cursor.partition_index) if body.cursor else ("", 0)
    left, topics, next_cursor = max(min(body.response_partition_limit, 2000), 1), [], None
    for name in names:
        if name < at[0] and not wrong:
            continue
        if wrong:
            topics.append(_missing(Code.INVALID_REQUEST, name, None))
            continue
        topic = place.catalog.topic(name)
        if topic is None:
            known = is_name(name)
            code = Code.UNKNOWN_TOPIC_OR_PARTITION if known else Code.INVALID_TOPIC
            topics.append(_missing(place.catalog.unknown(name, code), name, None))
            continue
        if left == 0:
            next_cursor = part(request, "Cursor", topic_name=name, partition_index=0)
            break
        place.catalog.read_all([topic])
        said = _described(request, topic, "DescribeTopicPartitionsResponse")
        first = at[1] if name == at[0] else 0
        fits = [each for each in said["partitions"] if each.partition_index >= first]
        if len(fits) > left:
            number = fits[left].partition_index
            next_cursor = part(request, "Cursor", topic_name=name, partition_index=number)
        said["partitions"] = tuple(fits[:left])
        left -= len(said["partitions"])
        topics.append(said)
        if next_cursor is not None:
            break
    kind = "DescribeTopicPartitionsResponseTopic"
    return encode_answer(
        request,
        topics=tuple(
            part(
                request,
                kind,
                **each,
                topic_authorized_operations=_operations(place.catalog, each),
            )
            for each in topics
        ),
        next_cursor=next_cursor,
    )


def describe_cluster(place: ServerContext, request: ClientRequest, body: Any) -> bytes:
    who = place.identity
    broker = part(
        request,
        "DescribeClusterBroker",
        broker_id=NODE,
        host=who.host,
        port=who.port,
        rack=None,
        is_fenced=False,
    )
    kind = getattr(body, "endpoint_type", _BROKERS)
    error, message = Code.NONE, None
    if kind == _CONTROLLERS:
        error = Code.MISMATCHED_ENDPOINT_TYPE
        message = "The request was sent to an endpoint of type BROKER, but we wanted an endpoint "
        message += "of type CONTROLLER"
    elif kind != _BROKERS:
        error, message = Code.UNSUPPORTED_ENDPOINT_TYPE, f"Unsupported endpoint type {kind}"
    if error:
        return encode_answer(
            request,
            error_code=error,
            error_message=message,
            cluster_id="",
            controller_id=-1,
            brokers=(),
            cluster_authorized_operations=UNASKED,
        )
    return encode_answer(
        request,
        error_code=Code.NONE,
        cluster_id=who.cluster_id,
        controller_id=NODE,
        brokers=(broker,),
        cluster_authorized_operations=_of_cluster(place.catalog)
        if body.include_cluster_authorized_operations
        else UNASKED,
    )


# ---------------------------------------------------------------------- offsets of a log


def list_offsets(place: ServerContext, request: ClientRequest, body: Any) -> bytes:
    is_committed = getattr(body, "isolation_level", 0) == 1
    counts = Counter(
        (each.name, p.partition_index) for each in body.topics for p in each.partitions
    )

    def answered(topic: str, asked: Any) -> Any:
        error: int = Code.INVALID_REQUEST
        offset = timestamp = epoch = -1
        if counts[topic, asked.partition_index] == 1:
            error, offset, timestamp, epoch = _offset(
                place.catalog, request, topic, asked, is_committed
            )
        return part(
            request,
            "ListOffsetsPartitionResponse",
            partition_index=asked.partition_index,
            error_code=error,
            timestamp=timestamp,
            offset=offset,
            leader_epoch=epoch,
        )

    return encode_answer(
        request,
        topics=tuple(
            part(
                request,
                "ListOffsetsTopicResponse",
                name=name,
                partitions=tuple(answered(name, asked) for asked in partitions.values()),
            )
            for name, partitions in _by_topic(body.topics).items()
        ),
    )


def _by_topic(topics: Any) -> dict[str, dict[int, Any]]:
    """The partitions that a request lists, by topic and number, without duplicates."""
    found: dict[str, dict[int, Any]] = {}
    for each in topics:
        found.setdefault(each.name, {}).update({p.partition_index: p for p in each.partitions})
    return found


def _offset(
    catalog: AuthorizedCatalog, request: ClientRequest, name: str, asked: Any, is_committed: bool
) -> tuple[int, int, int, int]:
    found = catalog.partition(catalog.topic(name), asked.partition_index)
    if found is None:
        return catalog.unknown(name), -1, -1, -1
    if asked.timestamp < LATEST and request.version < _SINCE.get(asked.timestamp, _NEVER):
        return Code.UNSUPPORTED_VERSION, -1, -1, -1
    try:
        log = found.current()
        wrong = epoch_error(log.epoch, getattr(asked, "current_leader_epoch", -1))
        if wrong:
            return wrong, -1, -1, -1
        offset, timestamp = log.offset_at(asked.timestamp, is_committed)
    except LogError as error:
        found.report(error)
        return Code.KAFKA_STORAGE_ERROR, -1, -1, -1
    return Code.NONE, offset, timestamp, log.epoch_of(offset) if offset >= 0 else -1


def offset_for_leader_epoch(place: ServerContext, request: ClientRequest, body: Any) -> bytes:
    def answered(topic: str, asked: Any) -> Any:
        error, epoch, end = _end_of_epoch(place.catalog, topic, asked)
        return part(
            request,
            "EpochEndOffset",
            error_code=error,
            partition=asked.partition,
            leader_epoch=epoch,
            end_offset=end,
        )

    return encode_answer(
        request,
        topics=tuple(
            part(
                request,
                "OffsetForLeaderTopicResult",
                topic=each.topic,
                partitions=tuple(answered(each.topic, asked) for asked in each.partitions),
            )
            for each in body.topics
        ),
    )


def _end_of_epoch(catalog: AuthorizedCatalog, name: str, asked: Any) -> tuple[int, int, int]:
    found = catalog.partition(catalog.topic(name), asked.partition)
    if found is None:
        return catalog.unknown(name), -1, -1
    try:
        log = found.log()
    except LogError:
        return Code.KAFKA_STORAGE_ERROR, -1, -1
    wrong = epoch_error(log.epoch, asked.current_leader_epoch)
    return (wrong, -1, -1) if wrong else (Code.NONE, *log.end_of_epoch(asked.leader_epoch))


# ---------------------------------------------------------------------- writing


def init_producer_id(place: ServerContext, request: ClientRequest, body: Any) -> bytes:
    """Assign an id to non-transactional producers, although the server refuses all writes.

    With an id, a producer sends Produce, and shows the error message of the response. Without an id
    it would never send Produce.
    """
    is_refused = body.transactional_id is not None
    error = Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED if is_refused else Code.NONE
    return encode_answer(
        request,
        error_code=error,
        producer_id=-1 if is_refused else next(_PRODUCERS),
        producer_epoch=-1 if is_refused else 0,
    )


def produce(place: ServerContext, request: ClientRequest, body: Any) -> bytes | None:
    """The response that refuses all records of a Produce request.

    None if the client expects no response.
    """
    if body.acks == 0:
        return None
    name = "topic_id" if request.version >= 13 else "name"
    return encode_answer(
        request,
        responses=tuple(
            part(
                request,
                "TopicProduceResponse",
                **{name: getattr(topic, name)},
                partition_responses=tuple(
                    part(
                        request,
                        "PartitionProduceResponse",
                        index=each.index,
                        error_code=Code.TOPIC_AUTHORIZATION_FAILED,
                        base_offset=-1,
                        log_append_time=None,
                        record_errors=(),
                        error_message=READ_ONLY,
                    )
                    for each in topic.partition_data
                ),
            )
            for topic in body.topic_data
        ),
    )


Handler = Callable[[ServerContext, ClientRequest, Any], "bytes | None"]
HANDLERS: dict[str, Handler] = {
    "metadata": metadata,
    "describe_topic_partitions": describe_topic_partitions,
    "describe_cluster": describe_cluster,
    "list_offsets": list_offsets,
    "offset_for_leader_epoch": offset_for_leader_epoch,
    "init_producer_id": init_producer_id,
    "produce": produce,
}
