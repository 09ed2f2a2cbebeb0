"""Decode requests and encode responses. Bodies are decoded and encoded by kio.

A request of an unsupported version, or one that does not decode, closes the connection, as on a
broker. Only an ApiVersions request of an unsupported version is answered, with the oldest body.

Source: Kafka 4.4 ``RequestHeader.json``, ``ApiVersionsResponse.json``; KIP-482, KIP-511; measured
on 4.4.0.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Mapping
from datetime import timedelta
from functools import cache
from typing import Any, NamedTuple

from lastwrite.encoding.layout import Buffer
from lastwrite.errors import CorruptLog
from lastwrite.kafka.cluster.cluster_state import ClusterState
from lastwrite.kafka.network.messages import build_message, schema, skip_tags
from lastwrite.kafka.network.size_limits import checked


class SupportedRequest(NamedTuple):
    """A request type that the server supports: its API key and versions."""

    key: int
    oldest: int
    newest: int
    flexible: int  # the first version with flexible fields (KIP-482)


APIS: Mapping[str, SupportedRequest] = {
    "produce": SupportedRequest(
        0, 3, 13, 9
    ),  # answered with a refusal; clients derive the record format from these versions
    "fetch": SupportedRequest(1, 4, 18, 12),
    "list_offsets": SupportedRequest(2, 1, 11, 6),
    "metadata": SupportedRequest(3, 0, 13, 9),
    "offset_commit": SupportedRequest(8, 2, 10, 8),
    "offset_fetch": SupportedRequest(9, 1, 10, 6),
    "find_coordinator": SupportedRequest(10, 0, 6, 3),
    "join_group": SupportedRequest(11, 0, 9, 6),
    "heartbeat": SupportedRequest(12, 0, 4, 4),
    "leave_group": SupportedRequest(13, 0, 5, 4),
    "sync_group": SupportedRequest(14, 0, 5, 4),
    "describe_groups": SupportedRequest(15, 0, 6, 5),
    "list_groups": SupportedRequest(16, 0, 5, 3),
    "sasl_handshake": SupportedRequest(17, 0, 1, 2),
    "api_versions": SupportedRequest(18, 0, 5, 3),
    "create_topics": SupportedRequest(
        19, 2, 7, 5
    ),  # answered with a refusal, like all requests that change a cluster
    "delete_topics": SupportedRequest(20, 1, 6, 4),
    "delete_records": SupportedRequest(21, 0, 2, 2),
    "init_producer_id": SupportedRequest(
        22, 0, 5, 2
    ),  # answered, so that producers continue with Produce, which is refused
    "offset_for_leader_epoch": SupportedRequest(23, 2, 4, 4),
    "describe_acls": SupportedRequest(29, 1, 3, 2),
    "create_acls": SupportedRequest(30, 1, 3, 2),
    "delete_acls": SupportedRequest(31, 1, 3, 2),
    "describe_configs": SupportedRequest(32, 1, 4, 4),
    "alter_configs": SupportedRequest(33, 0, 2, 2),
    "describe_log_dirs": SupportedRequest(35, 1, 5, 2),
    "sasl_authenticate": SupportedRequest(36, 0, 2, 2),
    "create_partitions": SupportedRequest(37, 0, 3, 2),
    "delete_groups": SupportedRequest(42, 0, 3, 2),
    "elect_leaders": SupportedRequest(43, 0, 2, 2),
    "incremental_alter_configs": SupportedRequest(44, 0, 1, 1),
    "alter_partition_reassignments": SupportedRequest(45, 0, 1, 0),
    "list_partition_reassignments": SupportedRequest(46, 0, 0, 0),
    "offset_delete": SupportedRequest(47, 0, 0, 1),
    "describe_client_quotas": SupportedRequest(48, 0, 1, 1),
    "alter_client_quotas": SupportedRequest(49, 0, 1, 1),
    "describe_user_scram_credentials": SupportedRequest(50, 0, 0, 0),
    "alter_user_scram_credentials": SupportedRequest(51, 0, 0, 0),
    "describe_quorum": SupportedRequest(55, 0, 2, 0),
    "update_features": SupportedRequest(57, 0, 2, 0),
    "describe_cluster": SupportedRequest(60, 0, 2, 0),
    "describe_producers": SupportedRequest(61, 0, 0, 0),
    "describe_transactions": SupportedRequest(65, 0, 0, 0),
    "list_transactions": SupportedRequest(66, 0, 2, 0),
    "consumer_group_heartbeat": SupportedRequest(68, 0, 1, 0),
    "consumer_group_describe": SupportedRequest(69, 0, 1, 0),
    "list_config_resources": SupportedRequest(74, 0, 1, 0),
    "describe_topic_partitions": SupportedRequest(75, 0, 0, 0),
}
_BY_KEY = {api.key: name for name, api in APIS.items()}

_HEAD = struct.Struct(">hhi")
NO_TIME = timedelta(0)
# Maximum number of list elements in a request: enough for 100,000 topics with one partition each.
_MOST_ELEMENTS = 200_000


class ClientRequest(NamedTuple):
    """A decoded request header. ``body`` are the bytes after it."""

    name: str
    version: int  # the request's version; only ApiVersions may have an unsupported one
    correlation_id: int
    client_id: str
    body: memoryview

    @property
    def is_flexible(self) -> bool:
        return self.version >= APIS[self.name].flexible


def decode_request(frame: Buffer) -> ClientRequest:
    """Decode the header of a request.

    Raises:
        CorruptLog: the frame is not a request, or the request is not supported.
    """
    view = memoryview(frame)
    if len(view) < _HEAD.size + 2:
        raise CorruptLog(f"the request has only {len(view)} bytes", 0)
    key, version, correlation_id = _HEAD.unpack_from(view, 0)
    name = _BY_KEY.get(key)
    if name is None:
        raise CorruptLog(f"the request has the unknown API key {key}", 0)
    api = APIS[name]
    if name == "api_versions" and not 0 <= version <= api.newest:
        return ClientRequest(name, version, correlation_id, "", view[:0])
    if not api.oldest <= version <= api.newest:
        raise CorruptLog(f"the request {name} has the unsupported version {version}", 2)
    (length,) = struct.unpack_from(">h", view, _HEAD.size)
    at = _HEAD.size + 2 + max(length, 0)
    if at > len(view):
        raise CorruptLog(f"the client id has length {length}", _HEAD.size)
    client = bytes(view[_HEAD.size + 2 : at]).decode("utf-8", "replace")
    if version >= api.flexible:
        at = skip_tags(view, at)
    return ClientRequest(name, version, correlation_id, client, view[at:])


def decode_body(request: ClientRequest) -> Any:
    """Decode the body of a request.

    Raises:
        CorruptLog: the body does not decode.
    """
    body = checked(_kind(request.name, request.version), request.body, 0, _MOST_ELEMENTS)
    reader = _reader(request.name, request.version)
    try:
        return reader(body, 0)[0]
    # catch all errors, because kio raises many kinds of errors for invalid bytes
    except Exception as error:
        raise CorruptLog(f"the bytes are not a valid request {request.name}: {error}", 0) from error


def encode_answer(request: ClientRequest, **values: object) -> bytes:
    """Encode a response: header and body, without the frame's size field.

    Ignores values for fields that the version lacks.
    """
    module = answer_parts(request)
    name = _class_of(request.name) + "Response"
    message = build_message(module, name, throttle_time=NO_TIME, **_kio_values(values))
    body = io.BytesIO()
    writer: Any = _writer
    writer(type(message))(body, message)
    return answer_head(request) + body.getvalue()


def part(request: ClientRequest, of: str, /, **values: object) -> Any:
    """Create a structure inside a response. Its class in kio is named ``of``.

    Ignores values for fields that the class lacks.
    """
    return build_message(answer_parts(request), of, **_kio_values(values))


def answer_head(request: ClientRequest) -> bytes:
    """The header of a response, encoded."""
    head = struct.pack(">i", request.correlation_id)
    has_tags = request.is_flexible and request.name != "api_versions"
    return head + b"\0" if has_tags else head


def answer_parts(request: ClientRequest) -> Any:
    """The kio module with the classes of a response."""
    return schema(request.name, request.version, "response")


def encode_versions(
    request: ClientRequest, error: int, cluster: ClusterState | None = None
) -> bytes:
    """The ApiVersions response.

    Version 5 has the same layout as version 4. A request of an unknown version gets the oldest body
    (KIP-511). From version 3 on the response includes the features of ``cluster`` (KIP-584).
    """
    head = answer_head(request)
    unknown = not 0 <= request.version <= APIS["api_versions"].newest
    names = ["api_versions"] if unknown else [] if error else list(APIS)
    ranges = [(APIS[name].key, APIS[name].oldest, APIS[name].newest) for name in names]
    body = struct.pack(">h", 35 if unknown else error)
    if unknown or request.version < 3:
        body += struct.pack(">i", len(ranges))
        body += b"".join(struct.pack(">hhh", *each) for each in ranges)
        return head + body + (b"" if unknown or request.version < 1 else struct.pack(">i", 0))
    # the number of keys as a varint of one byte, because it is below 127
    body += bytes([len(ranges) + 1])
    body += b"".join(struct.pack(">hhh", *each) + b"\0" for each in ranges)
    return head + body + struct.pack(">i", 0) + _features(request.version, error, cluster)


def _features(version: int, error: int, cluster: ClusterState | None) -> bytes:
    """Encode the features in an ApiVersions response: its tagged fields 0, 1 and 2.

    Features with a lowest level of 0 are omitted before version 4, because older clients fail to
    read a 0 (KAFKA-17492).
    """
    if cluster is None or error:
        return b"\0"
    supported = {name: each for name, each in cluster.supported.items() if version >= 4 or each[0]}
    fields = [
        (0, _levels(supported)),
        (1, struct.pack(">q", cluster.end.offset - 1)),
        # The field has two levels per feature, maximum and minimum. Both are the finalized level.
        (2, _levels({name: (level, level) for name, level in cluster.finalized.items()})),
    ]
    # omit fields with default values, as Java does
    written = [(tag, data) for tag, data in fields if data not in (b"\x01", b"\xff" * 8)]
    tags = b"".join(bytes([tag]) + _varint(len(data)) + data for tag, data in written)
    return bytes([len(written)]) + tags


def _levels(levels: Mapping[str, tuple[int, int]]) -> bytes:
    """Encode a compact array of feature names, each with two levels."""
    return _varint(len(levels) + 1) + b"".join(
        _varint(len(name) + 1) + name.encode() + struct.pack(">hh", *both) + b"\0"
        for name, both in levels.items()
    )


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out) + bytes([value])


def _kio_values(values: dict[str, object]) -> dict[str, object]:
    """The values of a response. The error code is converted to kio's enum."""
    if "error_code" in values:
        from kio.schema.errors import ErrorCode

        code: Any = values["error_code"]
        return values | {"error_code": ErrorCode(code)}
    return values


@cache
def _reader(name: str, version: int) -> Any:
    from kio.serial import entity_reader

    return entity_reader(_kind(name, version))


@cache
def _kind(name: str, version: int) -> Any:
    return getattr(schema(name, version), _class_of(name) + "Request")


@cache
def _writer(kind: Any) -> Any:
    from kio.serial import entity_writer

    return entity_writer(kind)


def _class_of(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))
