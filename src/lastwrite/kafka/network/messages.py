"""Requests and responses other than Fetch and Produce, with kio's classes by name and version.

Requests and responses have a header and a body. Each message has a first *flexible* version. From
that version on, structures and headers end with a section of tagged fields::

    request  i16 api key, i16 version, i32 correlation id · client id · tags if flexible · body
    answer   i32 correlation id · tags if flexible · body

The header of an ApiVersions response never has tags, so that every client can decode it.

Source: Kafka 4.4 ``RequestHeader.json``, ``ResponseHeader.json``; KIP-482, KIP-511.
"""

from __future__ import annotations

import io
import struct
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

from lastwrite.encoding.layout import Buffer
from lastwrite.errors import CorruptLog, missing_extra
from lastwrite.kafka.cluster.message import MessageReader
from lastwrite.kafka.network.size_limits import checked

_HEADER = struct.Struct(">hhi")


class Api(NamedTuple):
    """A request's API key, and the versions of it that Lastwrite supports."""

    key: int
    oldest: int
    newest: int


APIS = {
    "produce": Api(0, 3, 8),
    "fetch": Api(1, 4, 13),
    "list_offsets": Api(2, 1, 9),
    "metadata": Api(3, 1, 12),
    "offset_commit": Api(8, 2, 8),
    "offset_fetch": Api(9, 2, 7),
    "find_coordinator": Api(10, 1, 3),
    "list_groups": Api(16, 0, 4),
    "sasl_handshake": Api(17, 1, 1),
    "api_versions": Api(18, 0, 3),
    "create_topics": Api(19, 2, 7),
    "init_producer_id": Api(22, 0, 4),
    "offset_for_leader_epoch": Api(23, 2, 4),
    # In later versions a broker raises the producer epoch after each transaction (KIP-890).
    "add_partitions_to_txn": Api(24, 0, 3),
    "add_offsets_to_txn": Api(25, 0, 3),
    "end_txn": Api(26, 0, 3),
    "txn_offset_commit": Api(28, 0, 3),
    "describe_configs": Api(32, 1, 4),
    "sasl_authenticate": Api(36, 0, 2),
    "incremental_alter_configs": Api(44, 0, 1),
}


_NEWER = {("api_versions", 5), ("delete_groups", 3)}  # requests and versions that kio lacks


@cache
def schema(name: str, version: int, side: str = "request") -> Any:
    """The kio module with the classes of a message. ``side`` is "request" or "response".

    Raises:
        EnvironmentUnfit: kio is not installed.
    """
    try:
        if (name, version) in _NEWER:
            return import_module("lastwrite.kafka.network.newer_messages")
        return import_module(f"kio.schema.{name}.v{version}.{side}")
    except ImportError as error:
        raise missing_extra("Kafka's protocol", "kio", "kafka") from error


def build_message(module: Any, of: str, /, **values: object) -> Any:
    """Create a kio message, or a structure inside one. Its class in ``module`` is named ``of``.

    Ignores values for fields that the class lacks.
    """
    kind = getattr(module, of)
    return kind(
        **{name: each for name, each in values.items() if name in kind.__dataclass_fields__}
    )


def header(name: str, version: int, correlation_id: int, client_id: str, flexible: bool) -> bytes:
    """Encode the header of a request."""
    client = client_id.encode()
    head = _HEADER.pack(APIS[name].key, version, correlation_id)
    return head + struct.pack(">h", len(client)) + client + (b"\0" if flexible else b"")


def encode(name: str, version: int, correlation_id: int, client_id: str, message: Any) -> bytes:
    """Encode a request: header and body."""
    from kio.serial import entity_writer

    body = io.BytesIO()
    entity_writer(type(message))(body, message)
    flexible = bool(message.__flexible__)
    return header(name, version, correlation_id, client_id, flexible) + body.getvalue()


def decode(name: str, version: int, data: Buffer) -> Any:
    """Decode the body of a response. ``data`` begins after the correlation id.

    Raises:
        CorruptLog: the bytes are not a response to this request.
    """
    from kio.serial import entity_reader

    kind = getattr(schema(name, version, "response"), _class_of(name) + "Response")
    at = 0
    if kind.__flexible__ and name != "api_versions":
        at = skip_tags(data, 0)
    body = checked(kind, data, at)
    try:
        return entity_reader(kind)(body, 0)[0]
    except Exception as error:  # kio raises many exception types on damaged bytes
        raise CorruptLog(
            f"the bytes are not a response to the request {name}: {error}", at
        ) from error


def _class_of(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def skip_tags(data: Buffer, at: int) -> int:
    """The position after a section of tagged fields."""
    reader = MessageReader(data, at)
    for _ in range(reader.unsigned()):
        reader.unsigned()
        reader.take(reader.unsigned())
    return reader.position


def request_of(name: str, version: int, **values: object) -> Any:
    """Create the body of a request. Ignores fields that its version lacks."""
    return build_message(schema(name, version), _class_of(name) + "Request", **values)
