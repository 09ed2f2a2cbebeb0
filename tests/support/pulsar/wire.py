"""A producer that sends raw entries, such as those of old clients.

    with Wire(broker.address) as wire:
        wire.send(topic, [Frame(entry), ...])

Source: Pulsar's binary protocol (CommandProducer, CommandSend). docs/formats/pulsar.md, "Entry".
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from types import TracebackType
from typing import NamedTuple

from tests.support.sockets import received

CONNECT, CONNECTED, PRODUCER, SEND, SEND_RECEIPT, SEND_ERROR = 2, 3, 5, 6, 7, 8
ERROR, CLOSE_PRODUCER, SUCCESS, PRODUCER_SUCCESS, PING, PONG, LOOKUP, LOOKUP_RESPONSE = (
    14,
    15,
    13,
    17,
    18,
    19,
    23,
    24,
)


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def message(*fields: tuple[int, int | bytes]) -> bytes:
    """A protobuf message with the fields in the given order. Bytes follow their length."""
    return b"".join(
        varint(number << 3) + varint(value)
        if isinstance(value, int)
        else varint(number << 3 | 2) + varint(len(value)) + value
        for number, value in fields
    )


class Frame(NamedTuple):
    """The bytes of an entry: checksum prefix or none, metadata size, metadata, payload.

    ``is_marker`` tells the broker that the entry is a marker. Otherwise, the broker takes a marker
    for a message when it looks for the topic's last one.
    """

    data: bytes
    is_marker: bool = False


class Wire:
    """A connection to a broker that owns every topic."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=30)
        self._request = 0
        self._ask(CONNECT, message((1, b"tests"), (4, 19)), CONNECTED)

    def send(self, topic: str, frames: Sequence[Frame]) -> None:
        """Send the frames in order."""
        self._request += 1
        name = topic.encode()
        self._ask(LOOKUP, message((1, name), (2, self._request)), LOOKUP_RESPONSE)
        self._ask(
            PRODUCER, message((1, name), (2, self._request), (3, self._request)), PRODUCER_SUCCESS
        )
        for sequence, frame in enumerate(frames):
            self._say(
                SEND,
                message((1, self._request), (2, sequence), (3, 1), (8, frame.is_marker)),
                frame.data,
            )
            self._await(SEND_RECEIPT)
        self._ask(CLOSE_PRODUCER, message((1, self._request), (2, self._request)), SUCCESS)

    def __enter__(self) -> Wire:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._socket.close()

    def _say(self, kind: int, body: bytes, frame: bytes = b"") -> None:
        command = message((1, kind), (kind, body))
        self._socket.sendall(
            struct.pack(">II", 4 + len(command) + len(frame), len(command)) + command + frame
        )

    def _ask(self, kind: int, body: bytes, answer: int) -> None:
        self._say(kind, body)
        self._await(answer)

    def _await(self, answer: int) -> None:
        while True:
            (size,) = struct.unpack(">I", received(self._socket, 4))
            command = received(self._socket, size)[4:]
            kind = command[1]  # field 1, a number below 128, comes first
            if kind == PING:
                self._say(PONG, b"")
            elif kind == answer:
                return
            elif kind in (ERROR, SEND_ERROR):
                raise RuntimeError(f"the broker says: {command!r}")
