"""``send``: sends messages to a topic of a live cluster; equal keys go to one queue."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator, Mapping

from lastwrite.errors import InvalidConfig
from lastwrite.rocketmq.format.record import Compression
from lastwrite.rocketmq.network.client import RocketmqClient, SendResult
from lastwrite.rocketmq.network.connection import TIMEOUT_SECONDS
from lastwrite.rocketmq.network.outgoing import COMPRESS_FROM_BYTES, OutgoingMessage
from lastwrite.rocketmq.network.route import MessageQueue, queue_of

_NAMES = {"key", "body", "body_base64", "tag", "properties"}


def send(
    name_server: str,
    topic: str,
    messages: Iterable[OutgoingMessage | Mapping[str, object]],
    *,
    queue: int | None = None,
    broker: str | None = None,
    timeout: float = TIMEOUT_SECONDS,
) -> list[SendResult]:
    """Send messages one after the other. Returns the queue, offset and id of each.

    Args:
        name_server: ``HOST:PORT``; semicolons separate several.
        topic: the topic's name.
        messages: values of ``OutgoingMessage``, or mappings for ``parse_message``.
        queue: the queue for all messages. None selects a queue by the key's hash, as RocketMQ's
            client does. Compaction needs this, because it compares only keys of one queue.
        broker: the broker whose queues are used; None means all brokers.
        timeout: seconds for each request.

    Raises:
        InvalidConfig: the queue does not exist, or brokers would not accept a message. Earlier
            messages are already sent.
        RemoteFailed: the server does not answer, or rejects the request.
    """
    return list(send_each(name_server, topic, messages, queue, broker, timeout))


def send_each(
    name_server: str,
    topic: str,
    messages: Iterable[OutgoingMessage | Mapping[str, object]],
    queue: int | None = None,
    broker: str | None = None,
    timeout: float = TIMEOUT_SECONDS,
) -> Iterator[SendResult]:
    """Like ``send``, but sends each message when the caller requests its result."""
    with RocketmqClient(name_server, timeout) as client:
        queues = [known for known in client.route(topic).writable if broker in (None, known.broker)]
        if queue is not None:
            queues = [known for known in queues if known.queue == queue]
        if not queues:
            raise InvalidConfig(
                f"{topic} has no writable queue with this number and broker",
                path=name_server,
                remedy="choose a queue and a broker of the topic",
            )
        for message in messages:
            outgoing = message if isinstance(message, OutgoingMessage) else parse_message(message)
            yield client.send(_queue_for(outgoing, queues), outgoing)


def _queue_for(message: OutgoingMessage, queues: list[MessageQueue]) -> MessageQueue:
    return queues[0] if message.key is None else queue_of(message.key, queues)


def parse_message(
    given: Mapping[str, object],
    compression: Compression = Compression.ZLIB,
    compress_from: int = COMPRESS_FROM_BYTES,
) -> OutgoingMessage:
    """Parse a message from ``{"key": …, "body": …, "tag": …, "properties": {…}}``.

    ``body`` is text. ``body_base64`` may replace it and contains bytes. If both are null or
    missing, the message deletes the key.

    Raises:
        InvalidConfig: a name is unknown, or a value is not text.
    """
    if unknown := set(given) - _NAMES:
        raise InvalidConfig(
            f"a message has no field {sorted(unknown)[0]!r}",
            remedy=f"use the fields {', '.join(sorted(_NAMES))}",
        )
    body, coded = _text(given, "body"), _text(given, "body_base64")
    if body is not None and coded is not None:
        raise InvalidConfig("a message has both body and body_base64; give one of them")
    try:
        data = None if body is None else body.encode()
        if coded is not None:
            data = base64.b64decode(coded, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidConfig(f"body_base64 is not base64: {error}") from error
    properties = given.get("properties")
    if properties is None:
        properties = {}
    if not isinstance(properties, Mapping) or not all(
        isinstance(text, str) for pair in properties.items() for text in pair
    ):
        raise InvalidConfig("properties must be an object whose values are strings")
    return OutgoingMessage(
        _text(given, "key"), data, _text(given, "tag"), properties, compression, compress_from
    )


def _text(given: Mapping[str, object], name: str) -> str | None:
    value = given.get(name)
    if value is not None and not isinstance(value, str):
        raise InvalidConfig(f"the field {name} of a message must be a string, not {value!r}")
    return value
