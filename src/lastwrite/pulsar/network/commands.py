"""The messages of Pulsar's binary protocol that the commit of a ledger needs, as tables.

A frame without payload is a u32 length and a ``BaseCommand`` of that length. Its field 1 is the
command's number; another field contains the command.

Source: Pulsar 4.2.4, protocol version 19 and up; docs/formats/pulsar.md, "Entry";
docs/formats/pulsar-compaction.md, "The commit".
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated

from lastwrite.errors import CorruptLog, TruncatedLog
from lastwrite.pulsar.format.compacted import MessageId
from lastwrite.pulsar.format.managed_ledger import LongProperty
from lastwrite.pulsar.format.protobuf import (
    BOOL,
    BYTES,
    INT32,
    STRING,
    UINT64,
    ProtoField,
    ProtoMessage,
)

PROTOCOL_VERSION = 19
ACK_RECEIPT_VERSION = 17  # brokers from this version on answer an acknowledgement

_LENGTH = struct.Struct(">I")


class ServerError(IntEnum):
    """The error codes of a broker that are handled specially."""

    AUTHENTICATION = 3
    AUTHORIZATION = 4
    CONSUMER_BUSY = 5  # another consumer has the exclusive subscription
    SERVICE_NOT_READY = 6  # the lookup and the request must be repeated
    TOPIC_NOT_FOUND = 11
    SUBSCRIPTION_NOT_FOUND = 12
    TOO_MANY_REQUESTS = 14


class LookupType(IntEnum):
    """The kinds of a lookup's answer."""

    REDIRECT = 0
    CONNECT = 1
    FAILED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Connect(ProtoMessage):
    client_version: Annotated[str, ProtoField(1, STRING, required=True)]
    auth_data: Annotated[bytes | None, ProtoField(3, BYTES)] = None
    protocol_version: Annotated[int, ProtoField(4, INT32)] = PROTOCOL_VERSION
    auth_method_name: Annotated[str | None, ProtoField(5, STRING)] = None
    proxy_to_broker_url: Annotated[str | None, ProtoField(6, STRING)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Connected(ProtoMessage):
    server_version: Annotated[str, ProtoField(1, STRING, required=True)]
    protocol_version: Annotated[int | None, ProtoField(2, INT32)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribe(ProtoMessage):
    topic: Annotated[str, ProtoField(1, STRING, required=True)]
    subscription: Annotated[str, ProtoField(2, STRING, required=True)]
    kind: Annotated[int, ProtoField(3, INT32, required=True)] = 0  # 0 means exclusive
    consumer_id: Annotated[int, ProtoField(4, UINT64, required=True)]
    request_id: Annotated[int, ProtoField(5, UINT64, required=True)]
    consumer_name: Annotated[str | None, ProtoField(6, STRING)] = None
    durable: Annotated[bool | None, ProtoField(8, BOOL)] = None  # durable if absent
    start: Annotated[MessageId | None, ProtoField(9, MessageId)] = None
    read_compacted: Annotated[bool | None, ProtoField(11, BOOL)] = None
    # where a new subscription starts; 1 means the earliest entry
    initial_position: Annotated[int | None, ProtoField(13, INT32)] = None
    force_topic_creation: Annotated[bool, ProtoField(15, BOOL)] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack(ProtoMessage):
    consumer_id: Annotated[int, ProtoField(1, UINT64, required=True)]
    kind: Annotated[int, ProtoField(2, INT32, required=True)] = 1  # 1 means cumulative
    positions: Annotated[tuple[MessageId, ...], ProtoField(3, MessageId, repeated=True)] = ()
    properties: Annotated[tuple[LongProperty, ...], ProtoField(5, LongProperty, repeated=True)] = ()
    request_id: Annotated[int | None, ProtoField(8, UINT64)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AckResponse(ProtoMessage):
    error: Annotated[int | None, ProtoField(4, INT32)] = None
    message: Annotated[str | None, ProtoField(5, STRING)] = None
    request_id: Annotated[int | None, ProtoField(6, UINT64)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Success(ProtoMessage):
    request_id: Annotated[int, ProtoField(1, UINT64, required=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandError(ProtoMessage):
    request_id: Annotated[int, ProtoField(1, UINT64, required=True)]
    error: Annotated[int, ProtoField(2, INT32, required=True)]
    message: Annotated[str, ProtoField(3, STRING, required=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseConsumer(ProtoMessage):
    """The message that ends a consumer.

    A broker sends it if the topic moves to another broker. The client must then subscribe there.
    """

    consumer_id: Annotated[int, ProtoField(1, UINT64, required=True)]
    request_id: Annotated[int, ProtoField(2, UINT64, required=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ping(ProtoMessage):
    """A keep-alive request. The other side must answer with a PONG, which has the same fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup(ProtoMessage):
    topic: Annotated[str, ProtoField(1, STRING, required=True)]
    request_id: Annotated[int, ProtoField(2, UINT64, required=True)]
    authoritative: Annotated[bool, ProtoField(3, BOOL)] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupResponse(ProtoMessage):
    broker_url: Annotated[str | None, ProtoField(1, STRING)] = None
    broker_url_tls: Annotated[str | None, ProtoField(2, STRING)] = None
    response: Annotated[int | None, ProtoField(3, INT32)] = None
    request_id: Annotated[int, ProtoField(4, UINT64, required=True)]
    authoritative: Annotated[bool | None, ProtoField(5, BOOL)] = None
    error: Annotated[int | None, ProtoField(6, INT32)] = None
    message: Annotated[str | None, ProtoField(7, STRING)] = None
    proxy_through_service_url: Annotated[bool | None, ProtoField(8, BOOL)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LastMessageId(ProtoMessage):
    consumer_id: Annotated[int, ProtoField(1, UINT64, required=True)]
    request_id: Annotated[int, ProtoField(2, UINT64, required=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LastMessageIdResponse(ProtoMessage):
    last: Annotated[MessageId, ProtoField(1, MessageId, required=True)]
    request_id: Annotated[int, ProtoField(2, UINT64, required=True)]
    mark_delete: Annotated[MessageId | None, ProtoField(3, MessageId)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthData(ProtoMessage):
    auth_method_name: Annotated[str | None, ProtoField(1, STRING)] = None
    auth_data: Annotated[bytes | None, ProtoField(2, BYTES)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthResponse(ProtoMessage):
    client_version: Annotated[str | None, ProtoField(1, STRING)] = None
    response: Annotated[AuthData | None, ProtoField(2, AuthData)] = None
    protocol_version: Annotated[int, ProtoField(3, INT32)] = PROTOCOL_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseCommand(ProtoMessage):
    """Any command. Fields of unused commands stay in ``unknown``."""

    kind: Annotated[int, ProtoField(1, INT32, required=True)]
    connect: Annotated[Connect | None, ProtoField(2, Connect)] = None
    connected: Annotated[Connected | None, ProtoField(3, Connected)] = None
    subscribe: Annotated[Subscribe | None, ProtoField(4, Subscribe)] = None
    ack: Annotated[Ack | None, ProtoField(10, Ack)] = None
    success: Annotated[Success | None, ProtoField(13, Success)] = None
    error: Annotated[CommandError | None, ProtoField(14, CommandError)] = None
    close_consumer: Annotated[CloseConsumer | None, ProtoField(16, CloseConsumer)] = None
    ping: Annotated[Ping | None, ProtoField(18, Ping)] = None
    pong: Annotated[Ping | None, ProtoField(19, Ping)] = None
    lookup: Annotated[Lookup | None, ProtoField(23, Lookup)] = None
    lookup_response: Annotated[LookupResponse | None, ProtoField(24, LookupResponse)] = None
    last_message_id: Annotated[LastMessageId | None, ProtoField(29, LastMessageId)] = None
    last_message_id_response: Annotated[
        LastMessageIdResponse | None, ProtoField(30, LastMessageIdResponse)
    ] = None
    # A challenge is decoded as an empty message: its content does not affect the answer.
    auth_challenge: Annotated[Ping | None, ProtoField(36, Ping)] = None
    auth_response: Annotated[AuthResponse | None, ProtoField(37, AuthResponse)] = None
    ack_response: Annotated[AckResponse | None, ProtoField(38, AckResponse)] = None


def encode_command(command: BaseCommand) -> bytes:
    """The frame of a command without payload. The frame's length is not included."""
    data = command.encode()
    return _LENGTH.pack(len(data)) + data


def decode_command(frame: bytes) -> BaseCommand:
    """The command of a frame. A payload after it is ignored.

    Raises:
        TruncatedLog, CorruptLog: the frame is not a command.
    """
    if len(frame) < _LENGTH.size:
        raise TruncatedLog("the frame ends before its command", 0)
    (length,) = _LENGTH.unpack_from(frame)
    if length > len(frame) - _LENGTH.size:
        raise TruncatedLog(
            f"the command length is {length} bytes, but only {len(frame) - _LENGTH.size} bytes "
            "follow",
            0,
        )
    command = BaseCommand.decode(frame, _LENGTH.size, _LENGTH.size + length)
    if command.kind <= 1:
        raise CorruptLog(f"the command kind {command.kind} is invalid", _LENGTH.size)
    return command
